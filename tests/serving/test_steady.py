"""A replica under constant load: the closed form against slow references and laws."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.deployed import on
from tests.physics.hosts import hostless, lone

from tokonomics.catalog.engines import all_engines, find_engine
from tokonomics.catalog.gpus import find_gpu
from tokonomics.catalog.load_models import find_model
from tokonomics.errors import DoesNotFit
from tokonomics.physics.deployment import Deployment, deploy
from tokonomics.physics.memory import max_sequences
from tokonomics.physics.overhead import overhead
from tokonomics.physics.steptime import decode_step, step_model
from tokonomics.serving.fleet_settings import FleetSettings
from tokonomics.serving.simulator import simulate
from tokonomics.serving.steady import MissesSlo, ReplicaCurve, context_spread, prompt_stall_s, static_batch_s
from tokonomics.traffic.trace import make_trace

shapes = st.tuples(st.integers(1, 4000), st.integers(8, 2000))


@given(shapes)
@settings(max_examples=40, deadline=None)
def test_requests_in_the_system_are_rate_times_residence(shape: tuple[int, int]) -> None:
    # Little's law: a request waits for its own prompt, whose step writes the first token and may be one of the others'
    # as well, and for each token after it while the others' prompts hold it up.
    curve = ReplicaCurve(on(), *shape, steps=hostless(on()))
    residence_s = curve.batches / curve.rates
    assert (residence_s >= (curve.stall_s + (shape[1] - 1) * curve.tpot_s) * (1 - 1e-9)).all()
    assert (residence_s <= (curve.stall_s + shape[1] * curve.tpot_s) * (1 + 1e-9)).all()


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt-llm"])
@pytest.mark.parametrize(("inputs", "outputs"), [(1, 1), (1, 2), (1, 5), (100, 1), (100, 2)])
def test_short_answers_are_finished_as_fast_as_the_simulator_does(engine: str, inputs: int, outputs: int) -> None:
    # The step of its prompt writes the first token, and one process receives all requests.
    deployment, count = on(engine=engine), 20_000
    served = simulate(deployment, make_trace(np.zeros(count), [inputs] * count, [outputs] * count)).served
    first, last = np.sort(served.finish_s)[[count // 5, count * 4 // 5]]
    full = ReplicaCurve(deployment, inputs, outputs).capacity()
    assert full.rate == pytest.approx(count * 3 / 5 / (last - first), rel=0.05)
    assert (full.limited_by == "engine's front end") == (engine != "tensorrt-llm" and inputs == 1)
    # No larger batch runs than the smallest that reaches the rate.
    assert ReplicaCurve(deployment, inputs, outputs).at_rate(full.rate, full).batch == full.batch


@pytest.mark.parametrize("inputs", [1, 100, 1000])
def test_an_answer_of_one_token_waits_about_as_long_as_in_the_simulator(inputs: int) -> None:
    deployment, curve = on(), ReplicaCurve(on(), inputs, 1)
    full = curve.capacity()
    arrival = np.cumsum(np.random.default_rng(3).exponential(1 / (0.6 * full.rate), 20_000))
    served = simulate(deployment, make_trace(arrival, [inputs] * 20_000, [1] * 20_000))
    took_s = float((served.served.first_token_s - served.trace.arrival_s).mean())
    assert curve.at_rate(0.6 * full.rate, full).ttft_s == pytest.approx(took_s, rel=0.5)


@given(shapes)
@settings(max_examples=40, deadline=None)
def test_rate_and_tpot_rise_with_the_batch(shape: tuple[int, int]) -> None:
    curve = ReplicaCurve(on(), *shape)
    # Once the host or the FLOPs are full, a sequence takes as long as it brings: the rate stays about where it is. It
    # may dip where prompts of a step outgrow the captured sizes: their launches then take twice as long.
    captured = curve.rates[curve.batches <= overhead(find_engine("vllm")).graph_tokens]
    assert (captured >= 0.85 * np.maximum.accumulate(captured)).all()
    bare = ReplicaCurve(on(), *shape, steps=hostless(on()))
    assert (bare.rates >= 0.97 * np.maximum.accumulate(bare.rates)).all()
    assert (np.diff(curve.tpot_s) >= -1e-9).all()


def test_a_prompt_alone_takes_its_own_time_and_riding_along_less() -> None:
    steps = step_model(on()).with_engine(None)
    stall = prompt_stall_s(steps, np.array([1.0, 33.0]), 1000, 200)
    alone = float(steps.prefill(1000))
    # One in six steps or so holds a prompt, and a few of those two: so many in the mean.
    riders = 0.16 / (1 - math.exp(-0.16))
    beside = 32 * 199 / 200  # the others, less one in 200 of them, whose prompt it is that rides
    riding = (float(steps.step(1000 * riders, 0, beside, 1100, riders)) - float(steps.decode(beside, 1100))) / riders
    assert stall == pytest.approx([alone, riding])
    assert riding < alone


def test_a_prompt_beyond_the_token_budget_is_computed_in_chunks() -> None:
    steps = step_model(on(gpu="A100-80GB")).with_engine(None)  # 2,048 tokens a step
    stall = prompt_stall_s(steps, np.array([1.0]), 5000, 10)
    chunks = [float(steps.prefill(tokens, past)) for tokens, past in ((2048, 0), (2048, 2048), (904, 4096))]
    assert stall == pytest.approx([sum(chunks)])


def test_an_unhurried_replica_answers_one_request_at_a_time() -> None:
    deployment = on()
    curve = ReplicaCurve(deployment, 1000, 200)
    alone = curve.at_rate(1e-6, curve.capacity())
    step = float(decode_step(deployment, 1, 1100))
    assert alone.tpot_s == pytest.approx(step)
    # The step that computes the prompt writes the first token.
    assert alone.ttft_s == pytest.approx(lone(deployment, layers=32, tokens=1000).heard_s, rel=1e-3)
    stall = float(prompt_stall_s(step_model(deployment), np.array([1.0]), 1000, 200)[0])
    assert alone.batch == pytest.approx(1e-6 * (stall + 199 * step))


def test_a_fixed_number_of_users_is_the_batch_until_memory_is_full() -> None:
    curve = ReplicaCurve(on(gpu="L4"), 1000, 300)
    few, many = curve.at_concurrency(4), curve.at_concurrency(500)
    assert few.batch == 4
    assert few.tpot_s == pytest.approx(float(np.interp(4, curve.batches, curve.tpot_s)))
    assert many.batch == curve.batches[-1]
    assert many.ttft_s > few.ttft_s
    assert many.output_tokens_per_s == pytest.approx(curve.saturated().output_tokens_per_s, rel=0.1)


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt-llm"])
@pytest.mark.parametrize("users", [1, 16, 64, 500])
def test_a_closed_loop_obeys_littles_law(engine: str, users: int) -> None:
    curve = ReplicaCurve(on(engine=engine), 1000, 200)
    steady = curve.at_concurrency(users)
    first_step_s = float(np.interp(users, curve.batches, curve.step_s))
    # A user alone hears of the first token when the second one's step has been launched, after that one has begun.
    rel = 0.002 if users == 1 else 1e-6
    assert steady.rate * (steady.ttft_s + 200 * steady.tpot_s - first_step_s) == pytest.approx(users, rel=rel)


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt-llm"])
@pytest.mark.parametrize("outputs", [1, 2, 10])
def test_a_user_alone_asks_again_as_often_as_the_simulator_answers(engine: str, outputs: int) -> None:
    deployment = on(engine=engine)
    served = simulate(deployment, make_trace([0.0], [1000], [outputs])).served
    alone = ReplicaCurve(deployment, 1000, outputs).at_concurrency(1)
    assert 1 / alone.rate == pytest.approx(float(served.finish_s[0]), rel=0.015)


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt-llm"])
@pytest.mark.parametrize("outputs", [1, 2, 5])
@pytest.mark.parametrize("users", [16, 64])
def test_a_closed_loop_of_short_answers_finishes_what_the_simulator_does(engine: str, outputs: int, users: int) -> None:
    # Each prompt holds all others up, however few tokens of theirs are left to spread it over.
    deployment, number = on(engine=engine), 20 * users
    trace = make_trace(np.zeros(number), [1000] * number, [outputs] * number)
    end_s = float(simulate(deployment, trace, max_sequences=users).served.finish_s.max())
    steady = ReplicaCurve(deployment, 1000, outputs).at_concurrency(users)
    assert steady.rate == pytest.approx(number / end_s, rel=0.15)
    assert steady.load_share < 1.01


@pytest.mark.parametrize(("inputs", "outputs"), [(100, 50), (300, 100)])
@pytest.mark.parametrize("users", [64, 160])
@pytest.mark.parametrize("model", ["llama-3.1-8b", "llama-3.2-1b"])
def test_closed_loops_of_short_prompts_match_the_simulator(model: str, users: int, inputs: int, outputs: int) -> None:
    # Nearly every step holds a prompt, so launches follow on launches: the host, not the GPU, sets the pace.
    deployment, count, rng = on(model), 30 * users, np.random.default_rng(5)
    lengths = (rng.integers(mean // 2, 3 * mean // 2 + 1, count) for mean in (inputs, outputs))
    ends = np.sort(
        simulate(deployment, make_trace(np.zeros(count), *lengths), FleetSettings(users=users)).served.finish_s
    )
    first, last = count // 5, count - users
    rate = (last - first) / float(ends[last - 1] - ends[first - 1])
    assert ReplicaCurve(deployment, inputs, outputs).at_concurrency(users).rate == pytest.approx(rate, rel=0.2)


def test_waiting_grows_without_bound_as_the_load_nears_capacity() -> None:
    curve = ReplicaCurve(on(gpu="L4"), 4000, 400)
    full = curve.capacity()
    waits = [curve.at_rate(share * full.rate, full).ttft_s for share in (0.3, 0.6, 0.9, 0.99)]
    assert waits == sorted(waits)
    assert waits[-1] > 3 * waits[0]


def test_pipeline_stages_compute_different_prompts_at_once() -> None:
    # Prompt-bound: two stages hold twice the GPUs and finish nearly twice the prompts.
    one, two = (ReplicaCurve(on("llama-3.1-70b", tp=4, pp=pp), 4000, 20) for pp in (1, 2))
    assert two.capacity().rate / one.capacity().rate == pytest.approx(2, rel=0.25)


@pytest.mark.parametrize("gpu", ["H100", "H200", "B200"])
@pytest.mark.parametrize("users", [1, 16, 64])
def test_a_tiny_model_is_held_back_by_the_host_of_todays_vllm(gpu: str, users: int) -> None:
    deployment, host = on(model="llama-3.2-1b", gpu=gpu), overhead(find_engine("vllm"))
    host_s = host.step_s + users * host.sequence_s
    assert float(hostless(deployment).decode(users, 640)) < host_s
    steady = ReplicaCurve(deployment, 128, 1024).at_concurrency(users)
    # In a steady state others' prompts are launched between: less than a tenth here.
    assert host_s <= steady.tpot_s < 1.1 * host_s
    # So says the simulator, but for the 5 ms or so of a prompt's launches, once in a thousand tokens or more.
    count = 4 * users
    served = simulate(
        deployment, make_trace(np.zeros(count), [128] * count, [1024] * count), FleetSettings(users=users)
    ).served
    tpot_s = float((served.finish_s - served.first_token_s).mean()) / 1023
    assert tpot_s == pytest.approx(host_s, rel=0.01)


def test_a_faster_gpu_never_finishes_less_however_slow_the_host() -> None:
    deployments = [on(model="llama-3.2-1b", gpu=gpu) for gpu in ("H100", "H200", "B200")]
    with_host, without = (
        [ReplicaCurve(deployment, 128, 1024, steps=steps(deployment)).capacity().rate for deployment in deployments]
        for steps in (step_model, hostless)
    )
    assert without == sorted(without)
    assert without[2] > 1.3 * without[0]
    assert with_host == pytest.approx(sorted(with_host), rel=0.001)


def test_users_fall_into_step_where_prompts_go_first() -> None:
    # SGLang computes waiting prompts before it goes on answering: a round of prompts, then a round of answers.
    deployment = on(engine="sglang")
    curve = ReplicaCurve(deployment, 1000, 200)
    steady = curve.at_concurrency(32)
    stall, step = (float(np.interp(32, curve.batches, each)) for each in (curve.stall_s, curve.step_s))
    assert steady.tpot_s == pytest.approx(step + 31 / 2 * stall / 200)
    outside = overhead(deployment.engine).request_seconds(1000)
    assert steady.ttft_s == pytest.approx(33 / 2 * stall + step + outside)


def test_a_batch_answered_together_takes_its_prompts_and_its_steps() -> None:
    steps = step_model(on()).with_engine(None)
    prompts = float(steps.prefill(4 * 512, 0, 4))
    answers = 127 * float(np.mean(steps.decode(4, np.linspace(512, 640, 9))))
    assert static_batch_s(steps, 4, 512, 128) == pytest.approx(prompts + answers)


def test_a_tighter_slo_never_raises_the_capacity() -> None:
    curve = ReplicaCurve(on(), 1000, 300)
    rates = [curve.capacity(tpot_s).rate for tpot_s in (0.008, 0.01, 0.015, 0.03, 0.1)]
    assert rates == sorted(rates)
    assert curve.capacity().rate == pytest.approx(max(rates))


def test_capacity_meets_the_slo_and_names_what_limits_it() -> None:
    curve = ReplicaCurve(on(), 1000, 300)
    held = curve.capacity(0.01)
    assert held.tpot_s <= 0.01
    assert held.limited_by == "TPOT SLO"
    assert ReplicaCurve(on(gpu="L4"), 1000, 300).capacity().limited_by == "KV memory"
    tiny = {output: ReplicaCurve(on("llama-3.2-1b"), 10, output).capacity() for output in (10, 100)}
    assert tiny[100].limited_by == "engine's max sequences"
    assert tiny[10].limited_by == "engine's front end"


@pytest.mark.parametrize(("gpu", "shape"), [("H100", (8000, 20)), ("H100", (1000, 300)), ("L4", (1000, 300))])
def test_memory_is_named_only_where_more_of_it_would_serve_more(gpu: str, shape: tuple[int, int]) -> None:
    """Held against what half of the sequences finish."""
    whole = ReplicaCurve(on(gpu=gpu), *shape).capacity()
    half = ReplicaCurve(on(gpu=gpu), *shape, most_sequences=whole.batch // 2).capacity()
    assert whole.limited_by == ("KV memory" if whole.rate > 1.1 * half.rate else "replica's speed")


def test_a_batch_that_stops_paying_is_not_blamed_on_a_slo_nobody_made() -> None:
    # A gigantic prompt for a single token: the GPU computes all the time from the first request on.
    for shape in ((4000, 1), (1000, 8), (1, 8)):
        curve = ReplicaCurve(on(), *shape)
        assert curve.capacity().limited_by != "TPOT SLO"


def test_the_largest_batch_is_what_memory_and_engine_allow() -> None:
    # vLLM admits by what is written so far, half of the answer on average; TensorRT-LLM reserves all of it.
    for engine, held in (("vllm", 1150), ("tensorrt-llm", 1300)):
        deployment = on(gpu="L4", engine=engine)
        largest = ReplicaCurve(deployment, 1000, 300).batches[-1]
        assert largest == min(max_sequences(deployment, held), deployment.limits.max_sequences)


def test_less_memory_never_raises_the_capacity() -> None:
    gpu = find_gpu("H100")
    rates = []
    for less in range(40):
        smaller = gpu.model_copy(update={"visible_bytes": (gpu.visible_bytes or 0) - less * 250_000_000})
        deployment = deploy(find_model("llama-3.1-8b"), smaller, find_engine("vllm"))
        rates.append(ReplicaCurve(deployment, 1000, 300).capacity(0.03).rate)
    assert rates == sorted(rates, reverse=True)


def test_an_impossible_slo_says_how_fast_a_single_request_is() -> None:
    curve = ReplicaCurve(on(), 1000, 300)
    with pytest.raises(MissesSlo) as miss:
        curve.capacity(0.0001)
    assert miss.value.tpot_s == pytest.approx(curve.tpot_s[0])
    with pytest.raises(DoesNotFit):
        ReplicaCurve(on(model="llama-3.1-70b"), 1000, 300)


def test_waiting_for_the_first_token_is_that_of_an_m_d_1_queue_and_of_the_batchs_places() -> None:
    curve = ReplicaCurve(on(), 4000, 50)
    capacity = curve.capacity()
    steady = curve.at_rate(0.6 * capacity.rate, capacity)
    stall, step = (float(np.interp(steady.batch, curve.batches, each)) for each in (curve.stall_s, curve.step_s))
    busy = steady.rate * stall
    # It comes half-way through a step, another has been composed, and it rides in the next; the rest is outside any.
    host = overhead(find_engine("vllm"))
    outside = host.request_s + 4000 * host.token_s + host.reach_s + host.answer_s
    prompts = busy * stall / (2 * (1 - busy)) + 1.5 * step + stall + step + outside
    # Sakasegawa: half of load^(√(2(c+1)) − 1) ÷ (c (1 − load)) times the stay, for arrivals at random, equal requests.
    places = capacity.batch
    slots = 0.5 * 0.6 ** ((2 * (places + 1)) ** 0.5 - 1) / (places * 0.4) * (prompts + 50 * steady.tpot_s)
    assert steady.ttft_s == pytest.approx(prompts + slots)


def test_prompts_and_answers_share_the_gpu_at_full_load() -> None:
    curve = ReplicaCurve(on(), 1000, 300)
    full = curve.capacity()
    place = int(np.flatnonzero(curve.batches == full.batch)[0])
    seconds_of_prompts = full.rate * float(curve.stall_s[place])
    seconds_of_answers = full.rate * 300 * float(curve.steps.with_engine(None).decode(full.batch, 1150)) / full.batch
    assert full.prefill_share == pytest.approx(seconds_of_prompts)
    assert seconds_of_prompts + seconds_of_answers == pytest.approx(1, rel=0.02)  # the rest is waiting for the host


ENGINES = [all_engine.key for all_engine in all_engines()]


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt-llm"])
@pytest.mark.parametrize("gpu", ["A100-80GB", "H100"])
def test_a_user_alone_waits_for_no_step_of_others(engine: str, gpu: str) -> None:
    """The step that computes the prompt writes the first token."""
    deployment = on(engine=engine, gpu=gpu)
    alone = ReplicaCurve(deployment, 1000, 200).at_concurrency(1)
    assert alone.ttft_s == pytest.approx(lone(deployment, layers=32, tokens=1000).heard_s, rel=1e-3)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("gpu", ["A100-80GB", "H100"])
@pytest.mark.parametrize("shape", [(1000, 200), (8000, 100), (100_000, 50)])
def test_nobody_waits_less_in_company(engine: str, gpu: str, shape: tuple[int, int]) -> None:
    curve = ReplicaCurve(on(engine=engine, gpu=gpu), *shape)
    waits = [curve.at_concurrency(users).ttft_s for users in (1, 2, 3, 4, 8, 16)]
    assert waits == sorted(waits)
    rates = [share * curve.capacity().rate for share in (1e-6, 0.01, 0.1, 0.3, 0.6)]
    waits = [curve.at_rate(rate, curve.capacity()).ttft_s for rate in rates]
    assert waits == sorted(waits)


def first_tokens_of_a_loop(deployment: Deployment, users: int, inputs: int, outputs: list[int]) -> float:
    """By simulation: each user asks again when answered, and the mean wait once all have begun."""
    count = len(outputs)
    served = simulate(
        deployment, make_trace(np.zeros(count), [inputs] * count, outputs), FleetSettings(users=users)
    ).served
    return float((served.first_token_s - served.arrival_s)[users:].mean())


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("inputs", [1000, 8000])
def test_a_user_alone_waits_as_long_as_in_the_simulator(engine: str, inputs: int) -> None:
    deployment = on(engine=engine)
    alone = ReplicaCurve(deployment, inputs, 100).at_concurrency(1)
    assert alone.ttft_s == pytest.approx(first_tokens_of_a_loop(deployment, 1, inputs, [100] * 3), rel=0.015)


@pytest.mark.parametrize(("engine", "gpu"), [("llama.cpp", "H100"), ("llama.cpp", "A100-80GB"), ("vllm", "A100-80GB")])
def test_two_users_with_long_prompts_wait_about_as_long_as_in_the_simulator(engine: str, gpu: str) -> None:
    # The closed form has each start at a random moment of the other's answer: so do two whose answers differ in
    # length. With equal ones they settle into a rhythm.
    deployment = on(engine=engine, gpu=gpu)
    together = ReplicaCurve(deployment, 8000, 100).at_concurrency(2)
    outputs = np.random.default_rng(1).integers(20, 181, 600).tolist()
    assert together.ttft_s == pytest.approx(first_tokens_of_a_loop(deployment, 2, 8000, outputs), rel=0.1)


def test_contexts_spread_as_those_of_all_answer_tokens_do() -> None:
    prompts, outputs = np.array([4000.0, 1000.0, 200.0]), np.array([600.0, 50.0, 3000.0])
    contexts = np.concatenate([prompt + np.arange(output) for prompt, output in zip(prompts, outputs, strict=True)])
    assert context_spread(prompts, outputs) == pytest.approx(contexts.std() / contexts.mean(), rel=1e-3)
    assert context_spread(np.array([1e6]), np.array([1.0])) < 1e-3


def test_lengths_that_vary_slow_answers_in_the_closed_form_and_in_the_simulator() -> None:
    def last_tpot_s(prompts: list[int]) -> float:
        """After its prompt none comes, so that steps are of answers alone."""
        served = simulate(on(), make_trace(np.zeros(32), prompts, [400] * 32)).served
        last = int(served.first_token_s.argmax())
        return float(served.finish_s[last] - served.first_token_s[last]) / 399

    assert last_tpot_s([200, 3800] * 16) > 1.02 * last_tpot_s([2000] * 32)
    even, uneven = (ReplicaCurve(on(), 1500, 250, spread=spread) for spread in (0.0, 0.8))
    assert uneven.capacity().rate < even.capacity().rate


def test_the_closed_form_captures_as_few_graphs_as_the_simulator_for_few_sequences() -> None:
    deployment = deploy(find_model("llama-3.1-8b"), find_gpu("H200"), find_engine("vllm"))
    own = overhead(deployment.engine)
    few, many = (ReplicaCurve(deployment, 500, 100, most_sequences=limit).steps for limit in (16, 256))
    assert float(few.launch_s(33)) == pytest.approx(own.step_s + 32 * own.layer_s)
    assert float(many.launch_s(33)) == pytest.approx(own.step_s + 32 * own.piece_s)
