"""Follow how a server differs from its model, and name the one cause of a sudden difference.

Four factors of a ``Correction`` say how a server differs. A Kalman filter in logarithms follows them, window by window:
they drift by as much as they may plausibly be off (``measure.calibrate.PRIOR``) in a day, and the mean time per token
and to the first token are what simulation makes of them. An error that drift and chance make once in ten thousand
windows has a cause: of kernels, launches and requests the one that, by simulation, leaves the least of it.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from tokonomics.measure.calibrate import FACTORS, FAR_OFF, PRIOR, Term
from tokonomics.measure.meter.windows import WINDOW_S
from tokonomics.operate.expect import TERMS, Expectation, KnownWindow
from tokonomics.types import Noun
from tokonomics.units import DAY_S

Array = NDArray[np.float64]
Cause = Literal["kernels", "launches", "requests", "cache", "traffic", "flags", "restart"]

TAUGHT_BY = ("tpot_s", "ttft_s")  # figures that teach the terms
POINTS = ("hit_share", "kv_share")  # shares are compared by their difference, all else by its logarithm
BY_CHANCE = 1e-4  # windows in which chance passes an alarm (our choice)
LEAST_CHANGE = 0.1  # smaller changes are followed and not named (our choice)
_PROBED = 0.1  # step of a term for its sensitivities
_TRIED = (0.35, 0.5, 0.7, 0.85, 1.18, 1.4, 2.0, 2.8, 4.0, 5.6, 8.0)  # factors of a sudden change, by steps of 1.4
_CLOSER = (1.4**0.5, 1.4**0.25, 1.4**0.125)  # about the best of them: near a server's limit, a little is much
_SUDDEN = math.log(2.0)
"""One deviation of the logarithm of a sudden factor, so that a smaller one explains before a larger (our choice)."""
_FURTHEST = math.log(FACTORS[0]), math.log(FAR_OFF)
_CAUSES: dict[Cause, tuple[Term, ...]] = {
    "kernels": ("decode", "prefill"), "launches": ("launch",), "requests": ("request",),
}  # fmt: skip
_SAID: dict[Cause, str] = {
    "kernels": "kernels take {} times as long: another job on the GPU, other clocks, or another build",
    "launches": "launches take {} times as long: a busy host, graphs switched off, or another build",
    "requests": "the time of a request outside any step is {} times as long: the front end or the network",
}


class NoticedChange(Noun):
    """What changed, how much, and by which cause it is explained."""

    cause: Cause
    what: str
    ratio: float | None = None
    goes_on: bool = False  # the window before showed it already


def changed(cause: Cause, ratio: float) -> NoticedChange:
    """Return the change of a server's speed by a cause."""
    return NoticedChange(cause=cause, what=_SAID[cause].format(f"{ratio:.2g}"), ratio=ratio)


_LEAST = dict.fromkeys(
    ("requests_per_s", "tokens_per_s"), 1 / WINDOW_S
)  # one in a window, so that none has a logarithm


def forth(name: str, value: float) -> float:
    """Return a figure on the scale on which its errors are compared."""
    return value if name in POINTS else math.log(max(value, _LEAST.get(name, 1e-12)))


def back(name: str, value: float) -> float:
    return min(1.0, max(0.0, value)) if name in POINTS else math.exp(value)


def differences(measured: Mapping[str, float], made: Mapping[str, float]) -> dict[str, float]:
    """Return measured less expected, of figures that have both."""
    return {name: forth(name, measured[name]) - forth(name, value) for name, value in made.items() if name in measured}


@dataclass(frozen=True)
class ServerTerms:
    """The logarithms of the factors, in the order of ``TERMS``, and how unsure they are."""

    at: tuple[float, ...]
    covariance: tuple[tuple[float, ...], ...]

    @property
    def factors(self) -> dict[str, float]:
        return {term: math.exp(value) for term, value in zip(TERMS, self.at, strict=True)}

    def in_doubt(self, terms: Iterable[Term]) -> "ServerTerms":
        """Return them with as much doubt about some as before anything was learned."""
        spread = np.array(self.covariance)
        for term in terms:
            spread[TERMS.index(term), TERMS.index(term)] += PRIOR[term] ** 2
        return replace(self, covariance=tuple(map(tuple, spread.tolist())))

    def times(self, factor: float, terms: Iterable[Term]) -> "ServerTerms":
        moved = [
            value + (math.log(factor) if term in terms else 0.0) for term, value in zip(TERMS, self.at, strict=True)
        ]
        return replace(self, at=tuple(np.clip(moved, *_FURTHEST).tolist()))


AS_MODELLED = ServerTerms((0.0,) * len(TERMS), ((0.0,) * len(TERMS),) * len(TERMS)).in_doubt(TERMS)


@dataclass(frozen=True)
class Followed:
    """The terms after a window, the sudden change in it if there was one, and what of each figure is left."""

    terms: ServerTerms
    change: NoticedChange | None
    left: Mapping[str, float]


def follow(
    terms: ServerTerms,
    window: KnownWindow,
    measured: Mapping[str, float],
    expectation: Expectation,
    chance: Mapping[str, float],
    freedom: float,
    before: ServerTerms | None = None,
    *,
    restarted: bool = False,
) -> Followed:
    """Return the terms as a window teaches them.

    ``chance`` is by how much each figure is off as a rule, beside its scatter, known from so many windows as
    ``freedom`` says; ``before`` are the terms before the newest sudden change, to which a server may go back: at a
    restart, or when what slowed it down is gone.
    """
    off = differences(measured, expectation.figures)
    names = [name for name in TAUGHT_BY if name in off]
    if not names:
        return Followed(terms, None, off)
    seen, drift = _Seen(window, measured, chance, names), window.traffic.seconds / DAY_S
    if restarted and before is not None and seen.misfit(before) < seen.misfit(terms):
        terms = replace(terms, at=before.at)
        expectation = window.expected(terms.factors) or expectation
    was, cause, slopes = terms, None, _slopes(terms, window, expectation)
    missed, toward, noise = seen.beside(expectation, slopes)
    known = toward @ np.array(terms.covariance) @ toward.T + noise
    if float(missed @ np.linalg.solve(known, missed)) > _alarm(len(names), freedom):
        likeliest, moved = _likeliest(terms, seen, before)
        found = window.expected(moved.factors)
        if found is not None and moved.at != terms.at:
            cause, terms, expectation = likeliest, moved.in_doubt(_CAUSES[likeliest]), found
            slopes = _slopes(terms, window, expectation)
            missed, toward, noise = seen.beside(expectation, slopes)
    terms, left = _taught(terms, missed, toward, noise, seen.off(expectation), slopes, drift)
    change = None
    if cause is not None:
        place = TERMS.index(_CAUSES[cause][0])
        size = terms.at[place] - was.at[place]
        change = changed(cause, math.exp(size)) if abs(size) > LEAST_CHANGE else None
    return Followed(terms, change, left)


def _alarm(figures: int, freedom: float) -> float:
    """Return the squared error over some figures, in deviations, that chance passes once in ten thousand windows."""
    from scipy.special import fdtri

    return figures * float(fdtri(figures, freedom, 1 - BY_CHANCE))


@dataclass(frozen=True)
class _Seen:
    """What was measured of a window, beside what it is expected to be."""

    window: KnownWindow
    measured: Mapping[str, float]
    chance: Mapping[str, float]
    names: list[str]

    def off(self, expectation: Expectation) -> dict[str, float]:
        return differences(self.measured, expectation.figures)

    def beside(self, expectation: Expectation, slopes: Mapping[str, Array]) -> tuple[Array, Array, Array]:
        """Return how far the figures that teach are off, how each follows the terms, and their noise."""
        off = self.off(expectation)
        missed, toward = np.array([off[name] for name in self.names]), np.array([slopes[name] for name in self.names])
        return missed, toward, self.noise(expectation)

    def noise(self, expectation: Expectation) -> Array:
        """Return the covariance of the figures that teach: they are off as a rule, and scatter."""
        both = [math.hypot(self.chance[name], expectation.scatter.get(name, 0.0)) for name in self.names]
        return np.diag(np.square(both))

    def misfit(self, terms: ServerTerms) -> float:
        """Return how unlikely these terms make the window: squared errors in their deviations."""
        made = self.window.expected(terms.factors)
        if made is None:
            return math.inf
        off, noise = self.off(made), np.diag(self.noise(made))
        return float(
            sum(off.get(name, 0.0) ** 2 / much + math.log(much) for name, much in zip(self.names, noise, strict=True))
        )


def _taught(
    terms: ServerTerms,
    missed: Array,
    toward: Array,
    noise: Array,
    off: Mapping[str, float],
    slopes: Mapping[str, Array],
    drift: float,
) -> tuple[ServerTerms, dict[str, float]]:
    """Return the terms after the filter's step, and what it leaves of every figure; ``drift`` is in days."""
    spread = np.array(terms.covariance)
    gain = spread @ toward.T @ np.linalg.inv(toward @ spread @ toward.T + noise)
    step = np.clip(np.array(terms.at) + gain @ missed, *_FURTHEST) - np.array(terms.at)
    after = (np.eye(len(TERMS)) - gain @ toward) @ spread
    after = (after + after.T) / 2 + np.diag([PRIOR[term] ** 2 * drift for term in TERMS])
    # What no figure shows is never less sure than before anything was learned.
    scale = np.minimum(1.0, np.array([PRIOR[term] for term in TERMS]) / np.sqrt(np.diag(after)))
    after = after * np.outer(scale, scale)
    moved = ServerTerms(tuple((np.array(terms.at) + step).tolist()), tuple(map(tuple, after.tolist())))
    return moved, {name: value - float(slopes[name] @ step) for name, value in off.items()}


def _slopes(terms: ServerTerms, window: KnownWindow, here: Expectation) -> dict[str, Array]:
    """Return how each figure follows each term, both in logarithms, by simulation with one of them a tenth larger."""
    found = {name: np.zeros(len(TERMS)) for name in here.figures}
    for place, term in enumerate(TERMS):
        moved = window.expected(terms.times(1 + _PROBED, (term,)).factors)
        for name, value in moved.figures.items() if moved else ():
            if name in found:
                found[name][place] = (forth(name, value) - forth(name, here.figures[name])) / math.log1p(_PROBED)
    return found


def _likeliest(terms: ServerTerms, seen: _Seen, before: ServerTerms | None) -> tuple[Cause, ServerTerms]:
    """Return the cause that explains a window best, and the terms with it: a sudden factor, or what was before."""

    def cost(cause: Cause, factor: float) -> float:
        return seen.misfit(terms.times(factor, _CAUSES[cause])) + (math.log(factor) / _SUDDEN) ** 2

    best: tuple[float, Cause, ServerTerms] = (math.inf, "kernels", terms)
    for cause, moved in _CAUSES.items():
        least, factor = min((cost(cause, factor), factor) for factor in _TRIED)
        for step in _CLOSER:
            least, factor = min(
                (least, factor), *((cost(cause, near), near) for near in (factor / step, factor * step))
            )
        best = min(best, (least, cause, terms.times(factor, moved)), key=lambda tried: tried[0])
    if before is not None and seen.misfit(before) < best[0]:
        apart = {
            cause: abs(before.at[TERMS.index(of[0])] - terms.at[TERMS.index(of[0])]) for cause, of in _CAUSES.items()
        }
        return max(apart, key=lambda cause: apart[cause]), replace(terms, at=before.at)
    return best[1], best[2]
