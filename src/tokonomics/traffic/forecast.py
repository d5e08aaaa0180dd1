"""What traffic will be a little later, from its own past only, and how wrong that was.

Where a whole period (a day, a week) was seen: the mean of the same moment in the periods before. Otherwise the line
through the last few moments, drawn on. A forecast never sees what it is judged on: row k is made when moment k begins.
"""

import math

import numpy as np
from pydantic import NonNegativeFloat

from tokonomics.traffic.trace import Floats
from tokonomics.types import Noun

RECENT = 10
"""Moments that a trend is drawn through: fewer follow chance, more come late."""


class ForecastError(Noun):
    """How far a forecast was off, as shares of all that came."""

    method: str
    ahead_s: NonNegativeFloat
    """How long before the moment it was made."""
    error_share: NonNegativeFloat
    """Σ |forecast − came| ÷ Σ came: the mean absolute percentage error, each moment weighted by its traffic."""
    bias_share: float
    """Σ (forecast − came) ÷ Σ came: below 0 where too little was expected."""


def rates_by_moment(arrival_s: Floats, moment_s: float, moments: int) -> Floats:
    """Requests a second in each of so many moments from 0 on."""
    place = np.floor(arrival_s / moment_s).astype(np.int64)
    inside = (place >= 0) & (place < moments)
    return np.asarray(np.bincount(place[inside], minlength=moments) / moment_s, np.float64)


def by_period(rates: Floats, first: int, ahead: int, period: int) -> Floats:
    """Row k: moments first + k, …, first + k + ahead as the mean of the same moment in all periods before them."""
    known: Floats = np.zeros(len(rates) + ahead)
    for moment in range(first, len(known)):
        # The last period may hold moments that are still to come when the row is made: those before it do not.
        last = moment - period * max(1, math.ceil((ahead + 1) / period))
        known[moment] = rates[last::-period].mean() if last >= 0 else 0.0
    rows = np.arange(first, len(rates))[:, None] + np.arange(ahead + 1)
    return np.asarray(known[rows])


def by_trend(rates: Floats, first: int, ahead: int) -> Floats:
    """Row k: the same moments on the least-squares line through the last few before first + k; never below 0."""
    rows = np.zeros((len(rates) - first, ahead + 1))
    for row in range(len(rows)):
        seen = rates[max(0, first + row - RECENT) : first + row]
        times = np.arange(len(seen)) - len(seen)
        slope, now = np.polyfit(times, seen, 1) if len(seen) > 1 else (0.0, float(seen.mean()) if len(seen) else 0.0)
        rows[row] = np.maximum(0.0, now + slope * np.arange(ahead + 1))
    return rows


def error_of(method: str, forecast: Floats, came: Floats, moment_s: float) -> ForecastError:
    """Of what was said of each moment so long before it; ``came`` are the rates of the rows' own moments."""
    ahead = min(forecast.shape[1] - 1, len(came) - 1)
    said, true = forecast[: len(came) - ahead, ahead], came[ahead:]
    total = max(float(true.sum()), 1e-12)
    return ForecastError(
        method=method,
        ahead_s=ahead * moment_s,
        error_share=float(np.abs(said - true).sum()) / total,
        bias_share=float((said - true).sum()) / total,
    )
