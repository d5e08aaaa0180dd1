"""Define the nouns of buying machines: what must be served, what a machine serves and costs, and what was bought.

A demand is requests a second for each hour of a horizon, in one or several size classes (a request too long for a small
GPU is a class of its own). Batch work is what nobody waits for: a quantity for every day, to be done between its start
and its deadline. Its requests have the lengths of the traffic beside it, so free capacity for one is free capacity for
the other.

An offer here is one deployment on one kind of machine, bought whole: eight GPUs cannot be bought in halves. Its
capacity is what all its replicas serve within the SLO, as ``serving`` computes it: less in a small fleet than in a
large one, where bursts even out.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from tokonomics.catalog.feeds import Interruptions
from tokonomics.catalog.offers import Terms
from tokonomics.errors import BadInput, option
from tokonomics.types import Noun
from tokonomics.units import HOURS_PER_MONTH, SECONDS_PER_HOUR

Floats = NDArray[np.float64]

EVERY_SIZE = "all"  # the name of the class if a demand has only one
MOST_HOURS = 744  # a month of 31 days: the horizon repeats, and a year of hours is too much for the solver
MOST_RATE = 1e9
NO_SAVING = 0.0005
"""Share of a bill that is shown as 0 %: two ways to buy that differ by less cost the same. Our choice."""
_YEARS = {"1 year": 1, "3 years": 3}


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
    def period(self) -> int:
        """Return the fewest hours of which the horizon is a whole number of repetitions, but for rounding."""
        for hours in range(1, self.hours):
            if self.hours % hours == 0:
                parts = np.array(list(self.rates.values())).reshape(len(self.rates), -1, hours)
                if np.allclose(parts, parts[:, :1], rtol=1e-9, atol=0):
                    return hours
        return self.hours

    @property
    def total(self) -> tuple[float, ...]:
        """Return the demand of all classes together."""
        return tuple(math.fsum(hour) for hour in zip(*self.rates.values(), strict=True))

    @property
    def peak(self) -> float:
        return max(self.total)

    @property
    def mean(self) -> float:
        return math.fsum(self.total) / self.hours

    @property
    def mix(self) -> dict[str, float]:
        """Return each class's share of all requests."""
        sums = {name: float(np.sum(rates)) for name, rates in self.rates.items()}
        total = sum(sums.values())
        return {name: requests / total if total else 1 / len(sums) for name, requests in sums.items()}

    def at_hours(self, hours: Sequence[int]) -> "Demand":
        """Return only these hours."""
        return Demand(rates={name: tuple(rates[hour] for hour in hours) for name, rates in self.rates.items()})

    def over(self, hours: int) -> "Demand":
        """Return the demand repeated, or cut, to a horizon."""
        require_hours(hours)
        return Demand(rates={name: tuple(np.resize(rates, hours).tolist()) for name, rates in self.rates.items()})


def demand_of(rates: Sequence[float], name: str = EVERY_SIZE) -> Demand:
    """Return a demand of one class from its hours."""
    return Demand(rates={name: tuple(float(rate) for rate in rates)})


def require_hours(hours: int) -> None:
    """Refuse a horizon that is empty or longer than a month."""
    if not 1 <= hours <= MOST_HOURS:
        fix = f"It repeats: {option('hours', 168)} stands for every week of the year." if hours > MOST_HOURS else None
        raise BadInput(f"a horizon has 1 to {MOST_HOURS:,} hours, got {hours}", field="hours", fix=fix)


def machines_needed(demand: Demand, requests_per_s: Mapping[str, float | Floats]) -> tuple[int, ...]:
    """Return the whole machines of one kind for each hour, from what one serves of each class: a number, or by hour."""
    load = np.zeros(demand.hours)
    for name, rates in demand.rates.items():
        if max(rates) > 0:
            if not np.all(np.asarray(requests_per_s.get(name, 0)) > 0):
                raise BadInput(f"no capacity is given for requests of {name}")
            load += np.asarray(rates) / requests_per_s[name]
    return tuple(np.ceil(load - 1e-9).astype(int).tolist())


class BatchWork(Noun):
    """Requests that arrive at one hour of every day and must be done some hours later."""

    tokens_per_day: PositiveFloat
    requests_per_day: PositiveFloat
    start_hour: int = Field(default=0, ge=0, lt=24)
    deadline_hours: int = Field(default=24, ge=1, le=24)

    def windows(self, hours: int) -> list["np.ndarray[tuple[int], np.dtype[np.int64]]"]:
        """Return the hours in which each day's work may be done, in a horizon of whole days that repeats."""
        if hours % 24:
            fix = f"Such as {option('hours', 24)} or {option('hours', 168)}."
            raise BadInput(f"is for whole days; the horizon has {hours} hours", field="batch_work", fix=fix)
        first = np.arange(self.start_hour, self.start_hour + self.deadline_hours)
        return [(first + 24 * day) % hours for day in range(hours // 24)]

    def filled_into(self, free: Floats) -> Floats | None:
        """Return the requests a second by hour, in equal shares of what is free; None if a day's work does not fit."""
        placed = np.zeros(len(free))
        for hours in self.windows(len(free)):
            room = float(free[hours].sum()) * SECONDS_PER_HOUR
            if room < self.requests_per_day * (1 - 1e-9):
                return None
            placed[hours] = free[hours] * min(1.0, self.requests_per_day / room)
        return placed

    def free_shares(self, free: Floats) -> list[float]:
        """Return the share of each day's work that fits into these free requests a second by hour."""
        rooms = [float(free[hours].sum()) * SECONDS_PER_HOUR for hours in self.windows(len(free))]
        return [min(1.0, room / self.requests_per_day) for room in rooms]

    def part(self, share: float) -> "BatchWork":
        """Return that share of the work, within the same hours."""
        less = {"tokens_per_day": self.tokens_per_day * share, "requests_per_day": self.requests_per_day * share}
        return self.model_copy(update=less)


class SpotMarket(Noun):
    """A zone that sells machines of an offer on spot."""

    zone: str
    usd_per_hour: PositiveFloat  # one machine
    interruptions: Interruptions
    p90_to_median: float = Field(default=1.0, ge=1)  # of its price over days; 1: it never changes
    interruptions_by: str = "given"  # who says how often: AWS's advisor, the user, or nobody (assumed)


class FleetOffer(Noun):
    """A kind of machine: what it serves, and the terms on which it is sold."""

    name: str
    requests_per_s: dict[str, PositiveFloat]  # of one machine, by size class, if it served nothing else
    levels: dict[str, tuple[tuple[PositiveFloat, PositiveFloat], ...]] = Field({})
    # by class, from the least demand to the largest: the fleet's requests a second, and one machine's share of them;
    # empty: one machine serves the same at any demand
    replicas: PositiveInt = 1  # on one machine
    gpus: PositiveInt = 1
    usd_per_hour: PositiveFloat | None = None  # one machine on demand
    list_usd_per_hour: PositiveFloat | None = None  # if on demand may not be bought: the ceiling of a spot price
    reserved: dict[str, PositiveFloat] = Field({})  # USD per hour by commitment, such as {"1 year": 1.4}; always paid
    spot: tuple[SpotMarket, ...] = ()
    startup_s: NonNegativeFloat = 0.0  # from the order to the first request: paid before it serves
    drain_s: NonNegativeFloat = 0.0  # from its last new request to its end: paid while it finishes requests
    answer_s: NonNegativeFloat = 0.0  # a long answer: a spot machine starts nothing new this long before its end

    def carries(self, name: str, demand: ArrayLike) -> Floats:
        """Return the requests a second of a class that one machine serves, for each demand on the fleet."""
        rates = np.asarray(demand, np.float64)
        if levels := self.levels.get(name):
            found: Floats = np.interp(rates, *np.transpose(levels))
            return found
        return np.full(rates.shape, self.requests_per_s.get(name, 0.0))

    @property
    def prices(self) -> tuple[float, ...]:
        """Return the quoted USD per hour on all terms; empty if it cannot be bought."""
        on_demand = () if self.usd_per_hour is None else (self.usd_per_hour,)
        return (*self.reserved.values(), *on_demand, *(market.usd_per_hour for market in self.spot))

    @property
    def start_hours(self) -> float:
        """Return the hours paid for each machine that comes and goes: before it serves, and while it finishes."""
        return (self.startup_s + self.drain_s) / SECONDS_PER_HOUR


class FleetLimits(Noun):
    """What the fleet must satisfy besides the demand."""

    max_spot_share: float = Field(default=1.0, ge=0, le=1)  # of the demand of any hour and class
    max_zone_share: float = Field(default=1.0, ge=0, le=1)  # the most that is lost if one zone's spot machines go
    min_replicas: NonNegativeInt = 0  # firm ones (reserved or on demand), in every hour
    spare: dict[str, NonNegativeFloat] = Field({})  # requests a second, by class, beyond the demand: room for failures
    fallback: bool = True  # replace interrupted machines on demand until spot is back; else they are missing


class FleetPurchase(Noun):
    """Machines of one offer on one set of terms."""

    offer: str
    terms: Terms
    place: str | None  # the zone of spot, the commitment of reserved
    by_hour: tuple[int, ...]
    usd_per_hour: PositiveFloat  # one machine, as quoted
    requests_per_s: NonNegativeFloat  # what one counts for, at the demand's own mix of sizes
    usd: NonNegativeFloat  # expected over the horizon, with start-ups and replacements of interrupted machines
    usd_per_month: NonNegativeFloat
    interruptions_by: str | None = None  # of spot: who says how often it is interrupted


class FleetComparison(Noun):
    """Another way to buy for the same demand."""

    name: str
    usd_per_month: PositiveFloat | None  # None if it is not possible
    saved_share: float | None  # what the plan saves against it
    note: str


class FleetPlan(Noun):
    """The cheapest fleet found, and how far it is proven to be the cheapest."""

    hours: PositiveInt
    purchases: tuple[FleetPurchase, ...]
    demand: tuple[float, ...]  # requests a second, by hour
    firm_capacity: tuple[float, ...]  # at the demand's own mix of sizes
    spot_capacity: tuple[float, ...]  # what counts after interruptions
    expected_usd: NonNegativeFloat  # over the horizon
    usd_per_month: NonNegativeFloat
    p99_usd_per_month: NonNegativeFloat  # the bill that 99 of 100 months stay under: interruptions, spot prices
    startup_usd: NonNegativeFloat  # of the expected bill: paid while machines start and finish
    gap: NonNegativeFloat  # (Bill − proven lower bound) ÷ bill: no fleet is cheaper by more than this share
    solve_s: NonNegativeFloat
    variables: NonNegativeInt
    comparisons: tuple[FleetComparison, ...] = ()
    batch: tuple[float, ...] = ()  # requests a second of batch work beside the demand, by hour

    @property
    def committed_usd(self) -> float:
        """Return what is owed from the first day: every reserved machine to the end of its commitment."""
        return math.fsum(
            purchase.usd_per_hour * max(purchase.by_hour) * 12 * HOURS_PER_MONTH * _YEARS.get(purchase.place or "", 1)
            for purchase in self.purchases
            if purchase.terms is Terms.reserved
        )

    @property
    def beaten(self) -> FleetComparison | None:
        """Return the cheapest of the simpler ways that cost more than the plan; None if none does."""
        beaten = [way for way in self.comparisons if way.usd_per_month and (way.saved_share or 0.0) > NO_SAVING]
        return min(beaten, key=lambda way: way.usd_per_month or math.inf, default=None)

    def machines(self, terms: Terms | None = None) -> tuple[int, ...]:
        """Return the number of machines by hour, on those terms or on any."""
        chosen = [purchase.by_hour for purchase in self.purchases if terms in (None, purchase.terms)]
        return tuple(sum(hour) for hour in zip(*chosen, strict=True)) or (0,) * self.hours


def mixed_capacity(offer: FleetOffer, mix: dict[str, float]) -> float:
    """Return the requests a second of a machine that gets its classes in the demand's proportions, at the largest."""
    held = {name: share for name, share in mix.items() if name in offer.requests_per_s and share > 0}
    load = math.fsum(share / offer.requests_per_s[name] for name, share in held.items())
    return math.fsum(held.values()) / load if load else 0.0


def mixed_by_hour(offer: FleetOffer, mix: dict[str, float], rates: Mapping[str, ArrayLike]) -> Floats:
    """Return the same for each hour of ``rates``, by class."""
    held = [name for name, share in mix.items() if name in offer.requests_per_s and share > 0]
    load = sum((mix[name] / offer.carries(name, rates[name]) for name in held), np.zeros(()))
    return math.fsum(mix[name] for name in held) / load if held else np.zeros(np.shape(next(iter(rates.values()))))


def one_kind_usd(offer: FleetOffer, demand: Demand, spot_share: float) -> float:
    """Return the USD of the horizon if only this were bought: firm as needed or for the peak, its share on spot."""
    carried = mixed_capacity(offer, demand.mix)
    needed = [math.ceil(rate / carried - 1e-9) for rate in demand.total]
    firm = [max(needed) * len(needed) * price for price in offer.reserved.values()]
    firm += [sum(needed) * offer.usd_per_hour] if offer.usd_per_hour is not None else []
    spot = [sum(needed) * market.usd_per_hour for market in offer.spot]
    if not firm:
        return min(spot) if spot_share == 1 and spot else math.inf
    return (1 - spot_share) * min(firm) + spot_share * min(firm + spot)
