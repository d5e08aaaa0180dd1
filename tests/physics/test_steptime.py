"""One engine step: closed forms, the physical floor, monotonicity."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokonomics.catalog.engines import find_engine
from tokonomics.catalog.gpus import Gpu, all_gpus, find_gpu
from tokonomics.catalog.load_models import all_models, find_model
from tokonomics.catalog.models import ModelSpec
from tokonomics.catalog.precision import Precision
from tokonomics.errors import BadInput
from tokonomics.physics.deployment import Deployment, deploy, valid_tp
from tokonomics.physics.efficiency import efficiencies, efficiency
from tokonomics.physics.steptime import decode_parts, decode_step, distinct_experts, prefill

MODELS = all_models()
GPUS = all_gpus()


def on(model: str, gpu: str, **options: object) -> Deployment:
    return deploy(find_model(model), find_gpu(gpu), find_engine("vllm"), **options)  # type: ignore[arg-type]


def test_a_decode_step_of_one_request_reads_the_weights_once() -> None:
    # Llama 2 7B on an A100: all weights but the embedding table, and 512 tokens of KV at 512 KiB each.
    weights = 2 * (find_model("llama-2-7b").parameters - 32000 * 4096)
    bandwidth = 2.039e12 * efficiency(find_gpu("A100-80GB")).memory
    expected = (weights + 512 * 524_288) / bandwidth + 32 * efficiencies().layer_overhead_s
    assert float(decode_step(on("llama-2-7b", "A100-80GB"), 1, 512)) == pytest.approx(expected, rel=1e-3)


def test_a_long_prefill_is_bound_by_compute() -> None:
    # Llama 2 7B, 4,096 tokens on an H100: 2 FLOPs a matrix weight and token, 2 × layers × hidden × n² of attention.
    matrices = 32 * (4 * 4096**2 + 3 * 4096 * 11008)
    flops = 2 * matrices * 4096 + 2 * 32 * 4096 * 4096**2 + 2 * 32000 * 4096
    peak = 989.4e12 * efficiency(find_gpu("H100")).compute
    expected = flops / peak + 32 * efficiencies().layer_overhead_s
    assert float(prefill(on("llama-2-7b", "H100"), 4096)) == pytest.approx(expected, rel=2e-3)


def test_mixtral_reads_two_experts_at_batch_1_and_nearly_all_at_batch_64() -> None:
    assert float(distinct_experts(8, 2, 1)) == pytest.approx(2)
    assert float(distinct_experts(8, 2, 8)) == pytest.approx(8 * (1 - 0.75**8))
    assert float(distinct_experts(8, 2, 64)) == pytest.approx(8, rel=1e-6)


def test_mixtral_decode_grows_with_its_distinct_experts_as_measured_on_an_h200() -> None:
    # Whole decode steps on one H200, bf16, context 512: 12.3 ms at batch 1, 34 ms at 8, 37 ms at 64. A model that read
    # the top 2 would not grow; one that read all 8 would start at 34 ms. (Batch 1 itself is 33 % too fast: one
    # efficiency does not know that two experts are too small a read to fill the memory bus.)
    deployment = on("mixtral-8x7b", "H200")
    one, eight, many = (float(decode_step(deployment, batch, 512)) * 1e3 for batch in (1, 8, 64))
    assert eight == pytest.approx(34, rel=0.30)
    assert many == pytest.approx(37, rel=0.30)
    assert 12.3 / one < 1.6
    assert eight / one > 34 / 12.3


def test_distinct_experts_agree_with_drawing_them() -> None:
    draw = np.random.default_rng(1)
    for experts, active, tokens in ((8, 2, 5), (128, 8, 40), (256, 8, 3)):
        seen = [
            len({int(e) for _ in range(tokens) for e in draw.choice(experts, active, replace=False)})
            for _ in range(400)
        ]
        assert float(distinct_experts(experts, active, tokens)) == pytest.approx(np.mean(seen), rel=0.03)


deployments = st.builds(
    lambda model, gpu, tp_index, weights, kv: _deploy(model, gpu, tp_index, weights, kv),
    st.sampled_from(MODELS),
    st.sampled_from(GPUS),
    st.integers(0, 3),
    st.sampled_from([Precision.bf16, Precision.fp8, Precision.int4]),
    st.sampled_from([Precision.bf16, Precision.fp8]),
)
batches = st.integers(1, 512)
contexts = st.integers(1, 32_768)


def _deploy(model: ModelSpec, gpu: Gpu, tp_index: int, weights: Precision, kv: Precision) -> Deployment:
    degrees = valid_tp(model, gpu.gpus_per_node)
    return deploy(model, gpu, find_engine("vllm"), tp=degrees[tp_index % len(degrees)], weights=weights, kv=kv)


@given(deployments, batches, contexts)
@settings(max_examples=150, deadline=None)
def test_no_step_beats_the_physical_floor(deployment: Deployment, batch: int, context: int) -> None:
    gpu, tp = deployment.gpu, deployment.tp
    kv = batch * _least_kv_bytes(deployment, context)
    floor = kv / (gpu.bandwidth_bytes_per_s * tp)
    parts = deployment.model.parts
    matrices = parts.mixers + parts.dense_mlps + parts.active_experts
    floor = max(floor, matrices * deployment.weights.bytes_per_weight * 0.99 / (gpu.bandwidth_bytes_per_s * tp))
    floor = max(floor, 2 * matrices * batch / (gpu.peak_flops(deployment.weights) * tp))
    assert float(decode_step(deployment, batch, context)) >= floor


def _least_kv_bytes(deployment: Deployment, context: int) -> float:
    width = 1 if deployment.kv is Precision.fp8 else 2
    return sum(
        group.count * group.mixer.kv_elements_per_token * min(context, group.mixer.window or context) * width
        for group in deployment.model.groups
        if group.mixer
    )


@given(deployments, st.tuples(batches, batches), st.tuples(contexts, contexts))
@settings(max_examples=150, deadline=None)
def test_more_sequences_and_longer_ones_never_make_a_step_faster(
    deployment: Deployment, two_batches: tuple[int, int], two_contexts: tuple[int, int]
) -> None:
    (small, large), (short, long) = sorted(two_batches), sorted(two_contexts)
    least = float(decode_step(deployment, small, short))
    assert least <= float(decode_step(deployment, large, short)) * (1 + 1e-12)
    assert least <= float(decode_step(deployment, small, long)) * (1 + 1e-12)


@given(deployments, batches, contexts)
@settings(max_examples=80, deadline=None)
def test_more_bandwidth_or_flops_never_slows_a_step(deployment: Deployment, batch: int, context: int) -> None:
    gpu = deployment.gpu
    faster = gpu.model_copy(
        update={
            "bandwidth_bytes_per_s": gpu.bandwidth_bytes_per_s * 1.5,
            "flops": {dtype: rate * 1.5 for dtype, rate in gpu.flops.items()},
        }
    )
    better = deployment.model_copy(update={"gpu": faster})
    assert float(decode_step(better, batch, context)) <= float(decode_step(deployment, batch, context))


@given(deployments, st.integers(2, 4096))
@settings(max_examples=80, deadline=None)
def test_a_prompt_in_one_go_never_takes_longer_than_token_by_token(deployment: Deployment, tokens: int) -> None:
    one_by_one = float(decode_step(deployment, 1, np.arange(1, tokens + 1)).sum())
    assert float(prefill(deployment, tokens)) <= one_by_one


@given(deployments, st.lists(batches, min_size=1, max_size=5), contexts)
@settings(max_examples=40, deadline=None)
def test_arrays_give_what_single_numbers_give(deployment: Deployment, many: list[int], context: int) -> None:
    together = decode_step(deployment, np.array(many), context)
    assert together == pytest.approx([float(decode_step(deployment, batch, context)) for batch in many])


def test_the_parts_of_a_step_make_the_step() -> None:
    deployment = on("llama-3.1-70b", "H100", tp=4)
    parts = decode_parts(deployment, 32, 2048)
    assert parts.step_s == pytest.approx(float(decode_step(deployment, 32, 2048)))
    assert parts.step_s == pytest.approx(
        max(parts.memory_s, parts.compute_s) + parts.communication_s + parts.overhead_s
    )


def test_tensor_parallelism_beyond_a_bridge_falls_back_to_pcie() -> None:
    # H100 NVL cards are bridged in pairs: the all-reduces of four go over PCIe.
    two, four = (decode_parts(on("llama-3.1-70b", "H100-NVL", tp=tp), 64, 1024) for tp in (2, 4))
    assert four.communication_s > 2 * two.communication_s


def test_fp8_weights_on_an_a100_save_bytes_but_not_flops() -> None:
    wide, narrow = on("llama-3.1-8b", "A100-80GB"), on("llama-3.1-8b", "A100-80GB", weights=Precision.fp8)
    assert float(prefill(narrow, 8192)) == pytest.approx(float(prefill(wide, 8192)), rel=1e-6)
    assert float(decode_step(narrow, 1, 64)) < 0.65 * float(decode_step(wide, 1, 64))


def test_every_family_of_the_catalogue_has_an_efficiency_with_a_source() -> None:
    for gpu in GPUS:
        reached = efficiency(gpu)
        assert reached.source
        assert 0.3 < reached.memory < 1
        assert 0.3 < reached.compute < 1


def test_an_architecture_without_an_efficiency_is_an_error_that_lists_those_with_one() -> None:
    unknown = find_gpu("H100").model_copy(update={"architecture": "rubin"})
    with pytest.raises(BadInput, match="hopper"):
        efficiency(unknown)
