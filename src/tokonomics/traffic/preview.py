"""The first rows of somebody's own table, and which of its columns are probably what: for them to say which.

A column is guessed by its name: one that people usually give the field (``USUAL_NAMES``), else one with a word of it,
such as ``when`` or ``n_in``. Tokens are numbers, so a column of text is none.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokonomics.errors import BadInput, shorten
from tokonomics.traffic import sources
from tokonomics.traffic.exports import opened
from tokonomics.traffic.formats import (
    OF_SESSIONS,
    REQUIRED,
    USUAL_NAMES,
    can_be_told,
    spelling,
    tells_sessions,
    without_unit,
)
from tokonomics.traffic.recognise import separator_of, text_lines

SHOWN_ROWS = 5
MOST_COLUMNS = 100
"""That are shown, and can be chosen from: our choice, a request log has some dozen."""
_CELL = 40  # characters
_DEPTH = 4  # of keys within keys, as the readers of logs look
_USUAL = {
    **USUAL_NAMES,
    "priority": ("priority",),
    "patience": ("patience", "patience_s", "patience_ms"),
    "prefix": ("hash_ids", "prefix_blocks", "block_hashes", "prefix_hash", "prefix_id", "prefix"),
}
_WORDS = {
    "arrival": {"time", "timestamp", "ts", "date", "datetime", "when", "at", "arrival", "created", "start", "begin"},
    "input": {"prompt", "prompts", "input", "in", "context", "request"},
    "output": {"completion", "output", "out", "answer", "response", "generated", "generation", "decode"},
}
_OF_TOKENS = {"token", "tokens", "tok", "toks", "len", "length", "count", "n", "num"}


@dataclass(frozen=True)
class TablePreview:
    """The columns of a table, its first rows as short texts, and a guess at the column of each field."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    guesses: Mapping[str, str]


def preview(path: Path) -> TablePreview | None:
    """What is in a file that may be a table of requests; None where it is no such thing."""
    try:
        rows = _first_rows(path)
    except BadInput:
        return None
    names = [name for name in dict.fromkeys(name for row in rows for name in row) if can_be_told(name)][:MOST_COLUMNS]
    if len(names) < len(REQUIRED):
        return None
    shown = tuple(tuple(_cell(row.get(name)) for name in names) for row in rows[:SHOWN_ROWS])
    return TablePreview(tuple(names), shown, guessed(names, shown))


def _first_rows(path: Path) -> list[dict[str, Any]]:
    if sources.is_parquet(path):
        return sources.first_rows(path, SHOWN_ROWS)
    lines = text_lines(path)
    if lines[0].lstrip()[0] not in "{[":
        return sources.first_rows(path, SHOWN_ROWS, separator_of(lines))
    items = [sources.load(line) for line in lines]
    objects = [item for item in items if isinstance(item, dict)]
    if 2 * len(objects) < len(items) or len(items) == 1:  # one object is no log; it may hold one
        whole = sources.document(path)
        held = whole if isinstance(whole, list) else opened(whole) if isinstance(whole, dict) else []
        objects = [item for item in held[: sources.HEAD_LINES] if isinstance(item, dict) and item is not whole]
    return [dict(_flat(item)) for item in objects]


def _flat(item: Mapping[str, Any], above: str = "", depth: int = _DEPTH) -> Iterator[tuple[str, Any]]:
    """Fields that are not null, by the keys that lead to them with dots between."""
    for key, value in item.items():
        if isinstance(value, dict) and depth > 1:
            yield from _flat(value, f"{above}{key}.", depth - 1)
        elif value is not None:
            yield f"{above}{key}", value


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return shorten(value if isinstance(value, str) else json.dumps(value, default=str), _CELL)


def guessed(names: Sequence[str], rows: Sequence[Sequence[str]]) -> dict[str, str]:
    """The probable column of each field; the fields of sessions only where they tell which belong together."""
    found: dict[str, str] = {}
    for field in (*REQUIRED, *(field for field in _USUAL if field not in REQUIRED)):
        left = [name for name in names if name not in found.values()]
        if field in ("input", "output"):
            left = [name for name in left if _is_count(row[names.index(name)] for row in rows)]
        name = _usual(field, left) or _worded(field, left)
        if name is not None:
            found[field] = name
    if tells_sessions(found):
        return found
    return {field: name for field, name in found.items() if field not in OF_SESSIONS}


def _usual(field: str, names: Sequence[str]) -> str | None:
    there: dict[str, str] = {}
    for name in names:
        last = spelling(name.rpartition(".")[2])
        there.setdefault(without_unit(last) if field == "arrival" else last, name)
    return next((there[usual] for usual in (*_USUAL[field], field) if usual in there), None)


def _worded(field: str, names: Sequence[str]) -> str | None:
    """The first with a word of the field; of tokens sooner one that says that it counts them."""
    words = {name: set(spelling(name).split("_")) for name in names}
    fit = [name for name in names if words[name] & _WORDS.get(field, set())]
    return next((name for name in fit if words[name] & _OF_TOKENS), fit[0] if fit else None)


def _is_count(cells: Iterable[str]) -> bool:
    """Whether all that is there are numbers, such as 812 and 812.0."""
    return all(cell.strip().removesuffix(".0").isascii() and cell.strip().removesuffix(".0").isdigit()
               for cell in cells if cell.strip())  # fmt: skip
