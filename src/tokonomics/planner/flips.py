"""What would make another GPU the cheapest: another price, more or fewer requests, longer or shorter ones.

Prices: bills are whole machines times a price, so the rise or fall that makes two of them equal is exact. Traffic: the
closed form, calibrated by the simulator (capacity of a replica = closed form × simulated ÷ closed form, found once a
candidate), walks away from the plan in both directions until another GPU looks cheaper; then both sides are simulated,
the crossing is narrowed down to one in fifty, and a flip that the simulation does not confirm is not reported.
"""

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from itertools import product

import numpy as np
from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt

from tokonomics.physics.deployment import Deployment
from tokonomics.planner.plan import Study
from tokonomics.planner.plan_answer import Candidate
from tokonomics.planner.prospects import layout, prospects
from tokonomics.planner.search import CLOSED_FORM_UTILIZATION, Kind, Placed, Sought, kind_of
from tokonomics.planner.what_if import highest_rate, resize, stretched
from tokonomics.serving.capacity import MOST_REPLICAS
from tokonomics.sizing.hosts import Hosts
from tokonomics.sizing.layouts import why_not
from tokonomics.sizing.load import Load
from tokonomics.sizing.refusal import NotServed
from tokonomics.sizing.screen import Screened, least_by_arithmetic, screen
from tokonomics.sizing.setup import Say, silent
from tokonomics.traffic.workload import Workload
from tokonomics.types import Noun, copied
from tokonomics.units import HOURS_PER_MONTH

RATE, PROMPTS, ANSWERS = "requests a second", "prompt tokens", "answer tokens"
FURTHEST = 8.0
"""Times more or less: beyond, it is another plan."""
_RATE_STEPS, _LENGTH_STEPS = 24, 6
"""On the way to the furthest. Rates are cheap to try; every length takes new curves."""
_LOWEST_RATIO, _HIGHEST_RATIO = 0.3, 1.1
"""Simulated ÷ closed-form capacity: what is looked at when a candidate is calibrated."""
_CALIBRATED = 1.08
_CLOSE_ENOUGH = 1.02
_GLANCE = 5000
"""Requests of a calibration: it proposes, and all requests decide."""
_LOWER, _SAME = 1 - 1e-9, 1 + 1e-12


class PriceFlip(Noun):
    """Prices at which the pick and a rival cost the same."""

    gpu: str
    provider: str
    region: str
    instance: str
    usd_per_month: PositiveFloat
    """Of the rival."""
    pick_may_rise: NonNegativeFloat
    """Share by which the price of the pick's machine may rise."""
    rival_must_fall: NonNegativeFloat
    """Share by which the price of the rival's must fall instead."""


class Side(Noun):
    """The two cheapest ways on one side of a crossing, as simulated."""

    value: PositiveFloat
    """Of what is changed."""
    pick_usd_per_month: PositiveFloat | None
    """The cheapest on the pick's GPU; None where it cannot serve."""
    rival_usd_per_month: PositiveFloat | None


class Flip(Noun):
    """Where another GPU becomes the cheapest."""

    what: str
    """``requests a second``, ``prompt tokens`` or ``answer tokens``."""
    factor: PositiveFloat
    """Of the plan's value."""
    before: Side
    after: Side
    gpu: str
    """The rival's."""
    rival: str
    """Its layout."""
    replicas: PositiveInt
    """That serve; spare ones left out."""


class Flips(Noun):
    """What would flip the choice."""

    other_offer: PriceFlip | None
    """The nearest price on another machine, of whatever GPU."""
    other_gpu: PriceFlip | None
    """Against the runner-up, if prices of the pick's GPU rise everywhere."""
    traffic: tuple[Flip, ...]
    """The nearest first."""
    steady: tuple[str, ...]
    """Changes up to the furthest that do not flip it, such as ``prompt tokens ÷ 8``."""


def flips(study: Study, only: Collection[str] | None = None, progress: Say = silent) -> Flips | None:
    """The nearest flips of each kind, or along ``only`` these axes of the traffic; None where there is no pick.

    An axis takes some hundred simulations.
    """
    pick = study.plan.best
    if pick is None:
        return None
    load, context = study.question.load, study.question.model.max_context
    mean = load.workload
    axes = [
        Axis(RATE, mean.rate, lambda by: load.at(mean.rate * by), _RATE_STEPS),
        Axis(PROMPTS, mean.input_tokens, lambda by: stretched(load, inputs=by, context=context)),
    ]
    if mean.writes:
        axes.append(Axis(ANSWERS, mean.output_tokens, lambda by: stretched(load, outputs=by, context=context)))
    walked = [axis for axis in axes if only is None or axis.name in only]
    # What does not fit now may fit shorter requests.
    candidates = prospects(study.question, stretched(load, 1 / FURTHEST, 1 / FURTHEST)) if walked else ()
    own = [candidate for candidate in candidates if candidate.deployment.gpu.key == pick.gpu]
    others = [candidate for candidate in candidates if candidate.deployment.gpu.key != pick.gpu]
    found: list[Flip] = []
    steady: list[str] = []
    ratios: dict[Kind, float] = {}
    for axis, sign in product(walked, (-1, 1)):
        progress(f"{'more' if sign > 0 else 'fewer'} {axis.name}")
        flip = _Walk(study, own, others, axis, ratios).nearest(sign)
        if flip:
            found.append(flip)
        else:
            steady.append(f"{axis.name} {'×' if sign > 0 else '÷'} {FURTHEST:g}")
    here = pick.provider, pick.region, pick.instance
    other = next((row for row in study.plan.ranked if (row.provider, row.region, row.instance) != here), None)
    return Flips(
        other_offer=_price_flip(pick, other),
        other_gpu=_price_flip(pick, study.plan.runner_up()),
        traffic=tuple(sorted(found, key=lambda flip: abs(math.log(flip.factor)))),
        steady=tuple(steady),
    )


def _price_flip(pick: Candidate, rival: Candidate | None) -> PriceFlip | None:
    if rival is None:
        return None
    return PriceFlip(
        **copied(rival, "gpu", "provider", "region", "instance", "usd_per_month"),
        pick_may_rise=max(0.0, rival.usd_per_month / pick.usd_per_month - 1),
        rival_must_fall=max(0.0, 1 - pick.usd_per_month / rival.usd_per_month),
    )


# --- traffic --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Axis:
    """One thing about the traffic that may be otherwise."""

    name: str
    value: float
    load: Callable[[float], Load]
    """At so many times the value."""
    steps: int = _LENGTH_STEPS


@dataclass
class _Walk:
    """Away from the plan along one axis."""

    study: Study
    own: list[Hosts]
    """What stands on the pick's GPU."""
    others: list[Hosts]
    axis: Axis
    ratios: dict[Kind, float]
    """Simulated ÷ closed-form capacity, by kind of hardware."""
    sized: dict[tuple[Deployment, float], Placed | None] = field(default_factory=dict)
    loads: dict[float, Load] = field(default_factory=dict)
    sought: dict[float, Sought] = field(default_factory=dict)
    orders: dict[tuple[int, Workload], list[tuple[float, int, Hosts]]] = field(default_factory=dict)

    def nearest(self, sign: int) -> Flip | None:
        """The first crossing in one direction: on the pick's side of it nothing on another GPU is cheaper."""
        nearer = 1.0
        for step in range(1, self.axis.steps + 1):
            factor = FURTHEST ** (sign * step / self.axis.steps)
            best = self._cheapest(self.own, factor, math.inf)
            rival = self._cheapest(self.others, factor, self._estimate(best, factor) if best else math.inf)
            if rival:
                if self._flipped(rival.hosts, factor):
                    return self._crossing(rival.hosts, nearer, factor)
                # The closed form was too hopeful about this rival.
                self.ratios[kind_of(rival.deployment)] /= _CLOSE_ENOUGH
            nearer = factor
        # It may have been too cautious about all of them: the furthest is simulated.
        missed = self._cheaper(nearer, self._lowest(nearer))
        return self._crossing(missed, 1.0, nearer) if missed else None

    def _load(self, factor: float) -> Load:
        if factor not in self.loads:
            self.loads[factor] = self.axis.load(factor)
        return self.loads[factor]

    # The proposal: closed form, calibrated.

    def _cheapest(self, candidates: list[Hosts], factor: float, below: float) -> Screened | None:
        """The cheapest by the calibrated closed form, if cheaper than ``below`` dollars an hour."""
        question, load = self.study.question, self._load(factor)
        best: Screened | None = None
        for bound, _, hosts in self._in_order(candidates, load):
            if bound >= below * _LOWER:
                break
            if why_not(hosts.deployment, load.longest):
                continue
            screened = screen(hosts.deployment, hosts, load, question.slos)
            if isinstance(screened, NotServed) or self._estimate(screened, factor) >= below * _LOWER:
                continue
            kind = kind_of(hosts.deployment)
            if kind not in self.ratios:
                self.ratios[kind] = self._calibrated(screened, load)
            if (usd := self._estimate(screened, factor)) < below * _LOWER:
                best, below = screened, usd
        return best

    def _in_order(self, candidates: list[Hosts], load: Load) -> list[tuple[float, int, Hosts]]:
        """By the bill that arithmetic alone demands."""
        key = id(candidates), load.workload
        if key not in self.orders:
            self.orders[key] = sorted(
                (hosts.usd_per_hour(least_by_arithmetic(hosts.deployment, load)), place, hosts)
                for place, hosts in enumerate(candidates)
            )
        return self.orders[key]

    def _estimate(self, screened: Screened, factor: float) -> float:
        """Dollars an hour; as hopeful as can be before the candidate is calibrated."""
        ratio = self.ratios.get(kind_of(screened.deployment), _HIGHEST_RATIO)
        replicas = max(1, math.ceil(self._load(factor).workload.rate / (screened.capacity.rate * ratio) - 1e-9))
        return screened.hosts.usd_per_hour(replicas)

    def _calibrated(self, screened: Screened, load: Load) -> float:
        question = self.study.question
        if not question.simulate:
            return question.limits.max_utilization or CLOSED_FORM_UTILIZATION
        replicas = max(1, round(load.workload.rate / screened.capacity.rate))
        few = replace(load, trace=load.trace.take(np.arange(min(_GLANCE, len(load.trace)))))
        light = few.at(_LOWEST_RATIO * replicas * screened.capacity.rate)
        found = highest_rate(question, screened, replicas, light, close_enough=_CALIBRATED)
        return min(found.rate / (replicas * screened.capacity.rate), question.limits.max_utilization or math.inf)

    # The proof: simulation of both sides.

    def _crossing(self, rival: Hosts, near: float, far: float) -> Flip:
        """Where a rival that is cheaper at ``far`` becomes so, or another one before it."""
        if near != 1 and self._flipped(rival, near):
            near, far = 1.0, near
        near, far = self._narrowed(rival, near, far)
        while near != 1 and (sooner := self._cheaper(near, self._lowest(near))):
            rival = sooner
            near, far = self._narrowed(rival, 1.0, near)
        while cheaper := self._cheaper(far, self._usd(rival, far)):
            rival = cheaper
        sized = self._sized(rival, far)
        return Flip(
            what=self.axis.name,
            factor=far,
            before=self._side(rival, near),
            after=self._side(rival, far),
            gpu=rival.deployment.gpu.key,
            rival=layout(rival.deployment),
            replicas=sized.replicas if sized else 0,
        )

    def _narrowed(self, rival: Hosts, near: float, far: float) -> tuple[float, float]:
        """Halve the way until both sides are close."""
        while max(far / near, near / far) > _CLOSE_ENOUGH:
            middle = math.sqrt(near * far)
            near, far = (near, middle) if self._flipped(rival, middle) else (middle, far)
        return near, far

    def _flipped(self, rival: Hosts, factor: float) -> bool:
        """The rival serves, and nothing on the pick's GPU does for as little."""
        usd = self._usd(rival, factor)
        return math.isfinite(usd) and self._serving(self.own, factor, usd) is None

    def _cheaper(self, factor: float, usd_per_hour: float) -> Hosts | None:
        """What on another GPU serves for less."""
        if math.isinf(usd_per_hour):
            found = self._cheapest(self.others, factor, math.inf)
            return found.hosts if found and math.isfinite(self._usd(found.hosts, factor)) else None
        return self._serving(self.others, factor, usd_per_hour * _LOWER)

    def _serving(self, candidates: list[Hosts], factor: float, usd_per_hour: float) -> Hosts | None:
        """One that serves for no more than that: one simulation each, on the replicas that the money buys.

        Of layouts that differ in the KV cache alone, the one that holds more is tried; the one with most room first.
        """
        question, load = self.study.question, self._load(factor)
        hopeful: dict[tuple[Kind, int, int, int], tuple[float, int, Screened]] = {}
        for bound, _, hosts in self._in_order(candidates, load):
            if bound > usd_per_hour * _SAME:
                break
            deployment = hosts.deployment
            replicas = hosts.most_replicas(usd_per_hour, MOST_REPLICAS)
            if why_not(deployment, load.longest):
                continue
            screened = screen(deployment, hosts, load, question.slos)
            if isinstance(screened, NotServed) or replicas < screened.fewest:
                continue
            split = deployment.tp, deployment.ep, deployment.dp
            key, room = (kind_of(deployment), *split), replicas * screened.capacity.rate
            if key not in hopeful or room > hopeful[key][0]:
                hopeful[key] = room, replicas, screened
        in_order = sorted(hopeful.values(), key=lambda entry: -entry[0])
        return next(
            (screened.hosts for _, replicas, screened in in_order if self._holds(screened, replicas, factor)), None
        )

    def _holds(self, screened: Screened, replicas: int, factor: float) -> bool:
        question = self.study.question
        if question.simulate and question.limits.max_utilization is None:
            if factor not in self.sought:
                self.sought[factor] = Sought(self._load(factor), question.slos, question.router)
            return self.sought[factor].on(screened, replicas).holds
        sized = self._sized(screened.hosts, factor)
        return sized is not None and sized.replicas <= replicas

    def _side(self, rival: Hosts, factor: float) -> Side:
        bills = self._lowest(factor), self._usd(rival, factor)
        own, other = (bill * HOURS_PER_MONTH if math.isfinite(bill) else None for bill in bills)
        return Side(value=self.axis.value * factor, pick_usd_per_month=own, rival_usd_per_month=other)

    def _lowest(self, factor: float) -> float:
        """Dollars an hour of the cheapest on the pick's GPU."""
        bills = (self._usd(hosts, factor) for _, _, hosts in self._in_order(self.own, self._load(factor)))
        lowest = next((usd for usd in bills if math.isfinite(usd)), math.inf)
        while math.isfinite(lowest) and (found := self._serving(self.own, factor, lowest * _LOWER)):
            lowest = self._usd(found, factor)
        return lowest

    def _usd(self, hosts: Hosts, factor: float) -> float:
        sized = self._sized(hosts, factor)
        return hosts.usd_per_hour(sized.replicas) if sized else math.inf

    def _sized(self, hosts: Hosts, factor: float) -> Placed | None:
        key = hosts.deployment, factor
        if key not in self.sized:
            found = resize(self.study.question, hosts, self._load(factor))
            self.sized[key] = found if isinstance(found, Placed) else None
        return self.sized[key]
