"""Compute how long attention takes on one GPU, with a handful of parameters per kernel, fitted on measured timings.

A decode kernel reads the KV cache of a batch, in blocks that the GPU's multiprocessors work through:

    t = launch + split · log2(1 + seen ÷ split_tokens) + ‖ wave, seen · token_bytes ÷ stream,
        blocks · block_bytes ÷ BW, KV bytes ÷ (BW · memory), FLOPs ÷ (peak · compute) ‖p

A prefill kernel multiplies tiles of queries with the keys they see:

    t = launch + ‖ rows × (seen + pad) FLOPs ÷ (peak · compute), longest row × chain, bytes ÷ (BW · memory) ‖p

‖…‖p is a smooth maximum: terms overlap, the longest counts most. Each term grows with batch, context, tokens, past and
heads (at a fixed number of query heads per KV head), and so does the time. ``memory`` and ``compute`` are shares of the
datasheet, never above 1: nothing beats bytes ÷ bandwidth or FLOPs ÷ peak. Shares carry over to a GPU without timings;
launch, wave, stream and chain belong to one multiprocessor and stay as they are in its family.

``benchmarks/fit_attention_kernels.py`` fits the curves on timings that repeat one call on the same data. Data that fits
in L2 is then read faster than memory delivers (an L40S reads 67 MB in 24 µs, 134 MB in 193 µs). In a model, each
layer's weights pass through L2 between two reads of its cache, so the fit leaves such rows out: KV is always cold here.

No timing has a prefill after cached tokens: the effect of ``past`` follows from the formula and was not measured.
"""

import math
from collections.abc import Callable
from functools import cache, reduce
from statistics import NormalDist
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from tokonomics.catalog.gpus import Gpu
from tokonomics.catalog.layers import Precision, kv_bytes_per_element
from tokonomics.physics.curves import Array, Basis, as_array, basis, carried_over, donors, raised, root, shipped

Op = Literal["decode", "prefill", "mla_decode", "mla_prefill"]
Curves = list[tuple[Any, float]]
Mode = Literal["grouped", "plain", "window"]
"""Engines run different kernels for grouped heads (queries packed, KV split), one query head per KV head, and windows.
"""

GEMM_SHARE = 0.7
"""Share of peak FLOP/s of the large matrix products that unpack cached latents for a prefill, and of a vision tower's.
It is the middle of what families reach (0.54 to 0.83, data/efficiency.toml)."""


class DecodeCurve(NamedTuple):
    """A kernel that attends with one new token per sequence."""

    launch_s: float  # start and end of the kernels, with nothing to read
    split_s: float  # for each doubling of the context beyond ``split_tokens``: more splits to schedule and combine
    split_tokens: float  # context from which splitting begins to cost
    wave_s: float  # the first wave of blocks, which a larger batch fills up before it takes longer
    block_bytes: float  # fixed cost of one (sequence, KV head), as bytes the memory could have moved
    memory: float  # share of the datasheet's bandwidth that a large batch reads KV at
    compute: float  # share of peak FLOP/s
    sharpness: float  # p of the smooth maximum: 1 adds the terms, 2 or 4 comes near the longest
    group: float  # query heads per KV head that double ``block_bytes``: more rows to load, scale and write
    rows: float  # query rows of a matrix tile: a smaller group takes as long as a full tile
    stream: float  # bytes per second that one (sequence, KV head) can draw, over all its splits; limits small batches


class PrefillCurve(NamedTuple):
    """A kernel that attends with a chunk of new tokens."""

    launch_s: float  # start and end of the kernel
    compute: float  # share of peak FLOP/s on a long prompt
    pad_tokens: float  # extra work per row, counted in keys: masked tile halves, loading, scaling, writing
    rows: float  # rows of a block: a shorter chunk takes as long as a full block
    packing: float  # near 1: a block's rows are tokens × query heads of one KV head; near 0: tokens of one query head
    chain_s: float  # per key that one block must walk in order; limits short chunks with a long past
    memory: float  # share of the datasheet's bandwidth
    touches: float  # times that new keys and values move beyond one read: cast, written to the cache, loaded by tiles
    sharpness: float  # p of the smooth maximum: 1, 2 or 4


class Work(NamedTuple):
    """The shape of one layer's attention on one GPU; arrays only while fitting."""

    kv_heads: float | Array
    group: float | Array  # query heads per KV head
    token_bytes: float | Array  # of one cached token in one KV head
    row_flops: float | Array  # of one query head and one key it sees


def decode_attention_s(
    gpu: Gpu,
    kv: Precision,
    batch: ArrayLike,
    context: ArrayLike,
    *,
    heads: float,
    kv_heads: float,
    head_dim: int,
    window: int | None = None,
    backend: str = "vllm",
    own: DecodeCurve | None = None,
) -> Array:
    """Return the seconds of one layer's attention for one new token of ``batch`` sequences with ``context`` tokens.

    If an ``own`` curve is given, which is that of a bf16 kernel, use it.
    """
    mode: Mode = "window" if window else "grouped" if heads > kv_heads else "plain"
    seen = np.minimum(as_array(context), window) if window else as_array(context)
    work = Work(kv_heads, heads / kv_heads, 2.0 * head_dim * kv_bytes_per_element(kv), 4.0 * head_dim)
    curves = _curves(gpu, "decode", kv, backend, head_dim, mode, own)
    return _fastest(decode_time, gpu, curves, as_array(batch), seen, work)


def uneven_share(batch: ArrayLike, kv_heads: float, spread: ArrayLike, most: float, heads: float) -> Array:
    """Return the share by which decode attention takes longer if the contexts of a batch differ.

    ``spread`` is their standard deviation ÷ mean. Contexts are cut into pieces that multiprocessors work through, and
    the layer waits for the last piece. With few pairs of a sequence and a KV head, the pieces of one come out unequal:
    at ``most`` that share. With many, one of the longest contexts outlasts the others, by less the more they are; at a
    spread of 1, as many as ``heads`` halve the share.
    """
    batch, uneven = np.maximum(as_array(batch), 1.0), heads * as_array(spread) ** 2
    return np.asarray(most * uneven / (batch * kv_heads + uneven) * (1.0 - 1.0 / batch))


_NORMAL = np.array([NormalDist().inv_cdf((place + 0.5) / 16) for place in range(16)])


def spread_inside(context: ArrayLike, spread: float, window: int | None) -> Array:
    """Return the spread of what contexts of a log-normal spread show of themselves inside a window."""
    mean = as_array(context)
    if window is None or spread == 0.0:
        return np.full(mean.shape, spread)
    sigma = math.sqrt(math.log1p(spread**2))
    inside = np.minimum(mean[..., None] * np.exp(sigma * _NORMAL - sigma**2 / 2), window)
    return np.asarray(inside.std(axis=-1) / np.maximum(inside.mean(axis=-1), 1e-9))


def prefill_attention_s(
    gpu: Gpu,
    kv: Precision,
    tokens: ArrayLike,
    past: ArrayLike,
    *,
    heads: float,
    kv_heads: float,
    head_dim: int,
    window: int | None = None,
    causal: bool = True,
    sequences: ArrayLike = 1.0,
    backend: str = "vllm",
    own: PrefillCurve | None = None,
) -> Array:
    """Return the seconds of one layer's attention for ``tokens`` new tokens of a sequence with ``past`` cached ones.

    Several ``sequences`` of the same lengths run in one kernel, as engines pack them. If an ``own`` curve is given, use
    it. If not ``causal``, the same kernels multiply more pairs, at the share of peak they were timed at.
    """
    work = Work(kv_heads, heads / kv_heads, 2.0 * head_dim * kv_bytes_per_element(kv), 4.0 * head_dim)
    curves = _curves(gpu, "prefill", kv, backend, head_dim, "window" if window else "grouped", own)
    chunk = as_array(tokens), as_array(past), work, window, as_array(sequences), causal
    return _fastest(prefill_time, gpu, curves, *chunk)


def mla_decode_s(
    gpu: Gpu,
    kv: Precision,
    batch: ArrayLike,
    context: ArrayLike,
    *,
    heads: float,
    kv_rank: int = 512,
    rope_dim: int = 64,
    backend: str = "vllm",
) -> Array:
    """Return the seconds of one layer's latent attention over the compressed cache, without any projections."""
    work = Work(1.0, heads, (kv_rank + rope_dim) * kv_bytes_per_element(kv), 2.0 * (2 * kv_rank + rope_dim))
    curves = _curves(gpu, "mla_decode", kv, backend, kv_rank, "grouped")
    return _fastest(decode_time, gpu, curves, as_array(batch), as_array(context), work)


def mla_prefill_s(
    gpu: Gpu,
    kv: Precision,
    tokens: ArrayLike,
    past: ArrayLike,
    *,
    heads: float,
    nope_dim: int = 128,
    rope_dim: int = 64,
    value_dim: int = 128,
    kv_rank: int = 512,
    sequences: ArrayLike = 1.0,
    backend: str = "vllm",
) -> Array:
    """Return the seconds of one layer's latent attention for a chunk, unpacked to plain heads.

    Projections of new tokens are left out. Every chunk unpacks the keys and values of its ``past`` tokens from the
    cache again, and that is counted.
    """
    width = 2.0 * (nope_dim + rope_dim + value_dim)
    unpack = 2.0 * kv_rank * heads * (nope_dim + value_dim) / (gpu.peak_flops(Precision.bf16) * GEMM_SHARE)
    curves = _curves(gpu, "mla_prefill", kv, backend, kv_rank, "grouped")
    many, before, work = as_array(sequences), as_array(past), Work(heads, 1.0, width, width)
    core = _fastest(prefill_time, gpu, curves, as_array(tokens), before, work, None, many)
    return core + many * unpack * before


def curve_origin(gpu: Gpu, op: Op, backend: str = "vllm") -> tuple[Basis, str]:
    """Return how well an operation's curves are known for a GPU, and the GPU on which they were timed."""
    source = _source(gpu, op, backend)
    return basis(gpu, source), source


def decode_time(curve: DecodeCurve, bandwidth: float, peak: float, batch: Array, seen: Array, work: Work) -> Array:
    """Apply this module's formula for decode."""
    p, heads, group = curve.sharpness, work.kv_heads, work.group
    read = heads * work.token_bytes / (bandwidth * curve.memory)
    computed = heads * np.hypot(group, curve.rows) * work.row_flops / (peak * curve.compute)
    block = heads * curve.block_bytes * (1.0 + group / curve.group) / bandwidth
    alone = raised(work.token_bytes / curve.stream, p)
    longer, more = raised(seen, p), raised(batch, p)
    blocks = raised(block, p) + (raised(read, p) + raised(computed, p)) * longer
    busy = root(raised(curve.wave_s, p) + alone * longer + more * blocks, p)
    return np.asarray(curve.launch_s + curve.split_s / math.log(2.0) * np.log1p(seen / curve.split_tokens) + busy)


def prefill_time(
    curve: PrefillCurve,
    bandwidth: float,
    peak: float,
    tokens: Array,
    past: Array,
    work: Work,
    window: float | Array | None = None,
    sequences: float | Array = 1.0,
    causal: bool = True,
) -> Array:
    """Apply this module's formula for prefill to ``sequences`` equal chunks at once."""
    p = curve.sharpness
    longest = past + tokens if window is None else np.minimum(past + tokens, window)
    pairs = seen_pairs(tokens, past, window, causal)
    # A chunk shorter than a block takes as long as a full block.
    short = curve.rows * np.power(work.group, -curve.packing) / np.maximum(tokens, 1.0)
    row = sequences * work.kv_heads * work.group * work.row_flops
    computed = row / (peak * curve.compute) * np.sqrt(1.0 + short * short) * (pairs + tokens * curve.pad_tokens)
    # The bytes of a row's query and output, in 16 bits, equal its FLOPs per key: two per element of each.
    keys = sequences * work.kv_heads * work.token_bytes
    moved = (keys * (longest + curve.touches * tokens) + row * tokens) / (bandwidth * curve.memory)
    chain = (longest + curve.pad_tokens) * curve.chain_s
    return np.asarray(curve.launch_s + root(raised(computed, p) + raised(moved, p) + raised(chain, p), p))


def seen_pairs(tokens: Array, past: Array, window: float | Array | None, causal: bool = True) -> Array:
    """Count the pairs of a new token and one that it sees: itself and all before it, or the last ``window`` of them.

    If not ``causal``, it sees all tokens, or the ``window`` around it.
    """
    if not causal:
        return tokens * (past + tokens if window is None else np.minimum(past + tokens, window))
    if window is None:
        return tokens * (past + 0.5 * (tokens + 1.0))
    inside = np.clip(window - past, 0.0, tokens)
    return inside * (past + 0.5 * (inside + 1.0)) + (tokens - inside) * window


def _fastest(law: Callable[..., Array], gpu: Gpu, curves: Curves, *sizes: Any) -> Array:
    """Return the time of the fastest kernel at each point."""
    times = (law(curve, gpu.bandwidth_bytes_per_s, peak, *sizes) for curve, peak in curves)
    return np.asarray(reduce(np.minimum, times))


def _curves(gpu: Gpu, op: Op, kv: Precision, backend: str, width: int, mode: Mode, own: Any = None) -> Curves:
    """Return the curves to use on a GPU, each with its peak FLOP/s; of several, the fastest counts."""
    if own is not None:
        return [(own, gpu.peak_flops(Precision.bf16))]
    source = _source(gpu, op, backend)
    picked = [_pick(op, source, table, kv, width, mode) for table in _backends(op, source, backend)]
    return [(carried_over(curve, source, gpu), gpu.peak_flops(math)) for curve, math in picked]


def _source(gpu: Gpu, op: Op, backend: str) -> str:
    """Return the GPU whose timings are used; PyTorch's decode attention was timed on one GPU only."""
    timed = _tables()[op]
    if backend == "pytorch" and op == "decode":
        return next(key for key, tables in timed.items() if "pytorch" in tables)
    return donors(gpu, timed)[0]


@cache
def _backends(op: Op, source: str, backend: str) -> tuple[str, ...]:
    """Return the engines whose kernels represent a backend: its own, or the other engine's if only those were timed.

    TensorRT-LLM, TGI and llama.cpp have no timings here. They choose among the same libraries, so the faster of the
    timed engines' kernels counts at each point.
    """
    timed = [table for table in _tables()[op][source] if table != "pytorch" or backend == "pytorch"]
    if backend in timed:
        return (backend,)
    if backend in ("vllm", "sglang", "pytorch"):
        return ("sglang" if "sglang" in timed else timed[0],)
    return tuple(timed)


@cache
def _pick(op: Op, source: str, backend: str, kv: Precision, width: int, mode: Mode) -> tuple[Any, Precision]:
    """Return the curve of the mode, or of the most similar mode, at the nearest head width.

    An 8-bit cache without timings is treated as a 16-bit one of half the bytes.
    """
    formats = _tables()[op][source][backend]
    row = formats["fp8" if kv.is_below(Precision.bf16) and "fp8" in formats else "bf16"]
    curves = next(row[known] for known in (mode, "grouped", "plain") if known in row)
    nearest = min(curves, key=lambda known: abs(math.log(int(known) / width)))
    law = DecodeCurve if op in ("decode", "mla_decode") else PrefillCurve
    return law(*curves[nearest]), Precision(row["math"])


@cache
def _tables() -> dict[Op, dict[str, dict[str, Any]]]:
    """Return the curves by operation, GPU, backend, cache format, mode and head width; ``math`` is their precision."""
    tables: dict[Op, dict[str, dict[str, Any]]] = shipped("attention_kernels.json")["curves"]
    return tables
