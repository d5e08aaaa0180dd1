"""The work behind the routes: checks inputs, hands them to workers, remembers quick answers, counts what each asks."""

import asyncio
import json
import os
import re
import threading
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

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
from tokonomics.web.catalogue import prices_as_of
from tokonomics.web.jobs import Event, Job, Jobs, TooManyOfYours
from tokonomics.web.uploads import Upload, UploadLimits, Uploads
from tokonomics.web.verbs import PageVerb
from tokonomics.workers import Broken, Cancelled, Task, TaskRefused, as_json

_CORES = os.cpu_count() or 1
OF_A_REPORT = ("result", "sections", "charts")


@dataclass(frozen=True)
class Settings:
    """How the page is served; the defaults are those of ``tokonomics web``."""

    host: str = "127.0.0.1"
    token: str | None = None
    names: tuple[str, ...] = ()  # further names under which the page may be asked for
    ledger: Path | None = None
    quick_workers: int = max(2, min(4, _CORES // 2))
    long_workers: int = LONG_WORKERS
    quick_s: float = 20.0
    long_s: float = LONG_S
    memory_bytes: int | None = None  # of one worker, beyond what its imports take; None: its share of what is free
    waiting: int = WAITING  # requests that wait for a worker, of each kind
    at_once: int = 12  # quick requests of one client
    jobs_at_once: int = 4  # jobs of one client, running or waiting
    uploads: UploadLimits = field(default_factory=UploadLimits)
    warm_up: bool = True
    """Whether idle workers draw a plan and simulate a little, so that the first visitor need not wait."""


class Service:
    """What one running page has: workers, jobs, uploads, remembered answers."""

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
        """What a worker is asked: inputs checked, uploads found."""
        return {
            "work": "answer",
            "verb": verb.name,
            "call": checked_inputs(verb.parameters, given, self.uploads.find),
            "inputs": dict(given),
            "command": verb.command(self._with_names(given)),
            "parts": list(parts),
        }

    def quick_request_of(self, verb: PageVerb, given: Mapping[str, Any], parts: Sequence[str]) -> dict[str, Any]:
        """The same of a closed form, by a key under which a worker keeps what it solved."""
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
        """Those parts of the answer of a closed form, from memory where they were given before."""
        request = self.quick_request_of(verb, given, parts)
        remembered_as = as_json([request["key"], *parts])
        if (known := self._remembered.get(remembered_as)) is not None:
            return known
        made = await self.quickly(request, client, gone)
        self._remembered.put(remembered_as, made)
        return made

    async def report(self, verb: PageVerb, given: Mapping[str, Any], client: str, gone: "Gone") -> bytes:
        """The page of such an answer; the worker that solved it makes it from what it kept."""
        request = self.quick_request_of(verb, given, OF_A_REPORT)
        return await self.quickly(request | {"work": "report"}, client, gone)

    async def quickly(self, request: dict[str, Any], client: str, gone: "Gone") -> bytes:
        """Have a quick worker do something; dropped where the client goes away."""
        if self._asking[client] >= self.settings.at_once:
            raise TooManyOfYours(f"you have {self.settings.at_once} requests waiting", fix="Wait for some of them.")
        self._asking[client] += 1
        # Whom to ask before others: who solved it, then who answered that client the like of it.
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
        """The first rows of a kept file, and its columns."""
        return await self.quickly({"work": "table", "path": str(self.uploads.find(id))}, client, gone)

    def without_paths(self, content: bytes) -> bytes:
        """Leave out where uploads lie: a file is called what its owner calls it."""
        return self._where.sub("", content.decode()).encode()

    def refusal_for(self, problem: BaseException) -> TokonomicsError:
        """Put a problem to people, likewise without paths; a fault of ours goes to the log."""
        if not isinstance(problem, TokonomicsError):
            return ours(str(problem))
        if not isinstance(problem, TaskRefused):
            return problem

        def hidden(text: str) -> str:
            return self._home.sub("~", self._where.sub("", text))

        where, fix = (text and hidden(text) for text in (problem.where, problem.fix))
        return TaskRefused(hidden(problem.what), where=where, fix=fix)

    def _with_names(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Uploads by the names of their files, as the command line would take them."""

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
    """Answers given before, the oldest forgotten first."""

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
