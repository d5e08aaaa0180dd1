"""Where a server should be run: the knee of its load curve, and the cheapest load that keeps the promises.

The knee is the smallest measured load that gives 90 % of the highest output throughput: beyond it users wait longer for
little more. The best load has the lowest price per token (or, without a price, the highest throughput) among those
that keep every promise with at most 1 % of requests failed. Only measured loads are named: nothing is interpolated.
"""

from collections.abc import Sequence

from tokonomics.measure.benchmark_run import LoadPoint
from tokonomics.nouns import Noun
from tokonomics.traffic.promises import Promise

KNEE_SHARE = 0.9
MOST_ERRORS = 0.01


class Kept(Noun):
    """A promise at one load."""

    promise: str
    promised_s: float
    measured_s: float | None
    """None where the source does not have this statistic: not kept."""

    @property
    def kept(self) -> bool:
        return self.measured_s is not None and self.measured_s <= self.promised_s


class LoadVerdict(Noun):
    """Which of the measured loads matter, by their place in the run."""

    knee: int | None
    best: int | None
    """None where no load keeps the promises."""
    promises: tuple[tuple[Kept, ...], ...] = ()
    """Of each load."""


def keeps(point: LoadPoint, promises: Sequence[Promise]) -> tuple[Kept, ...]:
    """Each promise against what was measured."""
    return tuple(
        Kept(promise=str(promise), promised_s=promise.seconds, measured_s=_measured(point, promise))
        for promise in promises
    )


def holds(point: LoadPoint, promises: Sequence[Promise]) -> bool:
    return point.error_share <= MOST_ERRORS and all(each.kept for each in keeps(point, promises))


def judge(
    points: Sequence[LoadPoint], usd_per_mtok: Sequence[float | None], promises: Sequence[Promise] = ()
) -> LoadVerdict:
    """The knee and the best of the measured loads."""
    top = max(point.output_tokens_per_s for point in points)
    order = sorted(range(len(points)), key=lambda place: load_size(points[place]))
    knee = next(place for place in order if points[place].output_tokens_per_s >= KNEE_SHARE * top)
    held = [place for place in order if holds(points[place], promises)]

    def cost(place: int) -> float:
        price = usd_per_mtok[place]
        return price if price is not None else -points[place].output_tokens_per_s

    return LoadVerdict(
        knee=knee if len(points) > 2 else None,
        best=min(held, key=cost) if held else None,
        promises=tuple(keeps(point, promises) for point in points) if promises else (),
    )


def load_size(point: LoadPoint) -> float:
    """Orders the loads of one run."""
    return point.concurrency or point.rate or point.requests_per_s


def _measured(point: LoadPoint, promise: Promise) -> float | None:
    spread = {"ttft": point.ttft_s, "tpot": point.tpot_s, "e2e": point.e2e_s}[promise.latency.value]
    value: float | None = getattr(spread, promise.statistic) if spread is not None else None
    return value
