"""Read the demand that a fleet is bought for, by hour and size class, and the requests that stand for it.

A demand is written as hours × rate (``12x20,12x2``) or as a rate curve (``diurnal:5,peak=3``), by default over a week.
It comes with lengths: they are drawn as a plan for its busiest hour draws them, split into size classes by prompt and
answer together, and arrive at random (Poisson) within each hour. A trace brings its own hours, lengths and bursts.

Ways to scale are tried on two days: one to set each way's room, the next to judge it. A log of three days or more is
judged on its busiest day that has a day before it and a forecast for that one (two weeks, in a log of more than eight
days). A shorter log is cut in halves and forecast from its last minutes. A demand curve is drawn three times: the day,
and the same day one and two periods before.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tokonomics.errors import BadInput, option, shorten
from tokonomics.money.purchases import EVERY_SIZE, MOST_HOURS, MOST_RATE, BatchWork, Demand, demand_of, require_hours
from tokonomics.sizing.load import Load, cut_to_context, load_of_log, load_of_shape
from tokonomics.traffic.arrivals import (
    RECENT,
    Arrivals,
    by_period,
    by_trend,
    draw_arrivals,
    parse_arrivals,
    rates_by_moment,
)
from tokonomics.traffic.generate import ENOUGH_REQUESTS
from tokonomics.traffic.grammar import Phrase, read_options
from tokonomics.traffic.lengths import Lengths
from tokonomics.traffic.trace import MOST_TOKENS, Counts, Floats, Trace, make_trace
from tokonomics.traffic.workload import lengths_text, workload_of
from tokonomics.units import DAY_S, SECONDS_PER_HOUR, count, plural

HOURS_PER_WEEK = 168
_FEW = 1_000  # a class with fewer requests in the busiest hour is measured on all of them
_MOST_BATCH_TOKENS = 1e15


def parse_demand(text: str, hours: int | None = None, field: str = "demand") -> Demand:
    """Read a demand by the hour, or a curve such as ``diurnal:5,peak=3``.

    ``12x20,12x2`` is twelve hours at 20 requests a second and twelve at 2, repeated. By default it lasts a week, or all
    the hours that were written if they are more.
    """
    require_hours(HOURS_PER_WEEK if hours is None else hours)
    if is_curve(text):
        arrivals = parse_arrivals(text, field)
        if arrivals.at_once is not None:
            raise BadInput("a burst has no rate", field=field, fix="Write such as diurnal:5,peak=3 or 12x20,12x2.")
        times_s = (arrivals.start_s + hour * SECONDS_PER_HOUR for hour in range((hours or HOURS_PER_WEEK) + 1))
        expected = [arrivals.curve.by(at_s) for at_s in times_s]
        return demand_of((np.diff(expected) / SECONDS_PER_HOUR).tolist())
    steps = [_step(part, field) for part in text.split(",")]
    written = sum(length for length, _ in steps)
    if hours is None and written > MOST_HOURS:
        fix = f"Write at most {MOST_HOURS}: they repeat. Or give {option('hours')}, for the first of them."
        raise BadInput(f"has {written:,} hours", field=field, fix=fix)
    pattern = np.repeat([rate for _, rate in steps], [length for length, _ in steps])
    return demand_of(np.resize(pattern, hours or max(HOURS_PER_WEEK, written)).tolist())


def is_curve(text: str) -> bool:
    """Return whether a demand is written as a rate curve, such as ``diurnal:5,peak=3``, and not as hours × rate."""
    return text.split(",", 1)[0].partition(":")[0].strip().isalpha()


def _step(part: str, field: str) -> tuple[int, float]:
    hours, _, rate = part.strip().lower().partition("x")
    try:
        step = int(hours), float(rate)
    except ValueError:
        step = 0, 0.0
    if not (1 <= step[0] <= MOST_HOURS and 0 <= step[1] <= MOST_RATE):
        fix = "Write such as 12x20,12x2: twelve whole hours at 20 requests a second, twelve at 2. Steady: 24x20."
        raise BadInput(f"'{shorten(part)}' is not HOURSxRATE", field=field, fix=fix)
    return step


def parse_batch_work(text: str, tokens_per_request: float) -> BatchWork:
    """Read ``2B,start=20h,deadline=10h``: tokens a day, in and out, from that hour on and done in that many hours."""
    examples = "500M (tokens a day), 2B,start=20h,deadline=10h"
    phrase = read_options(Phrase(text, "", None, {}, "batch_work", examples), text)
    phrase.allow("start", "deadline")
    tokens = phrase.tokens(None, 1, _MOST_BATCH_TOKENS)
    start_s = phrase.time_s("start", 0, 23 * SECONDS_PER_HOUR, 0.0)
    deadline_s = phrase.time_s("deadline", SECONDS_PER_HOUR, 24 * SECONDS_PER_HOUR, 24.0 * SECONDS_PER_HOUR)
    if start_s % SECONDS_PER_HOUR or deadline_s % SECONDS_PER_HOUR:
        raise phrase.wrong("start= and deadline= are whole hours")
    return BatchWork(
        tokens_per_day=tokens,
        requests_per_day=tokens / tokens_per_request,
        start_hour=int(start_s // SECONDS_PER_HOUR),
        deadline_hours=int(deadline_s // SECONDS_PER_HOUR),
    )


def demand_from_trace(trace: Trace, *, up_to_tokens: Sequence[int] = ()) -> Demand:
    """Return a trace's own hours; the last one counts if at least half of it was seen, at the rate seen.

    ``up_to_tokens`` splits the requests into classes by prompt and answer together.
    """
    if not len(trace):
        raise BadInput("there is no request in it", where=trace.source)
    seen_s = max(trace.duration_s, 1.0)
    hours = max(1, round(seen_s / SECONDS_PER_HOUR))
    if hours > MOST_HOURS:
        fix = f"Cut it: a fleet is planned for at most {MOST_HOURS} hours, which repeat."
        raise BadInput(f"lasts {hours:,} hours", where=trace.source, fix=fix)
    place = np.floor((trace.arrival_s - trace.arrival_s[0]) / SECONDS_PER_HOUR).astype(np.int64)
    # The first hour always counts, at the rate seen.
    watched = np.clip(seen_s - SECONDS_PER_HOUR * np.arange(hours), 0.0, SECONDS_PER_HOUR)
    class_of = _class_numbers(trace, sorted(up_to_tokens))
    rates = {}
    for number, name in enumerate(class_names(up_to_tokens)):
        arrived = np.bincount(place[class_of == number], minlength=hours)[:hours]
        rates[name] = tuple((arrived / watched).tolist())
    return Demand(rates=rates)


def class_names(up_to_tokens: Sequence[int]) -> tuple[str, ...]:
    """Name the size classes: ``(4000,)`` → "≤ 4,000 tokens", "> 4,000 tokens"."""
    limits = sorted(up_to_tokens)
    if not limits:
        return (EVERY_SIZE,)
    return (*(f"≤ {count(limit)} tokens" for limit in limits), f"> {count(limits[-1])} tokens")


@dataclass(frozen=True)
class FleetTraffic:
    """A demand and the requests behind it."""

    demand: Demand
    samples: dict[str, Trace]  # of each class that has requests: capacity is measured on these
    up_to_tokens: tuple[int, ...]
    trace: Trace | None = None  # the log itself, if there is one
    source: str = ""
    left_out_share: float = 0.0  # share of requests longer than the model's context, which no machine takes
    arrivals: Arrivals | None = None  # how requests of a curve with minutes arrive; None: at the rate of their hour
    lasts_s: float = 0.0  # how long generated requests should last
    headroom: float = 0.0  # share by which the traffic may grow with every SLO met

    def load_of(self, name: str) -> Load:
        """Return the load of a class in its busiest hour; a log is repeated until it has enough requests for a p99."""
        sample, rate = self.samples[name], max(self.demand.rates[name])
        if self.trace is not None:
            load = load_of_log(sample.repeated(math.ceil(ENOUGH_REQUESTS / len(sample))), rate)
        else:
            trace = sample.faster(rate / sample.rate)
            load = Load(workload=workload_of(trace, rate), trace=trace, lasts_s=self.lasts_s, is_stationary=True)
        return replace(load, headroom=self.headroom)

    def class_of(self, trace: Trace) -> Counts:
        """Return the number of each request's class."""
        return _class_numbers(trace, self.up_to_tokens)

    @property
    def seen(self) -> Demand:
        """Return the demand without the repetitions of a log's hours: the part that can be replayed."""
        if self.trace is None:
            return self.demand
        own = max(1, round(self.trace.duration_s / SECONDS_PER_HOUR))
        return self.demand.over(min(own, self.demand.hours))

    def requests_in(self, start_s: float, end_s: float, seed: int = 0) -> Trace:
        """Return the requests that arrive in that part of the horizon, with times from its start."""
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
        # Add one request at the very start, so that times count from there.
        arrival = np.concatenate(arrivals)
        arrival[np.argmin(arrival)] = 0.0
        return make_trace(arrival, np.concatenate(inputs), np.concatenate(outputs), source=self.source)


def traffic_from_trace(
    trace: Trace, up_to_tokens: Sequence[int] = (), hours: int | None = None, context: int | None = None
) -> FleetTraffic:
    """Return the traffic of a log, repeated over a horizon if given; capacity is measured on its busiest hour.

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
    for number, name in enumerate(class_names(limits)):
        busy, whole = (part.take(np.flatnonzero(_class_numbers(part, limits) == number)) for part in (peak, trace))
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
    """Return a demand of one class, split by the lengths drawn, which are cut to the model's ``context``."""
    limits = tuple(sorted(up_to_tokens))
    load = load_of_shape(demand.peak, inputs, outputs, seed=seed)
    drawn, cut = (load.trace, 0) if context is None else cut_to_context(load.trace, context)
    fits = _fit(drawn, context)
    class_of = np.where(fits, _class_numbers(drawn, limits), -1)
    rates, samples = {}, {}
    for number, name in enumerate(class_names(limits)):
        own = np.flatnonzero(class_of == number)
        if len(own) > 1:
            rates[name] = tuple(rate * len(own) / len(drawn) for rate in demand.total)
            samples[name] = drawn.take(own)
    source, left_out = lengths_text(drawn, cut), 1 - float(fits.mean())
    return FleetTraffic(Demand(rates=rates), samples, limits, None, source, left_out, arrivals, load.lasts_s)


def _fit(trace: Trace, context: int | None) -> NDArray[np.bool_]:
    """Return which requests fit the model's context."""
    tokens = trace.input_tokens + trace.output_tokens
    fits: NDArray[np.bool_] = tokens <= (MOST_TOKENS * 2 if context is None else context)
    if len(trace) and not fits.any():
        what = f"requests of {int(tokens.min()):,} tokens or more exceed the model's {context:,} of context"
        raise BadInput(what, where=trace.source)
    return fits


def _class_numbers(trace: Trace, limits: Sequence[int]) -> Counts:
    tokens = trace.input_tokens + trace.output_tokens
    return np.searchsorted(np.asarray(limits, np.int64), tokens).astype(np.int32)


MOMENT_S, SHORT_MOMENT_S = 300.0, 60.0
"""The unit of a forecast: five minutes of a day (288, each with hundreds of requests if a fleet is worth scaling); one
minute if the forecast only uses the last minutes."""
_MOMENTS = int(DAY_S / MOMENT_S)


@dataclass(frozen=True)
class ScalingDay:
    """A day's traffic, and what could be known about it before."""

    requests: Trace
    rates: Floats  # requests a second in each moment
    forecasts: Floats  # row k: of moments k, k + 1, …, made when moment k begins
    moment_s: float
    method: str
    what: str

    @property
    def hours(self) -> float:
        return len(self.rates) * self.moment_s / SECONDS_PER_HOUR


def days_of(traffic: FleetTraffic, ahead_s: float, seed: int = 0) -> tuple[ScalingDay, ScalingDay]:
    """Return the day before and the day, with forecasts as far ahead as an order takes, plus one moment."""
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
    """Return the halves of a short log after its first minutes, which the first forecast is made from."""
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
    """Draw a day of a curve's requests."""
    chance = np.random.SeedSequence(seed)
    if traffic.arrivals is None or EVERY_SIZE not in traffic.samples:
        return traffic.requests_in(start_s, start_s + DAY_S, seed=int(chance.generate_state(1)[0]))
    arrivals = replace(traffic.arrivals, start_s=traffic.arrivals.start_s + start_s)
    arrival_s = draw_arrivals(arrivals, duration_s=DAY_S, seed=chance)
    sample = traffic.samples[EVERY_SIZE]
    chosen = np.random.default_rng(chance.spawn(1)[0]).integers(len(sample), size=len(arrival_s))
    return make_trace(arrival_s, sample.input_tokens[chosen], sample.output_tokens[chosen], source=traffic.source)
