"""The share of time in which the machines that are there carry the demand, and the fleet that reaches the share asked.

Spot zones go with the chance their interruptions give, tied by a Gaussian copula (one factor for all); any machine may
fail, at the rate seen in the largest published training run, and is missing until another serves. Where a fleet falls
short, it must carry the demand without any one zone, then without spot; and without one more machine at a time. Room
for a large machine is expensive: every size is tried as the largest that is bought.

With one size class each machine takes its share of the capacity. With several a linear program spreads the classes so
that the fullest machine is as little loaded as can be. The room is what all rates could be multiplied by.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import NonNegativeFloat, NonNegativeInt

from tokonomics.catalog.offers import Terms
from tokonomics.errors import BadInput
from tokonomics.money.demand import Demand
from tokonomics.money.fleet import (
    FleetLimits,
    FleetOffer,
    FleetPlan,
    FleetPurchase,
    counted_share,
    mixed_by_hour,
    mixed_capacity,
)
from tokonomics.types import Noun
from tokonomics.units import SECONDS_PER_HOUR

FAILURES_PER_GPU_HOUR = 419 / (54 * 24 * 16_384)
"""419 unexpected interruptions in 54 days on 16,384 H100 ("The Llama 3 Herd of Models", 2024, section 3.3.4)."""
NOTICED_S = 60.0  # until a failed machine is found out: six missed checks of ten seconds (assumed)
_MOST_ZONES_DOWN = 3  # more at once counts as not carried
_TURNS = 6
_ENOUGH = 1 - 1e-6

Floats = NDArray[np.float64]
Present = Sequence[tuple[FleetOffer, int]]  # offers, and how many machines of each are there
Solve = Callable[[FleetLimits, float], FleetPlan]
"""The plan for limits, from machines that carry at most so many requests a second."""


class Availability(Noun):
    """How much of the time the demand is carried."""

    share: NonNegativeFloat
    zones_missing: NonNegativeFloat  # of the time: too few machines because spot zones are gone
    failures_missing: NonNegativeFloat  # of the time: too few because machines failed
    target: NonNegativeFloat | None = None
    spare_machines: NonNegativeInt = 0  # beyond the demand, of the largest kind bought


def availability(
    plan: FleetPlan, offers: Mapping[str, FleetOffer], demand: Demand, limits: FleetLimits, correlation: float
) -> Availability:
    """Of a plan, over the hours of its demand."""
    zones = sorted({purchase.place or "" for purchase in plan.purchases if purchase.terms is Terms.spot})
    gone = [_gone(zone, plan.purchases, offers, limits) for zone in zones]
    states = list(_states(gone, correlation))
    mix = demand.mix
    seen: dict[tuple[float, ...], tuple[float, float]] = {}
    zones_hold = holds = 0.0
    for hour in range(demand.hours):
        counts = tuple(purchase.by_hour[hour] for purchase in plan.purchases)
        rates = {name: rate[hour] for name, rate in demand.rates.items()}
        key = (*counts, *rates.values())
        if key not in seen:
            seen[key] = _hour(plan.purchases, counts, rates, offers, zones, states, mix)
        zones_hold += seen[key][0] / demand.hours
        holds += seen[key][1] / demand.hours
    zones_missing, failures_missing = max(0.0, 1 - zones_hold), max(0.0, zones_hold - holds)
    return Availability(share=min(1.0, holds), zones_missing=zones_missing, failures_missing=failures_missing)


def hold_availability(
    solve: Solve,
    offers: Sequence[FleetOffer],
    demand: Demand,
    limits: FleetLimits,
    target: float,
    correlation: float,
    time_limit_s: float = math.inf,
) -> tuple[FleetPlan, FleetLimits, Availability]:
    """The cheapest plan found in time that reaches the target, the limits it took, and what it reaches."""
    require_target(target)
    began = time.perf_counter()
    by_name = {offer.name: offer for offer in offers}
    mix = demand.mix
    nearest, usd = 0.0, math.inf
    best: tuple[FleetPlan, FleetLimits, Availability] | None = None

    def with_room(asked: FleetLimits, machines: int, largest: float) -> FleetLimits:
        return asked.model_copy(update={"spare": {name: machines * largest * share for name, share in mix.items()}})

    # As it is first: room for a machine must be room for any of them, so what follows are limits on their size.
    for largest in (math.inf, *_sizes(offers, demand)):
        room = 0 if largest == math.inf else 1
        asked = with_room(limits, room, largest) if room else limits
        for _ in range(_TURNS):
            if time.perf_counter() - began > time_limit_s:
                break
            try:
                plan = solve(asked, largest)
            except BadInput:
                if asked == limits:
                    raise  # Not for its availability: the demand itself cannot be carried.
                break
            if plan.expected_usd >= usd:
                break  # More limits never cost less.
            reached = availability(plan, by_name, demand, asked, correlation)
            nearest, allowed = max(nearest, reached.share), 1 - target
            if reached.share >= target:
                reached = reached.model_copy(update={"target": target, "spare_machines": room})
                best, usd = (plan, asked, reached), plan.expected_usd
                break
            zones_matter = reached.zones_missing > allowed / 2
            if zones_matter:
                less = {"max_zone_share": 0.0} if asked.max_zone_share > 0 else {"max_spot_share": 0.0}
                asked = asked.model_copy(update=less)
            if reached.failures_missing > allowed / 2 or not zones_matter:
                if largest == math.inf:
                    break
                room += 1
                asked = with_room(asked, room, largest)
        if best and largest == math.inf:
            break
    if best:
        return best
    what = f"no fleet was found that carries the demand {_nines(target)} of the time"
    raise BadInput(what, field="availability", fix=f"The nearest that was found is {_nines(nearest)}.")


def _sizes(offers: Sequence[FleetOffer], demand: Demand) -> list[float]:
    """What machines carry, each size once; first the one that looks cheapest if nothing larger is bought.

    The look: the mean demand and room for one such machine, at the best price up to that size.
    """
    mix = demand.mix
    sold = [(mixed_capacity(offer, mix), min(offer.prices, default=math.inf)) for offer in offers]

    def looks(size: float) -> float:
        return (demand.mean + size) * min(price / carried for carried, price in sold if carried <= size)

    return sorted({carried for carried, _ in sold}, key=looks)


def require_target(target: float) -> float:
    """Never all of the time: machines fail."""
    if not 0 < target < 1:
        fix = "Write such as 0.9999."
        raise BadInput(f"must be above 0 and below 1, got {target:g}", field="availability", fix=fix)
    return target


def missing_share(offer: FleetOffer) -> float:
    """Of the time, a machine that failed and has not been replaced."""
    return offer.gpus * FAILURES_PER_GPU_HOUR * (NOTICED_S + offer.startup_s) / SECONDS_PER_HOUR


def shared_out(present: Present, rates: Mapping[str, float]) -> tuple[float, dict[str, Floats]]:
    """The room (1: just enough), and for each class the share that each offer's machines take.

    Without a machine for a class that has requests the room is 0 and its shares are nought.
    """
    asked = {name: rate for name, rate in rates.items() if rate > 0}
    capacity = {
        name: np.array([number * float(offer.carries(name, rate)) for offer, number in present])
        for name, rate in asked.items()
    }
    shares = {name: held / held.sum() if held.sum() > 0 else np.zeros(len(present)) for name, held in capacity.items()}
    if not asked:
        return math.inf, shares
    if any(not share.sum() for share in shares.values()):
        return 0.0, shares
    if len(asked) == 1:
        ((name, rate),) = asked.items()
        return float(capacity[name].sum()) / rate, shares
    return _least_load(capacity, asked, shares)


def _least_load(
    capacity: Mapping[str, Floats], asked: Mapping[str, float], proportional: dict[str, Floats]
) -> tuple[float, dict[str, Floats]]:
    """Columns: the share of each class on each offer, then the load of the fullest, which is made least."""
    from scipy.optimize import linprog  # Half a second: only for those who have several classes.

    offers, names = len(next(iter(capacity.values()))), list(asked)
    width = offers * len(names)
    load = np.zeros((offers, width + 1))
    whole = np.zeros((len(names), width + 1))
    most = np.ones(width + 1)
    for place, name in enumerate(names):
        own = place * offers + np.arange(offers)
        held = capacity[name] > 0
        load[np.arange(offers)[held], own[held]] = asked[name] / capacity[name][held]
        whole[place, own] = 1
        most[own[~held]] = 0
    load[:, -1] = -1
    most[-1] = np.inf
    price = np.zeros(width + 1)
    price[-1] = 1
    bounds = np.column_stack([np.zeros(width + 1), most])
    found: Any = linprog(price, A_ub=load, b_ub=np.zeros(offers), A_eq=whole, b_eq=np.ones(len(names)), bounds=bounds)
    if found.x is None:
        return 0.0, proportional
    shares = {
        name: np.asarray(found.x[place * offers : (place + 1) * offers], np.float64) for place, name in enumerate(names)
    }
    return 1 / max(float(found.x[-1]), 1e-12), {name: share / share.sum() for name, share in shares.items()}


def _gone(
    zone: str, purchases: Sequence[FleetPurchase], offers: Mapping[str, FleetOffer], limits: FleetLimits
) -> float:
    """The share of time in which a zone's machines are missing; of several offers the largest."""
    return max(
        1 - counted_share(offers[purchase.offer], market, limits)
        for purchase in purchases
        if purchase.terms is Terms.spot and purchase.place == zone
        for market in offers[purchase.offer].spot
        if market.zone == zone
    )


def _states(gone: Sequence[float], correlation: float) -> Iterator[tuple[frozenset[int], float]]:
    """Which zones are down together, and how likely that is."""
    from scipy.special import ndtr, ndtri  # Slow to load: only where it is used.

    factor = np.linspace(-9.0, 9.0, 1801)
    weight = np.exp(-(factor**2) / 2)
    weight /= weight.sum()
    tie = min(correlation, 0.999)
    down = [ndtr((ndtri(max(share, 1e-300)) - math.sqrt(tie) * factor) / math.sqrt(1 - tie)) for share in gone]
    for number in range(min(len(gone), _MOST_ZONES_DOWN) + 1):
        for chosen in combinations(range(len(gone)), number):
            joint = weight.copy()
            for zone, chance in enumerate(down):
                joint = joint * (chance if zone in chosen else 1 - chance)
            yield frozenset(chosen), float(joint.sum())


def _hour(
    purchases: Sequence[FleetPurchase],
    counts: Sequence[int],
    rates: Mapping[str, float],
    offers: Mapping[str, FleetOffer],
    zones: Sequence[str],
    states: Sequence[tuple[frozenset[int], float]],
    mix: dict[str, float],
) -> tuple[float, float]:
    """The chance that the demand of an hour is carried: if no machine failed, and with failures."""
    total = sum(rates.values())
    if total <= 0:
        return 1.0, 1.0
    zones_hold = holds = 0.0
    for gone, chance in states:
        lost = {zones[index] for index in gone}
        present = [
            (offers[purchase.offer], number)
            for purchase, number in zip(purchases, counts, strict=True)
            if number and not (purchase.terms is Terms.spot and purchase.place in lost)
        ]
        room, _ = shared_out(present, rates)
        if room < _ENOUGH:
            continue
        zones_hold += chance
        largest = max(float(mixed_by_hour(offer, mix, rates)) for offer, _ in present) / total
        failing = sum(number * missing_share(offer) for offer, number in present)
        holds += chance * _at_most(int((room - 1) / largest + 1e-6), failing)
    return zones_hold, holds


def _at_most(number: int, mean: float) -> float:
    """The chance of at most so many where so many are expected (Poisson)."""
    return math.fsum(
        math.exp(-mean + k * math.log(mean) - math.lgamma(k + 1)) if mean else k == 0 for k in range(number + 1)
    )


def _nines(share: float) -> str:
    """As many digits as tell it from one."""
    digits = max(1, math.ceil(-math.log10(max(1 - share, 1e-9))) - 1)
    # Down to a last digit, but not because 0.29 × 1,000 is 289.99….
    return f"{math.floor(share * 100 * 10**digits + 1e-6) / 10**digits:.{digits}f} %"
