"""``plan`` and ``tenants`` with a price to sell at: revenue from the traffic they plan for, against their bill."""

import pytest

from tokonomics.errors import BadInput
from tokonomics.questions.plan import plan
from tokonomics.questions.requests.buy import PlanRequest
from tokonomics.questions.requests.traffic import TenantsRequest
from tokonomics.questions.results import PlanModels, PlanResult
from tokonomics.questions.tenants import tenants

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
