"""Fits the curves of physics/matrix_kernels.py on measured kernels: writes physics/data/matrix_kernels.json.

    python benchmarks/fit_matrix_kernels.py --kernels DIR [--steps h200_steps.json]

``--kernels`` is a folder with gemm.parquet, moe.parquet and all_reduce.parquet (timings bundled with
aiconfigurator-core 0.12.0, NVIDIA, Apache-2.0). Needs polars and scipy (not dependencies of the product).

Every curve is fitted twice: without a quarter of the shapes, to print its error on those (whole weight matrices or
whole expert layers, at all their batch sizes), and on all of them, to ship. Residuals are logarithmic with a soft-L1
loss. Left out of fit and report:

- matrices narrower than 128: no layer of a served model;
- m one above a tile (17, 33, 65 … 4353): they time the worst case of tile padding, and engines pad to tiles;
- timings from a warm cache: on an L40S or RTX PRO 6000, weights that fit their L2 cache whose reading from DRAM would
  take over 40 % of the time. On those two, 0.5 to 6 % of dense timings beat the DRAM; on the others next to none does;
- experts by FlashInfer's CUTLASS kernel on B200 and GB200, which vLLM falls back to for 1 or 2 of up to 20 shapes: they
  take 1.5 to 2 times what the shipped curves say;
- MXFP4 experts by Marlin where GPT-OSS has a kernel of its own (one shape; 1.2 to 2 times slower);
- all-reduces of four and eight L40S, which take 4 and 6 times as long for each byte as those of as many RTX PRO 6000 on
  as wide a bus, and 2.5 to 6 times as long as TensorRT-LLM's published throughput of L40S allows: one odd machine;
- experts of Nemotron (not gated; whether timed so is not said), more than 64 expert-parallel or 16 tensor-parallel
  ranks, and expert parallelism on A100, timed by an older collector that loads the busiest rank otherwise.

Reported but not shipped: SGLang's dense BF16 (the same cuBLAS as vLLM's), and FP8 experts with one scale per tensor
where those with scales per block were timed, as published FP8 checkpoints of MoE models have them. Not read: dense
FP8 in blocks, of which vLLM's were timed with their host overhead (20 µs and more a call), and nccl.parquet, which
does not name its collectives.
"""

import argparse
import json
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy.optimize import minimize

from tokonomics.catalog.gpus import Gpu, find_gpu
from tokonomics.catalog.layers import Precision
from tokonomics.measure.probe.fit_profile import GEMM, GEMM_SHARPNESS, HEAT_S, LINK, Bounds, least_log_squares
from tokonomics.physics.matrix_kernels import (
    BACKENDS,
    ExpertCurve,
    GemmCurve,
    LinkCurve,
    TiledCurve,
    all_reduce_seconds,
    busiest_share,
    expert_rate,
    expert_seconds,
    gemm_s,
    gemm_seconds,
    visited_on_busiest,
)

ATTRIBUTION = "fitted on kernel timings of aiconfigurator-core 0.12.0 (NVIDIA, Apache-2.0), 2026-11-15"
GPUS = {
    "a100_sxm": "A100-80GB",
    "l40s": "L40S",
    "h100_sxm": "H100-SXM",
    "h200_sxm": "H200",
    "b200_sxm": "B200",
    "b300_sxm": "B300",
    "gb200": "GB200",
    "gb300": "GB300",
    "rtx_pro_6000_server": "RTXPRO6000",
}
ODD_LINKS = {("l40s", 4), ("l40s", 8)}
WARM_CACHE_BYTES = {"L40S": 96e6, "RTXPRO6000": 128e6}
GEMM_DTYPES = {"bfloat16": Precision.bf16, "fp8": Precision.fp8, "nvfp4": Precision.nvfp4}
MOE_DTYPES = {
    "bfloat16": Precision.bf16,
    "fp8": Precision.fp8,
    "fp8_block": Precision.fp8,
    "int4_wo": Precision.int4,
    "w4a16_mxfp4": Precision.mxfp4,
    "nvfp4": Precision.nvfp4,
}
GROUPED_MATMUL = ExpertCurve(
    launch_s=6.6e-5,
    visit_s=0,
    depth_s=0,
    memory=0.565,
    compute=0.79,
    rows=0,
    columns=0,
    traffic=1,
    sharpness=8,
    skew=3,
)
"""PyTorch's grouped matmul on an H200: what whole Mixtral-8x7B steps (12.3, 34, 37, 39 ms at batch 1, 8, 64, 256 and
context 512) leave after dense layers, attention and small ops: 326, 1001, 1065, 1014 µs a layer. The two smallest give
launch and bandwidth, 2.7 TB/s; the fused kernels that engines use read experts at 4.3 TB/s."""
SAMPLE = 6000
TILED, TILED_WEIGHTS = ("H100-SXM/vllm/fp8", "H200/vllm/fp8"), 4e6
"""Curves of a kernel of whole tiles, and of how many weights the matrices are that show it: with smaller ones, starting
and quantising hide it."""
SMALL_OPS_S = 12e-6
COPY_SHARE = 0.88
"""Of the datasheet's bandwidth: a copy on an H200 (``ceilings`` of h200_steps.json)."""
SKEW = 3.0
"""Where no expert parallelism was timed: about what the other curves have."""

Array = NDArray[np.float64]

EXPERTS = Bounds(
    ExpertCurve(2e-5, 1e-8, 1e-9, 0.8, 0.6, 16, 64, 1, 2, 1),
    ExpertCurve(5e-6, 1e-11, 1e-11, 0.2, 0.05, 0.1, 0.1, 0.01, 1, 0.01),
    ExpertCurve(3e-4, 1e-5, 2e-8, 0.95, 1, 256, 4096, 20, 8, 6),
)
FITTED = (None,)
"""The sharpness of a link is fitted; a layer's is one of a few that compute fast."""


class Sample(NamedTuple):
    """Timings of one curve: what predicts them from the parameters, and which are held out."""

    seconds: Array
    held_out: NDArray[np.bool_]
    size: Array
    """Rows or tokens, to group errors by."""
    weight: Array
    predict: Callable[[Any, NDArray[np.intp]], Array]
    """Of parameters, for the rows at these indices."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernels", type=Path, required=True)
    parser.add_argument("--steps", type=Path, help="whole-model step times, to check sums of kernels against")
    parser.add_argument("--out", type=Path, default=Path("src/tokonomics/physics/data/matrix_kernels.json"))
    options = parser.parse_args()
    print(f"{'':42}  held out: median / p90 / mean of log error, in %: all, ≤ 16 rows, ≤ 512, more")
    curves = {
        "gemm": fit_gemms(_read(options.kernels / "gemm.parquet")),
        "experts": fit_experts(_read(options.kernels / "moe.parquet")),
        "all_reduce": fit_links(_read(options.kernels / "all_reduce.parquet")),
    }
    fields = {"gemm": GemmCurve._fields, "experts": ExpertCurve._fields, "all_reduce": LinkCurve._fields}
    lines = ",\n".join(f'  "{op}": {{\n{_rows(table)}\n  }}' for op, table in curves.items())
    head = f'"source": {json.dumps(ATTRIBUTION)},\n"fields": {json.dumps(fields)},\n"curves": {{\n'
    options.out.write_text("{" + head + lines + "\n}}\n", encoding="utf-8")
    if options.steps:
        check_steps(options.steps)


def fit_gemms(table: pl.DataFrame) -> dict[str, list[float]]:
    """BF16 on vLLM first: it decides how far each GPU throttles, whatever it multiplies.

    In BF16, SGLang calls the same cuBLAS as vLLM: its timings are reported as a second sample, and not shipped.
    """
    large = table.filter(pl.col("n") * pl.col("k") >= TILED_WEIGHTS)
    table = table.filter((pl.col("n") >= 128) & (pl.col("k") >= 128) & ((pl.col("m") <= 16) | (pl.col("m") % 16 == 0)))
    curves: dict[str, list[float]] = {}
    groups = [
        each for each in _groups(table, "gpu", "gemm_dtype", "backend") if each[0] in GPUS and each[1] in GEMM_DTYPES
    ]
    for gpu, dtype, backend in sorted(groups, key=lambda each: each[1:] != ("bfloat16", "vllm")):
        timed = (pl.col("gpu") == gpu) & (pl.col("backend") == backend) & (pl.col("gemm_dtype") == dtype)
        name = f"{GPUS[gpu]}/{backend}/{GEMM_DTYPES[dtype]}"
        bounds, known = GEMM, curves.get(f"{GPUS[gpu]}/vllm/bf16")
        if known:
            throttle = GemmCurve(*known).throttle
            near = zip(GEMM, (1.0, 0.999, 1.001), strict=True)
            bounds = Bounds(*(curve._replace(throttle=share * throttle) for curve, share in near))
        sample = gemm_sample(find_gpu(GPUS[gpu]), GEMM_DTYPES[dtype], table.filter(timed))
        curves[name] = _fit("gemm " + name, sample, bounds, GEMM_SHARPNESS)
        if name in TILED:
            sample = gemm_sample(find_gpu(GPUS[gpu]), GEMM_DTYPES[dtype], large.filter(timed))
            curves[name] = fit_tiles(name, curves[name], sample)
    return {name: curve for name, curve in sorted(curves.items()) if not name.endswith("sglang/bf16")}


def fit_tiles(name: str, numbers: Sequence[float], sample: Sample) -> list[float]:
    """Fit what a kernel of whole tiles adds to a smooth curve: products of any number of rows, of large matrices.

    Only what a product with scales for blocks replaces is fitted anew (``matrix_kernels.in_blocks``).
    """
    smooth = GemmCurve(*numbers)
    held_out, seen = np.flatnonzero(sample.held_out), np.flatnonzero(~sample.held_out)

    def curve(x: Array) -> GemmCurve:
        tiled = dict(zip(("rows", "columns"), np.exp(x).tolist(), strict=True))
        return TiledCurve(*GemmCurve(**smooth._asdict() | tiled))

    def error(found: GemmCurve, at: NDArray[np.intp]) -> Array:
        return np.asarray(np.log(sample.predict(found, at) / sample.seconds[at]))

    def fitted(at: NDArray[np.intp]) -> GemmCurve:
        at = np.random.default_rng(0).permutation(at)[:SAMPLE]

        begin = np.log([smooth.rows, smooth.columns])
        return curve(minimize(lambda x: np.abs(error(curve(x), at)).mean(), begin, method="Nelder-Mead").x)

    for word, found in (("smooth", smooth), ("tiles", fitted(seen))):
        print(f"gemm {name + ', ' + word:37}", _summary(error(found, held_out)), flush=True)
    return [float(f"{value:.4g}") for value in fitted(np.arange(sample.seconds.size))]


def gemm_sample(gpu: Gpu, precision: Precision, rows: pl.DataFrame) -> Sample:
    peak, bandwidth, width = gpu.peak_flops(precision), gpu.bandwidth_bytes_per_s, precision.bytes_per_weight
    if gpu.key in WARM_CACHE_BYTES:
        matrix = pl.col("n") * pl.col("k") * width
        moved = (matrix + 2.0 * pl.col("m") * (pl.col("n") + pl.col("k"))) / bandwidth
        rows = rows.filter(~((matrix < WARM_CACHE_BYTES[gpu.key]) & (moved > 0.4e-3 * pl.col("latency_ms"))))
    m, n, k, seconds = (rows[name].to_numpy().astype(float) for name in ("m", "n", "k", "latency_ms"))
    ideal = 2 * m * n * k / peak
    heat = ideal / (ideal + HEAT_S)
    return Sample(
        seconds=seconds * 1e-3,
        held_out=_held_out(rows, "n", "k"),
        size=m,
        weight=np.where((n >= 512) & (k >= 512), 1, 0.4),
        predict=lambda x, at: gemm_seconds(
            x if isinstance(x, GemmCurve) else GemmCurve(*x), m[at], n[at], k[at], peak, bandwidth, width, heat[at]
        ),
    )


def fit_experts(table: pl.DataFrame) -> dict[str, list[float]]:
    slow = pl.col("kernel_source").str.contains("flashinfer_cutlass") & pl.col("gpu").is_in(["b200_sxm", "gb200"])
    marlin = pl.col("kernel_source").str.contains("compressedtensorsw4a4mxfp4")
    ungated = (pl.col("topk") == 22) | (pl.col("inter_size") == 1856)
    older = (pl.col("gpu") == "a100_sxm") & (pl.col("moe_ep_size") > 1)
    wide = (pl.col("moe_ep_size") > 64) | (pl.col("moe_tp_size") > 16)
    table = table.filter(~slow & ~marlin & ~ungated & ~older & ~wide)
    curves: dict[str, list[float]] = {}
    for gpu, dtype in _groups(table, "gpu", "moe_dtype"):  # fp8 comes before fp8_block, which replaces it
        if gpu not in GPUS or dtype not in MOE_DTYPES:
            continue
        rows = table.filter((pl.col("gpu") == gpu) & (pl.col("moe_dtype") == dtype))
        name = f"{GPUS[gpu]}/vllm/{MOE_DTYPES[dtype]}"
        sample = expert_sample(find_gpu(GPUS[gpu]), MOE_DTYPES[dtype], rows)
        curves[name] = _fit(f"experts {name} {dtype}", sample, EXPERTS, GEMM_SHARPNESS)
        if rows["moe_ep_size"].max() == 1:
            curves[name][-1] = SKEW
    curves["H200/pytorch/bf16"] = list(GROUPED_MATMUL)
    return curves


def expert_sample(gpu: Gpu, precision: Precision, rows: pl.DataFrame) -> Sample:
    peak, bandwidth, width = (
        expert_rate(gpu, precision, precision),
        gpu.bandwidth_bytes_per_s,
        precision.bytes_per_weight,
    )
    names = (
        "num_tokens",
        "hidden_size",
        "inter_size",
        "topk",
        "num_experts",
        "moe_tp_size",
        "moe_ep_size",
        "latency_ms",
    )
    tokens, hidden, inter, active, experts, tp, ep, seconds = (rows[name].to_numpy().astype(float) for name in names)
    even = rows["distribution"].to_numpy() == "balanced"
    distinct = np.where(even, np.minimum(experts, active * tokens), experts * (1 - (1 - active / experts) ** tokens))
    read = np.maximum(distinct / ep, 1.0) * 3 * hidden * inter / tp * width
    warm = (read < WARM_CACHE_BYTES.get(gpu.key, 0)) & (read / bandwidth > 0.4e-3 * seconds)

    def predict(x: Array, at: NDArray[np.intp]) -> Array:
        curve = ExpertCurve(*x)
        share = np.where(even, 1.0, busiest_share(curve.skew, experts, ep))
        return expert_seconds(
            curve,
            visited=visited_on_busiest(distinct, experts, ep, share)[at],
            routed=(tokens * active / ep * share)[at],
            pairs=(tokens * active)[at],
            hidden=hidden[at],
            intermediate=(inter / tp)[at],
            matrices=3,
            peak=peak,
            bandwidth=bandwidth,
            width=width,
        )

    few = rows.select("hidden_size", "inter_size", "topk", "num_experts").n_unique() < 4
    shape = ("hidden_size", "inter_size", "topk", "num_experts", *(("moe_tp_size", "moe_ep_size") if few else ()))
    return Sample(seconds * 1e-3, _held_out(rows, *shape), tokens, np.where(warm, 0.0, 1.0), predict)


def fit_links(table: pl.DataFrame) -> dict[str, list[float]]:
    """Inside CUDA graphs; of vLLM and SGLang the faster at each size. Messages are counted in 16-bit elements."""
    table = table.filter(pl.col("variant").str.contains("graph"))
    table = table.group_by("gpu", "num_gpus", "message_size").agg(pl.col("latency_ms").min())
    curves = {}
    for gpu, gpus in _groups(table, "gpu", "num_gpus"):
        if gpu in GPUS and (gpu, int(gpus)) not in ODD_LINKS:
            rows = table.filter((pl.col("gpu") == gpu) & (pl.col("num_gpus") == gpus)).sort("message_size")
            name = f"{GPUS[gpu]}/{gpus}"
            sample = _link_sample(find_gpu(GPUS[gpu]), int(gpus), rows)
            curves[name] = _fit("all-reduce " + name, sample, LINK, FITTED)
    return curves


def _link_sample(gpu: Gpu, gpus: int, rows: pl.DataFrame) -> Sample:
    message = rows["message_size"].to_numpy() * 2.0
    return Sample(
        seconds=rows["latency_ms"].to_numpy().astype(float) * 1e-3,
        held_out=np.arange(rows.height) % 4 == 2,
        size=message / 2**14,
        weight=np.ones(rows.height),
        predict=lambda x, at: all_reduce_seconds(LinkCurve(*x), gpus, message[at], gpu.link_among(gpus)),
    )


def check_steps(path: Path) -> None:
    """Whole models without attention on an H200 (CUDA graphs, bf16) against the sum of their kernels.

    Between the matrices, norms, rotary and activations take 12 µs a layer (the smallest steps say so, of both
    models) and their bytes at the speed of a copy.
    """
    gpu, bf16 = find_gpu("H200"), Precision.bf16
    shapes = {"llama-3.2-1b": (16, 2048, 3072, 8192), "llama-3.1-8b": (32, 4096, 6144, 14336)}
    steps = [
        row for row in json.loads(path.read_text(encoding="utf-8"))["rows"] if row["kind"] == "decode_no_attention"
    ]
    for backend in BACKENDS:
        print(f"decode without attention, {backend}: measured ms, kernels ms, left per layer in µs, error of the sum")
        errors = []
        for row in steps:
            layers, hidden, qkv, inter = shapes[row["model"]]
            layer = ((qkv, hidden), (hidden, hidden), (2 * inter, hidden), (hidden, inter))
            kernels = sum(float(gemm_s(gpu, bf16, row["batch"], n, k, backend)) for n, k in layer) * layers
            kernels += float(gemm_s(gpu, bf16, row["batch"], 128256, hidden, backend))
            moved = row["batch"] * 2 * (8 * hidden + 3 * inter + 2 * qkv)
            small = layers * (SMALL_OPS_S + moved / (COPY_SHARE * gpu.bandwidth_bytes_per_s))
            left = (row["ms"] * 1e-3 - kernels) / layers
            errors.append(np.log((kernels + small) / (row["ms"] * 1e-3)))
            name = f"{row['model']} batch {row['batch']:4}"
            print(f"  {name}: {row['ms']:7.3f} {kernels * 1e3:7.3f} {left * 1e6:7.1f} {errors[-1]:+7.1%}")
        print("  median, p90, bias:", _summary(np.array(errors)))


def _fit(name: str, sample: Sample, bounds: Bounds[Any], sharpness: Sequence[float | None]) -> list[float]:
    rows = np.flatnonzero(sample.weight > 0)
    held_out = rows[sample.held_out[rows]]
    trials = [(*_least_squares(sample, rows[~sample.held_out[rows]], bounds, p), p) for p in sharpness]
    _, x, p = min(trials, key=lambda trial: trial[0])
    error = np.log(sample.predict(x, held_out) / sample.seconds[held_out])
    size = sample.size[held_out]
    parts = (size > 0, size <= 16, (size > 16) & (size <= 512), size > 512)
    print(f"{name:42}", " |".join(_summary(error[part]) for part in parts), flush=True)
    return [float(value) for value in _least_squares(sample, rows, bounds, p)[1]]


def _least_squares(
    sample: Sample, rows: NDArray[np.intp], bounds: Bounds[Any], sharpness: float | None
) -> tuple[float, Array]:
    """Loss and parameters of a fit to a sample of the rows; without a sharpness, it is fitted as well."""
    rows = np.random.default_rng(0).permutation(rows)[:SAMPLE]
    begin = bounds.start if sharpness is None else bounds.start._replace(sharpness=sharpness)
    return least_log_squares(
        lambda x: sample.predict(x, rows),
        sample.seconds[rows],
        begin,
        bounds.low,
        bounds.high,
        fixed=None if sharpness is None else begin._fields.index("sharpness"),
        weight=sample.weight[rows],
        most_steps=80,
    )


def _held_out(rows: pl.DataFrame, *shape: str) -> NDArray[np.bool_]:
    """A quarter of the shapes, the same on every GPU."""
    keys = rows.select(shape).rows()
    picked = {key: zlib.crc32(repr(key).encode()) % 4 == 0 for key in set(keys)}
    return np.array([picked[key] for key in keys])


def _summary(error: Array) -> str:
    if not error.size:
        return "    -     -     -"
    size = np.abs(error)
    return f"{np.median(size):6.1%}{np.quantile(size, 0.9):6.1%}{error.mean():+6.1%}".replace("%", "")


def _groups(table: pl.DataFrame, *columns: str) -> Iterator[tuple[str, ...]]:
    return iter(table.select(columns).unique().sort(columns).rows())


def _read(path: Path) -> pl.DataFrame:
    table = pl.read_parquet(path)
    return table.with_columns(pl.col(pl.Categorical).cast(pl.String))


def _rows(table: dict[str, list[float]]) -> str:
    rounded = {name: [float(f"{value:.4g}") for value in numbers] for name, numbers in table.items()}
    return ",\n".join(f'    "{name}": {json.dumps(numbers)}' for name, numbers in rounded.items())


if __name__ == "__main__":
    main()
