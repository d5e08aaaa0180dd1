"""The plan next to simpler ways to buy for the same demand: what the program is worth.

All on demand and all reserved are the same program with the other terms taken away. The document's rule is a base on
demand for the median hour and spot above it, on the offer for which that comes out cheapest.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress

import numpy as np

from tokonomics.catalog.offers import Terms
from tokonomics.errors import BadInput
from tokonomics.money.cost import saving
from tokonomics.money.demand import Demand, machines_needed
from tokonomics.money.fleet import FleetComparison, FleetOffer, FleetPlan, Wishes, median_base, spot_usd_per_hour
from tokonomics.money.fleet_kinds import start_hours, stripped
from tokonomics.money.fleet_program import starts_of
from tokonomics.money.fleet_search import GAP, TIME_LIMIT_S, optimal_fleet
from tokonomics.units import HOURS_PER_MONTH


def compare(
    plan: FleetPlan,
    offers: Sequence[FleetOffer],
    demand: Demand,
    wishes: Wishes | None = None,
    *,
    gap: float = GAP,
    time_limit_s: float = TIME_LIMIT_S,
    accepts: Callable[[FleetPlan], bool] = lambda plan: True,
) -> FleetPlan:
    """The plan with its comparisons; where one that holds the same wishes is cheaper, that one is the plan."""
    wishes = wishes or Wishes()
    least_usd = plan.expected_usd * (1 - plan.gap)
    others: dict[Terms, FleetPlan] = {}
    for terms in (Terms.on_demand, Terms.reserved):
        if {purchase.terms for purchase in plan.purchases} <= {terms}:
            others[terms] = plan  # It is that way to buy already.
            continue
        left = [offer for offer in (stripped(each, terms) for each in offers) if offer.prices]
        with suppress(BadInput):
            others[terms] = optimal_fleet(left, demand, wishes, gap=gap, time_limit_s=time_limit_s)
    for other in others.values():
        if other.expected_usd < plan.expected_usd and accepts(other):
            # What was proven of all terms holds for one of them.
            plan = other.model_copy(update={"gap": max(0.0, 1 - least_usd / other.expected_usd)})

    def bill(terms: Terms) -> float | None:
        return others[terms].usd_per_month if terms in others else None

    rule, name = median_rule_usd(offers, demand, wishes)
    room = "; no room for failures" if wishes.spare else ""
    rows = (
        ("all on demand", bill(Terms.on_demand), "as many as each hour needs"),
        ("on demand for the peak", peak_usd(offers, demand), f"never scaled down{room}"),
        ("all reserved", bill(Terms.reserved), "for the peak hour, paid in every hour"),
        (
            "median on demand, spot above",
            rule,
            f"the document's rule{f', {name}' if name else ''}; no limit on spot{room}",
        ),
    )
    return plan.model_copy(
        update={
            "comparisons": tuple(
                FleetComparison(
                    name=title,
                    usd_per_month=usd or None,
                    saved_share=saving(usd, plan.usd_per_month) if usd else None,
                    note=note,
                )
                for title, usd, note in rows
            )
        }
    )


def median_rule_usd(
    offers: Sequence[FleetOffer], demand: Demand, wishes: Wishes | None = None
) -> tuple[float | None, str | None]:
    """Expected USD a month of the document's rule on the offer where it is cheapest, and that offer."""
    wishes = wishes or Wishes()
    bills: list[tuple[float, str]] = []
    for offer in offers:
        if offer.usd_per_hour is None or not offer.spot or not _holds_all(offer, demand):
            continue
        base, burst = median_base(machines_needed(demand, offer.requests_per_s))
        market = min(offer.spot, key=lambda each: spot_usd_per_hour(offer, each, wishes))
        starts = int(starts_of(np.array([burst])).sum())
        usd = base * demand.hours * offer.usd_per_hour + starts * start_hours(offer) * market.usd_per_hour
        usd += sum(burst) * spot_usd_per_hour(offer, market, wishes)
        bills.append((usd * HOURS_PER_MONTH / demand.hours, offer.name))
    return min(bills, default=(None, None))


def peak_usd(offers: Sequence[FleetOffer], demand: Demand) -> float | None:
    """USD a month of one offer on demand, as many as the busiest hour needs, all the time."""
    bills = [
        max(machines_needed(demand, offer.requests_per_s)) * offer.usd_per_hour * HOURS_PER_MONTH
        for offer in offers
        if offer.usd_per_hour is not None and _holds_all(offer, demand)
    ]
    return min(bills, default=None)


def _holds_all(offer: FleetOffer, demand: Demand) -> bool:
    return all(name in offer.requests_per_s for name, rates in demand.rates.items() if max(rates) > 0)
