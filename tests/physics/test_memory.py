"""Does it fit: block rounding, windows, tensor parallelism, refusals."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokonomics.catalog.engines import find_engine
from tokonomics.catalog.gpus import find_gpu
from tokonomics.catalog.layers import Precision
from tokonomics.catalog.load_models import all_models, find_model
from tokonomics.catalog.models import ModelSpec
from tokonomics.errors import BadInput, DoesNotFit
from tokonomics.physics.deployment import Deployment, deploy, valid_tp
from tokonomics.physics.memory import (
    dense_products,
    fit,
    kv_budget_bytes,
    max_sequences,
    require_fit,
    sequence_bytes,
    shard,
)

MODELS = all_models()


def on(model: str, gpu: str, **options: object) -> Deployment:
    return deploy(find_model(model), find_gpu(gpu), find_engine("vllm"), **options)  # type: ignore[arg-type]


def test_a_sequence_takes_whole_blocks() -> None:
    deployment = on("llama-2-7b", "A100-80GB")
    assert sequence_bytes(deployment, 1) == sequence_bytes(deployment, 16) == 16 * 524_288
    assert sequence_bytes(deployment, 17) == 32 * 524_288


def test_a_sliding_window_layer_keeps_only_its_window() -> None:
    # GPT-OSS-20B: 24 layers, half of them with a window of 128; 8 KV heads of 64 in bf16.
    deployment = on("gpt-oss-20b", "H100")
    per_layer_token = 2 * 8 * 64 * 2
    assert sequence_bytes(deployment, 4096) == 12 * 4096 * per_layer_token + 12 * 128 * per_layer_token


def test_mla_keeps_one_vector_per_token_on_every_rank() -> None:
    one, eight = on("deepseek-v3", "H200"), on("deepseek-v3", "H200", tp=8)
    assert sequence_bytes(one, 1024) == sequence_bytes(eight, 1024) == 61 * 1024 * (512 + 64) * 2


def test_kv_heads_are_copied_once_there_are_more_ranks_than_heads() -> None:
    # Llama 3.1 8B has 8 KV heads: sixteen ranks hold one head each, two ranks the same.
    assert sequence_bytes(on("llama-3.1-8b", "GB200", tp=16), 16) == sequence_bytes(
        on("llama-3.1-8b", "GB200", tp=8), 16
    )


def test_fp8_kv_is_half_of_bf16() -> None:
    wide, narrow = on("llama-3.1-8b", "H100"), on("llama-3.1-8b", "H100", kv=Precision.fp8)
    assert sequence_bytes(wide, 1000) == 2 * sequence_bytes(narrow, 1000)


def test_a_dense_model_splits_evenly_over_ranks() -> None:
    whole = find_model("llama-3.1-70b").weight_bytes(Precision.bf16)
    assert shard(on("llama-3.1-70b", "H100", tp=8)).total == pytest.approx(whole / 8, rel=1e-3)
    assert shard(on("llama-3.1-70b", "H100")).total == pytest.approx(whole)


@given(st.sampled_from(MODELS), st.sampled_from(["bf16", "fp8", "int4"]))
@settings(max_examples=60, deadline=None)
def test_tensor_parallelism_never_loses_or_adds_much(model: object, precision: str) -> None:
    for tp in valid_tp(model, 16):  # type: ignore[arg-type]
        deployment = deploy(model, find_gpu("GB200"), find_engine("vllm"), tp=tp, weights=Precision(precision))  # type: ignore[arg-type]
        held = shard(deployment).total
        whole = deployment.model.weight_bytes(deployment.weights)
        assert held * tp >= whole * 0.9999
        # Copied to every rank: norms, routers, a vision tower, MLA's down-projections, KV heads beyond their number.
        parts = deployment.model.parts
        copied = 2 * (parts.routers + parts.small + parts.extra) + 2 * parts.mixers
        assert held * tp <= whole + (tp - 1) * copied


def test_int4_weights_carry_their_scales_and_leave_embeddings_wide() -> None:
    # Llama 2 7B by hand: 32 × (4 × 4096² + 3 × 4096 × 11008) matrix weights, the rest 16 bits.
    matrices = 32 * (4 * 4096**2 + 3 * 4096 * 11008)
    rest = 2 * 32000 * 4096 + 65 * 4096
    model = find_model("llama-2-7b")
    assert model.parameters == matrices + rest
    assert model.weight_bytes(Precision.int4) == pytest.approx(matrices * (4 + 20 / 128) / 8 + 2 * rest, rel=1e-9)
    assert model.weight_bytes(Precision.bf16) == 2 * (matrices + rest)


def test_the_smallest_number_of_gpus_is_where_one_sequence_first_fits() -> None:
    result = fit(on("llama-3.1-70b", "H100"), 4096)
    assert result.max_sequences == 0
    assert result.min_gpus == 2
    assert max_sequences(on("llama-3.1-70b", "H100", tp=2), 4096) >= 1


def test_the_smallest_number_is_one_that_gpus_are_sold_in() -> None:
    # 671 GB of weights in 8 bits: five H200 of 141 GB hold them at the least, nine H100 of 80 GB. Sold are eight, and
    # two machines of eight.
    for gpu, gpus, layout in (("H200", 8, "TP=8"), ("H100", 16, "TP=8 PP=2 on 2 machines")):
        found = fit(on("deepseek-v3", gpu), 4096)
        assert (found.min_gpus, found.min_layout) == (gpus, layout)
        assert max_sequences(on("deepseek-v3", gpu, tp=8, pp=gpus // 8), 4096)
        for fewer in (1, 2, 4, 8):
            splits = [(tp, fewer // tp) for tp in (1, 2, 4, 8) if tp <= fewer < gpus]
            assert not any(max_sequences(on("deepseek-v3", gpu, tp=tp, pp=pp), 4096) for tp, pp in splits)


def test_a_model_that_needs_more_gpus_than_a_few_racks_hold_is_told_how_many_machines() -> None:
    # Kimi K2 in 16 bits: 2.05 TB on GPUs of 16 GB, of which the engine takes nine tenths; machines of eight.
    deployment = on("kimi-k2", "T4", weights=Precision.bf16)
    smallest = fit(deployment, 1).min_gpus
    assert smallest is not None
    assert smallest > 128
    assert smallest % 8 == 0
    held = {
        machines: any(
            max_sequences(deployment.model_copy(update={"tp": tp, "pp": machines * 8 // tp}), 1)
            for tp in (1, 2, 4, 8)
            if machines * 8 // tp <= deployment.model.layers
        )
        for machines in range(1, smallest // 8 + 1)
    }
    assert [machines for machines, fits in held.items() if fits] == [smallest // 8]


@pytest.mark.parametrize(
    "key", ["llama-3.1-8b", "gpt-oss-120b", "gemma-3-27b", "deepseek-v4-flash", "qwen3-next-80b-a3b"]
)
@pytest.mark.parametrize("context", [4096, 16_384])
def test_a_sequence_is_what_each_token_adds_and_what_it_holds_at_any_length(key: str, context: int) -> None:
    # On one GPU, of whole blocks, and longer than any window: the figures of both verbs add up.
    found = fit(on(key, "B300"), context)
    grown = context * found.kv_bytes_per_token + found.kv_constant_bytes
    assert found.kv_bytes_per_sequence == pytest.approx(grown, rel=2e-4)  # a token's bytes are rounded
    summary = find_model(key).summary()
    kv = found.deployment.kv.value
    assert summary["kv_bytes_per_token"][kv] == found.kv_bytes_per_token  # type: ignore[index]
    assert summary["kv_constant_bytes"][kv] == found.kv_constant_bytes  # type: ignore[index]


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.key)
def test_one_gpu_holds_all_the_weights_and_each_rank_the_matrices_it_multiplies(model: ModelSpec) -> None:
    for tp in valid_tp(model, 8):
        wide, narrow = (
            Deployment(
                model=model, gpu=find_gpu("H200"), engine=find_engine("vllm"), weights=each, kv=Precision.bf16, tp=tp
            )
            for each in (Precision.bf16, Precision.fp8)
        )
        if tp == 1:
            assert [shard(each).total for each in (wide, narrow)] == pytest.approx(
                [model.weight_bytes(each.weights) for each in (wide, narrow)], abs=1
            )
        # Norms, biases and routers stay in 16 bits: what shrinks in 8 are the matrices.
        saved = Precision.bf16.bytes_per_weight - Precision.fp8.bytes_per_weight
        matrices = (shard(wide).blocks - shard(narrow).blocks) / saved
        multiplied = sum(group.count * n * k for group in model.groups for n, k, _ in dense_products(group, wide))
        assert matrices == pytest.approx(multiplied, rel=1e-9)


def test_weights_workspace_and_kv_stay_inside_the_memory() -> None:
    for gpu in ("T4", "L4", "A100-80GB", "H100", "H200", "MI300X"):
        result = fit(on("llama-3.2-3b", gpu), 2048)
        held = result.weight_bytes_per_gpu + result.workspace_bytes + result.kv_budget_bytes
        assert held <= result.memory_bytes
        assert result.max_sequences == result.kv_budget_bytes // result.kv_bytes_per_sequence


@given(st.integers(1, 131_072), st.integers(1, 131_072))
@settings(deadline=None)
def test_longer_sequences_never_fit_in_greater_number(one: int, other: int) -> None:
    short, long = sorted((one, other))
    deployment = on("llama-3.1-8b", "L40S")
    assert max_sequences(deployment, long) <= max_sequences(deployment, short)


def test_a_batch_that_does_not_fit_is_refused_with_the_largest_that_does() -> None:
    deployment = on("llama-2-7b", "L4")
    largest = max_sequences(deployment, 2048)
    require_fit(deployment, 2048, largest)
    with pytest.raises(DoesNotFit, match=f"largest batch that fits is {largest}") as refusal:
        require_fit(deployment, 2048, largest + 1)
    assert refusal.value.largest == largest


def test_tp_3_on_32_heads_is_refused_with_the_valid_degrees() -> None:
    with pytest.raises(BadInput, match="32 attention heads") as refusal:
        on("llama-3.1-8b", "H100", tp=3)
    assert "1, 2, 4, 8, 16, 32" in str(refusal.value)


@pytest.mark.parametrize(("context", "said"), [(0, "context"), (-1, "context"), (10**9, "context"), (4097, "4,096")])
def test_a_context_that_no_request_can_have_is_refused(context: int, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        fit(on("llama-2-7b", "H100"), context)


def test_pipeline_stages_share_the_layers() -> None:
    # 80 layers over 3 stages: the fullest has 27.
    one, three = on("llama-3.1-70b", "H100"), on("llama-3.1-70b", "H100", pp=3)
    assert sequence_bytes(three, 16) == math.ceil(sequence_bytes(one, 16) * 27 / 80)
    assert kv_budget_bytes(three) > kv_budget_bytes(one)


def test_workspace_agrees_with_what_vllm_reports() -> None:
    # vLLM PR 10511: Llama-3-8B on an 80 GB card, 256 sequences, activation peak 1.26 GiB, of which our formula leaves
    # out the runtime and the graphs it adds.
    from tokonomics.physics.memory import RUNTIME_BYTES, workspace_bytes

    peak = workspace_bytes(on("llama-3-8b", "A100-80GB")) - RUNTIME_BYTES
    assert peak == pytest.approx(1.26 * 2**30, rel=0.1)
