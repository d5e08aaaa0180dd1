"""``plan`` and ``tenants`` with a price to sell at: revenue from the traffic they plan for, against their bill."""

from datetime import date
from pathlib import Path

import pytest
from tests.measure.ledgers import day_of, ledger_of

from tokonomics.errors import BadInput
from tokonomics.questions.meter import meter_report
from tokonomics.questions.plan import plan
from tokonomics.questions.requests.buy import PlanRequest
from tokonomics.questions.requests.run import MeterReportRequest
from tokonomics.questions.requests.traffic import TenantsRequest
from tokonomics.questions.results import PlanModels, PlanResult
from tokonomics.questions.tenants import tenants
from tokonomics.report.meter_view import meter_report as shown_meter
from tokonomics.report.plan_view import plan as shown_plan

MONTH_S = 730 * 3600
TRAFFIC = {"rate": 5, "input": "const:1000", "output": "const:300", "quick": True, "gpu": ["L4"]}


def planned(**asked: object) -> PlanResult:
    found = plan(PlanRequest.checked({"model": ["llama-3.1-8b"]} | TRAFFIC | asked))
    assert isinstance(found, PlanResult)
    return found


def test_a_plan_earns_its_requests() -> None:
    """5 requests a second of 1,000 in at $0.20 and 300 out at $0.80 earn $0.0022 a second."""
    found = planned(sell="0.20/0.80")
    assert found.sale is not None
    assert found.best is not None
    assert found.sale.month.revenue_usd == pytest.approx(0.0022 * MONTH_S)
    assert found.sale.month.cost_usd == found.best.usd_per_month
    requests = found.best.usd_per_month / MONTH_S / (0.0022 / 5)
    assert found.sale.break_even_requests_per_s == pytest.approx(requests)
    capacity = found.best.replicas * found.best.capacity_requests_per_s
    assert found.sale.break_even_load == pytest.approx(requests / capacity)


def test_a_margin_gives_a_price_over_input_and_output_cost() -> None:
    found = planned(margin="40%")
    assert found.sale is not None
    assert found.best is not None
    assert found.sale.month.margin_share == pytest.approx(0.4)
    assert found.sale.usd_per_mtok.output == pytest.approx(found.best.usd_per_mtok.output / 0.6)


def test_without_a_price_nothing_is_said_of_it() -> None:
    assert "sale" not in planned().plain()


def test_each_model_earns_on_its_own_bill() -> None:
    found = plan(PlanRequest.checked(TRAFFIC | {"model": ["llama-3.1-8b", "qwen3-8b"], "sell": "0.2/0.8"}))
    assert isinstance(found, PlanModels)
    assert [sale.model for sale in found.sales] == [row.model for row in found.models]
    assert [sale.month.cost_usd for sale in found.sales] == [row.usd_per_month for row in found.models]


def test_a_range_of_demands_has_no_one_price() -> None:
    with pytest.raises(BadInput, match="is for one demand"):
        planned(rate="2:5:10", sell="0.2/0.8")


def test_tenants_margins_add_up_to_the_fleets() -> None:
    asked = {
        "model": "llama-3.1-8b", "gpu": "L4", "tenants": "3,skew=1", "rate": "1", "input": "const:200",
        "output": "const:20", "requests": 200, "usd_per_hour": 1.0, "margin": "25%",
    }  # fmt: skip
    found = tenants(TenantsRequest.checked(asked))
    sale = found.sale
    assert sale is not None
    assert sale.hour.cost_usd == found.together.usd_per_hour
    assert sale.hour.margin_share == pytest.approx(0.25)
    assert sum(row.hour.revenue_usd for row in sale.tenants) == pytest.approx(sale.hour.revenue_usd)
    assert sum(row.hour.cost_usd for row in sale.tenants) == pytest.approx(sale.hour.cost_usd)
    one = found.tenants[0]
    hours = found.duration_s / 3600
    earned = (one.input_tokens * sale.usd_per_mtok.input + one.output_tokens * sale.usd_per_mtok.output) / 1e6 / hours
    assert sale.tenants[0].hour.revenue_usd == pytest.approx(earned)


# --- people and overheads, energy and emissions stand beside the bill of ``plan`` and ``meter report`` ----------------


MONDAY = date(2026, 11, 9)
PEOPLE = {"engineers": 0.5, "engineer_usd_per_month": "14600", "overhead": ["network=10%"]}


def asked(**more: object) -> PlanRequest:
    shape = {"model": ["llama-3.1-8b"], "rate": "5", "input": "const:1000", "output": "const:300", "quick": True}
    return PlanRequest.checked(shape | {"gpu": ["H200"], "region": ["FI"]} | more)


def test_a_plan_tells_its_bill_with_people_and_what_it_emits() -> None:
    request = asked(grid="100", **PEOPLE)
    found = plan(request)
    assert isinstance(found, PlanResult)
    assert found.best
    assert found.upkeep
    assert found.energy
    assert found.upkeep.total_usd == pytest.approx(found.best.usd_per_month * 1.1 + 7300)
    assert found.energy.g_co2e_per_mtok == pytest.approx(100 * (found.energy.kwh_per_mtok or 0))
    assert found.plain()["energy"]["grid"]["place"] == "as given"
    assert "with overheads" in shown_plan(found, request).text()
    assert "g CO₂e" in shown_plan(found, request).html()


def test_few_tokens_on_a_whole_machine_are_said_without_exponents() -> None:
    request = asked(input="const:1", output="const:1", grid="900")
    text = shown_plan(plan(request), request).html()
    assert "g CO₂e" in text
    assert "e+0" not in text


def test_people_are_said_whole_and_for_one_plan() -> None:
    with pytest.raises(BadInput, match="is missing"):
        plan(asked(engineers=0.5))
    with pytest.raises(BadInput, match="is for one model at one demand"):
        plan(asked(rate="1:2:4", grid="45"))


def test_a_day_of_the_meter_pays_a_days_share_of_people(tmp_path: Path) -> None:
    """$48 of machines; half of $14,600 a month is $240 in 24 of 730 hours; 10 % of $48; 28.8 Mtok."""
    ledger = ledger_of(tmp_path / "meter.db", day_of(MONDAY))
    said = {"ledger": str(ledger), "since": "2026-11-09", "until": "2026-11-10", "gpu": "H200", "grid": "FR"}
    request = MeterReportRequest.checked(said | PEOPLE)
    found = meter_report(request)
    assert found.upkeep
    assert found.energy
    assert found.upkeep.total_usd == pytest.approx(48 + 240 + 4.8)
    assert found.upkeep.usd_per_mtok == pytest.approx((48 + 240 + 4.8) / 28.8)
    assert found.energy.kg_co2e == pytest.approx(found.energy.kwh * 0.04418)
    assert "modelled" in shown_meter(found, request).text()
