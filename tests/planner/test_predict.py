"""One prediction's figures against each other: a first token contains its prompt's step."""

import math

import pytest

from tokonomics.measure.stated_setup import stated_deployment
from tokonomics.physics.deployment import Deployment
from tokonomics.physics.intervals import interval
from tokonomics.planner.predict import predict


def on(model: str, gpu: str = "H200", weights: str = "bf16", tp: int = 1, engine: str = "vllm") -> Deployment:
    return stated_deployment(model, gpu, tp, 1, 1, 1, weights, None, engine)


SERVED = (
    on("qwen3-30b-a3b", weights="fp8"),
    on("llama-3.1-8b"),
    on("llama-3.1-8b", engine="sglang"),
    on("llama-3.1-70b", "H100-SXM", tp=4, engine="tensorrt-llm"),
    on("llama-3.1-8b", "L40S"),
    on("llama-3.1-8b", "MI300X"),
    on("llama-3.1-8b", "RTX3090"),
)


@pytest.mark.parametrize("deployment", SERVED, ids=str)
@pytest.mark.parametrize("context", [128, 2048, 8192])
def test_a_first_token_comes_no_earlier_than_its_prompts_step(deployment: Deployment, context: int) -> None:
    made = predict(deployment, batch=4, context=context)
    for end in ("low", "mid", "high"):
        assert getattr(made.prefill_s, end) < getattr(made.ttft_s, end), end


def test_a_prompts_step_is_as_uncertain_as_the_first_tokens_that_were_measured() -> None:
    made = predict(SERVED[0], batch=64, context=2048)
    learned = interval(1.0, "ttft", SERVED[0])
    for found in (made.prefill_s, made.ttft_s):
        assert math.isclose(found.low / found.mid, learned.low)
        assert math.isclose(found.high / found.mid, learned.high)
