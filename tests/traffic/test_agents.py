"""Made-up jobs of agents have the figures they are made from, and wait for their answers."""

import math

import numpy as np
import pytest
from tests.there import there

from tokonomics.errors import BadInput
from tokonomics.traffic.arrivals import parse_arrivals
from tokonomics.traffic.generate import Sessions, SystemPrompts, agent_named, generate, parse_sessions
from tokonomics.traffic.lengths import parse_lengths
from tokonomics.traffic.prefix_reuse import reuse
from tokonomics.traffic.trace import Trace


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
