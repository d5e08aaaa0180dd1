"""Made-up traffic has the structure it is asked for: shared heads, growing conversations, unequal tenants."""

import math
from collections import defaultdict
from collections.abc import Callable
from dataclasses import fields
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.there import refused, there

from tokonomics.errors import BadInput
from tokonomics.traffic.arrivals import parse_arrivals
from tokonomics.traffic.generate import (
    Sessions,
    SystemPrompts,
    Tenants,
    agent_named,
    generate,
    parse_sessions,
    parse_system,
    parse_tenants,
)
from tokonomics.traffic.lengths import parse_lengths
from tokonomics.traffic.prefix_reuse import reuse
from tokonomics.traffic.readers import open_trace
from tokonomics.traffic.trace import PrefixBlocks, Trace, Turns, save_trace


def made(requests: int | None = 2000, arrivals: str = "poisson:5", **how: Any) -> Trace:
    inputs, outputs = how.pop("inputs", "lognormal:mean=200,cv=1"), how.pop("outputs", "uniform:10-300")
    return generate(parse_arrivals(arrivals), parse_lengths(inputs), parse_lengths(outputs), requests=requests, **how)


EVERYTHING: dict[str, Any] = {
    "system": SystemPrompts(count=5, tokens=1000),
    "sessions": Sessions(turns=4, think_s=20),
    "tenants": Tenants(count=3, priorities=(0, 1, 1)),
}


def test_equal_seeds_give_equal_traces() -> None:
    one, same, other = made(seed=7, **EVERYTHING), made(seed=7, **EVERYTHING), made(seed=8, **EVERYTHING)
    for field in fields(Trace):
        if field.name not in ("prefix", "tenants", "source", "turns"):
            np.testing.assert_array_equal(getattr(one, field.name), getattr(same, field.name))
    np.testing.assert_array_equal(there(one.prefix).ids, there(same.prefix).ids)
    assert not np.array_equal(one.arrival_s, other.arrival_s)


def test_the_structure_leaves_the_arrivals_as_they_are() -> None:
    plain = made()
    shared = made(system=SystemPrompts(count=5, tokens=1000), tenants=Tenants(count=3))
    np.testing.assert_array_equal(plain.arrival_s, shared.arrival_s)
    np.testing.assert_array_equal(plain.input_tokens + 1000, shared.input_tokens)
    np.testing.assert_array_equal(plain.output_tokens, shared.output_tokens)


@pytest.fixture(scope="module")
def talking() -> Trace:
    return made(3000, inputs="uniform:80-300", **EVERYTHING)


def conversations(trace: Trace) -> list[list[int]]:
    """Requests grouped by the first block of their own, the one after the system prompt's: no two talks share it."""
    groups = defaultdict(list)
    for request in range(len(trace)):
        groups[int(there(trace.prefix).blocks_of(request)[15])].append(request)
    return list(groups.values())


def test_every_turn_begins_with_all_of_the_turn_before(talking: Trace) -> None:
    trace = talking
    assert trace.prefix is not None
    talks = conversations(trace)
    assert max(map(len, talks)) > 4
    for talk in talks:
        for before, after in pairwise(talk):
            said_before = trace.input_tokens[before] + trace.output_tokens[before]
            assert len(trace.prefix.blocks_of(before)) == said_before // 64
            np.testing.assert_array_equal(
                trace.prefix.blocks_of(after)[: len(trace.prefix.blocks_of(before))], trace.prefix.blocks_of(before)
            )
            assert 80 <= trace.input_tokens[after] - said_before <= 300
            assert trace.arrival_s[after] >= trace.arrival_s[before]


def test_different_conversations_share_only_their_system_prompt(talking: Trace) -> None:
    trace = talking
    assert trace.prefix is not None
    longest = [trace.prefix.blocks_of(talk[-1]) for talk in conversations(trace)]
    heads = {tuple(ids[:15].tolist()) for ids in longest}
    assert len(heads) == 5  # 1,000 tokens are 15 whole blocks of 64
    own = np.concatenate([ids[15:] for ids in longest])
    assert len(np.unique(own)) == len(own)
    assert own.max() < trace.prefix.distinct


def test_with_room_for_all_a_turn_computes_only_what_is_new(talking: Trace) -> None:
    trace = talking
    assert trace.prefix is not None
    computed = trace.input_tokens - reuse(trace.prefix, trace.input_tokens)
    later = [request for talk in conversations(trace) for request in talk[1:]]
    assert (computed[later] < 300 + 64).all()


def test_saved_conversations_are_read_back_as_they_were(tmp_path: Path) -> None:
    trace = made(3000, **EVERYTHING)
    save_trace(trace, tmp_path / "talks.parquet")
    file = open_trace(tmp_path / "talks.parquet")
    again = file.read()
    assert file.problems.count == 0
    assert trace.prefix is not None
    assert again.prefix is not None
    listed = np.diff(trace.prefix.starts) * 64
    assert (listed > trace.input_tokens).mean() > 0.3
    assert (listed <= trace.input_tokens + trace.output_tokens).all()
    for field in fields(Trace):
        if field.name not in ("prefix", "source", "turns"):
            np.testing.assert_array_equal(getattr(again, field.name), getattr(trace, field.name))
    assert again.turns is not None
    assert trace.turns is not None
    for field in fields(Turns):
        np.testing.assert_array_equal(getattr(again.turns, field.name), getattr(trace.turns, field.name))
    for field in fields(PrefixBlocks):
        np.testing.assert_array_equal(getattr(again.prefix, field.name), getattr(trace.prefix, field.name))


def test_conversations_have_their_mean_turns_and_think_time() -> None:
    trace = made(
        None, arrivals="poisson:20", duration_s=1000, inputs="const:2", outputs="const:2", sessions=Sessions(5, 1.0)
    )
    # Each of the about 20,000 conversations has a geometric number of turns, of variance 20.
    number = 20 * 1000
    assert len(trace) == pytest.approx(5 * number, abs=5 * math.sqrt(number * (20 + 25)) + 5 * 20 * 4)


def test_the_first_requests_are_whole_conversations() -> None:
    """The first to start first, and none but the last is cut; ten turns each make ten requests a second."""
    trace = made(3000, arrivals="constant:1", inputs="const:2", outputs="const:2", sessions=Sessions(10, 100.0))
    assert len(trace) == 3000
    assert (np.diff(trace.arrival_s) >= 0).all()
    firsts = trace.arrival_s[trace.input_tokens == 2]
    np.testing.assert_allclose(firsts, np.arange(len(firsts)))  # one a second
    assert len(firsts) == pytest.approx(300, rel=0.15)
    assert trace.rate == pytest.approx(3000 / len(firsts), rel=0.01)


def test_a_conversation_ends_before_its_limit() -> None:
    trace = made(5000, sessions=Sessions(turns=50, think_s=1, limit=4000))
    said = trace.input_tokens.astype(int) + trace.output_tokens
    assert said.max() <= 4000
    assert np.percentile(said, 95) > 2000


def test_requests_on_their_own_list_the_system_prompt_only() -> None:
    trace = made(system=SystemPrompts(count=3, tokens=130, skew=0))
    assert trace.prefix is not None
    assert set(np.diff(trace.prefix.starts)) == {2}
    assert trace.prefix.distinct == 6
    assert {tuple(trace.prefix.blocks_of(each)) for each in range(len(trace))} == {(0, 1), (2, 3), (4, 5)}
    assert made().prefix is None


def test_shares_follow_zipfs_law() -> None:
    trace = made(100_000, tenants=Tenants(count=4, skew=1, priorities=(3, 2, 1, 0)))
    assert trace.tenant is not None
    assert trace.priority is not None
    shares = np.bincount(trace.tenant) / len(trace)
    expected = np.array([1, 1 / 2, 1 / 3, 1 / 4]) / (25 / 12)
    np.testing.assert_allclose(shares, expected, atol=5 * 0.5 / math.sqrt(100_000))
    np.testing.assert_array_equal(trace.priority, 3 - trace.tenant)
    assert trace.tenants == ("tenant-1", "tenant-2", "tenant-3", "tenant-4")


WRONG: dict[Callable[[str], object], tuple[str, ...]] = {
    parse_system: ("20", "x,tokens=5", "2.5,tokens=5", "2,tokens=5.5"),
    parse_sessions: ("5,limit=100.5", "0.5", "5,thinks=3", "", "agnet:swe,turns=40"),
    parse_tenants: ("3,priorities=0/1", "0"),
}


@pytest.mark.parametrize(("parse", "text"), [(parse, text) for parse, texts in WRONG.items() for text in texts])
def test_a_wrong_text_is_explained(parse: Callable[[str], object], text: str) -> None:
    with pytest.raises(BadInput, match="Such as"):
        parse(text)


def test_texts_say_the_same_as_the_nouns_and_a_seed_is_a_whole_number_from_zero() -> None:
    assert parse_system("20,tokens=1000,skew=0.5") == SystemPrompts(20, 1000, 0.5)
    assert parse_sessions("5,think=2m,limit=32000") == Sessions(5, 120, 32000)
    assert parse_tenants("3,priorities=0/1/1") == Tenants(3, 1.0, (0, 1, 1))
    assert refused(made, seed=-1).field == "seed"


# --- jobs of agents have the figures they are made from, and wait for their answers -----------------------------------


def jobs(text: str, requests: int = 6000) -> Trace:
    sessions = parse_sessions(text)
    agent = there(sessions.agent)
    system = SystemPrompts(1, agent.head_tokens) if agent.head_tokens else None
    arrivals = parse_arrivals("poisson:0.1")
    return generate(arrivals, agent.inputs, agent.outputs, requests=requests, system=system, sessions=sessions)


def test_draws_have_the_published_mean_and_median() -> None:
    drawn = agent_named("coding").pause_s.draw(np.random.default_rng(0), 200_000)
    assert drawn.mean() == pytest.approx(16.8, rel=0.01)
    assert np.quantile(drawn, [0.5, 0.9, 0.99]) == pytest.approx([0.1, 10, 192], rel=0.03)


def test_a_coding_agent_finds_what_a_provider_reports_cached() -> None:
    """TraceLab: 52.6 of 54.9 billion input tokens were read from a cache. Nothing here was fitted to it."""
    trace = jobs("agent")
    assert trace.prefix is not None
    share = reuse(trace.prefix, trace.input_tokens).sum(dtype=np.int64) / trace.input_tokens.sum(dtype=np.int64)
    assert share == pytest.approx(52.6 / 54.9, abs=0.02)


def test_jobs_of_swe_have_their_calls_and_lengths() -> None:
    trace = jobs("agent:swe", 20_000)
    turns = there(trace.turns)
    sizes = np.bincount(turns.session)
    assert sizes[:-1].mean() == pytest.approx(20.1, rel=0.03)  # the last job may be cut
    assert sizes.max() <= 31
    assert trace.input_tokens[turns.roots].mean() == pytest.approx(1730, rel=0.02)
    assert trace.output_tokens.mean() == pytest.approx(113.8, rel=0.02)


def test_a_turn_waits_for_the_one_before_and_its_branch() -> None:
    lengths = parse_lengths("const:100"), parse_lengths("const:40", "output")
    arrivals = parse_arrivals("poisson:1")
    trace = generate(arrivals, *lengths, requests=4000, sessions=Sessions(6, 5.0, branches=0.4))
    turns = there(trace.turns)
    assert trace.prefix is not None
    counts = np.diff(turns.starts)
    assert set(counts.tolist()) == {0, 1, 2}
    assert (np.repeat(np.arange(len(trace)), counts) > turns.waits_for).all()
    for request in np.flatnonzero(counts == 2)[:200]:
        first, other = turns.waits_for[turns.starts[request] : turns.starts[request + 1]]
        # All that was said, the branch's answer of 40 and 100 new tokens.
        assert trace.input_tokens[request] == trace.input_tokens[first] + 40 + 40 + 100
        shared = math.floor((trace.input_tokens[first] - 100) / 64)
        np.testing.assert_array_equal(trace.prefix.blocks_of(first)[:shared], trace.prefix.blocks_of(other)[:shared])
        assert not set(trace.prefix.blocks_of(first)[shared:]) & set(trace.prefix.blocks_of(other)[shared:])
    assert (counts == 2).sum() / (counts > 0).sum() == pytest.approx(0.4 / 1.4, abs=0.08)
    assert turns.pause_s[counts > 0].mean() == pytest.approx(5, rel=0.1)


def test_sessions_name_agents() -> None:
    assert parse_sessions("agent").agent == agent_named("coding")
    changed = parse_sessions("agent:swe,turns=40,tool=10,branches=0.1,limit=64k")
    assert (changed.turns, changed.think_s, changed.limit, changed.branches) == (40, 10, 64_000, 0.1)
    for wrong in ("agent:none", "agent,think=3", "agent,turns=0", "5,tool=3", "5,branches=2"):
        with pytest.raises(BadInput):
            parse_sessions(wrong)
