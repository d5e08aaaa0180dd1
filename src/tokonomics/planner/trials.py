"""How many replicas the load really takes: the simulator serves it on more and more of them until every promise holds.

The number is the smallest of a fixed grid (every number to 24, then one in 25) that holds, found by doubling steps and
halving. Where the time per token is what breaks, the same replicas are tried once more with no more sequences at a time
than the closed form allows under the promise.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from tokonomics.physics.deployment import Deployment
from tokonomics.planner.load import Load
from tokonomics.planner.screen import Screened
from tokonomics.serving.capacity import what_breaks
from tokonomics.serving.fleet import FleetSettings, Router
from tokonomics.serving.outcome import Outcome, outcome
from tokonomics.serving.simulator import simulate
from tokonomics.traffic.promises import Latency, Promise

_EVERY = 24
_STEP = 1.04
MOST_REPLICAS = 4096
"""More than anyone runs of one kind; a search that goes further has not understood the traffic."""

_APART = 1e4
"""Times slower: at a thousand requests a second, ten seconds between two."""

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Trial:
    """One simulation of the load on a number of replicas."""

    replicas: int
    max_sequences: int | None
    """At a time, where fewer than the engine's own limit."""
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
    router: Router = Router.least_outstanding
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
        start = max(candidate.fewest, at_least)
        most = max(most, start)
        grid = [start, *(each for each in grid_of_replicas() if start < each < most), most]
        step, place, failed = 1, 0, -1
        while not self.on(candidate, grid[place]).holds:
            if place == len(grid) - 1:
                return self.on(candidate, grid[place])
            if failed >= 0 and not (alone := self._alone(candidate)).holds:
                return alone
            failed = place
            place, step = min(place + step, len(grid) - 1), step * 2
        low, high = failed, place
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self.on(candidate, grid[middle]).holds else (middle, high)
        return self.on(candidate, grid[high])

    def _alone(self, candidate: Screened) -> Trial:
        """The same requests, so far apart that none meets another: what no number of replicas can better."""
        key = (candidate.name, 0)
        if key not in self.made:
            apart = replace(self.load, trace=self.load.trace.faster(1 / _APART), share=1.0)
            self.made[key] = Trials(apart, self.promises)._serve(candidate.deployment, 1, None)
            self.count += 1
        return self.made[key]

    def _better(self, candidate: Screened, replicas: int) -> Trial:
        first = self._serve(candidate.deployment, replicas, None)
        late_tokens = any(not each.kept and each.promise.startswith(Latency.tpot) for each in first.outcome.slo)
        if first.holds or not late_tokens or candidate.capacity.batch >= candidate.deployment.limits.max_sequences:
            return first
        second = self._serve(candidate.deployment, replicas, candidate.capacity.batch)
        return second if second.holds else first

    def _serve(self, deployment: Deployment, replicas: int, max_sequences: int | None) -> Trial:
        served_by = max(1, int(replicas * self.load.share + 1e-9))
        simulation = simulate(
            deployment,
            self.load.trace,
            FleetSettings(replicas=served_by, router=self.router),
            max_sequences=max_sequences,
        )
        self.count += 1
        made = outcome(simulation, self.promises)
        return Trial(replicas, max_sequences, what_breaks(simulation, made), made)


def grid_of_replicas() -> list[int]:
    """The numbers of replicas that are tried."""
    grid = list(range(1, _EVERY + 1))
    while grid[-1] < MOST_REPLICAS:
        grid.append(max(grid[-1] + 1, int(grid[-1] * _STEP)))
    return [each for each in grid if each < MOST_REPLICAS] + [MOST_REPLICAS]
