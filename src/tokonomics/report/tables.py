"""Pieces that every table on the terminal shares."""

from collections.abc import Iterable, Sequence

from rich import box
from rich.table import Table
from rich.text import Text


def table(columns: Sequence[str], rows: Iterable[Sequence[str | Text]], *, title: str | None = None) -> Table:
    """A table whose columns starting with '>' are numbers, aligned right."""
    made = Table(
        box=box.SIMPLE_HEAD,
        title=title,
        title_justify="left",
        title_style="bold",
        show_edge=False,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    for column in columns:
        right = column.startswith(">")
        made.add_column(column.removeprefix(">"), justify="right" if right else "left", no_wrap=right)
    for row in rows:
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


def bar(parts: Sequence[tuple[str, float, str]], width: int = 60) -> Text:
    """One line of coloured blocks, each part's length in proportion to its size."""
    total = sum(size for _, size, _ in parts)
    drawn = Text()
    edge = 0.0
    for _, size, style in parts:
        start, edge = round(edge / total * width), edge + size
        drawn.append("█" * (round(edge / total * width) - start), style=style)
    return drawn


def legend(parts: Sequence[tuple[str, float, str]], labels: Sequence[str]) -> Text:
    """What the colours of a bar mean."""
    drawn = Text()
    for (name, _, style), label in zip(parts, labels, strict=True):
        drawn.append("■ ", style=style)
        drawn.append(f"{name} {label}   ")
    return drawn
