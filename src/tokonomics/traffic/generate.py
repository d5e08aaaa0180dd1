"""Generate traffic with the structure of real traffic: shared system prompts, growing conversations, agents, tenants.

Arrivals start sessions, by default of one request. A turn's prompt is the whole conversation so far and the new tokens
of the user or the tool; it waits for the answer before it and is sent a pause later (``Turns``). The arrival time of a
later turn is where it would fall at a usual speed. A turn may have a branch beside it, which waits for the same
answers; the next turn waits for both and reads both. Prompts name the blocks that others share: those of the system
prompt and, in conversations, every whole block of the prompt and of its answer, so that the next turn's blocks begin
with them. Shares of system prompts and tenants follow Zipf's law.

Jobs of agents follow published figures: calls, what tools add to the prompt, answers, and tool times.
``data/agents.json`` holds the mean and some quantiles of each, with its sources (``benchmarks/reduce_agents.py``).
Between two quantiles the logarithm is interpolated, and all draws are scaled so that their mean is the published one.
"""

import json
import math
import re
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from tokonomics.errors import BadInput, nearest, option, shorten
from tokonomics.memory_budget import check_room
from tokonomics.traffic.arrivals import MOST_REQUESTS, Arrivals, draw_arrivals
from tokonomics.traffic.formats import FOLDER
from tokonomics.traffic.grammar import Phrase, unnamed_phrase
from tokonomics.traffic.lengths import Lengths, draw_lengths
from tokonomics.traffic.trace import Counts, Floats, PrefixBlocks, Trace, Turns

DEFAULT = "coding"
_FINE = 10_000  # points for computing the mean of a table


@dataclass(frozen=True)
class Quantiles:
    """A distribution by its mean and some of its quantiles, from rank 0 to rank 1; all above 0."""

    mean: float
    ranks: tuple[float, ...]
    values: tuple[float, ...]

    def draw(self, rng: np.random.Generator, number: int) -> Floats:
        """Draw ``number`` values, one from each of as many equal parts, in random order."""
        parts = (rng.permutation(number) + rng.random(number)) / max(number, 1)
        return self._at(parts) * (self.mean / float(self._at((np.arange(_FINE) + 0.5) / _FINE).mean()))

    def _at(self, ranks: Floats) -> Floats:
        return np.asarray(np.exp(np.interp(ranks, self.ranks, np.log(self.values))), np.float64)


@dataclass(frozen=True)
class Agent:
    """The figures that describe one job of an agent."""

    name: str
    what: str
    source: str
    head_tokens: int  # of the system prompt and the tools, which all jobs share
    calls: Quantiles
    first: Quantiles  # tokens of the first prompt after the shared head
    added: Quantiles  # tokens that each later prompt adds to those before it and their answers
    answer: Quantiles
    pause_s: Quantiles  # from an answer to the next call: the time of tools

    @property
    def inputs(self) -> Lengths:
        return Lengths(f"agent:{self.name}", lambda rng, number: np.maximum(self.added.draw(rng, number), 1))

    @property
    def outputs(self) -> Lengths:
        return Lengths(
            f"answers of agent:{self.name}", lambda rng, number: np.maximum(self.answer.draw(rng, number), 1)
        )


@cache
def agent_named(name: str) -> Agent:
    """Return one of the described agents."""
    agents: dict[str, Any] = json.loads((FOLDER / "agents.json").read_text(encoding="utf-8"))
    if name not in agents:
        known = ", ".join(f"agent:{key}" for key in agents)
        raise BadInput(f"no agent '{shorten(name, 30)}' is described", field="sessions", fix=f"There are: {known}.")
    figures = agents[name]
    for figure in ("calls", "first", "added", "answer", "pause_s"):
        ranks, values = zip(*figures[figure]["quantiles"], strict=True)
        figures[figure] = Quantiles(figures[figure]["mean"], ranks, values)
    return Agent(name=name, **figures)


AGENT = "agent"  # what sessions that are jobs of an agent begin with
BLOCK_TOKENS = 64
ENOUGH_REQUESTS = 20_000
"""Enough to judge a deployment: 200 lie beyond a p99, and a batch of 1,024 fills and empties twenty times."""
USUAL_TPOT_S = 0.05
"""The time per token that decides roughly when turns arrive: a common SLO, and slower than most deployments."""
_BYTES_PER_TURN, _BYTES_PER_BLOCK = 160, 35
"""Memory while traffic is generated: peaks for 2 million turns, and for 50 million blocks of system prompts."""


@dataclass(frozen=True)
class SystemPrompts:
    """Texts of equal length, one at the head of each prompt; the r-th is chosen in proportion to 1/r^skew."""

    count: int
    tokens: int
    skew: float = 1.0


@dataclass(frozen=True)
class Sessions:
    """Conversations with a geometric number of turns and exponential pauses; or jobs of an agent, with its figures."""

    turns: float  # mean, at least 1
    think_s: float = 30.0  # mean, from an answer to the next turn
    limit: int = 131_072
    """A conversation ends before prompt and answer exceed this many tokens; the default is Llama 3.1's context."""
    branches: float = 0.0  # share of the turns after the first that have a branch beside them
    agent: Agent | None = None
    text: str = field(default="", compare=False)  # as the user wrote it

    def draw_turns(self, rng: np.random.Generator, sessions: int) -> NDArray[np.int64]:
        """Draw the number of turns of each session."""
        if self.agent:
            calls = replace(self.agent.calls, mean=self.turns).draw(rng, sessions)
            return np.maximum(np.rint(calls), 1).astype(np.int64)
        return rng.geometric(1 / self.turns, sessions) if self.turns > 1 else np.ones(sessions, np.int64)

    def draw_pauses(self, rng: np.random.Generator, turns: int) -> Floats:
        """Draw the pause in seconds before each turn."""
        if self.agent and self.think_s > 0:
            return replace(self.agent.pause_s, mean=self.think_s).draw(rng, turns)
        return rng.exponential(self.think_s, turns)

    def seconds(self, mean_answer: float) -> float:
        """Return the mean time of a session at a usual speed."""
        return self.turns * (self.think_s + mean_answer * USUAL_TPOT_S)


@dataclass(frozen=True)
class Tenants:
    """Customers; the r-th sends requests in proportion to 1/r^skew."""

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
    """Generate the first ``requests``, or those before ``duration_s``; equal seeds give equal traces.

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
        none = np.zeros(len(starts), np.int64)
        talk = _Talk(
            starts, np.arange(len(starts)), none, none, none == 1, np.zeros(len(starts)), user, answer, len(starts)
        )
    else:
        talk = _conversations(arrivals, sessions, inputs, outputs, system.tokens, requests, duration_s, streams[0], rng)
    source = arrivals.text
    if sessions is not None:  # the rate in the arrivals' text is that of sessions, not of requests
        is_poisson = arrivals.text.partition(":")[0].strip().lower() == "poisson"
        started = "" if is_poisson else f", started by {arrivals.text}"
        source = f"sessions {sessions.text or f'{sessions.turns:g}'}{started}"
    trace = Trace(
        arrival_s=talk.arrival_s,
        input_tokens=(talk.history + talk.user + system.tokens).astype(np.int32),
        output_tokens=talk.answer,
        prefix=_prefix(talk, system, np.random.default_rng(streams[2]), block_tokens, whole=sessions is not None),
        turns=None if sessions is None else _who_waits(talk),
        source=source,
    )
    if tenants is None:
        return trace
    rng = np.random.default_rng(streams[3])
    tenant = _zipf(rng, tenants.count, tenants.skew, talk.number)[talk.session].astype(np.int32)
    names = tuple(f"tenant-{place}" for place in range(1, tenants.count + 1))
    priority = np.asarray(tenants.priorities, np.int32)[tenant] if tenants.priorities else None
    return replace(trace, tenant=tenant, tenants=names, priority=priority)


@dataclass(frozen=True)
class _Talk:
    """Requests by arrival, with the conversation of each and the tokens said in it before."""

    arrival_s: Floats
    session: NDArray[np.int64]
    turn: NDArray[np.int64]  # from 0
    history: NDArray[np.int64]
    is_branch: NDArray[np.bool_]
    pause_s: Floats
    user: Counts
    answer: Counts
    number: int  # conversations

    def take(self, chosen: NDArray[np.intp]) -> "_Talk":
        taken: dict[str, Any] = {name: getattr(self, name)[chosen] for name in _COLUMNS}
        return replace(self, **taken)

    def beside(self, others: "_Talk") -> "_Talk":
        """Return both, one after the other."""
        both: dict[str, Any] = {name: np.concatenate([getattr(self, name), getattr(others, name)]) for name in _COLUMNS}
        return replace(self, **both)


_COLUMNS = ("arrival_s", "session", "turn", "history", "is_branch", "pause_s", "user", "answer")  # of a ``_Talk``


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
    """Generate whole conversations in order of their start; if ``requests`` is given, the last one may be cut."""
    number = None if requests is None else min(math.ceil(requests / sessions.turns * 1.1) + 100, requests)
    while True:
        starts = draw_arrivals(arrivals, requests=number, duration_s=duration_s, seed=seed)
        talk = _turns(starts, sessions, head, inputs, outputs, rng)
        if requests is None or number is None or len(talk.session) >= requests:
            break
        if len(starts) < number or number == requests:
            break
        number = min(2 * number, requests)
    if requests is not None:
        talk = talk.take(np.argsort(talk.session, kind="stable")[:requests])
    return talk.take(np.argsort(talk.arrival_s, kind="stable"))


def _turns(
    starts: Floats, sessions: Sessions, head: int, inputs: Lengths, outputs: Lengths, rng: np.random.Generator
) -> _Talk:
    """Return every turn of conversations with these starts: one conversation after the other, then the branches."""
    turns = sessions.draw_turns(rng, len(starts))
    if turns.sum() > MOST_REQUESTS:
        raise BadInput(f"more than {MOST_REQUESTS:,} requests", field="sessions", fix="Ask for fewer.")
    fix = f"Ask for fewer {option('requests')}, or fewer turns."
    check_room(int(turns.sum()) * _BYTES_PER_TURN, f"{turns.sum():,} turns", field="sessions", fix=fix)
    session = np.repeat(np.arange(len(starts)), turns)
    first = np.cumsum(turns) - turns
    pause = sessions.draw_pauses(rng, len(session))
    pause[first] = 0.0
    user, answer = draw_lengths(inputs, outputs, len(session), rng)
    if sessions.agent:
        user[first] = np.maximum(np.rint(sessions.agent.first.draw(rng, len(first))), 1)
    turn = np.arange(len(session)) - np.repeat(first, turns)
    chance = rng.random(len(session)) if sessions.branches else np.ones(len(session))
    branched = np.flatnonzero((chance < sessions.branches) & (turn > 0))
    beside = draw_lengths(inputs, outputs, len(branched), rng)
    heard = answer.astype(np.int64)
    heard[branched] += beside[1]  # the next turn reads what the branch answered as well
    said = user.astype(np.int64) + heard
    after = _sum_within(said, first, turns)
    before_s = np.concatenate([[0.0], answer[:-1] * USUAL_TPOT_S])
    before_s[first] = 0.0
    arrival = np.repeat(starts, turns) + _sum_within(pause + before_s, first, turns)
    talk = _Talk(arrival, session, turn, after - said, np.zeros(len(session), bool), pause, user, answer, len(starts))
    # A conversation's first turn stays even if it alone passes the limit.
    inside = (head + after <= sessions.limit) | (turn == 0)
    kept = talk if inside.all() else talk.take(np.flatnonzero(inside))
    if not len(branched):
        return kept
    twins = talk.take(branched)
    twins = replace(twins, user=beside[0], answer=beside[1], is_branch=np.ones(len(branched), bool))
    fits = inside[branched] & (head + twins.history + beside[0] + beside[1] <= sessions.limit)
    return kept.beside(twins.take(np.flatnonzero(fits)))


def _who_waits(talk: _Talk) -> Turns:
    """Return the turns, where each turn waits for everything in its conversation's previous turn."""
    width = int(talk.turn.max(initial=0)) + 2
    key = talk.session * width + talk.turn
    order = np.argsort(key, kind="stable")
    low, high = (np.searchsorted(key[order], key - 1, side=side) for side in ("left", "right"))
    counts = np.where(talk.turn > 0, high - low, 0)
    starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    place = np.repeat(low - starts[:-1], counts) + np.arange(starts[-1])
    _, session = np.unique(talk.session, return_inverse=True)
    pause = np.where(counts > 0, talk.pause_s, 0.0)
    return Turns(order[place].astype(np.int32), starts, pause, session.astype(np.int32))


Number = TypeVar("Number", np.int64, np.float64)


def _sum_within(values: NDArray[Number], first: NDArray[np.int64], turns: NDArray[np.int64]) -> NDArray[Number]:
    """Return running sums that start anew at each conversation."""
    sums = np.cumsum(values)
    return np.asarray(sums - np.repeat(sums[first] - values[first], turns))


def _prefix(
    talk: _Talk, system: SystemPrompts, rng: np.random.Generator, block_tokens: int, whole: bool
) -> PrefixBlocks | None:
    """Number the blocks of the system prompts first, then those of each conversation in turn.

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
    # A branch shares what was said before it; the rest of it is its own.
    apart = np.where(talk.is_branch, blocks - np.minimum((system.tokens + talk.history) // block_tokens, blocks), 0)
    longest = np.zeros(talk.number, np.int64)
    np.maximum.at(longest, talk.session, blocks - apart)
    own = np.maximum(longest - shared, 0)
    of_system = system.count * shared
    first_own = of_system + np.cumsum(own) - own - shared
    starts = np.concatenate([[0], np.cumsum(blocks)]).astype(np.int64)
    place = np.arange(starts[-1]) - np.repeat(starts[:-1], blocks)
    ids = place + np.repeat(first_own[talk.session], blocks)
    if shared:
        at_head, first_shared = place < shared, _zipf(rng, system.count, system.skew, talk.number) * shared
        ids[at_head] = (place + np.repeat(first_shared[talk.session], blocks))[at_head]
    distinct = int(of_system + own.sum())
    if apart.any():
        of_branch = place >= np.repeat(blocks - apart, blocks)
        ids[of_branch] = distinct + np.arange(int(apart.sum()))
        distinct += int(apart.sum())
    return PrefixBlocks(ids.astype(np.int32), starts, block_tokens, distinct)


def _zipf(rng: np.random.Generator, count: int, skew: float, number: int) -> NDArray[np.int64]:
    """Draw ``number`` values from 0 to count − 1, the r-th in proportion to 1/(r + 1)^skew."""
    weights = np.arange(1, count + 1, dtype=np.float64) ** -skew
    edges = np.cumsum(weights) / weights.sum()
    return np.minimum(np.searchsorted(edges, rng.random(number), side="right"), count - 1)


def parse_system(text: str) -> SystemPrompts:
    """Read ``20,tokens=1k,skew=1``: twenty system prompts of 1,000 tokens."""
    phrase = unnamed_phrase(text, "system_prompts", "20,tokens=1000, 5,tokens=2k,skew=0")
    phrase.allow("tokens", "skew")
    count, tokens = _whole(phrase, None, 10**6), _whole(phrase, "tokens", 10**7)
    return SystemPrompts(count, tokens, phrase.number("skew", 0, 10, 1.0))


def parse_sessions(text: str) -> Sessions:
    """Read ``5,think=30,limit=32k``: five turns on average, 30 s between them, at most 32,000 tokens; or ``agent``."""
    examples = "5, 5,think=30, 8,think=2m,limit=32k, agent, agent:swe,turns=40,branches=0.1"
    phrase, agent = unnamed_phrase(text, "sessions", examples), agent_in(text)
    if agent is None and phrase.value and phrase.value[0].isalpha():
        name = phrase.value.partition(":")[0].strip()
        hint = f" (did you mean {AGENT}?)" if nearest(name, [AGENT]) else ""
        raise phrase.wrong(f"'{shorten(name, 20)}' is neither a number of turns nor {AGENT}{hint}")
    limit = _whole(phrase, "limit", 10**8, Sessions.limit)
    branches = phrase.number("branches", 0, 1, 0.0)
    if agent is None:
        phrase.allow("think", "limit", "branches")
        think_s = phrase.time_s("think", 0, 10**7, Sessions.think_s)
        return Sessions(phrase.number(None, 1, 10**4), think_s, limit, branches, text=text)
    phrase.allow("turns", "tool", "limit", "branches")
    turns = phrase.number("turns", 1, 10**4, agent.calls.mean)
    return Sessions(turns, phrase.time_s("tool", 0, 10**7, agent.pause_s.mean), limit, branches, agent, text)


def agent_in(text: str | None) -> Agent | None:
    """Return the agent that sessions name, such as ``agent:swe,turns=40``; None if they are conversations."""
    name, _, kind = (text or "").partition(",")[0].strip().lower().partition(":")
    return agent_named(kind.strip() or DEFAULT) if name.strip() == AGENT else None


def parse_tenants(text: str) -> Tenants:
    """Read ``3,skew=1,priorities=0/1/1``: three tenants, of which the first is served first."""
    phrase = unnamed_phrase(text, "tenants", "10, 10,skew=1, 3,priorities=0/1/1")
    phrase.allow("skew", "priorities")
    count = _whole(phrase, None, 10**6)
    listed = phrase.options.get("priorities", "")
    parts = listed.split("/") if listed else []
    if not all(re.fullmatch(r"-?[0-9]{1,9}", part.strip()) for part in parts) or len(parts) not in (0, count):
        raise phrase.wrong(f"priorities= takes {count:,} whole numbers with / between, one for each tenant")
    return Tenants(count, phrase.number("skew", 0, 10, 1.0), tuple(int(part) for part in parts))


def _whole(phrase: Phrase, name: str | None, most: int, default: int | None = None) -> int:
    number = phrase.tokens(name, 1, most, default) if name else phrase.number(name, 1, most, default)
    if number != int(number):
        raise phrase.wrong(f"{f'{name}=' if name else 'the first value'} must be a whole number")
    return int(number)
