"""``tokonomics sweep … --ray …`` that stops, once, in the middle of its work, for whoever kills some of it.

No point is given out before two workers are ready. When both have been asked one, ``busy PID PID`` goes to standard
error and the sweep waits for a line on standard input: what dies in between has been asked and not been heard.
"""

import sys
from typing import Any

from tokonomics.__main__ import app
from tokonomics.sweep.cluster import ClusterCrew
from tokonomics.sweep.workers import Event, Ready, Worker

WORKERS = 2
held: list[Event] = []
pids: dict[str, int] = {}
asked: set[Worker] = set()
_ask, _wait, _told = ClusterCrew.ask, ClusterCrew.wait, ClusterCrew._told


def told(crew: ClusterCrew, reference: Any) -> Event:
    name = crew._begun[reference]
    starting = name in crew._starting
    event = _told(crew, reference)
    if starting and isinstance(event, Ready):
        pids[name] = crew._ray.get(reference)[2]
    return event


def wait(crew: ClusterCrew, timeout_s: float | None) -> list[Event]:
    events = _wait(crew, timeout_s)
    if len(pids) >= WORKERS and not held:
        return events
    held.extend(events)
    if len(pids) < WORKERS:
        return []
    events = list(held)
    held.clear()
    return events


def ask(crew: ClusterCrew, worker: Worker, values: dict[str, Any]) -> None:
    _ask(crew, worker, values)
    asked.add(worker)
    if len(asked) == WORKERS and worker in pids:
        asked.add("both")
        print("busy", *pids.values(), file=sys.stderr, flush=True)  # noqa: T201
        sys.stdin.readline()


for name, made in {"_told": told, "wait": wait, "ask": ask}.items():
    setattr(ClusterCrew, name, made)

if __name__ == "__main__":
    app(sys.argv[1:], prog_name="tokonomics")
