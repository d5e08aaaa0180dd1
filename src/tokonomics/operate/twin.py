"""Keep a twin of every metered server: score each window when it is over, and say what is expected of the next.

The meter's ledger holds all of it. A forecast is made from what was known when its window began, and written with the
memory it was made from; when the window is over, its row gets what came and how far off that was, and the next row the
memory. So a twin that is killed or away goes on from its newest row, and no window is scored twice.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import suppress

from pydantic import ValidationError

from tokonomics.errors import TokonomicsError
from tokonomics.measure.meter.ledger import FINE_S, Ledger
from tokonomics.measure.meter.live_meter import LATE_S
from tokonomics.measure.meter.windows import WINDOW_S, ServedWindow
from tokonomics.operate.learn import TwinState, TwinWindow, forecast, learn
from tokonomics.physics.steptime import forget_step_models
from tokonomics.sizing.setup import Setup

SetupOf = Callable[[ServedWindow], Setup | None]
_GONE_AFTER = 3  # windows without a row, after which a server is not shown (our choice)
_LEAST_SEEN = 0.5  # of a window; one that was hardly watched teaches nothing (our choice)
_AT_ONCE = 40  # windows, each a tenth of a second of processor (benchmarks/soak_twin.py): four seconds (our choice)
Server = tuple[str, str]


class Twin:
    """The twins of all servers in one ledger."""

    def __init__(self, ledger: Ledger, setup_of: SetupOf, window_s: float = WINDOW_S, late_s: float = LATE_S) -> None:
        """``late_s``: how long after its end a window may still get a reading."""
        self._ledger, self._setup_of, self._window_s, self._late_s = ledger, setup_of, window_s, late_s
        self._now = 0.0
        self._newest = {(said.target, said.model): said for said in newest_of(ledger)}
        starts = [said.start for said in self._newest.values()]
        self._looked_until = min(starts, default=0.0)
        self._waiting: list[ServedWindow] = []
        self.unwritten: str | None = None

    @property
    def servers(self) -> dict[Server, TwinWindow]:
        """Return what is expected of each server's present window, of those that are there."""
        since = self._now - _GONE_AFTER * self._window_s
        return {server: said for server, said in self._newest.items() if said.start >= since}

    def look(self, now: float) -> list[TwinWindow]:
        """Score windows that are over by now, oldest first, and forecast the next of each server.

        Of a large fleet only some are scored at once, and the others at the next looks: a meter reads in between.
        """
        self._now = now
        until = (now - self._late_s) // self._window_s * self._window_s
        if until > self._looked_until:
            # Older ones are whole hours, if a meter ran without a twin.
            over = self._ledger.windows(max(self._looked_until, now - FINE_S), until)
            self._waiting += sorted(over, key=lambda window: window.start)
            self._looked_until = until
        scored = []
        rows: dict[tuple[str, str, float], str] = {}
        now_scored, self._waiting = self._waiting[:_AT_ONCE], self._waiting[_AT_ONCE:]
        for window in now_scored:
            for said in self._score(window):
                rows[said.target, said.model, said.start] = _written(said)
                scored += [said] if said.is_over else []
        if rows:
            self.unwritten = self._ledger.keep_forecasts(rows)
            forget_step_models()  # no window has the factors of another
        return scored

    def _score(self, window: ServedWindow) -> Iterator[TwinWindow]:
        server = window.target, window.model
        before = self._newest.get(server)
        if before is not None and window.start < before.start:
            return  # scored already
        state = before.state if before is not None and before.state is not None else TwinState()
        told = before if before is not None and before.start == window.start else None
        setup = (
            None if window.is_shared else self._setup_of(window)
        )  # what several models do to each other is not simulated
        if before is not None and told is None:
            yield before.model_copy(update={"state": None})  # a window that nobody watched
        if window.watched_s >= _LEAST_SEEN * self._window_s:
            learned = learn(state, window, told, setup, self._window_s)
            yield learned.window
            state = learned.state
        elif told is not None:
            yield told.model_copy(update={"state": None})
        following = window.start + self._window_s
        expected = TwinWindow(target=window.target, model=window.model, start=following)
        if following + self._window_s > self._now:  # one that is over already, after an absence, is not forecast
            with suppress(TokonomicsError):  # a traffic that this set-up cannot serve has no forecast
                expected = forecast(state, window, following, setup)
        self._newest[server] = expected.model_copy(update={"state": state})
        yield self._newest[server]


_DIGITS = re.compile(r"(?<![\d.])\d{1,5}\.\d{6,}(?:e[-+]?\d+)?")  # of figures; instants have more before the point


def _written(said: TwinWindow) -> str:
    """Return a window's row; six digits of a figure are more than it is known to, and half the bytes."""
    return _DIGITS.sub(lambda number: f"{float(number[0]):.6g}", said.model_dump_json(exclude_defaults=True))


def _read(document: str) -> TwinWindow | None:
    try:
        return TwinWindow.model_validate_json(document)
    except ValidationError:
        return None  # written by another version: the twin begins anew


def newest_of(ledger: Ledger) -> list[TwinWindow]:
    """Return the newest of what the twins said of every server."""
    return [said for said in map(_read, ledger.newest_forecasts().values()) if said is not None]


def said_of(ledger: Ledger, since: float, until: float) -> Iterator[TwinWindow]:
    """Yield what the twins said of the windows in a period, oldest first."""
    return (said for said in map(_read, ledger.forecasts(since, until)) if said is not None)
