"""Turn readings into spans of paid time on one server: how long, at what price, what was counted, busy or idle.

Time is **seen** between two readings that came; a **gap** while the server did not answer; **away** while the meter did
not run. Seen time is busy if anything was counted, and idle if nothing moved. Gauges of running requests decide only if
no counter moves within a request, because they can get stuck (vLLM issue 22545: after aborts). An engine's own count of
idle seconds is trusted within a busy span. Models of one server share its time as they share its price. Tokens counted
over a gap are known only when the server is back: they stay with the last part of the gap, and are never spread.

Between two readings, a series counted the difference; or, if it fell or restarted, all of the new value, as in
Prometheus' ``increase``. If the counter has already passed its old value after a restart, the start time of the process
or the creation time of the series shows the restart. If the process and the series both say that they did not restart,
a series that fell continues from its last value, and series that replace others (a label was added or changed) continue
those. Tokens counted after the last reading of the old process are lost. A load balancer, where several processes
answer in turn, is no restart: a process that started while the one before was still answering did not replace it. Half
a page, which shows a count only under a less preferred name, does not count as read. Another engine at the address is
another process, whose counts are all new; the counts of the one before are kept, so that two engines that answer in
turn are not counted again and again.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import lru_cache
from typing import NamedTuple

from tokonomics.errors import shorten
from tokonomics.measure.meter.engines import PREFERENCE
from tokonomics.measure.meter.readings import BUCKETS, STEPS, Counted, Reading, Series
from tokonomics.measure.meter.state import MeterTally
from tokonomics.units import SECONDS_PER_HOUR

STARVED_BELOW = 0.5  # share of the planned batch; that is a mean, so a little less is normal (assumed)
SAME_START_S = 0.5  # start times that differ by less are the same: no engine loads a model faster
CLOCKS_APART_S = 120.0  # between the server's clock and ours (assumed; synchronised ones differ by far less)


class WatchedSpan(StrEnum):
    seen = "seen"
    gap = "gap"
    away = "away"


Buckets = Mapping[float, float]  # how many values were in each bucket of a histogram, by its upper bound
BEYOND = 1e300  # the upper bound of the last bucket, which has none


@dataclass(frozen=True, slots=True)
class Glimpse:
    """What one interval adds to a window beyond its paid time."""

    tpot_s: float = 0.0
    tpot_count: float = 0.0
    prompt_s: float = 0.0
    step_s: float = 0.0
    step_count: float = 0.0
    step_answers: float = 0.0
    watched_s: float = 0.0  # of the server, whatever models share it
    gauged_s: float = 0.0  # seconds for which the gauges below are known
    kv_share_s: float = 0.0
    kv_peak: float = 0.0
    waiting_s: float = 0.0
    buckets: Mapping[Counted, Buckets] = field(default_factory=dict)
    started: float | None = None
    is_another: bool = False  # another process than before, as far as that is known without its start
    states: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PaidTime:
    """Paid time of one model on one server."""

    target: str
    model: str
    engine: str
    watched: WatchedSpan
    start: float  # unix seconds
    seconds: float
    usd_per_hour: float  # of the server, as it was priced then
    usd: float  # this model's part of the server's price
    server_s: float  # this model's part of ``seconds``; a server with two models is paid for once
    busy_s: float = 0.0  # of ``server_s``
    # Part of ``busy_s``: the share of failed among all ended requests, as if each took the same time. Kept as seconds,
    # because shares of parts do not add up to the share of the whole.
    failed_s: float = 0.0
    input_total: float = 0.0
    input_cached: float = 0.0
    output: float = 0.0
    answered: float = 0.0
    failed: float = 0.0
    preempted: float = 0.0
    running_s: float = 0.0
    running_seen_s: float = 0.0
    ttft_s: float = 0.0
    ttft_count: float = 0.0
    labels: Mapping[str, str] = field(default_factory=dict)
    glimpse: Glimpse | None = field(default=None, compare=False)  # not in the ledger's row

    @property
    def end(self) -> float:
        return self.start + self.seconds


_COUNTS = ("input_total", "input_cached", "output", "answered", "failed", "preempted", "ttft_s", "ttft_count")
_SHARED = ("seconds", "usd", "server_s", "busy_s", "failed_s", "running_s", "running_seen_s")
SUMS = (*_SHARED, *_COUNTS)  # added up when two spans become one
_FOR_WINDOWS = (*BUCKETS, Counted.tpot_s, Counted.tpot_count, Counted.prompt_s, *STEPS)
_WORK = (Counted.work, Counted.input_total, Counted.output, Counted.answered, Counted.failed, Counted.preempted)


class Stretch(NamedTuple):
    """Paid time of a whole server, in the order of a span's fields."""

    watched: WatchedSpan
    start: float
    seconds: float
    usd_per_hour: float


class ReadingChange(NamedTuple):
    """The change between two readings of a model on a server."""

    before: Reading | None
    now: Reading
    counted: Mapping[Counted, float]
    carried: Reading  # ``now``, as the base of the next reading
    series: Mapping[Counted, Series] | None = {}  # what each series of a histogram counted; None: nobody read
    fell: str | None = None  # the first counter that fell without a restart, in words
    is_another: bool = False  # another process answered: it says so, runs another engine, or counts from 0 again


def spans_between(changes: Sequence[ReadingChange], stretch: Stretch) -> list[PaidTime]:
    """Return the spans of a server's models up to readings that came; its price is split by the tokens of each."""
    tokens = [
        change.counted.get(Counted.input_total, 0.0) + change.counted.get(Counted.output, 0.0) for change in changes
    ]
    total = sum(tokens)
    shares = [own / total if total > 0 else 1 / len(tokens) for own in tokens]
    return [_span(change, stretch, share) for change, share in zip(changes, shares, strict=True)]


def empty_spans(last: Sequence[Reading], stretch: Stretch) -> list[PaidTime]:
    """Return paid time about which nothing is known."""
    return [_span(ReadingChange(None, reading, {}, reading, None), stretch, 1 / len(last)) for reading in last]


def _span(change: ReadingChange, stretch: Stretch, share: float) -> PaidTime:
    before, now, counted = change.before, change.now, change.counted
    watched, _, seconds, usd_per_hour = stretch
    readings = [reading for reading in (before, now) if reading is not None]
    busy_s = _busy_s(readings, counted, seconds) * share if watched is WatchedSpan.seen else 0.0
    gauges = [reading.running for reading in readings if reading.running is not None]
    known = busy_s > 0 and bool(gauges)
    failed = counted.get(Counted.failed, 0.0)
    ended = counted.get(Counted.answered, 0.0) + failed
    usd, server_s = usd_per_hour * seconds / SECONDS_PER_HOUR * share, seconds * share
    return PaidTime(
        *(now.target, now.model, now.engine, *stretch, usd, server_s),
        busy_s=busy_s,
        failed_s=busy_s * failed / ended if ended > 0 else 0.0,
        # A gauge read at random times has the mean of the whole time, so weight it with all of it.
        running_s=sum(gauges) / len(gauges) * seconds if known else 0.0,
        running_seen_s=busy_s if known else 0.0,
        labels=now.labels,
        glimpse=None if change.series is None else glimpse(change, seconds, watched),
        **{name: counted.get(Counted(name), 0.0) for name in _COUNTS},  # type: ignore[arg-type]
    )


def glimpse(change: ReadingChange, seconds: float, watched: WatchedSpan) -> Glimpse:
    """Return what an interval between readings adds; histograms as their buckets alone, not cumulative."""
    now, counted, series = change.now, change.counted, change.series or {}
    listed = [reading for reading in (change.before, now) if reading is not None]
    used = [reading.kv_share for reading in listed if reading.kv_share is not None]
    waiting = [reading.waiting for reading in listed if reading.waiting is not None]
    return Glimpse(
        **{name: counted.get(Counted(name), 0.0) for name in ("tpot_s", "tpot_count", "prompt_s", *STEPS)},
        watched_s=seconds if watched is WatchedSpan.seen else 0.0,
        gauged_s=seconds if used else 0.0,
        kv_share_s=sum(used) / len(used) * seconds if used else 0.0,
        kv_peak=max(used, default=0.0),
        waiting_s=sum(waiting) / len(waiting) * seconds if waiting else 0.0,
        buckets={kind: found for kind in BUCKETS if (found := _in_buckets(series.get(kind, {})))},
        started=now.started,
        is_another=change.is_another and now.started is None,
        states=now.states,
    )


@lru_cache(maxsize=1 << 14)  # our choice: every server of an engine has the same ones
def _bound(key: str) -> float | None:
    """Return the upper bound of a histogram's series; None if it states none."""
    _, _, text = key.partition("le=")
    with suppress(ValueError):
        return min(float(text.rstrip("}").partition(",")[0]), BEYOND)
    return None


def _in_buckets(rises: Mapping[str, float]) -> dict[float, float]:
    """Return how many values came into each bucket, from the rises of its series, which count all smaller ones too."""
    up_to: dict[float, float] = defaultdict(float)
    if not any(rises.values()):
        return {}
    for key, rise in rises.items():
        if (bound := _bound(key)) is not None:
            up_to[bound] += rise
    found, before, highest = dict[float, float](), 0.0, max(up_to.values(), default=0.0)
    for bound, count in sorted(up_to.items()):
        if before < highest:  # empty buckets too, as each is the lower end of the next
            found[bound] = max(0.0, count - before)
            before = max(before, count)
    return found


def _busy_s(readings: Sequence[Reading], counted: Mapping[Counted, float], seconds: float) -> float:
    """Return how long there was work, as far as the page tells."""
    now = readings[-1]
    moved = not now.tells_idle or any(counted.get(kind, 0.0) > 0 for kind in _WORK)
    running = not now.moves_within and any(reading.running or reading.waiting for reading in readings)
    if not moved and not running:
        return 0.0
    ranks = len(now.counters.get(Counted.idle_s, {}))
    idle_s = counted.get(Counted.idle_s, 0.0) / ranks if ranks else 0.0
    # If more idle seconds were added than passed, they belong to earlier time that is already in the ledger.
    return seconds - idle_s if idle_s <= seconds else seconds


def cut(span: PaidTime, at: float) -> tuple[PaidTime | None, PaidTime | None]:
    """Return the parts before and from an instant: time and dollars by length, counts in the last part."""
    if at <= span.start:
        return None, span
    if at > span.end or (at == span.end and span.seconds > 0):
        return span, None
    share = (at - span.start) / span.seconds if span.seconds else 0.0
    first = {name: getattr(span, name) * share for name in _SHARED}
    rest = {name: getattr(span, name) - first[name] for name in _SHARED}
    before = replace(span, **first, **dict.fromkeys(_COUNTS, 0.0))  # type: ignore[arg-type]
    return before, replace(span, **rest, start=at)


def cut_every(span: PaidTime, period_s: float) -> list[PaidTime]:
    """Return the span in pieces that do not cross a multiple of the period."""
    pieces: list[PaidTime] = []
    rest: PaidTime | None = span
    while rest is not None:
        piece, rest = cut(rest, (rest.start // period_s + 1) * period_s)
        pieces += [piece] if piece is not None else []
    return pieces


def tally(span: PaidTime, planned_batch: float | None = None) -> MeterTally:
    """Return a span's figures as sums, with its dollars by what the server did."""
    seen = span.watched is WatchedSpan.seen
    busy_usd = span.usd * (span.busy_s / span.server_s) if seen and span.server_s > 0 else 0.0
    batch = span.running_s / span.running_seen_s if span.running_seen_s > 0 else None
    starved = planned_batch is not None and batch is not None and batch < STARVED_BELOW * planned_batch
    by_state = {f"{span.watched}_s": span.server_s, f"{span.watched}_usd": span.usd}
    if seen:
        by_state = {
            "busy_s": span.busy_s, "idle_s": span.server_s - span.busy_s, "busy_usd": busy_usd,
            "idle_usd": span.usd - busy_usd,
            "failed_usd": span.usd * span.failed_s / span.server_s if span.server_s > 0 else 0.0,
        }  # fmt: skip
    return MeterTally.model_construct(
        None, seconds=span.server_s, usd=span.usd, **by_state, **{name: getattr(span, name) for name in _COUNTS},
        unseen_tokens=0.0 if seen else span.input_total + span.output, unseen_output=0.0 if seen else span.output,
        running_s=span.running_s, running_seen_s=span.running_seen_s, starved_s=span.busy_s if starved else 0.0,
        starved_usd=busy_usd if starved else 0.0,
    )  # fmt: skip


def is_stranger(before: Reading, now: Reading) -> bool:
    """Decide whether another process answered that did not replace the one before."""
    if before.started is None or now.started is None or _is_same(before, now):
        return False
    return now.started < before.started or now.started < _read_at(before) - CLOCKS_APART_S


def _read_at(reading: Reading) -> float:
    """Return when it was read: the earlier of our clock and the server's, because either may be wrong."""
    return reading.at if reading.server_at is None else min(reading.at, reading.server_at)


def change_between(before: Reading | None, now: Reading) -> ReadingChange:
    """Return what was counted since ``before``; None means that the model is new on a known server.

    Cached tokens are part of the input: those that run ahead of it within a page count with the input that follows.
    Series that are missing on the page keep their values.
    """
    restarted = before is None or _is_later(now.started, before.started)
    began = [kind for kind in STEPS if before is not None and now.total(kind) < before.total(kind)]
    steps = {kind: _step(None if restarted or kind in began else before, now, kind) for kind in now.counters}
    counted = {kind: sum(step.counted.values()) for kind, step in steps.items()}
    if Counted.input_cached in counted:
        ahead = max(0.0, counted[Counted.input_cached] - counted.get(Counted.input_total, 0.0))
        counted[Counted.input_cached] -= ahead
        for key, own in steps[Counted.input_cached].counted.items():
            steps[Counted.input_cached].carried[key] -= min(own, ahead)
            ahead -= min(own, ahead)
    counters: dict[Counted, Series] = {kind: step.carried for kind, step in steps.items()}
    series = {kind: steps[kind].counted for kind in BUCKETS if kind in steps}
    if before is None or restarted:
        carried = replace(now, counters=counters)
        return ReadingChange(before, now, counted, carried, series, is_another=before is not None)
    counters = {**before.counters, **counters}
    shown = {key for series in now.counters.values() for key in series}
    lacking = {key for series in counters.values() for key in series if key not in shown}
    created = {**{key: at for key, at in before.created.items() if key in lacking}, **now.created}
    started = before.started if now.started is None else now.started
    is_another = before.engine != now.engine and not _is_same(before, now)
    return ReadingChange(
        before, now, counted, replace(now, counters=counters, created=created, started=started), series,
        fell=next((step.fell for step in steps.values() if step.fell), None),
        is_another=is_another or any(step.is_restart for step in steps.values()),
    )  # fmt: skip


@dataclass
class _Step:
    """The series of one kind: what each counted, and the base of its next reading."""

    counted: dict[str, float]
    carried: dict[str, float]
    fell: str | None = None
    is_restart: bool = False


def _step(before: Reading | None, now: Reading, kind: Counted) -> _Step:
    series = now.counters[kind]
    if before is None:
        return _Step(dict(series), dict(series))
    old = before.counters.get(kind, {})
    if kind in _FOR_WINDOWS and kind not in before.counters and _is_same(before, now):
        return _Step(
            {}, dict(series)
        )  # an older version did not read it: what it counted until now is not of this time
    if _is_renamed(before, now, kind):
        # A better name has counted all along, so only later counts are new; a less preferred one is not counted.
        better = series if _preference(series) <= _preference(old) else old
        return _Step({}, dict(better))
    lacking = {key: value for key, value in old.items() if key not in series}
    # Leave out those of another engine, which has no name on the page.
    vanished = {key: value for key, value in lacking.items() if _name(key) in map(_name, series)}
    # No Prometheus client drops a series by itself: new ones of the same process replace those that vanished, unless
    # they were created since.
    replaced = vanished if _is_same(before, now) else {}
    step, moved, left = _Step({}, dict(series)), 0.0, sum(replaced.values())
    for key, value in series.items():
        last = old.get(key, 0.0)
        if replaced and key not in old and now.created.get(key, 0.0) <= _read_at(before):
            step.counted[key] = max(0.0, value - left)
            moved, left = moved + value, max(0.0, left - value)
        elif value < last and _has_dipped(before, now, key, value, last):
            step.carried[key] = last
            said = f"{shorten(_name(key), 80)} fell from {last:,.0f} to {value:,.0f} without a restart"
            step.fell = step.fell or f"{said}: nothing is counted again"
        else:
            began_again = value < last or _is_later(now.created.get(key), before.created.get(key))
            step.counted[key] = value if began_again else value - last
            step.is_restart |= value < last
    for key, value in vanished.items():
        lacking[key], moved = value - moved, max(0.0, moved - value)
    step.carried |= {key: value for key, value in lacking.items() if value > 0}
    return step


def _has_dipped(before: Reading, now: Reading, key: str, value: float, last: float) -> bool:
    """Decide whether a series that fell did not restart: it says so, or its process does and it fell by less than half.

    A process may restart one of its parts, whose series begin at 0: these fall by more.
    """
    created, created_before = now.created.get(key), before.created.get(key)
    if created is not None and created_before is not None:
        return not _is_later(created, created_before)
    return _is_same(before, now) and value > last / 2


def _is_renamed(before: Reading, now: Reading, kind: Counted) -> bool:
    """Decide whether the same process, as far as one can tell, shows a count under other names than before."""
    old, series = before.counters.get(kind), now.counters[kind]
    if not old or not {*map(_name, old)}.isdisjoint(map(_name, series)):
        return False
    if before.engine != now.engine and not _is_same(before, now):
        return False
    return not any(
        value < before.counters.get(tokens, {}).get(key, 0.0)
        for tokens in (Counted.input_total, Counted.output)
        for key, value in now.counters.get(tokens, {}).items()
    )


def _preference(series: Series) -> int:
    return min(PREFERENCE.get(_name(key), 0) for key in series)


def _name(key: str) -> str:
    return key.partition("{")[0]


def _is_same(before: Reading, now: Reading) -> bool:
    """Decide whether the process says that it is the same as before."""
    return before.started is not None and now.started is not None and abs(now.started - before.started) <= SAME_START_S


def _is_later(now: float | None, before: float | None) -> bool:
    return now is not None and before is not None and now > before + SAME_START_S
