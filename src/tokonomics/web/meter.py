"""Read the meter's ledger for the page: now, today, and the hours and days before.

The page reads the ledger that ``tokonomics meter`` writes, named with ``--ledger`` when the page is started. It scrapes
nothing itself, so it never contacts an address that a browser sends. However many people watch, the ledger is checked
once in a few seconds, and summed only when its latest reading has changed; a twin's forecasts, when a window has begun.
"""

import asyncio
import threading
import time
from collections.abc import AsyncGenerator
from contextlib import suppress
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic_core import to_jsonable_python
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from tokonomics.errors import BadInput, in_python
from tokonomics.measure.meter.bill import bill
from tokonomics.measure.meter.ledger import Ledger
from tokonomics.measure.meter.state import Statement
from tokonomics.questions.requests.run import TwinReportRequest
from tokonomics.questions.twin import twin_report
from tokonomics.report import charts, meter_view, twin_view
from tokonomics.report.answer import document
from tokonomics.report.blocks import View, sections
from tokonomics.units import DAY_S, seconds
from tokonomics.workers import Busy, as_json

EVERY_S = 5.0  # how often the ledger is checked for watchers; the meter itself reads every 15 seconds
_STALE_S = 60.0  # sum again after this time even without a new reading, as the hour and the day go on
MOST_WATCHERS = 32
_NOW_S, _HOUR_S = 300.0, 3600.0
_HOURS, _DAYS = 48, 30
_MOST_FORECASTS = 1000  # newest windows of all servers: a day of seven servers, by ten minutes (our choice)


class NoLedger(BadInput):
    """Raised when the page was started without a ledger."""


class Watched:
    """One ledger, and its content at the last check."""

    def __init__(self, ledger: Path | None) -> None:
        self.ledger = ledger
        self._lock, self._count = threading.Lock(), threading.Lock()
        self._state: dict[str, Any] | None = None
        self._looked = float("-inf")
        self._watchers = 0

    def state(self, every_s: float = EVERY_S) -> dict[str, Any]:
        """Return the state as of a few seconds ago."""
        if self.ledger is None:
            raise NoLedger(
                "no ledger is shown here",
                fix="Meter: tokonomics meter http://… --usd-per-hour 2.49. Then: tokonomics web --ledger FILE",
            )
        with self._lock:
            if self._state is None or time.monotonic() - self._looked >= every_s:
                if self._state is None or self._has_changed(self._state):
                    self._state = state(self.ledger)
                self._looked = time.monotonic()
            return self._state

    def _has_changed(self, known: dict[str, Any]) -> bool:
        assert self.ledger is not None
        if time.time() - known["at"] >= _STALE_S:
            return True
        with Ledger(self.ledger, read_only=True) as book:
            return bool(_latest(book) != known["read"])

    def admit(self) -> None:
        """Count one more watcher, if there is room."""
        with self._count:
            if self._watchers >= MOST_WATCHERS:
                raise Busy("as many watch the meter as may", fix="Close another window of it.")
            self._watchers += 1

    def leave(self) -> None:
        with self._count:
            self._watchers -= 1

    async def events(self) -> AsyncGenerator[bytes, None]:
        """Yield the state whenever it has changed."""
        before: float | None = None
        while True:
            made = await asyncio.to_thread(self.state)
            if made["at"] != before:
                before = made["at"]
                yield b"event: state\ndata: " + as_json(made) + b"\n\n"
            else:
                yield b": nothing new\n\n"
            await asyncio.sleep(EVERY_S)


class Watching(StreamingResponse):
    """Stream the events to one watcher, who counts until the response has ended, however it ends."""

    def __init__(self, watched: Watched) -> None:
        watched.admit()
        self.watched = watched
        super().__init__(watched.events(), media_type="text/event-stream")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self.watched.leave()


def _latest(book: Ledger) -> float | None:
    return max((mark.until for mark in book.marks().values()), default=None)


def _burning(recent: Statement) -> dict[str, float] | None:
    """Return the spend of all servers together per hour of wall-clock time, as they run side by side."""
    wall_s = recent.until - recent.since
    if wall_s <= 0 or not recent.total.seconds:
        return None
    return {"usd_per_hour": recent.total.usd / wall_s * _HOUR_S, "tokens_per_s": recent.total.billed_tokens / wall_s}


def state(ledger: Path) -> dict[str, Any]:
    """Sum the last five minutes, this hour, today (UTC) and everything, by server and model, by hour and by day.

    ``sections`` and ``charts`` describe them, as in the answer of a verb.
    """

    def sums(since: float, *by: str) -> Statement:
        return bill(book.spans(since, until), since, until, by)

    with Ledger(ledger, read_only=True) as book, book.snapshot():
        # Read the clock after the snapshot, so that the row a meter is writing ends before it. If the clock was set
        # back, rows lie ahead of it: they count, but the clock decides what runs now.
        now, extent = time.time(), book.extent()
        until = max(now, extent[1]) if extent else now
        today, hour = now - now % DAY_S, now - now % _HOUR_S
        recent = bill(book.spans(now - _NOW_S, now), now - _NOW_S, now, ())
        servers = sums(today, "target", "model", "engine")
        hours, days = sums(hour - _HOURS * _HOUR_S, "hour"), sums(today - _DAYS * DAY_S, "day")
        spans = {
            "Last 5 minutes": recent.total,
            "This hour": sums(hour).total,
            "Today": servers.total,
            "Since the start": sums(0.0).total,
        }
        read, burning = _latest(book), _burning(recent)
        newest, starts = tuple(book.newest_forecasts()), book.forecast_starts(_MOST_FORECASTS)
    latest = "" if read is None else f"Read {seconds(now - read)} ago from {ledger.name}."
    twin = _NO_TWIN
    if starts:
        with suppress(BadInput):  # forecasts of another version, or a ledger that is locked just now
            twin = _twin(ledger, newest, max(starts[-1], starts[0] - DAY_S), starts[0])
    made = {
        "at": now, "ledger": ledger.name, "read": read, "burning": burning,
        "groups": servers.lines, "hours": hours.lines, "days": days.lines,
        **dict(zip(("now", "hour", "today", "total"), spans.values(), strict=True)),
        "sections": _document(meter_view.ledger(spans, servers, burning, latest)) + twin["sections"],
        "charts": _charts(hours, days) + twin["charts"],
        "twin": twin["scores"],
    }  # fmt: skip
    plain: dict[str, Any] = to_jsonable_python(made)
    return plain


def _charts(hours: Statement, days: Statement) -> list[dict[str, Any]]:
    """Draw what was paid over time, if there is more than one point."""
    over, drawn = ("hour", hours) if len(hours.lines) > 1 else ("day", days)
    if len(drawn.lines) < 2:
        return []
    return [{"name": "The meter's history", "spec": charts.measured.bill_chart(drawn, over).to_dict(validate=False)}]


def _document(view: View) -> list[dict[str, Any]]:
    return document(sections(view), in_python)


_NO_TWIN: dict[str, Any] = {"scores": None, "sections": _document(twin_view.on_page(None)), "charts": []}


@lru_cache(maxsize=1)
def _twin(ledger: Path, newest: tuple[tuple[str, str, float], ...], since: float, until: float) -> dict[str, Any]:
    """Return what ``twin report`` says of the last day; forecasts are read again only when ``newest`` is another."""
    first, last = (datetime.fromtimestamp(at, UTC).isoformat() for at in (since, until + 1))
    request = TwinReportRequest(ledger=str(ledger), since=first, until=last)
    result = twin_report(request)
    drawn = twin_view.twin_report(result, request).charts
    return {
        "scores": result.model_dump(mode="json", exclude={"windows"}),
        "sections": _document(twin_view.on_page(result)),
        "charts": [{"name": name, "spec": draw().to_dict(validate=False)} for name, draw in drawn.items()],
    }
