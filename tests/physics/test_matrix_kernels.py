"""Matrix kernels: laws on every GPU and precision, curves for GPUs nobody timed, and measured points."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokonomics.catalog.gpus import Gpu, all_gpus, find_gpu
from tokonomics.catalog.layers import Precision
from tokonomics.physics.curves import Array
from tokonomics.physics.matrix_kernels import (
    BACKENDS,
    BLOCKS,
    FUSED,
    UNTUNED,
    Op,
    Origin,
    all_reduce_s,
    curve_origin,
    experts_s,
    gemm_s,
    in_tiles,
    unpacked_gemm_s,
)

H200 = find_gpu("H200")
bf16 = Precision.bf16

gpus = st.sampled_from(all_gpus())
precisions = st.sampled_from(Precision)
backends = st.sampled_from((*BACKENDS, FUSED, "pytorch", "llama.cpp"))
sizes = st.integers(1, 200_000)
widths = st.integers(64, 20_000)
more = st.floats(1, 8)
SLACK = 1 + 1e-9


def mixtral(gpu: Gpu, weights: Precision, tokens: float, backend: str = "vllm") -> float:
    return float(experts_s(gpu, weights, tokens, hidden=4096, intermediate=14336, active=2, experts=8, backend=backend))


@settings(max_examples=300)
@given(gpus, precisions, backends, sizes, sizes, sizes, more, more, more)
def test_a_larger_product_never_takes_less(
    gpu: Gpu, weights: Precision, backend: str, m: int, n: int, k: int, more_m: float, more_n: float, more_k: float
) -> None:
    small = gemm_s(gpu, weights, m, n, k, backend)
    assert small <= gemm_s(gpu, weights, m * more_m, n * more_n, k * more_k, backend) * SLACK


@settings(max_examples=300)
@given(gpus, precisions, backends, sizes, widths, widths, st.integers(1, 8), st.integers(3, 9), more, more, more)
def test_more_tokens_or_wider_experts_never_take_less(
    gpu: Gpu,
    weights: Precision,
    backend: str,
    tokens: int,
    hidden: int,
    intermediate: int,
    active: int,
    log_experts: int,
    more_tokens: float,
    more_hidden: float,
    more_intermediate: float,
) -> None:
    def seconds(tokens: float, hidden: float, intermediate: float, active: int) -> Array:
        return experts_s(
            gpu, weights, tokens, hidden=hidden, intermediate=intermediate, active=active,
            experts=2**log_experts, ep=4, backend=backend,
        )  # fmt: skip

    small = seconds(tokens, hidden, intermediate, active)
    large = seconds(tokens * more_tokens, hidden * more_hidden, intermediate * more_intermediate, min(active + 1, 8))
    assert small <= large * SLACK


@settings(max_examples=300)
@given(gpus, precisions, backends, sizes, sizes, sizes)
def test_no_product_beats_the_datasheet(gpu: Gpu, weights: Precision, backend: str, m: int, n: int, k: int) -> None:
    seconds = gemm_s(gpu, weights, m, n, k, backend) * SLACK
    assert seconds >= n * k * weights.bytes_per_weight / gpu.bandwidth_bytes_per_s
    assert seconds >= 2 * m * n * k / gpu.peak_flops(weights)


@settings(max_examples=300)
@given(gpus, precisions, backends, sizes, widths, widths, st.sampled_from((1, 2, 8)), st.sampled_from((1, 2, 8)))
def test_no_experts_beat_the_datasheet(
    gpu: Gpu, weights: Precision, backend: str, tokens: int, hidden: int, intermediate: int, tp: int, ep: int
) -> None:
    seconds = SLACK * experts_s(
        gpu, weights, tokens, hidden=hidden, intermediate=intermediate / tp, active=4, experts=64, ep=ep,
        backend=backend,
    )  # fmt: skip
    expert = 3 * hidden * intermediate / tp
    distinct = 64 * (1 - (1 - 4 / 64) ** tokens) / ep
    assert seconds >= distinct * expert * weights.bytes_per_weight / gpu.bandwidth_bytes_per_s
    assert seconds >= 2 * expert * tokens * 4 / ep / gpu.peak_flops(weights)


@given(gpus, precisions, st.sampled_from((2.0, 1.1)))
def test_faster_hardware_is_never_slower(gpu: Gpu, weights: Precision, times: float) -> None:
    rates = {dtype: rate * times for dtype, rate in gpu.flops.items()}
    faster = gpu.model_copy(update={"bandwidth_bytes_per_s": gpu.bandwidth_bytes_per_s * times, "flops": rates})
    batch = np.array([1, 64, 4096])
    assert np.all(gemm_s(faster, weights, batch, 4096, 4096) < gemm_s(gpu, weights, batch, 4096, 4096))
    assert all(mixtral(faster, weights, each) < mixtral(gpu, weights, each) for each in batch)


@pytest.mark.parametrize("gpu", all_gpus(), ids=lambda gpu: gpu.key)
def test_every_gpu_has_times_and_arrays_give_what_numbers_do(gpu: Gpu) -> None:
    batch = np.array([[1, 7], [300, 16384]])
    for weights in Precision:
        for backend in (*BACKENDS, "tgi"):
            dense = gemm_s(gpu, weights, batch, 6144, 4096, backend)
            routed = experts_s(
                gpu, weights, batch, hidden=4096, intermediate=14336, active=2, experts=8, backend=backend
            )
            assert dense.shape == routed.shape == batch.shape
            for at, m in np.ndenumerate(batch):
                assert dense[at] == pytest.approx(float(gemm_s(gpu, weights, m, 6144, 4096, backend)))
                assert routed[at] == pytest.approx(mixtral(gpu, weights, m, backend))
    for group in (2, 3, 4, 8, 16):
        message = np.array([1.0, 16384.0, 1e9])
        reduced = all_reduce_s(gpu, group, message)
        assert np.all(np.diff(reduced) >= 0)
        assert np.all(reduced > 0)
        assert np.all(reduced * SLACK >= 2 * (group - 1) / group * message / gpu.link_among(group))
    assert float(all_reduce_s(gpu, 1, 1e6)) == 0


@pytest.mark.parametrize("weights", [each for each in Precision if each is not Precision.fp32])
def test_experts_of_a_decode_step_take_alike_on_one_chip_with_two_memories(weights: Precision) -> None:
    # H100-SXM and H200 multiply alike: apart from fitted noise they differ by at most their bandwidth, 1.43 times.
    for tokens in (8, 48, 256):
        slow, fast = (
            float(experts_s(gpu, weights, tokens, hidden=2048, intermediate=768, active=8, experts=128))
            for gpu in (find_gpu("H100-SXM"), H200)
        )
        assert 0.95 < slow / fast < 1.1 * 4.8 / 3.35, tokens


def test_nvfp4_experts_without_math_for_it_take_less_than_fp8_and_somewhat_more_than_int4() -> None:
    for gpu in map(find_gpu, ("H100-SXM", "H100-PCIe", "H200", "L40S")):
        int4, nvfp4, fp8 = (
            float(experts_s(gpu, each, 48, hidden=2048, intermediate=768, active=8, experts=128))
            for each in (Precision.int4, Precision.nvfp4, Precision.fp8)
        )
        assert int4 < nvfp4 < fp8, gpu.key


def test_quantised_weights_are_read_faster_and_int4_multiplies_like_bf16() -> None:
    for gpu in (H200, find_gpu("A100-80GB"), find_gpu("L4")):
        wide, narrow = (float(gemm_s(gpu, each, 1, 28672, 8192)) for each in (bf16, Precision.int4))
        assert 0.2 < narrow / wide < 0.4
        wide, narrow = (float(gemm_s(gpu, each, 8192, 28672, 8192)) for each in (bf16, Precision.int4))
        assert narrow == pytest.approx(wide, rel=0.03)


def test_an_engine_without_timings_gets_the_faster_kernel_at_each_size() -> None:
    batch = np.array([1, 16, 128, 1024, 8192])
    vllm, sglang = (gemm_s(H200, Precision.fp8, batch, 6144, 4096, backend) for backend in BACKENDS)
    assert np.array_equal(gemm_s(H200, Precision.fp8, batch, 6144, 4096, "tensorrt-llm"), np.minimum(vllm, sglang))


@pytest.mark.parametrize(
    ("gpu", "op", "weights", "origin"),
    [
        ("H200", "gemm", bf16, Origin("measured", "H200", bf16)),
        ("H100-PCIe", "gemm", Precision.fp8, Origin("scaled", "H100-SXM", Precision.fp8)),
        ("A100-80GB", "gemm", Precision.fp8, Origin("assumed", "A100-80GB", bf16)),
        ("L40S", "gemm", Precision.int8, Origin("assumed", "L40S", Precision.fp8)),
        ("B200", "gemm", Precision.mxfp4, Origin("assumed", "B200", Precision.nvfp4)),
        ("H100-SXM", "gemm", Precision.nvfp4, Origin("assumed", "H100-SXM", bf16)),
        ("MI300X", "gemm", bf16, Origin("assumed", "A100-80GB", bf16)),
        ("B300", "experts", Precision.nvfp4, Origin("scaled", "B200", Precision.nvfp4)),
        ("H100-SXM", "experts", Precision.nvfp4, Origin("assumed", "H100-SXM", Precision.int4)),
        ("L40S", "experts", Precision.nvfp4, Origin("assumed", "L40S", Precision.int4)),
        ("A100-80GB", "experts", Precision.nvfp4, Origin("assumed", "A100-80GB", bf16)),
        ("RTX4090", "experts", Precision.mxfp4, Origin("scaled", "L40S", Precision.mxfp4)),
        ("T4", "experts", bf16, Origin("assumed", "A100-80GB", bf16)),
        ("A100-40GB", "all_reduce", bf16, Origin("scaled", "A100-80GB", bf16)),
        ("A10G", "all_reduce", bf16, Origin("assumed", "L40S", bf16)),
        ("RTX5090", "all_reduce", bf16, Origin("scaled", "RTXPRO6000", bf16)),
    ],
)
def test_origins(gpu: str, op: Op, weights: Precision, origin: Origin) -> None:
    assert curve_origin(find_gpu(gpu), op, weights) == origin


def test_nvlink_timings_do_not_speak_for_a_card_without_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = tmp_path / "catalog.toml"
    mine.write_text(
        """[gpus.H200]
        architecture = "hopper"
        memory_gb = 141
        bandwidth_bytes_per_s = 4.8e12
        flops = { bf16 = 989e12, fp8 = 1979e12 }""",
        encoding="utf-8",
    )
    monkeypatch.setenv("TOKONOMICS_CATALOG", str(mine))
    origin = curve_origin(find_gpu("H200"), "all_reduce", gpus=8)
    assert (origin.basis, origin.gpu) == ("assumed", "RTXPRO6000")
    # Seven eighths of the message cross PCIe 4.0 twice.
    assert all_reduce_s(find_gpu("H200"), 8, 1e8) > 2 * 7 / 8 * 1e8 / 32e9


@pytest.mark.parametrize(("model", "batch", "milliseconds"), [
    ("1b", 1, 1.059), ("1b", 64, 1.180), ("8b", 1, 4.554), ("8b", 64, 4.908), ("8b", 512, 13.105),
])  # fmt: skip
def test_dense_layers_add_up_to_whole_steps(model: str, batch: int, milliseconds: float) -> None:
    # Llama 3 shapes without attention on one H200, one CUDA graph; small ops: 12 µs a layer and their bytes.
    layers, hidden, qkv, inter = {"1b": (16, 2048, 3072, 8192), "8b": (32, 4096, 6144, 14336)}[model]
    layer = ((qkv, hidden), (hidden, hidden), (2 * inter, hidden), (hidden, inter))
    small = 12e-6 + batch * 2 * (8 * hidden + 3 * inter + 2 * qkv) / 4.2e12
    total = layers * (small + sum(float(gemm_s(H200, bf16, batch, n, k)) for n, k in layer))
    total += float(gemm_s(H200, bf16, batch, 128256, hidden))
    assert total * 1e3 == pytest.approx(milliseconds, rel=0.06)


def test_a_large_product_reaches_what_was_measured() -> None:
    # 753 TFLOP/s for 8192³ in bf16 on an H200 (h200_steps.json, ceilings).
    assert 2 * 8192**3 / float(gemm_s(H200, bf16, 8192, 8192, 8192)) == pytest.approx(753e12, rel=0.08)


@pytest.mark.parametrize(("batch", "microseconds"), [(1, 189), (8, 658), (64, 752), (512, 968), (4096, 4570)])
def test_fused_experts_of_mixtral_on_h200(batch: int, microseconds: float) -> None:
    # aiconfigurator-core 0.12.0, vLLM 0.24, bf16, routing by a power law.
    assert mixtral(H200, bf16, batch) * 1e6 == pytest.approx(microseconds, rel=0.2)


@pytest.mark.parametrize(("batch", "milliseconds"), [(1, 12.3), (8, 34), (64, 37), (256, 39)])
def test_mixtral_steps_through_a_grouped_matmul(batch: int, milliseconds: float) -> None:
    # Context 512: KV at 4.1 TB/s, 21 µs a layer for attention's launch and the small ops.
    layer = mixtral(H200, bf16, batch, "pytorch") + batch * 512 * 4096 / 4.1e12 + 21e-6
    layer += float(gemm_s(H200, bf16, batch, 6144, 4096)) + float(gemm_s(H200, bf16, batch, 4096, 4096))
    total = 32 * layer + float(gemm_s(H200, bf16, batch, 32000, 4096))
    assert total * 1e3 == pytest.approx(milliseconds, rel=0.1)


def test_the_busiest_rank_has_more_to_do() -> None:
    shape = {"hidden": 7168, "intermediate": 2048, "active": 8, "experts": 256}
    alone = float(experts_s(H200, Precision.fp8, 16384, **shape))  # type: ignore[arg-type]
    shared = float(experts_s(H200, Precision.fp8, 16384, ep=8, **shape))  # type: ignore[arg-type]
    assert alone / 8 < shared < alone


@pytest.mark.parametrize(
    ("gpu", "group", "elements", "microseconds"),
    [("H200", 8, 8192, 4), ("H200", 8, 8388608, 87), ("H200", 2, 134217728, 887), ("L40S", 2, 8388608, 892)],
)
def test_all_reduces_measured_in_cuda_graphs(gpu: str, group: int, elements: int, microseconds: float) -> None:
    assert float(all_reduce_s(find_gpu(gpu), group, 2 * elements)) * 1e6 == pytest.approx(microseconds, rel=0.2)


@given(gpus, precisions, sizes, widths, widths)
def test_fused_quantising_only_ever_saves_and_only_in_fp8(gpu: Gpu, weights: Precision, m: int, n: int, k: int) -> None:
    fused, timed = gemm_s(gpu, weights, m, n, k, FUSED), gemm_s(gpu, weights, m, n, k, "vllm")
    assert fused <= timed * SLACK
    if weights is not Precision.fp8 or gpu.architecture != "hopper":
        assert fused == timed


def test_a_product_in_tiles_takes_longer_for_one_row_more_than_they_hold() -> None:
    # Timings of vLLM's FP8 kernel on an H200 (aiconfigurator-core 0.12.0; 65,536 × 5,120): m rows against m + 1.
    for rows, timed in ((16, 1.59 / 1.01), (64, 1.52 / 1.10), (128, 2.49 / 1.20), (256, 5.39 / 1.49)):
        one_more, full = (float(gemm_s(H200, Precision.fp8, m, 65_536, 5_120)) for m in (rows + 1, rows))
        assert 1.1 < one_more / full < 1.1 * timed, rows
    assert in_tiles([1, 16, 64, 128, 256, 512]) == pytest.approx([31, 16, 64, 128, 256, 512])


def test_what_fusing_saves_is_a_kernel_that_reads_and_writes_the_activations() -> None:
    # At a batch of 1 a launch; at thousands of tokens at least three bytes an element through the memory (16 bits in, 8
    # out), and at the most what four passes over them would take.
    m, n, k = 8192, 4096, 14336
    at_one = gemm_s(H200, Precision.fp8, 1, n, k) - gemm_s(H200, Precision.fp8, 1, n, k, FUSED)
    assert 1e-6 < at_one < 5e-6
    at_many = gemm_s(H200, Precision.fp8, m, n, k) - gemm_s(H200, Precision.fp8, m, n, k, FUSED)
    assert 3 < at_many / (m * k / H200.bandwidth_bytes_per_s) < 4 * 4


def test_weights_that_are_unpacked_first_cost_their_bytes_in_sixteen_bits() -> None:
    gpu = find_gpu("RTX4090")
    few, many, n, k = 8.0, 512.0, 14336.0, 4096.0
    packed_s = float(unpacked_gemm_s(gpu, Precision.int4, few, n, k, "llama.cpp"))
    assert packed_s == pytest.approx(float(gemm_s(gpu, Precision.int4, few, n, k, "llama.cpp")))
    wide_s = float(unpacked_gemm_s(gpu, Precision.bf16, many, n, k, "llama.cpp"))
    unpacked_s = float(unpacked_gemm_s(gpu, Precision.int4, many, n, k, "llama.cpp")) - wide_s
    assert unpacked_s == pytest.approx(n * k * (Precision.int4.bytes_per_weight + 2) / gpu.bandwidth_bytes_per_s)
    # Sums in FP16: 330 TFLOP/s on this card and not the 165 of sums in FP32 (NVIDIA's Ada whitepaper, table 2).
    large_s = float(unpacked_gemm_s(gpu, Precision.bf16, 8192.0, n, k, "llama.cpp"))
    assert 1 / 330.3e12 < large_s / (2 * 8192.0 * n * k) < 1 / 165.2e12


def test_a_gaming_cards_halved_rate_bounds_its_products_once() -> None:
    card, twin = find_gpu("RTX4090"), find_gpu("RTX6000-Ada")  # one chip, whose 16-bit rate is halved on the first
    m, n, k = 4096.0, 14336.0, 4096.0
    card_s, twin_s = (float(gemm_s(gpu, Precision.bf16, m, n, k)) for gpu in (card, twin))
    assert card_s == pytest.approx(2 * m * n * k / card.peak_flops(Precision.bf16))  # the datasheet's rate, all of it
    assert twin_s > 2 * m * n * k / twin.peak_flops(Precision.bf16)  # held up by power, as its curve has it
    assert card_s > twin_s


def test_experts_that_vllm_was_not_tuned_for_come_in_larger_tiles_until_their_tokens_fill_them() -> None:
    # ERNIE 4.5 21B: 64 experts, 6 a token. With 65 tokens an expert has 6 rows, in a tile of 64 instead of 16; with 700
    # it has 66, and padding is what it is for tuned ones.
    tokens = np.array([64.0, 65.0, 200.0, 700.0])
    layer: dict[str, Any] = {"hidden": 2560, "intermediate": 1536, "active": 6, "experts": 64}
    tuned, untuned = (experts_s(H200, Precision.fp8, tokens, **layer, backend=each) for each in (BLOCKS, UNTUNED))
    assert untuned[[0, 3]] == pytest.approx(tuned[[0, 3]])
    assert np.all(untuned[1:3] > 1.1 * tuned[1:3])
    # Weights are read as fast as before: at most the larger tiles' products come on top.
    products_s = 64 * 64 * 2 * 3 * 2560 * 1536 / H200.peak_flops(Precision.fp8)
    assert np.all(untuned - tuned < products_s / 0.3)
