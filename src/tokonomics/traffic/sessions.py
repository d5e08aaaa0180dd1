"""Find the sessions of a log: which request waited for whose answer, and statistics of conversations and jobs.

Where the log has ids of the requests that one waits for, they decide; an id that is not in the log, or of a later
request, is ignored. Otherwise a request waits for those of its session that were answered when it came, or for the one
before it where the log does not say when that was. A request without a session belongs to that of the requests it
waits for. A pause is as the log says, else the time from the last of those answers to the request. Where the log does
not say how long answers took, pauses include them, which a note says.

The summary has turns, pauses, how prompts grow, and what a cache without limit would find. A turn's number is one more
than the largest of those it waits for: branches of one answer have the same.
"""

from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokonomics.traffic.prefix_reuse import reuse
from tokonomics.traffic.slo import PERCENTILES
from tokonomics.traffic.trace import Counts, Floats, PrefixBlocks, Trace, Turns
from tokonomics.types import Noun
from tokonomics.units import plural

if TYPE_CHECKING:
    import polars as pl

GROWING = (
    "the prompt of a turn is taken to begin with the prompt and the answer before it where it is long enough: "
    "an upper bound on what a prefix cache can reuse"
)
_NOBODY = ("", "-1", "null", "none", "None")
_SMALLEST_BLOCK, _BLOCKS_A_REQUEST = 16, 256
"""The block of vLLM, or larger if prompts are long: this average per request keeps a long log within memory."""


class FoundTurns(NamedTuple):
    """The turns of requests in order of arrival, and notes on them."""

    turns: Turns | None  # None where no request waits for another
    notes: list[str]


class _Waits(NamedTuple):
    """Pairs of a request and one that it waits for, by place in order of arrival."""

    child: NDArray[np.int64]
    parent: NDArray[np.int64]


_NO_WAITS = _Waits(np.zeros(0, np.int64), np.zeros(0, np.int64))


def turns_of(rows: "pl.DataFrame") -> FoundTurns:
    """Return the turns of a log, in the order of its arrivals."""
    there = rows.columns
    by_id = {"request", "parent"} <= set(there)
    if not by_id and ("session" not in there or not rows["session"].drop_nulls().len()):
        return FoundTurns(None, [])
    arrival = rows["arrival"].to_numpy()
    order = np.argsort(arrival, kind="stable")
    rows, arrival = rows[order], arrival[order]
    ended = _ends(rows, arrival)
    waits, unknown = _by_id(rows) if by_id else (_NO_WAITS, 0)
    notes = []
    if unknown:
        waiting = f"{plural(unknown, 'request')} waiting for ids that are not in the log before them"
        notes.append(f"{waiting}: taken as sent by themselves")
    session = None
    if "session" in there:
        session = _sessions(rows["session"], waits)
        waits = waits if len(waits.child) else _by_time(session, arrival, ended)
        kept = session[waits.child] == session[waits.parent]
        waits = _Waits(waits.child[kept], waits.parent[kept])
    if not len(waits.child):
        return FoundTurns(None, notes)
    turns = _turns(waits, len(rows), _groups(waits, len(rows)) if session is None else session)
    pause, measured = _pauses(rows, turns, arrival, ended)
    if not measured:
        notes.append("the log does not say how long answers took: pauses between turns include them")
    return FoundTurns(replace(turns, pause_s=pause), notes)


def _by_first(values: NDArray[Any]) -> NDArray[np.int64]:
    """Number values in the order in which they first occur."""
    _, first, number = np.unique(values, return_index=True, return_inverse=True)
    rank = np.empty(len(first), np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    return rank[number]


def _sessions(names: "pl.Series", waits: _Waits) -> NDArray[np.int64]:
    """Number the sessions by their first request.

    A request without a session belongs to that of the one it waits for, else of the one that waits for it, else it is
    one of its own.
    """
    import polars as pl

    alone = pl.Series(np.arange(len(names))).cast(pl.String) + "\x01"
    filled = names.to_frame("name").select(pl.coalesce(pl.col("name").replace("", None), alone)).to_series()
    session, has_one = _by_first(filled.to_numpy().astype(str)), (names.fill_null("") != "").to_numpy()
    if has_one.all() or not len(waits.child):
        return session
    child, parent = waits
    neither = ~has_one[child] & ~has_one[parent]
    group = _groups(_Waits(child[neither], parent[neither]), len(session))
    below, above = ~has_one[child] & has_one[parent], has_one[child] & ~has_one[parent]
    of_group = session[np.unique(group, return_index=True)[1]]
    found, first = np.unique(np.concatenate([group[child[below]], group[parent[above]]]), return_index=True)
    of_group[found] = np.concatenate([session[parent[below]], session[child[above]]])[first]
    return _by_first(np.where(has_one, session, of_group[group]))


def _ends(rows: "pl.DataFrame", arrival: Floats) -> Floats:
    """Return when each request was answered; NaN if the log does not say."""
    ended = np.full(len(rows), np.nan)
    if "took" in rows.columns:
        ended = arrival + rows["took"].fill_null(np.nan).to_numpy()
    if "ended" in rows.columns:
        logged = rows["ended"].fill_null(np.nan).to_numpy()
        ended = np.where(np.isnan(ended), logged, ended)
    return np.where(ended >= arrival, ended, np.nan)


def _by_id(rows: "pl.DataFrame") -> tuple[_Waits, int]:
    """Return the waits by the ids that requests name, and how many requests name one that does not come before them."""
    import polars as pl

    place = pl.int_range(pl.len(), dtype=pl.Int64)
    # A table program writes numbers beside empty cells as 7.0.
    whole = pl.col("request").str.replace(r"^(\d+)\.0$", "$1")
    ids = rows.select(whole, parent=place).filter(pl.col("request").is_not_null()).unique("request", keep="first")
    listed = pl.col("parent").str.replace_all(r'[\[\]"\',;]', " ").str.strip_chars().str.split(" ")
    pairs = rows.select(child=place, request=listed).explode("request").with_columns(whole).drop_nulls()
    pairs = pairs.filter(~pl.col("request").is_in(_NOBODY))
    known = pairs.join(ids, on="request", how="left").with_columns(good=pl.col("parent") < pl.col("child"))
    good = known.filter(pl.col("good").fill_null(value=False)).unique(["child", "parent"]).sort("child", "parent")
    unknown = known.filter(~pl.col("good").fill_null(value=False))["child"].n_unique()
    return _Waits(good["child"].to_numpy(), good["parent"].to_numpy()), unknown


def _by_time(session: NDArray[np.int64], arrival: Floats, ended: Floats) -> _Waits:
    """Return the waits within each session: for the previous request, or for those answered when the request arrives.

    The latter is used if the log says when every request was answered.
    """
    order = np.argsort(session, kind="stable")
    same = session[order[1:]] == session[order[:-1]]
    child, parent = order[1:][same], order[:-1][same]
    if np.isnan(ended).any() or not (arrival[child] < ended[parent]).any():
        return _Waits(child, parent)
    children, parents = [], []
    open_now: dict[int, list[int]] = {}  # by session: the requests that nobody waits for yet
    last: dict[int, list[int]] = {}  # what its latest request waits for
    for request, number in enumerate(session.tolist()):
        running = open_now.setdefault(number, [])
        answered = [one for one in running if ended[one] <= arrival[request]]
        waits = answered or last.get(number, [])
        open_now[number] = [one for one in running if one not in answered] + [request]
        last[number] = waits
        children += [request] * len(waits)
        parents += waits
    return _Waits(np.asarray(children, np.int64), np.asarray(parents, np.int64))


def _groups(waits: _Waits, requests: int) -> NDArray[np.int64]:
    """Number the groups of requests that are connected by waits, each by its first request."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    ones = np.ones(len(waits.child), np.int8)
    joined = coo_array((ones, (waits.child, waits.parent)), shape=(requests, requests))
    _, number = connected_components(joined, directed=False)
    return _by_first(number)


def _turns(waits: _Waits, requests: int, session: NDArray[np.int64]) -> Turns:
    order = np.lexsort((waits.parent, waits.child))
    counts = np.bincount(waits.child, minlength=requests)
    return Turns(
        waits_for=waits.parent[order].astype(np.int32),
        starts=np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
        pause_s=np.zeros(requests),
        session=session.astype(np.int32),
    )


def _pauses(rows: "pl.DataFrame", turns: Turns, arrival: Floats, ended: Floats) -> tuple[Floats, bool]:
    """Return the seconds before each request, and whether all of them exclude the time of answering."""
    waiting = np.flatnonzero(~turns.roots)
    known = np.where(np.isnan(ended), arrival, ended)
    since = np.maximum.reduceat(known[turns.waits_for], turns.starts[waiting])
    pause = np.zeros(len(rows))
    pause[waiting] = np.maximum(arrival[waiting] - since, 0.0)
    unmeasured = np.zeros(len(rows), bool)
    unmeasured[waiting] = np.logical_or.reduceat(np.isnan(ended)[turns.waits_for], turns.starts[waiting])
    if "pause" in rows.columns:
        logged = rows["pause"].fill_null(np.nan).to_numpy()
        given = ~turns.roots & np.isfinite(logged) & (logged >= 0)
        pause, unmeasured = np.where(given, logged, pause), unmeasured & ~given
    return pause, not unmeasured.any()


def growing_prefix(turns: Turns, input_tokens: Counts, output_tokens: Counts) -> PrefixBlocks | None:
    """Return blocks for prompts that contain what was said before in their session; None if nothing is shared.

    A prompt that is shorter than the one before it was written anew and shares nothing. Of several that a request
    waits for, it goes on from the longest that it can hold.
    """
    inputs = input_tokens.astype(np.int64)
    said = inputs + output_tokens
    block = _SMALLEST_BLOCK
    while said.sum() / block > _BLOCKS_A_REQUEST * len(said):
        block *= 2
    parent = _continued(turns, inputs, said)
    blocks = said // block
    shared = np.where(parent >= 0, np.minimum(inputs, said[parent]) // block, 0)
    if not shared.any():
        return None
    own = blocks - shared
    first_own = np.cumsum(own) - own
    lists: list[NDArray[np.int64]] = []
    for request, above in enumerate(parent.tolist()):
        new = np.arange(first_own[request], first_own[request] + own[request])
        lists.append(np.concatenate([lists[above][: shared[request]], new]) if shared[request] else new)
    starts = np.concatenate([[0], np.cumsum(blocks)]).astype(np.int64)
    return PrefixBlocks(np.concatenate(lists).astype(np.int32), starts, block, int(own.sum()))


def _continued(turns: Turns, inputs: NDArray[np.int64], said: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the request whose text each one continues; -1 for none."""
    child = np.repeat(np.arange(len(inputs)), np.diff(turns.starts))
    parent = turns.waits_for.astype(np.int64)
    fits = inputs[parent] <= inputs[child]
    child, parent = child[fits], parent[fits]
    order = np.lexsort((np.minimum(said[parent], inputs[child]), child))
    found = np.full(len(inputs), -1, np.int64)
    found[child[order]] = parent[order]  # of each child the last pair stays, which shares most
    return found


_TURN_GROUPS = (1, 2, 3, 4, 5, 10, 20, 50, 100)
"""The first turn of each row of a table: the first five one by one, while caches fill; then in groups."""


class SessionSpread(Noun):
    """Mean and percentiles of what a session or a turn has."""

    mean: float
    p50: float
    p90: float
    p95: float
    p99: float


class TurnsAlike(Noun):
    """The turns with these numbers, over all sessions."""

    first: int
    last: int
    requests: int
    mean_input: float
    cached_share: float | None = None
    """The share of their prompt tokens that an unlimited cache would find; None if the trace does not say."""


class SessionSummary(Noun):
    """Statistics of a trace's conversations or jobs."""

    sessions: int
    turns: SessionSpread  # requests per session
    pause_s: SessionSpread | None  # between an answer and the next request; None where every session has one request
    growth_tokens: float | None  # mean tokens by which a prompt is longer than the one it follows
    branch_share: float  # of the requests: those sent together with another that waits for the same answers
    by_turn: tuple[TurnsAlike, ...]


def session_spread(values: NDArray[Any]) -> SessionSpread:
    """Return the mean and percentiles of at least one value."""
    found = np.percentile(values, PERCENTILES, method="inverted_cdf")
    cuts = {f"p{rank}": float(cut) for rank, cut in zip(PERCENTILES, found, strict=True)}
    return SessionSpread(mean=float(values.mean()), **cuts)


class LogPace(Noun):
    """The rates of a log of sessions: in its steady state, and over all its time, filling and draining included."""

    sessions_per_s: float
    requests_per_session: float
    requests_per_s: float  # once as many sessions end as begin
    requests_per_s_over_all: float  # from its first request to its last


def log_pace(trace: Trace) -> LogPace | None:
    """Return the rates of a log; None if it has no sessions or no duration."""
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
    """Return the first and last turn of each row of a table, and the requests in it."""
    edges = [*_TURN_GROUPS, int(numbers.max(initial=0)) + 1]
    rows = []
    for first, after in pairwise(edges):
        chosen = np.flatnonzero((numbers >= first) & (numbers < max(after, first + 1)))
        if len(chosen):
            rows.append((first, int(numbers[chosen].max()), chosen))
    return rows


def summarize_sessions(trace: Trace) -> SessionSummary | None:
    """Describe the sessions of a trace; None if no request waits for another."""
    turns = trace.turns
    if turns is None or not len(turns.waits_for):
        return None
    waiting = np.flatnonzero(~turns.roots)
    first_parent = turns.waits_for[turns.starts[waiting]]
    followers = np.bincount(first_parent, minlength=len(trace))  # by the answer that each awaits first
    cached = None if trace.prefix is None else reuse(trace.prefix, trace.input_tokens).astype(np.int64)
    inputs = trace.input_tokens.astype(np.int64)
    return SessionSummary(
        sessions=turns.sessions,
        turns=session_spread(np.bincount(turns.session, minlength=turns.sessions)),
        pause_s=session_spread(turns.pause_s[waiting]),
        growth_tokens=float((inputs[waiting] - inputs[first_parent]).mean()),
        branch_share=float((followers[first_parent] > 1).sum() / len(trace)),
        by_turn=tuple(
            TurnsAlike(
                first=first,
                last=last,
                requests=len(chosen),
                mean_input=float(inputs[chosen].mean()),
                cached_share=None if cached is None else float(cached[chosen].sum() / inputs[chosen].sum()),
            )
            for first, last, chosen in turn_groups(turns.depth)
        ),
    )
