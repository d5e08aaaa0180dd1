"""Trade price against speed: find the best prices per million tokens for every TPOT and every TTFT.

Each deployment that fits is put on its cheapest machines, on the fewest replicas that carry the load and on up to eight
times as many, in the closed form: more replicas run smaller batches, which cost more and answer sooner. The plan
decides whether a fleet meets the SLOs: by its simulation, or else by the rule that it sizes by without simulation. So
no point that meets them costs less than the pick. A point is on a front if none that meets the SLOs is both cheaper and
quicker. The bill of a fleet is fixed; its latencies have the 80 % intervals of such deployments.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from pydantic import NonNegativeInt, PositiveFloat, PositiveInt

from tokonomics.catalog.layers import Precision
from tokonomics.physics.deployment import Deployment
from tokonomics.physics.intervals import Interval, interval
from tokonomics.planner.plan import Study
from tokonomics.planner.prospects import layout
from tokonomics.planner.search import WITHIN_REASON, Placed, Search, cheapest_machine, late_in_the_mean
from tokonomics.sizing.layouts import NotServed, Reason
from tokonomics.sizing.screen import Screened, screen
from tokonomics.types import Noun, copied
from tokonomics.units import HOURS_PER_MONTH, SECONDS_PER_HOUR, TOKENS_PER_MTOK, percent, plural

_MOST_TIMES = 8
_STEPS = 6  # numbers of replicas between the fewest and eight times as many: half a doubling apart


class FrontierPoint(Noun):
    """One way to serve the traffic: its price, its mean latencies, and whether it meets the SLOs."""

    gpu: str
    layout: str
    weights: Precision
    engine: str
    gpus_per_replica: PositiveInt
    replicas: PositiveInt
    provider: str
    region: str
    instance: str
    usd_per_month: PositiveFloat
    usd_per_mtok: PositiveFloat  # all tokens, prompts and answers; the whole bill
    tpot_s: PositiveFloat
    ttft_s: PositiveFloat
    tpot_range: Interval  # around the mean, as ``ttft_range``
    ttft_range: Interval
    meets_slo: bool  # every SLO, as the plan judges it; without SLOs, whether it keeps up
    why_not: str | None  # what it misses; None if it meets the SLOs
    simulated: bool
    """Whether simulations decided ``meets_slo``; otherwise the closed form's means and the load planned without
    simulation."""
    front_tpot: bool  # no other that meets the SLOs is cheaper with a shorter time per token
    front_ttft: bool


class Frontier(Noun):
    """Fleets that no other on their GPU beats: among those that meet the SLOs, or among all."""

    points: tuple[FrontierPoint, ...]  # cheapest first; none costs more than ten times the pick
    deployments: NonNegativeInt  # number of deployments compared
    fleets: NonNegativeInt
    pick_tpot: Interval | None  # of the plan's pick, around its mean; None if it writes nothing
    pick_ttft: Interval | None

    @property
    def tpot(self) -> tuple[FrontierPoint, ...]:
        """Return the front of price and time per token, quickest first."""
        return tuple(sorted((point for point in self.points if point.front_tpot), key=lambda point: point.tpot_s))

    @property
    def ttft(self) -> tuple[FrontierPoint, ...]:
        """Return the front of price and time to the first token, quickest first."""
        return tuple(sorted((point for point in self.points if point.front_ttft), key=lambda point: point.ttft_s))


@dataclass(frozen=True, eq=False)
class _FrontierFleet:
    screened: Screened
    replicas: int
    usd_per_hour: float
    tpot_s: float
    ttft_s: float
    why_not: str | None
    simulated: bool


def frontier_of(study: Study) -> Frontier | None:
    """Find the fronts around a plan among the machines it considered, and its pick's intervals; None without a pick.

    Candidates that the plan leaves out for their price are considered too.
    """
    best = study.plan.best
    if best is None:
        return None
    seen = (screen(hosts.deployment, hosts, study.question.load, ()) for hosts in study.hosts)
    screened = [candidate for candidate in seen if isinstance(candidate, Screened)]
    fleets = list(_fleets(study, screened))
    by_gpu: dict[str, list[_FrontierFleet]] = defaultdict(list)
    for fleet in fleets:
        by_gpu[fleet.screened.deployment.gpu.key].append(fleet)
    kept: set[_FrontierFleet] = set()
    fronts = []
    for quick in (lambda fleet: fleet.tpot_s, lambda fleet: fleet.ttft_s):
        met = ([fleet for fleet in group if fleet.why_not is None] for group in by_gpu.values())
        own = [fleet for group in met for fleet in front(group, quick)]
        kept.update(own, *(front(group, quick) for group in by_gpu.values()))
        fronts.append(set(front(own, quick)))
    points = [_point(study, fleet, fleet in fronts[0], fleet in fronts[1]) for fleet in kept]
    tpot, ttft = _factors(study.ranked_as(best).sized.deployment)
    return Frontier(
        points=tuple(sorted(points, key=lambda point: (point.usd_per_mtok, point.tpot_s, point.ttft_s, point.layout))),
        deployments=len(screened),
        fleets=len(fleets),
        pick_tpot=_around(best.tpot_s.mean, tpot) if best.tpot_s.mean is not None else None,
        pick_ttft=_around(best.ttft_s.mean, ttft) if best.ttft_s.mean is not None else None,
    )


def front(fleets: Iterable[_FrontierFleet], quick: Callable[[_FrontierFleet], float]) -> list[_FrontierFleet]:
    """Return the fleets that none beats in both; of equal ones, the one closest to the checkpoint."""

    def in_order(fleet: _FrontierFleet) -> tuple[float, float, int, int]:
        deployment = fleet.screened.deployment
        return quick(fleet), fleet.usd_per_hour, -deployment.weights.bits, -deployment.kv.bits

    kept: list[_FrontierFleet] = []
    for fleet in sorted(fleets, key=in_order):
        if not kept or fleet.usd_per_hour < kept[-1].usd_per_hour:
            kept.append(fleet)
    return kept


def _fleets(study: Study, candidates: Iterable[Screened]) -> Iterator[_FrontierFleet]:
    """Yield each deployment on the fewest replicas up to eight times as many, and on the fewest that meet the SLOs.

    If the plan did not size a deployment, the fewest are those that it would take without simulation.
    """
    question, search = study.question, study.search
    closed_form = Search(search.sought, simulate=False)
    sized = {placed.deployment: placed for placed in search.sized if placed.screened.hosts.prefill is None}
    too_slow = {where: refusal for where, refusal in search.refused if refusal.kind is Reason.too_slow}
    pick_usd = min(placed.usd_per_hour for placed in search.sized)
    rate = question.load.workload.rate
    for screened in candidates:
        deployment, hosts = screened.deployment, screened.hosts
        fewest = max(1, math.ceil(rate / screened.capacity.rate - 1e-9))
        counts = {math.ceil(fewest * _MOST_TIMES ** (step / _STEPS) - 1e-9) for step in range(_STEPS + 1)}
        known = sized.get(deployment) or too_slow.get(deployment)
        verdict = known or screen(deployment, hosts, question.load, question.slos)
        least = verdict.replicas if isinstance(verdict, Placed) else 0
        least = closed_form.at_least(verdict) if isinstance(verdict, Screened) else least
        for replicas in sorted(counts | {least} if least else counts):
            usd = hosts.usd_per_hour(replicas)
            if usd > WITHIN_REASON * pick_usd:
                continue
            steady = screened.steady(rate / replicas)
            why_not = None
            if isinstance(verdict, NotServed):
                why_not = verdict.reason
            elif isinstance(verdict, Placed):
                why_not = f"it takes {plural(least, 'replica')}" if replicas < least else None
            elif replicas < least:
                load = percent(rate / (replicas * verdict.capacity.rate))
                why_not = f"load {load} of capacity: {plural(least, 'replica')} leave room for bursts"
            elif not (why_not := late_in_the_mean(verdict, question.load.held_rate / replicas, question.slos)):
                is_cheaper = usd < pick_usd * (1 - 1e-9)  # a fleet cheaper than the pick misses an SLO
                why_not = "the plan found that it takes more replicas" if is_cheaper else None
            simulated = question.simulate and known is not None
            yield _FrontierFleet(screened, replicas, usd, steady.tpot_s, steady.ttft_s, why_not, simulated)


def _point(study: Study, fleet: _FrontierFleet, front_tpot: bool, front_ttft: bool) -> FrontierPoint:
    question, deployment = study.question, fleet.screened.deployment
    machine, workload = cheapest_machine(fleet.screened.hosts, fleet.replicas), question.load.workload
    assert machine is not None
    tpot, ttft = _factors(deployment)
    return FrontierPoint(
        gpu=deployment.gpu.key,
        layout=layout(deployment),
        weights=deployment.weights,
        engine=deployment.engine.key,
        gpus_per_replica=deployment.gpus,
        replicas=sum(fleet.screened.hosts.counts_on(machine.offer, fleet.replicas)),
        **copied(machine.offer, "provider", "region", "instance"),
        **copied(fleet, "tpot_s", "ttft_s"),
        tpot_range=_around(fleet.tpot_s, tpot),
        ttft_range=_around(fleet.ttft_s, ttft),
        usd_per_month=fleet.usd_per_hour * HOURS_PER_MONTH,
        usd_per_mtok=fleet.usd_per_hour / SECONDS_PER_HOUR / workload.tokens_per_second * TOKENS_PER_MTOK,
        meets_slo=fleet.why_not is None,
        **copied(fleet, "why_not", "simulated"),
        front_tpot=front_tpot,
        front_ttft=front_ttft,
    )


def _factors(deployment: Deployment) -> tuple[Interval, Interval]:
    """Return the ends of the 80 % intervals of TPOT and TTFT, as factors of the prediction."""
    return interval(1.0, "tpot", deployment), interval(1.0, "ttft", deployment)


def _around(mid: float, factors: Interval) -> Interval:
    return Interval(low=mid * factors.low, mid=mid, high=mid * factors.high)
