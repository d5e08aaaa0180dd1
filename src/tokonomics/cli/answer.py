"""What a verb answers with: one result, to be read as a table, as JSON, as a chart, or as a page to forward.

A verb makes an ``Answer`` and gives it away. On the command line that prints it and saves the files asked for; inside
``taking`` the same answer goes to whoever asked instead, so that the page shows what the command line shows.
"""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tokonomics.cli.command_line import command_line
from tokonomics.cli.output import console, show, show_json

if TYPE_CHECKING:
    import altair as alt

ChartFile = Annotated[Path | None, typer.Option("--chart", help="Save a chart: .svg, .png, .html or .json.")]
HtmlFile = Annotated[
    Path | None, typer.Option("--html", help="Save a report in one file: figures, charts, inputs; opens offline.")
]

Say = Callable[[str], None]
_TAKEN: "ContextVar[list[Answer] | None]" = ContextVar("taken", default=None)
_TOLD: ContextVar[Say | None] = ContextVar("told", default=None)
_ASKED_AS: ContextVar[str | None] = ContextVar("asked_as", default=None)


@dataclass(frozen=True)
class Answer:
    """One result and its pictures; what is expensive to draw is drawn when it is looked at."""

    result: object
    """A noun, or plain data: what ``--json`` prints."""
    view: Callable[[], object]
    """The same for people, to be printed by rich."""
    title: str
    charts: "Mapping[str, Callable[[], alt.TopLevelMixin]]" = field(default_factory=dict)
    """By name, in the order in which they are read."""
    exit_code: int = 0
    """1 where nothing was found that does what was asked."""

    def plain(self) -> Any:
        """The result as JSON has it."""
        from pydantic import BaseModel

        return self.result.model_dump(mode="json") if isinstance(self.result, BaseModel) else self.result


def below_each_other(views: Sequence[Any]) -> Any:
    """Several views as one."""
    from rich.console import Group

    return Group(*views)


def check_files(chart: Path | None, html: Path | None = None) -> None:
    """Refuse names that cannot be written to before any work is done."""
    from tokonomics.report.charts import check_chart_path
    from tokonomics.report.html_report import check_html_path

    if chart:
        check_chart_path(chart)
    if html:
        check_html_path(html)


def give(answer: Answer, *, json: bool, chart: Path | None = None, html: Path | None = None) -> None:
    """Print the answer and save what was asked for; or hand it to whoever takes it."""
    taken = _TAKEN.get()
    if taken is not None:
        taken.append(answer)
        return
    drawn = {name: draw() for name, draw in answer.charts.items()} if chart or html else {}
    if chart and drawn:
        from tokonomics.report.charts import save_chart, stacked

        panels = list(drawn.values())
        save_chart(panels[0] if len(panels) == 1 else stacked(panels), chart)
        typer.echo(f"chart saved to {chart}", err=True)
    if html:
        from tokonomics.report.html_report import save_report

        save_report(html, answer.title, answer.view(), drawn, answer.plain(), asked_as())
        typer.echo(f"report saved to {html}", err=True)
    if json:
        show_json(answer.result)
    else:
        show(answer.view())
    if answer.exit_code:
        raise typer.Exit(answer.exit_code)


@contextmanager
def taking(command: str, tell: Say | None = None) -> Iterator[list[Answer]]:
    """Within it, answers to ``command`` are collected instead of printed, and ``tell`` hears what is being done."""
    taken: list[Answer] = []
    marks = _TAKEN.set(taken), _TOLD.set(tell or (lambda what: None)), _ASKED_AS.set(command)
    try:
        yield taken
    finally:
        _TAKEN.reset(marks[0])
        _TOLD.reset(marks[1])
        _ASKED_AS.reset(marks[2])


def asked_as() -> str:
    """The command that is being answered: as it was typed, or as whoever takes the answer would type it."""
    given = _ASKED_AS.get()
    return command_line(sys.argv[1:]) if given is None else given


@contextmanager
def working(first: str = "working") -> Iterator[Say]:
    """Says what is being done: on a terminal, or to whoever takes the answer."""
    told = _TOLD.get()
    screen = console(stderr=True)
    if told is not None or not screen.is_terminal:
        yield told or (lambda what: None)
        return
    with screen.status(f"{first} …") as status:
        yield lambda what: status.update(f"{what} …")
