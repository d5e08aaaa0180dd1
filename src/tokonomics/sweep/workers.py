"""Who answers the points: the same loop hands them out to processes of this machine and to those of a cluster.

A point goes to a worker that is ready. One whose worker dies is asked again, by another, as often as the crew allows;
one that takes too long loses its worker and is not asked again. What comes back comes in any order.
"""

import time
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tokonomics.errors import TokonomicsError
from tokonomics.sweep.outcome import Outcome, Status
from tokonomics.sweep.points import Point

Worker = Hashable


@dataclass(frozen=True)
class Ready:
    """A worker can be asked."""

    worker: Worker


@dataclass(frozen=True)
class Done:
    """A worker has answered."""

    worker: Worker
    outcome: Outcome


@dataclass(frozen=True)
class Gone:
    """A worker has died."""

    worker: Worker
    why: str


Event = Ready | Done | Gone


class Crew(Protocol):
    """Workers, wherever they are."""

    tries: int
    """How often a point is asked before its workers' deaths are laid at its door."""
    lost: int
    """Workers that died while they answered."""

    def keep_up(self, wanted: int) -> None:
        """Start workers until there are as many as are wanted and allowed."""

    def ask(self, worker: Worker, values: dict[str, Any]) -> None: ...

    def wait(self, timeout_s: float | None) -> list[Event]:
        """What happened; empty when the time has passed."""

    def dismiss(self, worker: Worker) -> None:
        """Kill it; no event tells of it."""

    def close(self) -> None: ...


class NoWorkers(TokonomicsError):
    """Workers die before they are ready."""


_STILLBORN = 3
"""Workers in a row that died before they were ready: the next would as well."""
_LOOK_S = 60.0
"""The longest wait for anything: after a machine slept, the clock has jumped."""


def outcomes(
    crew: Crew, points: Sequence[Point], limit_s: float, on_ready: Callable[[], None] = lambda: None
) -> Iterator[list[tuple[Point, Outcome]]]:
    """What became of every point, as it comes: those of one moment together. ``on_ready`` hears of the first worker."""
    waiting = deque(points)
    asked: dict[Worker, tuple[Point, float]] = {}
    tried: dict[str, int] = {}
    ready: list[Worker] = []
    stillborn, began_work = 0, False
    while waiting or asked:
        crew.keep_up(len(waiting) + len(asked))
        while ready and waiting:
            worker, point = ready.pop(), waiting.popleft()
            asked[worker] = point, time.monotonic()
            crew.ask(worker, dict(point.values))
        now = time.monotonic()
        soonest = min((began + limit_s for _, began in asked.values()), default=now + _LOOK_S)
        finished: list[tuple[Point, Outcome]] = []
        for event in crew.wait(min(max(soonest - now, 0.0), _LOOK_S)):
            if isinstance(event, Ready):
                stillborn = 0
                if not began_work:
                    began_work = True
                    on_ready()
                ready.append(event.worker)
            elif isinstance(event, Done):
                finished.append((asked.pop(event.worker)[0], event.outcome))
                ready.append(event.worker)
            elif event.worker in asked:
                point, began = asked.pop(event.worker)
                crew.lost += 1
                tried[point.id] = tried.get(point.id, 0) + 1
                if tried[point.id] < crew.tries:
                    waiting.appendleft(point)
                else:
                    finished.append((point, _lost(event.why, tried[point.id], time.monotonic() - began)))
            elif event.worker in ready:
                ready.remove(event.worker)
            else:
                stillborn += 1
                if stillborn >= _STILLBORN:
                    raise NoWorkers(f"no worker could be started: {event.why}")
        now = time.monotonic()
        for worker, (point, began) in list(asked.items()):
            if now - began >= limit_s:
                del asked[worker]
                crew.dismiss(worker)
                finished.append((point, Outcome(Status.FAILED, f"took longer than {limit_s:g} s", seconds=now - began)))
        if finished:
            yield finished


def _lost(why: str, tries: int, seconds: float) -> Outcome:
    times = "once" if tries == 1 else "twice" if tries == 2 else f"{tries} times"
    return Outcome(Status.FAILED, f"its worker died {times}: {why}", seconds=seconds)
