"""A meter's history as loads of a benchmark, so that ``calibrate`` can learn from servers that simply run.

Stretches in which a server was seen and busy throughout are put together by how many requests ran at once, in steps of
a factor of √2. Of each such load: tokens a second, the mean lengths of its requests (prompt tokens that came from a
cache were not computed, and are left out), and the mean time to the first token where the engine tells it. A batch is
a gauge read every interval, and requests come and go: such a load is rougher than one of ``tokonomics bench``.
"""

import math
from collections import defaultdict
from datetime import UTC, datetime
from pathlib import Path

from tokonomics.errors import BadInput, shorten
from tokonomics.measure.benchmark_run import BenchmarkRun, Latencies, LoadPoint, Stated
from tokonomics.measure.meter.ledger import Ledger
from tokonomics.measure.meter.spans import PaidTime, WatchedSpan
from tokonomics.units import plural

BUSY = 0.99  # share of a stretch from which it is busy throughout: an idle part would pass for a slow server
LEAST_ANSWERED = 20  # requests of a load: the mean of fewer lengths says little
_MAGIC = b"SQLite format 3\x00"


def is_ledger(path: Path) -> bool:
    """Whether a file is a SQLite database, by its first bytes."""
    try:
        with path.open("rb") as file:
            return file.read(len(_MAGIC)) == _MAGIC
    except (OSError, ValueError):
        return False


def runs_of(path: Path) -> list[BenchmarkRun]:
    """One run for each model and engine in the book."""
    by_load: dict[tuple[str, str], dict[int, list[PaidTime]]] = defaultdict(lambda: defaultdict(list))
    with Ledger(path, read_only=True) as book:
        for span in book.spans():
            if _tells(span):
                size = round(2 * math.log2(max(1.0, span.running_s / span.running_seen_s)))
                by_load[span.model, span.engine][size].append(span)
    runs = []
    for (model, engine), loads in sorted(by_load.items()):
        points = [point for _, spans in sorted(loads.items()) if (point := _point(spans)) is not None]
        if points:
            when = datetime.fromtimestamp(max(span.end for spans in loads.values() for span in spans), UTC)
            what = {"tool": "tokonomics meter", "model": model or None, "stated": Stated(engine=engine)}
            runs.append(BenchmarkRun(**what, when=when, points=tuple(points)))
    if not runs:
        said = f"no load in it was busy throughout for {plural(LEAST_ANSWERED, 'answered request')}"
        fix = "Meter a busier server, or load it with tokonomics bench --save."
        raise BadInput(said, where=shorten(str(path), 200), fix=fix)
    return runs


def _tells(span: PaidTime) -> bool:
    # Against all seconds and not this model's part of them: what other models on a server take of it is not known.
    busy = span.watched is WatchedSpan.seen and span.busy_s >= BUSY * span.seconds > 0
    return busy and span.running_seen_s > 0 and span.running_s > 0 and span.answered > 0 and span.output > 0


def _point(spans: list[PaidTime]) -> LoadPoint | None:
    def total(name: str) -> float:
        return float(sum(getattr(span, name) for span in spans))

    busy_s, answered, output, told = (total(name) for name in ("busy_s", "answered", "output", "ttft_count"))
    computed = sum(span.input_total - span.input_cached for span in spans)
    if answered < LEAST_ANSWERED or computed < 1:
        return None
    return LoadPoint(
        concurrency=max(1, round(total("running_s") / total("running_seen_s"))),
        requests_per_s=answered / busy_s, input_tokens_per_s=computed / busy_s, output_tokens_per_s=output / busy_s,
        mean_input_tokens=computed / answered, mean_output_tokens=output / answered, duration_s=busy_s,
        completed=round(answered),
        ttft_s=Latencies(mean=total("ttft_s") / told) if told > 0 else None,
    )  # fmt: skip
