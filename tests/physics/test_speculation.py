"""Speculative decoding: the yield of a round, its cost, and the memory that a draft takes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.deployed import on
from tests.physics.hosts import hostless

from tokonomics.catalog.load_models import find_model
from tokonomics.errors import BadInput
from tokonomics.physics.deployment import Deployment, Speculation, acceptance_for, deploy, expected_tokens
from tokonomics.physics.memory import kv_budget_bytes, sequence_bytes
from tokonomics.physics.overhead import Overhead, overhead
from tokonomics.physics.steptime import StepModel, step_model
from tokonomics.planner.parsing import draft_named
from tokonomics.serving.step_table import compile_steps, gpu_s, step_s
from tokonomics.types import Badge

PLAIN = on("llama-3.1-70b", "H100", tp=4)
DRAFT = find_model("llama-3.2-1b")


def drafting(**more: object) -> Deployment:
    made = Speculation.model_validate({"draft": DRAFT} | more)
    return PLAIN.model_copy(update={"speculation": made})


@given(st.floats(0, 0.99), st.integers(1, 12))
def test_a_round_yields_what_drawing_it_token_by_token_yields(acceptance: float, tokens: int) -> None:
    """The sum over how many proposals are accepted before the first that is not, plus the token of the check."""
    by_length = [acceptance**n * (1 - acceptance) * (n + 1) for n in range(tokens)]
    expected = sum(by_length) + acceptance**tokens * (tokens + 1)
    assert Speculation(tokens=tokens, acceptance=acceptance, draft_share=0.1).tokens_per_round == pytest.approx(
        expected
    )


@given(st.floats(0, 1), st.integers(1, 12))
def test_the_acceptance_for_a_yield_is_the_one_that_yields_it(acceptance: float, tokens: int) -> None:
    made = Speculation(tokens=tokens, acceptance=acceptance, draft_share=0.1)
    assert acceptance_for(made.tokens_per_round, tokens) == pytest.approx(acceptance, abs=1e-6)
    assert acceptance_for(tokens + 1.001, tokens) is None


def test_a_draft_that_is_always_right_yields_all_it_proposes_and_one_more() -> None:
    assert Speculation(tokens=4, acceptance=1.0, draft_share=0.1).tokens_per_round == 5


@pytest.mark.parametrize("batch", [1, 8, 64, 256])
def test_a_free_draft_that_is_never_right_costs_the_wider_check(batch: int) -> None:
    never = PLAIN.model_copy(update={"speculation": Speculation(tokens=3, acceptance=0.0, draft_share=0.0)})
    assert float(step_model(never).decode(batch, 1000)) >= float(step_model(PLAIN).decode(batch, 1000)) * (1 - 1e-12)


def round_s(batch: int, drafted: int) -> float:
    """What the GPU does in a round, one pass after another: the check, and as many passes of the draft."""
    target, draft = step_model(PLAIN), step_model(deploy(DRAFT, PLAIN.gpu, PLAIN.engine, tp=4))

    def pass_s(model: StepModel, tokens: int, sampled: int) -> float:
        rows = np.array(float(tokens * batch))
        attended = model.decode_attention_s(np.float64(batch), np.float64(1000))
        return float(model.tokens_s(rows) + model.head_s(np.array(float(sampled * batch))) + attended)

    # The first pass has the tokens of the last check, whose KV the draft has not seen.
    passes = [pass_s(draft, drafted + 1 if first == 0 else 1, 1) for first in range(drafted)]
    return pass_s(target, drafted + 1, drafted + 1) + sum(passes)


@pytest.mark.parametrize("batch", [1, 16, 128])
@pytest.mark.parametrize("drafted", [1, 3])
def test_a_token_takes_the_drafts_passes_and_the_check_over_the_yield(batch: int, drafted: int) -> None:
    """vLLM composes no step ahead with a draft model, and its older runner works some time on every round."""
    made, engine = drafting(tokens=drafted, acceptance=0.7), overhead(PLAIN.engine)
    gpu_s = round_s(batch, drafted) + drafted * engine.draft_s
    expected = (gpu_s + max(engine.older_round_s, float(engine.host_s(batch)))) / expected_tokens(0.7, drafted)
    assert float(step_model(made).decode(batch, 1000)) == pytest.approx(expected)


def test_a_draft_told_as_a_share_of_a_step_is_a_model_of_its_own_to_the_host() -> None:
    """It waits for the host after each round, as a draft model that is named does."""
    share = PLAIN.model_copy(update={"speculation": Speculation(tokens=1, acceptance=0.0, draft_share=0.0)})
    engine = overhead(PLAIN.engine)
    gpu_s = float(hostless(share).decode(1, 1000))
    assert float(step_model(share).decode(1, 1000)) == pytest.approx(gpu_s + engine.older_round_s)


@pytest.mark.parametrize("batch", [1, 128])
def test_a_head_of_the_model_drafts_while_the_host_composes_the_next_round(batch: int) -> None:
    """In the newer runner, which all dense models take, only the GPU counts."""
    head = draft_named("eagle3", find_model("llama-3.3-70b"), 3, 0.7)
    alone, engine = PLAIN.model_copy(update={"speculation": head}), overhead(PLAIN.engine)
    bare = step_model(alone).with_engine(engine.model_copy(update={"draft_s": 0.0}))
    added_s = float(step_model(alone).decode(batch, 1000) - bare.decode(batch, 1000)) * head.tokens_per_round
    assert added_s == pytest.approx(3 * engine.draft_s)


def test_n_grams_take_no_pass_and_a_search() -> None:
    made = draft_named("n-gram", PLAIN.model, 3, 0.5)
    steps, engine = step_model(PLAIN.model_copy(update={"speculation": made})), overhead(PLAIN.engine)
    rows = np.array(4.0 * 8)
    kernels = steps.tokens_s(rows) + steps.head_s(rows) + steps.decode_attention_s(np.float64(8), np.float64(1000))
    expected = (float(kernels) + engine.search_s) / (1 + 0.5 + 0.25 + 0.125)
    assert float(steps.decode(8, 1000)) == pytest.approx(expected)
    with pytest.raises(BadInput, match="n-grams"):
        draft_named("n-gram", PLAIN.model, 3, None)


@given(st.floats(0.01, 0.99), st.integers(1, 6))
def test_rounds_spread_as_their_outcomes_do(acceptance: float, tokens: int) -> None:
    """The variance of 1, 2 … k + 1 tokens with their chances."""
    chances = [acceptance**n * (1 - acceptance) for n in range(tokens)] + [acceptance**tokens]
    mean = sum(chance * (place + 1) for place, chance in enumerate(chances))
    variance = sum(chance * (place + 1 - mean) ** 2 for place, chance in enumerate(chances))
    made = Speculation(tokens=tokens, acceptance=acceptance, draft_share=0.1)
    assert made.spread_per_round == pytest.approx(variance, abs=1e-9)


@pytest.mark.parametrize("batch", [1, 16, 128])
def test_drafts_that_are_never_right_cost_their_passes_and_the_host_once(batch: int) -> None:
    """Drafts run inside the step of the engine that checks them: its host is not asked for each of them."""
    never = drafting(tokens=3, acceptance=0.0)
    assert never.speculation is not None
    assert never.speculation.tokens_per_round == 1
    draft_s = overhead(PLAIN.engine).draft_s
    assert float(hostless(never).decode(batch, 1000)) == pytest.approx(round_s(batch, 3) + 3 * draft_s)
    assert float(hostless(never).decode(batch, 1000)) > float(hostless(PLAIN).decode(batch, 1000))
    slow = Overhead(since_version="0", since_year=2026, step_s=1.0, sequence_s=0.0, overlapped=False,
                    draft_s=draft_s, badge=Badge.assumed, source="a test")  # fmt: skip
    added = step_model(never).with_engine(slow).decode(batch, 1000) - hostless(never).decode(batch, 1000)
    assert float(added) == pytest.approx(1.0)


def test_a_round_of_more_tokens_than_any_graph_holds_is_launched_kernel_by_kernel() -> None:
    """vLLM captures steps by their tokens: a check has several of each sequence."""
    engine = Overhead(since_version="0", since_year=2026, step_s=0.0, sequence_s=0.0, overlapped=True, layer_s=1.0,
                      graph_tokens=512, badge=Badge.assumed, source="a test")  # fmt: skip
    alone = PLAIN.model_copy(update={"speculation": Speculation(tokens=3, acceptance=0.0, draft_share=0.0)})
    steps, layers = step_model(alone).with_engine(engine), PLAIN.model.layers
    assert float(steps.decode(128, 100)) < layers
    assert float(steps.decode(129, 100)) == pytest.approx(layers)


def test_drafting_helps_a_lone_request_more_than_a_full_batch() -> None:
    def gain(batch: int) -> float:
        return float(step_model(PLAIN).decode(batch, 1000) / step_model(drafting()).decode(batch, 1000))

    assert gain(1) > 1.3
    assert gain(1) > gain(64) > gain(512)


def test_never_faster_than_the_tokens_of_a_round_allow() -> None:
    for batch in (1, 32, 256):
        made = step_model(drafting(tokens=3, acceptance=1.0)).decode(batch, 1000)
        assert float(made) > float(step_model(PLAIN).decode(batch, 1000)) / 4


def test_the_draft_takes_its_weights_and_its_kv() -> None:
    made = drafting()
    weights = DRAFT.weight_bytes(DRAFT.served) / 4
    assert kv_budget_bytes(PLAIN) - kv_budget_bytes(made) == pytest.approx(weights, rel=0.05)
    kv = DRAFT.kv_bytes_per_token(made.kv) / 4 * 1600
    assert sequence_bytes(made, 1600) - sequence_bytes(PLAIN, 1600) == pytest.approx(kv)


def test_the_simulators_table_has_the_scaled_steps_and_the_drafts_prefill() -> None:
    made, plain, alone = (
        compile_steps(step_model(each), 64, 2048, 4096)
        for each in (drafting(), PLAIN, deploy(DRAFT, PLAIN.gpu, PLAIN.engine, tp=4))
    )
    assert step_s(made, 16, 16 * 1000.0, 0, 0, 0.0) == pytest.approx(
        float(step_model(drafting()).decode(16, 1000)), rel=0.01
    )
    mixed = (16, 16 * 1000.0, 512, 1, 512 * 256.5)
    added = gpu_s(made, *mixed) - gpu_s(plain, *mixed)
    # The draft's step without its head, which the model's own step has already; launches are beside it.
    head = float(step_model(deploy(DRAFT, PLAIN.gpu, PLAIN.engine, tp=4)).head_s(np.array(17.0)))
    assert added == pytest.approx(gpu_s(alone, *mixed) - head, rel=0.02)
    assert added > 0
    assert gpu_s(made, *mixed) == pytest.approx(float(hostless(drafting()).step(512, 0, 16, 1000)), rel=0.01)
    assert step_s(made, *mixed) == pytest.approx(float(step_model(drafting()).step(512, 0, 16, 1000)), rel=0.01)


@pytest.mark.parametrize("tokens", [128, 2048, 8192])
def test_a_draft_reads_the_prompt_as_well(tokens: int) -> None:
    alone = hostless(deploy(DRAFT, PLAIN.gpu, PLAIN.engine, tp=4)).prefill(tokens)
    plain, made = (float(hostless(each).prefill(tokens)) for each in (PLAIN, drafting()))
    assert plain < made <= plain + float(alone)
    shared = PLAIN.model_copy(update={"speculation": Speculation(draft_share=0.1)})
    assert float(hostless(shared).prefill(tokens)) == pytest.approx(1.1 * plain, rel=0.05)


def test_a_draft_is_a_model_or_a_share_and_not_both() -> None:
    for wrong in ({}, {"draft": DRAFT, "draft_share": 0.1}):
        with pytest.raises(ValueError, match="a draft is"):
            Speculation.model_validate(wrong)
