"""The two days on which ways to scale are tried: one to set each way's room, the next to judge it.

A log of three days or more is judged on its busiest day that has a day before it and a forecast of that (two weeks, in
a log of more than eight days). A shorter one is cut in halves and forecast from its last minutes. A demand curve is
drawn three times: the day, and the same day one and two periods before.
"""

import math
from dataclasses import dataclass, replace

import numpy as np

from tokonomics.errors import BadInput
from tokonomics.fleet.traffic import HOURS_PER_WEEK, FleetTraffic
from tokonomics.money.purchases import EVERY_SIZE
from tokonomics.traffic.arrivals import RECENT, by_period, by_trend, draw_arrivals, rates_by_moment
from tokonomics.traffic.trace import Floats, Trace, make_trace
from tokonomics.units import DAY_S, SECONDS_PER_HOUR, plural

MOMENT_S, SHORT_MOMENT_S = 300.0, 60.0
"""What is forecast at once: five minutes of a day (288, each of hundreds of requests where a fleet is worth scaling);
one where only the last minutes tell."""
_MOMENTS = int(DAY_S / MOMENT_S)


@dataclass(frozen=True)
class ScalingDay:
    """Traffic, and what could be known of it before."""

    requests: Trace
    rates: Floats  # requests a second in each moment
    forecasts: Floats  # row k: of moments k, k + 1, …, made when k begins
    moment_s: float
    method: str
    what: str

    @property
    def hours(self) -> float:
        return len(self.rates) * self.moment_s / SECONDS_PER_HOUR


def days_of(traffic: FleetTraffic, ahead_s: float, seed: int = 0) -> tuple[ScalingDay, ScalingDay]:
    """The day before and the day, with forecasts that reach as far ahead as an order takes, and one moment more."""
    log, demand = traffic.trace, traffic.demand
    days = math.ceil(demand.hours / 24) if log is None else int(log.duration_s // DAY_S)
    if log is None:
        start_s = int(np.argmax(demand.total)) // 24 * DAY_S
        drawn = [_drawn(traffic, start_s, (seed, draw)) for draw in (2, 1, 0)]
        rates = np.concatenate([rates_by_moment(part.arrival_s, MOMENT_S, _MOMENTS) for part in drawn])
        what = f"the busiest day of {plural(days, 'day')}, drawn anew for the forecast, to set the room and to judge"
        parts, period_days = {1: drawn[1], 2: drawn[2]}, 1
        by_week = np.resize(np.asarray(demand.total), HOURS_PER_WEEK).reshape(7, 24)
        is_weekly = not np.allclose(by_week, by_week[0])
    elif days < 3:
        return _halves(log, ahead_s)
    else:
        is_weekly = days > 8
        period_days = 7 if is_weekly else 1
        rates = rates_by_moment(log.arrival_s, MOMENT_S, days * _MOMENTS)
        by_day = rates.reshape(days, _MOMENTS).sum(axis=1)
        day = period_days + 1 + int(np.argmax(by_day[period_days + 1 :]))
        what = f"day {day + 1} of the log, with the room of day {day}"
        parts = {one: log.window(one * DAY_S, (one + 1) * DAY_S) for one in (day - 1, day)}
    method = f"the same moment {'a week' if is_weekly else 'a day'} before, the mean of all that were seen"
    ahead = math.ceil(ahead_s / MOMENT_S) + 1
    first, second = (
        ScalingDay(
            requests,
            rates[one * _MOMENTS : (one + 1) * _MOMENTS],
            by_period(rates[: (one + 1) * _MOMENTS], one * _MOMENTS, ahead, period_days * _MOMENTS),
            MOMENT_S,
            method,
            what,
        )
        for one, requests in parts.items()
    )
    return first, second


def _halves(log: Trace, ahead_s: float) -> tuple[ScalingDay, ScalingDay]:
    """The halves of a short log after its first minutes, which the first forecast is made from."""
    half = (int(log.duration_s // SHORT_MOMENT_S) - RECENT) // 2
    if half < RECENT:
        what = f"lasts {log.duration_s / 60:.0f} minutes: too short to see how a fleet follows it"
        least = f"Half an hour ({3 * RECENT} minutes) is the least, days are better."
        raise BadInput(what, where=log.source, fix=least)
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


def _drawn(traffic: FleetTraffic, start_s: float, seed: tuple[int, int]) -> Trace:
    """A day of a curve's requests."""
    chance = np.random.SeedSequence(seed)
    if traffic.arrivals is None or EVERY_SIZE not in traffic.samples:
        return traffic.requests_in(start_s, start_s + DAY_S, seed=int(chance.generate_state(1)[0]))
    arrivals = replace(traffic.arrivals, start_s=traffic.arrivals.start_s + start_s)
    arrival_s = draw_arrivals(arrivals, duration_s=DAY_S, seed=chance)
    sample = traffic.samples[EVERY_SIZE]
    chosen = np.random.default_rng(chance.spawn(1)[0]).integers(len(sample), size=len(arrival_s))
    return make_trace(arrival_s, sample.input_tokens[chosen], sample.output_tokens[chosen], source=traffic.source)
