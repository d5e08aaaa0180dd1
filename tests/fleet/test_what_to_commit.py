"""What a fleet is advised to reserve: from machines and their sizing to steps, bills and refusals."""

import datetime as dt
from typing import Any

import numpy as np
import pytest

from tokonomics.catalog.engines import find_engine
from tokonomics.catalog.layers import Precision
from tokonomics.catalog.load_models import find_model
from tokonomics.catalog.offers import Offer
from tokonomics.errors import BadInput
from tokonomics.fleet import commitments as committing
from tokonomics.fleet.commitments import CommitmentReport, Outlook, commitments
from tokonomics.fleet.offers import FleetMarket, Machines, fleet_machines
from tokonomics.fleet.traffic import FleetTraffic, parse_demand, traffic_from_curve
from tokonomics.physics.intervals import Interval
from tokonomics.traffic.lengths import parse_lengths
from tokonomics.traffic.slo import parse_slos
from tokonomics.units import HOURS_PER_MONTH

TODAY = dt.date(2026, 11, 15)
SLOS = parse_slos("ttft_p99=2,tpot_p99=0.1")


def offer(gpu: str, usd: float, **more: object) -> Offer:
    fields = {"provider": "ours", "region": "here", "instance": gpu, "gpu": gpu, "gpus": 1}
    return Offer.model_validate({**fields, "usd_per_hour": usd, "date": TODAY, "source": "a test", **more})


@pytest.fixture(scope="module")
def traffic() -> FleetTraffic:
    return traffic_from_curve(parse_demand("12x24,12x6", 24), parse_lengths("const:700"), parse_lengths("const:120"))


@pytest.fixture(scope="module")
def machines(traffic: FleetTraffic) -> Machines:
    sold = [offer("L40S", 2.0, reserved_1yr_usd_per_hour=1.2)]
    weights = (Precision.bf16,)
    market = FleetMarket(today=TODAY)
    return fleet_machines(find_model("llama-3.1-8b"), find_engine("vllm"), sold, traffic, SLOS, market, weights=weights)


@pytest.fixture
def certain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither prices nor speeds move."""
    monkeypatch.setattr(
        committing, "drawn_prices", lambda moves, months, paths, rng: rng.uniform(1, 1, (paths, months))
    )
    monkeypatch.setattr(committing, "interval", lambda mid, *_: Interval(low=mid, mid=mid, high=mid))


def advised(machines: Machines, traffic: FleetTraffic, **outlook: Any) -> CommitmentReport:
    return commitments(machines, traffic, SLOS, Outlook(**{"months": 24, **outlook}), TODAY)


@pytest.mark.usefixtures("certain")
def test_the_bill_without_uncertainty_is_the_machines_hours(machines: Machines, traffic: FleetTraffic) -> None:
    found = advised(machines, traffic, usd_per_gpu_hour={"1 year": 0.6})
    peak = found.peak_machines[0].mid
    assert found.ways[0].usd_per_month == pytest.approx(peak * 0.6 * HOURS_PER_MONTH)
    assert found.owed_usd == pytest.approx(24 * found.ways[0].usd_per_month)


def test_the_same_seed_gives_the_same_advice_and_the_bound_holds(machines: Machines, traffic: FleetTraffic) -> None:
    first, again = (advised(machines, traffic, growth=(0.0, 0.03, 0.06), noise=0.05) for _ in range(2))
    assert first == again
    *ways, bound = first.ways
    assert bound.name == "perfect foresight"
    assert all(way.usd_per_month >= bound.usd_per_month for way in ways)
    assert all(way.worst_tenth_usd_per_month >= way.usd_per_month for way in first.ways)
    # What is decided beats renting everything, on paths that it has not seen.
    assert first.ways[0].usd_per_month < first.ways[1].usd_per_month


def test_steps_add_up_to_what_is_reserved_and_end_within_the_horizon(machines: Machines, traffic: FleetTraffic) -> None:
    found = advised(machines, traffic, growth=(0.06, 0.08, 0.1))
    reserved = [0] * 24
    for step in found.steps:
        assert step.term == "1 year"
        assert step.month % committing.STEP_MONTHS == 0
        assert step.month + 12 <= 24
        for month in range(step.month, step.month + 12):
            reserved[month] += step.machines
    assert tuple(reserved) == found.reserved
    assert max(found.reserved) > found.reserved[0]  # more is reserved as demand grows
    assert [step.date for step in found.steps] == sorted(step.date for step in found.steps)


def test_growing_demand_is_sized_anew(machines: Machines, traffic: FleetTraffic) -> None:
    """A machine of a larger fleet carries more: bursts even out. So ten times the demand takes less than ten times."""
    small = advised(machines, traffic, growth=(0.0, 0.0, 0.0))
    large = advised(machines, traffic, growth=(0.1, 0.1, 0.1))
    grown = 1.1**23
    assert 0.7 * grown < large.peak_machines[-1].mid / small.peak_machines[-1].mid <= grown


def test_a_cheaper_machine_that_cannot_be_reserved_is_named(traffic: FleetTraffic) -> None:
    sold = [offer("L40S", 2.0, reserved_1yr_usd_per_hour=1.2), offer("H100-SXM", 0.5)]
    both = fleet_machines(
        find_model("llama-3.1-8b"), find_engine("vllm"), sold, traffic, SLOS, FleetMarket(today=TODAY),
        weights=(Precision.bf16,),
    )  # fmt: skip
    found = advised(both, traffic)
    assert found.machine.gpu == "L40S"
    assert found.elsewhere is not None
    assert found.elsewhere.gpu == "H100-SXM"
    assert found.best_elsewhere


def test_without_a_quote_it_asks_for_one(traffic: FleetTraffic) -> None:
    alone = fleet_machines(
        find_model("llama-3.1-8b"), find_engine("vllm"), [offer("L40S", 2.0)], traffic, SLOS, FleetMarket(today=TODAY),
        weights=(Precision.bf16,),
    )  # fmt: skip
    with pytest.raises(BadInput) as refused:
        advised(alone, traffic)
    assert "commit_price" in (refused.value.fix or "") or "--commit-price" in (refused.value.fix or "")
    assert "aws us-east-1, qubrid" in (refused.value.fix or "")


@pytest.mark.parametrize(("low", "mid", "high"), [(-0.02, 0.03, 0.1), (0.0, 0.0, 0.06), (0.0, 0.06, 0.06)])
def test_growth_is_drawn_from_the_whole_range(low: float, mid: float, high: float) -> None:
    """The mean of a triangular distribution, and its variance, by their closed forms."""
    shares = (np.arange(10_000) + 0.5) / 10_000
    drawn = committing._triangular(shares, low, mid, high)
    assert low <= drawn.min() <= drawn.max() <= high
    assert drawn.mean() == pytest.approx((low + mid + high) / 3, abs=1e-6)
    variance = (low**2 + mid**2 + high**2 - low * mid - low * high - mid * high) / 18
    assert drawn.var() == pytest.approx(variance, rel=1e-3)
