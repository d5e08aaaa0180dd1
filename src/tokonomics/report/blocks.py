"""Describe a result for people as data: sections of lines, facts, tables, bars and files.

A view makes the description once. The terminal (``terminal``), the report in one file and the notebook (``html``),
Markdown (``markdown``) and the page (its JSON) render it; none of them adds a figure or advice. Texts name inputs by
``errors.option``; each renderer spells them its own way.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

Mood = Literal["", "strong", "soft", "good", "bad", "warn", "best", "worst", "alert", "mark"]
"""How a piece of text is shown: ``best``, ``worst`` and ``alert`` are strong and good, bad or a warning."""
Kind = Literal["", "headline", "asked", "heading", "note", "hint", "next", "good", "bad", "worst"]
"""What a line is: the answer in one line, the question, a heading, small print, advice, a command to type next
(which the page leaves out), or a verdict."""
Colour = Literal["blue", "green", "yellow", "red", "grey", "cyan", "magenta"]


@dataclass(frozen=True)
class Span:
    """A piece of text in one mood."""

    text: str
    mood: Mood = ""
    opens: str = ""
    """The inputs, as in an address, with which ``plan`` tells more about it: ``gpu=H100-SXM``. The page links to
    that."""


Piece = str | Span
Pieces = Piece | Sequence[Piece]


def spans(pieces: Pieces) -> tuple[Span, ...]:
    """Turn pieces of text into spans."""
    several = (pieces,) if isinstance(pieces, str | Span) else pieces
    return tuple(Span(piece) if isinstance(piece, str) else piece for piece in several)


@dataclass(frozen=True)
class Line:
    """A paragraph."""

    spans: tuple[Span, ...]
    kind: Kind = ""
    type: Literal["line"] = "line"


def line(*pieces: Piece, kind: Kind = "") -> Line:
    """Make a paragraph of plain and marked pieces."""
    return Line(spans(pieces), kind)


def headline(figure: str, rest: str = "", mood: Mood = "best") -> Line:
    """Make the answer in one line: its main figure, and what the figure is."""
    return Line((Span(figure, mood), Span(rest)), "headline")


def note(*lines: str) -> Line:
    """Make small print, one sentence per line."""
    return Line(spans("\n".join(text for text in lines if text)), "note")


def hint(text: str) -> Line:
    """Say what to do next."""
    return Line(spans(text), "hint")


@dataclass(frozen=True)
class Fact:
    """A named value and what it means."""

    name: str
    value: tuple[Span, ...]
    note: str = ""
    number: float | None = None  # the value itself, if two answers can be compared by it
    less: Literal["better", "worse"] = "better"


def fact(
    name: str,
    value: Pieces,
    note: str = "",
    *,
    number: float | None = None,
    less: Literal["better", "worse"] = "better",
) -> Fact:
    """Make a fact from pieces of text."""
    return Fact(name, spans(value), note, number, less)


@dataclass(frozen=True)
class Facts:
    """Names, values and notes, one per row."""

    rows: tuple[Fact, ...]
    type: Literal["facts"] = "facts"


FactRow = Fact | tuple[str, Pieces] | tuple[str, Pieces, str] | tuple[str, Pieces, str, float | None]
"""A fact, or its name and value, with an optional note and number."""


def facts(*rows: FactRow | None) -> Facts:
    """Put together the facts that are not None."""
    return Facts(tuple(_fact(row) for row in rows if row))


def _fact(row: FactRow) -> Fact:
    if isinstance(row, Fact):
        return row
    name, value, note, number = (*row, "", None)[:4] if len(row) == 2 else (*row, None)[:4]
    return fact(name, value, note, number=number)


@dataclass(frozen=True)
class Column:
    """A heading; numbers are aligned right, and a ``whole`` column is never cut or wrapped."""

    name: str
    number: bool = False
    whole: bool = False


@dataclass(frozen=True)
class Table:
    """Rows of cells below headings."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[tuple[Span, ...], ...], ...]
    title: str = ""
    best: int | None = None  # the row of the pick
    shown: int | None = None  # rows to show at first if more can be unfolded; a terminal shows only these
    type: Literal["table"] = "table"


def table(
    columns: Sequence[str],
    rows: Iterable[Sequence[Pieces]],
    title: str = "",
    *,
    best: int | None = None,
    shown: int | None = None,
) -> Table:
    """Make a table; a heading starts with '>' above numbers, and with '!' above names that are never cut."""
    heads = tuple(Column(name.lstrip(">!"), name.startswith(">"), name[:1] in ">!") for name in columns)
    return Table(heads, tuple(tuple(spans(cell) for cell in row) for row in rows), title, best, shown)


Row = TypeVar("Row")


def listed(
    rows: Iterable[Row],
    *columns: tuple[str, Callable[[Row], Pieces]] | None,
    title: str = "",
    best: int | None = None,
    shown: int | None = None,
    numbered: bool = False,
) -> Table:
    """Make a table of things: each column is a heading and a function that reads its cell; a None column is left out.

    ``numbered`` adds their numbers before the first column.
    """
    kept = [column for column in columns if column]
    heads = [*([""] if numbered else []), *(heading for heading, _ in kept)]
    cells = (
        [*([str(place)] if numbered else []), *(read(row) for _, read in kept)] for place, row in enumerate(rows, 1)
    )
    return table(heads, cells, title, best=best, shown=shown)


@dataclass(frozen=True)
class Part:
    """A part of a bar."""

    name: str
    size: float
    colour: Colour
    label: str


@dataclass(frozen=True)
class Bar:
    """Parts of a whole, drawn in proportion."""

    parts: tuple[Part, ...]
    type: Literal["bar"] = "bar"


def bar(parts: Iterable[tuple[str, float, Colour]], text: Callable[[float], str], least: float = 0.0) -> Bar:
    """Make a bar of the parts above a size, each with its size as text."""
    return Bar(tuple(Part(name, size, colour, text(size)) for name, size, colour in parts if size > least))


@dataclass(frozen=True)
class File:
    """A file to save unchanged."""

    name: str
    text: str
    type: Literal["file"] = "file"


Block = Line | Facts | Table | Bar | File


@dataclass(frozen=True)
class Section:
    """Blocks that belong together."""

    blocks: tuple[Block, ...]
    title: str = ""
    folded: bool = False  # shown on request; a terminal leaves it out, unless ``printed``
    printed: bool = False  # folded only where it can be unfolded: a terminal shows it


View = Iterable[Section | Block | None]  # what a view yields; a single block becomes a section


def sections(view: View) -> list[Section]:
    """Return the sections of a view that are not empty."""
    whole = (part if isinstance(part, Section) else section(part) for part in view)
    return [part for part in whole if part.blocks]


def section(*blocks: Block | None, title: str = "", folded: bool = False, printed: bool = False) -> Section:
    """Put the blocks that are not None under a title."""
    return Section(tuple(block for block in blocks if block), title, folded, printed)
