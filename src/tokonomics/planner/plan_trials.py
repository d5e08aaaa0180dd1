"""The simulations of one plan: each candidate on as many replicas as are asked for, each tried once."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import date
from functools import partial

import numpy as np

from tokonomics.serving.capacity import MOST_REPLICAS, apart_in_time, fewest_that_hold
from tokonomics.serving.fleet import Router
from tokonomics.serving.links import link_speed
from tokonomics.serving.simulator import Simulation
from tokonomics.serving.steady import MissesSlo
from tokonomics.sizing.attempt import Sized, first_that_holds, simulated, try_fixed, ways
from tokonomics.sizing.load import Load
from tokonomics.sizing.screen import Screened, tpot_limit
from tokonomics.sizing.setup import Setup
from tokonomics.traffic.classes import strictest
from tokonomics.traffic.generate import ENOUGH_REQUESTS
from tokonomics.traffic.slo import Latency, Slo

_PATIENCE = 3
"""Numbers of replicas that miss before lone requests are simulated: these take as long as a number that holds, and the
closed form has refused most candidates that are slow even for them. Our choice."""
_IN_HAND = 1.03
"""Where no SLO bounds the wait, a plan's replicas must finish so much more than arrives: the simulator takes what is
3 % behind for keeping up (``serving.capacity``), and a month of that is a day."""


@dataclass
class Trials:
    """The simulations of one plan, each made once."""

    load: Load
    slos: tuple[Slo, ...]
    router: Router | None = None
    """None: round robin, then the least outstanding requests, and first of all prefix-aware where prompts share."""
    made: dict[tuple[str, int], Sized] = field(default_factory=dict)
    count: int = 0

    def on(self, candidate: Screened, replicas: int) -> Sized:
        """The load on so many replicas: the first settings that hold, or what the first of them break."""
        key = (candidate.name, replicas)
        if key not in self.made:
            self.made[key] = first_that_holds(self._settings(candidate, replicas))
        return self.made[key]

    def fewest(self, candidate: Screened, most: int = MOST_REPLICAS, at_least: int = 1) -> Sized:
        """The fewest replicas that hold; or what breaks on ``most``, or for requests that are alone on a replica."""
        # The bound is one for the closed form; whoever does better than it is not held to it.
        start = max(candidate.fewest, at_least)
        most = max(most, start)
        found = fewest_that_hold(
            lambda count: self.on(candidate, count).holds,
            start,
            least=at_least,
            most=most,
            hopeless=lambda: not self._alone(candidate).holds,
            patience=_PATIENCE,
        )
        alone = self.made.get((candidate.name, 0))
        return alone if found is None and alone and not alone.holds else self.on(candidate, found or most)

    def _alone(self, candidate: Screened) -> Sized:
        """The first requests, so far apart that none meets another: what no number of replicas can better."""
        key = (candidate.name, 0)
        if key not in self.made:
            few = self.load.trace.take(np.arange(min(len(self.load.trace), ENOUGH_REQUESTS)))
            apart = replace(self.load, trace=apart_in_time(few, len(few)), share=1.0, is_stationary=False)
            self.made[key] = self._serve(candidate, apart, 1, Router.round_robin, None)
        return self.made[key]

    def _settings(self, candidate: Screened, replicas: int) -> Iterator[Sized]:
        serve_behind = partial(self._serve, candidate, self.load, replicas)
        most = candidate.deployment.limits.max_sequences
        return ways(serve_behind, self._routers(replicas), self._batch(candidate), most)

    def _batch(self, candidate: Screened) -> int:
        """Sequences at a time that leave tokens in time, by the closed form; for whoever is owed them soonest."""
        limit = tpot_limit(strictest(self.load.trace.classes))
        with suppress(MissesSlo):
            return candidate.capacity.batch if limit is None else candidate.curve.capacity(limit).batch
        return candidate.capacity.batch

    def _routers(self, replicas: int) -> tuple[Router, ...]:
        if replicas == 1:
            return (Router.round_robin,)
        if self.router is not None:
            return (self.router,)
        shared = (Router.prefix_aware,) if self.load.trace.prefix is not None else ()
        return (*shared, Router.round_robin, Router.least_outstanding)

    def _serve(
        self, candidate: Screened, load: Load, replicas: int, router: Router, max_sequences: int | None
    ) -> Sized:
        self.count += 1
        setup, prompts = self._setup(candidate, load, replicas, router)
        # A row of a plan tells its load from its own closed form.
        trial = try_fixed(setup, replicas, max_sequences, prompts, self._in_hand(load), with_load=False)
        # Of hundreds of simulations only what came out is kept.
        return replace(trial, simulation=None)

    def _in_hand(self, load: Load) -> float:
        """How much more than arrives must be finished."""
        owed = (*self.slos, *(slo for one in load.trace.classes for slo in one.slos))
        return 1.0 if any(slo.latency is not Latency.tpot for slo in owed) else _IN_HAND

    def as_sized(self, candidate: Screened, sized: Sized) -> Sized:
        """What was sized, its router and limit as they are, on all of this load to the end."""
        self.count += 1
        setup, prompts = self._setup(candidate, self.load, sized.replicas, sized.router)
        limit, faster = sized.max_sequences, self._in_hand(self.load)
        return replace(simulated(setup, sized.replicas, limit, prompts, faster, with_load=False), simulation=None)

    def holds_on(self, candidate: Screened, sized: Sized, replicas: int) -> bool:
        """Whether so many replicas hold this load, behind that router and with that limit on sequences."""
        return self._serve(candidate, self.load, replicas, sized.router, sized.max_sequences).holds

    def again(self, candidate: Screened, sized: Sized, faster: float = 1.0) -> Simulation:
        """What was sized, simulated once more on all of the load; or on so many times as much."""
        setup, prompts = self._setup(candidate, self.load, sized.replicas, sized.router)
        made = simulated(setup, sized.replicas, sized.max_sequences, prompts, faster, with_load=False).simulation
        assert made is not None
        return made

    def _setup(self, candidate: Screened, load: Load, replicas: int, router: Router) -> tuple[Setup, int]:
        """What serves, and on how many replicas for prompts alone."""
        # Served, not bought: offers and the day of their prices do not matter.
        memories = candidate.hosts.tiers if load.trace.prefix is not None else None
        setup = Setup(candidate.deployment, load, (), date.min, self.slos, router=router, tiers=memories)
        prompts = 0
        if prefill := candidate.hosts.prefill:
            prompts = prefill.replicas
            link = link_speed(candidate.hosts.link(replicas), candidate.deployment.gpu)
            setup = replace(setup, prefill=prefill.deployment, link_bytes_per_s=link)
        return setup, prompts
