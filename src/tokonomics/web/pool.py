"""A few worker processes and the queue before them; each task has a time limit, and can be cancelled at any moment.

One thread minds one worker: it takes a task from the queue, sends it, and passes on what comes back. Cancelling and
running out of time kill the process, which is the only way to stop compiled code; a new one takes its place. The queue
is bounded: what does not fit is refused at once, so that work cannot pile up. Workers start and warm up one after the
other, and only while nothing waits: there is one to take the next task as soon as there can be.
"""

import json
import os
import queue
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokonomics.errors import TokonomicsError
from tokonomics.web import worker

Say = Callable[[str], None]


class Busy(TokonomicsError):
    """There is more work than the server takes on."""


class Refused(TokonomicsError):
    """What a verb said against its inputs."""


class OutOfTime(TokonomicsError):
    """The work took longer than it may."""


class Cancelled(TokonomicsError):
    """Whoever asked does not want it any more."""


class Broken(Exception):
    """A fault of ours: its text is for the log, never for the page."""


@dataclass
class Task:
    """One piece of work: what is asked, how long it may take, and who hears of it."""

    request: dict[str, Any]
    limit_s: float
    say: Say = lambda what: None
    done: "Future[bytes]" = field(default_factory=Future)
    on_start: Callable[[], None] = lambda: None
    _kill: Callable[[], None] | None = None
    _stopped: Exception | None = None
    _settled: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def cancel(self) -> None:
        """Stop it: a task in the queue is dropped, a running one loses its worker."""
        self._stop(Cancelled("cancelled"))

    def drop(self) -> None:
        """Stop it only if it has not begun: a worker is worth more than the rest of a short task."""
        self._stop(Cancelled("cancelled"), begun=False)

    def _stop(self, why: Exception, begun: bool = True) -> None:
        with self._lock:
            if self._settled or self._stopped or (self._kill and not begun):
                return
            self._stopped = why
            if self._kill:
                self._kill()
                return
        self._finish(error=why)

    def _begin(self, kill: Callable[[], None]) -> bool:
        with self._lock:
            if self._stopped or not self.done.set_running_or_notify_cancel():
                return False
            self._kill = kill
        self.on_start()
        return True

    def _finish(self, content: bytes = b"", error: Exception | None = None) -> None:
        with self._lock:
            self._kill = None
            if self._settled:
                return
            self._settled = True
            stopped = self._stopped or error
        with suppress(InvalidStateError):  # whoever waited for a task in the queue has gone
            if stopped:
                self.done.set_exception(stopped)
            else:
                self.done.set_result(content)


def worker_command(folder: Path, memory_bytes: int, niceness: int = 0) -> list[str]:
    """How a worker is started: it stands in an empty folder, and gives way to others where it is nice."""
    return [sys.executable, "-P", "-m", "tokonomics.web.worker", str(folder), str(memory_bytes), str(niceness)]


COLD_S = 60.0
"""More for a worker that has not warmed up: it imports and compiles first, which is not the task's time."""
WARM_UP_S = 300.0
"""After which a worker that still warms up is given up."""
_SECRETS = ("TOKONOMICS_TOKEN",)
"""Of the environment: workers need none of them."""
_IDLE_S = 0.1
"""How long nothing must have waited before a worker warms up."""


def _clock(limit_s: float, task: Task, over: OutOfTime) -> threading.Timer:
    made = threading.Timer(limit_s, task._stop, [over])
    made.daemon = True
    made.start()
    return made


@dataclass
class Minded:
    """A worker and how far it is: None where it could not be started."""

    process: subprocess.Popen[bytes] | None
    to_warm: list[str]
    """Verbs it has not done yet."""


class Pool:
    """Workers of one kind, with a queue of their own."""

    def __init__(
        self,
        workers: int,
        waiting: int,
        command: Sequence[str],
        warm_ups: Sequence[str] = (),
        turn: "threading.Lock | None" = None,
    ) -> None:
        """``turn`` is held by the one worker, of all pools that share it, that starts or warms up."""
        self._warm_ups = warm_ups
        self._turn = turn or threading.Lock()
        self._queue: queue.Queue[Task | None] = queue.Queue(waiting)
        self._command = command
        # Every worker gets the environment of the start, whoever replaces whom later.
        self._environment = {name: value for name, value in os.environ.items() if name not in _SECRETS}
        self._closed = threading.Event()
        self._running: set[subprocess.Popen[bytes]] = set()
        self.ready = threading.Event()
        self._threads = [threading.Thread(target=self._mind, daemon=True) for _ in range(workers)]
        for thread in self._threads:
            thread.start()

    def submit(self, task: Task) -> None:
        """Queue a task; refuses where the queue is full."""
        try:
            if self._closed.is_set():
                raise queue.Full
            self._queue.put_nowait(task)
        except queue.Full:
            raise Busy("the server has as much work as it takes on", fix="Try again in a few seconds.") from None

    def close(self) -> None:
        """Kill the workers; what waits is cancelled."""
        self._closed.set()
        while True:
            try:
                task = self._queue.get_nowait()
            except queue.Empty:
                break
            if task:
                task.cancel()
        for process in list(self._running):
            process.kill()
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join(10)

    def _mind(self) -> None:
        with self._turn:
            minded = Minded(self._started_safely(), list(self._warm_ups))
        while not self._closed.is_set():
            task = self._next(minded)
            if task is None:
                break
            try:
                self._do(minded, task)
            except Exception:  # a thread that ends leaves its share of the queue to nobody
                task._finish(error=Broken(traceback.format_exc()))
                self._replace(minded, None)
        self._replace(minded, None)

    def _next(self, minded: "Minded") -> Task | None:
        """The next task; the time until one comes is used to warm up."""
        while minded.process and minded.to_warm:
            with suppress(queue.Empty):
                return self._queue.get(timeout=_IDLE_S)
            if self._turn.acquire(blocking=False):
                try:
                    self._warm(minded)
                finally:
                    self._turn.release()
        return self._queue.get()

    def _warm(self, minded: "Minded") -> None:
        process = minded.process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        request = {"work": "warm", "verb": minded.to_warm.pop(0)}
        clock = threading.Timer(WARM_UP_S, process.kill)
        clock.daemon = True
        clock.start()
        try:
            worker.write_frame(process.stdin, 0, json.dumps(request).encode())
            while (frame := worker.read_frame(process.stdout)) is not None:
                if frame[0] not in (worker.BEGUN, worker.PROGRESS):
                    return
        except OSError:
            pass
        finally:
            clock.cancel()
        self._replace(minded, None)

    def _do(self, minded: "Minded", task: Task) -> None:
        if minded.process is None or minded.process.poll() is not None:
            self._replace(minded, self._started())
        if minded.process is None:
            task._finish(error=Broken("no worker could be started"))
        elif not self._worked(minded.process, task, COLD_S if minded.to_warm else 0.0):
            self._replace(minded, None)
            if not self._closed.is_set():
                self._replace(minded, self._started_safely())

    def _replace(self, minded: "Minded", process: subprocess.Popen[bytes] | None) -> None:
        if minded.process:
            self._ended(minded.process)
        minded.process, minded.to_warm = process, list(self._warm_ups)

    def _started_safely(self) -> subprocess.Popen[bytes] | None:
        """None where the system has no room for another process now: it is tried again for the next task."""
        try:
            return self._started()
        except OSError:
            sys.stderr.write(f"no worker could be started: {traceback.format_exc()}\n")
            return None

    def _started(self) -> subprocess.Popen[bytes] | None:
        """A worker that has imported the library."""
        process = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=self._environment)
        self._running.add(process)
        if self._closed.is_set():
            process.kill()
        assert process.stdout is not None
        if worker.read_frame(process.stdout) is None:
            self._ended(process)
            return None
        self.ready.set()
        return process

    def _ended(self, process: subprocess.Popen[bytes]) -> None:
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            if stream:
                stream.close()
        self._running.discard(process)

    def _worked(self, process: subprocess.Popen[bytes], task: Task, more_s: float) -> bool:
        """Whether the worker is still there afterwards."""
        assert process.stdin is not None
        assert process.stdout is not None
        if not task._begin(process.kill):
            return True
        seconds = f"{task.limit_s:g} seconds"
        over = OutOfTime(f"took longer than {seconds}", fix="Ask for less: fewer requests, models or GPUs.")
        clock = _clock(task.limit_s + more_s, task, over)
        try:
            worker.write_frame(process.stdin, 0, json.dumps(task.request).encode())
            while (frame := worker.read_frame(process.stdout)) is not None:
                kind, content = frame
                if kind == worker.BEGUN:
                    continue
                if kind == worker.PROGRESS:
                    task.say(content.decode())
                elif kind == worker.ANSWER:
                    task._finish(content)
                elif kind == worker.REFUSED:
                    said = json.loads(content)
                    task._finish(error=Refused(said["what"], where=said["where"], fix=said["fix"]))
                else:
                    task._finish(error=Broken(content.decode(errors="replace")))
                if kind != worker.PROGRESS:
                    return not task._stopped
        except OSError:
            pass
        finally:
            clock.cancel()
        gone = Refused("the work ended early, most likely for want of memory", fix="Ask for fewer requests or rows.")
        task._finish(error=gone)
        return False
