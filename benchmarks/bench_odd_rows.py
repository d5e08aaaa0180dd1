"""Published rows that look mislabelled: listed on the accuracy page, and kept in every figure; none that only judge.

    python benchmarks/bench_odd_rows.py

Three signs, all computed over all rows alike. A sweep of which half or more is faster than the datasheet allows cannot
have run as it is labelled (``validate.impossible_rows``). A row that is off by more than ``OFF`` as it is labelled and
within ``CLOSE`` with another number of GPUs to a layer says that this number may be wrong. And rows of one source that
differ in nothing but the engine's build, whose figures are apart by more than ``APART``, ran something that the source
does not say: drafting is the likely one. Of the latter two, groups of fewer than ``LEAST`` such rows are left out.
"""

import json
import math
import platform
import statistics
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from tokonomics.measure.measurements import Measurement, Metric, read_measurements
from tokonomics.measure.validate import impossible_rows, predict
from tokonomics.types import today

HERE = Path(__file__).parent
RECORD = HERE / "results" / "odd_rows.json"
OFF, CLOSE, APART, LEAST = math.log(1.6), math.log(1.1), 1.4, 5
DEGREES = (1, 2, 4, 8)


def main() -> None:
    tables = [HERE / "data" / name for name in ("published.csv.gz", "published_more.csv.gz")]
    read = [row for table in tables for row in read_measurements(table) if isinstance(row, Measurement)]
    seen = [row for row in read if row.split != "judge"]
    rows = [row for row in seen if row.metric is not Metric.ttft_s]
    result: dict[str, Any] = {
        "date": today().isoformat(),
        "machine": f"{platform.system()} {platform.machine()}",
        "command": "make bench",
        "rows": len(rows),
        "impossible": _impossible(seen),
        "other_degree": _other_degree(rows),
        "other_build": _other_build(rows),
    }
    for name in ("impossible", "other_degree", "other_build"):
        print(name)
        for group in result[name]:
            print("  ", *group.values())
    RECORD.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _impossible(rows: list[Measurement]) -> list[dict[str, object]]:
    keys = impossible_rows(rows)
    found = Counter((row.source, row.model, row.gpu, row.engine, row.engine_version) for row in rows if row.key in keys)
    names = ("source", "model", "gpu", "engine", "version")
    return [dict(zip(names, sweep, strict=True)) | {"rows": n} for sweep, n in found.most_common()]


def _other_degree(rows: list[Measurement]) -> list[dict[str, object]]:
    found: dict[tuple[object, ...], int] = defaultdict(int)
    for row in rows:
        if row.engine is None or row.gpus != row.tp or abs(_off(row)) < OFF:
            continue
        others = {tp: _off(row.model_copy(update={"tp": tp, "gpus": tp, "ep": 1})) for tp in DEGREES if tp != row.tp}
        best = min(others, key=lambda tp: abs(others[tp]))
        if abs(others[best]) < CLOSE:
            found[row.source, row.model, row.gpu, row.engine, row.engine_version, row.tp, best] += 1
    names = ("source", "model", "gpu", "engine", "version", "stated", "fits")
    listed = [dict(zip(names, group, strict=True)) | {"rows": n} for group, n in found.items() if n >= LEAST]
    return sorted(listed, key=lambda group: (-int(str(group["rows"])), str(group)))


def _off(row: Measurement) -> float:
    """The error of a row; none where it cannot be predicted."""
    outcome = predict(row)
    return math.inf if isinstance(outcome, str) else outcome.error


def _other_build(rows: list[Measurement]) -> list[dict[str, object]]:
    alike: dict[tuple[object, ...], dict[str, float]] = defaultdict(dict)
    for row in rows:
        layout = (row.gpus, row.tp, row.pp, row.ep, row.dp, row.weights, row.kv, row.mode, row.figure)
        setting = (*layout, row.input_tokens, row.output_tokens, row.batch, row.rate)
        alike[row.source, row.model, row.gpu, row.engine, *setting][row.engine_version or "unstated"] = row.value
    ratios: dict[tuple[object, ...], list[float]] = defaultdict(list)
    for group, builds in alike.items():
        most, least = max(builds, key=builds.__getitem__), min(builds, key=builds.__getitem__)
        if builds[most] > APART * builds[least]:
            ratios[*group[:4], most, least].append(builds[most] / builds[least])
    names = ("source", "model", "gpu", "engine", "high", "low")
    listed = [
        dict(zip(names, group, strict=True)) | {"rows": len(found), "ratio": round(statistics.median(found), 2)}
        for group, found in ratios.items()
        if len(found) >= LEAST
    ]
    return sorted(listed, key=lambda group: (-int(str(group["rows"])), str(group)))


if __name__ == "__main__":
    main()
