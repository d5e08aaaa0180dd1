"""Do the work behind the routes: check inputs, hand them to workers, remember quick answers, limit each client.

Long work is a job: one request starts it, another watches it, a third cancels it. A job keeps its events in order, so
that a client that looks later, or reconnects, sees all of them.
"""

import asyncio
import json
import os
import re
import secrets
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Hashable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from tokonomics.errors import BadInput, TokonomicsError
from tokonomics.guarded.inputs import UPLOAD, checked_inputs
from tokonomics.guarded.worker import (
    LONG_S,
    LONG_WORKERS,
    WAITING,
    error_of,
    guarded_pool,
    home_in_texts,
    memory_of_worker,
    ours,
)
from tokonomics.memory_budget import available_bytes
from tokonomics.web.uploads import Upload, UploadLimits, Uploads
from tokonomics.web.verbs import PageVerb, prices_as_of
from tokonomics.workers import Broken, Busy, Cancelled, Pool, Task, TaskRefused, as_json

KEEP_ALIVE_S = 15.0  # send a comment this often, as proxies close silent connections

ABANDONED_S = 60.0  # cancel a job that nobody watched or asked about for this long


class TooManyOfYours(Busy):
    """Raised when one client has as many jobs as allowed."""


class Event(NamedTuple):
    """One event of a job; the last is an answer, a failure or a cancellation."""

    name: str
    data: bytes

    @property
    def is_last(self) -> bool:
        return self.name in ("answer", "failed", "cancelled")


@dataclass
class Job:
    """One piece of long work and all its events."""

    id: str
    client: str
    task: Task
    events: list[Event] = field(default_factory=list)
    ended: float | None = None
    asked: float = field(default_factory=time.monotonic)  # when somebody last asked about it
    _listeners: dict[asyncio.Event, asyncio.AbstractEventLoop] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _later: threading.Timer | None = None  # at most one, and none after the job has ended: each is a thread

    @property
    def size_bytes(self) -> int:
        return sum(len(event.data) for event in list(self.events))

    def tell(self, event: Event) -> None:
        with self._lock:
            self.events.append(event)
            if event.is_last:
                self.ended = time.monotonic()
                if self._later is not None:
                    self._later.cancel()
            listeners = list(self._listeners.items())
        for heard, loop in listeners:
            try:
                loop.call_soon_threadsafe(heard.set)
            except RuntimeError:  # the listener's loop has ended
                continue

    async def stream(self, first: int = 0) -> AsyncGenerator[bytes, None]:
        """Send all events from ``first`` on, then those to come until the last, and a comment now and then."""
        heard = asyncio.Event()
        with self._lock:
            self._listeners[heard] = asyncio.get_running_loop()
        try:
            place = min(first, len(self.events))  # a client may claim to have seen more than there is
            while True:
                heard.clear()
                while place < len(self.events):
                    event = self.events[place]
                    yield f"id: {place}\nevent: {event.name}\ndata: ".encode() + event.data + b"\n\n"
                    place += 1
                if self.ended is not None and place >= len(self.events):
                    return
                try:
                    await asyncio.wait_for(heard.wait(), KEEP_ALIVE_S)
                except TimeoutError:
                    yield b": still here\n\n"
        finally:
            with self._lock:
                self._listeners.pop(heard, None)
                alone = not self._listeners and self.ended is None
            if alone:
                self.stop_unless_watched()

    def stop_unless_watched(self) -> None:
        """Cancel it after a while, if nobody watches then."""
        with self._lock:
            if self._later is not None:
                self._later.cancel()
            if self.ended is not None:
                return
            self._later = threading.Timer(ABANDONED_S, self._stop_if_unwatched)
            self._later.daemon = True
            self._later.start()

    def _stop_if_unwatched(self) -> None:
        with self._lock:
            alone = not self._listeners and self.ended is None
            asked_after = time.monotonic() - self.asked < ABANDONED_S
        if alone and asked_after:
            self.stop_unless_watched()
        elif alone:
            self.task.cancel()


class Jobs:
    """Keep the current jobs and the recent ones."""

    def __init__(
        self, pool: Pool, per_client: int, kept: int = 40, kept_s: float = 1800.0, kept_bytes: int = 128_000_000
    ) -> None:
        self._pool, self._per_client = pool, per_client
        self._kept, self._kept_s, self._kept_bytes = kept, kept_s, kept_bytes
        self._jobs: dict[str, Job] = {}
        self._lock = threading.Lock()

    def start(
        self, client: str, request: dict[str, object], limit_s: float, last_event: "Callable[[Future[bytes]], Event]"
    ) -> Job:
        """Queue a job; refuse a client that has too many."""
        began = time.monotonic()
        task = Task(request, limit_s)
        job = Job(secrets.token_urlsafe(12), client, task)
        task.say = lambda what: job.tell(
            Event("progress", as_json({"what": what, "seconds": time.monotonic() - began}))
        )
        with self._lock:
            self._forget_old()
            if sum(other.client == client and other.ended is None for other in self._jobs.values()) >= self._per_client:
                raise TooManyOfYours(
                    f"you have {self._per_client} jobs running or waiting", fix="Cancel one, or wait for it."
                )
            job.tell(Event("progress", as_json({"what": "waiting for a worker", "seconds": 0.0})))
            self._pool.submit(task)
            self._jobs[job.id] = job
        task.done.add_done_callback(lambda done: job.tell(last_event(done)))
        job.stop_unless_watched()
        return job

    def find(self, id: str) -> Job | None:
        with self._lock:
            job = self._jobs.get(id)
        if job:
            job.asked = time.monotonic()
        return job

    def _forget_old(self) -> None:
        ended = sorted((job for job in self._jobs.values() if job.ended is not None), key=lambda job: job.ended or 0)
        too_many = len(self._jobs) - self._kept
        too_large = sum(job.size_bytes for job in ended) - self._kept_bytes
        for place, job in enumerate(ended):
            if place < too_many or too_large > 0 or (job.ended or 0) < time.monotonic() - self._kept_s:
                too_large -= job.size_bytes
                del self._jobs[job.id]


_CORES = os.cpu_count() or 1
OF_A_REPORT = ("result", "sections", "charts")


@dataclass(frozen=True)
class Settings:
    """How the page is served; the defaults are those of ``tokonomics web``."""

    host: str = "127.0.0.1"
    token: str | None = None
    names: tuple[str, ...] = ()  # further host names of the page
    ledger: Path | None = None
    quick_workers: int = max(2, min(4, _CORES // 2))
    long_workers: int = LONG_WORKERS
    quick_s: float = 20.0
    long_s: float = LONG_S
    memory_bytes: int | None = None  # of one worker, beyond its imports; None: its share of what is free
    waiting: int = WAITING  # requests of each kind that may wait for a worker
    at_once: int = 12  # quick requests of one client at a time
    jobs_at_once: int = 4  # jobs of one client, running or waiting
    uploads: UploadLimits = field(default_factory=UploadLimits)
    warm_up: bool = True
    """Whether idle workers make a plan and a short simulation, so that the first visitor need not wait."""


class Service:
    """Hold the state of a running page: workers, jobs, uploads, remembered answers."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.uploads = Uploads(settings.uploads)
        warm_ups = ("plan", "simulate") if settings.warm_up else ()
        workers = settings.quick_workers + settings.long_workers
        memory = settings.memory_bytes or memory_of_worker(workers, available_bytes())
        common, turn = (settings.waiting, self.uploads.empty, memory), threading.Lock()
        self.quick = guarded_pool(settings.quick_workers, *common, warm_ups=warm_ups[:1], turn=turn)
        self.long = guarded_pool(settings.long_workers, *common, niceness=5, warm_ups=warm_ups, turn=turn)
        self.jobs = Jobs(self.long, settings.jobs_at_once)
        self._asking: Counter[str] = Counter()
        self._remembered = Remembered()
        self._home = home_in_texts()
        self._where = re.compile(re.escape(str(self.uploads.root)) + r"/[\w-]+/", re.ASCII)

    def close(self) -> None:
        """Kill the workers and remove what was uploaded."""
        self.quick.close()
        self.long.close()
        self.uploads.close()

    def request_of(self, verb: PageVerb, given: Mapping[str, Any], parts: Sequence[str]) -> dict[str, Any]:
        """Return the work for a worker, with inputs checked and uploads found."""
        return {
            "work": "answer",
            "verb": verb.name,
            "call": checked_inputs(verb.parameters, given, self.uploads.find),
            "inputs": dict(given),
            "command": verb.command(self._with_names(given)),
            "parts": list(parts),
        }

    def quick_request_of(self, verb: PageVerb, given: Mapping[str, Any], parts: Sequence[str]) -> dict[str, Any]:
        """Return the work for a closed form, with the key under which a worker keeps its solution."""
        request = self.request_of(verb, given, parts)
        if not verb.is_quick(given):
            raise BadInput(
                "this takes long: start a job", where=verb.name, fix="POST /api/v1/jobs, or ask for its quick form."
            )
        day, *stamps = prices_as_of()
        of_an_answer = {name: value for name, value in request.items() if name != "parts"}
        return request | {"key": as_json([day.isoformat(), *stamps, of_an_answer]).decode()}

    async def answer(
        self, verb: PageVerb, given: Mapping[str, Any], parts: Sequence[str], client: str, gone: "Gone"
    ) -> bytes:
        """Return these parts of a closed form's answer, from memory if they were given before."""
        request = self.quick_request_of(verb, given, parts)
        remembered_as = as_json([request["key"], *parts])
        if (known := self._remembered.get(remembered_as)) is not None:
            return known
        made = await self.quickly(request, client, gone)
        self._remembered.put(remembered_as, made)
        return made

    async def report(self, verb: PageVerb, given: Mapping[str, Any], client: str, gone: "Gone") -> bytes:
        """Return the one-file page of such an answer, made by the worker that solved it."""
        request = self.quick_request_of(verb, given, OF_A_REPORT)
        return await self.quickly(request | {"work": "report"}, client, gone)

    async def quickly(self, request: dict[str, Any], client: str, gone: "Gone") -> bytes:
        """Have a quick worker do something; drop it if the client goes away."""
        if self._asking[client] >= self.settings.at_once:
            raise TooManyOfYours(f"you have {self.settings.at_once} requests waiting", fix="Wait for some of them.")
        self._asking[client] += 1
        # Prefer the worker that solved it, then one that answered a similar request of this client.
        likes: tuple[Hashable, ...] = (request["key"], (client, request["verb"])) if "key" in request else ()
        task = Task(request, self.settings.quick_s, like=likes)
        try:
            self.quick.submit(task)
            return self.without_paths(await _unless_gone(task, gone))
        except (TokonomicsError, Broken) as problem:
            raise self.refusal_for(problem) from None
        finally:
            self._asking[client] -= 1
            if not self._asking[client]:
                del self._asking[client]

    def start(self, verb: PageVerb, given: Mapping[str, Any], parts: Sequence[str], client: str) -> Job:
        request = self.request_of(verb, given, parts)
        return self.jobs.start(client, request, self.settings.long_s, self._last_event)

    def _last_event(self, done: "Future[bytes]") -> Event:
        problem = done.exception()
        if problem is None:
            return Event("answer", self.without_paths(done.result()))
        if isinstance(problem, Cancelled):
            return Event("cancelled", b"{}")
        return Event("failed", as_json({"error": error_of(self.refusal_for(problem))}))

    async def look(self, upload: Upload, client: str, gone: "Gone") -> dict[str, Any]:
        try:
            seen = await self.quickly({"work": "look", "path": str(upload.path)}, client, gone)
        except TokonomicsError:
            self.uploads.drop(upload.id)
            raise
        found: dict[str, Any] = json.loads(seen)
        if found["kind"] == "config":
            self.uploads.call(upload.id, found["model"])
        return {"id": upload.id, "name": upload.name, "bytes": upload.bytes, **found}

    async def table(self, id: str, client: str, gone: "Gone") -> bytes:
        """Return the first rows of a kept file, and its columns."""
        return await self.quickly({"work": "table", "path": str(self.uploads.find(id))}, client, gone)

    def without_paths(self, content: bytes) -> bytes:
        """Replace the paths of uploads by the names that their owners gave them."""
        return self._where.sub("", content.decode()).encode()

    def refusal_for(self, problem: BaseException) -> TokonomicsError:
        """Turn a problem into a message for people, also without paths; a bug of ours goes to the log."""
        if not isinstance(problem, TokonomicsError):
            return ours(str(problem))
        if not isinstance(problem, TaskRefused):
            return problem

        def hidden(text: str) -> str:
            return self._home.sub("~", self._where.sub("", text))

        where, fix = (text and hidden(text) for text in (problem.where, problem.fix))
        return TaskRefused(hidden(problem.what), where=where, fix=fix)

    def _with_names(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Replace uploads by the names of their files, as the command line would take them."""

        def named(value: Any) -> Any:
            if isinstance(value, list):
                return [named(part) for part in value]
            if not isinstance(value, str) or UPLOAD not in value:
                return value
            before, _, id = value.rpartition(UPLOAD)
            return before + self.uploads.find(id).name

        return {name: named(value) for name, value in given.items()}


Gone = Callable[[], Awaitable[object]]  # returns when the client has gone away


async def _unless_gone(task: Task, gone: Gone) -> bytes:
    done = asyncio.wrap_future(task.done)
    left = asyncio.ensure_future(gone())
    either: list[asyncio.Future[Any]] = [done, left]
    try:
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not done.done():
            task.drop()
        return await done
    finally:
        left.cancel()
        with suppress(asyncio.CancelledError):
            await left


class Remembered:
    """Keep recent answers; the oldest is forgotten first."""

    def __init__(self, most: int = 200, most_bytes: int = 64_000_000) -> None:
        self._most, self._most_bytes = most, most_bytes
        self._answers: OrderedDict[bytes, bytes] = OrderedDict()
        self._bytes = 0

    def get(self, key: bytes) -> bytes | None:
        if key in self._answers:
            self._answers.move_to_end(key)
        return self._answers.get(key)

    def put(self, key: bytes, answer: bytes) -> None:
        self._bytes += len(answer) - len(self._answers.pop(key, b""))
        self._answers[key] = answer
        while len(self._answers) > self._most or self._bytes > self._most_bytes:
            _, forgotten = self._answers.popitem(last=False)
            self._bytes -= len(forgotten)
