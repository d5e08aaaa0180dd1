"""Attention curves: monotone, never below the datasheet's floor, close to the timings they were fitted on."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import ArrayLike

from tokonomics.catalog.gpus import Gpu, all_gpus, find_gpu
from tokonomics.catalog.layers import KV_PRECISIONS, Precision, kv_bytes_per_element
from tokonomics.physics.attention_kernels import (
    Op,
    curve_origin,
    decode_attention_s,
    mla_decode_s,
    mla_prefill_s,
    prefill_attention_s,
)
from tokonomics.physics.curves import Array, efficiency

BACKENDS = ("vllm", "sglang", "tensorrt-llm", "pytorch")
OPS: tuple[Op, ...] = ("decode", "prefill", "mla_decode", "mla_prefill")
GROWING = np.geomspace(1, 2e5, 60)


class Case(NamedTuple):
    """Everything but the two counts that grow."""

    gpu: Gpu
    kv: Precision
    kv_heads: int = 8
    group: int = 4
    head_dim: int = 128
    window: int | None = None
    backend: str = "vllm"

    def decode(self, batch: ArrayLike, context: ArrayLike) -> Array:
        return decode_attention_s(
            self.gpu, self.kv, batch, context, heads=self.kv_heads * self.group, kv_heads=self.kv_heads,
            head_dim=self.head_dim, window=self.window, backend=self.backend,
        )  # fmt: skip

    def prefill(self, tokens: ArrayLike, past: ArrayLike) -> Array:
        return prefill_attention_s(
            self.gpu, self.kv, tokens, past, heads=self.kv_heads * self.group, kv_heads=self.kv_heads,
            head_dim=self.head_dim, window=self.window, backend=self.backend,
        )  # fmt: skip

    def mla_decode(self, batch: ArrayLike, context: ArrayLike) -> Array:
        return mla_decode_s(self.gpu, self.kv, batch, context, heads=self.kv_heads * 4, backend=self.backend)

    def mla_prefill(self, tokens: ArrayLike, past: ArrayLike) -> Array:
        return mla_prefill_s(self.gpu, self.kv, tokens, past, heads=self.kv_heads * 4, backend=self.backend)

    @property
    def all(self) -> list[Callable[[ArrayLike, ArrayLike], Array]]:
        return [self.decode, self.prefill, self.mla_decode, self.mla_prefill]


cases = st.builds(
    Case, st.sampled_from(all_gpus()), st.sampled_from(KV_PRECISIONS), st.sampled_from([1, 2, 5, 8, 32]),
    st.sampled_from([1, 2, 4, 8, 64]), st.sampled_from([64, 96, 128, 256]), st.sampled_from([None, 128, 4096]),
    st.sampled_from(BACKENDS),
)  # fmt: skip
counts = st.floats(1, 4096)


def grows(times: Array) -> bool:
    return bool(np.all(np.diff(times) >= -1e-12 * times[1:]) and np.all(times > 0))


@settings(max_examples=100, deadline=None)
@given(cases, counts)
def test_grows_with_batch_context_tokens_and_past(case: Case, fixed: float) -> None:
    for seconds in case.all:
        assert grows(seconds(GROWING, fixed))
        assert grows(seconds(fixed, GROWING))


@settings(max_examples=60, deadline=None)
@given(cases, counts, counts)
def test_grows_with_heads(case: Case, one: float, other: float) -> None:
    """At a fixed group: a kernel for one query head per KV head may be slower than one for two (and was, in vLLM)."""
    wider = [case._replace(kv_heads=heads) for heads in (1, 2, 4, 8, 16)]
    for op in range(len(case.all)):
        assert grows(np.array([float(each.all[op](one, other)) for each in wider]))


@settings(max_examples=100, deadline=None)
@given(cases, counts, counts)
def test_never_faster_than_the_datasheet(case: Case, one: float, other: float) -> None:
    case, context = case._replace(window=None), other * 64
    gpu, width, heads = case.gpu, kv_bytes_per_element(case.kv), case.kv_heads * case.group
    each = one * context * width / gpu.bandwidth_bytes_per_s
    assert case.decode(one, context) >= each * case.kv_heads * 2 * case.head_dim
    assert case.mla_decode(one, context) >= each * 576
    pairs, peak = one * (other + (one + 1) / 2), gpu.peak_flops(Precision.fp8)
    assert case.prefill(one, other) >= 4 * case.head_dim * heads * pairs / peak
    assert case.mla_prefill(one, other) >= 640 * case.kv_heads * 4 * pairs / peak


@pytest.mark.parametrize("gpu", all_gpus(), ids=lambda gpu: gpu.key)
@pytest.mark.parametrize("kv", KV_PRECISIONS)
def test_every_gpu_has_curves_and_says_whose(gpu: Gpu, kv: Precision) -> None:
    for backend in (*BACKENDS, "tgi", "llama.cpp"):
        assert all(1e-6 < float(each(16, 2048)) < 0.1 for each in Case(gpu, kv, backend=backend).all)
    for op in OPS:
        assert curve_origin(gpu, op)[0] in ("measured", "scaled", "assumed")


def test_origins() -> None:
    assert curve_origin(find_gpu("H200"), "decode") == ("measured", "H200")
    assert curve_origin(find_gpu("L4"), "decode")[0] == "scaled"
    assert curve_origin(find_gpu("H100-PCIe"), "prefill") == ("scaled", "H100-SXM")
    assert curve_origin(find_gpu("MI300X"), "decode")[0] == "assumed"
    assert curve_origin(find_gpu("A100-80GB"), "mla_decode")[0] == "assumed"


def test_an_engine_without_timings_gets_the_faster_kernel() -> None:
    gpu, bf16 = find_gpu("H200"), Precision.bf16
    tgi, *timed = (Case(gpu, bf16, backend=backend).decode(16, 2048) for backend in ("tgi", "sglang", "vllm"))
    assert tgi == min(timed)


@pytest.mark.parametrize("gpu", [gpu for gpu in all_gpus() if gpu.architecture != "ada"], ids=lambda gpu: gpu.key)
def test_a_borrowed_kernel_reads_no_faster_than_is_published_for_the_borrower(gpu: Gpu) -> None:
    """Latent attention of an A100 is that of an L40S, which reads at the datasheet's rate: an A100 reaches 68 %."""
    if curve_origin(gpu, "mla_decode")[0] != "assumed":
        return
    batch, context = 256, 32_768
    read = batch * context * 576 * 2 / (gpu.bandwidth_bytes_per_s * efficiency(gpu).memory)
    assert Case(gpu, Precision.bf16).mla_decode(batch, context) >= read


def test_arrays_equal_scalars() -> None:
    batch, context = np.array([[1], [7], [300]]), np.array([5, 900, 40_000])
    for seconds in Case(find_gpu("H200"), Precision.bf16).all:
        table = seconds(batch, context)
        assert table.shape == (3, 3)
        alone = [[float(seconds(one, other)) for other in context] for one in batch[:, 0]]
        np.testing.assert_allclose(table, alone, rtol=1e-12)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_window_caps_the_context(backend: str) -> None:
    case = Case(find_gpu("H200"), Precision.bf16, 8, 8, 64, 128, backend)
    assert case.decode(32, 50_000) == case.decode(32, 128)
    assert case.prefill(512, 100_000) == case.prefill(512, 1000)
    assert case.prefill(512, 0) < case.prefill(512, 1000)


@pytest.mark.parametrize(
    ("gpu", "backend", "heads", "kv_heads", "batch", "context", "micro_s"),
    [
        ("H200", "sglang", 32, 8, 1, 2, 8.9),
        ("H200", "sglang", 32, 8, 64, 4096, 251.8),
        ("H200", "sglang", 32, 8, 1, 65536, 75.2),
        ("H200", "sglang", 32, 32, 16, 4096, 252.3),
        ("H200", "vllm", 8, 1, 128, 8192, 138.0),
        ("A100-80GB", "vllm", 8, 8, 1, 32768, 764.5),
        ("A100-80GB", "vllm", 8, 1, 16, 32768, 186.3),
        ("L40S", "sglang", 32, 8, 16, 4096, 377.1),
        ("L40S", "vllm", 32, 8, 1, 65536, 432.5),
    ],
)
def test_decode_is_near_its_timings(
    gpu: str, backend: str, heads: int, kv_heads: int, batch: int, context: int, micro_s: float
) -> None:
    case = Case(find_gpu(gpu), Precision.bf16, kv_heads, heads // kv_heads, backend=backend)
    assert float(case.decode(batch, context)) == pytest.approx(micro_s * 1e-6, rel=0.2)


@pytest.mark.parametrize(
    ("kv_heads", "group", "head_dim", "window", "tokens", "micro_s"),
    [
        (8, 4, 128, None, 1024, 35.3),
        (8, 4, 128, None, 4096, 267.7),
        (8, 4, 128, None, 16384, 3371.0),
        (1, 8, 128, None, 8192, 228.9),
        (8, 4, 64, 128, 16384, 277.9),
    ],
)
def test_prefill_is_near_its_timings(
    kv_heads: int, group: int, head_dim: int, window: int | None, tokens: int, micro_s: float
) -> None:
    case = Case(find_gpu("H200"), Precision.bf16, kv_heads, group, head_dim, window)
    assert float(case.prefill(tokens, 0)) == pytest.approx(micro_s * 1e-6, rel=0.25)


def test_a_kernel_that_does_not_split_is_slow_alone() -> None:
    """SDPA gives a sequence's KV head to one block, engines split it: alike at a large batch, not at batch 1."""
    engine = Case(find_gpu("H200"), Precision.bf16)
    unsplit = engine._replace(backend="pytorch")
    assert 3 < float(unsplit.decode(1, 8192) / engine.decode(1, 8192)) < 10
    assert 0.8 < float(unsplit.decode(64, 8192) / engine.decode(64, 8192)) < 1.25


def test_fp8_caches_without_timings_move_half_the_bytes() -> None:
    gpu = find_gpu("A100-80GB")
    wide, narrow = (float(Case(gpu, kv).decode(256, 8192)) for kv in (Precision.bf16, Precision.fp8))
    assert 0.5 < narrow / wide < 0.6
