"""Workers on this machine: one process for each core, each with a limit of memory, all of them gone with the sweep.

They are started afresh instead of forked: numba's and polars' threads do not survive a fork. The first one compiles
the simulator where that was never done, and the others start when it has.
"""

import multiprocessing
import os
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, cast

from tokonomics.memory_budget import SHARE, available_bytes, can_limit_memory, limit_memory
from tokonomics.sweep.environment import changed
from tokonomics.sweep.outcome import outcome_from
from tokonomics.sweep.workers import Done, Event, Gone, Ready, Worker

_ENOUGH_BYTES = 1_000_000_000
"""For a worker: a simulation of a million requests. With less for each there are fewer of them, unless --jobs says."""
_LEAST_BYTES = 100_000_000
"""As --memory: with less nothing is answered."""


def cores() -> int:
    """Those this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def memory_share(jobs: int) -> int:
    """Bytes for each of so many workers: what is free now, less what others may need, split among them."""
    return max(_LEAST_BYTES, round(SHARE * available_bytes() / jobs))


def most_workers() -> int:
    """One for each core, as long as there is memory enough for each."""
    return max(1, min(cores(), int(SHARE * available_bytes() / _ENOUGH_BYTES)))


def unlimited() -> list[str]:
    """What is to be said where a worker cannot be held to its share, as on macOS."""
    said = "workers may take any amount of memory: this system sets no limit, and --memory does nothing"
    return [] if can_limit_memory() else [said]


class LocalCrew:
    """So many processes; asked through pipes."""

    tries = 2
    lost = 0

    def __init__(self, verb: str, jobs: int, memory_bytes: int, environment: Mapping[str, str]) -> None:
        self._verb, self._jobs, self._memory_bytes, self._environment = verb, jobs, memory_bytes, environment
        self._spawning = multiprocessing.get_context("spawn")
        self._processes: dict[Connection, BaseProcess] = {}
        self._first_is_ready = False

    def keep_up(self, wanted: int) -> None:
        most = min(self._jobs, wanted) if self._first_is_ready else 1
        while len(self._processes) < most:
            here, there = self._spawning.Pipe()
            process = self._spawning.Process(
                target=serve, args=(there, self._verb, self._memory_bytes, os.getpid()), daemon=True
            )
            with changed(self._environment):
                process.start()
            there.close()
            self._processes[here] = process

    def ask(self, worker: Worker, values: dict[str, Any]) -> None:
        with suppress(OSError):  # it has died: the next wait tells
            cast(Connection, worker).send(values)

    def wait(self, timeout_s: float | None) -> list[Event]:
        events: list[Event] = []
        for found in wait(list(self._processes), timeout_s):
            line = cast(Connection, found)
            try:
                said = line.recv()
            except (EOFError, OSError):
                events.append(Gone(line, self._ended(line)))
                continue
            if said is None:
                self._first_is_ready = True
                events.append(Ready(line))
            else:
                events.append(Done(line, outcome_from(said)))
        return events

    def dismiss(self, worker: Worker) -> None:
        line = cast(Connection, worker)
        self._processes[line].kill()
        self._ended(line)

    def close(self) -> None:
        for process in self._processes.values():
            process.kill()
        for line in list(self._processes):
            self._ended(line)

    def pids(self) -> list[int]:
        return [process.pid for process in self._processes.values() if process.pid]

    def _ended(self, line: Connection) -> str:
        process = self._processes.pop(line)
        line.close()
        process.join(0.5)  # one that died by itself tells how
        if process.exitcode is None:
            process.kill()
            process.join()
        code = process.exitcode or 0
        process.close()
        if code == -signal.SIGKILL:
            return "killed, most likely for want of memory"
        return f"ended by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"


def serve(line: Connection, verb: str, memory_bytes: int, parent: int) -> None:
    """The life of a worker: warm up, say so, answer until nobody asks."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl+C is the sweep's to answer
    _end_with(parent)
    from tokonomics.sweep.answering import answered, warm_up

    warm_up(verb)
    limit_memory(memory_bytes)  # beyond what the imports took
    try:
        line.send(None)
        while True:
            line.send(answered(verb, line.recv()).plain())
    except (EOFError, OSError):
        return


def _end_with(parent: int) -> None:
    """However the sweep ends: nobody would hear the answer."""
    if sys.platform == "linux":
        import ctypes

        pr_set_pdeathsig = 1  # of <sys/prctl.h>
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
