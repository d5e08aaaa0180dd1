"""Nouns as rows of a table: nested figures become columns of their own, units stay in the names."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import polars as pl


def frame_of(rows: Iterable[Mapping[str, Any]]) -> "pl.DataFrame":
    """One row each; lists of nouns are left out, lists of numbers are kept as such."""
    import polars as pl

    nested: set[str] = set()
    flat = [dict(_flat(row, nested)) for row in rows]
    # Where another row has nouns in its place, an absent one is no column; nor is a list that is always empty.
    names = [name for name in dict.fromkeys(name for row in flat for name in row) if name not in nested]
    names = [name for name in names if any(row.get(name) != [] for row in flat)]
    made = pl.DataFrame([{name: row.get(name) for name in names} for row in flat], infer_schema_length=None)
    dates = [name for name in made.columns if name.split("_")[-1] == "date" and made[name].dtype == pl.String]
    return made.with_columns(pl.col(name).str.to_date() for name in dates)


def _flat(row: Mapping[str, Any], nested: set[str], within: str = "") -> Iterable[tuple[str, Any]]:
    for key, value in row.items():
        name = _joined(within, key)
        if isinstance(value, Mapping):
            nested.add(name)
            yield from _flat(value, nested, name)
        elif isinstance(value, list) and any(isinstance(each, Mapping | list) for each in value):
            nested.add(name)
        else:
            yield name, value


def _joined(outer: str, inner: str) -> str:
    """``ttft_s`` and ``p99``: ``ttft_p99_s``, so that the unit stays where one looks for it."""
    if not outer:
        return inner
    if outer.endswith("_s") and not outer.endswith("_per_s"):
        return f"{outer[:-2]}_{inner}_s"
    return f"{outer}_{inner}"
