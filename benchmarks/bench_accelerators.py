"""How far predictions are from published results of devices whose kernels nobody timed, one by one.

    python benchmarks/bench_accelerators.py

Macs, DGX Spark, Strix Halo, TPUs and Trainium2: nobody's kernels were timed on them for this project, so their speeds
are a datasheet's, times another family's or a microbenchmark's efficiency. None of these rows fitted a figure. Rows of
split ``judge`` decided nothing either; those marked ``dev`` (Apple's) were looked at before one choice was made: that
few rows fill no tile there (``UNTILED`` in ``fit_families.py``). The MI355X stands in for the MI350X, of which no
result was found that states model, lengths and load.
"""

import argparse
import json
import platform
from collections import defaultdict
from pathlib import Path
from typing import Any

from tokonomics.measure.measurements import Measurement, Metric, Mode, read_measurements
from tokonomics.measure.stated_setup import steps_of
from tokonomics.measure.validate import ScoredPrediction, summary, validate
from tokonomics.physics.intervals import KNOWN, weakest_badge
from tokonomics.report.validate_view import figures
from tokonomics.types import today

HERE = Path(__file__).parent
TABLE = HERE / "data" / "published_accelerators.csv"
RECORD = HERE / "results" / "accelerators.json"
ANSWERS, PROMPTS = "answers", "prompts"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--published", type=Path, default=TABLE)
    parser.add_argument("--out", type=Path, default=RECORD)
    options = parser.parse_args()
    score, scored = validate(read_measurements(options.published))
    groups: dict[tuple[str, str], list[ScoredPrediction]] = defaultdict(list)
    for each in scored:
        groups[each.measurement.gpu, kind_of(each.measurement)].append(each)
    result: dict[str, Any] = {
        "date": today().isoformat(),
        "machine": f"{platform.system()} {platform.machine()}",
        "command": "make bench",
        "rows": score.rows,
        "predicted": score.predicted,
        "not_predicted": score.not_predicted,
        "inside": summary(scored).inside_interval,
        "devices": [_device(gpu, kind, group) for (gpu, kind), group in groups.items()],
    }
    print(f"{'':26} {'':8} {'':8} {'n':>4} {'median':>7} {'p90':>7} {'bias':>8} {'inside':>7}")
    for (gpu, kind), group in groups.items():
        n, median, p90, bias, inside = figures(summary(group))
        known = next(row["speed"] for row in result["devices"] if (row["gpu"], row["kind"]) == (gpu, kind))
        print(f"{gpu:26} {kind:8} {known:8} {n:>4} {median:>7} {p90:>7} {bias:>8} {inside:>7}")
    print(f"{score.predicted} of {score.rows} rows are predicted; not: {score.not_predicted}")
    options.out.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def kind_of(row: Measurement) -> str:
    """Tell prompts, alone or until their first token, from everything in which answers are written."""
    alone = row.mode is Mode.low_latency and row.output_tokens <= 1
    return PROMPTS if alone or row.metric is Metric.ttft_s else ANSWERS


def _device(gpu: str, kind: str, group: list[ScoredPrediction]) -> dict[str, Any]:
    rows = [each.measurement for each in group]
    steps = steps_of(rows[0])
    return {
        "gpu": gpu,
        "kind": kind,
        "engines": sorted({row.engine or "" for row in rows}),
        "sources": sorted({row.source for row in rows}),
        "seen": any(row.split != "judge" for row in rows),
        "speed": KNOWN[weakest_badge(steps.deployment, steps.engine)],
        **summary(group).model_dump(),
    }


if __name__ == "__main__":
    main()
