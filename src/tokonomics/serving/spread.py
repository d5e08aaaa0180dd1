"""Percentiles and the mean of a latency: how every answer of the package states one."""

import numpy as np

from tokonomics.traffic.slo import PERCENTILES
from tokonomics.traffic.trace import Floats
from tokonomics.types import Noun


class Spread(Noun):
    """A latency over requests, in seconds; None where no request has it."""

    p50: float | None
    p90: float | None
    p95: float | None
    p99: float | None
    mean: float | None


def spread(values: Floats) -> Spread:
    """Percentiles and mean of what is a number."""
    known = values[~np.isnan(values)]
    if not len(known):
        return Spread(p50=None, p90=None, p95=None, p99=None, mean=None)
    points = _percentiles(known)
    named = {f"p{percent}": float(point) for percent, point in zip(PERCENTILES, points, strict=True)}
    return Spread(**named, mean=float(known.mean()))


def _percentiles(known: Floats) -> Floats:
    """What ``np.percentile`` gives to the last digit, straight between neighbours; to sort them is five times quicker
    than its partition."""
    ordered = np.sort(known)
    place = np.array(PERCENTILES) / 100 * (len(ordered) - 1)
    below = place.astype(np.intp)
    above, share = np.minimum(below + 1, len(ordered) - 1), place - below
    gap = ordered[above] - ordered[below]
    found: Floats = np.where(share < 0.5, ordered[below] + gap * share, ordered[above] - gap * (1 - share))
    return found
