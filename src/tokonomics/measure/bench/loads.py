"""Two ways to load a server, and what is kept of them.

**Closed loop**: so many users, each sending the next request when the last is answered. The window that is measured
opens when every user has had an answer and closes when every user has had another since there was enough; what ends
before or after is counted apart, so that neither start nor end dilutes the rates, also where all users wait for each
other and answers come in rounds. A limit on requests or dollars closes it at once. **Open loop**: requests are due at
given times whether or not the server keeps up, and latencies count from then: a server that stalls cannot slow down
its own measurement (coordinated omission). The window runs from the first due time to the last answer.
"""

import asyncio
from array import array
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from time import perf_counter

import numpy as np

from tokonomics.errors import BadInput, option
from tokonomics.measure.bench.client import Client, Reply
from tokonomics.measure.bench.stopping import Stopping
from tokonomics.measure.benchmark_run import LoadPoint, Outside, RequestRecord, latencies, point_from_records, tpot

HOPELESS = 20
"""Failures without one answer after which a load is given up."""
_AFTER_FAILURE_S = 0.05
"""A user whose request failed at once waits this long: a broken server is not to be hammered."""
_LATE_S = 0.010

Ask = Callable[[], bytes]
Spent = Callable[[], float]
"""Dollars since the test began."""


@dataclass
class LoadWindow:
    """What one load gave, while it runs and after."""

    started_s: float
    phase: str = "warm-up"
    opened_s: float | None = None
    closed_s: float | None = None
    stopped: str | None = None
    replies: list[Reply] = field(default_factory=list)
    outside: list[Reply] = field(default_factory=list)
    answered: int = 0
    """In and outside of the window."""
    unanswered: int = 0
    tokens: int = 0
    """Prompts and answers of the window so far."""
    output_tokens: int = 0

    def keep(self, reply: Reply, *, inside: bool) -> None:
        """Counts a request that ended; gives up on a server that never answered one."""
        (self.replies if inside else self.outside).append(reply)
        if reply.error is None:
            self.answered += 1
            if inside:
                self.tokens += reply.input_tokens + reply.output_tokens
                self.output_tokens += reply.output_tokens
            return
        self.unanswered += 1
        if not self.answered and self.unanswered >= HOPELESS:
            raise BadInput(
                f"the server failed {HOPELESS} requests and answered none: {reply.error}",
                fix=f"See the server's log; a smaller {option('concurrency')} or {option('rate')} may be all it takes.",
            )


async def closed_loop(
    client: Client, users: int, ask: Ask, stopping: Stopping, spent: Spent, window: LoadWindow
) -> None:
    """Fills the window; returns when every request that was sent has ended."""
    warm: set[int] = set()
    owed: set[int] = set()
    closing = False

    async def user(number: int) -> None:
        nonlocal closing
        while window.phase != "draining":
            reply = await client.ask(ask(), perf_counter())
            if window.phase == "warm-up":
                window.keep(reply, inside=False)
                warm.add(number)
                if len(warm) == users:
                    window.phase, window.opened_s = "measuring", reply.end_s
            elif window.phase == "measuring":
                _measured(window, reply, stopping)
                elapsed_s = reply.end_s - (window.opened_s or 0.0)
                if not closing and (reason := stopping.reason(elapsed_s, spent())) is not None:
                    window.stopped, closing = reason, True
                    owed.update(range(users))
                owed.discard(number)
                if closing and (not owed or stopping.is_spent(spent())):
                    window.phase, window.closed_s = "draining", reply.end_s
            else:
                window.keep(reply, inside=False)
            if reply.error is not None:
                await asyncio.sleep(_AFTER_FAILURE_S)

    async with asyncio.TaskGroup() as group:
        for number in range(users):
            group.create_task(user(number))


async def open_loop(
    client: Client, due: Iterable[tuple[float, bytes]], stopping: Stopping, spent: Spent, window: LoadWindow
) -> None:
    """Sends each request when it is due, until there is no more or the measurement has what it needs."""

    async def one(due_s: float, body: bytes) -> None:
        reply = await client.ask(body, due_s)
        _measured(window, reply, stopping)
        window.closed_s = reply.end_s

    window.phase = "measuring"
    opened_s: float | None = None
    async with asyncio.TaskGroup() as group:
        for at_s, body in due:
            now = perf_counter()
            if opened_s is None:
                window.opened_s = opened_s = now
            else:
                # One that is due after the end is not waited for.
                window.stopped = stopping.reason(max(now - opened_s, at_s), spent())
                if window.stopped:
                    break
            wait_s = opened_s + at_s - now
            if wait_s > 0:
                await asyncio.sleep(wait_s)
            group.create_task(one(opened_s + at_s, body))
        else:
            window.stopped = "every request was sent"
        window.phase = "draining"


def _measured(window: LoadWindow, reply: Reply, stopping: Stopping) -> None:
    window.keep(reply, inside=True)
    first_s = reply.first_s if reply.error is None else None
    stopping.add(
        None if first_s is None else first_s - reply.due_s, None if first_s is None else reply.end_s - reply.due_s
    )


def outside_of(replies: Iterable[Reply]) -> Outside:
    """The sum of what is not in the figures."""
    kept = list(replies)
    good = [each for each in kept if each.error is None]
    return Outside(
        requests=len(kept),
        failed=len(kept) - len(good),
        input_tokens=sum(each.input_tokens for each in good),
        output_tokens=sum(each.output_tokens for each in good),
    )


def point_of(
    window: LoadWindow, extra: Iterable[Reply] = (), *, concurrency: int | None = None, rate: float | None = None
) -> LoadPoint | None:
    """The figures of a load; None where nothing was answered. ``extra`` was sent to prepare it."""
    opened_s, closed_s = window.opened_s, window.closed_s
    if opened_s is None or closed_s is None or closed_s <= opened_s:
        return None
    good = [each for each in window.replies if each.error is None]
    gaps, pieces = array("d"), array("l")
    for reply in good:
        gaps.extend(reply.gaps_s)
        pieces.extend(reply.pieces)
    known = any(each.cached_tokens is not None for each in good)
    return point_from_records(
        (_record(each, opened_s) for each in window.replies),
        closed_s - opened_s,
        concurrency=concurrency,
        rate=rate,
        itl_s=latencies(np.frombuffer(gaps), np.frombuffer(pieces, dtype=pieces.typecode)) if len(gaps) else None,
        cached_known=known,
        outside=outside_of([*extra, *window.outside]),
        notes=_notes(good),
    )


def _record(reply: Reply, opened_s: float) -> RequestRecord:
    good = reply.error is None
    first_s, last_s = (reply.first_s, reply.last_s) if good else (None, None)
    # An answer ends with its last text; without any (an empty answer) with the end of the stream.
    ended_s = last_s if last_s is not None else reply.end_s
    return RequestRecord(
        sent_s=reply.due_s - opened_s,
        ttft_s=None if first_s is None else max(0.0, first_s - reply.due_s),
        tpot_s=tpot(first_s, last_s, reply.output_tokens),
        e2e_s=max(0.0, ended_s - reply.due_s) if good else None,
        input_tokens=reply.input_tokens,
        cached_tokens=reply.cached_tokens or 0,
        output_tokens=reply.output_tokens,
        retries=reply.retries,
        error=reply.error,
    )


def _notes(good: list[Reply]) -> list[str]:
    """Where the client, or what lies between it and the server, was in the way."""
    notes = []
    late = sorted(each.sent_s - each.due_s for each in good if not each.retries)
    if late and (p99 := late[int(0.99 * (len(late) - 1))]) > _LATE_S:
        notes.append(
            f"the client sent requests up to {p99 * 1e3:.0f} ms late (p99); latencies count from when they were due"
        )
    slow = [each for each in good if each.output_tokens > 1 and each.end_s - each.sent_s > _LATE_S]
    whole = [each for each in slow if not each.gaps_s]
    if len(whole) > len(slow) / 2:
        notes.append(
            f"{len(whole) / len(slow):.0%} of the answers came in one piece, so that their time per token counts as 0: "
            "does a proxy hold the stream back?"
        )
    return notes
