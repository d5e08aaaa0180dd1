"""Design a fleet from its demand: size machines, buy them by the program, compare, and try the result in the simulator.

By default, spot carries as much as the verdict on this workload allows. The bought fleet serves the hours around the
busiest one twice: undisturbed, and while the most important spot zone is taken back (without spot: while a machine
fails). If it misses its SLO undisturbed, machines are assumed to carry less and the fleet is bought again. This is not
done for one layout under a constant demand, which is exactly what was sized: another draw of it would only show chance.
"""

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from pydantic import Field, NonNegativeFloat

from tokonomics.catalog.offers import Terms
from tokonomics.errors import BadInput, option
from tokonomics.fleet.cheapest import Availability, FixedRule, cheapest_fleet, fixed_rule
from tokonomics.fleet.offers import MachineKind, Machines
from tokonomics.fleet.replay import MOST_REQUESTS, FleetReplay, ReplayCase, places_of, replay, replayed
from tokonomics.fleet.traffic import FleetTraffic
from tokonomics.money.purchase_search import GAP, TIME_LIMIT_S, divided_usd, optimal_fleet
from tokonomics.money.purchases import (
    BatchWork,
    Demand,
    FleetLimits,
    FleetOffer,
    FleetPlan,
    demand_of,
    mixed_capacity,
    one_kind_usd,
)
from tokonomics.money.spot_machines import SpotVerdict, is_bought_again, spot_verdict, zone_correlation
from tokonomics.serving.steady import ReplicaCurve
from tokonomics.sizing.buy import lost_state
from tokonomics.sizing.setup import Say, silent
from tokonomics.traffic.slo import Slo
from tokonomics.traffic.trace import Trace, make_trace
from tokonomics.types import Marked, Noun
from tokonomics.units import HOURS_PER_MONTH, SECONDS_PER_HOUR, TOKENS_PER_MTOK, percent

Key = TypeVar("Key")

_PLACES = 3  # regions of each ranking for which a whole fleet is solved
_FEW_HOURS = 8
_ROUGH = 0.02  # the gap that is good enough to choose a region
_NEAR = 1.05
"""Regions whose bill without start-ups is at most this factor times the cheapest are compared by all hours and with
start-ups: in the test of this, a day of 12 busy and 12 quiet hours, they add 3 %. Our choice."""
_LESS = 0.95  # factor on a machine's capacity if a fleet misses its SLO in the replay; applied at most twice
_TRIES = 3
_MOST_REPLICAS = 10_000  # that the simulator runs


class FleetReport(Noun):
    """Everything that a fleet's buyer asks for."""

    model: str
    deployed: str  # engine and precisions
    traffic: str
    slos: tuple[Slo, ...] = Field(alias="promises")
    classes: dict[str, float]  # requests a second in the mean, by size class
    peak_requests_per_s: float
    mean_requests_per_s: float
    limits: FleetLimits = Field(alias="wishes")
    verdict: SpotVerdict | None  # None if no machine is sold on spot
    spot_share_by: Marked  # who set the limit on spot
    plan: FleetPlan
    availability: Availability
    zone_correlation: float
    chosen_place: bool  # the machines of other regions were left out for those of the cheapest
    replays: tuple[FleetReplay, ...]
    not_replayed: str = ""  # why there is no replay, if it was asked for
    counted_share: float = 1.0  # of the capacity measured: below 1 if the first fleet missed its SLO in the replay
    committed_usd: float = 0.0  # owed from the first day on for what is reserved, over its years
    bought_again: bool = True  # what spot takes back is bought on demand until it returns
    left_out_share: float = 0.0  # of the requests: beyond the model's context
    machines: tuple[MachineKind, ...] = Field(default=())  # the machines to choose from
    refused: dict[str, Marked] = Field(default_factory=dict)
    rule: FixedRule  # a base on demand and a burst on spot, the hybrid fleet of "Tokens per dollar": for reference

    def kind(self, name: str) -> MachineKind:
        """Return the machine of that name."""
        return next(machine for machine in self.machines if machine.name == name)


@dataclass(frozen=True)
class FleetBounds:
    """The risks that a fleet may take."""

    max_spot_share: float | None = None  # None leaves it to the verdict on spot
    max_zone_share: float | None = None  # None: decided by whether lost spot machines are bought again
    availability: float | None = None  # share of time in which the running machines carry the demand
    anywhere: bool = False  # in several regions of several providers at once


def plan_fleet(
    model_name: str,
    engine: str,
    machines: Machines,
    traffic: FleetTraffic,
    slos: Sequence[Slo],
    limits: FleetLimits,
    bounds: FleetBounds | None = None,
    *,
    gap: float = GAP,
    time_limit_s: float = TIME_LIMIT_S,
    with_replay: bool = True,
    seed: int = 0,
    say: Say = silent,
) -> FleetReport:
    """Buy, compare and try a fleet at one precision, in one region of one provider unless it may be anywhere."""
    bounds = bounds or FleetBounds()
    demand, offered = traffic.demand, _places(machines)
    machines, zone_share = _without_sudden_loss(machines, limits, slos)
    zone_share = zone_share if bounds.max_zone_share is None else bounds.max_zone_share
    limits = limits.model_copy(update={"max_zone_share": zone_share})
    say("the cheapest place")
    choice = _Choice(traffic, slos, limits, bounds, gap, time_limit_s)
    machines = choice.at_one_precision(machines)
    verdict, first = choice.verdict(machines), choice.limits_for(machines)
    said_by = "the verdict" if verdict else "nothing is sold on spot"
    tie = zone_correlation([machines.kinds[offer.name].instance for offer in machines.offers])
    for turn in range(_TRIES):
        share = _LESS**turn
        counted = machines.counted_less(share) if turn else machines
        say("the cheapest fleet and other ways to buy" if not turn else f"the fleet again, counting on {share:.0%}")
        offers, target = counted.offers, bounds.availability
        plan, limits, reached = cheapest_fleet(offers, demand, first, target, gap, time_limit_s, tie, seed)
        by_name = {offer.name: offer for offer in offers}
        replicas = sum(max(purchase.by_hour) * by_name[purchase.offer].replicas for purchase in plan.purchases)
        replays: tuple[FleetReplay, ...] = ()
        if with_replay and 0 < replicas <= _MOST_REPLICAS:
            say("the fleet in the simulator")
            replays = replayed(plan, by_name, counted.layouts, traffic, slos, limits, replicas, seed)
        # Exactly what was sized and simulated: a constant number of replicas of one layout.
        layouts = {counted.layouts[purchase.offer].name for purchase in plan.purchases}
        is_as_sized = len(layouts) == 1 and len(set(demand.total)) == 1
        if not slos or all(case.met for case in replays[:1]) or is_as_sized:
            break
    spot = [by_name[purchase.offer] for purchase in plan.purchases if purchase.terms is Terms.spot]
    return FleetReport(
        model=model_name,
        deployed=f"{engine}, {_either('weights', counted)} weights, {_either('kv', counted)} KV",
        traffic=traffic.source,
        slos=tuple(slos),
        classes={name: math.fsum(rates) / demand.hours for name, rates in demand.rates.items()},
        peak_requests_per_s=demand.peak,
        mean_requests_per_s=demand.mean,
        limits=limits,
        verdict=verdict,
        spot_share_by=said_by if bounds.max_spot_share is None else option("max_spot_share"),
        plan=plan,
        availability=reached,
        zone_correlation=tie,
        chosen_place=_places(counted) < offered,
        replays=replays,
        not_replayed=f"more than {_MOST_REPLICAS:,} replicas" if with_replay and plan.purchases and not replays else "",
        counted_share=share,
        committed_usd=plan.committed_usd,
        bought_again=all(is_bought_again(offer, limits) for offer in spot),
        left_out_share=traffic.left_out_share,
        machines=tuple(counted.kinds.values()),
        refused=machines.refused,
        rule=fixed_rule(),
    )


def _places(machines: Machines) -> set[str]:
    return {kind.where for kind in machines.kinds.values()}


def _either(precision: str, machines: Machines) -> str:
    return " or ".join(sorted({getattr(kind, precision) for kind in machines.kinds.values()}))


def _without_sudden_loss(machines: Machines, limits: FleetLimits, slos: Sequence[Slo]) -> tuple[Machines, float]:
    """Return the machines to count on if SLOs are set, and the share of the demand that may be lost with one zone.

    A zone disappears at once, and capacity that is enough on average meets no SLO then. Spot that is not bought again
    is left out if there is other spot. If there is none, the fleet must do without any one zone.
    """
    sold = [offer for offer in machines.offers if offer.spot]
    unsafe = {offer.name for offer in sold if not is_bought_again(offer, limits)}
    if not slos or not unsafe:
        return machines, 1.0
    if len(unsafe) == len(sold):
        return machines, 0.0
    left = [offer.model_copy(update={"spot": ()}) if offer.name in unsafe else offer for offer in machines.offers]
    return machines.only([offer for offer in left if offer.prices]), 1.0


@dataclass(frozen=True)
class _Choice:
    """What decides between precisions and regions."""

    traffic: FleetTraffic
    slos: Sequence[Slo]
    limits: FleetLimits
    bounds: FleetBounds
    gap: float
    time_limit_s: float

    def verdict(self, machines: Machines) -> SpotVerdict | None:
        """Return the spot verdict on this workload, for the riskiest market offered and the busiest hour's replicas."""
        markets = [market for offer in machines.offers for market in offer.spot]
        if not markets:
            return None
        traffic, mix = self.traffic, self.traffic.demand.mix
        cheapest = min(machines.offers, key=lambda offer: min(offer.prices) / mixed_capacity(offer, mix))
        carried = mixed_capacity(cheapest, mix) / cheapest.replicas
        replicas = max(1, math.ceil(traffic.demand.peak / carried))
        return spot_verdict(
            answer_s=machines.e2e_p99_s,
            cold_start_s=max(offer.startup_s for offer in machines.offers),
            replicas=replicas,
            interruptions=max((market.interruptions for market in markets), key=lambda risk: risk.per_hour),
            strict_p99=any(slo.statistic == "p99" for slo in self.slos),
            batch=not self.slos,
            state=lost_state(machines.layouts[cheapest.name].deployment, traffic.trace, replicas),
        )

    def limits_for(self, machines: Machines) -> FleetLimits:
        """Return the limits with the share of spot asked for, or what the verdict on these machines allows."""
        share = self.bounds.max_spot_share
        if share is None:
            verdict = self.verdict(machines)
            share = verdict.max_spot_share if verdict else 0.0
        return self.limits.model_copy(update={"max_spot_share": share})

    def at_one_precision(self, machines: Machines) -> Machines:
        """Return the machines at the precision whose fleet is cheapest, so that all replicas give the same answers.

        They are in one place unless they may be anywhere. Fewer bits win only if they save more than the solver's gap.
        """

        def bits(kind: MachineKind) -> tuple[int, int]:
            return kind.weights.bits, kind.kv.bits

        whole = self._that_hold_all(machines, bits)
        groups = [machines.only(whole[precision]) for precision in sorted(whole, reverse=True)]
        if len(groups) <= 1:
            return self.in_one_place(groups[0] if groups else machines)
        best, least = None, math.inf
        for left in map(self.in_one_place, groups):
            with suppress(BadInput):
                bill = self._bill(left.offers, self.traffic.demand, self.limits_for(left), self.gap)
                if bill < least * (1 - self.gap):
                    best, least = left, bill
        return best or self.in_one_place(groups[0])

    def in_one_place(self, machines: Machines) -> Machines:
        """Return the machines of the region where the fleet is cheapest, solved for the few likely regions.

        Those are the cheapest if machines could be divided, which shows how terms mix, and the cheapest for one kind
        alone in whole machines, which is closer for a small fleet.
        """
        if self.bounds.anywhere:
            return machines
        demand = self.traffic.demand
        held = self._that_hold_all(machines, lambda kind: kind.where)
        if len(held) <= 1:
            return machines if not held else machines.only(next(iter(held.values())))
        asked = {place: self.limits_for(machines.only(offers)) for place, offers in held.items()}
        few = _few_hours(demand)

        def alone(place: str) -> float:
            return min(one_kind_usd(offer, demand, asked[place].max_spot_share) for offer in held[place])

        def divided(place: str) -> float:
            return divided_usd(held[place], few, asked[place]) or math.inf

        likely = list(dict.fromkeys((*sorted(held, key=divided)[:_PLACES], *sorted(held, key=alone)[:_PLACES])))
        bills = {}
        for place in likely:
            # Without start-ups, so that hours are independent.
            ready = [offer.model_copy(update={"startup_s": 0.0, "drain_s": 0.0}) for offer in held[place]]
            with suppress(BadInput):
                bills[place] = self._bill(ready, few, asked[place], _ROUGH)
        if not bills:
            # No place alone can do it: the cheapest one gives the error that says why.
            return machines.only(held[likely[0]])
        near = sorted((place for place in bills if bills[place] <= _NEAR * min(bills.values())), key=bills.__getitem__)
        whole: dict[str, float] = {}
        for place in near[:_PLACES] if len(near) > 1 else ():
            if bills[place] < min(whole.values(), default=math.inf):  # Otherwise it costs more even without start-ups.
                with suppress(BadInput):
                    whole[place] = self._bill(held[place], demand, asked[place], _ROUGH)
        return machines.only(held[min(whole, key=whole.__getitem__, default=near[0])])

    def _that_hold_all(self, machines: Machines, key: Callable[[MachineKind], Key]) -> dict[Key, list[FleetOffer]]:
        """Return the groups of offers that have a machine for each size class."""
        groups: dict[Key, list[FleetOffer]] = {}
        for offer in machines.offers:
            groups.setdefault(key(machines.kinds[offer.name]), []).append(offer)
        sizes = self.traffic.demand.rates
        return {
            name: offers
            for name, offers in groups.items()
            if all(any(size in offer.requests_per_s for offer in offers) for size in sizes)
        }

    def _bill(self, offers: Sequence[FleetOffer], demand: Demand, limits: FleetLimits, gap: float) -> float:
        limit_s = self.time_limit_s / _PLACES
        return optimal_fleet(offers, demand, limits, gap=gap, time_limit_s=limit_s).usd_per_month


def _few_hours(demand: Demand) -> Demand:
    """Return a few hours from the quietest to the busiest, each standing for as many: enough to compare regions."""
    in_order = sorted(range(demand.hours), key=lambda hour: demand.total[hour])
    number = min(_FEW_HOURS, demand.hours)
    places = [round((place + 0.5) / number * demand.hours - 0.5) for place in range(number - 1)]
    return demand.at_hours([in_order[place] for place in (*places, -1)])


# --- batch work beside a fleet's own traffic: in its idle hours, on a separate fleet, or at an API --------------------
# The fleet is bought again for both (``money.purchase_program``): batch work may use the capacity that the demand
# leaves free in any hour, up to what machines carry under the SLO, and buys the rest in the cheapest hours. The hour
# with most batch work is then simulated, with batch requests served after all others. A separate fleet has no SLO, so
# its machines run full batches. It may also take only what does not fit into the fleet's idle hours. The answer is
# the cheapest of these ways: one fleet for both may cost more than two.


class BatchWay(Noun):
    """One way to run the batch work, with its cost."""

    name: str
    usd_per_month: NonNegativeFloat  # of the batch work; if one fleet serves both, what the work adds to its bill
    usd_per_mtok: NonNegativeFloat
    note: str = ""


class BatchReport(Noun):
    """The ways to run batch work beside a fleet's own traffic."""

    work: BatchWork
    online_usd_per_month: NonNegativeFloat  # the fleet without batch work
    plan: FleetPlan
    """The fleet for the demand and the batch work that it does, in the cheapest way on one's own machines."""
    own: FleetPlan | None  # the separate fleet for the rest of the work; None if the first does all of it
    free_share: NonNegativeFloat  # share of the work that fits into the fleet for the demand alone
    least_free_share: NonNegativeFloat  # that share on the day on which least fits
    ways: tuple[BatchWay, ...]  # the cheapest first
    check: FleetReplay | None  # the hour with the most batch work in it: latencies are those of the other requests

    @property
    def usd_per_month(self) -> float:
        """Return the cost of the demand and the batch work, in the cheapest way on one's own machines."""
        return self.plan.usd_per_month + (self.own.usd_per_month if self.own else 0.0)


def require_one_class(traffic: FleetTraffic) -> None:
    """Refuse several size classes: batch requests have the lengths of the others."""
    if len(traffic.demand.rates) > 1:
        fix = f"Leave out {option('size_classes')}."
        raise BadInput("is for requests of one size class", field="batch_work", fix=fix)


def batch_report(
    work: BatchWork,
    online: FleetPlan,
    machines: Machines,
    traffic: FleetTraffic,
    slos: Sequence[Slo],
    limits: FleetLimits,
    *,
    gap: float,
    time_limit_s: float,
    with_replay: bool = True,
    seed: int = 0,
    say: Say = silent,
) -> BatchReport:
    """Return the ways to do the work on one's own machines, and whether the demand's SLOs still hold."""
    require_one_class(traffic)
    say("the fleet with batch work")
    limit_s = {"gap": gap, "time_limit_s": time_limit_s}
    both = optimal_fleet(machines.offers, traffic.demand, limits, **limit_s, batch=work, seed=seed)
    # Within the solver's gap a fleet for both may be cheaper, and it also serves the demand.
    online_usd = min(online.usd_per_month, both.usd_per_month)
    ((name, _),) = traffic.demand.rates.items()
    nothing, sample = demand_of([0.0] * traffic.demand.hours, name), traffic.samples[name]
    lengths = [max(1, round(float(tokens.mean()))) for tokens in (sample.input_tokens, sample.output_tokens)]
    full = []
    for offer in machines.offers:
        # If nobody waits: by the closed form, but at least what it carries under an SLO.
        rate = ReplicaCurve(machines.layouts[offer.name].deployment, *lengths).capacity().rate * offer.replicas
        most = {name: max(rate, offer.requests_per_s[name])}
        full.append(offer.model_copy(update={"requests_per_s": most, "levels": {}}))

    def apart(part: BatchWork) -> FleetPlan:
        only = FleetLimits(fallback=limits.fallback)
        return optimal_fleet(full, nothing, only, **limit_s, batch=part, seed=seed)

    free = np.asarray(online.firm_capacity) + np.asarray(online.spot_capacity) - np.asarray(traffic.demand.total)
    free = np.maximum(0.0, free)
    free_shares = work.free_shares(free)
    left = 1 - min(free_shares)
    bought = "the rest on further machines, counted on for what they carry under the SLO" if left > 1e-3 else ""
    own, note = apart(work), "no SLO: full batches, any hour before the deadline"
    # Each way with the fleet that serves the demand, and the one for batch work alone.
    ways: list[tuple[BatchWay, FleetPlan, FleetPlan | None]] = [
        (batch_way("beside the fleet's own traffic", both.usd_per_month - online_usd, work, bought), both, None),
        (batch_way("a fleet of its own", own.usd_per_month, work, note), online, own),
    ]
    if 1e-3 < left < 1 - 1e-3:
        rest, placed = apart(work.part(left)), work.part(1 - left).filled_into(free)
        filled = online.model_copy(update={"batch": () if placed is None else tuple(placed.tolist())})
        note = f"{percent(1 - left)} in idle hours, the rest in full batches"
        ways.append((batch_way("idle hours, then a fleet of its own", rest.usd_per_month, work, note), filled, rest))
    ways.sort(key=lambda way: way[0].usd_per_month)
    _, plan, own_plan = ways[0]
    return BatchReport(
        work=work,
        online_usd_per_month=online_usd,
        plan=plan,
        own=own_plan,
        free_share=float(np.mean(free_shares)),
        least_free_share=min(free_shares),
        ways=tuple(way for way, _, _ in ways),
        check=_check(plan, machines, traffic, slos, seed) if with_replay else None,
    )


def batch_way(name: str, usd_per_month: float, work: BatchWork, note: str = "") -> BatchWay:
    """Return a way with its price per million tokens."""
    mtok = work.tokens_per_day * HOURS_PER_MONTH / 24 / TOKENS_PER_MTOK
    usd = max(0.0, usd_per_month)
    return BatchWay(name=name, usd_per_month=usd, usd_per_mtok=usd / mtok, note=note)


def _check(
    plan: FleetPlan, machines: Machines, traffic: FleetTraffic, slos: Sequence[Slo], seed: int
) -> FleetReplay | None:
    """Simulate the hour with the most batch work; return the latencies of the demand's own requests."""
    hour = int(np.argmax(plan.batch[: traffic.seen.hours])) if plan.batch else 0
    if not plan.batch or not slos or plan.batch[hour] <= 0 or not plan.demand[hour]:
        return None
    rate = plan.batch[hour]
    length_s = min(SECONDS_PER_HOUR, MOST_REQUESTS / (rate + plan.demand[hour]))
    window = hour * SECONDS_PER_HOUR, hour * SECONDS_PER_HOUR + length_s
    (sample,) = traffic.samples.values()
    mixed = with_batch(traffic.requests_in(*window, seed=seed), sample, rate, length_s, seed)
    offers = {offer.name: offer for offer in machines.offers}
    case = ReplayCase(places_of(plan, offers, *window), "with batch work", "batch requests behind all others")
    classes, class_of = tuple(traffic.demand.rates), np.zeros(len(mixed), np.int32)
    return replay(case, offers, machines.layouts, mixed, classes, class_of, slos, window=window, seed=seed)


def with_batch(own: Trace, sample: Trace, rate: float, length_s: float, seed: int = 0) -> Trace:
    """Add batch requests at that rate, evenly spaced, with a sample's lengths and the lowest priority."""
    number = round(rate * length_s)
    chosen = np.random.default_rng(seed).integers(len(sample), size=number)
    first = float(own.arrival_s[0]) if len(own) else 0.0
    mixed = make_trace(
        np.concatenate([own.arrival_s, first + (np.arange(number) + 0.5) / rate]),
        np.concatenate([own.input_tokens, sample.input_tokens[chosen]]),
        np.concatenate([own.output_tokens, sample.output_tokens[chosen]]),
        priority=np.concatenate([np.zeros(len(own)), np.ones(number)]),
        source=own.source,
    )
    return replace(mixed, arrival_s=mixed.arrival_s + first)
