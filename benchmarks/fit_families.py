"""How much of the datasheet a GPU family reaches, from measured kernels: writes physics/data/efficiency.toml.

    python benchmarks/fit_families.py --kernels DIR --steps h200_steps.json

``--kernels`` is a folder with gemm.parquet and all_reduce.parquet (timings bundled with aiconfigurator-core 0.12.0,
NVIDIA, Apache-2.0); ``--steps`` holds whole-model step times. Needs polars (not a dependency of the product).

- memory: bytes that a GEMM of few rows must read ÷ (time × datasheet bandwidth); median over m ≤ 16 and matrices of
  at least 16 M weights (smaller ones live in the cache).
- compute: FLOPs ÷ (time × dense peak); median over m, n, k ≥ 2048.
- link: bus bandwidth of all-reduces of at least 16 M elements ÷ the link's datasheet bandwidth.
- all-reduce latency: median over messages of at most 16 K elements inside CUDA graphs.
- layer overhead: what is left of small decode steps after the roofline, per layer.
Families without timings carry published figures, or another family's marked as assumed: see ``PUBLISHED``.
"""

import argparse
import json
import statistics
from pathlib import Path
from typing import NamedTuple

import polars as pl

from tokonomics.catalog.gpus import find_gpu
from tokonomics.catalog.load_models import find_model

KERNELS = "kernel timings of aiconfigurator-core 0.12.0 (NVIDIA, Apache-2.0)"
STEPS = "whole-model decode steps on one H200 (Llama-3.1-8B and 3.2-1B shapes, CUDA graphs), batch ≤ 8, context ≤ 1024"
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
}
ASSUMED = {"cdna2": "cdna3", "cdna4": "cdna3", "gaudi2": "ampere", "gaudi3": "ampere"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernels", type=Path, required=True)
    parser.add_argument("--steps", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("src/tokonomics/physics/data/efficiency.toml"))
    options = parser.parse_args()
    gemm = pl.read_parquet(options.kernels / "gemm.parquet").filter(pl.col("gemm_dtype").cast(str) == "bfloat16")
    reduce = pl.read_parquet(options.kernels / "all_reduce.parquet").filter(
        pl.col("variant").cast(str).str.contains("graph")
    )
    rows: dict[str, Row] = {}
    for family, gpus in FAMILIES.items():
        measured = [
            (_memory(gemm, gpu), _compute(gemm, gpu), _link(reduce, gpu), _latency(reduce, gpu)) for gpu in gpus
        ]
        memory, compute, link, latency = (statistics.median(column) for column in zip(*measured, strict=True))
        rows[family] = Row(memory, compute, link, latency, "measured", f"{KERNELS}: {', '.join(gpus)}")
    ampere = rows["ampere"]
    for family, (memory, compute, source) in PUBLISHED.items():
        rows[family] = Row(memory, compute, ampere.link, ampere.latency, "quoted", f"{source}; links as ampere")
    for family, like in ASSUMED.items():
        rows[family] = rows[like]._replace(badge="assumed", source=f"no public kernel timings: taken as {like}")
    text = [
        "# Made by benchmarks/fit_families.py; do not edit.",
        "",
        f"layer_overhead_s = {_overhead(options.steps, rows['hopper'].memory):.3g}",
        f'layer_overhead_source = "{STEPS}"',
    ]
    for family, row in sorted(rows.items()):
        text += [
            "",
            f"[families.{family}]",
            f"memory = {row.memory:.3f}",
            f"compute = {row.compute:.3f}",
            f"link = {row.link:.3f}",
            f"all_reduce_latency_s = {row.latency:.3g}",
            f'badge = "{row.badge}"',
            f'source = "{row.source}"',
        ]
    options.out.write_text("\n".join(text) + "\n", encoding="utf-8")
    print("\n".join(text))


class Row(NamedTuple):
    memory: float
    compute: float
    link: float
    latency: float
    badge: str
    source: str


def _of(table: pl.DataFrame, gpu: str) -> pl.DataFrame:
    return table.filter(pl.col("gpu").cast(str) == gpu)


def _median(column: pl.Series) -> float:
    return float(column.median())


def _memory(gemm: pl.DataFrame, gpu: str) -> float:
    few_rows = _of(gemm, gpu).filter((pl.col("m") <= 16) & (pl.col("n") * pl.col("k") >= 16e6))
    moved = 2.0 * (few_rows["n"] * few_rows["k"] + few_rows["m"] * (few_rows["n"] + few_rows["k"]))
    return _median(moved / (few_rows["latency_ms"] * 1e-3)) / find_gpu(gpu).bandwidth_bytes_per_s


def _compute(gemm: pl.DataFrame, gpu: str) -> float:
    large = _of(gemm, gpu).filter(pl.min_horizontal("m", "n", "k") >= 2048)
    flops = 2.0 * large["m"] * large["n"] * large["k"]
    return _median(flops / (large["latency_ms"] * 1e-3)) / find_gpu(gpu).flops["bf16"]


def _link(reduce: pl.DataFrame, gpu: str) -> float:
    large = _of(reduce, gpu).filter(pl.col("message_size") >= 16e6)
    bus = 2.0 * (large["num_gpus"] - 1) / large["num_gpus"] * 2 * large["message_size"] / (large["latency_ms"] * 1e-3)
    return min(1.0, _median(bus) / find_gpu(gpu).link_bytes_per_s)


def _latency(reduce: pl.DataFrame, gpu: str) -> float:
    return _median(_of(reduce, gpu).filter(pl.col("message_size") <= 16384)["latency_ms"]) * 1e-3


def _overhead(path: Path, memory: float) -> float:
    bandwidth = find_gpu("h200").bandwidth_bytes_per_s * memory
    left: list[float] = [
        (row["ms"] * 1e-3 - (row["weight_bytes"] + row["kv_bytes"]) / bandwidth) / find_model(row["model"]).layers
        for row in json.loads(path.read_text())["rows"]
        if row["kind"] == "decode" and row["batch"] <= 8 and row["ctx"] <= 1024
    ]
    return statistics.median(left)


if __name__ == "__main__":
    main()
