"""One engine step: laws that hold for every model, GPU and precision, and steps measured on a real GPU."""

import statistics
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.physics.hosts import free, hostless

from tokonomics.catalog.engines import find_engine
from tokonomics.catalog.gpus import Gpu, all_gpus, find_gpu
from tokonomics.catalog.layers import MoeMlp, Precision, Scales
from tokonomics.catalog.load_models import all_models, find_model
from tokonomics.catalog.models import ModelSpec
from tokonomics.errors import BadInput
from tokonomics.measure.measurements import Measurement, read_measurements
from tokonomics.measure.validate import ScoredPrediction as Scored
from tokonomics.measure.validate import predict, summary
from tokonomics.physics.curves import efficiency
from tokonomics.physics.deployment import Deployment, DraftMethod, Speculation, deploy, valid_tp
from tokonomics.physics.layer_kernels import LORA_DOWN_S, LORA_START_S, LORA_UP_S
from tokonomics.physics.matrix_kernels import (
    BLOCKS,
    FUSED,
    UNTUNED,
    all_reduce_s,
    distinct_experts,
    experts_s,
    gemm_s,
)
from tokonomics.physics.memory import shard, step_weight_bytes
from tokonomics.physics.operations import SORT_S
from tokonomics.physics.overhead import host, overhead
from tokonomics.physics.steptime import StepModel, decode_step, step_model

MODELS = all_models()
GPUS = all_gpus()
H200_STEPS = Path(__file__).parents[2] / "benchmarks" / "data" / "h200_steps.json"


def test_a_prompt_is_bound_by_the_host_where_launching_its_kernels_takes_longer_than_computing_them() -> None:
    steps = step_model(on("qwen3-30b-a3b", "H100"))
    bare = steps.with_engine(None)
    for tokens in (128, 1_000, 4_000, 16_000, 32_000):
        launches = float(steps.launch_s(tokens))
        assert steps.is_host_bound(tokens) == (float(bare.prefill(tokens)) < launches), tokens
    # Kernel by kernel, 48 layers of experts: as long at a thousand tokens as at four thousand.
    assert steps.is_host_bound(1_000)
    assert float(steps.prefill(1_000)) == float(steps.prefill(4_000))
    assert not steps.is_host_bound(32_000)
    assert not bare.is_host_bound(1_000)


def test_stages_on_several_machines_are_a_network_apart() -> None:
    # H100: PCIe Gen5 of 64 GB/s inside a machine, a card of 400 Gbit/s between machines.
    within, between = on("llama-3.1-70b", "H100", tp=2, pp=2), on("llama-3.1-70b", "H100", tp=8, pp=2)
    assert not within.uses_network
    assert between.uses_network
    assert within.stage_bytes_per_s == find_gpu("H100").pcie_bytes_per_s
    assert between.stage_bytes_per_s == min(find_gpu("H100").pcie_bytes_per_s, 400e9 / 8)


def on(model: str, gpu: str, **options: object) -> Deployment:
    return deploy(find_model(model), find_gpu(gpu), find_engine("vllm"), **options)  # type: ignore[arg-type]


deployments = st.builds(
    lambda model, gpu, tp_index, stages, weights, kv: _lay(model, gpu, tp_index, stages, weights, kv),
    st.sampled_from(MODELS),
    st.sampled_from(GPUS),
    st.integers(0, 3),
    st.sampled_from([1, 1, 1, 4]),
    st.sampled_from(list(Precision)),
    st.sampled_from([Precision.bf16, Precision.fp8]),
)
batches = st.integers(1, 512)
contexts = st.integers(1, 32_768)


def _lay(model: ModelSpec, gpu: Gpu, tp_index: int, stages: int, weights: Precision, kv: Precision) -> Deployment:
    degrees = valid_tp(model, gpu.gpus_per_node)
    tp = degrees[tp_index % len(degrees)]
    return Deployment(model=model, gpu=gpu, engine=find_engine("vllm"), tp=tp, pp=stages, weights=weights, kv=kv)


@given(deployments, batches, contexts)
@settings(max_examples=150, deadline=None)
def test_no_step_beats_the_physical_floor(deployment: Deployment, batch: int, context: int) -> None:
    gpu, model = deployment.gpu, deployment.model
    width = {"fp32": 4.0, "bf16": 2.0, "fp8": 1.0, "int8": 1.0, "int4": 0.5, "nvfp4": 0.5, "mxfp4": 0.5}
    fastest = max(gpu.flops.values())
    parts = model.parts
    matrices = parts.mixers + parts.dense_mlps + parts.active_experts
    weights = matrices * width[deployment.weights] / (gpu.bandwidth_bytes_per_s * deployment.tp)
    # A pass through the stages carries its share of the batch, and no sequence passes in parts.
    passing = max(1.0, batch / deployment.pp)
    cached = _kv_elements(deployment, context) * width[deployment.kv]
    kv = passing * cached / (gpu.bandwidth_bytes_per_s * deployment.tp)
    flops = 2 * matrices * passing / (fastest * deployment.tp)
    assert float(hostless(deployment).decode(batch, context)) >= max(weights, kv, flops)


def _kv_elements(deployment: Deployment, context: int) -> float:
    return sum(
        group.count
        * cache.elements
        / cache.every
        * min(context, cache.window or context, (cache.read or context) * cache.every)
        for group in deployment.model.groups
        if group.mixer
        for cache in group.mixer.caches
    )


@given(deployments, st.tuples(batches, batches), st.tuples(contexts, contexts))
@settings(max_examples=150, deadline=None)
def test_more_sequences_and_longer_ones_never_make_a_step_faster(
    deployment: Deployment, two_batches: tuple[int, int], two_contexts: tuple[int, int]
) -> None:
    (small, large), (short, long) = sorted(two_batches), sorted(two_contexts)
    steps = step_model(deployment)
    least = float(steps.decode(small, short))
    assert least <= float(steps.decode(large, short)) * (1 + 1e-9)
    assert least <= float(steps.decode(small, long)) * (1 + 1e-9)


@given(deployments, st.tuples(st.integers(1, 16_384), st.integers(1, 16_384)), st.tuples(contexts, contexts))
@settings(max_examples=100, deadline=None)
def test_longer_prompts_and_more_cached_tokens_never_make_a_step_faster(
    deployment: Deployment, two_prompts: tuple[int, int], two_pasts: tuple[int, int]
) -> None:
    (short, long), (few, many) = sorted(two_prompts), sorted(two_pasts)
    steps = step_model(deployment)
    least = float(steps.prefill(short, few))
    assert least <= float(steps.prefill(long, few)) * (1 + 1e-9)
    assert least <= float(steps.prefill(short, many)) * (1 + 1e-9)


@given(deployments, st.integers(1, 4096), batches, contexts)
@settings(max_examples=100, deadline=None)
def test_a_mixed_step_lies_between_part_and_sum(deployment: Deployment, prompt: int, batch: int, context: int) -> None:
    # A prompt whose rows just fill a tile begins another one with its first answer (``test_a_product_in_tiles...``).
    assume(deployment.gpu.architecture != "hopper" or deployment.weights not in (Precision.fp8, Precision.int8))
    steps = hostless(deployment)
    mixed = float(steps.step(prompt, 0, batch, context))
    alone, answers = float(steps.prefill(prompt)), float(steps.decode(batch, context))
    # Beside answers, prompts gain what the power limit would add for a while, and answers lose what was measured.
    gained, lost = float(steps.cool_s(np.asarray(float(prompt)))), float(steps.beside_prompts_s(steps.passing(batch)))
    assert max(alone, answers) * (1 - 1e-9) - gained <= mixed <= (alone + answers) * (1 + 1e-9) + lost


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
    assert float(decode_step(better, batch, context)) <= float(decode_step(deployment, batch, context)) * (1 + 1e-9)


@given(deployments, batches, contexts, st.floats(1.0001, 1.2))
@settings(max_examples=80, deadline=None)
def test_bandwidth_never_slows_an_untimed_gpu(deployment: Deployment, batch: int, context: int, factor: float) -> None:
    # A GPU without timings borrows a relative's curves: which relative must not depend on its own rates.
    untimed = deployment.gpu.model_copy(update={"key": "nobody-timed-it"})
    faster = untimed.model_copy(update={"bandwidth_bytes_per_s": untimed.bandwidth_bytes_per_s * factor})
    slow, fast = (StepModel(deployment.model_copy(update={"gpu": each}), None) for each in (untimed, faster))
    assert float(fast.decode(batch, context)) <= float(slow.decode(batch, context)) * (1 + 1e-9)
    assert float(fast.prefill(context)) <= float(slow.prefill(context)) * (1 + 1e-9)


@given(deployments, st.integers(2, 4096))
@settings(max_examples=60, deadline=None)
def test_a_prompt_in_one_go_never_takes_longer_than_token_by_token(deployment: Deployment, tokens: int) -> None:
    steps = hostless(deployment)
    one_by_one = float(steps.decode(1, np.arange(1, tokens + 1)).sum())
    assert float(steps.prefill(tokens)) <= one_by_one


@given(deployments, st.lists(batches, min_size=1, max_size=5), contexts)
@settings(max_examples=40, deadline=None)
def test_arrays_give_what_single_numbers_give(deployment: Deployment, many: list[int], context: int) -> None:
    together = decode_step(deployment, np.array(many), context)
    assert together == pytest.approx([float(decode_step(deployment, batch, context)) for batch in many])


@given(deployments, batches, contexts)
@settings(max_examples=60, deadline=None)
def test_parts_of_a_step_are_not_negative_and_make_the_step(deployment: Deployment, batch: int, context: int) -> None:
    parts = step_model(deployment).parts(batch, context)
    shares = (parts.weights_s, parts.kv_s, parts.compute_s, parts.communication_s, parts.overhead_s)
    assert min(shares) >= -1e-12
    assert sum(shares) == pytest.approx(parts.step_s)
    assert parts.step_s == pytest.approx(float(decode_step(deployment, batch, context)))


def test_fewer_sequences_than_stages_take_as_long_as_one_a_stage() -> None:
    """Each passes through every stage by itself, and reads all of its KV on the way."""
    steps = step_model(on("llama-3.1-70b", "H200", pp=4))
    one, two, four, eight = (float(steps.decode(batch, 100_000)) for batch in (1, 2, 4, 8))
    assert one == two == four < eight
    # 80 layers of 8 KV heads of 128, keys and values in 16 bits, at 4.8 TB/s.
    assert steps.parts(1, 100_000).kv_s > 100_000 * 80 * 2 * 8 * 128 * 2 / 4.8e12


def test_the_parts_of_a_step_that_drafts_are_those_of_the_model_itself() -> None:
    plain = on("llama-3.1-70b", "H200", tp=2)
    drafting = plain.model_copy(update={"speculation": Speculation(draft=find_model("llama-3.2-1b"))})
    assert hostless(drafting).parts(8, 2000) == hostless(plain).parts(8, 2000)


@pytest.mark.parametrize("sizes", [("qwen2.5-0.5b", "qwen2.5-7b", "qwen2.5-72b"), ("llama-3.2-1b", "llama-3.1-8b")])
def test_a_larger_model_of_a_family_is_never_faster(sizes: tuple[str, ...]) -> None:
    for batch, context in ((1, 128), (64, 2048), (256, 512)):
        times = [float(decode_step(on(size, "B200"), batch, context)) for size in sizes]
        assert times == sorted(times)


@pytest.mark.parametrize("model", ["llama-3.1-70b", "mixtral-8x7b", "deepseek-v3", "gpt-oss-120b"])
def test_tensor_parallelism_never_adds_weight_bytes_to_a_gpu(model: str) -> None:
    held = [shard(on(model, "GB200", tp=tp)).total for tp in valid_tp(find_model(model), 16)]
    assert held == sorted(held, reverse=True)


def test_mixtral_reads_two_experts_at_batch_1_and_nearly_all_at_batch_64() -> None:
    assert distinct_experts(8, 2, 1) == pytest.approx(2)
    assert distinct_experts(8, 2, 8) == pytest.approx(8 * (1 - 0.75**8))
    assert distinct_experts(8, 2, 64) == pytest.approx(8, rel=1e-6)


def test_distinct_experts_agree_with_drawing_them() -> None:
    draw = np.random.default_rng(1)
    for experts, active, tokens in ((8, 2, 5), (128, 8, 40), (256, 8, 3)):
        seen = [
            len({int(e) for _ in range(tokens) for e in draw.choice(experts, active, replace=False)})
            for _ in range(400)
        ]
        assert distinct_experts(experts, active, tokens) == pytest.approx(np.mean(seen), rel=0.03)


def test_a_mixture_of_experts_slows_down_as_its_tokens_visit_more_of_them() -> None:
    # Measured on one H200, bf16, context 512: 12.3 ms at batch 1, 34 at 8, 37 at 64, 39 at 256 with a grouped matmul.
    # Engines' fused kernels are faster; the shape is that of the distinct experts: steep to 8, then flat.
    one, eight, many = (float(decode_step(on("mixtral-8x7b", "H200"), batch, 512)) for batch in (1, 8, 64))
    assert eight / one > 2
    assert many / eight < 1.5
    dense = [float(decode_step(on("llama-2-13b", "H200"), batch, 512)) for batch in (1, 8)]
    assert dense[1] / dense[0] < 1.2


def _scored(kind: str) -> list[Scored]:
    rows = [row for row in read_measurements(H200_STEPS) if isinstance(row, Measurement) and row.mode == kind]
    scored = [predict(row) for row in rows]
    return [each for each in scored if not isinstance(each, str)]


def test_bare_decode_steps_on_an_h200_are_predicted_within_five_percent() -> None:
    decode = summary(_scored("decode_step"))
    assert decode.n == 67
    assert decode.median_abs_log_error <= 0.05
    assert decode.p90_abs_log_error <= 0.15


def test_bare_prompts_on_an_h200_are_predicted_within_eight_percent() -> None:
    long = [each for each in _scored("prefill_step") if each.measurement.input_tokens >= 512]
    assert len(long) == 16
    assert statistics.median(abs(each.error) for each in long) <= 0.08


@pytest.mark.parametrize("tokens", [1_000_000, 3_000_000, 10_000_000])
def test_a_prompt_of_millions_of_tokens_multiplies_every_one_of_them(tokens: int) -> None:
    deployment = on("llama-4-scout", "H200", tp=8)
    parts = deployment.model.parts
    matrices = 2 * (parts.mixers + parts.dense_mlps + parts.active_experts) / 8
    assert float(step_model(deployment).prefill(tokens)) > tokens * matrices / deployment.gpu.flops["bf16"]
    assert step_model(deployment).tokens_s(np.array([2.0 * tokens])) == pytest.approx(
        2 * step_model(deployment).tokens_s(np.array([1.0 * tokens])), rel=0.01
    )


def test_a_recurrent_model_does_not_read_its_state_for_every_prompt_token() -> None:
    # Qwen3-Next: the state of a layer is read once a chunk. 8,192 tokens cost about 2 FLOPs an active weight each.
    deployment = on("qwen3-next-80b-a3b", "H200", tp=2)
    flops = 8192 * deployment.model.flops_per_token
    ideal = flops / (2 * 989.4e12)
    assert float(step_model(deployment).prefill(8192)) < 6 * ideal


def test_tensor_parallelism_beyond_a_bridge_falls_back_to_pcie() -> None:
    # H100 NVL cards are bridged in pairs: the all-reduces of four go over PCIe.
    two, four = (step_model(on("llama-3.1-70b", "H100-NVL", tp=tp)).parts(64, 1024) for tp in (2, 4))
    assert four.communication_s > 2 * two.communication_s


def test_two_gpus_of_a_mesh_share_one_link() -> None:
    mi300x = find_gpu("MI300X")
    assert mi300x.link_among(8) == pytest.approx(448e9)
    assert mi300x.link_among(2) == pytest.approx(64e9)


def test_fp8_decode_steps_of_a_real_vllm_rise_with_tiles() -> None:
    """Medians of steps logged on an H200 under vLLM 0.26.0 (``fp8`` of benchmarks/data/vllm_h200.json.xz).

    One sequence beyond the 16 of the smallest tile costs 28 %, one beyond the 64 of the next 15 %.
    """
    deployment = on("llama-3.1-8b", "H200", weights=Precision.fp8)
    logged = [(1, 1157, 3.453, 0.02), (16, 1089, 4.008, 0.02), (17, 1088, 5.135, 0.15), (32, 1084, 5.282, 0.08),
              (64, 1090, 5.965, 0.05), (65, 1095, 6.886, 0.08), (128, 242, 5.73, 0.09)]  # fmt: skip
    for batch, context, measured_ms, off in logged:
        assert float(decode_step(deployment, batch, context)) == pytest.approx(measured_ms * 1e-3, rel=off), batch


def test_fp8_weights_on_an_a100_save_bytes_but_not_flops() -> None:
    wide, narrow = on("llama-3.1-8b", "A100-80GB"), on("llama-3.1-8b", "A100-80GB", weights=Precision.fp8)
    assert float(step_model(narrow).prefill(8192)) > 0.9 * float(step_model(wide).prefill(8192))
    assert float(hostless(narrow).decode(1, 64)) < 0.75 * float(hostless(wide).decode(1, 64))


def test_an_overlapped_host_shows_only_when_it_is_the_slower() -> None:
    steps = step_model(on("llama-3.1-8b", "H100"))
    gpu_s = float(hostless(on("llama-3.1-8b", "H100")).decode(8, 512))
    own = overhead(find_engine("vllm")).model_copy(update={"step_s": 0.5, "sequence_s": 0.0})
    beside = steps.with_engine(own.model_copy(update={"overlapped": True}))
    after = steps.with_engine(own.model_copy(update={"overlapped": False}))
    assert float(beside.decode(8, 512)) == pytest.approx(0.5)
    assert float(after.decode(8, 512)) == pytest.approx(0.5 + gpu_s)


def test_an_engine_has_the_overhead_of_its_era() -> None:
    vllm = find_engine("vllm")
    assert not overhead(vllm, version="0.6.3").overlapped
    assert overhead(vllm, version="0.18.0").overlapped
    assert overhead(vllm, year=2024) == overhead(vllm, version="0.5.1")
    assert overhead(vllm) == overhead(vllm, version="0.32.0")


def test_old_attention_on_amd_reads_the_cache_once_for_each_query_head() -> None:
    vllm = find_engine("vllm")
    old = overhead(vllm, version="0.5.4", architecture="cdna3")
    assert 0 < old.head_reads < 1
    others = [{"version": "0.6.4", "architecture": "cdna3"}, {"version": "0.5.4", "architecture": "hopper"}, {}]
    others.append({"version": "vLLM 0.4.3+rocm614", "architecture": "cdna3"})  # tuned by AMD, not upstream's
    assert all(overhead(vllm, **other).head_reads == 0 for other in others)  # type: ignore[arg-type]
    deployment = on("llama-3.1-70b", "MI300X", tp=4)
    steps, gpu = StepModel(deployment, old), deployment.gpu
    # 80 layers, 64 query heads over 4 ranks of 128 elements, keys and values of 2 bytes.
    read = 32 * 4000 * 80 * 64 / 4 * 128 * 2 * 2
    expected = read / (gpu.bandwidth_bytes_per_s * old.split_reads)
    assert float(steps.decode_attention_s(np.float64(32), np.float64(4000))) == pytest.approx(expected)
    # More than 512 sequences times heads of a rank, or at most 512 tokens: contexts are not split among blocks.
    unsplit = expected * old.split_reads / old.head_reads
    assert float(steps.decode_attention_s(np.float64(33), np.float64(4000))) == pytest.approx(unsplit * 33 / 32)
    assert float(steps.decode_attention_s(np.float64(32), np.float64(500))) == pytest.approx(unsplit / 8)


def test_tensorrt_llm_of_2025_multiplied_fp8_in_another_time_than_timed() -> None:
    trt = find_engine("tensorrt-llm")
    old = overhead(trt, version="0.19")
    assert old.fp8_time_factor < 1
    for weights, times in ((Precision.fp8, old.fp8_time_factor), (Precision.bf16, 1.0)):
        deployment = deploy(find_model("llama-3.1-8b"), find_gpu("H100"), trt, weights=weights)
        ours, timed = (StepModel(deployment, era).kernels for era in (old, overhead(trt)))
        shape = (weights, 4096.0, 14336, 4096)
        assert float(ours.gemm_s(*shape)) == pytest.approx(times * float(timed.gemm_s(*shape)))


def test_old_products_on_amd_reach_a_share_of_the_peak() -> None:
    vllm, deployment = find_engine("vllm"), on("llama-3.1-8b", "MI300X")
    old = overhead(vllm, version="0.5.4", architecture="cdna3")
    assert 0 < old.product_share < 0.5
    # 7.0 billion weights in 32 layers: 2 × 4,096 × 4,096 (queries, output), 2 × 1,024 × 4,096, 3 × 14,336 × 4,096.
    flops = 2 * 8192 * 32 * (2 * 4096**2 + 2 * 1024 * 4096 + 3 * 14336 * 4096)
    least_s = flops / (1307.4e12 * old.product_share)
    products_s = [float(StepModel(deployment, era).tokens_s(np.array(8192.0))) for era in (old, None)]
    assert least_s < products_s[0] < 1.1 * least_s  # norms and the like are left
    assert products_s[1] < 0.5 * least_s


def test_llama_cpp_of_2024_unpacks_weights_and_keeps_scores_in_memory() -> None:
    engine = find_engine("llama.cpp")
    old, now = overhead(engine, 2024), overhead(engine)
    assert old.unpacks
    assert old.score_passes > 0
    assert not now.unpacks
    assert now.score_passes == 0
    deployment = deploy(find_model("llama-3.1-8b"), find_gpu("A40"), engine, weights=Precision.int4)
    before, after = StepModel(deployment, old), StepModel(deployment, now)
    chunk = (np.array(512.0), np.array(1536.0), np.array(1.0))
    more_s = before.prompt_attention_s(*chunk) - after.prompt_attention_s(*chunk)
    # 32 layers of 32 query heads; 512 rows of 2,048 keys each, the ones that a mask hides too, in 4 bytes.
    scores = 32 * 32 * 512 * 2048 * 4
    assert float(more_s) == pytest.approx(scores * old.score_passes / deployment.gpu.bandwidth_bytes_per_s)
    assert float(before.decode(1, 512)) == pytest.approx(float(after.decode(1, 512)))
    assert float(before.prefill(512)) > float(after.prefill(512))


def test_experts_whose_activations_are_quantised_take_longer_to_launch() -> None:
    own = overhead(find_engine("vllm"))
    assert own.quantised_layer_s > own.expert_layer_s > own.layer_s
    wide, narrow = on("qwen3-30b-a3b", "H200"), on("qwen3-30b-a3b", "H200", weights=Precision.fp8)
    more_s = float(step_model(narrow).launch_s(2000) - step_model(wide).launch_s(2000))
    assert more_s == pytest.approx(48 * (own.quantised_layer_s - own.expert_layer_s))
    mxfp4 = on("gpt-oss-120b", "H200", weights=Precision.mxfp4)
    assert float(step_model(mxfp4).launch_s(2000)) == pytest.approx(own.step_s + 36 * own.expert_layer_s)


def test_experts_that_one_kernel_computes_are_launched_like_a_dense_layer() -> None:
    own = overhead(find_engine("vllm"))
    fused = on("gpt-oss-120b", "B200", weights=Precision.mxfp4)
    assert float(step_model(fused).launch_s(2000)) == pytest.approx(own.step_s + 36 * own.layer_s)
    blocks = on("qwen3-30b-a3b", "B200", weights=Precision.fp8)
    assert float(step_model(blocks).launch_s(2000)) == pytest.approx(own.step_s + 48 * own.quantised_layer_s)


def test_a_decode_step_without_graphs_takes_as_long_as_its_launches() -> None:
    steps = step_model(on("llama-3.1-8b", "H200"))
    own = overhead(find_engine("vllm")).model_copy(update={"captures": False, "piece_s": 0.0, "graph_tokens": 0})
    launches = own.step_s + 32 * own.layer_s + 4 * own.sequence_s
    assert float(steps.with_engine(own).decode(4, 512)) == pytest.approx(launches)
    assert launches > 2 * float(steps.decode(4, 512))


def test_a_mean_number_of_sequences_takes_the_mean_time_of_the_whole_numbers_beside_it() -> None:
    """In FP8 a step jumps where a tile or a captured size is full: 17 sequences run in the graph of 24."""
    steps = step_model(on("llama-3.1-8b", "H200", weights=Precision.fp8))
    for full in (16, 64, 128, 256, 512):
        few, between, more = (float(steps.tokens_s(np.array(full + part))) for part in (0.0, 0.2, 1.0))
        assert few < more
        assert between == pytest.approx(0.8 * few + 0.2 * more)
    assert float(steps.tokens_s(np.array(17.0))) == float(steps.tokens_s(np.array(24.0)))
    # A pipeline of two stages takes 33 sequences as 16 and 17: never longer than 34.
    two = step_model(on("llama-3.3-70b", "H200", pp=2))
    times = [float(two.decode(batch, 1000)) for batch in (32, 33, 34)]
    assert times == sorted(times)


def test_a_server_of_few_sequences_captures_few_sizes() -> None:
    """vLLM captures two tokens for each of ``--max-num-seqs``: of 16, steps of more than 32 tokens are launched."""
    steps, own = step_model(on("llama-3.1-8b", "H200")), overhead(find_engine("vllm"))
    few = steps.holding(16)
    pieces, layers = own.step_s + 32 * own.piece_s, own.step_s + 32 * own.layer_s
    np.testing.assert_allclose(steps.launch_s([32, 33, 512, 513]), [pieces, pieces, pieces, layers])
    np.testing.assert_allclose(few.launch_s([32, 33, 512, 513]), [pieces, layers, layers, layers])
    assert steps.holding(256) is steps
    # With three drafts for each sequence, its step has four tokens.
    speculation = Speculation(method=DraftMethod.ngram, tokens=3, acceptance=0.7, draft_share=0.0)
    drafts = step_model(on("llama-3.1-8b", "H200").model_copy(update={"speculation": speculation}))
    np.testing.assert_allclose(drafts.holding(16).launch_s([128, 129]), [pieces, layers])


def test_latent_attention_takes_launches_of_its_own() -> None:
    own = overhead(find_engine("tensorrt-llm"), version="1.2.1")
    assert own.latent_layer_s > 0
    steps = step_model(deploy(find_model("deepseek-v3"), find_gpu("B200"), find_engine("tensorrt-llm"), tp=8))
    # Three of 61 layers are dense, and all have latent attention.
    launches = 3 * own.layer_s + 58 * own.quantised_layer_s + 61 * own.latent_layer_s
    assert float(steps.with_engine(own).launch_s(9000)) == pytest.approx(launches)


def test_replicas_of_the_attention_that_share_experts() -> None:
    alone = on("deepseek-r1", "B200", weights=Precision.fp8)
    shared = alone.model_copy(update={"dp": 8, "ep": 8})
    # Of 671 billion parameters 654 are in routed experts: an eighth of them, and everything else.
    assert shard(shared).experts_held == pytest.approx(shard(alone).experts_held / 8)
    assert shard(shared).blocks == shard(alone).blocks
    steps = StepModel(shared, None)
    assert steps.kernels.communication_s(np.array([64.0])) == pytest.approx(0.0)  # no sums inside a rank of one GPU
    # All tokens to every GPU and their sums back: the halves of an all-reduce over the eight, in each of 58 layers.
    message = 64 * 8 * 7168 * 2.0
    gathered = 58 * all_reduce_s(shared.gpu, 8, np.array([message])) + steps.kernels._experts_s(
        np.array([512.0]), False
    )
    experts, way = steps.kernels.shared_s(np.array([512.0]))
    assert experts + way <= gathered * (1 + 1e-9)
    # As many GPUs that split each layer copy the latent cache to every rank; these read their own sequences' alone.
    split = alone.model_copy(update={"tp": 8, "ep": 8})
    one_of_eight = float(StepModel(split, None).decode_attention_s(np.float64(512), np.float64(8000)))
    assert float(steps.decode_attention_s(np.float64(64), np.float64(8000))) < 0.5 * one_of_eight


def test_every_family_of_the_catalogue_has_an_efficiency_with_a_source() -> None:
    for gpu in GPUS:
        reached = efficiency(gpu)
        assert reached.source
        assert 0.3 < reached.memory < 1
        if gpu.architecture != "rdna3.5":
            assert 0.3 < reached.compute < 1
    # llama.cpp: 881.38 tokens of a prompt a second, each passing 6.61 billion parameters, of 59.4 TFLOP/s.
    strix_halo = find_gpu("Ryzen-AI-Max-395-128GB")
    assert efficiency(strix_halo).compute == pytest.approx(2 * 6.61e9 * 881.38 / 59.4e12, rel=0.01)


def test_an_architecture_without_an_efficiency_is_an_error_that_lists_those_with_one() -> None:
    unknown = find_gpu("H100").model_copy(update={"architecture": "rubin"})
    with pytest.raises(BadInput, match="hopper"):
        efficiency(unknown)


# --- LoRA -----------------------------------------------------------------------------------------------------------


def _with_adapters(adapters: int, **options: object) -> StepModel:
    made = on("llama-3.1-8b", "H100", **options)
    return hostless(made.model_copy(update={"lora_rank": 16, "lora_adapters": adapters}))


@pytest.mark.parametrize(
    ("tokens", "down", "up"), [(1, 64, 1), (64, 2 * 64, 1), (128, 4 * 8, 2), (2048, 64 * 8, 32), (8192, 256 * 8, 128)]
)
def test_a_prompt_launches_blocks_for_every_adapter_that_is_held(tokens: int, down: int, up: int) -> None:
    """Llama 3.1 8B packs QKV and gate with up: seven ways down; 6144 ÷ 64 + 4096 ÷ 128 + 28672 ÷ 64 + 4096 ÷ 128 up.

    A block down has 32 tokens, and below 128 tokens 64 share a product, then 8; a block up has 64 tokens.
    """
    few, many = (float(_with_adapters(each).prefill(tokens)) for each in (1, 801))
    launched = 32 * 800 * (7 * down + 608 * up)
    assert many - few == pytest.approx(launched * LORA_START_S, rel=1e-6)
    assert few > float(hostless(on("llama-3.1-8b", "H100")).prefill(tokens))


@pytest.mark.parametrize(("batch", "prompts", "used"), [(1, 0, 1), (8, 0, 8), (80, 0, 50), (8, 3, 11), (60, 3, 50)])
@pytest.mark.parametrize("tp", [1, 2])
def test_a_step_computes_an_adapter_for_each_sequence_and_none_twice(
    batch: int, prompts: int, used: int, tp: int
) -> None:
    mixed = _with_adapters(50, tp=tp)
    alike = hostless(mixed.deployment.model_copy(update={"lora_in_batch": 1.0}))
    step = 512 if prompts else 0, 0, batch, 1000, max(prompts, 1)
    up = (6144 + 28672) / tp / 64 + 2 * 4096 / 128
    expected = (used - 1) * 32 * (7 * 64 * LORA_DOWN_S + up * LORA_UP_S)
    assert float(mixed.step(*step) - alike.step(*step)) == pytest.approx(expected, rel=1e-6)


def test_the_parts_of_a_step_with_adapters_still_sum() -> None:
    parts = _with_adapters(50).parts(32, 1000)
    plain = _with_adapters(1).parts(32, 1000)
    assert parts.overhead_s == pytest.approx(plain.overhead_s)
    assert parts.step_s > plain.step_s


@pytest.mark.parametrize("context", [1, 777.5, 30_000])
def test_a_decode_step_is_a_step_without_prompts_to_the_last_digit(context: float) -> None:
    batches = np.concatenate([np.arange(300), np.geomspace(300, 2e5, 20).round()])
    ways = [on("llama-3.1-8b", "H100"), on("gpt-oss-120b", "L40S", tp=2), on("deepseek-v3", "H200", tp=8, ep=8)]
    for steps in map(step_model, ways):
        alone, hosted = steps.decode_apart(batches, context)
        assert np.array_equal(hosted, steps.step(0, 0, batches, context))
        assert steps.engine
        assert np.array_equal(alone, steps.with_engine(free(steps.engine)).step(0, 0, batches, context))


def test_traffic_that_visits_few_experts_reads_no_more_of_them_with_more_tokens() -> None:
    spread = on("qwen3-30b-a3b", "H200")
    collapsed = spread.model_copy(update={"visited_experts": 8.0})
    # A token visits 8 of 128 experts: three matrices of 2,048 × 768 in 16 bits, in each of 48 layers.
    expert = 48 * 3 * 2048 * 768 * 2
    assert step_weight_bytes(collapsed, 1) == pytest.approx(step_weight_bytes(spread, 1))
    assert step_weight_bytes(collapsed, 500) == pytest.approx(step_weight_bytes(spread, 1))
    more = step_weight_bytes(spread, 500) - step_weight_bytes(collapsed, 500)
    assert more == pytest.approx(120 * expert, rel=1e-3)
    half = spread.model_copy(update={"visited_experts": 64.0})
    assert step_weight_bytes(half, 500) - step_weight_bytes(collapsed, 500) == pytest.approx(56 * expert, rel=1e-3)
    assert step_weight_bytes(spread.model_copy(update={"visited_experts": 1.0}), 500) == step_weight_bytes(
        collapsed, 500
    )


@pytest.mark.parametrize(
    ("visited", "measured_ms", "off"),
    [
        (None, {4: 5.91, 8: 7.45, 16: 9.09, 32: 10.78, 64: 11.99, 128: 12.95, 256: 16.28, 512: 20.71}, 0.12),
        (8.0, {8: 4.79, 16: 5.04, 32: 5.11, 64: 5.71}, 0.2),
    ],
)
def test_experts_in_blocks_of_fp8_step_as_measured(
    visited: float | None, measured_ms: dict[int, float], off: float
) -> None:
    """Qwen3 30B-A3B on vLLM 0.26.0 on the third machine of benchmarks/data/vllm_h200_experts, which taught no step."""
    deployment = on("qwen3-30b-a3b", "H200", weights=Precision.fp8).model_copy(update={"visited_experts": visited})
    for batch, ms in measured_ms.items():
        assert float(decode_step(deployment, batch, 97)) * 1e3 == pytest.approx(ms, rel=off), batch


def test_a_dense_model_in_blocks_of_fp8_runs_the_kernels_for_blocks() -> None:
    deployment = on("llama-3.1-8b", "H200", weights=Precision.fp8)
    blocks, channel = (
        StepModel(
            deployment.model_copy(update={"model": deployment.model.model_copy(update={"fp8_scales": scales})}),
            overhead(deployment.engine),
        ).kernels
        for scales in (Scales.blocks, Scales.channel)
    )
    n, k = 6144, 4096  # queries, keys and values
    for kernels, backend in ((blocks, BLOCKS), (channel, FUSED)):
        expected = gemm_s(deployment.gpu, Precision.fp8, 64, n, k, backend)
        assert float(kernels.gemm_s(Precision.fp8, 64, n, k)) == pytest.approx(float(expected))
    assert float(blocks.gemm_s(Precision.fp8, 64, n, k)) > float(channel.gemm_s(Precision.fp8, 64, n, k))
    assert blocks.gemm_s(Precision.bf16, 64, n, k) == channel.gemm_s(Precision.bf16, 64, n, k)


def test_another_host_is_another_number() -> None:
    own = overhead(find_engine("vllm"))
    slower = own.on_host(1.5 * host().launch_s)
    assert own.on_host(host().launch_s) == own
    assert float(slower.launch_s(2_000, 0, 48)) == pytest.approx(1.5 * float(own.launch_s(2_000, 0, 48)))
    assert float(slower.launch_s(100, 32, 0)) == pytest.approx(1.5 * float(own.launch_s(100, 32, 0)))
    assert float(slower.host_s(100)) == pytest.approx(1.5 * (own.step_s + 100 * own.sequence_s))
    assert slower.request_seconds(1_000) == own.request_seconds(1_000)


def test_layers_with_latent_attention_have_more_to_launch() -> None:
    own, steps = overhead(find_engine("vllm")), step_model(on("deepseek-v2-lite", "H200"))
    # 27 layers of latent attention: one dense, 26 with experts.
    kernels_s = own.layer_s + 26 * own.expert_layer_s + 27 * own.latent_layer_s
    assert float(steps.launch_s(2_000)) == pytest.approx(own.step_s + kernels_s)
    assert float(steps.launch_s(500)) == pytest.approx(own.step_s + 27 * (own.piece_s + own.latent_piece_s))
    # Alone on two hosts, DeepSeek-V2-Lite's prompts of 1,024 to 3,072 tokens were launched in 50 to 75 ms.
    assert 0.05 < float(steps.launch_s(2_000)) < 0.075


def test_tokens_are_sorted_by_expert_where_they_visit_more_than_a_quarter_of_them() -> None:
    # Four tokens of 8 experts each are a quarter of 128; the kernels' launches left in a graph are 44 % of those alone.
    deployment = on("qwen3-30b-a3b", "H200")
    steps = step_model(deployment).with_engine(None)
    bf16: dict[str, object] = {"hidden": 2048, "intermediate": 768, "active": 8, "experts": 128, "launch": 0.44}
    alone = experts_s(deployment.gpu, Precision.bf16, np.arange(1, 9), **bf16)  # type: ignore[arg-type]
    more_us = (steps.shared_s(np.arange(1.0, 9.0)) / 48 - alone) * 1e6
    assert more_us == pytest.approx([0, 0, 0, 0, SORT_S * 1e6, SORT_S * 1e6, SORT_S * 1e6, SORT_S * 1e6], abs=0.01)


@pytest.mark.parametrize(
    ("model", "gpu", "tp", "backend"),
    [
        ("qwen3-30b-a3b", "H200", 1, BLOCKS),  # E=128,N=768,device_name=NVIDIA_H200
        ("qwen3-30b-a3b", "H200-NVL", 1, BLOCKS),  # the H200's files are its family's
        ("qwen3-next-80b-a3b", "H200", 1, UNTUNED),
        ("qwen3-30b-a3b", "H100-SXM", 1, UNTUNED),
        ("qwen3-30b-a3b", "H100-NVL", 1, UNTUNED),
        ("qwen3-30b-a3b", "GH200", 1, UNTUNED),
        ("qwen3-next-80b-a3b", "H100-SXM", 2, BLOCKS),  # E=512,N=256,device_name=NVIDIA_H100_80GB_HBM3
        ("qwen3-next-80b-a3b", "H100-PCIe", 2, UNTUNED),
    ],
)
def test_experts_take_larger_tiles_where_vllm_ships_none_for_their_sizes(
    model: str, gpu: str, tp: int, backend: str
) -> None:
    deployment = on(model, gpu, tp=tp, weights=Precision.fp8)
    group = next(group for group in deployment.model.groups if isinstance(group.mlp, MoeMlp))
    assert isinstance(group.mlp, MoeMlp)
    kernels = step_model(deployment).kernels
    tokens = np.array([200.0])
    assert kernels._experts_engine(group.mlp) == backend
    layers = sum(group.count for group in deployment.model.groups if isinstance(group.mlp, MoeMlp))
    alone = experts_s(
        deployment.gpu,
        Precision.fp8,
        tokens,
        hidden=deployment.model.hidden,
        intermediate=group.mlp.intermediate / tp,
        active=group.mlp.active_experts,
        experts=group.mlp.experts,
        backend=backend,
        launch=kernels.between.expert_launch,
    )
    assert kernels._experts_s(tokens, sent=False) == pytest.approx(layers * (alone + SORT_S))


def test_latent_attention_copies_its_heads_rows() -> None:
    deployment = on("deepseek-v2-lite", "H200")
    own, tokens = step_model(deployment).kernels, np.array([1024.0, 8192.0])
    taken = sum((own.small_ops_s(group, tokens) for group in deployment.model.groups), np.zeros(2))
    # The small kernels of these prompts took 1.69 and 11.3 ms on an H200 (kernels.csv.gz of vllm_h200_experts).
    assert taken * 1e3 == pytest.approx([1.69, 11.3], rel=0.1)


@pytest.mark.parametrize(
    ("batch", "context", "measured_ms"),
    [(13.5, 1448, 9.755), (19.5, 1633, 10.337), (27.5, 1695, 10.990), (39.5, 1642, 11.901)],
)
def test_decode_steps_of_a_model_left_out_are_within_four_percent_where_contexts_differ(
    batch: float, context: float, measured_ms: float
) -> None:
    """Medians of vLLM 0.26's steps of Qwen3 14B under log-normal lengths (vllm_h200_headroom.json.gz)."""
    steps = step_model(on("qwen3-14b", "H200"))
    even, uneven = (float(made.decode(batch, context)) * 1e3 for made in (steps, steps.with_spread(0.77)))
    assert uneven == pytest.approx(measured_ms, rel=0.04)
    assert even < 0.96 * measured_ms


def test_unequal_contexts_slow_few_sequences_by_a_larger_share_than_many_and_one_not_at_all() -> None:
    steps, context = step_model(on("llama-3.1-8b", "H200")), np.float64(2000)

    def share(batch: float, spread: float) -> float:
        longer = steps.with_spread(spread).decode_attention_s(np.float64(batch), context)
        return float(longer / steps.decode_attention_s(np.float64(batch), context)) - 1

    assert share(1, 0.8) == 0
    assert share(200, 0) == 0
    assert 0.3 > share(10, 0.8) > share(40, 0.8) > share(200, 0.8) > 0.05
    assert share(40, 0.8) > share(40, 0.3) > share(40, 0.05)


@pytest.mark.parametrize(("batch", "context", "measured_ms"), [(16, 664, 94.8), (64, 480, 99.3), (256, 348, 113.0)])
def test_a_long_prompt_beside_many_answers_takes_longer_than_beside_few(
    batch: int, context: int, measured_ms: float
) -> None:
    """Steps of vLLM 0.26 with 4,096 prompt tokens, Llama 3.1 8B on an H200 (vllm_h200_experts/summary.csv.gz)."""
    steps = step_model(on("llama-3.1-8b", "H200"))
    assert float(steps.step(4096, 0, batch, context)) * 1e3 == pytest.approx(measured_ms, rel=0.03)
