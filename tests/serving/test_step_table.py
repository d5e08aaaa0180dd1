"""The compiled step times against the step model they are made from, and runs of steps against single ones."""

from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.deployed import on

from tokonomics.catalog.checkpoints import mtp_module
from tokonomics.physics.deployment import DraftMethod, Speculation
from tokonomics.physics.overhead import overhead
from tokonomics.physics.steptime import StepModel, step_model
from tokonomics.serving.step_table import StepTable, compile_steps, context_points, run_s, step_s, steps_until

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

MOST_SEQUENCES, MOST_TOKENS, MOST_CONTEXT = 256, 8192, 131_072

KINDS = {
    "dense": ("llama-3.1-8b", "H100", "vllm", 1, 1, 2026),
    "dense, old engine": ("llama-3.1-8b", "A100-80GB", "vllm", 1, 1, 2023),
    "engine that does not overlap": ("llama-3.1-8b", "H100", "tgi", 1, 1, 2026),
    "many KV heads": ("llama-2-7b", "A100-80GB", "vllm", 1, 1, 2026),
    "tensor parallel": ("llama-3.1-70b", "H100", "vllm", 4, 1, 2026),
    "tensor and pipeline parallel": ("llama-3.1-70b", "A100-80GB", "vllm", 2, 2, 2026),
    "pipeline parallel, no overlap": ("llama-3.1-70b", "H100", "tgi", 1, 4, 2026),
    "experts": ("mixtral-8x7b", "H100", "tensorrt-llm", 2, 1, 2026),
    "latent attention": ("deepseek-v2-lite", "H100", "sglang", 1, 1, 2026),
    "latent attention, tensor parallel": ("deepseek-v3", "H200", "sglang", 8, 1, 2026),
    "windows in every second layer": ("gpt-oss-20b", "H100", "vllm", 1, 1, 2026),
    "windows in every layer": ("mistral-7b-v0.1", "A100-80GB", "vllm", 1, 1, 2026),
    "recurrent layers": ("qwen3-next-80b-a3b", "H200", "vllm", 2, 1, 2026),
    "recurrent layers and ones of one block": ("nemotron-h-56b", "H100", "vllm", 4, 1, 2026),
    "drafts": ("deepseek-v3", "H200", "vllm", 8, 1, 2026),
    "drafts, no overlap": ("llama-3.1-8b", "H100", "tgi", 1, 1, 2026),
    "drafts, pipeline parallel": ("llama-3.1-70b", "H100", "vllm", 2, 2, 2026),
    "drafts, pipeline parallel, no overlap": ("llama-3.1-70b", "H100", "tgi", 1, 4, 2026),
    "groups of the attention, pipeline parallel": ("deepseek-v3", "H200", "sglang", 2, 2, 2026),
    "groups of the attention, drafts, no overlap": ("deepseek-v3", "H200", "sglang", 1, 1, 2026),
}
GROUPS = {"groups of the attention, pipeline parallel": 4, "groups of the attention, drafts, no overlap": 8}
kinds = pytest.mark.parametrize("kind", KINDS)


@cache
def steps_of(kind: str) -> StepModel:
    model, gpu, engine, tp, pp, year = KINDS[kind]
    groups = GROUPS.get(kind, 1)
    split = {"tp": tp, "pp": pp, "dp": groups, "ep": tp * groups if groups > 1 else 1}
    deployment = on(model, gpu, engine, **split)
    if "drafts" in kind:
        module = mtp_module(deployment.model)
        how = {"method": DraftMethod.mtp, "draft": module} if module else {"draft_share": 0.1}
        deployment = deployment.model_copy(update={"speculation": Speculation(tokens=3, acceptance=0.7, **how)})
    return step_model(deployment).with_engine(overhead(deployment.engine, year))


def table_of(kind: str) -> StepTable:
    return compile_steps(steps_of(kind), MOST_SEQUENCES, MOST_TOKENS, MOST_CONTEXT)


def spread_out(rng: np.random.Generator, most: float | Floats, count: int) -> Ints:
    """Whole numbers from 1, as many in each octave."""
    return np.exp(rng.uniform(0, np.log(np.broadcast_to(most, count) + 0.999))).astype(np.int64)


def off_by(kind: str, decodes: Ints, context: Ints, chunk: Ints, past: Ints, n: Ints) -> Floats:
    """Relative error of steps with ``n`` equal chunks beside ``decodes`` sequences that hold ``context`` each."""
    table, steps = table_of(kind), steps_of(kind)
    tokens = n * chunk
    # The step model has the prompts of one pass; those of a step are shared out among the stages' passes.
    passes = np.maximum(np.minimum(n, steps.deployment.pp), 1)
    mixed = steps.step(tokens / passes, past, decodes, context, np.maximum(n, 1) / passes)
    expected = np.where(n > 0, mixed, steps.decode(np.maximum(decodes, 1), context))
    # What a prompt's tokens see: all of the past, and of the chunk on average its half, themselves included.
    pairs = tokens * (past + (chunk + 1) / 2)
    columns = (decodes, decodes * context, tokens, n, pairs)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    found = [step_s(table, batch, float(kv), many, prompts, float(seen)) for batch, kv, many, prompts, seen in rows]
    return np.array(found) / expected - 1


@kinds
def test_a_step_of_answers_takes_what_the_step_model_says(kind: str) -> None:
    rng = np.random.default_rng(1)
    count = 2000
    nothing = np.zeros(count, np.int64)
    off = off_by(kind, spread_out(rng, 256, count), spread_out(rng, MOST_CONTEXT, count), nothing, nothing, nothing)
    # A round of more tokens than any graph holds takes its launches at least: the table is straight across that bend.
    assert np.abs(off).max() < (0.02 if "drafts" in kind else 0.01)
    assert np.median(np.abs(off)) < 0.001


@kinds
@pytest.mark.parametrize(("most_decodes", "dozens"), [(0, False), (256, False), (256, True)])
def test_a_step_with_prompts_takes_what_the_step_model_says(kind: str, most_decodes: int, dozens: bool) -> None:
    rng = np.random.default_rng(3 if dozens else 2)
    count = 2000
    prompts = 32 + spread_out(rng, 224, count) if dozens else spread_out(rng, 32, count)
    chunk = np.maximum(spread_out(rng, MOST_TOKENS / prompts, count), 8 if dozens else 1)
    past = np.where(rng.random(count) < 0.3, 0, spread_out(rng, 100_000, count))
    decodes = spread_out(rng, most_decodes, count) if most_decodes else np.zeros(count, np.int64)
    off = off_by(kind, decodes, spread_out(rng, MOST_CONTEXT, count), chunk, past, prompts)
    assert np.abs(off).max() < 0.01


def test_chunks_of_different_lengths_cost_as_much_as_each_by_itself() -> None:
    """Attention is near linear in pairs: a long and a short prompt together take about what both add alone."""
    steps, table = steps_of("dense"), table_of("dense")
    for first, second in ((2000, 100), (4000, 500), (300, 200)):
        pairs = sum(chunk * (chunk + 1) / 2 for chunk in (first, second))
        together = step_s(table, 0, 0.0, first + second, 2, pairs)
        chunks = np.array([first, second], np.float64)
        attention = steps.prompt_attention_s(chunks, np.zeros(2), np.ones(2)).sum()
        matrices = steps.tokens_s(chunks.sum(keepdims=True)) + steps.head_s(np.full(1, 2.0))
        assert together == pytest.approx(float(matrices[0] + attention), rel=0.05)


runs = st.tuples(
    st.sampled_from(["dense", "pipeline parallel, no overlap", "windows in every layer"]), st.integers(1, 256),
    st.floats(1, 60_000), st.integers(1, 600),
)  # fmt: skip


@given(runs)
@settings(max_examples=150, deadline=None)
def test_a_run_of_steps_takes_the_sum_of_its_steps(drawn: tuple[str, int, float, int]) -> None:
    kind, decodes, context, count = drawn
    table, held = table_of(kind), round(context * decodes)
    one_by_one = sum(step_s(table, decodes, float(held + step * decodes), 0, 0, 0.0) for step in range(count))
    assert run_s(table, decodes, float(held), count) == pytest.approx(one_by_one, rel=1e-12)


@given(runs, st.floats(0, 1.2))
@settings(max_examples=150, deadline=None)
def test_steps_until_is_the_smallest_run_to_the_span(drawn: tuple[str, int, float, int], share: float) -> None:
    kind, decodes, context, most = drawn
    table, held = table_of(kind), float(round(context * decodes))
    span = share * run_s(table, decodes, held, most)
    count = steps_until(table, decodes, held, most, span)
    assert 1 <= count <= most
    slack = 1e-12 * span
    if count < most:
        assert run_s(table, decodes, held, count) >= span - slack
    if count > 1:
        assert run_s(table, decodes, held, count - 1) < span + slack


@given(st.floats(1, 1e7))
@settings(deadline=None)
def test_the_context_table_reaches_beyond_the_longest_context(most: float) -> None:
    points = context_points(most)
    assert points[0] == 0
    assert points[-2] > most
    assert (np.diff(points) > 0).all()
    # Eight pieces to the octave from sixteen tokens on: no piece is wider than an eighth of its start.
    assert (np.diff(points)[points[:-1] >= 16] <= points[:-1][points[:-1] >= 16] / 8).all()


@pytest.mark.parametrize("pp", [1, 2])
def test_adapters_are_counted_by_sequences_as_in_the_step_model(pp: int) -> None:
    steps = step_model(on(pp=pp).model_copy(update={"lora_rank": 64, "lora_adapters": 40}))
    table = compile_steps(steps, 64, 8192, 16_384)
    for batch, tokens, prompts in ((1, 0, 0), (16, 0, 0), (64, 0, 0), (0, 2048, 1), (0, 8192, 1), (16, 2048, 2)):
        passes = max(1, min(prompts, pp))
        expected = steps.step(tokens / passes, 0, batch, 1000, max(prompts, 1) / passes)
        pairs = tokens * (tokens / max(prompts, 1) + 1) / 2
        found = step_s(table, batch, batch * 1000.0, tokens, prompts, pairs)
        assert found == pytest.approx(float(expected), rel=0.01)
