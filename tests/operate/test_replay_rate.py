"""The highest rate that holds is found where its root is known, and in simulation as a slow scan of rates finds it."""

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some

from tokonomics.catalog.engines import find_engine
from tokonomics.catalog.gpus import find_gpu
from tokonomics.catalog.load_models import find_model
from tokonomics.operate.replay_rate import FURTHEST, PlayedRate, held_rate, highest_held, simulated_rate
from tokonomics.physics.deployment import deploy
from tokonomics.serving.simulator import simulate
from tokonomics.sizing.load import load_of_requests
from tokonomics.sizing.setup import Setup
from tokonomics.traffic.slo import parse_slos
from tokonomics.traffic.trace import Trace, make_trace

ENGINE = {"close_enough": 1.05, "most_loads": 5}
SIMULATION = {"close_enough": 1.01}


def power_law(root: float, exponent: float) -> Callable[[float], float]:
    return lambda rate: (rate / root) ** exponent


@given(
    root=some.floats(0.01, 1e4), exponent=some.floats(0.5, 12), off=some.floats(0.05, 20),
    search=some.sampled_from([ENGINE, SIMULATION]),
)  # fmt: skip
def test_a_power_law_is_read_off_exactly_as_soon_as_two_loads_bracket_it(
    root: float, exponent: float, off: float, search: dict[str, float]
) -> None:
    found, loads = highest_held(power_law(root, exponent), root * off, **search)  # type: ignore[arg-type]
    if {load.late <= 1 for load in loads} == {True, False}:
        assert found == pytest.approx(root, rel=1e-6)
    else:  # a rate that is exactly the root may hold, and the steps may be spent before one does not
        assert len(loads) == 2 * search.get("most_loads", 60)


@given(root=some.floats(0.1, 1e3), off=some.floats(0.1, 10), below=some.floats(0.0, 1.0), above=some.floats(1.01, 50))
def test_a_step_is_found_to_the_gap_asked_for(root: float, off: float, below: float, above: float) -> None:
    found, loads = highest_held(
        lambda rate: below if rate <= root else above, root * off, close_enough=1.01, most_loads=400
    )  # fmt: skip
    assert root / 1.01 <= found <= root * 1.01
    low = max(load.rate for load in loads if load.rate <= root)
    high = min(load.rate for load in loads if load.rate > root)
    assert high / low <= 1.01
    assert low <= found <= high


def test_failed_requests_beyond_a_step_leave_the_highest_rate_that_held() -> None:
    found, loads = highest_held(lambda rate: 0.7 if rate <= 30 else math.inf, 10.0, close_enough=1.01)
    assert found == max(load.rate for load in loads if load.rate <= 30)
    assert 30 / 1.01 <= found <= 30


@pytest.mark.parametrize("late", [1.3, 2.0, 1e6, math.inf])
def test_what_never_holds_is_zero_after_few_loads(late: float) -> None:
    found, loads = highest_held(lambda rate: late, 5.0, close_enough=1.01)
    assert found == 0
    assert loads[-1].rate < 5.0 / FURTHEST
    assert all(after.rate < before.rate for before, after in pairwise(loads))


@pytest.mark.parametrize("late", [0.0, 1e-6, 0.5])
def test_what_always_holds_is_the_highest_rate_that_was_played(late: float) -> None:
    found, loads = highest_held(lambda rate: late, 5.0, close_enough=1.01)
    assert found == loads[-1].rate > 5.0 * FURTHEST


@pytest.mark.parametrize("late", [0.0, 0.999, 1.001, math.inf])
def test_an_engine_is_never_asked_for_more_than_twice_the_loads(late: float) -> None:
    _, loads = highest_held(lambda rate: late, 5.0, close_enough=1.05, most_loads=5)
    assert len(loads) <= 10


def test_a_good_guess_takes_no_more_than_the_loads_of_a_trial() -> None:
    """Tails of a queue: the lateness rises with the sixth power of the rate, and the guess is 20 % off."""
    for off in (0.8, 0.9, 1.0, 1.1, 1.2):
        found, loads = highest_held(power_law(17.0, 6.0), 17.0 * off, close_enough=1.05, most_loads=5)
        assert len(loads) <= 5
        assert found == pytest.approx(17.0, rel=1e-6)


def test_a_rate_that_holds_above_one_that_does_not_is_luck() -> None:
    loads = [PlayedRate(1.0, 0.5), PlayedRate(2.0, 2.0), PlayedRate(3.0, 0.9)]
    assert held_rate(loads) == pytest.approx(math.sqrt(2.0))  # half of the way in logarithms: 0.5 × 2 = 1
    assert held_rate(loads[1:]) == 0


def test_of_two_loads_the_line_in_logarithms_is_taken() -> None:
    """0.8 at 10/s and 1.25 at 12/s: 1 is half of the way, as 0.8 × 1.25 = 1."""
    assert held_rate([PlayedRate(12.0, 1.25), PlayedRate(10.0, 0.8)]) == pytest.approx(math.sqrt(120.0))
    assert held_rate([PlayedRate(10.0, 1.0), PlayedRate(12.0, 3.0)]) == pytest.approx(10.0)
    assert held_rate([PlayedRate(10.0, 0.0), PlayedRate(12.0, 3.0)]) == 10.0
    assert held_rate([]) == 0


# --- in simulation --------------------------------------------------------------------------------------------------


def chat(requests: int = 400) -> Trace:
    drawn = np.random.default_rng(7)
    gaps = drawn.exponential(0.2, requests)
    return make_trace(np.cumsum(gaps) - gaps[0], drawn.integers(50, 1500, requests), drawn.integers(20, 400, requests))


def late_in_simulation(setup: Setup, rate: float) -> float:
    """Serve the requests at another pace; compare percentiles, as numpy has them, with the targets."""
    trace = setup.load.trace
    paced = make_trace(trace.arrival_s * trace.rate / rate, trace.input_tokens, trace.output_tokens)
    done = simulate(
        setup.deployment, paced, max_sequences=setup.max_sequences,
        max_batched_tokens=setup.handling.max_batched_tokens,
    ).served  # fmt: skip
    ttft = done.first_token_s - done.arrival_s
    tpot = (done.finish_s - done.first_token_s) / (trace.output_tokens - 1)
    return float(max(np.quantile(ttft, 0.95) / 0.5, np.quantile(tpot, 0.9) / 0.030))


@pytest.mark.parametrize("knobs", [{}, {"max_sequences": 16}, {"max_batched_tokens": 1024}])
def test_a_simulation_holds_what_a_slow_scan_of_rates_finds(knobs: dict[str, int]) -> None:
    deployment = deploy(find_model("llama-3.1-8b"), find_gpu("H100"), find_engine("vllm"))
    slos = parse_slos("ttft_p95=0.5,tpot_p90=30ms")
    setup = Setup(deployment, load_of_requests(chat()), slos=slos, max_sequences=knobs.get("max_sequences"))
    if tokens := knobs.get("max_batched_tokens"):
        setup = replace(setup, handling=replace(setup.handling, max_batched_tokens=tokens))
    found, loads = simulated_rate(setup, 3.0, len(setup.load.trace))
    rates = found * 1.005 ** np.arange(-30, 31)
    late = np.array([late_in_simulation(setup, rate) for rate in rates])
    assert late[0] <= 1 < late[-1], "the scan sees the targets met and missed"
    assert rates[late > 1][0] / 1.02 <= found <= rates[late <= 1][-1] * 1.02
    for load in loads[:3]:
        assert load.late == pytest.approx(late_in_simulation(setup, load.rate), rel=1e-6)
