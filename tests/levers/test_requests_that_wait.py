"""Requests that can wait: moved later to quiet hours, served last, with a fleet that is sized for the others."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from tests.deployed import on
from tests.planner.small_catalogue import TODAY, offer

from tokonomics.errors import spelled
from tokonomics.levers.batch_work import LAST, deferred, levelled, waiting, with_waiting
from tokonomics.levers.lever_list import Choices, Lever, all_levers
from tokonomics.levers.ranking import Ranked, rank_levers
from tokonomics.serving.class_outcome import class_outcomes
from tokonomics.serving.fleet_settings import FleetSettings
from tokonomics.serving.simulator import simulate
from tokonomics.sizing.bill import Bill, Bills
from tokonomics.sizing.layouts import NotServed
from tokonomics.sizing.load import Load, load_of_log
from tokonomics.sizing.setup import Setup
from tokonomics.traffic.slo import ServiceClass, parse_slos
from tokonomics.traffic.tenants import classed
from tokonomics.traffic.trace import make_trace

SLOS = parse_slos("ttft_p99=1")
BUSY_HOURS = 4


@cache
def day() -> Load:
    """Four busy hours at four requests a second, then eight at half a request."""
    draw = np.random.default_rng(0)
    rates = [4.0] * BUSY_HOURS + [0.5] * 8
    times = np.concatenate([hour * 3600 + draw.uniform(0, 3600, int(rate * 3600)) for hour, rate in enumerate(rates)])
    return load_of_log(make_trace(times, np.full(len(times), 1000), np.full(len(times), 200)))


def setup(load: Load | None = None) -> Setup:
    return Setup(on(gpu="L4"), load or day(), (offer("L4", 1, 0.7),), TODAY, SLOS)


def lever(share: float | None) -> Lever:
    return next(one for one in all_levers(Choices(batch_share=share)) if one.knob == "waiting")


@cache
def moved(share: float) -> Setup:
    changed = lever(share).apply(setup())
    assert isinstance(changed, Setup)
    return changed


def test_hours_are_filled_up_to_one_level() -> None:
    """5 + 3 + 1 and 9 more make three parts of 6; the part with 20 gets nothing."""
    assert levelled(np.array([5, 20, 3, 1]), 9).tolist() == [1, 0, 3, 5]
    assert levelled(np.array([7, 7]), 4).tolist() == [2, 2]
    assert levelled(np.array([0, 100]), 10).tolist() == [10, 0]


def test_the_share_waits_and_all_requests_stay() -> None:
    changed = moved(0.3).load
    assert waiting(changed.trace).mean() == pytest.approx(0.3, abs=0.01)
    assert len(changed.trace) == len(day().trace)
    assert changed.workload == day().workload
    assert np.all(np.diff(changed.trace.arrival_s) >= 0)


def test_no_hour_is_busier_than_its_urgent_requests_or_the_level() -> None:
    trace = moved(0.3).load.trace
    edges = np.linspace(trace.arrival_s[0], trace.arrival_s[-1], 13)
    urgent, _ = np.histogram(trace.arrival_s[~waiting(trace)], edges)
    total, _ = np.histogram(trace.arrival_s, edges)
    # All that waits, 0.3 × 72,000 requests, fits in the eight quiet hours.
    level = (0.7 * 8 * 1800 + 0.3 * (BUSY_HOURS * 14_400 + 8 * 1800)) / 8
    assert np.all(total <= np.maximum(urgent, level) * 1.02 + 1)
    assert total[:BUSY_HOURS].sum() == pytest.approx(0.7 * BUSY_HOURS * 14_400, rel=0.02)


def test_what_waits_comes_at_or_after_its_time() -> None:
    """But for what is moved into the next round of the traffic; the urgent keep their times."""
    told = with_waiting(day().trace, 0.3, SLOS)
    assert told is not None
    late = deferred(replace(day(), trace=told)).trace
    assert np.array_equal(late.arrival_s[~waiting(late)], told.arrival_s[~waiting(told)])
    before, after = told.arrival_s[waiting(told)], late.arrival_s[waiting(late)]
    turn = int(np.searchsorted(after, before[0]))
    assert np.all(np.append(after[turn:], after[:turn] + told.arrival_s[-1])[: len(before)] - before >= -3600 / 1800)


def test_the_fleet_is_sized_for_the_others_and_finishes_all() -> None:
    now, changed = Bills().bill_of(setup()), Bills().bill_of(moved(0.5))
    assert isinstance(now, Bill)
    assert isinstance(changed, Bill)
    assert changed.replicas < now.replicas
    served = simulate(
        moved(0.5).deployment,
        moved(0.5).load.trace,
        FleetSettings(replicas=changed.replicas, router=changed.router),
        max_sequences=changed.max_sequences,
    )
    urgent, waits = class_outcomes(served)
    assert urgent.breaks is None
    assert urgent.slo[0].met
    assert waits.completed == waits.requests
    assert waits.priority == LAST


def test_it_needs_to_be_said_which_requests_can_wait() -> None:
    for share in (None, 0.0):
        assert isinstance(lever(share).apply(setup()), NotServed)
    assert isinstance(lever(0.5).apply(replace(setup(), slos=())), NotServed)
    assert isinstance(lever(0.5).apply(replace(setup(), offline=True)), NotServed)


def test_classes_without_targets_can_wait() -> None:
    trace = day().trace
    classes = (ServiceClass(name="chat", slos=SLOS), ServiceClass(name="reports", share=0.2, priority=1))
    service = (np.arange(len(trace)) % 5 == 0).astype(np.int32)
    load = replace(day(), trace=replace(trace, service=service, classes=classes, priority=service))
    changed = lever(None).apply(replace(setup(load), slos=()))
    assert isinstance(changed, Setup)
    assert changed.load.trace.classes == classes
    assert waiting(changed.load.trace).sum() == service.sum()


def test_levers_together_try_a_fleet_that_is_sized_for_fewer_requests() -> None:
    """Half of the requests wait: fewer replicas, and the bill of all levers together is no higher than of this one."""
    levers = [one for one in all_levers(Choices(batch_share=0.5)) if one.knob in ("waiting", "kv")]
    made = rank_levers(setup(), levers)
    assert isinstance(made, Ranked)
    alone = next(one for one in made.ranking.levers if one.knob == "waiting")
    assert alone.saved_usd_per_month > 0
    assert alone.name in made.ranking.taken
    assert made.ranking.together.usd_per_month <= made.ranking.now.usd_per_month - alone.saved_usd_per_month + 0.01
    assert waiting(made.setup.load.trace).mean() == pytest.approx(0.5, abs=0.01)


def test_a_share_of_classes_that_all_have_targets_is_refused_as_that() -> None:
    classes = tuple(ServiceClass(name=name, share=share, slos=SLOS) for name, share in (("gold", 0.4), ("rest", 0.6)))
    load = replace(day(), trace=classed(day().trace, classes))
    asked = "--batch-share=50% does not go with classes"
    for share, conflict in ((0.5, f", and {asked}"), (None, "")):
        refused = lever(share).apply(setup(load))
        assert isinstance(refused, NotServed)
        said = spelled(refused.reason, lambda field, value: f"--{field.replace('_', '-')}={value}")
        assert said == f"none of the classes can wait{conflict}: give targets only to those that cannot"
