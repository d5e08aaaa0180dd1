"""What a fleet is bought for and tried on: the demand by hour and size class, and requests that stand for it.

A trace brings its own hours, lengths and bursts. A demand curve comes with lengths: they are drawn as a plan for its
busiest hour draws them, split into size classes by prompt and answer together, and arrive at random (Poisson) within
each hour.

Ways to scale are tried on two days: one to set each way's room, the next to judge it. A log of three days or more is
judged on its busiest day that has a day before it and a forecast of that (two weeks, in a log of more than eight days).
A shorter one is cut in halves and forecast from its last minutes. A demand curve is drawn three times: the day, and the
same day one and two periods before.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tokonomics.errors import BadInput
from tokonomics.money.demand import EVERY_SIZE, HOURS_PER_WEEK, Demand, class_names, demand_from_trace
from tokonomics.sizing.load import Load, cut_to_context, load_of_log, load_of_shape
from tokonomics.traffic.arrivals import RECENT, Arrivals, by_period, by_trend, draw_arrivals, rates_by_moment
from tokonomics.traffic.generate import ENOUGH_REQUESTS
from tokonomics.traffic.lengths import Lengths
from tokonomics.traffic.trace import MOST_TOKENS, Counts, Floats, Trace, make_trace
from tokonomics.traffic.workload import lengths_text, workload_of
from tokonomics.units import DAY_S, SECONDS_PER_HOUR, plural

_FEW = 1_000
"""A class with fewer requests in the busiest hour is measured on all of them."""


@dataclass(frozen=True)
class FleetTraffic:
    """A demand and the requests behind it."""

    demand: Demand
    samples: dict[str, Trace]
    """Of each class that has requests: what capacity is measured on."""
    up_to_tokens: tuple[int, ...]
    trace: Trace | None = None
    """The log itself, where there is one."""
    source: str = ""
    left_out_share: float = 0.0
    """Of the requests: longer than the model's context, so that no machine takes them."""
    arrivals: Arrivals | None = None
    """How requests of a curve with minutes arrive; None: at the rate of their hour."""
    lasts_s: float = 0.0
    """How long made-up requests should last."""

    def load_of(self, name: str) -> Load:
        """The load of a class in its busiest hour, as a plan takes it; of a log enough requests to tell a p99."""
        sample, rate = self.samples[name], max(self.demand.rates[name])
        if self.trace is not None:
            return load_of_log(sample.repeated(math.ceil(ENOUGH_REQUESTS / len(sample))), rate)
        trace = sample.faster(rate / sample.rate)
        return Load(workload=workload_of(trace, rate), trace=trace, lasts_s=self.lasts_s, is_stationary=True)

    def class_of(self, trace: Trace) -> Counts:
        """The number of each request's class."""
        return _of_class(trace, self.up_to_tokens)

    @property
    def seen(self) -> Demand:
        """The demand without what a log's hours repeat: what its requests can be replayed for."""
        if self.trace is None:
            return self.demand
        own = max(1, round(self.trace.duration_s / SECONDS_PER_HOUR))
        return self.demand.over(min(own, self.demand.hours))

    def requests_in(self, start_s: float, end_s: float, seed: int = 0) -> Trace:
        """Requests that arrive in that part of the horizon, times counted from its start."""
        if self.trace is not None:
            return self.trace.window(start_s, end_s)
        rng = np.random.default_rng(seed)
        arrivals, inputs, outputs = [], [], []
        for name, rates in self.demand.rates.items():
            sample = self.samples.get(name)
            for hour in range(int(start_s // SECONDS_PER_HOUR), int(np.ceil(end_s / SECONDS_PER_HOUR))):
                low = max(start_s, hour * SECONDS_PER_HOUR)
                high = min(end_s, (hour + 1) * SECONDS_PER_HOUR)
                number = int(rng.poisson(rates[hour % self.demand.hours] * (high - low)))
                if not number or sample is None:
                    continue
                chosen = rng.integers(len(sample), size=number)
                arrivals.append(rng.uniform(low, high, number) - start_s)
                inputs.append(sample.input_tokens[chosen])
                outputs.append(sample.output_tokens[chosen])
        if not arrivals:
            raise BadInput("no request arrives in the hours to replay")
        # One request at the very start keeps the times counted from there.
        arrival = np.concatenate(arrivals)
        arrival[np.argmin(arrival)] = 0.0
        return make_trace(arrival, np.concatenate(inputs), np.concatenate(outputs), source=self.source)


def traffic_from_trace(
    trace: Trace, up_to_tokens: Sequence[int] = (), hours: int | None = None, context: int | None = None
) -> FleetTraffic:
    """A log's own hours, repeated over a horizon where one is asked for; capacity is measured on its busiest hour.

    Requests beyond the model's ``context`` are left out: every machine would refuse them.
    """
    fits = _fit(trace, context)
    left_out = 1 - float(fits.mean()) if len(trace) else 0.0
    if left_out:
        kept_ones = trace.take(np.flatnonzero(fits))
        trace = replace(kept_ones, arrival_s=kept_ones.arrival_s - kept_ones.arrival_s[0])
    limits = tuple(sorted(up_to_tokens))
    demand = demand_from_trace(trace, up_to_tokens=limits)
    busiest = int(np.argmax(demand.total))
    peak = trace.window(busiest * SECONDS_PER_HOUR, (busiest + 1) * SECONDS_PER_HOUR)
    samples = {}
    for index, name in enumerate(class_names(limits)):
        busy, whole = (part.take(np.flatnonzero(_of_class(part, limits) == index)) for part in (peak, trace))
        sample = busy if len(busy) >= _FEW else whole
        if len(sample) > 1:
            samples[name] = sample
    kept = Demand(rates={name: rates for name, rates in demand.rates.items() if name in samples})
    return FleetTraffic(kept if hours is None else kept.over(hours), samples, limits, trace, trace.source, left_out)


def traffic_from_curve(
    demand: Demand,
    inputs: Lengths,
    outputs: Lengths,
    up_to_tokens: Sequence[int] = (),
    seed: int = 0,
    context: int | None = None,
    arrivals: Arrivals | None = None,
) -> FleetTraffic:
    """A demand of one class, split by the lengths drawn, which are cut to the model's ``context``."""
    limits = tuple(sorted(up_to_tokens))
    load = load_of_shape(demand.peak, inputs, outputs, seed=seed)
    drawn, cut = (load.trace, 0) if context is None else cut_to_context(load.trace, context)
    fits = _fit(drawn, context)
    place = np.where(fits, _of_class(drawn, limits), -1)
    rates, samples = {}, {}
    for index, name in enumerate(class_names(limits)):
        own = np.flatnonzero(place == index)
        if len(own) > 1:
            rates[name] = tuple(rate * len(own) / len(drawn) for rate in demand.total)
            samples[name] = drawn.take(own)
    source = lengths_text(drawn, cut)
    left_out = 1 - float(fits.mean())
    return FleetTraffic(Demand(rates=rates), samples, limits, None, source, left_out, arrivals, load.lasts_s)


def _fit(trace: Trace, context: int | None) -> NDArray[np.bool_]:
    fits: NDArray[np.bool_] = _tokens(trace) <= (MOST_TOKENS * 2 if context is None else context)
    if len(trace) and not fits.any():
        what = f"requests of {int(_tokens(trace).min()):,} tokens or more exceed the model's {context:,} of context"
        raise BadInput(what, where=trace.source)
    return fits


def _of_class(trace: Trace, limits: Sequence[int]) -> Counts:
    return np.searchsorted(np.asarray(limits, np.int64), _tokens(trace)).astype(np.int32)


def _tokens(trace: Trace) -> Counts:
    total: Counts = trace.input_tokens + trace.output_tokens
    return total


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
    arrivals = replace(traffic.arrivals, start_s=traffic.arrivals.start_s + start_s)
    arrival_s = draw_arrivals(arrivals, duration_s=DAY_S, seed=chance)
    sample = traffic.samples[EVERY_SIZE]
    chosen = np.random.default_rng(chance.spawn(1)[0]).integers(len(sample), size=len(arrival_s))
    return make_trace(arrival_s, sample.input_tokens[chosen], sample.output_tokens[chosen], source=traffic.source)
