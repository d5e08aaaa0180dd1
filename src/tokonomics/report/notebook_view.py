"""A result as a notebook shows it: one line, and a small table whose columns carry the names of the frame's."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from tokonomics.units import count, gigabytes, percent, seconds, usd

_CELL = "padding:2px 10px;white-space:nowrap"


def table_html(headline: str, rows: Sequence[Mapping[str, Any]], columns: Sequence[str], notes: Sequence[str]) -> str:
    """The headline over the rows and the notes; a single row stands upright."""
    if not rows:
        body = ""
    elif len(rows) == 1:
        body = "".join(f"<tr>{_head(name, 'left')}{_cell(name, rows[0][name])}</tr>" for name in columns)
    else:
        heads = "".join(_head(name, "left" if _is_text(rows, name) else "right") for name in columns)
        body = f"<tr>{heads}</tr>" + "".join(
            f"<tr>{''.join(_cell(name, row[name]) for name in columns)}</tr>" for row in rows
        )
    below = "<br>".join(escape(note) for note in notes)
    return (
        f"<div><b>{escape(headline)}</b><table style='border-collapse:collapse;margin:6px 0'>{body}</table>"
        f"<small style='opacity:.7'>{below}</small></div>"
    )


def _is_text(rows: Sequence[Mapping[str, Any]], name: str) -> bool:
    return any(isinstance(row[name], str) for row in rows)


def _head(name: str, side: str) -> str:
    return f"<th style='{_CELL};text-align:{side}'>{escape(name)}</th>"


def _cell(name: str, value: object) -> str:
    side = "left" if isinstance(value, str) else "right"
    return f"<td style='{_CELL};text-align:{side}'>{escape(shown(name, value))}</td>"


def shown(name: str, value: object) -> str:
    """A value for people; its name says the unit."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not isinstance(value, int | float):
        return str(value)
    if "usd" in name.split("_"):
        return usd(value)
    if name.endswith("_s") and not name.endswith("_per_s"):
        return seconds(value)
    if name.endswith(("share", "utilization", "attainment")) or "_share_" in name:
        return percent(value) if value >= 0 else f"−{percent(-value)}"
    return gigabytes(value) if "bytes" in name.split("_") else count(value)
