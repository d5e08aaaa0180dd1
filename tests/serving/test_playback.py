"""A run moment by moment: every count against one made request by request, the memory against the slow reference."""

import math
from dataclasses import replace
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
from tests.deployed import on
from tests.serving import reference
from tests.serving.small_worlds import some_traffic, times_of
from tests.serving.test_sessions import linked_users
from tests.there import there

from tokonomics.physics.steptime import step_model
from tokonomics.serving.fleet_settings import Autoscale, FleetSettings, Outage
from tokonomics.serving.outcome import outcome
from tokonomics.serving.playback import MOST_MARKS, MOST_MOMENTS, MissCause, MissedRequest, Playback, playback
from tokonomics.serving.simulator import Simulation, requests_for, rules_for, simulate, table_for
from tokonomics.serving.state import DONE
from tokonomics.traffic.slo import parse_slos
from tokonomics.traffic.trace import make_trace

SLOS = parse_slos("ttft_p99=300ms,tpot_p99=15ms,e2e_p99=3")
WORLDS = ("busy", "scaled", "spot", "sessions", "apart", "no replica")


@cache
def served(world: str) -> Simulation:
    trace = some_traffic(900, seed=7)
    if world == "busy":
        trace.input_tokens[::300] = 200_000
        return simulate(on(), trace, FleetSettings(replicas=2), timeout_s=4.0, max_sequences=16)
    if world == "scaled":
        scaling = Autoscale(max_replicas=4, target=8.0, cold_start_s=3.0, interval_s=1.0, hold_s=4.0)
        return simulate(on(), trace, FleetSettings(autoscale=scaling))
    if world == "spot":
        taken = Outage(replica=1, at_s=10.0, down_s=8.0, reclaimed=True)
        broken = Outage(replica=0, at_s=12.0, down_s=2.0)
        return simulate(on(), trace, FleetSettings(replicas=2, outages=(taken, broken)))
    if world == "sessions":
        return simulate(on(), linked_users(20, 12), timeout_s=0.5, max_sequences=4)
    if world == "apart":
        return simulate(on(), trace, FleetSettings(prefill_replicas=1, replicas=1))
    away = Outage(replica=0, at_s=5.0)
    return simulate(on(), trace, FleetSettings(outages=(away,)))


def ended_s(simulation: Simulation, request: int) -> float:
    if simulation.served.attempts[request] == 0:
        return float(simulation.trace.arrival_s[request])
    finish_s = float(simulation.served.finish_s[request])
    return simulation.end_s if math.isnan(finish_s) else finish_s


def counted(simulation: Simulation, at_s: float) -> dict[str, int]:
    """Where each request is at a moment, one after the other."""
    found = dict.fromkeys(("arrived", "waiting", "running", "finished", "failed", "tokens"), 0)
    for request in range(len(simulation.trace)):
        if simulation.trace.arrival_s[request] > at_s:
            continue
        found["arrived"] += 1
        if ended_s(simulation, request) <= at_s:
            done = simulation.served.status[request] == DONE
            found["finished" if done else "failed"] += 1
            if done:
                found["tokens"] += int(simulation.trace.input_tokens[request] + simulation.trace.output_tokens[request])
        elif simulation.served.start_s[request] <= at_s:
            found["running"] += 1
        else:
            found["waiting"] += 1
    return found


@pytest.mark.parametrize("world", WORLDS)
def test_every_count_is_that_of_the_requests_one_by_one(world: str) -> None:
    simulation = served(world)
    made = playback(simulation, SLOS)
    assert MOST_MOMENTS / 4 < len(made.at_s) <= MOST_MOMENTS + 1
    assert np.allclose(np.diff(made.at_s[:-1]), made.at_s[1], rtol=1e-12)
    assert (made.at_s[0], made.at_s[-1]) == (0.0, simulation.end_s)
    for moment in {*range(0, len(made.at_s), 9), len(made.at_s) - 1}:
        slowly = counted(simulation, made.at_s[moment])
        assert {name: getattr(made, name)[moment] for name in slowly} == slowly


@pytest.mark.parametrize("world", WORLDS)
def test_all_that_arrived_wait_run_or_are_done_at_every_moment(world: str) -> None:
    made, simulation = playback(served(world), SLOS), served(world)
    places = zip(made.waiting, made.running, made.finished, made.failed, strict=True)
    assert [sum(parts) for parts in places] == list(made.arrived)
    summed = outcome(simulation, SLOS)
    last = (made.arrived[-1], made.finished[-1], made.failed[-1], made.waiting[-1], made.running[-1])
    assert last == (summed.requests, summed.completed, summed.failed, 0, 0)
    assert made.tokens[-1] == summed.input_tokens + summed.output_tokens
    assert all(0 <= share <= 1 for share in made.kv_share)


@pytest.mark.parametrize("world", WORLDS)
def test_the_bill_runs_up_to_the_bill(world: str) -> None:
    usd = there(playback(served(world), SLOS, 12.34).usd)
    assert usd[0] == 0
    assert usd[-1] == pytest.approx(12.34 * served(world).paid_s.sum() / 3600)
    assert all(before <= after for before, after in pairwise(usd))


def test_what_a_spot_market_took_back_is_not_paid_for_meanwhile() -> None:
    """One of two replicas is away for 8 of the seconds, so the other's are half as dear; one that broke is paid for."""
    simulation = served("spot")
    made = playback(simulation, SLOS, usd_per_replica_hour=3600)
    assert made.usd is not None
    rates = np.diff(made.usd) / np.diff(made.at_s)
    middles = (np.array(made.at_s[1:]) + np.array(made.at_s[:-1])) / 2
    step_s = made.at_s[1]
    away = (middles > 10 + step_s) & (middles < 18 - step_s)
    there = (middles < 10 - step_s) | (middles > 18 + step_s)
    assert rates[away] == pytest.approx(1.0)
    assert rates[there] == pytest.approx(2.0)
    assert made.replicas is not None
    assert set(made.replicas) == {0, 1, 2}


def test_without_a_price_there_is_no_bill_and_fixed_replicas_are_no_column() -> None:
    made = playback(served("busy"))
    assert (made.usd, made.replicas) == (None, None)


def late(simulation: Simulation, request: int) -> float | None:
    """When a request missed an SLO, from its own times; None where it missed none."""
    trace, found = simulation.trace, simulation.served
    if found.status[request] != DONE:
        return ended_s(simulation, request)
    arrival, finish, first = trace.arrival_s[request], found.finish_s[request], found.first_token_s[request]
    outputs, times = trace.output_tokens[request], []
    if first - arrival > 0.3:
        times.append(arrival + 0.3)
    if outputs > 1 and (finish - first) / (outputs - 1) > 0.015:
        times.append(finish)
    if finish - arrival > 3:
        times.append(arrival + 3)
    return min(times, default=None)


@pytest.mark.parametrize("world", WORLDS)
def test_misses_are_those_of_the_answer_and_are_counted_when_they_happen(world: str) -> None:
    simulation = served(world)
    made, summed = playback(simulation, SLOS), outcome(simulation, SLOS)
    times = [late(simulation, request) for request in range(len(simulation.trace))]
    for moment in range(0, len(made.at_s), 9):
        assert made.missed[moment] == sum(at is not None and at <= made.at_s[moment] for at in times)
    assert made.missed[-1] == round(summed.requests * (1 - (summed.slo_attainment or 0.0)))
    assert sum(mark.missed for mark in made.marks) == made.missed[-1]
    assert sum(row.requests for row in made.causes) == made.missed[-1]
    assert 0 < len(made.marks) <= MOST_MARKS
    for mark in made.marks:
        named = [times[request.request - 1] for request in mark.worst]
        assert [request.at_s for request in mark.worst] == pytest.approx(named)
        assert all(mark.from_s <= request.at_s <= mark.to_s for request in mark.worst)
        first = made.at_s[mark.moment - 1] if mark.moment else -1.0
        assert first < mark.worst[0].at_s <= made.at_s[mark.moment]


def test_without_an_slo_only_those_that_failed_are_missed() -> None:
    made = playback(served("busy"))
    assert made.missed == made.failed
    assert made.missed[-1] > 0


def named(made: Playback) -> dict[int, MissedRequest]:
    return {request.request: request for mark in made.marks for request in mark.worst}


def test_a_request_behind_others_is_said_to_have_waited_for_them() -> None:
    """One sequence at a time: the tenth waits for nine."""
    trace = make_trace(np.arange(10) * 1e-4, np.full(10, 500), np.full(10, 50))
    simulation = simulate(on(), trace, max_sequences=1)
    made = playback(simulation, parse_slos("ttft_p99=100ms"))
    last = named(made)[10]
    assert (last.cause, last.latency, last.objective_s) == (MissCause.queue, "ttft", 0.1)
    assert last.queue_s == pytest.approx(simulation.served.start_s[9] - trace.arrival_s[9])
    assert last.ahead == np.count_nonzero(simulation.served.start_s[:9] > trace.arrival_s[9])
    assert (last.ahead > 5, last.beside) == (True, 0)
    assert (
        last.queue_s + last.prefill_s
        == last.delivered_s
        == pytest.approx(simulation.served.first_token_s[9] - trace.arrival_s[9])
    )


def test_a_long_prompt_alone_is_slow_by_itself() -> None:
    made = playback(simulate(on(), make_trace(np.zeros(1), [60_000], [2])), parse_slos("ttft_p99=100ms"))
    assert (named(made)[1].cause, named(made)[1].ahead) == (MissCause.prefill, 0)


def test_slow_tokens_are_those_of_the_batch_or_of_a_lost_place() -> None:
    many = make_trace(np.zeros(200), np.full(200, 100), np.full(200, 100))
    slow = playback(simulate(on(), many), parse_slos("tpot_p99=1ms"))
    assert slow.causes[0].cause is MissCause.decode
    assert max(request.beside for request in named(slow).values()) > 100
    crowd = make_trace(np.zeros(60), np.full(60, 500), np.full(60, 900))
    crowded = simulate(on(gpu="L4"), crowd)
    assert crowded.served.preemptions.any()
    found = playback(crowded, parse_slos("tpot_p99=1ms"))
    lost = {row.cause: row.requests for row in found.causes}[MissCause.preemption]
    assert lost == np.count_nonzero(crowded.served.preemptions)


def test_who_failed_is_told_why() -> None:
    causes = {world: {row.cause for row in playback(served(world), SLOS).causes} for world in WORLDS}
    assert MissCause.refused in causes["busy"]
    assert MissCause.outage in causes["spot"]
    assert MissCause.unserved in causes["no replica"] & causes["sessions"]


def test_tenants_and_classes_are_named_and_classes_have_their_own_slo() -> None:
    from tokonomics.traffic.slo import ServiceClass
    from tokonomics.traffic.tenants import classed

    trace = replace(some_traffic(900, seed=7), tenant=(np.arange(900) % 2).astype(np.int32), tenants=("acme", "beta"))
    strict = ServiceClass(name="gold", tenants=("acme",), priority=0, slos=parse_slos("ttft_p99=1ms"))
    other = ServiceClass(name="free", priority=1)
    simulation = simulate(on(), classed(trace, [strict, other]))
    made = playback(simulation)
    assert made.missed[-1] == 450
    assert {(request.tenant, request.service) for request in named(made).values()} == {("acme", "gold")}


@pytest.mark.parametrize("output", [4, 60], ids=["within one block", "over several blocks"])
def test_the_memory_is_that_of_the_reference_step_by_step(output: int) -> None:
    """Where no answer outgrows its first block the two agree; otherwise the loop lets a run of steps grow evenly."""
    rng = np.random.default_rng(3)
    trace = make_trace(np.cumsum(rng.exponential(0.01, 40)), rng.integers(1, 12, 40), np.full(40, output))
    simulation = simulate(on(), trace, max_sequences=8)
    made = playback(simulation, most=20)
    rules = rules_for(on(), trace, True, 8, None)
    table = table_for(step_model(on()), trace, rules)
    world = reference.World(requests_for(trace, rules), times_of(table), rules, FleetSettings(), 0)
    (replica,) = world.replicas
    compose, steps = replica.compose, []

    def noted(now: float) -> None:
        compose(now)
        if replica.step_end_s is not None:
            used = int(rules.kv_blocks) - replica.cache.available()
            steps.append((now, replica.step_end_s, used / rules.kv_blocks))

    replica.compose = noted  # type: ignore[method-assign]
    world.run()
    for moment in range(1, len(made.at_s)):
        begins, ends = made.at_s[moment - 1], made.at_s[moment]
        inside = [max(0.0, min(end, ends) - max(begin, begins)) * share for begin, end, share in steps]
        slowly = sum(inside) / (ends - begins)
        assert made.kv_share[moment] == pytest.approx(slowly, rel=2e-3 if output == 4 else 0.06, abs=1e-12)
