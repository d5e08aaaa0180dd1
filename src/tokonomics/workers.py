"""Run tasks in processes with a memory limit, one task at a time each, from a shared pool.

Killing the process is the only way to stop compiled code. So a task that is cancelled or out of time loses its worker,
and a fresh one takes its place; the same holds for a worker that died or whose allocation failed. One thread manages
one worker: it takes a task from the queue, sends it, and passes on the reply. The workers are processes of this machine
(``WorkerProcess``) or the actors of a cluster (``sweep.cluster``).

Not pebble: its pool streams no progress and passes on the whole environment, secrets too, and it is not in the lock.
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
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from importlib import import_module
from multiprocessing.connection import Connection
from typing import Any, NamedTuple, Protocol

from tokonomics.errors import TokonomicsError
from tokonomics.memory_budget import limit_memory, limited_room

COLD_S = 60.0  # extra time for a cold worker: importing and compiling do not count as the task's time
WARM_UP_S = 300.0  # a worker that takes longer to warm up is given up
_LEAST_ROOM = 0.25
"""Share of a worker's memory that must be free after an answer. With less, it would refuse what a fresh worker can
do (an allocator does not give everything back), so a fresh one replaces it."""
_CLOSING_S = 10.0  # for all threads together: what is left ends with this process
_IDLE_S = 0.1  # a worker warms up once no task has waited for this long
_TOO_MUCH, _LESS = "needs more memory than one request may take", "Ask for fewer requests or rows."


class Busy(TokonomicsError):
    """Raised when there is more work than the server accepts."""


class TaskRefused(TokonomicsError):
    """Raised when the function rejects its request, or needs too much memory."""


class WorkerDied(TaskRefused):
    """Raised when the worker died during the task; ``why`` is for the log."""

    def __init__(self, why: str) -> None:
        super().__init__("the work ended early, most likely for want of memory", fix=_LESS)
        self.why = why


class TaskTimeout(TokonomicsError):
    """Raised when the work took longer than allowed."""


class Cancelled(TokonomicsError):
    """Raised when the caller no longer wants the answer."""


class Broken(Exception):
    """Raised for a bug of ours: its text is for the log, never for a page."""


class NoWorker(Broken):
    """Raised when the worker died before it was ready."""


class Spent(Exception):
    """Raised, with the answer, by a function whose allocation failed; a fresh worker replaces this one."""


@dataclass(eq=False)
class Task:
    """One request, its time limit, and the listeners for its progress. ``done`` holds the answer's JSON."""

    request: Any
    limit_s: float
    say: Callable[[str], None] = lambda line: None
    like: tuple[Hashable, ...] = ()
    """Names of what a worker may already know, best first: a free worker that did one of these gets the task."""
    done: "Future[bytes]" = field(default_factory=Future)
    began_at: float = 0.0
    _kill: Callable[[], None] | None = None
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def cancel(self) -> None:
        """Stop the task: a queued one is dropped, a running one loses its worker."""
        with self._lock:
            if self._finish(Cancelled("cancelled")) and self._kill:
                self._kill()

    def drop(self) -> None:
        """Stop the task only if it has not begun: a worker is worth more than the rest of a short task."""
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
        """Set the answer; return False if the worker, the clock or the caller had already ended the task."""
        with self._lock, suppress(InvalidStateError):
            if isinstance(answer, Exception):
                self.done.set_exception(answer)
            else:
                self.done.set_result(answer)
            return True
        return False


class WaitingLine:
    """Queue tasks in the order they came, each for the next free thread.

    A thread that did a task of the same name takes it if it is idle, since it may have kept a part. If that thread is
    busy, any thread takes the task.
    """

    NAMES = 256  # number of names remembered, each with the thread that last did a task of that name

    def __init__(self, most: int = 0) -> None:
        """Let at most ``most`` tasks wait; 0 means any number."""
        self._most, self.is_closed = most, False
        self._tasks: deque[Task] = deque()
        self._idle: set[threading.Thread] = set()
        self._did: OrderedDict[Hashable, threading.Thread] = OrderedDict()
        self._changed = threading.Condition()

    def put(self, task: Task) -> None:
        """Queue a task; refuse it if the queue is full (cancelled tasks do not count)."""
        with self._changed:
            if self._most and len(self._tasks) >= self._most:
                self._tasks = deque(waiting for waiting in self._tasks if not waiting.done.done())
            if self.is_closed or (self._most and len(self._tasks) >= self._most):
                raise Busy("the server has as much work as it takes on", fix="Try again in a few seconds.")
            self._tasks.append(task)
            self._changed.notify_all()

    def take(self, timeout_s: float | None = None) -> Task | None:
        """Return the first task for this thread; None after the timeout, and always once the line is closed."""
        me = threading.current_thread()
        with self._changed:
            self._idle.add(me)
            try:
                self._changed.wait_for(lambda: self.is_closed or self._place_for(me) is not None, timeout_s)
                place = None if self.is_closed else self._place_for(me)  # must run while this thread counts as idle
            finally:
                self._idle.discard(me)
            if place is None:
                return None
            task = self._tasks[place]
            del self._tasks[place]
            if self._tasks:
                self._changed.notify_all()  # tasks that waited for this thread are free for any other
            for name in task.like:
                self._did[name] = me
                self._did.move_to_end(name)
            while len(self._did) > self.NAMES:
                self._did.popitem(last=False)
            return task

    def close(self) -> list[Task]:
        """Close the queue and return the tasks that waited."""
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
    """The answer to a request; ``last`` tells that the worker can no longer be used."""

    answer: bytes | Exception
    last: bool = False


class Worker(Protocol):
    """A process or actor that does one task at a time; its first reply says that it is ready."""

    def alive(self) -> bool: ...

    def ask(self, request: Any) -> None: ...

    def hear(self, timeout_s: float | None) -> str | Replied | None:
        """Return a line of progress or the reply; None after the timeout. Raises ``WorkerDied``."""

    def kill(self) -> None:
        """Kill it, from any thread; ``hear`` then reports it."""

    def end(self) -> object:
        """Kill it and clean up."""


class Pool:
    """Give tasks to workers in the order they came.

    With a ``turn``, all pools that share it start and warm up (with the requests ``warm_ups``) one worker at a time,
    and only while nothing waits: so one worker is ready for the next task as early as possible.
    """

    def __init__(
        self,
        start: Callable[[], Worker],
        waiting: int = 0,
        warm_ups: Sequence[Any] = (),
        turn: "threading.Lock | None" = None,
    ) -> None:
        """Queue at most ``waiting`` tasks; 0 means any number."""
        self._start, self._warm_ups, self._turn = start, warm_ups, turn
        self._line = WaitingLine(waiting)
        self._workers: set[Worker] = set()
        self._threads: list[threading.Thread] = []
        self.is_ready = False
        """Whether a worker has ever been ready."""
        self.on_ready: Callable[[], None] = lambda: None

    def grow(self, workers: int) -> None:
        """Start workers until there are this many."""
        while len(self._threads) < workers:
            self._threads.append(threading.Thread(target=self._mind, daemon=True))
            self._threads[-1].start()

    def submit(self, task: Task) -> None:
        """Queue a task; refuse it if the queue is full."""
        self._line.put(task)

    def close(self) -> None:
        """Kill the workers with their tasks, and cancel what waits."""
        for task in self._line.close():
            task.cancel()
        for worker in list(self._workers):
            worker.kill()
        until = time.monotonic() + _CLOSING_S
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))

    def _mind(self) -> None:
        """Manage one worker after another until the pool is closed."""
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
        """Wait for the next task, and meanwhile warm the worker up."""
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
        """End a worker and start the next; return the error if none can be started, which the next task receives."""
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
        except Exception as problem:  # it died, there is no memory for a process, or it may not work for us
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
        """Do the task, and tell whether the worker can still be used."""
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
        except Exception:  # if this thread ended, nobody would take its share of the queue
            task._finish(Broken(traceback.format_exc()))
        fix = "Ask for less: fewer requests, models or GPUs."
        task._finish(TaskTimeout(f"took longer than {task.limit_s:g} seconds", fix=fix))
        return False


_LINE, _ANSWER, _REFUSAL, _FAULT = b"l", b"a", b"r", b"f"
"""First byte of a worker's message; JSON or text follows. A capital means that the worker cannot be used again."""


class WorkerProcess:
    """Run a worker on this machine; it ends with this process, however that ends.

    ``begin`` names a function, ``package.module:name``. The worker calls it once with ``arguments``: it imports what is
    needed and returns the function that answers, which takes a request and ``tell``, for lines of progress. From then
    on the worker may take ``memory_bytes`` more.
    """

    def __init__(self, begin: str, arguments: Sequence[Any], memory_bytes: int, environment: Mapping[str, str]) -> None:
        self._line, there = multiprocessing.Pipe()
        with there:
            self._process = subprocess.Popen(
                our_python("tokonomics.workers", f"live({there.fileno()})"),
                stdin=subprocess.PIPE,
                pass_fds=[there.fileno()],
                env=environment,
            )
        self.ask((begin, tuple(arguments), memory_bytes))

    @property
    def pid(self) -> int:
        return self._process.pid

    def alive(self) -> bool:
        return self._process.poll() is None

    def ask(self, request: Any) -> None:
        with suppress(OSError):  # it has died: ``hear`` reports how
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
        """End the process and return how it ended; it closes its files a moment before it exits."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(grace_s)
        self._process.kill()
        code = self._process.wait()
        self._line.close()
        if self._process.stdin:
            self._process.stdin.close()
        return how_it_ended(code)


def our_python(module: str, call: str) -> list[str]:
    """Return a command that calls a function of our module in another Python, which finds modules where we do."""
    path = [os.path.abspath(folder) for folder in sys.path]  # noqa: PTH100 - no more than that
    code = f"import sys; sys.path[:] = {path}; from {module} import {call.partition('(')[0]}; {call}"
    return [sys.executable, "-P", "-c", code]


def how_it_ended(code: int) -> str:
    """Put the return code of a ``subprocess`` in words."""
    if code == -signal.SIGKILL:
        return "killed, most likely for want of memory"
    return f"ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


@contextmanager
def polite_end() -> Iterator[None]:
    """End the block on a closed terminal or SIGTERM as on Ctrl+C; only the main thread is told of signals."""

    def end(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    wanted = [polite for polite in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(polite) is not signal.SIG_IGN]
    if threading.current_thread() is not threading.main_thread():
        wanted = []
    before = {polite: signal.signal(polite, end) for polite in wanted}
    try:
        yield
    finally:
        for polite, handler in before.items():
            signal.signal(polite, handler)


def live(line: int) -> None:
    """Run a worker: begin, report ready, and answer until nobody asks any more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl+C is for the parent to answer
    end_with_the_parent(os.dup(0))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)  # keep a function's prints out of the answers
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
    """End this process when the parent ends, whatever runs here: nobody would hear the answer.

    Linux kills us; elsewhere we notice that a pipe, into which nobody writes, was closed.
    """
    if sys.platform == "linux":
        import ctypes

        pr_set_pdeathsig = 1  # of <sys/prctl.h>
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)

    def wait_for_the_end() -> None:
        os.read(lifeline, 1)
        os._exit(0)

    threading.Thread(target=wait_for_the_end, daemon=True).start()
