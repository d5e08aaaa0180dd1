"""An answer on a terminal or in a pipe: printed for people or as JSON, its chart and its report saved."""

import json
import os
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokonomics.errors import flag, spelled
from tokonomics.questions.listener import Listener

if TYPE_CHECKING:
    from tokonomics.measure.bench.loads import Progress
    from tokonomics.report.answer import Answer
    from tokonomics.report.blocks import Section

_LEAST_WIDTH = 40
"""A narrower terminal wraps lines itself. Our choice: half of the usual 80, as in a split window or on a phone."""


def console(stderr: bool = False) -> Any:
    """A rich console that keeps tables whole in a pipe; colours and bold follow NO_COLOR and FORCE_COLOR."""
    from rich.console import Console

    from tokonomics.report.rich_text import COLUMNS

    # Rich itself keeps bold where no colours are wanted.
    screen = Console(stderr=stderr, highlight=False, color_system=None if os.environ.get("NO_COLOR") else "auto")
    if not screen.is_terminal and "COLUMNS" not in os.environ:
        screen.width = COLUMNS
    screen.width = max(screen.width, _LEAST_WIDTH)
    return screen


def show(sections: "Iterable[Section]") -> None:
    """Print a description."""
    from tokonomics.report.rich_text import renderable

    console().print(renderable(sections), crop=False)


def show_json(result: object) -> None:
    """Print a noun, or plain data, as one JSON document."""
    from pydantic import BaseModel

    plain = result.model_dump(mode="json") if isinstance(result, BaseModel) else result
    sys.stdout.write(json.dumps(plain, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def say(line: str) -> None:
    """A line beside the answer, on standard error."""
    sys.stderr.write(f"{spelled(line, flag)}\n")


_QUIET_S = 60.0  # seconds between two lines of progress where nobody looks at a terminal: a quick answer has none


class Terminal(Listener):
    """Shows on standard error what is being done: all the time on a terminal, now and then in a pipe; notes always."""

    def __init__(self, typed: str | None = None, now: Callable[[], float] = time.monotonic) -> None:
        self.typed = typed
        self._now = now
        self._begun = self._said = now()
        self._screen: Any = None
        self._shown: Any = None
        """What is drawn again and again at the moment: a status, or a live view."""

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

        from tokonomics.report.rich_text import progress_line

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
    """Print the answer, save what was asked for, and return the exit code."""
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
