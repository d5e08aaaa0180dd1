"""Simulate the fleet that was bought: machines that come and go by the hour, and some that are taken away.

Each machine of the largest hour is a place; in hours with fewer machines a place is away, after it has finished its
answers. A spot zone takes all its machines at once (a cautious assumption) after its notice; in the last part of the
notice they only finish answers. A place is back when its replacement serves: bought on demand at the notice, or spot
after the outage, as availability counts it. Requests are distributed by the capacity that is up at each moment; the
replicas of each layout then serve their share behind its router and with its limit on sequences, as they were sized.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
from numpy.typing import NDArray
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat

from tokonomics.catalog.offers import Terms
from tokonomics.errors import BadInput
from tokonomics.fleet.cheapest import FAILURES_PER_GPU_HOUR, NOTICED_S, shared_out
from tokonomics.fleet.layouts import FleetLayout
from tokonomics.fleet.traffic import FleetTraffic, class_names
from tokonomics.money.purchases import Demand, FleetLimits, FleetOffer, FleetPlan, SpotMarket
from tokonomics.money.spot_machines import finishing_s, gone_s
from tokonomics.serving.fleet_settings import FleetSettings, Outage
from tokonomics.serving.outcome import SloOutcome, judged, request_latencies
from tokonomics.serving.simulator import simulate
from tokonomics.serving.state import DONE, REFUSED
from tokonomics.traffic.slo import Slo
from tokonomics.traffic.trace import Floats, Trace
from tokonomics.types import Noun, copied
from tokonomics.units import HOURS_PER_MONTH, SECONDS_PER_HOUR, plural

MOST_REQUESTS = 300_000  # in one replay: a few seconds
MOST_HOURS = 24
_MOST_CHOICES = 1e8  # requests × replicas, since the router looks at each: under ten seconds
_FEWEST_REQUESTS = 5_000
_ENOUGH_OF_A_CLASS = 300  # three lie beyond a p99: fewer requests cannot judge a class by itself
_JUDGED_S = 3600.0  # around a loss: its minutes would not show in the percentiles of a day

Offers = Mapping[str, FleetOffer]


@dataclass(frozen=True)
class Away:
    """A time in which a place takes no requests: nothing new from ``at_s − notice_s``, gone at ``at_s``."""

    at_s: float
    until_s: float
    notice_s: float


@dataclass(frozen=True)
class Place:
    """One machine of the plan's largest hour."""

    offer: str
    zone: str | None
    away: tuple[Away, ...]

    def without(self, *away: Away) -> "Place":
        """Return the place with further absences."""
        return replace(self, away=(*self.away, *away))

    def is_there(self, at_s: float) -> bool:
        return not any(away.at_s <= at_s < away.until_s for away in self.away)

    def takes_requests(self, at_s: float) -> bool:
        return not any(away.at_s - away.notice_s <= at_s < away.until_s for away in self.away)


@dataclass(frozen=True)
class ReplayCase:
    """A fleet with its losses, and which of its requests are judged."""

    places: Sequence[Place]
    name: str = ""
    what: str = ""  # what is done to it
    expected_per_month: float = 0.0  # how often that happens
    judged_s: tuple[float, float] = (0.0, math.inf)  # SLOs are judged on the requests that arrive between these


class FleetReplay(Noun):
    """How the bought fleet served its own traffic."""

    name: str
    what: str  # what was done to it
    start_hour: NonNegativeFloat
    hours: PositiveFloat
    requests: NonNegativeInt
    answered_share: NonNegativeFloat
    restarts: NonNegativeInt  # answers begun again on another machine
    expected_per_month: NonNegativeFloat  # how often what is done to it happens
    slo: tuple[SloOutcome, ...]

    @property
    def met(self) -> bool:
        return all(slo.met for slo in self.slo) and self.answered_share > 0.99


def replayed(
    plan: FleetPlan,
    offers: Offers,
    layouts: Mapping[str, FleetLayout],
    traffic: FleetTraffic,
    slos: Sequence[Slo],
    limits: FleetLimits,
    replicas: int,
    seed: int = 0,
) -> tuple[FleetReplay, ...]:
    """Simulate the bought fleet with its own traffic around the busiest hour: undisturbed, then with the worst loss."""
    window = window_of(traffic.seen, replicas)
    requests = traffic.requests_in(*window, seed=seed)
    places = places_of(plan, offers, *window)
    hours = range(int(window[0] // SECONDS_PER_HOUR), int(np.ceil(window[1] / SECONDS_PER_HOUR)))
    busiest = max(hours, key=lambda hour: plan.demand[hour % plan.hours])
    middle_s = (busiest + 0.5) * SECONDS_PER_HOUR - window[0]
    hit, what, often = with_interruptions(
        places, offers, limits, plan, busiest_s=middle_s, end_s=window[1] - window[0], seed=seed
    )
    that_hour = middle_s - _JUDGED_S / 2, middle_s + _JUDGED_S / 2
    cases = (
        ReplayCase(places, "as bought", "nothing goes wrong"),
        ReplayCase(hit, "with a loss", f"{what}; latencies of that hour", often, that_hour),
    )
    classes, class_of = class_names(traffic.up_to_tokens), traffic.class_of(requests)
    return tuple(
        replay(case, offers, layouts, requests, classes, class_of, slos, window=window, seed=seed) for case in cases
    )


def window_of(demand: Demand, replicas: int = 1) -> tuple[float, float]:
    """Return the hours around the busiest one, in seconds: at most a day, or what is quick to simulate."""
    most = min(MOST_REQUESTS, max(_FEWEST_REQUESTS, int(_MOST_CHOICES / max(1, replicas))))
    rates = np.asarray(demand.total)
    busiest = int(np.argmax(rates))
    if rates[busiest] * SECONDS_PER_HOUR > most:
        middle = (busiest + 0.5) * SECONDS_PER_HOUR
        half = most / rates[busiest] / 2
        return middle - half, middle + half
    first, last = busiest, busiest + 1
    while last - first < min(MOST_HOURS, demand.hours):
        # Extend to the busier neighbour, but not beyond the horizon.
        before = rates[first - 1] if first > 0 else -1.0
        after = rates[last] if last < demand.hours else -1.0
        if (rates[first:last].sum() + max(before, after)) * SECONDS_PER_HOUR > most:
            break
        first, last = (first - 1, last) if before >= after else (first, last + 1)
    return float(first * SECONDS_PER_HOUR), float(last * SECONDS_PER_HOUR)


def places_of(plan: FleetPlan, offers: Offers, start_s: float, end_s: float) -> list[Place]:
    """Return every machine of the window and when it is not bought; times count from the window's start."""
    first, last = int(start_s // SECONDS_PER_HOUR), int(np.ceil(end_s / SECONDS_PER_HOUR))
    shift = start_s - first * SECONDS_PER_HOUR
    places = []
    for purchase in plan.purchases:
        by_hour = [purchase.by_hour[hour % plan.hours] for hour in range(first, last)]
        zone = purchase.place if purchase.terms is Terms.spot else None
        for number in range(max(by_hour)):
            away = _unbought(by_hour, number, offers[purchase.offer].drain_s, shift)
            places.append(Place(purchase.offer, zone, tuple(away)))
    if not places:
        raise BadInput("the plan holds no machine in the hours to replay")
    return places


def _unbought(by_hour: Sequence[int], number: int, drain_s: float, shift: float) -> list[Away]:
    """Return when machine ``number`` is not bought, because an hour needs fewer; it takes nothing new from then on."""
    edges = np.diff(np.concatenate([[0], np.asarray(by_hour) <= number, [0]]).astype(int))
    away = []
    for start, end in zip(np.flatnonzero(edges == 1).tolist(), np.flatnonzero(edges == -1).tolist(), strict=True):
        until_s, drain = end * SECONDS_PER_HOUR - shift, drain_s if start else 0.0
        gone_at_s = max(0.0, start * SECONDS_PER_HOUR - shift) + drain
        if gone_at_s < until_s:
            away.append(Away(gone_at_s, until_s, drain))
    return away


def with_interruptions(
    places: Sequence[Place],
    offers: Offers,
    limits: FleetLimits,
    plan: FleetPlan,
    *,
    busiest_s: float,
    end_s: float,
    seed: int = 0,
) -> tuple[list[Place], str, float]:
    """Return the places with their losses, a description of the losses, and how often a month they happen.

    They are random interruptions, and the worst loss at the busiest moment: of the spot zone with most of the capacity
    then; without spot, of the largest machine.
    """
    rng = np.random.default_rng(seed)
    present = [place for place in places if place.is_there(busiest_s)]
    held: dict[str, float] = defaultdict(float)
    for place in present:
        if place.zone is not None:
            held[place.zone] += sum(offers[place.offer].requests_per_s.values())
    if not held:
        return _one_fails(places, present, offers, plan, busiest_s)
    worst = max(held, key=lambda zone: held[zone])
    bought = {(place.offer, place.zone) for place in places}
    taken: dict[tuple[str, str], list[Away]] = {}
    number = 0
    for offer, market in [(sold, market) for sold in offers.values() for market in sold.spot]:
        if (offer.name, market.zone) not in bought:
            continue
        away = drawn_interruptions(offer, market, end_s / SECONDS_PER_HOUR, limits, rng)
        number += len(away)
        if market.zone == worst:
            mean_s = market.interruptions.outage_hours * SECONDS_PER_HOUR
            away.append(_taken(offer, busiest_s, mean_s, limits))
        taken[offer.name, market.zone] = away
    hit = [place if place.zone is None else place.without(*taken[place.offer, place.zone]) for place in places]
    machines = sum(place.zone == worst for place in present)
    also = f", and {plural(number, 'interruption')} drawn" if number else ""
    what = f"{worst} takes its {plural(machines, 'spot machine')} back at the busiest moment{also}"
    # Count only offers bought there, while held. Offers of a zone go together, so the most frequent counts.
    per_month = [
        market.interruptions.per_hour * HOURS_PER_MONTH * sum(map(bool, purchase.by_hour)) / plan.hours
        for purchase in plan.purchases
        if purchase.terms is Terms.spot and purchase.place == worst
        for market in offers[purchase.offer].spot
        if market.zone == worst
    ]
    return hit, what, max(per_month, default=0.0)


def _one_fails(
    places: Sequence[Place], present: Sequence[Place], offers: Offers, plan: FleetPlan, at_s: float
) -> tuple[list[Place], str, float]:
    if not present:
        return list(places), "nothing", 0.0
    lost = max(present, key=lambda place: sum(offers[place.offer].requests_per_s.values()))
    until_s = at_s + NOTICED_S + offers[lost.offer].startup_s
    hit = [place.without(Away(at_s, until_s, 0.0)) if place is lost else place for place in places]
    gpu_hours = sum(offers[purchase.offer].gpus * sum(purchase.by_hour) for purchase in plan.purchases)
    risk = gpu_hours / plan.hours * FAILURES_PER_GPU_HOUR * HOURS_PER_MONTH
    return hit, f"one machine ({lost.offer}) fails at the busiest moment and is replaced", risk


def drawn_interruptions(
    offer: FleetOffer, market: SpotMarket, hours: float, limits: FleetLimits, rng: np.random.Generator
) -> list[Away]:
    """Draw when a zone takes its machines back over these hours, and for how long they are missing."""
    rate = market.interruptions.per_hour
    taken: list[Away] = []
    now = float(rng.exponential(1 / rate)) if rate > 0 else hours
    while now < hours:
        outage = float(rng.exponential(market.interruptions.outage_hours))
        taken.append(_taken(offer, now * SECONDS_PER_HOUR, outage * SECONDS_PER_HOUR, limits))
        now += outage + float(rng.exponential(1 / rate))
    return taken


def _taken(offer: FleetOffer, at_s: float, outage_s: float, limits: FleetLimits) -> Away:
    # At least one second: the replacement is another machine, without the answers and cache of the first.
    return Away(at_s, at_s + max(1.0, gone_s(offer, outage_s, limits)), finishing_s(offer))


def replay(
    case: ReplayCase,
    offers: Offers,
    layouts: Mapping[str, FleetLayout],
    traffic: Trace,
    classes: Sequence[str],
    class_of: NDArray[np.int32],
    slos: Sequence[Slo],
    *,
    window: tuple[float, float],
    seed: int = 0,
) -> FleetReplay:
    """Serve the window's requests; ``layouts`` are by offer, ``class_of`` is each request's place in ``classes``.

    If requests have priorities, only the most urgent are judged, and they go first: nobody waits for the others.
    """
    urgent = None if traffic.priority is None else traffic.priority == traffic.priority.min()
    places = [replace(place, away=tuple(_merged(place.away))) for place in case.places]
    kinds = list({layouts[place.offer].name: layouts[place.offer] for place in places}.values())
    kind_of_place = [kinds.index(layouts[place.offer]) for place in places]
    goes_to = _routed(places, kind_of_place, offers, traffic, classes, class_of, seed)
    waits = {slo: [np.zeros(0)] for slo in slos}
    sizes = [np.zeros(0, np.int32)]
    answered = restarts = 0
    for index, layout in enumerate(kinds):
        chosen = np.flatnonzero(goes_to == index)
        if not len(chosen):
            continue
        # All replicas of a machine go with it.
        own = [place for place, kind in zip(places, kind_of_place, strict=True) if kind == index]
        replicas = [place for place in own for _ in range(offers[place.offer].replicas)]
        outages = tuple(
            Outage(replica=number, at_s=away.at_s, down_s=away.until_s - away.at_s, notice_s=away.notice_s)
            for number, place in enumerate(replicas)
            for away in place.away
        )
        fleet = FleetSettings(replicas=len(replicas), router=layout.router, outages=outages)
        requests, limit = traffic.take(chosen), layout.max_sequences
        by_priority = urgent is not None
        served = simulate(layout.deployment, requests, fleet, max_sequences=limit, by_priority=by_priority, seed=seed)
        status, latencies = served.served.status, request_latencies(served)
        arrival_s, (first_s, last_s) = served.trace.arrival_s, case.judged_s
        counts = (status != REFUSED) & (arrival_s >= first_s) & (arrival_s < last_s)
        counts &= True if urgent is None else urgent[chosen]
        answered += int((status == DONE).sum())
        restarts += int(served.served.restarts.sum())
        sizes.append(class_of[chosen][counts])
        for slo in slos:
            # A request that is never answered waits forever.
            waits[slo].append(np.where(status == DONE, latencies[slo.latency], np.inf)[counts])
    size = np.concatenate(sizes)
    return FleetReplay(
        **copied(case, "name", "what", "expected_per_month"),
        start_hour=window[0] / SECONDS_PER_HOUR,
        hours=(window[1] - window[0]) / SECONDS_PER_HOUR,
        requests=len(traffic),
        answered_share=answered / len(traffic) if len(traffic) else 0.0,
        restarts=restarts,
        slo=tuple(_worst_class(slo, np.concatenate(waits[slo]), size) for slo in slos),
    )


def _routed(
    places: Sequence[Place],
    kind_of_place: Sequence[int],
    offers: Offers,
    traffic: Trace,
    classes: Sequence[str],
    class_of: NDArray[np.int32],
    seed: int,
) -> NDArray[np.int64]:
    """Draw the kind of machine each request goes to, by the capacity that takes requests at that moment."""
    rng = np.random.default_rng(seed)
    absences = [away for place in places for away in place.away]
    edges = {0.0} | {moment for away in absences for moment in (away.at_s - away.notice_s, away.until_s)}
    moments = np.array(sorted(edge for edge in edges if 0 <= edge <= float(traffic.arrival_s[-1])))
    span = np.searchsorted(moments, traffic.arrival_s, side="right") - 1
    lasts_s = np.diff(np.append(moments, float(traffic.arrival_s[-1])))
    goes_to = np.zeros(len(traffic), np.int64)
    kinds = max(kind_of_place) + 1
    kind_of = {place.offer: kind for place, kind in zip(places, kind_of_place, strict=True)}

    @cache
    def shares(numbers: tuple[tuple[str, int], ...], rates: tuple[float, ...]) -> dict[str, Floats]:
        present = [(offers[name], number) for name, number in numbers]
        return shared_out(present, dict(zip(classes, rates, strict=True)))[1]

    for index, moment in enumerate(moments.tolist()):
        inside = np.flatnonzero(span == index)
        if not len(inside):
            continue
        there = [place for place in places if place.takes_requests(moment)] or list(places)
        numbers = Counter(place.offer for place in there)
        counts = np.bincount(class_of[inside], minlength=len(classes))
        shared = shares(tuple(numbers.items()), tuple((counts / max(1.0, lasts_s[index])).tolist()))
        for number, name in enumerate(classes):
            own = inside[class_of[inside] == number]
            if not len(own):
                continue
            by_kind = np.zeros(kinds)
            for offer, share in zip(numbers, shared[name], strict=True):
                by_kind[kind_of[offer]] += share
            # A class that no machine there can hold waits where most of the fleet is.
            chances = by_kind / by_kind.sum() if by_kind.sum() > 0 else np.bincount(kind_of_place) / len(places)
            goes_to[own] = rng.choice(kinds, size=len(own), p=chances)
    return goes_to


def _merged(away: Sequence[Away]) -> list[Away]:
    """Sort absences, and merge those that touch or whose notice falls into the one before."""
    merged: list[Away] = []
    for absence in sorted(away, key=lambda absence: (absence.at_s, absence.until_s)):
        if merged and absence.at_s - absence.notice_s <= merged[-1].until_s:
            merged[-1] = replace(merged[-1], until_s=max(merged[-1].until_s, absence.until_s))
        else:
            merged.append(absence)
    return merged


def _worst_class(slo: Slo, waits: Floats, size: NDArray[np.int32]) -> SloOutcome:
    """Judge all requests together and each large size class; return the slowest, since the SLO holds for each."""
    known = ~np.isnan(waits)
    waits, size = waits[known], size[known]
    large = [index for index, number in enumerate(np.bincount(size).tolist()) if number >= _ENOUGH_OF_A_CLASS]
    groups = [waits, *(waits[size == index] for index in large)]
    by_group = [judged(slo, group[np.isfinite(group)], int(np.isinf(group).sum())) for group in groups]
    return max(by_group, key=lambda judged: math.inf if judged.delivered_s is None else judged.delivered_s)
