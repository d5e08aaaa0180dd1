"""Compute how long sparse attention, recurrent layers and adapters take on one GPU: few constants, timed on an H200.

An indexer scores small keys and picks the best; attention then reads the rows that were picked, one by one:

    index   = launch + max(FLOPs ÷ (peak · compute), bytes ÷ (BW · memory))
              + pick · log2(1 + keys ÷ 2,048) + queries · row + score bytes ÷ (BW · picked)
    rows    = launch + ‖ wave, FLOPs ÷ (peak · compute), bytes ÷ (BW · memory) ‖₂

A recurrent layer reads and writes its state in a decode step, and scans a prompt in chunks, one after another:

    state   = launch + 2 · state bytes ÷ (BW · memory)
    scan    = launch + ‖ FLOPs ÷ (peak · compute), longest prompt · chain ‖₂

A LoRA adapter is two thin products beside a dense one, down to the rank and up again. If a step uses any,
vLLM launches blocks for each adapter that it may hold, and for tokens without one; most end at once:

    adapters = launched blocks · start + blocks of the adapters in the step · work

Shares are of the datasheet and carry over to other GPUs; seconds stay as they are. ``benchmarks/time_new_layers.py``
timed vLLM 0.26's kernels (2026-11-17, ``benchmarks/data/h200_new_layers.json``), ``benchmarks/fit_new_layers.py`` fits
these constants and prints their errors. Other engines run kernels of the same libraries.
"""

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from tokonomics.catalog.gpus import Gpu
from tokonomics.catalog.layers import Precision, Recurrence, kv_bytes_per_element
from tokonomics.physics.curves import Array, Basis, Curve, as_array, basis, carried_over

TIMED_ON = "H200"
PICKED = 2048.0  # keys that the timed indexer picks (DeepSeek-V3.2)
SCORE_BYTES = 4.0  # per query and key, in 32 bits
FP8_PROMPT_HEADS = 32
"""With fewer heads than this, prompts also run the decode kernel over 8-bit rows; from here on rows are unpacked for
the 16-bit kernel (vLLM, ``MIN_HEADS_FOR_BF16_PREFILL``)."""


class RowsCurve(NamedTuple):
    """Latent attention to chosen rows."""

    launch_s: float
    wave_s: float  # the first wave of blocks, which more queries fill up before they take longer
    memory: float  # share of the datasheet's bandwidth at which scattered rows are read
    compute: float  # share of peak FLOP/s in 16 bits
    tile: float  # heads of a tile: fewer take as long as a full tile


class IndexCurve(NamedTuple):
    """An indexer's scores and its choice of the best keys."""

    launch_s: float
    memory: float  # share of the datasheet's bandwidth at which keys are read
    compute: float  # share of peak FLOP/s in 8 bits
    pick_s: float  # for each doubling of the keys to pick from
    row_s: float  # for each query's choice
    picked: float  # share of the datasheet's bandwidth at which scores are read to pick the best


class StateCurve(NamedTuple):
    """A recurrent layer's decode step."""

    launch_s: float
    memory: float  # share of the datasheet's bandwidth


class ScanCurve(NamedTuple):
    """A recurrent layer's scan of a prompt."""

    launch_s: float
    chain_s: float  # per token of the longest prompt: a chunk waits for the state of the previous one
    compute: float  # share of peak FLOP/s in 16 bits


# All fitted by benchmarks/fit_new_layers.py on benchmarks/data/h200_new_layers.json; each with its median error.
ROWS: dict[Literal["bf16", "fp8"], RowsCurve] = {
    "bf16": RowsCurve(13.4e-6, 11.4e-6, 1.0, 0.541, 64.0),  # 7 %
    "fp8": RowsCurve(18.4e-6, 6.8e-6, 1.0, 0.361, 64.0),  # 6 %
}
"""FlashAttention 3 on 16-bit rows (FlashMLA takes as long), FlashMLA on 8-bit ones. Rows are scattered over 32k tokens;
FlashMLA's README (2025-09-29) has 0.65 of peak for prompts, on an H800 (640 TFLOP/s) and a B200 (1,450)."""
INDEX = IndexCurve(3.85e-6, 0.828, 0.498, 2.66e-6, 2.8e-9, 0.291)  # scores 3 %, choice 7 %
STATE = StateCurve(5.4e-6, 0.752)  # 9 %
SCANS: dict[Recurrence, ScanCurve] = {
    "delta": ScanCurve(23e-6, 29e-9, 0.0732),  # 1 %
    "kda": ScanCurve(34.8e-6, 46.7e-9, 0.0342),  # 1 %
    "mamba2": ScanCurve(22.1e-6, 7.5e-9, 0.136),  # 2 %
    "mamba": ScanCurve(22.1e-6, 7.5e-9, 0.136),  # not timed: as Mamba-2
}
"""Timed with flash-linear-attention's and vLLM's Triton kernels. On Hopper vLLM prefers FlashInfer's kernel for Gated
DeltaNet if that is installed; it was not timed."""


def sparse_decode_s(
    gpu: Gpu, kv: Precision, batch: ArrayLike, rows: ArrayLike, *, heads: float, kv_rank: int, rope_dim: int
) -> Array:
    """Return the seconds of one layer's latent attention to ``rows`` chosen rows of each of ``batch`` sequences."""
    curve = ROWS["fp8" if kv.is_below(Precision.bf16) else "bf16"]
    pairs = as_array(batch) * as_array(rows)
    return rows_time(_on(gpu, curve), gpu, kv, pairs, pairs, heads, kv_rank, rope_dim)


def absorbed_prompt_s(
    gpu: Gpu, kv: Precision, pairs: ArrayLike, keys: ArrayLike, *, heads: float, kv_rank: int, rope_dim: int
) -> Array:
    """Return the same for a prompt: ``pairs`` of a token and a row chosen for it, among ``keys`` cached rows."""
    small = kv.is_below(Precision.bf16) and heads < FP8_PROMPT_HEADS
    read = np.minimum(as_array(keys), as_array(pairs))
    return rows_time(
        _on(gpu, ROWS["fp8" if small else "bf16"]), gpu, kv, as_array(pairs), read, heads, kv_rank, rope_dim
    )


def rows_time(
    curve: RowsCurve,
    gpu: Gpu,
    kv: Precision,
    pairs: Array,
    read: Array,
    heads: float | Array,
    kv_rank: int,
    rope_dim: int,
) -> Array:
    """Apply the formula of chosen rows to ``pairs`` of a query and a row, and to the rows read from memory."""
    flops = 2.0 * (2 * kv_rank + rope_dim) * np.maximum(heads, curve.tile) * pairs
    moved = (kv_rank + rope_dim) * kv_bytes_per_element(kv) * read
    multiply_s = flops / (gpu.peak_flops(Precision.bf16) * curve.compute)
    read_s = moved / (gpu.bandwidth_bytes_per_s * curve.memory)
    return np.asarray(curve.launch_s + np.sqrt(curve.wave_s**2 + multiply_s**2 + read_s**2))


def index_s(
    gpu: Gpu, queries: ArrayLike, pairs: ArrayLike, keys: ArrayLike, *, pair_flops: float, key_bytes: float
) -> Array:
    """Return the seconds to score ``pairs`` of a query and a key, reading ``keys``, and to pick each query's best.

    Scores are written and read again.
    """
    curve, asked, scored = _on(gpu, INDEX), as_array(queries), as_array(pairs)
    score_s = index_scores_time(curve, gpu, scored, as_array(keys), pair_flops, key_bytes)
    return score_s + index_pick_time(curve, gpu, asked, scored)


def index_scores_time(
    curve: IndexCurve, gpu: Gpu, pairs: Array, keys: Array, pair_flops: float | Array, key_bytes: float
) -> Array:
    """Apply the formula of an indexer's scores."""
    multiply_s = pairs * pair_flops / (gpu.peak_flops(Precision.fp8) * curve.compute)
    moved_s = (keys * key_bytes + SCORE_BYTES * pairs) / (gpu.bandwidth_bytes_per_s * curve.memory)
    return np.asarray(curve.launch_s + np.maximum(multiply_s, moved_s))


def index_pick_time(curve: IndexCurve, gpu: Gpu, queries: Array, pairs: Array) -> Array:
    """Apply the formula of an indexer's choice."""
    keys = pairs / np.maximum(queries, 1.0)
    read_s = SCORE_BYTES * pairs / (gpu.bandwidth_bytes_per_s * curve.picked)
    return np.asarray(curve.pick_s * np.log2(1.0 + keys / PICKED) + queries * curve.row_s + read_s)


def state_s(gpu: Gpu, batch: ArrayLike, *, state_bytes: float, memory: float | None = None) -> Array:
    """Return the seconds in which one recurrent layer reads and writes the states of ``batch`` sequences.

    ``memory`` is the share of the bandwidth that the user's own GPU reaches, if that was timed.
    """
    curve = STATE._replace(memory=memory) if memory else _on(gpu, STATE)
    return state_time(curve, gpu, as_array(batch) * state_bytes)


def state_time(curve: StateCurve, gpu: Gpu, states: Array) -> Array:
    """Apply the formula of a decode step to this many bytes of state."""
    return np.asarray(curve.launch_s + 2.0 * states / (gpu.bandwidth_bytes_per_s * curve.memory))


def scan_s(gpu: Gpu, kind: Recurrence, sequences: ArrayLike, tokens: ArrayLike, *, token_flops: float) -> Array:
    """Return the seconds in which one recurrent layer scans ``sequences`` prompts of ``tokens`` each."""
    return scan_time(_on(gpu, SCANS[kind]), gpu, as_array(sequences), as_array(tokens), token_flops)


def scan_time(curve: ScanCurve, gpu: Gpu, sequences: Array, tokens: Array, token_flops: float | Array) -> Array:
    """Apply the formula of a scan."""
    multiply_s = sequences * tokens * token_flops / (gpu.peak_flops(Precision.bf16) * curve.compute)
    return np.asarray(curve.launch_s + np.hypot(multiply_s, tokens * curve.chain_s))


LORA_START_S = 1.07e-9
"""A block of vLLM's LoRA kernels that finds nothing to do, over the whole GPU; and, below, one that has an adapter's
tokens, down to the rank and up again. Fitted on ten decode loads of Llama 3.1 8B with 1 to 64 adapters of rank 16 in
vLLM 0.26 on an H200 (``benchmarks/fit_new_layers.py``, 2026-11-19); steps of seven loads of rank 64 follow within 8 %,
and loads as they are simulated within 10 %. Prompts were not fitted: with 16 and more adapters held what is launched
decides, and with few they are not measured."""
LORA_DOWN_S, LORA_UP_S = 9.3e-9, 12.6e-9
_FEW_TOKENS = 128  # below it the way down is split over more blocks (vLLM 0.26, lora/ops/triton_ops/utils.py)


def lora_launched_s(products: Sequence[tuple[int, float]], tokens: ArrayLike, rank: int, adapters: int) -> Array:
    """Return the time of the blocks that a layer launches, whoever uses an adapter: for all held, and for none."""
    tokens = as_array(tokens)
    splits = np.where(tokens < _FEW_TOKENS, 64, 8)
    down = sum(packed for packed, _ in products) * splits * np.ceil(tokens / 32) * math.ceil(rank / 16)
    return np.asarray((adapters + 1) * LORA_START_S * (down + np.ceil(tokens / 64) * _blocks_up(products)))


def lora_adapter_s(products: Sequence[tuple[int, float]], rank: int) -> float:
    """Return the time of one adapter's own blocks in a layer: few tokens of each are in a step."""
    down = sum(packed for packed, _ in products) * 64 * math.ceil(rank / 16)
    return down * LORA_DOWN_S + _blocks_up(products) * LORA_UP_S


def _blocks_up(products: Sequence[tuple[int, float]]) -> float:
    return sum(width / (64 if packed > 1 else 128) for packed, width in products)


def layer_origin(gpu: Gpu) -> tuple[Basis, str]:
    """Return how well these timings represent a GPU, and the GPU they were made on."""
    return basis(gpu, TIMED_ON), TIMED_ON


def _on(gpu: Gpu, curve: Curve) -> Curve:
    return carried_over(curve, TIMED_ON, gpu)
