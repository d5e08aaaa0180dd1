"""Sessions in closed loop and clients that try again: what the rules of docs/simulator.md say, by hand."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from tests.deployed import on
from tests.there import there

from tokonomics.errors import BadInput
from tokonomics.serving.capacity import BEHIND, what_breaks
from tokonomics.serving.fleet_settings import FleetSettings, Outage, Router
from tokonomics.serving.outcome import moments, outcome, records, request_latencies
from tokonomics.serving.simulator import Simulation, simulate
from tokonomics.serving.state import DONE, REFUSED, TIMED_OUT, UNSERVED
from tokonomics.serving.tiers import Tier, plan_fetches
from tokonomics.sizing.load import load_of_requests
from tokonomics.sizing.search import highest_rate
from tokonomics.sizing.setup import Setup
from tokonomics.traffic.arrivals import parse_arrivals
from tokonomics.traffic.generate import generate, parse_sessions
from tokonomics.traffic.lengths import parse_lengths
from tokonomics.traffic.slo import parse_slos
from tokonomics.traffic.trace import Trace, Turns, make_trace


def linked(
    trace: Trace, parents: Sequence[Sequence[int]], pauses: Sequence[float], session: Sequence[int] | None = None
) -> Trace:
    """A trace whose i-th request waits for ``parents[i]``, all of one session unless told."""
    turns = Turns(
        waits_for=np.array([one for some in parents for one in some], np.int32),
        starts=np.cumsum([0, *(len(some) for some in parents)]).astype(np.int64),
        pause_s=np.array(pauses, np.float64),
        session=np.array(session or [0] * len(parents), np.int32),
    )
    return replace(trace, turns=turns)


def talks(rate: float, requests: int = 3000, seed: int = 3) -> Trace:
    """Conversations of five turns with pauses of two seconds, of which so many begin a second."""
    lengths = parse_lengths("300"), parse_lengths("100")
    return generate(
        parse_arrivals(f"poisson:{rate:g}"), *lengths, requests=requests, seed=seed,
        sessions=parse_sessions("5,think=2"),
    )  # fmt: skip


def sent_after_answers(simulation: Simulation) -> None:
    """Every request that waits was sent when the last of those was heard and its pause was over."""
    turns, served = simulation.trace.turns, simulation.served
    assert turns is not None
    for request in np.flatnonzero(~turns.roots & (served.attempts > 0)):
        heard = served.finish_s[turns.waits_for[turns.starts[request] : turns.starts[request + 1]]].max()
        assert served.arrival_s[request] == pytest.approx(heard + turns.pause_s[request], rel=1e-12)


@pytest.mark.parametrize("engine", ["vllm", "tensorrt-llm"])
def test_a_lone_session_takes_its_steps_and_its_pauses(engine: str) -> None:
    lengths = [(700, 40), (90, 1), (1500, 25)]
    alone = [
        simulate(on(engine=engine), make_trace([0.0], [inputs], [outputs])).served.finish_s[0]
        for inputs, outputs in lengths
    ]
    trace = make_trace([0.0, 0.1, 0.2], *zip(*lengths, strict=True))
    simulation = simulate(on(engine=engine), linked(trace, [[], [0], [1]], [0.0, 3.0, 0.25]))
    assert simulation.served.finish_s[-1] == pytest.approx(sum(alone) + 3.25, rel=1e-9)
    assert (simulation.trace.arrival_s == simulation.served.arrival_s).all()
    assert request_latencies(simulation)["e2e"] == pytest.approx(alone, rel=1e-9)
    jobs = there(outcome(simulation).sessions)
    assert jobs.job_s.p50 == pytest.approx(sum(alone) + 3.25, rel=1e-9)
    assert jobs.server_share == pytest.approx(sum(alone) / (sum(alone) + 3.25), rel=1e-9)
    assert (jobs.jobs, jobs.finished, jobs.failed, jobs.turns_per_job, jobs.retries) == (1, 1, 0, 3.0, 0)


def test_as_many_jobs_are_said_to_be_under_way_as_are_counted_moment_by_moment() -> None:
    simulation = simulate(on(), talks(rate=10.0, requests=20_000))
    turns, served = there(simulation.trace.turns), simulation.served
    begun = np.full(turns.sessions, np.inf)
    np.minimum.at(begun, turns.session, served.arrival_s)
    ended = np.zeros(turns.sessions)
    np.maximum.at(ended, turns.session, served.finish_s)
    moments_s = np.linspace(0.2, 0.8, 400) * begun.max()
    under_way = [np.count_nonzero((begun <= now) & (now < ended)) for now in moments_s]
    assert there(outcome(simulation).sessions).at_once == pytest.approx(np.mean(under_way), rel=0.04)


def test_a_request_is_within_an_slo_on_jobs_where_its_whole_job_is() -> None:
    """A job of 2 requests within 2 s, one of 3 that pauses for 10 s, and one of 2 whose last is refused."""
    trace = make_trace([0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6], [100] * 6 + [10**6], [10] * 7)
    jobs = linked(trace, [[], [], [], [0], [1], [4], [2]], [0.0, 0.0, 0.0, 0.5, 10.0, 0.0, 0.0], [0, 1, 2, 0, 1, 1, 2])
    slow, quick = (outcome(simulate(on(), jobs), parse_slos(text)) for text in ("job_p99=20", "job_p99=2"))
    assert slow.sessions is not None
    assert (slow.sessions.finished, slow.sessions.failed) == (2, 1)
    assert slow.slo_attainment == pytest.approx(5 / 7, rel=1e-12)
    assert quick.slo_attainment == pytest.approx(2 / 7, rel=1e-12)
    assert quick.goodput_per_s == pytest.approx(2 / quick.rated_s, rel=1e-12)


def test_branches_run_together_and_a_join_waits_for_the_last() -> None:
    trace = make_trace([0.0, 1.0, 2.0, 3.0], [100] * 4, [10, 30, 200, 5])
    simulation = simulate(on(), linked(trace, [[], [0], [0], [1, 2]], [0.0, 0.5, 0.0, 0.125]))
    sent_after_answers(simulation)
    served, given = simulation.served, simulation.sent
    assert there(given).tolist() == [0, 2, 1, 3], "the branch without a pause is sent first"
    assert served.finish_s[2] < served.finish_s[1], "the short branch is done before the long one"
    assert served.arrival_s[3] == served.finish_s[1] + 0.125
    assert outcome(simulation).sessions.turns_per_job == 3.0  # type: ignore[union-attr]


def test_sessions_wait_on_every_kind_of_fleet() -> None:
    trace = talks(4.0, 400)
    for router in Router:
        simulation = simulate(on(), trace, FleetSettings(replicas=3, router=router))
        assert (simulation.served.status == DONE).all()
        sent_after_answers(simulation)
    failing = FleetSettings(replicas=2, outages=(Outage(replica=0, at_s=5.0, down_s=10.0),))
    assert simulate(on(), trace, failing).served.restarts.sum() > 0
    sent_after_answers(simulate(on(), trace, failing))
    assert records(simulate(on(), trace, failing))["arrival_s"].is_sorted()


def test_a_failed_request_ends_its_branch_alone() -> None:
    trace = make_trace(np.arange(5.0), [100, 10**6, 100, 100, 100], [10] * 5)
    simulation = simulate(on(), linked(trace, [[], [0], [0], [1, 2], [3]], [0.0] * 5))
    served = simulation.served
    by_request = dict(zip(simulation.sent.tolist(), served.status.tolist(), strict=True))  # type: ignore[union-attr]
    assert by_request == {0: DONE, 1: REFUSED, 2: DONE, 3: UNSERVED, 4: UNSERVED}
    assert (served.attempts == (served.status != UNSERVED)).all()
    made = outcome(simulation)
    assert (made.sessions.finished, made.sessions.failed, made.unserved) == (0, 1, 2)  # type: ignore[union-attr]
    assert made.sessions.unsent == 2  # type: ignore[union-attr]
    assert np.isfinite([moment.waiting for moment in moments(simulation)]).all()


def test_the_pauses_of_a_session_are_those_of_its_slowest_path() -> None:
    """Two branches of 5 and 2 s join after another second; a second session has one pause."""
    trace = make_trace(np.arange(6.0), [100] * 6, [10] * 6)
    parents: list[list[int]] = [[], [0], [0], [1, 2], [], [4]]
    made = linked(trace, parents, [0.0, 5.0, 2.0, 1.0, 0.0, 3.0], [0, 0, 0, 0, 1, 1])
    assert there(made.turns).paused_s.tolist() == [6.0, 3.0]


def test_an_overloaded_server_limits_a_closed_loop_and_drowns_in_an_open_one() -> None:
    """Fifty sessions on ten places: a longer log makes an open queue longer; a closed one has fifty at the most."""
    waits = {
        closed: [
            outcome(simulate(on(), linked_users(50, turns), FleetSettings(closed=closed), max_sequences=10)).ttft_s.p99
            for turns in (20, 40)
        ]
        for closed in (True, False)
    }
    assert waits[False][1] == pytest.approx(2 * waits[False][0], rel=0.05)  # type: ignore[operator]
    assert waits[True][1] == pytest.approx(waits[True][0], rel=0.02)


def linked_users(users: int, turns: int) -> Trace:
    """So many sessions of so many turns, each waiting for the last, all beginning together."""
    count = users * turns
    parents = [[] if request < users else [request - users] for request in range(count)]
    trace = make_trace(np.zeros(count), [200] * count, [20] * count)
    return linked(trace, parents, [0.0] * count, [request % users for request in range(count)])


def test_users_who_never_pause_are_sessions() -> None:
    """Where all requests are alike it does not matter which user takes which."""
    trace = linked_users(8, 10)
    as_users = simulate(on(), replace(trace, turns=None), FleetSettings(users=8)).served
    assert simulate(on(), trace).served.finish_s == pytest.approx(as_users.finish_s, rel=1e-12)


def test_a_client_tries_again_after_a_backoff_that_doubles() -> None:
    down = FleetSettings(outages=(Outage(replica=0, at_s=0.0, down_s=5.0),), retries=5, backoff_s=0.5)
    served = simulate(on(), make_trace([1.0, 1.0], [100] * 2, [10] * 2), down, timeout_s=1.0).served
    # Sent at 0 (the first arrival), 1.5, 3.5: the third attempt still waits when the replica comes back at 5?
    # No: it hangs up at 4.5, and is sent again 2 seconds later.
    assert served.attempts.tolist() == [4, 4]
    assert served.arrival_s.tolist() == [0.0, 0.0]
    assert (served.start_s >= 6.5).all()
    assert (served.status == DONE).all()
    few = down.model_copy(update={"retries": 2})
    served = simulate(on(), make_trace([1.0], [100], [10]), few, timeout_s=1.0).served
    assert (served.status.tolist(), served.attempts.tolist(), served.finish_s.tolist()) == ([TIMED_OUT], [3], [4.5])


def test_tokens_computed_are_those_of_answers_and_of_attempts_given_up() -> None:
    trace = make_trace(np.zeros(60), [400] * 60, [200] * 60)
    simulation = simulate(on(), trace, FleetSettings(retries=2, backoff_s=0.1), timeout_s=1.5, max_sequences=16)
    served, rows = simulation.served, simulation.replicas[0]
    done = served.status == DONE
    assert (served.attempts[done] > 1).any()
    assert (served.status == TIMED_OUT).any()
    assert served.preemptions.sum() == 0
    # A step in flight when a client hangs up computes one token more, which nobody counts as given up.
    again = served.attempts.sum()
    assert 0 <= rows["answer_tokens"] - 199 * done.sum() - rows["answer_abandoned"] <= again
    assert rows["prompt_tokens"] == 400 * done.sum() + rows["prompt_abandoned"]


def test_a_session_stays_where_its_prefix_is() -> None:
    trace = talks(8.0, 1500)
    cached = {
        router: outcome(simulate(on(), trace, FleetSettings(replicas=4, router=router))).cached_tokens
        for router in (Router.round_robin, Router.session_affine)
    }
    assert cached[Router.session_affine] > 1.5 * cached[Router.round_robin]
    at_home = simulate(on(), trace, FleetSettings(replicas=4, router=Router.session_affine))
    assert at_home.trace.turns is not None
    homes = {(int(s), int(r)) for s, r in zip(at_home.trace.turns.session, at_home.served.replica, strict=True)}
    assert len(homes) == at_home.trace.turns.sessions
    with pytest.raises(BadInput, match="no sessions"):
        simulate(on(), replace(trace, turns=None), FleetSettings(router=Router.session_affine))


def test_a_slower_memory_serves_sessions_whose_prefix_was_evicted() -> None:
    trace = generate(
        parse_arrivals("poisson:1"), parse_lengths("3000"), parse_lengths("50"), requests=600, seed=5,
        sessions=parse_sessions("6,think=60"),
    )  # fmt: skip
    first = simulate(on(), trace)
    fetches, hits = plan_fetches(first, (Tier(name="DRAM", size_bytes=2e12, bytes_per_s=5e10),))
    with_tier = simulate(on(), trace, fetches=fetches)
    assert hits[0].tokens > 0
    assert (with_tier.served.status == DONE).all()
    sent_after_answers(with_tier)
    cached = [outcome(simulation).cached_tokens for simulation in (first, with_tier)]
    assert cached[1] > cached[0]


def test_capacity_counts_sessions_that_begin() -> None:
    trace = talks(5.0, 6000)
    assert trace.faster(3.0).rate == pytest.approx(3 * trace.rate, rel=1e-9)
    drowned = simulate(on(), trace.faster(40.0))
    assert what_breaks(drowned, outcome(drowned)) == BEHIND
    best = highest_rate(Setup(on(), load_of_requests(trace), max_sequences=32), trace.rate)
    assert best.sessions_per_s == pytest.approx(best.rate * there(trace.turns).sessions / len(trace))
