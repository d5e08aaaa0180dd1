"""What a sweep found: its best points, and the best for each value of each swept key.

A point counts when it was answered and, where a promise was made, keeps it. Lower is better, except for rates and
attainments.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from tokonomics.errors import BadInput, nearest, shorten
from tokonomics.sweep.outcome import Outcome, Status
from tokonomics.sweep.points import Point

DEFAULT_BY = ("usd_per_mtok", "usd_per_month", "holds_requests_per_s")
_MORE_IS_BETTER = ("requests_per_s", "tokens_per_s", "goodput_per_s", "slo_attainment", "max_sequences")
_MOST_VALUES = 40
"""Of a key in the table of its values: a drawn one has as many as there are points."""


@dataclass(frozen=True)
class Row:
    """A point and what became of it."""

    point: Point
    outcome: Outcome

    @property
    def kept(self) -> bool:
        return self.outcome.status is Status.OK and self.outcome.figures.get("slo_kept") is not False

    def plain(self) -> dict[str, Any]:
        return {
            "point": self.point.place,
            "id": self.point.id,
            **{f"over_{key}": as_number(value) for key, value in self.point.over.items()},
            **self.outcome.figures,
        }


def as_number(text: str) -> int | float | str:
    """A number where it is one."""
    for kind in (int, float):
        with suppress(ValueError):
            return kind(text)
    return text


@dataclass(frozen=True)
class OfValue:
    """One value of one key: how many of its points keep the promise, and the best of them."""

    value: str
    points: int
    kept: int
    best: Row | None


@dataclass(frozen=True)
class Summary:
    """What a sweep found."""

    verb: str
    keys: tuple[str, ...]
    by: str | None
    """The figure that ranks; None where no answer has one."""
    rows: tuple[Row, ...]
    ranked: tuple[Row, ...]
    values: Mapping[str, tuple[OfValue, ...]]
    """By key, in the order given."""
    counts: Mapping[str, int]
    """By status."""
    reasons: tuple[tuple[str, int], ...]
    """Why points have no answer, the most frequent first."""
    promised: bool


def summary_of(verb: str, keys: Sequence[str], rows: Sequence[Row], by: str | None, promised: bool) -> Summary:
    """The best first."""
    columns = list(dict.fromkeys(name for row in rows for name in row.outcome.figures))
    chosen = _chosen(by, columns, rows)
    ranked = sorted(
        (row for row in rows if row.kept and chosen and _number(row.outcome.figures.get(chosen)) is not None),
        key=lambda row: (worth(row, chosen), row.point.place),
    )
    values = {}
    for key in keys:
        seen = list(dict.fromkeys(row.point.over[key] for row in rows))
        if len(seen) <= _MOST_VALUES:
            values[key] = tuple(_of_value(key, value, rows, ranked) for value in seen)
    counts = Counter(str(row.outcome.status) for row in rows)
    reasons = Counter(row.outcome.error or "" for row in rows if row.outcome.status is not Status.OK)
    return Summary(
        verb, tuple(keys), chosen, tuple(rows), tuple(ranked), values,
        {str(status): counts.get(str(status), 0) for status in Status}, tuple(reasons.most_common()), promised,
    )  # fmt: skip


def worth(row: Row, by: str | None) -> float:
    """Smaller is better."""
    value = _number(row.outcome.figures.get(by or "")) or 0.0
    return -value if more_is_better(by) else value


def more_is_better(by: str | None) -> bool:
    return bool(by) and str(by).endswith(_MORE_IS_BETTER)


def _chosen(by: str | None, columns: Sequence[str], rows: Sequence[Row]) -> str | None:
    if by is None:
        return next((name for name in DEFAULT_BY if name in columns), None)
    name = by.replace("-", "_")
    if columns and name not in columns:
        raise _unknown(by, columns)
    if columns and all(_number(row.outcome.figures.get(name)) is None for row in rows):
        raise BadInput("is not a number", where=f"--by {shorten(by)}", fix=f"Known figures: {', '.join(columns)}.")
    return name


def _unknown(by: str, columns: Sequence[str]) -> BadInput:
    guesses = nearest(by, columns)
    hint = f"Did you mean {' or '.join(guesses)}?" if guesses else f"Known figures: {', '.join(columns)}."
    return BadInput(f"no answer has a figure '{shorten(by)}'", where="--by", fix=hint)


def _of_value(key: str, value: str, rows: Sequence[Row], ranked: Sequence[Row]) -> OfValue:
    mine = [row for row in rows if row.point.over[key] == value]
    best = next((row for row in ranked if row.point.over[key] == value), None)
    return OfValue(value, len(mine), sum(row.kept for row in mine), best)


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def as_plain(summary: Summary, top: int) -> dict[str, Any]:
    """For programs."""
    return {
        "verb": summary.verb,
        "over": list(summary.keys),
        "points": len(summary.rows),
        "counts": dict(summary.counts),
        "kept": sum(row.kept for row in summary.rows),
        "reasons": [{"reason": reason, "points": count} for reason, count in summary.reasons],
        "by": summary.by,
        "best": [row.plain() for row in summary.ranked[:top]],
        "values": {
            key: [
                {
                    "value": each.value,
                    "points": each.points,
                    "kept": each.kept,
                    "best": None if each.best is None else each.best.plain(),
                }
                for each in found
            ]
            for key, found in summary.values.items()
        },
    }
