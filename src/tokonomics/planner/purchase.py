"""What replicas are bought on: whole machines, on the terms a setup allows.

On demand it is the cheapest kind of machine for that many replicas. With commitments or spot it is the fleet program
(``money.fleet_program``) over the hours of the replicas needed, in one region of one provider, of which the three that
one kind of machine makes cheapest are looked at; how much may be on spot is the verdict on this workload
(``money.spot_verdict``).
"""

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import date
from functools import partial

import numpy as np

from tokonomics.catalog.offers import Offer, Terms
from tokonomics.errors import BadInput, option
from tokonomics.money.demand import EVERY_SIZE, MOST_HOURS, Demand
from tokonomics.money.fleet import FleetOffer, Wishes
from tokonomics.money.fleet_search import optimal_fleet
from tokonomics.money.spot_verdict import SpotVerdict, spot_verdict
from tokonomics.planner.candidates import Reason
from tokonomics.planner.fleet_offers import reserved_prices, spot_markets, startup_seconds
from tokonomics.planner.machines import hosts_of, machines_for, told_apart, usable
from tokonomics.planner.setup import NotServed, Setup
from tokonomics.planner.trials import Sized
from tokonomics.units import SECONDS_PER_HOUR

PLACES = 3
"""Regions for which the program is solved, the cheapest by one kind of machine alone."""
_NEVER_S = 60.0
"""Against a program that never ends. A bill must not depend on how busy the computer is: the solver stops at its gap
(``money.fleet_search.GAP``), which on every price list and week of hours tried took it 5 s at most (2026-11)."""


@dataclass(frozen=True)
class Bought:
    """Machines for a setup, by the month."""

    what: str
    usd_per_month: float
    gpus_paid: float
    """In the mean over time."""
    price_date: date
    """The oldest of the prices in it."""
    offers: tuple[Offer, ...]
    """Whose machines they are."""
    gap: float = 0.0
    """Of the bill: no other purchase in the regions looked at is cheaper by a larger share."""


def buy(setup: Setup, sized: Sized) -> Bought | NotServed:
    """The cheapest way to host the replicas on the terms allowed."""
    firm = _on_demand(setup, sized)
    if not (setup.commit or setup.spot):
        return firm
    share = (verdict.max_spot_share if (verdict := verdict_on(setup, sized)) else 0.0) if setup.spot else 0.0
    mixed = _mixed(setup, sized, share)
    ways = [each for each in (firm, mixed) if isinstance(each, Bought)]
    return min(ways, key=lambda each: each.usd_per_month) if ways else firm


def verdict_on(setup: Setup, sized: Sized) -> SpotVerdict | None:
    """How much of it belongs on spot; None where nobody sells it so."""
    markets = [market for offer in _offers(setup) for market in spot_markets(offer)]
    if not markets:
        return None
    return spot_verdict(
        answer_s=sized.outcome.e2e_s.p99 or 0.0,
        cold_start_s=startup_seconds(setup.deployment),
        replicas=sized.replicas,
        interruptions=max((each.interruptions for each in markets), key=lambda each: each.per_hour),
        strict_p99=any(slo.statistic == "p99" for slo in setup.slos),
        batch=setup.offline,
    )


def _on_demand(setup: Setup, sized: Sized) -> Bought | NotServed:
    deployment = setup.deployment
    offers = [offer for offer in setup.offers if offer.gpu == deployment.gpu.key]
    machines, _ = usable(offers, (Terms.on_demand,), None, None, setup.today)
    hosts, refused = hosts_of(deployment, machines)
    found = []
    for machine in hosts.machines:
        mean = sized.mean_over_time(partial(_machines, setup, machine.offer))
        usd = machine.usd_per_month(mean)
        found.append((usd, machine.offer.provider, machine.offer.instance, machine.offer.region, mean, machine))
    if not found:
        reason = f"no on-demand machine is known for {deployment.gpus}×{deployment.gpu.key}"
        if small := [each for number, each in refused if each.kind is Reason.host_too_small]:
            reason = f"{reason}: {small[0].reason}"
        return NotServed(reason, f"Give its price: {option('usd_per_hour')}, or {option('offers')} with your own list.")
    usd, provider, instance, region, mean, machine = min(found, key=lambda each: (round(each[0], 6), *each[1:4]))
    number = f"{mean:.0f}" if math.isclose(mean, round(mean)) else f"{mean:.2f}"
    return Bought(
        f"{number}× {provider} {instance}, {region}, on demand",
        usd,
        mean * machine.offer.gpus,
        machine.offer.date,
        (machine.offer,),
    )


def _machines(setup: Setup, offer: Offer, replicas: int) -> int:
    return machines_for(setup.deployment, offer, replicas + setup.spare)


def _mixed(setup: Setup, sized: Sized, spot_share: float) -> Bought | NotServed:
    by_hour = _by_hour(sized)
    if len(by_hour) > MOST_HOURS:
        return NotServed(f"these terms are worked out for at most {MOST_HOURS} hours, the traffic has {len(by_hour):,}")
    demand = Demand(rates={EVERY_SIZE: tuple(float(each + setup.spare) for each in by_hour)})
    sold = _named(_offers(setup))
    places: dict[tuple[str, str], list[FleetOffer]] = {}
    for name, offer in sold.items():
        places.setdefault((offer.provider, offer.region), []).append(_priced(setup, name, offer))
    mean = demand.mean

    def alone(offers: Sequence[FleetOffer]) -> float:
        return min((_alone_usd(offer, mean, spot_share) for offer in offers), default=math.inf)

    likely = sorted(places.values(), key=alone)[:PLACES]
    wishes = Wishes(max_spot_share=spot_share)
    plans = []
    for offers in likely:
        with suppress(BadInput):
            plans.append((optimal_fleet(offers, demand, wishes, time_limit_s=_NEVER_S), offers))
    if not plans:
        return NotServed("no region sells enough on these terms")
    plan, offers = min(plans, key=lambda each: each[0].usd_per_month)
    if all(purchase.terms is Terms.on_demand for purchase in plan.purchases):
        return NotServed("nothing on these terms is cheaper than on demand")
    gpus = {offer.name: offer.gpus for offer in offers}
    paid = math.fsum(gpus[purchase.offer] * math.fsum(purchase.by_hour) / plan.hours for purchase in plan.purchases)
    parts = [
        f"{math.fsum(purchase.by_hour) / plan.hours:.3g}× {purchase.offer}, "
        + (f"spot in {purchase.place}" if purchase.terms is Terms.spot else purchase.place or "on demand")
        for purchase in plan.purchases
    ]
    bought = tuple(sold[name] for name in dict.fromkeys(purchase.offer for purchase in plan.purchases))
    return Bought("; ".join(parts), plan.usd_per_month, paid, min(each.date for each in bought), bought, plan.gap)


def _by_hour(sized: Sized) -> list[int]:
    """Replicas to have in each hour: the most that it asks for at any time."""
    if sized.by_time is None or len(sized.by_time) == 1:
        return [sized.replicas]
    hours = max(1, math.ceil(sized.span_s / SECONDS_PER_HOUR))
    times, counts = sized.by_time[:, 0], sized.by_time[:, 1]
    made = []
    for hour in range(hours):
        start, end = hour * SECONDS_PER_HOUR, (hour + 1) * SECONDS_PER_HOUR
        before = counts[max(0, int(np.searchsorted(times, start, side="right")) - 1)]
        inside = counts[(times > start) & (times < end)]
        made.append(int(max(before, inside.max(initial=0.0))))
    return made


def _offers(setup: Setup) -> list[Offer]:
    """Machines with room for a replica, whose price is not too old."""
    deployment = setup.deployment
    of_gpu = [offer for offer in setup.offers if offer.gpu == deployment.gpu.key]
    machines, _ = usable(of_gpu, tuple(Terms), None, None, setup.today)
    hosts, _ = hosts_of(deployment, machines)
    # A replica over several machines is not sold by the program, which counts replicas of one.
    kept = {id(machine.offer): machine.offer for machine in hosts.machines if machine.offer.gpus >= deployment.gpus}
    return list(kept.values())


def _named(offers: Sequence[Offer]) -> dict[str, Offer]:
    return {
        f"{offer.provider} {offer.instance}, {offer.region}{apart}": offer
        for offer, apart in zip(offers, told_apart(offers), strict=True)
    }


def _priced(setup: Setup, name: str, offer: Offer) -> FleetOffer:
    replicas = offer.gpus // setup.deployment.gpus
    return FleetOffer(
        name=name,
        requests_per_s={EVERY_SIZE: float(replicas)},
        replicas=replicas,
        gpus=offer.gpus,
        usd_per_hour=offer.usd_per_hour,
        reserved=reserved_prices(offer) if setup.commit else {},
        spot=spot_markets(offer) if setup.spot else (),
    )


def _alone_usd(offer: FleetOffer, replicas: float, spot_share: float) -> float:
    """USD an hour if only this were bought, by the machine or a part of it: what ranks regions."""
    if not offer.prices or (not offer.firm_prices and spot_share < 1):
        return math.inf
    machines = math.ceil(replicas / offer.replicas - 1e-9)
    dear, cheap = min(offer.firm_prices or offer.prices), min(offer.prices)
    return machines * ((1 - spot_share) * dear + spot_share * cheap)
