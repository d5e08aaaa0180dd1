"""Run the meter: ask every source, make spans, write them down, and report what tokens cost now.

A tick reads all sources at once. The sums of this hour, this day and all time start with the ledger's sums of each
server and grow with every span. "Now" is the last minute, or the last five if an engine counts a request's tokens only
when it ends, so that a window holds whole requests.
"""

import asyncio
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path

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
from tokonomics.measure.meter.spending import BudgetBook, LabelOf, MonthlyBudget, Prices
from tokonomics.measure.meter.state import BudgetState, GroupState, MeterState, MeterTally, Planned
from tokonomics.measure.meter.watch import LONG_S, MOST_AWAY_S, Frontends, Watch
from tokonomics.measure.meter.windows import WINDOW_S, OpenWindows
from tokonomics.units import DAY_S, SECONDS_PER_HOUR, plural

NOW_S, LUMPY_NOW_S = 60.0, 300.0  # most answers take less than five minutes (assumed), so a window holds whole requests
LATE_S = 60.0  # a scrape may reach a Prometheus, or us through it, this much later
_NOTHING = MeterTally()


@dataclass(frozen=True)
class MeterSettings:
    """What a run of the meter was asked to do."""

    usd_per_hour: float | Prices
    urls: Sequence[str] = ()
    price_from: str = "as given"
    every_s: float = 15.0
    beats: int | None = None  # intervals after which it ends; None: when told to
    labels: Sequence[LabelOf] = ()
    planned: Planned | None = None
    from_now: bool = False
    prometheus: str | None = None  # the address of one that scrapes engines already
    match: str | None = None  # label matchers for its series
    keep_labels: Sequence[str] = ()
    since: float | None = None  # unix seconds: first read its past from here
    gpus: GpuSource | None = None
    listen: tuple[str, int] | None = None  # where our own metrics are served
    gpus_per_server: int = 1
    price_date: date | None = None
    usd_per_kwh: float | None = None
    budgets: Sequence[MonthlyBudget] = ()
    window_s: float = WINDOW_S
    engine_log: Path | None = None  # of the one server, if it logs its steps
    in_buckets: bool = False
    """Also ask a Prometheus for histograms, which an engine's own page has anyway, and servers for their versions."""


@dataclass
class _Period:
    """Sums since the start of this hour or day."""

    length_s: float
    began: float = 0.0
    sums: MeterTally = _NOTHING

    def add(self, sums: MeterTally, start: float) -> None:
        at = start // self.length_s * self.length_s
        # The period may also be an earlier one, if the clock was set back.
        self.began, self.sums = at, self.sums + sums if at == self.began else sums

    def at(self, until: float) -> MeterTally:
        return self.sums if self.began == until // self.length_s * self.length_s else _NOTHING


@dataclass
class _Sums:
    """The sums of one model on one server."""

    recent: deque[tuple[float, MeterTally]] = field(default_factory=deque)  # spans by their ends
    hour: _Period = field(default_factory=lambda: _Period(SECONDS_PER_HOUR))
    today: _Period = field(default_factory=lambda: _Period(DAY_S))
    total: MeterTally = _NOTHING
    busy: bool | None = None
    row: PaidTime | None = None  # the ledger's row that grows; a batch is judged by rows, as in a report

    def add(self, span: PaidTime, planned_batch: float | None) -> None:
        *earlier, last = [(piece.start, tally(piece)) for piece in cut_every(span, SECONDS_PER_HOUR)]
        for start, sums in (*earlier, (last[0], last[1] + self._starved(span, planned_batch))):
            self.hour.add(sums, start)
            self.today.add(sums, start)
            self.total = self.total + sums

    def _starved(self, span: PaidTime, planned_batch: float | None) -> MeterTally:
        """Return how a span changes the busy time with less than half of the planned batch in its row."""
        if planned_batch is None:
            return _NOTHING
        joined = joined_row(self.row, span) if self.row is not None else None
        before = tally(self.row, planned_batch) if self.row is not None and joined is not None else _NOTHING
        self.row = joined or span
        after = tally(self.row, planned_batch)
        starved_usd = after.starved_usd - before.starved_usd
        return MeterTally(starved_s=after.starved_s - before.starved_s, starved_usd=starved_usd)

    def take(self, other: "_Sums") -> None:
        self.recent.extend(other.recent)
        self.hour.add(other.hour.sums, other.hour.began)
        self.today.add(other.today.sums, other.today.began)
        self.total = self.total + other.total

    def remember(self, span: PaidTime, planned_batch: float | None) -> None:
        """Keep a span for ``now`` only: a past that is read in has millions of spans."""
        self.recent.append((span.end, tally(span, planned_batch)))
        self._forget(span.end - LUMPY_NOW_S)

    def _forget(self, before: float) -> None:
        # Keep the first span of the window whole: a cut one would keep its tokens and lose its time.
        while len(self.recent) > 1 and self.recent[0][0] <= before:
            self.recent.popleft()

    def now(self, until: float, window_s: float) -> MeterTally:
        self._forget(until - window_s)
        return sum((sums for _, sums in self.recent), _NOTHING)


class Meter:
    """Sources, a ledger and a price, tick by tick. At most one source discovers its servers."""

    def __init__(self, sources: Sequence[Source], ledger: Ledger, clock: Clock, settings: MeterSettings) -> None:
        self._sources, self._ledger, self._clock, self._settings = sources, ledger, clock, settings
        price = settings.usd_per_hour
        self._prices = price if isinstance(price, Prices) else Prices(price)
        self._batch = settings.planned.batch if settings.planned else None
        ledger.forget(clock.wall() - MOST_AWAY_S)
        self._departed, self._forgot_at = ledger.departed(), clock.wall()
        booked = ledger.marks()
        known = {} if settings.from_now else booked
        self._marks = {target: mark for target, mark in known.items() if not mark.is_gone}
        self._gone = {target: mark for target, mark in known.items() if mark.is_gone}
        self._watches: dict[str, Watch] = {}
        self._frontends = Frontends()
        self._discovers = any(source.discovers for source in sources)
        self._discovered: set[str] = set()
        self._first_asked: float | None = None
        self._never: dict[str, Missed] = {}
        self._sums: dict[tuple[str, str], _Sums] = defaultdict(_Sums)
        self._windows = OpenWindows(ledger.window, settings.window_s)
        self._unwritten: str | None = None
        self._gpus_before: Sequence[GpuReading] = ()
        self._energy_j: float | None = None
        self._left_out_gpus = 0
        self._no_gpus: str | None = None
        self._budgets, self._budget_hour = BudgetBook(settings.budgets, ledger), -1.0
        self._budget_states: tuple[BudgetState, ...] = ()
        for source in sources:
            if not source.discovers:
                self._watch(source.name, source.labels)
        if self._discovers:
            # Servers that were there when the last meter ended, until the source says that they are gone.
            self._discovered = {target for target in self._marks if "://" not in target}
            for target in self._discovered:
                self._watch(target, _labels(self._marks[target].readings.values()), WatchedSpan.gap)
        self._seed(booked, clock.wall())

    async def tick(self, before_booking: Callable[[], None] = lambda: None) -> MeterState:
        """Read everything once and return what is known; nothing is written if ``before_booking`` raises."""
        asked = [self._ask(source) for source in self._sources]
        answers, gpus = await asyncio.gather(asyncio.gather(*asked), self._read_gpus())
        self._frontends.forget_notes()
        self._frontends.learn(reading for answer, *_ in answers if not isinstance(answer, Missed) for reading in answer)
        before = dict(self._watches)
        taken = zip(self._sources, answers, strict=True)
        spans = [span for source, answer in taken for span in self._take(source, *answer)]
        before_booking()
        gpus = self._metered(gpus)
        self._book(spans, before, self._drawn(gpus))
        self._forget(self._clock.wall())
        return self._state(self._clock.wall(), gpus)

    def _forget(self, wall: float) -> None:
        """Once a day, forget servers that are gone for good: every tick would look through them."""
        if 0 <= wall - self._forgot_at < DAY_S:
            return
        self._forgot_at = wall
        forgotten = self._ledger.forget(wall - MOST_AWAY_S)
        self._windows.forget(forgotten)
        for target in forgotten:
            self._gone.pop(target, None)
            for key in [key for key in self._sums if key[0] == target]:
                del self._sums[key]
        self._departed = self._ledger.departed()
        self._ledger.forget_windows(wall)

    def _drawn(self, gpus: Sequence[GpuReading]) -> Drawn | None:
        """Return what the GPUs drew since they were last read; None if they were not."""
        before, self._gpus_before = self._gpus_before, gpus or self._gpus_before
        if not gpus or not before:
            return None
        joules = joules_used(before, gpus)
        self._energy_j = (self._energy_j or 0.0) + joules
        seconds = max(gpu.at for gpu in gpus) - max(gpu.at for gpu in before)
        return Drawn(self._clock.wall(), max(0.0, seconds), joules)

    def backfill(self, readings: Sequence[Reading], at: float) -> None:
        """Book scrapes of the past up to ``at``, oldest first; skip what the ledger has already."""
        self._frontends.learn(readings)
        before = dict(self._watches)
        self._book(self._take_scrapes(readings, at, live=False), before)

    def _book(self, spans: Sequence[PaidTime], before: Mapping[str, Watch], drawn: Drawn | None = None) -> None:
        """Write spans, and marks of the servers that are or were there."""
        watches = {**before, **self._watches}
        for watch in watches.values():
            if watch.named is not None:
                # What a server cost before its model was known belongs to that model.
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
        self._unwritten = self._ledger.record(spans, marks, drawn, self._windows.add(spans))

    def _metered(self, gpus: Sequence[GpuReading]) -> Sequence[GpuReading]:
        """Return the GPUs of servers metered here, if GPUs say whose they are."""

        def pod(labels: Mapping[str, str]) -> tuple[str, str]:
            return labels.get("namespace", ""), labels.get("pod", "")

        pods = {pod(reading.labels) for reading in self._readings() if "pod" in reading.labels}
        self._left_out_gpus = 0
        if (self._watches and not pods) or not any("pod" in gpu.labels for gpu in gpus):
            return gpus
        ours = [gpu for gpu in gpus if pod(gpu.labels) in pods]
        self._left_out_gpus = len(gpus) - len(ours)
        return ours

    def _readings(self) -> list[Reading]:
        return [reading for watch in self._watches.values() for reading in watch.readings.values()]

    async def _ask(self, source: Source) -> tuple[Sequence[Reading] | Missed, float, float]:
        """Return the answer and when it came: others may take longer."""
        answer: Sequence[Reading] | Missed
        try:
            answer = await source.read()
        except Missed as miss:
            answer = miss
        return answer, self._clock.wall(), self._clock.steady()

    async def _read_gpus(self) -> Sequence[GpuReading]:
        self._no_gpus = None
        try:
            return await self._settings.gpus() if self._settings.gpus is not None else ()
        except TokonomicsError as error:
            self._no_gpus = str(error)
            return ()

    def _take(self, source: Source, answer: Sequence[Reading] | Missed, wall: float, steady: float) -> list[PaidTime]:
        if isinstance(answer, Missed):
            self._never[source.name] = answer
            # A Prometheus can be asked later for what it scraped meanwhile; an engine's own page is lost.
            missed = None if source.discovers else self._watches.get(source.name)
            return missed.missed(answer, wall, steady) if missed else []
        self._never.pop(source.name, None)
        if source.discovers:
            return self._take_scrapes(answer, wall, live=True)
        counted = self._frontends.without(answer, self._readings())
        if not counted:
            # A frontend whose engines are metered is not paid for: it counts as gone, not as a gap.
            self._watches.pop(source.name, None)
            return []
        if source.name not in self._watches:
            self._watch(source.name, source.labels)
        return self._take_readings(self._watches[source.name], counted, wall, steady)

    def _take_scrapes(self, answer: Sequence[Reading], asked_at: float, live: bool) -> list[PaidTime]:
        """Return spans from readings with their own times: all made since the last ones, target by target.

        In the past (``live=False``) nobody can say yet which targets are late.
        """
        by_target: dict[str, dict[float, list[Reading]]] = defaultdict(lambda: defaultdict(list))
        for reading in self._frontends.without(answer, self._readings()):
            by_target[reading.target][reading.at].append(reading)
        for target in self._discovered - by_target.keys():
            # An answer older than the ledger's time cannot show that a server is gone.
            if asked_at >= (self._watches[target].until or 0.0):
                self._gone[target] = self._mark(self._watches.pop(target), asked_at)
        absent_since = {
            target: self._gone[target].until if target in self._gone else self._first_asked
            for target in by_target.keys() - self._watches.keys()
        }
        for target in absent_since:
            (first, *_) = by_target[target].values()
            self._watch(target, _labels(first), WatchedSpan.gap)
        self._discovered = (self._discovered & self._watches.keys()) | by_target.keys()
        self._first_asked = asked_at if self._first_asked is None else self._first_asked
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
        patience_s = max(LONG_S, 3 * self._settings.every_s)
        price, mark = self._prices.usd_per_hour_of(target, labels), self._marks.pop(target, None)
        watch = self._watches[target] = Watch(target, price, mark, patience_s, after_patience, labels)
        if target in self._gone:
            watch.readings = dict(self._gone.pop(target).readings)
        elif mark is None and (until := self._ledger.booked_until(target)) is not None:
            watch.booked_until = until

    def _seed(self, booked: Mapping[str, Mark], wall: float) -> None:
        """Start the sums with the ledger's sums of servers that are metered now or were ever discovered."""
        ours = {target for target in booked if target in self._watches or (self._discovers and "://" not in target)}
        for span in self._ledger.spans(since=wall // DAY_S * DAY_S):
            if span.target in ours:
                self._sums[span.target, span.model].add(span, self._batch)
        for sums in self._sums.values():
            sums.row = None  # the ledger begins a new one as well
        for target in ours:
            for model, total in booked[target].totals.items():
                self._sums[target, model].total = total

    def _mark(self, watch: Watch, until: float) -> Mark:
        totals = {model: self._sums[watch.target, model].total for model in watch.readings}
        gone = watch.target not in self._watches
        return Mark(watch.target, until, dict(watch.readings), totals, watch.usd_per_hour, gone)

    def _state(self, wall: float, gpus: Sequence[GpuReading]) -> MeterState:
        settings = self._settings
        known = [(watch, reading) for watch in self._watches.values() for reading in watch.current]
        # Use one window for all: in sums over different windows the longer ones would weigh more.
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
        if self._discovers:
            sums["total"] += sum(self._departed.values(), _NOTHING)
        if wall // SECONDS_PER_HOUR != self._budget_hour:
            # Once an hour, because it adds up days of the ledger.
            self._budget_hour, self._budget_states = wall // SECONDS_PER_HOUR, self._budgets.states(wall)
        usd_per_kwh, energy_j, planned = settings.usd_per_kwh, self._energy_j, settings.planned
        priced = usd_per_kwh is not None and energy_j is not None
        return MeterState(
            at=wall, every_s=settings.every_s, price_from=settings.price_from, groups=groups, gpus=tuple(gpus),
            energy_j=energy_j, electricity_usd=electricity_usd(energy_j or 0.0, usd_per_kwh or 0.0) if priced else None,
            planned=planned, against_plan=compare(sums["today"], planned) if planned else None,
            budgets=self._budget_states, notes=self._notes(), held_spans=self._ledger.held, **sums,
        )  # fmt: skip

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
        if not watches:
            notes.append("no servers now")
        if self._left_out_gpus:
            notes.append(f"{plural(self._left_out_gpus, 'GPU')} of pods that are not metered here: left out")
        labelled = [(watch.target, _labels(watch.readings.values())) for watch in watches]
        unmet = [price for price in self._prices.others if not any(price.holds(*server) for server in labelled)]
        notes += [f"{option('price', price.who)}: no server has it" for price in unmet]
        notes += self._frontends.notes
        notes += [warning for source in self._sources for warning in source.warnings]
        notes += [self._no_gpus] if self._no_gpus else []
        if self._unwritten is not None:
            held = plural(self._ledger.held, "span")
            notes.append(f"the ledger cannot be written ({self._unwritten}): {held} held in memory, tried again")
        return tuple(notes)

    def has_read_any(self) -> bool:
        """Decide whether any server is known by more than its address."""
        return any(reading.engine for reading in self._readings())

    def unreachable(self) -> Mapping[str, Missed]:
        """Return the sources that did not answer the last time."""
        return self._never


def _born(readings: Sequence[Reading], absent_since: float | None) -> float | None:
    """Return when a server that was absent began: loading its model is paid for too."""
    began = max((reading.started for reading in readings if reading.started is not None), default=None)
    return None if began is None or absent_since is None or began < absent_since else began


def _labels(readings: Iterable[Reading]) -> Mapping[str, str]:
    return next((reading.labels for reading in readings), {})
