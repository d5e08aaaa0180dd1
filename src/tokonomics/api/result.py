"""What every function returns: a noun that shows itself as one line, as a table, as a frame and as a chart."""

import json
from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Self

from pydantic import BaseModel, PrivateAttr

from tokonomics.cli.answer import Answer
from tokonomics.errors import BadInput, UnknownName
from tokonomics.report.frames import frame_of
from tokonomics.report.notebook_view import table_html
from tokonomics.types import Noun

if TYPE_CHECKING:
    import altair as alt
    import polars as pl


class Result(Noun):
    """An answer in figures, and ways to look at it."""

    ROWS: ClassVar[str] = ""
    """The part that ``to_frame`` shows unless told otherwise; itself, as one row, where there is none."""
    SHOWN: ClassVar[tuple[str, ...]] = ()
    """Columns of that frame in a notebook."""

    _answer: Answer | None = PrivateAttr(default=None)
    _command: str = PrivateAttr(default="")

    @classmethod
    def of(cls, answer: Answer, command: str) -> Self:
        """The result of a verb, with its views."""
        made = cls.model_validate(answer.plain())
        made._answer, made._command = answer, command
        return made

    @property
    def command(self) -> str:
        """The line that gives the same figures in a shell."""
        return self._command

    @abstractmethod
    def headline(self) -> str:
        """What it comes to, in one line."""

    def to_frame(self, part: str = "") -> "pl.DataFrame":
        """A polars frame, units in the names of its columns (``.to_pandas()`` gives pandas').

        ``part`` names another list of the result, such as ``"rejected"`` of a plan or ``"timeline"`` of a simulation.
        """
        return frame_of(each.model_dump(mode="json") for each in self._nouns(part or self.ROWS))

    def frames(self) -> list[str]:
        """The lists that ``to_frame`` can show."""
        return [name for name, nouns in _lists(self).items() if nouns]

    def chart(self, name: str = "") -> "alt.TopLevelMixin":
        """The chart that ``--chart`` saves, as Altair draws it in a notebook; by ``name``, one of several."""
        drawn = self._answer.charts if self._answer else {}
        if not drawn:
            raise BadInput("has no chart", where=type(self).__name__, fix="Draw one from to_frame().")
        if name and name not in drawn:
            raise UnknownName("chart", name, drawn, listing=f"{type(self).__name__}.charts()")
        if name or len(drawn) == 1:
            return drawn[name or next(iter(drawn))]()
        from tokonomics.report.charts import stacked

        return stacked([draw() for draw in drawn.values()])

    def charts(self) -> list[str]:
        """The names that ``chart`` takes."""
        return list(self._answer.charts) if self._answer else []

    def to_json(self) -> str:
        """What ``--json`` prints."""
        return json.dumps(self._plain(), indent=2, ensure_ascii=False, allow_nan=False)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.headline()}>"

    def __str__(self) -> str:
        """What the terminal shows; the headline alone where the result came from a file."""
        if self._answer is None:
            return self.headline()
        from tokonomics.report.text import as_text

        return as_text(self._answer.view())

    def _repr_html_(self) -> str:
        count = len(self._nouns(self.ROWS))
        rows = frame_of(each.model_dump(mode="json") for each in self._first_rows(_ROWS)).to_dicts()
        shown = f"{len(rows)} of {count:,} rows; " if count > len(rows) else ""
        others = "".join(f', to_frame("{each}")' for each in self.frames() if each != self.ROWS)
        columns = [name for name in self.SHOWN if not rows or name in rows[0]]
        return table_html(self.headline(), rows, columns, [f"{shown}all figures: to_frame(){others}", self._command])

    def __getstate__(self) -> dict[Any, Any]:
        """Without the views: they draw from what was simulated, which is large and stays where it is."""
        state = dict(super().__getstate__())
        state["__pydantic_private__"] = {"_answer": None, "_command": self._command}
        return state

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and isinstance(other, Result) and self._plain() == other._plain()

    def _plain(self) -> dict[str, Any]:
        return self.model_dump(mode="json", exclude_unset=True)

    def _first_rows(self, count: int) -> Sequence[BaseModel]:
        """Those that a notebook shows."""
        return self._nouns(self.ROWS)[:count]

    def _nouns(self, part: str) -> Sequence[BaseModel]:
        known = _lists(self)
        if not part:
            return [self]
        if part not in known:
            raise UnknownName("part", part, known, fix=f"Parts: {', '.join(self.frames())}.")
        return known[part]


_ROWS = 10
"""In a notebook, as on the terminal."""


def _lists(noun: BaseModel, within: str = "") -> dict[str, Sequence[BaseModel]]:
    """The lists of nouns in a result, by their place: ``ranked``, ``plan.purchases``."""
    found: dict[str, Sequence[BaseModel]] = {}
    for name, value in noun:
        if isinstance(value, BaseModel):
            found |= _lists(value, f"{within}{name}.")
        elif isinstance(value, tuple) and all(isinstance(each, BaseModel) for each in value):
            found[f"{within}{name}"] = value
    return found
