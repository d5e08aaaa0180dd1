"""Cheap or quick: the best prices per million tokens for every time per token and every time to the first one.

Every deployment that fits, on its cheapest machines, on the fewest replicas that carry the load and on up to eight
times as many, in the closed form and without SLOs: more replicas run smaller batches, which cost more and answer
sooner. A point is on a front when none is both cheaper and quicker. The bill of a fleet is fixed; its latencies have
the 80 % intervals of such deployments.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt

from tokonomics.catalog.precision import Precision
from tokonomics.physics.deployment import Deployment
from tokonomics.physics.intervals import Interval, interval
from tokonomics.planner.plan import Question, Study
from tokonomics.planner.prospects import layout, prospects
from tokonomics.planner.search import late_in_the_mean
from tokonomics.sizing.hosts import Hosts, Machine
from tokonomics.sizing.load import Load
from tokonomics.sizing.screen import Screened, screen
from tokonomics.sizing.spare import machines_for, replicas_on
from tokonomics.types import Noun, copied
from tokonomics.units import HOURS_PER_MONTH, SECONDS_PER_HOUR, TOKENS_PER_MTOK

_MOST_TIMES = 8
_STEPS = 6
"""Numbers of replicas between the fewest and eight times as many: half a doubling apart."""


class FrontierPoint(Noun):
    """One way to serve the traffic: a price and how quick it is, in the mean."""

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
    meets: bool = Field(alias="keeps")
    """The SLOs, in the mean."""


class Frontier(Noun):
    """What no other candidate beats."""

    tpot: tuple[FrontierPoint, ...]
    """None is cheaper and has a shorter time per token: the quickest first."""
    ttft: tuple[FrontierPoint, ...]
    by_gpu_tpot: tuple[FrontierPoint, ...]
    """The front of every GPU on its own."""
    by_gpu_ttft: tuple[FrontierPoint, ...]
    deployments: NonNegativeInt
    """Looked at."""
    fleets: NonNegativeInt
    pick_tpot: Interval | None = None
    """Of the plan's pick, around its mean; None where there is none, or it writes nothing."""
    pick_ttft: Interval | None = None

    @property
    def points(self) -> tuple[FrontierPoint, ...]:
        """Every point that is on a front of its GPU, once, the cheapest first."""
        found = dict.fromkeys((*self.by_gpu_tpot, *self.by_gpu_ttft))
        return tuple(sorted(found, key=lambda point: point.usd_per_mtok))


@dataclass(frozen=True)
class _FrontierFleet:
    screened: Screened
    replicas: int
    usd_per_hour: float
    tpot_s: float
    ttft_s: float


def frontier_of(study: Study) -> Frontier:
    """The fronts around a plan, from the machines that it looked at, and the intervals of its pick."""
    made, best = frontier(study.question, study.hosts), study.plan.best
    if best is None:
        return made
    tpot, ttft = _factors(study.of(best).deployment)
    means = {"pick_tpot": (best.tpot_s.mean, tpot), "pick_ttft": (best.ttft_s.mean, ttft)}
    return made.model_copy(
        update={name: _around(mid, factors) for name, (mid, factors) in means.items() if mid is not None}
    )


def frontier(question: Question, hosts: Sequence[Hosts] | None = None) -> Frontier:
    """The fronts of price against both latencies, over every candidate: those that the plan leaves out too.

    ``hosts`` are what the question's ``prospects`` found, where that is known.
    """
    load = question.load.within(question.model.max_context)
    found = prospects(question, load) if hosts is None else hosts
    seen = (screen(machines.deployment, machines, load, ()) for machines in found)
    screened = [candidate for candidate in seen if isinstance(candidate, Screened)]
    fleets = [fleet for candidate in screened for fleet in _fleets(candidate, load)]
    by_gpu: dict[str, list[_FrontierFleet]] = defaultdict(list)
    for fleet in fleets:
        by_gpu[fleet.screened.deployment.gpu.key].append(fleet)

    known: dict[int, FrontierPoint] = {}

    def points(kept: Iterable[_FrontierFleet]) -> tuple[FrontierPoint, ...]:
        return tuple(point(fleet) for fleet in kept)

    def point(fleet: _FrontierFleet) -> FrontierPoint:
        if id(fleet) not in known:
            known[id(fleet)] = _point(question, load, fleet)
        return known[id(fleet)]

    def fronts(quick: Callable[[_FrontierFleet], float]) -> tuple[tuple[FrontierPoint, ...], tuple[FrontierPoint, ...]]:
        own = [fleet for group in by_gpu.values() for fleet in front(group, quick)]
        return points(front(own, quick)), points(own)

    tpot, by_gpu_tpot = fronts(lambda fleet: fleet.tpot_s)
    ttft, by_gpu_ttft = fronts(lambda fleet: fleet.ttft_s)
    return Frontier(
        tpot=tpot,
        ttft=ttft,
        by_gpu_tpot=by_gpu_tpot,
        by_gpu_ttft=by_gpu_ttft,
        deployments=len(screened),
        fleets=len(fleets),
    )


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


def _fleets(screened: Screened, load: Load) -> Iterable[_FrontierFleet]:
    """From the fewest replicas to eight times as many."""
    rate = load.workload.rate
    fewest = max(1, math.ceil(rate / screened.capacity.rate - 1e-9))
    for replicas in sorted({math.ceil(fewest * _MOST_TIMES ** (step / _STEPS) - 1e-9) for step in range(_STEPS + 1)}):
        usd = screened.hosts.usd_per_hour(replicas)
        if math.isfinite(usd):
            steady = screened.steady(rate / replicas)
            yield _FrontierFleet(screened, replicas, usd, steady.tpot_s, steady.ttft_s)


def _point(question: Question, load: Load, fleet: _FrontierFleet) -> FrontierPoint:
    deployment, workload, spare = fleet.screened.deployment, load.workload, question.limits.spare

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
        meets=late_in_the_mean(fleet.screened, workload.rate / fleet.replicas, question.slos) is None,
    )


def _factors(deployment: Deployment) -> tuple[Interval, Interval]:
    """The ends of the 80 % intervals of TPOT and TTFT, as shares of what is predicted."""
    return interval(1.0, "tpot", deployment), interval(1.0, "ttft", deployment)


def _around(mid: float, factors: Interval) -> Interval:
    return Interval(low=mid * factors.low, mid=mid, high=mid * factors.high)
