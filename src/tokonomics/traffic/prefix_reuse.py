"""Compute how many prompt tokens a cache of prefix blocks would save, by replaying the trace through one LRU cache.

A request hits its leading blocks that are resident. Then all of its blocks are touched from the last to the first, so
that a prompt's tail leaves before its head, as vLLM frees them, and the least recently touched leave until the cache
is within its capacity. Tokens after a request's listed blocks are its own: they take room and are never hit. Where the
blocks go on into the answer, only those that end within the prompt can be hit. The order of arrival is the order of
service, and answers take no room unless they are listed. With a time to live, what was last touched longer ago than
that is gone; being the least recently touched it leaves first anyway, so a longer time never hits less.

A cache that is written slowly has a memory in front, in which blocks wait to be written. What does not fit there is not
stored, a prompt chunk at a time. What is read passes through the same memory, when no blocks wait for room there.

What a cache of any size finds follows from one pass (Mattson et al., 1970): after each request a cache holds the most
recently touched blocks up to its size, so a block is found by every cache that is larger than what was touched since.
"""

import math
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tokonomics.machine_code import Unit
from tokonomics.traffic.trace import Counts, Floats, Offsets, PrefixBlocks, Trace

UNBOUNDED = np.iinfo(np.int64).max


class SlowWrites(NamedTuple):
    """How blocks are written to a cache that is slower than the GPUs compute them."""

    block_s: float  # to write a block
    front_blocks: float  # the room in front of the cache in which blocks wait to be written
    chunk_blocks: float  # blocks of a full prompt chunk: only as many whole ones as fit are stored
    link: Counts  # by request: which of several writers, each with a room of its own
    have: Offsets  # by request: leading blocks that need not be read, as a faster memory has them
    computing_s: Floats  # by request: the time over which its blocks come


class Replayed(NamedTuple):
    """What one cache finds and holds."""

    tokens: Counts  # by request: the leading tokens of its prompt that are found
    most_blocks: int  # held at once
    unwritten_blocks: int  # that were never stored, as they came faster than they could be written


def reuse(prefix: PrefixBlocks, input_tokens: Counts, capacity_blocks: int | None = None) -> Counts:
    """Return the cached tokens of each request; a capacity of None never evicts."""
    return reuse_within(prefix, input_tokens, np.zeros(len(input_tokens)), capacity_blocks)[0]


def reuse_within(
    prefix: PrefixBlocks,
    input_tokens: Counts,
    arrival_s: Floats,
    capacity_blocks: int | None = None,
    ttl_s: float | None = None,
    writes: SlowWrites | None = None,
) -> Replayed:
    """Return what a cache finds; unused blocks expire after ``ttl_s``, and without ``writes`` all are stored."""
    capacity = UNBOUNDED if capacity_blocks is None else max(capacity_blocks, 0)
    ttl = math.inf if ttl_s is None else ttl_s
    block = prefix.block_tokens
    requests, nodes = len(prefix.starts) - 1, prefix.distinct + len(prefix.starts)
    absent, none = np.full(nodes, -1, np.int32), np.zeros(requests, np.int64)
    room = Room(absent, absent.copy(), none, none.copy(), np.zeros(nodes))
    listed = np.ascontiguousarray(prefix.ids), np.ascontiguousarray(prefix.starts)
    came = np.ascontiguousarray(input_tokens), np.ascontiguousarray(arrival_s)
    front = _front(requests, writes)
    most = _replay(*listed, *came, room, front, block, prefix.distinct, capacity, ttl)
    tokens = np.minimum(room.hits * block, input_tokens).astype(np.int32)
    return Replayed(tokens, most, int(front.unwritten[0]))


def _front(requests: int, writes: SlowWrites | None) -> "Front":
    links = int(writes.link.max(initial=0)) + 1 if writes else 1
    return Front(
        limits=np.array([writes.block_s, writes.front_blocks, writes.chunk_blocks] if writes else [0.0, 0.0, 1.0]),
        link=np.ascontiguousarray(writes.link, np.int32) if writes else np.zeros(requests, np.int32),
        have=np.ascontiguousarray(writes.have, np.int64) if writes else np.zeros(requests, np.int64),
        computing_s=np.ascontiguousarray(writes.computing_s, np.float64) if writes else np.zeros(requests),
        backlog=np.zeros(links),
        seen_s=np.zeros(links),
        is_full=np.zeros(links, np.int64),
        unwritten=np.zeros(1, np.int64),
    )


def found_share(trace: Trace, capacity_blocks: int | None = None, ttl_s: float | None = None) -> tuple[float, int]:
    """Return the share of prompt tokens that one cache finds, and the most blocks it holds; 0 if none are named."""
    if trace.prefix is None:
        return 0.0, 0
    hits, held, _ = reuse_within(trace.prefix, trace.input_tokens, trace.arrival_s, capacity_blocks, ttl_s)
    return float(hits.sum(dtype=np.int64) / trace.input_tokens.sum(dtype=np.int64)), held


class FoundBySize(NamedTuple):
    """What LRU caches of every size find; ``blocks`` rise, and a cache of that size finds ``tokens`` in total."""

    blocks: Offsets
    tokens: Offsets
    input_tokens: int

    def found(self, capacity_blocks: float) -> int:
        """Return the tokens that a cache of this size finds."""
        below = int(np.searchsorted(self.blocks, capacity_blocks, side="right"))
        return int(self.tokens[below - 1]) if below else 0

    def share(self, capacity_blocks: float) -> float:
        """Return the share of the prompt tokens that a cache of this size finds."""
        return self.found(capacity_blocks) / self.input_tokens if self.input_tokens else 0.0

    @property
    def most_blocks(self) -> int:
        """Return the size from which a cache finds all that can be found: the working set."""
        return int(self.blocks[-1]) if len(self.blocks) else 0

    def least_blocks(self, tokens: float) -> int:
        """Return the smallest size that finds more than these tokens; the working set if none does."""
        place = int(np.searchsorted(self.tokens, tokens, side="right"))
        return int(self.blocks[place]) if place < len(self.blocks) else self.most_blocks


def found_by_size(*caches: tuple[PrefixBlocks, Counts]) -> FoundBySize:
    """Return what caches of each size find in one pass, each with its own requests' blocks and tokens."""
    needed, tokens, asked = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)], 0
    for prefix, input_tokens in caches:
        own, block = _needed_blocks(prefix, input_tokens), prefix.block_tokens
        counts = np.diff(prefix.starts)
        place = np.arange(len(prefix.ids)) - np.repeat(prefix.starts[:-1], counts)
        prompt = np.repeat(input_tokens.astype(np.int64), counts)
        of_block = np.minimum((place + 1) * block, prompt) - np.minimum(place * block, prompt)
        found = own > 0
        needed.append(own[found])
        tokens.append(of_block[found])
        asked += int(input_tokens.sum(dtype=np.int64))
    both = np.concatenate(needed), np.concatenate(tokens)
    sizes, which = np.unique(both[0], return_inverse=True)
    found_tokens = np.zeros(len(sizes), np.int64)
    np.add.at(found_tokens, which, both[1])
    return FoundBySize(sizes, np.cumsum(found_tokens), asked)


def _needed_blocks(prefix: PrefixBlocks, input_tokens: Counts) -> Offsets:
    """Return for each listed block the smallest cache that finds it and all before it; 0: none does."""
    needed = np.zeros(len(prefix.ids), np.int64)
    slots = np.zeros(prefix.distinct, np.int64)
    tree = np.zeros(len(prefix.ids) + len(prefix.starts) + 1, np.int64)
    listed = np.ascontiguousarray(prefix.ids), np.ascontiguousarray(prefix.starts)
    _depths(*listed, np.ascontiguousarray(input_tokens), slots, tree, needed, prefix.block_tokens)
    return needed


def waiting_state(trace: Trace) -> tuple[float, float]:
    """Return the mean number of cached prompt tokens that will be used again, and of requests that will use them.

    A token waits in the cache from its last use until the next. By Little's law, tokens used again per second × their
    wait is how many wait at a time: what users must compute again if the cache is lost.
    """
    prefix, duration_s = trace.prefix, trace.duration_s
    if prefix is None or not duration_s > 0 or not len(prefix.ids):
        return 0.0, 0.0
    counts = np.diff(prefix.starts)
    request = np.repeat(np.arange(len(counts)), counts)
    place = np.arange(len(prefix.ids)) - np.repeat(prefix.starts[:-1], counts)
    order = np.argsort(prefix.ids, kind="stable")
    again = order[1:][prefix.ids[order][1:] == prefix.ids[order][:-1]]
    before = order[:-1][prefix.ids[order][1:] == prefix.ids[order][:-1]]
    waited_s = np.full(len(place), -1.0)
    waited_s[again] = trace.arrival_s[request[again]] - trace.arrival_s[request[before]]
    # Blocks after a new one, or beyond the prompt, are not found.
    whole = trace.input_tokens // prefix.block_tokens
    beyond = (counts - 1) * prefix.block_tokens >= trace.input_tokens
    found = np.where(beyond, whole, counts)
    np.minimum.at(found, request[waited_s < 0], place[waited_s < 0])
    waited_s[place >= found[request]] = 0.0
    longest_s = np.zeros(len(counts))
    np.maximum.at(longest_s, request, waited_s)
    return float(waited_s.sum() * prefix.block_tokens / duration_s), float(longest_s.sum() / duration_s)


def _example() -> dict[str, tuple[object, ...]]:
    counts, places, times = np.zeros(1, np.int32), np.zeros(2, np.int64), np.zeros(1)
    room = Room(counts, counts, places, places, times)
    front = Front(times, counts, places, times, times, times, places, places)
    return {
        "_replay": (counts, places, counts, times, room, front, 1, 1, 1, 1.0),
        "_depths": (counts, places, counts, places, places, places, 1),
    }


REUSE = Unit("reuse", [Path(__file__)], _example)


class Room(NamedTuple):
    """The state of a replay, by node or request."""

    newer: Counts
    older: Counts
    size: Offsets
    hits: Offsets
    touched_s: Floats


class Front(NamedTuple):
    """What waits in front of a slow cache: ``SlowWrites`` as arrays, and the state by link."""

    limits: Floats  # seconds to write a block (0: nothing ever waits), room in blocks, blocks of a chunk
    link: Counts
    have: Offsets
    computing_s: Floats
    backlog: Floats  # blocks that wait to be written
    seen_s: Floats  # when the backlog was that
    is_full: Offsets  # 1: the last request's blocks did not all fit, so others wait for what becomes free
    unwritten: Offsets  # the sum, in one place


@REUSE.compiled
def _whole_chunks(free: float, chunk: float) -> int:
    """Return the blocks of the chunks that fit."""
    return int(max(0.0, free) // chunk) * int(chunk)


@REUSE.compiled
def _readable(front: Front, request: int, leading: int, now_s: float) -> int:
    """Let the writer catch up until now; return how many leading blocks a request gets, if the cache has so many."""
    link, have = front.link[request], front.have[request]
    front.backlog[link] = max(0.0, front.backlog[link] - (now_s - front.seen_s[link]) / front.limits[0])
    front.seen_s[link] = now_s
    if leading <= have:
        return leading
    if front.is_full[link] > 0:
        return int(have)
    free = front.limits[1] - front.backlog[link]
    return leading if leading - have <= free else have + _whole_chunks(free, front.limits[2])


@REUSE.compiled
def _unstored(front: Front, request: int, fresh: int) -> int:
    """Let new blocks wait to be written; return how many find no room even by the time they are all computed."""
    link = front.link[request]
    free = front.limits[1] - front.backlog[link] + front.computing_s[request] / front.limits[0]
    stored = fresh if fresh <= free else _whole_chunks(free, front.limits[2])
    front.backlog[link] += stored
    front.is_full[link] = 1 if stored < fresh else 0
    front.unwritten[0] += fresh - stored
    return fresh - stored


@REUSE.compiled
def _touch(room: Room, node: int, end: int, now_s: float) -> None:
    """Put a node before the newest."""
    newest = room.older[end]
    room.newer[node], room.older[node] = end, newest
    room.older[end] = room.newer[newest] = node
    room.touched_s[node] = now_s


@REUSE.compiled
def _forget_oldest(room: Room, node: int, end: int) -> None:
    room.older[room.newer[node]] = end
    room.newer[end] = room.newer[node]
    room.newer[node] = -1


@REUSE.entry
def _replay(
    ids: Counts,
    starts: Offsets,
    input_tokens: Counts,
    arrival_s: Floats,
    room: Room,
    front: Front,
    block_tokens: int,
    distinct: int,
    capacity: int,
    ttl_s: float,
) -> int:
    """Return the most blocks held after any request; ``room.hits`` gets the leading resident blocks of each, in order.

    The cache is a doubly linked list through arrays, newest first. A node is a block, or the own blocks of one request
    together (node ``distinct + i``), which leave one by one from its size. ``end`` is a sentinel before the newest and
    after the oldest.
    """
    requests = len(starts) - 1
    end = distinct + requests
    newer, older, size, hits, touched_s = room
    newer[end] = older[end] = end
    held = most = 0
    is_slow = front.limits[0] > 0
    for request in range(requests):
        gone_s = arrival_s[request] - ttl_s
        while newer[end] != end and touched_s[newer[end]] < gone_s:
            node = newer[end]
            held -= size[node - distinct] if node >= distinct else 1
            _forget_oldest(room, node, end)
        first, after = starts[request], starts[request + 1]
        beyond = (after - first - 1) * block_tokens >= input_tokens[request]
        last = first + input_tokens[request] // block_tokens if beyond else after
        leading = 0
        while first + leading < last and newer[ids[first + leading]] >= 0:
            leading += 1
        if is_slow:
            leading = _readable(front, request, leading, arrival_s[request])
        hits[request] = leading
        own = max(0, -(-(input_tokens[request] - (after - first) * block_tokens) // block_tokens))
        unstored = 0
        if is_slow:
            fresh = own
            for place in range(first, after):
                if newer[ids[place]] < 0:
                    fresh += 1
            unstored = _unstored(front, request, fresh)
        tail = min(own, unstored)
        own -= tail
        unstored -= tail
        if own > 0:
            size[request] = own
            _touch(room, distinct + request, end, arrival_s[request])
            held += own
        for place in range(after - 1, first - 1, -1):
            node = ids[place]
            if newer[node] >= 0:
                older[newer[node]] = older[node]
                newer[older[node]] = newer[node]
            elif unstored > 0:
                unstored -= 1
                continue
            else:
                held += 1
            _touch(room, node, end, arrival_s[request])
        while held > capacity:
            node = newer[end]
            if node >= distinct and size[node - distinct] > held - capacity:
                size[node - distinct] -= held - capacity
                held = capacity
                break
            held -= size[node - distinct] if node >= distinct else 1
            _forget_oldest(room, node, end)
        most = max(most, held)
    return most


@REUSE.entry
def _depths(
    ids: Counts,
    starts: Offsets,
    input_tokens: Counts,
    slots: Offsets,
    tree: Offsets,
    needed: Offsets,
    block_tokens: int,
) -> int:
    """Set the smallest cache that finds each block with all before it; return the blocks of one that never evicts.

    Every touch takes the next slot; ``tree`` sums the blocks whose last touch is in a slot (Fenwick, 1994), so that
    those touched later than a block are counted in a logarithm of all touches.
    """
    slot = held = 0
    for request in range(len(starts) - 1):
        first, after = starts[request], starts[request + 1]
        beyond = (after - first - 1) * block_tokens >= input_tokens[request]
        last = first + input_tokens[request] // block_tokens if beyond else after
        size = 0
        for place in range(first, last):
            at = slots[ids[place]]
            if at == 0:
                break
            later = held
            while at > 0:
                later -= tree[at]
                at -= at & -at
            size = max(size, later + 1)
            needed[place] = size
        own = -(-(input_tokens[request] - (after - first) * block_tokens) // block_tokens)
        if own > 0:
            slot += 1
            held += own
            at = slot
            while at < len(tree):
                tree[at] += own
                at += at & -at
        for place in range(after - 1, first - 1, -1):
            at = slots[ids[place]]
            if at == 0:
                held += 1
            while 0 < at < len(tree):
                tree[at] -= 1
                at += at & -at
            slot += 1
            slots[ids[place]] = slot
            at = slot
            while at < len(tree):
                tree[at] += 1
                at += at & -at
    return held
