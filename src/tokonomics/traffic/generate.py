"""Made-up traffic with the structure of real one: shared system prompts, conversations that grow, tenants.

Arrivals start conversations (each of one request unless told otherwise). A turn's prompt is the whole conversation so
far and the user's new tokens; the next turn arrives a think time after it. Prompts name the blocks that others share:
those of the system prompt and, in conversations, every whole block of the prompt and of its answer, so that the next
turn's blocks begin with them. Shares of system prompts and tenants follow Zipf's law.
"""

import math
import re
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from tokonomics.errors import BadInput, option
from tokonomics.memory_budget import check_room
from tokonomics.traffic.arrivals import MOST_REQUESTS, Arrivals, draw_arrivals
from tokonomics.traffic.grammar import Phrase, read_options
from tokonomics.traffic.lengths import Lengths, draw_lengths
from tokonomics.traffic.trace import Counts, Floats, PrefixBlocks, Trace

BLOCK_TOKENS = 64
ENOUGH_REQUESTS = 20_000
"""To judge a deployment by: 200 lie beyond a p99, and a batch of 1,024 fills and empties twenty times."""
_BYTES_PER_TURN, _BYTES_PER_BLOCK = 110, 35
"""While they are made: peaks over 2 million turns of conversations, and over 50 million blocks of system prompts."""


@dataclass(frozen=True)
class SystemPrompts:
    """So many texts of so many tokens, one at the head of each prompt; the r-th is chosen in proportion to 1/r^skew."""

    count: int
    tokens: int
    skew: float = 1.0


@dataclass(frozen=True)
class Sessions:
    """Conversations: a geometric number of turns, exponential times from one turn's arrival to the next."""

    turns: float  # mean, at least 1
    think_s: float = 30.0  # mean; counts from arrival to arrival, so it holds the answer's own time
    limit: int = 131_072
    """A conversation ends before prompt and answer pass so many tokens: 128 Ki, the window of Llama 3.1 and others."""


@dataclass(frozen=True)
class Tenants:
    """Customers; the r-th sends in proportion to 1/r^skew."""

    count: int
    skew: float = 1.0
    priorities: tuple[int, ...] = ()  # one for each tenant, smaller is more urgent; empty: all alike


def generate(
    arrivals: Arrivals,
    inputs: Lengths,
    outputs: Lengths,
    *,
    requests: int | None = None,
    duration_s: float | None = None,
    seed: int = 0,
    system: SystemPrompts | None = None,
    sessions: Sessions | None = None,
    tenants: Tenants | None = None,
    block_tokens: int = BLOCK_TOKENS,
) -> Trace:
    """The first ``requests``, or those before ``duration_s``; equal seeds give equal traces.

    ``inputs`` are the user's own tokens: the system prompt and the conversation so far come on top.
    """
    if not 0 <= seed < 2**63:
        raise BadInput(f"must be a whole number from 0, got {seed}", field="seed")
    system = system or SystemPrompts(count=1, tokens=0)
    streams = np.random.SeedSequence(seed).spawn(4)
    rng = np.random.default_rng(streams[1])
    if sessions is None:
        starts = draw_arrivals(arrivals, requests=requests, duration_s=duration_s, seed=streams[0])
        user, answer = draw_lengths(inputs, outputs, len(starts), rng)
        talk = _Talk(starts, np.arange(len(starts)), np.zeros(len(starts), np.int64), user, answer, len(starts))
    else:
        talk = _conversations(arrivals, sessions, inputs, outputs, system.tokens, requests, duration_s, streams[0], rng)
    trace = Trace(
        arrival_s=talk.arrival_s,
        input_tokens=(talk.history + talk.user + system.tokens).astype(np.int32),
        output_tokens=talk.answer,
        prefix=_prefix(talk, system, np.random.default_rng(streams[2]), block_tokens, whole=sessions is not None),
        source=arrivals.text,
    )
    return _with_tenants(trace, tenants, talk, np.random.default_rng(streams[3]))


@dataclass(frozen=True)
class _Talk:
    """Requests by arrival, with the conversation each belongs to and the tokens said in it before."""

    arrival_s: Floats
    session: NDArray[np.int64]
    history: NDArray[np.int64]
    user: Counts
    answer: Counts
    number: int  # conversations

    def take(self, chosen: NDArray[np.intp]) -> "_Talk":
        names = ("arrival_s", "session", "history", "user", "answer")
        return replace(self, **{name: getattr(self, name)[chosen] for name in names})


def _conversations(
    arrivals: Arrivals,
    sessions: Sessions,
    inputs: Lengths,
    outputs: Lengths,
    head: int,
    requests: int | None,
    duration_s: float | None,
    seed: np.random.SeedSequence,
    rng: np.random.Generator,
) -> _Talk:
    """All turns of enough conversations: none that starts later could have a turn among the first ``requests``."""
    enough = None if requests is None else math.ceil(requests / sessions.turns * 1.1) + 100
    while True:
        number = None if requests is None or enough is None else min(enough, requests)
        starts = draw_arrivals(arrivals, requests=number, duration_s=duration_s, seed=seed)
        talk = _turns(starts, sessions, head, inputs, outputs, rng)
        talk = talk.take(np.argsort(talk.arrival_s, kind="stable"))
        if duration_s is not None:
            talk = talk.take(np.flatnonzero(talk.arrival_s < duration_s))
        if requests is None or enough is None:
            return talk
        complete = len(starts) < min(enough, requests) or enough >= requests
        if complete or (len(talk.arrival_s) >= requests and talk.arrival_s[requests - 1] <= starts[-1]):
            return talk.take(np.arange(min(requests, len(talk.arrival_s))))
        enough *= 2


def _turns(
    starts: Floats, sessions: Sessions, head: int, inputs: Lengths, outputs: Lengths, rng: np.random.Generator
) -> _Talk:
    """Every turn of conversations that start then, one conversation after the other."""
    turns = rng.geometric(1 / sessions.turns, len(starts)) if sessions.turns > 1 else np.ones(len(starts), np.int64)
    if turns.sum() > MOST_REQUESTS:
        raise BadInput(f"more than {MOST_REQUESTS:,} requests", field="sessions", fix="Ask for fewer.")
    fix = f"Ask for fewer {option('requests')}, or fewer turns."
    check_room(int(turns.sum()) * _BYTES_PER_TURN, f"{turns.sum():,} turns", field="sessions", fix=fix)
    session = np.repeat(np.arange(len(starts)), turns)
    first = np.cumsum(turns) - turns
    think = rng.exponential(sessions.think_s, len(session))
    think[first] = 0.0
    user, answer = draw_lengths(inputs, outputs, len(session), rng)
    said = user.astype(np.int64) + answer
    after = _sum_within(said, first, turns)
    arrival = np.repeat(starts, turns) + _sum_within(think, first, turns)
    talk = _Talk(arrival, session, after - said, user, answer, len(starts))
    # A conversation's first turn stays even if it alone passes the limit.
    inside = (head + after <= sessions.limit) | (talk.history == 0)
    return talk if inside.all() else talk.take(np.flatnonzero(inside))


Number = TypeVar("Number", np.int64, np.float64)


def _sum_within(values: NDArray[Number], first: NDArray[np.int64], turns: NDArray[np.int64]) -> NDArray[Number]:
    """Running sums that start anew at each conversation."""
    sums = np.cumsum(values)
    return np.asarray(sums - np.repeat(sums[first] - values[first], turns))


def _prefix(
    talk: _Talk, system: SystemPrompts, rng: np.random.Generator, block_tokens: int, whole: bool
) -> PrefixBlocks | None:
    """Blocks of the system prompts first, then those of each conversation in turn.

    A request on its own lists what others share, the system prompt; a turn lists all of its prompt and answer.
    """
    shared = system.tokens // block_tokens
    said = talk.history + talk.user + talk.answer
    blocks = (system.tokens + said) // block_tokens if whole else np.full(len(said), shared)
    if not blocks.any():
        return None
    check_room(
        int(blocks.sum()) * _BYTES_PER_BLOCK,
        f"prompts of {blocks.sum():,} blocks of {block_tokens} tokens",
        fix=f"Ask for fewer {option('requests')}, shorter {option('system_prompts')}, or shorter conversations.",
    )
    longest = np.zeros(talk.number, np.int64)
    longest[talk.session] = blocks  # turns are in order: the last one, which is the longest, stays
    own = np.maximum(longest - shared, 0)
    of_system = system.count * shared
    first_own = of_system + np.cumsum(own) - own - shared
    starts = np.concatenate([[0], np.cumsum(blocks)]).astype(np.int64)
    place = np.arange(starts[-1]) - np.repeat(starts[:-1], blocks)
    ids = place + np.repeat(first_own[talk.session], blocks)
    if shared:
        at_head, first_shared = place < shared, _zipf(rng, system.count, system.skew, talk.number) * shared
        ids[at_head] = (place + np.repeat(first_shared[talk.session], blocks))[at_head]
    return PrefixBlocks(ids.astype(np.int32), starts, block_tokens, int(of_system + own.sum()))


def _with_tenants(trace: Trace, tenants: Tenants | None, talk: _Talk, rng: np.random.Generator) -> Trace:
    if tenants is None:
        return trace
    tenant = _zipf(rng, tenants.count, tenants.skew, talk.number)[talk.session].astype(np.int32)
    names = tuple(f"tenant-{place}" for place in range(1, tenants.count + 1))
    priority = np.asarray(tenants.priorities, np.int32)[tenant] if tenants.priorities else None
    return replace(trace, tenant=tenant, tenants=names, priority=priority)


def _zipf(rng: np.random.Generator, count: int, skew: float, number: int) -> NDArray[np.int64]:
    """So many draws from 0 to count − 1, the r-th in proportion to 1/(r + 1)^skew."""
    weights = np.arange(1, count + 1, dtype=np.float64) ** -skew
    edges = np.cumsum(weights) / weights.sum()
    return np.minimum(np.searchsorted(edges, rng.random(number), side="right"), count - 1)


def parse_system(text: str) -> SystemPrompts:
    """``20,tokens=1k,skew=1``: twenty system prompts of 1,000 tokens."""
    phrase = _plain(text, "system_prompts", "20,tokens=1000, 5,tokens=2k,skew=0")
    phrase.allow("tokens", "skew")
    return SystemPrompts(
        _whole(phrase, None, 10**6), _whole(phrase, "tokens", 10**7), phrase.number("skew", 0, 10, 1.0)
    )


def parse_sessions(text: str) -> Sessions:
    """``5,think=30,limit=32k``: five turns on average, half a minute apart, at most 32,000 tokens."""
    phrase = _plain(text, "sessions", "5, 5,think=30, 8,think=2m,limit=32k")
    phrase.allow("think", "limit")
    limit = _whole(phrase, "limit", 10**8, Sessions.limit)
    return Sessions(phrase.number(None, 1, 10**4), phrase.time_s("think", 0, 10**7, Sessions.think_s), limit)


def parse_tenants(text: str) -> Tenants:
    """``3,skew=1,priorities=0/1/1``: three tenants, the first of them served first."""
    phrase = _plain(text, "tenants", "10, 10,skew=1, 3,priorities=0/1/1")
    phrase.allow("skew", "priorities")
    count = _whole(phrase, None, 10**6)
    listed = phrase.options.get("priorities", "")
    parts = listed.split("/") if listed else []
    if not all(re.fullmatch(r"-?[0-9]{1,9}", part.strip()) for part in parts) or len(parts) not in (0, count):
        raise phrase.wrong(f"priorities= takes {count:,} whole numbers with / between, one for each tenant")
    return Tenants(count, phrase.number("skew", 0, 10, 1.0), tuple(int(part) for part in parts))


def _plain(text: str, field: str, examples: str) -> Phrase:
    return read_options(Phrase(text, "", None, {}, field, examples), text)


def _whole(phrase: Phrase, name: str | None, most: int, default: int | None = None) -> int:
    number = phrase.tokens(name, 1, most, default) if name else phrase.number(name, 1, most, default)
    if number != int(number):
        raise phrase.wrong(f"{f'{name}=' if name else 'the first value'} must be a whole number")
    return int(number)
