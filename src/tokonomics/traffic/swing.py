"""Say how traffic changes over time: its mean rate, its peak and when that is, and the rate that each hour has to hold.

A curve such as ``diurnal:3,peak=3`` repeats after a day or a week that begins at midnight (of a Monday); an hour has to
hold its busiest minute. A log has the hours that were seen, each at its mean rate.
"""

import math

import numpy as np
from pydantic import NonNegativeFloat, PositiveFloat

from tokonomics.traffic.arrivals import Arrivals, rates_by_moment
from tokonomics.traffic.trace import Trace
from tokonomics.types import Noun
from tokonomics.units import SECONDS_PER_HOUR

_MINUTE_S = 60.0
_MOST_HOURS = 168  # of a log by the hour: a week
VARIES = 1.2
"""A log whose busiest hour is less above its mean is even: bursts of a constant load may reach as much in an hour."""


class DemandSwing(Noun):
    """Traffic whose rate changes over time."""

    mean_rate: PositiveFloat  # requests a second, as is ``peak_rate``
    peak_rate: PositiveFloat  # of the busiest minute; of a log, of its busiest hour
    peak_s: NonNegativeFloat  # when that is, from the beginning of the period or the log
    period_s: PositiveFloat | None  # after which it repeats; None for a log
    hours: tuple[NonNegativeFloat, ...] = ()
    """Requests a second that each hour of the period has to hold; empty if it is not made of whole hours."""

    @property
    def is_daily(self) -> bool:
        """Return whether its hours are those of a clock: a day's, or a week's from Monday on."""
        return len(self.hours) in (24, 168) and self.period_s is not None


def swing_of_curve(arrivals: Arrivals, mean_rate: float) -> DemandSwing | None:
    """Return how a curve that repeats changes, at that mean rate; None for any other."""
    curve = arrivals.curve
    if curve.period_s is None or arrivals.at_once is not None:
        return None
    factor = mean_rate * curve.period_s / float(curve.expected[-1])
    rates = np.diff(curve.expected) / np.diff(curve.times) * factor
    busiest = int(np.argmax(np.round(rates, 9)))
    middle_s = float(curve.times[busiest] + curve.times[busiest + 1]) / 2
    hours, left = divmod(curve.period_s, SECONDS_PER_HOUR)
    by_hour: tuple[float, ...] = ()
    if hours >= 2 and not left and hours <= _MOST_HOURS:
        steps = np.arange(0.0, curve.period_s + _MINUTE_S, _MINUTE_S)
        minutes = np.diff([curve.by(step) for step in steps])[: int(hours) * 60] / _MINUTE_S * factor
        by_hour = tuple(minutes.reshape(int(hours), 60).max(axis=1).tolist())
    return DemandSwing(
        mean_rate=mean_rate, peak_rate=float(rates.max()), peak_s=middle_s, period_s=curve.period_s, hours=by_hour
    )


def swing_of_log(trace: Trace) -> DemandSwing | None:
    """Return how a log of two hours or more changes, at its own pace; None if it hardly does."""
    hours = math.floor(trace.duration_s / SECONDS_PER_HOUR)
    if hours < 2:
        return None
    rates = rates_by_moment(trace.arrival_s - trace.arrival_s[0], SECONDS_PER_HOUR, hours)
    busiest = int(np.argmax(rates))
    if rates[busiest] < VARIES * trace.rate:
        return None
    return DemandSwing(
        mean_rate=trace.rate,
        peak_rate=float(rates[busiest]),
        peak_s=busiest * SECONDS_PER_HOUR,
        period_s=None,
        hours=tuple(rates.tolist()) if hours <= _MOST_HOURS else (),
    )
