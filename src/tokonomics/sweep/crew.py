"""Answer points with a pool of workers on this machine, one for each core, or on a Ray cluster.

A worker asks the question with the point's inputs and keeps the answer. If a worker dies, its point is asked again by
another, as often as the crew allows; a point that takes too long loses its worker and is not asked again. Outcomes come
back in any order.

On a Ray cluster there is one actor for each CPU, and each is asked one point at a time (extra ``[ray]``). Points,
retries, time limits and the store stay with the sweep on this machine; Ray finds the machines, starts the workers there
and says when one has died. Machines may come and go: actors follow the CPUs that the cluster has. Each must have the
same tokonomics, packages and prices, and find the files of the scenario under the same paths; this is checked before it
is asked anything. Ray is imported here and nowhere else.
"""

import contextlib
import gc
import json
import os
import queue
import re
import socket
import sys
import time
import traceback
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from tokonomics.errors import BadInput, TokonomicsError, flag, shorten
from tokonomics.memory_budget import SHARE, NoRoom, available_bytes, limit_memory
from tokonomics.questions.request import SILENT
from tokonomics.questions.verbs import find_verb
from tokonomics.sweep.outcome import OUT_OF_MEMORY, PointOutcome, Status, figures_of, untimed
from tokonomics.sweep.points import Ground, SweepPoint, differences, ground
from tokonomics.units import plural
from tokonomics.workers import (
    Broken,
    NoWorker,
    Pool,
    Replied,
    Spent,
    Task,
    TaskRefused,
    TaskTimeout,
    Worker,
    WorkerDied,
    WorkerProcess,
    as_json,
)

_ENOUGH_BYTES = 1_000_000_000
"""Memory for a worker: a simulation of a million requests. If there is less for each, fewer start, unless --jobs is
given."""
_LEAST_BYTES = 100_000_000  # least value of --memory: with less no point is answered
_AHEAD = 10_000  # points queued ahead: more than there are workers, fewer than fill the memory
_STILLBORN = 3  # give up after this many workers in a row died before they were ready
_TOGETHER_S = 1.0  # hand finished points on to be kept at least this often. A choice.
LOOK_S = 2.0  # how often a cluster is asked for its size
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "POLARS_MAX_THREADS", "NUMBA_NUM_THREADS"), "1")
"""Environment of a worker: there is one worker per core, and sums come out the same for any number of cores."""
_SIMULATES = frozenset({"plan", "simulate", "capacity", "compare", "fleet", "breakeven", "levers", "stack", "diff",
                        "route"})  # fmt: skip
_SMALL = {"model": "llama-3.1-8b", "gpu": "H100", "rate": "1", "requests": 1, "input": "9", "output": "9"}


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def memory_share(jobs: int) -> int:
    """Return the bytes for each of ``jobs`` workers: the free memory, less what others may need, split among them."""
    return max(_LEAST_BYTES, round(SHARE * available_bytes() / jobs))


def most_workers() -> int:
    """Return one worker for each core, if there is enough memory for each."""
    return max(1, min(cores(), int(SHARE * available_bytes() / _ENOUGH_BYTES)))


class NoWorkers(TokonomicsError):
    """Raised when workers die before they are ready."""


class Crew(Pool):
    """Answer points with a pool of workers."""

    tries = 2  # a point whose workers died this often counts as failed
    lost = 0  # workers that died during a point

    def __init__(self, start: Callable[[], Worker], jobs: int | None) -> None:
        super().__init__(start)
        self._jobs = jobs

    def room(self) -> int:
        """Return how many workers there may be now: the first compiles the code that the others then load."""
        return (self._jobs or 1) if self.is_ready else 1


def local_crew(verb: str, jobs: int, memory_bytes: int, environment: Mapping[str, str]) -> Crew:
    """Return a crew of processes on this machine."""
    own = {**os.environ, **environment}
    return Crew(partial(WorkerProcess, "tokonomics.sweep.crew:begin", [verb], memory_bytes, own), jobs)


def outcomes(
    crew: Crew, points: Sequence[SweepPoint], limit_s: float, on_ready: Callable[[], None] = lambda: None
) -> Iterator[list[tuple[SweepPoint, PointOutcome]]]:
    """Yield the outcomes of the points as they arrive, grouped by the second; call ``on_ready`` at the first worker."""
    news: queue.SimpleQueue[tuple[SweepPoint, Task] | None] = queue.SimpleQueue()
    waiting, asked, deaths, stillborn = deque(points), 0, Counter[str](), 0

    def ready() -> None:
        on_ready()
        news.put(None)  # there may be room for more workers

    def ask(point: SweepPoint) -> None:
        task = Task(dict(point.values), limit_s)
        task.done.add_done_callback(lambda _: news.put((point, task)))
        crew.submit(task)

    crew.on_ready = ready
    while waiting or asked:
        crew.grow(min(crew.room(), len(waiting) + asked))
        while waiting and asked < _AHEAD:
            asked += 1
            ask(waiting.popleft())
        finished = []
        for point, task in _arrived(news):
            asked -= 1
            problem = task.done.exception()
            crew.lost += isinstance(problem, WorkerDied)
            deaths[point.id] += isinstance(problem, WorkerDied)
            stillborn = stillborn + 1 if isinstance(problem, NoWorker) else 0
            if stillborn >= _STILLBORN:
                raise NoWorkers(str(problem))
            if isinstance(problem, NoWorker) or (isinstance(problem, WorkerDied) and deaths[point.id] < crew.tries):
                waiting.appendleft(point)
            else:
                finished.append((point, _outcome(task, deaths[point.id])))
        if finished:
            yield finished


def _arrived(news: "queue.SimpleQueue[tuple[SweepPoint, Task] | None]") -> Iterator[tuple[SweepPoint, Task]]:
    """Wait for the first outcome or a while, then yield all that are there, as long as time allows."""
    with suppress(queue.Empty):
        found, until = news.get(timeout=LOOK_S), time.monotonic() + _TOGETHER_S
        while True:
            if found:
                yield found
            if time.monotonic() > until:
                return
            found = news.get_nowait()


def _outcome(task: Task, deaths: int) -> PointOutcome:
    problem, seconds = task.done.exception(), time.monotonic() - task.began_at
    if problem is None:
        plain = json.loads(task.done.result())
        return PointOutcome(**{**plain, "status": Status(plain["status"])})
    if isinstance(problem, WorkerDied):
        why = f"its worker died {plural(deaths, 'time')}: {problem.why}"
    elif isinstance(problem, TaskTimeout):
        why = f"took longer than {task.limit_s:g} s"
    elif isinstance(problem, TaskRefused | Broken):
        why = str(problem)
    else:
        raise problem
    return PointOutcome(Status.FAILED, why, seconds=seconds)


# --- inside a worker ------------------------------------------------------------------------------------------------


def answered(verb: str, values: Mapping[str, Any]) -> PointOutcome:
    """Answer a point and return its outcome; no exception leaves this function."""
    began, asked, status, error = time.perf_counter(), find_verb(verb), Status.FAILED, None
    figures, text = dict[str, Any](), None
    try:
        found = asked.answer(asked.request.checked(values), SILENT)
        plain = untimed(found.plain())
        text, figures = as_json(plain).decode(), figures_of(verb, plain)
        status = Status.OK if found.is_found else Status.NOTHING
        error = None if found.is_found else "nothing does what was asked"
    except NoRoom as problem:  # unlike other refusals, this may succeed another time
        error = f"{problem.message(flag)}\n--memory gives a worker more."
    except TokonomicsError as problem:
        status, error = Status.REFUSED, problem.message(flag)
    except MemoryError:
        error = OUT_OF_MEMORY
    except Exception as problem:
        at = traceback.extract_tb(problem.__traceback__)[-1]
        error = f"{type(problem).__name__}: {problem} ({Path(at.filename).name}:{at.lineno})"
    return PointOutcome(status, error, figures, text, time.perf_counter() - began)


def warm_up(verb: str) -> None:
    """Do what every first point would wait for: imports, and the simulator's compiled code."""
    gc.set_threshold(100_000, 20, 20)  # imported objects stay
    if verb in _SIMULATES:
        asked = find_verb("simulate")
        with suppress(TokonomicsError):  # a point reports it better
            asked.answer(asked.request.checked(_SMALL), SILENT)


def begin(verb: str) -> Callable[..., dict[str, Any]]:
    """Return the function that answers a point, once all that it needs is imported and compiled."""
    warm_up(verb)
    return partial(answer, verb)


def answer(verb: str, values: dict[str, Any], tell: object = None) -> dict[str, Any]:
    """Return the outcome of a point, ready to send back; a worker whose memory ran out is spent."""
    plain = asdict(answered(verb, values))
    if plain["error"] == OUT_OF_MEMORY:
        raise Spent(plain)
    return plain


_CONNECT_S = 10.0


class ClusterActor:
    """Answer one point at a time on a machine of the cluster, in a process of its own."""

    def __init__(self, verb: str, memory_bytes: int | None) -> None:
        self._verb, self._memory_bytes = verb, memory_bytes

    def ready(self) -> tuple[Ground, str, int]:
        """Warm up, then return the machine's ground, name and process id."""
        self._answer = begin(self._verb)
        if self._memory_bytes is not None:
            limit_memory(self._memory_bytes)
        return ground(), socket.gethostname(), os.getpid()

    def answer(self, values: dict[str, Any]) -> tuple[bytes, bool]:
        """Return the outcome as JSON, and whether it is the last one."""
        try:
            return json.dumps(self._answer(values)).encode(), False
        except Spent as spent:
            return json.dumps(spent.args[0]).encode(), True


class ClusterWorker:
    """Present an actor to the pool as a worker."""

    def __init__(self, ray: Any, here: Ground, verb: str, memory_bytes: int | None) -> None:
        self._ray, self._here = ray, here
        actor = ray.remote(num_cpus=1, max_restarts=0, max_task_retries=0)(ClusterActor)
        self._actor = actor.remote(verb, memory_bytes)
        self._reference = self._actor.ready.remote()
        self.pid: int | None = None

    def alive(self) -> bool:
        return True  # as far as we know; if it is not alive, its point loses a try

    def ask(self, request: dict[str, Any]) -> None:
        self._reference = self._actor.answer.remote(request)

    def hear(self, timeout_s: float | None) -> Replied | None:
        try:
            if not self._ray.wait([self._reference], timeout=timeout_s)[0]:
                return None
            said = self._ray.get(self._reference)
        except self._ray.exceptions.RayError as error:
            why = str(error).strip().splitlines() or ["died"]
            raise WorkerDied(shorten(why[-1], 200)) from None
        if self.pid is not None:
            return Replied(*said)
        there, host, self.pid = said
        if other := differences(self._here, there):
            raise BadInput(
                f"does not stand on the same ground: {'; '.join(other)}",
                where=f"--ray, machine {host}",
                fix="Install the same tokonomics and packages there, and share the price list and the profile.",
            )
        return Replied(b"")

    def kill(self) -> None:
        with contextlib.suppress(self._ray.exceptions.RayError):
            self._ray.kill(self._actor)

    end = kill


class ClusterCrew(Crew):
    """Answer points with actors on the cluster at an address."""

    tries = 4  # more, as a machine that leaves takes its workers' points with it

    def __init__(
        self,
        address: str,
        verb: str,
        here: Ground,
        *,
        jobs: int | None,
        memory_bytes: int | None,
        environment: Mapping[str, str],
    ) -> None:
        self._to_stderr = contextlib.redirect_stdout(sys.stderr)
        self._to_stderr.__enter__()  # keeps messages of Ray's machines out of the answer
        try:
            self._ray = _connected(address, environment)
        except BaseException:
            self._to_stderr.__exit__(None, None, None)
            raise
        super().__init__(lambda: ClusterWorker(self._ray, here, verb, memory_bytes), jobs)
        self._cpus, self._looked, self.nodes = 0, float("-inf"), 0

    def room(self) -> int:
        if time.monotonic() - self._looked >= LOOK_S:
            self._looked = time.monotonic()
            self._cpus = int(self._ray.cluster_resources().get("CPU", 0))
            self.nodes = sum(1 for node in self._ray.nodes() if node["Alive"])
        return self._cpus if self._jobs is None else self._jobs

    def close(self) -> None:
        super().close()
        self._ray.shutdown()
        self._to_stderr.__exit__(None, None, None)


def _connected(address: str, environment: Mapping[str, str]) -> Any:
    """Connect to the cluster and return Ray; try a socket first, as Ray itself tries for minutes."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # send no usage data
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # Ray's future default; otherwise each start warns
    try:
        import ray
    except ImportError:
        raise BadInput("Ray is not installed", where="--ray", fix="In a checkout: pip install '.[ray]'") from None
    try:
        if found := re.fullmatch(r"(?:ray://)?([^:/]+):(\d+)", address):
            socket.create_connection((found[1], int(found[2])), timeout=_CONNECT_S).close()
        own = {"env_vars": dict(environment)}
        ray.init(address=address, runtime_env=own, log_to_driver=False, logging_level="ERROR")
    except (OSError, RuntimeError, ValueError) as error:
        raise BadInput(
            f"cannot be reached: {shorten(str(error).strip(), 300)}",
            where=f"--ray {shorten(address)}",
            fix="`ray start --head` begins a cluster and says its address, such as 10.0.0.1:6379.",
        ) from None
    return ray
