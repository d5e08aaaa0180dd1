"""Several models for one traffic: the best way of each kind, every threshold, and from which share on it pays."""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Literal

from tokonomics.planner.route_answer import RouteBreakEven, RouteReport, RouteWay
from tokonomics.planner.route_search import break_even_share
from tokonomics.planner.route_spill import spills
from tokonomics.planner.route_ways import ALL, ROUND_SHARES, Routing

_CLOSE = 0.02
"""How exactly a break-even share is told."""


def route(routing: Routing) -> RouteReport:
    """Every way to serve the traffic of a routing."""
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
    """Of those that meet the SLOs the cheapest; of equal bills the best answers."""
    return not way.meets, round(way.usd_per_month, 2), -(way.quality or 0.0)


def _is_judged(routing: Routing) -> bool:
    """There are scores and a floor to hold them against."""
    return routing.floor is not None and routing.marks.quality is not None


def _reaches(routing: Routing, way: RouteWay) -> bool:
    return way.quality is not None and way.quality >= (routing.floor or 0.0) - 1e-12


def _picked(routing: Routing, ways: Sequence[RouteWay]) -> list[RouteWay]:
    """Of one kind: the cheapest that reaches the floor, first of those that meet the SLOs; else the threshold named."""
    if not _is_judged(routing):
        named = [way for way in ways if way.threshold == routing.named_threshold]
        return (named or list(ways))[:1]
    good = [way for way in ways if _reaches(routing, way)]
    return sorted(good, key=_cheapest_then_best)[:1]


def break_evens(routing: Routing) -> Iterator[RouteBreakEven]:
    """From which share on the first model, before each other one, costs less than the other alone."""
    for second in range(1, len(routing.models)):
        baseline = routing.exactly(second, ALL)
        if math.isinf(baseline):  # it cannot take all of it alone
            continue

        def routed_usd(share: float, second: int = second) -> float:
            threshold = routing.threshold_at(share)
            return routing.exactly(0, ("from", threshold)) + routing.exactly(second, ("below", threshold))

        def cascade_usd(share: float, second: int = second) -> float:
            return routing.cascade_usd(second, routing.threshold_at(share))

        kinds: list[tuple[Literal["routed", "cascade"], Callable[[float], float]]]
        kinds = [("routed", routed_usd), ("cascade", cascade_usd)]
        for kind, usd in kinds:
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
