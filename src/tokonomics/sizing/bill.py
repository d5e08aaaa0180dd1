"""What a setup costs a month and how its requests fare: its replicas simulated, bought on whole machines, and billed.

On demand it is the cheapest kind of machine for that many replicas. With commitments or spot it is the fleet program
(``money.fleet_program``) over the hours of the replicas needed, in one region of one provider, of which the three that
one kind of machine makes cheapest are looked at; how much may be on spot is the verdict on this workload
(``money.spot_verdict``). Setups that differ only in how they are bought are simulated once.
"""

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import date
from typing import Any, TypeVar

import numpy as np
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from tokonomics.catalog.offers import Offer, Terms, is_stale
from tokonomics.errors import BadInput, option
from tokonomics.money.cache_tiers import TierPrice
from tokonomics.money.cost import CostTree
from tokonomics.money.demand import EVERY_SIZE, MOST_HOURS, Demand
from tokonomics.money.fleet import FleetLimits, FleetOffer, one_kind_usd
from tokonomics.money.fleet_search import optimal_fleet
from tokonomics.money.spot_verdict import spot_verdict
from tokonomics.physics.intervals import known_speed, speed_from
from tokonomics.serving.fleet import Router
from tokonomics.serving.outcome import Shares, SloOutcome
from tokonomics.serving.spread import Spread
from tokonomics.sizing.attempt import Attempts, Sized, cached_share
from tokonomics.sizing.disaggregation import Pair, pair_of
from tokonomics.sizing.hosts import (
    HOST_MEMORY,
    UNUSED,
    Hosts,
    Machine,
    gpu_hour_lines,
    left_gb,
    told_apart,
)
from tokonomics.sizing.refusal import NotServed, Reason
from tokonomics.sizing.screen import held_by_one
from tokonomics.sizing.search import size
from tokonomics.sizing.setup import Say, Setup, silent
from tokonomics.sizing.terms import lost_state, reserved_prices, spot_markets, startup_seconds
from tokonomics.types import Noun, Same, Speed, copied
from tokonomics.units import HOURS_PER_MONTH, SECONDS_PER_HOUR, TOKENS_PER_MTOK

Found = TypeVar("Found")
PLACES = 3
"""Regions for which the program is solved, the cheapest by one kind of machine alone."""
_NEVER_S = 60.0
"""Against a program that never ends. A bill must not depend on how busy the computer is: the solver stops at its gap
(``money.fleet_search.GAP``), which on every price list and week of hours tried took it 5 s at most (2026-11)."""
IN_VAIN = "done in vain"
"""Work done again after a preemption, or for clients that hung up."""
SPARE = "spare replicas"
CENT = 0.005
"""Of a month: of two bills that differ by less, neither is cheaper."""


# --- machines -------------------------------------------------------------------------------------------------------


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


def _hosts(setup: Setup, sized: Sized, terms: Sequence[Terms]) -> tuple[Hosts, list[tuple[int, NotServed]]]:
    """Machines sold on these terms on which all of its replicas can stand."""
    hosts, refused = setup.hosts(terms, sized.prefill_replicas)
    stand = (machine for machine in hosts.machines if math.isfinite(hosts.machines_on(machine.offer, sized.replicas)))
    return replace(hosts, machines=tuple(stand)), refused


def _on_demand(setup: Setup, sized: Sized) -> Bought | NotServed:
    deployment = setup.deployment
    hosts, refused = _hosts(setup, sized, (Terms.on_demand,))
    if not hosts.machines:
        reason = f"no on-demand machine is known for {deployment.gpus}×{deployment.gpu.key}"
        if small := [refusal for _, refusal in refused if refusal.kind is Reason.host_too_small]:
            reason = f"{reason}: {small[0].reason}"
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
    (hosts, _), offered = _hosts(setup, sized, ()), _offers(setup, sized)
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
    hosts, _ = _hosts(setup, sized, tuple(Terms))
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


def _held_by_one(setup: Setup, sized: Sized) -> float | None:
    """Requests a second of mean length that a replica holds by the closed form, in the mean of both sides."""
    pair = pair_of(setup, _hosts(setup, sized, ())[0]) if setup.disaggregated else None
    if isinstance(pair, Pair):
        return pair.split(sized.prefill_replicas, sized.replicas - sized.prefill_replicas).capacity.rate
    return held_by_one(setup)


# --- bills ----------------------------------------------------------------------------------------------------------


class SetupBill(Noun):
    """What a setup costs, and how its requests fare."""

    deployment: str
    speed: Speed
    """How the speed of a replica is known."""
    speed_from: tuple[str, ...]
    """Other GPUs whose kernel timings it is scaled from."""
    replicas: PositiveInt
    """At the most; with those for prompts and spare ones."""
    prefill_replicas: NonNegativeInt
    mean_replicas: PositiveFloat
    """Paid for, over time."""
    max_sequences: PositiveInt
    router: Router
    bought: str
    price_date: date
    """The oldest of the prices in it."""
    price_stale: bool
    gpus_paid: PositiveFloat
    """In the mean over time."""
    usd_per_month: PositiveFloat
    usd_per_mtok: PositiveFloat
    """The whole bill over all tokens, prompt and answer."""
    usd_per_job: float | None = None
    """Of traffic in sessions: the bill over those that start."""
    job_s: Spread | None = None
    """From the first request of a session to its last answer."""
    requests_per_s: PositiveFloat
    batch: NonNegativeFloat
    load_share: float | None
    """Of what the replicas hold, for requests of mean length, under the SLO on time per token. None: not known."""
    cached_share: NonNegativeFloat
    """Of the prompt tokens."""
    memories: tuple[TierPrice, ...]
    """For KV, behind the GPU's."""
    memory_assumed: bool
    """Their size is what the machine's memory is taken to have left, not what was asked for."""
    ttft_s: Spread
    tpot_s: Spread
    e2e_s: Spread
    shares: Shares
    slo: tuple[SloOutcome, ...]
    bill: CostTree


@dataclass
class Bills:
    """Makes bills; the simulations of setups that differ only in how they are bought are made once."""

    progress: Say = silent
    attempts: Attempts = field(default_factory=Attempts)
    found: dict[object, Any] = field(default_factory=dict)
    """What was searched on the way, for whoever asks the same again."""
    part: str = ""
    """Of the work, the one being done: ``4 of 14 levers: FP8 KV cache``."""

    def begin(self, part: str) -> None:
        """Tell which part of the work begins; all that is told until the next belongs to it."""
        self.part = part
        self.progress(part)

    def say(self, what: str) -> None:
        """Tell what is being done, after the part of the work that it belongs to."""
        self.progress(f"{self.part} ({what})" if self.part else what)

    def once(self, key: object, search: Callable[[], Found]) -> Found:
        """What a search found for this key; it is made once."""
        if key not in self.found:
            self.found[key] = search()
        found: Found = self.found[key]
        return found

    def of(self, setup: Setup) -> SetupBill | NotServed:
        """The bill of a setup, or why it has none."""
        if setup.tiers == HOST_MEMORY:
            return self._in_host_memory(setup)
        served = self._served(setup)
        return served if isinstance(served, NotServed) else self._bill(setup, *served)

    def _served(self, setup: Setup) -> tuple[Sized, Bought] | NotServed:
        def search() -> Sized | NotServed:
            self.say(str(setup.deployment))
            return size(setup, self.attempts)

        # How prompts and answers are split depends on what the machines cost.
        market = (Same(setup.offers), setup.spare) if setup.disaggregated else None
        sized = self.once((setup.as_fixed_fleet, market, setup.autoscale), search)
        if isinstance(sized, NotServed):
            return sized
        bought = buy(setup, sized)
        return bought if isinstance(bought, NotServed) else (sized, bought)

    def _in_host_memory(self, setup: Setup) -> SetupBill | NotServed:
        """With the memory that the machines it is bought on have left.

        Which machines, and how many replicas share one, is known only once it is served: it begins with those of the
        setup without the tier, and takes less where those it ends on have less.
        """
        with_memory = replace(setup, tiers=None)
        served, gb = self._served(with_memory), math.inf
        while not isinstance(served, NotServed):
            left = [left_gb(setup.deployment, offer) for offer in served[1].offers]
            known = [room for room in left if room is not None]
            if len(known) < len(left):
                fix = f"Say how much is free: {option('tiers', 'dram=200@0')}."
                return NotServed(Reason.host_too_small, "the memory of its machine is not known", fix)
            if (room := math.floor(min(known))) < 1:
                fix = f"Give {option('tiers', 'ssd=1000')}."
                return NotServed(Reason.host_too_small, "weights and processes leave none of the host's memory", fix)
            if room >= gb:
                return self._bill(with_memory, *served).model_copy(update={"memory_assumed": True})
            gb = room
            with_memory = replace(setup, tiers=f"dram={gb}@0")
            served = self._served(with_memory)
        return served

    def _bill(self, setup: Setup, sized: Sized, bought: Bought) -> SetupBill:
        made, deployment, memories = sized.outcome, setup.deployment, setup.memories()
        hosts, _ = _hosts(setup, sized, ())
        replicas = max(sum(hosts.counts_on(offer, sized.replicas)) for offer in bought.offers)
        tiers = tuple(
            line.model_copy(update={"quantity": line.quantity * HOURS_PER_MONTH})
            for line in (tier.line(replicas) for tier in memories)
        )
        price_date = min([bought.price_date, *(tier.price_date for tier in memories if tier.price_date)])
        per_gpu_hour = bought.usd_per_month / (bought.gpus_paid * HOURS_PER_MONTH)
        serving = sized.mean_replicas * deployment.gpus * HOURS_PER_MONTH
        spare = (replicas - sized.replicas) * deployment.gpus * HOURS_PER_MONTH
        hours = {
            "prefill": serving * made.shares.prefill,
            "decode": serving * made.shares.decode,
            IN_VAIN: serving * (made.shares.recomputed + made.shares.abandoned),
            "idle": serving * made.shares.idle,
            SPARE: spare,
            UNUSED: max(0.0, bought.gpus_paid * HOURS_PER_MONTH - serving - spare),
        }
        tree = CostTree(name=bought.what, lines=(*gpu_hour_lines(hours, per_gpu_hour), *tiers))
        # Not the sum of its parts, whose last digit differs between equal bills.
        usd_per_month = bought.usd_per_month + math.fsum(line.usd for line in tiers)
        workload, held = setup.load.workload, _held_by_one(setup, sized)
        mtok = workload.rate * (workload.input_tokens + workload.output_tokens) / TOKENS_PER_MTOK
        turns = setup.load.trace.turns
        jobs = workload.rate * turns.sessions / len(setup.load.trace) if turns else None
        return SetupBill(
            deployment=str(deployment),
            speed=known_speed(deployment),
            speed_from=speed_from(deployment),
            replicas=replicas,
            **copied(sized, "prefill_replicas", "mean_replicas", "router"),
            max_sequences=sized.max_sequences or deployment.limits.max_sequences,
            bought=bought.what,
            price_date=price_date,
            price_stale=is_stale(price_date, setup.today) or any(tier.price_stale for tier in memories),
            gpus_paid=bought.gpus_paid,
            usd_per_month=usd_per_month,
            usd_per_mtok=usd_per_month / (mtok * SECONDS_PER_HOUR * HOURS_PER_MONTH),
            usd_per_job=usd_per_month / (jobs * SECONDS_PER_HOUR * HOURS_PER_MONTH) if jobs else None,
            job_s=made.sessions.job_s if made.sessions else None,
            requests_per_s=workload.rate,
            cached_share=cached_share(made),
            memories=memories,
            memory_assumed=False,
            bill=tree,
            load_share=workload.rate / (held * (sized.mean_replicas + replicas - sized.replicas)) if held else None,
            **copied(made, "batch", "ttft_s", "tpot_s", "e2e_s", "shares", "slo"),
        )
