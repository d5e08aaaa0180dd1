"""How far a prediction may be off: an 80 % interval learned from the errors on published measurements.

Errors are grouped by what decides them: what is predicted and, at full load, dense or mixture of experts. One in
ten measurements lies below the interval and one above. A GPU whose kernels nobody timed adds the error seen when timed
GPUs are predicted from another family's curves (assumed), or half of that, in logarithms, towards what twins differ by
(scaled).
Learned by ``benchmarks/fit_intervals.py`` on rows marked ``calibrate``. A profile brings its own, from held-out points.
"""

import math
import tomllib
from functools import cache
from importlib.resources import files
from typing import Literal

from pydantic import NonNegativeFloat, PositiveFloat

from tokonomics.physics.calibration import BARE, active, using
from tokonomics.physics.deployment import Deployment
from tokonomics.physics.origins import speed_badge
from tokonomics.types import Badge, Noun

Kind = Literal["step", "prefill", "tpot", "ttft", "throughput"]

_80_PERCENT = 1.2816  # standard deviations that hold 80 % of a normal distribution to either side of its middle


class Interval(Noun):
    """A predicted figure, with the range that holds four of five measurements."""

    low: PositiveFloat
    mid: PositiveFloat
    high: PositiveFloat


class _Percentiles(Noun):
    """Tenth and ninetieth percentile of log(measured ÷ predicted)."""

    low: float
    high: float
    n: int


class _Learned(Noun):
    source: str
    classes: dict[str, _Percentiles]
    scaled: NonNegativeFloat  # standard deviation of the logarithm that a relative's curves add
    assumed: NonNegativeFloat


@cache
def _learned() -> _Learned:
    text = files("tokonomics.physics").joinpath("data/intervals.toml").read_text(encoding="utf-8")
    return _Learned.model_validate(tomllib.loads(text))


def error_class(kind: Kind, deployment: Deployment) -> str:
    """The group of measurements whose errors tell how far off a prediction of this kind may be."""
    if kind != "throughput":
        return kind
    return "throughput-moe" if deployment.model.is_moe else "throughput-dense"


def interval(mid: float, kind: Kind, deployment: Deployment) -> Interval:
    """The 80 % interval around a prediction; under a profile, that of the points it was checked on."""
    checked = _deviation(kind, deployment)
    if checked is not None:
        return Interval(low=mid * math.exp(-_80_PERCENT * checked), mid=mid, high=mid * math.exp(_80_PERCENT * checked))
    learned = _learned()
    spread = learned.classes[error_class(kind, deployment)]
    more = {Badge.measured: 0.0, Badge.modelled: learned.scaled, Badge.assumed: learned.assumed}[
        speed_badge(deployment)
    ]
    below = math.hypot(min(spread.low, 0.0), _80_PERCENT * more)
    above = math.hypot(max(spread.high, 0.0), _80_PERCENT * more)
    return Interval(low=mid * math.exp(-below), mid=mid, high=mid * math.exp(above))


def _deviation(kind: Kind, deployment: Deployment) -> float | None:
    """What the profile in use says about errors of this kind; None where it says nothing."""
    profile = active()
    if profile is None:
        return None
    correction = profile.correction_of(deployment, BARE if kind == "step" else deployment.engine.key)
    kernels = profile.kernels_of(deployment.gpu)
    # Of this kind alone: a first token is its prompt and a wait, and told well it may be for the wait.
    found = (correction.spreads if correction else {}).get(kind) or (kernels.spreads if kernels else {}).get(kind)
    return found.deviation if found else None


def prior_deviation(kind: Kind, deployment: Deployment) -> float:
    """The standard deviation that the interval without a profile stands for."""
    with using(None):
        around = interval(1.0, kind, deployment)
    return math.log(around.high / around.low) / (2 * _80_PERCENT)
