"""Compute how long matrix kernels take on a GPU: dense layers, fused experts, and the all-reduce after them.

Each is a roofline with a soft corner and a latency, fitted by ``benchmarks/fit_matrix_kernels.py`` on timings of the
kernels that vLLM and SGLang run; ``data/matrix_kernels.json`` has a dozen numbers per GPU, backend and precision:

    seconds = latency + (memory^p + compute^p)^(1/p)

Efficiencies are shares of the datasheet's rates, everything else is sizes or seconds. So a GPU that nobody timed uses
its family's curve with its own bandwidth and FLOP/s. Every term rises with every size, and no efficiency exceeds 1, so
times are monotone, but for kernels in whole tiles, and never below the datasheet's floor.

Weights are counted as read from DRAM in every call. A model's next step finds none of them in the cache, so timings
that beat the DRAM (matrices smaller than the L2 cache of an L40S or RTX PRO 6000, timed hot) are left out of the fit.
"""

import math
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from tokonomics.catalog.gpus import Gpu
from tokonomics.catalog.layers import Precision
from tokonomics.physics.curves import (
    Array,
    Basis,
    as_array,
    basis,
    carried_over,
    donors,
    efficiency,
    shipped,
    smooth_maximum,
    timed_gpu,
)

Op = Literal["gemm", "experts", "all_reduce"]

PACKED_ROWS = 32  # llama.cpp of 2024 kept weights packed up to here (MMQ_MAX_BATCH_SIZE, its ggml-cuda.cu)
ACTIVATION_BYTES = 2.0  # activations enter and leave a layer in 16 bits, whatever the weights' precision

BACKENDS = ("vllm", "sglang")
"""Engines whose kernels were timed. ``pytorch`` has expert curves only: a grouped matmul, from steps on one H200."""
FUSED = "vllm, fused"
"""vLLM's kernels when the quantising of activations to FP8 is compiled into the norm or the activation before it, as it
is by default since 2026 (its guide, "Fusion torch.compile passes")."""
BLOCKS = "vllm, blocks"
"""vLLM's kernels beside experts in FP8, which are published with a scale for each block of 128 × 128 weights: CUTLASS
rescales its sums after every 128 elements of k, and activations are quantised by kernels of their own."""
BLOCK_LAUNCH_S, BLOCK_DEPTH_S, BLOCK_COLUMNS, BLOCK_ROWS = 5.1e-6, 3.19e-9, 1753.0, 257.0
"""Of such a product: seconds to start it and the kernels around it, seconds for each element of k if these are more
than reading and multiplying take, the columns that quantising costs, and rows of padding. Fitted by
``benchmarks/fit_experts.py`` on kernels and decode steps of Qwen3 30B-A3B in vLLM 0.26.0 on an H200."""
BLOCK_DEPTH, DEEP_S = 4096.0, 1.1e-9
"""The deepest product of these, and what each further element takes: as DeepGEMM on an H200, 5.5 µs at a depth of
2,048 and 21 at 16,384 for 128 columns (aiconfigurator-core 0.12.0). An ordinary installation uses DeepGEMM for all of
these products, and Triton's kernels for experts (vLLM 0.26, on one Hopper GPU)."""
UNTUNED = "vllm, untuned"
"""Its experts in such blocks on Hopper where it ships no sizes of tiles for their number and width."""
UNTUNED_TOKENS, UNTUNED_ROWS = 64, 64.0
"""Beyond so many tokens these come in tiles of so many rows, instead of 16 (vLLM 0.26, ``get_default_config`` in
``fused_moe.py``). Tuned ones take such tiles from 256 tokens on, as the curves know."""
_TUNED_H200 = frozenset(
    {(8, 2048), (16, 4096), (32, 2048), (128, 384), (128, 512), (128, 768), (256, 256), (256, 512), (384, 128)}
)
TUNED: Mapping[str, frozenset[tuple[int, int]]] = {
    "H200": _TUNED_H200,
    "H200-NVL": _TUNED_H200,
    "H100-SXM": frozenset({(256, 128), (256, 384), (512, 128), (512, 256)}),
    "H100-PCIe": frozenset({(64, 768)}),
}
"""Numbers and widths of experts for whose blocks it ships sizes of tiles: the files ``fused_moe/configs/*fp8_w8a8,
block_shape=[128,128].json`` of vLLM 0.26.0's wheel. Every card of the H200 family takes the H200's
(``get_config_file_name``), and an H100 SXM calls itself NVIDIA_H100_80GB_HBM3. None is named after an H100 NVL or a
GH200."""
TILED_BY = "vllm"  # whose dense FP8 kernel works in whole tiles there
FUSED_ON = "hopper"
"""The architecture on which logs of steps show both (H200s); on others, layers take what they took alone."""

EXCHANGE_LATENCY_S, EXCHANGE_LINK, EXCHANGE_NETWORK = 24e-6, 0.66, 0.886
"""Sending tokens to their experts: the latency of few tokens, and shares of the datasheet's rates. From the table of
low-latency kernels in DeepEP's README (2025-03: H800, 400 Gbit/s a GPU; 128 tokens of 7,168, 8 experts): 155 µs there
and 273 back over 32 GPUs, 173 and 314 over 64, 77 and 114 over the 8 of one machine. Its 12 times are predicted within
9 %."""
DIRECT_TOKENS = 256
"""Up to this many tokens of a GPU are sent straight to the experts' GPUs; more are sent once to each machine and
forwarded there (DeepEP's normal kernels; vLLM cuts a decode batch into parts of this size, ``VLLM_MOE_DP_CHUNK_SIZE``).
"""

_TILES, _PAIR = np.array([16.0, 64.0, 128.0]), 256.0
TILE_EDGES = np.concatenate([_TILES, np.arange(_PAIR, 8192 + 1, _PAIR)])
"""Rows that fill the tiles of that kernel, as far as one more tile shows."""
_EMPTY = np.array([1.0, 2.0, 1.0, 1.0])
"""What a row that only fills a tile costs, by tile: about the mean of the best fits of an H100 (0.7, 1.2, 0.5, 0.8)
and an H200 (1.0, 3.2, 1.5, 1.2), each timing weighed by the size of its matrix (aiconfigurator-core 0.12.0)."""

_STAND_INS: dict[Precision, tuple[Precision, ...]] = {
    Precision.int8: (Precision.fp8,),
    Precision.mxfp4: (Precision.nvfp4,),
}  # precisions with similar kernels, if the hardware multiplies both formats
_UNPACKED: dict[Precision, tuple[Precision, ...]] = {Precision.nvfp4: (Precision.int4,)}
"""The same if the hardware does not multiply the format, so that weights are read in 4 bits and multiplied in 16: vLLM
has Marlin kernels for both (vllm-project/vllm#7766 for INT4 experts, #19990 for NVFP4 ones before Blackwell). The curve
of bf16 is the last choice: reading 16-bit experts hides how long their padding takes, so its fit does not know that."""


class GemmCurve(NamedTuple):
    """A dense layer: m rows (tokens) times a k × n weight matrix."""

    launch_s: float  # start and end of the shortest kernel
    depth_s: float  # added while one tile steps through all of k, in the limit of large k
    depth_half: float  # k at which half of ``depth_s`` is reached; beyond it, kernels split k over idle processors
    memory: float  # share of the datasheet's bandwidth that a large read reaches
    compute: float  # share of the datasheet's FLOP/s that a large product reaches while cool
    rows: float  # rows that padding to tiles adds
    columns: float  # columns whose multiplication takes as long as padding to tiles and quantising the activations
    depth: float  # length of k whose multiplication takes as long as a tile's start and its write-back
    sharpness: float  # p of the corner between memory and compute: a power of two; at 8 the longer hides the other
    throttle: float
    """Relative slowdown of every multiplication when the GPU has been busy for milliseconds and is at its power limit;
    padding and waiting draw little power."""


class TiledCurve(GemmCurve):
    """A dense layer in whole tiles, where rows that only fill a tile cost more than those that are wanted."""


class ExpertCurve(NamedTuple):
    """Fused routed experts: two or three matrices each, over the tokens sent to them."""

    launch_s: float  # routing, sorting and the launches of the fused kernels
    visit_s: float  # added for every expert visited: its tiles start and end
    depth_s: float  # per element of the hidden and the intermediate width: tiles step through one, then the other
    memory: float  # share of the datasheet's bandwidth at which experts are read
    compute: float  # share of the datasheet's FLOP/s that many tokens per expert reach
    rows: float  # rows that padding to tiles adds to every expert visited
    columns: float  # intermediate columns whose multiplication takes as long as a tile's start and its write-back
    traffic: float
    """How often activations cross the memory between the matrices (gather, activation, weighted sum), relative to once
    in and out of every matrix; engines do this for the pairs of all ranks."""
    sharpness: float  # p of the corner between memory and compute, a power of two
    skew: float  # spread of the experts' popularity, relative to its mean: decides the load of the busiest GPU


class LinkCurve(NamedTuple):
    """An all-reduce over some number of GPUs, inside a CUDA graph."""

    latency_s: float  # of the smallest message
    link: float  # share of the link's datasheet rate at which large messages move
    sharpness: float  # p of the corner between latency and transfer; below 1, middle sizes take longer than the sum


class Origin(NamedTuple):
    """Where a curve comes from, which decides how far to trust it."""

    basis: Basis  # another precision's curve also counts as assumed
    gpu: str
    precision: Precision


def gemm_s(
    gpu: Gpu,
    weights: Precision,
    m: ArrayLike,
    n: float,
    k: float,
    backend: str = "vllm",
    own: GemmCurve | None = None,
    multiplied: Precision | None = None,
) -> Array:
    """Return the seconds to multiply m rows with a k × n matrix of weights; if an ``own`` curve is given, use it.

    Weights are read in their own precision and multiplied at the rate of ``multiplied``, if that is another. Gaming
    cards run 16-bit products with sums in FP32 at half of what their chip could do. So what keeps a professional card
    below its peak slows them only if it takes longer than that limit.
    """
    rows, width, multiplied = as_array(m), weights.bytes_per_weight, multiplied or weights
    peak, bandwidth = gpu.peak_flops(multiplied), gpu.bandwidth_bytes_per_s
    if own:
        return gemm_seconds(own, rows, n, k, peak, bandwidth, width)
    could = fp16_sums_flops(gpu) if peak == gpu.peak_flops(Precision.bf16) else peak
    curves = _gemm_curves(gpu, multiplied, backend)
    untiled = efficiency(gpu).untiled_rows
    times = [gemm_seconds(curve, rows, n, k, could, bandwidth, width, untiled=untiled) for _, curve in curves]
    least = block_chain_s(k) if _is_in_blocks(gpu, multiplied, backend) else 0.0
    return np.asarray(np.maximum(np.maximum(np.minimum.reduce(times), least), 2 * rows * n * k / peak))


def throttled_s(
    gpu: Gpu, weights: Precision, m: ArrayLike, n: float, k: float, backend: str, own: GemmCurve | None = None
) -> Array:
    """Return the seconds by which the same takes longer at the GPU's power limit than on one that is below it."""
    curve = own or _gemm_curves(gpu, weights, backend)[0][1]
    sizes = as_array(m), n, k, gpu.peak_flops(weights), gpu.bandwidth_bytes_per_s, weights.bytes_per_weight
    return gemm_seconds(curve, *sizes) - gemm_seconds(curve, *sizes, heat=0.0)


def fp16_sums_flops(gpu: Gpu) -> float:
    """Return the FLOP/s of FP16 products with sums in FP16: half of the tensor cores' INT8 rate, since Turing.

    On gaming cards that is twice their rate with sums in FP32 (NVIDIA's GA102 and Ada whitepapers, tables of peak
    rates); elsewhere both rates are equal, except for the datasheets' rounding.
    """
    wide, narrow = gpu.peak_flops(Precision.bf16), gpu.flops.get("int8", 0.0) / 2
    return narrow if narrow > 1.5 * wide else wide


def unpacked_gemm_s(gpu: Gpu, weights: Precision, m: ArrayLike, n: float, k: float, backend: str) -> Array:
    """Return the same if weights are unpacked to FP16 in memory before many rows are multiplied with them.

    Sums are kept in FP16, too. Separate kernels convert input and output from and to 32 bits.
    """
    rows, bandwidth = as_array(m), gpu.bandwidth_bytes_per_s
    peak = fp16_sums_flops(gpu)
    wide = Precision.bf16.bytes_per_weight
    converted = rows * (n + k) * (wide + Precision.fp32.bytes_per_weight)
    unpacked = n * k * (weights.bytes_per_weight + wide) if weights.is_below(Precision.bf16) else 0.0
    before_s = (unpacked + converted) / bandwidth
    curves = _gemm_curves(gpu, Precision.bf16, backend)
    times = [gemm_seconds(curve, rows, n, k, peak, bandwidth, wide) for _, curve in curves]
    return np.where(rows > PACKED_ROWS, before_s + np.minimum.reduce(times), gemm_s(gpu, weights, m, n, k, backend))


def experts_s(
    gpu: Gpu,
    weights: Precision,
    tokens: ArrayLike,
    *,
    hidden: float,
    intermediate: float,
    active: int,
    experts: float,
    gated: bool = True,
    ep: int = 1,
    backend: str = "vllm",
    launch: float = 1.0,
    sent: bool = False,
) -> Array:
    """Return the seconds of a layer's routed experts on the busiest GPU; ``tokens`` are those of all its ``ep`` ranks.

    For a sliced expert, ``intermediate`` is the slice's width. Expert parallelism distributes whole experts, and all
    ranks wait for the one with the popular experts. ``experts`` are those that the traffic
    visits at all. ``launch`` is the visible share of the kernels' launches. If tokens are ``sent`` to their experts'
    GPUs, each GPU passes over the activations of its own tokens only, else over all.
    """
    arrived = as_array(tokens)
    origin, curve = _expert_curve(gpu, weights, backend)
    curve = curve._replace(launch_s=curve.launch_s * launch)
    untiled = efficiency(gpu).untiled_tokens
    busiest = busiest_share(curve.skew, experts, ep)
    visited = visited_on_busiest(distinct_experts(experts, active, arrived), experts, ep, busiest)
    routed = arrived * active * busiest / ep
    padding = np.where(arrived > untiled, curve.rows, 0.0)
    if backend == UNTUNED:
        padding = np.where(arrived > UNTUNED_TOKENS, np.maximum(padding, UNTUNED_ROWS - routed / visited), padding)
    return expert_seconds(
        curve,
        visited=visited,
        routed=routed,
        pairs=arrived * active * (busiest / ep if sent else 1.0),
        hidden=hidden,
        intermediate=intermediate,
        matrices=3 if gated else 2,
        peak=expert_rate(gpu, weights, origin.precision),
        bandwidth=gpu.bandwidth_bytes_per_s,
        width=weights.bytes_per_weight,
        padding=padding,
    )


def all_reduce_s(gpu: Gpu, gpus: int, message_bytes: ArrayLike, own: LinkCurve | None = None) -> Array:
    """Return the seconds until each of ``gpus`` GPUs of one machine has the sum of all their messages."""
    message = as_array(message_bytes)
    if gpus == 1:
        return np.zeros_like(message)
    return all_reduce_seconds(own or _link_curve(gpu, gpus)[1], gpus, message, gpu.link_among(gpus))


def all_to_all_s(gpu: Gpu, gpus: int, tokens: ArrayLike, token_bytes: float, experts: int) -> Array:
    """Return the seconds until each GPU's ``tokens`` have reached their ``experts``' GPUs; the way back takes as long.

    Few tokens are copied to each of their experts; many, once to each GPU with any of their experts, and over the
    network once to each machine. Experts are assumed to be spread evenly.
    """
    own = as_array(tokens)
    domain = min(gpus, gpu.fast_link_gpus if gpu.fast_link_bytes_per_s else gpu.gpus_per_node)

    def copied_bytes(places: float, beyond: float) -> Array:
        """Return the bytes sent to ``beyond`` of ``places`` places; at least the most that are sent one by one."""
        few = np.minimum(own, DIRECT_TOKENS) * experts
        once = own * places * (1 - (1 - 1 / places) ** experts)
        return np.asarray(token_bytes * beyond / places * np.maximum(few, once))

    machines = gpus / domain
    near = copied_bytes(gpus, domain - 1) / (gpu.link_among(domain) * EXCHANGE_LINK)
    far = copied_bytes(machines, machines - 1) / (gpu.network_bytes_per_s * EXCHANGE_NETWORK)
    return np.asarray(EXCHANGE_LATENCY_S + np.maximum(near, far))


def curve_origin(gpu: Gpu, op: Op, weights: Precision = Precision.bf16, backend: str = "vllm", gpus: int = 2) -> Origin:
    """Return whether an operation's times come from timings of this GPU, of its family, or from an assumption."""
    if op == "all_reduce":
        return _link_curve(gpu, gpus)[0]
    if op == "experts":
        return _expert_curve(gpu, weights, backend)[0]
    return _gemm_curves(gpu, weights, backend)[0][0]


@cache
def is_timed(op: Op, weights: Precision) -> bool:
    """Return whether an operation was timed with such weights on any GPU."""
    return any(name.endswith(f"/{weights}") for name in _tables()[op])


def gemm_seconds(
    curve: GemmCurve,
    m: Array,
    n: ArrayLike,
    k: ArrayLike,
    peak: float,
    bandwidth: float,
    width: float,
    heat: ArrayLike = 1.0,
    untiled: int = 0,
) -> Array:
    """Apply the formula of a dense layer: ``width`` bytes per weight, ``peak`` FLOP/s, ``bandwidth`` bytes/s.

    ``heat`` is 1 on a GPU that has been computing for milliseconds, as in serving; a kernel timed alone may run cooler.
    Up to ``untiled`` rows fill no tile: each is multiplied by itself, with the weights read once.
    """
    n, k = as_array(n), as_array(k)
    if isinstance(curve, TiledCurve):
        m = in_tiles(m)
    padding = np.where(m > untiled, curve.rows, 0.0) if untiled else curve.rows
    memory = (n * k * width + (m * k + m * n) * ACTIVATION_BYTES) / (bandwidth * curve.memory)
    cool = 2 * (m + padding) * (n + curve.columns) * (k + curve.depth) / (peak * curve.compute)
    compute = cool + curve.throttle * as_array(heat) * 2 * m * n * k / peak
    latency = curve.launch_s + curve.depth_s * k / (k + curve.depth_half)
    return np.asarray(latency + smooth_maximum(memory, compute, curve.sharpness))


def in_tiles(m: ArrayLike) -> Array:
    """Return how many rows take as long as m rows in the tiles of vLLM's FP8 kernel on Hopper.

    It has a tile for up to 16, 64 and 128 rows, and beyond takes two tiles of 128 at a time (vLLM,
    ``csrc/quantization/w8a8/cutlass/c3x/scaled_mm_sm90_fp8_dispatch.cuh``). So 129 rows take longer than 256.
    """
    rows = as_array(m)
    which = np.searchsorted(_TILES, rows)
    filled = np.where(rows <= _TILES[-1], np.append(_TILES, 0.0)[which], _PAIR * np.ceil(rows / _PAIR))
    return np.asarray(filled + _EMPTY[which] * (filled - rows))


def expert_rate(gpu: Gpu, weights: Precision, timed: Precision) -> float:
    """Return the FLOP/s that an expert curve's efficiency refers to: MXFP4 was timed with 16-bit activations."""
    return gpu.peak_flops(Precision.bf16 if timed is Precision.mxfp4 else weights)


def expert_seconds(
    curve: ExpertCurve,
    *,
    visited: Array,
    routed: Array,
    pairs: Array,
    hidden: ArrayLike,
    intermediate: ArrayLike,
    matrices: int,
    peak: float,
    bandwidth: float,
    width: float,
    padding: ArrayLike | None = None,
) -> Array:
    """Apply the formula of fused experts: ``routed`` of all ``pairs`` of token and expert, over ``visited`` experts.

    Reading weights and multiplying overlap; separate kernels pass over the activations between the matrices. If a
    ``padding`` is given, tiles add so many rows to every expert visited, else those of the curve.
    """
    rows = as_array(curve.rows if padding is None else padding)
    hidden, intermediate = as_array(hidden), as_array(intermediate)
    weights = matrices * hidden * intermediate
    activations = pairs * (2 * hidden + matrices * intermediate) * ACTIVATION_BYTES * curve.traffic / bandwidth
    memory = visited * weights * width / (bandwidth * curve.memory)
    padded = matrices * hidden * (intermediate + curve.columns)
    compute = 2 * padded * (routed + visited * rows) / (peak * curve.compute)
    latency = curve.launch_s + curve.visit_s * visited + curve.depth_s * (hidden + intermediate)
    return np.asarray(latency + activations + smooth_maximum(memory, compute, curve.sharpness))


def all_reduce_seconds(curve: LinkCurve, gpus: int, message_bytes: Array, rate: float) -> Array:
    """Apply the formula of an all-reduce: 2(n-1)/n of the message crosses each GPU's link, after a latency."""
    wire = 2 * (gpus - 1) / gpus * message_bytes / (rate * curve.link)
    return smooth_maximum(np.full_like(wire, curve.latency_s), wire, curve.sharpness)


def busiest_share(skew: float, experts: ArrayLike, ep: ArrayLike) -> Array:
    """Return the load of the busiest of ``ep`` ranks relative to their mean: more experts per rank even out."""
    ep = as_array(ep)
    return np.asarray(np.minimum(ep, 1 + skew * np.sqrt((ep - 1) / np.asarray(experts))))


def visited_on_busiest(distinct: ArrayLike, experts: ArrayLike, ep: ArrayLike, share: ArrayLike) -> Array:
    """Count the experts that the busiest rank reads, of ``distinct`` on all: at least one, at most those it holds."""
    distinct, ep = as_array(distinct), as_array(ep)
    visited = np.maximum(distinct / ep * np.asarray(share), np.minimum(distinct, 1.0))
    held = np.maximum(np.asarray(experts) / ep, 1.0)
    return np.asarray(np.minimum(held, visited))


def distinct_experts(experts: float, active: int, tokens: ArrayLike) -> Array:
    """Return the expected number of different experts that tokens visit, each choosing ``active`` evenly."""
    return np.asarray(experts * (1 - (1 - active / experts) ** as_array(tokens)))


@cache
def _tables() -> Mapping[str, Mapping[str, list[float]]]:
    """Return the numbers by operation and "GPU/backend/precision" (all-reduce: "GPU/number of GPUs")."""
    tables: Mapping[str, Mapping[str, list[float]]] = shipped("matrix_kernels.json")["curves"]
    return tables


@cache
def _timed(op: Op) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name.split("/")[0] for name in _tables()[op]))


def _gemm_curves(gpu: Gpu, weights: Precision, backend: str) -> list[tuple[Origin, GemmCurve]]:
    """Return the backend's curve; another engine has similar kernels and is assumed to pick the faster at each size."""
    wanted = dict.fromkeys((FUSED, BLOCKS), ("vllm",)).get(backend, (backend,) if backend in BACKENDS else BACKENDS)
    found = dict.fromkeys((*_find("gemm", gpu, weights, engine), engine == TILED_BY) for engine in wanted)
    curves = [
        (origin, (TiledCurve if tiled and _has_tiles(gpu, weights) else GemmCurve)(*numbers))
        for origin, numbers, tiled in found
    ]
    if backend == FUSED and weights is Precision.fp8 and gpu.architecture == FUSED_ON:
        curves = [(origin, _fused(curve, origin)) for origin, curve in curves]
    if _is_in_blocks(gpu, weights, backend):
        curves = [(origin, in_blocks(curve)) for origin, curve in curves]
    return [(origin, carried_over(curve, origin.gpu, gpu)) for origin, curve in curves]


def _has_tiles(gpu: Gpu, weights: Precision) -> bool:
    return weights is Precision.fp8 and gpu.architecture == FUSED_ON


def _fused(curve: GemmCurve, origin: Origin) -> GemmCurve:
    """Remove the kernel that quantises activations, which is in the timings of a lone FP8 layer.

    It is assumed to take what the launch and the work on every input element (``columns``) have beyond those of 16
    bits. That is more than the bytes alone would take, and matches how much shorter the steps of a log are.
    """
    wide = GemmCurve(*_tables()["gemm"][f"{origin.gpu}/vllm/{Precision.bf16}"])
    return curve._replace(launch_s=min(curve.launch_s, wide.launch_s), columns=min(curve.columns, wide.columns))


def _is_in_blocks(gpu: Gpu, weights: Precision, backend: str) -> bool:
    return backend == BLOCKS and weights is Precision.fp8 and gpu.architecture == FUSED_ON


def in_blocks(curve: GemmCurve) -> GemmCurve:
    """Return the curve of reading and multiplying with a scale for each block of weights."""
    return GemmCurve(*curve)._replace(launch_s=BLOCK_LAUNCH_S, columns=BLOCK_COLUMNS, rows=BLOCK_ROWS)


def block_chain_s(k: float) -> float:
    """Return the least time of a product with scales for blocks: its steps through k follow one another."""
    return BLOCK_LAUNCH_S + BLOCK_DEPTH_S * min(k, BLOCK_DEPTH) + DEEP_S * max(0.0, k - BLOCK_DEPTH)


def _expert_curve(gpu: Gpu, weights: Precision, backend: str) -> tuple[Origin, ExpertCurve]:
    """Return one curve: only vLLM's expert kernels were timed, and SGLang's come from the same libraries."""
    origin, numbers = _find("experts", gpu, weights, backend)
    return origin, carried_over(ExpertCurve(*numbers), origin.gpu, gpu)


def _find(op: Op, gpu: Gpu, weights: Precision, backend: str) -> tuple[Origin, tuple[float, ...]]:
    """Return the nearest timed curve: this precision on any donor, before similar precisions."""
    table = _tables()[op]
    for precision in _precisions(gpu, weights):
        for donor in donors(gpu, _timed(op)):
            for engine in dict.fromkeys((backend, *BACKENDS)):
                numbers = table.get(f"{donor}/{engine}/{precision}")
                if numbers is not None:
                    known = basis(gpu, donor) if precision is weights else "assumed"
                    return Origin(known, donor, precision), tuple(numbers)
    raise AssertionError(f"no bf16 curve of {op} to lend to {gpu.key}")


def _precisions(gpu: Gpu, weights: Precision) -> Iterator[Precision]:
    """List the precisions whose curve to use, in order; without math for a format, kernels unpack it to 16 bits."""
    wide = gpu.peak_flops(Precision.bf16)
    yield weights
    if gpu.peak_flops(weights) > wide:
        yield from (alike for alike in _STAND_INS.get(weights, ()) if gpu.peak_flops(alike) > wide)
    else:
        yield from _UNPACKED.get(weights, ())
    yield Precision.bf16


def _link_curve(gpu: Gpu, gpus: int) -> tuple[Origin, LinkCurve]:
    """Return the nearest timed group: same kind of link, then same GPU, family, link rate, and number of GPUs.

    If PCIe joins the GPUs, cards that only have PCIe represent each other whatever their architecture, and their number
    comes first: the more cards, the less of the bus each has.
    """
    fast = gpus <= gpu.fast_link_gpus
    rate = gpu.link_among(gpus)
    table = _tables()["all_reduce"]
    groups = [(timed_gpu(name.split("/")[0]), int(name.split("/")[1]), name) for name in table]
    alike = [timed for timed in groups if (timed[1] <= timed[0].fast_link_gpus) == fast]
    donor, group, name = min(
        alike,
        key=lambda timed: (
            not fast and abs(math.log(timed[1] / gpus)),
            timed[0].key != gpu.key,
            fast and timed[0].architecture != gpu.architecture,
            abs(math.log(timed[0].link_among(timed[1]) / rate)),
            abs(math.log(timed[1] / gpus)),
        ),
    )
    known = basis(gpu, donor.key)
    if known == "measured" and group != gpus:
        known = "scaled"
    return Origin(known, donor.key, Precision.bf16), LinkCurve(*table[name])
