"""Score a twin by its own windows: how far off it was, on which side, and how often its interval held.

Forecasts were made before their windows began, so their errors are those of the traffic's forecast too. The same
server was also expected once its traffic was known: those errors are of the model of the server alone.
"""

import math
import statistics
from collections.abc import Iterable, Sequence
from typing import Literal

from tokonomics.operate.follow import POINTS, forth
from tokonomics.operate.learn import Figure, TwinWindow
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


def scoreboard(windows: Iterable[TwinWindow]) -> tuple[Scoreboard, ...]:
    """Return the scores of every server, in the order of their names."""
    servers: dict[tuple[str, str], list[TwinWindow]] = {}
    for window in windows:
        servers.setdefault((window.target, window.model), []).append(window)
    return tuple(_of_server(*server, said) for server, said in sorted(servers.items()))


def _of_server(target: str, model: str, said: Sequence[TwinWindow]) -> Scoreboard:
    over = [window for window in said if window.is_over]
    names = list(dict.fromkeys(name for window in over for name in window.figures))
    kinds: tuple[Kind, ...] = ("forecast", "given")
    scores = [score for name in names for kind in kinds if (score := _of_figure(over, name, kind))]
    named = [change for window in over for change in window.changes if not change.goes_on and change.cause != "restart"]
    factors = next((window.factors for window in reversed(said) if window.factors), {})
    return Scoreboard(
        target=target, model=model, windows=len(over), scores=tuple(scores), changes=len(named), factors=factors
    )


def _of_figure(over: Sequence[TwinWindow], name: str, kind: Kind) -> FigureScore | None:
    figures = [window.figures[name] for window in over if name in window.figures]
    errors, held = [], []
    for figure in figures:
        band = figure.forecast if kind == "forecast" else figure.given
        if band is not None and figure.measured is not None:
            errors.append(error_of(name, figure, kind))
            held.append(band.holds(figure.measured))
    if not errors:
        return None
    return FigureScore(
        name=name, kind=kind, windows=len(errors), error=statistics.median(map(abs, errors)),
        bias=statistics.median(errors), coverage=sum(held) / len(held),
    )  # fmt: skip


def error_of(name: str, figure: Figure, kind: Kind) -> float:
    """Return measured less expected: of shares in points, of all else as a share of what was expected."""
    band = figure.forecast if kind == "forecast" else figure.given
    assert band is not None
    assert figure.measured is not None
    apart = forth(name, figure.measured) - forth(name, band.mid)
    return apart if name in POINTS else math.expm1(apart)
