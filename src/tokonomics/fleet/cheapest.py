"""Find the cheapest fleet that carries the demand for the share of time asked, next to simpler ways to buy.

If a fleet falls short of its availability, it must carry the demand without any one zone, then without spot; and
without one more machine at a time. Spare capacity for a large machine is expensive, so every size is tried as the
largest that is bought. All on demand and all reserved are the same program with the other terms removed. A simple rule
is a base on demand for the median hour and spot above it, on the offer for which that is cheapest.

Availability is the share of time in which the machines that are up carry the demand. Spot zones go down with the
probability that their interruptions give, correlated by a Gaussian copula (one factor for all); any machine may fail,
at the rate seen in the largest published training run, and is missing until its replacement serves. With one size class
each machine takes its share of the capacity; with several a linear program distributes the classes so that the load of
the fullest machine is lowest. The room is the factor by which all rates could be multiplied.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from itertools import combinations
from typing import Any

import numpy as np
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveInt

from tokonomics.catalog.offers import Terms
from tokonomics.errors import BadInput
from tokonomics.money.cost import CostLine, CostTree, saving
from tokonomics.money.purchase_program import starts_of
from tokonomics.money.purchase_search import GAP, TIME_LIMIT_S, optimal_fleet
from tokonomics.money.purchases import (
    Demand,
    FleetComparison,
    FleetLimits,
    FleetOffer,
    FleetPlan,
    Floats,
    machines_needed,
    mixed_by_hour,
    mixed_capacity,
)
from tokonomics.money.spot_machines import counted_share, spot_usd_per_hour
from tokonomics.types import Noun
from tokonomics.units import HOURS_PER_MONTH, SECONDS_PER_HOUR

FAILURES_PER_GPU_HOUR = 419 / (54 * 24 * 16_384)
"""419 unexpected interruptions in 54 days on 16,384 H100 ("The Llama 3 Herd of Models", 2024, section 3.3.4)."""
NOTICED_S = 60.0  # until a failed machine is noticed: six missed checks of ten seconds (assumed)
_MOST_ZONES_DOWN = 3  # if more are down at once, the demand counts as not carried
_ENOUGH = 1 - 1e-6


class Availability(Noun):
    """How much of the time the demand is carried."""

    share: NonNegativeFloat
    zones_missing: NonNegativeFloat  # share of time with too few machines because spot zones are gone
    failures_missing: NonNegativeFloat  # share of time with too few because machines failed
    target: NonNegativeFloat | None = None
    spare_machines: NonNegativeInt = 0  # beyond the demand, of the largest kind bought


def availability(
    plan: FleetPlan, offers: Mapping[str, FleetOffer], demand: Demand, limits: FleetLimits, correlation: float
) -> Availability:
    """Return the availability of a plan over the hours of its demand."""
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
        """Return the probability that an hour's demand is carried: if no machine fails, and with failures."""
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
            # Failed machines that are not replaced yet: as many may be missing as there is room for (Poisson).
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
    """Yield the sets of zones that are down together, and how likely each is."""
    from scipy.special import ndtr, ndtri  # Slow to load, so only imported here.

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
    """Return the room of these machines (1: just enough), and for each class the share that each offer's machines take.

    If a class with requests has no machine, the room is 0 and so are its shares.
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
    """Distribute the classes over offers so that the load of the fullest machine is lowest, by a linear program.

    Its columns are the share of each class on each offer, then the load of the fullest.
    """
    from scipy.optimize import linprog  # Takes half a second to load, and only several classes need it.

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


_TURNS = 6
_COMPARISON_S = 5.0  # for each other way to buy: they are simpler programs
_AVAILABILITY_LIMITS = 4
"""The time of a search for an availability, in solver time limits; each plan in it gets a third of one."""

Solve = Callable[[FleetLimits, float], FleetPlan]
"""Returns the plan for limits, from machines that carry at most this many requests a second."""
Reached = tuple[FleetPlan, FleetLimits, Availability]
"""A plan, the limits needed for its availability, and the availability it reaches."""


def cheapest_fleet(
    offers: Sequence[FleetOffer],
    demand: Demand,
    limits: FleetLimits,
    target: float | None,
    gap: float,
    time_limit_s: float,
    correlation: float,
    seed: int,
) -> Reached:
    """Return the cheapest plan with its comparisons; it must carry the demand for the share ``target`` of time."""
    by_name, mix = {offer.name: offer for offer in offers}, demand.mix
    limit_s = time_limit_s if target is None else time_limit_s / 3

    def up_to(largest: float) -> list[FleetOffer]:
        return [offer for offer in offers if mixed_capacity(offer, mix) <= largest * (1 + 1e-9)]

    def solve(asked: FleetLimits, largest: float = math.inf) -> FleetPlan:
        sold = up_to(largest)
        return optimal_fleet(sold, demand, asked, gap=gap, time_limit_s=limit_s, correlation=correlation, seed=seed)

    spare_machines, comparable = 0, list(offers)
    if target is None:
        plan = solve(limits)
    else:
        total_s = _AVAILABILITY_LIMITS * time_limit_s
        plan, limits, held = hold_availability(solve, offers, demand, limits, target, correlation, total_s)
        spare_machines = held.spare_machines
        if spare_machines:
            # Room for one machine must be room for any of them, so no other way may buy a larger one.
            comparable = up_to(sum(limits.spare.values()) / spare_machines)

    def reaches(other: FleetPlan) -> bool:
        return target is None or availability(other, by_name, demand, limits, correlation).share >= target

    compare_s = min(time_limit_s, _COMPARISON_S)
    plan = compare(plan, comparable, demand, limits, gap=gap, time_limit_s=compare_s, accepts=reaches)
    reached = availability(plan, by_name, demand, limits, correlation)
    return plan, limits, reached.model_copy(update={"target": target, "spare_machines": spare_machines})


def require_target(target: float) -> float:
    """Return the target; refuse all of the time, since machines fail."""
    if not 0 < target < 1:
        fix = "Write such as 0.9999."
        raise BadInput(f"must be above 0 and below 1, got {target:g}", field="availability", fix=fix)
    return target


def hold_availability(
    solve: Solve,
    offers: Sequence[FleetOffer],
    demand: Demand,
    limits: FleetLimits,
    target: float,
    correlation: float,
    time_limit_s: float = math.inf,
) -> Reached:
    """Return the cheapest plan found in time that reaches the target."""
    require_target(target)
    began = time.perf_counter()
    by_name = {offer.name: offer for offer in offers}
    mix = demand.mix
    nearest, best = 0.0, None

    def with_room(asked: FleetLimits, machines: int, largest: float) -> FleetLimits:
        return asked.model_copy(update={"spare": {name: machines * largest * share for name, share in mix.items()}})

    # First without a limit on size: room for one machine must be room for any of them, so sizes are limited next.
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
                    raise  # Availability is not the reason: the demand itself cannot be carried.
                break
            if best and plan.expected_usd >= best[0].expected_usd:
                break  # More limits never cost less.
            reached = availability(plan, by_name, demand, asked, correlation)
            nearest, allowed = max(nearest, reached.share), 1 - target
            if reached.share >= target:
                best = plan, asked, reached.model_copy(update={"target": target, "spare_machines": room})
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
    """Return what machines carry, each size once; the size that seems cheapest as the largest bought comes first.

    The estimate is the mean demand plus room for one such machine, at the best price up to that size.
    """
    mix = demand.mix
    sold = [(mixed_capacity(offer, mix), min(offer.prices, default=math.inf)) for offer in offers]

    def looks(size: float) -> float:
        return (demand.mean + size) * min(price / carried for carried, price in sold if carried <= size)

    return sorted({carried for carried, _ in sold}, key=looks)


def _nines(share: float) -> str:
    """Write the share in percent, with as many digits as distinguish it from one."""
    digits = max(1, math.ceil(-math.log10(max(1 - share, 1e-9))) - 1)
    # Round down to the last digit, but not because 0.29 × 1,000 is 289.99….
    return f"{math.floor(share * 100 * 10**digits + 1e-6) / 10**digits:.{digits}f} %"


def compare(
    plan: FleetPlan,
    offers: Sequence[FleetOffer],
    demand: Demand,
    limits: FleetLimits | None = None,
    *,
    gap: float = GAP,
    time_limit_s: float = TIME_LIMIT_S,
    accepts: Callable[[FleetPlan], bool] = lambda plan: True,
) -> FleetPlan:
    """Return the plan with its comparisons; if one within the same constraints is cheaper, it becomes the plan."""
    limits = limits or FleetLimits()
    least_usd = plan.expected_usd * (1 - plan.gap)
    others: dict[Terms, FleetPlan] = {}
    for terms in (Terms.on_demand, Terms.reserved):
        if {purchase.terms for purchase in plan.purchases} <= {terms}:
            others[terms] = plan  # The plan already buys that way.
            continue
        other: dict[str, object] = {"reserved": {}} if terms is Terms.on_demand else {"usd_per_hour": None}
        sold = [offer.model_copy(update={"spot": (), **other}) for offer in offers]
        with suppress(BadInput):
            only = [offer for offer in sold if offer.prices]
            others[terms] = optimal_fleet(only, demand, limits, gap=gap, time_limit_s=time_limit_s)
    for simpler in others.values():
        if simpler.expected_usd < plan.expected_usd and accepts(simpler):
            # A bound proven for all terms also holds for one of them.
            plan = simpler.model_copy(update={"gap": max(0.0, 1 - least_usd / simpler.expected_usd)})
    usd = {terms: other.usd_per_month for terms, other in others.items()}
    rule, name = median_rule_usd(offers, demand, limits)
    room = "; no room for failures" if limits.spare else ""
    rows = (
        ("all on demand", usd.get(Terms.on_demand), "as many as each hour needs"),
        ("on demand for the peak", peak_usd(offers, demand), f"never scaled down{room}"),
        ("all reserved", usd.get(Terms.reserved), "for the peak hour, paid in every hour"),
        ("median on demand, spot above", rule, f"fixed base{f', {name}' if name else ''}; no limit on spot{room}"),
    )
    comparisons = [
        FleetComparison(
            name=title,
            usd_per_month=bill or None,
            saved_share=saving(bill, plan.usd_per_month) if bill else None,
            note=note,
        )
        for title, bill, note in rows
    ]
    return plan.model_copy(update={"comparisons": tuple(comparisons)})


def median_rule_usd(
    offers: Sequence[FleetOffer], demand: Demand, limits: FleetLimits | None = None
) -> tuple[float | None, str | None]:
    """Return the expected USD a month of a base for the median hour and spot above it, and its cheapest offer."""
    limits = limits or FleetLimits()
    bills: list[tuple[float, str]] = []
    for offer, usd_per_hour, needed in _on_demand(offers, demand):
        if not offer.spot:
            continue
        base = math.ceil(float(np.median(needed)))
        burst = np.maximum(0, np.array(needed) - base)
        spot_usd, market = min(
            ((spot_usd_per_hour(offer, market, limits), market) for market in offer.spot), key=lambda priced: priced[0]
        )
        starts = int(starts_of(burst[None]).sum())
        usd = base * demand.hours * usd_per_hour + starts * offer.start_hours * market.usd_per_hour
        usd += int(burst.sum()) * spot_usd
        bills.append((usd * HOURS_PER_MONTH / demand.hours, offer.name))
    return min(bills, default=(None, None))


def peak_usd(offers: Sequence[FleetOffer], demand: Demand) -> float | None:
    """Return the USD a month of one offer on demand, all the time, with the machines that the busiest hour needs."""
    bills = (max(needed) * usd * HOURS_PER_MONTH for _, usd, needed in _on_demand(offers, demand))
    return min(bills, default=None)


def _on_demand(offers: Sequence[FleetOffer], demand: Demand) -> list[tuple[FleetOffer, float, tuple[int, ...]]]:
    """Return the offers that hold every class on demand, with their price and the machines that each hour needs."""
    asked = {name: rates for name, rates in demand.rates.items() if max(rates) > 0}
    return [
        (offer, offer.usd_per_hour, machines_needed(demand, {name: offer.carries(name, asked[name]) for name in asked}))
        for offer in offers
        if offer.usd_per_hour is not None and all(name in offer.requests_per_s for name in asked)
    ]


class FixedRule(Noun):
    """A base on demand and a burst on spot for a share of the time, against a constant fleet on demand."""

    tree: CostTree
    base_usd: NonNegativeFloat
    burst_usd: NonNegativeFloat
    usd_per_month: NonNegativeFloat
    compared_usd_per_month: NonNegativeFloat
    saved_share: float
    largest_fleet: PositiveInt  # the most machines: a peak above them is not served


def fixed_rule() -> FixedRule:
    """Compare four machines on demand and four on spot 60 % of the time ("Tokens per dollar") to six on demand."""
    on_demand_usd, spot_usd, base, burst = 2.21, 0.73, 4, 4
    lines = (
        CostLine(name="base, on demand", quantity=base * HOURS_PER_MONTH, unit="GPU-hour", usd_per_unit=on_demand_usd),
        CostLine(name="burst, spot", quantity=burst * HOURS_PER_MONTH * 0.6, unit="GPU-hour", usd_per_unit=spot_usd),
    )
    tree = CostTree(name="fleet, one month", lines=lines)
    compared = 6 * on_demand_usd * HOURS_PER_MONTH
    return FixedRule(
        tree=tree,
        base_usd=lines[0].usd,
        burst_usd=lines[1].usd,
        usd_per_month=tree.usd,
        compared_usd_per_month=compared,
        saved_share=saving(compared, tree.usd),
        largest_fleet=base + burst,
    )
