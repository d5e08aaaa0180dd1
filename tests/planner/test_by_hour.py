"""What each hour of a day needs of a plan's pick: the fewest replicas that hold it, and no more than the plan has."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.planner.small_catalogue import OFFERS, asked, offer
from tests.there import there

from tokonomics.planner.by_hour import fewest_by_hour, replicas_by_hour
from tokonomics.planner.plan import Study, study
from tokonomics.sizing.load import load_of_log, load_of_shape
from tokonomics.traffic.arrivals import parse_arrivals, swing_of_curve, swing_of_log
from tokonomics.traffic.slo import parse_slos
from tokonomics.traffic.trace import make_trace

RATE, DAY, LENGTHS = 0.6, "diurnal:0.6,peak=2", ("const:3000", "const:300")
SLOS = parse_slos("ttft_p99=4,tpot_p99=100ms")


@pytest.fixture(scope="module")
def day() -> Study:
    load = load_of_shape(RATE, *LENGTHS, arrivals=DAY)
    return study(asked(load=load, offers=OFFERS[:1], slos=SLOS, simulate=True))


@given(st.lists(st.integers(0, 100), min_size=1, max_size=30), st.integers(1, 12), st.integers(1, 20))
def test_bisection_finds_what_trying_every_number_finds(rates: list[int], most: int, each: int) -> None:
    """Replicas that hold ``each`` requests a second: of the numbers up to the plan's, the first that is enough."""
    found = fewest_by_hour(rates, most, lambda replicas, hour: rates[hour] <= replicas * each)
    enough = ([count for count in range(1, most) if rate <= count * each] for rate in rates)
    assert found == [min(counts, default=most) for counts in enough]


def test_a_large_fleet_is_never_given_too_few() -> None:
    rates = np.random.default_rng(0).uniform(0, 100, 24).tolist()
    found = fewest_by_hour(rates, 100, lambda replicas, hour: rates[hour] <= replicas)
    assert all(rate <= number <= rate + 100 / 12 for rate, number in zip(rates, found, strict=True))


def test_every_hour_gets_the_fewest_replicas_that_hold_its_rate_and_no_more_than_the_plan(day: Study) -> None:
    best, swing = there(day.plan.best), there(swing_of_curve(parse_arrivals(DAY), RATE))
    found = there(replicas_by_hour(day, swing))
    assert best.replicas > 1
    assert max(found.replicas) <= best.replicas
    assert found.replicas == found.replicas[::-1]  # a sinusoid's day
    assert list(found.replicas[:12]) == sorted(found.replicas[:12])
    # Sized apart: a plan for a steady load at the hour's rate, over 0.97, on as many of the same GPU.
    for hour in (3, 8):
        alone = load_of_shape(swing.hours[hour] / 0.97, *LENGTHS)
        apart = there(study(replace(day.question, load=alone)).plan.best)
        assert apart.deployment == best.deployment
        assert found.replicas[hour] == min(apart.replicas, best.replicas)


def test_the_bill_by_the_hour_is_the_machines_of_each_hour_and_their_starts_at_the_picks_price(day: Study) -> None:
    best = there(day.plan.best)
    found = there(replicas_by_hour(day, swing_of_curve(parse_arrivals(DAY), RATE)))
    # The day repeats: the machines that an hour has beyond the one before it were started before it.
    starts = sum(max(0, found.machines[hour] - found.machines[hour - 1]) for hour in range(24))
    assert starts > 0 < found.cold_start_s
    hours = (sum(found.machines) + starts * found.cold_start_s / 3600) / 24
    bill = hours * best.instance_usd_per_hour * 730
    assert found.usd_per_month == pytest.approx(bill)
    assert found.saved_usd_per_month == pytest.approx(best.usd_per_month - bill)
    assert found.saved_share == pytest.approx(1 - bill / best.usd_per_month)


@given(st.lists(st.tuples(st.integers(1, 100), st.integers(1, 12)), min_size=1, max_size=20))
def test_a_quiet_hour_of_long_prompts_gets_what_it_needs(hours: list[tuple[int, int]]) -> None:
    """In a log the rate does not tell what an hour needs."""
    found = fewest_by_hour([rate for rate, _ in hours], 12, lambda count, hour: count >= hours[hour][1], alike=False)
    assert all(count >= needed for count, (_, needed) in zip(found, hours, strict=True))


def test_nothing_is_said_of_hours_of_even_traffic_a_lone_replica_or_a_plan_not_simulated(day: Study) -> None:
    swing = swing_of_curve(parse_arrivals(DAY), RATE)
    assert replicas_by_hour(day, None) is None
    little = load_of_shape(0.05, *LENGTHS, arrivals="diurnal:0.05,peak=2")
    alone = study(asked(load=little, offers=OFFERS[:1], simulate=True))
    assert there(alone.plan.best).replicas == 1
    assert replicas_by_hour(alone, swing) is None
    closed = study(replace(day.question, simulate=False))
    assert replicas_by_hour(closed, swing) is None


def test_hours_of_a_log_are_its_own_requests() -> None:
    """Two quiet hours around a busy one: the busy one needs the plan's replicas, the quiet ones fewer."""
    counts = (300, 12_000, 300)
    arrival_s = np.concatenate([3600 * hour + np.linspace(0, 3599, count) for hour, count in enumerate(counts)])
    size = len(arrival_s) + 1
    trace = make_trace([*arrival_s, 3 * 3600.0], [1000] * size, [100] * size)
    load = load_of_log(trace)
    found = study(
        asked(load=load, offers=(offer("L4", 1, 0.7),), slos=parse_slos("ttft_p99=2,tpot_p99=100ms"), simulate=True)
    )
    number = there(found.plan.best).replicas
    hours = there(replicas_by_hour(found, swing_of_log(trace)))
    assert number > 1
    assert hours.replicas == (1, number, 1)
    assert not hours.is_daily
