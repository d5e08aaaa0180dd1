"""Demand curves: hours and rates, rate curves, traces and size classes."""

import numpy as np
import pytest

from tokonomics.errors import BadInput
from tokonomics.fleet.traffic import demand_from_trace, parse_demand
from tokonomics.money.purchases import Demand, demand_of, machines_needed
from tokonomics.traffic.trace import make_trace


def test_hours_and_rates_repeat_over_the_week() -> None:
    demand = parse_demand("12x20,12x2")
    assert demand.hours == 168
    assert demand.total == tuple(([20.0] * 12 + [2.0] * 12) * 7)
    assert (demand.peak, demand.mean) == (20, 11)


def test_no_hour_that_was_written_is_left_out_unless_asked() -> None:
    """Two quiet weeks before a busy one: the fleet is bought for the busy one."""
    demand = parse_demand("336x5,168x50")
    assert (demand.hours, demand.peak) == (504, 50)
    assert parse_demand("336x5,168x50", hours=168).peak == 5
    with pytest.raises(BadInput):
        parse_demand("400x5,400x50")


def test_a_daily_curve_keeps_its_mean_and_reaches_its_peak() -> None:
    demand = parse_demand("diurnal:5,peak=2", hours=24)
    assert demand.mean == pytest.approx(5)
    assert demand.peak == pytest.approx(10, rel=0.01)
    assert np.argmax(demand.total) in (11, 12)


def test_a_trace_becomes_its_own_hours_and_size_classes() -> None:
    arrival = np.concatenate([np.arange(0, 3600, 10), np.arange(3600, 7200, 5)])
    tokens = np.where(np.arange(len(arrival)) % 4 == 0, 9000, 100)
    demand = demand_from_trace(make_trace(arrival, tokens, np.full(len(arrival), 50)), up_to_tokens=(4000,))
    assert list(demand.rates) == ["≤ 4,000 tokens", "> 4,000 tokens"]
    assert demand.total == pytest.approx((0.1, 0.2), rel=0.002)
    assert demand.rates["> 4,000 tokens"] == pytest.approx((0.025, 0.05), rel=0.002)


def test_a_horizon_or_a_log_of_more_than_a_month_is_refused() -> None:
    long_log = make_trace(np.arange(800) * 3600.0, np.full(800, 10), np.full(800, 10))
    with pytest.raises(BadInput) as refused:
        parse_demand("12x20,12x2", hours=8760)
    assert refused.value.field == "hours"
    with pytest.raises(BadInput):
        demand_of([1.0]).over(745)
    with pytest.raises(BadInput):
        demand_from_trace(long_log)
    assert parse_demand("700x1,700x2", hours=3).total == (1, 1, 1)  # More written than is asked for.


def test_machines_are_whole_and_share_their_time_among_classes() -> None:
    assert machines_needed(demand_of([0, 1, 2.0001, 10]), {"all": 1.0}) == (0, 1, 3, 10)
    mixed = Demand(rates={"short": (2.0,), "long": (1.0,)})
    assert machines_needed(mixed, {"short": 4.0, "long": 2.0}) == (1,)


@pytest.mark.parametrize("text", ["12x", "x20", "1.5x20", "12x-1", "", "0x5", "burst:10", "12x1e99"])
def test_a_demand_that_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(BadInput) as refused:
        parse_demand(text)
    assert refused.value.field == "demand"
