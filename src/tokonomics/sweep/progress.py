"""How far a sweep is, on standard error: a bar on a terminal, a line now and then in a pipe."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import typer

from tokonomics.report.terminal import console
from tokonomics.units import plural, seconds

_EVERY_S = 10.0
"""Between two lines in a pipe."""

Advance = Callable[[int, int], None]
"""So many points are done, and of them so many without an answer."""


class Clock:
    """Runs from the first worker that is ready: how long they take to start says nothing of the time left."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._began: float | None = None

    def start(self) -> None:
        if self._began is None:
            self._began = self._now()

    def passed_s(self) -> float:
        return 0.0 if self._began is None else self._now() - self._began


@contextmanager
def progress(total: int, before: int, workers: int, clock: Clock) -> Iterator[Advance]:
    """``before`` of the points were done by an earlier run: they say nothing of the time left."""
    screen = console(stderr=True)
    if screen.is_terminal:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}"),
        )
        with Progress(*columns, console=screen, transient=True) as bar:
            task = bar.add_task(f"{plural(workers, 'worker')}", total=total, completed=before, left="starting")

            def draw(done: int, lost: int) -> None:
                left = left_text(total, before, done, clock.passed_s())
                bar.update(task, completed=done, left=left + (f", {lost:,} without an answer" if lost else ""))

            yield draw
        return
    said = [float("-inf")]

    def line(done: int, lost: int) -> None:
        now = time.monotonic()
        if now - said[0] < _EVERY_S and done < total:
            return
        said[0] = now
        without = f", {lost:,} without an answer" if lost else ""
        typer.echo(f"{done:,}/{total:,} points{without}; {left_text(total, before, done, clock.passed_s())}", err=True)

    yield line


def left_text(total: int, before: int, done: int, elapsed_s: float) -> str:
    """The time left, if the points to come take as long as those done in this run."""
    if done >= total:
        return f"{seconds(elapsed_s)} in all"
    if done <= before:
        return "starting"
    return f"about {seconds(elapsed_s / (done - before) * (total - done))} left"
