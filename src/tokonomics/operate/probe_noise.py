"""Estimate how far a probe's median may be off by chance: from the scatter of its own rounds, and of its like.

Five rounds alone tell a probe's variance badly, and Student's t asks for wide intervals then. So each variance of log
times is shrunk towards what it usually is for probes of its kind and length (empirical Bayes with a trend, as ``limma``
does: Smyth 2004, "Linear models and empirical Bayes methods for assessing differential expression"). The usual variance
of a kind is a line, log variance over log time: a host's hiccup of two milliseconds is much of a short probe and
little of a long one. How much the probes' true variances differ around these lines tells how many degrees of freedom a
line is worth.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tokonomics.operate.fingerprint import PLACES, ProbeTimes

Array = NDArray[np.float64]

_FEWEST_FOR_A_LINE = 4  # probes of a kind; a line through fewer leaves at most one to tell its error
_NEWTON_STEPS = 50
_NO_SPREAD = 1.0
"""Variance of log times if no probe was taken twice: a factor of 2.7 either way, which finds nothing (our choice)."""


def variances(times: Sequence[ProbeTimes]) -> tuple[Array, Array]:
    """Return the variance of the logarithm of each probe's times from round to round, and its degrees of freedom."""
    from scipy.special import polygamma, psi

    freedom = np.array([len(each.seconds) - 1 for each in times], dtype=np.float64)
    measured = freedom > 0
    if not measured.any():
        return np.full(len(times), _NO_SPREAD), np.ones(len(times))
    own = np.array([_variance(each) if many else 1.0 for each, many in zip(times, measured, strict=True)])
    half = np.maximum(freedom, 1.0) / 2
    logs = np.log(own) - psi(half) + np.log(half)  # unbiased for the logarithm of the true variance
    usual, taken = _lines(times, logs, measured)
    left = (logs - usual)[measured]
    spread = float(np.sum(left**2)) / max(1, len(left) - taken) - float(polygamma(1, half[measured]).mean())
    total = float(freedom.sum())
    prior = min(total, 2 * _inverse_trigamma(spread)) if spread > 0 else total  # the lines tell no more than all rounds
    around = np.exp(usual + psi(prior / 2) - math.log(prior / 2))
    return (prior * around + freedom * own) / (prior + freedom), prior + freedom


def _variance(times: ProbeTimes) -> float:
    """Return the variance of the logarithms of a probe's times, and that of rounding them."""
    rounding = 10.0**-PLACES / times.median_s
    return float(np.var(np.log(times.seconds), ddof=1)) + rounding**2 / 12


def _lines(times: Sequence[ProbeTimes], logs: Array, measured: NDArray[np.bool_]) -> tuple[Array, int]:
    """Return the usual log variance of every probe, from a line for each kind, and how many numbers the lines have."""
    usual, taken = np.full(len(times), float(logs[measured].mean())), 0
    kinds, lengths = [each.probe.kind for each in times], np.log([each.median_s for each in times])
    for kind in dict.fromkeys(kinds):
        those = np.array([each is kind for each in kinds])
        known = those & measured
        if not known.any():
            continue
        degree = int(np.count_nonzero(known) >= _FEWEST_FOR_A_LINE and np.ptp(lengths[known]) > 0)
        usual[those] = np.polyval(np.polyfit(lengths[known], logs[known], degree), lengths[those])
        taken += degree + 1
    return usual, taken


def _inverse_trigamma(value: float) -> float:
    """Return the argument at which the trigamma function has this value (Newton's method, as in Smyth 2004)."""
    from scipy.special import polygamma

    at = 0.5 + 1 / value
    for _ in range(_NEWTON_STEPS):
        here = float(polygamma(1, at))
        step = here * (1 - here / value) / float(polygamma(2, at))
        at += step
        if abs(step) < 1e-9 * at:
            break
    return at
