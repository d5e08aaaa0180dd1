"""A plan as the simulator can run it: replicas that come and go by the hour, and spot machines that are taken back.

Each replica of the largest hour is a place; where fewer are bought a place is away, and it gets no new requests for a
while before it goes. Interruptions are drawn for each zone, all replicas of an offer there going together (the careful
assumption); a place is back when its replacement serves: bought on demand at the notice, or spot after the outage.
"""

from collections.abc import Sequence

import numpy as np

from tokonomics.catalog.offers import Terms
from tokonomics.catalog.spot import NOTICE_S
from tokonomics.errors import BadInput, UnknownName
from tokonomics.money.fleet import FleetOffer, FleetPlan, SpotMarket, Wishes, is_bought_again
from tokonomics.serving.fleet import FleetSettings, Outage, Router
from tokonomics.units import SECONDS_PER_HOUR

DRAIN_S = 300.0
"""A replica that is no longer needed takes nothing new for five minutes before it stops."""

Away = tuple[float, float, float]
"""From, until, and how long before it takes nothing new (seconds)."""


def replay_settings(
    plan: FleetPlan,
    offer: FleetOffer,
    wishes: Wishes | None = None,
    *,
    seed: int = 0,
    router: Router = Router.least_outstanding,
) -> FleetSettings:
    """The replicas of one offer in a plan, with scaling and drawn interruptions as outages."""
    wishes, rng = wishes or Wishes(), np.random.default_rng(seed)
    bought = [each for each in plan.purchases if each.offer == offer.name]
    if not bought:
        raise UnknownName("offer in this plan", offer.name, {each.offer for each in plan.purchases})
    markets = {market.zone: market for market in offer.spot}
    outages: list[Outage] = []
    places = 0
    for purchase in bought:
        taken: list[Away] = []
        if purchase.terms is Terms.spot:
            taken = interruptions(offer, markets[purchase.place or ""], plan.hours, wishes, rng)
        for place in range(max(purchase.by_hour)):
            away = _merged(_unbought(purchase.by_hour, place) + taken)
            outages += [
                Outage(replica=places, at_s=start, down_s=until - start, notice_s=notice)
                for start, until, notice in away
            ]
            places += 1
    if not places:
        raise BadInput("the plan holds no replica of it", where=offer.name)
    return FleetSettings(replicas=places, router=router, outages=tuple(outages))


def interruptions(
    offer: FleetOffer, market: SpotMarket, hours: int, wishes: Wishes, rng: np.random.Generator
) -> list[Away]:
    """When a zone takes its machines back over the horizon, and for how long they are missing."""
    rate = market.interruptions.per_hour
    if rate <= 0:
        return []
    taken: list[Away] = []
    now = float(rng.exponential(1 / rate))
    while now < hours:
        outage = float(rng.exponential(market.interruptions.outage_hours))
        missing_s = outage * SECONDS_PER_HOUR
        if is_bought_again(offer, wishes):
            # Ordered at the notice: missing only until it serves.
            missing_s = min(missing_s, max(0.0, offer.startup_s - NOTICE_S))
        at_s = now * SECONDS_PER_HOUR
        # One second at least: the machine is another one, and its answers and cache are lost.
        taken.append((at_s, at_s + max(1.0, missing_s), NOTICE_S))
        now += outage + float(rng.exponential(1 / rate))
    return taken


def _unbought(by_hour: Sequence[int], place: int) -> list[Away]:
    """The hours in which fewer are bought than this place's number."""
    edges = np.diff(np.concatenate([[0], np.asarray(by_hour) <= place, [0]]).astype(int))
    starts, ends = np.flatnonzero(edges == 1), np.flatnonzero(edges == -1)
    return [
        (float(start) * SECONDS_PER_HOUR, float(end) * SECONDS_PER_HOUR, DRAIN_S)
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True)
    ]


def _merged(away: list[Away]) -> list[Away]:
    """In order, those that touch or whose notice falls into the one before as one."""
    merged: list[Away] = []
    for start, until, notice in sorted(away):
        if merged and start - notice <= merged[-1][1]:
            first, last, before = merged[-1]
            merged[-1] = (first, max(last, until), before)
        else:
            merged.append((start, until, notice))
    return merged
