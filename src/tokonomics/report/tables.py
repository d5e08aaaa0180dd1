"""Pieces that every table on the terminal shares."""

from collections.abc import Iterable, Sequence
from datetime import date

from rich import box
from rich.console import JustifyMethod
from rich.table import Table
from rich.text import Text

from tokonomics.catalog.offers import STALE_AFTER_DAYS


def table(columns: Sequence[str], rows: Iterable[Sequence[str | Text]], *, title: str | None = None) -> Table:
    """Columns starting with '>' are numbers, aligned right; one starting with '!' is a name that is never cut."""
    body = [[cell if isinstance(cell, Text) else Text(cell) for cell in row] for row in rows]
    made = Table(
        box=box.SIMPLE_HEAD,
        title=title,
        title_justify="left",
        title_style="bold",
        show_edge=False,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    for place, column in enumerate(columns):
        whole = column[:1] in ">!"
        widest = max((row[place].cell_len for row in body), default=0) if whole and column else None
        justify: JustifyMethod = "right" if column.startswith(">") else "left"
        made.add_column(column.lstrip(">!"), justify=justify, no_wrap=whole, min_width=widest)
    for row in body:
        made.add_row(*row)
    return made


def pairs(rows: Iterable[tuple[str, str | Text, str]]) -> Table:
    """Name, value, and where it comes from; one a line."""
    made = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    made.add_column(style="dim")
    made.add_column(justify="right", style="bold", no_wrap=True)
    made.add_column(style="dim")
    for row in rows:
        made.add_row(*row)
    return made


OLD_PRICE = f"† price older than {STALE_AFTER_DAYS} days: run `tokonomics prices refresh`."
"""What the mark on old prices means."""


def quoted_on(dates: Iterable[date]) -> str:
    """When prices were quoted."""
    found = list(dates)
    first, last = min(found), max(found)
    return f"Prices quoted on {first}" if first == last else f"Prices quoted from {first} to {last}"


def quoted_text(dates: Iterable[date], any_stale: bool) -> str:
    """When prices were quoted, and what the mark on old ones means."""
    return f"{quoted_on(dates)}. {OLD_PRICE}" if any_stale else f"{quoted_on(dates)}."


_FILLS = "█▓▒░·"
"""One for each part of a bar, so that it reads without colours."""


def bar(parts: Sequence[tuple[str, float, str]], width: int = 60) -> Text:
    """One line of blocks, each part's length in proportion to its size."""
    total = sum(size for _, size, _ in parts)
    drawn = Text()
    edge = 0.0
    for (_, size, style), fill in zip(parts, _FILLS, strict=False):
        start, edge = round(edge / total * width), edge + size
        drawn.append(fill * (round(edge / total * width) - start), style=style)
    return drawn


def legend(parts: Sequence[tuple[str, float, str]], labels: Sequence[str]) -> Text:
    """What the blocks of a bar mean."""
    drawn = Text()
    for (name, _, style), fill, label in zip(parts, _FILLS, labels, strict=False):
        drawn.append(f"{fill} ", style=style)
        drawn.append(f"{name} {label}   ")
    drawn.rstrip()
    return drawn
