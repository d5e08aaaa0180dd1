"""How fast the host of public runs without CUDA graphs launched kernels: fits ``EAGER_LAUNCHES`` of stated_setup.

    python benchmarks/fit_eager.py

Tries shares of the launches of the logged vLLM, and keeps the one whose times per token are closest, by their median
error, to the rows of ``data/rate_runs.csv.gz`` that are marked ``calibrate``; those marked ``dev`` are only scored.
"""

import statistics
from pathlib import Path

import numpy as np

from tokonomics.measure import stated_setup
from tokonomics.measure.measurements import Measurement, Metric, read_measurements
from tokonomics.measure.stated_setup import EAGER
from tokonomics.measure.validate import ScoredPrediction, predict

ROWS = Path(__file__).parent / "data" / "rate_runs.csv.gz"


def main() -> None:
    rows = [row for row in read_measurements(ROWS) if isinstance(row, Measurement) and EAGER in (row.engine or "")]
    rows = [row for row in rows if row.metric is Metric.tpot_s]
    errors = {round(float(share), 2): _errors(rows, float(share)) for share in np.arange(0.3, 0.71, 0.02)}
    best = min(errors, key=lambda share: errors[share]["calibrate"])
    print(f"{best} of the logged launches: median error {errors[best]}; with 1.0: {_errors(rows, 1.0)}")


def _errors(rows: list[Measurement], share: float) -> dict[str, float]:
    """The median error of the rows of each split."""
    stated_setup.EAGER_LAUNCHES = share
    stated_setup._step_model.cache_clear()
    found = [(row.split, predict(row)) for row in rows]
    sizes = [(split, abs(scored.error)) for split, scored in found if isinstance(scored, ScoredPrediction)]
    return {
        split: round(statistics.median(size for other, size in sizes if other == split), 3)
        for split in sorted({split for split, _ in sizes})
    }


if __name__ == "__main__":
    main()
