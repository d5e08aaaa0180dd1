"""The load to run a server at: the knee of its load curve, and the cheapest load that meets the SLOs.

The knee is the smallest measured load that gives 90 % of the highest output throughput: beyond it users wait longer for
little more. The best load has the lowest price per token (or, without a price, the highest throughput) among those
that meet every SLO with at most 1 % of requests failed. Nothing is interpolated. Knee and best are named among loads of
equal lengths: other lengths are other work.
"""

from collections.abc import Sequence

from pydantic import Field

from tokonomics.measure.benchmark_run import LoadPoint
from tokonomics.traffic.slo import Slo
from tokonomics.types import Noun

KNEE_SHARE = 0.9
MOST_ERRORS = 0.01
MOST_APART = 1.25  # between mean lengths of loads that count as equal, where it is not known what was asked for


class MeasuredSlo(Noun):
    slo: str = Field(alias="promise")
    objective_s: float = Field(alias="promised_s")
    measured_s: float | None  # None where the source does not have this statistic: not met

    @property
    def met(self) -> bool:
        return self.measured_s is not None and self.measured_s <= self.objective_s


class EqualLengths(Noun):
    """Loads of equal lengths, by their place in the run, and which of them matter."""

    points: tuple[int, ...]
    knee: int | None  # None of fewer than three loads
    best: int | None  # None where no load meets the SLOs


class LoadVerdict(Noun):
    """Which of the measured loads matter, by their place in the run."""

    knee: int | None
    best: int | None  # as in ``groups``, where there is one; None where lengths differ
    groups: tuple[EqualLengths, ...]
    slos: tuple[tuple[MeasuredSlo, ...], ...] = Field((), alias="promises")  # of each load


def slos_at(point: LoadPoint, slos: Sequence[Slo]) -> tuple[MeasuredSlo, ...]:
    measured = [getattr(getattr(point, f"{slo.latency}_s"), slo.statistic, None) for slo in slos]
    stated = zip(slos, measured, strict=True)
    return tuple(MeasuredSlo(slo=str(slo), objective_s=slo.seconds, measured_s=value) for slo, value in stated)


def holds(point: LoadPoint, slos: Sequence[Slo]) -> bool:
    return point.error_share <= MOST_ERRORS and all(slo.met for slo in slos_at(point, slos))


def judge(points: Sequence[LoadPoint], usd_per_mtok: Sequence[float | None], slos: Sequence[Slo] = ()) -> LoadVerdict:
    """The knee and the best of the measured loads, among those of equal lengths."""

    def cost(place: int) -> float:
        price = usd_per_mtok[place]
        return price if price is not None else -points[place].output_tokens_per_s

    groups = []
    for places in _equal_lengths(points):
        top = max(points[place].output_tokens_per_s for place in places)
        order = sorted(places, key=lambda place: points[place].size)
        knee = next(place for place in order if points[place].output_tokens_per_s >= KNEE_SHARE * top)
        held = [place for place in order if holds(points[place], slos)]
        best = min(held, key=cost) if held else None
        groups.append(EqualLengths(points=tuple(places), knee=knee if len(places) > 2 else None, best=best))
    alone = groups[0] if len(groups) == 1 else None
    return LoadVerdict(
        knee=alone.knee if alone else None,
        best=alone.best if alone else None,
        groups=tuple(groups),
        slos=tuple(slos_at(point, slos) for point in points) if slos else (),
    )


def _equal_lengths(points: Sequence[LoadPoint]) -> list[list[int]]:
    """Places of loads whose mean lengths are about those of the first of them."""
    groups: list[list[int]] = []
    for place, point in enumerate(points):
        alike = next((group for group in groups if _have_equal_lengths(points[group[0]], point)), None)
        if alike is None:
            groups.append([place])
        else:
            alike.append(place)
    return groups


def _have_equal_lengths(one: LoadPoint, other: LoadPoint) -> bool:
    """Asked for alike, or about alike in the mean: means of a few varying lengths are far apart by chance."""
    if one.lengths and one.lengths == other.lengths:
        return True
    pairs = (one.mean_input_tokens, other.mean_input_tokens), (one.mean_output_tokens, other.mean_output_tokens)
    return all(max(pair) <= MOST_APART * min(pair) for pair in pairs)
