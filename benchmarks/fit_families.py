"""How much of the datasheet a GPU family reaches, from measured kernels: writes physics/data/efficiency.toml.

    python benchmarks/fit_families.py --kernels DIR

``--kernels`` is a folder with gemm.parquet (timings bundled with aiconfigurator-core 0.12.0, NVIDIA, Apache-2.0).
Needs polars (not a dependency of the product).

- memory: bytes that a GEMM of few rows must read ÷ (time × datasheet bandwidth); median over m ≤ 16 and matrices of
  at least 16 M weights (smaller ones live in the cache).
- compute: FLOPs ÷ (time × dense peak); median over m, n, k ≥ 2048.
Families without timings carry published figures, or another family's marked as assumed: see ``PUBLISHED``.
"""

import argparse
import json
import statistics
from pathlib import Path
from typing import NamedTuple, cast

import polars as pl

from tokonomics.catalog.gpus import find_gpu

KERNELS = "kernel timings of aiconfigurator-core 0.12.0 (NVIDIA, Apache-2.0)"
FAMILIES = {
    "ampere": ("a100_sxm",),
    "ada": ("l40s",),
    "hopper": ("h100_sxm", "h200_sxm"),
    "blackwell": ("b200_sxm", "b300_sxm", "gb200", "gb300"),
    "blackwell-rtx": ("rtx_pro_6000_server",),
}
PUBLISHED = {
    "volta": (
        0.83,
        0.66,
        "750 of 900 GB/s: Jia et al., arXiv:1804.06826; 83 of 125 TFLOP/s: Markidis et al., arXiv:1803.04014",
    ),
    "turing": (0.69, 0.64, "220 of 320 GB/s and 41.6 of 65 TFLOP/s on a T4: Jia et al., arXiv:1903.07486"),
    "cdna3": (
        0.81,
        0.54,
        "81 % of peak bandwidth on MI300X: arXiv:2510.27583; 708 of 1307 TFLOP/s: AMD, Measuring Max-Achievable "
        "FLOPs, part 2",
    ),
    "apple": (0.83, 0.63, "100 of 120 GB/s and 2.9 of 4.6 TFLOP/s on an M4: Hübner et al., arXiv:2502.05317"),
    "xe-hpc": (
        0.61,
        0.65,
        "1.0 of 1.64 TB/s and 273 of 419 TFLOP/s in a stack of a Max 1550: Aurora node performance overview, ALCF user "
        "guides",
    ),
    "rdna3.5": (
        0.83,
        0.196,
        "Ryzen AI Max+ 395: 212 of 256 GB/s: llm-tracker.info/_TOORG/Strix-Halo, 2025; 881 tokens/s of a Llama 2 7B "
        "prompt in llama.cpp, 11.6 of 59.4 TFLOP/s: ggml-org/llama.cpp#13565, 2025-05-15",
    ),
}
ASSUMED = {
    "cdna2": "cdna3", "cdna4": "cdna3", "rdna3": "cdna3", "gaudi2": "ampere", "gaudi3": "ampere",
    "tpu-v5e": "ampere", "tpu-v6e": "ampere", "tpu-v7x": "ampere", "trainium2": "ampere",
}  # fmt: skip
UNTILED = {"apple": (8, 31), "rdna3.5": (8, 1)}
"""Rows, and tokens sent to experts, that a family multiplies without tiles: llama.cpp on Metal runs its matrix-vector
kernels up to 8 rows (``ne11_mm_min``) and for experts below 32 tokens (``ne21``; ggml-metal-ops.cpp, 2026). Found after
Apple's published decode rates had been seen to be up to 2.4 times those predicted with tiles. On Strix Halo llama.cpp
does so up to 8 rows, too (``MMVQ_MAX_BATCH_SIZE``, mmvq.cuh; ``mul_mat_vec_max_cols``, ggml-vulkan.cpp), and for the
experts of one token."""
UNTAUGHT = ("apple", "rdna3.5", "tpu-v5e", "tpu-v6e", "tpu-v7x", "trainium2", "xe-hpc")
"""Families of which no published result was among the rows that the intervals learned from."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernels", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("src/tokonomics/physics/data/efficiency.toml"))
    options = parser.parse_args()
    gemm = pl.read_parquet(options.kernels / "gemm.parquet").filter(pl.col("gemm_dtype").cast(str) == "bfloat16")
    rows: dict[str, Row] = {}
    for family, gpus in FAMILIES.items():
        measured = [(_memory(gemm, gpu), _compute(gemm, gpu)) for gpu in gpus]
        memory, compute = (statistics.median(column) for column in zip(*measured, strict=True))
        rows[family] = Row(memory, compute, "measured", f"{KERNELS}: {', '.join(gpus)}")
    for family, (memory, compute, source) in PUBLISHED.items():
        rows[family] = Row(memory, compute, "quoted", source)
    for family, like in ASSUMED.items():
        rows[family] = rows[like]._replace(badge="assumed", source=f"no public kernel timings: taken as {like}")
    text = ["# Made by benchmarks/fit_families.py; do not edit."]
    for family, row in sorted(rows.items()):
        text += [
            "",
            f"[families.{json.dumps(family) if '.' in family else family}]",
            f"memory = {row.memory:.3f}",
            f"compute = {row.compute:.3f}",
            f'badge = "{row.badge}"',
            f'source = "{row.source}"',
            *(["taught = false"] if family in UNTAUGHT else []),
            *_untiled(family),
        ]
    options.out.write_text("\n".join(text) + "\n", encoding="utf-8")
    print("\n".join(text))


class Row(NamedTuple):
    memory: float
    compute: float
    badge: str
    source: str


def _untiled(family: str) -> list[str]:
    """Write what a family multiplies without tiles; nothing for the others."""
    if family not in UNTILED:
        return []
    rows, tokens = UNTILED[family]
    return [f"untiled_rows = {rows}", f"untiled_tokens = {tokens}"]


def _of(table: pl.DataFrame, gpu: str) -> pl.DataFrame:
    return table.filter(pl.col("gpu").cast(str) == gpu)


def _median(column: pl.Series) -> float:
    return float(cast(float, column.median()))


def _memory(gemm: pl.DataFrame, gpu: str) -> float:
    few_rows = _of(gemm, gpu).filter((pl.col("m") <= 16) & (pl.col("n") * pl.col("k") >= 16e6))
    moved = 2.0 * (few_rows["n"] * few_rows["k"] + few_rows["m"] * (few_rows["n"] + few_rows["k"]))
    return _median(moved / (few_rows["latency_ms"] * 1e-3)) / find_gpu(gpu).bandwidth_bytes_per_s


def _compute(gemm: pl.DataFrame, gpu: str) -> float:
    large = _of(gemm, gpu).filter(pl.min_horizontal("m", "n", "k") >= 2048)
    flops = 2.0 * large["m"] * large["n"] * large["k"]
    return _median(flops / (large["latency_ms"] * 1e-3)) / find_gpu(gpu).flops["bf16"]


if __name__ == "__main__":
    main()
