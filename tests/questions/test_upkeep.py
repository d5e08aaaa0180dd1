"""People and overheads, energy and emissions stand beside the bill of ``plan`` and ``meter report``."""

from datetime import date
from pathlib import Path

import pytest
from tests.measure.ledgers import day_of, ledger_of

from tokonomics.errors import BadInput
from tokonomics.questions.meter import meter_report
from tokonomics.questions.plan import plan
from tokonomics.questions.requests.buy import PlanRequest
from tokonomics.questions.requests.run import MeterReportRequest
from tokonomics.questions.results import PlanResult
from tokonomics.report.meter_view import meter_report as shown_meter
from tokonomics.report.plan_view import plan as shown_plan

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
