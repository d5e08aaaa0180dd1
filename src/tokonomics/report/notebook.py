"""A result as a notebook shows it: one line, and a small table whose columns carry the names of the frame's."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from tokonomics.questions.result import Result, frame_of
from tokonomics.units import count, gigabytes, percent, seconds, usd

_ROWS = 10
"""As on the terminal."""
_LONG = 32
"""Characters from which on a cell wraps."""


def notebook_html(result: Result) -> str:
    """The headline over the first rows and the notes; a single row stands upright."""
    rows = frame_of(noun.model_dump(mode="json") for noun in result.first_rows(_ROWS)).to_dicts()
    columns = [name for name in result.SHOWN if not rows or name in rows[0]]
    count = result.row_count()
    said = f"{len(rows)} of {count:,} rows; " if count > len(rows) else ""
    others = "".join(f', to_frame("{name}")' for name in result.frames() if name != result.ROWS)
    notes = [note for note in (f"{said}all figures: to_frame(){others}", result.command) if note]
    if not rows:
        body = ""
    elif len(rows) == 1:
        body = "".join(
            f"<tr>{_cell('th', name, 'left')}{_cell('td', shown(name, rows[0][name]), _side(name, rows))}</tr>"
            for name in columns
        )
    else:
        body = f"<tr>{''.join(_cell('th', name, _side(name, rows)) for name in columns)}</tr>"
        for row in rows:
            body += f"<tr>{''.join(_cell('td', shown(name, row[name]), _side(name, rows)) for name in columns)}</tr>"
    below = "<br>".join(escape(note) for note in notes)
    return (
        f"<div><b>{escape(result.headline())}</b><table style='border-collapse:collapse;margin:6px 0'>{body}</table>"
        f"<small style='opacity:.7'>{below}</small></div>"
    )


def _side(name: str, rows: Sequence[Mapping[str, Any]]) -> str:
    return "left" if any(isinstance(row[name], str) for row in rows) else "right"


def _cell(tag: str, text: str, side: str) -> str:
    width = "min-width:18em;white-space:normal" if len(text) > _LONG else "white-space:nowrap"
    return f"<{tag} style='padding:2px 10px;vertical-align:top;text-align:{side};{width}'>{escape(text)}</{tag}>"


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
