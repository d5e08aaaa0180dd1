"""Build the ways to serve one traffic with several models: one model, routed by score, share or label, or a cascade.

When routed, each request is answered by one model: the first if its score reaches the threshold, or the one its label
is sent to. In a cascade the first model answers every request, and those with a score below the threshold are asked
again of another: both are paid, and the waits add up. Requests longer than the first model's context go to the other at
once. Every self-hosted fleet is sized by simulation for its part of the traffic (``route_models``); qualities are the
user's scores, averaged over requests.
"""

import heapq
import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice, product

import numpy as np
from numpy.typing import NDArray

from tokonomics.planner.route_models import (
    WAITS,
    CalledModel,
    Latencies,
    OwnModel,
    Places,
    RoutedModel,
    RouteKind,
    RoutePart,
    RouteWay,
    part_of,
)
from tokonomics.serving.outcome import judged
from tokonomics.sizing.load import Load
from tokonomics.sizing.setup import Say, silent
from tokonomics.traffic.slo import Latency, Slo
from tokonomics.traffic.trace import Counts, Floats
from tokonomics.traffic.workload import spread, workload_of

Part = Hashable
Price = Callable[[int, Part], float]  # dollars a month of a part on a model, given by its index in the list
ALL: Part = "all"
FITS = "fits"
MOST_LABELS = 6
"""Labels that can each be sent to a different model: 729 ways with three models, with at most 64 fleets per model."""
ROUND_SHARES = tuple(round(0.1 * step, 1) for step in range(1, 10))
"""Shares of requests on the first model, used if scores have more than ``_DISTINCT`` values."""
_DISTINCT = 11
_MOST_SENDINGS = 12  # ways to send labels to show if no scores say which are better


@dataclass(frozen=True)
class Marks:
    """What is known about each request, in the order of the traffic."""

    score: Floats  # confidence that the first model is enough, from 0 to 1
    by_chance: bool = False  # the score is random: requests are split by share
    label: Counts | None = None
    labels: tuple[str, ...] = ()
    quality: tuple[Floats, ...] | None = None  # of each model's answers


# --- the cheapest ways to send labels --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sending:
    """One way to send requests: the index of each model that gets any, and the part that it gets."""

    name: tuple[object, ...]
    parts: tuple[tuple[int, Part], ...]
    quality: float | None = None  # mean over requests; None without scores


def cheapest_first(
    sendings: Iterable[Sending],
    at_least: Price,
    exactly: Price,
    worth: Callable[[Sending], bool] = lambda sending: True,
) -> Iterator[tuple[float, Sending]]:
    """Yield the ways with their bills, cheapest first; one not ``worth`` it at its turn is not priced further."""
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
    """Return the cheapest way whose quality reaches the floor; None if there is none."""

    def reaches(sending: Sending) -> bool:
        return floor is None or (sending.quality is not None and sending.quality >= floor - 1e-12)

    return next(cheapest_first(filter(reaches, sendings), at_least, exactly), None)


def front(sendings: Iterable[Sending], at_least: Price, exactly: Price) -> list[tuple[float, Sending]]:
    """Return the ways that no other beats in both price and quality, cheapest first; of equal ones, the first."""
    found: list[tuple[float, Sending]] = []

    def better(sending: Sending) -> bool:
        return sending.quality is not None and (not found or sending.quality > (found[-1][1].quality or 0.0))

    for usd, sending in cheapest_first(sendings, at_least, exactly, better):
        while found and found[-1][0] >= usd * (1 - 1e-12):
            found.pop()
        found.append((usd, sending))
    return found


def every_sending(shares: Sequence[float], scores: Sequence[Sequence[float]] | None, models: int) -> Iterator[Sending]:
    """Yield all ways to send each label to one model; ``scores[model][label]`` are weighted by the labels' shares."""
    for chosen in product(range(models), repeat=len(shares)):
        parts = ((model, frozenset(label for label, to in enumerate(chosen) if to == model)) for model in range(models))
        quality = None
        if scores is not None:
            each = (
                share * scores[model][label] for label, (share, model) in enumerate(zip(shares, chosen, strict=True))
            )
            quality = math.fsum(each) / math.fsum(shares)
        yield Sending(chosen, tuple((model, labels) for model, labels in parts if labels), quality)


# --- every way to serve the traffic ----------------------------------------------------------------------------------


@dataclass
class Routing:
    """A traffic, the models that may serve it, and what is known about its requests."""

    load: Load
    models: Sequence[RoutedModel]  # the first is self-hosted; an API is last
    marks: Marks
    slos: tuple[Slo, ...] = ()
    floor: float | None = None
    share: float | None = None  # of requests on the first model, if given
    say: Say = silent
    too_long: tuple[int, int] = (0, 0)
    """Number and tokens of the requests that fit no model's context: they are not in the load."""
    _parts: dict[Part, tuple[Hashable, Load | None]] = field(default_factory=dict)

    # --- parts of the traffic ---------------------------------------------------------------------------------------

    @property
    def splits(self) -> bool:
        """Tell whether requests can be split other than by label: by score, or by share if no labels are named."""
        return not self.marks.by_chance or self.share is not None or self.marks.label is None

    @property
    def _count(self) -> int:
        return len(self.load.trace)

    @cached_property
    def fits(self) -> tuple[NDArray[np.bool_], ...]:
        """Tell for each model which requests fit its context."""
        tokens = self.load.trace.input_tokens.astype(np.int64) + self.load.trace.output_tokens
        return tuple(tokens <= model.max_context for model in self.models)

    def mask(self, part: Part) -> NDArray[np.bool_]:
        """Tell which requests belong to a part.

        A part is all requests, those with some labels, those that fit a model's context, or those that fit the first
        model's and reach a score, and the others.
        """
        if part == ALL:
            return np.ones(self._count, bool)
        if isinstance(part, frozenset):
            assert self.marks.label is not None
            return np.isin(self.marks.label, list(part))
        assert isinstance(part, tuple)
        side, threshold = part
        if side == FITS:
            return self.fits[threshold]
        above: NDArray[np.bool_] = (self.marks.score >= threshold) & self.fits[0]
        return above if side == "from" else ~above

    def takes(self, model: int, part: Part) -> bool:
        """Tell whether every request of a part fits a model's context."""
        return bool(self.fits[model][self.mask(part)].all())

    def part(self, part: Part) -> tuple[Hashable, Load | None]:
        """Return the identity of a part, and its requests; None if there are none."""
        if part not in self._parts:
            mask = self.mask(part)
            key: Hashable = np.packbits(mask).tobytes()
            whole = self.load if mask.all() else None
            load = whole or (part_of(self.load, np.flatnonzero(mask)) if mask.any() else None)
            self._parts[part] = key, load
        return self._parts[part]

    def exactly(self, model: int, part: Part) -> float:
        """Return the simulated dollars a month; infinite if some request does not fit the model's context."""
        return self._usd(self.models[model].usd_per_month, model, part)

    def at_least(self, model: int, part: Part) -> float:
        """Return the dollars a month by the closed form."""
        return self._usd(self.models[model].at_least, model, part)

    def _usd(self, bill: Callable[[Load, Hashable], float], model: int, part: Part) -> float:
        key, load = self.part(part)
        if not self.takes(model, part):
            return math.inf
        return 0.0 if load is None else bill(load, key)

    # --- thresholds -------------------------------------------------------------------------------------------------

    @cached_property
    def _falling(self) -> Places:
        """Return the requests that fit the first model's context, by falling score."""
        places = np.flatnonzero(self.fits[0])
        return places[np.argsort(-self.marks.score[places], kind="stable")]

    def threshold_at(self, share: float) -> float:
        """Return the score that this share of the requests reaches, as near as ties and contexts allow."""
        place = min(len(self._falling), max(1, round(share * self._count)))
        return float(self.marks.score[self._falling[place - 1]])

    @cached_property
    def reachable_shares(self) -> tuple[float, ...]:
        """Return the share on the first model for each threshold: requests with equal scores go the same way."""
        _, tied = np.unique(-self.marks.score[self._falling], return_counts=True)
        return tuple(float(count) / self._count for count in np.cumsum(tied))

    def thresholds(self, second: int) -> list[float]:
        """Return the thresholds to try.

        These are all distinct scores but the lowest; if there are many, those of round shares, of the given share, and
        where the quality floor is just reached. The lowest is included if some requests are too long for the first
        model, which then takes the others.
        """
        distinct = np.unique(self.marks.score[self._falling])
        if len(distinct) <= _DISTINCT:
            found = {float(value) for value in distinct}
        else:
            found = {self.threshold_at(share) for share in ROUND_SHARES} | {self.named_threshold}
            found |= {threshold for threshold in [self._just_good_enough(second)] if threshold is not None}
        lowest = {float(distinct[0])}
        return sorted(found - lowest if self.fits[0].all() else found | lowest, reverse=True)

    @cached_property
    def named_threshold(self) -> float:
        """Return the threshold of the given share; else 0.5, if the log has scores on both sides of it."""
        if self.share is not None:
            return self.threshold_at(self.share)
        score = self.marks.score
        above = score[score >= 0.5]
        if self.marks.by_chance or len(above) in (0, self._count):
            return self.threshold_at(0.5)
        return float(above.min())

    def _just_good_enough(self, second: int) -> float | None:
        """Return the lowest threshold whose quality reaches the floor; None without scores, or if there is none."""
        if self.floor is None or self.marks.quality is None:
            return None
        order, score = self._falling, self.marks.score
        gained = np.cumsum((self.marks.quality[0] - self.marks.quality[second])[order])
        means = (gained + self.marks.quality[second].sum()) / self._count
        # Requests with equal scores go the same way.
        ends = np.append(score[order][1:] != score[order][:-1], True)
        good = np.flatnonzero(ends & (means >= self.floor - 1e-12))
        return float(score[order[good[-1]]]) if len(good) else None

    # --- ways -------------------------------------------------------------------------------------------------------

    def quality(self, to: NDArray[np.int64]) -> float | None:
        """Return the mean quality if each request is answered by the model with that index."""
        if self.marks.quality is None:
            return None
        return float(np.choose(to, self.marks.quality).mean())

    def single(self, model: int) -> RouteWay | None:
        return self.way("single", f"all on {self.models[model].name}", [(model, ALL)])

    def routed(self, second: int, threshold: float) -> RouteWay | None:
        """Send requests from the threshold on to the first model, the others to the second."""
        parts = [(0, ("from", threshold)), (second, ("below", threshold))]
        to = np.where(self.mask(("from", threshold)), 0, second)
        share = float((to == 0).mean())
        what = f"{share:.0%}".replace("%", " %") if self.marks.by_chance else f"score ≥ {threshold:.3g}"
        name = f"{what} on {self.models[0].name}, else {self.models[second].name}"
        way = self.way("routed", name, parts, self.quality(to))
        return way and way.model_copy(update={"threshold": threshold})

    def sent(self, sending: Sending) -> RouteWay | None:
        """Send each label to one model."""
        to: dict[int, list[str]] = {}
        for label, model in enumerate(sending.name):
            assert isinstance(model, int)
            to.setdefault(model, []).append(self.marks.labels[label])
        name = "; ".join(f"{', '.join(labels)} → {self.models[model].name}" for model, labels in sorted(to.items()))
        return self.way("labels", name, sending.parts, sending.quality)

    def way(
        self, kind: RouteKind, name: str, parts: Sequence[tuple[int, Part]], quality: float | None = None
    ) -> RouteWay | None:
        """Return a way in which each request is answered by one model; None if a part cannot be served."""
        made: list[RoutePart] = []
        waits: list[Latencies] = []
        for model, part in parts:
            key, load = self.part(part)
            if load is None:
                continue
            found = self._part_on(model, load, key) if self.takes(model, part) else None
            if found is None:
                return None
            made.append(found[0])
            waits += [found[1]] if found[1] is not None else []
        if kind == "single" and self.marks.quality is not None:
            quality = float(self.marks.quality[parts[0][0]].mean())
        latencies = {wait: np.concatenate([one[wait] for one in waits] or [np.zeros(0)]) for wait in WAITS}
        first = next((part.share for part in made if part.model == self.models[0].key), 0.0)
        return self.way_of_parts(kind, name, made, latencies, quality, first)

    def _part_on(self, model: int, load: Load, key: Hashable) -> tuple[RoutePart, Latencies | None] | None:
        """Return a part on one model, and its latencies if they are known."""
        server, share = self.models[model], len(load.trace) / self._count
        if isinstance(server, CalledModel):
            return server.part(load, share), None
        fleet = server.fleet(load, key)
        return None if fleet is None else (fleet.part(share), fleet.latencies)

    def way_of_parts(
        self,
        kind: RouteKind,
        name: str,
        parts: Sequence[RoutePart],
        latencies: Latencies,
        quality: float | None,
        first: float,
    ) -> RouteWay:
        usd = math.fsum(part.usd_per_month for part in parts)
        known = {wait: seconds[~np.isnan(seconds)] for wait, seconds in latencies.items()}
        return RouteWay(
            kind=kind,
            name=name,
            parts=tuple(parts),
            first_share=first,
            usd_per_month=usd,
            usd_per_mtok=usd / self.load.workload.tokens_per_month * 1e6,
            quality=quality,
            simulated_share=1 - math.fsum(part.share for part in parts if part.replicas is None),
            ttft_s=spread(known[Latency.ttft]),
            e2e_s=spread(known[Latency.e2e]),
            slo=tuple(judged(slo, latencies[slo.latency], 0) for slo in self.slos) if len(known[Latency.e2e]) else (),
        )

    # --- cascades ---------------------------------------------------------------------------------------------------

    @cached_property
    def _first(self) -> Part:
        """Return the part that the first model of a cascade answers."""
        return ALL if self.fits[0].all() else (FITS, 0)

    def escalated(self, threshold: float) -> tuple[Places, Load | None, Latencies]:
        """Return the requests with too low a score, timed after the first model's answer, and its latencies for all.

        Requests too long for the first model come at once, without a wait.
        """
        first = self.models[0]
        assert isinstance(first, OwnModel)
        key, load = self.part(self._first)
        fleet = None if load is None else first.fleet(load, key)
        assert fleet is not None
        trace, waits = self.load.trace, {wait: np.zeros(self._count) for wait in WAITS}
        for wait in WAITS:
            waits[wait][self.fits[0]] = fleet.latencies[wait]
        asked = np.flatnonzero(self.mask(("below", threshold)) & ~np.isnan(waits[Latency.e2e]))
        arrival_s = trace.arrival_s[asked] + waits[Latency.e2e][asked]
        order = np.argsort(arrival_s, kind="stable")
        if not len(asked):
            return asked, None, waits
        again = replace(trace.take(asked[order]), arrival_s=arrival_s[order], turns=None)
        rate = self.load.workload.rate * len(again) / self._count
        return asked[order], replace(self.load, trace=again, workload=workload_of(again, rate)), waits

    def cascade_usd(self, second: int, threshold: float) -> float:
        """Return the dollars a month of the first model for all, and of the second for requests asked again."""
        _, load, _ = self.escalated(threshold)
        if not self.takes(second, ("below", threshold)):
            return math.inf
        again = 0.0 if load is None else self.models[second].usd_per_month(load, ("after", threshold))
        return self.exactly(0, self._first) + again

    def cascade(self, second: int, threshold: float) -> RouteWay | None:
        """Let the first model answer all, and ask requests below the threshold again of the second."""
        asked, load, latencies = self.escalated(threshold)
        key, first = self.part(self._first)
        if first is None or not self.takes(second, ("below", threshold)):
            return None
        parts = [self._part_on(0, first, key)]
        if load is not None:
            found = self._part_on(second, load, ("after", threshold))
            if found is None:
                return None
            parts.append(found)
            # A request asked again waits for the first answer, then for the second; an API's own time is not known.
            first_s, more = latencies[Latency.e2e][asked], found[1]
            for wait in (Latency.ttft, Latency.e2e):
                latencies[wait][asked] = first_s + (0.0 if more is None else more[wait])
            latencies[Latency.tpot][asked] = np.nan if more is None else more[Latency.tpot]
            if more is None:
                latencies = {wait: np.where(self.fits[0], waits, np.nan) for wait, waits in latencies.items()}
        to = np.where(self.mask(("from", threshold)), 0, second)
        cut = f"score < {threshold:.3g}"
        what = f"{(to > 0).mean():.0%}".replace("%", " %") if self.marks.by_chance else cut
        name = f"{self.models[0].name} first; {what} again on {self.models[second].name}"
        made = [part[0] for part in parts if part]
        way = self.way_of_parts("cascade", name, made, latencies, self.quality(to), float((to == 0).mean()))
        return way.model_copy(update={"threshold": threshold})

    # --- labels -----------------------------------------------------------------------------------------------------

    def by_label(self) -> list[RouteWay]:
        """Return the front of price and quality over all ways to send labels; without scores, the cheapest of them."""
        if self.marks.label is None:
            return []
        count = np.bincount(self.marks.label, minlength=len(self.marks.labels))
        shares = [float(number / self._count) for number in count]
        scores = None
        if self.marks.quality is not None:
            totals = [np.bincount(self.marks.label, quality, len(count)) for quality in self.marks.quality]
            scores = [[float(value) for value in total / np.maximum(count, 1)] for total in totals]
        sendings = list(every_sending(shares, scores, len(self.models)))
        if scores is None:
            ranked = cheapest_first(sendings, self.at_least, self.exactly)
            found = [sending for _, sending in islice(ranked, _MOST_SENDINGS)]
        else:
            found = [sending for _, sending in front(sendings, self.at_least, self.exactly)]
            best = cheapest(sendings, self.at_least, self.exactly, self.floor)
            found += [best[1]] if best and best[1] not in found else []
        mixed = [sending for sending in found if len(sending.parts) > 1]
        return [way for way in map(self.sent, mixed) if way]
