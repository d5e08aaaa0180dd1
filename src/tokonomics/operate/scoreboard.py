"""Score a twin by its own windows: how far off it was, on which side, and how often its interval held.

Forecasts know nothing of their windows, so their errors are those of the traffic's forecast too. The same
server was also expected once its traffic was known: those errors are of the model of the server alone.
"""

import math
import statistics
from array import array
from collections.abc import Iterable
from typing import Literal

from tokonomics.operate.follow import POINTS, forth
from tokonomics.operate.learn import ForecastBand, TwinWindow
from tokonomics.types import Noun

Kind = Literal["forecast", "given"]


class FigureScore(Noun):
    """How good one figure of a server was expected."""

    name: str
    kind: Kind
    windows: int
    error: float  # median size, as a share; of shares in points
    bias: float  # measured above expected, in the median
    coverage: float  # share of windows within the 80 % interval


class Scoreboard(Noun):
    """A server's twin over a period."""

    target: str
    model: str
    windows: int
    scores: tuple[FigureScore, ...]
    changes: int  # named, each once
    factors: dict[str, float]

    def error_of(self, name: str, kind: Kind = "forecast") -> float | None:
        """Return the twin's own error of a figure; None if it has none yet."""
        return next((score.error for score in self.scores if (score.name, score.kind) == (name, kind)), None)


class Scores:
    """The errors of one server's windows, as they are over: a few bytes each, of the last ``most`` windows."""

    def __init__(self, target: str, model: str, most: int | None = None) -> None:
        self._server, self._most = (target, model), most
        self._windows = self._changes = 0
        self._errors: dict[tuple[str, Kind], array[float]] = {}
        self._held: dict[tuple[str, Kind], array[int]] = {}
        self._factors: dict[str, float] = {}

    def add(self, window: TwinWindow) -> None:
        self._factors = window.factors or self._factors
        if not window.is_over:
            return
        self._windows += 1
        self._changes += sum(not change.goes_on and change.cause != "restart" for change in window.changes)
        for name, figure in window.figures.items():
            bands: tuple[tuple[Kind, ForecastBand | None], ...] = (
                ("forecast", figure.forecast),
                ("given", figure.given),
            )
            for kind, band in bands:
                if band is not None and figure.measured is not None:
                    self._add((name, kind), error_of(name, figure.measured, band), band.holds(figure.measured))

    def _add(self, of: tuple[str, Kind], error: float, held: bool) -> None:
        errors, holds = self._errors.setdefault(of, array("d")), self._held.setdefault(of, array("b"))
        errors.append(error)
        holds.append(held)
        if self._most is not None:
            del errors[: -self._most], holds[: -self._most]

    def board(self) -> Scoreboard:
        scores = tuple(
            FigureScore(
                name=name, kind=kind, windows=len(errors), error=statistics.median(map(abs, errors)),
                bias=statistics.median(errors), coverage=sum(self._held[name, kind]) / len(errors),
            )
            for (name, kind), errors in self._errors.items()
        )  # fmt: skip
        target, model = self._server
        return Scoreboard(
            target=target, model=model, windows=self._windows, scores=scores, changes=self._changes,
            factors=self._factors,
        )  # fmt: skip


def scoreboard(windows: Iterable[TwinWindow]) -> tuple[Scoreboard, ...]:
    """Return the scores of every server, in the order of their names."""
    servers: dict[tuple[str, str], Scores] = {}
    for window in windows:
        server = window.target, window.model
        servers.setdefault(server, Scores(*server)).add(window)
    return tuple(scores.board() for _, scores in sorted(servers.items()))


def error_of(name: str, measured: float, band: ForecastBand) -> float:
    """Return measured less expected: of shares in points, of all else as a share of what was expected."""
    apart = forth(name, measured) - forth(name, band.mid)
    return apart if name in POINTS else math.expm1(apart)
