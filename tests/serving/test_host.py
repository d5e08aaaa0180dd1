"""What a host adds to the GPU's steps: worlds small enough to be worked out by hand, from the rules as documented."""

from itertools import accumulate, pairwise

import numpy as np
import pytest
from tests.deployed import on
from tests.physics.hosts import hostless
from tests.serving.small_worlds import ROOMY, asked, flat_table

from tokonomics.catalog.engines import find_engine
from tokonomics.physics.overhead import overhead
from tokonomics.physics.steptime import step_model
from tokonomics.serving.fleet_settings import FleetSettings
from tokonomics.serving.loop import run
from tokonomics.serving.simulator import simulate
from tokonomics.serving.state import Served
from tokonomics.serving.step_table import StepTable
from tokonomics.traffic.trace import make_trace

VLLM = overhead(find_engine("vllm"))


# A lone prompt


@pytest.mark.parametrize(
    ("model", "tokens", "a_layer", "layers"),
    [
        ("llama-3.1-8b", 1, "piece_s", 32),
        ("llama-3.1-8b", 512, "piece_s", 32),  # in captured pieces
        ("llama-3.1-8b", 513, "layer_s", 32),  # kernel by kernel
        ("llama-3.1-8b", 8000, "layer_s", 32),  # so long that its kernels decide
        ("qwen3-30b-a3b", 100, "piece_s", 48),
        ("qwen3-30b-a3b", 1000, "expert_layer_s", 48),  # layers with experts have more kernels
    ],
)
@pytest.mark.parametrize("outputs", [1, 5])
def test_a_lone_prompt_is_timed_by_hand(model: str, tokens: int, a_layer: str, layers: int, outputs: int) -> None:
    deployment = on(model, gpu="H200")
    served = simulate(deployment, make_trace([0.0], [tokens], [outputs])).served
    received_s = VLLM.request_s + VLLM.token_s * tokens + VLLM.reach_s
    kernels_s = float(hostless(deployment).prefill(tokens))
    launch_s = VLLM.step_s + layers * getattr(VLLM, a_layer) + VLLM.sequence_s
    next_host_s = VLLM.step_s + VLLM.sequence_s if outputs > 1 else 0.0
    assert served.start_s[0] == pytest.approx(received_s)
    expected = received_s + max(kernels_s, launch_s + next_host_s) + VLLM.answer_s
    assert served.first_token_s[0] == pytest.approx(expected, rel=0.01)
    # Its last token needs no next step: it is told when it is there.
    answer_s = float(step_model(deployment).decode(1, tokens + np.arange(1, outputs)).sum())
    finish_s = received_s + max(kernels_s, launch_s) + answer_s + VLLM.answer_s
    assert served.finish_s[0] == pytest.approx(finish_s, rel=0.01)


# Steps composed ahead


def table(*, ahead: bool = True, **front_end: float) -> StepTable:
    """On the GPU 10 ms with prompts and 8 ms without; the host launches those in 6 ms, 25 above 16 tokens, these in 3.

    In milliseconds.
    """
    launch_s = np.where(np.arange(100) > 16, 25.0, 6.0)
    return flat_table(10.0, 8.0, launch_s=launch_s, host_step_s=3.0, ahead=ahead, **front_end)


def serve(steps: StepTable, asks: list[tuple[float, int, int]]) -> Served:
    """Requests of (arrival, prompt, answer) on one replica with room for all."""
    return run(asked(*zip(*asks, strict=True)), steps, ROOMY, FleetSettings())[0]


def test_who_comes_after_a_step_was_composed_is_in_the_one_after_it() -> None:
    """Three steps and a fourth, by hand (composed, begun, done, told).

    1: the prompt of A         0,  0, max(0 + 10,  0 +  6) = 10, max(10,  6 +  3) = 10
    2: A's second token        6, 10, max(10 + 8,  6 +  3) = 18, max(18, 10 + 25) = 35, as step 3 is launched slowly
    3: A's third, B's prompt  10, 18, max(18 + 10, 10 + 25) = 35, max(35, 35 + 3) = 38, as the host was busy with it
    4: B's second token       35, 35, max(35 + 8, 35 + 3) = 43, at once: there is no step 5
    """
    served = serve(table(), [(0.0, 10, 3), (7.0, 30, 2)])
    assert served.start_s == pytest.approx([0.0, 18.0])
    assert served.first_token_s == pytest.approx([10.0, 38.0])
    assert served.finish_s == pytest.approx([38.0, 43.0])


def test_who_comes_before_it_is_composed_is_in_it() -> None:
    """1: A's prompt             0,  0, 10, max(10, 6 + 25) = 31: told only when step 2 has been launched
    2: A's second, B's prompt    6, 10, max(10 + 10, 6 + 25) = 31, max(31, 31 + 3) = 34
    3: A's third, B's second    31, 31, 39, at once
    """
    served = serve(table(), [(0.0, 10, 3), (5.0, 30, 2)])
    assert served.start_s == pytest.approx([0.0, 10.0])
    assert served.first_token_s == pytest.approx([31.0, 34.0])
    assert served.finish_s == pytest.approx([39.0, 39.0])


def test_in_turn_a_step_is_composed_when_the_last_is_done_and_told_at_once() -> None:
    """1: A's prompt, max(10, 6) + 3 = 13; 2: A's second, B's prompt, 13 + max(10, 25) + 3 = 41; 3: both, 41 + 8."""
    served = serve(table(ahead=False), [(0.0, 10, 3), (7.0, 30, 2)])
    assert served.start_s == pytest.approx([0.0, 13.0])
    assert served.first_token_s == pytest.approx([13.0, 41.0])
    assert served.finish_s == pytest.approx([49.0, 49.0])


def test_nothing_is_composed_ahead_for_an_empty_replica() -> None:
    # The answer of A is one token: B comes at 7, after step 2 could have been composed, and begins when A is done.
    served = serve(table(), [(0.0, 10, 1), (7.0, 10, 1), (50.0, 10, 1)])
    assert served.start_s == pytest.approx([0.0, 10.0, 50.0])
    # vLLM's EngineCore.step_with_batch_queue: with nothing to schedule it blocks on the step in flight and hands its
    # results out; only then does it look for requests again. So B's launch does not hold A's token up.
    assert served.first_token_s == pytest.approx([10.0, 20.0, 60.0])


def test_a_run_of_steps_is_the_recursion_step_by_step() -> None:
    """One long answer whose host is faster than the GPU, another that comes in the middle of it."""
    for at in (41.0, 43.9, 44.1, 47.0, 49.9, 50.1):
        served = serve(table(), [(0.0, 10, 20), (at, 10, 1)])
        composed, begun, done = [0.0], [0.0], [10.0]
        launch = [6.0]
        rides: int | None = None
        while len(done) < 20:
            composed.append(max(begun[-1], composed[-1] + launch[-1]))
            if rides is None and composed[-1] >= at:
                rides = len(done)
            with_prompt = rides == len(done)
            launch.append(6.0 if with_prompt else 3.0)
            begun.append(max(done[-1], composed[-1]))
            done.append(max(begun[-1] + (10.0 if with_prompt else 8.0), composed[-1] + launch[-1]))
        assert rides is not None
        assert served.start_s[1] == pytest.approx(begun[rides])
        told = max(done[rides], composed[rides + 1] + launch[rides + 1])
        assert served.finish_s.tolist() == pytest.approx([done[-1], told])


# The front end


def test_of_three_at_once_the_first_is_handed_on_alone_and_the_others_together() -> None:
    """2 ms a request, 0.1 a token of the longest prompt, 1 on the way: 0 + 2 + 1 + 1 = 4; 3 + 2 × 2 + 3 + 1 = 11."""
    steps = table(request_s=2.0, token_s=0.1, reach_s=1.0)._replace(tokens_s=np.full(100, 5.0))
    served = serve(steps, [(0.0, 10, 1), (0.0, 5, 1), (0.0, 30, 1)])
    # 4 + max(5, 6) = 10 and the engine is idle until 11; 35 tokens are launched in 25.
    assert served.start_s == pytest.approx([4.0, 11.0, 11.0])
    assert served.first_token_s == pytest.approx([10.0, 36.0, 36.0])


def test_who_finds_the_front_end_idle_is_taken_at_once_and_who_does_not_waits_for_it() -> None:
    steps = table(request_s=4.0, reach_s=1.0)._replace(tokens_s=np.full(100, 0.1), launch_s=np.full(100, 0.1))
    served = serve(steps, [(0.0, 1, 1), (1.0, 1, 1), (2.0, 1, 1), (5.0, 1, 1), (30.0, 1, 1)])
    # The second and third wait for the first until 4 and are worked on until 12, the fourth from then to 16.
    assert served.start_s == pytest.approx([5.0, 13.0, 13.0, 17.0, 35.0])


# Closed loops


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt-llm", "tgi"])
def test_a_lone_user_sends_the_next_request_on_hearing_the_last_token(engine: str) -> None:
    outputs = [1, 20, 3, 0, 7]
    simulation = simulate(
        on(engine=engine), make_trace(np.zeros(5), [300, 2000, 10, 600, 9000], outputs), FleetSettings(users=1)
    )
    served = simulation.served
    assert served.arrival_s[0] == 0.0
    assert served.arrival_s[1:] == pytest.approx(served.finish_s[:-1], rel=1e-12)
    assert simulation.trace.arrival_s.tolist() == served.arrival_s.tolist()
    # Each finds the replica as the first did: alone.
    lengths = zip(simulation.trace.input_tokens, simulation.trace.output_tokens, strict=True)
    alone = [float(simulate(on(engine=engine), make_trace([0.0], [i], [o])).served.finish_s[0]) for i, o in lengths]
    assert served.finish_s == pytest.approx(list(accumulate(alone)), rel=0.005)
    assert all(before < after for before, after in pairwise(served.finish_s))


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tgi"])
@pytest.mark.parametrize("users", [1, 7, 64])
def test_users_are_throughput_times_the_time_a_request_takes(engine: str, users: int) -> None:
    count = 150 * users
    rng = np.random.default_rng(users)
    trace = make_trace(np.zeros(count), rng.integers(1, 1500, count), rng.integers(1, 60, count))
    served = simulate(on(engine=engine), trace, FleetSettings(users=users)).served
    throughput = count / float(served.finish_s.max())
    stay_s = float((served.finish_s - served.arrival_s).mean())
    assert throughput * stay_s == pytest.approx(users, rel=0.02)
    # A request is sent when another has been answered, and at no other time.
    assert (served.arrival_s[:users] == 0).all()
    answered = np.sort(served.finish_s)[: count - users]
    assert np.sort(served.arrival_s[users:]) == pytest.approx(answered, rel=1e-12)
