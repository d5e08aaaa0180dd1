"""Which requests wait for the answers of others: conversations and the jobs of agents, as columns beside a trace.

A request that waits for nobody is sent at its arrival time. Any other is sent when the last of those it waits for was
answered and its tool or person took its time: what a trace says of its arrival is then only when that was, once.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

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
    pause_s: Floats
    """By request: from the last of those answers until it is sent; 0 where it waits for nobody."""
    session: Counts
    """By request: the conversation or job that it is part of, dense from 0. None waits for one of another session."""

    @property
    def roots(self) -> NDArray[np.bool_]:
        """Requests that wait for nobody."""
        return np.asarray(np.diff(self.starts) == 0)

    @property
    def linked(self) -> bool:
        """Some request waits for another."""
        return len(self.waits_for) > 0

    @property
    def sessions(self) -> int:
        return int(self.session.max(initial=-1)) + 1

    def columns(self) -> "dict[str, pl.Series]":
        """As columns of a log: the number of each request, those it waits for, its pause and its session."""
        import polars as pl

        requests = np.arange(len(self.starts) - 1)
        listed = pl.Series(
            np.split(self.waits_for, self.starts[1:-1]) if len(requests) else [], dtype=pl.List(pl.Int32)
        )
        return {
            "request": pl.Series(requests),
            "parent": listed,
            "pause": pl.Series(self.pause_s),
            "session": pl.Series(self.session),
        }

    @property
    def children(self) -> tuple[Counts, Offsets]:
        """Who waits for request ``i``: those from ``starts[i]`` to ``starts[i + 1]`` of a flat list, and the starts."""
        requests = len(self.starts) - 1
        waiting = np.repeat(np.arange(requests, dtype=np.int32), np.diff(self.starts))
        starts = np.concatenate([[0], np.cumsum(np.bincount(self.waits_for, minlength=requests))]).astype(np.int64)
        return waiting[np.argsort(self.waits_for, kind="stable")], starts

    @property
    def depth(self) -> Counts:
        """By request: its turn, from 1: one more than the longest chain of those it waits for."""
        depth = np.ones(len(self.starts) - 1, np.int32)
        for parents, reached in self._answered():
            np.maximum.at(depth, reached, depth[parents] + 1)
        return depth

    @property
    def paused_s(self) -> Floats:
        """By session: the pauses along its slowest path, which it takes however fast the answers come."""
        ready_s, found = np.zeros(len(self.starts) - 1), np.zeros(self.sessions)
        for parents, reached in self._answered():
            np.maximum.at(ready_s, reached, ready_s[parents] + self.pause_s[reached])
        np.maximum.at(found, self.session, ready_s)
        return found

    def _answered(self) -> Iterator[tuple[Ints, Counts]]:
        """Requests that others wait for and who does, pair by pair: nobody's answer before all that it waits for."""
        waiting, starts = self.children
        left = np.diff(self.starts)
        front = np.flatnonzero(left == 0)
        while len(front):
            reached, _ = take_lists(waiting, starts, front)
            yield np.repeat(front, np.diff(starts)[front]), reached
            np.subtract.at(left, reached, 1)
            front = np.unique(reached[left[reached] == 0])

    def take(self, chosen: NDArray[np.intp]) -> "Turns":
        """Those of the chosen requests, in that order; who waited only for requests left out begins by itself."""
        place = np.full(len(self.starts) - 1, -1, np.int64)
        place[chosen] = np.arange(len(chosen))
        listed, starts = take_lists(self.waits_for, self.starts, chosen)
        parents = place[listed]
        kept = parents >= 0
        counts = np.bincount(np.repeat(np.arange(len(chosen)), np.diff(starts))[kept], minlength=len(chosen))
        _, session = np.unique(self.session[chosen], return_inverse=True)
        return Turns(
            waits_for=parents[kept].astype(np.int32),
            starts=np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
            pause_s=np.where(counts > 0, self.pause_s[chosen], 0.0),
            session=session.astype(np.int32),
        )

    def repeated(self, times: int) -> "Turns":
        """The same sessions again and again, each time others."""
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
        """Arrivals of sessions whose roots are sent at other times, ``roots_s`` where it is a root.

        Others keep their distance to the root of the first of those they wait for, unless another of those comes later.
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
    """The chosen of many lists that lie behind each other, the i-th from ``starts[i]`` to ``starts[i + 1]``."""
    lengths = np.diff(starts)[chosen]
    begin = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    places = np.repeat(starts[:-1][chosen] - begin[:-1], lengths) + np.arange(begin[-1])
    return ids[places], begin
