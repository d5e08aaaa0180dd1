"""Turn a text such as ``gamma:2,cv=3`` or ``diurnal:5,peak=3`` into sorted arrival times, and forecast traffic.

Every process is a renewal process whose clock runs at the current rate: gaps of mean one and a given coefficient of
variation (exponential, gamma, Weibull or even) are summed, and the sum is read backwards through the curve of requests
expected by each moment. With exponential gaps that is the Poisson process of that rate; ``cv`` makes it burstier. The
first request arrives at 0.

A forecast says what traffic will be a little later, from its own past only, and how wrong that was. Where a whole
period (a day, a week) was seen, it is the mean of the same moment in the periods before; otherwise the extended line
through the last few moments. A forecast never sees what it is judged on: row k is made when moment k begins.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from pydantic import NonNegativeFloat, PositiveFloat

from tokonomics.errors import BadInput, option
from tokonomics.memory_budget import check_room
from tokonomics.traffic.grammar import Phrase, parse_phrase
from tokonomics.traffic.trace import Trace
from tokonomics.types import Noun
from tokonomics.units import SECONDS_PER_HOUR

Floats = NDArray[np.float64]
GapsOfMeanOne = Callable[[np.random.Generator, int], Floats]

EXAMPLES = (
    "poisson:2, gamma:2,cv=3, weibull:2,cv=2, constant:2, onoff:10,on=60,off=300, diurnal:5,peak=3, "
    "weekly:5,peak=2,weekend=0.4, hourly:1/0.5/4, step:2,to=8,at=600, spike:2,to=20,at=600,for=60, burst:100"
)
MOST_REQUESTS = 200_000_000  # in one trace, on any machine; memory usually allows fewer
BYTES_PER_REQUEST = 55
"""Memory while traffic is generated: ``generate``'s peak for 4 million requests less that for one (Linux, ru_maxrss).
"""
_MOST_RATE = 1e6
_MOST_CV = 30.0
_MOST_PEAK = 20.0
_DAY_S = 86400
_MINUTES = 1440  # steps of the daily curve: the rate is constant within a minute
_LONGEST_S = 1e9


@dataclass(frozen=True)
class RateCurve:
    """Requests expected by each moment: straight between ``times`` and ``expected``, both rising from 0.

    With a period the curve repeats after it (silent from the last time to the period's end); without one it goes on
    at ``rate_after``.
    """

    times: Floats
    expected: Floats
    period_s: float | None = None
    rate_after: float = 0.0

    def by(self, moment_s: float) -> float:
        """Return the requests expected by that moment."""
        if self.period_s is None:
            beyond = max(moment_s - float(self.times[-1]), 0.0)
            return float(np.interp(moment_s, self.times, self.expected)) + beyond * self.rate_after
        whole, rest = divmod(moment_s, self.period_s)
        return whole * float(self.expected[-1]) + float(np.interp(rest, self.times, self.expected))

    def when(self, expected: Floats) -> Floats:
        """Return the moments by which these numbers of requests are expected: the inverse of ``by``."""
        last = float(self.expected[-1])
        if self.period_s is None:
            beyond = np.maximum(expected - last, 0.0)
            inside = np.interp(expected, self.expected, self.times) if last else np.zeros_like(expected)
            return np.asarray(inside + (beyond / self.rate_after if self.rate_after else 0.0))
        whole = np.floor(expected / last)
        return np.asarray(whole * self.period_s + np.interp(expected - whole * last, self.expected, self.times))


@dataclass(frozen=True)
class Arrivals:
    """An arrival process, read from a text."""

    text: str
    curve: RateCurve
    gaps: GapsOfMeanOne
    start_s: float = 0.0  # how far into the curve the trace begins
    at_once: int | None = None  # the requests of a burst at time 0, after which nothing comes

    @property
    def is_stationary(self) -> bool:
        """Return whether the rate is the same at all times."""
        return self.at_once is None and self.curve.period_s is None and float(self.curve.expected[-1]) == 0

    def times(self, factor: float) -> "Arrivals":
        """Return the same process at ``factor`` times the rate."""
        expected, rate_after = self.curve.expected * factor, self.curve.rate_after * factor
        return replace(self, curve=replace(self.curve, expected=expected, rate_after=rate_after))


def parse_arrivals(text: str, field: str = "arrivals") -> Arrivals:
    """Read one process. Rates are requests a second; times are seconds, or texts such as 10m and 2h."""
    phrase = parse_phrase(text, _KINDS, field=field, examples=EXAMPLES)
    options, curve_of = _KINDS[phrase.name]
    phrase.allow(*options)
    if phrase.name == "burst":
        number = phrase.number(None, 1, MOST_REQUESTS)
        if number != int(number):
            raise phrase.wrong("a burst is a whole number of requests")
        return Arrivals(phrase.text, _steady(phrase, 0.0), _exponential, at_once=int(number))
    curve = curve_of(phrase, 0.0 if phrase.name == "hourly" else phrase.number(None, 1e-6, _MOST_RATE))
    start_s = phrase.time_s("start", 0, curve.period_s or 0.0, 0.0)
    if phrase.name == "weibull":
        shape = weibull_shape(phrase.number("cv", 0.01, _MOST_CV))
        scale = 1 / math.gamma(1 + 1 / shape)
        return Arrivals(phrase.text, curve, lambda rng, size: rng.weibull(shape, size) * scale)
    cv = 0.0 if phrase.name == "constant" else phrase.number("cv", 0, _MOST_CV, None if phrase.name == "gamma" else 1.0)
    return Arrivals(phrase.text, curve, _gamma(cv), start_s)


def draw_arrivals(
    arrivals: Arrivals,
    *,
    requests: int | None = None,
    duration_s: float | None = None,
    seed: int | np.random.SeedSequence = 0,
) -> Floats:
    """Draw sorted arrival times from 0: ``requests`` of them, those before ``duration_s``, or whichever ends first."""
    if arrivals.at_once is None and requests is None and duration_s is None:
        raise BadInput("no end is given", fix=f"Say {option('requests', 10000)} or {option('duration', '1h')}.")
    if requests is not None and not 1 <= requests <= MOST_REQUESTS:
        raise BadInput(f"must be between 1 and {MOST_REQUESTS:,}, got {requests:,}", field="requests")
    if duration_s is not None and not 0 < duration_s <= _LONGEST_S:
        raise BadInput(f"must be above 0 and at most {_LONGEST_S:,.0f} seconds, got {duration_s:g}", field="duration")
    if arrivals.at_once is not None:
        number = min(arrivals.at_once, requests or arrivals.at_once)
        _check_requests(number, "arrivals")
        return np.zeros(number)
    begin = arrivals.curve.by(arrivals.start_s)
    end = math.inf if duration_s is None else arrivals.curve.by(arrivals.start_s + duration_s) - begin
    if requests is None and end > 0.9 * MOST_REQUESTS:
        said = f"{arrivals.text} gives about {end:,.0f} requests in that time; at most {MOST_REQUESTS:,} are made"
        raise BadInput(said, field="duration")
    expected = min(math.inf if requests is None else requests, end)
    _check_requests(expected, "requests" if expected == requests else "duration")
    clock = _clock(arrivals, np.random.default_rng(seed), requests, end)
    times = arrivals.curve.when(begin + clock) - arrivals.start_s
    # Rounding may put a time a hair before its neighbour or before the start.
    ordered: Floats = np.maximum.accumulate(np.maximum(times, 0.0))
    ordered[0] = 0.0
    return ordered if duration_s is None else ordered[: int(np.searchsorted(ordered, duration_s))]


def _check_requests(number: float, field: str) -> None:
    fix = f"Ask for fewer {option('requests')} or a shorter {option('duration')}."
    check_room(number * BYTES_PER_REQUEST, f"making {number:,.0f} requests", field=field, fix=fix)


def _clock(arrivals: Arrivals, rng: np.random.Generator, requests: int | None, end: float) -> Floats:
    """Return running sums of gaps from 0: ``requests`` of them, or until the end is passed."""
    parts, last, drawn = [np.zeros(1)], 0.0, 1
    while last < end and (requests is None or drawn < requests):
        likely = math.inf if math.isinf(end) else (end - last) + 5 * math.sqrt(end - last) + 100
        size = int(min(likely, math.inf if requests is None else requests - drawn))
        sums = last + np.cumsum(arrivals.gaps(rng, size))
        parts.append(sums)
        last, drawn = float(sums[-1]), drawn + size
        if drawn > MOST_REQUESTS:
            raise BadInput(f"{arrivals.text} needs more than {MOST_REQUESTS:,} requests", field="duration")
    return np.concatenate(parts)


def _exponential(rng: np.random.Generator, size: int) -> Floats:
    return rng.standard_exponential(size)


def _gamma(cv: float) -> GapsOfMeanOne:
    """Draw gamma gaps of shape 1/cv² and scale cv²."""
    if cv == 1:
        return _exponential
    if cv == 0:
        return lambda _, size: np.ones(size)
    return lambda rng, size: rng.standard_gamma(1 / cv**2, size) * cv**2


def weibull_shape(cv: float) -> float:
    """Return the shape k with Γ(1 + 2/k) ÷ Γ(1 + 1/k)² − 1 = cv², by bisection: cv falls as k rises."""

    def excess(shape: float) -> float:
        return math.lgamma(1 + 2 / shape) - 2 * math.lgamma(1 + 1 / shape) - math.log1p(cv**2)

    low, high = 0.05, 1000.0
    for _ in range(80):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if excess(middle) > 0 else (low, middle)
    return low


def daily_shape(peak: float) -> Floats:
    """Return the rate of each minute of a day over its mean, lowest at the start and highest at noon.

    Up to a peak of twice the mean a sinusoid; above, the raised sinusoid ((1 − cos) / 2)ⁿ, narrower as n grows: its
    mean is Γ(n + ½) ÷ (√π Γ(n + 1)), a half at n = 1, where the two forms meet.
    """
    phase = 2 * math.pi * (np.arange(_MINUTES) + 0.5) / _MINUTES
    if peak <= 2:
        shape = 1 - (peak - 1) * np.cos(phase)
    else:
        low, high = 1.0, peak**2
        for _ in range(80):
            power = (low + high) / 2
            mean = math.exp(math.lgamma(power + 0.5) - math.lgamma(power + 1)) / math.sqrt(math.pi)
            low, high = (power, high) if mean > 1 / peak else (low, power)
        shape = ((1 - np.cos(phase)) / 2) ** low
    return np.asarray(shape / shape.mean())


def _steady(_: Phrase, rate: float) -> RateCurve:
    return RateCurve(np.zeros(1), np.zeros(1), rate_after=rate)


def _onoff(phrase: Phrase, rate: float) -> RateCurve:
    on, off = phrase.time_s("on", 1e-3, _LONGEST_S), phrase.time_s("off", 0, _LONGEST_S)
    return RateCurve(np.array([0.0, on]), np.array([0.0, rate * on]), period_s=on + off)


def _cycle(phrase: Phrase, rate: float) -> RateCurve:
    """Return the curve of a repeated day or week of this mean rate; weekends may have another weight."""
    days = [1.0]
    if phrase.name == "weekly":
        days = [1.0] * 5 + [phrase.number("weekend", 0.01, 100, 0.5)] * 2
    shape = daily_shape(phrase.number("peak", 1, _MOST_PEAK, 2.0))
    rates = np.concatenate([rate * weight * shape for weight in np.asarray(days) / np.mean(days)])
    expected = np.concatenate([[0.0], np.cumsum(rates * (_DAY_S / _MINUTES))])
    return RateCurve(np.linspace(0.0, len(days) * _DAY_S, len(expected)), expected, period_s=len(days) * _DAY_S)


def _hourly(phrase: Phrase, _: float) -> RateCurve:
    """Return the curve of a rate for each hour, which repeats: 24 of them are a day, 168 a week from Monday on."""
    rates = [_plain(part) for part in (phrase.value or "").split("/")]
    if len(rates) > _MOST_HOURS or any(rate is None or rate > _MOST_RATE for rate in rates) or not any(rates):
        raise phrase.wrong("it takes the requests a second of each hour, of a week at most, as in hourly:1/0.5/4")
    expected = np.concatenate([[0.0], np.cumsum(np.array(rates, np.float64) * SECONDS_PER_HOUR)])
    period_s = len(rates) * SECONDS_PER_HOUR
    return RateCurve(np.linspace(0.0, period_s, len(expected)), expected, period_s=period_s)


def _plain(text: str) -> float | None:
    """Return a number that is not below 0; None if it is none."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) and value >= 0 else None


def hourly_text(rates: Sequence[float]) -> str:
    """Return the text of a rate for each hour."""
    return f"hourly:{'/'.join(f'{rate:.4g}' for rate in rates)}"


def _change(phrase: Phrase, rate: float) -> RateCurve:
    """Return the curve of a rate that changes at some time, for good or for a while."""
    other, at = phrase.number("to", 1e-6, _MOST_RATE), phrase.time_s("at", 1e-3, _LONGEST_S)
    if phrase.name == "step":
        return RateCurve(np.array([0.0, at]), np.array([0.0, rate * at]), rate_after=other)
    lasting = phrase.time_s("for", 1e-3, _LONGEST_S)
    expected = np.array([0.0, rate * at, rate * at + other * lasting])
    return RateCurve(np.array([0.0, at, at + lasting]), expected, rate_after=rate)


_KINDS: dict[str, tuple[tuple[str, ...], Callable[[Phrase, float], RateCurve]]] = {
    "poisson": ((), _steady),
    "gamma": (("cv",), _steady),
    "weibull": (("cv",), _steady),
    "constant": ((), _steady),
    "onoff": (("on", "off", "cv"), _onoff),
    "diurnal": (("peak", "start", "cv"), _cycle),
    "weekly": (("peak", "weekend", "start", "cv"), _cycle),
    "hourly": (("start", "cv"), _hourly),
    "step": (("to", "at", "cv"), _change),
    "spike": (("to", "at", "for", "cv"), _change),
    "burst": ((), _steady),
}
"""The options of each process, and the function that makes its curve."""


RECENT = 10  # moments that a trend is fitted to: fewer follow chance, more react late


class ForecastError(Noun):
    """How far a forecast was off, as shares of the actual traffic."""

    method: str
    ahead_s: NonNegativeFloat  # how long before the moment it was made
    error_share: NonNegativeFloat
    """Σ |forecast − actual| ÷ Σ actual: the mean absolute percentage error, each moment weighted by its traffic."""
    bias_share: float  # σ (forecast − actual) ÷ Σ actual: below 0 where too little was expected


def rates_by_moment(arrival_s: Floats, moment_s: float, moments: int) -> Floats:
    """Return the requests a second in each of ``moments`` moments from 0 on."""
    place = np.floor(arrival_s / moment_s).astype(np.int64)
    inside = (place >= 0) & (place < moments)
    return np.asarray(np.bincount(place[inside], minlength=moments) / moment_s, np.float64)


def by_period(rates: Floats, first: int, ahead: int, period: int) -> Floats:
    """Forecast each moment as the mean of the same moment in all earlier periods.

    Row k holds moments first + k, …, first + k + ahead.
    """
    known: Floats = np.zeros(len(rates) + ahead)
    for moment in range(first, len(known)):
        # Skip the last period if it holds moments that are still in the future when the row is made.
        last = moment - period * max(1, math.ceil((ahead + 1) / period))
        known[moment] = rates[last::-period].mean() if last >= 0 else 0.0
    rows = np.arange(first, len(rates))[:, None] + np.arange(ahead + 1)
    return np.asarray(known[rows])


def by_trend(rates: Floats, first: int, ahead: int) -> Floats:
    """Forecast each moment on the least-squares line through the last few moments seen; never below 0.

    Rows are those of ``by_period``.
    """
    rows = np.zeros((len(rates) - first, ahead + 1))
    for row in range(len(rows)):
        seen = rates[max(0, first + row - RECENT) : first + row]
        times = np.arange(len(seen)) - len(seen)
        slope, now = np.polyfit(times, seen, 1) if len(seen) > 1 else (0.0, float(seen.mean()) if len(seen) else 0.0)
        rows[row] = np.maximum(0.0, now + slope * np.arange(ahead + 1))
    return rows


def error_of(method: str, forecast: Floats, came: Floats, moment_s: float) -> ForecastError:
    """Return the error of the forecasts made furthest ahead; ``came`` are the actual rates of the rows' own moments."""
    ahead = min(forecast.shape[1] - 1, len(came) - 1)
    said, true = forecast[: len(came) - ahead, ahead], came[ahead:]
    total = max(float(true.sum()), 1e-12)
    return ForecastError(
        method=method,
        ahead_s=ahead * moment_s,
        error_share=float(np.abs(said - true).sum()) / total,
        bias_share=float((said - true).sum()) / total,
    )


# --- how traffic changes over time: its mean, its peak and when, and the rate that each hour has to hold --------------
# A curve such as ``diurnal:3,peak=3`` repeats after a day or a week that begins at midnight (of a Monday); an hour
# has to hold its busiest minute. A log has the hours that were seen, each at its mean rate.


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
