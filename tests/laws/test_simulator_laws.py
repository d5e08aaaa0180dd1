"""Laws that hold for any traffic: tokens and time are conserved, queues follow theory, more machines never hurt.

Expected values come from elsewhere: sums over the requests, the closed form of ``serving.steady``, Pollaczek and
Khinchine's formula, a step function integrated by hand.
"""

from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.explore import times
from tests.there import there

from tokonomics.catalog.engines import find_engine
from tokonomics.catalog.gpus import find_gpu
from tokonomics.catalog.load_models import find_model
from tokonomics.physics.deployment import Deployment, deploy
from tokonomics.physics.overhead import overhead
from tokonomics.physics.steptime import step_model
from tokonomics.serving.fleet_settings import Autoscale, FleetSettings, Outage, Router
from tokonomics.serving.loop import run
from tokonomics.serving.outcome import outcome
from tokonomics.serving.simulator import Simulation, requests_for, rules_for, simulate, table_for
from tokonomics.serving.state import DONE, REFUSED, TIMED_OUT, UNSERVED
from tokonomics.serving.steady import ReplicaCurve
from tokonomics.traffic.arrivals import parse_arrivals
from tokonomics.traffic.generate import Sessions, SystemPrompts, generate
from tokonomics.traffic.lengths import parse_lengths
from tokonomics.traffic.trace import Trace, make_trace


@cache
def on(model: str = "llama-3.1-8b", gpu: str = "H100", engine: str = "vllm", tp: int = 1, pp: int = 1) -> Deployment:
    return deploy(find_model(model), find_gpu(gpu), find_engine(engine), tp=tp, pp=pp)


TIGHT = ("llama-3.1-8b", "L4", "vllm")
"""Weights take two thirds of the memory: long answers run out of it and are preempted."""
PLACES = [
    ("llama-3.1-8b", "H100", "vllm"),
    TIGHT,
    ("llama-3.1-8b", "L4", "tensorrt-llm"),
    ("llama-3.1-8b", "L4", "tgi"),
    ("deepseek-v2-lite", "A100-80GB", "sglang"),
    ("gpt-oss-20b", "H100", "vllm"),
]


@st.composite
def traffic(draw: st.DrawFn) -> Trace:
    arrivals = draw(st.sampled_from(["poisson:3", "poisson:40", "gamma:10,cv=4", "constant:8", "burst:200"]))
    return generate(
        parse_arrivals(arrivals),
        parse_lengths(draw(st.sampled_from(["1", "100", "700", "lognormal:mean=800,cv=2"]))),
        parse_lengths(draw(st.sampled_from(["1", "40", "lognormal:mean=300,cv=1.5"]))),
        requests=draw(st.integers(1, 200)),
        seed=draw(st.integers(0, 1000)),
        system=draw(st.sampled_from([None, SystemPrompts(3, 600)])),
        sessions=draw(st.sampled_from([None, None, Sessions(3.0, 2.0, 8000)])),
    )


routers = st.sampled_from([router for router in Router if router is not Router.session_affine])
fixed_fleets = st.builds(FleetSettings, replicas=st.integers(1, 3), router=routers)
failing_fleets = st.builds(
    lambda fleet, at_s, down_s: fleet.model_copy(update={"outages": (Outage(replica=0, at_s=at_s, down_s=down_s),)}),
    fixed_fleets,
    st.floats(0, 20),
    st.one_of(st.none(), st.floats(0.1, 20)),
)
scaled_fleets = st.builds(
    lambda least, more, target, cold_s, hold_s: FleetSettings(
        autoscale=Autoscale(
            min_replicas=least,
            max_replicas=max(1, least + more),
            target=target,
            cold_start_s=cold_s,
            hold_s=hold_s,
            interval_s=1.0,
        )
    ),
    st.integers(0, 2),
    st.integers(0, 4),
    st.sampled_from([1.0, 5.0, 30.0]),
    st.sampled_from([0.0, 3.0, 40.0]),
    st.sampled_from([0.0, 10.0]),
)
divided_fleets = st.builds(FleetSettings, replicas=st.integers(1, 2), prefill_replicas=st.integers(1, 2))
fleets = st.one_of(fixed_fleets, failing_fleets, scaled_fleets, divided_fleets)


@st.composite
def simulations(draw: st.DrawFn) -> Simulation:
    place = draw(st.sampled_from(PLACES))
    timeout_s = draw(st.sampled_from([float("inf"), float("inf"), 30.0, 2.0]))
    most = draw(st.sampled_from([None, None, 1, 7]))
    cached = draw(st.booleans())
    return simulate(
        on(*place), draw(traffic()), draw(fleets), timeout_s=timeout_s, max_sequences=most, prefix_cache=cached
    )


@given(simulations())
@settings(max_examples=times(50), deadline=None)
def test_every_request_ends_once_and_in_order(simulation: Simulation) -> None:
    served, arrival = simulation.served, simulation.trace.arrival_s
    assert set(served.status.tolist()) <= {REFUSED, DONE, TIMED_OUT, UNSERVED}
    done = served.status == DONE
    assert np.isfinite([served.start_s[done], served.first_token_s[done], served.finish_s[done]]).all()
    begun = ~np.isnan(served.start_s)
    assert (served.start_s[begun] >= arrival[begun]).all(), "nothing starts before it arrives"
    assert (served.first_token_s[done] > served.start_s[done]).all()
    assert (served.finish_s[done] >= served.first_token_s[done]).all()
    longer = done & (simulation.trace.output_tokens > 1)
    assert (served.finish_s[longer] > served.first_token_s[longer]).all()
    ended = ~np.isnan(served.finish_s)
    assert (served.finish_s[ended] >= arrival[ended]).all()
    never_sent = served.attempts == 0
    assert (ended == ((served.status != UNSERVED) | never_sent)).all()
    assert (served.status[never_sent] == UNSERVED).all()
    assert served.finish_s[ended].max(initial=0) <= simulation.end_s


@given(simulations())
@settings(max_examples=times(50), deadline=None)
def test_memory_time_and_tokens_are_never_more_than_there_are(simulation: Simulation) -> None:
    rows, rules, served, trace = simulation.replicas, simulation.rules, simulation.served, simulation.trace
    made = outcome(simulation)
    assert (rows["kv_peak"] <= rules.kv_blocks).all()
    # Nothing is left behind: all blocks are free or may be taken, and no sequence runs.
    assert (rows["free"] + rows["evictable"] == rules.kv_blocks).all()
    assert (rows["running"] == 0).all()
    assert (rows["outstanding"] == 0).all()
    assert (rows["busy_s"] <= simulation.paid_s + 1e-6).all(), "nobody works longer than they are paid"
    assert (served.cached_tokens < trace.input_tokens).all(), "one token of a prompt is computed in any case"
    shares = made.shares
    parts = [shares.prefill, shares.decode, shares.recomputed, shares.abandoned, shares.idle]
    assert sum(parts) == pytest.approx(1.0, abs=1e-9)
    assert simulation.timeline[:, 0].sum() == pytest.approx(rows["busy_s"].sum(), rel=1e-9, abs=1e-9)
    assert simulation.timeline[:, 3].sum() == pytest.approx(rows["answer_tokens"].sum(), rel=1e-9, abs=1e-6)
    assert simulation.timeline[:, 4].sum() == pytest.approx(rows["prompt_tokens"].sum(), rel=1e-9, abs=1e-6)
    assert made.completed + made.failed == made.requests == len(trace)
    assert made.refused + made.timed_out + made.unserved == made.failed


@given(st.sampled_from(PLACES), traffic(), fixed_fleets, st.booleans())
@settings(max_examples=times(33), deadline=None)
def test_without_a_cache_every_token_of_every_answer_is_computed(
    place: tuple[str, str, str], trace: Trace, fleet: FleetSettings, crowded: bool
) -> None:
    simulation = simulate(on(*place), trace, fleet, prefix_cache=False, max_sequences=3 if crowded else None)
    trace = simulation.trace
    done = simulation.served.status == DONE
    preempted = int(simulation.served.preemptions.sum())
    for replica, rows in enumerate(simulation.replicas):
        mine = done & (simulation.served.replica == replica)
        inputs = int(trace.input_tokens[mine].sum())
        later = int((trace.output_tokens[mine] - 1).clip(0).sum())
        # The first token of an answer comes with its prompt, and so does the first after each preemption.
        put_back = int(simulation.served.preemptions[mine].sum())
        assert later - put_back <= rows["answer_tokens"] <= later
        # Whatever is not computed again is computed for the first time, once.
        assert inputs <= rows["prompt_tokens"] - rows["prompt_again"] <= inputs + put_back
        if preempted == 0:
            assert (rows["prompt_tokens"], rows["answer_tokens"]) == (inputs, later)
    made = outcome(simulation)
    assert made.output_tokens == trace.output_tokens[done].sum()
    assert made.input_tokens == trace.input_tokens[done].sum()


@given(traffic(), fixed_fleets)
@settings(max_examples=times(20), deadline=None)
def test_a_prompts_tokens_are_cached_or_computed(trace: Trace, fleet: FleetSettings) -> None:
    simulation = simulate(on(), trace, fleet)
    trace, done = simulation.trace, simulation.served.status == DONE
    assert simulation.served.preemptions.sum() == 0, "there is room for all on this machine"
    computed = trace.input_tokens - simulation.served.cached_tokens
    for replica, rows in enumerate(simulation.replicas):
        assert rows["prompt_tokens"] == computed[done & (simulation.served.replica == replica)].sum()


def test_the_tight_machine_preempts() -> None:
    """Otherwise the laws above would not say anything about it."""
    simulation = simulate(on(*TIGHT), make_trace(np.zeros(100), [500] * 100, [1500] * 100))
    assert simulation.served.preemptions.sum() > 10
    assert (simulation.served.status == DONE).all()
    rows = simulation.replicas[0]
    preempted = simulation.served.preemptions.sum()
    assert 0 <= rows["prompt_tokens"] - rows["prompt_again"] - 100 * 500 <= preempted
    assert 0 < outcome(simulation).shares.recomputed < 1


def integrated(enter: NDArray[np.float64], leave: NDArray[np.float64], end_s: float) -> float:
    """Requests × seconds under the step function that rises at each arrival and falls at each end."""
    times = np.concatenate([enter, leave, [end_s]])
    jumps = np.concatenate([np.ones(len(enter)), -np.ones(len(leave)), [0.0]])
    order = np.argsort(times, kind="stable")
    there = np.cumsum(jumps[order])
    return float((there[:-1] * np.diff(times[order])).sum())


@given(traffic(), fixed_fleets)
@settings(max_examples=times(20), deadline=None)
def test_littles_law(trace: Trace, fleet: FleetSettings) -> None:
    simulation = simulate(on(), trace, fleet, prefix_cache=False)
    served, sent_s = simulation.served, simulation.trace.arrival_s
    done = served.status == DONE
    sojourn = (served.finish_s - sent_s)[done].sum()
    area = integrated(sent_s[done], served.finish_s[done], simulation.end_s)
    assert area == pytest.approx(sojourn, rel=1e-9)
    # The batch as the replicas counted it, step by step: on this engine a request is in every step from its start on.
    assert served.preemptions.sum() == 0
    in_batch = simulation.timeline[:, 1].sum()
    in_engine = (served.finish_s - served.start_s)[done].sum()
    # A token is told when the next step has been launched, and is on its way to the client for a while.
    host = overhead(on().engine)
    longest_launch_s = float(step_model(on()).launch_s(10_000)) + simulation.rules.max_sequences * host.sequence_s
    on_its_way = in_engine - in_batch
    assert done.sum() * (host.answer_s - 1e-9) <= on_its_way <= done.sum() * (host.answer_s + longest_launch_s)
    # Without a host neither is so.
    hostless = simulate(on(engine="tensorrt-llm"), trace, fleet, prefix_cache=False)
    done = hostless.served.status == DONE
    in_batch = hostless.timeline[:, 1].sum()
    in_engine = (hostless.served.finish_s - hostless.served.start_s)[done].sum()
    assert hostless.served.preemptions.sum() == 0
    assert in_batch == pytest.approx(in_engine, rel=1e-9)


@given(traffic(), scaled_fleets)
@settings(max_examples=times(26), deadline=None)
def test_a_scaled_fleet_is_paid_between_its_bounds(trace: Trace, fleet: FleetSettings) -> None:
    simulation = simulate(on(), trace, fleet)
    scale = there(fleet.autoscale)
    assert (simulation.served.status == DONE).all()
    paid = float(simulation.paid_s.sum())
    assert scale.min_replicas * simulation.end_s - 1e-6 <= paid <= scale.max_replicas * simulation.end_s + 1e-6
    assert (simulation.paid_s >= simulation.replicas["busy_s"] - 1e-6).all()


LONE = [
    (("llama-3.1-8b", "H100", "vllm"), 1000, 200),
    (("llama-2-7b", "A100-80GB", "vllm"), 512, 512),
    (("llama-3.1-8b", "A100-80GB", "vllm"), 5000, 100),
    (("llama-3.1-8b", "H100", "tgi"), 1000, 200),
    (("mixtral-8x7b", "H100", "tensorrt-llm", 2), 10_000, 100),
    (("llama-3.1-70b", "A100-80GB", "vllm", 2, 2), 1000, 100),
    (("deepseek-v2-lite", "H100", "sglang"), 1000, 300),
    (("gpt-oss-20b", "H100", "vllm"), 3000, 500),
    (("qwen3-next-80b-a3b", "H200", "vllm", 2), 1000, 100),
]


@pytest.mark.parametrize(("place", "inputs", "outputs"), LONE, ids=lambda value: str(value))
def test_one_request_at_a_time_is_what_the_closed_form_says(place: tuple[str], inputs: int, outputs: int) -> None:
    deployment = on(*place)
    curve = ReplicaCurve(deployment, inputs, outputs)
    closed = curve.at_rate(1e-6, curve.capacity())
    made = outcome(simulate(deployment, make_trace(np.arange(5) * 1e4, [inputs] * 5, [outputs] * 5)))
    assert made.tpot_s.mean == pytest.approx(closed.tpot_s, rel=0.01)
    assert made.ttft_s.mean == pytest.approx(closed.ttft_s, rel=0.01)
    assert made.e2e_s.mean == pytest.approx(closed.ttft_s + (outputs - 1) * closed.tpot_s, rel=0.01)


@pytest.mark.parametrize("load", [0.3, 0.6, 0.8])
def test_prompts_one_at_a_time_wait_as_pollaczek_and_khinchine_say(load: float) -> None:
    # An engine whose front end is a way of one length: else requests leave it in other intervals than they came.
    count, inputs, place = 200_000, 512, on(engine="tensorrt-llm")
    service_s = float(step_model(place).prefill(inputs))
    rng = np.random.default_rng(11)
    trace = make_trace(
        np.cumsum(rng.exponential(service_s / load, count)), np.full(count, inputs), np.ones(count, np.int32)
    )
    simulation = simulate(place, trace, max_sequences=1)
    served = simulation.served
    np.testing.assert_allclose(served.finish_s - served.start_s, service_s, rtol=0.005)
    waited = served.start_s - trace.arrival_s - overhead(place.engine).reach_s
    batches = waited.reshape(100, -1).mean(1)
    error = float(batches.std(ddof=1)) / np.sqrt(len(batches))
    expected = load * service_s / (2 * (1 - load))
    assert error < 0.05 * expected
    assert abs(float(waited.mean()) - expected) < 3 * error
    assert outcome(simulation).busy_share == pytest.approx(load, rel=0.02)


def lengths_in_bursts(seed: int, count: int = 3000) -> Trace:
    """One answer in ten is forty times as long as the others; arrivals come in bunches."""
    rng = np.random.default_rng(seed)
    gaps = rng.gamma(0.25, 4 / 12, count)
    return make_trace(np.cumsum(gaps), np.full(count, 500), np.where(rng.random(count) < 0.1, 1200, 30))


@pytest.mark.parametrize("seed", range(4))
def test_more_replicas_never_make_requests_wait_longer(seed: int) -> None:
    trace = lengths_in_bursts(seed)
    waits = []
    for replicas in (1, 2, 3, 4, 6, 8):
        made = outcome(simulate(on(), trace, FleetSettings(replicas=replicas), max_sequences=8))
        waits.append(there(made.queue_s.mean))
    assert waits[0] > 10 * waits[-1]
    # A request that finds no free replica still waits for the step in flight: the floor may wiggle by a part of one.
    one_step_s = float(step_model(on()).prefill(500))
    assert (np.diff(waits) < 0.01 * one_step_s).all()


@pytest.mark.parametrize("seed", range(4))
def test_knowing_who_is_busy_beats_taking_turns_when_lengths_differ(seed: int) -> None:
    trace = lengths_in_bursts(seed)
    waits = {}
    for router in (Router.least_outstanding, Router.power_of_two, Router.round_robin):
        made = outcome(simulate(on(), trace, FleetSettings(replicas=4, router=router), max_sequences=8))
        waits[router] = made.queue_s.mean or 0.0
    assert waits[Router.least_outstanding] < 0.9 * waits[Router.round_robin]
    assert waits[Router.least_outstanding] < waits[Router.power_of_two]


def first_tokens_s(trace: Trace, launches: float, requests: float) -> NDArray[np.float64]:
    """When each request's client has its first token, with a host that is so many times as slow."""
    rules = rules_for(on(), trace, prefix_cache=False)
    table = table_for(step_model(on()), trace, rules)
    slower = table._replace(launch_s=table.launch_s * launches, request_s=table.request_s * requests)
    return run(requests_for(trace, rules), slower, rules, FleetSettings())[0].first_token_s - trace.arrival_s


@given(st.integers(1, 20_000), st.integers(1, 50), st.lists(st.floats(1, 20), min_size=2, max_size=4))
@settings(max_examples=times(20), deadline=None)
def test_a_slower_host_never_gives_a_lone_request_its_first_token_sooner(
    inputs: int, outputs: int, factors: list[float]
) -> None:
    lone = make_trace([0.0], [inputs], [outputs])
    for slower in ((1.0, 0.0), (0.0, 1.0), (1.0, 1.0)):
        waits = [
            float(first_tokens_s(lone, 1 + slower[0] * (factor - 1), 1 + slower[1] * (factor - 1))[0])
            for factor in sorted(factors)
        ]
        assert waits == sorted(waits)


@pytest.mark.parametrize("rate", [1, 5, 15])
@pytest.mark.parametrize("seed", range(3))
def test_a_slower_host_never_gives_first_tokens_sooner_on_average(rate: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    count = 2000
    trace = make_trace(np.cumsum(rng.exponential(1 / rate, count)), rng.integers(1, 2000, count), [40] * count)
    for slower in ((1, 0), (0, 1)):
        waits = [
            float(first_tokens_s(trace, 1 + slower[0] * more, 1 + slower[1] * more).mean()) for more in (0, 0.5, 1, 3)
        ]
        assert waits == sorted(waits)
        assert waits[-1] > 1.02 * waits[0]


@pytest.mark.parametrize(("inputs", "outputs"), [(100, 50), (300, 100), (1000, 200), (3000, 20)])
@pytest.mark.parametrize("place", [("llama-3.1-8b", "H100", "vllm"), ("llama-3.2-1b", "H100", "vllm"), TIGHT])
def test_more_users_never_finish_less(place: tuple[str, str, str], inputs: int, outputs: int) -> None:
    rates = []
    for users in (1, 2, 4, 8, 16, 32, 64, 128, 171, 180, 256, 512):
        # Of different lengths, so that they do not move in waves; between the first fifth and the last round.
        count, rng = max(30 * users, 200), np.random.default_rng(5)
        lengths = (rng.integers(mean // 2, 3 * mean // 2 + 1, count) for mean in (inputs, outputs))
        trace = make_trace(np.zeros(count), *lengths)
        served = simulate(on(*place), trace, FleetSettings(users=users), prefix_cache=False).served
        ends = np.sort(served.finish_s)
        first, last = count // 5, count - users
        rates.append((last - first) / float(ends[last - 1] - ends[first - 1]))
    assert (np.array(rates) >= 0.97 * np.maximum.accumulate(rates)).all()
    assert rates[-1] > 2 * rates[0]
