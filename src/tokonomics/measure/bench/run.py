"""Run a whole load test: learn about the server, run each load, and return the results as a ``BenchmarkRun``.

First it learns the model's name, how the server counts the tokens of three prompts, and whether it takes ``ignore_eos``
(answers of exactly the length asked for). Every load sends the same lengths in the same order, or the same sessions
(``sessions``); if lengths vary, those of a few dozen requests together have the mean asked for, and none is longer than
the server's limit. A **sweep** doubles the users until an SLO is missed, requests fail, or twice the users bring less
than 5 % more tokens; then it tries two loads between the last that held and the first that did not.
"""

import asyncio
import math
import random
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from itertools import accumulate, count, cycle, islice, repeat
from time import perf_counter, process_time
from typing import Any

import numpy as np

from tokonomics import __version__
from tokonomics.addresses import BenchTarget
from tokonomics.errors import BadInput, option, shorten
from tokonomics.measure.bench.client import Asked, Client, LoopTurns, Reply, run_in_turns
from tokonomics.measure.bench.learn import learn, only_model
from tokonomics.measure.bench.loads import (
    Budget,
    LoadWindow,
    Show,
    Stopping,
    closed_loop,
    one_request,
    open_loop,
    point_of,
    shown,
)
from tokonomics.measure.bench.sessions import BenchPrompts, SessionRunner, jobs_of, sessions_when_due
from tokonomics.measure.benchmark_run import OWN_TOOL, BenchmarkRun, LoadPoint, holds, jobs_from_records
from tokonomics.traffic.arrivals import parse_arrivals
from tokonomics.traffic.generate import Sessions, SystemPrompts, generate
from tokonomics.traffic.lengths import draw_lengths, parse_lengths
from tokonomics.traffic.prefix_reuse import found_share
from tokonomics.traffic.slo import Slo
from tokonomics.traffic.trace import Trace
from tokonomics.units import SECONDS_PER_HOUR, plural, requests_a_second

MOST_USERS = 4096
USUAL_INPUT, USUAL_OUTPUT = "const:512", "const:128"  # if nobody says how long prompts and answers are
_MOST_JOBS = 2000  # drawn for a load; after the last, users start again with the first
_MORE = 1.05  # if twice the users bring less than this factor in throughput, the knee is passed
_LOOKS_BETWEEN = 2
_KEEPS_UP = 0.8  # share of the requests due; neither chance nor the answers after the last request explain less
_WARM_UP = 4  # requests sent one after another before an open loop: connections, compiled kernels, the first prompt
_OTHER_FILES = 64  # of a process that loads a server: modules, pipes, the result (our choice; a run has about 20)
_SOCKETS = 65_536
_TOGETHER = 32  # requests whose lengths together have the mean asked for: the shortest load measures thirty
_LONGEST = 10**6
_SURE_TO_FIT = 0.97  # share of the server's limit: prompts are only about as long as asked for
_BUSY_CLIENT = 0.9
_CACHED = 0.2  # share of the prompt tokens: a chat template is less of any prompt worth measuring


class LoadInterrupted(BadInput):
    """Raised when the user interrupts before a load is finished."""


@dataclass(frozen=True)
class BenchSettings:
    """What a load test is asked to do; exactly one kind of load."""

    target: BenchTarget
    model: str | None = None
    users: Sequence[int] = ()
    rates: Sequence[float] = ()
    trace: Trace | None = None
    sweep: bool = False
    sessions: Sessions | None = None  # whose turns are sent with users, rates and sweeps
    input: str | None = None  # lengths of prompts and answers, as ``parse_lengths`` takes them; of a turn, what is new
    output: str | None = None
    budget: Budget = field(default_factory=Budget)
    slos: tuple[Slo, ...] = ()
    usd_per_hour: float | None = None  # all GPUs together: for the display and the dollar budget
    usd_of: Callable[[int, int], float] | None = None  # or what an API charges for a prompt and an answer
    retries: int = 1
    timeout_s: float = 600.0
    seed: int = 0


def run_bench(asked: BenchSettings, show: Show | None = None) -> BenchmarkRun:
    """Measure; raise ``BadInput`` if the server cannot be measured at all."""
    _allow_connections(max(asked.users, default=0))
    bench = _Bench(asked, show)
    # The result is fetched, not returned: asyncio would print all its requests on the way (Handlers(…) fails).
    interruptible(bench.run, "interrupted before a load was finished: nothing was measured")
    assert bench.result is not None
    return bench.result


def interruptible(main: Callable[[LoopTurns], Coroutine[Any, Any, None]], interrupted: str) -> None:
    """Run a coroutine that loads a server; raise the first of several errors, and what Ctrl-C left undone."""
    try:
        run_in_turns(main)
    except KeyboardInterrupt:
        raise LoadInterrupted(interrupted) from None
    except ExceptionGroup as group:
        first: BaseException = group
        while isinstance(first, BaseExceptionGroup):
            first = first.exceptions[0]
        raise first from None


class _Bench:
    def __init__(self, asked: BenchSettings, show: Show | None) -> None:
        self.asked, self.show = asked, show
        agent = asked.sessions.agent if asked.sessions else None
        self.inputs = agent.inputs if agent and asked.input is None else parse_lengths(asked.input or USUAL_INPUT)
        self.outputs = agent.outputs if agent and asked.output is None else parse_lengths(asked.output or USUAL_OUTPUT)
        self.head_tokens = agent.head_tokens if agent else 0
        self.started_s = perf_counter()
        self.notes: list[str] = []
        self.charged_usd = 0.0
        self.open_window: LoadWindow | None = None
        self.prepared: list[Reply] = []
        self.result: BenchmarkRun | None = None
        self.limit: int | None = None  # tokens of a request, prompt and answer, if the server says so

    async def run(self, turns: LoopTurns) -> None:
        asked, when, cpu_s = self.asked, datetime.now(UTC), process_time()
        async with Client(asked.target, asked.timeout_s, asked.retries, turns) as client:
            self.client = client
            model = asked.model or await only_model(client, asked.target)
            prefix = asked.trace.prefix if asked.trace else None
            self.prompts = BenchPrompts(asked.target, model, asked.seed, prefix.block_tokens if prefix else 0)
            if self._in_sessions or not (self.inputs.is_constant and self.outputs.is_constant):
                self.limit = (await client.models()).get(model)
                if self.limit is not None:
                    self.notes.append(f"Lengths vary; none exceeds the {self.limit:,} tokens that the server takes.")
            await self._learn(model)
            points = await self._measured()
            if client.one_request_a_connection:
                self.notes.append("The server hangs up after each answer: every request opened its own connection.")
        share = (process_time() - cpu_s) / (perf_counter() - self.started_s)
        if share > _BUSY_CLIENT:
            self.notes.append(f"the client used {share:.0%} of a core: it may be what is slow")
        cached = sum(point.cached_tokens or 0 for point in points)
        sent = sum(point.input_tokens or 0 for point in points)
        shares = self._in_sessions or (asked.trace is not None and asked.trace.prefix is not None)
        if cached > _CACHED * max(1, sent) and not shares:
            seen = f"{cached / sent:.0%} of the prompt tokens came from the server's cache: it has seen these prompts"
            self.notes.append(f"{seen}, or beginnings like theirs; another {option('seed')} sends new ones")
        if not points:
            fix = f"Give it more time with {option('seconds')}."
            raise BadInput("; ".join(["no load gave one answer inside its window", *self.notes]), fix=fix)
        self.result = BenchmarkRun(
            tool=OWN_TOOL, tool_version=__version__, model=model, when=when, points=tuple(points),
            notes=(f"Server: {asked.target.shown}", *self.notes),
        )  # fmt: skip

    async def _measured(self) -> list[LoadPoint]:
        """Run every load; keep what was finished if the user interrupts."""
        points = []
        try:
            async for point in self._points():
                if point is not None:
                    points.append(point)  # noqa: PERF401 - a comprehension would lose those before an interruption
        except asyncio.CancelledError:
            if not points:
                raise
            self.notes.append("Interrupted: only the loads that were finished are shown.")
        return points

    async def _learn(self, model: str) -> None:
        mean = sum(tokens for tokens, _ in islice(self._lengths(), _TOGETHER)) / _TOGETHER
        longest = None if self.asked.trace is not None else round(mean)
        self.prepared, notes = await learn(self.client, self.prompts, self.asked.target, model, longest)
        self.notes += notes

    async def _points(self) -> AsyncIterator[LoadPoint | None]:
        """Yield each load's figures; None if a load gave none."""
        asked = self.asked
        open_load = self._due_jobs if self._in_sessions else self._open
        rates: Sequence[float | None] = [None] if asked.trace is not None else asked.rates
        loads = [partial(open_load, rate) for rate in rates]
        for load in (*loads, *(partial(self._closed, users) for users in asked.users)):
            yield await load()
            if self._budget_is_spent():
                return
        if asked.sweep:
            async for point in self._sweep():
                yield point

    async def _sweep(self) -> AsyncIterator[LoadPoint | None]:
        held, missed, last, users = 0, 0, 0.0, 1
        while users <= MOST_USERS and not self._budget_is_spent():
            point = await self._closed(users)
            yield point
            if point is None or not holds(point, self.asked.slos):
                missed = users
                break
            held = users
            if point.output_tokens_per_s < _MORE * last:
                break
            last, users = point.output_tokens_per_s, users * 2
        for _ in range(_LOOKS_BETWEEN):
            between = round(math.sqrt(held * missed))
            if not held < between < missed or self._budget_is_spent():
                return
            point = await self._closed(between)
            yield point
            if point is not None and holds(point, self.asked.slos):
                held = between
            else:
                missed = between

    def _budget_is_spent(self) -> bool:
        usd = self.asked.budget.usd
        if usd is None or self._spent() < usd:
            return False
        note = f"Stopped: ${usd:g} spent."
        if note not in self.notes:
            self.notes.append(note)
        return True

    def _spent(self) -> float:
        charged = self.charged_usd + (self.open_window.usd if self.open_window else 0.0)
        return charged + (self.asked.usd_per_hour or 0.0) * (perf_counter() - self.started_s) / SECONDS_PER_HOUR

    def _window(self) -> LoadWindow:
        self.open_window = LoadWindow(perf_counter(), usd_of=self.asked.usd_of)
        return self.open_window

    async def _closed(self, users: int) -> LoadPoint | None:
        asked = self.asked
        window, stopping = self._window(), Stopping(asked.budget, users)
        lengths, runner = self._lengths(), None
        work = one_request(self.client, lambda: self.prompts.request(*next(lengths)))
        if asked.sessions:
            talks = runner = SessionRunner(self.client, self.prompts, window, self.head_tokens)
            jobs = cycle(jobs_of(self._talks(asked.sessions, 1.0)))
            work = lambda heard: talks.run(next(jobs), heard, perf_counter())  # noqa: E731
        async with shown(self.show, plural(users, "user"), window, stopping, asked.usd_per_hour):
            # Do not wait for users who pause between turns.
            at_once = runner is not None
            await closed_loop(self.client, users, work, stopping, self._spent, window, at_once=at_once)
        return self._finished(window, stopping, runner, concurrency=users)

    async def _due_jobs(self, rate: float | None) -> LoadPoint | None:
        """Start jobs at their times: those of the trace, or as many as make ``rate`` turns a second."""
        asked, load = self.asked, requests_a_second(f"{rate:g}") if rate else "the trace"
        window, stopping = self._window(), Stopping(asked.budget, 3)
        trace = asked.trace
        if trace is None:
            assert asked.sessions is not None
            trace = self._talks(asked.sessions, (rate or 1.0) / asked.sessions.turns)
        runner = SessionRunner(self.client, self.prompts, window, self.head_tokens)
        async with shown(self.show, load, window, stopping, asked.usd_per_hour):
            await sessions_when_due(runner, jobs_of(trace), stopping, self._spent, window)
        return self._finished(window, stopping, runner, rate=rate or trace.rate or None)

    def _talks(self, sessions: Sessions, starts_per_s: float) -> Trace:
        """Return generated sessions, the same for every load, none longer than the server takes."""
        limit = sessions.limit if self.limit is None else min(sessions.limit, round(self.limit * _SURE_TO_FIT))
        talks = generate(
            parse_arrivals(f"poisson:{starts_per_s:.9g}"),
            self.inputs,
            self.outputs,
            requests=min(self.asked.budget.requests + _MOST_JOBS, round(_MOST_JOBS * sessions.turns)),
            seed=self.asked.seed,
            system=SystemPrompts(1, self.head_tokens) if self.head_tokens else None,
            sessions=replace(sessions, limit=limit),
        )
        # All begin with the same system message and share nothing else, also where they are sent a second time.
        return replace(talks, prefix=None)

    async def _open(self, rate: float | None) -> LoadPoint | None:
        """Send requests at their times: those of the trace, or at random at a rate."""
        asked, load = self.asked, requests_a_second(f"{rate:g}") if rate else "the trace"
        window, stopping = self._window(), Stopping(asked.budget, 3)
        for lengths in islice(self._lengths(), _WARM_UP):
            body = self.prompts.request(*lengths)
            window.keep(await self.client.ask(body, perf_counter()), inside=False)
        async with shown(self.show, load, window, stopping, asked.usd_per_hour):
            await open_loop(self.client, self._due(rate), stopping, self._spent, window)
        if asked.trace is not None and (last := max((reply.due_s for reply in window.replies), default=0.0)):
            since = last - (window.opened_s or 0.0)
            rate = len(window.replies) / since if since > 0 else None
        point = self._finished(window, stopping, rate=rate)
        if point is None:
            return None
        if asked.trace is not None and asked.trace.prefix is not None:
            said = _shared_text(asked.trace.take(np.arange(len(window.replies))), point)
            point = point.model_copy(update={"notes": (*point.notes, said)})
        if rate is None or point.requests_per_s > _KEEPS_UP * rate:
            return point
        answered = f"{load}: {point.requests_per_s:.3g} a second were answered"
        note = f"{answered}; beyond what it holds, waiting grows with time"
        return point.model_copy(update={"notes": (*point.notes, note)})

    def _due(self, rate: float | None) -> Iterator[tuple[float, Asked]]:
        """Yield when each request is due since the start, and the request."""
        if (trace := self.asked.trace) is not None:
            columns = (trace.arrival_s.tolist(), trace.input_tokens.tolist(), trace.output_tokens.tolist())
            requests = range(len(trace))
            blocks = repeat(None, len(trace)) if trace.prefix is None else map(trace.prefix.blocks_of, requests)
            # A request whose log has no answer still asks for one token: servers refuse to write none.
            return (
                (at, self.prompts.request(tokens, max(1, out), shared))
                for at, tokens, out, shared in zip(*columns, blocks, strict=True)
            )
        chance = random.Random(self.asked.seed)
        arrivals = accumulate((chance.expovariate(rate or 1.0) for _ in count()), initial=0.0)
        due = zip(islice(arrivals, self.asked.budget.requests), self._lengths(), strict=False)
        return ((at, self.prompts.request(*lengths)) for at, lengths in due)

    def _lengths(self) -> Iterator[tuple[int, int]]:
        """Yield prompt and answer lengths of one request after another, the same for every load."""
        chance = np.random.default_rng(self.asked.seed)
        most = _LONGEST if self.limit is None else round(self.limit * _SURE_TO_FIT)
        while True:
            drawn = draw_lengths(self.inputs, self.outputs, _TOGETHER, chance)
            for prompt, answer in zip(*(tokens.tolist() for tokens in drawn), strict=True):
                answer = min(max(1, answer), most - 1)
                yield min(prompt, most - answer), answer

    @property
    def _in_sessions(self) -> bool:
        return self.asked.sessions is not None or (self.asked.trace is not None and self.asked.trace.turns is not None)

    def _finished(
        self,
        window: LoadWindow,
        stopping: Stopping,
        runner: SessionRunner | None = None,
        *,
        concurrency: int | None = None,
        rate: float | None = None,
    ) -> LoadPoint | None:
        """Return the load's figures; the first load also counts the requests that prepared the test."""
        prepared, self.prepared = self.prepared, []
        self.charged_usd, self.open_window = self.charged_usd + window.usd, None
        point = point_of(window, prepared, concurrency=concurrency, rate=rate)
        if point is None:
            first = next((reply.error for reply in window.replies if reply.error), "nothing was answered in time")
            self.notes.append(f"A load gave no figure: {shorten(first, 160)}")
            return None
        lengths = f"{self.inputs.text} / {self.outputs.text}" if self.asked.trace is None else None
        kept: dict[str, object] = {"stopped": window.stopped, "precision": stopping.precision, "lengths": lengths}
        if runner is not None:
            known = point.cached_tokens is not None
            kept["jobs"] = jobs_from_records(point.records, runner.took_s, cached_known=known)
        return point.model_copy(update=kept)


def _shared_text(trace: Trace, point: LoadPoint) -> str:
    """Say how much of the prompts that were sent repeats earlier ones, and how much of that the server found."""
    # Blocks that go on into the answer are not sent: the server's answers are its own.
    sent = trace.resized(trace.input_tokens, np.zeros_like(trace.output_tokens))
    said = f"{found_share(sent)[0]:.0%} of the prompt tokens repeat earlier prompts, as in the trace"
    if point.cached_tokens is None or not point.input_tokens:
        return said
    return f"{said}; {point.cached_tokens / point.input_tokens:.0%} came from the server's cache"


def _allow_connections(users: int) -> None:
    """Raise the usual limit of 1,024 sockets, one per request in flight; refuse more than the system allows."""
    try:
        import resource
    except ImportError:  # not on Windows
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _SOCKETS if hard == resource.RLIM_INFINITY else min(hard, _SOCKETS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = wanted
    if soft != resource.RLIM_INFINITY and users + _OTHER_FILES > soft:
        said = f"{users:,} streams at once need as many open files, and this system allows {soft:,}"
        fix = "Raise the limit (ulimit -Hn; LimitNOFILE of a service), or ask for fewer."
        raise BadInput(said, field="concurrency", fix=fix)
