"""Load a server in two ways, decide when each has measured enough, and keep the results.

**Closed loop**: a number of users, each of whom sends the next request after the last answer. The measured window opens
when every user has had an answer, and closes when there is enough and every user has had one more; what ends before or
after is counted separately. So neither start nor end dilutes the rates, even if users wait for each other and answers
come in rounds. A limit on requests or dollars closes it at once. **Open loop**: requests are due at given times whether
or not the server keeps up, and latencies count from then: a server that stalls cannot slow down its own measurement
(coordinated omission). Rates are over the time in which requests were due: a server that keeps up answers as many a
second as are due, and what is missing before its first answer comes after the last request. One that does not keep up
answers each request later than the one before: if the end of an answer moves by s seconds for each second of its due
time, and s is above 1 by more than chance, the rate is that of the due requests divided by s. A load that is shorter
than its answers is measured to the last of them.

No wait is endless: a request that is silent for longer than the load was to take, and for twice the longest answer so
far, is given up and counts as failed.

There is enough when the mean is known closely, by batch means (Law, Simulation Modeling and Analysis, chapter 9):
requests in the order they ended, in ten batches of at least one round of all users each, so that requests that wait for
each other are in one batch; Student's 95 % interval over the ten means, relative to their mean, of TTFT and of the
whole answer, whichever is wider.
"""

import asyncio
from array import array
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np

from tokonomics.errors import BadInput, option
from tokonomics.measure.bench.client import Asked, Client, Reply, own_delay
from tokonomics.measure.benchmark_run import LoadPoint, Outside, RequestRecord, latencies, point_from_records, tpot
from tokonomics.types import Noun
from tokonomics.units import SECONDS_PER_HOUR, TOKENS_PER_MTOK

HOPELESS = 20  # a load is given up after this many failures without an answer
BATCHES = 10
_STUDENT = 2.262  # 97.5 % of Student's distribution with nine degrees of freedom
_NORMAL = 1.96  # 97.5 % of the normal distribution
_LEAST_IN_BATCH = 3
AFTER_FAILURE_S = 0.05  # pause of a user whose request failed at once, to spare a broken server
_LATE_S = 0.010
_LOOKED_EVERY_S = 0.5
_DRAWN_EVERY_S = 0.25

Spent = Callable[[], float]  # dollars since the test began
Heard = Callable[[Reply], None]
Work = Callable[[Heard], Coroutine[Any, Any, bool]]  # what a user does next, a request or a job; False: it failed


@dataclass(frozen=True)
class Budget:
    """What one load may take; the first limit that is reached ends it."""

    precision: float = 0.05
    requests: int = 100_000
    seconds: float = 60.0
    usd: float | None = None  # for the whole test


def half_width(values: "array[float]") -> float | None:
    """Return half of the 95 % interval of the mean, relative to it; None while there are too few values."""
    size = len(values) // BATCHES
    if size < 1:
        return None
    # Leave out the first values, which are closest to the warm-up.
    batches = np.frombuffer(values, dtype=np.float64)[len(values) - size * BATCHES :].reshape(BATCHES, size)
    means = batches.mean(axis=1)
    mean = float(means.mean())
    return _STUDENT * float(means.std(ddof=1)) / BATCHES**0.5 / mean if mean > 0 else None


class Stopping:
    def __init__(self, budget: Budget, users: int) -> None:
        self._budget = budget
        self._least = BATCHES * max(users, _LEAST_IN_BATCH)
        self._next = self._least
        self._ttft, self._e2e = array("d"), array("d")
        self.precision: float | None = None
        self.seen = 0

    def add(self, ttft_s: float | None, e2e_s: float | None) -> None:
        """Add a request that ended; without times if it failed."""
        self.seen += 1
        if ttft_s is not None and e2e_s is not None:
            self._ttft.append(ttft_s)
            self._e2e.append(e2e_s)

    def patience_s(self, longest_s: float) -> float:
        """Return how long the load waits for a silent user."""
        return max(self._budget.seconds, 2 * longest_s)

    def is_spent(self, spent_usd: float) -> bool:
        """Decide whether a limit is reached that no further request may exceed."""
        budget = self._budget
        return self.seen >= budget.requests or (budget.usd is not None and spent_usd >= budget.usd)

    def reason(self, elapsed_s: float, spent_usd: float) -> str | None:
        """Return why to stop now; None to go on."""
        budget = self._budget
        if len(self._e2e) >= self._next:
            widths = (half_width(self._ttft[:]), half_width(self._e2e[:]))
            self.precision = max((width for width in widths if width is not None), default=None)
            self._next = len(self._e2e) + max(1, self._least // 4)
            if self.precision is not None and self.precision <= budget.precision:
                return f"interval within {budget.precision:.0%}"
        if self.seen >= budget.requests:
            return f"{budget.requests:,} requests"
        if elapsed_s >= budget.seconds:
            return f"{budget.seconds:g} s"
        if budget.usd is not None and spent_usd >= budget.usd:
            return f"${budget.usd:g} spent"
        return None


@dataclass
class LoadWindow:
    """The results of one load, while it runs and after."""

    started_s: float
    phase: str = "warm-up"
    opened_s: float | None = None
    closed_s: float | None = None
    measured_s: float | None = None  # the time its rates cover, if it is not from open to close
    stopped: str | None = None
    replies: list[Reply] = field(default_factory=list)
    outside: list[Reply] = field(default_factory=list)
    answered: int = 0  # in and outside of the window
    unanswered: int = 0
    tokens: int = 0  # prompts and answers of the window so far
    output_tokens: int = 0
    usd_of: Callable[[int, int], float] | None = None  # what an API charges for a prompt and an answer
    usd: float = 0.0  # charged so far, in and outside of the window
    longest_s: float = 0.0  # the longest answer so far, in and outside of the window
    ended: asyncio.Event = field(default_factory=asyncio.Event)  # nothing more is sent

    def keep(self, reply: Reply, *, inside: bool) -> None:
        """Count a request that ended; give up on a server that never answered one."""
        (self.replies if inside else self.outside).append(reply)
        if reply.error is None:
            self.answered += 1
            self.longest_s = max(self.longest_s, reply.end_s - reply.sent_s)
            self.usd += self.usd_of(reply.input_tokens, reply.output_tokens) if self.usd_of else 0.0
            if inside:
                self.tokens += reply.input_tokens + reply.output_tokens
                self.output_tokens += reply.output_tokens
            return
        self.unanswered += 1
        if not self.answered and self.unanswered >= HOPELESS:
            fix = f"See the server's log; a smaller {option('concurrency')} or {option('rate')} may be all it takes."
            raise BadInput(f"the server failed {HOPELESS} requests and answered none: {reply.error}", fix=fix)


class ClosedWindow:
    """Decides when the window of a closed loop opens and closes, as its users get answers."""

    def __init__(self, users: int, stopping: Stopping, spent: Spent, window: LoadWindow, *, at_once: bool) -> None:
        self._users, self._stopping, self._spent, self._window = users, stopping, spent, window
        self._at_once = at_once  # do not wait for users who pause
        self._warm: set[int] = set()
        self._owed: set[int] = set()
        self._closing, self._closing_s = False, 0.0

    def heard(self, user: int, reply: Reply) -> None:
        """Take an answer, or a failure."""
        window = self._window
        if window.phase == "warm-up":
            window.keep(reply, inside=False)
            self._warm.add(user)
            if len(self._warm) == self._users:
                window.phase, window.opened_s = "measuring", reply.end_s
        elif window.phase == "measuring":
            measured(window, reply, self._stopping)
            self._owed.discard(user)
            self.is_over(reply.end_s, user)
        else:
            # A request sent within the window that failed belongs to it: its answer would have been one of the slowest.
            window.keep(reply, inside=reply.error is not None and reply.due_s <= (window.closed_s or 0.0))

    def is_over(self, now_s: float, user: int | None = None) -> bool:
        """Decide whether the window is closed, or close it now."""
        window = self._window
        patience_s = self._stopping.patience_s(window.longest_s)
        if window.phase == "warm-up" and self._warm and now_s - window.started_s > patience_s:
            window.phase, window.opened_s = "measuring", now_s  # without users who have had no answer yet
        if window.phase != "measuring":
            return window.phase == "draining"
        elapsed_s = now_s - (window.opened_s or 0.0)
        if not self._closing and (reason := self._stopping.reason(elapsed_s, self._spent())) is not None:
            window.stopped, self._closing, self._closing_s = reason, True, now_s
            self._owed.update(() if self._at_once else set(range(self._users)) - {user})
        is_late = self._closing and now_s - self._closing_s > patience_s
        if self._closing and (not self._owed or is_late or self._stopping.is_spent(self._spent())):
            window.phase, window.closed_s = "draining", now_s
            window.ended.set()
        return window.phase == "draining"


def one_request(client: Client, ask: Callable[[], Asked]) -> Work:
    """Send the next request at once."""

    async def work(heard: Heard) -> bool:
        reply = await client.ask(ask(), perf_counter())
        heard(reply)
        return reply.error is None

    return work


async def closed_loop(
    client: Client,
    users: int,
    work: Work,
    stopping: Stopping,
    spent: Spent,
    window: LoadWindow,
    *,
    at_once: bool = False,
) -> None:
    """Fill the window; return when every request that was sent has ended."""
    closing = ClosedWindow(users, stopping, spent, window, at_once=at_once)

    async def user(number: int) -> None:
        while not window.ended.is_set():
            if not await work(partial(closing.heard, number)):
                await asyncio.sleep(AFTER_FAILURE_S)

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(user(number)) for number in range(users)]
        await until_ended(client, tasks, stopping, window, closing.is_over)


async def until_ended(
    client: Client,
    tasks: "Sequence[asyncio.Task[Any]]",
    stopping: Stopping,
    window: LoadWindow,
    is_over: Callable[[float], bool],
) -> None:
    """Wait for all tasks; give up those that take too long after the load is over, with a reply that says so."""
    over_s: float | None = None
    try:
        while waiting := [task for task in tasks if not task.done()]:
            await asyncio.wait(waiting, timeout=_LOOKED_EVERY_S)
            now_s = perf_counter()
            if over_s is None and is_over(now_s):
                over_s = now_s
            if over_s is not None and not client.gave_up and now_s - over_s > stopping.patience_s(window.longest_s):
                client.gave_up = True
                for task in waiting:
                    task.cancel()
    finally:
        client.gave_up = False


async def open_loop(
    client: Client, due: Iterable[tuple[float, Asked]], stopping: Stopping, spent: Spent, window: LoadWindow
) -> None:
    """Send each request when it is due, until there are no more or the measurement has enough."""

    async def send(due_s: float, asked: Asked) -> None:
        reply = await client.ask(asked, due_s)
        measured(window, reply, stopping)
        window.closed_s = reply.end_s

    window.phase = "measuring"
    opened_s: float | None = None
    tasks: list[asyncio.Task[None]] = []
    async with asyncio.TaskGroup() as group:
        for at_s, asked in due:
            now = perf_counter()
            if opened_s is None:
                window.opened_s = opened_s = now
            else:
                # Do not wait for a request that is due after the end.
                window.stopped = stopping.reason(max(now - opened_s, at_s), spent())
                if window.stopped:
                    break
            wait_s = opened_s + at_s - now
            if wait_s > 0:
                await asyncio.sleep(wait_s)
            tasks.append(group.create_task(send(opened_s + at_s, asked)))
        else:
            window.stopped = "every request was sent"
        window.phase = "draining"
        await until_ended(client, tasks, stopping, window, lambda _: True)
    window.measured_s = open_seconds(window)


def open_seconds(window: LoadWindow) -> float | None:
    """Return how long the server takes for what was due in an open loop; None if only the last answer tells."""
    answered = [reply for reply in window.replies if reply.error is None]
    if len(window.replies) < 3 or len(answered) < 3:
        return None
    due_s = np.array([reply.due_s for reply in answered])
    end_s = np.array([reply.end_s for reply in answered])
    asked_s = [reply.due_s for reply in window.replies]
    # There is one gap fewer than requests.
    sent_s = (max(asked_s) - min(asked_s)) * len(asked_s) / (len(asked_s) - 1)
    spread_s = float(due_s.std())
    if spread_s == 0 or sent_s < float((end_s - due_s).mean()):
        return None
    slope, first = np.polyfit(due_s - due_s[0], end_s - due_s[0], 1)
    off_s = end_s - due_s[0] - first - slope * (due_s - due_s[0])
    error = float(np.sqrt((off_s**2).sum() / (len(due_s) - 2) / len(due_s))) / spread_s
    return sent_s * (float(slope) if slope - _NORMAL * error > 1 else 1.0)


def measured(window: LoadWindow, reply: Reply, stopping: Stopping) -> None:
    """Count a request of the window."""
    window.keep(reply, inside=True)
    if reply.error is None and reply.first_s is not None:
        stopping.add(reply.first_s - reply.due_s, reply.end_s - reply.due_s)
    else:
        stopping.add(None, None)


def point_of(
    window: LoadWindow, extra: Iterable[Reply] = (), *, concurrency: int | None = None, rate: float | None = None
) -> LoadPoint | None:
    """Return the figures of a load; None if nothing was answered. ``extra`` was sent to prepare it."""
    opened_s, closed_s = window.opened_s, window.closed_s
    if opened_s is None or closed_s is None or closed_s <= opened_s:
        return None
    good = [reply for reply in window.replies if reply.error is None]
    outside = [*extra, *window.outside]
    answered = [reply for reply in outside if reply.error is None]
    gaps, pieces = array("d"), array("l")
    for reply in good:
        gaps.extend(reply.gaps_s)
        pieces.extend(reply.pieces)
    return point_from_records(
        (_record(reply, opened_s) for reply in window.replies),
        window.measured_s or closed_s - opened_s,
        concurrency=concurrency,
        rate=rate,
        itl_s=latencies(np.frombuffer(gaps), np.frombuffer(pieces, dtype=pieces.typecode)) if len(gaps) else None,
        cached_known=any(reply.cached_tokens is not None for reply in good),
        outside=Outside(
            requests=len(outside),
            failed=len(outside) - len(answered),
            input_tokens=sum(reply.input_tokens for reply in answered),
            output_tokens=sum(reply.output_tokens for reply in answered),
        ),
        notes=_notes(good),
    )


def _record(reply: Reply, opened_s: float) -> RequestRecord:
    good = reply.error is None
    first_s, last_s = (reply.first_s, reply.last_s) if good else (None, None)
    # An answer ends with its last text; an empty answer ends with the stream.
    ended_s = last_s if last_s is not None else reply.end_s
    return RequestRecord(
        sent_s=reply.due_s - opened_s,
        ttft_s=None if first_s is None else max(0.0, first_s - reply.due_s),
        tpot_s=tpot(first_s, last_s, reply.output_tokens), e2e_s=max(0.0, ended_s - reply.due_s) if good else None,
        input_tokens=reply.input_tokens, cached_tokens=reply.cached_tokens or 0, output_tokens=reply.output_tokens,
        retries=reply.retries, error=reply.error, job=reply.job, turn=reply.turn,
    )  # fmt: skip


def _notes(good: list[Reply]) -> list[str]:
    """Note whether the client, or the way to the server, slowed the measurement."""
    heard = [(reply.own_s, reply.first_s - reply.due_s) for reply in good if reply.first_s is not None]
    own = own_delay(*zip(*heard, strict=True)) if heard else None
    notes = [own] if own else []
    late = sorted(reply.sent_s - reply.due_s for reply in good if not reply.retries)
    if late and (p99 := late[int(0.99 * (len(late) - 1))]) > _LATE_S:
        sent = f"the client sent requests up to {p99 * 1e3:.0f} ms late (p99)"
        notes.append(f"{sent}; latencies count from when they were due")
    slow = [reply for reply in good if reply.output_tokens > 1 and reply.end_s - reply.sent_s > _LATE_S]
    whole = [reply for reply in slow if not reply.gaps_s]
    if len(whole) > len(slow) / 2:
        share = f"{len(whole) / len(slow):.0%} of the answers came in one piece"
        notes.append(f"{share}, so that their time per token counts as 0: does a proxy hold the stream back?")
    return notes


class Progress(Noun):
    load: str
    phase: str  # warm-up, measuring or draining
    elapsed_s: float
    completed: int
    failed: int
    output_tokens_per_s: float
    usd_per_mtok: float | None  # input and output tokens alike, of the window so far
    precision: float | None  # half-width of the confidence interval, relative; None until there is one


Show = Callable[[Progress], None]


@asynccontextmanager
async def shown(
    show: Show | None, load: str, window: LoadWindow, stopping: Stopping, usd_per_hour: float | None
) -> AsyncIterator[None]:
    """Show a load a few times a second while the block runs."""

    async def draw(show: Show) -> None:
        while True:
            show(progress(load, window, stopping, usd_per_hour, perf_counter()))
            await asyncio.sleep(_DRAWN_EVERY_S)

    drawing = asyncio.create_task(draw(show)) if show is not None else None
    try:
        yield
    finally:
        if drawing is not None:
            drawing.cancel()
            await asyncio.gather(drawing, return_exceptions=True)


def progress(load: str, window: LoadWindow, stopping: Stopping, usd_per_hour: float | None, now_s: float) -> Progress:
    until_s = window.closed_s if window.phase == "draining" and window.closed_s else now_s
    measured_s = until_s - (window.opened_s or until_s)
    price = None
    if usd_per_hour and window.tokens and measured_s > 0:
        price = usd_per_hour / SECONDS_PER_HOUR * measured_s / window.tokens * TOKENS_PER_MTOK
    return Progress(
        load=load, phase=window.phase, elapsed_s=now_s - window.started_s, completed=window.answered,
        failed=window.unanswered,
        output_tokens_per_s=window.output_tokens / measured_s if measured_s > 0 else 0.0,
        usd_per_mtok=price, precision=stopping.precision,
    )  # fmt: skip
