"""Compare several models for one traffic: the best way of each kind, every threshold, and break-even shares.

Spill-over: your own fleet serves the base load, and a gateway sends a request to the API when the fleet has reached its
limit of running answers. The limit and the duration of an answer come from the closed form's full batches. The requests
that stay are simulated on the replicas, and if they miss an SLO, the limit is lowered until they meet it.
"""

import heapq
import math
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from tokonomics.planner.route_models import (
    CalledModel,
    OwnModel,
    PartFleet,
    RouteBreakEven,
    RouteReport,
    RouteWay,
    part_of,
)
from tokonomics.planner.route_ways import ALL, FITS, ROUND_SHARES, Routing
from tokonomics.planner.search import Placed
from tokonomics.sizing.load import Load
from tokonomics.traffic.trace import Floats

_LIMITS = (1.0, 0.85, 0.7, 0.55, 0.4, 0.3, 0.2)
"""Shares of the closed form's full batches that may run at once, largest first."""
_MOST_COUNTS = 16  # most sizes of a fleet to try; a larger range is sampled evenly


@dataclass
class Spill:
    """One self-hosted model that spills over to an API."""

    load: Load
    api: CalledModel
    whole: PartFleet  # the fleet for all of the traffic

    def counts(self) -> list[int]:
        """Return the numbers of replicas to try, all below what the whole traffic takes."""
        most = self.whole.placed.replicas - 1
        return sorted({round(count) for count in np.linspace(1, most, min(most, _MOST_COUNTS))}) if most else []

    def within(self, replicas: int, filled: float) -> NDArray[np.bool_]:
        """Tell which requests stay if replicas are filled to a share of their batches."""
        capacity = self.whole.placed.screened.capacity
        stay_s = np.maximum(self.load.trace.output_tokens, 1) * capacity.tpot_s
        return within_limit(self.load.trace.arrival_s, stay_s, max(1, round(filled * replicas * capacity.batch)))

    def usd(self, replicas: int, kept: NDArray[np.bool_]) -> float:
        """Return the dollars a month of the replicas and of the requests that go to the API."""
        gone = np.flatnonzero(~kept)
        api_usd = self.api.usd_per_month(part_of(self.load, gone)) if len(gone) else 0.0
        return self.whole.placed.screened.hosts.usd_per_month(replicas) + api_usd

    def kept(self, replicas: int) -> tuple[Placed, NDArray[np.bool_]] | None:
        """Return the replicas and the requests that stay at the highest limit within the SLOs; None if none does."""
        question, screened = self.whole.question, self.whole.placed.screened
        for filled in _LIMITS:
            kept = self.within(replicas, filled)
            part = part_of(self.load, np.flatnonzero(kept))
            trial = question.sought(part).on(screened, replicas)
            if trial.holds:
                return Placed(screened, replicas, trial), kept
        return None

    def cheapest(self) -> tuple[Placed, NDArray[np.bool_]] | None:
        """Return the replicas with the lowest total bill, and the requests that stay; lowest bounds are tried first."""
        best, least = None, math.inf
        bounds = [(self.usd(count, self.within(count, _LIMITS[0])), count) for count in self.counts()]
        for bound, replicas in sorted(bounds):
            if bound < least and (found := self.kept(replicas)) and (usd := self.usd(replicas, found[1])) < least:
                best, least = found, usd
        return best


def within_limit(arrival_s: Floats, stay_s: Floats, limit: int) -> NDArray[np.bool_]:
    """Tell which requests find fewer than ``limit`` others running, if those that do not go elsewhere."""
    ends: list[float] = []
    kept = np.zeros(len(arrival_s), bool)
    for place, (arrives, stays) in enumerate(zip(arrival_s.tolist(), stay_s.tolist(), strict=True)):
        while ends and ends[0] <= arrives:
            heapq.heappop(ends)
        if len(ends) < limit:
            kept[place] = True
            heapq.heappush(ends, arrives + stays)
    return kept


def spills(routing: Routing) -> Iterator[RouteWay]:
    """Yield, for each self-hosted model, the cheapest fleet with an API for the overflow."""
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
        if (found := Spill(load, api, whole).cheapest()) is None:
            continue
        placed, kept = found[0], routing.fits[place].copy()
        kept[kept] = found[1]
        fleet = PartFleet(placed, part_of(routing.load, np.flatnonzero(kept)), whole.question)
        share, gone = float(kept.mean()), np.flatnonzero(~kept)
        rest = part_of(routing.load, gone) if len(gone) else None
        parts = [fleet.part(share), api.part(rest, 1 - share)]
        quality = routing.quality(np.where(kept, place, len(routing.models) - 1))
        name = f"{own.name}, {1 - share:.1%}".replace("%", " %") + f" spills over to {api.name}"
        yield routing.way_of_parts("spill", name, parts, fleet.latencies, quality, share if place == 0 else 0.0)


_CLOSE = 0.02  # a break-even share is found to this precision


def route(routing: Routing) -> RouteReport:
    """Return every way to serve the traffic of a routing."""
    singles = [way for way in map(routing.single, range(len(routing.models))) if way]
    ways, frontier = list(singles), list[RouteWay]()
    for second in range(1, len(routing.models)) if routing.splits else ():
        for serve in (routing.routed, routing.cascade):
            routing.say(f"{serve.__name__}, {routing.models[second].name}")
            rows = [way for threshold in routing.thresholds(second) if (way := serve(second, threshold))]
            frontier += rows
            ways += _picked(routing, rows)
    routing.say("labels")
    labelled = routing.by_label()
    frontier += labelled
    ways += [*_picked(routing, labelled), *spills(routing)]
    good = [way for way in ways if way.meets and _reaches(routing, way)] if _is_judged(routing) else []
    return RouteReport(
        workload=routing.load.workload,
        slos=routing.slos,
        models=tuple(model.key for model in routing.models),
        too_long_requests=routing.too_long[0],
        too_long_tokens=routing.too_long[1],
        routed_by="share" if routing.marks.by_chance else "score",
        labels=routing.marks.labels,
        scored=routing.marks.quality is not None,
        min_quality=routing.floor,
        ways=tuple(ways),
        frontier=tuple(frontier),
        break_even=tuple(break_evens(routing)),
        best=min(good, key=_cheapest_then_best, default=None),
    )


def _cheapest_then_best(way: RouteWay) -> tuple[bool, float, float]:
    """Order by meeting the SLOs, then by bill, then by the best answers."""
    return not way.meets, round(way.usd_per_month, 2), -(way.quality or 0.0)


def _is_judged(routing: Routing) -> bool:
    """Tell whether there are scores and a floor to compare them with."""
    return routing.floor is not None and routing.marks.quality is not None


def _reaches(routing: Routing, way: RouteWay) -> bool:
    return way.quality is not None and way.quality >= (routing.floor or 0.0) - 1e-12


def _picked(routing: Routing, ways: Sequence[RouteWay]) -> list[RouteWay]:
    """Pick one way of a kind: the cheapest that reaches the floor, SLOs first; without scores, the named threshold."""
    if not _is_judged(routing):
        named = [way for way in ways if way.threshold == routing.named_threshold]
        return (named or list(ways))[:1]
    good = [way for way in ways if _reaches(routing, way)]
    return sorted(good, key=_cheapest_then_best)[:1]


def break_evens(routing: Routing) -> Iterator[RouteBreakEven]:
    """Yield the share from which the first model, in front of another, costs less than that other alone."""
    for second in range(1, len(routing.models)):
        baseline = routing.exactly(second, ALL)
        if math.isinf(baseline):  # it cannot serve all of it alone
            continue

        def routed_usd(share: float, second: int = second) -> float:
            threshold = routing.threshold_at(share)
            return routing.exactly(0, ("from", threshold)) + routing.exactly(second, ("below", threshold))

        def cascade_usd(share: float, second: int = second) -> float:
            return routing.cascade_usd(second, routing.threshold_at(share))

        bills: dict[Literal["routed", "cascade"], Callable[[float], float]]
        bills = {"routed": routed_usd, "cascade": cascade_usd}
        for kind, usd in bills.items():
            found = break_even_share(usd, baseline, routing.reachable_shares, ROUND_SHARES, _CLOSE)
            low, share = found or (None, None)
            yield RouteBreakEven(
                kind=kind,
                first=routing.models[0].key,
                second=routing.models[second].key,
                baseline_usd_per_month=baseline,
                share=share,
                not_at_share=low,
                threshold=None if share is None or routing.marks.by_chance else routing.threshold_at(share),
                is_smallest=share == routing.reachable_shares[0],
            )


def break_even_share(
    usd: Callable[[float], float],
    baseline_usd: float,
    reachable: Sequence[float],
    coarse: Sequence[float],
    within: float = 0.01,
) -> tuple[float, float] | None:
    """Find the last share that costs too much, and a higher one from which the bill stays below the baseline's.

    They are at most ``within`` apart, or neighbours among the ``reachable`` ones (rising, up to all). None if routing
    never pays. Bills go up and down in whole machines, so the bill at each ``coarse`` share is computed, and the step
    after the last that costs too much is halved. A share of zero is the baseline itself.
    """
    shares, last = [0.0, *reachable], len(reachable)
    looked_at = sorted({min(bisect_left(shares, share - 1e-9), last) for share in coarse} | {last})
    low = max((place for place in looked_at if not usd(shares[place]) < baseline_usd), default=0)
    if low == last:
        return None
    high = next(place for place in looked_at if place > low)
    while high - low > 1 and shares[high] - shares[low] > within:
        middle = bisect_left(shares, (shares[low] + shares[high]) / 2, low + 1, high - 1)
        low, high = (low, middle) if usd(shares[middle]) < baseline_usd else (middle, high)
    return shares[low], shares[high]
