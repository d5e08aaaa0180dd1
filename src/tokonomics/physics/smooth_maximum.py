"""Two times that overlap: (one^p + other^p)^(1/p), rising in both, their sum at p = 1, near the longer at p = 8.

Kernels are fitted with p a power of two wherever that fits: squares and roots do then, and general powers would take
most of a step time's computation.
"""

import math
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Value = TypeVar("Value", float, float | NDArray[np.float64], NDArray[np.float64])


def raised(value: Value, p: float) -> Value:
    """To the power p."""
    times = math.log2(p)
    if not times.is_integer():
        return value**p  # type: ignore[no-any-return]
    for _ in range(abs(int(times))):
        value = value * value if times > 0 else np.sqrt(value)
    return value


def root(value: Value, p: float) -> Value:
    """What has this value to the power p."""
    return raised(value, 1 / p)


def smooth_maximum(one: Value, other: Value, p: float) -> Value:
    """The two together."""
    return root(raised(one, p) + raised(other, p), p)
