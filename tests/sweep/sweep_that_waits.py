"""``tokonomics sweep … --ray …`` that stops, once, in the middle of its work, for whoever kills some of it.

No point is given out before two workers are ready. When both have been asked one, ``busy PID PID`` goes to standard
error and the sweep waits for a line on standard input: what dies in between has been asked and not been heard.
"""

import sys
import threading
from typing import Any

from tokonomics.__main__ import app
from tokonomics.sweep.crew import ClusterWorker

WORKERS = 2
pids: list[int | None] = []
_ask = ClusterWorker.ask


def stop() -> None:
    print("busy", *pids, file=sys.stderr, flush=True)  # noqa: T201
    sys.stdin.readline()


both_are_ready, both_are_asked = threading.Barrier(WORKERS), threading.Barrier(WORKERS, action=stop)


def ask(worker: ClusterWorker, request: dict[str, Any]) -> None:
    waits = len(pids) < WORKERS
    if waits:
        pids.append(worker.pid)
        both_are_ready.wait()
    _ask(worker, request)
    if waits:
        both_are_asked.wait()


setattr(ClusterWorker, "ask", ask)  # noqa: B010 - mypy

if __name__ == "__main__":
    app(sys.argv[1:], prog_name="tokonomics")
