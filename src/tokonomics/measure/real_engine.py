"""A real vLLM on an H200, loaded by us: each figure measured and predicted, as ``benchmarks/bench_vllm.py`` wrote it.

Two of its models taught nothing: how far off their predictions are is what a reader should expect for a model of their
own, so those errors lead every accuracy table.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from tokonomics.measure.accuracy_points import AccuracyPoint, point_of, shipped_rows

_POINTS = "real_engine.csv.gz"
_LONE = "1"
"""The load of one user, who never meets another."""
_THROUGHPUT, _TPOT, _TTFT = "output_tok_s", "tpot_s p50", "ttft_s p50"
_UNSEEN: dict[str, tuple[bool, tuple[str, ...]]] = {
    "a real vLLM on an H200 under load, two models not fitted on: throughput and TPOT": (False, (_THROUGHPUT, _TPOT)),
    "the same, time to the first token under load": (False, (_TTFT,)),
    "the same, p99 of TPOT and time to the first token": (False, ("tpot_s p99", "ttft_s p99")),
    "the same server idle, time to the first token of a lone prompt": (True, (_TTFT,)),
}
"""Of lone prompts or of loads, and which figures."""


@dataclass(frozen=True)
class UnseenErrors:
    """How far off some figures of the models that taught nothing are."""

    what: str
    n: int
    at_most: float
    """The median of |predicted ÷ measured − 1| of each model and figure: the largest of these."""


@lru_cache(maxsize=1)
def served_points() -> tuple[AccuracyPoint, ...]:
    """All figures of that server."""
    return tuple(point_of(row, served=True) for row in shipped_rows(_POINTS))


@lru_cache(maxsize=1)
def unseen_errors() -> tuple[UnseenErrors, ...]:
    """Of the two models, under load and idle."""
    rows = [row for row in shipped_rows(_POINTS) if row["fit"] == "left out"]
    found = []
    for what, (lone, metrics) in _UNSEEN.items():
        sizes = [
            _sizes([row for row in rows if row["metric"] == metric and row["model"] == model], lone=lone)
            for model in sorted({row["model"] for row in rows})
            for metric in metrics
        ]
        largest = max(statistics.median(size) for size in sizes)
        found.append(UnseenErrors(what, sum(len(size) for size in sizes), largest))
    return tuple(found)


def _sizes(rows: Sequence[dict[str, str]], *, lone: bool) -> list[float]:
    loads = [row for row in rows if (row["load"] == _LONE) is lone]
    return [abs(float(row["predicted"]) / float(row["measured"]) - 1) for row in loads]
