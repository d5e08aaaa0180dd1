"""How much must be served, hour by hour: the curve a fleet is bought for, and the batch work done beside it.

A demand is requests a second for each hour of a horizon, in one or several size classes (a request too long for a small
GPU is a class of its own). Batch work is what nobody waits for: a quantity for every day, to be done between its start
and its deadline. Its requests have the lengths of the traffic beside it, so that what a machine has free for one it has
for the other.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, PositiveFloat, model_validator

from tokonomics.errors import BadInput, option
from tokonomics.types import Noun
from tokonomics.units import SECONDS_PER_HOUR

EVERY_SIZE = "all"  # the one class of a demand that has only one
MOST_HOURS = 744  # a month of 31 days: the horizon repeats, and the solver does not get through a year of hours
MOST_RATE = 1e9


class Demand(Noun):
    """Requests a second to be served, by size class and hour."""

    rates: dict[str, tuple[float, ...]]

    @model_validator(mode="after")
    def _one_horizon(self) -> "Demand":
        lengths = {len(rates) for rates in self.rates.values()}
        if len(lengths) != 1 or not 1 <= max(lengths, default=0) <= MOST_HOURS:
            raise ValueError(f"a demand needs the same 1 to {MOST_HOURS:,} hours for every class")
        if any(not 0 <= rate <= MOST_RATE for rates in self.rates.values() for rate in rates):
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

    def at_hours(self, hours: Sequence[int]) -> "Demand":
        """These hours alone."""
        return Demand(rates={name: tuple(rates[hour] for hour in hours) for name, rates in self.rates.items()})

    def over(self, hours: int) -> "Demand":
        """The demand repeated, or cut, to a horizon."""
        require_hours(hours)
        return Demand(rates={name: tuple(np.resize(rates, hours).tolist()) for name, rates in self.rates.items()})


def demand_of(rates: Sequence[float], name: str = EVERY_SIZE) -> Demand:
    """A demand of one class from its hours."""
    return Demand(rates={name: tuple(float(rate) for rate in rates)})


def require_hours(hours: int) -> None:
    """Refuse a horizon that is empty or longer than a month."""
    if not 1 <= hours <= MOST_HOURS:
        fix = f"It repeats: {option('hours', 168)} stands for every week of the year." if hours > MOST_HOURS else None
        raise BadInput(f"a horizon has 1 to {MOST_HOURS:,} hours, got {hours}", field="hours", fix=fix)


def machines_needed(demand: Demand, requests_per_s: Mapping[str, float | NDArray[np.float64]]) -> tuple[int, ...]:
    """Whole machines of one kind for each hour, by what one carries of each class alone: at all times, or by hour."""
    load = np.zeros(demand.hours)
    for name, rates in demand.rates.items():
        if max(rates) > 0:
            if not np.all(np.asarray(requests_per_s.get(name, 0)) > 0):
                raise BadInput(f"no capacity is given for requests of {name}")
            load += np.asarray(rates) / requests_per_s[name]
    return tuple(np.ceil(load - 1e-9).astype(int).tolist())


class BatchWork(Noun):
    """Requests that come at one hour of every day and must be done some hours later."""

    tokens_per_day: PositiveFloat
    requests_per_day: PositiveFloat
    start_hour: int = Field(default=0, ge=0, lt=24)
    deadline_hours: int = Field(default=24, ge=1, le=24)

    def windows(self, hours: int) -> list["np.ndarray[tuple[int], np.dtype[np.int64]]"]:
        """The hours of a horizon of whole days in which each day's work may be done; the horizon repeats."""
        if hours % 24:
            fix = f"Such as {option('hours', 24)} or {option('hours', 168)}."
            raise BadInput(f"is for whole days; the horizon has {hours} hours", field="batch_work", fix=fix)
        first = np.arange(self.start_hour, self.start_hour + self.deadline_hours)
        return [(first + 24 * day) % hours for day in range(hours // 24)]

    def filled_into(self, free: NDArray[np.float64]) -> NDArray[np.float64] | None:
        """Requests a second by hour, in equal parts of what is free; None where a day's work does not fit."""
        placed = np.zeros(len(free))
        for hours in self.windows(len(free)):
            room = float(free[hours].sum()) * SECONDS_PER_HOUR
            if room < self.requests_per_day * (1 - 1e-9):
                return None
            placed[hours] = free[hours] * min(1.0, self.requests_per_day / room)
        return placed

    def free_shares(self, free: NDArray[np.float64]) -> list[float]:
        """The share of each day's work that fits into these free requests a second by hour."""
        rooms = [float(free[hours].sum()) * SECONDS_PER_HOUR for hours in self.windows(len(free))]
        return [min(1.0, room / self.requests_per_day) for room in rooms]

    def part(self, share: float) -> "BatchWork":
        """That share of the work, within the same hours."""
        less = {"tokens_per_day": self.tokens_per_day * share, "requests_per_day": self.requests_per_day * share}
        return self.model_copy(update=less)
