"""Tasks in the order they came, each for the next thread that is free, or for the one that did the like before."""

import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable
from typing import Generic, Protocol, TypeVar


class Waiting(Protocol):
    """Something to do: ``like`` names what it is like, the nearest first."""

    @property
    def like(self) -> tuple[Hashable, ...]: ...


Job = TypeVar("Job", bound=Waiting)
_NAMES = 256
"""So many names are remembered, with who did something of that name last."""


class Full(Exception):
    """As much waits as may."""


class WaitingLine(Generic[Job]):
    """What waits for threads. Whoever did something of the same name takes it if it is idle: it may have kept a part.

    Where that one is busy, anybody takes it.
    """

    def __init__(self, most: int = 0) -> None:
        """``most`` wait; 0: any number."""
        self._most, self._closed = most, False
        self._jobs: deque[Job] = deque()
        self._idle: set[threading.Thread] = set()
        self._did: OrderedDict[Hashable, threading.Thread] = OrderedDict()
        self._changed = threading.Condition()

    def put(self, job: Job) -> None:
        """Let it wait; raises Full."""
        with self._changed:
            if self._closed or (self._most and len(self._jobs) >= self._most):
                raise Full
            self._jobs.append(job)
            self._changed.notify_all()

    def clear(self, is_over: Callable[[Job], bool]) -> None:
        """Where as much waits as may, let that go which nobody waits for any more."""
        with self._changed:
            if self._most and len(self._jobs) >= self._most:
                self._jobs = deque(job for job in self._jobs if not is_over(job))

    def take(self, timeout_s: float | None = None) -> Job | None:
        """The first that is for this thread; None after that time, and for good once it is closed."""
        me = threading.current_thread()
        with self._changed:
            self._idle.add(me)
            try:
                self._changed.wait_for(lambda: self._closed or self._place_for(me) is not None, timeout_s)
                place = None if self._closed else self._place_for(me)  # while it still counts as idle
            finally:
                self._idle.discard(me)
            if place is None:
                return None
            job = self._jobs[place]
            del self._jobs[place]
            if self._jobs:
                self._changed.notify_all()  # what waited for this thread is anybody's now
            for name in job.like:
                self._did[name] = me
                self._did.move_to_end(name)
            while len(self._did) > _NAMES:
                self._did.popitem(last=False)
            return job

    def close(self) -> list[Job]:
        """Let nobody wait any more; what waited."""
        with self._changed:
            self._closed = True
            left = list(self._jobs)
            self._jobs.clear()
            self._changed.notify_all()
            return left

    @property
    def is_closed(self) -> bool:
        return self._closed

    def _place_for(self, thread: threading.Thread) -> int | None:
        for place, job in enumerate(self._jobs):
            wanted = next((self._did[name] for name in job.like if self._did.get(name) in self._idle), thread)
            if wanted is thread:
                return place
        return None
