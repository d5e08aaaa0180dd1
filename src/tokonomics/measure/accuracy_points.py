"""Load every published measurement that was predicted, one point each, as ``benchmarks/bench_accuracy.py`` wrote them.

A point says how the model used it: *left out* of every fit and every choice; *seen* while the model was made, but not
fitted on; or *shaped*: engines' own times and the intervals were fitted on it. Figures have three digits.

Our own measurements of a real vLLM on an H200 are loaded too, as ``benchmarks/bench_vllm.py`` wrote them. Two of its
models were used for no fit: a reader should expect errors of the same size for a model of their own, so those errors
come first in every accuracy table.
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
"""Metrics that can share one pair of axes: seconds or tokens a second."""
YOURS = "yours"  # the name of the reader's own points
BAND = 0.2  # with an error up to this a plan usually still buys the right machine (our choice)


class AccuracyPoint(Noun):
    """One figure, measured and predicted, and its source."""

    fit: str  # ``left out``, ``seen`` or ``shaped``; or the reader's own
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
        """Return predicted ÷ measured − 1."""
        return self.predicted / self.measured - 1


@lru_cache(maxsize=1)
def shipped_points() -> tuple[AccuracyPoint, ...]:
    """Return all published points that the package ships."""
    return tuple(point_of(row) for row in shipped_rows("accuracy_points.csv.gz"))


def shipped_rows(name: str) -> list[dict[str, str]]:
    """Return the lines of a packed table next to this module."""
    file = resources.files("tokonomics.measure") / "data" / name
    return list(csv.DictReader(gzip.decompress(file.read_bytes()).decode().splitlines()))


def point_of(row: dict[str, str], *, served: bool = False) -> AccuracyPoint:
    """Return a line of a packed table as a point."""
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
    """Return the points of a kind of figure whose fields are as asked for; None matches anything."""
    wanted = {name: value for name, value in only.items() if value}
    return [point for point in points if point.metric in KINDS[kind] and copied(point, *wanted) == wanted]


class DrawnErrors(Noun):
    """How far the points of a chart are off."""

    points: int
    left_out: int  # how many of them no fit has seen
    inside: float  # the share within the band
    median: float | None
    by_speed: dict[str, tuple[int, float | None]]  # by how the speed is known: how many points, and their median error
    yours: float | None  # the median error of the reader's own points; None if there are none


def drawn_errors(points: Sequence[AccuracyPoint], joined: Sequence[AccuracyPoint] = ()) -> DrawnErrors:
    """Return the errors of the points that are drawn, and of the reader's own among them."""
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
    """Return the median error as in the recorded tables: of |ln(predicted ÷ measured)|, as a share; None of none.

    Half and twice the value are equally far off.
    """
    logs = [abs(math.log(point.predicted / point.measured)) for point in points]
    return math.expm1(statistics.median(logs)) if logs else None


_POINTS = "real_engine.csv.gz"
_LONE = "1"  # the load of a single user
_THROUGHPUT, _TPOT, _TTFT = "output_tok_s", "tpot_s p50", "ttft_s p50"
_UNSEEN: dict[str, tuple[bool, tuple[str, ...]]] = {
    "a real vLLM on an H200 under load, two models not fitted on: throughput and TPOT": (False, (_THROUGHPUT, _TPOT)),
    "the same, time to the first token under load": (False, (_TTFT,)),
    "the same, p99 of TPOT and time to the first token": (False, ("tpot_s p99", "ttft_s p99")),
    "the same server idle, time to the first token of a lone prompt": (True, (_TTFT,)),
}
"""For each line of the table: single prompts or loads, and which figures."""


@dataclass(frozen=True)
class UnseenErrors:
    """How far off some figures are for the models that were used for no fit."""

    what: str
    n: int
    at_most: float  # the largest median of |predicted ÷ measured − 1| over models and figures


@lru_cache(maxsize=1)
def served_points() -> tuple[AccuracyPoint, ...]:
    """Return all figures of that server."""
    return tuple(point_of(row, served=True) for row in shipped_rows(_POINTS))


@lru_cache(maxsize=1)
def unseen_errors() -> tuple[UnseenErrors, ...]:
    """Return the errors of the two models that were used for no fit, under load and idle."""
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
