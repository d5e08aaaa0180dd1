"""Encoders in the simulator and in the closed form, images in prompts, and when an answer begins."""

import numpy as np
import pytest
from tests.there import there

from tokonomics.catalog.engines import find_engine
from tokonomics.catalog.gpus import find_gpu
from tokonomics.catalog.load_models import find_model
from tokonomics.physics.deployment import Deployment, deploy
from tokonomics.physics.steptime import step_model
from tokonomics.serving.class_outcome import in_the_mean, simulated
from tokonomics.serving.outcome import outcome, request_latencies
from tokonomics.serving.simulator import simulate
from tokonomics.serving.steady import ReplicaCurve
from tokonomics.traffic.trace import Trace, make_trace
from tokonomics.traffic.workload import Thinking


def on(model: str, images: str | None = None) -> Deployment:
    found = find_model(model)
    return deploy(found.reading(images) if images else found, find_gpu("L4"), find_engine("vllm"))


def prompts(rate: float, count: int, tokens: int, written: int = 0) -> Trace:
    rng = np.random.default_rng(0)
    return make_trace(np.cumsum(rng.exponential(1 / rate, count)), np.full(count, tokens), np.full(count, written))


def test_requests_far_apart_take_one_step_each() -> None:
    deployment = on("bge-m3")
    made = simulate(deployment, make_trace(np.arange(20) * 10.0, np.full(20, 700), np.zeros(20, int)))
    found = outcome(made)
    assert (found.completed, found.output_tokens, found.tpot_s.mean) == (20, 0, None)
    engine = there(step_model(deployment).engine)
    outside_s = engine.request_seconds(700)
    assert found.e2e_s.mean == pytest.approx(float(step_model(deployment).prefill(700)) + outside_s, rel=0.03)


def test_the_closed_form_bounds_what_an_encoder_finishes() -> None:
    deployment, tokens = on("bge-reranker-v2-m3"), 400
    full = ReplicaCurve(deployment, tokens, 1).capacity()
    made = outcome(simulate(deployment, prompts(3 * full.rate, 4000, tokens)))
    assert 0.85 * full.rate < made.requests_per_s < 1.05 * full.rate


def test_a_step_of_an_encoder_holds_what_its_budget_does_and_more_prompts_finish_more() -> None:
    curve = ReplicaCurve(on("bge-m3"), 400, 1)
    assert curve.batches[-1] == 32_768 // 400
    assert curve.capacity().rate == pytest.approx(curve.rates[-1], rel=0.01)
    assert curve.rates[-1] > curve.rates[0]


def test_no_prompt_of_an_encoder_is_split() -> None:
    deployment = on("bge-m3")
    longest = outcome(simulate(deployment, make_trace([0.0], [8192], [0])))
    assert longest.completed == 1
    engine = there(step_model(deployment).engine)
    outside_s = engine.request_seconds(8192)
    assert longest.e2e_s.mean == pytest.approx(float(step_model(deployment).prefill(8192)) + outside_s, rel=0.03)


def test_images_make_first_tokens_later_by_the_tower() -> None:
    plain, seen = on("qwen3-vl-8b"), on("qwen3-vl-8b", "1x1024x1024")
    trace = make_trace(np.arange(10) * 60.0, np.full(10, 1500), np.full(10, 5))
    without, with_images = (outcome(simulate(deployment, trace)).ttft_s.mean or 0.0 for deployment in (plain, seen))
    tower = float(step_model(seen).prefill(1500) - step_model(plain).prefill(1500))
    assert with_images - without == pytest.approx(tower, rel=0.05)


def test_the_answer_begins_behind_the_thinking() -> None:
    made = simulate(on("qwen3-8b"), prompts(0.5, 50, 300, 40))
    found = simulated(made, Thinking(tokens=30), 2.0)
    latencies = request_latencies(made)
    by_hand = [float(ttft + 30 * tpot) for ttft, tpot in zip(latencies["ttft"], latencies["tpot"], strict=True)]
    assert found.first_answer_s.mean == pytest.approx(sum(by_hand) / len(by_hand))
    assert found.share == pytest.approx(0.75)
    assert found.usd_per_mtok_answer == pytest.approx(2.0 / 0.25)
    assert (found.first_answer_s.mean or 0.0) < (outcome(made).e2e_s.mean or 0.0)


def test_in_the_mean_it_is_the_first_token_and_the_thinking() -> None:
    trace = make_trace([0.0, 1.0], [10, 10], [100, 300])
    found = in_the_mean(trace, Thinking(share=0.5), 0.2, 0.01, None)
    assert found.first_answer_s.mean == pytest.approx(0.2 + 100 * 0.01)
    assert found.usd_per_mtok_answer is None
    assert in_the_mean(trace, Thinking(share=1.0), 0.2, 0.01, 5.0).usd_per_mtok_answer is None
