"""Fit the constants of physics/layer_kernels.py and print the errors of every law on its timings.

    python benchmarks/fit_new_layers.py [--timings benchmarks/data/h200_new_layers.json]

Timings are of ``benchmarks/time_new_layers.py`` on one H200. Log residuals. Prints each curve as fitted, the errors of
the shipped one, and what the older curves of latent attention and of experts say to the new timings. Needs scipy.
"""

import argparse
import json
import math
import statistics
from collections.abc import Callable
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks import bench_levers
from benchmarks.lever_grid import ADAPTERS, SERVER

from tokonomics.catalog.config_layers import delta_scan_flops
from tokonomics.catalog.gpus import find_gpu
from tokonomics.catalog.layers import Precision, Recurrence
from tokonomics.measure.probe.fit_profile import least_log_squares
from tokonomics.physics import layer_kernels as laws
from tokonomics.physics.attention_kernels import mla_decode_s, seen_pairs
from tokonomics.physics.curves import Array
from tokonomics.physics.layer_kernels import LORA_DOWN_S, LORA_START_S, LORA_UP_S, lora_launched_s
from tokonomics.physics.matrix_kernels import _expert_curve as expert_curve
from tokonomics.physics.matrix_kernels import expert_rate, expert_seconds, experts_s

GPU = find_gpu(laws.TIMED_ON)
LATENT = {"kv_rank": 512, "rope_dim": 64}  # DeepSeek-V3.2's
INDEX_DIM, KEY_BYTES = 128, 132.0  # of a key of the indexer, in FP8 with a 32-bit scale
DELTA_DIM, MAMBA_DIM, MAMBA_STATE, MAMBA_CHUNK = 128, 64, 128, 128
MOES = {"deepseek-v3": (256, 8, 7168, 2048, 8), "qwen3-30b-a3b": (128, 8, 2048, 768, 1)}

Rows = list[dict[str, Any]]
Predict = Callable[[Any], Array]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--timings", type=Path, default=Path("benchmarks/data/h200_new_layers.json"))
    timings = json.loads(parser.parse_args().timings.read_text(encoding="utf-8"))
    print(f"{'law':36s} {'rows':>4s}  {'median':>6s} {'worst':>6s}  {'bias':>6s}")
    fit_rows(timings)
    fit_index(timings)
    fit_recurrent(timings)
    compare_latent(timings["mla_decode"])
    compare_experts(timings["experts"])
    fit_adapters()


def fit_adapters() -> None:
    """Fits the LoRA kernels' three constants on the decode loads of rank 16 in the lever grid, and tries rank 64."""
    measured, packed = bench_levers.read()["measured"], [(3, 6144), (1, 4096), (2, 28672), (1, 4096)]
    rows: dict[int, list[tuple[Array, float, float]]] = {16: [], 64: []}
    for server, loads in ADAPTERS.items():
        held = SERVER[server]["adapters"]
        for users, adapters in loads:
            with_s = measured[f"{server}: {users} users, {adapters} adapters"]["TPOT p50"]
            extra_s = with_s - measured[f"plain: {users} × 256"]["TPOT p50"]
            launched = float(lora_launched_s(packed, users, held["rank"], held["count"])) / LORA_START_S
            down = sum(many for many, _ in packed) * 64 * math.ceil(held["rank"] / 16)
            up = sum(width / (64 if many > 1 else 128) for many, width in packed)
            blocks = 32 * np.array([launched, adapters * down, adapters * up])
            rows[held["rank"]].append((blocks, extra_s, with_s))
    known, extra, whole = (np.array(column) for column in zip(*rows[16], strict=True))
    found, *_ = np.linalg.lstsq(known / whole[:, None], extra / whole, rcond=None)
    print(f"adapters of rank 16: start {found[0] * 1e9:.2f}, down {found[1] * 1e9:.1f}, up {found[2] * 1e9:.1f} ns; "
          f"shipped {LORA_START_S * 1e9:.2f}, {LORA_DOWN_S * 1e9:.1f}, {LORA_UP_S * 1e9:.1f}")  # fmt: skip
    for rank, listed in rows.items():
        off = [(float(blocks @ found) - extra_s) / with_s for blocks, extra_s, with_s in listed]
        print(f"    steps of rank {rank} ({'taught' if rank == 16 else 'left out'}): {len(off)}, "
              f"off by {statistics.median(map(abs, off)):.1%}, at worst {max(off, key=abs):+.1%}")  # fmt: skip


def column(rows: Rows, key: str) -> Array:
    return np.array([row[key] for row in rows], np.float64)


def errors(name: str, predicted: Array, rows: Rows) -> None:
    """One line of the table: of |predicted ÷ measured - 1|, and the median of predicted ÷ measured - 1."""
    off = predicted / (column(rows, "us") * 1e-6) - 1
    worst = off[np.argmax(np.abs(off))]
    print(f"{name:36s} {len(rows):4d}  {np.median(np.abs(off)):6.1%} {worst:+6.0%}  {np.median(off):+6.1%}")


def fit(name: str, shipped: Any, rows: Rows, predict: Predict, fixed: str | None = None) -> None:
    """Fits a curve from the shipped one on, shares at most 1; prints it and the shipped one's errors."""
    kind = type(shipped)
    low = [value / 30 for value in shipped]
    high = [min(value * 30, 1.0) for value in shipped]
    place = kind._fields.index(fixed) if fixed else None
    if place is not None:
        high[place] = 2 * shipped[place]
    _, found = least_log_squares(
        lambda x: predict(kind(*x)), column(rows, "us") * 1e-6, shipped, low, high, fixed=place
    )
    errors(name, predict(shipped), rows)
    print("    " + ", ".join(f"{field}={value:.3g}" for field, value in zip(kind._fields, found, strict=True)))
    errors("    as fitted", predict(kind(*found)), rows)


def fit_rows(timings: dict[str, Rows]) -> None:
    """Decode steps of both formats; prompts by the same kernels: 16 bits, and few heads over 8-bit rows."""
    prompts = timings["sparse_prompt"]
    wide = [row for row in prompts if row["heads"] >= laws.FP8_PROMPT_HEADS or row["kernel"] == "flashattention"]
    narrow = [row for row in prompts if row not in wide]
    for kv, more in (("bf16", wide), ("fp8", narrow)):
        steps = [row for row in timings["sparse_decode"] if row["kv"] == kv]

        def predict(curve: laws.RowsCurve, steps: Rows = steps, more: Rows = more, kv: str = kv) -> Array:
            parts = []
            for rows, queries, read in (
                (steps, column(steps, "batch"), column(steps, "batch") * column(steps, "rows")),
                (more, column(more, "tokens"), np.full(len(more), 32768.0)),
            ):
                pairs, heads = queries * column(rows, "rows"), column(rows, "heads")
                parts.append(laws.rows_time(curve, GPU, Precision(kv), pairs, read, heads, **LATENT))
            return np.concatenate(parts)

        fit(f"chosen rows, {kv}", laws.ROWS[kv], steps + more, predict, fixed="tile")  # type: ignore[index]


def fit_index(timings: dict[str, Rows]) -> None:
    scores, _, pairs, keys = _index_sizes(timings, "scores")
    picks, queries, scored, _ = _index_sizes(timings, "topk")
    flops = 2.0 * INDEX_DIM * column(scores, "heads")

    def parts(curve: laws.IndexCurve) -> tuple[Array, Array]:
        first = laws.index_scores_time(curve, GPU, pairs, keys, flops, KEY_BYTES)
        return first, laws.index_pick_time(curve, GPU, queries, scored)

    fit("indexer", laws.INDEX, scores + picks, lambda curve: np.concatenate(parts(curve)))
    for name, times, rows in zip(("scores", "choice"), parts(laws.INDEX), (scores, picks), strict=True):
        errors(f"    {name}", times, rows)


def _index_sizes(timings: dict[str, Rows], part: str) -> tuple[Rows, Array, Array, Array]:
    """Rows of a part, their queries, pairs of a query and a key, and keys that are read."""
    steps, chunks = ([row for row in timings[name] if row["part"] == part] for name in ("index_decode", "index_prompt"))
    cached = column(steps, "batch") * column(steps, "context")
    tokens, end = column(chunks, "tokens"), column(chunks, "end")
    queries = np.concatenate([column(steps, "batch"), tokens])
    pairs = np.concatenate([cached, seen_pairs(tokens, end - tokens, None)])
    return steps + chunks, queries, pairs, np.concatenate([cached, end])


def fit_recurrent(timings: dict[str, Rows]) -> None:
    steps = timings["delta_decode"] + timings["mamba_decode"]
    states = np.array([_state_bytes(row) * row["batch"] for row in steps])
    fit("recurrent states", laws.STATE, steps, lambda curve: laws.state_time(curve, GPU, states))
    kinds: dict[Recurrence, Rows] = {
        "delta": [row for row in timings["delta_prompt"] if row["kind"] == "gdn"],
        "kda": [row for row in timings["delta_prompt"] if row["kind"] == "kda"],
        "mamba2": timings["mamba_prompt"],
    }
    for kind, rows in kinds.items():
        flops = np.array([_scan_flops(kind, row["heads"]) for row in rows])
        sizes = column(rows, "sequences"), column(rows, "tokens"), flops
        fit(f"scan, {kind}", laws.SCANS[kind], rows, lambda curve, sizes=sizes: laws.scan_time(curve, GPU, *sizes))  # type: ignore[misc]


def _state_bytes(row: dict[str, Any]) -> float:
    elements = DELTA_DIM * DELTA_DIM if "kind" in row else MAMBA_DIM * MAMBA_STATE
    return float(row["heads"] * elements * (4 if row["state"] == "fp32" else 2))


def _scan_flops(kind: Recurrence, heads: int) -> float:
    """As the catalogue counts them (config_layers.py), with the timed chunk."""
    if kind == "mamba2":
        return heads * (2.0 * MAMBA_CHUNK * (MAMBA_STATE + MAMBA_DIM) + 4.0 * MAMBA_STATE * MAMBA_DIM)
    return delta_scan_flops(heads, DELTA_DIM, DELTA_DIM)


def compare_latent(rows: Rows) -> None:
    for heads in (16, 128):
        for kv in ("bf16", "fp8"):
            some = [row for row in rows if row["heads"] == heads and row["kv"] == kv]
            times = mla_decode_s(GPU, Precision(kv), column(some, "batch"), column(some, "context"), heads=heads)
            errors(f"all rows, {heads} heads, {kv} (older)", times, some)


def compare_experts(rows: Rows) -> None:
    """By what the rank got (its law), and by tokens alone (its guess of the busiest rank)."""
    kind = itemgetter("model", "weights", "kernel", "zipf")
    for model, weights, kernel, zipf in sorted({kind(row) for row in rows}):
        some = [row for row in rows if kind(row) == (model, weights, kernel, zipf)]
        experts, active, hidden, intermediate, ep = MOES[model]
        precision, tokens = Precision(weights), column(some, "tokens")
        shape = {"hidden": hidden, "intermediate": intermediate}
        origin, curve = expert_curve(GPU, precision, "vllm")
        known = expert_seconds(
            curve, visited=column(some, "visited"), routed=column(some, "routed"), pairs=tokens * active, matrices=3,
            peak=expert_rate(GPU, precision, origin.precision), bandwidth=GPU.bandwidth_bytes_per_s,
            width=precision.bytes_per_weight, **shape,
        )  # fmt: skip
        guessed = experts_s(GPU, precision, tokens, active=active, experts=experts, ep=ep, **shape)  # type: ignore[arg-type]
        name = f"{model.split('-')[0]} {weights} {kernel} {zipf}"
        errors(f"{name}, loads known", known, some)
        errors(f"{name}, tokens", guessed, some)


if __name__ == "__main__":
    main()
