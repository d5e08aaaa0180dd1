"""Answer what a live server will do next, and how good earlier answers were: ``twin`` and ``twin report``."""

import shlex
from collections import deque
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from pathlib import Path

import numpy as np

from tokonomics.catalog.layers import KV_PRECISIONS, Precision
from tokonomics.catalog.load_models import find_model
from tokonomics.errors import BadInput, TokonomicsError, option, shorten
from tokonomics.measure.meter.bill import duration
from tokonomics.measure.meter.ledger import Ledger
from tokonomics.measure.meter.live_meter import LATE_S, MeterSettings
from tokonomics.measure.meter.state import ExpectedFigure, MeterState
from tokonomics.operate.flag_sets import values_in, with_values
from tokonomics.operate.follow import NoticedChange
from tokonomics.operate.learn import TwinWindow
from tokonomics.operate.scoreboard import Scoreboard, Scores, scoreboard
from tokonomics.operate.start_command import engine_in
from tokonomics.operate.twin import SetupOf, Twin, said_of
from tokonomics.questions.deployment import deployment_of
from tokonomics.questions.meter import asked, ledger_of, stretch
from tokonomics.questions.request import SILENT, Listener
from tokonomics.questions.requests.run import MeterWatchRequest, TwinReportRequest, TwinRequest
from tokonomics.questions.result import Result
from tokonomics.sizing.load import load_of_requests
from tokonomics.sizing.setup import Setup
from tokonomics.traffic.trace import make_trace
from tokonomics.types import Noun
from tokonomics.units import DAY_S, plural

_MOST_CHANGES = 50  # kept to show (our choice); the ledger has all
_SHORTEST_S, _LONGEST_S = 60.0, 3600.0  # of a window: a few dozen requests at the least, and an hour of a ledger's rows


class NamedChange(Noun):
    """A change that was noticed, and when its window began."""

    start: float
    target: str
    model: str
    change: NoticedChange


class TwinReportResult(Result):
    """How good a twin's forecasts were, server by server."""

    ROWS = "windows"

    since: float
    until: float
    servers: tuple[Scoreboard, ...]
    changes: tuple[NamedChange, ...]
    windows: tuple[TwinWindow, ...]  # oldest first; the newest of each server is not over yet

    @property
    def is_found(self) -> bool:
        return any(server.windows for server in self.servers)

    def headline(self) -> str:
        windows = sum(server.windows for server in self.servers)
        servers, changes = plural(len(self.servers), "server"), plural(len(self.changes), "change")
        return f"{plural(windows, 'window')} of {servers} scored, {changes}"


def twin_asked(request: TwinRequest) -> tuple[MeterSettings, Setup | None]:
    """Return what the meter of a twin needs, and the set-up that is simulated; None if nothing is."""
    shared = {name: getattr(request, name) for name in MeterWatchRequest.model_fields if name != "for_"}
    if request.usd_per_hour is not None or request.offer is not None:
        shared["gpu"] = None  # then it is no price
    setup = _setup(request)
    if setup is not None and request.gpus is None and setup.deployment.gpus > 1 and request.offer is None:
        shared["gpus"] = setup.deployment.gpus
    settings = asked(MeterWatchRequest(**shared, for_=request.for_))
    window_s = duration(request.window, "window")
    if not _SHORTEST_S <= window_s <= _LONGEST_S or DAY_S % window_s:
        raise BadInput("must be from 1m to 1h, and divide a day", field="window", fix="Such as 10m.")
    if window_s < 4 * settings.every_s:
        fix = f"Add {option('every', f'{window_s / 4:g}s')}."
        raise BadInput("holds fewer than four readings", field="window", fix=fix)
    if request.engine_log is not None and (len(settings.urls) != 1 or settings.prometheus is not None):
        raise BadInput("is of one server", field="engine_log", fix="Name the address of that server alone.")
    log = None if request.engine_log is None else Path(request.engine_log)
    return replace(settings, window_s=window_s, in_buckets=True, engine_log=log), setup


def _setup(request: TwinRequest) -> Setup | None:
    if request.model is None:
        if request.started_with is not None:
            fix = f"Add {option('model')} and {option('gpu')}."
            raise BadInput("is for a server that is simulated", field="started_with", fix=fix)
        return None
    if request.gpu is None:
        raise BadInput("a model is simulated on a GPU", field="gpu", fix=f"Such as {option('gpu', 'H100')}.")
    words = shlex.split(request.started_with or "")
    engine = request.engine or (engine_in(words) if words else None)
    deployment = deployment_of(request.model_copy(update={"engine": engine}), request.model, request.gpu)
    nothing = make_trace(np.zeros(1), np.ones(1, np.int64), np.ones(1, np.int64))
    setup = Setup(deployment, load_of_requests(nothing))
    return with_values(setup, values_in(words, deployment.engine.key)) if words else setup


def setup_of(setup: Setup | None) -> SetupOf:
    """Return a function that adds to the set-up what a server says of itself."""

    @lru_cache(maxsize=64)
    def stated(model: str, states: tuple[tuple[str, str], ...]) -> Setup | None:
        return None if setup is None or _is_another(model, setup) else as_stated(setup, dict(states))

    return lambda window: stated(window.model, tuple(sorted(window.states.items())))


def _is_another(model: str, setup: Setup) -> bool:
    """Tell whether a server names a model that we know to be another than the one that is simulated."""
    try:
        return find_model(model).key != setup.deployment.model.key
    except TokonomicsError:
        return False  # a name of the user's own


def as_stated(setup: Setup, states: dict[str, str]) -> Setup:
    """Return the set-up with the KV cache's precision and size, and the prefix cache, as a metrics page states them."""
    if states.get("enable_prefix_caching") == "False":
        setup = replace(setup, prefix_cache=False)
    precision = states.get("cache_dtype", "").partition("_")[0]
    if precision in KV_PRECISIONS:
        setup = setup.deployed(kv=Precision(precision))
    memory = states.get("kv_cache_memory_bytes", "")
    if memory.isdigit() and int(memory) > 0:
        flags = setup.deployment.flags.model_copy(update={"kv_bytes": float(memory)})
        setup = setup.deployed(flags=flags)
    return setup


class TwinShown(Noun):
    """What a live twin shows after a tick."""

    meter: MeterState
    servers: tuple[Scoreboard, ...] = ()
    now: tuple[TwinWindow, ...] = ()  # what is expected of the present windows
    last: tuple[TwinWindow, ...] = ()  # the newest windows that are over
    changes: tuple[NamedChange, ...] = ()
    note: str | None = None


class LiveTwin:
    """A twin beside a running meter: looks at the ledger after every tick, and keeps what there is to show."""

    def __init__(self, ledger: Ledger, setup: Setup | None, window_s: float, late_s: float = LATE_S) -> None:
        self._ledger, self._twin = ledger, Twin(ledger, setup_of(setup), window_s, late_s)
        self._of_a_day = round(DAY_S / window_s)
        self._scores: dict[tuple[str, str], Scores] = {}
        self._boards: dict[tuple[str, str], Scoreboard] = {}
        self._last: dict[tuple[str, str], TwinWindow] = {}
        self._changes: deque[NamedChange] = deque(maxlen=_MOST_CHANGES)
        self._read = False

    def beside(self, state: MeterState) -> MeterState:
        """Score what is over, and return the meter's state with what is expected."""
        if not self._read:
            self._read = True
            self._take(said_of(self._ledger, state.at - DAY_S, state.at))
        self._take(self._twin.look(state.at))
        for server in [server for server, window in self._last.items() if window.start < state.at - DAY_S]:
            del self._last[server], self._scores[server], self._boards[server]
        return state.model_copy(update={"expected": self._expected()})

    def _take(self, windows: Iterable[TwinWindow]) -> None:
        changed = set()
        for window in windows:
            server = window.target, window.model
            self._scores.setdefault(server, Scores(*server, self._of_a_day)).add(window)
            changed.add(server)
            if window.is_over:
                self._last[server] = window.model_copy(update={"state": None})
            self._changes.extend(named([window]))
        self._boards |= {server: self._scores[server].board() for server in changed}

    def _expected(self) -> tuple[ExpectedFigure, ...]:
        boards, found = self._boards, []
        for server, window in self._twin.servers.items():
            scores = {score.name: score for score in (boards[server].scores if server in boards else ())
                      if score.kind == "forecast"}  # fmt: skip
            for name, figure in window.figures.items():
                if (band := figure.forecast) is not None:
                    score = scores.get(name)
                    found.append(
                        ExpectedFigure(
                            target=server[0],
                            model=server[1],
                            figure=name,
                            low=band.low,
                            mid=band.mid,
                            high=band.high,
                            error=score.error if score else None,
                            coverage=score.coverage if score else None,
                        )
                    )
        return tuple(found)

    def shown(self, state: MeterState) -> TwinShown:
        held = (
            f"its forecasts cannot be written ({self._twin.unwritten}): tried again" if self._twin.unwritten else None
        )
        return TwinShown(
            meter=state, servers=tuple(self._boards.values()), now=tuple(self._twin.servers.values()),
            last=tuple(self._last.values()),
            changes=tuple(self._changes), note=held,
        )  # fmt: skip


def named(windows: Iterable[TwinWindow]) -> tuple[NamedChange, ...]:
    """Return the changes of some windows, each once."""
    return tuple(
        NamedChange(start=window.start, target=window.target, model=window.model, change=change)
        for window in windows
        for change in window.changes
        if not change.goes_on
    )


START_TWIN = "tokonomics twin http://localhost:8000 --model … --gpu …"


def twin_report(request: TwinReportRequest, listener: Listener = SILENT) -> TwinReportResult:
    """Report how good a twin's forecasts of a period were, and what it noticed."""
    path = ledger_of(request)
    if not path.exists():
        where = option("ledger", shorten(str(path), 200))
        raise BadInput("there is no ledger yet", where=where, fix=f"Start a twin: {START_TWIN}")
    with Ledger(path, read_only=True) as book, book.snapshot():
        first, last = stretch(request, book, listener)
        said = list(said_of(book, first, last + 3600.0))
        starts = [start for server, _, start in book.newest_forecasts() if (request.server or "") in server]
    if request.server is not None:
        said = [window for window in said if request.server in window.target]
    if not said:
        what, fix = "no twin has said anything in this stretch", f"Start one: {START_TWIN}"
        if request.server is not None:
            what += f" of a server with '{shorten(request.server)}' in its name"
        if starts:
            newest = datetime.fromtimestamp(max(starts), UTC)
            what += f"; the newest is of {newest:%Y-%m-%d %H:%M} UTC"
            fix = f"Add {option('since', f'{newest - timedelta(days=1):%Y-%m-%dT%H:%M}')}."
        raise BadInput(what, field="since", fix=fix)
    return TwinReportResult(
        since=first, until=last, servers=scoreboard(said), changes=named(said),
        windows=tuple(window.model_copy(update={"state": None}) for window in said),
    )  # fmt: skip
