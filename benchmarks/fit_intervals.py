"""How far predictions are off, by class: learns physics/data/intervals.toml from rows marked ``calibrate``.

    python benchmarks/fit_intervals.py --published published.csv.gz --steps benchmarks/data/h200_*steps.json

Rows of one combination of source, engine and model are not independent, and a new measurement comes from a new one: a
combination weighs as the square root of its rows. What a GPU without timings adds is seen in those that have them:
the error of predicting a timed GPU from another family's curves; for a relative's curves, halfway (in logarithms)
between that and what giving twins each other's curves changes, as a smaller sibling is more than a twin apart.
"""

import argparse
import itertools
import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

from tokonomics.catalog.engines import find_engine
from tokonomics.catalog.gpus import Gpu, find_gpu
from tokonomics.catalog.load_models import find_model
from tokonomics.catalog.precision import Precision
from tokonomics.measure.measurements import Measurement, read_measurements
from tokonomics.measure.validate import deployment_of, kind_of, steps_of, value_of
from tokonomics.physics.deployment import Deployment
from tokonomics.physics.intervals import error_class
from tokonomics.physics.overhead import Overhead
from tokonomics.physics.steptime import StepModel
from tokonomics.types import Badge

TWINS = (("H100-SXM", "H200"), ("B200", "B300"), ("B200", "GB200"))
"""Timed GPUs of one family; near twins, so a smaller sibling is taken to differ halfway to another family."""
SHORTEST_PREFILL = 512
"""Shorter prompts measure the launching host, not the GPU."""
TIMED = ("A100-80GB", "H100-SXM", "L40S", "B200", "RTXPRO6000")
NO_HOST = Overhead(since_version="0.0", step_s=0, sequence_s=0, overlapped=True, badge=Badge.assumed, source="none")
LOADS = tuple(itertools.product((1, 8, 64, 256), (512, 4096)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--published", type=Path, required=True)
    parser.add_argument("--steps", type=Path, nargs="+", required=True)
    parser.add_argument("--out", type=Path, default=Path("src/tokonomics/physics/data/intervals.toml"))
    options = parser.parse_args()
    rows = [row for row in read_measurements(options.published) if isinstance(row, Measurement)]
    rows = [row for row in rows if row.split == "calibrate"]
    for path in options.steps:
        bare = [row for row in read_measurements(path) if isinstance(row, Measurement)]
        rows += [row for row in bare if row.mode != "prefill_step" or row.input_tokens >= SHORTEST_PREFILL]
    errors: dict[str, dict[tuple[object, ...], list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        deployment = deployment_of(row)
        if deployment is None:
            continue
        name = error_class(kind_of(row), deployment)
        # PyTorch's attention curve was fitted on these very steps: judge bare steps by an engine's kernels instead.
        steps = StepModel(deployment, NO_HOST) if row.engine is None else steps_of(row)
        error = math.log(row.value / value_of(row, steps))
        errors[name][row.source, row.engine, row.year, row.model].append(error)
    text = ["# Made by benchmarks/fit_intervals.py; do not edit.", ""]
    sources = sorted({row.source for row in rows})
    twins, strangers = _swapped(TWINS), _other_families()
    print(f"twins {twins:.3f}, families {strangers:.3f}")
    text += [
        f'source = "{"; ".join(sources)}"',
        f"scaled = {math.sqrt(twins * strangers):.3f}",
        f"assumed = {strangers:.3f}",
    ]
    for name, groups in sorted(errors.items()):
        low, high = _percentile(groups, 0.1), _percentile(groups, 0.9)
        n = sum(len(group) for group in groups.values())
        text += ["", f'[classes."{name}"]', f"low = {low:.3f}", f"high = {high:.3f}", f"n = {n}"]
    options.out.write_text("\n".join(text) + "\n", encoding="utf-8")
    print("\n".join(text))


def _percentile(groups: dict[tuple[object, ...], list[float]], share: float) -> float:
    """The percentile over all errors, a group weighing as the root of its size."""
    weighed = sorted((error, len(group) ** -0.5) for group in groups.values() for error in group)
    reached, target = 0.0, share * sum(len(group) ** 0.5 for group in groups.values())
    for error, weight in weighed:
        reached += weight
        if reached >= target:
            return error
    return weighed[-1][0]


def _swapped(pairs: Sequence[tuple[str, str]]) -> float:
    """Spread of the step time when a GPU runs on its twin's curves, scaled by its own datasheet."""
    return _rms(
        _errors(find_gpu(own), find_gpu(own).model_copy(update={"key": find_gpu(other).key}))
        for pair in pairs
        for own, other in (pair, pair[::-1])
    )


def _other_families() -> float:
    """Spread of the step time when a timed GPU is predicted from another family, as an untimed one would be."""
    return _rms(
        _errors(gpu, gpu.model_copy(update={"key": "nobody-timed-it", "architecture": other.architecture}))
        for gpu, other in itertools.permutations((find_gpu(key) for key in TIMED), 2)
        if gpu.architecture != other.architecture
    )


def _errors(gpu: Gpu, stranger: Gpu) -> list[float]:
    found: list[float] = []
    for model in ("llama-3.1-8b", "llama-3.2-1b"):
        mine, theirs = (
            StepModel(
                Deployment(
                    model=find_model(model),
                    gpu=each,
                    engine=find_engine("vllm"),
                    weights=Precision.bf16,
                    kv=Precision.bf16,
                ),
                NO_HOST,
            )
            for each in (gpu, stranger)
        )
        found += [math.log(float(theirs.decode(*load)) / float(mine.decode(*load))) for load in LOADS]
        found += [math.log(float(theirs.prefill(n)) / float(mine.prefill(n))) for n in (512, 2048, 8192)]
    return found


def _rms(groups: Iterable[list[float]]) -> float:
    return math.sqrt(statistics.fmean(error**2 for group in groups for error in group))


if __name__ == "__main__":
    main()
