"""Show a sweep: its progress, the best points, what each swept key changes, why some have no answer, and a chart.

Progress goes to standard error: a bar on a terminal, a line now and then in a pipe. The chart shows one key as a line
or bars, two as coloured lines or a heat map; with more keys, each mark is the best over the others. Points that miss
their SLO are left out.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

import typer

from tokonomics.errors import option, shorten
from tokonomics.report import blocks
from tokonomics.report.terminal import console
from tokonomics.sweep.outcome import SweepRow, SweepSummary, more_is_better
from tokonomics.sweep.points import SweepPoint
from tokonomics.units import count, percent, plural, seconds, usd

if TYPE_CHECKING:
    import altair as alt

_COLUMNS: dict[str, tuple[str, Callable[[Any], str]]] = {
    "usd_per_mtok": ("$/Mtok", usd), "usd_per_month": ("$/month", usd), "gpu": ("GPU", str), "gpus_paid": ("GPUs", str),
    "replicas": ("replicas", str), "weights": ("weights", str), "load_share": ("load", percent),
    "requests_per_s": ("requests/s", count),
    "holds_requests_per_s": ("holds /s", count),
    "slo_attainment": ("in time", percent), "ttft_p99_s": ("TTFT p99", seconds), "tpot_p99_s": ("TPOT p99", seconds),
    "ttft_mean_s": ("TTFT mean", seconds), "tpot_mean_s": ("TPOT mean", seconds),
}  # fmt: skip
"""Figures that get a column on the terminal; the file has them all."""
_WORDS = frozenset({"gpu", "weights"})
_MOST_REASONS = 5
_MOST_POINTS = 20


def sweep_sections(summary: SweepSummary, top: int, said: Sequence[str]) -> Iterable[blocks.Section]:
    """Describe the results; ``said`` are lines about where they are and what they depend on."""
    yield blocks.section(blocks.line(_heading(summary), kind="asked"))
    if summary.ranked:
        yield blocks.section(_headline(summary))
        yield blocks.section(_best(summary, top))
        for key, values in summary.values.items():
            if len(values) > 1:
                yield blocks.section(_of_key(summary, key))
        has_months = any("usd_per_month" in row.outcome.figures for row in summary.ranked)
        if summary.by == "usd_per_mtok" and "rate" in summary.keys and has_months:
            by = option("by", "usd_per_month")
            yield blocks.section(
                blocks.hint(f"A higher rate fills machines better: compare $/Mtok at one rate, or rank with {by}.")
            )
    if summary.reasons:
        reasons = [
            (f"{number:,}", shorten((why or "no reason given").splitlines()[0], 110)) for why, number in summary.reasons
        ]
        more = len(reasons) - _MOST_REASONS
        others = blocks.note(f"and {plural(more, 'other reason')}: column `error` of the results") if more > 0 else None
        yield blocks.section(blocks.table([">points", "without an answer"], reasons, shown=_MOST_REASONS), others)
    yield blocks.section(blocks.note(*said))


def points_sections(points: Sequence[SweepPoint], done: int, said: Sequence[str]) -> Iterable[blocks.Section]:
    """Describe what a sweep would ask."""
    keys = list(points[0].over) if points else []
    rows = [[str(point.place), *(point.over[key] for key in keys), point.id[:12]] for point in points]
    more = f"… and {len(points) - _MOST_POINTS:,} more" if len(points) > _MOST_POINTS else ""
    yield blocks.section(blocks.line(f"{plural(len(points), 'point')}, {done:,} of them done", kind="headline"))
    yield blocks.section(
        blocks.table([">point", *(f"!{key}" for key in keys), "id"], rows, shown=_MOST_POINTS),
        blocks.note(more) if more else None,
    )
    yield blocks.section(blocks.note(*said))


def _heading(summary: SweepSummary) -> str:
    counts = [f"{number:,} {_STATUSES[status]}" for status, number in summary.counts.items() if number]
    kept, answered = sum(row.kept for row in summary.rows), summary.counts["ok"]
    if summary.targets and kept < answered:
        counts.insert(1, f"{kept:,} of them meet the SLO")
    return f"{summary.verb} over {', '.join(summary.keys)}: {plural(len(summary.rows), 'point')}; {', '.join(counts)}"


_STATUSES = {
    "ok": "answered", "nothing": "where nothing meets the SLO", "refused": "refused", "failed": "failed",
}  # fmt: skip


def _headline(summary: SweepSummary) -> blocks.Line:
    by, best = summary.by or "", summary.ranked[0]
    where = ", ".join(f"{key}={shorten(best.point.over[key], 30)}" for key in summary.keys)
    which = "Highest" if more_is_better(by) else "Lowest"
    slo = " that meets the SLO" if summary.targets else ""
    figure = blocks.Span(_cells(best, [by])[0], "best")
    return blocks.line(f"{which} {by}{slo}: ", figure, f" at {where}", kind="headline")


def _shown(summary: SweepSummary) -> list[str]:
    have = {name for row in summary.ranked for name, value in row.outcome.figures.items() if value is not None}
    names = [name for name in _COLUMNS if name in have]
    if "ttft_p99_s" in have:
        names = [name for name in names if name not in ("ttft_mean_s", "tpot_mean_s")]
    return [summary.by, *names] if summary.by and summary.by not in names else names


def _cells(row: SweepRow, names: list[str]) -> list[str]:
    cells = []
    for name in names:
        value = row.outcome.figures.get(name)
        form = _COLUMNS[name][1] if name in _COLUMNS else _plain
        cells.append("–" if value is None else form(value))
    return cells


def _plain(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _titles(names: list[str]) -> list[str]:
    return [f"{'!' if name in _WORDS else '>'}{_COLUMNS.get(name, (name, str))[0]}" for name in names]


def _best(summary: SweepSummary, top: int) -> blocks.Table:
    names = _shown(summary)
    rows = [
        [str(place), *(shorten(row.point.over[key], 30) for key in summary.keys), *_cells(row, names)]
        for place, row in enumerate(summary.ranked, 1)
    ]
    return blocks.table([">", *(f"!{key}" for key in summary.keys), *_titles(names)], rows, best=0, shown=top)


def _of_key(summary: SweepSummary, key: str) -> blocks.Table:
    """Return a table of the best point for each value of a key."""
    names = _shown(summary)
    others = [other for other in summary.keys if other != key]
    rows = []
    for of in summary.values[key]:
        best = ["–" for _ in (*others, *names)]
        if of.best is not None:
            best = [*(shorten(of.best.point.over[other], 30) for other in others), *_cells(of.best, names)]
        rows.append([shorten(of.value, 30), f"{of.kept:,} of {of.points:,}", *best])
    counted = ">meet it" if summary.targets else ">answered"
    columns = [f"!{key}", counted, *(f"!best {other}" for other in others), *_titles(names)]
    return blocks.table(columns, rows, f"The best for each {key}")


_MOST_COLOURS = 8  # more lines than this cannot be told apart: draw a heat map instead
_INK = "#333"


def sweep_chart(summary: SweepSummary) -> "alt.LayerChart":
    """Draw the ranking figure over the first two keys."""
    import altair as alt

    keys = sorted(summary.keys, key=lambda key: -_numbers(summary, key))[:2]  # the key with most numbers is the x axis
    cells = _marks(summary, keys)
    others = [key for key in summary.keys if key not in keys]
    said = f"{plural(len(summary.ranked), 'point')} of {len(summary.rows):,} that answer and meet the SLO"
    subtitle = [said] + ([f"the best over {', '.join(others)}"] if others else [])
    title = alt.TitleParams(
        f"{summary.verb}: {summary.by} over {' and '.join(keys)}", subtitle=subtitle, anchor="start", fontSize=15
    )
    data = alt.InlineData(values=cells)
    numeric = _numbers(summary, keys[0])
    y: Any = alt.Y("figure:Q", title=summary.by)
    tooltip = [alt.Tooltip("first:N", title=keys[0]), alt.Tooltip("figure:Q", title=summary.by, format=".4g")]
    if len(keys) > 1:
        tooltip.insert(1, alt.Tooltip("second:N", title=keys[1]))
    base = alt.Chart(data)
    if len(keys) == 1 or (numeric and len({cell["second"] for cell in cells}) <= _MOST_COLOURS):
        by_colour = {"color": alt.Color("second:N", title=keys[1], sort=_order(summary, keys[1]))} if keys[1:] else {}
        marked = base.mark_line(point=True) if numeric else base.mark_bar()
        by_name = alt.X("first:N", title=keys[0], sort=_order(summary, keys[0]))
        across = alt.X("x:Q", title=keys[0], scale=alt.Scale(zero=False)) if numeric else by_name
        drawn = marked.encode(x=across, y=y, tooltip=tooltip, **by_colour)
        return _finished(alt.layer(drawn), title, 360)
    across = alt.X("first:N", title=keys[0], sort=_order(summary, keys[0]))
    down = alt.Y("second:N", title=keys[1], sort=_order(summary, keys[1]))
    shade = alt.Color("figure:Q", title=summary.by, scale=alt.Scale(scheme="tealblues"))
    text = base.mark_text(fontSize=11, color=_INK).encode(x=across, y=down, text=alt.Text("figure:Q", format=".3g"))
    return _finished(alt.layer(base.mark_rect().encode(x=across, y=down, color=shade, tooltip=tooltip), text), title)


def _finished(chart: Any, title: Any, height: int | None = None) -> "alt.LayerChart":
    sized = chart.properties(width=560, title=title, **({"height": height} if height else {}))
    return cast("alt.LayerChart", sized.configure_view(stroke=None))


def _marks(summary: SweepSummary, keys: list[str]) -> list[dict[str, Any]]:
    best: dict[tuple[str, ...], Any] = {}
    for row in summary.ranked:  # the best first
        best.setdefault(tuple(row.point.over[key] for key in keys), row)
    return [
        {
            "first": place[0],
            "x": float(place[0]) if _numbers(summary, keys[0]) else None,
            "second": place[1] if len(place) > 1 else None,
            "figure": row.outcome.figures[summary.by],
        }
        for place, row in best.items()
    ]


def _order(summary: SweepSummary, key: str) -> list[str]:
    seen = list(dict.fromkeys(row.point.over[key] for row in summary.rows))
    return sorted(seen, key=float) if _numbers(summary, key) else seen


def _numbers(summary: SweepSummary, key: str) -> int:
    """Count the different numbers of a key; 0 if one of its values is a word, or there is no line to draw."""
    values = {row.point.over[key] for row in summary.rows}
    try:
        count = len({float(value) for value in values})
    except ValueError:
        return 0
    return count if count > 1 else 0


_EVERY_S = 10.0  # between two lines in a pipe

Advance = Callable[[int, int], None]  # called with the points done, and how many of them have no answer


class SweepClock:
    """Measure time from the first ready worker: the start says nothing about the time left."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._began: float | None = None

    def start(self) -> None:
        if self._began is None:
            self._began = self._now()

    def passed_s(self) -> float:
        return 0.0 if self._began is None else self._now() - self._began


@contextmanager
def progress(total: int, before: int, workers: int, clock: SweepClock) -> Iterator[Advance]:
    """Show progress; ``before`` points were done by an earlier run and say nothing about the time left."""
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
    """Return the time left, if the remaining points take as long as those done in this run."""
    if done >= total:
        return f"{seconds(elapsed_s)} in all"
    if done <= before:
        return "starting"
    return f"about {seconds(elapsed_s / (done - before) * (total - done))} left"
