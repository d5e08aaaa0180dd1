"""Buy machines for replicas: whole ones, on the terms that a setup allows, at the lowest monthly cost.

On demand it is the cheapest kind of machine for that many replicas. With commitments or spot it is the fleet program
(``money.purchase_program``) over the hours of the replicas needed, in one region of one provider; it is solved for the
three regions that are cheapest with one kind of machine. How much may be on spot is decided by the verdict on this
workload (``money.spot_machines``).

Spot zones are AWS's own; elsewhere the offer's spot price stands for one zone, with interruptions as of the median AWS
band. The tokens that wait in a cache for their next use are known from the log
(``traffic.prefix_reuse.waiting_state``); each replica holds its share of them, as far as its memory allows.
"""

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import date
from functools import cache
from statistics import median

import numpy as np

from tokonomics.catalog.engines import start_times
from tokonomics.catalog.feeds import Interruptions, load_bands, load_zone_prices
from tokonomics.catalog.offers import Offer, Terms
from tokonomics.errors import BadInput
from tokonomics.money.purchase_search import optimal_fleet
from tokonomics.money.purchases import EVERY_SIZE, MOST_HOURS, Demand, FleetLimits, FleetOffer, SpotMarket, one_kind_usd
from tokonomics.money.spot_machines import ADVISOR, LostState, aws_spot, spot_verdict
from tokonomics.physics.deployment import Deployment
from tokonomics.physics.memory import max_sequences
from tokonomics.physics.steptime import step_model
from tokonomics.sizing.attempt import Sized
from tokonomics.sizing.hosts import Hosts, Machine, told_apart
from tokonomics.sizing.layouts import NotServed, Reason
from tokonomics.sizing.setup import Setup
from tokonomics.traffic.prefix_reuse import waiting_state
from tokonomics.traffic.trace import Trace
from tokonomics.units import SECONDS_PER_HOUR

ASSUMED = "assumed"


def startup_seconds(deployment: Deployment) -> float:
    """Return the cold start: boot, image and engine, then the weights from a network disk."""
    return start_times().cold_s(deployment.model.weight_bytes(deployment.weights))


@cache
def assumed_interruptions() -> Interruptions:
    """Return the interruptions assumed where none are published: the median band of AWS's GPU machines."""
    return Interruptions(per_hour=median(band.interruptions.per_hour for band in load_bands().values()))


def reserved_prices(offer: Offer) -> dict[str, float]:
    """Return the hourly price by commitment."""
    quoted = {"1 year": offer.reserved_1yr_usd_per_hour, "3 years": offer.reserved_3yr_usd_per_hour}
    return {term: price for term, price in quoted.items() if price is not None}


def spot_markets(
    offer: Offer, interruptions: Interruptions | None = None, aws_zones: bool = True
) -> tuple[SpotMarket, ...]:
    """Return the spot zones that sell an offer; outside AWS one zone stands for the region.

    An AWS machine whose zones are not listed is not used: it is unknown which zones it shares with others.
    """
    if aws_zones and offer.provider == "aws":
        if offer.instance not in load_zone_prices():
            return ()
        if interruptions is None and (offer.instance, offer.region) not in load_bands():
            return aws_spot(offer.instance, offer.region, assumed_interruptions(), ASSUMED)
        return aws_spot(offer.instance, offer.region, interruptions)
    if offer.spot_usd_per_hour is None:
        return ()
    known = load_bands().get((offer.instance, offer.region)) if offer.provider == "aws" else None
    taken = interruptions or (known.interruptions if known else assumed_interruptions())
    said_by = "given" if interruptions else ADVISOR if known else ASSUMED
    zone = f"{offer.provider} {offer.region}"
    return (SpotMarket(zone=zone, usd_per_hour=offer.spot_usd_per_hour, interruptions=taken, interruptions_by=said_by),)


def lost_state(deployment: Deployment, trace: Trace | None, replicas: int, share: float = 1.0) -> LostState | None:
    """Return the cached state lost with one of the replicas; None if nothing is shared."""
    if trace is None or not deployment.reuses_prefixes:
        return None
    tokens, requests = (number / share / replicas for number in waiting_state(trace))
    if not tokens:
        return None
    block = deployment.engine.kv_block_tokens
    kept = min(1.0, max_sequences(deployment, block) * block / tokens)
    each = max(1, round(tokens / requests))
    return LostState(
        tokens=tokens * kept,
        requests=requests * kept,
        prefill_s=requests * kept * float(step_model(deployment).prefill(each)),
        requests_per_hour=len(trace) / trace.duration_s * SECONDS_PER_HOUR / share / replicas,
    )


PLACES = 3  # regions for which the program is solved: the cheapest with one kind of machine
_NEVER_S = 60.0
"""Only against a program that never ends: a bill must not depend on how busy the computer is. The solver stops at its
gap (``money.purchase_search.GAP``), which took it at most 5 s on every price list and week of hours tried (2026-11)."""


@dataclass(frozen=True)
class Bought:
    """The machines for a setup, by the month."""

    what: str
    usd_per_month: float
    gpus_paid: float  # in the mean over time
    price_date: date  # the oldest of the prices in it
    offers: tuple[Offer, ...]
    gap: float = 0.0  # share of the bill that another purchase in these regions could save at most


def buy(setup: Setup, sized: Sized) -> Bought | NotServed:
    """Return the cheapest way to host the replicas on the terms allowed."""
    firm = _on_demand(setup, sized)
    if not (setup.commit or setup.spot):
        return firm
    ways = [way for way in (firm, _mixed(setup, sized, _spot_share(setup, sized))) if isinstance(way, Bought)]
    return min(ways, key=lambda way: way.usd_per_month) if ways else firm


def _spot_share(setup: Setup, sized: Sized) -> float:
    """Return how much may run on spot, by the verdict on this workload; 0 if nobody sells it on spot."""
    offers = _offers(setup, sized) if setup.spot else []
    markets = [market for offer in offers for market in spot_markets(offer)]
    if not markets:
        return 0.0
    return spot_verdict(
        answer_s=sized.outcome.e2e_s.p99 or 0.0,
        cold_start_s=startup_seconds(setup.deployment),
        replicas=sized.replicas,
        interruptions=max((market.interruptions for market in markets), key=lambda risk: risk.per_hour),
        strict_p99=any(slo.statistic == "p99" for slo in setup.targets),
        batch=setup.offline,
        state=lost_state(setup.deployment, setup.load.trace, sized.replicas, setup.load.share),
    ).max_spot_share


def hosts_for(setup: Setup, sized: Sized, terms: Sequence[Terms] = ()) -> tuple[Hosts, list[tuple[int, NotServed]]]:
    """Return the machines sold on these terms that can host all replicas."""
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
        """Return replicas by the hour; spare ones assume the machine whose loss takes most replicas."""
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
    """Return the replicas of each hour: the most needed at any time in it."""
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
    """Return the machines with room for a whole replica."""
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
