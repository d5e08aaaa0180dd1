"""What the sessions of a trace are like: turns, pauses, how prompts grow, and what a cache without limit would find.

A turn's number is one more than the largest of those it waits for: branches of one answer have the same.
"""

from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokonomics.traffic.prefix_reuse import reuse
from tokonomics.traffic.slo import PERCENTILES
from tokonomics.traffic.trace import Counts, Trace
from tokonomics.traffic.turns import Turns
from tokonomics.types import Noun

_TURN_GROUPS = (1, 2, 3, 4, 5, 10, 20, 50, 100)
"""First turns of the rows of a table: the first five one by one, where caches fill; then together."""


class SessionSpread(Noun):
    """Mean and percentiles of what a session or a turn has."""

    mean: float
    p50: float
    p90: float
    p95: float
    p99: float


class TurnsAlike(Noun):
    """The turns of these numbers, of all sessions together."""

    first: int
    last: int
    requests: int
    mean_input: float
    cached_share: float | None = None
    """Of their prompt tokens, what a cache without limit would find; None where the trace does not say."""


class SessionSummary(Noun):
    """Conversations or jobs of a trace."""

    sessions: int
    turns: SessionSpread
    """Requests a session."""
    pause_s: SessionSpread | None
    """Between an answer and the next request; None where every session has one request."""
    growth_tokens: float | None
    """Tokens by which a prompt is longer than the one it follows, in the mean."""
    branch_share: float
    """Of the requests: those sent together with another that waits for the same answers."""
    by_turn: tuple[TurnsAlike, ...]


def session_spread(values: NDArray[Any]) -> SessionSpread:
    """Of at least one value."""
    found = np.percentile(values, PERCENTILES, method="inverted_cdf")
    cuts = {f"p{rank}": float(cut) for rank, cut in zip(PERCENTILES, found, strict=True)}
    return SessionSpread(mean=float(values.mean()), **cuts)


class LogPace(Noun):
    """How fast a log of sessions is: once as many end as begin, and over all its time, while it fills and drains."""

    sessions_per_s: float
    requests_per_session: float
    requests_per_s: float
    """Once as many sessions end as begin."""
    requests_per_s_over_all: float
    """From its first request to its last."""


def log_pace(trace: Trace) -> LogPace | None:
    """None where the log has no sessions, or lasts no time."""
    if trace.turns is None or trace.duration_s <= 0:
        return None
    turns = len(trace) / trace.turns.sessions
    return LogPace(
        sessions_per_s=trace.rate / turns,
        requests_per_session=turns,
        requests_per_s=trace.rate,
        requests_per_s_over_all=(len(trace) - 1) / trace.duration_s,
    )


def turn_groups(numbers: Counts) -> list[tuple[int, int, NDArray[np.intp]]]:
    """The first and last number of each row of a table, and the requests in it."""
    edges = [*_TURN_GROUPS, int(numbers.max(initial=0)) + 1]
    rows = []
    for first, after in pairwise(edges):
        chosen = np.flatnonzero((numbers >= first) & (numbers < max(after, first + 1)))
        if len(chosen):
            rows.append((first, int(numbers[chosen].max()), chosen))
    return rows


def summarize_sessions(trace: Trace) -> SessionSummary | None:
    """None where no request waits for another."""
    turns = trace.turns
    if turns is None or not len(turns.waits_for):
        return None
    waiting = np.flatnonzero(~turns.roots)
    first_parent = turns.waits_for[turns.starts[waiting]]
    numbers = turns.depth
    cached = None if trace.prefix is None else reuse(trace.prefix, trace.input_tokens).astype(np.int64)
    inputs = trace.input_tokens.astype(np.int64)
    return SessionSummary(
        sessions=turns.sessions,
        turns=session_spread(np.bincount(turns.session, minlength=turns.sessions)),
        pause_s=session_spread(turns.pause_s[waiting]),
        growth_tokens=float((inputs[waiting] - inputs[first_parent]).mean()),
        branch_share=_branch_share(turns, waiting),
        by_turn=tuple(
            TurnsAlike(
                first=first,
                last=last,
                requests=len(chosen),
                mean_input=float(inputs[chosen].mean()),
                cached_share=None if cached is None else float(cached[chosen].sum() / inputs[chosen].sum()),
            )
            for first, last, chosen in turn_groups(numbers)
        ),
    )


def _branch_share(turns: Turns, waiting: NDArray[np.intp]) -> float:
    """Requests whose first awaited answer another request awaits first as well."""
    first = turns.waits_for[turns.starts[waiting]]
    followers = np.bincount(first, minlength=len(turns.starts) - 1)
    return float((followers[first] > 1).sum() / (len(turns.starts) - 1))
