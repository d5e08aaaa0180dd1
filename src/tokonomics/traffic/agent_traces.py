"""Unfold recorded sessions of coding agents: a tree of requests and sub-agents becomes rows that name what they await.

The format is Weka's, of kv-cache-tester (``docs/trace_replay_tester.md``, commit 19c263b), ``weka_trace`` of NVIDIA's
AIPerf and SemiAnalysis' AgentX (Hugging Face: semianalysisai/cc-traces-weka-*): one object for each session, whose
requests have a time ``t`` in the session, ``in`` and ``out`` tokens, and ``hash_ids`` of the blocks of the prompt.

A request waits for those of its agent that were answered when it came; one that came while another ran is a branch
beside it. A sub-agent begins after what was answered at its entry, and a later request of its parent waits for it if it
ended before. Sessions are recorded apart, without a common clock, so each begins when the one before it ended, as one
client would work them off: replayed N times as fast, N are under way on average.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tokonomics.errors import option, shorten
from tokonomics.traffic.attribution import Item, Row, Unfolding
from tokonomics.traffic.formats import block_tokens_of
from tokonomics.traffic.sources import Unusable

APART = (
    "sessions follow one another without overlap, because they were recorded apart: "
    f"{option('speed', 50)} replays fifty at once, on average"
)
WITHOUT_BLOCKS = "requests list no blocks (hash_ids): taken to share nothing"
_DEEPEST = 5  # sub-agents of sub-agents: AIPerf's loader of plain sessions reads one level, its graphs any number
_LONGEST_S = 1e8  # of a session or an answer: three years, so that more is a mistake in the file
_MOST_IDS = 2**40  # ids below this are kept apart by the session's number; others are hashed with it
_FINEST = 6  # decimal places of a time that are looked at


def is_session(item: Item) -> bool:
    """Return whether an object is a session; a table is judged by its columns alone."""
    return "requests" in item and not item.keys().isdisjoint(("block_size", "hash_id_scope"))


def session_rows(item: Item, unfolding: Unfolding) -> Iterator[Row | Unusable]:
    """Yield the requests of a session and of its sub-agents, or what is wrong with it."""
    unfolding.sessions += 1
    stated, scope, listed = item.get("block_size"), item.get("hash_id_scope"), item.get("requests")
    size = None if isinstance(stated, bool) else block_tokens_of(str(stated))
    if not isinstance(listed, list):
        yield Unusable(f"requests is {_shown(listed)}, not a list")
    elif not listed:
        yield Unusable("requests is empty")
    elif size is None:
        yield Unusable(f"block_size is {_shown(stated)}, not a number of tokens")
    elif unfolding.block_tokens not in (None, size):
        yield Unusable(f"block_size is {size}, but {unfolding.block_tokens} in the sessions before it")
    elif scope not in (None, "local", "global"):
        yield Unusable(f"hash_id_scope is {_shown(scope)}, not local or global")
    else:
        unfolding.block_tokens = size
        session = _Session(item, unfolding, _clock_step_s(listed))
        last = session.unfold(listed)
        if last is not None:
            if unfolding.clock_s > 0:
                unfolding.remarks[APART] += 1 if APART in unfolding.remarks else 2
            unfolding.clock_s += session.ended_s
        yield from session.rows


class _Answer(NamedTuple):
    """The answer of a request, or the last answers of a sub-agent."""

    requests: tuple[str, ...]
    began_s: float
    ended_s: float
    after: tuple[str, ...] = ()  # what a sub-agent itself waited for

    def is_before(self, at_s: float, step_s: float) -> bool:
        """Return whether it came before that time, by a clock with steps of that size."""
        return self.ended_s <= at_s or (self.began_s < at_s and self.ended_s < at_s + step_s)


def _awaited(answers: list[_Answer]) -> tuple[str, ...]:
    """Return the requests that gave these answers, without those that one of the others waited for."""
    earlier = {name for answer in answers for name in answer.after}
    return tuple(name for answer in answers for name in answer.requests if name not in earlier)


@dataclass
class _Session:
    """A session that is being unfolded."""

    item: Item
    unfolding: Unfolding
    step_s: float  # of the clock by which its requests were recorded
    rows: list[Row | Unusable] = field(default_factory=list)
    ended_s: float = 0.0
    requests: int = 0
    untimed: set[str] = field(default_factory=set)  # requests whose answers took an unknown time

    def unfold(
        self, listed: list[Any], before: tuple[str, ...] = (), from_s: float = 0.0, depth: int = 0
    ) -> _Answer | None:
        """Add the rows of one agent, which begins after the requests ``before``; return its last answers, if any."""
        running: list[_Answer] = []  # those that no request of the agent has waited for
        latest = before  # what its latest request waited for
        for at_s, entry in self._in_order(listed, from_s):
            answered = [answer for answer in running if answer.is_before(at_s, self.step_s)]
            waits = _awaited(answered) or latest
            if entry.get("type") == "subagent":
                if (last := self._sub_agent(entry, at_s, waits, depth)) is not None:
                    running.append(last)
            elif (answer := self._request(entry, at_s, waits)) is not None:
                running = [one for one in running if one not in answered] + [answer]
                latest = waits
        if not running:
            return None
        return _Answer(_awaited(running), running[0].began_s, max(answer.ended_s for answer in running))

    def _in_order(self, listed: list[Any], from_s: float) -> list[tuple[float, dict[str, Any]]]:
        """Return the entries by their time in the session; those without a time become unusable rows.

        The times of a sub-agent count from its session or, in older captures, from its entry: whichever puts its first
        request closer to the entry.
        """
        timed: list[tuple[float, dict[str, Any]]] = []
        for place, entry in enumerate(listed, 1):
            at_s = _duration(entry.get("t")) if isinstance(entry, dict) else None
            if not isinstance(entry, dict):
                self.rows.append(Unusable(f"request {place} is {_shown(entry)}, not an object"))
            elif at_s is None:
                said = "missing" if entry.get("t") is None else f"{_shown(entry['t'])}, not seconds in the session"
                self.rows.append(Unusable(f"request {place}: t is {said}"))
            else:
                timed.append((at_s, entry))
        timed.sort(key=lambda pair: pair[0])
        shift_s = from_s if timed and 2 * timed[0][0] <= from_s else 0.0
        return [(at_s + shift_s, entry) for at_s, entry in timed]

    def _sub_agent(self, entry: Item, at_s: float, waits: tuple[str, ...], depth: int) -> _Answer | None:
        listed = entry.get("requests")
        if not isinstance(listed, list):
            self.rows.append(Unusable(f"the requests of a sub-agent are {_shown(listed)}, not a list"))
            return None
        if depth == _DEEPEST:
            self.rows.append(Unusable(f"sub-agents more than {_DEEPEST} deep"))
            return None
        last = self.unfold(listed, waits, at_s, depth + 1)
        if last is None:
            return None
        took_s = _duration(entry.get("duration_ms"), 1000.0)
        return last._replace(began_s=at_s, ended_s=max(last.ended_s, at_s + (took_s or 0.0)), after=waits)

    def _request(self, entry: Item, at_s: float, waits: tuple[str, ...]) -> _Answer | None:
        """Add the row of a request; return its answer unless its tokens show that the row cannot be used."""
        took_s, think_s = _duration(entry.get("api_time")), _duration(entry.get("think_time"))
        number, blocks = self.unfolding.sessions, entry.get("hash_ids")
        row = {
            "t": self.unfolding.clock_s + at_s,
            "in": entry.get("in"),
            "out": entry.get("out"),
            "model": self.unfolding.tenant({**self.item, **entry}, entry.get("model")),
            "hash_ids": blocks if self.item.get("hash_id_scope") == "global" else _of_session(blocks, number),
            "session": str(number),  # not its id, which another session of the file may have too
            "api_time": took_s,
        }
        self.rows.append(row)
        if not _is_count(entry.get("in"), 1) or not _is_count(entry.get("out"), 0):
            return None
        if not blocks and entry["in"] >= (self.unfolding.block_tokens or 1):
            self.unfolding.remarks[WITHOUT_BLOCKS] += 1
        name = f"{number}-{self.requests}"
        self.requests += 1
        # Think time counts from the request before, not from a sub-agent: it only helps where no end is known.
        row |= {"request": name, "parents": " ".join(waits)}
        row |= {"think_time": None if self.untimed.isdisjoint(waits) else think_s}
        if took_s is None:
            self.untimed.add(name)
        answer = _Answer((name,), at_s, at_s + (took_s or 0.0))
        self.ended_s = max(self.ended_s, answer.ended_s)
        return answer


def _clock_step_s(listed: list[Any]) -> float:
    """Return the size of the steps in which times are given: published sessions have times in whole seconds."""
    found = [_duration(entry.get("t")) for entry in listed if isinstance(entry, dict)]
    times = [at_s for at_s in found if at_s is not None]
    for places in range(_FINEST):
        if all(round(at_s, places) == at_s for at_s in times):
            return float(10.0**-places)
    return 0.0


def _of_session(blocks: Any, number: int) -> Any:
    """Return ids that no other session has; what is no list of ids stays as it is, so that it is reported."""
    if not isinstance(blocks, list):
        return blocks
    first = number * _MOST_IDS
    return [
        first + block
        if type(block) is int and 0 <= block < _MOST_IDS
        else f"{number}:{block}"
        if isinstance(block, int | str) and not isinstance(block, bool)
        else block
        for block in blocks
    ]


def _duration(value: Any, per_second: float = 1.0) -> float | None:
    """Return a length of time in seconds; None if it is none, or longer than any session."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _LONGEST_S * per_second:
        return None
    return value / per_second


def _is_count(value: Any, least: int) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and least <= value < math.inf


def _shown(value: Any) -> str:
    return "missing" if value is None else shorten(repr(value), 40)
