"""Processes that do one task at a time, each with a memory limit, and a pool that hands tasks out to them.

Killing the process is the only way to stop compiled code. So a task that is cancelled or out of time loses its worker,
and a fresh one takes its place; the same holds for a worker that died or whose allocation failed. One thread minds one
worker: it takes a task from the queue, asks, and passes on what comes back. The workers are processes of this machine
(``WorkerProcess``) or the actors of a cluster (``sweep.cluster``).

Not pebble: its pool streams no progress and hands on the whole environment, secrets too, and it is not in the lock.
multiprocessing's own spawn has the second fault as well, so a worker is a ``subprocess`` at the end of a ``Pipe``.
"""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from importlib import import_module
from multiprocessing.connection import Connection
from typing import Any, NamedTuple, Protocol

from tokonomics.errors import TokonomicsError
from tokonomics.memory_budget import limit_memory, limited_room

COLD_S = 60.0  # more for a worker that has not warmed up: it imports and compiles first, which is not the task's time
WARM_UP_S = 300.0  # after which a worker that still warms up is given up
_LEAST_ROOM = 0.25
"""Of a worker's memory: one that keeps more of it after an answer (an allocator gives back what it likes) would refuse
what a fresh one can do, so a fresh one takes its place."""
_CLOSING_S = 10.0  # for all threads together: whatever is left ends with this process
_IDLE_S = 0.1  # how long nothing must have waited before a worker warms up
_TOO_MUCH, _LESS = "needs more memory than one request may take", "Ask for fewer requests or rows."


class Busy(TokonomicsError):
    """There is more work than the server takes on."""


class TaskRefused(TokonomicsError):
    """What the function said against its request, or that it needs too much memory."""


class WorkerDied(TaskRefused):
    """The worker died over the task; ``why`` is for the log."""

    def __init__(self, why: str) -> None:
        super().__init__("the work ended early, most likely for want of memory", fix=_LESS)
        self.why = why


class TaskTimeout(TokonomicsError):
    """The work took longer than it may."""


class Cancelled(TokonomicsError):
    """Whoever asked does not want it any more."""


class Broken(Exception):
    """A fault of ours: its text is for the log, never for a page."""


class NoWorker(Broken):
    """The worker died before it was ready."""


class Spent(Exception):
    """Raised by a function whose allocation failed, with its answer; a fresh worker takes its place."""


@dataclass(eq=False)
class Task:
    """One request: how long it may take, and who hears of it. ``done`` holds the answer's JSON."""

    request: Any
    limit_s: float
    say: Callable[[str], None] = lambda line: None
    like: tuple[Hashable, ...] = ()
    """What the worker that does it may know already, by names, the nearest first: it is asked if it is free."""
    done: "Future[bytes]" = field(default_factory=Future)
    began_at: float = 0.0
    _kill: Callable[[], None] | None = None
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def cancel(self) -> None:
        """Stop it: a task in the queue is dropped, a running one loses its worker."""
        with self._lock:
            if self._finish(Cancelled("cancelled")) and self._kill:
                self._kill()

    def drop(self) -> None:
        """Stop it only if it has not begun: a worker is worth more than the rest of a short task."""
        with self._lock:
            if self._kill is None:
                self.cancel()

    def _begin(self, kill: Callable[[], None]) -> bool:
        with self._lock:
            if self.done.done() or not self.done.set_running_or_notify_cancel():
                return False
            self._kill, self.began_at = kill, time.monotonic()
        return True

    def _finish(self, answer: bytes | Exception) -> bool:
        """Whether nobody else has ended it: the worker, the clock or whoever waits."""
        with self._lock, suppress(InvalidStateError):
            if isinstance(answer, Exception):
                self.done.set_exception(answer)
            else:
                self.done.set_result(answer)
            return True
        return False


class WaitingLine:
    """Tasks in the order they came, each for the next thread that is free.

    Whoever did something of the same name takes it if it is idle: it may have kept a part. Where that one is busy,
    anybody takes it.
    """

    NAMES = 256  # how many names it remembers, with the thread that last did something of that name

    def __init__(self, most: int = 0) -> None:
        """Let at most ``most`` tasks wait; 0: any number."""
        self._most, self.is_closed = most, False
        self._tasks: deque[Task] = deque()
        self._idle: set[threading.Thread] = set()
        self._did: OrderedDict[Hashable, threading.Thread] = OrderedDict()
        self._changed = threading.Condition()

    def put(self, task: Task) -> None:
        """Let it wait; refuses where as many wait as may, of which a cancelled one holds no place."""
        with self._changed:
            if self._most and len(self._tasks) >= self._most:
                self._tasks = deque(waiting for waiting in self._tasks if not waiting.done.done())
            if self.is_closed or (self._most and len(self._tasks) >= self._most):
                raise Busy("the server has as much work as it takes on", fix="Try again in a few seconds.")
            self._tasks.append(task)
            self._changed.notify_all()

    def take(self, timeout_s: float | None = None) -> Task | None:
        """The first that is for this thread; None after that time, and for good once it is closed."""
        me = threading.current_thread()
        with self._changed:
            self._idle.add(me)
            try:
                self._changed.wait_for(lambda: self.is_closed or self._place_for(me) is not None, timeout_s)
                place = None if self.is_closed else self._place_for(me)  # while it still counts as idle
            finally:
                self._idle.discard(me)
            if place is None:
                return None
            task = self._tasks[place]
            del self._tasks[place]
            if self._tasks:
                self._changed.notify_all()  # what waited for this thread is anybody's now
            for name in task.like:
                self._did[name] = me
                self._did.move_to_end(name)
            while len(self._did) > self.NAMES:
                self._did.popitem(last=False)
            return task

    def close(self) -> list[Task]:
        """Let nobody wait any more; what waited."""
        with self._changed:
            self.is_closed = True
            left = list(self._tasks)
            self._tasks.clear()
            self._changed.notify_all()
            return left

    def _place_for(self, thread: threading.Thread) -> int | None:
        for place, task in enumerate(self._tasks):
            wanted = next((self._did[name] for name in task.like if self._did.get(name) in self._idle), thread)
            if wanted is thread:
                return place
        return None


class Replied(NamedTuple):
    """The answer to a request; after the last one the worker is of no more use."""

    answer: bytes | Exception
    last: bool = False


class Worker(Protocol):
    """Does one task at a time, wherever it is; its first reply says that it is ready."""

    def alive(self) -> bool: ...

    def ask(self, request: Any) -> None: ...

    def hear(self, timeout_s: float | None) -> str | Replied | None:
        """A line of progress, or the reply; None when the time has passed. Raises ``WorkerDied``."""

    def kill(self) -> None:
        """From any thread; ``hear`` tells of it."""

    def end(self) -> object:
        """Kill it and clear up after it."""


class Pool:
    """Tasks in the order they came, each for the next worker that is free.

    With a ``turn``, workers start and do the requests ``warm_ups`` one after the other, of all pools that share it, and
    only while nothing waits: there is one to take the next task as soon as there can be.
    """

    def __init__(
        self,
        start: Callable[[], Worker],
        waiting: int = 0,
        warm_ups: Sequence[Any] = (),
        turn: "threading.Lock | None" = None,
    ) -> None:
        """``waiting`` tasks at most are queued; 0: any number."""
        self._start, self._warm_ups, self._turn = start, warm_ups, turn
        self._line = WaitingLine(waiting)
        self._workers: set[Worker] = set()
        self._threads: list[threading.Thread] = []
        self.is_ready = False
        """Whether a worker ever was."""
        self.on_ready: Callable[[], None] = lambda: None

    def grow(self, workers: int) -> None:
        """Have so many workers, if there are fewer."""
        while len(self._threads) < workers:
            self._threads.append(threading.Thread(target=self._mind, daemon=True))
            self._threads[-1].start()

    def submit(self, task: Task) -> None:
        """Queue a task; refuses where the queue is full."""
        self._line.put(task)

    def close(self) -> None:
        """Kill the workers, with what they do; what waits is cancelled."""
        for task in self._line.close():
            task.cancel()
        for worker in list(self._workers):
            worker.kill()
        until = time.monotonic() + _CLOSING_S
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))

    def _mind(self) -> None:
        """Mind one worker after the other, until the pool is closed."""
        with self._turn or nullcontext():
            worker, cold = self._replaced(None), list(self._warm_ups)
        while task := self._next(worker, cold):
            if isinstance(worker, Exception) or not worker.alive():
                worker, cold = self._replaced(worker), list(self._warm_ups)
            if isinstance(worker, Exception):
                task._finish(worker)
            elif not self._done(worker, task, COLD_S if cold else 0.0):
                worker, cold = self._replaced(worker), list(self._warm_ups)
        self._end(worker)

    def _next(self, worker: Worker | Exception, cold: list[Any]) -> Task | None:
        """Wait for the next task, and use the time until it comes to warm the worker up."""
        while cold and self._turn and not isinstance(worker, Exception) and not self._line.is_closed:
            if task := self._line.take(_IDLE_S):
                return task
            if self._turn.acquire(blocking=False):
                try:
                    if not self._done(worker, Task(cold.pop(0), WARM_UP_S)):
                        self._end(worker)
                        break  # the next task starts another
                finally:
                    self._turn.release()
        return self._line.take()

    def _replaced(self, worker: Worker | Exception | None) -> Worker | Exception:
        """End a worker and start the next; the reason where none can be started now, which the next task hears."""
        self._end(worker)
        if self._line.is_closed:
            return NoWorker("the server ends")
        fresh = None
        try:
            fresh = self._start()
            self._workers.add(fresh)
            if self._line.is_closed:
                fresh.kill()
            fresh.hear(None)
        except Exception as problem:  # a dead one, no room for a process now, or one that must not work for us
            self._end(fresh)
            if isinstance(problem, TokonomicsError) and not isinstance(problem, WorkerDied):
                return problem
            return NoWorker(f"no worker could be started: {getattr(problem, 'why', problem)}")
        if not self.is_ready:
            self.is_ready = True
            self.on_ready()
        return fresh

    def _end(self, worker: Worker | Exception | None) -> None:
        if worker is not None and not isinstance(worker, Exception):
            worker.end()
            self._workers.discard(worker)

    def _done(self, worker: Worker, task: Task, more_s: float = 0.0) -> bool:
        """Whether the worker is still of use afterwards."""
        if not task._begin(worker.kill):
            return True
        try:
            task.say("started")
            worker.ask(task.request)
            while (said := worker.hear(max(0.0, task.began_at + task.limit_s + more_s - time.monotonic()))) is not None:
                if isinstance(said, Replied):
                    return task._finish(said.answer) and not said.last
                task.say(said)
        except WorkerDied as died:
            task._finish(died)
        except Exception:  # a thread that ends leaves its share of the queue to nobody
            task._finish(Broken(traceback.format_exc()))
        fix = "Ask for less: fewer requests, models or GPUs."
        task._finish(TaskTimeout(f"took longer than {task.limit_s:g} seconds", fix=fix))
        return False


_LINE, _ANSWER, _REFUSAL, _FAULT = b"l", b"a", b"r", b"f"
"""The first byte of what a worker says; JSON or text follows. After a capital the worker is of no more use."""


class WorkerProcess:
    """A worker on this machine, gone with this process however it ends.

    ``begin`` names a function, ``package.module:name``. The worker calls it once with ``arguments``: it imports what is
    needed and returns the function that answers, which takes a request and ``tell``, for lines of progress. What the
    worker takes from then on is limited to ``memory_bytes``.
    """

    def __init__(self, begin: str, arguments: Sequence[Any], memory_bytes: int, environment: Mapping[str, str]) -> None:
        self._line, there = multiprocessing.Pipe()
        path = [os.path.abspath(folder) for folder in sys.path]  # noqa: PTH100 - no more than that
        code = f"import sys; sys.path[:] = {path}; from tokonomics.workers import live; live({there.fileno()})"
        with there:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", code], stdin=subprocess.PIPE, pass_fds=[there.fileno()], env=environment
            )
        self.ask((begin, tuple(arguments), memory_bytes))

    @property
    def pid(self) -> int:
        return self._process.pid

    def alive(self) -> bool:
        return self._process.poll() is None

    def ask(self, request: Any) -> None:
        with suppress(OSError):  # it has died: ``hear`` tells how
            self._line.send(request)

    def hear(self, timeout_s: float | None) -> str | Replied | None:
        try:
            if not self._line.poll(timeout_s):
                return None
            said = self._line.recv_bytes()
        except (EOFError, OSError):
            raise WorkerDied(self.end(0.5)) from None
        kind, content = said[:1], said[1:]
        if kind == _LINE:
            return content.decode()
        answer: bytes | Exception = content
        if kind.lower() == _REFUSAL:
            answer = TaskRefused(**json.loads(content))
        elif kind.lower() == _FAULT:
            answer = Broken(content.decode())
        return Replied(answer, last=kind.isupper())

    def kill(self) -> None:
        self._process.kill()

    def end(self, grace_s: float = 0.0) -> str:
        """How it ended; a process closes its files a moment before it has."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(grace_s)
        self._process.kill()
        code = self._process.wait()
        self._line.close()
        if self._process.stdin:
            self._process.stdin.close()
        if code == -signal.SIGKILL:
            return "killed, most likely for want of memory"
        return f"ended by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"


def live(line: int) -> None:
    """The life of a worker: begin, say so, answer until nobody asks."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl+C is for the parent to answer
    end_with_the_parent(os.dup(0))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)  # what a function prints is no answer
    parent = Connection(line)
    name, arguments, memory_bytes = parent.recv()
    module, _, function = name.partition(":")
    answer = getattr(import_module(module), function)(*arguments)
    limit_memory(memory_bytes)  # beyond what the imports took
    parent.send_bytes(_ANSWER)
    with suppress(EOFError, OSError):  # nobody asks any more
        while True:
            said = _answered(answer, parent.recv(), lambda line: parent.send_bytes(_LINE + line.encode()))
            if limited_room() < _LEAST_ROOM * memory_bytes:
                said = said[:1].upper() + said[1:]
            parent.send_bytes(said)


def _answered(answer: Callable[..., Any], request: Any, tell: Callable[[str], None]) -> bytes:
    try:
        return _ANSWER + as_json(answer(request, tell))
    except Spent as spent:
        return _ANSWER.upper() + as_json(spent.args[0])
    except TokonomicsError as problem:
        return _REFUSAL + as_json({"what": problem.what, "where": problem.where, "fix": problem.fix})
    except MemoryError:
        return _REFUSAL.upper() + as_json({"what": _TOO_MUCH, "fix": _LESS})
    except Exception:
        return _FAULT + traceback.format_exc().encode(errors="replace")


def as_json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def end_with_the_parent(lifeline: int) -> None:
    """However the parent ended, and whatever runs here: nobody would hear the answer.

    Linux kills us; elsewhere the end of a pipe into which nobody writes tells.
    """
    if sys.platform == "linux":
        import ctypes

        pr_set_pdeathsig = 1  # of <sys/prctl.h>
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)

    def wait_for_the_end() -> None:
        os.read(lifeline, 1)
        os._exit(0)

    threading.Thread(target=wait_for_the_end, daemon=True).start()
