"""Engines that share a GPU, against closed forms: processor sharing, turns, and a server that scales to zero."""

import math
from dataclasses import replace

import numpy as np
import pytest
from tests.deployed import on

from tokonomics.physics.deployment import Deployment
from tokonomics.physics.steptime import step_model
from tokonomics.serving.shared import SharedEngine, TurnRules, in_turns, side_by_side
from tokonomics.serving.simulator import simulate
from tokonomics.serving.state import DONE
from tokonomics.traffic.trace import PrefixBlocks, Trace

LLAMA, QWEN = on(), on("qwen3-4b")


def requests(*arrivals: float, prompt: int = 500, answer: int = 100) -> Trace:
    count = len(arrivals)
    lengths = np.full(count, prompt, np.int32), np.full(count, answer, np.int32)
    return Trace(np.array(arrivals, float), *lengths)


def way_out_s() -> float:
    """What a token takes to its client, beside the GPU: the gap between two ways to measure one request."""
    host = step_model(LLAMA).engine
    return host.answer_s if host else 0.0


def alone_s(deployment: Deployment, trace: Trace) -> float:
    """Seconds of work of one request that has the GPU to itself."""
    made = simulate(deployment, trace)
    return float(made.served.finish_s[0] - trace.arrival_s[0]) - way_out_s()


def test_an_engine_that_is_alone_does_what_the_simulator_does() -> None:
    rng = np.random.default_rng(1)
    trace = Trace(
        np.sort(rng.uniform(0, 200, 400)),
        rng.integers(10, 3000, 400).astype(np.int32),
        rng.integers(1, 500, 400).astype(np.int32),
    )
    plain = simulate(LLAMA, trace).served
    for run in (
        side_by_side([SharedEngine(LLAMA, trace)]),
        in_turns([SharedEngine(LLAMA, trace)], TurnRules((1.0,), (1.0,))),
    ):
        served = run.engines[0].served
        for name in ("start_s", "first_token_s", "finish_s"):
            np.testing.assert_allclose(getattr(served, name), getattr(plain, name), rtol=0, atol=1e-9)


@pytest.mark.parametrize("later_s", [0.0, 0.1, 0.4, 5.0])
@pytest.mark.parametrize("answer", [20, 100, 300])
def test_two_engines_with_work_run_at_half_their_speed_and_no_work_is_lost(later_s: float, answer: int) -> None:
    first, second = requests(1.0), requests(1.0 + later_s, answer=answer)
    a, b, out_s = alone_s(LLAMA, first), alone_s(QWEN, second), way_out_s()
    run = side_by_side([SharedEngine(LLAMA, first), SharedEngine(QWEN, second)])
    ends = [float(made.served.finish_s[0]) - 1.0 - out_s for made in run.engines]
    # Processor sharing of two jobs of a and b seconds, the second of which comes later.
    left = a - later_s
    if left <= 0:
        expected = [a, later_s + b]
    elif left <= b:
        expected = [later_s + 2 * left, later_s + 2 * left + (b - left)]
    else:
        expected = [later_s + 2 * b + (left - b), later_s + 2 * b]
    assert ends == pytest.approx(expected, rel=1e-9)
    if left > 0:
        assert max(ends) == pytest.approx(a + b)
    busy = sum(float(made.replicas["busy_s"].sum()) for made in run.engines)
    single = [simulate(LLAMA, first), simulate(QWEN, second)]
    assert busy == pytest.approx(sum(float(made.replicas["busy_s"].sum()) for made in single))


def test_three_equal_engines_that_begin_together_take_three_times_as_long() -> None:
    trace = requests(0.0)
    run = side_by_side([SharedEngine(LLAMA, trace)] * 3)
    whole = alone_s(LLAMA, trace)
    for made in run.engines:
        assert float(made.served.finish_s[0]) - way_out_s() == pytest.approx(3 * whole, rel=1e-9)


def test_a_sleeping_model_waits_until_the_other_has_no_work_and_both_have_switched() -> None:
    first, second = requests(0.0), requests(0.2)
    run = in_turns([SharedEngine(LLAMA, first), SharedEngine(QWEN, second)], TurnRules((3.0, 5.0), (0.5, 0.25)))
    end = alone_s(LLAMA, first)
    assert run.switches == 1
    assert float(run.engines[0].served.finish_s[0]) == pytest.approx(end + way_out_s())
    expected = end + 0.5 + 5.0 + alone_s(QWEN, second)
    assert float(run.engines[1].served.finish_s[0]) - way_out_s() == pytest.approx(expected, rel=1e-9)


def test_a_model_that_slept_has_lost_its_prefix_cache() -> None:
    # The same 512 tokens three times: the second finds them, the third comes after a sleep.
    shared = PrefixBlocks(np.zeros(3, np.int32), np.arange(4), block_tokens=512, distinct=1)
    first = replace(requests(0.0, 10.0, 40.0, prompt=600), prefix=shared)
    rules = TurnRules((1.0, 1.0), (1.0, 1.0))
    run = in_turns([SharedEngine(LLAMA, first), SharedEngine(QWEN, requests(20.0))], rules)
    assert run.switches == 2
    assert list(run.engines[0].served.cached_tokens) == [0, 512, 0]


def test_patience_decides_who_goes_first() -> None:
    # The first model gets its second request while the other's first waits: before it, or after both switches.
    first, second = requests(0.0, 0.3), requests(0.2)
    engines = [SharedEngine(LLAMA, first), SharedEngine(QWEN, second)]
    patient = in_turns(engines, TurnRules((1.0, 1.0), (1.0, 1.0)))
    at_once = in_turns(engines, TurnRules((1.0, 1.0), (1.0, 1.0), patience_s=0.0))
    assert (patient.switches, at_once.switches) == (1, 2)
    assert patient.engines[0].served.start_s[1] < patient.engines[1].served.start_s[0]
    ended = alone_s(LLAMA, requests(0.0)) + 2.0 + alone_s(QWEN, second)
    assert at_once.engines[0].served.start_s[1] == pytest.approx(ended + 2.0, abs=0.05)


@pytest.mark.parametrize(("hold_s", "cold_s"), [(50.0, 0.0), (100.0, 60.0), (300.0, 200.0)])
def test_scaled_to_zero_is_paid_for_as_the_closed_form_has_it(hold_s: float, cold_s: float) -> None:
    # Requests at random, one in 100 s, that take next to nothing: on until a gap is longer than the hold.
    rate, count = 0.01, 6_000
    arrivals = np.cumsum(np.random.default_rng(7).exponential(1 / rate, count))
    lengths = np.full(count, 8, np.int32), np.full(count, 1, np.int32)
    run = in_turns(
        [SharedEngine(LLAMA, Trace(arrivals, *lengths))],
        TurnRules((cold_s,), (0.0,), hold_s=hold_s, starts_awake=False),
    )
    on_s = cold_s + (math.exp(rate * hold_s) - 1) / rate
    expected = on_s / (1 / rate + on_s)
    assert run.paid_s / run.end_s == pytest.approx(expected, rel=0.03)
    assert (run.engines[0].served.status == DONE).all()
