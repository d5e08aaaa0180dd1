"""Fit the attention curves: writes physics/data/attention_kernels.json and prints the error on held-out shapes.

    python benchmarks/fit_attention_kernels.py --kernels DIR [--steps h200_steps.json] [--out FILE]

``--kernels`` is a folder with decode_attention, prefill_attention, mla_decode and mla_prefill .parquet (timings that
come with aiconfigurator-core 0.12.0, NVIDIA, Apache-2.0). Needs polars and scipy; what is fitted needs neither.

- One curve per GPU, backend, cache format, head width and mode: each is a kernel of its own. Log residuals, soft-L1, a
  weak pull towards where each starts for what the timings cannot tell.
- A quarter of the (heads, kv_heads, head_dim) combinations is held out whole to report the error; the shipped curves
  are then fitted on all of them.
- Rows whose data fit in L2, and would take a visible part of the time to read, are left out of the fit and of the
  error: they were timed hot. The last columns show the held-out ones among them.
- Latent attention was timed as a whole module. Its projections are fitted beside it (weights of DeepSeek-V3 read once,
  multiplied once per token) and not shipped; launch and first wave are those of the GPU's plain decode kernel.
- ``pytorch``: SDPA in whole models on an H200 (steps with attention less steps without), which never splits KV. One
  curve per head width, that is per model; its error is that of each batch size fitted on the others.
"""

import argparse
import json
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tokonomics.catalog.gpus import Gpu, find_gpu
from tokonomics.catalog.layers import Precision
from tokonomics.measure.probe.fit_profile import ATTENTION_SHARPNESS, DECODE, PREFILL, PULL, least_log_squares
from tokonomics.physics.attention_kernels import DecodeCurve, PrefillCurve, Work, decode_time, prefill_time
from tokonomics.physics.curves import Array

ATTRIBUTION = "kernel timings of aiconfigurator-core 0.12.0 (NVIDIA, Apache-2.0), fitted 2026-11-15"
STEPS = "pytorch: whole-model decode steps on one H200 (Llama-3.1-8B and 3.2-1B shapes, CUDA graphs, SDPA)"
GPUS = {
    "a100_sxm": ("A100-80GB", 40e6),
    "h100_sxm": ("H100-SXM", 50e6),
    "h200_sxm": ("H200", 50e6),
    "l40s": ("L40S", 96e6),
    "b200_sxm": ("B200", 126e6),
    "b300_sxm": ("B300", 126e6),
    "gb200": ("GB200", 126e6),
    "gb300": ("GB300", 126e6),
    "rtx_pro_6000_server": ("RTXPRO6000", 128e6),
}
"""Timed GPUs that the catalogue knows, and their L2 caches in bytes (NVIDIA architecture whitepapers)."""
LAYERS = {"llama-3.2-1b": (16, 32, 8, 64), "llama-3.1-8b": (32, 32, 8, 128)}
"""Layers, heads, KV heads and head width of the models with whole steps."""

# Of the module that holds latent attention: launches, share of bandwidth, share of peak of its projections.
# The shares are held near what plain GEMMs reach, so that the module's other work counts as attention.
MODULE_START, MODULE_LOW, MODULE_HIGH = (60e-6, 0.7, 0.7), (1e-6, 0.4, 0.45), (1e-3, 0.9, 0.85)
SAMPLE, TRIAL = 3000, 600
DECODE_SIZES = (len(DECODE.start), len(DECODE.start) + len(MODULE_START))

Columns = dict[str, Array]
Model = Callable[[Array, Columns], Array]


class Fit(NamedTuple):
    """One curve: parameters, and log(fitted ÷ measured) of rows it has not seen, with their seconds; of hot ones."""

    parameters: Array
    unseen: Array
    seconds: Array
    hot: Array


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernels", type=Path, required=True)
    parser.add_argument("--steps", type=Path)
    parser.add_argument("--out", type=Path, default=Path("src/tokonomics/physics/data/attention_kernels.json"))
    options = parser.parse_args()
    curves: dict[str, Any] = {}
    for op in ("decode", "prefill", "mla_decode", "mla_prefill"):
        name = op if op.startswith("mla") else f"{op}_attention"
        rows = _read(options.kernels / f"{name}.parquet", decode="decode" in op)
        curves[op] = _fit_op(op, rows, curves)
    if options.steps:
        curves["decode"]["H200"]["pytorch"] = {"bf16": _fit_steps(options.steps)}
    whole = {
        "made_by": "benchmarks/fit_attention_kernels.py; do not edit",
        "source": f"{ATTRIBUTION}; {STEPS}",
        "bandwidth_bytes_per_s": {key: find_gpu(key).bandwidth_bytes_per_s for key, _ in GPUS.values()},
        "curves": curves,
    }
    options.out.write_text(json.dumps(whole, separators=(",", ":")).replace('},"', '},\n"') + "\n", encoding="utf-8")
    print(f"{options.out}: {options.out.stat().st_size / 1000:.0f} kB")


def _read(path: Path, *, decode: bool) -> pl.DataFrame:
    """Timings under short names, of the GPUs of the catalogue, in seconds."""
    rows = pl.read_parquet(path).filter(pl.col("gpu").cast(str).is_in(list(GPUS)))
    names = {"num_heads": "heads", "num_key_value_heads": "kv_heads", "batch_size": "batch", "window_size": "window"}
    rows = rows.rename({old: new for old, new in names.items() if old in rows.columns})
    text = [pl.col(column).cast(str) for column in rows.columns if rows[column].dtype == pl.Categorical]
    rows = rows.with_columns(*text, seconds=pl.col("latency_ms").cast(float) * 1e-3)
    rows = rows.with_columns(kv=pl.col("kv_cache_dtype").replace({"bfloat16": "bf16"}))
    if "window" in rows.columns:
        rows = rows.with_columns(pl.col("window").fill_null(0))
    else:
        rows = rows.filter(pl.col("model").str.contains("DeepSeek-V3")).with_columns(
            window=pl.lit(0), kv_heads=pl.lit(1), head_dim=pl.lit(512)
        )
    return rows.with_columns(context=pl.col("step") + 1) if decode else rows.filter(pl.col("isl") > 1)


def _fit_op(op: str, rows: pl.DataFrame, done: dict[str, Any]) -> dict[str, Any]:
    """Fit every curve of an operation; print one line per GPU, backend and cache format, and one over all."""
    print(f"\n{op}: |log error| on held-out (heads, kv_heads, head_dim)")
    print(
        f"{'gpu':12}{'backend':8}{'kv':6}{'n':>7}{'median':>8}{'p90':>7}{'bias':>8}  small (<30 µs) / large median",
        end="",
    )
    print("; hot rows: n, median, bias; median with them")
    found: dict[str, Any] = {}
    pool: list[Fit] = []
    for (name, backend, kv), group in sorted(rows.group_by("gpu", "backend", "kv"), key=lambda each: str(each[0])):
        key, cache = GPUS[str(name)]
        math, group = _math(op, group)
        fits: list[Fit] = []
        table: dict[str, Any] = {"math": math}
        for mode, width, part in _parts(op, group):
            fit = _fit(op, part, find_gpu(key), cache, str(kv), math, done.get("decode", {}).get(key, {}))
            if fit is None:
                continue
            table.setdefault(mode, {})[str(width)] = [float(f"{parameter:.4g}") for parameter in fit.parameters]
            fits.append(fit)
        found.setdefault(key, {}).setdefault(str(backend), {})[str(kv)] = table
        pool += fits
        print(_line(f"{key:12}{backend!s:8}{kv!s:6}", fits))
    print(_line(f"{'all':26}", pool))
    return found


def _math(op: str, rows: pl.DataFrame) -> tuple[str, pl.DataFrame]:
    """Keep the rows engines would run: 8-bit math with an 8-bit cache where most were timed so; say which."""
    column = "mla_dtype" if op.startswith("mla") else "attn_dtype"
    counts = dict(rows.group_by(column).len().iter_rows())
    math = max(counts, key=lambda each: counts[each])
    rows = rows.filter(pl.col(column) == math)
    if op.startswith("mla"):
        widest = "bfloat16" if "bfloat16" in rows["gemm_type"].to_list() else "fp8_block"
        rows = rows.filter(pl.col("gemm_type") == widest)
        if op == "mla_prefill":  # absorbed kernels run the shortest prompts only
            rows = rows.filter(~pl.col("kernel_source").str.contains("MLA"))
    return ("fp8" if math == "fp8" else "bf16"), rows


def _parts(op: str, rows: pl.DataFrame) -> Iterator[tuple[str, int, pl.DataFrame]]:
    plain = (pl.col("heads") == pl.col("kv_heads")) & (op == "decode")
    mode = pl.when(pl.col("window") > 0).then(pl.lit("window")).when(plain).then(pl.lit("plain"))
    rows = rows.with_columns(mode=mode.otherwise(pl.lit("grouped")))
    for (name, width), part in sorted(rows.group_by("mode", "head_dim"), key=lambda each: str(each[0])):
        yield str(name), int(str(width)), part


def _fit(op: str, rows: pl.DataFrame, gpu: Gpu, cache: float, kv: str, math: str, plain: dict[str, Any]) -> Fit | None:
    columns: dict[str, Array] = {
        each: rows[each].to_numpy().astype(float)
        for each in ("batch", "heads", "kv_heads", "head_dim", "window", "seconds", "context", "isl")
        if each in rows.columns
    }
    warm = _only(columns, np.zeros(len(columns["seconds"]), dtype=bool))
    if not op.startswith("mla"):
        hot = _hot(columns, gpu, cache, kv)
        columns, warm = _only(columns, ~hot), _only(columns, hot & _held_out(columns))
    if len(columns["seconds"]) < 60:
        return None
    wide = op.startswith("mla") and "bfloat16" in rows["gemm_type"].to_list()
    start, low, high, model = _problem(op, gpu, kv, math, wide, plain)
    held = _held_out(columns)
    size = len(DecodeCurve._fields if "decode" in op else PrefillCurve._fields)
    blind = _solve(model, _only(columns, ~held), start, low, high) if held.any() and not held.all() else start
    unseen = _only(columns, held)
    error = np.log(model(blind, unseen) / unseen["seconds"]) if held.any() and not held.all() else np.zeros(0)
    shipped = _solve(model, columns, start, low, high)
    heated = np.log(model(blind, warm) / warm["seconds"]) if len(error) else np.zeros(0)
    return Fit(shipped[:size], error, unseen["seconds"][: len(error)], heated)


def _problem(
    op: str, gpu: Gpu, kv: str, math: str, wide: bool, plain: dict[str, Any]
) -> tuple[Array, Array, Array, Model]:
    """Start, bounds and the function of parameters for an operation."""
    width, bandwidth, peak = 1.0 if kv == "fp8" else 2.0, gpu.bandwidth_bytes_per_s, gpu.peak_flops(Precision(math))

    def work(c: Columns) -> Work:
        return Work(c["kv_heads"], c["heads"] / c["kv_heads"], 2 * c["head_dim"] * width, 4 * c["head_dim"])

    if op == "decode":

        def decode(x: Array, c: Columns) -> Array:
            seen = np.where(c["window"] > 0, np.minimum(c["context"], c["window"]), c["context"])
            return decode_time(DecodeCurve(*x), bandwidth, peak, c["batch"], seen, work(c))

        return np.array(DECODE.start), np.array(DECODE.low), np.array(DECODE.high), decode
    if op == "prefill":

        def prefill(x: Array, c: Columns) -> Array:
            window, past = np.where(c["window"] > 0, c["window"], 1e9), np.zeros_like(c["isl"])
            return prefill_time(PrefillCurve(*x), bandwidth, peak, c["isl"], past, work(c), window, c["batch"])

        return np.array(PREFILL.start), np.array(PREFILL.low), np.array(PREFILL.high), prefill
    return _module_problem(op, gpu, width, peak, wide, plain)


def _module_problem(
    op: str, gpu: Gpu, width: float, peak: float, wide: bool, plain: dict[str, Any]
) -> tuple[Array, Array, Array, Model]:
    bandwidth = gpu.bandwidth_bytes_per_s
    weights, rate = (2.0, gpu.peak_flops(Precision.bf16)) if wide else (1.0, gpu.peak_flops(Precision.fp8))

    def projections(x: Array, tokens: Array, heads: Array) -> Array:
        """DeepSeek-V3: hidden 7168, query rank 1536, latent 512 + 64, heads of 128 + 64 and 128."""
        narrow = weights * (7168 * (1536 + 576) + heads * (1536 * 192 + 128 * 7168))
        unpack = heads * 512 * 256.0
        moved = (narrow + 2.0 * unpack) / (bandwidth * x[1])
        computed = tokens * 2 * (narrow / weights / rate + unpack / gpu.peak_flops(Precision.bf16)) / x[2]
        return np.asarray(x[0] + np.hypot(moved, computed))

    if op == "mla_decode":

        def decode(x: Array, c: Columns) -> Array:
            work = Work(1.0, c["heads"], 576 * width, 2 * 1088.0)
            core = decode_time(DecodeCurve(*x[:-3]), bandwidth, peak, c["batch"], c["context"], work)
            return core + projections(x[-3:], c["batch"], c["heads"])

        curve = plain["vllm"].get("bf16")["grouped"]["128"] if plain else list(DECODE.start)
        like = DecodeCurve(*curve)
        fixed = {"launch_s": like.launch_s, "wave_s": like.wave_s}
        start = DECODE.start._replace(**fixed)
        low = DECODE.low._replace(**{name: value * 0.999 for name, value in fixed.items()})
        high = DECODE.high._replace(rows=256, **{name: value * 1.001 for name, value in fixed.items()})
        return _joined(start, MODULE_START), _joined(low, MODULE_LOW), _joined(high, MODULE_HIGH), decode

    def prefill(x: Array, c: Columns) -> Array:
        work, past = Work(c["heads"], 1.0, 640.0, 640.0), np.zeros_like(c["isl"])
        curve = PrefillCurve(*x[:-3])
        core = prefill_time(curve, bandwidth, peak, c["isl"], past, work, None, c["batch"])
        return core + projections(x[-3:], c["batch"] * c["isl"], c["heads"])

    least = _joined(PREFILL.low._replace(launch_s=5.99e-6), MODULE_LOW)
    most = _joined(PREFILL.high._replace(launch_s=6.01e-6, compute=0.8), MODULE_HIGH)
    return _joined(PREFILL.start, MODULE_START), least, most, prefill


def _solve(model: Model, columns: Columns, start: Array, low: Array, high: Array) -> Array:
    """The best of the smooth maxima, by a trial on few rows; then its parameters on more."""
    place = (DecodeCurve if len(start) in DECODE_SIZES else PrefillCurve)._fields.index("sharpness")
    trials = []
    for p in ATTENTION_SHARPNESS:
        begin = np.where(np.arange(len(start)) == place, p, start)
        trials.append(_least(model, columns, begin, low, high, place, TRIAL))
    _, begin = min(trials, key=lambda each: each[0])
    return _least(model, columns, begin, low, high, place, SAMPLE, pull_to=start)[1]


def _least(
    model: Model, columns: Columns, begin: Array, low: Array, high: Array, fixed: int, rows: int,
    pull_to: Array | None = None,
) -> tuple[float, Array]:  # fmt: skip
    """Cost and solution on a sample of rows, with one parameter fixed."""
    count = len(columns["seconds"])
    if count > rows:
        columns = _only(columns, np.random.default_rng(0).choice(count, rows, replace=False))
    seconds = columns["seconds"]
    return least_log_squares(
        lambda x: model(x, columns), seconds, begin, low, high, fixed=fixed, pull=PULL, pull_to=pull_to
    )


def _hot(columns: Columns, gpu: Gpu, cache: float, kv: str) -> NDArray[np.bool_]:
    """What the call moves is within reach of L2, and moving it from memory would be a visible part of the time."""
    tokens = columns.get("isl", np.zeros(1)) if "context" not in columns else np.zeros(1)
    keys = columns.get("context", tokens)
    seen = np.where((columns["window"] > 0) & (tokens == 0), np.minimum(keys, columns["window"]), keys)
    cached = columns["kv_heads"] * seen * 2 * columns["head_dim"] * (1.0 if kv == "fp8" else 2.0)
    size = columns["batch"] * (cached + tokens * columns["heads"] * 4 * columns["head_dim"])
    return np.asarray((size < 1.5 * cache) & (size / gpu.bandwidth_bytes_per_s > 0.1 * columns["seconds"]))


def _held_out(columns: Columns) -> NDArray[np.bool_]:
    """A quarter of the head combinations, by a hash of their numbers."""
    shapes = zip(columns["heads"], columns["kv_heads"], columns["head_dim"], strict=True)
    return np.array([zlib.crc32(f"{h:.0f}/{k:.0f}/{d:.0f}".encode()) % 4 == 0 for h, k, d in shapes])


def _only(columns: Columns, rows: Any) -> Columns:
    return {name: values[rows] for name, values in columns.items()}


def _joined(curve: tuple[float, ...], module: tuple[float, ...]) -> Array:
    return np.array([*curve, *module])


def _line(label: str, fits: list[Fit]) -> str:
    error = np.concatenate([fit.unseen for fit in fits])
    small = np.concatenate([fit.seconds for fit in fits]) < 30e-6
    size = np.abs(error)
    if not len(size):
        return f"{label}{0:7}"
    halves = " / ".join(f"{np.median(size[part]):.3f}" if part.any() else "-" for part in (small, ~small))
    hot = np.concatenate([fit.hot for fit in fits])
    both = np.median(np.abs(np.concatenate([error, hot])))
    heated = f"{len(hot):6} {np.median(np.abs(hot)):.3f} {np.median(hot):+.3f}  {both:.3f}" if len(hot) else ""
    figures = f"{len(size):7}{np.median(size):8.3f}{np.quantile(size, 0.9):7.3f}{np.median(error):+8.3f}"
    return f"{label}{figures}  {halves}  {heated}"


def _fit_steps(path: Path) -> dict[str, Any]:
    """SDPA's decode kernel from whole steps: one curve, its head width only scales the bytes."""
    rows = json.loads(path.read_text(encoding="utf-8"))["rows"]
    without = {(row["model"], row["batch"]): row["ms"] for row in rows if row["kind"] == "decode_no_attention"}
    table = [
        (*LAYERS[row["model"]][1:], row["batch"], row["ctx"],
         (row["ms"] - without[row["model"], row["batch"]]) * 1e-3 / LAYERS[row["model"]][0])
        for row in rows if row["kind"] == "decode"
    ]  # fmt: skip
    names = ("heads", "kv_heads", "head_dim", "batch", "context", "seconds")
    columns = dict(zip(names, np.array(table, dtype=float).T, strict=True)) | {"window": np.zeros(len(table))}
    start, low, high, model = _problem("decode", find_gpu("H200"), "bf16", "bf16", True, {})
    start = np.array(DECODE.start._replace(stream=4e10, split_s=1e-8))
    high = np.array(DECODE.high._replace(split_s=2e-8))
    curves, errors = {}, []
    for width in np.unique(columns["head_dim"]):
        own = _only(columns, columns["head_dim"] == width)
        for batch in np.unique(own["batch"]):
            out = own["batch"] == batch
            blind = _solve(model, _only(own, ~out), start, low, high)
            errors.append(np.log(model(blind, _only(own, out)) / own["seconds"][out]))
        curves[f"{width:.0f}"] = [float(f"{each:.4g}") for each in _solve(model, own, start, low, high)]
    error = np.concatenate(errors)
    size = np.abs(error)
    print(f"\npytorch on H200, {len(size)} steps, each batch from the others: median {np.median(size):.3f}, ", end="")
    print(f"p90 {np.quantile(size, 0.9):.3f}, bias {np.median(error):+.3f}")
    return {"math": "bf16", "grouped": curves}


if __name__ == "__main__":
    main()
