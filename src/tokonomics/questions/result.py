"""Define results: a noun that holds every figure, and shows itself as a door describes it."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Self

from pydantic import BaseModel, Field, PrivateAttr

from tokonomics.errors import BadInput, UnknownName
from tokonomics.types import Noun
from tokonomics.units import plural

if TYPE_CHECKING:
    import altair as alt
    import polars as pl


def beside() -> Any:
    """Declare a field for data that views draw and no document holds: it is not dumped, compared or pickled."""
    return Field(default=None, exclude=True, repr=False)


class Result(Noun):
    """An answer in figures, and ways to look at it."""

    ROWS: ClassVar[str] = ""
    """The list that ``to_frame`` shows by default; empty: the result itself, as one row."""

    _described: Callable[[], Any] | None = PrivateAttr(default=None)
    """The door's description of it (see ``report.answer``)."""
    _command: str = PrivateAttr(default="")

    def shown(self, described: Callable[[], Any], command: str) -> None:
        """Take the door's description of this result, and the command that gives the same figures."""
        self._described, self._command = described, command

    def noting(self, notes: Sequence[str]) -> Self:
        """Add notes about how its inputs were read, if its document has a place for them."""
        takes = notes and "notes" in type(self).model_fields
        return self.model_copy(update={"notes": tuple(notes)}) if takes else self

    @property
    def is_found(self) -> bool:
        """Tell whether anything does what was asked."""
        return True

    @property
    def command(self) -> str:
        """Return the command line that gives the same figures."""
        return self._command

    def headline(self) -> str:
        """Return the answer in one line."""
        return type(self).__name__

    def plain(self) -> Any:
        """Return the document that ``--json`` prints: the fields that were set, and everything within them."""
        return self.model_dump(mode="json", include=set(self.model_fields_set))

    def to_json(self) -> str:
        """Return what ``--json`` prints."""
        return json.dumps(self.plain(), indent=2, ensure_ascii=False, allow_nan=False)

    def to_frame(self, part: str = "") -> "pl.DataFrame":
        """Return a polars frame with units in the column names (``.to_pandas()`` makes it a pandas frame).

        ``part`` names another list of the result, such as ``"rejected"`` of a plan or ``"timeline"`` of a simulation.
        """
        return frame_of(noun.model_dump(mode="json") for noun in self._nouns(part or self.ROWS))

    def frames(self) -> list[str]:
        """Return the names of the lists that ``to_frame`` can show."""
        return [name for name, nouns in _lists(self).items() if nouns]

    def chart(self, name: str = "") -> "alt.TopLevelMixin":
        """Return the chart that ``--chart`` saves, for a notebook too; if there are several, the named one."""
        names = self.charts()
        if not self._described or not names:
            raise BadInput("has no chart", where=type(self).__name__, fix="Draw one from to_frame().")
        if name and name not in names:
            raise UnknownName("chart", name, names, listing=f"{type(self).__name__}.charts()")
        drawn: alt.TopLevelMixin = self._described().chart(name)
        return drawn

    def charts(self) -> list[str]:
        """Return the names that ``chart`` takes."""
        return list(self._described().charts) if self._described else []

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.headline()}>"

    def __str__(self) -> str:
        """Return what the terminal shows; only the headline if the result came from a file."""
        return self._described().text() if self._described else self.headline()

    def _repr_html_(self) -> str:
        """Return the description as HTML; only the headline if the result came from a file."""
        from html import escape  # a notebook's alone

        body = self._described().html() if self._described else f"<b>{escape(self.headline())}</b>"
        more = ", ".join(["to_frame()", *(f'to_frame("{name}")' for name in self.frames() if name != self.ROWS)])
        notes = "<br>".join(escape(line) for line in (f"All figures: {more}", self._command) if line)
        return f"{body}<p><small style='opacity:.7'>{notes}</small></p>"

    def __getstate__(self) -> dict[Any, Any]:
        """Leave out the views and their data, which are large."""
        state = dict(super().__getstate__())
        beside = {name for name, field in type(self).model_fields.items() if field.exclude}
        state["__dict__"] = {name: None if name in beside else value for name, value in state["__dict__"].items()}
        state["__pydantic_private__"] = {"_described": None, "_command": self._command}
        return state

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and isinstance(other, Result) and self.plain() == other.plain()

    def __hash__(self) -> int:
        return id(self)

    def _nouns(self, part: str) -> Sequence[BaseModel]:
        known = _lists(self)
        if not part:
            return [self]
        if part not in known:
            raise UnknownName("part", part, known, fix=f"Parts: {', '.join(self.frames())}.")
        return known[part]


class Listing(Result):
    """Rows of the catalogue."""

    rows: tuple[Any, ...]  # as the catalogue has them
    documents: tuple[dict[str, Any], ...]  # the same for programs
    terms: Any = beside()  # for offers: the terms whose price counts
    best: Any = beside()  # for offers: the cheapest that other verbs would take
    coverage: Any = beside()  # for offers: what is known of each provider asked for
    without_price: Any = beside()  # for offers: the GPUs asked for that nobody has a public price of

    def headline(self) -> str:
        return plural(len(self.documents), "row")

    def plain(self) -> Any:
        return list(self.documents)

    def to_frame(self, part: str = "") -> "pl.DataFrame":
        return frame_of(self.documents)


def _lists(noun: BaseModel, within: str = "") -> dict[str, Sequence[BaseModel]]:
    """Return the lists of nouns in a result, by their place: ``ranked``, ``plan.purchases``."""
    found: dict[str, Sequence[BaseModel]] = {}
    for name, value in noun:
        if type(noun).model_fields[name].exclude:
            continue
        if isinstance(value, BaseModel):
            found |= _lists(value, f"{within}{name}.")
        elif isinstance(value, tuple) and all(isinstance(part, BaseModel) for part in value):
            found[f"{within}{name}"] = value
    return found


def frame_of(rows: Iterable[Mapping[str, Any]]) -> "pl.DataFrame":
    """Return one row for each noun; lists of nouns are left out, lists of numbers are kept."""
    import polars as pl

    nested: set[str] = set()
    flat = [dict(_flat(row, nested)) for row in rows]
    # A missing noun is not a column if another row has one there; nor is a list that is always empty.
    names = [name for name in dict.fromkeys(name for row in flat for name in row) if name not in nested]
    names = [name for name in names if any(row.get(name) != [] for row in flat)]
    frame = pl.DataFrame([{name: row.get(name) for name in names} for row in flat], infer_schema_length=None)
    dates = [name for name in frame.columns if name.split("_")[-1] == "date" and frame[name].dtype == pl.String]
    return frame.with_columns(pl.col(name).str.to_date() for name in dates)


def _flat(row: Mapping[str, Any], nested: set[str], within: str = "") -> Iterable[tuple[str, Any]]:
    for key, value in row.items():
        name = _joined(within, key)
        if isinstance(value, Mapping):
            nested.add(name)
            yield from _flat(value, nested, name)
        elif isinstance(value, list) and any(isinstance(part, Mapping | list) for part in value):
            nested.add(name)
        else:
            yield name, value


def _joined(outer: str, inner: str) -> str:
    """Join ``ttft_s`` and ``p99`` to ``ttft_p99_s``, so that the unit stays at the end."""
    if not outer:
        return inner
    if outer.endswith("_s") and not outer.endswith("_per_s"):
        return f"{outer[:-2]}_{inner}_s"
    return f"{outer}_{inner}"
