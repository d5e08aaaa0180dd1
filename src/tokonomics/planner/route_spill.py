"""An own fleet for the base load and an API for the rest: the number of replicas at which both together cost least.

A gateway sends a request to the API where the fleet has as many answers under way as it may. How long an answer is
under way is taken from the closed form's full batches, so is the limit; the requests that stay are simulated on the
replicas, and where they miss an SLO, the limit is lowered until they do not. Numbers of replicas are looked at by what
they cost at least, so the best of them is the one that trying all would give.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tokonomics.planner.route_answer import RouteWay
from tokonomics.planner.route_models import CalledModel, OwnModel, PartFleet, part_of
from tokonomics.planner.route_search import Part, Sending, cheapest, within_limit
from tokonomics.planner.route_ways import ALL, FITS, Routing, called_part, own_part
from tokonomics.planner.search import Placed, Sought
from tokonomics.sizing.load import Load

_LIMITS = (1.0, 0.85, 0.7, 0.55, 0.4, 0.3, 0.2)
"""Of the closed form's full batches: how many answers may be under way, the most first."""
_MOST_COUNTS = 16
"""Numbers of replicas that are looked at; of a larger fleet, so many evenly apart."""


@dataclass
class Spill:
    """One model of one's own before an API."""

    load: Load
    api: CalledModel
    whole: PartFleet
    """What all of the traffic takes."""
    _kept: dict[int, tuple[Placed, NDArray[np.bool_]] | None] = field(default_factory=dict)

    def counts(self) -> list[int]:
        """Replicas to try: fewer than all of the traffic takes."""
        most = self.whole.placed.replicas - 1
        return sorted({round(count) for count in np.linspace(1, most, min(most, _MOST_COUNTS))}) if most else []

    def within(self, replicas: int, filled: float) -> NDArray[np.bool_]:
        """The requests that stay where replicas are filled to a share of their batches."""
        capacity = self.whole.placed.screened.capacity
        stay_s = np.maximum(self.load.trace.output_tokens, 1) * capacity.tpot_s
        return within_limit(self.load.trace.arrival_s, stay_s, max(1, round(filled * replicas * capacity.batch)))

    def usd(self, replicas: int, kept: NDArray[np.bool_]) -> float:
        """Dollars a month of the replicas and of what goes to the API."""
        gone = np.flatnonzero(~kept)
        api_usd = self.api.usd_per_month(part_of(self.load, gone)) if len(gone) else 0.0
        return self.whole.placed.screened.hosts.usd_per_month(replicas) + api_usd

    def at_least(self, _: int, replicas: Part) -> float:
        assert isinstance(replicas, int)
        return self.usd(replicas, self.within(replicas, _LIMITS[0]))

    def exactly(self, _: int, replicas: Part) -> float:
        """With the highest limit that meets the SLOs; infinite where none does."""
        assert isinstance(replicas, int)
        found = self.kept(replicas)
        return math.inf if found is None else self.usd(replicas, found[1])

    def kept(self, replicas: int) -> tuple[Placed, NDArray[np.bool_]] | None:
        """The replicas with what stays on them, simulated."""
        if replicas not in self._kept:
            self._kept[replicas] = self._search(replicas)
        return self._kept[replicas]

    def _search(self, replicas: int) -> tuple[Placed, NDArray[np.bool_]] | None:
        question, screened = self.whole.question, self.whole.placed.screened
        for filled in _LIMITS:
            kept = self.within(replicas, filled)
            part = part_of(self.load, np.flatnonzero(kept))
            trial = Sought(part, question.slos, question.router).on(screened, replicas)
            if trial.holds:
                return Placed(screened, replicas, trial), kept
        return None

    def best(self) -> int | None:
        """The number of replicas at which both together cost least."""
        ways = [Sending((count,), ((0, count),)) for count in self.counts()]
        found = cheapest(ways, self.at_least, self.exactly)
        return None if found is None else int(str(found[1].name[0]))


def spills(routing: Routing) -> Iterator[RouteWay]:
    """For each model of one's own, the cheapest fleet with an API for what is too much for it."""
    api = routing.models[-1]
    if not isinstance(api, CalledModel):
        return
    for place, own in enumerate(routing.models[:-1]):
        assert isinstance(own, OwnModel)
        key, load = routing.part(ALL if routing.fits[place].all() else (FITS, place))
        whole = None if load is None else own.fleet(load, key)
        if load is None or whole is None:
            continue
        routing.say(f"what spills over from {own.name}")
        spill = Spill(load, api, whole)
        replicas = spill.best()
        found = None if replicas is None else spill.kept(replicas)
        if found is None:
            continue
        placed, kept = found[0], routing.fits[place].copy()
        kept[kept] = found[1]
        stays = part_of(routing.load, np.flatnonzero(kept))
        fleet = PartFleet(placed, stays, whole.question)
        share, gone = float(kept.mean()), np.flatnonzero(~kept)
        rest = part_of(routing.load, gone) if len(gone) else None
        parts = [own_part(own, fleet, share), called_part(api, rest, 1 - share)]
        quality = routing.quality(np.where(kept, place, len(routing.models) - 1))
        name = f"{own.name}, {1 - share:.1%}".replace("%", " %") + f" spills over to {api.name}"
        yield routing.told("spill", name, parts, fleet.latencies, quality, share if place == 0 else 0.0)
