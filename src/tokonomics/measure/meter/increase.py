"""How much was counted between two readings, whatever the server did in between.

For each series: the difference; or, where the counter fell or restarted, all of the new value, as Prometheus'
``increase`` has it. A restart whose counter has already overtaken the old one shows in the time the process started or
the series was created. What was counted after the last reading of the old process is lost with it. An address where
several processes answer in turn (a load balancer) is told apart from a restart: a process that started while the one
before was still answering did not replace it. Half a page, which has a count under a lesser name alone, does not count
as read.
"""

from collections.abc import Mapping
from dataclasses import replace

from tokonomics.measure.meter.engines import PREFERENCE
from tokonomics.measure.meter.readings import Counted, Reading, Series

SAME_START_S = 0.5  # start times that differ by less are the same: no engine loads a model in less
CLOCKS_APART_S = 120.0
"""How far the server's clock and ours may differ (assumed; synchronised clocks differ by far less)."""


def restarted(before: Reading, now: Reading) -> bool:
    """Whether the process says that it is another one, started later."""
    return _later(now.started, before.started)


def is_stranger(before: Reading, now: Reading) -> bool:
    """Whether another process answered that did not replace the one before."""
    if before.started is None or now.started is None or abs(now.started - before.started) <= SAME_START_S:
        return False
    return now.started < before.started or now.started < before.at - CLOCKS_APART_S


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
        lacking = {key: value for key, value in series.items() if key not in counters.get(kind, {})}
        if lacking:
            counters[kind] = {**lacking, **counters.get(kind, {})}
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
    for key, value in series.items():
        last = old.get(key, 0.0)
        began_again = value < last or _later(now.created.get(key), before.created.get(key))
        total += value if began_again else value - last
    return total


def _renamed(before: Reading, now: Reading, kind: Counted) -> bool:
    """Whether the same process, as far as one can tell, shows a count under other names than before."""
    old, series = before.counters.get(kind), now.counters[kind]
    if not old or not series or not _names(old).isdisjoint(_names(series)):
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
