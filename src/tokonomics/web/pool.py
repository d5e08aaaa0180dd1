"""A few worker processes and the queue before them; each task has a time limit, and can be cancelled at any moment.

One thread minds one worker: it takes a task from the queue, sends it, and passes on what comes back. Cancelling and
running out of time kill the process, which is the only way to stop compiled code; a new one takes its place. The queue
is bounded: what does not fit is refused at once, so that work cannot pile up.
"""

import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
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
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def cancel(self) -> None:
        """Stop it: a task in the queue is dropped, a running one loses its worker."""
        self._stop(Cancelled("cancelled"))

    def drop(self) -> None:
        """Stop it only if it has not begun: a worker is worth more than the rest of a short task."""
        self._stop(Cancelled("cancelled"), begun=False)

    def _stop(self, why: Exception, begun: bool = True) -> None:
        with self._lock:
            if self.done.done() or self._stopped or (self._kill and not begun):
                return
            self._stopped = why
            if self._kill:
                self._kill()
                return
        self._finish(error=why)

    def _begin(self, kill: Callable[[], None]) -> bool:
        with self._lock:
            if self._stopped:
                return False
            self._kill = kill
        self.on_start()
        return True

    def _finish(self, content: bytes = b"", error: Exception | None = None) -> None:
        with self._lock:
            self._kill = None
            if self.done.done():
                return
            stopped = self._stopped or error
        if stopped:
            self.done.set_exception(stopped)
        else:
            self.done.set_result(content)


def worker_command(folder: Path, memory_bytes: int, niceness: int = 0, warm_ups: Sequence[str] = ()) -> list[str]:
    """How a worker is started: it stands in an empty folder, and gives way to others where it is nice."""
    settings = [str(folder), str(memory_bytes), str(niceness), *warm_ups]
    return [sys.executable, "-P", "-m", "tokonomics.web.worker", *settings]


WARM_UP_S = 120.0
"""A worker that has just started may still be compiling; that is not the task's time."""


def _clock(limit_s: float, task: Task, over: OutOfTime) -> threading.Timer:
    made = threading.Timer(limit_s, task._stop, [over])
    made.daemon = True
    made.start()
    return made


class Pool:
    """Workers of one kind, with a queue of their own."""

    def __init__(self, workers: int, waiting: int, command: Sequence[str]) -> None:
        self._queue: queue.Queue[Task | None] = queue.Queue(waiting)
        self._command = command
        self._environment = dict(os.environ)  # every worker gets that of the start, whoever replaces whom later
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
        process: subprocess.Popen[bytes] | None = None
        while not self._closed.is_set():
            process = process or self._started()
            task = self._queue.get()
            if task is None:
                break
            if process is None or process.poll() is not None:
                process = self._started()
            if process is None:
                task._finish(error=Broken("no worker could be started"))
            elif not self._worked(process, task):
                self._ended(process)
                process = None
        if process:
            self._ended(process)

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

    def _worked(self, process: subprocess.Popen[bytes], task: Task) -> bool:
        """Whether the worker is still there afterwards."""
        assert process.stdin is not None
        assert process.stdout is not None
        if not task._begin(process.kill):
            return True
        seconds = f"{task.limit_s:g} seconds"
        over = OutOfTime(f"took longer than {seconds}", fix="Ask for less: fewer requests, models or GPUs.")
        clock = _clock(task.limit_s + WARM_UP_S, task, over)
        try:
            worker.write_frame(process.stdin, 0, json.dumps(task.request).encode())
            while (frame := worker.read_frame(process.stdout)) is not None:
                kind, content = frame
                if kind == worker.BEGUN:
                    clock.cancel()
                    clock = _clock(task.limit_s, task, over)
                elif kind == worker.PROGRESS:
                    task.say(content.decode())
                elif kind == worker.ANSWER:
                    task._finish(content)
                elif kind == worker.REFUSED:
                    said = json.loads(content)
                    task._finish(error=Refused(said["what"], where=said["where"], fix=said["fix"]))
                else:
                    task._finish(error=Broken(content.decode(errors="replace")))
                if kind not in (worker.BEGUN, worker.PROGRESS):
                    return not task._stopped
        except OSError:
            pass
        finally:
            clock.cancel()
        gone = Refused("the work ended early, most likely for want of memory", fix="Ask for fewer requests or rows.")
        task._finish(error=gone)
        return False
