"""Fit how many times as long as timed sums over NVLink took in TensorRT-LLM before 1.0 (``operations.OLD_SUM_TIMES``).

    python -m benchmarks.fit_sums

From the rows of its perf-overview marked ``calibrate``: throughput of queues that never empty. Groups differ in tensor
parallelism alone, so that errors of other kinds are alike within each. For every factor the mean distance of a row's
log(predicted ÷ measured) from its group's median is printed: the least counts. Beside it, in how many groups the
parallelism that is cheapest per token is the one measured to be.
"""

import math
import statistics
from collections import defaultdict
from collections.abc import Sequence
from copy import copy
from pathlib import Path

from tokonomics.catalog.gpus import find_gpu
from tokonomics.measure.measurements import Measurement, Metric, Mode, read_measurements
from tokonomics.measure.stated_setup import deployment_of, steps_of
from tokonomics.measure.validate import value_of
from tokonomics.physics.operations import OLD_SUM_TIMES
from tokonomics.physics.overhead import version_numbers

DATA = Path(__file__).parent / "data"
FACTORS = (1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6)


def main() -> None:
    groups = alike()
    print(f"{sum(map(len, groups))} rows in {len(groups)} groups; factor, mean distance, groups picked as measured")
    for factor in FACTORS:
        apart, picked = [], 0
        for rows in groups:
            predicted = [with_sums(row, factor) for row in rows]
            errors = [math.log(value / row.value) for value, row in zip(predicted, rows, strict=True)]
            apart += [abs(error - statistics.median(errors)) for error in errors]
            picked += _best(rows, predicted) == _best(rows, [row.value for row in rows])
        print(f"{factor:.1f}  {statistics.fmean(apart):.4f}  {picked / len(groups):.0%}", flush=True)


def alike() -> list[list[Measurement]]:
    """Return groups of rows that differ in tensor parallelism alone."""
    groups: dict[tuple[object, ...], list[Measurement]] = defaultdict(list)
    for table in ("published.csv.gz", "published_more.csv.gz"):
        for row in read_measurements(DATA / table):
            if not isinstance(row, Measurement) or row.split != "calibrate" or "perf-overview" not in row.source:
                continue
            queue = row.mode is Mode.max_throughput and row.metric is Metric.output_tok_s and row.pp == row.dp == 1
            old = version_numbers(row.engine_version) < (1, 0)
            if queue and old and find_gpu(row.gpu).fast_link_bytes_per_s and deployment_of(row):
                key = row.model, row.engine_version, row.gpu, row.weights, row.input_tokens, row.output_tokens
                groups[key].append(row)
    return [rows for rows in groups.values() if len({row.tp for row in rows}) > 1]


def with_sums(row: Measurement, factor: float) -> float:
    """Return the prediction if sums over GPUs take so many times as long as timed."""
    steps = steps_of(row)
    other = copy(steps)
    other._communication = steps._communication * (factor / OLD_SUM_TIMES)
    return value_of(row, other)


def _best(rows: Sequence[Measurement], values: Sequence[float]) -> int:
    return max(range(len(rows)), key=lambda place: values[place] / rows[place].tp)


if __name__ == "__main__":
    main()
