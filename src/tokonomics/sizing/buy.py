"""How replicas are bought: whole machines, on the terms that a setup allows, at the least a month.

On demand it is the cheapest kind of machine for that many replicas. With commitments or spot it is the fleet program
(``money.fleet_program``) over the hours of the replicas needed, in one region of one provider, of which the three that
one kind of machine makes cheapest are looked at; how much may be on spot is the verdict on this workload
(``money.spot_verdict``).
"""

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import date

import numpy as np

from tokonomics.catalog.offers import Offer, Terms
from tokonomics.errors import BadInput
from tokonomics.money.demand import EVERY_SIZE, MOST_HOURS, Demand
from tokonomics.money.fleet import FleetLimits, FleetOffer, one_kind_usd
from tokonomics.money.fleet_search import optimal_fleet
from tokonomics.money.spot_verdict import spot_verdict
from tokonomics.sizing.attempt import Sized
from tokonomics.sizing.hosts import Hosts, Machine, told_apart
from tokonomics.sizing.refusal import NotServed, Reason
from tokonomics.sizing.setup import Setup
from tokonomics.sizing.terms import lost_state, reserved_prices, spot_markets, startup_seconds
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
    gap: float = 0.0
    """Of the bill: no other purchase in the regions looked at is cheaper by a larger share."""


def buy(setup: Setup, sized: Sized) -> Bought | NotServed:
    """The cheapest way to host the replicas on the terms allowed."""
    firm = _on_demand(setup, sized)
    if not (setup.commit or setup.spot):
        return firm
    ways = [way for way in (firm, _mixed(setup, sized, _spot_share(setup, sized))) if isinstance(way, Bought)]
    return min(ways, key=lambda way: way.usd_per_month) if ways else firm


def _spot_share(setup: Setup, sized: Sized) -> float:
    """How much of it may be on spot: the verdict on this workload; nothing where nobody sells it so."""
    offers = _offers(setup, sized) if setup.spot else []
    markets = [market for offer in offers for market in spot_markets(offer)]
    if not markets:
        return 0.0
    return spot_verdict(
        answer_s=sized.outcome.e2e_s.p99 or 0.0,
        cold_start_s=startup_seconds(setup.deployment),
        replicas=sized.replicas,
        interruptions=max((market.interruptions for market in markets), key=lambda risk: risk.per_hour),
        strict_p99=any(slo.statistic == "p99" for slo in setup.slos),
        batch=setup.offline,
        state=lost_state(setup.deployment, setup.load.trace, sized.replicas, setup.load.share),
    ).max_spot_share


def hosts_for(setup: Setup, sized: Sized, terms: Sequence[Terms] = ()) -> tuple[Hosts, list[tuple[int, NotServed]]]:
    """Machines sold on these terms on which all of its replicas can stand."""
    hosts, refused = setup.hosts(terms, sized.prefill_replicas)
    stand = (machine for machine in hosts.machines if math.isfinite(hosts.machines_on(machine.offer, sized.replicas)))
    return replace(hosts, machines=tuple(stand)), refused


def _on_demand(setup: Setup, sized: Sized) -> Bought | NotServed:
    deployment = setup.deployment
    hosts, refused = hosts_for(setup, sized, (Terms.on_demand,))
    if not hosts.machines:
        reason = f"no on-demand machine is known for {deployment.gpus}×{deployment.gpu.key}"
        telling = (Reason.host_too_small, Reason.no_zones)
        if why := [refusal.reason for _, refusal in refused if refusal.kind in telling]:
            reason = f"{reason}: {why[0]}"
        return NotServed(Reason.no_machine, reason)

    def bought(machine: Machine) -> Bought:
        offer = machine.offer
        mean = sized.mean_over_time(lambda replicas: hosts.machines_on(offer, replicas))
        number = f"{mean:.0f}" if math.isclose(mean, round(mean)) else f"{mean:.2f}"
        what = f"{number}× {offer.provider} {offer.instance}, {offer.region}, on demand"
        return Bought(what, machine.usd_per_month(mean), mean * offer.gpus, offer.date, (offer,))

    def cheapest(way: Bought) -> tuple[float, str, str, str]:
        offer = way.offers[0]
        return round(way.usd_per_month, 6), offer.provider, offer.instance, offer.region

    return min(map(bought, hosts.machines), key=cheapest)


def _mixed(setup: Setup, sized: Sized, spot_share: float) -> Bought | NotServed:
    by_hour = _by_hour(sized)
    if len(by_hour) > MOST_HOURS:
        most = f"these terms are worked out for at most {MOST_HOURS} hours, the traffic has {len(by_hour):,}"
        return NotServed(Reason.not_simulated, most)
    (hosts, _), offered = hosts_for(setup, sized), _offers(setup, sized)
    sold = {
        f"{offer.provider} {offer.instance}, {offer.region}{apart}": offer
        for offer, apart in zip(offered, told_apart(offered), strict=True)
    }
    places: dict[tuple[str, str], list[str]] = {}
    for name, offer in sold.items():
        places.setdefault((offer.provider, offer.region), []).append(name)

    def wanted(names: Sequence[str]) -> Demand:
        """Replicas by the hour, spare ones as if all were on the machine whose loss takes most of them."""
        spread = [sold[name] for name in names]
        rates = [max(sum(hosts.counts_on(offer, count)) for offer in spread) for count in by_hour]
        return Demand(rates={EVERY_SIZE: tuple(map(float, rates))})

    def alone(names: Sequence[str]) -> float:
        demand = wanted(names)
        return min(one_kind_usd(_priced(setup, name, sold[name]), demand, spot_share) for name in names)

    limits = FleetLimits(max_spot_share=spot_share)
    plans = []
    for names in sorted(places.values(), key=alone)[:PLACES]:
        with suppress(BadInput):
            offers = [_priced(setup, name, sold[name]) for name in names]
            plans.append(optimal_fleet(offers, wanted(names), limits, time_limit_s=_NEVER_S))
    if not plans:
        return NotServed(Reason.no_machine, "no region sells enough on these terms")
    plan = min(plans, key=lambda plan: plan.usd_per_month)
    if all(purchase.terms is Terms.on_demand for purchase in plan.purchases):
        return NotServed(Reason.more_expensive, "nothing on these terms is cheaper than on demand")
    parts, paid = [], []
    for purchase in plan.purchases:
        gpus, machine_hours = sold[purchase.offer].gpus, math.fsum(purchase.by_hour)
        terms = f"spot in {purchase.place}" if purchase.terms is Terms.spot else purchase.place or "on demand"
        parts.append(f"{machine_hours / plan.hours:.3g}× {purchase.offer}, {terms}")
        paid.append(gpus * machine_hours / plan.hours)
    bought = tuple(sold[name] for name in dict.fromkeys(purchase.offer for purchase in plan.purchases))
    oldest = min(offer.date for offer in bought)
    return Bought("; ".join(parts), plan.usd_per_month, math.fsum(paid), oldest, bought, plan.gap)


def _by_hour(sized: Sized) -> list[int]:
    """Replicas to have in each hour: the most that it asks for at any time."""
    if sized.by_time is None:
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


def _offers(setup: Setup, sized: Sized) -> list[Offer]:
    """Machines with room for a whole replica: the program counts replicas of one."""
    hosts, _ = hosts_for(setup, sized, tuple(Terms))
    whole = (machine.offer for machine in hosts.machines if machine.offer.gpus >= setup.deployment.gpus)
    return list({id(offer): offer for offer in whole}.values())


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
