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
    points = np.percentile(known, PERCENTILES)
    named = {f"p{percent}": float(point) for percent, point in zip(PERCENTILES, points, strict=True)}
    return Spread(**named, mean=float(known.mean()))
