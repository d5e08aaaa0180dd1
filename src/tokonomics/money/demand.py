"""How much must be served, hour by hour: the curve a fleet is bought for.

A demand is requests a second for each hour of a horizon, a week unless told, in one or several size classes (a request
too long for a small GPU is a class of its own). It comes from a trace, from hours × rate (``12x20,12x2``) or from a
rate curve (``diurnal:5,peak=3``, ``weekly:5,peak=2,weekend=0.4``).
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from pydantic import model_validator

from tokonomics.errors import BadInput, option, shorten
from tokonomics.traffic.arrivals import parse_arrivals
from tokonomics.traffic.trace import Trace
from tokonomics.types import Noun
from tokonomics.units import SECONDS_PER_HOUR, count

HOURS_PER_WEEK = 168
EVERY_SIZE = "all"  # the one class of a demand that has only one
MOST_HOURS = 744  # a month of 31 days: the horizon repeats, and the solver does not get through a year of hours
_MOST_RATE = 1e9


class Demand(Noun):
    """Requests a second to be served, by size class and hour."""

    rates: dict[str, tuple[float, ...]]

    @model_validator(mode="after")
    def _one_horizon(self) -> "Demand":
        lengths = {len(rates) for rates in self.rates.values()}
        if len(lengths) != 1 or not 1 <= max(lengths, default=0) <= MOST_HOURS:
            raise ValueError(f"a demand needs the same 1 to {MOST_HOURS:,} hours for every class")
        if any(not 0 <= rate <= _MOST_RATE for rates in self.rates.values() for rate in rates):
            raise ValueError("a rate is a number of requests a second, zero or more")
        return self

    @property
    def hours(self) -> int:
        return len(next(iter(self.rates.values())))

    @property
    def total(self) -> tuple[float, ...]:
        """All classes together."""
        return tuple(math.fsum(hour) for hour in zip(*self.rates.values(), strict=True))

    @property
    def peak(self) -> float:
        return max(self.total)

    @property
    def mean(self) -> float:
        return math.fsum(self.total) / self.hours

    @property
    def mix(self) -> dict[str, float]:
        """Each class's share of all requests."""
        sums = {name: float(np.sum(rates)) for name, rates in self.rates.items()}
        total = sum(sums.values())
        return {name: requests / total if total else 1 / len(sums) for name, requests in sums.items()}

    def hour(self, hour: int) -> "Demand":
        """That hour by itself."""
        return Demand(rates={name: (rates[hour],) for name, rates in self.rates.items()})

    def scaled(self, factor: float) -> "Demand":
        """The same shape, so many times as much."""
        return Demand(rates={name: tuple(rate * factor for rate in rates) for name, rates in self.rates.items()})

    def over(self, hours: int) -> "Demand":
        """Repeated, or cut, to a horizon."""
        _require_hours(hours)
        return Demand(rates={name: tuple(np.resize(rates, hours).tolist()) for name, rates in self.rates.items()})


def demand_of(rates: Sequence[float], name: str = EVERY_SIZE) -> Demand:
    """A demand of one class from its hours."""
    return Demand(rates={name: tuple(float(rate) for rate in rates)})


def parse_demand(text: str, hours: int | None = None, field: str = "demand") -> Demand:
    """``12x20,12x2`` (twelve hours at 20 a second, twelve at 2, repeated), or a curve such as ``diurnal:5,peak=3``.

    Over a week unless told, or over all the hours that were written where they are more.
    """
    _require_hours(HOURS_PER_WEEK if hours is None else hours)
    if is_curve(text):
        return _from_curve(text, HOURS_PER_WEEK if hours is None else hours, field)
    steps = [_step(part, field) for part in text.split(",")]
    written = sum(length for length, _ in steps)
    if hours is None and written > MOST_HOURS:
        fix = f"Write at most {MOST_HOURS}: they repeat. Or give {option('hours')}, for the first of them."
        raise BadInput(f"has {written:,} hours", field=field, fix=fix)
    pattern = np.repeat([rate for _, rate in steps], [length for length, _ in steps])
    return demand_of(np.resize(pattern, max(HOURS_PER_WEEK, written) if hours is None else hours).tolist())


def is_curve(text: str) -> bool:
    """Written as a rate curve, such as ``diurnal:5,peak=3``, and not as hours × rate."""
    return text.split(",", 1)[0].partition(":")[0].strip().isalpha()


def demand_from_trace(trace: Trace, *, up_to_tokens: Sequence[int] = ()) -> Demand:
    """A trace's own hours; the last one counts if half of it was seen, at the rate seen.

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
    # The first always counts, by what was seen of it.
    watched = np.clip(seen_s - SECONDS_PER_HOUR * np.arange(hours), 0.0, SECONDS_PER_HOUR)
    kind = np.searchsorted(np.asarray(sorted(up_to_tokens), np.int64), trace.input_tokens + trace.output_tokens)
    rates: dict[str, tuple[float, ...]] = {}
    for index, name in enumerate(class_names(up_to_tokens)):
        arrived = np.bincount(place[kind == index], minlength=hours)[:hours]
        rates[name] = tuple((arrived / watched).tolist())
    return Demand(rates=rates)


def class_names(up_to_tokens: Sequence[int]) -> tuple[str, ...]:
    """``(4000,)`` → "≤ 4,000 tokens", "> 4,000 tokens"."""
    limits = sorted(up_to_tokens)
    if not limits:
        return (EVERY_SIZE,)
    return (*(f"≤ {count(limit)} tokens" for limit in limits), f"> {count(limits[-1])} tokens")


def machines_needed(demand: Demand, requests_per_s: Mapping[str, float | NDArray[np.float64]]) -> tuple[int, ...]:
    """Whole machines of one kind for each hour, by the requests a second of each class that one carries alone: at all
    times, or hour by hour."""
    load = np.zeros(demand.hours)
    for name, rates in demand.rates.items():
        if max(rates) > 0:
            if not np.all(np.asarray(requests_per_s.get(name, 0)) > 0):
                raise BadInput(f"no capacity is given for requests of {name}")
            load += np.asarray(rates) / requests_per_s[name]
    return tuple(np.ceil(load - 1e-9).astype(int).tolist())


def _require_hours(hours: int) -> None:
    if not 1 <= hours <= MOST_HOURS:
        fix = f"It repeats: {option('hours', 168)} stands for every week of the year." if hours > MOST_HOURS else None
        raise BadInput(f"a horizon has 1 to {MOST_HOURS:,} hours, got {hours}", field="hours", fix=fix)


def _from_curve(text: str, hours: int, field: str) -> Demand:
    arrivals = parse_arrivals(text, field)
    if arrivals.at_once is not None:
        raise BadInput("a burst has no rate", field=field, fix="Write such as diurnal:5,peak=3 or 12x20,12x2.")
    expected = [arrivals.curve.by(arrivals.start_s + hour * SECONDS_PER_HOUR) for hour in range(hours + 1)]
    return demand_of((np.diff(expected) / SECONDS_PER_HOUR).tolist())


def _step(part: str, field: str) -> tuple[int, float]:
    hours, _, rate = part.strip().lower().partition("x")
    try:
        step = int(hours), float(rate)
    except ValueError:
        step = 0, 0.0
    if not (1 <= step[0] <= MOST_HOURS and 0 <= step[1] <= _MOST_RATE):
        fix = "Write such as 12x20,12x2: twelve whole hours at 20 requests a second, twelve at 2. Steady: 24x20."
        raise BadInput(f"'{shorten(part)}' is not HOURSxRATE", field=field, fix=fix)
    return step
