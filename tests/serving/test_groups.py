"""Data-parallel attention in the simulator and the closed form: a request lives in one group of the replica."""

import numpy as np
import pytest
from tests.deployed import on
from tests.serving import reference
from tests.serving.reference_replica import EngineTimes
from tests.there import there

from tokonomics.catalog.layers import Precision
from tokonomics.physics.deployment import Deployment
from tokonomics.physics.memory import max_sequences
from tokonomics.physics.steptime import StepModel, step_model
from tokonomics.serving.fleet_settings import FleetSettings
from tokonomics.serving.outcome import full_batches
from tokonomics.serving.simulator import requests_for, rules_for, simulate, table_for
from tokonomics.serving.state import DONE, REFUSED
from tokonomics.serving.steady import ReplicaCurve, alone_s, prefill_only_rate, prompt_chunks, whole_prompts
from tokonomics.sizing.load import load_of_shape
from tokonomics.sizing.screen import curve_for
from tokonomics.traffic.trace import Trace, make_trace

GROUPS, BUDGET = 8, 8192  # of an H200's engine (vLLM's own on a card of 80 GB and more), for each group


def r1(engine: str = "vllm", dp: int = GROUPS) -> Deployment:
    return on("deepseek-r1", "H200", engine, weights=Precision.fp8, dp=dp, tp=GROUPS // dp, ep=GROUPS)


def bare() -> StepModel:
    return step_model(r1()).with_engine(None)


def together(prompts: int, tokens: int, outputs: int = 1) -> Trace:
    return make_trace(np.zeros(prompts), [tokens] * prompts, [outputs] * prompts)


def chunks_s(tokens: int, prompts: int) -> float:
    """Prompts side by side, one in each of so many groups, chunk after chunk."""
    pasts = range(0, tokens, BUDGET)
    return sum(float(bare().prefill(prompts * min(BUDGET, tokens - past), past, prompts)) for past in pasts)


@pytest.mark.parametrize("tokens", [3000, 8192, 20_000, 40_000])
@pytest.mark.parametrize("prompts", [1, 3, 8])
def test_a_long_prompt_is_computed_in_chunks_of_one_group_and_others_beside_it(tokens: int, prompts: int) -> None:
    served = simulate(r1(), together(prompts, tokens), steps=bare()).served
    assert served.first_token_s == pytest.approx(np.full(prompts, chunks_s(tokens, prompts)), rel=0.02)


def test_a_ninth_long_prompt_waits_for_a_group() -> None:
    served = simulate(r1(), together(9, 40_000), steps=bare()).served
    first = chunks_s(40_000, 8)
    # The last of the eight's five chunks leaves room in their groups: the ninth begins there.
    assert first < float(served.first_token_s.max()) < first + chunks_s(40_000, 1)
    assert np.count_nonzero(served.first_token_s <= 1.2 * first) == 8


def test_the_closed_form_of_a_lone_prompt_has_the_same_chunks() -> None:
    assert (r1().group_limits.max_batched_tokens, r1().limits.max_batched_tokens) == (BUDGET, GROUPS * BUDGET)
    assert prompt_chunks(r1(), 20_000) == [8192, 8192, 3616]
    served = simulate(r1(), together(1, 20_000, 2)).served
    assert float(served.first_token_s[0]) == pytest.approx(alone_s(step_model(r1()), 20_000, 2), rel=0.01)


def test_a_replica_for_prompts_only_keeps_every_group_busy() -> None:
    assert prefill_only_rate(step_model(r1()), 32_768) == pytest.approx(GROUPS / chunks_s(32_768, GROUPS))
    assert prefill_only_rate(step_model(r1()), 2048) == pytest.approx(
        32 / float(bare().prefill(GROUPS * BUDGET, 0, 32))
    )
    assert [whole_prompts(r1(), tokens) for tokens in (1000, 8192, 20_000)] == [64, 8, 8]


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_a_request_must_fit_the_memory_of_one_group(engine: str) -> None:
    model = r1(engine).model.model_copy(update={"max_context": 10_000_000})
    deployment = r1(engine).model_copy(update={"model": model})
    longest = 100_000
    while max_sequences(deployment, longest * 2):
        longest *= 2
    assert max_sequences(deployment, longest * 2) == 0  # though the groups together have room for it
    served = simulate(deployment, make_trace([0.0, 0.0], [longest, longest * 2], [1, 1])).served
    assert served.status.tolist() == [DONE, REFUSED]


def test_the_slow_reference_refuses_and_chunks_as_the_fast_loop_does() -> None:
    trace = make_trace(np.zeros(5), [40, 40, 7, 90, 3], [2, 3, 1, 1, 4])
    rules = rules_for(r1(), trace)._replace(
        max_batched_tokens=20, max_sequences=4, block_tokens=1, kv_blocks=160, groups=2, fixed_blocks=0
    )
    steps: list[tuple[int, int]] = []

    def gpu_s(_decodes: int, _kv: int, tokens: int, prompts: int, _pairs: float) -> float:
        steps.append((tokens, prompts))
        return 1.0

    served = reference.serve(requests_for(trace, rules), EngineTimes(gpu_s=gpu_s), rules, FleetSettings())
    assert served.status.tolist() == [DONE, DONE, DONE, REFUSED, DONE]
    assert steps[:5] == [(20, 2)] * 4 + [(10, 2)]  # ten of each a step; then what is left of the others


@pytest.mark.parametrize(("inputs", "outputs"), [(32_000, 200), (32_000, 1000)])
def test_capacity_for_prompts_beyond_a_group_s_budget_is_what_the_simulator_finishes(inputs: int, outputs: int) -> None:
    capacity = ReplicaCurve(r1(), inputs, outputs).capacity()
    count = 12 * capacity.batch
    lengths = np.random.default_rng(0).integers(outputs // 10, outputs * 19 // 10, count)
    done = np.sort(simulate(r1(), make_trace(np.zeros(count), [inputs] * count, lengths)).served.finish_s)
    first, last = int(0.4 * count), int(0.85 * count)
    assert capacity.rate == pytest.approx((last - first) / (done[last] - done[first]), rel=0.1)


def test_prompts_of_other_groups_hold_a_first_token_up_little() -> None:
    curve = ReplicaCurve(r1(), 32_000, 1000)
    capacity = curve.capacity()
    rate = 0.7 * capacity.rate
    arrival = np.cumsum(np.random.default_rng(1).exponential(1 / rate, 500))
    served = simulate(r1(), make_trace(arrival, [32_000] * 500, [1000] * 500)).served
    waited = float((served.first_token_s - served.arrival_s)[100:].mean())
    assert curve.at_rate(rate, capacity).ttft_s == pytest.approx(waited, rel=0.3)


@pytest.mark.parametrize("dp", [1, GROUPS])
def test_load_is_counted_against_the_same_full_batches_in_plan_and_simulate(dp: int) -> None:
    load = load_of_shape(2, "2000", "300")
    simulation = simulate(r1(dp=dp), load.trace)
    full = there(full_batches(simulation))
    assert float(full.rates.max()) == pytest.approx(curve_for(r1(dp=dp), load).capacity().rate, rel=1e-3)


def test_a_step_has_room_for_a_prompt_longer_than_its_share_in_every_group() -> None:
    """TensorRT-LLM's prompts are not cut: each of four groups may take one of 20,000 tokens into the same step."""
    four = on("llama-4-scout", "H200", "tensorrt-llm", weights=Precision.fp8, dp=4, ep=4)
    trace = make_trace(np.zeros(12), np.full(12, 20_000), np.full(12, 20))
    steps = step_model(four)
    table = table_for(steps, trace, rules_for(four, trace))
    assert len(table.tokens_s) > 4 * 20_000
    # Four are in the first step: of each the engine's limit counts its group's share of 8,192 tokens.
    own = steps.engine
    assert own is not None
    first_s = sorted(simulate(four, trace).served.first_token_s)
    together_s = float(steps.prefill(80_000, prompts=4))
    assert first_s[3] == pytest.approx(own.request_seconds(20_000) + together_s, rel=0.01)
    assert first_s[4] > first_s[3] + 0.5 * together_s
