"""The cheapest fleet that carries the demand for the share of time asked, next to simpler ways to buy.

Where a fleet falls short of its availability, it must carry the demand without any one zone, then without spot; and
without one more machine at a time. Room for a large machine is expensive: every size is tried as the largest that is
bought.

All on demand and all reserved are the same program with the other terms taken away. A simple rule is a base on demand
for the median hour and spot above it, on the offer for which that comes out cheapest.
"""

import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

import numpy as np
from pydantic import NonNegativeFloat, PositiveInt

from tokonomics.catalog.offers import Terms
from tokonomics.errors import BadInput
from tokonomics.fleet.availability import Availability, availability
from tokonomics.money.cost import CostLine, CostTree, saving
from tokonomics.money.purchase_program import starts_of
from tokonomics.money.purchase_search import GAP, TIME_LIMIT_S, optimal_fleet
from tokonomics.money.purchases import (
    Demand,
    FleetComparison,
    FleetLimits,
    FleetOffer,
    FleetPlan,
    machines_needed,
    mixed_capacity,
)
from tokonomics.money.spot_machines import spot_usd_per_hour
from tokonomics.types import Noun
from tokonomics.units import HOURS_PER_MONTH

_TURNS = 6
_COMPARISON_S = 5.0  # for each other way to buy: they are simpler programs
_AVAILABILITY_LIMITS = 4
"""Times the solver's limit for all plans of a search for an availability, each of which gets a third of it."""

Solve = Callable[[FleetLimits, float], FleetPlan]
"""The plan for limits, from machines that carry at most a number of requests a second."""
Reached = tuple[FleetPlan, FleetLimits, Availability]
"""A plan, the limits that its availability took, and the availability it reaches."""


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
    """The cheapest plan with its comparisons; ``target`` is the share of time in which it must carry the demand."""
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
            # Room for a machine is room for any of them: nothing larger is bought in another way either.
            comparable = up_to(sum(limits.spare.values()) / spare_machines)

    def reaches(other: FleetPlan) -> bool:
        return target is None or availability(other, by_name, demand, limits, correlation).share >= target

    compare_s = min(time_limit_s, _COMPARISON_S)
    plan = compare(plan, comparable, demand, limits, gap=gap, time_limit_s=compare_s, accepts=reaches)
    reached = availability(plan, by_name, demand, limits, correlation)
    return plan, limits, reached.model_copy(update={"target": target, "spare_machines": spare_machines})


def require_target(target: float) -> float:
    """The target, which is never all of the time: machines fail."""
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
    """The cheapest plan found in time that reaches the target."""
    require_target(target)
    began = time.perf_counter()
    by_name = {offer.name: offer for offer in offers}
    mix = demand.mix
    nearest, best = 0.0, None

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
    """What machines carry, each size once; first the one that looks cheapest if nothing larger is bought.

    The look: the mean demand and room for one such machine, at the best price up to that size.
    """
    mix = demand.mix
    sold = [(mixed_capacity(offer, mix), min(offer.prices, default=math.inf)) for offer in offers]

    def looks(size: float) -> float:
        return (demand.mean + size) * min(price / carried for carried, price in sold if carried <= size)

    return sorted({carried for carried, _ in sold}, key=looks)


def _nines(share: float) -> str:
    """The share in percent, with as many digits as tell it from one."""
    digits = max(1, math.ceil(-math.log10(max(1 - share, 1e-9))) - 1)
    # Down to a last digit, but not because 0.29 × 1,000 is 289.99….
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
    """The plan with its comparisons; where one within the same constraints is cheaper, that one is the plan."""
    limits = limits or FleetLimits()
    least_usd = plan.expected_usd * (1 - plan.gap)
    others: dict[Terms, FleetPlan] = {}
    for terms in (Terms.on_demand, Terms.reserved):
        if {purchase.terms for purchase in plan.purchases} <= {terms}:
            others[terms] = plan  # It is that way to buy already.
            continue
        other: dict[str, object] = {"reserved": {}} if terms is Terms.on_demand else {"usd_per_hour": None}
        sold = [offer.model_copy(update={"spot": (), **other}) for offer in offers]
        with suppress(BadInput):
            only = [offer for offer in sold if offer.prices]
            others[terms] = optimal_fleet(only, demand, limits, gap=gap, time_limit_s=time_limit_s)
    for simpler in others.values():
        if simpler.expected_usd < plan.expected_usd and accepts(simpler):
            # What was proven of all terms holds for one of them.
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
    """Expected USD a month of a base for the median hour and spot above it where that is cheapest, and that offer."""
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
    """USD a month of one offer on demand, as many as the busiest hour needs, all the time."""
    bills = (max(needed) * usd * HOURS_PER_MONTH for _, usd, needed in _on_demand(offers, demand))
    return min(bills, default=None)


def _on_demand(offers: Sequence[FleetOffer], demand: Demand) -> list[tuple[FleetOffer, float, tuple[int, ...]]]:
    """The offers that hold every class on demand, with their price and the machines that each hour needs."""
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
    largest_fleet: PositiveInt  # machines it can reach: a peak above it is not served


def fixed_rule() -> FixedRule:
    """The hybrid fleet of "Tokens per dollar": four on demand, and four on spot for 60 % of the time, against six."""
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
