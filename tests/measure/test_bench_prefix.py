"""A replay sends prompts that share what the trace says they share: blocks with equal ids are equal words."""

from collections.abc import Iterator, Sequence
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from tests.measure.loopback import Loopback, loopback
from tests.measure.tiny_llama import llama_server

from tokonomics.addresses import target
from tokonomics.measure.bench.loads import Budget
from tokonomics.measure.bench.run import BenchSettings, run_bench
from tokonomics.measure.bench.sessions import BenchPrompts, Scale
from tokonomics.measure.benchmark_run import BenchmarkRun
from tokonomics.traffic.prefix_reuse import reuse
from tokonomics.traffic.trace import PrefixBlocks, Trace, Turns, make_trace

BLOCK = 16
TEMPLATE = 7  # tokens that the server on loopback adds; a word is a token to it
OUTPUT = 3


def named(lists: Sequence[Sequence[int]], block_tokens: int = BLOCK) -> PrefixBlocks:
    """Blocks of each request."""
    starts = np.cumsum([0, *map(len, lists)])
    ids = np.asarray([one for listed in lists for one in listed], np.int32)
    return PrefixBlocks(ids, starts, block_tokens, int(ids.max()) + 1)


def logged(lists: Sequence[Sequence[int]], tokens: Sequence[int], gap_s: float = 0.01) -> Trace:
    return make_trace(gap_s * np.arange(len(lists)), tokens, np.full(len(lists), OUTPUT), prefix=named(lists))


@pytest.fixture
def server() -> Iterator[Loopback]:
    with loopback() as made:
        yield made


def replayed(server: Loopback, trace: Trace, path: str = "", **asked: object) -> BenchmarkRun:
    settings = {"budget": Budget(precision=1e-9, requests=1000, seconds=20), "trace": trace, **asked}
    return run_bench(BenchSettings(target(server.url("good") + path), **settings))  # type: ignore[arg-type]


def prompts(server: Loopback) -> list[list[str]]:
    """Words of the prompts of the trace, without those sent to learn and to warm up; requests may overtake others."""
    sent = [body for body in server.bodies if body["max_tokens"] == OUTPUT]
    return [(body["messages"][0]["content"] if "messages" in body else body["prompt"]).split() for body in sent]


def repeats(run: BenchmarkRun) -> str:
    """What the result says of shared prompts."""
    (note,) = (note for note in run.points[0].notes if "as in the trace" in note)
    return note


def shared(one: Sequence[object], other: Sequence[object]) -> int:
    """Leading items that are equal."""
    equal = [left == right for left, right in zip(one, other, strict=False)]
    return equal.index(False) if False in equal else len(equal)


LISTS = [[0, 1, 2], [0, 1, 3, 4], [0, 1, 2, 5], [6], [], [0, 1, 3, 4, 7]]
TOKENS = [60, 80, 64, 100, 50, 75]  # the third is all blocks; the last ends inside its fifth block, which is block 7


@pytest.mark.parametrize("path", ["", "/completions"])
def test_prompts_share_exactly_the_blocks_that_the_trace_says(server: Loopback, path: str) -> None:
    run = replayed(server, logged(LISTS, TOKENS), path)
    sent = prompts(server)
    assert sorted(map(len, sent)) == sorted(tokens - TEMPLATE for tokens in TOKENS)
    # No two prompts are of one length, so that each is known by it.
    order = [TOKENS.index(len(words) + TEMPLATE) for words in sent]
    by_request = dict(zip(order, sent, strict=True))
    for one, other in combinations(range(len(LISTS)), 2):
        blocks = shared(LISTS[one], LISTS[other])
        assert shared(by_request[one], by_request[other]) == max(0, blocks * BLOCK - TEMPLATE), (one, other)
    # Of 429 tokens, 2 blocks of the second, 3 of the third, 4 of the last repeat: 144.
    assert repeats(run).startswith("34% of the prompt tokens repeat earlier prompts, as in the trace; ")
    assert not any("has seen these prompts" in note for note in run.notes)


def test_equal_seeds_send_equal_blocks_and_others_do_not(server: Loopback) -> None:
    trace = logged([[0, 1], [0, 1]], [40, 50])
    for seed in (1, 1, 2):
        replayed(server, trace, seed=seed)
    first, _, again, _, other, _ = prompts(server)
    assert shared(first, again) == len(first), "the same words, also those after the blocks"
    assert shared(first, other) < 2


def test_a_list_that_names_the_answer_ends_with_the_prompt(server: Loopback) -> None:
    """The next turn's blocks hold the last answer; the prompt of this one is only as long as it was."""
    run = replayed(server, logged([[0, 1, 2, 3], [0, 1, 2, 3, 4]], [40, 70]))
    short, long = sorted(prompts(server), key=len)
    assert (len(short), len(long)) == (40 - TEMPLATE, 70 - TEMPLATE)
    assert shared(short, long) == len(short)
    # Two whole blocks of the first prompt: 32 of 110 tokens.
    assert repeats(run).startswith("29% of")


def test_prompts_without_blocks_share_nothing(server: Loopback) -> None:
    run = replayed(server, make_trace([0.0, 0.01, 0.02], [40, 50, 60], [OUTPUT] * 3))
    assert max(shared(one, other) for one, other in combinations(prompts(server), 2)) <= 1
    assert not any("as in the trace" in note for note in run.points[0].notes)


def test_first_turns_of_sessions_share_the_system_prompt_of_the_trace(server: Loopback) -> None:
    """Two sessions of two turns: later turns go on with the server's answers, whatever their blocks say."""
    turns = Turns(np.asarray([0, 1], np.int32), np.asarray([0, 0, 0, 1, 2]), np.zeros(4), np.asarray([0, 1, 0, 1]))
    trace = Trace(
        np.asarray([0.0, 0.05, 0.1, 0.2]), np.asarray([50, 60, 90, 100], np.int32), np.full(4, OUTPUT, np.int32),
        prefix=named([[0, 1, 2], [0, 1, 3], [0, 1, 2, 4, 5], [0, 1, 3, 6, 7]]), turns=turns,
    )  # fmt: skip
    run_bench(BenchSettings(target(server.url("talks")), trace=trace))
    said = [talk for talk, answer in server.talks if answer.count(" ") == OUTPUT - 1]
    (first,), (second,) = (talk for talk in said if len(talk) == 1)
    # This server adds no template, so two blocks are 32 words.
    assert shared(first[1].split(), second[1].split()) == 2 * BLOCK
    assert sorted(len(talk) for talk in said) == [1, 1, 3, 3]


def test_more_ids_than_the_words_can_spell_alone_stay_apart() -> None:
    """Blocks of three words, as a tokenizer of bytes makes them: all of a million are known by their first words."""
    made = BenchPrompts(target("http://127.0.0.1:1"), "m", 0, block_tokens=3)
    made.scale = Scale(0.0, 1.0)
    chosen = [*range(2000), 10_000, 123_456, 999_999]
    bodies = {made.request(3, 1, np.asarray([one], np.int32)).body for one in chosen}
    assert len(bodies) >= 0.99 * len(chosen)
    again = BenchPrompts(target("http://127.0.0.1:1"), "m", 0, block_tokens=3)
    again.scale = Scale(0.0, 1.0)
    assert {again.request(3, 1, np.asarray([one], np.int32)).body for one in reversed(chosen)} == bodies


@pytest.mark.slow
def test_a_real_cache_finds_what_a_cache_without_limit_would_by_the_trace(tmp_path: Path) -> None:
    """llama.cpp with one slot keeps the last prompt: that holds all that is shared where groups come one by one."""
    system, lists, tokens = [*range(10)], [], []
    for group in range(4):
        own = [100 * (group + 1) + place for place in range(12)]
        for request in range(4):
            lists.append([*system, *own[: 3 * request + 3]])
            tokens.append(BLOCK * len(lists[-1]) + 80)
    dense = {one: place for place, one in enumerate(dict.fromkeys(one for listed in lists for one in listed))}
    trace = logged([[dense[one] for one in listed] for listed in lists], tokens, gap_s=0.1)
    with llama_server(tmp_path, slots=1) as address:
        point = run_bench(BenchSettings(target(address), trace=trace)).points[0]
    assert trace.prefix is not None
    expected = reuse(trace.prefix, trace.input_tokens).sum() / trace.input_tokens.sum()
    assert 0.5 < expected < 0.7
    assert point.failed == 0
    assert point.cached_tokens is not None
    assert point.input_tokens == pytest.approx(sum(tokens), rel=0.1)
    assert point.cached_tokens / (point.input_tokens or 1) == pytest.approx(expected, abs=0.03)
