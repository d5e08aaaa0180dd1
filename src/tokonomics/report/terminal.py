"""Show an answer on a terminal or in a pipe, for people or as JSON, and save its chart and report.

``renderable`` draws the sections: an empty line between them, colours for moods, blocks for bars.
"""

import io
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, assert_never

from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from tokonomics.errors import Spell, flag, spelled
from tokonomics.questions.request import Listener
from tokonomics.report.blocks import Bar, Block, Column, Facts, File, Kind, Line, Mood, Section, Span, Table
from tokonomics.units import percent, seconds, usd

if TYPE_CHECKING:
    from tokonomics.measure.bench.loads import Progress

COLUMNS = 140  # without a terminal: tables in files and pipes keep their shape
_STYLES: dict[Mood, str] = {
    "": "", "strong": "bold", "soft": "dim", "good": "green", "bad": "red", "warn": "yellow",
    "best": "bold green", "worst": "bold red", "alert": "bold yellow", "mark": "blue",
}  # fmt: skip
_LINES: dict[Kind, str] = {
    "": "", "headline": "", "asked": "dim", "heading": "bold", "note": "dim", "hint": "yellow", "next": "yellow",
    "good": "green", "bad": "red", "worst": "bold red",
}  # fmt: skip
_FILLS = "█▓▒░·"  # one for each part of a bar, so that it is readable without colours
_BAR_WIDTH = 60
_BESIDE = 80  # from this width the notes of facts are beside them: the usual width of a terminal
_WHOLE = 118  # from this width tables keep their shape, even if cells wrap: all of ours fit
_WRAPPED = 1.5  # a table up to this many times the width is wrapped into it, not stacked (our choice)


def renderable(sections: Iterable[Section], spell: Spell = flag) -> RenderableType:
    """Return what a terminal shows of a description."""
    parts: list[RenderableType] = []
    for section in sections:
        if section.folded and not section.printed:
            continue
        parts += [""] if parts else []
        parts += [Text(spelled(section.title, spell), style="bold")] if section.title else []
        parts += [_block(block, spell) for block in section.blocks]
    return Group(*parts)


def as_text(sections: Iterable[Section], spell: Spell = flag, columns: int = COLUMNS) -> str:
    """Return what a terminal shows, without its colours."""
    out = io.StringIO()
    screen = Console(file=out, width=columns, highlight=False, no_color=True)
    screen.print(renderable(sections, spell), crop=False)
    return out.getvalue().rstrip()


def _block(block: Block, spell: Spell) -> RenderableType:
    match block:
        case Line():
            return _text(block.spans, spell, _LINES[block.kind])
        case Facts():
            return _ByWidth(lambda width, _: _facts(block, spell) if width >= _BESIDE else _facts_above(block, spell))
        case Table():
            drawn = _table(block, spell)
            return _ByWidth(lambda width, fits: drawn if fits(drawn) else _stacked(block, spell, width))
        case Bar():
            return _ByWidth(lambda width, _: _bar(block, min(width, _BAR_WIDTH)))
        case File():  # a narrower terminal wraps lines itself, and they can still be copied whole
            return Text(f"# {block.name}\n{block.text}", no_wrap=True, overflow="ignore")
        case _:
            assert_never(block)


class _ByWidth:
    """Draw one way or another by the available columns, and by whether a table fits into them."""

    def __init__(self, draw: Callable[[int, Callable[[RichTable], bool]], RenderableType]) -> None:
        self._draw = draw

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        width = options.max_width

        def fits(drawn: RichTable) -> bool:
            by_nature = Measurement.get(console, options.update(max_width=10_000), drawn)
            return width >= _WHOLE or (by_nature.minimum <= width and by_nature.maximum <= _WRAPPED * width)

        yield self._draw(width, fits)


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


def _facts_above(facts: Facts, spell: Spell) -> RenderableType:
    """Draw names and values, with each note below its own."""
    parts: list[RenderableType] = []
    for fact in facts.rows:
        parts.append(Text(f"{spelled(fact.name, spell)}  ", style="dim").append_text(_text(fact.value, spell, "bold")))
        parts += [Padding(Text(spelled(fact.note, spell), style="dim"), (0, 0, 0, 2))] if fact.note else []
    return Group(*parts)


def _stacked(table: Table, spell: Spell, width: int) -> RenderableType:
    """Draw rows below each other, each cell on a line with its heading."""
    parts: list[RenderableType] = [Text(spelled(table.title, spell), style="bold")] if table.title else []
    widest = max((len(spelled(column.name, spell)) for column in table.columns), default=0)
    for row in table.rows[: table.shown]:
        drawn = RichTable(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
        drawn.add_column(style="dim", width=min(widest, width // 2))
        drawn.add_column(overflow="fold")
        for column, cell in zip(table.columns, row, strict=True):
            if text := _text(cell, spell):
                drawn.add_row(Text(spelled(column.name, spell)), text)
        parts += [drawn, ""]
    return Group(*parts[:-1] if table.rows else parts)


def _table(table: Table, spell: Spell) -> RichTable:
    body = [[_text(cell, spell) for cell in row] for row in table.rows[: table.shown]]
    title = Text(spelled(table.title, spell)) if table.title else None
    drawn = RichTable(
        box=box.SIMPLE_HEAD, title=title, title_justify="left", title_style="bold",
        show_edge=False, pad_edge=False, padding=(0, 1, 0, 0),
    )  # fmt: skip
    for place, column in enumerate(table.columns):
        heading = Text(spelled(column.name, spell), no_wrap=False)  # wrap it rather than cut it
        drawn.add_column(heading, **_column(column, heading.plain, [row[place] for row in body]))
    for row in body:
        drawn.add_row(*row)
    return drawn


def _column(column: Column, heading: str, cells: list[Text]) -> dict[str, Any]:
    widest = max(map(len, [*heading.split(), *(cell.plain for cell in cells)]), default=0) if column.whole else None
    return {"justify": "right" if column.number else "left", "no_wrap": column.whole, "min_width": widest}


def _bar(bar: Bar, width: int) -> Text:
    """Draw one line of blocks, each part's length in proportion to its size, and a legend."""
    total = sum(part.size for part in bar.parts)
    blocks, legend, edge = Text(), Text("\n"), 0.0
    for part, fill in zip(bar.parts, _FILLS, strict=False):
        colour = "bright_black" if part.colour == "grey" else part.colour
        start, edge = round(edge / total * width), edge + part.size
        blocks.append(fill * (round(edge / total * width) - start), style=colour)
        legend.append(f"{fill} ", style=colour).append(f"{part.name} {part.label}   ")
    legend.rstrip()
    return blocks.append_text(legend)


def progress_line(progress: "Progress") -> Text:
    """Draw one line that is redrawn while a load runs."""
    price = f"  {usd(progress.usd_per_mtok)}/Mtok" if progress.usd_per_mtok is not None else ""
    failed = f"  {progress.failed:,} failed" if progress.failed else ""
    tight = f"  ±{percent(progress.precision)}" if progress.precision is not None else ""
    return Text.assemble(
        (f"{progress.load:<16}", "bold"),
        f"{progress.phase:<9}{seconds(progress.elapsed_s):>8}  {progress.completed:>7,} answered{failed}  ",
        (f"{progress.output_tokens_per_s:>9,.0f} tok/s{price}", "green"),
        (tight, "dim"),
    )


if TYPE_CHECKING:
    from tokonomics.measure.bench.loads import Progress
    from tokonomics.report.answer import Answer
    from tokonomics.report.blocks import Section

_LEAST_WIDTH = 40
"""A narrower terminal wraps lines itself. Our choice: half of the usual 80, as in a split window or on a phone."""


def console(stderr: bool = False) -> Any:
    """Return a rich console that keeps tables whole in a pipe; colours and bold follow NO_COLOR and FORCE_COLOR."""
    from rich.console import Console

    from tokonomics.report.terminal import COLUMNS

    # Rich itself keeps bold when no colours are wanted.
    screen = Console(stderr=stderr, highlight=False, color_system=None if os.environ.get("NO_COLOR") else "auto")
    if not screen.is_terminal and "COLUMNS" not in os.environ:
        screen.width = COLUMNS
    screen.width = max(screen.width, _LEAST_WIDTH)
    return screen


def show(sections: "Iterable[Section]") -> None:

    console().print(renderable(sections), crop=False)


def show_json(result: object) -> None:
    """Print a noun, or plain data, as one JSON document."""
    from pydantic import BaseModel

    plain = result.model_dump(mode="json") if isinstance(result, BaseModel) else result
    sys.stdout.write(json.dumps(plain, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def say(line: str) -> None:
    """Print a line beside the answer, on standard error."""
    sys.stderr.write(f"{spelled(line, flag)}\n")


_QUIET_S = 60.0  # between two lines of progress without a terminal: a quick answer has none


class Terminal(Listener):
    """Show progress on standard error, continuously on a terminal and now and then in a pipe; always show notes."""

    def __init__(self, typed: str | None = None, now: Callable[[], float] = time.monotonic) -> None:
        self.typed = typed
        self._now = now
        self._begun = self._said = now()
        self._screen: Any = None
        self._shown: Any = None
        """The status or live view being redrawn at the moment."""

    def __enter__(self) -> "Terminal":
        if sys.stderr.isatty():
            self._screen = console(stderr=True)
        return self

    def __exit__(self, *problem: object) -> None:
        if self._shown is not None:
            self._shown.stop()

    def doing(self, what: str) -> None:
        if self._screen is None:
            if self._now() - self._said >= _QUIET_S:
                self._said = self._now()
                say(f"{what} … ({self._said - self._begun:.0f} s)")
            return
        from rich.markup import escape

        if self._shown is None:
            self._shown = self._screen.status(escape(f"{what} …"))
            self._shown.start()
        else:
            self._shown.update(escape(f"{what} …"))

    def note(self, line: str) -> None:
        if self._screen is None:
            say(line)
        else:
            self._screen.print(spelled(line, flag), markup=False)

    def watching(self) -> "Callable[[Progress], None] | None":
        if self._screen is None:
            return None
        from rich.live import Live

        live = self._shown = Live(console=self._screen, transient=True, auto_refresh=False)
        live.start()
        return lambda progress: live.update(progress_line(progress), refresh=True)

    def counting(self, what: str, total: int) -> Callable[[int], None] | None:
        if self._screen is None:
            return None
        from tokonomics.units import percent

        return lambda done: self.doing(f"{what}: {percent(done / total) if total else f'{done:,}'}")


def check_files(chart: str | None, html: str | None = None) -> None:
    """Refuse names that cannot be written to before any work is done."""
    from tokonomics.report.charts import check_chart_path
    from tokonomics.report.html import check_html_path

    if chart:
        check_chart_path(Path(chart))
    if html:
        check_html_path(Path(html))


def give(
    answer: "Answer", command: str, *, json: bool = False, chart: str | None = None, html: str | None = None
) -> int:
    """Print the answer, save the requested files, and return the exit code."""
    if chart and answer.charts:
        from tokonomics.report.charts import save_chart

        save_chart(answer.chart(), Path(chart))
        say(f"chart saved to {chart}")
    elif chart:
        say(f"no chart: the answer has nothing to draw, and {chart} is not written")
    if html:
        from tokonomics.report.html import save_report

        save_report(Path(html), answer, command)
        say(f"report saved to {html}")
    if json:
        show_json(answer.plain())
    elif answer.printed:
        sys.stdout.write(f"{answer.printed()}\n")
    else:
        show(answer.sections())
    return answer.exit_code
