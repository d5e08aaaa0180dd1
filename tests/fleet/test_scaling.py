"""Ways to follow a day's traffic: lags and bills that can be worked out by hand."""

import math

import numpy as np
import pytest
from tests.deployed import on
from tests.money.simple_offers import simple_offer

from tokonomics.errors import BadInput
from tokonomics.fleet import scaling
from tokonomics.fleet.layouts import FleetLayout
from tokonomics.fleet.offers import Machines
from tokonomics.fleet.scaling import (
    LOOKS_S,
    ORDERS_S,
    ScalingReport,
    ordered_ahead,
    outstanding,
    paid_seconds,
    scaling_ways,
    shortfall,
)
from tokonomics.fleet.traffic import FleetTraffic, days_of
from tokonomics.money.purchases import EVERY_SIZE, demand_of
from tokonomics.serving.fleet_settings import Autoscale, FleetSettings
from tokonomics.serving.simulator import simulate
from tokonomics.traffic.slo import parse_slos
from tokonomics.traffic.trace import Trace, make_trace
from tokonomics.units import DAY_S, HOURS_PER_MONTH

L40S = on(gpu="L40S")
COLD_S = 200.0


def steady(rates: list[float], each_s: float) -> Trace:
    parts = [place * each_s + np.arange(round(rate * each_s)) / rate for place, rate in enumerate(rates)]
    arrival_s = np.concatenate(parts)
    return make_trace(arrival_s, np.full(len(arrival_s), 500), np.full(len(arrival_s), 50))


def scaled_by(trace: Trace, rates: list[float], carries: float = 1.0, **more: object) -> ScalingReport:
    """On machines that carry some requests a second, at $2 an hour, that start in 200 s."""
    offer = simple_offer("one", carries, 2.0, startup_s=COLD_S, **more)
    machines = Machines((offer,), {}, {"one": FleetLayout(L40S, {})}, 10.0)
    traffic = FleetTraffic(demand_of(rates), {EVERY_SIZE: trace}, (), trace)
    return scaling_ways(machines, traffic, parse_slos("ttft_p99=5"), room=0.0)


def three_days(quiet: float, busy: float) -> list[float]:
    """Eight busy hours in the middle of each day, and the first hour of a fourth."""
    return [*([quiet] * 8 + [busy] * 8 + [quiet] * 8) * 3, quiet]


def test_a_replica_asked_for_by_schedule_serves_a_cold_start_later() -> None:
    rule = Autoscale(max_replicas=3, target=None, cold_start_s=COLD_S, schedule=((0.0, 1), (300.0, 3), (900.0, 1)))
    served = simulate(L40S, steady([1.0], 1800.0), FleetSettings(autoscale=rule.model_copy(update={"hold_s": 0.0})))
    assert served.history[0].tolist() == [0.0, 1.0, 1.0]
    up = {count: at_s for at_s, _, count in reversed(served.history.tolist())}
    assert up[3] == 300.0 + COLD_S
    # Paid from the order to the end of the schedule; nothing is outstanding long enough to keep them.
    extra = paid_seconds(served.history, 1800.0) - 1800.0
    assert extra == pytest.approx(2 * 600.0, abs=2 * LOOKS_S)


def test_the_lag_of_a_rule_is_the_next_look_and_the_cold_start() -> None:
    """A burst at 302 s that one replica cannot hold: seen at 315 s, served by more at 515 s."""
    arrival_s = np.concatenate([np.arange(302.0), np.full(400, 302.0), np.arange(303.0, 900.0)])
    trace = make_trace(arrival_s, np.full(len(arrival_s), 500), np.full(len(arrival_s), 50))
    rule = Autoscale(min_replicas=1, max_replicas=2, target=100, cold_start_s=COLD_S, interval_s=LOOKS_S)
    served = simulate(L40S, trace, FleetSettings(autoscale=rule))
    second = next(at_s for at_s, _, count in served.history.tolist() if count == 2)
    assert second == math.ceil(302 / LOOKS_S) * LOOKS_S + COLD_S
    enough = np.array([1, 2, 2])
    short_s, lags = shortfall(served.history, enough, 302.0, 560.0)
    assert lags == [pytest.approx(second - 302.0)]
    assert short_s == pytest.approx(second - 302.0)


def test_orders_are_placed_so_that_they_serve_in_time_and_not_sooner() -> None:
    needed = np.array([[1, 1, 3], [1, 3, 3], [3, 3, 1], [3, 1, 1], [1, 1, 1]])
    plan = ordered_ahead(needed, 300.0, 215.0)
    wanted = dict(plan.tolist())
    # Three are needed from 600 s on: asked for at 385 s, and until the last moment that needs them ends.
    assert wanted[300.0] == 1
    assert wanted[385.0] == 3
    assert wanted[900.0] == 3
    assert wanted[1200.0] == 1


def test_a_demand_that_repeats_is_forecast_and_followed_as_by_a_perfect_forecast() -> None:
    rates = three_days(0.02, 0.16)
    report = scaled_by(steady(rates, 3600.0), rates[:72], carries=0.1)
    by_name = {way.name: way for way in report.ways}
    predictive, perfect, fixed = by_name["predictive"], report.perfect, by_name["fixed for the peak"]
    assert report.forecast.error_share == pytest.approx(0.0, abs=1e-9)
    assert predictive.model_copy(update={"name": "", "is_perfect": True}) == perfect.model_copy(update={"name": ""})
    assert (perfect.short_minutes, perfect.most_lag_s) == (0.0, 0.0)
    # Two for eight hours and one for the rest, and the second is paid while it starts and until it is empty.
    early_s = COLD_S + ORDERS_S
    assert perfect.replica_hours_per_day == pytest.approx(24 + 8 + early_s / 3600, abs=0.02)
    assert fixed.replica_hours_per_day == pytest.approx(48.0)
    for way in report.ways:
        assert way.usd_per_day == pytest.approx(way.replica_hours_per_day * 2.0)
        assert way.usd_per_month == pytest.approx(way.usd_per_day * HOURS_PER_MONTH / 24)
    assert by_name["reactive"].usd_per_day <= fixed.usd_per_day
    best = report.best()
    assert best is not None
    assert best.usd_per_day == min(way.usd_per_day for way in report.ways if way.met and not way.is_perfect)


def test_reserved_for_the_peak_is_the_same_fleet_at_another_price() -> None:
    trace = steady([0.2, 1.6, 0.2], 1200.0)
    report = scaled_by(trace, [0.7], reserved={"1 year": 1.5, "3 years": 0.5})
    fixed, reserved = report.ways[:2]
    assert reserved.name == "fixed, reserved 3 years"
    assert reserved.usd_per_day == pytest.approx(fixed.usd_per_day / 4)
    assert reserved.slo == fixed.slo


def test_a_curve_is_judged_on_a_day_that_neither_forecast_nor_room_has_seen() -> None:
    sample = steady([1.0], 600.0)
    traffic = FleetTraffic(demand_of([0.1] * 12 + [0.3] * 12), {EVERY_SIZE: sample}, ())
    before, day = days_of(traffic, COLD_S)
    assert not np.array_equal(before.rates, day.rates)
    for one in (before, day):
        assert one.hours == 24
        assert one.rates.sum() * one.moment_s == len(one.requests)
        assert float(one.requests.arrival_s[-1]) < DAY_S
        assert not np.array_equal(one.forecasts[:, 0], one.rates)
        # Means of the same rates: apart by chance only.
        assert one.forecasts[:, 0].mean() == pytest.approx(one.rates.mean(), rel=0.05)


def test_room_and_peak_are_those_of_the_time_before_the_one_that_is_judged() -> None:
    """A log whose second half is twice as busy: a fleet for the first half's peak, and its room, is too small then."""
    trace = steady([1.5, 1.5, 3.0], 601.0)  # ten minutes for the forecast, ten to set the room, ten to judge
    report = scaled_by(trace, [2.0])
    assert report.requests == pytest.approx(1800, abs=5)
    fixed = report.ways[0]
    assert fixed.most_replicas == 2  # ⌈1.5⌉, where the judged half needs 3
    assert fixed.short_minutes == pytest.approx(10.0, abs=0.1)


def test_a_log_of_days_is_judged_on_its_busiest_day_with_the_day_before_to_set_the_room() -> None:
    rates = [0.05] * 24 + [0.02] * 24 + [0.04] * 24 + [0.03] * 24 + [0.03]
    trace = steady(rates, 3600.0)
    before, day = days_of(FleetTraffic(demand_of(rates), {EVERY_SIZE: trace}, (), trace), COLD_S)
    assert (before.rates.mean(), day.rates.mean()) == (pytest.approx(0.02, rel=0.02), pytest.approx(0.04, rel=0.02))
    assert before.forecasts[:, 0].mean() == pytest.approx(0.05, rel=0.02)
    assert day.forecasts[:, 0].mean() == pytest.approx((0.05 + 0.02) / 2, rel=0.02)


def test_ways_to_scale_need_an_slo_and_a_price_on_demand() -> None:
    trace = steady([0.2], 3600.0)
    traffic = FleetTraffic(demand_of([0.2]), {EVERY_SIZE: trace}, (), trace)
    unsold = Machines(
        (simple_offer("one", 1.0, None, reserved={"1 year": 1.0}),), {}, {"one": FleetLayout(L40S, {})}, 10.0
    )
    for slos in (parse_slos("ttft_p99=5"), ()):
        with pytest.raises(BadInput) as refused:
            scaling_ways(unsold, traffic, slos)
        assert refused.value.field == "scaling"


def test_much_traffic_is_simulated_in_part_at_the_same_bill(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a hundredth of the requests one replica would serve all, and be paid for as a hundred."""
    monkeypatch.setattr(scaling, "MOST_REQUESTS", 500)
    small, large = three_days(0.02, 0.16), three_days(0.16, 0.76)
    report = scaled_by(steady(small, 3600.0), small[:72], carries=0.1)
    by_name = {way.name: way for way in report.ways}
    assert report.simulated_share == 1
    assert by_name["fixed for the peak"].replica_hours_per_day == pytest.approx(48.0)
    assert by_name["predictive"].replica_hours_per_day == pytest.approx(24 + 8 + (COLD_S + ORDERS_S) / 3600, abs=0.02)
    report = scaled_by(steady(large, 3600.0), large[:72], carries=0.1)
    fixed = report.ways[0]
    assert report.simulated_share == pytest.approx(4 / 7.6)
    assert (fixed.name, fixed.most_replicas) == ("fixed for the peak", 4)
    assert fixed.replica_hours_per_day == pytest.approx(24 * 7.6)


def test_the_rules_target_for_some_room_is_what_a_replica_with_that_room_has_outstanding() -> None:
    """A full replica's answers take longer as well: half its load leaves far less than half of its requests."""
    rate, layout = 12.0, FleetLayout(L40S, {})
    day = steady([0.1, 1.0, 20.0], 600.0)  # a rise, as after midnight: its lengths count, not its pace

    def seen(rate: float) -> float:
        """The mean number between arrival and answer, by counting them at many moments."""
        arrival_s = np.cumsum(np.random.default_rng(1).exponential(1 / rate, size=12_000))
        served = simulate(L40S, make_trace(arrival_s, np.full(12_000, 500), np.full(12_000, 50))).served
        moments = np.linspace(0.1, 0.9, 2_000)[:, None] * arrival_s[-1]
        return float(((served.arrival_s <= moments) & (served.finish_s > moments)).sum(axis=1).mean())

    for room in (0.0, 0.5, 2.0):
        assert outstanding(layout, day, rate, rate, room) == pytest.approx(max(1.0, seen(rate / (1 + room))), rel=0.05)
    assert outstanding(layout, day, rate, rate, 1.0) < 0.45 * outstanding(layout, day, rate, rate, 0.0)
