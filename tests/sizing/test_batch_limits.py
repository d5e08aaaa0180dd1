"""The limit on sequences at a time: what trying every one would find, and no simulation longer than it needs to be."""

from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
from tests.deployed import on
from tests.planner.small_catalogue import OFFERS, TODAY, offer, planned

from tokonomics.catalog.layers import Precision
from tokonomics.serving.capacity import what_breaks
from tokonomics.serving.fleet_settings import FleetSettings, Router
from tokonomics.serving.outcome import outcome
from tokonomics.serving.simulator import simulate
from tokonomics.sizing.attempt import Attempts, Sized, _between, _least_late, attempt, cached_share
from tokonomics.sizing.load import Load, load_of_log, load_of_shape
from tokonomics.sizing.rules import SCATTERED, clearly_late, routers
from tokonomics.sizing.search import size
from tokonomics.sizing.setup import Handling, Setup
from tokonomics.traffic.generate import Sessions, SystemPrompts
from tokonomics.traffic.slo import parse_slos
from tokonomics.traffic.trace import make_trace

A100 = OFFERS[1]
ON_A100 = on(gpu="A100-80GB")


def poisson(rate: float, inputs: int, outputs: int, count: int = 2000) -> Load:
    arrival_s = np.cumsum(np.random.default_rng(11).exponential(1 / rate, count))
    return load_of_log(make_trace(arrival_s, np.full(count, inputs), np.full(count, outputs)))


def every_limit(load: Load, slo: str) -> tuple[int, set[int | None]]:
    """By trying all: the fewest replicas that hold with any limit and router, and the limits that do."""
    slos = parse_slos(slo)
    for replicas in range(1, 5):
        hold: set[int | None] = set()
        for limit in (None, *range(1, 33)):
            for router in (Router.round_robin, Router.least_outstanding)[:replicas]:
                fleet = FleetSettings(replicas=replicas, router=router)
                made = simulate(ON_A100, load.trace, fleet, max_sequences=limit)
                if what_breaks(made, outcome(made, slos, with_load=False)) is None:
                    hold.add(limit)
        if hold:
            return replicas, hold
    raise AssertionError("no fleet holds")


@pytest.mark.parametrize(
    ("rate", "inputs", "outputs", "slo"),
    [
        # Long prompts and short answers: each prompt in a step delays everybody's tokens.
        (3.5, 3000, 12, "ttft_p99=3,tpot_p99=0.07"),
        (5.0, 3000, 60, "ttft_p99=1.5,tpot_p99=0.04"),
        (7.0, 1500, 40, "ttft_p90=1,tpot_p99=0.05"),
        # Answers that slow each other: fewer at a time are each in time, and wait no longer.
        (0.894, 8000, 20, "e2e_p90=3.4"),
        (1.5, 5000, 30, "e2e_p95=3"),
        # The engine's own limit will do.
        (2.0, 1000, 100, "ttft_p99=1,tpot_p99=0.05"),
    ],
)
def test_no_fleet_of_any_limit_is_smaller_than_the_one_found(rate: float, inputs: int, outputs: int, slo: str) -> None:
    load, slos = poisson(rate, inputs, outputs), parse_slos(slo)
    replicas, hold = every_limit(load, slo)
    best = planned(load=load, slos=slos, weights=(Precision.bf16,), offers=(A100,), simulate=True).best
    assert best is not None
    assert best.replicas == replicas
    sized = size(Setup(ON_A100, load, OFFERS, TODAY, slos))
    assert isinstance(sized, Sized)
    assert sized.replicas == replicas
    assert sized.max_sequences in hold


@pytest.mark.parametrize("slo", ["ttft_p99=1.5", "tpot_p99=0.1,ttft_p99=9", "e2e_p90=2"])
def test_a_simulation_that_ends_early_misses_what_the_whole_misses(slo: str) -> None:
    """Far too slow, too slow by little, and in time: the judgement is that of all requests."""
    slos = parse_slos(slo)
    ends = []
    for rate in (1.5, 2.5, 3.5, 6.0):
        load = poisson(rate, 3000, 12)
        tried = attempt(Setup(ON_A100, load, OFFERS, TODAY, slos), 1, whole=False)
        whole = simulate(ON_A100, load.trace)
        assert tried.holds == (what_breaks(whole, outcome(whole, slos)) is None)
        if tried.holds:
            assert tried.outcome.requests == len(load.trace)
        ends.append(tried.outcome.requests)
    assert min(ends) < len(load.trace) / 2 < max(ends)


@pytest.mark.parametrize(("slo", "tiers"), [("ttft_p99=1.5", None), ("ttft_p99=1.5", "dram=50"), ("job_p99=100", None)])
def test_sessions_that_end_early_miss_what_all_of_them_miss(slo: str, tiers: str | None) -> None:
    """Where requests wait for answers, with slower memories behind the GPU's or without."""
    ends = []
    for rate in (1.0, 12.0, 60.0):
        load = load_of_shape(rate, "const:2000", "const:40", sessions=Sessions(turns=4, think_s=5))
        load = replace(load, trace=load.trace.take(np.arange(2000)))
        setup = Setup(ON_A100, load, OFFERS, TODAY, parse_slos(slo), tiers=tiers)
        tried, whole = attempt(setup, 1, whole=False), attempt(setup, 1)
        assert tried.holds == whole.holds
        assert tried.outcome == whole.outcome or not tried.holds
        ends.append(tried.outcome.requests)
    assert ends[0] == 2000
    assert ends[-1] < 0.7 * 2000


def test_a_fleet_is_clearly_late_by_less_where_more_may_be_late() -> None:
    """Chance moves a count by its root: 200 of 20,000 may be late by half as much again as 800 of 80,000."""
    assert clearly_late(256) == 2
    assert (clearly_late(200) - 1) / (clearly_late(800) - 1) == pytest.approx(2)


def test_limits_above_one_that_was_never_reached_are_not_tried() -> None:
    """What no simulation comes up to changes nothing: all limits above it give what the engine's own gave."""
    tried = []

    def within(limit: int) -> Sized:
        tried.append(limit)
        outcome = f"of {min(limit, 60)} at a time"
        return cast(Sized, SimpleNamespace(tokens_late=1.2, wait_late=1.5, both_late=False, outcome=outcome))

    first = within(256)
    tried.clear()
    assert len(list(_between(within, first, 93, 256))) == len(tried)
    assert tried == [93]
    tried.clear()
    list(_between(within, first, 40, 256))
    assert tried == [40, 101]


@pytest.mark.parametrize("best", [1, 2, 3, 5, 9, 11, 40, 41, 77, 98])
def test_the_limit_with_the_fewest_late_answers_is_found_whatever_it_is(best: int) -> None:
    """Answers are late by how far, in octaves, a limit is from the best; within a tenth of it all are in time."""
    tried = []

    def within(limit: int) -> Sized:
        tried.append(limit)
        late = 1 + abs(np.log2(limit / best)) if abs(limit - best) > best / 11 else 0.0
        found = SimpleNamespace(tokens_late=0.0, wait_late=0.0, whole_late=late, holds=not late, most_running=100)
        return cast(Sized, found)

    first = within(100)
    if first.holds:
        return
    assert any(trial.holds for trial in _least_late(within, first, 256))
    assert len(set(tried)) == len(tried)


def test_a_router_that_finds_far_fewer_prompts_is_tried_once() -> None:
    """Too few replicas for conversations: another router computes more of each prompt, so its limits are left out."""
    load = load_of_shape(16.0, "const:2000", "const:40", sessions=Sessions(turns=8, think_s=5))
    setup = Setup(ON_A100, load, OFFERS, TODAY, parse_slos("ttft_p99=0.3"))
    attempts = Attempts()
    assert not attempts.on(setup, 4).holds
    shares = [
        cached_share(attempt(replace(setup, router=router), 4, whole=False).outcome) for router in routers(setup, 4)
    ]
    assert shares[0] > shares[1] + SCATTERED
    assert attempts.count == 2


def test_a_prompt_that_all_share_leaves_every_router_its_chance() -> None:
    """It is in every cache, whoever routes: what counts is who keeps prompts apart, here the one that takes turns."""
    load = load_of_shape(60.0, "const:1500", "const:100", system=SystemPrompts(1, 1000))
    setup = Setup(ON_A100, load, OFFERS, TODAY, parse_slos("ttft_p99=0.25"))
    found = size(setup)
    assert isinstance(found, Sized)
    assert found.router is Router.round_robin
    by_itself = size(replace(setup, router=Router.round_robin))
    assert isinstance(by_itself, Sized)
    assert found.replicas == by_itself.replicas


@pytest.mark.parametrize("retries", [0, 2])
@pytest.mark.parametrize(
    ("slo", "tiers"), [("ttft_p99=1.5", "dram=50"), ("job_p99=100", "dram=50"), ("job_p99=100", None)]
)
def test_clients_that_try_again_end_no_simulation_too_soon(slo: str, tiers: str | None, retries: int) -> None:
    for rate in (1.0, 30.0):
        load = load_of_shape(rate, "const:2000", "const:40", sessions=Sessions(turns=4, think_s=5))
        load = replace(load, trace=load.trace.take(np.arange(2000)))
        handling = Handling(timeout_s=3.0, retries=retries, backoff_s=1.0)
        setup = Setup(ON_A100, load, OFFERS, TODAY, parse_slos(slo), tiers=tiers, handling=handling)
        assert attempt(setup, 1, whole=False).holds == attempt(setup, 1).holds


@pytest.mark.parametrize("rate", [8.5, 9.0])
def test_a_low_limit_that_lets_one_replica_hold_is_found(rate: float) -> None:
    """Experts finish more behind a limit than the closed form says, and a loose TTFT bears what waits there."""
    deployment = on("qwen3-30b-a3b", gpu="H200")
    offers = (*OFFERS, offer("H200", 1, 3.5))
    slos = parse_slos("ttft_p99=15,tpot_p99=37ms")
    setup = Setup(deployment, load_of_shape(rate, "const:1000", "200"), offers, TODAY, slos)
    assert any(attempt(setup, 1, limit).holds for limit in range(40, 80, 2)), "else the test says nothing"
    found = size(setup)
    assert isinstance(found, Sized)
    assert found.replicas == 1


def test_a_rush_at_the_beginning_hides_no_limit_that_holds() -> None:
    """All that is late comes in the first ninth; later requests make up for it, as far as a p90 allows."""
    every = 60_000
    base = load_of_shape(10.0, "1000", "150", system=SystemPrompts(1, 64)).trace
    rush = round(every * 0.115)
    gaps = np.random.default_rng(3).exponential(np.where(np.arange(every) < rush, 1 / 9.2, 1 / 4.6))
    trace = replace(base.take(np.arange(every) % len(base)), arrival_s=np.cumsum(gaps))
    setup = Setup(ON_A100, load_of_log(trace), OFFERS, TODAY, parse_slos("ttft_p90=16,tpot_p90=33ms"))
    assert any(attempt(setup, 1, limit).holds for limit in (44, 48, 52)), "else the test says nothing"
    found = size(setup)
    assert isinstance(found, Sized)
    assert found.replicas == 1


def test_a_router_that_scatters_prompts_but_is_in_time_more_often_leaves_others_their_chance() -> None:
    """Each of many system prompts loads one replica where they are gathered: the least loaded one serves best."""
    load = load_of_shape(14.4, "const:1600", "const:200", system=SystemPrompts(200, 1500))
    offers = (*OFFERS, offer("H100-SXM", 1, 3.0))
    setup = Setup(on("qwen3-32b", gpu="H100"), load, offers, TODAY, parse_slos("ttft_p99=0.7,tpot_p99=31ms"))
    found, alone = size(setup), [size(replace(setup, router=router)) for router in routers(setup, 2)]
    needed = [one.replicas for one in alone if isinstance(one, Sized)]
    assert isinstance(found, Sized)
    assert found.replicas == min(needed) < max(needed)


def test_a_slo_that_one_tenant_misses_says_by_how_much() -> None:
    """All requests together meet it, as 3 % are late; of that tenant's own every one is."""
    rare = np.arange(1000) % 33 == 0
    trace = make_trace(np.arange(1000.0), np.where(rare, 6000, 50), np.full(1000, 8))
    trace = replace(trace, tenant=rare.astype(np.int32), tenants=("many", "few"))
    load, slos = load_of_log(trace), parse_slos("ttft_p95=0.2")
    together = attempt(Setup(ON_A100, load, OFFERS, TODAY, slos), 1)
    assert together.holds
    each = attempt(Setup(ON_A100, load, OFFERS, TODAY, slos, each_tenant=True), 1)
    assert each.breaks is not None
    assert "few" in each.breaks
    assert each.wait_late == pytest.approx(1 / 0.05, rel=0.05), (
        "all of its requests, of which one in twenty may be late"
    )
