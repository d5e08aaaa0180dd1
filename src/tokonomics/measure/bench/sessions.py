"""Sessions against a real server: a turn is sent when the answer before it has come and its pause is over.

The prompt of a turn is the conversation so far, with the server's own answers in it, and new words until it is as long
as asked for, by the server's own count: what its cache finds is what it would find in use. A turn that is shorter than
what was said before begins anew. Branches are sent together; the turn after them continues the first and is told the
answers of the others. A job whose turn fails ends there.

With users, each runs one job after the other; with times, jobs start when they are due, whatever became of others.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle
from time import perf_counter

from tokonomics.measure.bench.client import Client, Reply
from tokonomics.measure.bench.loads import (
    AFTER_FAILURE_S,
    ClosedWindow,
    LoadWindow,
    Spent,
    Stopping,
    measured,
    until_ended,
)  # fmt: skip
from tokonomics.measure.bench.prompts import BenchPrompts, Message
from tokonomics.traffic.trace import Trace

Heard = Callable[[Reply], None]


@dataclass(frozen=True)
class Turn:
    """One request of a job: how long it should be, and whose answers of the same job it waits for."""

    input_tokens: int
    output_tokens: int
    waits_for: tuple[int, ...]
    pause_s: float
    number: int  # of the turn, from 1


@dataclass(frozen=True)
class SessionJob:
    """The turns of one session, in order, and when it starts."""

    start_s: float
    turns: tuple[Turn, ...]


@dataclass(frozen=True)
class _Said:
    """A turn that was answered: the conversation up to and with its answer."""

    messages: tuple[Message, ...]
    reply: Reply

    @property
    def tokens(self) -> int:
        return self.reply.input_tokens + self.reply.output_tokens


def jobs_of(trace: Trace) -> list[SessionJob]:
    """The sessions of a trace, by when they start."""
    turns = trace.turns
    assert turns is not None
    depth = turns.depth.tolist()
    members: dict[int, list[int]] = {}
    for request, session in enumerate(turns.session.tolist()):
        members.setdefault(session, []).append(request)
    jobs = []
    for requests in members.values():
        place = {request: index for index, request in enumerate(requests)}
        listed = [
            Turn(
                input_tokens=int(trace.input_tokens[request]),
                output_tokens=max(1, int(trace.output_tokens[request])),
                waits_for=tuple(
                    place[int(one)] for one in turns.waits_for[turns.starts[request] : turns.starts[request + 1]]
                ),
                pause_s=float(turns.pause_s[request]),
                number=depth[request],
            )
            for request in requests
        ]
        jobs.append(SessionJob(float(trace.arrival_s[requests[0]]), tuple(listed)))
    return sorted(jobs, key=lambda job: job.start_s)


class SessionRunner:
    """Runs jobs, each reply handed on as it comes, until it is told to end."""

    def __init__(self, client: Client, prompts: BenchPrompts, window: LoadWindow, head_tokens: int) -> None:
        self.client, self._prompts, self._window = client, prompts, window
        self._head = prompts.head(head_tokens)
        self._head_tokens = head_tokens
        self._jobs = 0
        self.ended = asyncio.Event()
        self.took_s: list[float] = []
        """Of the jobs whose last answer came within the window: from when the first request was due."""

    async def run(self, job: SessionJob, heard: Heard, due_s: float) -> bool:
        """All turns of a job; those after a failed one, or after the end of the load, are not sent, and it is False."""
        number, self._jobs = self._jobs, self._jobs + 1
        tasks: list[asyncio.Task[_Said | None]] = []
        async with asyncio.TaskGroup() as group:
            for turn in job.turns:
                before = [tasks[place] for place in turn.waits_for]
                tasks.append(group.create_task(self._turn(turn, before, heard, number, due_s)))
        said = [one for task in tasks if (one := task.result()) is not None]
        if len(said) < len(tasks):
            return False
        ends = max(one.reply.end_s for one in said)
        if ends <= (self._window.closed_s or ends):
            self.took_s.append(ends - due_s)
        return True

    async def _turn(
        self, turn: Turn, before: "Sequence[asyncio.Task[_Said | None]]", heard: Heard, job: int, due_s: float
    ) -> _Said | None:
        said = [one for one in await asyncio.gather(*before) if one is not None]
        if len(said) < len(before):
            return None
        if said:
            due_s = max(one.reply.end_s for one in said) + turn.pause_s
        if not await self.until(due_s):
            return None
        messages = self._messages(turn, said)
        reply = await self.client.ask(self._prompts.of_messages(messages, turn.output_tokens), due_s, keep_text=True)
        reply.job, reply.turn = job, turn.number
        heard(reply)
        if reply.error is not None:
            return None
        return _Said((*messages, Message("assistant", reply.text)), reply)

    async def until(self, due_s: float) -> bool:
        """Wait; False where the load ends before."""
        while not self.ended.is_set():
            wait_s = due_s - perf_counter()
            if wait_s <= 0:
                return True
            try:
                await asyncio.wait_for(self.ended.wait(), wait_s)
            except TimeoutError:
                continue
        return False

    def _messages(self, turn: Turn, said: list[_Said]) -> tuple[Message, ...]:
        """The conversation so far and what is new."""
        first = max(said, key=lambda one: one.tokens, default=None)
        if first is None or first.tokens >= turn.input_tokens:
            own = max(1, turn.input_tokens - self._head_tokens)
            return (*self._head, self._prompts.message(own, fresh=True))
        others = [one for one in said if one is not first]
        told = " ".join(one.reply.text for one in others)
        left = turn.input_tokens - first.tokens - sum(one.reply.output_tokens for one in others)
        return (*first.messages, self._prompts.message(max(1, left), told=told))


async def users_in_sessions(
    runner: SessionRunner, users: int, jobs: Iterable[SessionJob], stopping: Stopping, spent: Spent, window: LoadWindow
) -> None:
    """So many users, each of whom runs one job after the other."""
    closing = ClosedWindow(users, stopping, spent, window, at_once=True)
    following: Iterator[SessionJob] = cycle(jobs)

    async def user(number: int) -> None:
        def heard(reply: Reply) -> None:
            closing.heard(number, reply)
            if window.phase == "draining":
                runner.ended.set()

        while not runner.ended.is_set():
            if not await runner.run(next(following), heard, perf_counter()):
                await asyncio.sleep(AFTER_FAILURE_S)

    def is_over(now_s: float) -> bool:
        if closing.is_over(now_s):  # also where everybody pauses
            runner.ended.set()
        return runner.ended.is_set()

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(user(number)) for number in range(users)]
        await until_ended(runner.client, tasks, stopping, window, is_over)


async def sessions_when_due(
    runner: SessionRunner, jobs: Sequence[SessionJob], stopping: Stopping, spent: Spent, window: LoadWindow
) -> None:
    """Jobs start at their times, until there is no more or the measurement has what it needs."""

    def heard(reply: Reply) -> None:
        measured(window, reply, stopping)
        window.closed_s = reply.end_s
        if (reason := stopping.reason(reply.end_s - opened_s, spent())) is not None and window.stopped is None:
            window.stopped = reason
            runner.ended.set()

    def is_over(now_s: float) -> bool:
        if window.stopped is None and (reason := stopping.reason(now_s - opened_s, spent())) is not None:
            window.stopped = reason
            runner.ended.set()
        return runner.ended.is_set()

    window.phase = "measuring"
    window.opened_s = opened_s = perf_counter()
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(runner.run(job, heard, opened_s + job.start_s)) for job in jobs]
        await until_ended(runner.client, tasks, stopping, window, is_over)
    window.stopped = window.stopped or "every request was sent"
    window.phase = "draining"
