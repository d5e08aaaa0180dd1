"""What engines add to the GPU's own time: fits physics/data/overhead.toml.

    python benchmarks/fit_engines.py --published published.csv.gz --steps benchmarks/data/h200_steps.json

Layers: the time between kernels, on bare decode steps (no engine). Engines: two figures of the host for each engine
and era, on the rows of the published table marked ``calibrate`` and on nothing else, by least squares on
log(predicted ÷ measured) with a soft loss. Needs scipy (not a dependency of the product).
"""

import argparse
import math
import statistics
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from scipy.optimize import least_squares

from tokonomics.catalog.engines import find_engine
from tokonomics.measure.measurements import Measurement, Metric, read_measurements
from tokonomics.measure.validate import deployment_of, value_of
from tokonomics.nouns import Badge
from tokonomics.physics.overhead import Layers, Overhead, version_numbers
from tokonomics.physics.steptime import StepModel

ERAS: dict[str, tuple[tuple[int, str, bool], ...]] = {
    # First year, first version, and whether the host works beside the GPU. vLLM: the V1 engine came with 0.8,
    # asynchronous scheduling by default with 0.14 (release notes). TensorRT-LLM: the PyTorch backend and its overlap
    # scheduler with 0.17. SGLang: the zero-overhead scheduler with 0.4.
    "vllm": ((2023, "0.0", False), (2025, "0.8", False), (2026, "0.14", True)),
    "tensorrt-llm": ((2023, "0.0", False), (2025, "0.17", True)),
    "sglang": ((2023, "0.0", True),),
}
NOT_SEEN = {("vllm", 2026)}
"""Eras without rows of their own whose host works beside the GPU: its time is not seen, and taken as none."""
STAND_INS = {"tgi": ("vllm", 2023), "llama.cpp": ("vllm", 2023)}
SAME = {"tensorrt-llm+triton": "tensorrt-llm"}
FITTED_METRICS = (Metric.tpot_s, Metric.output_tok_s, Metric.total_tok_s)
MOST_ROWS = 260


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--published", type=Path, required=True)
    parser.add_argument("--steps", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("src/tokonomics/physics/data/overhead.toml"))
    options = parser.parse_args()
    layers = fit_layers([row for row in read_measurements(options.steps) if isinstance(row, Measurement)])
    print(f"layers: {layers.layer_s * 1e6:.1f} µs each")
    rows = [row for row in read_measurements(options.published) if isinstance(row, Measurement)]
    rows = [row for row in rows if row.split == "calibrate" and deployment_of(row)]
    text = [_header(), _layers_text(layers)]
    fitted: dict[tuple[str, int], Overhead] = {}
    for engine, eras in ERAS.items():
        of_engine = [row for row in rows if SAME.get(row.engine or "", row.engine) == engine]
        for start, version, overlapped in eras:
            found = find_engine(engine)
            of_era = [row for row in of_engine if _era(row, eras) == start]
            if (engine, start) in NOT_SEEN:
                before = Overhead(
                    since_version=version,
                    step_s=0,
                    sequence_s=0,
                    overlapped=overlapped,
                    badge=Badge.assumed,
                    source="no rows of this era: the host works beside the GPU and is taken never to be the slower",
                )
            else:
                before = fit_engine(of_era, layers, version, overlapped)
            fitted[engine, start] = before
            text.append(_engine_text(found.key, start, before))
    for engine, like in STAND_INS.items():
        text.append(
            _engine_text(
                engine,
                like[1],
                fitted[like].model_copy(
                    update={
                        "badge": Badge.assumed,
                        "source": f"no published results at hand: taken as {like[0]} of {like[1]}",
                    }
                ),
            )
        )
    options.out.write_text("\n".join(text), encoding="utf-8")


def fit_layers(rows: Sequence[Measurement]) -> Layers:
    """Seconds a layer takes beyond its kernels."""
    decode = [row for row in rows if row.mode == "decode_step"]

    def errors(layer_s: float) -> list[float]:
        layers = Layers(layer_s=layer_s, source="")
        models = {row.model: _bare(row, layers) for row in decode}
        return [abs(math.log(value_of(row, models[row.model]) / row.value)) for row in decode]

    best = min(np.arange(8, 24, 0.5), key=lambda us: float(np.median(errors(us * 1e-6))))
    source = "bare decode steps of Llama-3.1-8B and 3.2-1B shapes on one H200 (CUDA graphs, PyTorch attention)"
    return Layers(layer_s=float(best) * 1e-6, source=source)


def _era(row: Measurement, eras: Sequence[tuple[int, str, bool]]) -> int:
    """The era a row belongs to: by its version, or else by its year."""
    given = version_numbers(row.engine_version)
    if given:
        return [start for start, version, _ in eras if version_numbers(version) <= given][-1]
    return [start for start, _, _ in eras if start <= row.year][-1]


def fit_engine(rows: Sequence[Measurement], layers: Layers, version: str, overlapped: bool) -> Overhead:
    """The host's two figures that bring predictions of these rows closest to what was measured."""
    fast = [row for row in rows if row.metric in FITTED_METRICS]
    fast = fast[:: max(1, len(fast) // MOST_ROWS)]

    def overhead(figures: Sequence[float]) -> Overhead:
        step_us, sequence_us = figures
        return Overhead(since_version=version, step_s=step_us * 1e-6, sequence_s=sequence_us * 1e-6,
                        overlapped=overlapped, badge=Badge.measured, source="")  # fmt: skip

    def residuals(figures: Sequence[float]) -> list[float]:
        made = overhead(figures)
        return [math.log(value_of(row, _model(row, made, layers)) / row.value) for row in fast]

    found = least_squares(
        residuals, [1000.0, 30.0], bounds=([0.0, 0.0], [30_000.0, 500.0]), loss="soft_l1", f_scale=0.1,
        x_scale=[1000.0, 10.0], diff_step=0.02, max_nfev=25,
    )  # fmt: skip
    made = overhead(found.x)
    if np.mean(np.abs(residuals([0.0, 0.0]))) <= np.mean(np.abs(found.fun)) + 1e-3:
        made = overhead([0.0, 0.0])  # the host is never the slower in these rows: its time cannot be told
    sources = sorted({row.source for row in rows})
    errors = [abs(math.log(value_of(row, _model(row, made, layers)) / row.value)) for row in fast]
    print(f"{rows[0].engine} {min(r.year for r in rows)}–{max(r.year for r in rows)}: n {len(fast)}, "
          f"step {made.step_s * 1e6:.0f} µs, "
          f"sequence {made.sequence_s * 1e6:.1f} µs; "
          f"median error {statistics.median(errors):.1%}")  # fmt: skip
    return made.model_copy(update={"source": f"{len(fast)} rows of {'; '.join(sources)}"})


def _bare(row: Measurement, layers: Layers) -> StepModel:
    deployment = deployment_of(row)
    assert deployment is not None
    return StepModel(deployment, None, layers)


_PARTS: dict[tuple[object, ...], StepModel] = {}


def _model(row: Measurement, made: Overhead, layers: Layers) -> StepModel:
    """The row's step model with an engine's figures; the kernels' part is computed once."""
    key = (row.model, row.gpu, row.tp, row.pp, row.ep, row.weights, row.kv, row.engine, row.tuned)
    if key not in _PARTS:
        deployment = deployment_of(row)
        assert deployment is not None
        _PARTS[key] = StepModel(deployment, made, layers)
    return _PARTS[key].with_engine(made)


def _header() -> str:
    return "# Made by benchmarks/fit_engines.py; do not edit.\n"


def _layers_text(layers: Layers) -> str:
    return f'[layers]\nlayer_s = {layers.layer_s:.3g}\nsource = "{layers.source}"\n'


def _engine_text(engine: str, start: int, made: Overhead) -> str:
    return (
        f'[engines."{engine}".{start}]\nsince_version = "{made.since_version}"\nstep_s = {made.step_s:.2e}\n'
        f"sequence_s = {made.sequence_s:.2e}\n"
        f"overlapped = {str(made.overlapped).lower()}\n"
        f'badge = "{made.badge}"\nsource = "{made.source}"\n'
    )


if __name__ == "__main__":
    main()
