"""The meter itself: ask every source, make spans, write them down, and say what tokens cost now.

A tick reads all sources at once. Sums of this hour, this day and all time begin with what the ledger has of each
server and grow with every span; "now" is the last minute, and five where an engine counts a request's tokens only when
it ends, so that a window holds whole requests.
"""

import asyncio
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tokonomics.errors import TokonomicsError, option
from tokonomics.measure.meter.ledger import Drawn, Ledger, Mark, joined_row
from tokonomics.measure.meter.price_factors import compare
from tokonomics.measure.meter.readings import (
    Clock,
    GpuReading,
    GpuSource,
    Missed,
    Reading,
    Source,
    electricity_usd,
    joules_used,
)
from tokonomics.measure.meter.spans import PaidTime, WatchedSpan, cut_every, tally
from tokonomics.measure.meter.spending import BudgetBook, MonthlyBudget, PriceOf, Prices
from tokonomics.measure.meter.state import BudgetState, GroupState, MeterState, MeterTally, Planned
from tokonomics.measure.meter.watch import LONG_S, MOST_AWAY_S, Frontends, Watch
from tokonomics.units import DAY_S, SECONDS_PER_HOUR, plural

NOW_S, LUMPY_NOW_S = 60.0, 300.0  # most answers take less than five minutes (assumed): a window holds whole requests
LATE_S = 60.0  # a scrape may reach a Prometheus, or us through it, this much later than it was made
_NOTHING = MeterTally()


@dataclass
class _Period:
    """Sums since the start of this hour or day."""

    length_s: float
    began: float = 0.0
    sums: MeterTally = _NOTHING

    def add(self, sums: MeterTally, start: float) -> None:
        at = start // self.length_s * self.length_s
        # Another period may also be an earlier one: the clock was set back.
        self.began, self.sums = at, self.sums + sums if at == self.began else sums

    def at(self, until: float) -> MeterTally:
        return self.sums if self.began == until // self.length_s * self.length_s else _NOTHING


@dataclass
class _Sums:
    """What one model on one server adds up to."""

    recent: deque[tuple[float, MeterTally]] = field(default_factory=deque)
    """Spans by their ends."""
    hour: _Period = field(default_factory=lambda: _Period(SECONDS_PER_HOUR))
    today: _Period = field(default_factory=lambda: _Period(DAY_S))
    total: MeterTally = _NOTHING
    busy: bool | None = None
    row: PaidTime | None = None
    """The book's row that grows: a batch is judged by rows, as a report of them does."""

    def add(self, span: PaidTime, planned_batch: float | None) -> None:
        *earlier, last = [(piece.start, tally(piece)) for piece in cut_every(span, SECONDS_PER_HOUR)]
        for start, sums in (*earlier, (last[0], last[1] + self._starved(span, planned_batch))):
            self.hour.add(sums, start)
            self.today.add(sums, start)
            self.total = self.total + sums

    def _starved(self, span: PaidTime, planned_batch: float | None) -> MeterTally:
        """What a span adds to the busy time with less than half of the planned batch, or takes back from its row's."""
        if planned_batch is None:
            return _NOTHING
        joined = joined_row(self.row, span) if self.row is not None else None
        before = tally(self.row, planned_batch) if self.row is not None and joined is not None else _NOTHING
        self.row = joined or span
        after = tally(self.row, planned_batch)
        return MeterTally(
            starved_s=after.starved_s - before.starved_s, starved_usd=after.starved_usd - before.starved_usd
        )

    def take(self, other: "_Sums") -> None:
        self.recent.extend(other.recent)
        self.hour.add(other.hour.sums, other.hour.began)
        self.today.add(other.today.sums, other.today.began)
        self.total = self.total + other.total

    def remember(self, span: PaidTime, planned_batch: float | None) -> None:
        """For ``now``, and no longer: a past that is read in has millions of spans."""
        self.recent.append((span.end, tally(span, planned_batch)))
        self._forget(span.end - LUMPY_NOW_S)

    def _forget(self, before: float) -> None:
        # The first span that reaches into the window stays whole: a cut one would keep its tokens and lose its time.
        while len(self.recent) > 1 and self.recent[0][0] <= before:
            self.recent.popleft()

    def now(self, until: float, window_s: float) -> MeterTally:
        self._forget(until - window_s)
        return sum((sums for _, sums in self.recent), _NOTHING)


@dataclass(frozen=True)
class _Gone:
    """A server that was scaled away: should it come back, its counters go on from where they were."""

    readings: dict[str, Reading]
    at: float  # since when it is known not to be there


class Meter:
    """Sources, a book and a price; ``tick`` by ``tick``."""

    def __init__(
        self,
        sources: Sequence[Source],
        ledger: Ledger,
        clock: Clock,
        usd_per_hour: float | Prices,
        *,
        price_from: str = "as given",
        every_s: float = 15.0,
        planned: Planned | None = None,
        gpus: GpuSource | None = None,
        usd_per_kwh: float | None = None,
        from_now: bool = False,
        budgets: Sequence[MonthlyBudget] = (),
    ) -> None:
        self._sources, self._ledger, self._clock, self._gpus = sources, ledger, clock, gpus
        self._prices = usd_per_hour if isinstance(usd_per_hour, Prices) else Prices(usd_per_hour)
        self._price_from, self._every_s, self._planned = price_from, every_s, planned
        self._batch = planned.batch if planned else None
        ledger.forget(clock.wall() - MOST_AWAY_S)
        self._departed, self._forgot_at = ledger.departed(), clock.wall()
        booked = ledger.marks()
        known = {} if from_now else booked
        self._marks = {target: mark for target, mark in known.items() if not mark.is_gone}
        self._gone = {target: _Gone(dict(mark.readings), mark.until) for target, mark in known.items() if mark.is_gone}
        self._watches: dict[str, Watch] = {}
        self._frontends = Frontends()
        self._of_source: dict[int, set[str]] = defaultdict(set)
        self._first_asked: dict[int, float] = {}
        self._never: dict[str, Missed] = {}
        self._sums: dict[tuple[str, str], _Sums] = defaultdict(_Sums)
        self._unwritten: str | None = None
        self._gpus_before: Sequence[GpuReading] = ()
        self._energy_j: float | None = None
        self._usd_per_kwh = usd_per_kwh
        self._left_out_gpus = 0
        self._no_gpus: str | None = None
        self._budgets, self._budget_hour = BudgetBook(budgets, ledger), -1.0
        self._budget_states: tuple[BudgetState, ...] = ()
        for place, source in enumerate(sources):
            if not source.discovers:
                self._watch(source.name, source.labels)
            else:
                # Those that were there when the last meter ended, until it says that they are not any more.
                self._of_source[place] = {target for target in self._marks if "://" not in target}
                for target in self._of_source[place]:
                    self._watch(target, _labels(self._marks[target].readings.values()), WatchedSpan.gap)
        self._seed(booked, clock.wall())

    async def tick(self, before_booking: Callable[[], None] = lambda: None) -> MeterState:
        """What is known after reading everything once; nothing is written where ``before_booking`` raises."""
        asked = [self._ask(source) for source in self._sources]
        answers, gpus = await asyncio.gather(asyncio.gather(*asked), self._read_gpus())
        self._frontends.forget_notes()
        self._frontends.learn(reading for answer, *_ in answers if not isinstance(answer, Missed) for reading in answer)
        before = dict(self._watches)
        spans = [span for place, answer in enumerate(answers) for span in self._take(place, *answer)]
        before_booking()
        gpus = self._metered(gpus)
        self._book(spans, before, self._drawn(gpus))
        self._forget(self._clock.wall())
        return self._state(self._clock.wall(), gpus)

    def _forget(self, wall: float) -> None:
        """Once a day: servers that are gone for good would be looked through at every tick."""
        if 0 <= wall - self._forgot_at < DAY_S:
            return
        self._forgot_at = wall
        for target in self._ledger.forget(wall - MOST_AWAY_S):
            self._gone.pop(target, None)
            for key in [key for key in self._sums if key[0] == target]:
                del self._sums[key]
        self._departed = self._ledger.departed()

    def _drawn(self, gpus: Sequence[GpuReading]) -> Drawn | None:
        """What the GPUs drew since they were read before; None where they were not."""
        before, self._gpus_before = self._gpus_before, gpus or self._gpus_before
        if not gpus or not before:
            return None
        joules = joules_used(before, gpus)
        self._energy_j = (self._energy_j or 0.0) + joules
        seconds = max(gpu.at for gpu in gpus) - max(gpu.at for gpu in before)
        return Drawn(self._clock.wall(), max(0.0, seconds), joules)

    def backfill(self, source: Source, readings: Sequence[Reading], at: float) -> None:
        """Books scrapes of the past up to then, oldest first; what the book has already is left out."""
        self._frontends.learn(readings)
        before = dict(self._watches)
        self._book(self._take_scrapes(self._sources.index(source), readings, at, live=False), before)

    def _book(self, spans: Sequence[PaidTime], before: Mapping[str, Watch], drawn: Drawn | None = None) -> None:
        """Write spans, and marks of the servers that are there or were there before."""
        watches = {**before, **self._watches}
        for watch in watches.values():
            if watch.named is not None:
                # What a server cost before it told its model is that model's.
                unnamed, model = self._sums.pop((watch.target, ""), None), watch.named.model
                if unnamed is not None:
                    self._sums[watch.target, model].take(unnamed)
                self._ledger.name(watch.target, model, watch.named.engine)
                watch.named = None
        for span in spans:
            sums = self._sums[span.target, span.model]
            sums.add(span, self._batch)
            sums.busy = span.busy_s > 0 if span.watched is WatchedSpan.seen else None
            if span.watched is not WatchedSpan.away:
                sums.remember(span, self._batch)
        marks = [self._mark(watch, watch.until) for watch in watches.values() if watch.until is not None]
        self._unwritten = self._ledger.record(spans, marks, drawn)

    def _metered(self, gpus: Sequence[GpuReading]) -> Sequence[GpuReading]:
        """Of GPUs that say whose they are, those of servers metered here."""

        def pod(labels: Mapping[str, str]) -> tuple[str, str]:
            return labels.get("namespace", ""), labels.get("pod", "")

        readings = [reading for watch in self._watches.values() for reading in watch.readings.values()]
        pods = {pod(reading.labels) for reading in readings if "pod" in reading.labels}
        self._left_out_gpus = 0
        if (self._watches and not pods) or not any("pod" in gpu.labels for gpu in gpus):
            return gpus
        ours = [gpu for gpu in gpus if pod(gpu.labels) in pods]
        self._left_out_gpus = len(gpus) - len(ours)
        return ours

    async def _ask(self, source: Source) -> tuple[Sequence[Reading] | Missed, float, float]:
        """The answer and when it came: others may take longer."""
        answer: Sequence[Reading] | Missed
        try:
            answer = await source.read()
        except Missed as miss:
            answer = miss
        return answer, self._clock.wall(), self._clock.steady()

    async def _read_gpus(self) -> Sequence[GpuReading]:
        self._no_gpus = None
        try:
            return await self._gpus() if self._gpus is not None else ()
        except TokonomicsError as error:
            self._no_gpus = str(error)
            return ()

    def _take(self, place: int, answer: Sequence[Reading] | Missed, wall: float, steady: float) -> list[PaidTime]:
        source = self._sources[place]
        if isinstance(answer, Missed):
            self._never[source.name] = answer
            # What a Prometheus scrapes meanwhile is asked for later; an engine's own page is gone.
            left_out = source.name not in self._watches
            return [] if source.discovers or left_out else self._watches[source.name].missed(answer, wall, steady)
        self._never.pop(source.name, None)
        if source.discovers:
            return self._take_scrapes(place, answer, wall, live=True)
        counted = self._counted(answer)
        if not counted:
            # A frontend whose engines are metered is not paid for: it is gone, and no gap.
            self._watches.pop(source.name, None)
            return []
        if source.name not in self._watches:
            self._watch(source.name, source.labels)
        return self._take_readings(self._watches[source.name], counted, wall, steady)

    def _counted(self, answer: Sequence[Reading]) -> list[Reading]:
        """Without frontends that stand before engines which are metered too."""
        watched = (reading for watch in self._watches.values() for reading in watch.readings.values())
        return self._frontends.without(answer, watched)

    def _take_scrapes(self, place: int, answer: Sequence[Reading], asked_at: float, live: bool) -> list[PaidTime]:
        """Spans from readings with times of their own: all made since the last were taken, target by target.

        Of the past nobody can say yet which targets are late.
        """
        by_target: dict[str, dict[float, list[Reading]]] = defaultdict(lambda: defaultdict(list))
        for reading in self._counted(answer):
            by_target[reading.target][reading.at].append(reading)
        for target in self._of_source[place] - by_target.keys():
            # Of before the time that the book has, nobody can say so.
            if asked_at >= (self._watches[target].until or 0.0):
                self._gone[target] = _Gone(self._watches.pop(target).readings, asked_at)
        absent_since = {
            target: self._gone[target].at if target in self._gone else self._first_asked.get(place)
            for target in by_target.keys() - self._watches.keys()
        }
        for target in absent_since:
            (first, *_) = by_target[target].values()
            self._watch(target, _labels(first), WatchedSpan.gap)
        self._of_source[place] = (self._of_source[place] & self._watches.keys()) | by_target.keys()
        self._first_asked.setdefault(place, asked_at)
        spans: list[PaidTime] = []
        for target, scrapes in by_target.items():
            watch = self._watches[target]
            for at, readings in sorted(scrapes.items()):
                if at > watch.last_at:
                    spans += self._take_readings(watch, readings, at, at, _born(readings, absent_since.get(target)))
            late_at = asked_at - LATE_S
            if live and watch.until is not None and late_at - watch.until > watch.patience_s:
                spans += watch.missed(Missed("was not scraped lately"), late_at, late_at)
        return spans

    def _take_readings(
        self, watch: Watch, readings: Sequence[Reading], wall: float, steady: float, born: float | None = None
    ) -> list[PaidTime]:
        try:
            return watch.take_readings(readings, wall, steady, born)
        except Missed as miss:
            return watch.missed(miss, wall, steady)

    def _watch(self, target: str, labels: Mapping[str, str], after_patience: WatchedSpan = WatchedSpan.away) -> None:
        patience_s = max(LONG_S, 3 * self._every_s)
        price, mark = self._prices.usd_per_hour_of(target, labels), self._marks.pop(target, None)
        self._watches[target] = Watch(target, price, mark, patience_s, after_patience, labels)
        if target in self._gone:
            self._watches[target].readings = self._gone.pop(target).readings
        elif mark is None and (until := self._ledger.booked_until(target)) is not None:
            self._watches[target].booked_until = until

    def _seed(self, booked: Mapping[str, Mark], wall: float) -> None:
        """Begin the sums with what the book has, of servers that are metered now and of all that discovery found."""
        discovers = any(source.discovers for source in self._sources)
        ours = {target for target in booked if target in self._watches or (discovers and "://" not in target)}
        for span in self._ledger.spans(since=wall // DAY_S * DAY_S):
            if span.target in ours:
                self._sums[span.target, span.model].add(span, self._batch)
        for sums in self._sums.values():
            sums.row = None  # the book begins a new one as well
        for target in ours:
            for model, total in booked[target].totals.items():
                self._sums[target, model].total = total

    def _mark(self, watch: Watch, until: float) -> Mark:
        totals = {model: self._sums[watch.target, model].total for model in watch.readings}
        gone = watch.target not in self._watches
        return Mark(watch.target, until, dict(watch.readings), totals, watch.usd_per_hour, gone)

    def _state(self, wall: float, gpus: Sequence[GpuReading]) -> MeterState:
        known = [(watch, reading) for watch in self._watches.values() for reading in watch.current]
        # One window for all: sums over different ones would give the longer more weight.
        window_s = LUMPY_NOW_S if any(reading.lumpy for _, reading in known) else NOW_S
        groups = tuple(self._group(watch, reading, wall, window_s) for watch, reading in known)
        windows = ("now", "hour", "today", "total")
        sums = {name: sum((getattr(group, name) for group in groups), _NOTHING) for name in windows}
        shown = {(group.target, group.model) for group in groups}
        for key, left in self._sums.items():
            if key not in shown:
                sums["hour"] += left.hour.at(wall)
                sums["today"] += left.today.at(wall)
                sums["total"] += left.total
        if any(source.discovers for source in self._sources):
            sums["total"] += sum(self._departed.values(), _NOTHING)
        priced = self._usd_per_kwh is not None and self._energy_j is not None
        return MeterState(
            at=wall, every_s=self._every_s, price_from=self._price_from, groups=groups, gpus=tuple(gpus),
            energy_j=self._energy_j,
            electricity_usd=electricity_usd(self._energy_j or 0.0, self._usd_per_kwh or 0.0) if priced else None,
            planned=self._planned,
            against_plan=compare(sums["today"], self._planned) if self._planned else None,
            budgets=self._budgeted(wall), notes=self._notes(), held_spans=self._ledger.held, **sums,
        )  # fmt: skip

    def _budgeted(self, wall: float) -> tuple[BudgetState, ...]:
        """Once an hour: it adds up days of the book."""
        if wall // SECONDS_PER_HOUR != self._budget_hour:
            self._budget_hour = wall // SECONDS_PER_HOUR
            self._budget_states = self._budgets.states(wall)
        return self._budget_states

    def _group(self, watch: Watch, reading: Reading, wall: float, window_s: float) -> GroupState:
        sums = self._sums[watch.target, reading.model]
        until = watch.until or wall
        current = {name: getattr(reading, name) if watch.up else None for name in ("running", "waiting", "kv_share")}
        return GroupState(
            target=watch.target, model=reading.model, engine=reading.engine, labels=dict(reading.labels), up=watch.up,
            busy=sums.busy, usd_per_hour=watch.usd_per_hour, now=sums.now(until, window_s),
            hour=sums.hour.at(until), today=sums.today.at(until), total=sums.total, misses=watch.misses,
            said=watch.said, **current,
        )  # fmt: skip

    def _notes(self) -> tuple[str, ...]:
        watches = self._watches.values()
        notes = [f"{name}: {miss.what}" for name, miss in self._never.items()]
        odd = [watch for watch in watches if watch.said and watch.target not in self._never]
        notes += [f"{watch.target}: {watch.said}" for watch in odd]
        if not self._watches:
            notes.append("no servers now")
        if self._left_out_gpus:
            notes.append(f"{plural(self._left_out_gpus, 'GPU')} of pods that are not metered here: left out")
        unmet = [other.said for other in self._prices.others if not self._holds(other)]
        notes += [f"{option('price', said)}: no server has it" for said in unmet]
        notes += self._frontends.notes
        notes += [warning for source in self._sources for warning in source.warnings]
        notes += [self._no_gpus] if self._no_gpus else []
        if self._unwritten is not None:
            held = plural(self._ledger.held, "span")
            notes.append(f"the ledger cannot be written ({self._unwritten}): {held} held in memory, tried again")
        return tuple(notes)

    def _holds(self, price: PriceOf) -> bool:
        watches = self._watches.values()
        return any(price.holds(watch.target, _labels(watch.readings.values())) for watch in watches)

    def has_read_any(self) -> bool:
        """Whether any server is known by more than its address."""
        return any(reading.engine for watch in self._watches.values() for reading in watch.readings.values())

    def unreachable(self) -> Mapping[str, Missed]:
        """Sources that did not answer the last time."""
        return self._never


def _born(readings: Sequence[Reading], absent_since: float | None) -> float | None:
    """When a server began that was not there for a while: loading its model is paid for too."""
    began = max((reading.started for reading in readings if reading.started is not None), default=None)
    return None if began is None or absent_since is None or began < absent_since else began


def _labels(readings: Iterable[Reading]) -> Mapping[str, str]:
    return next((reading.labels for reading in readings), {})
