"""Fitting a kernel's law to its timings: least squares of logarithms, far outliers held down, parameters in bounds.

All parameters are positive and are fitted in logarithms. The corner's sharpness is tried at a few values, which compute
fast, rather than fitted. What the timings cannot tell is pulled to where it starts. The bounds are orders of magnitude
of the hardware; ``benchmarks/fit_matrix_kernels.py`` and ``fit_attention_kernels.py`` fit the shipped curves with them.
"""

from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from tokonomics.physics.attention_kernels import DecodeCurve, PrefillCurve
from tokonomics.physics.matrix_kernels import GemmCurve, LinkCurve

Array = NDArray[np.float64]
Curve = TypeVar("Curve", bound=tuple[float, ...])


class Bounds(NamedTuple, Generic[Curve]):
    """Where each parameter of a law starts, and its range."""

    start: Curve
    low: Curve
    high: Curve


GEMM = Bounds(
    GemmCurve(2.5e-6, 3e-6, 4e3, 0.85, 0.85, 16, 128, 64, 2, 0.1),
    GemmCurve(5e-7, 1e-8, 200, 0.3, 0.2, 0.1, 0.1, 0.1, 1, 1e-3),
    GemmCurve(2e-5, 1e-2, 1e8, 0.95, 1, 512, 4096, 2048, 8, 0.3),
)
LINK = Bounds(LinkCurve(6e-6, 0.6, 1.2), LinkCurve(1e-6, 0.001, 0.5), LinkCurve(1e-4, 1, 4))
DECODE = Bounds(
    DecodeCurve(6e-6, 0.8e-6, 100, 3e-6, 6e4, 0.85, 0.3, 1.8, 16, 8, 1e12),
    DecodeCurve(1e-6, 1e-9, 16, 1e-8, 1e3, 0.05, 0.02, 1.05, 0.3, 0.5, 5e9),
    DecodeCurve(40e-6, 2e-5, 1e5, 5e-5, 1e7, 1, 1, 5, 1e4, 64, 1e13),
)
PREFILL = Bounds(
    PrefillCurve(6e-6, 0.6, 200, 64, 0.5, 8e-9, 0.8, 3, 1.5),
    PrefillCurve(1e-6, 0.02, 1, 1, 0.02, 1e-10, 0.3, 0.01, 1.0),
    PrefillCurve(60e-6, 1, 5000, 1000, 1, 1e-6, 1, 300, 6),
)
GEMM_SHARPNESS = (1.0, 2.0, 4.0, 8.0)
ATTENTION_SHARPNESS = (1.0, 2.0, 4.0)
PULL = 0.3  # of an attention parameter to where it starts, beside one for each timing
HEAT_S = 1e-3  # a GPU that has computed for this long is half as hot as one that serves


def least_log_squares(
    predict: Callable[[Array], Array],
    seconds: Array,
    begin: Sequence[float] | Array,
    low: Sequence[float] | Array,
    high: Sequence[float] | Array,
    *,
    fixed: int | None = None,
    weight: Array | None = None,
    pull: float = 0.0,
    pull_to: Sequence[float] | Array | None = None,
    most_steps: int = 100,
) -> tuple[float, Array]:
    """Loss and parameters; the one at ``fixed`` stays as it begins."""
    from scipy.optimize import least_squares

    first = np.asarray(begin, np.float64)
    free = np.arange(len(first)) != (-1 if fixed is None else fixed)
    target = np.log(seconds)
    scale = np.ones_like(target) if weight is None else weight
    origin = np.log(first if pull_to is None else np.asarray(pull_to, np.float64))[free]

    def whole(x: Array) -> Array:
        values = first.copy()
        values[free] = np.exp(x)
        return values

    def residuals(x: Array) -> Array:
        errors = scale * (np.log(predict(whole(x))) - target)
        return np.concatenate([errors, pull * (x - origin)]) if pull else np.asarray(errors)

    bounds = np.log(np.asarray(low))[free], np.log(np.asarray(high))[free]
    inside = np.clip(np.log(first)[free], bounds[0] + 1e-6, bounds[1] - 1e-6)
    solved = least_squares(residuals, inside, bounds=bounds, loss="soft_l1", f_scale=0.1, max_nfev=most_steps)
    return float(solved.cost), whole(solved.x)


def fit_law(
    predict: Callable[[Array], Array],
    seconds: Array,
    bounds: Bounds[Any],
    *,
    sharpness: Sequence[float],
    weight: Array | None = None,
    pull: float = 0.0,
) -> Array:
    """The parameters under the sharpness that fits best."""
    place, trials = bounds.start._fields.index("sharpness"), []
    how = {"fixed": place, "weight": weight, "pull": pull}
    for p in sharpness:
        begin = np.where(np.arange(len(bounds.start)) == place, p, bounds.start)
        trials.append(least_log_squares(predict, seconds, begin, bounds.low, bounds.high, **how))
    return min(trials, key=lambda trial: trial[0])[1]
