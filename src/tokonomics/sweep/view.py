"""A sweep for people: the best points, what each swept key changes, and why some points have no answer."""

from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Group

from tokonomics.errors import shorten
from tokonomics.report.tables import table
from tokonomics.sweep.points import Point
from tokonomics.sweep.summary import Row, Summary, more_is_better
from tokonomics.units import count, percent, plural, seconds, usd

_COLUMNS: dict[str, tuple[str, Callable[[Any], str]]] = {
    "usd_per_mtok": ("$/Mtok", usd), "usd_per_month": ("$/month", usd), "gpu": ("GPU", str), "gpus_paid": ("GPUs", str),
    "replicas": ("replicas", str), "weights": ("weights", str), "utilization": ("util.", percent),
    "load_share": ("load", percent), "requests_per_s": ("requests/s", count),
    "holds_requests_per_s": ("holds /s", count),
    "slo_attainment": ("in time", percent), "ttft_p99_s": ("TTFT p99", seconds), "tpot_p99_s": ("TPOT p99", seconds),
    "ttft_mean_s": ("TTFT mean", seconds), "tpot_mean_s": ("TPOT mean", seconds),
}  # fmt: skip
"""What is worth a column on the terminal; the file has them all."""
_WORDS = frozenset({"gpu", "weights"})
_MOST_REASONS = 5


def sweep_view(summary: Summary, top: int, said: Sequence[str]) -> Group:
    """``said`` are lines about the results: where they are, what they rest on."""
    parts: list[Any] = [_heading(summary)]
    if summary.ranked:
        parts += ["", _best(summary, top)]
        parts += [
            part for key in summary.values for part in ("", _of_key(summary, key)) if len(summary.values[key]) > 1
        ]
        has_months = any("usd_per_month" in row.outcome.figures for row in summary.ranked)
        if summary.by == "usd_per_mtok" and "rate" in summary.keys and has_months:
            parts += [
                "",
                "A higher rate fills machines better: compare $/Mtok at one rate, or rank by --by usd_per_month.",
            ]
    if summary.reasons:
        parts += ["", "Without an answer:"]
        parts += [f"  {plural(number, 'point')}: {_first_line(why)}" for why, number in summary.reasons[:_MOST_REASONS]]
        more = len(summary.reasons) - _MOST_REASONS
        parts += [f"  and {plural(more, 'other reason')}: column `error` of the results"] if more > 0 else []
    return Group(*parts, "", *said)


def points_view(points: list[Point], done: int, said: list[str], rows: int = 20) -> Group:
    """What a sweep would ask."""
    keys = list(points[0].over) if points else []
    body = [[str(point.place), *(point.over[key] for key in keys), point.id[:12]] for point in points[:rows]]
    parts: list[Any] = [f"{plural(len(points), 'point')}, {done:,} of them done", ""]
    parts.append(table([">point", *(f"!{key}" for key in keys), "id"], body))
    parts += [f"… and {len(points) - rows:,} more"] if len(points) > rows else []
    return Group(*parts, "", *said)


def _heading(summary: Summary) -> str:
    counts = [f"{number:,} {_STATUSES[status]}" for status, number in summary.counts.items() if number]
    kept, answered = sum(row.kept for row in summary.rows), summary.counts["ok"]
    if summary.promised and kept < answered:
        counts.insert(1, f"{kept:,} of them keep the promise")
    return f"{summary.verb} over {', '.join(summary.keys)}: {plural(len(summary.rows), 'point')}; {', '.join(counts)}"


_STATUSES = {
    "ok": "answered", "nothing": "where nothing keeps the promise", "refused": "refused", "failed": "failed",
}  # fmt: skip


def _shown(summary: Summary) -> list[str]:
    have = {name for row in summary.ranked for name, value in row.outcome.figures.items() if value is not None}
    names = [name for name in _COLUMNS if name in have]
    if "ttft_p99_s" in have:
        names = [name for name in names if name not in ("ttft_mean_s", "tpot_mean_s")]
    return [summary.by, *names] if summary.by and summary.by not in names else names


def _cells(row: Row, names: list[str]) -> list[str]:
    made = []
    for name in names:
        value = row.outcome.figures.get(name)
        form = _COLUMNS[name][1] if name in _COLUMNS else _plain
        made.append("–" if value is None else form(value))
    return made


def _plain(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _titles(names: list[str]) -> list[str]:
    return [f"{'!' if name in _WORDS else '>'}{_COLUMNS.get(name, (name, str))[0]}" for name in names]


def _best(summary: Summary, top: int) -> Any:
    names = _shown(summary)
    rows = [
        [str(place), *(shorten(row.point.over[key], 30) for key in summary.keys), *_cells(row, names)]
        for place, row in enumerate(summary.ranked[:top], 1)
    ]
    which = "highest" if more_is_better(summary.by) else "lowest"
    title = f"The {which} {summary.by}{' that keeps the promise' if summary.promised else ''}"
    return table([">", *(f"!{key}" for key in summary.keys), *_titles(names)], rows, title=title)


def _of_key(summary: Summary, key: str) -> Any:
    """For each value of a key, the best of its points."""
    names = _shown(summary)
    others = [other for other in summary.keys if other != key]
    rows = []
    for each in summary.values[key]:
        kept = f"{each.kept:,} of {each.points:,}"
        if each.best is None:
            rows.append([shorten(each.value, 30), kept, *("–" for _ in (*others, *names))])
        else:
            with_others = [shorten(each.best.point.over[other], 30) for other in others]
            rows.append([shorten(each.value, 30), kept, *with_others, *_cells(each.best, names)])
    columns = [
        f"!{key}",
        ">keep it" if summary.promised else ">answered",
        *(f"!best {other}" for other in others),
        *_titles(names),
    ]
    return table(columns, rows, title=f"The best for each {key}")


def _first_line(text: str) -> str:
    return shorten(text.splitlines()[0] if text else "no reason given", 110)
