"""Long work: started by one request, watched by another, cancelled by a third.

A job keeps its events in order, so that whoever looks later, or looks again after the line broke, sees all of them.
"""

import asyncio
import secrets
import threading
import time
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import NamedTuple

from tokonomics.workers import Busy, Pool, Task, as_json

KEEP_ALIVE_S = 15.0  # a comment so often: proxies close lines on which nothing comes

ABANDONED_S = 60.0  # what nobody watches or asks after for so long is for nobody


class TooManyOfYours(Busy):
    """One client has as many jobs as it may."""


class Event(NamedTuple):
    """One line of a job's story; the last is an answer, a failure or that it was cancelled."""

    name: str
    data: bytes

    @property
    def is_last(self) -> bool:
        return self.name in ("answer", "failed", "cancelled")


@dataclass
class Job:
    """One piece of long work and all that was heard of it."""

    id: str
    client: str
    task: Task
    events: list[Event] = field(default_factory=list)
    ended: float | None = None
    asked: float = field(default_factory=time.monotonic)  # when somebody last asked how it stands
    _listeners: dict[asyncio.Event, asyncio.AbstractEventLoop] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _later: threading.Timer | None = None  # one at a time, and none of a job that has ended: each is a thread

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
        """Send every event from a place on, then those to come until the last, and a comment now and then."""
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
    """The jobs of now and of a while ago."""

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
