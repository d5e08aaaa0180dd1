"""The compiled replay equals a cache written with a dictionary, and reproduces what is known of a public trace."""

import math
from collections import OrderedDict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.there import there

from tokonomics.traffic.prefix_reuse import SlowWrites, found_by_size, reuse, reuse_within
from tokonomics.traffic.readers import open_trace
from tokonomics.traffic.trace import PrefixBlocks


def blocks_of(lists: list[list[int]], block_tokens: int) -> PrefixBlocks:
    starts = np.cumsum([0, *map(len, lists)]).astype(np.int64)
    ids = np.array([each for ids in lists for each in ids], np.int32)
    return PrefixBlocks(ids, starts, block_tokens, int(ids.max(initial=-1)) + 1)


def by_dictionary(lists: list[list[int]], tokens: list[int], block_tokens: int, capacity: int | None) -> list[int]:
    """The same cache, oldest first in an ordered dictionary, every block on its own."""
    cache: OrderedDict[object, None] = OrderedDict()
    cached = []
    for request, (ids, prompt) in enumerate(zip(lists, tokens, strict=True)):
        goes_into_the_answer = len(ids) > math.ceil(prompt / block_tokens)
        hittable = [
            block for place, block in enumerate(ids) if not goes_into_the_answer or (place + 1) * block_tokens <= prompt
        ]
        leading = 0
        while leading < len(hittable) and hittable[leading] in cache:
            leading += 1
        cached.append(min(leading * block_tokens, prompt))
        own = max(-(-(prompt - len(ids) * block_tokens) // block_tokens), 0)
        for key in [*((request, place) for place in range(own)), *reversed(ids)]:
            cache[key] = None
            cache.move_to_end(key)
        while capacity is not None and len(cache) > capacity:
            cache.popitem(last=False)
    return cached


@st.composite
def chains(draw: st.DrawFn) -> list[list[int]]:
    """Prompts that grow from one another: each takes the head of an earlier one and adds blocks of its own."""
    lists: list[list[int]] = [[]]
    fresh = 0
    for _ in range(draw(st.integers(1, 30))):
        before = lists[draw(st.integers(0, len(lists) - 1))]
        kept, added = draw(st.integers(0, len(before))), draw(st.integers(0, 5))
        lists.append([*before[:kept], *range(fresh, fresh + added)])
        fresh += added
    return lists


@settings(deadline=None, max_examples=60)
@given(lists=chains(), own=st.lists(st.integers(-40, 40), min_size=31, max_size=31), capacity=st.integers(0, 40))
def test_the_replay_equals_a_dictionary(lists: list[list[int]], own: list[int], capacity: int) -> None:
    """Prompts that end before their list does (its answer is listed too), within its last block, and after it."""
    tokens = [max(8 * len(ids) - 3 + more, 1) for ids, more in zip(lists, own, strict=False)]
    for room in (capacity, None):
        seen = reuse(blocks_of(lists, 8), np.array(tokens, np.int32), room)
        assert seen.tolist() == by_dictionary(lists, tokens, 8, room)


def written_by_hand(
    lists: list[list[int]],
    tokens: list[int],
    times: list[float],
    links: list[int],
    have: list[int],
    slow: tuple[float, int, int, float],
) -> tuple[list[int], int]:
    """The tokens found, and the blocks lost, with a queue of whole blocks a writer takes from one by one."""
    block_s, front, chunk, computing_s = slow
    stored: set[object] = set()
    waiting, crowded, now = dict.fromkeys(links, 0.0), dict.fromkeys(links, False), dict.fromkeys(links, 0.0)
    found, lost = [], 0
    for request, (ids, prompt, at_s, link) in enumerate(zip(lists, tokens, times, links, strict=True)):
        waiting[link] = max(waiting[link] - (at_s - now[link]) / block_s, 0.0)
        now[link] = at_s
        leading = 0
        while leading < min(len(ids), prompt // 8) and ids[leading] in stored:
            leading += 1
        room = front - waiting[link]
        here = min(leading, have[request])
        read = 0 if crowded[link] else leading - here
        while read > room and read % chunk:
            read -= 1
        while read > max(room, 0):
            read -= chunk
        found.append((here + read) * 8)
        own = [(request, place) for place in range(-(-max(prompt - 8 * len(ids), 0) // 8))]
        new = [block for block in [*ids, *own] if block not in stored]
        room += computing_s / block_s
        keeps = len(new)
        if keeps > room:
            keeps = max(whole for whole in range(0, len(new) + chunk, chunk) if whole <= max(room, 0))
        stored |= set(new[:keeps])
        waiting[link] += keeps
        crowded[link] = keeps < len(new)
        lost += len(new) - keeps
    return found, lost


@settings(deadline=None, max_examples=80)
@given(
    lists=chains(),
    own=st.lists(st.integers(0, 40), min_size=31, max_size=31),
    gaps=st.lists(st.integers(0, 9), min_size=31, max_size=31),
    front=st.integers(0, 12),
    chunk=st.integers(1, 4),
    replicas=st.integers(1, 2),
    computing_s=st.sampled_from([0.0, 2.0]),
    faster=st.lists(st.integers(0, 6), min_size=31, max_size=31),
)
def test_what_comes_faster_than_it_is_written_is_not_there_later(
    lists: list[list[int]],
    own: list[int],
    gaps: list[int],
    front: int,
    chunk: int,
    replicas: int,
    computing_s: float,
    faster: list[int],
) -> None:
    """Also behind a faster memory, whatever that says it has."""
    tokens = [8 * len(ids) + more + 1 for ids, more in zip(lists, own, strict=False)]
    times = np.cumsum(gaps[: len(lists)]).astype(float)
    links = [place % replicas for place in range(len(lists))]
    writes = SlowWrites(
        block_s=1.0,
        front_blocks=front,
        chunk_blocks=chunk,
        link=np.array(links, np.int32),
        have=np.array(faster[: len(lists)], np.int64),
        computing_s=np.full(len(lists), computing_s),
    )
    made = reuse_within(blocks_of(lists, 8), np.array(tokens, np.int32), times, writes=writes)
    found, lost = written_by_hand(lists, tokens, times.tolist(), links, faster, (1.0, front, chunk, computing_s))
    assert made.tokens.tolist() == found
    assert made.unwritten_blocks == lost


def test_a_slow_cache_by_hand() -> None:
    """Two blocks a second into a room of eight: of three prompts of four blocks at once, the third is lost."""
    lists = blocks_of([[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11], [8, 9, 10, 11], [0, 1, 2, 3], [0, 1, 2, 3]], 16)
    prompts, times = np.full(6, 65, np.int32), np.array([0.0, 0.0, 0.0, 9.0, 9.0, 9.1])
    none, nothing, at_once = np.zeros(6, np.int32), np.zeros(6, np.int64), np.zeros(6)
    # A prompt has one token after its four blocks: a fifth block of its own.
    writes = SlowWrites(0.5, 10, 5, none, nothing, at_once)
    made = reuse_within(lists, prompts, times, writes=writes)
    assert made.tokens.tolist() == [0, 0, 0, 0, 64, 64]
    assert made.unwritten_blocks == 5
    # A faster memory that has two of the four blocks leaves two to read, which fit where four do not.
    lists, times = blocks_of([[0, 1, 2, 3], [4, 5, 6, 7], [0, 1, 2, 3]], 16), np.array([0.0, 9.0, 9.0])
    for have, found in ((0, 0), (2, 64)):
        writes = SlowWrites(0.5, 6, 6, none[:3], np.array([0, 0, have]), at_once[:3])
        assert reuse_within(lists, np.full(3, 64, np.int32), times, writes=writes).tokens.tolist() == [0, 0, found]


def test_a_prompt_never_seen_finds_nothing_however_full_the_room_is() -> None:
    """Ten blocks come over two seconds into a room of eight: two more wait than fit as the next prompt comes."""
    lists, prompts = blocks_of([list(range(10)), [10, 11, 12, 13]], 16), np.array([160, 64], np.int32)
    none, have, computing_s = np.zeros(2, np.int32), np.array([0, 2]), np.array([2.0, 0.0])
    made = reuse_within(lists, prompts, np.zeros(2), writes=SlowWrites(1.0, 8, 1, none, have, computing_s))
    assert made.tokens.tolist() == [0, 0]
    assert made.unwritten_blocks == 4


@settings(deadline=None, max_examples=40)
@given(lists=chains())
def test_without_a_limit_only_a_blocks_first_use_is_paid(lists: list[list[int]]) -> None:
    tokens = np.array([max(8 * len(ids), 1) for ids in lists], np.int32)
    paid = tokens.sum() - reuse(blocks_of(lists, 8), tokens).sum()
    assert paid == 8 * len({each for ids in lists for each in ids}) + sum(not ids for ids in lists)


def test_a_prompts_own_tokens_take_room() -> None:
    shared = blocks_of([[0, 1], [0, 1], [0, 1]], 64)
    assert reuse(shared, np.array([128, 128, 128], np.int32), 4).tolist() == [0, 128, 128]
    assert reuse(shared, np.array([128, 64 * 50, 128], np.int32), 4).tolist() == [0, 128, 128]
    unlisted = blocks_of([[0, 1], [], [0, 1]], 64)
    assert reuse(unlisted, np.array([128, 128, 128], np.int32), 4).tolist() == [0, 0, 128]
    assert reuse(unlisted, np.array([128, 129, 128], np.int32), 4).tolist() == [0, 0, 64]
    assert reuse(unlisted, np.array([128, 64 * 4, 128], np.int32), 4).tolist() == [0, 0, 0]
    # A prompt's tail leaves before its head, and no prompt is cached beyond its length.
    lists = blocks_of([[0, 1, 2, 3], [4, 5], [0, 1, 2, 3]], 64)
    assert reuse(lists, np.array([256, 128, 256], np.int32), 4).tolist() == [0, 0, 128]
    assert reuse(shared, np.array([100, 100, 100], np.int32)).tolist() == [0, 100, 100]
    # A block that the answer fills is no hit for its own prompt. Turn one: 100 tokens and an answer of 100; turn two
    # finds all three whole blocks, 192 of the 200 tokens said.
    asked_twice = blocks_of([[0, 1, 2], [0, 1, 2], [0, 1, 2, 3]], 64)
    assert reuse(asked_twice, np.array([100, 100, 230], np.int32)).tolist() == [0, 64, 192]


@settings(deadline=None, max_examples=60)
@given(lists=chains(), own=st.lists(st.integers(-40, 40), min_size=31, max_size=31))
def test_one_pass_finds_what_a_dictionary_of_every_size_finds(lists: list[list[int]], own: list[int]) -> None:
    tokens = [max(8 * len(ids) - 3 + more, 1) for ids, more in zip(lists, own, strict=False)]
    made = found_by_size((blocks_of(lists, 8), np.array(tokens, np.int32)))
    assert made.input_tokens == sum(tokens)
    for capacity in (*range(0, 40, 3), 10_000):
        found = sum(by_dictionary(lists, tokens, 8, capacity))
        assert made.found(capacity) == found
        least = made.least_blocks(found)
        if found < sum(by_dictionary(lists, tokens, 8, None)):
            assert sum(by_dictionary(lists, tokens, 8, least - 1)) <= found
            assert sum(by_dictionary(lists, tokens, 8, least)) > found


def test_a_cycle_is_found_whole_or_not_at_all() -> None:
    """Ten prompts of four blocks in turn: a cache of 39 blocks has always just let go of what comes next."""
    lists = [[4 * (turn % 10) + place for place in range(4)] for turn in range(100)]
    tokens = np.full(100, 64, np.int32)
    made = found_by_size((blocks_of(lists, 16), tokens))
    # A prompt's tail leaves before its head: of the first prompt that is let go, the head stays as long as it can.
    assert made.share(36) == 0
    assert made.share(39) == pytest.approx(90 * 3 / 400)
    assert made.share(40) == made.share(10**9) == 90 / 100
    assert made.most_blocks == 40


def test_popular_prompts_are_found_as_by_a_slow_cache_and_apart_by_each_of_two() -> None:
    chosen = np.random.default_rng(3).zipf(1.3, 3000) % 400
    lists = [[int(3 * one + place) for place in range(3)] for one in chosen]
    tokens = [16 * 3 + 5] * len(lists)
    made = found_by_size((blocks_of(lists, 16), np.array(tokens, np.int32)))
    parts = [(lists[half::2], tokens[half::2]) for half in (0, 1)]
    apart = found_by_size(*((blocks_of(some, 16), np.array(of, np.int32)) for some, of in parts))
    for capacity in (3, 30, 200, 900, 100_000):
        assert made.found(capacity) == sum(by_dictionary(lists, tokens, 16, capacity))
        of_each = sum(sum(by_dictionary(some, of, 16, capacity)) for some, of in parts)
        assert apart.found(capacity) == of_each
        assert apart.share(capacity) == pytest.approx(of_each / sum(tokens))
    assert found_by_size().share(1) == 0


def test_mooncakes_conversations_reuse_what_its_trace_says() -> None:
    """Expected shares come from a slow replay of the published file with an ordered dictionary."""
    trace = open_trace("mooncake-conversation").read()
    for capacity, percent in ((1_000, 4.54), (10_000, 21.57), (50_000, 36.15), (None, 37.36)):
        cached = reuse(there(trace.prefix), trace.input_tokens, capacity).sum(dtype=np.int64)
        assert 100 * cached / trace.input_tokens.sum(dtype=np.int64) == pytest.approx(percent, abs=0.02)
