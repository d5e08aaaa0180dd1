"""The share of time in which the machines that are there carry the demand.

Spot zones go with the chance their interruptions give, tied by a Gaussian copula (one factor for all); any machine may
fail, at the rate seen in the largest published training run, and is missing until another serves.

With one size class each machine takes its share of the capacity. With several a linear program spreads the classes so
that the fullest machine is as little loaded as can be. The room is what all rates could be multiplied by.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import combinations
from typing import Any

import numpy as np
from pydantic import NonNegativeFloat, NonNegativeInt

from tokonomics.catalog.offers import Terms
from tokonomics.money.purchases import Demand, FleetLimits, FleetOffer, FleetPlan, Floats, mixed_by_hour
from tokonomics.money.spot_machines import counted_share
from tokonomics.types import Noun
from tokonomics.units import SECONDS_PER_HOUR

FAILURES_PER_GPU_HOUR = 419 / (54 * 24 * 16_384)
"""419 unexpected interruptions in 54 days on 16,384 H100 ("The Llama 3 Herd of Models", 2024, section 3.3.4)."""
NOTICED_S = 60.0  # until a failed machine is noticed: six missed checks of ten seconds (assumed)
_MOST_ZONES_DOWN = 3  # more at once counts as not carried
_ENOUGH = 1 - 1e-6


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
    """The availability of a plan over the hours of its demand."""
    purchases, mix = plan.purchases, demand.mix
    # By zone, the share of time in which its machines are missing: the largest of its offers'.
    gone: dict[str, float] = {}
    for purchase in purchases:
        for market in offers[purchase.offer].spot:
            if purchase.terms is Terms.spot and purchase.place == market.zone:
                missing = 1 - counted_share(offers[purchase.offer], market, limits)
                gone[market.zone] = max(gone.get(market.zone, 0.0), missing)
    states = list(_zones_down(dict(sorted(gone.items())), correlation))

    @cache
    def carried(counts: tuple[int, ...], rates: tuple[float, ...]) -> tuple[float, float]:
        """The chance that the demand of an hour is carried: if no machine failed, and with failures."""
        if (total := sum(rates)) <= 0:
            return 1.0, 1.0
        asked = dict(zip(demand.rates, rates, strict=True))
        zones_hold = holds = 0.0
        for down, chance in states:
            present = [
                (offers[purchase.offer], number)
                for purchase, number in zip(purchases, counts, strict=True)
                if number and not (purchase.terms is Terms.spot and purchase.place in down)
            ]
            room, _ = shared_out(present, asked)
            if room < _ENOUGH:
                continue
            zones_hold += chance
            largest = max(float(mixed_by_hour(offer, mix, asked)) for offer, _ in present) / total
            # Machines that have failed and are not replaced yet: as many may be missing as there is room for (Poisson).
            mean = sum(
                number * (offer.gpus * FAILURES_PER_GPU_HOUR * (NOTICED_S + offer.startup_s) / SECONDS_PER_HOUR)
                for offer, number in present
            )
            holds += chance * math.fsum(
                math.exp(-mean + failed * math.log(mean) - math.lgamma(failed + 1)) if mean else failed == 0
                for failed in range(int((room - 1) / largest + 1e-6) + 1)
            )
        return zones_hold, holds

    zones_hold = holds = 0.0
    for hour in range(demand.hours):
        counts = tuple(purchase.by_hour[hour] for purchase in purchases)
        in_zones, in_all = carried(counts, tuple(rates[hour] for rates in demand.rates.values()))
        zones_hold += in_zones / demand.hours
        holds += in_all / demand.hours
    zones_missing, failures_missing = max(0.0, 1 - zones_hold), max(0.0, zones_hold - holds)
    return Availability(share=min(1.0, holds), zones_missing=zones_missing, failures_missing=failures_missing)


def _zones_down(gone: Mapping[str, float], correlation: float) -> Iterator[tuple[frozenset[str], float]]:
    """Which zones are down together, and how likely that is."""
    from scipy.special import ndtr, ndtri  # Slow to load: only where it is used.

    factor = np.linspace(-9.0, 9.0, 1801)
    weight = np.exp(-(factor**2) / 2)
    weight /= weight.sum()
    tie = min(correlation, 0.999)
    down = {
        zone: ndtr((ndtri(max(share, 1e-300)) - math.sqrt(tie) * factor) / math.sqrt(1 - tie))
        for zone, share in gone.items()
    }
    for number in range(min(len(gone), _MOST_ZONES_DOWN) + 1):
        for chosen in combinations(gone, number):
            joint = weight.copy()
            for zone, chance in down.items():
                joint = joint * (chance if zone in chosen else 1 - chance)
            yield frozenset(chosen), float(joint.sum())


def shared_out(
    present: Sequence[tuple[FleetOffer, int]], rates: Mapping[str, float]
) -> tuple[float, dict[str, Floats]]:
    """The room of these machines (1: just enough), and for each class the share that each offer's machines take.

    Without a machine for a class that has requests, the room is 0 and so are its shares.
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
    shares = dict(zip(names, np.asarray(found.x[:width], np.float64).reshape(len(names), offers), strict=True))
    return 1 / max(float(found.x[-1]), 1e-12), {name: share / share.sum() for name, share in shares.items()}
