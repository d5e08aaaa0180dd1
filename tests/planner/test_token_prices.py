"""Input, cached input and output: three prices that are one bill, and what a cached token still costs."""

import pytest
from tests.deployed import on
from tests.there import there

from tokonomics.catalog.engines import find_engine
from tokonomics.catalog.gpus import find_gpu
from tokonomics.catalog.layers import Precision
from tokonomics.catalog.load_models import find_model
from tokonomics.money.cost import split_by_gpu_time, with_cached
from tokonomics.physics.deployment import Deployment
from tokonomics.physics.steptime import step_model
from tokonomics.questions.plan import plan
from tokonomics.questions.requests.buy import PlanRequest
from tokonomics.questions.results import PlanResult
from tokonomics.sizing.bill import attending


def planned(request: PlanRequest) -> PlanResult:
    found = plan(request)
    assert isinstance(found, PlanResult)
    return found


@pytest.mark.parametrize("cached", [0.0, 250.0, 900.0])
def test_the_three_prices_times_their_tokens_are_the_bill(cached: float) -> None:
    """Two requests a second of 1,000 and 300 tokens for $0.01 a second: half a cent a request."""
    prices = with_cached(split_by_gpu_time(0.01, 2.0, 1000, 300, 0.4), 1000, cached, 2e-4)
    assert prices.cached is not None
    assert (prices.input * (1000 - cached) + prices.cached * cached + prices.output * 300) / 1e6 == pytest.approx(0.005)


def test_where_nothing_is_cached_input_costs_what_it_did() -> None:
    plain = split_by_gpu_time(0.01, 2.0, 1000, 300, 0.4)
    assert with_cached(plain, 1000, 0, 2e-4).model_dump(exclude={"cached"}) == plain.model_dump(exclude={"cached"})


def test_a_cached_token_costs_what_attending_to_it_adds_to_prefill() -> None:
    """Timed step by step: a prompt of 4,000 tokens behind 2,000 that are there, against the same prompt alone."""
    deployment = Deployment(
        model=find_model("llama-3.1-8b"), gpu=find_gpu("H100"), engine=find_engine("vllm"),
        weights=Precision.bf16, kv=Precision.bf16,
    )  # fmt: skip
    steps = step_model(deployment).with_engine(None)
    added = float(steps.prefill(4000, 2000)) / float(steps.prefill(4000)) - 1
    assert attending(deployment, 4000, 2000) == pytest.approx(added / 2000)
    # Where nothing is found: one of the 2,000 that would be, if half of the prompt were.
    added_s = float(steps.prefill(2000, 2000)) - float(steps.prefill(2000))
    assert attending(deployment, 4000, 0) == pytest.approx(added_s / 2000 / float(steps.prefill(4000)))


@pytest.mark.parametrize("name", ["llama-3.1-8b", "qwen3-30b-a3b", "gemma-3-27b", "deepseek-v3", "qwen2.5-0.5b"])
@pytest.mark.parametrize("gpu", ["L4", "H100"])
def test_a_cached_token_never_costs_more_than_a_computed_one(name: str, gpu: str) -> None:
    deployment = on(name, gpu)
    for tokens in (16, 100, 1000, 8000, 30_000, 60_000, 100_000):
        plain = split_by_gpu_time(0.01, 2.0, tokens, 300, 0.4)
        for share in (0.0, 0.1, 0.5, 0.9):
            found = share * tokens
            prices = with_cached(plain, tokens, found, attending(deployment, tokens - found, found))
            assert prices.cached is not None
            assert 0 <= prices.cached <= prices.input * (1 + 1e-12), (tokens, share)
            spent = prices.input * (tokens - found) + prices.cached * found + prices.output * 300
            assert spent / 1e6 == pytest.approx(0.005)


def test_longer_prompts_make_cached_tokens_cost_more_of_an_input_token_but_never_all_of_it() -> None:
    shares = []
    for tokens in (200, 2000, 20_000):
        request = PlanRequest(
            model=("llama-3.1-8b",), gpu=("H100",), rate="2", input=f"const:{tokens}", output="const:200", quick=True
        )
        best = there(planned(request).best)
        shares.append(there(best.usd_per_mtok.cached) / best.usd_per_mtok.input)
    assert 0 < shares[0] < shares[1] < shares[2] < 1


def test_an_encoder_has_no_cached_tokens_and_no_price_of_them() -> None:
    request = PlanRequest(model=("bge-m3",), gpu=("L4",), rate="2", input="const:200", quick=True)
    best = there(planned(request).best)
    assert best.usd_per_mtok.cached is None
