"""Price a part of the traffic on a model and find how long its requests take; define the answer of a routing.

A self-hosted model serves each part on the fewest whole replicas that meet the SLOs by simulation. Its hardware is what
the planner picks for all of the traffic, for a third and for a tenth of it; each part uses the cheapest of these. An
API charges each request by its own tokens; its latency is not known here.
"""

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, NonNegativeFloat, NonNegativeInt

from tokonomics.catalog.apis import ApiPrice
from tokonomics.errors import BadInput, option
from tokonomics.money.trace_bills import api_bills
from tokonomics.physics.deployment import Deployment
from tokonomics.planner.apis import share_of_api
from tokonomics.planner.plan import Question, searched, widened
from tokonomics.planner.prospects import layout, prospects
from tokonomics.planner.search import Placed, cheapest_machine
from tokonomics.serving.outcome import SloOutcome, request_latencies
from tokonomics.sizing.attempt import attempt
from tokonomics.sizing.hosts import Hosts
from tokonomics.sizing.load import Load
from tokonomics.sizing.screen import Screened, screen
from tokonomics.sizing.setup import Say, Setup, silent
from tokonomics.traffic.slo import Latency, Slo
from tokonomics.traffic.trace import Floats
from tokonomics.traffic.workload import Spread, Workload, workload_of
from tokonomics.types import Noun
from tokonomics.units import HOURS_PER_MONTH, SECONDS_PER_MONTH

RouteKind = Literal["single", "routed", "labels", "cascade", "spill"]


class RoutePart(Noun):
    """One model's part of a way, and its cost."""

    model: str
    share: NonNegativeFloat
    """Share of the requests that it answers; in a cascade the first model answers all that fit its context."""
    requests: NonNegativeInt  # in the simulated traffic
    tokens: NonNegativeInt  # in their prompts and answers
    usd_per_month: NonNegativeFloat
    replicas: NonNegativeInt | None  # None: an API
    fleet: str
    machines: str  # short text: ``2×H200``, or ``API``
    price_date: date | None = None  # when the price of its machines was quoted; None: an API


class RouteWay(Noun):
    """One way to serve the traffic: its cost, its latencies, and the quality of its answers."""

    kind: RouteKind
    name: str
    parts: tuple[RoutePart, ...]
    threshold: float | None = None  # score from which the first model's answer is enough
    first_share: float  # of the requests, with a final answer from the first model
    usd_per_month: NonNegativeFloat
    usd_per_mtok: NonNegativeFloat
    quality: float | None
    simulated_share: float  # of the requests whose whole latency is simulated: not those of an API
    ttft_s: Spread  # of those; for requests that a cascade passes to an API, only the first model's wait
    e2e_s: Spread
    slo: tuple[SloOutcome, ...]  # by the same latencies; empty if all go to an API

    @property
    def meets(self) -> bool:
        return all(judged.met for judged in self.slo)


class RouteBreakEven(Noun):
    """The share from which two models together cost less than the second alone."""

    kind: Literal["routed", "cascade"]
    first: str
    second: str
    baseline_usd_per_month: float
    share: float | None
    """Share of the requests with a final answer from the first model, as a threshold of the log really gives it;
    None: it never pays."""
    not_at_share: float | None = None
    """The nearest lower share, also one that a threshold gives, at which it does not pay yet: the break-even lies
    between them; 0: no request on the first model."""
    threshold: float | None = None  # score at that share; None if requests are drawn at random
    is_smallest: bool = False  # whether no threshold sends fewer requests to the first model


class RouteReport(Noun):
    """Every way that was compared."""

    workload: Workload
    slos: tuple[Slo, ...] = Field(alias="promises")
    models: tuple[str, ...]  # in the given order, the API last
    too_long_requests: NonNegativeInt = 0  # too long for every model's context, so left out of every bill
    too_long_tokens: NonNegativeInt = 0
    routed_by: Literal["score", "share"]
    labels: tuple[str, ...]
    scored: bool
    min_quality: float | None
    ways: tuple[RouteWay, ...]  # each single model first, then the best of each other kind
    frontier: tuple[RouteWay, ...]  # thresholds, and ways to send labels, by cost
    break_even: tuple[RouteBreakEven, ...]
    best: RouteWay | None
    """The cheapest that meets the SLOs and the quality floor; None without scores or a floor, or if none does."""

    @property
    def baseline(self) -> RouteWay:
        """Return what routing is compared with: the cheapest single model that reaches the floor.

        Without scores it is the cheapest but the first, unless only an API comes after that.
        """
        singles = [way for way in self.ways if way.kind == "single"]
        good = [way for way in singles if way.quality is not None and way.quality >= (self.min_quality or 0.0)]
        if self.min_quality is not None and good:
            singles = good
        elif any(way.parts[0].replicas is not None for way in singles if way.parts[0].model != self.models[0]):
            singles = [way for way in singles if way.parts[0].model != self.models[0]]
        return min(singles, key=lambda way: way.usd_per_month)


_THINNED = (1, 3, 10)  # every n-th request: the traffic for which hardware is searched among all offers
_FEWEST_REQUESTS = 50  # to pick hardware for: with fewer requests, waiting times are chance
WAITS = (Latency.ttft, Latency.tpot, Latency.e2e)

Places = NDArray[np.intp]
Latencies = dict[Latency, Floats]  # seconds by request, in the order of the load; nan if there are none


def part_of(load: Load, chosen: Places) -> Load:
    """Return the chosen requests of a load, at their share of its rate."""
    trace = load.trace.take(chosen)
    return replace(load, trace=trace, workload=workload_of(trace, load.workload.rate * len(trace) / len(load.trace)))


@dataclass(frozen=True)
class PartFleet:
    """Replicas for one part of the traffic."""

    placed: Placed
    load: Load
    question: Question

    @property
    def usd_per_month(self) -> float:
        return self.placed.usd_per_hour * HOURS_PER_MONTH

    def part(self, share: float) -> RoutePart:
        """Return its part of a way, with that share of the requests."""
        deployment, replicas, hosts = self.placed.deployment, self.placed.replicas, self.placed.screened.hosts
        how = layout(deployment).removeprefix("TP=1 ")
        machine = cheapest_machine(hosts, replicas)
        assert machine is not None
        return RoutePart(
            model=deployment.model.key,
            share=share,
            requests=len(self.load.trace),
            tokens=tokens_in(self.load),
            usd_per_month=self.usd_per_month,
            replicas=replicas,
            fleet=f"{replicas} × ({deployment.gpus}×{deployment.gpu.key}, {how})",
            machines=f"{replicas * deployment.gpus}×{deployment.gpu.key}",
            price_date=machine.offer.date,
        )

    @cached_property
    def latencies(self) -> Latencies:
        """Return the simulated latencies; if only part of a large fleet is simulated, repeat those of the part."""
        trial, replicas = self.placed.trial, self.placed.replicas
        assert trial is not None
        setup = Setup(self.placed.deployment, self.load, slos=self.question.slos, router=trial.router)
        made = attempt(setup, replicas, trial.max_sequences, 1.0).simulation
        assert made is not None
        found = request_latencies(made)
        return {wait: np.resize(found[wait], len(self.load.trace)) for wait in WAITS}


@dataclass
class OwnModel:
    """A self-hosted model and its fleets for parts of the traffic, each made once."""

    question: Question
    say: Say = silent
    _fleets: dict[Hashable, PartFleet | None] = field(default_factory=dict)
    _bounds: dict[Hashable, float] = field(default_factory=dict)

    @property
    def key(self) -> str:
        return self.question.model.key

    @property
    def name(self) -> str:
        return self.question.model.name

    @property
    def max_context(self) -> float:
        return self.question.model.max_context

    @cached_property
    def _market(self) -> tuple[Hosts, ...]:
        """Return the hardware that is cheapest for much and for little traffic."""
        load = self.question.load
        self.say(self.name)
        for question, _ in widened(self.question):
            if picked := self._picked(prospects(question, load)):
                return tuple(picked.values())
        fix = f"See: tokonomics plan {self.key} with the same inputs; or loosen {option('slo')}."
        raise BadInput(f"no offer meets these constraints for {self.name}", field="model", fix=fix)

    def _picked(self, hosts: Sequence[Hosts]) -> dict[Deployment, Hosts]:
        """Return what is cheapest for the whole load and for parts of it; empty if nothing serves the whole."""
        load = self.question.load
        picked: dict[Deployment, Hosts] = {}
        for thinned in _THINNED:
            chosen = np.arange(0, len(load.trace), thinned)
            if thinned > 1 and len(chosen) < _FEWEST_REQUESTS:
                continue
            best = _cheapest(self.question, part_of(load, chosen), hosts, self.say)
            if best is None and thinned == 1:
                return {}
            if best is not None:
                picked[best.deployment] = best.screened.hosts
        return picked

    def fleet(self, load: Load, key: Hashable) -> PartFleet | None:
        """Return the cheapest fleet for a part of the traffic, kept under ``key``; None if nothing meets the SLO."""
        if key not in self._fleets:
            best = _cheapest(self.question, load, self._market, self.say)
            self._fleets[key] = None if best is None else PartFleet(best, load, self.question)
        return self._fleets[key]

    def usd_per_month(self, load: Load, key: Hashable) -> float:
        """Return the monthly bill; infinite if nothing meets the SLO."""
        found = self.fleet(load, key)
        return math.inf if found is None else found.usd_per_month

    def at_least(self, load: Load, key: Hashable) -> float:
        """Return a lower bound of the monthly bill by the closed form."""
        if key not in self._bounds:
            screened = [screen(host.deployment, host, load, self.question.slos) for host in self._market]
            bills = [way.hosts.usd_per_month(way.fewest) for way in screened if isinstance(way, Screened)]
            self._bounds[key] = min(bills, default=math.inf)
        return self._bounds[key]


def _cheapest(question: Question, load: Load, hosts: Sequence[Hosts], say: Say) -> Placed | None:
    search = searched(question, question.sought(load), hosts, math.inf, say)
    return min(search.sized, key=lambda placed: placed.usd_per_hour, default=None)


@dataclass(frozen=True)
class CalledModel:
    """An API's model, paid by the token."""

    price: ApiPrice
    cached_share: float = 0.0  # of every prompt, read from the API's cache: what the whole log repeats in time

    @property
    def key(self) -> str:
        return self.price.key

    @property
    def name(self) -> str:
        return self.price.key

    @property
    def max_context(self) -> float:
        """Return infinity: price lists do not say, so it is assumed to hold what your own models' longest does."""
        return math.inf

    def usd_per_month(self, load: Load, key: Hashable = None) -> float:
        bill = api_bills([self.price], load.trace, self.cached_share, replayed=True)[0][0]
        return bill.usd_per_request * load.workload.rate * SECONDS_PER_MONTH

    at_least = usd_per_month

    def part(self, load: Load | None, share: float) -> RoutePart:
        """Return its part of a way, with that share of the requests."""
        return RoutePart(
            model=self.key,
            share=share,
            requests=len(load.trace) if load else 0,
            tokens=tokens_in(load) if load else 0,
            usd_per_month=self.usd_per_month(load) if load else 0.0,
            replicas=None,
            fleet="API",
            machines="API",
        )


RoutedModel = OwnModel | CalledModel


def called(price: ApiPrice, load: Load) -> CalledModel:
    """Return an API for this traffic."""
    return CalledModel(price, share_of_api(load, None))


def tokens_in(load: Load) -> int:
    """Count the tokens of all prompts and answers."""
    return int(load.trace.input_tokens.sum(dtype=np.int64) + load.trace.output_tokens.sum(dtype=np.int64))
