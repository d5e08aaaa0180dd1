"""What was paid and what came of it over any stretch of the past, by model, server, day, hour or label.

Rows of the ledger are cut at the edges of the window and of the days or hours asked for: time and dollars by length,
tokens where they were counted. So the parts always add up to the whole. Days and hours are UTC, as cloud bills are.
"""

import csv
from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from tokonomics.errors import BadInput, option, shorten
from tokonomics.files import whole
from tokonomics.measure.meter.against_plan import compare
from tokonomics.measure.meter.spans import PaidTime, cut, cut_every, tally
from tokonomics.measure.meter.state import MeterTally, Planned, Verdict
from tokonomics.traffic.grammar import span_s
from tokonomics.types import Noun
from tokonomics.units import DAY_S, SECONDS_PER_HOUR

_PERIODS = {"day": DAY_S, "hour": SECONDS_PER_HOUR}
_FIELDS = ("model", "target", "engine")
_ALIASES = {"server": "target"}
_LONGEST_S = 1e10  # three hundred years


class BillLine(Noun):
    group: tuple[str, ...]  # a value for each of the bill's keys; "" where there is none
    sums: MeterTally


class Bill(Noun):
    since: float
    until: float
    by: tuple[str, ...]
    lines: tuple[BillLine, ...]
    total: MeterTally
    planned: Planned | None = None
    against_plan: Verdict | None = None


def bill(
    spans: Iterable[PaidTime],
    since: float,
    until: float,
    by: Sequence[str],
    planned: Planned | None = None,
    may_lack: Sequence[str] = (),
) -> Bill:
    """What was paid between two instants, by keys; labels in ``may_lack`` need not be there."""
    period_s = min((_PERIODS[key] for key in by if key in _PERIODS), default=None)
    batch = planned.batch if planned else None
    groups: dict[tuple[str, ...], MeterTally] = defaultdict(MeterTally)
    labels: set[str] = set()
    first, last = until, since
    for span in spans:
        _, rest = cut(span, since)
        inside = cut(rest, until)[0] if rest is not None else None
        if inside is None:
            continue
        first, last = min(first, inside.start), max(last, inside.end)
        labels |= span.labels.keys()
        for piece in cut_every(inside, period_s) if period_s else [inside]:
            group = tuple(_value(piece, _ALIASES.get(name, name)) for name in by)
            groups[group] = groups[group] + tally(piece, batch)
    for key in by:
        if key not in (*_PERIODS, *_FIELDS, *_ALIASES, *labels, *may_lack):
            there = f"There are: {', '.join((*_FIELDS, *_PERIODS, *sorted(labels)))}."
            fix = f"{there} Give servers labels with: tokonomics meter … --label team=search"
            raise BadInput(f"nothing in this stretch has a '{shorten(key)}'", field="by", fix=fix)
    total = sum(groups.values(), MeterTally())
    return Bill(
        since=min(first, last), until=last, by=tuple(by),
        lines=tuple(BillLine(group=group, sums=sums) for group, sums in sorted(groups.items())),
        total=total, planned=planned, against_plan=compare(total, planned) if planned else None,
    )  # fmt: skip


def _value(span: PaidTime, key: str) -> str:
    if key in _PERIODS:
        at = datetime.fromtimestamp(span.start, UTC)
        return at.strftime("%Y-%m-%d" if key == "day" else "%Y-%m-%d %H:00")
    return str(getattr(span, key)) if key in _FIELDS else span.labels.get(key, "")


def instant(text: str, now: float, field: str) -> float:
    """``7d``, ``90m`` (before now), ``2026-11-08``, ``2026-11-08T12:30`` (UTC), as unix seconds."""
    if text.strip()[-1:].isalpha() and span_s(text) is not None:
        return now - duration(text, field)
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        said = f"'{shorten(text)}' is neither a time nor how long ago"
        raise BadInput(said, field=field, fix="Such as 7d, 90m or 2026-11-08.") from None
    return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()


def duration(text: str, field: str) -> float:
    """``15``, ``15s``, ``10m``, ``7d`` as seconds."""
    seconds = span_s(text)
    if seconds is None or seconds > _LONGEST_S:
        wrong = "not how long" if seconds is None else "longer than any book"
        raise BadInput(f"'{shorten(text)}' is {wrong}", field=field, fix="Such as 15s, 10m, 2h or 7d.")
    return seconds


def bill_csv(of: Bill, path: Path) -> None:
    """Writes the lines as a table for a spreadsheet; whole or not at all."""
    with whole(path, option("csv", shorten(path.name))) as unfinished, unfinished.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow([*of.by, *MeterTally().model_dump()])
        rows.writerows([*line.group, *line.sums.model_dump().values()] for line in of.lines)
