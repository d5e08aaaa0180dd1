"""Which requests to send to which model: the cheapest ways in order, the front of price and quality, the break-even.

A way gives each model a part of the requests. What a part costs on a model of one's own takes simulations, so parts
are priced when their turn comes: a way enters with a bill that its parts cannot go below and comes back with a closer
one, and the ways leave in the order of their bills. So the cheapest is the one that pricing every way would give.
"""

import heapq
import math
from bisect import bisect_left
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

from tokonomics.traffic.trace import Floats

Part = Hashable
Price = Callable[[int, Part], float]
"""Dollars a month of a part on a model, which is told by its place in the list."""


@dataclass(frozen=True)
class Sending:
    """One way to send requests: the place of each model that gets any, and the part that it gets."""

    name: tuple[object, ...]
    parts: tuple[tuple[int, Part], ...]
    quality: float | None = None
    """In the mean over requests; None without scores."""


def cheapest_first(
    sendings: Iterable[Sending],
    at_least: Price,
    exactly: Price,
    worth: Callable[[Sending], bool] = lambda sending: True,
) -> Iterator[tuple[float, Sending]]:
    """The ways with their bills, the cheapest first; one that is not ``worth`` it at its turn is not priced further."""
    known: dict[tuple[int, Part], float] = {}
    bounds: dict[tuple[int, Part], float] = {}

    def bill(sending: Sending) -> float:
        for part in sending.parts:
            if part not in known and part not in bounds:
                bounds[part] = at_least(*part)
        return math.fsum(known.get(part, bounds.get(part, 0.0)) for part in sending.parts)

    queue = [(bill(sending), place, sending) for place, sending in enumerate(sendings)]
    heapq.heapify(queue)
    while queue:
        usd, place, sending = heapq.heappop(queue)
        if math.isinf(usd) or not worth(sending):
            continue
        unpriced = [part for part in sending.parts if part not in known]
        if bill(sending) <= usd and not unpriced:
            yield usd, sending
            continue
        if bill(sending) <= usd:
            known[unpriced[0]] = exactly(*unpriced[0])
        heapq.heappush(queue, (bill(sending), place, sending))


def cheapest(
    sendings: Iterable[Sending], at_least: Price, exactly: Price, floor: float | None = None
) -> tuple[float, Sending] | None:
    """The cheapest way whose quality is not below the floor; None where there is none."""

    def reaches(sending: Sending) -> bool:
        return floor is None or (sending.quality is not None and sending.quality >= floor - 1e-12)

    return next(cheapest_first(filter(reaches, sendings), at_least, exactly), None)


def front(sendings: Iterable[Sending], at_least: Price, exactly: Price) -> list[tuple[float, Sending]]:
    """The ways that no other beats in both price and quality, the cheapest first; of equal ones, the first."""
    found: list[tuple[float, Sending]] = []

    def better(sending: Sending) -> bool:
        return sending.quality is not None and (not found or sending.quality > (found[-1][1].quality or 0.0))

    for usd, sending in cheapest_first(sendings, at_least, exactly, better):
        while found and found[-1][0] >= usd * (1 - 1e-12):
            found.pop()
        found.append((usd, sending))
    return found


def every_sending(shares: Sequence[float], scores: Sequence[Sequence[float]] | None, models: int) -> Iterator[Sending]:
    """Each label to one of the models, in all ways; ``scores[model][label]`` weighed by the labels' shares."""
    for chosen in product(range(models), repeat=len(shares)):
        parts = ((model, frozenset(label for label, to in enumerate(chosen) if to == model)) for model in range(models))
        quality = None
        if scores is not None:
            each = (
                share * scores[model][label] for label, (share, model) in enumerate(zip(shares, chosen, strict=True))
            )
            quality = math.fsum(each) / math.fsum(shares)
        yield Sending(chosen, tuple((model, labels) for model, labels in parts if labels), quality)


def break_even_share(
    usd: Callable[[float], float],
    baseline_usd: float,
    reachable: Sequence[float],
    coarse: Sequence[float],
    within: float = 0.01,
) -> tuple[float, float] | None:
    """The last share that costs too much and one above it from which on the bill stays below the baseline's: at most
    ``within`` apart, or neighbours among the ``reachable`` ones (rising, up to all). None where it never does.

    Bills go up and down in whole machines, so what is reached at each ``coarse`` share is looked at, and the step after
    the last that costs too much is halved. A share of nothing is the baseline itself.
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


def within_limit(arrival_s: Floats, stay_s: Floats, limit: int) -> NDArray[np.bool_]:
    """Which requests find fewer than ``limit`` others under way, where those that do not go elsewhere."""
    ends: list[float] = []
    kept = np.zeros(len(arrival_s), bool)
    for place, (arrives, stays) in enumerate(zip(arrival_s.tolist(), stay_s.tolist(), strict=True)):
        while ends and ends[0] <= arrives:
            heapq.heappop(ends)
        if len(ends) < limit:
            kept[place] = True
            heapq.heappush(ends, arrives + stays)
    return kept
