"""A fleet from demand to proof: machines sized, bought by the program, compared, and tried in the simulator.

Unless told, spot carries as much as the verdict on this workload allows. The bought fleet serves the hours about the
busiest one twice: as it is, and while the spot zone that would be missed most is taken back (without spot: while a
machine fails). Where it misses its SLO as it is, machines are counted on for less and it is bought again; not where it
is what was sized, one layout under a demand that never changes: another draw of that would only tell of chance.
"""

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from pydantic import Field

from tokonomics.catalog.offers import Terms
from tokonomics.catalog.spot import Interruptions
from tokonomics.errors import BadInput, option
from tokonomics.fleet.offers import MachineKind, Machines
from tokonomics.fleet.replay import (
    FleetReplay,
    ReplayCase,
    busiest_moment,
    places_of,
    replay,
    window_of,
    with_interruptions,
)
from tokonomics.fleet.traffic import FleetTraffic
from tokonomics.money.demand import Demand, class_names
from tokonomics.money.fleet import (
    FixedRule,
    FleetLimits,
    FleetOffer,
    FleetPlan,
    fixed_rule,
    is_bought_again,
    mixed_capacity,
    one_kind_usd,
    zone_correlation,
)
from tokonomics.money.fleet_availability import Availability, availability, hold_availability
from tokonomics.money.fleet_compare import compare
from tokonomics.money.fleet_search import GAP, TIME_LIMIT_S, divided_usd, optimal_fleet
from tokonomics.money.spot_verdict import SpotVerdict, spot_verdict
from tokonomics.sizing.buy import lost_state
from tokonomics.sizing.setup import Say, silent
from tokonomics.traffic.slo import Slo
from tokonomics.types import Marked, Noun

_COMPARISON_S = 5.0
"""For each other way to buy: they are simpler programs."""
_PLACES = 3
"""Regions of each ranking for which a whole fleet is solved."""
_FEW_HOURS = 8
_JUDGED_S = 3600.0
"""About a loss: its minutes would drown in the percentiles of a day."""
_ROUGH = 0.02
"""The gap that is good enough for that."""
_NEAR = 1.05
"""Times the cheapest region's bill without start-ups, within which regions are told apart by all hours and with them:
in the test of this, a day of 12 busy and 12 quiet hours, they add 3 %. Our choice."""
_LESS = 0.95
"""Of a machine's capacity, where a fleet misses its SLO in the replay; twice at most."""
_TRIES = 3
_MOST_REPLICAS = 10_000
"""That the simulator runs."""
_AVAILABILITY_LIMITS = 4
"""Times the solver's limit for all plans of a search for an availability, each of which gets a third of it."""


class FleetReport(Noun):
    """Everything a fleet's buyer asks."""

    model: str
    deployed: str
    """Engine and precisions."""
    traffic: str
    slos: tuple[Slo, ...] = Field(alias="promises")
    classes: dict[str, float]
    """Requests a second in the mean, by size class."""
    peak_requests_per_s: float
    mean_requests_per_s: float
    limits: FleetLimits = Field(alias="wishes")
    verdict: SpotVerdict | None
    """None where no machine is sold on spot."""
    spot_share_by: Marked
    """Who set the limit on spot."""
    plan: FleetPlan
    availability: Availability
    zone_correlation: float
    chosen_place: bool
    """The machines of other regions were left out for those of the cheapest."""
    replays: tuple[FleetReplay, ...]
    not_replayed: str = ""
    """Why not, where it was asked for."""
    counted_share: float = 1.0
    """Of the capacity measured: below 1 where the first fleet missed its SLO in the replay."""
    committed_usd: float = 0.0
    """Owed from the first day on for what is reserved, over its years."""
    bought_again: bool = True
    """What spot takes back is bought on demand until it returns."""
    left_out_share: float = 0.0
    """Of the requests: beyond the model's context."""
    machines: tuple[MachineKind, ...] = Field(default=())
    """What was chosen from."""
    refused: dict[str, Marked] = Field(default_factory=dict)
    rule: FixedRule
    """A base on demand and a burst on spot, the hybrid fleet of "Tokens per dollar": for reference."""

    def kind(self, name: str) -> MachineKind:
        return next(machine for machine in self.machines if machine.name == name)


@dataclass(frozen=True)
class FleetBounds:
    """What a fleet may risk."""

    max_spot_share: float | None = None
    """None leaves it to the verdict on spot."""
    max_zone_share: float | None = None
    """None leaves it to whether what a zone takes is bought again."""
    availability: float | None = None
    """Share of time in which what is running carries the demand."""
    anywhere: bool = False
    """In several regions of several providers at once."""


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
    """Buy, compare and try, at one precision, in one region of one provider unless it may be anywhere."""
    bounds = bounds or FleetBounds()
    max_spot_share, max_zone_share, target = bounds.max_spot_share, bounds.max_zone_share, bounds.availability
    demand, offered = traffic.demand, _places(machines)
    machines, zone_share = _without_sudden_loss(machines, limits, slos)
    zone_share = zone_share if max_zone_share is None else max_zone_share
    limits = limits.model_copy(update={"max_zone_share": zone_share})
    say("the cheapest place")
    machines = _at_one_precision(machines, traffic, slos, limits, bounds, gap, time_limit_s)
    verdict = _verdict(machines, traffic, slos)
    said_by = option("max_spot_share")
    if max_spot_share is None:
        max_spot_share = verdict.max_spot_share if verdict else 0.0
        said_by = "the verdict" if verdict else "nothing is sold on spot"
    first = limits.model_copy(update={"max_spot_share": max_spot_share})
    tie = zone_correlation([machines.kinds[offer.name].instance for offer in machines.offers])
    for turn in range(_TRIES):
        share = _LESS**turn
        counted = machines.counted_less(share) if turn else machines
        say("the cheapest fleet and other ways to buy" if not turn else f"the fleet again, counting on {share:.0%}")
        plan, limits, reached = _cheapest(counted.offers, demand, first, target, gap, time_limit_s, tie, seed)
        replays: tuple[FleetReplay, ...] = ()
        if with_replay and plan.purchases:
            say("the fleet in the simulator")
            replays = replayed(plan, counted, traffic, slos, limits, seed)
        if not slos or all(case.met for case in replays[:1]) or _is_as_sized(plan, counted, demand):
            break
    by_name = {offer.name: offer for offer in counted.offers}
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
        spot_share_by=said_by,
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


def _is_as_sized(plan: FleetPlan, machines: Machines, demand: Demand) -> bool:
    """Whether it is what a plan would take: as many replicas of one layout at all times, as they were simulated."""
    bought = {machines.layouts[purchase.offer].name for purchase in plan.purchases}
    return len(bought) == 1 and len(set(demand.total)) == 1


def _places(machines: Machines) -> set[str]:
    return {f"{kind.provider} {kind.region}" for kind in machines.kinds.values()}


def _either(precision: str, machines: Machines) -> str:
    return " or ".join(sorted({getattr(kind, precision) for kind in machines.kinds.values()}))


def _cheapest(
    offers: Sequence[FleetOffer],
    demand: Demand,
    limits: FleetLimits,
    target: float | None,
    gap: float,
    time_limit_s: float,
    tie: float,
    seed: int,
) -> tuple[FleetPlan, FleetLimits, Availability]:
    """The plan with its comparisons, the limits that its availability took, and what it reaches."""
    by_name, mix = {offer.name: offer for offer in offers}, demand.mix
    limit_s = time_limit_s if target is None else time_limit_s / 3

    def up_to(largest: float) -> list[FleetOffer]:
        return [offer for offer in offers if mixed_capacity(offer, mix) <= largest * (1 + 1e-9)]

    def solve(asked: FleetLimits, largest: float = math.inf) -> FleetPlan:
        left = up_to(largest)
        return optimal_fleet(left, demand, asked, gap=gap, time_limit_s=limit_s, correlation=tie, seed=seed)

    spare_machines, comparable = 0, list(offers)
    if target is None:
        plan = solve(limits)
    else:
        total_s = _AVAILABILITY_LIMITS * time_limit_s
        plan, limits, held = hold_availability(solve, offers, demand, limits, target, tie, total_s)
        spare_machines = held.spare_machines
        if spare_machines:
            # Room for a machine is room for any of them: nothing larger is bought in another way either.
            comparable = up_to(sum(limits.spare.values()) / spare_machines)

    def reaches(other: FleetPlan) -> bool:
        return target is None or availability(other, by_name, demand, limits, tie).share >= target

    compare_s = min(time_limit_s, _COMPARISON_S)
    plan = compare(plan, comparable, demand, limits, gap=gap, time_limit_s=compare_s, accepts=reaches)
    reached = availability(plan, by_name, demand, limits, tie)
    return plan, limits, reached.model_copy(update={"target": target, "spare_machines": spare_machines})


def _without_sudden_loss(machines: Machines, limits: FleetLimits, slos: Sequence[Slo]) -> tuple[Machines, float]:
    """What may be counted on where SLOs are set: a zone goes at once, and its mean meets none of them.

    Spot that is not bought again is left out where there is other spot. Where there is none, the fleet must do without
    any one zone.
    """
    sold = [offer for offer in machines.offers if offer.spot]
    unsafe = {offer.name for offer in sold if not is_bought_again(offer, limits)}
    if not slos or not unsafe:
        return machines, 1.0
    if len(unsafe) == len(sold):
        return machines, 0.0
    left = [offer.model_copy(update={"spot": ()}) if offer.name in unsafe else offer for offer in machines.offers]
    return machines.only([offer for offer in left if offer.prices]), 1.0


def _at_one_precision(
    machines: Machines,
    traffic: FleetTraffic,
    slos: Sequence[Slo],
    limits: FleetLimits,
    bounds: FleetBounds,
    gap: float,
    time_limit_s: float,
) -> Machines:
    """The machines at the precision whose fleet is cheapest, so that all replicas give the same answers; in one place
    unless they may be anywhere. Fewer bits win where they save more than the solver can tell."""

    def in_place(left: Machines) -> Machines:
        if bounds.anywhere:
            return left
        return _in_one_place(left, traffic, slos, limits, bounds.max_spot_share, time_limit_s)

    groups: dict[tuple[int, int], list[FleetOffer]] = {}
    for offer in machines.offers:
        kind = machines.kinds[offer.name]
        groups.setdefault((kind.weights.bits, kind.kv.bits), []).append(offer)
    whole = [offers for _, offers in sorted(groups.items(), reverse=True) if _hold_all(offers, traffic.demand)]
    if len(whole) <= 1:
        return in_place(machines.only(whole[0]) if whole else machines)
    best, least = None, math.inf
    for left in (in_place(machines.only(offers)) for offers in whole):
        asked = _with_spot(limits, bounds.max_spot_share, left, traffic, slos)
        with suppress(BadInput):
            bill = optimal_fleet(left.offers, traffic.demand, asked, gap=gap, time_limit_s=time_limit_s / _PLACES)
            if bill.usd_per_month < least * (1 - gap):
                best, least = left, bill.usd_per_month
    return best or in_place(machines.only(whole[0]))


def _in_one_place(
    machines: Machines,
    traffic: FleetTraffic,
    slos: Sequence[Slo],
    limits: FleetLimits,
    max_spot_share: float | None,
    time_limit_s: float,
) -> Machines:
    """The machines of the region where the fleet is cheapest, solved for the few where it is likely to be.

    Those are the cheapest for machines that could be divided, which says how terms mix, and the cheapest for one kind
    alone in whole machines, which says more of a small fleet.
    """
    demand = traffic.demand
    places: dict[str, list[FleetOffer]] = {}
    for offer in machines.offers:
        kind = machines.kinds[offer.name]
        places.setdefault(f"{kind.provider} {kind.region}", []).append(offer)
    held = {place: offers for place, offers in places.items() if _hold_all(offers, demand)}
    if len(held) <= 1:
        return machines if not held else machines.only(next(iter(held.values())))
    asked = {
        place: _with_spot(limits, max_spot_share, machines.only(offers), traffic, slos)
        for place, offers in held.items()
    }
    few = _few_hours(demand)

    def alone(place: str) -> float:
        return min(one_kind_usd(offer, demand, asked[place].max_spot_share) for offer in held[place])

    def divided(place: str) -> float:
        return divided_usd(held[place], few, asked[place]) or math.inf

    likely = list(dict.fromkeys((*sorted(held, key=divided)[:_PLACES], *sorted(held, key=alone)[:_PLACES])))
    bills = {}
    for place in likely:
        # Without start-ups, so that hours stand for themselves.
        ready = [offer.model_copy(update={"startup_s": 0.0, "drain_s": 0.0}) for offer in held[place]]
        with suppress(BadInput):
            plan = optimal_fleet(ready, few, asked[place], gap=_ROUGH, time_limit_s=time_limit_s / _PLACES)
            bills[place] = plan.usd_per_month
    if not bills:
        # No place alone can do it: the error that says why comes from the cheapest.
        return machines.only(held[likely[0]])
    near = sorted((place for place in bills if bills[place] <= _NEAR * min(bills.values())), key=bills.__getitem__)
    whole: dict[str, float] = {}
    for place in near[:_PLACES] if len(near) > 1 else ():
        if bills[place] < min(whole.values(), default=math.inf):  # Else it costs more even without start-ups.
            with suppress(BadInput):
                plan = optimal_fleet(held[place], demand, asked[place], gap=_ROUGH, time_limit_s=time_limit_s / _PLACES)
                whole[place] = plan.usd_per_month
    return machines.only(held[min(whole, key=whole.__getitem__, default=near[0])])


def _hold_all(offers: Sequence[FleetOffer], demand: Demand) -> bool:
    """Whether each size class has a machine that holds it."""
    return all(any(name in offer.requests_per_s for offer in offers) for name in demand.rates)


def _with_spot(
    limits: FleetLimits, share: float | None, machines: Machines, traffic: FleetTraffic, slos: Sequence[Slo]
) -> FleetLimits:
    """The limits with that share on spot; None: with what the verdict on these machines allows."""
    if share is None:
        verdict = _verdict(machines, traffic, slos)
        share = verdict.max_spot_share if verdict else 0.0
    return limits.model_copy(update={"max_spot_share": share})


def _few_hours(demand: Demand) -> Demand:
    """Hours from the quietest to the busiest, each standing for as many: enough to tell regions apart."""
    in_order = sorted(range(demand.hours), key=lambda hour: demand.total[hour])
    number = min(_FEW_HOURS, demand.hours)
    places = [round((place + 0.5) / number * demand.hours - 0.5) for place in range(number - 1)]
    chosen = [in_order[place] for place in (*places, -1)]
    return Demand(rates={name: tuple(rates[hour] for hour in chosen) for name, rates in demand.rates.items()})


def replayed(
    plan: FleetPlan, machines: Machines, traffic: FleetTraffic, slos: Sequence[Slo], limits: FleetLimits, seed: int = 0
) -> tuple[FleetReplay, ...]:
    """The bought fleet with its own traffic about the busiest hour: undisturbed, then with the worst of losses."""
    offers = {offer.name: offer for offer in machines.offers}
    replicas = sum(max(purchase.by_hour) * offers[purchase.offer].replicas for purchase in plan.purchases)
    if replicas > _MOST_REPLICAS:
        return ()
    window = window_of(traffic.seen, replicas)
    requests = traffic.requests_in(*window, seed=seed)
    places = places_of(plan, offers, *window)
    busiest_s = busiest_moment(plan, window)
    hit, what, often = with_interruptions(
        places, offers, limits, plan, busiest_s=busiest_s, end_s=window[1] - window[0], seed=seed
    )
    that_hour = busiest_s - _JUDGED_S / 2, busiest_s + _JUDGED_S / 2
    cases = (
        ReplayCase(places, "as bought", "nothing goes wrong"),
        ReplayCase(hit, "with a loss", f"{what}; latencies of that hour", often, that_hour),
    )
    classes, class_of = class_names(traffic.up_to_tokens), traffic.class_of(requests)
    return tuple(
        replay(case, offers, machines.layouts, requests, classes, class_of, slos, window=window, seed=seed)
        for case in cases
    )


def _verdict(machines: Machines, traffic: FleetTraffic, slos: Sequence[Slo]) -> SpotVerdict | None:
    """On this workload, with the riskiest market offered and the replicas that the busiest hour takes."""
    markets = [market for offer in machines.offers for market in offer.spot]
    if not markets:
        return None
    mix = traffic.demand.mix
    cheapest = min(machines.offers, key=lambda offer: min(offer.prices) / mixed_capacity(offer, mix))
    carried = mixed_capacity(cheapest, mix) / cheapest.replicas
    riskiest: Interruptions = max((market.interruptions for market in markets), key=lambda risk: risk.per_hour)
    replicas = max(1, math.ceil(traffic.demand.peak / carried))
    return spot_verdict(
        answer_s=machines.e2e_p99_s,
        cold_start_s=max(offer.startup_s for offer in machines.offers),
        replicas=replicas,
        interruptions=riskiest,
        strict_p99=any(slo.statistic == "p99" for slo in slos),
        batch=not slos,
        state=lost_state(machines.layouts[cheapest.name].deployment, traffic.trace, replicas),
    )
