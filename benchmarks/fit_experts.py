"""Fits what was timed beside experts: ``BLOCK_*`` of ``matrix_kernels``, two constants of ``operations``.

    python benchmarks/fit_experts.py

From ``data/vllm_h200_experts``: kernels of Qwen3 30B-A3B in FP8 blocks, whose products and quantising are compared with
the same layers in 16 bits, give the time for each element of k, the columns that quantising costs and the rows of
padding. Its decode steps of 4 to 128 sequences with spread routing give the launch: what steps have beyond their
kernels, for each product. What was measured there also multiplied the router in FP8, which published checkpoints keep
in 16 bits: what that cost is taken off the steps.
"""

import csv
import gzip
import math
import statistics
from collections import defaultdict
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from tokonomics.catalog.gpus import find_gpu
from tokonomics.catalog.layers import Precision
from tokonomics.measure.stated_setup import stated_deployment
from tokonomics.physics import matrix_kernels, operations
from tokonomics.physics.matrix_kernels import GemmCurve, gemm_s, gemm_seconds
from tokonomics.physics.overhead import overhead
from tokonomics.physics.steptime import StepModel

HERE = Path(__file__).parent / "data" / "vllm_h200_experts"
LAYERS = 48
ROUTER = (128, 2048)
SHAPES = ((5120, 2048), (2048, 4096), ROUTER)
"""Width and depth of the products: queries with keys and values, output, router."""
OWN_QUANTISING = 0.75
"""Share of the quantising outside norms that is before these products: by width, 2,048 of 8,192 are the experts'."""
ODD = (601,)
"""Numbers of rows that are no multiple of 4 take other kernels, at twice the time; engines pad what they capture."""
SORTING = ("moe_align", "count_and_sort")
SORTED_LAYERS = {"qwen3": 48, "deepseek": 26, "mixtral": 8}
SMALL = ("triton", "rms_norm", "reshape_and_cache", "concat_and_cache", "elementwise", "Memcpy", "Memset")
NOT_SMALL = "distribution"  # draws the experts of a simulated routing
STEPS = (4, 8, 16, 32, 48, 64, 96, 128)
Array = NDArray[np.float64]


def main() -> None:
    gpu = find_gpu("H200")
    own = GemmCurve(*matrix_kernels._tables()["gemm"]["H200/vllm/fp8"])
    rates = gpu.peak_flops(Precision.fp8), gpu.bandwidth_bytes_per_s, Precision.fp8.bytes_per_weight

    def product_s(x: Array, many: int, n: int, k: int) -> float:
        """Return the time of a product at so many ns an element of k, columns and rows of padding."""
        curve = own._replace(columns=float(x[1]), rows=float(x[2]))
        chain_s = own.launch_s + float(x[0]) * 1e-9 * k
        return max(chain_s, float(gemm_seconds(curve, np.asarray(float(many)), n, k, *rates)))

    blocks = _by_rows(
        "qwen3-30b-a3b-fp8", {"product": "fp8_blockwise", "quant": "per_token_group_quant", "norm": "rms_norm"}
    )
    wide = _by_rows("qwen3-30b-a3b-again", {"norm": "rms_norm"})
    rows = [many for many in blocks if many in wide and many not in ODD]
    taken = np.array(
        [
            blocks[many]["product"] + OWN_QUANTISING * blocks[many]["quant"] + blocks[many]["norm"] - wide[many]["norm"]
            for many in rows
        ]
    )

    def predicted(x: Array) -> Array:
        return np.array([math.fsum(product_s(x, many, n, k) for n, k in SHAPES) for many in rows])

    weight = np.array([0.3 if many == 1 else 1.0 for many in rows])  # a single row takes another kernel
    found = least_squares(
        lambda x: weight * np.log(predicted(x) / taken), [2.0, 2000.0, 50.0], bounds=([0, 0, 0], [5, 5000, 300]),
        x_scale=[0.5, 500, 50],
    )  # fmt: skip
    depth_ns, columns, padding = found.x
    print(f"products: {depth_ns:.2f} ns an element of k, {columns:.0f} columns, {padding:.0f} rows")
    for many, us, share in zip(rows, taken * 1e6, predicted(found.x) / taken, strict=True):
        print(f"    {many:5} rows: {us:6.1f} µs a layer, {share - 1:+.0%}")
    more_s = product_s(found.x, STEPS[0], *ROUTER) - float(gemm_s(gpu, Precision.bf16, STEPS[0], *ROUTER))
    print(f"the router takes {more_s * 1e6:.1f} µs more in FP8")
    fit_launch(own.launch_s, LAYERS * more_s)
    fit_copies()
    time_sorting()


def fit_copies() -> None:
    """Print how often latent attention copies its heads' rows: from the small kernels of DeepSeek-V2-Lite's prompts."""
    steps: dict[tuple[int, str], float] = defaultdict(float)
    with gzip.open(HERE / "kernels.csv.gz", "rt") as file:
        for row in csv.DictReader(file):
            if row["model"] == "deepseek-v2-lite-uniform" and int(row["prefill"]) >= 1024:
                small = any(name in row["kernel"] for name in SMALL) and NOT_SMALL not in row["kernel"]
                steps[int(row["prefill"]), row["wall_ms"]] += float(row["us"]) * 1e-6 if small else 0.0
    deployment = stated_deployment("deepseek-v2-lite", "H200", 1, 1, 1, 1, "bf16", None, "vllm")
    errors = {}
    for copies in np.arange(4, 14, 0.5):
        operations.LATENT_COPIES = float(copies)
        kernels = StepModel(deployment, overhead(deployment.engine)).kernels
        predicted = {
            tokens: math.fsum(
                float(kernels.small_ops_s(group, np.array([float(tokens)]))[0]) for group in deployment.model.groups
            )
            for tokens, _ in steps
        }
        off = [abs(predicted[tokens] / taken_s - 1) for (tokens, _), taken_s in steps.items()]
        errors[float(copies)] = statistics.fmean(off)
    best = min(errors, key=lambda copies: errors[copies])
    print(f"latent attention: {best} copies, off by {errors[best]:.1%} in the mean")


def time_sorting() -> None:
    """Print what sorting tokens by expert takes a layer, in decode steps that sort them."""
    taken: dict[tuple[str, str, str], float] = defaultdict(float)
    with gzip.open(HERE / "kernels.csv.gz", "rt") as file:
        for row in csv.DictReader(file):
            if int(row["decode"]) and any(name in row["kernel"] for name in SORTING):
                layers = next(count for name, count in SORTED_LAYERS.items() if row["model"].startswith(name))
                taken[row["model"], row["decode"], row["wall_ms"]] += float(row["us"]) / layers
    low, middle, high = np.percentile(list(taken.values()), [10, 50, 90])
    print(f"sorting tokens by expert: {middle:.1f} µs a layer ({low:.1f}–{high:.1f} in four of five steps)")


def _by_rows(model: str, kinds: dict[str, str]) -> dict[int, dict[str, float]]:
    """Return the seconds of a layer's kernels of each kind by the rows of a step: medians of steps alike."""
    steps: dict[tuple[str, ...], dict[str, float]] = defaultdict(lambda: dict.fromkeys(kinds, 0.0))
    with gzip.open(HERE / "kernels.csv.gz", "rt") as file:
        for row in csv.DictReader(file):
            if row["model"].startswith(model):
                step = steps[row["model"], row["decode"], row["prefill"], row["wall_ms"]]
                for kind, name in kinds.items():
                    step[kind] += float(row["us"]) * 1e-6 / LAYERS if name in row["kernel"] else 0.0
    by_rows = defaultdict(list)
    for (_, decode, prefill, _), step in steps.items():
        by_rows[int(decode) + int(prefill)].append(step)
    return {
        many: {kind: statistics.median(step[kind] for step in found) for kind in kinds}
        for many, found in sorted(by_rows.items())
    }


def fit_launch(begin_s: float, router_s: float) -> None:
    """Print the launch under which decode steps, without what FP8 cost the router, are predicted best."""
    with gzip.open(HERE / "summary.csv.gz", "rt") as file:
        measured = [
            (int(row["batch"]), float(row["context"]), float(row["step_ms"]) * 1e-3 - router_s)
            for row in csv.DictReader(file)
            if row["model"] == "qwen3-30b-a3b-fp8-uniform" and row["kind"] == "decode" and int(row["batch"]) in STEPS
        ]
    deployment = stated_deployment("qwen3-30b-a3b", "H200", 1, 1, 1, 1, "fp8", None, "vllm")
    errors = {}
    for more_us in np.arange(0, 8, 0.5):
        matrix_kernels.BLOCK_LAUNCH_S = begin_s + more_us * 1e-6
        operations._tabulated_gemm_s.cache_clear()
        steps = StepModel(deployment, overhead(deployment.engine))
        off = [abs(float(steps.decode(batch, context)) / step_s - 1) for batch, context, step_s in measured]
        errors[matrix_kernels.BLOCK_LAUNCH_S] = statistics.fmean(off)
    best = min(errors, key=lambda launch_s: errors[launch_s])
    print(f"launch {best * 1e6:.1f} µs: decode steps are {errors[best]:.1%} off in the mean, "
          f"with {begin_s * 1e6:.1f} µs {errors[begin_s]:.1%}")  # fmt: skip


if __name__ == "__main__":
    main()
