"""How many replicas the load really takes: the simulator serves it on more and more of them until every promise holds.

The number is the smallest that holds, found by doubling steps from the closed form's bound and halving. The same
replicas are tried behind several routers: taking turns keeps prompts apart, while the least loaded replica gets whole
bursts of them; requests of very unequal length want the opposite. Where the time per token is what breaks, no more
sequences at a time are let in than the closed form allows under the promise.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from tokonomics.physics.deployment import Deployment
from tokonomics.planner.load import Load
from tokonomics.planner.screen import Screened
from tokonomics.serving.capacity import BEHIND, what_breaks
from tokonomics.serving.fleet import FleetSettings, Router
from tokonomics.serving.outcome import Outcome, outcome
from tokonomics.serving.simulator import simulate
from tokonomics.traffic.generate import ENOUGH_REQUESTS
from tokonomics.traffic.promises import Latency, Promise

MOST_REPLICAS = 4096
"""More than anyone runs of one kind; a search that goes further has not understood the traffic."""

_IN_HAND = 1.03
"""Where nothing is promised, replicas must finish so much more than arrives: the simulator takes what is 3 % behind for
keeping up (``serving.capacity``), and a month of that is a day."""
APART_S = 1e5
"""More than a day between two requests: longer than any answer takes."""

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Trial:
    """One simulation of the load on a number of replicas."""

    replicas: int
    max_sequences: int | None
    """At a time, where fewer than the engine's own limit."""
    router: Router
    breaks: str | None
    """What gives way; None when it holds."""
    outcome: Outcome

    @property
    def holds(self) -> bool:
        return self.breaks is None


@dataclass
class Trials:
    """The simulations of one plan, each made once."""

    load: Load
    promises: Sequence[Promise]
    router: Router | None = None
    """None: round robin, then the least outstanding requests, and first of all prefix-aware where prompts share."""
    made: dict[tuple[str, int], Trial] = field(default_factory=dict)
    count: int = 0

    def on(self, candidate: Screened, replicas: int) -> Trial:
        """The load on so many replicas, with the batch limit that serves it better."""
        key = (candidate.name, replicas)
        if key not in self.made:
            self.made[key] = self._better(candidate, replicas)
        return self.made[key]

    def fewest(self, candidate: Screened, most: int = MOST_REPLICAS, at_least: int = 1) -> Trial:
        """The fewest replicas that hold; or what breaks on ``most``, or for requests that are alone on a replica."""
        low, high = at_least - 1, max(candidate.fewest, at_least)
        most, step = max(most, high), 1
        if self.on(candidate, high).holds:
            # The bound is one for the closed form; whoever does better than it is not held to it.
            while high - 1 > low and self.on(candidate, high - 1).holds:
                high -= 1
            return self.on(candidate, high)
        while not self.on(candidate, high).holds:
            if high == most:
                return self.on(candidate, high)
            if step > 1 and not (alone := self._alone(candidate)).holds:
                return alone
            low, high, step = high, min(high + step, most), step * 2
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self.on(candidate, middle).holds else (middle, high)
        return self.on(candidate, high)

    def _alone(self, candidate: Screened) -> Trial:
        """The same requests, so far apart that none meets another: what no number of replicas can better."""
        key = (candidate.name, 0)
        if key not in self.made:
            few = self.load.trace.take(np.arange(min(len(self.load.trace), ENOUGH_REQUESTS)))
            apart = replace(few, arrival_s=np.arange(len(few), dtype=np.float64) * APART_S)
            load = replace(self.load, trace=apart, share=1.0, is_stationary=False)
            self.made[key] = Trials(load, self.promises)._serve(candidate.deployment, 1, None)
            self.count += 1
        return self.made[key]

    def _better(self, candidate: Screened, replicas: int) -> Trial:
        """The first of the settings that holds; what the first of them breaks, where none does."""
        first: Trial | None = None
        for router in self._routers(replicas):
            for limit in (None, candidate.capacity.batch):
                trial = self._serve(candidate.deployment, replicas, limit, router)
                if trial.holds:
                    return trial
                first = first or trial
                late_tokens = any(not each.kept and each.promise.startswith(Latency.tpot) for each in trial.outcome.slo)
                if trial.breaks == BEHIND:
                    # Too much work for so many replicas, whoever gets it.
                    return first
                if not late_tokens or candidate.capacity.batch >= candidate.deployment.limits.max_sequences:
                    break
        assert first is not None
        return first

    def _routers(self, replicas: int) -> tuple[Router, ...]:
        if replicas == 1:
            return (Router.round_robin,)
        if self.router is not None:
            return (self.router,)
        shared = (Router.prefix_aware,) if self.load.trace.prefix is not None else ()
        return (*shared, Router.round_robin, Router.least_outstanding)

    def _serve(
        self, deployment: Deployment, replicas: int, max_sequences: int | None, router: Router = Router.round_robin
    ) -> Trial:
        trace, served_by = self.load.on(replicas)
        if not self.promises:
            trace = trace.faster(_IN_HAND)
        simulation = simulate(
            deployment, trace, FleetSettings(replicas=served_by, router=router), max_sequences=max_sequences
        )
        self.count += 1
        made = outcome(simulation, self.promises)
        return Trial(replicas, max_sequences, router, what_breaks(simulation, made), made)
