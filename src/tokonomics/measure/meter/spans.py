"""A stretch of paid time on one server: how long, at what price, what was counted in it, and whether it worked.

Time is **seen** between two readings that came; a **gap** while the server did not answer; **away** while the meter did
not run. Seen time is busy when anything was counted, and idle when nothing moved. Requests that a gauge shows decide
only where no counter moves within a request, since gauges can stay behind (vLLM issue 22545: after aborts). An engine
that keeps its own idle seconds is believed within a busy stretch. Models of one server share its time as they share its
price. What was counted over a gap is known only when the server is back: it stays with the last part of the gap, and is
never spread.

Between two readings, a series counted the difference; or, where it fell or restarted, all of the new value, as
Prometheus' ``increase`` has it. A restart whose counter has already overtaken the old one shows in the time the process
started or the series was created. A process that says it is the same, and the series too, did not start again: what
fell counts on from where it was, and series that stand where others were (a label came or changed) go on from those.
What was counted after the last reading of the old process is lost with it. An
address where several processes answer in turn (a load balancer) is told apart from a restart: a process that started
while the one before was still answering did not replace it. Half a page, which has a count under a lesser name alone,
does not count as read. Another engine at the address is another process, whose counts are all new; those of the one
before are kept, so that two which answer in turn are not counted over and over.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import NamedTuple

from tokonomics.errors import shorten
from tokonomics.measure.meter.engines import PREFERENCE
from tokonomics.measure.meter.readings import Counted, Reading, Series
from tokonomics.measure.meter.state import MeterTally
from tokonomics.units import SECONDS_PER_HOUR

STARVED_BELOW = 0.5  # of the planned batch: the planned one is a mean, so that less than it is no news (assumed)

SAME_START_S = 0.5  # start times that differ by less are the same: no engine loads a model in less
CLOCKS_APART_S = 120.0  # between the server's clock and ours (assumed; synchronised ones differ by far less)


class WatchedSpan(StrEnum):
    seen = "seen"
    gap = "gap"
    away = "away"


@dataclass(frozen=True, slots=True)
class PaidTime:
    """Paid time of one model on one server. ``end`` is ``start`` plus ``seconds``, in unix seconds."""

    target: str
    model: str
    engine: str
    watched: WatchedSpan
    start: float
    seconds: float
    usd_per_hour: float  # of the server, as it was priced then
    usd: float  # this model's part of the server's price
    server_s: float  # likewise of ``seconds``: a server with two models is paid for once
    busy_s: float = 0.0  # of ``server_s``
    failed_s: float = 0.0
    """Of ``busy_s``: the share of failed among all ended requests, as if each took the same. Kept as seconds, since
    shares of stretches do not add up to that of the whole."""
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

    @property
    def end(self) -> float:
        return self.start + self.seconds


_COUNTS = ("input_total", "input_cached", "output", "answered", "failed", "preempted", "ttft_s", "ttft_count")
_SHARED = ("seconds", "usd", "server_s", "busy_s", "failed_s", "running_s", "running_seen_s")
SUMS = (*_SHARED, *_COUNTS)  # what is added when two stretches become one


class Stretch(NamedTuple):
    """Paid time of a whole server, as its spans begin."""

    watched: WatchedSpan
    start: float
    seconds: float
    usd_per_hour: float


def spans_between(before: Mapping[str, Reading], now: Sequence[Reading], stretch: Stretch) -> list[PaidTime]:
    """The spans of a server's models up to readings that came; its price is split by the tokens of each."""
    counted = [(reading, increases(before.get(reading.model), reading)) for reading in now]
    tokens = [more.get(Counted.input_total, 0.0) + more.get(Counted.output, 0.0) for _, more in counted]
    total = sum(tokens)
    shares = [own / total if total > 0 else 1 / len(tokens) for own in tokens]
    return [
        _span(before.get(reading.model), reading, more, stretch, share)
        for (reading, more), share in zip(counted, shares, strict=True)
    ]


def empty_spans(last: Sequence[Reading], stretch: Stretch) -> list[PaidTime]:
    """Paid time of which nothing is known."""
    return [_span(None, reading, {}, stretch, 1 / len(last)) for reading in last]


def is_busy(before: Reading | None, now: Reading, counted: Mapping[Counted, float]) -> bool:
    """Whether there was work between two readings, as far as the page can tell."""
    if not now.tells_idle or any(counted.get(kind, 0.0) > 0 for kind in _WORK):
        return True
    if now.moves_within:
        return False
    return any(gauge for reading in (now, before) if reading for gauge in (reading.running, reading.waiting))


_WORK = (Counted.work, Counted.input_total, Counted.output, Counted.answered, Counted.failed, Counted.preempted)


def _span(
    before: Reading | None, now: Reading, counted: Mapping[Counted, float], stretch: Stretch, share: float
) -> PaidTime:
    watched, _, seconds, usd_per_hour = stretch
    busy_s = _busy_s(before, now, counted, seconds) if watched is WatchedSpan.seen else 0.0
    readings = (before, now) if before is not None else (now,)
    gauges = [reading.running for reading in readings if reading.running is not None]
    known = busy_s > 0 and bool(gauges)
    failed = counted.get(Counted.failed, 0.0)
    ended = counted.get(Counted.answered, 0.0) + failed
    usd, server_s = usd_per_hour * seconds / SECONDS_PER_HOUR * share, seconds * share
    return PaidTime(
        *(now.target, now.model, now.engine, *stretch, usd, server_s),
        busy_s=busy_s * share,
        failed_s=busy_s * share * failed / ended if ended > 0 else 0.0,
        # A gauge read at random times has the mean of the whole stretch, so it weighs with all of it.
        running_s=sum(gauges) / len(gauges) * seconds if known else 0.0,
        running_seen_s=busy_s * share if known else 0.0,
        labels=now.labels,
        **{name: counted.get(Counted(name), 0.0) for name in _COUNTS},  # type: ignore[arg-type]
    )


def _busy_s(before: Reading | None, now: Reading, counted: Mapping[Counted, float], seconds: float) -> float:
    if not is_busy(before, now, counted):
        return 0.0
    ranks = len(now.counters.get(Counted.idle_s, {}))
    idle_s = counted.get(Counted.idle_s, 0.0) / ranks if ranks else 0.0
    # More idle seconds than passed were added late, for time that is in the books already.
    return seconds - idle_s if idle_s <= seconds else seconds


def cut(span: PaidTime, at: float) -> tuple[PaidTime | None, PaidTime | None]:
    """The parts before and from an instant: time and dollars by length, counts in the last part, where they came in."""
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
    """The span in pieces that do not cross a multiple of the period."""
    pieces: list[PaidTime] = []
    rest: PaidTime | None = span
    while rest is not None:
        piece, rest = cut(rest, (rest.start // period_s + 1) * period_s)
        pieces += [piece] if piece is not None else []
    return pieces


def tally(span: PaidTime, planned_batch: float | None = None) -> MeterTally:
    seen = span.watched is WatchedSpan.seen
    busy_share = span.busy_s / span.server_s if span.server_s > 0 else 0.0
    busy_usd = span.usd * busy_share if seen else 0.0
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


def restarted(before: Reading, now: Reading) -> bool:
    """Whether the process says that it is another one, started later."""
    return _later(now.started, before.started)


def is_stranger(before: Reading, now: Reading) -> bool:
    """Whether another process answered that did not replace the one before."""
    if before.started is None or now.started is None or abs(now.started - before.started) <= SAME_START_S:
        return False
    return now.started < before.started or now.started < _read_at(before) - CLOCKS_APART_S


def _read_at(reading: Reading) -> float:
    """When it was made: by our clock or the server's, whichever says earlier, since either may be wrong."""
    return reading.at if reading.server_at is None else min(reading.at, reading.server_at)


def increases(before: Reading | None, now: Reading) -> dict[Counted, float]:
    """By kind; ``before`` is None for a model that was not there, on a server that was.

    Cached tokens are part of the input: those that run ahead of it within a page count with the input that follows.
    """
    counted = {kind: _increase(kind, before, now) for kind in now.counters}
    if Counted.input_cached in counted:
        counted[Counted.input_cached] -= _ahead(counted)
    return counted


def carried(before: Reading | None, now: Reading) -> Reading:
    """``now`` as the next reading is to be counted from.

    Series that it lacks are as they were, and cached tokens that ran ahead of the input are not in it yet.
    """
    ahead = _ahead({kind: _increase(kind, before, now) for kind in now.counters})
    if ahead:
        behind = {}
        for key, value in now.counters[Counted.input_cached].items():
            taken = min(value, ahead)
            behind[key], ahead = value - taken, ahead - taken
        now = replace(now, counters={**now.counters, Counted.input_cached: behind})
    if before is None or restarted(before, now):
        return now
    counters: dict[Counted, Series] = dict(now.counters)
    created = dict(now.created)
    for kind, series in before.counters.items():
        if kind in counters and _renamed(before, now, kind):
            if _preference(counters[kind]) <= _preference(series):
                continue
            counters[kind] = {}
        shown = counters.get(kind, {})
        held = {key: series[key] for key, value in shown.items() if _dipped(before, now, key, value, series.get(key))}
        lacking = _left_behind(before, now, kind) if shown else dict(series)
        if lacking or held:
            counters[kind] = {**lacking, **shown, **held}
            created |= {key: before.created[key] for key in lacking if key in before.created and key not in created}
    started = before.started if now.started is None else now.started
    return replace(now, counters=counters, created=created, started=started)


def _increase(kind: Counted, before: Reading | None, now: Reading) -> float:
    series = now.counters[kind]
    if before is None or restarted(before, now):
        return sum(series.values())
    old = before.counters.get(kind, {})
    if _renamed(before, now, kind):
        # A better name has it all, of which only what comes from now on is new; a lesser one was not what we count.
        return 0.0
    total = 0.0
    moved = _moved(before, now, kind)
    for key, value in series.items():
        if key in moved:
            continue
        last = old.get(key, 0.0)
        if _dipped(before, now, key, value, last):
            continue
        began_again = value < last or _later(now.created.get(key), before.created.get(key))
        total += value if began_again else value - last
    vanished = sum(_vanished(before, now, kind).values())
    return total + max(0.0, sum(series[key] for key in moved) - vanished)


def _is_same(before: Reading, now: Reading) -> bool:
    """Whether the process says that it is the one of before."""
    known = before.started is not None and now.started is not None
    return known and abs((now.started or 0.0) - (before.started or 0.0)) <= SAME_START_S


def _dipped(before: Reading, now: Reading, key: str, value: float, last: float | None) -> bool:
    """Whether a series fell that did not start again: by its own word, or its process' where it fell by less than half.

    A process may start one of its parts again, whose series begin at 0: these fall by more.
    """
    if last is None or value >= last:
        return False
    made, made_before = now.created.get(key), before.created.get(key)
    if made is not None and made_before is not None:
        return not _later(made, made_before)
    return _is_same(before, now) and value > last / 2


def _moved(before: Reading, now: Reading, kind: Counted) -> frozenset[str]:
    """Series of a process that stand where others of it were: no client of Prometheus takes one away by itself."""
    old, series = before.counters.get(kind, {}), now.counters[kind]
    if not _is_same(before, now) or not _vanished(before, now, kind):
        return frozenset()
    appeared = series.keys() - old.keys()
    # One that was made since is a new one.
    return frozenset(key for key in appeared if key not in now.created or now.created[key] <= _read_at(before))


def _vanished(before: Reading, now: Reading, kind: Counted) -> Series:
    """Series that the page lacks although it has others of their name: not those of another engine."""
    old, series = before.counters.get(kind, {}), now.counters[kind]
    names = _names(series)
    return {key: value for key, value in old.items() if key not in series and key.partition("{")[0] in names}


def _left_behind(before: Reading, now: Reading, kind: Counted) -> dict[str, float]:
    """Series that the page lacks, as far as none stands in their place: they may come back."""
    lacking = {key: value for key, value in before.counters[kind].items() if key not in now.counters[kind]}
    taken = sum(now.counters[kind][key] for key in _moved(before, now, kind))
    for key, value in _vanished(before, now, kind).items():
        lacking[key] = value - taken
        taken = max(0.0, taken - value)
    return {key: value for key, value in lacking.items() if value > 0}


def dips(before: Reading, now: Reading) -> str | None:
    """What to say of a counter that fell without a restart; None where none did."""
    for series, old in ((now.counters[kind], before.counters.get(kind, {})) for kind in now.counters):
        for key, value in series.items():
            if _dipped(before, now, key, value, old.get(key)):
                name = shorten(key.partition("{")[0], 80)
                return f"{name} fell from {old[key]:,.0f} to {value:,.0f} without a restart: nothing is counted again"
    return None


def is_another(before: Reading, now: Reading) -> bool:
    """Whether a process stands where another one was: it says so, is of another engine, or counts from 0 again."""
    if restarted(before, now) or (before.engine != now.engine and not _is_same(before, now)):
        return True
    for kind, series in now.counters.items():
        old = before.counters.get(kind, {})
        for key, value in series.items():
            if value < old.get(key, 0.0) and not _dipped(before, now, key, value, old[key]):
                return True
    return False


def _renamed(before: Reading, now: Reading, kind: Counted) -> bool:
    """Whether the same process, as far as one can tell, shows a count under other names than before."""
    old, series = before.counters.get(kind), now.counters[kind]
    if not old or not series or not _names(old).isdisjoint(_names(series)):
        return False
    if before.engine != now.engine and not _is_same(before, now):
        return False
    for tokens in (Counted.input_total, Counted.output):
        last = before.counters.get(tokens, {})
        if any(value < last.get(key, 0.0) for key, value in now.counters.get(tokens, {}).items()):
            return False
    return True


def _preference(series: Series) -> int:
    return min(PREFERENCE.get(name, 0) for name in _names(series))


def _ahead(counted: Mapping[Counted, float]) -> float:
    return max(0.0, counted.get(Counted.input_cached, 0.0) - counted.get(Counted.input_total, 0.0))


def _names(series: Series) -> set[str]:
    return {key.partition("{")[0] for key in series}


def _later(now: float | None, before: float | None) -> bool:
    return now is not None and before is not None and now > before + SAME_START_S
