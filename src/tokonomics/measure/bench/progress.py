"""Where a running load test stands, some times a second, for whoever shows it."""

import asyncio
from collections.abc import Callable
from time import perf_counter

from tokonomics.measure.bench.loads import LoadWindow
from tokonomics.measure.bench.stopping import Stopping
from tokonomics.types import Noun
from tokonomics.units import SECONDS_PER_HOUR, TOKENS_PER_MTOK

_DRAWN_EVERY_S = 0.25


class Progress(Noun):
    """The load at hand."""

    load: str
    phase: str
    """warm-up, measuring or draining."""
    elapsed_s: float
    completed: int
    failed: int
    output_tokens_per_s: float
    usd_per_mtok: float | None
    """Prompts and answers alike, of the window so far."""
    precision: float | None
    """Half-width of the confidence interval, relative; None until there is one."""


Show = Callable[[Progress], None]


class Drawing:
    """Shows a load while it runs: ``async with Drawing(…):``."""

    def __init__(
        self, show: Show | None, load: str, window: LoadWindow, stopping: Stopping, usd_per_hour: float | None
    ) -> None:
        self._show, self._load, self._window, self._stopping = show, load, window, stopping
        self._usd_per_hour = usd_per_hour
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> None:
        if self._show is not None:
            self._task = asyncio.create_task(self._draw(self._show))

    async def __aexit__(self, *_: object) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _draw(self, show: Show) -> None:
        while True:
            show(progress(self._load, self._window, self._stopping, self._usd_per_hour, perf_counter()))
            await asyncio.sleep(_DRAWN_EVERY_S)


def progress(load: str, window: LoadWindow, stopping: Stopping, usd_per_hour: float | None, now_s: float) -> Progress:
    """The state of a window at a moment."""
    until_s = window.closed_s if window.phase == "draining" and window.closed_s else now_s
    measured_s = until_s - (window.opened_s or until_s)
    price = None
    if usd_per_hour and window.tokens and measured_s > 0:
        price = usd_per_hour / SECONDS_PER_HOUR * measured_s / window.tokens * TOKENS_PER_MTOK
    return Progress(
        load=load,
        phase=window.phase,
        elapsed_s=now_s - window.started_s,
        completed=window.answered,
        failed=window.unanswered,
        output_tokens_per_s=window.output_tokens / measured_s if measured_s > 0 else 0.0,
        usd_per_mtok=price,
        precision=stopping.precision,
    )
