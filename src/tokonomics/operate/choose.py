"""Decide which flag set to try next, from what the simulator says of all and what an engine did with a few.

What a trial teaches is the logarithm of measured ÷ predicted. It is taken as the sum of an error that all sets share
(this machine is faster or slower than predicted), one for each knob that is not as the server is started (what FP8
saves is mispredicted), one of the set's own, and the noise of a measurement, each normal: a Gaussian process. Sets that
share values with a tried one are corrected by it. How large each error may be was measured before any engine was tuned
(``KNOB_ERRORS``), and from the third trial on all are widened together by the factor that makes the trials most likely,
and never narrowed: few trials that agree do not make a model surer than the grid that judged it.

The next set is the one with the largest **expected improvement** over the best measured (Jones, Schonlau and Welch,
1998). A search is over when no set is left whose 80 % interval reaches 2 % above the best.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from tokonomics.operate.flag_sets import FlagSet, Value

Array = NDArray[np.float64]

KNOB_ERRORS = {
    "max_sequences": 0.023, "max_batched_tokens": 0.013, "kv": 0.016, "weights": 0.050, "prefix_cache": 0.038,
    "tiers": 0.029, "draft": 0.136, "composes_ahead": 0.066,
}  # fmt: skip
"""How far the simulator was off in what each of these changes: root mean square of log(predicted ÷ measured) of the
time a token takes, predicted before vLLM 0.26 served it on an H200 (benchmarks/bench_levers.py, 2026-11-19, "before");
of drafts those with EAGLE-3."""
NOISE = 0.02  # two alike servers under one load differed by as much (the same grid)
UNKNOWN_EFFECT = 1.0
"""What a flag that the simulator does not know may change: a factor of 2.7 either way, one deviation. So much did a
batch of 8 tokens instead of 2,048 change what llama.cpp b11549 served on two cores, and a micro-batch of 16 a factor of
2.2 (a model of 4 layers of 256, 8 users of 200 tokens in and 32 out, 2026-11-19)."""
NAMED_BESIDE = ("captured_tokens",)  # beside few sequences, so that graphs stay as large as they are today
LAYOUT = ("tp", "pp", "dp", "ep")
GAIN_LEFT = 0.02
_EIGHTY = NormalDist().inv_cdf(0.9)
_SCALES = (1.0, 2.0, 4.0)
_TEACH_SCALE = 3  # trials from which the sizes of the errors are scaled


@dataclass(frozen=True)
class Expected:
    """A flag set, and what a dollar would buy with it: requests a second for each GPU."""

    flags: FlagSet
    values: Mapping[str, Value]  # of every knob that sets differ in, those left as started included
    predicted: float  # 1 for every set if nothing is simulated


@dataclass(frozen=True)
class Belief:
    """What is expected of each candidate after the trials, as logarithms of requests a second for each GPU."""

    mid: Array
    deviation: Array

    def ends(self) -> tuple[Array, Array]:
        """Return the 80 % interval of each."""
        return np.exp(self.mid - _EIGHTY * self.deviation), np.exp(self.mid + _EIGHTY * self.deviation)


def alike(one: Value | None, other: Value | None) -> float:
    """Return how much two values of a knob share: numbers by their ratio, others all or nothing."""
    if one == other:
        return 1.0
    numbers = [value for value in (one, other) if isinstance(value, int) and not isinstance(value, bool) and value > 0]
    return min(numbers) / max(numbers) if len(numbers) == 2 else 0.0


def believe(candidates: Sequence[Expected], measured: Mapping[int, float], shared: float) -> Belief:
    """Return the expectation for every candidate, given what some of them were measured to do.

    ``shared`` is how far the rates of all of them may be off together, one deviation (``physics.intervals``).
    """
    predicted = np.log([candidate.predicted for candidate in candidates])
    prior = _covariance(candidates, shared)
    tried = np.array([place for place, rate in measured.items() if rate > 0], dtype=np.intp)
    if not len(tried):
        return Belief(predicted, np.sqrt(np.diag(prior)))
    off = np.log([measured[int(place)] for place in tried]) - predicted[tried]
    among = prior[np.ix_(tried, tried)]
    scale = _likeliest_scale(among, off)
    known = among * scale**2 + NOISE**2 * np.eye(len(tried))
    towards = scale**2 * prior[:, tried]
    solved = np.linalg.solve(known, towards.T)
    mid = predicted + solved.T @ off
    variance = scale**2 * np.diag(prior) - np.einsum("ij,ji->i", towards, solved)
    return Belief(mid, np.sqrt(np.maximum(variance, 0.0)))


def _covariance(candidates: Sequence[Expected], shared: float) -> Array:
    """Return the covariance of the errors: what all share, and of each knob that is not as the first set has it."""
    total = np.full((len(candidates), len(candidates)), shared**2) + NOISE**2 * np.eye(len(candidates))
    started = candidates[0].values
    for knob in dict.fromkeys(name for candidate in candidates for name in candidate.values):
        values = [candidate.values.get(knob) for candidate in candidates]
        changed = np.array([value != started.get(knob) for value in values], dtype=np.float64)
        kinds = list(dict.fromkeys(values))
        if len(kinds) == 1 or knob in NAMED_BESIDE:
            continue
        near = np.array([[alike(one, other) for other in kinds] for one in kinds])
        place = np.array([kinds.index(value) for value in values])
        total += _error_of(knob, shared) ** 2 * near[np.ix_(place, place)] * np.outer(changed, changed)
    return total


def _error_of(knob: str, shared: float) -> float:
    """Return how far what a knob changes may be mispredicted, one deviation; no grid compared layouts on GPUs."""
    return shared if knob in LAYOUT else KNOB_ERRORS.get(knob, UNKNOWN_EFFECT)


def _likeliest_scale(prior: Array, off: Array) -> float:
    """Return the factor on all errors under which what was measured is most likely; 1 from too few trials."""
    if len(off) < _TEACH_SCALE:
        return 1.0

    def surprise(scale: float) -> float:
        known = prior * scale**2 + NOISE**2 * np.eye(len(off))
        return float(off @ np.linalg.solve(known, off) + np.linalg.slogdet(known)[1])

    return min(_SCALES, key=surprise)


def expected_gain(belief: Belief, best: float) -> Array:
    """Return the expected improvement of each candidate over the best measured, as a share."""
    above = belief.mid - math.log(best)
    spread = np.maximum(belief.deviation, 1e-9)
    normal = NormalDist()
    ratio = above / spread
    cumulative = np.array([normal.cdf(each) for each in ratio])
    density = np.array([normal.pdf(each) for each in ratio])
    return np.asarray(above * cumulative + spread * density)


def next_trial(candidates: Sequence[Expected], measured: Mapping[int, float], belief: Belief) -> int | None:
    """Return the candidate to try next; None if no other is likely to be more than 2 % better than the best measured.

    A set that was tried and failed counts as measured, at 0.
    """
    untried = [place for place in range(len(candidates)) if place not in measured]
    best = max(measured.values(), default=0.0)
    if not untried:
        return None
    if best <= 0:
        return max(untried, key=lambda place: (belief.mid[place], -place))
    if gain_left(belief, untried, best) <= GAIN_LEFT:
        return None
    gains = expected_gain(belief, best)
    return max(untried, key=lambda place: (gains[place], -place))


def gain_left(belief: Belief, untried: Sequence[int], best: float) -> float:
    """Return by how much the most promising untried set may beat the best, at the upper end of its 80 % interval."""
    _, high = belief.ends()
    return float(max((high[place] / best - 1 for place in untried), default=0.0))
