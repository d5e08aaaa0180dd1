"""What a part of the traffic costs on a model, and how long its requests take: on machines of one's own, or an API.

A model of one's own serves each part on the fewest whole replicas that meet the SLOs by simulation. The hardware is
what the planner picks for all of the traffic, for a third and for a tenth of it; each part stands on the cheapest of
these. An API charges each request by its own tokens; how long it takes is not known here.
"""

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from tokonomics.catalog.apis import ApiPrice
from tokonomics.errors import BadInput, option
from tokonomics.money.api_bill import ApiCost, api_bills
from tokonomics.physics.deployment import Deployment
from tokonomics.planner.breakeven import share_of_api
from tokonomics.planner.plan import Question, searched
from tokonomics.planner.prospects import layout, prospects
from tokonomics.planner.search import Placed, Sought
from tokonomics.serving.outcome import request_latencies
from tokonomics.sizing.attempt import attempt
from tokonomics.sizing.hosts import Hosts
from tokonomics.sizing.load import Load
from tokonomics.sizing.screen import Screened, screen
from tokonomics.sizing.setup import Say, Setup, silent
from tokonomics.traffic.slo import Latency
from tokonomics.traffic.trace import Floats
from tokonomics.traffic.workload import workload_of
from tokonomics.units import HOURS_PER_MONTH, SECONDS_PER_MONTH

_THINNED = (1, 3, 10)
"""Every so manieth request: traffic for which hardware is looked for among all offers."""
_FEWEST_REQUESTS = 50
"""Of traffic that hardware is picked for: what fewer requests wait for is chance."""
WAITS = (Latency.ttft, Latency.tpot, Latency.e2e)

Places = NDArray[np.intp]
Latencies = dict[Latency, Floats]
"""Seconds by request, in the order of the load; nan where there is none."""


def part_of(load: Load, chosen: Places) -> Load:
    """The chosen requests of a load, at their share of its rate."""
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

    @property
    def text(self) -> str:
        """``2 × (1×H200, fp8)``."""
        deployment = self.placed.deployment
        how = layout(deployment).removeprefix("TP=1 ")
        return f"{self.placed.replicas} × ({deployment.gpus}×{deployment.gpu.key}, {how})"

    @property
    def machines(self) -> str:
        """``2×H200``."""
        return f"{self.placed.replicas * self.placed.deployment.gpus}×{self.placed.deployment.gpu.key}"

    @property
    def price_date(self) -> date:
        """When the price of its machines was quoted."""
        hosts, replicas = self.placed.screened.hosts, self.placed.replicas
        stock, bill = hosts.cheapest_of_each_size, hosts.usd_per_hour(replicas)
        paid = (one.offer for one in stock if hosts.machines_on(one.offer, replicas) * one.usd_per_hour == bill)
        return next(paid).date

    @cached_property
    def latencies(self) -> Latencies:
        """As simulated; of a large fleet that is simulated in part, those of the part over and over."""
        trial, replicas = self.placed.trial, self.placed.replicas
        assert trial is not None
        setup = Setup(self.placed.deployment, self.load, slos=self.question.slos, router=trial.router)
        made = attempt(setup, replicas, trial.max_sequences, 1.0).simulation
        assert made is not None
        found = request_latencies(made)
        return {wait: np.resize(found[wait], len(self.load.trace)) for wait in WAITS}


@dataclass
class OwnModel:
    """A model on machines of one's own: its fleets for parts of the traffic, each made once."""

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
        """The hardware that is cheapest for much and for little traffic."""
        load = self.question.load
        self.say(self.name)
        hosts = prospects(self.question, load)
        picked: dict[Deployment, Hosts] = {}
        for thinned in _THINNED:
            chosen = np.arange(0, len(load.trace), thinned)
            if thinned > 1 and len(chosen) < _FEWEST_REQUESTS:
                continue
            best = _cheapest(self.question, part_of(load, chosen), hosts, self.say)
            if best is None and thinned == 1:
                fix = f"See: tokonomics plan {self.key} with the same inputs; or loosen {option('slo')}."
                raise BadInput(f"no offer meets these constraints for {self.name}", field="model", fix=fix)
            if best is not None:
                picked[best.deployment] = best.screened.hosts
        return tuple(picked.values())

    def fleet(self, load: Load, key: Hashable) -> PartFleet | None:
        """The cheapest fleet for a part of the traffic, told from others by ``key``; None: nothing meets the SLO."""
        if key not in self._fleets:
            best = _cheapest(self.question, load, self._market, self.say)
            self._fleets[key] = None if best is None else PartFleet(best, load, self.question)
        return self._fleets[key]

    def usd_per_month(self, load: Load, key: Hashable) -> float:
        """Infinite where nothing meets the SLO."""
        found = self.fleet(load, key)
        return math.inf if found is None else found.usd_per_month

    def at_least(self, load: Load, key: Hashable) -> float:
        """Dollars a month below which the closed form knows no fleet."""
        if key not in self._bounds:
            screened = [screen(host.deployment, host, load, self.question.slos) for host in self._market]
            bills = [way.hosts.usd_per_month(way.fewest) for way in screened if isinstance(way, Screened)]
            self._bounds[key] = min(bills, default=math.inf)
        return self._bounds[key]


def _cheapest(question: Question, load: Load, hosts: Sequence[Hosts], say: Say) -> Placed | None:
    search = searched(question, Sought(load, question.slos, question.router), hosts, math.inf, say)
    return min(search.sized, key=lambda placed: placed.usd_per_hour, default=None)


@dataclass(frozen=True)
class CalledModel:
    """A model of a host, paid by the token."""

    price: ApiPrice
    cached_share: float = 0.0
    """Of every prompt, read from the host's cache: what the whole log repeats soon enough."""

    @property
    def key(self) -> str:
        return self.price.key

    @property
    def name(self) -> str:
        return self.price.key

    @property
    def max_context(self) -> float:
        """Price lists do not say: taken to hold what the longest of one's own does."""
        return math.inf

    def bill(self, load: Load) -> ApiCost:
        return api_bills([self.price], load.trace, self.cached_share, replayed=True)[0][0]

    def usd_per_month(self, load: Load, key: Hashable = None) -> float:
        return self.bill(load).usd_per_request * load.workload.rate * SECONDS_PER_MONTH

    def at_least(self, load: Load, key: Hashable = None) -> float:
        return self.usd_per_month(load)


RoutedModel = OwnModel | CalledModel


def called(price: ApiPrice, load: Load) -> CalledModel:
    """An API for this traffic."""
    return CalledModel(price, share_of_api(load, None))
