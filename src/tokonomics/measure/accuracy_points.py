"""Every published measurement that was predicted, one point each, as ``benchmarks/bench_accuracy.py`` wrote them.

A point says how it stands to the model: *left out* of every fit and every choice; *seen* while the model was made, but
not fitted on; or *shaped*: engines' own times and the intervals were fitted on it. Figures have three digits.

Beside them stand our own measurements of a real vLLM on an H200, as ``benchmarks/bench_vllm.py`` wrote them. Two of its
models taught nothing: how far off their predictions are is what a reader should expect for a model of their own, so
those errors lead every accuracy table.
"""

import csv
import gzip
import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from typing import Literal

from pydantic import PositiveFloat

from tokonomics.types import Noun, Speed, copied
from tokonomics.units import requests_a_second

Fit = Literal["left out", "seen", "shaped"]
KINDS: dict[str, tuple[str, ...]] = {
    "TPOT": ("tpot_s", "tpot_s p50", "tpot_s p99"),
    "TTFT": ("ttft_s", "ttft_s p50", "ttft_s p99"),
    "throughput": ("output_tok_s", "total_tok_s"),
}
"""What can stand on one pair of axes: seconds or tokens a second."""
YOURS = "yours"  # how the reader's own points are called
BAND = 0.2  # a prediction this far off still buys the right machine as a rule: our choice, the error people ask about


class AccuracyPoint(Noun):
    """One figure, measured and predicted, and whose it is."""

    fit: str  # ``left out``, ``seen`` or ``shaped``; or that it is the reader's own
    speed: str  # how the speed behind the prediction is known: timed, scaled or assumed
    metric: str  # as measured: ``tpot_s``, ``ttft_s p99``, ``output_tok_s`` …
    gpu: str
    engine: str
    what: str  # the row in words
    measured: PositiveFloat
    predicted: PositiveFloat
    served: bool = False  # measured by us on an engine that served requests, not published by others

    @property
    def off(self) -> float:
        """Predicted ÷ measured − 1."""
        return self.predicted / self.measured - 1


@lru_cache(maxsize=1)
def shipped_points() -> tuple[AccuracyPoint, ...]:
    """All published ones that the package carries."""
    return tuple(point_of(row) for row in shipped_rows("accuracy_points.csv.gz"))


def shipped_rows(name: str) -> list[dict[str, str]]:
    """The lines of a packed table beside this module."""
    file = resources.files("tokonomics.measure") / "data" / name
    return list(csv.DictReader(gzip.decompress(file.read_bytes()).decode().splitlines()))


def point_of(row: dict[str, str], *, served: bool = False) -> AccuracyPoint:
    """A line of a packed table as a point."""
    engine = row["engine"].split()[0] if row["engine"] else "bare kernels"
    load = f"{row['load']} at once" if row["load"] else "a queue that never empties"
    load = requests_a_second(row["load"][:-2]) if row["load"].endswith("/s") else load
    ran = f"{row['model']} {row['weights']} on {row['gpus']}×{row['gpu']}, {row['engine'] or engine} of {row['year']}"
    return AccuracyPoint(
        **{name: row[name] for name in ("fit", "speed", "metric", "gpu")},
        engine=engine,
        what=f"{ran}; {int(row['input']):,} in, {int(row['output']):,} out, {load}; {row['source']}",
        measured=float(row["measured"]),
        predicted=float(row["predicted"]),
        served=served,
    )


def chosen(points: Iterable[AccuracyPoint], kind: str, **only: str | None) -> list[AccuracyPoint]:
    """Those of a kind of figure whose fields are as asked for; None asks for nothing."""
    wanted = {name: value for name, value in only.items() if value}
    return [point for point in points if point.metric in KINDS[kind] and copied(point, *wanted) == wanted]


class DrawnErrors(Noun):
    """How far the points of a chart are off."""

    points: int
    left_out: int  # how many of them no fit has seen
    inside: float  # the share within the band
    median: float | None
    by_speed: dict[str, tuple[int, float | None]]  # by how the speed is known: how many points, and their median error
    yours: float | None  # the median error of the reader's own points; None where there are none


def drawn_errors(points: Sequence[AccuracyPoint], joined: Sequence[AccuracyPoint] = ()) -> DrawnErrors:
    """The errors of the points that are drawn, and of the reader's own among them."""
    by_speed = {speed: [point for point in points if point.speed == speed] for speed in Speed}
    inside = sum(1 / (1 + BAND) <= point.predicted / point.measured <= 1 + BAND for point in points)
    return DrawnErrors(
        points=len(points),
        left_out=sum(point.fit == "left out" for point in points),
        inside=inside / max(1, len(points)),
        median=median_off(points),
        by_speed={speed.value: (len(own), median_off(own)) for speed, own in by_speed.items() if own},
        yours=median_off(joined),
    )


def median_off(points: Sequence[AccuracyPoint]) -> float | None:
    """The median error as the recorded tables have it: of |ln(predicted ÷ measured)|, as a share; None of none.

    Half and twice as much are equally far off.
    """
    logs = [abs(math.log(point.predicted / point.measured)) for point in points]
    return math.expm1(statistics.median(logs)) if logs else None


_POINTS = "real_engine.csv.gz"
_LONE = "1"  # the load of one user, who never meets another
_THROUGHPUT, _TPOT, _TTFT = "output_tok_s", "tpot_s p50", "ttft_s p50"
_UNSEEN: dict[str, tuple[bool, tuple[str, ...]]] = {
    "a real vLLM on an H200 under load, two models not fitted on: throughput and TPOT": (False, (_THROUGHPUT, _TPOT)),
    "the same, time to the first token under load": (False, (_TTFT,)),
    "the same, p99 of TPOT and time to the first token": (False, ("tpot_s p99", "ttft_s p99")),
    "the same server idle, time to the first token of a lone prompt": (True, (_TTFT,)),
}
"""For each line of the table: lone prompts or loads, and which figures."""


@dataclass(frozen=True)
class UnseenErrors:
    """How far off some figures of the models that taught nothing are."""

    what: str
    n: int
    at_most: float  # the median of |predicted ÷ measured − 1| of each model and figure: the largest of these


@lru_cache(maxsize=1)
def served_points() -> tuple[AccuracyPoint, ...]:
    """All figures of that server."""
    return tuple(point_of(row, served=True) for row in shipped_rows(_POINTS))


@lru_cache(maxsize=1)
def unseen_errors() -> tuple[UnseenErrors, ...]:
    """The errors of the two models that taught nothing, under load and idle."""
    rows = [row for row in shipped_rows(_POINTS) if row["fit"] == "left out"]
    found = []
    for what, (lone, metrics) in _UNSEEN.items():
        sizes = defaultdict(list)
        for row in rows:
            if row["metric"] in metrics and (row["load"] == _LONE) is lone:
                sizes[row["model"], row["metric"]].append(abs(float(row["predicted"]) / float(row["measured"]) - 1))
        largest = max(statistics.median(errors) for errors in sizes.values())
        found.append(UnseenErrors(what, sum(map(len, sizes.values())), largest))
    return tuple(found)
