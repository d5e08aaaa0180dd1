"""The day that ways to scale are tried on: its requests, what came in each moment, and what was forecast of it.

A log of two days or more is judged on its busiest day that has a day before it (a week, in a log of more than one). A
shorter one is forecast from its last minutes. A demand curve is drawn twice: the day, and the same day one period
before.
"""

import math
from dataclasses import dataclass, replace

import numpy as np

from tokonomics.errors import BadInput
from tokonomics.money.demand import EVERY_SIZE, HOURS_PER_WEEK, Demand
from tokonomics.planner.fleet_traffic import FleetTraffic
from tokonomics.traffic.arrivals import Arrivals, draw_arrivals
from tokonomics.traffic.forecast import RECENT, by_period, by_trend, rates_by_moment
from tokonomics.traffic.trace import Floats, Trace, make_trace
from tokonomics.units import DAY_S, SECONDS_PER_HOUR, plural

MOMENT_S, SHORT_MOMENT_S = 300.0, 60.0
"""What is forecast at once: five minutes of a day (288, each of hundreds of requests where a fleet is worth scaling);
one where only the last minutes tell."""
MOST_REQUESTS = 200_000
"""In one simulation, of about twenty: seconds each."""


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

    @property
    def share(self) -> float:
        """Of the requests that are simulated: at most so many, on as much smaller a fleet."""
        return min(1.0, MOST_REQUESTS / len(self.requests))


def day_of(traffic: FleetTraffic, ahead_s: float, seed: int = 0) -> ScalingDay:
    """The day, with forecasts that reach as far ahead as an order takes, and one moment more."""
    if traffic.trace is not None:
        return _of_log(traffic.trace, ahead_s)
    demand = traffic.demand
    days = max(1, math.ceil(demand.hours / 24))
    busiest = int(np.argmax(demand.total)) // 24
    period = _period_hours(demand)
    start_s = busiest * DAY_S
    before, day = (_drawn(traffic, start_s, (seed, draw)) for draw in (1, 0))
    moments = int(DAY_S / MOMENT_S)
    rates = np.concatenate([rates_by_moment(part.arrival_s, MOMENT_S, moments) for part in (before, day)])
    ahead = math.ceil(ahead_s / MOMENT_S) + 1
    method = "the same moment a week before" if period > 24 else "the same moment a day before"
    what = f"the busiest day of {plural(days, 'day')}, drawn twice: the other draw is the day of the forecast"
    return ScalingDay(day, rates[moments:], by_period(rates, moments, ahead, moments), MOMENT_S, method, what)


def _of_log(log: Trace, ahead_s: float) -> ScalingDay:
    days = int(log.duration_s // DAY_S)
    if days < 2:
        return _by_its_minutes(log, ahead_s)
    period_days = 7 if days > 7 else 1
    moments = int(DAY_S / MOMENT_S)
    rates = rates_by_moment(log.arrival_s, MOMENT_S, days * moments)
    by_day = rates.reshape(days, moments).sum(axis=1)
    day = period_days + int(np.argmax(by_day[period_days:]))
    ahead = math.ceil(ahead_s / MOMENT_S) + 1
    until = rates[: (day + 1) * moments]
    forecasts = by_period(until, day * moments, ahead, period_days * moments)
    method = f"the same moment {'a week' if period_days == 7 else 'a day'} before, the mean of all that were seen"
    what = f"day {day + 1} of the log"
    requests = log.window(day * DAY_S, (day + 1) * DAY_S)
    return ScalingDay(requests, rates[day * moments : (day + 1) * moments], forecasts, MOMENT_S, method, what)


def _by_its_minutes(log: Trace, ahead_s: float) -> ScalingDay:
    """All of a short log but its first minutes, which the first forecast is made from."""
    moments = int(log.duration_s // SHORT_MOMENT_S)
    if moments < 3 * RECENT:
        what = f"lasts {log.duration_s / 60:.0f} minutes: too short to see how a fleet follows it"
        raise BadInput(
            what, where=log.source, fix=f"Half an hour ({3 * RECENT} minutes) is the least, days are better."
        )
    rates = rates_by_moment(log.arrival_s, SHORT_MOMENT_S, moments)
    ahead = math.ceil(ahead_s / SHORT_MOMENT_S) + 1
    requests = log.window(RECENT * SHORT_MOMENT_S, moments * SHORT_MOMENT_S)
    what = f"the log without its first {RECENT} minutes"
    method = f"the line through the last {RECENT} minutes"
    return ScalingDay(requests, rates[RECENT:], by_trend(rates, RECENT, ahead), SHORT_MOMENT_S, method, what)


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
