"""Measure what a server does under about forty small loads: its fingerprint, a file one keeps.

A probe is one load of a fixed size: a lone prompt, some answers at once, prompts beside them, a prompt that was sent
before. Its value is one time in seconds. All probes are taken in rounds, each round in an order of its own, so that a
machine that slows down slows all of them alike and its own noise is seen: a probe's spread over the rounds. The first
round is thrown away (connections, compiled kernels), but tells how long each probe takes: those that are too long for
the time given, longer than the server's context or more than it runs at once are left out, and said. Values far above
their probe's others are taken again once: kernels are compiled when a shape is first met.

Prompts begin with words of their own, so that no cache knows them, except those that are sent twice. Two servers are
measured in turns, so that whatever the machine does meets both.
"""

import asyncio
import math
import random
import statistics
from collections.abc import Callable, Iterable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from functools import partial
from time import perf_counter
from typing import Any, Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt

from tokonomics import __version__
from tokonomics.addresses import BenchTarget
from tokonomics.errors import BadInput, shorten
from tokonomics.measure.bench.client import Asked, Client, LoopTurns, Reply
from tokonomics.measure.bench.learn import learn, only_model
from tokonomics.measure.bench.run import interruptible
from tokonomics.measure.bench.sessions import BenchPrompts
from tokonomics.operate.record import Sealed
from tokonomics.operate.trial import machine_facts, server_facts
from tokonomics.types import Noun
from tokonomics.units import plural, seconds

FEWEST_ROUNDS, MOST_ROUNDS = 5, 12
"""With five, the spread of a probe is known to a third; with twelve, to a fifth (chi-squared); our choice."""
_LONG_ENOUGH_S = 0.25  # a probe is repeated within a round for about so long: its median is then steadier; our choice
_MOST_REPEATS = 8
_WARM_UP = 0.4  # share of the time after which no larger probe is tried; our choice
_PART = 4  # no probe may take more than one in so many parts of a round's time; our choice
_FAR = 1.5  # a value above this factor times its probe's median is taken again
_SURE_TO_FIT = 0.97  # share of the server's limit: prompts are only about as long as asked for
ANSWER = 33  # tokens of an answer whose steps are timed: 32 steps
_LATER = 2
"""For so many answers at once, each gets a token more. On an H200, 64 answers of 32 steps ran together for about half
of these: four began in each (vllm_h200_guard.json.gz). So there is twice the room that they took."""
_LONG_ANSWER = 1024  # tokens of answers beside which prompts are sent; they are broken off afterwards
_BESIDE = 4  # prompts sent one after another beside running answers
_TOGETHER = 0.5  # share of the steps that all answers must run together
PLACES = 6  # of a time in seconds
_COUNTED_SEED = 0  # of the words by which the server's tokens are counted: equal servers have equal counts then
_REFUSALS = (400, 413, 422)

Doing = Callable[[str], None]
AT_ONCE = "does not run"  # in the reason of a probe that is larger than what a server runs
TOO_LONG = "too long for the time given"
TOO_FAR_APART = "began too far apart to run together for long"


class ProbeKind(StrEnum):
    prompt = "prompt"  # a lone prompt, answered with one token: the whole time
    again = "again"  # the same for a prompt that was just answered
    burst = "burst"  # several such prompts at once: until the last is answered
    decode = "decode"  # several answers at once: one step of them all
    beside = "beside"  # a lone prompt beside running answers: the whole time


class Probe(Noun):
    """One load of a fixed size."""

    kind: ProbeKind
    prompt_tokens: PositiveInt
    users: PositiveInt = 1  # answers at once; prompts at once of a burst

    @property
    def name(self) -> str:
        many = f"{self.users} × " if self.users > 1 or self.kind in (ProbeKind.decode, ProbeKind.beside) else ""
        if self.kind is ProbeKind.beside:
            return f"{self.prompt_tokens} beside {self.users}"
        return f"{self.kind} {many}{self.prompt_tokens}"

    @property
    def running(self) -> int:
        """Return how many requests the server runs at once."""
        return self.users + (self.kind is ProbeKind.beside)

    @property
    def answer(self) -> int:
        """Return the tokens of its answers; many at once begin one after another, and have to run together then."""
        return ANSWER + self.users // _LATER if self.kind is ProbeKind.decode else 1

    @property
    def longest(self) -> int:
        """Return the tokens of its longest request."""
        return self.prompt_tokens + self.answer

    @property
    def work(self) -> int:
        """Return about how many tokens it computes."""
        prompts = self.users if self.kind in (ProbeKind.decode, ProbeKind.burst) else 1
        return prompts * self.longest


def _probes(kind: ProbeKind, *sizes: tuple[int, int]) -> tuple[Probe, ...]:
    return tuple(Probe(kind=kind, prompt_tokens=tokens, users=users) for users, tokens in sizes)


SHORT = 16
PROBES = (
    *_probes(ProbeKind.prompt, *((1, 2**power) for power in range(4, 15))),
    *_probes(ProbeKind.again, (1, 512), (1, 2048), (1, 8192)),
    *_probes(ProbeKind.decode, *((2**power, SHORT) for power in range(9))),
    *_probes(ProbeKind.decode, (1, 2048), (4, 2048), (8, 2048), (16, 1024), (32, 1024), (64, 512), (1, 8192)),
    *_probes(ProbeKind.beside, (1, 128), (3, 512), (31, 128), (63, 512), (1, 2048), (31, 2048)),
    *_probes(ProbeKind.burst, (4, 128), (16, 128), (16, 512), (64, 128)),
)
"""The loads of a fingerprint; of each kind, the smaller before the larger."""


class ProbeTimes(Noun):
    """What a probe took, in each round."""

    probe: Probe
    tokens: PositiveFloat  # of its prompts, as the server counts them, in the mean
    seconds: tuple[PositiveFloat, ...]
    cached_share: float | None = None  # of the prompt's tokens, if the server says it

    @property
    def median_s(self) -> float:
        return statistics.median(self.seconds)


class Fingerprint(Sealed):
    """What a server did under every probe, and what it says of itself."""

    kind: Literal["tokonomics fingerprint"] = "tokonomics fingerprint"
    version: str = __version__
    made: datetime
    server: str  # its address
    model: str  # by the server's name for it
    took_s: NonNegativeFloat
    engine: dict[str, Any] = Field(default_factory=dict)
    machine: dict[str, Any] = Field(default_factory=dict)
    tokens_per_word: PositiveFloat | None = None  # of plain English, the same words for every server
    probes: tuple[ProbeTimes, ...] = Field(min_length=1)
    skipped: dict[str, str] = Field(default_factory=dict)  # why, by the probe's name
    notes: tuple[str, ...] = ()

    def times(self) -> dict[Probe, ProbeTimes]:
        return {each.probe: each for each in self.probes}

    @property
    def at_once(self) -> int:
        """Return the most requests that were seen to run at once: answers alone, or with a prompt beside them."""
        answering = (ProbeKind.decode, ProbeKind.beside)
        return max((each.probe.running for each in self.probes if each.probe.kind in answering), default=1)


@dataclass(frozen=True)
class ProbedServer:
    """A server to be measured, and under which name it serves the model."""

    target: BenchTarget
    model: str | None = None


def fingerprints(
    servers: Sequence[ProbedServer],
    minutes: float,
    *,
    timeout_s: float,
    seed: int,
    doing: Doing = lambda line: None,
    probes: Sequence[Probe] = PROBES,
) -> list[Fingerprint]:
    """Measure servers, several of them in turns, each for about so many minutes; raise ``BadInput`` if one fails."""
    found: list[Fingerprint] = []
    told = [server_facts(server.target) for server in servers]

    async def measure(turns: LoopTurns) -> None:
        async with AsyncExitStack() as stack:
            taking = []
            for server, facts in zip(servers, told, strict=True):
                client = await stack.enter_async_context(Client(server.target, timeout_s, 1, turns))
                taking.append(_Taking(server, client, facts, seed))
            found.extend(await _rounds(taking, 60 * minutes, seed, doing, probes))

    interruptible(measure, "interrupted before the fingerprint was complete: nothing was kept")
    return found


async def _rounds(
    taking: Sequence["_Taking"], budget_s: float, seed: int, doing: Doing, probes: Sequence[Probe]
) -> list[Fingerprint]:
    """Take the warm-up and as many rounds as the time allows, every server once a round."""
    began_s, budget_s = perf_counter(), budget_s * len(taking)
    name = "warming up"

    def say(done: int, of: int) -> None:
        left_s = max(0.0, budget_s - (perf_counter() - began_s))
        left = f"at most {left_s / 60:.1f} min left" if left_s > 3 else "nearly done"
        doing(f"{name}: {done} of {of} loads, {left}")

    for each in taking:
        doing("learning how the server counts tokens")
        await each.prepare(probes, budget_s / len(taking))
    most_s = budget_s / len(taking) / (FEWEST_ROUNDS + 1) / _PART
    for done, probe in enumerate(sorted(probes, key=lambda probe: probe.work)):
        say(done, len(probes))
        for each in taking:
            is_late = perf_counter() - began_s > _WARM_UP * budget_s
            await each.try_out(probe, most_s, is_late)
    left_s = budget_s - (perf_counter() - began_s)
    _leave_out(taking, left_s / FEWEST_ROUNDS)
    round_s = sum(each.round_s for each in taking)
    rounds = max(FEWEST_ROUNDS, min(MOST_ROUNDS, math.floor(left_s / round_s)))
    chance = random.Random(seed)
    for number in range(rounds):
        name, order = f"round {number + 1} of {rounds}", list(probes)
        chance.shuffle(order)
        for done, probe in enumerate(order):
            say(done, len(order))
            for each in taking:
                await each.take(probe)
    name = "taking odd values again"
    for each in taking:
        say(len(probes), len(probes))
        await each.take_far_ones_again(until_s=began_s + budget_s)
    return [each.fingerprint(perf_counter() - began_s) for each in taking]


def _leave_out(taking: Sequence["_Taking"], round_s: float) -> None:
    """Leave out the longest probes until a round of the rest takes no longer than this, but one of each kind stays."""
    for each in taking:
        each.begin()
    while sum(each.round_s for each in taking) > round_s:
        kept = [probe for probe in PROBES if any(probe in each.took_s for each in taking)]
        first = {probe.kind: probe for probe in reversed(kept)}
        larger = [probe for probe in kept if first[probe.kind] != probe]
        if not larger:
            return
        longest = max(larger, key=lambda probe: sum(each.spends_s(probe) for each in taking))
        for each in taking:
            if (took_s := each.took_s.pop(longest, None)) is not None:
                each.skipped[longest.name] = f"takes {seconds(took_s)}, {TOO_LONG}"


class NotTaken(Exception):
    """Raised if a server does not run a probe as it is meant."""


@dataclass
class _Taking:
    """A server while its probes are taken."""

    server: ProbedServer
    client: Client
    facts: dict[str, Any]
    seed: int
    took_s: dict[Probe, float] = field(default_factory=dict)  # in the warm-up
    values: dict[Probe, list[float]] = field(default_factory=dict)
    tokens: dict[Probe, list[int]] = field(default_factory=dict)
    cached: dict[Probe, list[float]] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    async def prepare(self, probes: Sequence[Probe], budget_s: float) -> None:
        """Learn the model's name, the server's limits, and how it counts."""
        target, client = self.server.target, self.client
        self.model = self.server.model or await only_model(client, target)
        self.prompts = BenchPrompts(target, self.model, self.seed)
        limits = (await client.models()).get(self.model), self.facts.get("context")
        self.limit = min((limit for limit in limits if isinstance(limit, int)), default=None)
        self.slots = self.facts.get("slots")
        longest = min(2048, self.limit or 2048)
        counted = BenchPrompts(target, self.model, _COUNTED_SEED)
        _, notes = await learn(client, counted, target, self.model, longest // 2)
        self.prompts.scale, self.prompts.extras, self.prompts.limit_name = (
            counted.scale, counted.extras, counted.limit_name,
        )  # fmt: skip
        self.notes += notes

    async def try_out(self, probe: Probe, most_s: float, is_late: bool) -> None:
        """Take a probe for the first time, or say why it is left out."""
        reason = self._unfit(probe, most_s)
        if is_late and any(other.kind is probe.kind for other in self.took_s):
            reason = reason or f"{TOO_LONG}, with those before it"
        if reason:
            self.skipped[probe.name] = reason
            return
        for _ in range(2):  # what compiles when it is first met is not as slow the second time
            began_s = perf_counter()
            try:
                await self._value(probe)
            except NotTaken as refused:
                self.skipped[probe.name] = str(refused)
                return
            self.took_s[probe] = perf_counter() - began_s
            if not most_s < self.took_s[probe] < _PART * most_s:
                return

    def _unfit(self, probe: Probe, most_s: float) -> str | None:
        """Return why a probe cannot be taken, as far as the server's limits and the smaller ones of its kind tell."""
        if self.limit is not None and probe.longest > _SURE_TO_FIT * self.limit:
            return f"longer than the {self.limit:,} tokens that the server takes"
        if isinstance(self.slots, int) and probe.running > self.slots:
            return f"the server runs {plural(self.slots, 'request')} at once"
        for other in PROBES:
            smaller = other.users <= probe.users and other.prompt_tokens <= probe.prompt_tokens
            if other.kind is not probe.kind or not smaller or other == probe:
                continue
            if other.name in self.skipped:
                return f"larger than {other.name}: {self.skipped[other.name].rpartition(': ')[2]}"
            if (took_s := self.took_s.get(other, 0.0)) > most_s:
                return f"{other.name} takes {seconds(took_s)} already, {TOO_LONG}"
        return None

    def begin(self) -> None:
        """Forget the warm-up; refuse a server that runs no probe."""
        if not self.took_s:
            reasons = "; ".join(dict.fromkeys(self.skipped.values()))
            raise BadInput(f"no probe could be taken: {shorten(reasons, 200)}", where=self.server.target.shown)
        self.tokens.clear()
        self.cached.clear()

    @property
    def round_s(self) -> float:
        return sum(map(self.spends_s, self.took_s))

    def spends_s(self, probe: Probe) -> float:
        """Return how long a probe takes in a round, with its repeats."""
        return self._repeats(probe) * self.took_s[probe] if probe in self.took_s else 0.0

    def _repeats(self, probe: Probe) -> int:
        return min(_MOST_REPEATS, math.ceil(_LONG_ENOUGH_S / max(self.took_s[probe], 1e-6)))

    async def take(self, probe: Probe) -> None:
        """Take a probe as often as one round asks for, and keep the median."""
        if probe not in self.took_s:
            return
        try:
            taken = [await self._value(probe) for _ in range(self._repeats(probe))]
        except NotTaken as refused:  # at times; it would compare unlike loads
            self.took_s.pop(probe)
            self.skipped[probe.name] = str(refused)
            return
        self.values.setdefault(probe, []).append(statistics.median(taken))

    async def take_far_ones_again(self, until_s: float) -> None:
        for probe in tuple(self.took_s):
            values = self.values[probe]
            usual_s = statistics.median(values)
            for place in [place for place, value in enumerate(values) if value > _FAR * usual_s]:
                if perf_counter() < until_s and probe in self.took_s:
                    before = len(values)
                    await self.take(probe)
                    if len(values) > before:
                        values[place] = values.pop()

    def fingerprint(self, took_s: float) -> Fingerprint:
        times = []
        for probe in PROBES:
            if probe not in self.took_s:
                continue
            shares = self.cached.get(probe)
            times.append(
                ProbeTimes(
                    probe=probe,
                    tokens=round(statistics.fmean(self.tokens[probe]), 1),
                    seconds=tuple(round(value, PLACES) for value in self.values[probe]),
                    cached_share=round(statistics.fmean(shares), 3) if shares else None,
                )
            )
        return Fingerprint(
            made=datetime.now(UTC),
            server=self.server.target.shown,
            model=self.model,
            took_s=round(took_s, 1),
            engine=self.facts,
            machine=machine_facts(),
            tokens_per_word=round(self.prompts.scale.tokens_per_word, 4),
            probes=tuple(times),
            skipped={probe.name: self.skipped[probe.name] for probe in PROBES if probe.name in self.skipped},
            notes=tuple(self.notes),
        )

    # --- one probe --------------------------------------------------------------------------------------------------

    async def _value(self, probe: Probe) -> float:
        """Take a probe once; return its time in seconds."""
        take = {
            ProbeKind.prompt: self._prompt,
            ProbeKind.again: self._again,
            ProbeKind.burst: self._burst,
            ProbeKind.decode: self._decode,
            ProbeKind.beside: self._beside,
        }[probe.kind]
        return await take(probe)

    async def _prompt(self, probe: Probe) -> float:
        return _whole_s(await self._ask(probe, self.prompts.request(probe.prompt_tokens, 1)))

    async def _again(self, probe: Probe) -> float:
        asked = self.prompts.request(probe.prompt_tokens, 1)
        await self._ask(probe, asked)
        reply = await self._ask(probe, asked)
        if reply.cached_tokens is not None:
            self.cached.setdefault(probe, []).append(reply.cached_tokens / max(1, reply.input_tokens))
        return _whole_s(reply)

    async def _burst(self, probe: Probe) -> float:
        asked = [self.prompts.request(probe.prompt_tokens, 1) for _ in range(probe.users)]
        replies = await self._together(probe, asked)
        return max(reply.end_s for reply in replies) - min(reply.sent_s for reply in replies)

    async def _decode(self, probe: Probe) -> float:
        asked = [self.prompts.request(probe.prompt_tokens, probe.answer) for _ in range(probe.users)]
        return step_s(await self._together(probe, asked))

    async def _beside(self, probe: Probe) -> float:
        """Send prompts one after another beside answers; break these off when the last prompt is answered."""
        longest = _LONG_ANSWER if self.limit is None else min(_LONG_ANSWER, round(_SURE_TO_FIT * self.limit) - SHORT)
        waiting, all_began = [probe.users], asyncio.Event()

        def began() -> None:
            waiting[0] -= 1
            if not waiting[0]:
                all_began.set()

        async def answer() -> None:
            asked = self.prompts.request(SHORT, longest)
            reply = await self.client.ask(asked, perf_counter(), began=began)
            self._check(probe, reply)

        answers = [asyncio.create_task(answer()) for _ in range(probe.users)]
        begun = asyncio.create_task(all_began.wait())
        try:
            await asyncio.wait([begun, *answers], return_when=asyncio.FIRST_COMPLETED)
            taken: list[float] = []
            while begun.done() and not any(each.done() for each in answers) and len(taken) < _BESIDE:
                taken.append(await self._prompt(probe))
            ended = [each for each in answers if each.done()]
        finally:
            for each in (begun, *answers):
                each.cancel()
            failed = await asyncio.gather(*answers, return_exceptions=True)
        for problem in failed:
            if isinstance(problem, BadInput | NotTaken):
                raise problem
        if ended:
            raise NotTaken("answers did not run at once, or ended before the prompts beside them")
        await self._prompt(Probe(kind=ProbeKind.prompt, prompt_tokens=SHORT))  # until what was broken off has left
        return statistics.median(taken)

    async def _together(self, probe: Probe, asked: Iterable[Asked]) -> list[Reply]:
        due_s = perf_counter()
        replies = await asyncio.gather(*map(partial(self.client.ask, due_s=due_s), asked))
        for reply in replies:
            self._check(probe, reply)
        return replies

    async def _ask(self, probe: Probe, asked: Asked) -> Reply:
        reply = await self.client.ask(asked, perf_counter())
        self._check(probe, reply)
        return reply

    def _check(self, probe: Probe, reply: Reply) -> None:
        if reply.error is None:
            self.tokens.setdefault(probe, []).append(reply.input_tokens)
            return
        if reply.status in _REFUSALS:
            raise NotTaken(f"refused: {reply.error}")
        fix = "Nothing was kept. See the server's log: it may have ended, or run out of memory."
        raise BadInput(f"{probe.name}: {reply.error}", where=self.server.target.shown, fix=fix)


def _whole_s(reply: Reply) -> float:
    """Return a request's time to the end of its answer: a token without text has no time of its own."""
    return reply.end_s - reply.sent_s


def step_s(replies: Sequence[Reply]) -> float:
    """Return the time of one step while all these answers run: from the last one's first token to the first one's end.

    Chunks are not tokens, so those within that time count as their share of the answer's tokens.
    """
    arrivals = []
    for reply in replies:
        at_s = [reply.end_s if reply.first_s is None else reply.first_s]
        for gap_s, pieces in zip(reply.gaps_s, reply.pieces, strict=True):
            at_s += [at_s[-1] + gap_s * pieces] * pieces
        arrivals.append(at_s)
    since_s, until_s = max(at_s[0] for at_s in arrivals), min(at_s[-1] for at_s in arrivals)
    if since_s >= until_s:
        raise NotTaken(f"the server {AT_ONCE} {plural(len(replies), 'answer')} at once")
    steps = []
    for reply, at_s in zip(replies, arrivals, strict=True):
        inside = sum(since_s < each <= until_s for each in at_s)
        steps.append(inside * (reply.output_tokens - 1) / max(1, len(at_s) - 1))
    together = statistics.fmean(steps)
    if together < _TOGETHER * (ANSWER - 1):
        raise NotTaken(f"{plural(len(replies), 'answer')} {TOO_FAR_APART}")
    return (until_s - since_s) / together
