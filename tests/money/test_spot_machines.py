"""Which workloads belong on spot."""

import numpy as np
import pytest
from tests.deployed import on
from tests.traffic.test_prefix_reuse import blocks_of

from tokonomics.catalog.feeds import SCARCE, find_band
from tokonomics.money.spot_machines import LostState, Suitability, spot_verdict
from tokonomics.physics.memory import max_sequences
from tokonomics.physics.steptime import step_model
from tokonomics.sizing.buy import lost_state
from tokonomics.traffic.arrivals import parse_arrivals
from tokonomics.traffic.generate import generate, parse_sessions
from tokonomics.traffic.lengths import parse_lengths
from tokonomics.traffic.prefix_reuse import reuse, waiting_state
from tokonomics.traffic.trace import make_trace

CALM = find_band("p5.48xlarge", "us-east-1").interruptions


def test_a_batch_may_be_all_spot() -> None:
    assert spot_verdict(answer_s=60, cold_start_s=120, replicas=1, interruptions=CALM, batch=True).max_spot_share == 1


def test_a_served_fleet_keeps_a_firm_base() -> None:
    verdict = spot_verdict(answer_s=60, cold_start_s=120, replicas=6, interruptions=CALM)
    assert verdict.suitability is Suitability.overflow
    assert verdict.cut_off_share == 0


def test_a_lone_replica_and_a_slow_start_under_a_strict_p99_stay_off_spot() -> None:
    alone = spot_verdict(answer_s=20, cold_start_s=120, replicas=1, interruptions=CALM)
    slow = spot_verdict(answer_s=20, cold_start_s=600, replicas=6, interruptions=CALM, strict_p99=True)
    assert alone.suitability is slow.suitability is Suitability.none
    assert sum(not reason.speaks_for for reason in slow.reasons) == 3


def test_long_answers_on_a_scarce_market_are_cut_off() -> None:
    verdict = spot_verdict(answer_s=420, cold_start_s=120, replicas=6, interruptions=SCARCE)
    assert verdict.cut_off_share == SCARCE.per_hour * 300 / 3600
    assert verdict.suitability is Suitability.none


def test_conversations_that_lose_their_state_are_counted() -> None:
    """A thousand requests an hour, of which 50 at a time have 100,000 tokens to come back for: 10 s of prefill."""
    state = LostState(tokens=1e5, requests=50, prefill_s=10, requests_per_hour=1000)
    scarce, calm = (
        spot_verdict(answer_s=60, cold_start_s=120, replicas=6, interruptions=risk, strict_p99=True, state=state)
        for risk in (SCARCE, CALM)
    )
    assert scarce.recomputed_share == pytest.approx(SCARCE.per_hour * 10 / 3600)
    assert scarce.waiting_share == pytest.approx(SCARCE.per_hour * 50 / 1000)  # 1.5 %: more than a p99 allows
    assert scarce.suitability is Suitability.none
    assert calm.suitability is Suitability.overflow
    assert [verdict.reasons[-1].speaks_for for verdict in (scarce, calm)] == [False, True]


def test_what_waits_in_a_cache_is_what_arrives_times_how_long_it_waits() -> None:
    """One conversation, a turn every 10 s: 4 blocks wait through the first 10 s, then 8, until 20 s."""
    first, second, third = list(range(4)), list(range(8)), list(range(12))
    trace = make_trace([0.0, 10.0, 20.0], [64, 128, 192], [1, 1, 1], prefix=blocks_of([first, second, third], 16))
    tokens, requests = waiting_state(trace)
    assert tokens == pytest.approx((4 + 8) / 2 * 16)
    assert requests == pytest.approx(1)


def test_what_waits_in_a_cache_equals_losing_it_at_every_moment() -> None:
    """Against the cache of ``prefix_reuse`` emptied at many moments: what the rest of the log then finds less."""
    trace = generate(
        parse_arrivals("poisson:2"), parse_lengths("60", "input"), parse_lengths("40", "output"), requests=300,
        sessions=parse_sessions("4,think=10"),
    )  # fmt: skip
    assert trace.prefix is not None
    whole = reuse(trace.prefix, trace.input_tokens)
    moments = np.linspace(0, trace.duration_s, 200, endpoint=False) + trace.duration_s / 400
    lost = []
    for moment_s in moments:
        after = np.flatnonzero(trace.arrival_s > moment_s)
        rest = trace.take(after)
        assert rest.prefix is not None
        lost.append((whole[after] - reuse(rest.prefix, rest.input_tokens)).sum())
    assert waiting_state(trace)[0] == pytest.approx(np.mean(lost), rel=0.1)


def test_a_replica_loses_its_share_and_no_more_than_its_memory_holds() -> None:
    deployment = on(gpu="L4")
    blocks = [list(range(number)) for number in (400, 800)]
    trace = make_trace([0.0, 10.0], [6400, 12800], [1, 1], prefix=blocks_of(blocks, 16))
    one, two = (lost_state(deployment, trace, replicas) for replicas in (1, 2))
    assert one
    assert two
    assert (one.tokens, two.tokens) == pytest.approx((6400, 3200))
    assert one.prefill_s == pytest.approx(float(step_model(deployment).prefill(6400)))
    many = lost_state(deployment, trace, 1, share=1e-3)
    assert many
    assert many.tokens == pytest.approx(max_sequences(deployment, 16) * 16)
    assert lost_state(deployment, make_trace([0.0, 1.0], [9, 9], [1, 1]), 1) is None
