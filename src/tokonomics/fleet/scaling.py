"""Compare ways to follow a day's traffic with replicas: always enough for the peak, by a rule, or by a forecast.

One kind of machine, on demand, is simulated four ways: a fixed number; the rule of outstanding requests (Kubernetes'
autoscaler); a schedule ordered a cold start ahead of a forecast from the traffic's own past; that schedule with the
rule on top. Each way has one parameter, its room: how far it goes above the load that it follows. Unless it is given,
the room is the least of a list with which the way meets the SLOs on the day before, plus one step, since days differ.
The way is then judged on the day. For comparison there is a schedule with a perfect forecast, its room set on the day
itself without the extra step: what a better forecast could still save.
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial

import numpy as np
from numpy.typing import NDArray
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat

from tokonomics.catalog.offers import Terms
from tokonomics.errors import BadInput, option
from tokonomics.fleet.layouts import FleetLayout
from tokonomics.fleet.offers import Machines
from tokonomics.fleet.traffic import FleetTraffic, ScalingDay, days_of
from tokonomics.money.purchases import FleetOffer, machines_needed, mixed_by_hour
from tokonomics.serving.capacity import sure_to_miss
from tokonomics.serving.fleet_settings import Autoscale, FleetSettings
from tokonomics.serving.loop import NOBODY, Watcher
from tokonomics.serving.outcome import SloOutcome, judged, outcome, request_latencies, within_slos
from tokonomics.serving.simulator import Simulation, simulate
from tokonomics.serving.state import DONE, REFUSED
from tokonomics.sizing.setup import Say, silent
from tokonomics.traffic.arrivals import ForecastError, error_of
from tokonomics.traffic.slo import Latency, Slo
from tokonomics.traffic.trace import Floats, Trace, make_trace
from tokonomics.types import Noun
from tokonomics.units import HOURS_PER_MONTH, SECONDS_PER_HOUR

Ints = NDArray[np.int64]

ROOMS = (-0.9, -0.8, -0.7, -0.6, -0.5, -0.45, -0.4, -0.35, -0.3, -0.25, -0.2, -0.15, -0.1, -0.05, 0.0, 0.05, 0.1, 0.2,
         0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0)  # fmt: skip
"""The rooms to try. Below 0: an SLO for the whole day may be missed in its busiest moments."""
_FINE = 0.01  # step between rooms of a perfect forecast: small, so that rounding does not reduce its saving
MOST_REQUESTS = 200_000
"""In one simulation, of about thirty, unless that leaves too few replicas: each takes a fraction of a second."""
LOOKS_S = 15.0  # between two checks of the rule: Kubernetes' HorizontalPodAutoscaler (``Autoscale.interval_s``)
ORDERS_S = 60.0  # between two checks of a schedule: cron's resolution
_MOST_GROWTH = 4  # times the replicas of the peak: the most that the rule may ask for
_LEAST_REPLICAS = 4
"""The fewest replicas at its peak on which a slice of the traffic is simulated: with fewer, one more or less is a
larger step than in the real fleet. More would take minutes."""
_AT_CAPACITY = 4_000  # requests per replica to simulate, to find how many are outstanding at its capacity
_ENOUGH_REPLICAS = 16  # for that, as for a plan (``sizing.load``): more would not change the result


class ScalingWay(Noun):
    """A way to follow the traffic, and its result."""

    name: str
    terms: Terms = Terms.on_demand
    room: float  # above the load that it follows: the peak, the target, the forecast or the actual load
    usd_per_day: PositiveFloat
    usd_per_month: PositiveFloat
    replica_hours_per_day: PositiveFloat
    least_replicas: NonNegativeInt
    most_replicas: NonNegativeInt  # paid for at once, of the traffic simulated
    starts: NonNegativeInt
    short_minutes: NonNegativeFloat  # with fewer replicas serving than a perfect forecast shows to be enough
    lag_s: NonNegativeFloat | None
    """Mean time from a need for more replicas until they serve; None if more are never needed."""
    most_lag_s: NonNegativeFloat | None
    ttft_p99_s: float | None
    slo: tuple[SloOutcome, ...]
    slo_attainment: NonNegativeFloat  # share of the requests that were answered within every SLO
    met: bool
    is_perfect: bool = False  # not possible in practice: its forecast is the traffic itself


class ScalingReport(Noun):
    """The ways to follow a day's traffic on one kind of machine."""

    machine: str
    usd_per_hour: PositiveFloat  # one replica on demand
    replicas_per_machine: int
    cold_start_s: NonNegativeFloat
    requests_per_s: PositiveFloat  # of one replica, as assumed in the busiest hour
    traffic: str
    hours: PositiveFloat
    requests: NonNegativeInt
    simulated_share: PositiveFloat  # of the traffic; dollars and hours are for all of it
    forecast: ForecastError
    ways: tuple[ScalingWay, ...]

    def best(self, *terms: Terms) -> ScalingWay | None:
        """Return the cheapest way that meets the SLOs without a perfect forecast, on those terms or any."""
        held = [way for way in self.ways if way.met and not way.is_perfect and way.terms in (terms or tuple(Terms))]
        return min(held, key=lambda way: way.usd_per_month, default=None)

    @property
    def perfect(self) -> ScalingWay:
        """Return the way with a perfect forecast."""
        return next(way for way in self.ways if way.is_perfect)


@dataclass(frozen=True)
class _Case:
    """A day, and what all ways have in common."""

    day: ScalingDay
    share: float  # share of the requests to simulate, on a fleet smaller by the same factor
    layout: FleetLayout
    slos: Sequence[Slo]
    capacity: Callable[[Floats], Floats]  # requests a second of a replica, in fleets for these rates
    outstanding: Callable[[float], float]  # requests on a replica with that room: at its capacity ÷ (1 + room)
    cold_start_s: float
    usd_per_hour: float
    peak: float  # requests a second of the busiest moment that was seen before the day to judge
    seed: int
    known: dict[FleetSettings, bool] = field(default_factory=dict)

    @cached_property
    def requests(self) -> Trace:
        """Return the requests that are simulated."""
        return self.day.requests if self.share == 1 else self.day.requests.sampled(self.share, self.seed)

    def needed(self, rates: Floats, room: float) -> Ints:
        """Return the replicas for the simulated share of these rates."""
        load = rates * self.share * (1 + room)
        return np.maximum(1, np.ceil(load / self.capacity(load) - 1e-9)).astype(np.int64)

    def schedule(self, forecasts: Floats, room: float) -> tuple[tuple[float, int], ...]:
        """Return the replicas to ask for from each moment on, a cold start ahead of the forecast need."""
        wanted = ordered_ahead(self.needed(forecasts, room), self.day.moment_s, self.cold_start_s + ORDERS_S)
        keep = np.flatnonzero(np.diff(wanted[:, 1], prepend=-1))
        return tuple((float(at_s), int(number)) for at_s, number in wanted[keep])

    def at_the_peak(self, room: float) -> int:
        return int(self.needed(np.array([self.peak]), room)[0])

    def scaled(self, room: float, ahead: bool, by_rule: bool, forecasts: Floats) -> FleetSettings:
        """Return settings by a schedule ahead of forecasts, by the rule, or by the larger of both.

        A rule starts with the replicas forecast.
        """
        start = ((0.0, int(self.needed(forecasts[0, :1], room)[0])), (LOOKS_S, 0))
        schedule = self.schedule(forecasts, room) if ahead else start
        return FleetSettings(
            router=self.layout.router,
            autoscale=Autoscale(
                max_replicas=max(_MOST_GROWTH * self.at_the_peak(0.0), *(number for _, number in schedule)),
                target=self.outstanding(room) if by_rule else None,
                cold_start_s=self.cold_start_s,
                interval_s=LOOKS_S if by_rule else ORDERS_S,
                hold_s=300.0 if by_rule else 0.0,
                schedule=schedule,
            ),
        )

    def served(self, fleet: FleetSettings, watch: Watcher = NOBODY) -> Simulation:
        limit = self.layout.max_sequences
        return simulate(self.layout.deployment, self.requests, fleet, max_sequences=limit, seed=self.seed, watch=watch)

    def meets(self, follow: "Way", room: float) -> bool:
        """Return whether a way meets every SLO on this day with that room."""
        fleet = follow(self, room)
        if fleet not in self.known:
            served = self.served(fleet, Watcher(is_settled=sure_to_miss(self.slos, self.requests)))
            ended_early = len(served.trace) < len(self.requests)
            self.known[fleet] = not ended_early and all(slo.met for slo in _judged(served, self.slos))
        return self.known[fleet]


Way = Callable[[_Case, float], FleetSettings]  # the replicas of a way on a day, by the room it is given


def ordered_ahead(needed: Ints, moment_s: float, ahead_s: float) -> Floats:
    """Return rows of a time and the replicas to ask for then; row k of ``needed`` is the need of moments k, k + 1, …

    Each row asks for the most that any moment needs which begins before an order of that time is ready.
    """
    rows: list[tuple[float, int]] = []
    for moment, needs in enumerate(needed.tolist()):
        start_s = moment * moment_s
        # Orders for one more moment become due within each moment.
        last, due_s = int(ahead_s // moment_s), start_s + moment_s - ahead_s % moment_s
        rows.append((start_s, max(needs[: last + 1])))
        rows.append((due_s, max(needs[: last + 2])))
    return np.array(rows, np.float64)


def require_slos(slos: Sequence[Slo]) -> None:
    """Refuse to compare ways without an SLO to compare them by."""
    if not slos:
        fix = f"Such as {option('slo', 'ttft_p99=1')}."
        raise BadInput("ways to scale are compared by the SLOs that they meet", field="scaling", fix=fix)


def require_on_demand(terms: Sequence[Terms]) -> None:
    """Refuse to scale what is not sold by the hour."""
    if Terms.on_demand not in terms:
        what = "no machine that holds every request is sold on demand: what scales is bought by the hour"
        raise BadInput(what, field="scaling", fix=f"Allow {option('terms', 'on_demand')}.")


def scaling_ways(
    machines: Machines,
    traffic: FleetTraffic,
    slos: Sequence[Slo],
    room: float | None = None,
    seed: int = 0,
    say: Say = silent,
) -> ScalingReport:
    """Return every way on the kind of machine that would be cheapest on demand for this traffic, hour by hour."""
    require_slos(slos)
    offer = _cheapest(machines.offers, traffic)
    price = (offer.usd_per_hour or 0.0) / offer.replicas
    layout, capacity = machines.layouts[offer.name], partial(_capacity, offer, traffic.demand.mix)
    busiest = float(capacity(np.array([traffic.demand.peak]))[0])
    before, day = days_of(traffic, offer.startup_s + ORDERS_S, seed)
    requests = max(len(before.requests), len(day.requests))
    rehearsal = _Case(
        day=before,
        share=min(1.0, max(MOST_REQUESTS / requests, _LEAST_REPLICAS / (traffic.demand.peak / busiest))),
        layout=layout,
        slos=slos,
        capacity=capacity,
        outstanding=cache(partial(outstanding, layout, before.requests, busiest, traffic.demand.peak)),
        cold_start_s=offer.startup_s,
        usd_per_hour=price,
        peak=float(before.rates.max()),
        seed=seed,
    )
    case = replace(rehearsal, day=day, known={})
    rates = day.rates
    say("the day in the simulator: a perfect forecast")
    # Row k holds the rates from moment k on; the last moment continues after the day.
    moments = np.arange(len(rates))[:, None] + np.arange(day.forecasts.shape[1])
    true = rates[np.minimum(moments, len(rates) - 1)]

    def known(case: _Case, room: float) -> FleetSettings:
        return case.scaled(room, True, False, true)

    used = _least_room(case, known) if room is None else room
    enough = case.needed(rates, used)
    perfect = _way(case, "with a perfect forecast", used, known(case, used), enough, is_perfect=True)
    found: list[ScalingWay] = []
    for name, follow in _WAYS.items():
        say(f"the day before in the simulator: {name}")
        used = ROOMS[min(_least(ROOMS, rehearsal, follow) + 1, len(ROOMS) - 1)] if room is None else room
        say(f"the day in the simulator: {name}")
        found.append(_way(case, name, used, follow(case, used), enough))
    if offer.reserved:  # the same replicas at another price
        term, reserved_usd = min(offer.reserved.items(), key=lambda quoted: quoted[1])
        ratio = reserved_usd / offer.replicas / price
        usd = {"usd_per_day": found[0].usd_per_day * ratio, "usd_per_month": found[0].usd_per_month * ratio}
        same = {"name": f"fixed, reserved {term}", "terms": Terms.reserved, **usd}
        found.insert(1, found[0].model_copy(update=same))
    return ScalingReport(
        machine=offer.name,
        usd_per_hour=price,
        replicas_per_machine=offer.replicas,
        cold_start_s=offer.startup_s,
        requests_per_s=busiest,
        traffic=day.what,
        hours=day.hours,
        requests=len(day.requests),
        simulated_share=case.share,
        forecast=error_of(day.method, day.forecasts, rates, day.moment_s),
        ways=(*found, perfect),
    )


_WAYS: dict[str, Way] = {
    "fixed for the peak": lambda case, room: FleetSettings(replicas=case.at_the_peak(room), router=case.layout.router),
    "reactive": lambda case, room: case.scaled(room, False, True, case.day.forecasts),
    "predictive": lambda case, room: case.scaled(room, True, False, case.day.forecasts),
    "predictive + reactive": lambda case, room: case.scaled(room, True, True, case.day.forecasts),
}


def _cheapest(offers: Sequence[FleetOffer], traffic: FleetTraffic) -> FleetOffer:
    """Return the kind whose replicas would be cheapest on demand, as many as each hour needs."""

    def bill(offer: FleetOffer) -> float:
        alone = {name: offer.carries(name, rates) / offer.replicas for name, rates in traffic.demand.rates.items()}
        return sum(machines_needed(traffic.demand, alone)) * (offer.usd_per_hour or math.inf) / offer.replicas

    sold = [
        offer
        for offer in offers
        if offer.usd_per_hour is not None and all(name in offer.requests_per_s for name in traffic.samples)
    ]
    require_on_demand([Terms.on_demand for _ in sold])
    return min(sold, key=lambda offer: (bill(offer), offer.name))


def _capacity(offer: FleetOffer, mix: dict[str, float], rates: Floats) -> Floats:
    """Return the requests a second of one replica at the traffic's own mix of sizes, in fleets for these rates."""
    by_class = {name: rates * share for name, share in mix.items()}
    return mixed_by_hour(offer, mix, by_class) / offer.replicas


def outstanding(layout: FleetLayout, requests: Trace, capacity: float, peak: float, room: float) -> float:
    """Return the requests outstanding on a replica at its capacity ÷ (1 + room), by Little's law from a simulation.

    At half the load it is far less than half of those at capacity, because requests are answered sooner. With a room
    below 0 they would pile up without end: then it is in proportion to those at capacity.
    """
    if room < 0:
        return outstanding(layout, requests, capacity, peak, 0.0) / (1 + room)
    replicas, rate = min(_ENOUGH_REPLICAS, math.ceil(peak / capacity - 1e-9)), capacity / (1 + room)
    chance, number = np.random.default_rng(0), _AT_CAPACITY * replicas
    chosen = chance.integers(len(requests), size=number)
    arrival_s = np.cumsum(chance.exponential(1 / (replicas * rate), size=number))
    steady = make_trace(arrival_s, requests.input_tokens[chosen], requests.output_tokens[chosen])
    fleet = FleetSettings(replicas=replicas, router=layout.router)
    served = simulate(layout.deployment, steady, fleet, max_sequences=layout.max_sequences)
    return max(1.0, rate * (outcome(served, with_load=False).e2e_s.mean or 0.0))


def _least_room(case: _Case, follow: Way) -> float:
    """Return the least room with which a way meets the SLOs, to a hundredth; the largest of the list if none does."""
    place = _least(ROOMS, case, follow)
    if not place or not case.meets(follow, ROOMS[place]):
        return ROOMS[place]
    closer: list[float] = [*np.arange(ROOMS[place - 1] + _FINE, ROOMS[place] - _FINE / 2, _FINE).tolist(), ROOMS[place]]
    return closer[_least(closer, case, follow)]


def _least(rooms: Sequence[float], case: _Case, follow: Way) -> int:
    """Return the index of the first room with which a way meets the SLOs, by bisection; the last if none does."""
    return bisect_left(rooms, True, hi=len(rooms) - 1, key=partial(case.meets, follow))


def _judged(served: Simulation, slos: Sequence[Slo]) -> tuple[SloOutcome, ...]:
    """Judge every request that could be served; one that is never answered misses every SLO."""
    latencies, done = request_latencies(served), served.served.status == DONE
    unanswered = int((~done & (served.served.status != REFUSED)).sum())
    return tuple(judged(slo, latencies[slo.latency][done], unanswered) for slo in slos)


def _way(
    case: _Case, name: str, room: float, fleet: FleetSettings, enough: Ints, is_perfect: bool = False
) -> ScalingWay:
    served = case.served(fleet)
    day, status, latencies = case.day, served.served.status, request_latencies(served)
    slos, kept = _judged(served, case.slos), status != REFUSED
    within = within_slos(status, latencies, case.slos)
    first_s = latencies[Latency.ttft][status == DONE]
    end_s = day.hours * SECONDS_PER_HOUR
    paid_s = paid_seconds(served.history, end_s)
    hours = paid_s / SECONDS_PER_HOUR * 24 / day.hours / case.share
    short_s, lags = shortfall(served.history, enough, day.moment_s, end_s)
    number = served.history[served.history[:, 0] < end_s][:, 1]
    return ScalingWay(
        name=name,
        room=room,
        usd_per_day=hours * case.usd_per_hour,
        usd_per_month=hours * case.usd_per_hour * HOURS_PER_MONTH / 24,
        replica_hours_per_day=hours,
        least_replicas=int(number.min()),
        most_replicas=int(number.max()),
        starts=int(np.maximum(0, np.diff(number)).sum()),
        short_minutes=short_s / 60,
        lag_s=float(np.mean(lags)) if lags else None,
        most_lag_s=max(lags, default=None),
        ttft_p99_s=float(np.percentile(first_s, 99)) if len(first_s) else None,
        slo=slos,
        slo_attainment=float(within[kept].mean()) if kept.any() else 0.0,
        met=all(slo.met for slo in slos),
        is_perfect=is_perfect,
    )


def paid_seconds(history: Floats, end_s: float) -> float:
    """Return the replica-seconds up to an end; each row of ``history`` holds from its time on."""
    lasts = np.diff(np.append(np.minimum(history[:, 0], end_s), end_s))
    return float(lasts @ history[:, 1])


def shortfall(history: Floats, enough: Ints, moment_s: float, end_s: float) -> tuple[float, list[float]]:
    """Return the seconds with too few replicas, and for each rise of the need the time until enough serve.

    A rise that ends before that counts until it ends.
    """
    edges = np.unique(np.concatenate([history[:, 0], np.arange(len(enough)) * moment_s, [end_s]]))
    edges = edges[edges <= end_s]
    serving = history[np.searchsorted(history[:, 0], edges[:-1], side="right") - 1, 2]
    wanted = enough[np.minimum((edges[:-1] / moment_s + 1e-9).astype(np.int64), len(enough) - 1)]
    lasts = np.diff(edges)
    lags = []
    for moment in np.flatnonzero(np.diff(enough) > 0) + 1:
        begin = int(np.searchsorted(edges, moment * moment_s))
        there = np.flatnonzero((serving[begin:] >= enough[moment]) | (wanted[begin:] < enough[moment]))
        until_s = edges[begin + there[0]] if len(there) else end_s
        lags.append(float(until_s - edges[begin]))
    return float(lasts[serving < wanted].sum()), lags
