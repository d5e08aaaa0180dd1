"""Make what a load test sends: single prompts, and sessions whose turns continue with the server's own answers.

Prompts are plain English words drawn at random, of about a given number of tokens, for a server whose tokenizer is not
known. How many tokens the server makes of them, and what its chat template adds, is learned from its own count of a few
prompts. Each prompt begins with unique words, so that a prefix cache finds only the template; the rest is cut from one
long text, which is quick. If a trace names the blocks of its prompts, they share what it says: a block always gives the
same words, its number spelled in words and then text from a place of its own, and unique words follow the last block.
Blocks end where the template and the words so far make as many tokens as the trace says.

A turn of a session is sent when the answer before it has come and its pause is over. Its prompt is the conversation so
far, with the server's own answers, and new words until it is as long as asked for, by the server's own count: so its
cache finds what it would find in real use. A turn that is shorter than the conversation before starts a new one.
Branches are sent together; the turn after them continues the first and quotes the answers of the others. A job ends if
one of its turns fails. With users, each runs one job after the other; with times, jobs start when they are due,
whatever happens to others.
"""

import asyncio
import json
import random
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from time import perf_counter
from typing import NamedTuple

from tokonomics.addresses import BenchTarget
from tokonomics.measure.bench.client import Asked, Client, Reply
from tokonomics.measure.bench.loads import Heard, LoadWindow, Spent, Stopping, measured, until_ended
from tokonomics.traffic.trace import Counts, Trace

_PLAIN = (
    "time year people way day man thing woman life child world school state family student group country problem hand "
    "part place case week company system program question work government number night point home water room mother "
    "area money story fact month lot right study book eye job word business issue side kind head house service friend "
    "father power hour game line end member law car city community name president team minute idea body information "
    "back parent face others level office door health person art war history party result change morning reason "
    "research girl guy moment air teacher force education"
)
WORDS = _PLAIN.split()

_TEXT_WORDS = 40_000
_HERE = "@@@"  # where the prompt goes; no model's name contains it
_KEPT_TOKENS = 1 << 21  # of blocks that may be sent again: 40 MB for blocks of 16 tokens (tracemalloc), else less
_OWN_WORDS = 12  # at the start of a prompt: 100 words to the twelfth power is more prompts than anyone sends


class Message(NamedTuple):
    """One part of a conversation."""

    role: str
    content: str


class Scale(NamedTuple):
    """How the server counts: tokens of its template, and tokens per word."""

    fixed_tokens: float
    tokens_per_word: float

    def words(self, tokens: int) -> int:
        """Return how many words make about that many tokens; at least one."""
        return max(1, round((tokens - self.fixed_tokens) / self.tokens_per_word))


def scale_from(words: tuple[int, int], tokens: tuple[int, int]) -> Scale:
    """Return the line through two counted prompts."""
    slope = (tokens[1] - tokens[0]) / (words[1] - words[0])
    if slope <= 0:  # the server's counts are useless: count a word as a token
        return Scale(0.0, 1.0)
    return Scale(max(0.0, tokens[0] - slope * words[0]), slope)


class BenchPrompts:
    """Makes requests; equal seeds make equal ones."""

    def __init__(self, target: BenchTarget, model: str, seed: int, block_tokens: int = 0) -> None:
        self._random = random.Random(seed)
        words = self._random.choices(WORDS, k=_TEXT_WORDS)
        self._text = "".join(f" {word}" for word in words).encode()
        self._ends = [0, *accumulate(len(word) + 1 for word in words)]
        self._digits = [f" {word}".encode() for word in self._random.sample(WORDS, len(WORDS))]
        self._target, self._model, self._block_tokens = target, model, block_tokens
        self._block = lru_cache(_KEPT_TOKENS // max(1, block_tokens))(self._spelled)
        self._made: dict[tuple[int, str, bool], tuple[bytes, bytes]] = {}
        self.scale = Scale(0.0, 1.0)
        self.extras: dict[str, object] = {"ignore_eos": True}  # not standard; left out for servers that refuse it
        self.limit_name = "max_tokens"

    def request(self, input_tokens: int, output_tokens: int, blocks: Counts | None = None) -> Asked:
        return self.of_words(self.scale.words(input_tokens), output_tokens, blocks)

    def of_words(self, words: int, output_tokens: int, blocks: Counts | None = None) -> Asked:
        """Return a request whose prompt has exactly this many words, and begins with those of its blocks."""
        before, after = self._around(output_tokens)
        return Asked(b"".join((before, self._words(words, blocks), after)), output_tokens)

    def head(self, tokens: int) -> tuple[Message, ...]:
        """Return what all jobs begin with, always the same; nothing for no tokens."""
        words = round(tokens / self.scale.tokens_per_word)
        listed = (self._text * (words // _TEXT_WORDS + 1)).split()[:words]
        return (Message("system", b" ".join(listed).decode()),) if words else ()

    def first_message(self, tokens: int, blocks: Counts | None = None) -> Message:
        """Return the user's first message, which makes about this many tokens with the template around it."""
        return Message("user", self._words(self.scale.words(tokens), blocks).decode())

    def message(self, tokens: int, quoted: str = "") -> Message:
        """Return about this many new tokens of a user or a tool, after a quote."""
        new = self._words(max(1, round(tokens / self.scale.tokens_per_word))).decode()
        return Message("user", f"{quoted} {new}" if quoted else new)

    def of_messages(self, messages: Sequence[Message], output_tokens: int) -> Asked:
        """Return a request that continues a conversation."""
        if self._target.chat:
            said: dict[str, object] = {"messages": [message._asdict() for message in messages]}
        else:
            said = {"prompt": " ".join(message.content for message in messages)}
        return Asked(json.dumps(self._fields(said, output_tokens)).encode(), output_tokens)

    def _words(self, words: int, blocks: Counts | None = None) -> bytes:
        """Return this many words: those of the blocks, then others that begin with words unique to this prompt."""
        parts: list[bytes] = []
        shared = 0
        for place, block in enumerate(() if blocks is None else blocks.tolist(), 1):
            start, shared = shared, min(words, self.scale.words(place * self._block_tokens))
            if shared > start:
                parts.append(self._block(block, shared - start))
        own = min(words - shared, _OWN_WORDS)
        parts += [f" {word}".encode() for word in self._random.choices(WORDS, k=own)]
        parts += self._text_from(self._random.randrange(_TEXT_WORDS), words - shared - own)
        return b"".join(parts)[1:]

    def _spelled(self, block: int, words: int) -> bytes:
        """Return the first words of a block: its number, so that no other block begins alike, and then text."""
        parts: list[bytes] = []
        left = block
        while len(parts) < words and (left or not parts):
            left, digit = divmod(left, len(WORDS))
            parts.append(self._digits[digit])
        parts += self._text_from(block * self._block_tokens % _TEXT_WORDS, words - len(parts))
        return b"".join(parts)

    def _text_from(self, start: int, words: int) -> list[bytes]:
        """Return this many words of the text from a place on, over and over."""
        parts = []
        while words > 0:
            end = min(start + words, _TEXT_WORDS)
            parts.append(self._text[self._ends[start] : self._ends[end]])
            start, words = 0, words - (end - start)
        return parts

    def _around(self, output_tokens: int) -> tuple[bytes, bytes]:
        """Return the JSON before and after the prompt: plain words need no escaping, which saves time."""
        settings = (output_tokens, self.limit_name, bool(self.extras))
        if settings not in self._made:
            chat: dict[str, object] = {"messages": [{"role": "user", "content": _HERE}]}
            fields = self._fields(chat if self._target.chat else {"prompt": _HERE}, output_tokens)
            before, _, after = json.dumps(fields).encode().partition(_HERE.encode())
            self._made[settings] = before, after
        return self._made[settings]

    def _fields(self, said: dict[str, object], output_tokens: int) -> dict[str, object]:
        fields = {"model": self._model, **said, self.limit_name: output_tokens, "stream": True}
        return fields | {"stream_options": {"include_usage": True}, **self.extras}


@dataclass(frozen=True)
class Turn:
    """One request of a job: its length, and the turns whose answers it waits for."""

    input_tokens: int
    output_tokens: int
    waits_for: tuple[int, ...]
    pause_s: float
    number: int  # of the turn, from 1
    blocks: Counts | None  # with which its prompt begins if it continues no conversation


@dataclass(frozen=True)
class SessionJob:
    """The turns of one session, in order, and when it starts."""

    start_s: float
    turns: tuple[Turn, ...]


@dataclass(frozen=True)
class _Said:
    """A turn that was answered: the conversation including its answer."""

    messages: tuple[Message, ...]
    reply: Reply

    @property
    def tokens(self) -> int:
        return self.reply.input_tokens + self.reply.output_tokens


def jobs_of(trace: Trace) -> list[SessionJob]:
    """Return the sessions of a trace, by when they start."""
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
                blocks=None if trace.prefix is None else trace.prefix.blocks_of(request),
            )
            for request in requests
        ]
        jobs.append(SessionJob(float(trace.arrival_s[requests[0]]), tuple(listed)))
    return sorted(jobs, key=lambda job: job.start_s)


class SessionRunner:
    """Runs jobs until the load has ended, and passes on each reply as it comes."""

    def __init__(self, client: Client, prompts: BenchPrompts, window: LoadWindow, head_tokens: int) -> None:
        self.client, self._prompts, self._window = client, prompts, window
        self._head = prompts.head(head_tokens)
        self._head_tokens = head_tokens
        self._jobs = 0
        self.took_s: list[float] = []
        """Seconds from when the first request was due to the last answer, for jobs that ended within the window."""

    async def run(self, job: SessionJob, heard: Heard, due_s: float) -> bool:
        """Send all turns of a job; False if one failed or the load ended, and the turns after it are not sent."""
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
        """Wait; False if the load ends before."""
        while not self._window.ended.is_set():
            wait_s = due_s - perf_counter()
            if wait_s <= 0:
                return True
            with suppress(TimeoutError):
                await asyncio.wait_for(self._window.ended.wait(), wait_s)
        return False

    def _messages(self, turn: Turn, said: list[_Said]) -> tuple[Message, ...]:
        """Return the conversation so far and what is new."""
        first = max(said, key=lambda one: one.tokens, default=None)
        if first is None or first.tokens >= turn.input_tokens:
            own = max(1, turn.input_tokens - self._head_tokens)
            return (*self._head, self._prompts.first_message(own, turn.blocks))
        others = [one for one in said if one is not first]
        quoted = " ".join(one.reply.text for one in others)
        left = turn.input_tokens - first.tokens - sum(one.reply.output_tokens for one in others)
        return (*first.messages, self._prompts.message(max(1, left), quoted=quoted))


async def sessions_when_due(
    runner: SessionRunner, jobs: Sequence[SessionJob], stopping: Stopping, spent: Spent, window: LoadWindow
) -> None:
    """Start jobs at their times, until there are no more or the measurement has enough."""

    def is_over(now_s: float) -> bool:
        if window.stopped is None and (reason := stopping.reason(now_s - opened_s, spent())) is not None:
            window.stopped = reason
            window.ended.set()
        return window.ended.is_set()

    def heard(reply: Reply) -> None:
        measured(window, reply, stopping)
        window.closed_s = reply.end_s
        is_over(reply.end_s)

    window.phase = "measuring"
    window.opened_s = opened_s = perf_counter()
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(runner.run(job, heard, opened_s + job.start_s)) for job in jobs]
        await until_ended(runner.client, tasks, stopping, window, is_over)
    window.stopped = window.stopped or "every request was sent"
    window.phase = "draining"
