"""How much was counted between two readings, whatever the server did in between.

For each series: the difference; or, where the counter fell or began again, all of the new value, as Prometheus'
``increase`` has it. A restart whose counter has already overtaken the old one shows in the time the process started,
or the series was created. What was counted after the last reading of the old process is gone with it: nobody has seen
it. An address behind which several processes answer in turn (a load balancer) is told apart from a restart: a process
that started while the one before was still answering did not replace it.
"""

from collections.abc import Mapping
from dataclasses import replace

from tokonomics.measure.meter.readings import Counted, Reading, Series

SAME_START_S = 0.5
"""Start times that differ by less are the same: no engine loads a model in less."""
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
    """By kind; ``before`` is None for a model that was not there, on a server that was."""
    return {kind: _increase(kind, before, now) for kind in now.counters}


def carried(before: Reading | None, now: Reading) -> Reading:
    """``now`` with the series that it lacks as they were, so that they count from there when they come back."""
    if before is None or restarted(before, now):
        return now
    counters: dict[Counted, Series] = dict(now.counters)
    created = dict(now.created)
    for kind, series in before.counters.items():
        lacking = {key: value for key, value in series.items() if key not in counters.get(kind, {})}
        if lacking:
            counters[kind] = {**lacking, **counters.get(kind, {})}
            created |= {key: before.created[key] for key in lacking if key in before.created and key not in created}
    return replace(now, counters=counters, created=created)


def _increase(kind: Counted, before: Reading | None, now: Reading) -> float:
    series = now.counters[kind]
    if before is None or restarted(before, now):
        return sum(series.values())
    old = before.counters.get(kind, {})
    same_process = before.started is not None and now.started is not None
    if old and same_process and _names(old).isdisjoint(_names(series)):
        # The same process shows the count under another name, which has it all: only what comes from now on is new.
        return 0.0
    return sum(_series_increase(key, value, old, before.created, now.created) for key, value in series.items())


def _series_increase(
    key: str, value: float, old: Series, created_before: Mapping[str, float], created_now: Mapping[str, float]
) -> float:
    last = old.get(key, 0.0)
    began_again = value < last or _later(created_now.get(key), created_before.get(key))
    return value if began_again else value - last


def _names(series: Series) -> set[str]:
    return {key.partition("{")[0] for key in series}


def _later(now: float | None, before: float | None) -> bool:
    return now is not None and before is not None and now > before + SAME_START_S
