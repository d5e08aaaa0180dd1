"""Hold requests in order of arrival, as columns: logs and generators make a trace, the simulator serves it.

Times count from the first request. A request may name the blocks of its prompt that others share: ids of whole blocks
of ``block_tokens`` tokens, the first block first, chained (an id stands for the block and all before it), so that two
prompts share exactly the leading blocks whose ids are equal.

In conversations and the jobs of agents requests wait for the answers of others (``Turns``). A request that waits for
nobody is sent at its arrival time. Any other is sent a pause after the last answer it waits for: its arrival time in
the trace only says when that was once.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tokonomics.errors import BadInput, option, shorten
from tokonomics.files import check_path, whole
from tokonomics.traffic.formats import OWN
from tokonomics.traffic.slo import ServiceClass
from tokonomics.units import seconds

if TYPE_CHECKING:
    import polars as pl

Floats = NDArray[np.float64]
Counts = NDArray[np.int32]
Offsets = NDArray[np.int64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Turns:
    """Request ``i`` waits for the answers of ``waits_for[starts[i]:starts[i + 1]]``, all of which come before it."""

    waits_for: Counts  # positions in the trace
    starts: Offsets
    pause_s: Floats  # by request: from the last of those answers until it is sent; 0 if it waits for nobody
    session: Counts
    """By request: its conversation or job, numbered from 0 without gaps. No request waits for another session's."""

    @property
    def roots(self) -> NDArray[np.bool_]:
        """Return which requests wait for nobody."""
        return np.asarray(np.diff(self.starts) == 0)

    @property
    def linked(self) -> bool:
        """Return whether any request waits for another."""
        return len(self.waits_for) > 0

    @property
    def sessions(self) -> int:
        return int(self.session.max(initial=-1)) + 1

    def columns(self) -> "dict[str, pl.Series]":
        """Return the columns of a log: the number of each request, those it waits for, its pause and its session."""
        import polars as pl

        requests = np.arange(len(self.starts) - 1)
        listed = np.split(self.waits_for, self.starts[1:-1]) if len(requests) else []
        parents = pl.Series(listed, dtype=pl.List(pl.Int32))
        pause, session = pl.Series(self.pause_s), pl.Series(self.session)
        return {"request": pl.Series(requests), "parent": parents, "pause": pause, "session": session}

    @property
    def children(self) -> tuple[Counts, Offsets]:
        """Return who waits for request ``i``, as items ``starts[i]`` to ``starts[i + 1]`` of a list; and the starts."""
        requests = len(self.starts) - 1
        waiting = np.repeat(np.arange(requests, dtype=np.int32), np.diff(self.starts))
        starts = np.concatenate([[0], np.cumsum(np.bincount(self.waits_for, minlength=requests))]).astype(np.int64)
        return waiting[np.argsort(self.waits_for, kind="stable")], starts

    @cached_property
    def depth(self) -> Counts:
        """Return each request's turn, from 1: one more than the longest chain of requests it waits for."""
        depth = np.ones(len(self.starts) - 1, np.int32)
        for parents, reached in self._answered():
            np.maximum.at(depth, reached, depth[parents] + 1)
        return depth

    @property
    def paused_s(self) -> Floats:
        """Return, by session, the pauses along its slowest path: it takes at least that long."""
        ready_s, found = np.zeros(len(self.starts) - 1), np.zeros(self.sessions)
        for parents, reached in self._answered():
            np.maximum.at(ready_s, reached, ready_s[parents] + self.pause_s[reached])
        np.maximum.at(found, self.session, ready_s)
        return found

    def _answered(self) -> Iterator[tuple[Ints, Counts]]:
        """Yield pairs of requests and those that wait for them, in an order that respects all waits."""
        waiting, starts = self.children
        left = np.diff(self.starts)
        front = np.flatnonzero(left == 0)
        while len(front):
            reached, _ = take_lists(waiting, starts, front)
            yield np.repeat(front, np.diff(starts)[front]), reached
            np.subtract.at(left, reached, 1)
            front = np.unique(reached[left[reached] == 0])

    def take(self, chosen: NDArray[np.intp]) -> "Turns":
        """Return the turns of the chosen requests, in that order; one that waited only for others waits for nobody."""
        place = np.full(len(self.starts) - 1, -1, np.int64)
        place[chosen] = np.arange(len(chosen))
        listed, starts = take_lists(self.waits_for, self.starts, chosen)
        parents = place[listed]
        kept = parents >= 0
        counts = np.bincount(np.repeat(np.arange(len(chosen)), np.diff(starts))[kept], minlength=len(chosen))
        _, session = np.unique(self.session[chosen], return_inverse=True)
        taken = Turns(
            waits_for=parents[kept].astype(np.int32),
            starts=np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
            pause_s=np.where(counts > 0, self.pause_s[chosen], 0.0),
            session=session.astype(np.int32),
        )
        if len(chosen) == len(self.session):
            # All of them once, in another order, as a simulation sends them: each keeps its turn.
            taken.__dict__["depth"] = self.depth[chosen]
        return taken

    def repeated(self, times: int) -> "Turns":
        """Return the same sessions ``times`` times, each time as new sessions."""
        rounds, requests = np.arange(times), len(self.starts) - 1
        offsets = np.repeat(rounds, len(self.waits_for)) * requests
        ends = self.starts[1:] + (rounds * len(self.waits_for))[:, None]
        return Turns(
            waits_for=(np.tile(self.waits_for, times) + offsets).astype(np.int32),
            starts=np.concatenate([self.starts[:1], ends.ravel()]),
            pause_s=np.tile(self.pause_s, times),
            session=(np.tile(self.session, times) + np.repeat(rounds, requests) * self.sessions).astype(np.int32),
        )

    def started(self, arrival_s: Floats, roots_s: Floats) -> Floats:
        """Return arrivals of all requests if roots are sent at ``roots_s``.

        Others keep their distance to the root of the first request they wait for, unless another of those comes later.
        """
        waiting = np.flatnonzero(~self.roots)
        root = np.arange(len(arrival_s))
        root[waiting] = self.waits_for[self.starts[waiting]]
        while not np.array_equal(further := root[root], root):
            root = further
        moved = arrival_s + (roots_s - arrival_s)[root]
        child = np.repeat(np.arange(len(arrival_s)), np.diff(self.starts))
        while (early := moved[child] < moved[self.waits_for]).any():
            np.maximum.at(moved, child[early], moved[self.waits_for[early]])
        return np.asarray(moved, np.float64)


def take_lists(ids: Counts, starts: Offsets, chosen: NDArray[np.intp]) -> tuple[Counts, Offsets]:
    """Return the chosen lists as one array with starts; list i of all is ``ids[starts[i]:starts[i + 1]]``."""
    lengths = np.diff(starts)[chosen]
    begin = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    places = np.repeat(starts[:-1][chosen] - begin[:-1], lengths) + np.arange(begin[-1])
    return ids[places], begin


MOST_TOKENS = 10**8  # of one prompt or answer: beyond any model, so more is a mistake in the file


@dataclass(frozen=True)
class PrefixBlocks:
    """The shared structure of the prompts: request ``i`` begins with the blocks ``ids[starts[i]:starts[i + 1]]``.

    A list may be shorter than its prompt: what follows is the request's own. A list that goes beyond its prompt names
    the whole blocks of prompt and answer together, so that the next turn of a conversation finds both; otherwise the
    last block may be partly filled.
    """

    ids: Counts  # dense: 0 to ``distinct - 1``
    starts: Offsets
    block_tokens: int
    distinct: int

    @cached_property
    def worked_out(self) -> dict[object, Any]:
        """Keep what a simulation works out from these lists, by what else it depends on."""
        return {}

    def blocks_of(self, request: int) -> Counts:
        return self.ids[self.starts[request] : self.starts[request + 1]]

    def take(self, chosen: NDArray[np.intp]) -> "PrefixBlocks":
        """Return the blocks of the chosen requests, in that order; ids stay as they are.

        Those of all requests are copied when somebody looks at them: a simulation puts its requests in order, and few
        ask for more.
        """
        source, before = self.__dict__.get("_taken", (self, None))
        if len(chosen) < (len(self.starts) - 1 if before is None else len(before)):
            ids, starts = take_lists(self.ids, self.starts, chosen)
            return replace(self, ids=ids, starts=starts)
        taken = object.__new__(PrefixBlocks)
        chosen = chosen if before is None else before[chosen]
        taken.__dict__.update(block_tokens=self.block_tokens, distinct=self.distinct, _taken=(source, chosen))
        return taken

    def __getattr__(self, name: str) -> Any:
        """Copy the lists that ``take`` has chosen."""
        if name not in ("ids", "starts") or "_taken" not in self.__dict__:
            raise AttributeError(name)
        source, chosen = self.__dict__["_taken"]
        ids, starts = take_lists(source.ids, source.starts, chosen)
        self.__dict__.update(ids=ids, starts=starts)
        self.__dict__.pop("_taken", None)
        return self.__dict__[name]

    def cut(self, before: tuple[Counts, Counts], after: tuple[Counts, Counts]) -> "PrefixBlocks":
        """Return the blocks that fit prompts of another length; if they name answers too, prompts and answers."""
        counts = np.diff(self.starts)
        prompts = -(-before[0].astype(np.int64) // self.block_tokens)
        room = -(-after[0].astype(np.int64) // self.block_tokens)
        both = (after[0].astype(np.int64) + after[1]) // self.block_tokens
        left = np.minimum(counts, np.where(counts > prompts, both, room))
        place = np.arange(len(self.ids)) - np.repeat(self.starts[:-1], counts)
        starts = np.concatenate([[0], np.cumsum(left)]).astype(np.int64)
        return replace(self, ids=self.ids[place < np.repeat(left, counts)], starts=starts)

    def apart(self, rounds: NDArray[np.int64]) -> "PrefixBlocks":
        """Return lists with new ids, so that only requests of one round share blocks; rounds count from 0."""
        distinct = self.distinct * (int(rounds.max(initial=0)) + 1)
        if distinct > np.iinfo(np.int32).max:
            raise BadInput(f"{distinct:,} shared blocks are too many to number")
        ids = self.ids + np.repeat(rounds, np.diff(self.starts)) * self.distinct
        return replace(self, ids=ids.astype(np.int32), distinct=distinct)


@dataclass(frozen=True)
class Trace:
    """Requests, sorted by arrival; those that arrive together keep the order of their source."""

    arrival_s: Floats  # since the first request, which arrives at 0 unless a window was cut
    input_tokens: Counts  # at least 1
    output_tokens: Counts  # 0: the prompt is read and nothing is written
    tenant: Counts | None = None  # index into ``tenants``
    tenants: tuple[str, ...] = ()
    priority: Counts | None = None  # smaller is more urgent, as in vLLM
    patience_s: Floats | None = None  # how long after its arrival the client hangs up; infinite: never
    prefix: PrefixBlocks | None = None
    usd: Floats | None = None  # what the log says each request cost; 0 where it says nothing
    turns: Turns | None = None
    """Which request waits for whose answer; None: every request is sent at its time, whatever happens to the others."""
    service: Counts | None = None  # index into ``classes``; None: all requests are alike
    classes: tuple[ServiceClass, ...] = ()
    source: str = "generated"

    def __len__(self) -> int:
        return len(self.arrival_s)

    def __repr__(self) -> str:
        over = f"{len(self):,} requests over {seconds(self.duration_s)}"
        return f"<Trace {self.source}: {over}, {self.rate:.3g} a second>"

    @cached_property
    def digest(self) -> bytes:
        """Return a hash of everything that decides how the trace is served; costs and names do not."""
        found = blake2b(repr((self.classes, self.prefix and self.prefix.block_tokens)).encode(), digest_size=16)
        parts = [self.arrival_s, self.input_tokens, self.output_tokens, self.tenant, self.priority, self.patience_s]
        turns = self.turns
        parts += [self.service, *((turns.waits_for, turns.starts, turns.pause_s, turns.session) if turns else ())]
        parts += [self.prefix.ids, self.prefix.starts] if self.prefix else []
        for part in parts:
            found.update(b"-" if part is None else np.ascontiguousarray(part).data)
        return found.digest()

    def to_frame(self) -> "pl.DataFrame":
        """Return one row per request, with the columns of a log that can be read back."""
        import polars as pl

        waits = pl.Series([] if self.patience_s is None else self.patience_s, dtype=pl.Float64)
        columns = {
            "arrival": self.arrival_s,
            "input": self.input_tokens,
            "output": self.output_tokens,
            "tenant": None if self.tenant is None else pl.Series(self.tenants, dtype=pl.String)[self.tenant],
            "priority": self.priority,
            "patience": None if self.patience_s is None else waits.replace(np.inf, None),
            "prefix": None if self.prefix is None else _lists(self.prefix),
            "usd": self.usd,
            **({} if self.turns is None else self.turns.columns()),
        }
        return pl.DataFrame({OWN.paths(name)[0][0]: values for name, values in columns.items() if values is not None})

    @property
    def duration_s(self) -> float:
        """Return the time from the first arrival to the last."""
        return float(self.arrival_s[-1] - self.arrival_s[0]) if len(self) else 0.0

    @property
    def rate(self) -> float:
        """Return the mean requests a second between the first arrival and the last; 0 if all arrive at once.

        If some wait for others, it is counted from the first session's start to the last: the rate once as many
        sessions end as start, since the server decides when later turns come.
        """
        if self.turns is not None and (span_s := float(np.ptp(starts := self.arrival_s[self.turns.roots]))) > 0:
            return len(self) * (len(starts) - 1) / len(starts) / span_s
        return (len(self) - 1) / self.duration_s if self.duration_s > 0 else 0.0

    def take(self, chosen: NDArray[np.intp]) -> "Trace":
        """Return the chosen requests, in the order given."""
        names = ("arrival_s", "input_tokens", "output_tokens", "tenant", "priority", "patience_s", "usd", "service")
        there = {name: column[chosen] for name in names if (column := getattr(self, name)) is not None}
        prefix = None if self.prefix is None else self.prefix.take(chosen)
        turns = None if self.turns is None else self.turns.take(chosen)
        taken = replace(self, **there, prefix=prefix, turns=turns)
        if prefix is not None and len(chosen) == len(self):
            taken.__dict__["_in_other_order"] = self, chosen
        return taken

    @property
    def first_order(self) -> tuple["Trace", NDArray[np.intp]]:
        """Return the same requests before they were put in order, and the place of each of these among them."""
        if "_in_other_order" not in self.__dict__:
            return self, np.arange(len(self))
        other, chosen = self.__dict__["_in_other_order"]
        first, places = other.first_order
        return first, places[chosen]

    def faster(self, speed: float) -> "Trace":
        """Return the same requests arriving ``speed`` times as fast; clients wait as long as before.

        If some wait for others, sessions begin faster, but the pauses inside them stay.
        """
        if not speed > 0:
            raise BadInput(f"must be above 0, got {speed}", field="speed")
        if self.turns is None:
            return replace(self, arrival_s=self.arrival_s / speed)
        moved = replace(self, arrival_s=self.turns.started(self.arrival_s, self.arrival_s / speed))
        return moved.take(np.argsort(moved.arrival_s, kind="stable"))

    def sampled(self, share: float, seed: int = 0) -> "Trace":
        """Keep each request with that probability: the same shape over time at a lower rate.

        Sessions are drawn whole if the trace has them. Otherwise requests are drawn one by one, not by conversation or
        shared prompt, so less of their prefixes can be reused.
        """
        if not 0 < share <= 1:
            raise BadInput(f"must be above 0 and at most 1, got {share}", field="sample")
        drawn = np.random.default_rng(seed).random(len(self) if self.turns is None else self.turns.sessions) < share
        return self.take(np.flatnonzero(drawn if self.turns is None else drawn[self.turns.session]))

    def resized(self, input_tokens: Counts, output_tokens: Counts) -> "Trace":
        """Return the requests with other lengths. Prompts and answers change at their ends: shared parts stay."""
        before, after = (self.input_tokens, self.output_tokens), (input_tokens, output_tokens)
        prefix = None if self.prefix is None else self.prefix.cut(before, after)
        return replace(self, input_tokens=input_tokens, output_tokens=output_tokens, prefix=prefix)

    def cut_to(self, context: int) -> "Trace":
        """Return the same requests with prompts, and if need be answers, shortened to fit into a context."""
        outputs = np.minimum(self.output_tokens, context - 1)
        return self.resized(np.minimum(self.input_tokens, context - outputs), outputs)

    def repeated(self, times: int) -> "Trace":
        """Return the same requests several times, one mean gap apart; prompts are shared only within one round.

        If some wait for others, a round begins one mean gap after the last session of the round before began.
        """
        if times == 1:
            return self
        count, turns = len(self), self.turns
        again = replace(self, turns=None).take(np.tile(np.arange(count), times))
        rounds = np.repeat(np.arange(times), count)
        prefix = None if again.prefix is None else again.prefix.apart(rounds)
        round_s = self.duration_s * count / max(1, count - 1)
        if turns is not None and self.rate > 0:
            round_s = count / self.rate
        again = replace(again, arrival_s=again.arrival_s + rounds * round_s, prefix=prefix)
        if turns is None:
            return again
        again = replace(again, turns=turns.repeated(times))
        return again.take(np.argsort(again.arrival_s, kind="stable"))

    def window(self, start_s: float, end_s: float) -> "Trace":
        """Return the requests that arrive in ``[start, end)``, with times from the start of the window.

        A request that waits for one from before the window is sent at its time.
        """
        inside = self.take(np.flatnonzero((self.arrival_s >= start_s) & (self.arrival_s < end_s)))
        return replace(inside, arrival_s=inside.arrival_s - start_s)


def make_trace(
    arrival_s: ArrayLike,
    input_tokens: ArrayLike,
    output_tokens: ArrayLike,
    *,
    tenant: Counts | None = None,
    tenants: tuple[str, ...] = (),
    priority: ArrayLike | None = None,
    patience_s: ArrayLike | None = None,
    prefix: PrefixBlocks | None = None,
    usd: ArrayLike | None = None,
    source: str = "generated",
) -> Trace:
    """Check columns in any order and make a trace: sorted by arrival, times counted from the first."""
    arrival = np.asarray(arrival_s, np.float64)
    inputs, outputs = np.asarray(input_tokens), np.asarray(output_tokens)
    if not len(arrival) == len(inputs) == len(outputs):
        raise BadInput(f"columns differ in length: {len(arrival)}, {len(inputs)}, {len(outputs)}", where=source)
    if len(arrival) and not np.isfinite(arrival).all():
        raise BadInput("an arrival time is not a number", where=source)
    if len(inputs) and (inputs.min() < 1 or inputs.max() > MOST_TOKENS):
        raise BadInput(f"a prompt must have 1 to {MOST_TOKENS:,} tokens", where=source)
    if len(outputs) and (outputs.min() < 0 or outputs.max() > MOST_TOKENS):
        raise BadInput(f"an answer must have 0 to {MOST_TOKENS:,} tokens", where=source)
    patience = None if patience_s is None else np.asarray(patience_s, np.float64)
    if patience is not None and not (patience > 0).all():
        raise BadInput("a client must wait longer than 0 seconds", where=source)
    trace = Trace(
        arrival_s=arrival - (arrival.min() if len(arrival) else 0.0),
        input_tokens=inputs.astype(np.int32),
        output_tokens=outputs.astype(np.int32),
        tenant=tenant,
        tenants=tenants,
        priority=None if priority is None else np.asarray(priority, np.int32),
        patience_s=patience,
        prefix=prefix,
        usd=None if usd is None else np.asarray(usd, np.float64),
        source=source,
    )
    if np.all(np.diff(trace.arrival_s) >= 0):
        return trace
    return trace.take(np.argsort(trace.arrival_s, kind="stable"))


def _lists(prefix: PrefixBlocks) -> "pl.Series":
    """Return the blocks of each request as one list; empty if it names none."""
    import polars as pl

    requests = np.arange(len(prefix.starts) - 1)
    flat = pl.DataFrame({"request": np.repeat(requests, np.diff(prefix.starts)), "ids": prefix.ids})
    listed = flat.with_columns(pl.col("request").set_sorted()).group_by("request", maintain_order=True).agg("ids")
    every = pl.DataFrame({"request": requests}).join(listed, on="request", how="left", maintain_order="left")
    return every["ids"].fill_null(pl.lit([], dtype=pl.List(pl.Int32)))


def save_trace(trace: Trace, path: Path) -> None:
    """Write a trace as parquet that ``open_trace`` reads back the same; the size of a block is in the metadata."""
    check_path(path, "save", (".parquet",))
    metadata = {} if trace.prefix is None else {"block_tokens": str(trace.prefix.block_tokens)}
    with whole(path, option("save", shorten(path.name))) as unfinished:
        trace.to_frame().write_parquet(unfinished, metadata=metadata)
