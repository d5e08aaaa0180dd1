"""Compare ways to run batch work beside a fleet's own traffic: in its idle hours, on a separate fleet, or at an API.

The fleet is bought again for both (``money.purchase_program``): batch work may use the capacity that the demand leaves
free in any hour, up to what machines carry under the SLO, and buys the rest in the cheapest hours. The hour with most
batch work is then simulated, with batch requests served after all others. A separate fleet has no SLO, so its machines
run full batches. It may also take only what does not fit into the fleet's idle hours. The answer is the cheapest of
these ways: one fleet for both may cost more than two.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from pydantic import NonNegativeFloat

from tokonomics.errors import BadInput, option
from tokonomics.fleet.offers import Machines
from tokonomics.fleet.replay import MOST_REQUESTS, FleetReplay, ReplayCase, places_of, replay
from tokonomics.fleet.traffic import FleetTraffic
from tokonomics.money.purchase_search import optimal_fleet
from tokonomics.money.purchases import BatchWork, FleetLimits, FleetPlan, demand_of
from tokonomics.serving.steady import ReplicaCurve
from tokonomics.sizing.setup import Say, silent
from tokonomics.traffic.slo import Slo
from tokonomics.traffic.trace import Trace, make_trace
from tokonomics.types import Noun
from tokonomics.units import HOURS_PER_MONTH, SECONDS_PER_HOUR, TOKENS_PER_MTOK, percent


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
