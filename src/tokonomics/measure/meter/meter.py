"""The meter itself: ask every source, make spans, write them down, and say what tokens cost now.

A tick reads all sources at once. Sums of this hour, this day and all time begin with what the ledger has of each
server and grow with every span; "now" is the last minute, and five for engines that count a request's tokens only when
it ends, so that a window holds whole requests.
"""

import asyncio
from collections import defaultdict, deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field

from tokonomics.measure.meter.against_plan import compare
from tokonomics.measure.meter.clocks import Clock
from tokonomics.measure.meter.engines import UnknownEngine
from tokonomics.measure.meter.gpu import electricity_usd, energy_used
from tokonomics.measure.meter.ledger import Ledger, Mark
from tokonomics.measure.meter.readings import GpuReading, GpuSource, Missed, Reading, Source
from tokonomics.measure.meter.spans import Span, Watched, cut_every, tally
from tokonomics.measure.meter.state import GpuState, GroupState, MeterState, Planned, Tally
from tokonomics.measure.meter.watch import LONG_S, Watch
from tokonomics.units import SECONDS_PER_HOUR, plural

NOW_S, LUMPY_NOW_S = 60.0, 300.0
"""Most answers take less than five minutes (assumed), so that such a window holds more whole requests than cut ones."""
LATE_S = 60.0
"""A scrape may reach a Prometheus, or us through it, this much later than it was made."""
DAY_S = 24 * SECONDS_PER_HOUR
_NOTHING = Tally()


@dataclass
class _Sums:
    """What one model on one server adds up to."""

    recent: deque[Span] = field(default_factory=deque)
    hour: tuple[float, Tally] = (0.0, _NOTHING)
    today: tuple[float, Tally] = (0.0, _NOTHING)
    total: Tally = _NOTHING
    busy: bool | None = None

    def add(self, span: Span, planned_batch: float | None) -> None:
        for piece in cut_every(span, SECONDS_PER_HOUR):
            each = tally(piece, planned_batch)
            self.hour = _grown(self.hour, each, piece.start, SECONDS_PER_HOUR)
            self.today = _grown(self.today, each, piece.start, DAY_S)
            self.total = self.total + each

    def now(self, until: float, window_s: float, planned_batch: float | None) -> Tally:
        since = until - window_s
        # The first span that reaches into the window stays whole: a cut one would keep its tokens and lose its time.
        while len(self.recent) > 1 and self.recent[0].end <= since:
            self.recent.popleft()
        return sum((tally(span, planned_batch) for span in self.recent), _NOTHING)


def _grown(sums: tuple[float, Tally], each: Tally, start: float, period_s: float) -> tuple[float, Tally]:
    began, tallied = sums
    at = start // period_s * period_s
    return (at, each) if at > began else (began, tallied + each) if at == began else sums


class Meter:
    """Sources, a book and a price; ``tick`` by ``tick``."""

    def __init__(
        self,
        sources: Sequence[Source],
        ledger: Ledger,
        clock: Clock,
        usd_per_hour: float,
        *,
        price_from: str = "as given",
        every_s: float = 15.0,
        planned: Planned | None = None,
        gpus: GpuSource | None = None,
        usd_per_kwh: float | None = None,
        from_now: bool = False,
    ) -> None:
        self._sources, self._ledger, self._clock, self._gpus = sources, ledger, clock, gpus
        self._usd_per_hour, self._price_from, self._every_s, self._planned = usd_per_hour, price_from, every_s, planned
        self._batch = planned.batch if planned else None
        self._booked = ledger.marks()
        self._marks = {} if from_now else dict(self._booked)
        self._watches: dict[str, Watch] = {}
        self._of_source: dict[int, set[str]] = defaultdict(set)
        self._asked_before: dict[int, float] = {}
        self._never: dict[str, Missed] = {}
        self._left: dict[str, dict[str, Reading]] = {}
        self._sums: dict[tuple[str, str], _Sums] = defaultdict(_Sums)
        self._unwritten: str | None = None
        self._gpus_before: Sequence[GpuReading] = ()
        self._energy_j: float | None = None
        self._usd_per_kwh = usd_per_kwh
        for source in sources:
            if not source.discovers:
                self._watch(source.name)
        self._seed(self._watches.keys(), clock.wall())

    async def tick(self) -> MeterState:
        """Read everything once, and say what is known then."""
        asked = [self._ask(source) for source in self._sources]
        answers, gpus = await asyncio.gather(asyncio.gather(*asked), self._read_gpus())
        self._draw(gpus)
        self._book([span for place, answer in enumerate(answers) for span in self._take(place, *answer)])
        return self._state(self._clock.wall(), gpus)

    def backfill(self, source: Source, readings: Sequence[Reading]) -> None:
        """Scrapes of the past, oldest first; what the book has already is left out."""
        self._book(self._take_scrapes(self._sources.index(source), readings, None))

    def _book(self, spans: Sequence[Span]) -> None:
        for span in spans:
            self._add(span)
        marks = [mark for watch in self._watches.values() if (mark := self._mark(watch)) is not None]
        self._unwritten = self._ledger.record(spans, marks)

    def _draw(self, gpus: Sequence[GpuReading]) -> None:
        if gpus and self._gpus_before:
            self._energy_j = (self._energy_j or 0.0) + energy_used(self._gpus_before, gpus).joules
        self._gpus_before = gpus or self._gpus_before

    async def _ask(self, source: Source) -> tuple[Sequence[Reading] | Missed, float, float]:
        """The answer and when it came: others may take longer."""
        answer: Sequence[Reading] | Missed
        try:
            answer = await source.read()
        except Missed as miss:
            answer = miss
        return answer, self._clock.wall(), self._clock.steady()

    async def _read_gpus(self) -> Sequence[GpuReading]:
        return await self._gpus.gpus() if self._gpus is not None else ()

    def _take(self, place: int, answer: Sequence[Reading] | Missed, wall: float, steady: float) -> list[Span]:
        source = self._sources[place]
        if isinstance(answer, Missed):
            self._never[source.name] = answer
            # What a Prometheus scrapes meanwhile is asked for later; an engine's own page is gone.
            return [] if source.discovers else self._watches[source.name].missed(answer, wall, steady)
        self._never.pop(source.name, None)
        if source.discovers:
            return self._take_scrapes(place, answer, wall)
        return self._came(self._watches[source.name], answer, wall, steady)

    def _take_scrapes(self, place: int, answer: Sequence[Reading], wall: float | None) -> list[Span]:
        """Readings with times of their own: all that were made since the last were taken, target by target.

        Of the past (without a time) nobody can say yet which targets are late.
        """
        by_target: dict[str, dict[float, list[Reading]]] = defaultdict(lambda: defaultdict(list))
        for reading in answer:
            by_target[reading.target][reading.at].append(reading)
        mine, asked_before = self._of_source[place], self._asked_before.get(place)
        for target in mine - by_target.keys():
            # Not paid for any more; should it come back, its counters go on from where they were.
            self._left[target] = self._watches.pop(target).readings
        fresh = by_target.keys() - self._watches.keys()
        for target in fresh:
            self._watch(target, Watched.gap)
        newest = max((reading.at for reading in answer), default=0.0) if wall is None else wall
        self._seed(fresh, newest)
        self._of_source[place] = set(by_target)
        self._asked_before[place] = newest
        spans: list[Span] = []
        for target, scrapes in by_target.items():
            watch = self._watches[target]
            for at, readings in sorted(scrapes.items()):
                if at > watch.last_at:
                    spans += self._came(watch, readings, at, at, _born(readings, asked_before))
            if wall is not None and watch.until is not None and wall - LATE_S - watch.until > LONG_S:
                spans += watch.missed(Missed("was not scraped lately"), wall - LATE_S, wall - LATE_S)
        return spans

    def _came(
        self, watch: Watch, readings: Sequence[Reading], wall: float, steady: float, born: float | None = None
    ) -> list[Span]:
        try:
            return watch.came(readings, wall, steady, born)
        except Missed as miss:
            return watch.missed(miss, wall, steady)

    def _watch(self, target: str, after_patience: Watched = Watched.away) -> None:
        patience_s = max(LONG_S, 3 * self._every_s)
        mark = self._marks.pop(target, None)
        self._watches[target] = Watch(target, self._usd_per_hour, mark, patience_s, after_patience)
        if target in self._left:
            self._watches[target].readings = self._left.pop(target)

    def _seed(self, targets: Collection[str], wall: float) -> None:
        """Begin the sums with what the book has; those of a server that came back are here already."""
        targets = set(targets) - {target for target, _ in self._sums}
        if not targets:
            return
        for span in self._ledger.spans(since=wall // DAY_S * DAY_S):
            if span.target in targets:
                self._sums[span.target, span.model].add(span, self._batch)
        for target in targets:
            if target in self._booked:
                for model, total in self._booked[target].totals.items():
                    self._sums[target, model].total = total

    def _mark(self, watch: Watch) -> Mark | None:
        if watch.until is None:
            return None
        totals = {model: self._sums[watch.target, model].total for model in watch.readings}
        return Mark(watch.target, watch.until, dict(watch.readings), totals)

    def _add(self, span: Span) -> None:
        sums = self._sums[span.target, span.model]
        sums.add(span, self._batch)
        sums.busy = span.busy_s > 0 if span.watched is Watched.seen else None
        if span.watched is not Watched.away:
            sums.recent.append(span)

    def _state(self, wall: float, gpus: Sequence[GpuReading]) -> MeterState:
        groups = tuple(
            self._group(watch, reading, wall) for watch in self._watches.values() for reading in watch.readings.values()
        )
        sums = {
            name: sum((getattr(each, name) for each in groups), _NOTHING) for name in ("now", "hour", "today", "total")
        }
        for (target, _), left in self._sums.items():
            if target not in self._watches:
                sums["hour"] += _current(left.hour, wall, SECONDS_PER_HOUR)
                sums["today"] += _current(left.today, wall, DAY_S)
                sums["total"] += left.total
        return MeterState(
            at=wall,
            every_s=self._every_s,
            price_from=self._price_from,
            groups=groups,
            gpus=tuple(_gpu(each) for each in gpus),
            energy_j=self._energy_j,
            electricity_usd=self._electricity_usd(),
            planned=self._planned,
            against_plan=compare(sums["today"], self._planned) if self._planned else None,
            notes=self._notes(),
            held_spans=self._ledger.held,
            **sums,
        )

    def _electricity_usd(self) -> float | None:
        if self._usd_per_kwh is None or self._energy_j is None:
            return None
        return electricity_usd(self._energy_j, self._usd_per_kwh)

    def _group(self, watch: Watch, reading: Reading, wall: float) -> GroupState:
        sums = self._sums[watch.target, reading.model]
        window_s = LUMPY_NOW_S if reading.lumpy else NOW_S
        until = watch.until or wall
        current = {name: getattr(reading, name) if watch.up else None for name in ("running", "waiting", "kv_use")}
        return GroupState(
            target=watch.target,
            model=reading.model,
            engine=reading.engine,
            labels=dict(reading.labels),
            up=watch.up,
            busy=sums.busy,
            usd_per_hour=watch.usd_per_hour,
            now=sums.now(until, window_s, self._batch),
            hour=_current(sums.hour, until, SECONDS_PER_HOUR),
            today=_current(sums.today, until, DAY_S),
            total=sums.total,
            misses=watch.misses,
            said=watch.said,
            **current,
        )

    def _notes(self) -> tuple[str, ...]:
        notes = [f"{name}: {miss.what}" for name, miss in self._never.items()]
        notes += [
            f"{watch.target}: {watch.said}"
            for watch in self._watches.values()
            if watch.said and watch.target not in self._never
        ]
        notes += [warning for source in self._sources for warning in source.warnings]
        notes += [self._gpus.why] if self._gpus is not None and self._gpus.why else []
        if self._unwritten is not None:
            held = plural(self._ledger.held, "span")
            notes.append(f"the ledger cannot be written ({self._unwritten}): {held} held in memory, tried again")
        return tuple(notes)

    def unknown_engines(self) -> set[str]:
        """Addresses whose pages are of no engine that we know."""
        return {name for name, miss in self._never.items() if isinstance(miss, UnknownEngine)}

    def unreachable(self) -> Mapping[str, Missed]:
        """Sources that did not answer the last time."""
        return self._never


def _current(sums: tuple[float, Tally], until: float, period_s: float) -> Tally:
    return sums[1] if sums[0] == until // period_s * period_s else _NOTHING


def _born(readings: Sequence[Reading], asked_before: float | None) -> float | None:
    """When a server began that was not there when its source was asked before."""
    starts = [each.started for each in readings if each.started is not None]
    if asked_before is None or not starts or max(starts) < asked_before:
        return None
    return max(starts)


def _gpu(reading: GpuReading) -> GpuState:
    plain = asdict(reading)
    plain.pop("at")
    return GpuState(**plain)
