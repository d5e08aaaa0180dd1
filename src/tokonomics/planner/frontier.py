"""Cheap or quick: the best prices per million tokens for every time per token and every time to the first one.

Every deployment that fits, on its cheapest machines, on the fewest replicas that carry the load and on up to eight
times as many, in the closed form: more replicas run smaller batches, which cost more and answer sooner. Whether a fleet
meets the SLOs is the plan's own verdict: what it simulated, and else the rule that it sizes by without simulation. So
no point that meets them costs less than the pick. A point is on a front when none that meets the SLOs is both cheaper
and quicker. The bill of a fleet is fixed; its latencies have the 80 % intervals of such deployments.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from pydantic import NonNegativeInt, PositiveFloat, PositiveInt

from tokonomics.catalog.layers import Precision
from tokonomics.physics.deployment import Deployment
from tokonomics.physics.intervals import Interval, interval
from tokonomics.planner.plan import Study
from tokonomics.planner.prospects import layout
from tokonomics.planner.search import WITHIN_REASON, Placed, Search, late_in_the_mean
from tokonomics.sizing.hosts import Machine
from tokonomics.sizing.refusal import NotServed, Reason
from tokonomics.sizing.screen import Screened, screen
from tokonomics.sizing.spare import machines_for, replicas_on
from tokonomics.types import Noun, copied
from tokonomics.units import HOURS_PER_MONTH, SECONDS_PER_HOUR, TOKENS_PER_MTOK, percent, plural

_MOST_TIMES = 8
_STEPS = 6
"""Numbers of replicas between the fewest and eight times as many: half a doubling apart."""


class FrontierPoint(Noun):
    """One way to serve the traffic: a price, how quick it is in the mean, and whether it meets the SLOs."""

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
    usd_per_mtok: PositiveFloat
    """All tokens, prompts and answers; the whole bill."""
    tpot_s: PositiveFloat
    ttft_s: PositiveFloat
    tpot_range: Interval
    """Around the mean, as ``ttft_range``."""
    ttft_range: Interval
    meets_slo: bool
    """Every SLO, as the plan judges it; where there is none, whether it keeps up."""
    why_not: str | None
    """What it misses; None where it meets the SLOs."""
    simulated: bool
    """The verdict rests on simulations; else on the closed form's means and the load that is planned without them."""
    front_tpot: bool
    """None that meets the SLOs is cheaper and has a shorter time per token."""
    front_ttft: bool


class Frontier(Noun):
    """Fleets that are not beaten on their GPU: among those that meet the SLOs, or among all."""

    points: tuple[FrontierPoint, ...]
    """The cheapest first; none costs more than ten times the pick."""
    deployments: NonNegativeInt
    """Looked at."""
    fleets: NonNegativeInt
    pick_tpot: Interval | None
    """Of the plan's pick, around its mean; None where it writes nothing."""
    pick_ttft: Interval | None

    @property
    def tpot(self) -> tuple[FrontierPoint, ...]:
        """The front of price and time per token, the quickest first."""
        return tuple(sorted((point for point in self.points if point.front_tpot), key=lambda point: point.tpot_s))

    @property
    def ttft(self) -> tuple[FrontierPoint, ...]:
        """The front of price and time to the first token, the quickest first."""
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
    """The fronts around a plan, from the machines that it looked at, and the intervals of its pick; None without one.

    Candidates that the plan leaves out for their price are looked at too.
    """
    best = study.plan.best
    if best is None:
        return None
    load, verdicts = study.question.load, _Verdicts.of(study)
    seen = (screen(hosts.deployment, hosts, load, ()) for hosts in study.hosts)
    screened = [candidate for candidate in seen if isinstance(candidate, Screened)]
    fleets = [fleet for candidate in screened for fleet in verdicts.fleets(candidate)]
    by_gpu: dict[str, list[_FrontierFleet]] = defaultdict(list)
    for fleet in fleets:
        by_gpu[fleet.screened.deployment.gpu.key].append(fleet)
    kept: set[_FrontierFleet] = set()
    fronts = []
    for quick in (lambda fleet: fleet.tpot_s, lambda fleet: fleet.ttft_s):
        own = [fleet for group in by_gpu.values() for fleet in front(_met(group), quick)]
        kept.update(own, *(front(group, quick) for group in by_gpu.values()))
        fronts.append(set(front(own, quick)))
    points = [_point(study, fleet, fleet in fronts[0], fleet in fronts[1]) for fleet in kept]
    tpot, ttft = _factors(study.of(best).deployment)
    return Frontier(
        points=tuple(sorted(points, key=lambda point: (point.usd_per_mtok, point.tpot_s, point.ttft_s, point.layout))),
        deployments=len(screened),
        fleets=len(fleets),
        pick_tpot=_around(best.tpot_s.mean, tpot) if best.tpot_s.mean is not None else None,
        pick_ttft=_around(best.ttft_s.mean, ttft) if best.ttft_s.mean is not None else None,
    )


def _met(fleets: Iterable[_FrontierFleet]) -> list[_FrontierFleet]:
    return [fleet for fleet in fleets if fleet.why_not is None]


def front(fleets: Iterable[_FrontierFleet], quick: Callable[[_FrontierFleet], float]) -> list[_FrontierFleet]:
    """Those that none beats in both; of equals, the one that keeps most of the checkpoint."""

    def in_order(fleet: _FrontierFleet) -> tuple[float, float, int, int]:
        deployment = fleet.screened.deployment
        return quick(fleet), fleet.usd_per_hour, -deployment.weights.bits, -deployment.kv.bits

    kept: list[_FrontierFleet] = []
    for fleet in sorted(fleets, key=in_order):
        if not kept or fleet.usd_per_hour < kept[-1].usd_per_hour:
            kept.append(fleet)
    return kept


@dataclass(frozen=True)
class _Verdicts:
    """What the plan found of each deployment, and what it would say without simulation of those it did not size."""

    study: Study
    usd_per_hour: float
    """The pick's: what costs less does not meet the SLOs."""
    sized: Mapping[Deployment, Placed]
    too_slow: Mapping[Deployment, str]
    """Why no number of replicas meets the SLOs."""
    closed_form: Search

    @classmethod
    def of(cls, study: Study) -> "_Verdicts":
        search = study.search
        closed_form = Search(search.sought, simulate=False, max_utilization=search.max_utilization)
        sized = {placed.deployment: placed for placed in search.sized if placed.screened.hosts.prefill is None}
        slow = {where: refusal.reason for where, refusal in search.refused if refusal.kind is Reason.too_slow}
        lowest = min(placed.usd_per_hour for placed in search.sized)
        return cls(study, lowest, sized, slow, closed_form)

    def fleets(self, screened: Screened) -> Iterable[_FrontierFleet]:
        """From the fewest replicas to eight times as many, and the fewest that meet the SLOs."""
        question, deployment = self.study.question, screened.deployment
        rate, sized = question.load.workload.rate, self.sized.get(deployment)
        fewest = max(1, math.ceil(rate / screened.capacity.rate - 1e-9))
        counts = {math.ceil(fewest * _MOST_TIMES ** (step / _STEPS) - 1e-9) for step in range(_STEPS + 1)}
        in_time: Screened | NotServed | None = None
        if sized:
            counts.add(sized.replicas)
        elif deployment not in self.too_slow:
            in_time = screen(deployment, screened.hosts, question.load, question.slos)
            counts |= {self.closed_form.at_least(in_time)} if isinstance(in_time, Screened) else set()
        simulated = question.simulate and (sized is not None or deployment in self.too_slow)
        for replicas in sorted(counts):
            usd = screened.hosts.usd_per_hour(replicas)
            if usd <= WITHIN_REASON * self.usd_per_hour:
                steady = screened.steady(rate / replicas)
                why_not = self._why_not(deployment, in_time, replicas, usd)
                yield _FrontierFleet(screened, replicas, usd, steady.tpot_s, steady.ttft_s, why_not, simulated)

    def _why_not(
        self, deployment: Deployment, in_time: Screened | NotServed | None, replicas: int, usd_per_hour: float
    ) -> str | None:
        """What so many replicas miss; None where they meet the SLOs."""
        if sized := self.sized.get(deployment):
            return None if replicas >= sized.replicas else f"it takes {plural(sized.replicas, 'replica')}"
        if in_time is None or isinstance(in_time, NotServed):
            return self.too_slow[deployment] if in_time is None else in_time.reason
        rate, slos = self.study.question.load.workload.rate, self.study.question.slos
        if replicas < (least := self.closed_form.at_least(in_time)):
            load = percent(rate / (replicas * in_time.capacity.rate))
            return f"load {load} of capacity: {plural(least, 'replica')} leave room for bursts"
        late = late_in_the_mean(in_time, rate / replicas, slos)
        cheaper = usd_per_hour < self.usd_per_hour * (1 - 1e-9)
        return late or ("the plan found that it takes more replicas" if cheaper else None)


def _point(study: Study, fleet: _FrontierFleet, front_tpot: bool, front_ttft: bool) -> FrontierPoint:
    question, deployment = study.question, fleet.screened.deployment
    workload, spare = question.load.workload, question.limits.spare

    def bill(machine: Machine) -> tuple[bool, float]:
        """Those that take more GPUs than allowed come last."""
        number = machines_for(deployment, machine.offer, fleet.replicas, spare)
        too_many = number * machine.offer.gpus > (fleet.screened.hosts.max_gpus or math.inf)
        return too_many, number * machine.usd_per_hour

    offer = min(fleet.screened.hosts.machines, key=bill).offer
    tpot, ttft = _factors(deployment)
    return FrontierPoint(
        gpu=deployment.gpu.key,
        layout=layout(deployment),
        weights=deployment.weights,
        engine=deployment.engine.key,
        gpus_per_replica=deployment.gpus,
        replicas=replicas_on(deployment, offer, fleet.replicas, spare),
        **copied(offer, "provider", "region", "instance"),
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
    """The ends of the 80 % intervals of TPOT and TTFT, as shares of what is predicted."""
    return interval(1.0, "tpot", deployment), interval(1.0, "ttft", deployment)


def _around(mid: float, factors: Interval) -> Interval:
    return Interval(low=mid * factors.low, mid=mid, high=mid * factors.high)
