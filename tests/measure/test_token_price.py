"""Input, cached input and output: whatever the split, tokens times prices are the bill."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.there import there

from tokonomics.measure.meter.bill import ALIKE, MeteredGpu, TokenCost, token_cost, token_costs
from tokonomics.measure.meter.state import MeterTally, Statement, StatementLine

H100 = MeteredGpu(gpu="h100-sxm")


def sums(**changed: float) -> MeterTally:
    """An hour of a $2.40 server with 1,000 requests: 600 tokens computed, 400 cached, 200 out; batch 20."""
    known = {
        "seconds": 3600.0, "busy_s": 1800.0, "idle_s": 1800.0, "usd": 2.4, "busy_usd": 1.2, "idle_usd": 1.2,
        "input_total": 1e6, "input_cached": 4e5, "output": 2e5, "answered": 1000.0,
        "running_s": 36_000.0, "running_seen_s": 1800.0,
    }  # fmt: skip
    return MeterTally(**(known | changed))


def bill(cost: TokenCost, tally: MeterTally) -> float:
    tokens = cost.input * tally.input_computed + cost.cached * tally.input_cached + cost.output * tally.output
    return tokens / 1e6


def found(tally: MeterTally, on: MeteredGpu | None = None, model: str = "llama-3.1-8b") -> TokenCost:
    return there(token_cost(model, "vllm", tally, on))


def test_without_a_gpu_every_token_costs_the_same() -> None:
    """$2.40 over 1.2 M tokens."""
    cost = found(sums())
    assert cost.input == cost.cached == cost.output == cost.blended == pytest.approx(2.0)
    assert cost.split == ALIKE


def test_by_gpu_time_output_is_dear_and_cached_input_cheap() -> None:
    cost = found(sums(), H100)
    assert cost.output > cost.input > cost.cached


def test_tokens_of_a_kind_that_was_not_served_take_no_dollars() -> None:
    assert found(sums(input_cached=0.0), H100).cached == 0
    with_none = sums(output=0.0)
    assert bill(found(with_none, H100), with_none) == pytest.approx(2.4)


def test_answers_pay_for_attending_to_cached_prompts() -> None:
    """1,000 computed tokens each, alone or after 9,000 cached: prefill's work is alike, each step reads ten times more.

    Llama 3.1 8B has 128 KB of KV a token (32 layers × 8 heads × 128 × 2 × 2 bytes): at batch 20, 9,000 tokens more are
    23.6 GB a step beside 16 GB of weights. So a step takes about (16 + 26.5) ÷ (16 + 2.9) = 2.25 times as long.
    """
    alone = found(sums(input_total=1e6, input_cached=0.0), H100)
    after = sums(input_total=1e7, input_cached=9e6)
    cost = found(after, H100)
    shares = [price.output * 2e5 / 1e6 / 2.4 for price in (alone, cost)]
    assert shares[1] > shares[0]
    longer = (shares[1] / (1 - shares[1])) / (shares[0] / (1 - shares[0]))
    assert longer == pytest.approx(2.25, rel=0.25)
    assert bill(cost, after) == pytest.approx(2.4)


def test_a_model_is_charged_as_on_the_engine_that_cost_most_in_all() -> None:
    """vLLM's one line of $3 against SGLang's two of $2."""
    lines = (("mon", "m", "vllm", 3.0), ("mon", "m", "sglang", 2.0), ("tue", "m", "sglang", 2.0))
    of = Statement(
        since=0.0, until=1.0, by=("day", "model", "engine"), total=sums(usd=7.0),
        lines=tuple(StatementLine(group=group, sums=sums(usd=usd)) for *group, usd in lines),
    )  # fmt: skip
    assert [cost.engine for cost in token_costs(of)] == ["sglang"]


@pytest.mark.parametrize(
    ("model", "cached"), [("acme/secret-model", 4e5), ("llama-3.1-8b", 1e6)], ids=["unknown model", "all cached"]
)
def test_what_cannot_be_modelled_has_one_price_and_says_why(model: str, cached: float) -> None:
    cost = found(sums(input_cached=cached), H100, model)
    assert cost.split == ALIKE
    assert cost.why_alike


def test_no_token_has_no_price() -> None:
    assert token_cost("m", "vllm", MeterTally(usd=1.0, seconds=60.0), H100) is None


@given(
    st.floats(0.01, 1e4), st.floats(1, 1e9), st.floats(0, 1), st.floats(1, 1e9), st.floats(1, 1e6), st.floats(1, 200)
)
def test_prices_times_tokens_are_the_bill(
    usd: float, inputs: float, cached: float, output: float, answered: float, batch: float
) -> None:
    tally = sums(
        usd=usd, input_total=inputs, input_cached=inputs * cached, output=output, answered=answered,
        running_s=batch * 1800,
    )  # fmt: skip
    for on in (None, H100):
        assert bill(found(tally, on), tally) == pytest.approx(usd, rel=1e-9)
