"""A description on a terminal: sections with an empty line between them, colours for moods, blocks for bars."""

import io
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, assert_never

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table as RichTable
from rich.text import Text

from tokonomics.errors import Spell, flag, spelled
from tokonomics.report.blocks import Bar, Block, Column, Facts, File, Kind, Line, Mood, Section, Span, Table
from tokonomics.units import percent, seconds, usd

if TYPE_CHECKING:
    from tokonomics.measure.bench.loads import Progress

COLUMNS = 140
"""Where there is no terminal: tables in files and pipes keep their shape."""
_STYLES: dict[Mood, str] = {
    "": "", "strong": "bold", "soft": "dim", "good": "green", "bad": "red", "warn": "yellow",
    "best": "bold green", "worst": "bold red", "alert": "bold yellow", "mark": "blue",
}  # fmt: skip
_LINES: dict[Kind, str] = {
    "": "", "headline": "", "asked": "dim", "heading": "bold", "note": "dim", "hint": "yellow", "next": "yellow",
    "good": "green", "bad": "red", "worst": "bold red",
}  # fmt: skip
_FILLS = "█▓▒░·"
"""One for each part of a bar, so that it reads without colours."""
_BAR_WIDTH = 60


def renderable(sections: Iterable[Section], spell: Spell = flag) -> RenderableType:
    """What a terminal shows of a description."""
    parts: list[RenderableType] = []
    for section in sections:
        if section.folded and not section.printed:
            continue
        parts += [""] if parts else []
        parts += [Text(spelled(section.title, spell), style="bold")] if section.title else []
        parts += [_block(block, spell) for block in section.blocks]
    return Group(*parts)


def as_text(sections: Iterable[Section], spell: Spell = flag, columns: int = COLUMNS) -> str:
    """What a terminal shows, without its colours."""
    out = io.StringIO()
    screen = Console(file=out, width=columns, highlight=False, no_color=True)
    screen.print(renderable(sections, spell), crop=False)
    return out.getvalue().rstrip()


def _block(block: Block, spell: Spell) -> RenderableType:
    match block:
        case Line():
            return _text(block.spans, spell, _LINES[block.kind])
        case Facts():
            return _facts(block, spell)
        case Table():
            return _table(block, spell)
        case Bar():
            return _bar(block)
        case File():  # a narrower terminal wraps its lines itself, and copies them whole
            return Text(f"# {block.name}\n{block.text}", no_wrap=True, overflow="ignore")
        case _:
            assert_never(block)


def _text(spans: Iterable[Span], spell: Spell, style: str = "") -> Text:
    return Text.assemble(*((spelled(span.text, spell), _STYLES[span.mood]) for span in spans), style=style)


def _facts(facts: Facts, spell: Spell) -> RichTable:
    drawn = RichTable(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    drawn.add_column(style="dim")
    drawn.add_column(justify="right", style="bold", no_wrap=True)
    drawn.add_column(style="dim")
    for fact in facts.rows:
        drawn.add_row(Text(spelled(fact.name, spell)), _text(fact.value, spell), Text(spelled(fact.note, spell)))
    return drawn


def _table(table: Table, spell: Spell) -> RichTable:
    body = [[_text(cell, spell) for cell in row] for row in table.rows[: table.shown]]
    title = Text(spelled(table.title, spell)) if table.title else None
    drawn = RichTable(
        box=box.SIMPLE_HEAD, title=title, title_justify="left", title_style="bold",
        show_edge=False, pad_edge=False, padding=(0, 1, 0, 0),
    )  # fmt: skip
    for place, column in enumerate(table.columns):
        drawn.add_column(Text(spelled(column.name, spell)), **_column(column, [row[place] for row in body]))
    for row in body:
        drawn.add_row(*row)
    return drawn


def _column(column: Column, cells: list[Text]) -> dict[str, Any]:
    widest = max((cell.cell_len for cell in cells), default=0) if column.whole else None
    return {"justify": "right" if column.number else "left", "no_wrap": column.whole, "min_width": widest}


def _bar(bar: Bar) -> Text:
    """One line of blocks, each part's length in proportion to its size, and what they mean."""
    total = sum(part.size for part in bar.parts)
    blocks, legend, edge = Text(), Text("\n"), 0.0
    for part, fill in zip(bar.parts, _FILLS, strict=False):
        colour = "bright_black" if part.colour == "grey" else part.colour
        start, edge = round(edge / total * _BAR_WIDTH), edge + part.size
        blocks.append(fill * (round(edge / total * _BAR_WIDTH) - start), style=colour)
        legend.append(f"{fill} ", style=colour).append(f"{part.name} {part.label}   ")
    legend.rstrip()
    return blocks.append_text(legend)


def progress_line(progress: "Progress") -> Text:
    """One line that is drawn again while a load runs."""
    price = f"  {usd(progress.usd_per_mtok)}/Mtok" if progress.usd_per_mtok is not None else ""
    failed = f"  {progress.failed:,} failed" if progress.failed else ""
    tight = f"  ±{percent(progress.precision)}" if progress.precision is not None else ""
    return Text.assemble(
        (f"{progress.load:<16}", "bold"),
        f"{progress.phase:<9}{seconds(progress.elapsed_s):>8}  {progress.completed:>7,} answered{failed}  ",
        (f"{progress.output_tokens_per_s:>9,.0f} tok/s{price}", "green"),
        (tight, "dim"),
    )
