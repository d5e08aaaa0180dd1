"""Two days that ways to scale are tried on: one to set each way's room, the next to judge it.

A log of three days or more is judged on its busiest day that has a day before it and a forecast of that (two weeks,
in a log of more than eight days). A shorter one is cut in halves and forecast from its last minutes. A demand curve is
drawn three times: the day, and the same day one and two periods before.
"""

import math
from dataclasses import dataclass, replace

import numpy as np

from tokonomics.errors import BadInput
from tokonomics.money.demand import EVERY_SIZE, HOURS_PER_WEEK, Demand
from tokonomics.planner.fleet_traffic import FleetTraffic
from tokonomics.traffic.arrivals import RECENT, Arrivals, by_period, by_trend, draw_arrivals, rates_by_moment
from tokonomics.traffic.trace import Floats, Trace, make_trace
from tokonomics.units import DAY_S, SECONDS_PER_HOUR, plural

MOMENT_S, SHORT_MOMENT_S = 300.0, 60.0
"""What is forecast at once: five minutes of a day (288, each of hundreds of requests where a fleet is worth scaling);
one where only the last minutes tell."""
MOST_REQUESTS = 200_000
"""In one simulation, of about thirty, unless that leaves too few replicas: a part of a second each."""

_MEAN = "the mean of all that were seen"


@dataclass(frozen=True)
class ScalingDay:
    """Traffic, and what could be known of it before."""

    requests: Trace
    came: Floats
    """Requests a second in each moment."""
    forecasts: Floats
    """Row k: of moments k, k + 1, …, made when k begins."""
    moment_s: float
    method: str
    what: str

    @property
    def hours(self) -> float:
        return len(self.came) * self.moment_s / SECONDS_PER_HOUR


def days_of(traffic: FleetTraffic, ahead_s: float, seed: int = 0) -> tuple[ScalingDay, ScalingDay]:
    """The day before and the day, with forecasts that reach as far ahead as an order takes, and one moment more."""
    if traffic.trace is not None:
        return _of_log(traffic.trace, ahead_s)
    demand = traffic.demand
    days = max(1, math.ceil(demand.hours / 24))
    busiest = int(np.argmax(demand.total)) // 24
    drawn = [_drawn(traffic, busiest * DAY_S, (seed, draw)) for draw in (2, 1, 0)]
    moments = int(DAY_S / MOMENT_S)
    rates = np.concatenate([rates_by_moment(part.arrival_s, MOMENT_S, moments) for part in drawn])
    method = f"the same moment {'a week' if _period_hours(demand) > 24 else 'a day'} before, {_MEAN}"
    what = f"the busiest day of {plural(days, 'day')}, drawn anew for the forecast, to set the room and to judge"
    first, second = (
        _whole_day(part, rates, place, 1, ahead_s, method, what) for place, part in enumerate(drawn[1:], start=1)
    )
    return first, second


def _whole_day(
    requests: Trace, rates: Floats, day: int, period_days: int, ahead_s: float, method: str, what: str
) -> ScalingDay:
    """A day of several, forecast from those before it."""
    moments = int(DAY_S / MOMENT_S)
    ahead = math.ceil(ahead_s / MOMENT_S) + 1
    forecasts = by_period(rates[: (day + 1) * moments], day * moments, ahead, period_days * moments)
    return ScalingDay(requests, rates[day * moments : (day + 1) * moments], forecasts, MOMENT_S, method, what)


def _of_log(log: Trace, ahead_s: float) -> tuple[ScalingDay, ScalingDay]:
    days = int(log.duration_s // DAY_S)
    if days < 3:
        return _by_its_minutes(log, ahead_s)
    period_days = 7 if days > 8 else 1
    moments = int(DAY_S / MOMENT_S)
    rates = rates_by_moment(log.arrival_s, MOMENT_S, days * moments)
    by_day = rates.reshape(days, moments).sum(axis=1)
    day = period_days + 1 + int(np.argmax(by_day[period_days + 1 :]))
    method = f"the same moment {'a week' if period_days == 7 else 'a day'} before, {_MEAN}"
    first, second = (
        _whole_day(
            log.window(one * DAY_S, (one + 1) * DAY_S), rates, one, period_days, ahead_s, method,
            f"day {day + 1} of the log, with the room of day {day}",
        )
        for one in (day - 1, day)
    )  # fmt: skip
    return first, second


def _by_its_minutes(log: Trace, ahead_s: float) -> tuple[ScalingDay, ScalingDay]:
    """The halves of a short log after its first minutes, which the first forecast is made from."""
    half = (int(log.duration_s // SHORT_MOMENT_S) - RECENT) // 2
    if half < RECENT:
        what = f"lasts {log.duration_s / 60:.0f} minutes: too short to see how a fleet follows it"
        raise BadInput(
            what, where=log.source, fix=f"Half an hour ({3 * RECENT} minutes) is the least, days are better."
        )
    ahead = math.ceil(ahead_s / SHORT_MOMENT_S) + 1
    rates = rates_by_moment(log.arrival_s, SHORT_MOMENT_S, RECENT + 2 * half)
    method = f"the line through the last {RECENT} minutes"
    what = "the second half of the log, with the room of the first"

    def part(begin: int) -> ScalingDay:
        until = begin + half
        requests = log.window(begin * SHORT_MOMENT_S, until * SHORT_MOMENT_S)
        forecasts = by_trend(rates[:until], begin, ahead)
        return ScalingDay(requests, rates[begin:until], forecasts, SHORT_MOMENT_S, method, what)

    return part(RECENT), part(RECENT + half)


def _period_hours(demand: Demand) -> int:
    """After how long a curve repeats: a week where its days differ."""
    rates = np.resize(np.asarray(demand.total), HOURS_PER_WEEK).reshape(7, 24)
    return 24 if np.allclose(rates, rates[0]) else HOURS_PER_WEEK


def _drawn(traffic: FleetTraffic, start_s: float, seed: tuple[int, int]) -> Trace:
    """A day of a curve's requests."""
    chance = np.random.SeedSequence(seed)
    if traffic.arrivals is None or EVERY_SIZE not in traffic.samples:
        return traffic.requests_in(start_s, start_s + DAY_S, seed=int(chance.generate_state(1)[0]))
    arrival_s = _within(traffic.arrivals, start_s, chance)
    sample = traffic.samples[EVERY_SIZE]
    chosen = np.random.default_rng(chance.spawn(1)[0]).integers(len(sample), size=len(arrival_s))
    return make_trace(arrival_s, sample.input_tokens[chosen], sample.output_tokens[chosen], source=traffic.source)


def _within(arrivals: Arrivals, start_s: float, chance: np.random.SeedSequence) -> Floats:
    return draw_arrivals(replace(arrivals, start_s=arrivals.start_s + start_s), duration_s=DAY_S, seed=chance)
