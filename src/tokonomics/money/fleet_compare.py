"""The plan next to simpler ways to buy for the same demand: what the program is worth.

All on demand and all reserved are the same program with the other terms taken away. A simple rule is a base on demand
for the median hour and spot above it, on the offer for which that comes out cheapest.
"""

import math
from collections.abc import Callable, Sequence
from contextlib import suppress

import numpy as np

from tokonomics.catalog.offers import Terms
from tokonomics.errors import BadInput
from tokonomics.money.cost import saving
from tokonomics.money.demand import Demand, machines_needed
from tokonomics.money.fleet import FleetComparison, FleetLimits, FleetOffer, FleetPlan, Floats, spot_usd_per_hour
from tokonomics.money.fleet_program import start_hours, starts_of
from tokonomics.money.fleet_search import GAP, TIME_LIMIT_S, optimal_fleet
from tokonomics.units import HOURS_PER_MONTH


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
        left = [offer.model_copy(update={"spot": (), **other}) for offer in offers]
        left = [offer for offer in left if offer.prices]
        with suppress(BadInput):
            others[terms] = optimal_fleet(left, demand, limits, gap=gap, time_limit_s=time_limit_s)
    for simpler in others.values():
        if simpler.expected_usd < plan.expected_usd and accepts(simpler):
            # What was proven of all terms holds for one of them.
            plan = simpler.model_copy(update={"gap": max(0.0, 1 - least_usd / simpler.expected_usd)})

    def bill(terms: Terms) -> float | None:
        return others[terms].usd_per_month if terms in others else None

    rule, name = median_rule_usd(offers, demand, limits)
    room = "; no room for failures" if limits.spare else ""
    rows = (
        ("all on demand", bill(Terms.on_demand), "as many as each hour needs"),
        ("on demand for the peak", peak_usd(offers, demand), f"never scaled down{room}"),
        ("all reserved", bill(Terms.reserved), "for the peak hour, paid in every hour"),
        ("median on demand, spot above", rule, f"fixed base{f', {name}' if name else ''}; no limit on spot{room}"),
    )
    comparisons = []
    for title, usd, note in rows:
        saved = saving(usd, plan.usd_per_month) if usd else None
        comparisons.append(FleetComparison(name=title, usd_per_month=usd or None, saved_share=saved, note=note))
    return plan.model_copy(update={"comparisons": tuple(comparisons)})


def median_rule_usd(
    offers: Sequence[FleetOffer], demand: Demand, limits: FleetLimits | None = None
) -> tuple[float | None, str | None]:
    """Expected USD a month of a base for the median hour and spot above it where that is cheapest, and that offer."""
    limits = limits or FleetLimits()
    bills: list[tuple[float, str]] = []
    for offer in offers:
        if offer.usd_per_hour is None or not offer.spot or not _holds_all(offer, demand):
            continue
        needed = np.array(machines_needed(demand, _by_hour(offer, demand)))
        base = math.ceil(float(np.median(needed)))
        burst = np.maximum(0, needed - base)
        spot_usd, market = min(
            ((spot_usd_per_hour(offer, market, limits), market) for market in offer.spot), key=lambda priced: priced[0]
        )
        starts = int(starts_of(burst[None]).sum())
        usd = base * demand.hours * offer.usd_per_hour + starts * start_hours(offer) * market.usd_per_hour
        usd += int(burst.sum()) * spot_usd
        bills.append((usd * HOURS_PER_MONTH / demand.hours, offer.name))
    return min(bills, default=(None, None))


def peak_usd(offers: Sequence[FleetOffer], demand: Demand) -> float | None:
    """USD a month of one offer on demand, as many as the busiest hour needs, all the time."""
    bills = [
        max(machines_needed(demand, _by_hour(offer, demand))) * offer.usd_per_hour * HOURS_PER_MONTH
        for offer in offers
        if offer.usd_per_hour is not None and _holds_all(offer, demand)
    ]
    return min(bills, default=None)


def _by_hour(offer: FleetOffer, demand: Demand) -> dict[str, Floats]:
    """Requests a second of one machine, by class."""
    return {name: offer.carries(name, rates) for name, rates in demand.rates.items()}


def _holds_all(offer: FleetOffer, demand: Demand) -> bool:
    return all(name in offer.requests_per_s for name, rates in demand.rates.items() if max(rates) > 0)
