"""Sessions in the verbs: dollars and time per job, targets for jobs, clients that try again."""

import re
from dataclasses import replace

import numpy as np
import pytest
from tests.deployed import on

from tokonomics.errors import BadInput
from tokonomics.questions.deployment import check_pauses
from tokonomics.questions.levers import cache, levers
from tokonomics.questions.load import load_of, questions_of
from tokonomics.questions.requests.buy import PlanRequest
from tokonomics.questions.requests.traffic import CacheRequest, CapacityRequest, LeversRequest, SimulateRequest
from tokonomics.questions.serving import fleet_of, requests_of, timeout_of
from tokonomics.questions.simulate import capacity, simulate
from tokonomics.report.shared_view import log_pace_note, short_run
from tokonomics.report.simulate_view import simulate as described
from tokonomics.serving.fleet_settings import Router
from tokonomics.sizing.attempt import Attempts
from tokonomics.sizing.layouts import NotServed, Reason
from tokonomics.sizing.search import NeverHolds, size
from tokonomics.sizing.setup import Setup
from tokonomics.traffic.sessions import log_pace
from tokonomics.traffic.slo import parse_slos
from tokonomics.traffic.trace import Turns, make_trace
from tokonomics.units import seconds

SERVED = {"model": "llama-3.1-8b", "gpu": "H100", "usd_per_hour": 2.0, "requests": 400, "rate": "4"}
TALKS = {"sessions": "4,think=2", "input": "const:200", "output": "const:50"}


def test_the_bill_over_the_jobs_is_what_a_job_costs() -> None:
    found = simulate(SimulateRequest.checked(SERVED | TALKS | {"slo": "job_p99=10m"}))
    sessions = found.sessions
    assert sessions is not None
    assert found.cost is not None
    assert found.usd_per_job == pytest.approx(found.cost.usd / sessions.finished)
    assert sessions.finished == sessions.jobs
    assert found.slo[0].delivered_s == pytest.approx(sessions.job_s.p99)
    assert found.slo_met
    # Nothing is found of a first turn; of the second all but its own 200 tokens, in whole blocks of 64: 3 of 250.
    first, second = sessions.by_turn[:2]
    assert first.cached_share == 0
    assert second.cached_share == pytest.approx(3 * 64 / 450)


def test_a_target_for_jobs_needs_sessions() -> None:
    plain = SERVED | {"input": "const:200", "output": "const:50", "slo": "job_p99=10m"}
    with pytest.raises(BadInput, match="of no session"):
        simulate(SimulateRequest.checked(plain))


def test_clients_that_hang_up_may_try_again() -> None:
    assert timeout_of("30,retries=2,backoff=5") == 30
    fleet = fleet_of(timeout="2m,retries=3,backoff=5")
    assert (fleet.retries, fleet.backoff_s) == (3, 5)
    assert fleet_of(timeout="30").retries == 0
    for wrong in ("30,retries=1.5", "30,tries=2", "30,2"):
        with pytest.raises(BadInput):
            fleet_of(timeout=wrong)
    with pytest.raises(BadInput, match="retries= '-1' is not a number between 0 and 20"):
        fleet_of(timeout="30,retries=-1")


def test_an_agent_brings_its_own_lengths() -> None:
    load = load_of(PlanRequest.checked({"model": ("llama-3.1-8b",), "sessions": "agent:swe", "rate": "2"}))
    assert load.workload.rate == 2
    assert load.trace.turns is not None
    assert load.trace.source == "sessions agent:swe"
    assert load.trace.rate == pytest.approx(2, rel=0.01)
    assert load.workload.output_tokens == pytest.approx(113.8, rel=0.03)


def test_caches_are_compared_by_job_and_turn() -> None:
    """On two replicas: a turn that stays with its session finds what an endless cache would."""
    asked = SERVED | TALKS | {"replicas": 2, "rate": "20"}
    lever = cache(CacheRequest.checked(asked)).prefix_cache
    assert lever is not None
    by_router = {row.setting.router: row for row in lever.rows if row.setting.prefix_cache}
    affine, spread = by_router[Router.session_affine], by_router[Router.round_robin]
    assert affine.cached_share > spread.cached_share
    assert affine.cached_share == pytest.approx(lever.ttls[-1].share, abs=0.01)
    assert affine.sessions is not None
    assert affine.bill is not None
    assert affine.usd_per_job is not None


def test_a_run_that_is_short_against_a_job_says_so() -> None:
    """400 requests of jobs of four, forty a second: sessions start for 10 s, and many a job takes longer."""
    asked = SERVED | TALKS | {"rate": "40"}
    made = simulate(SimulateRequest.checked(asked))
    assert made.sessions is not None
    assert made.sessions.starts_s == pytest.approx(np.ptp(made.log.arrival_s[made.log.turns.roots]))
    assert not made.steady
    assert made.rated_s == made.duration_s
    assert made.times_longer is not None
    said = short_run(made, made_up=True)
    assert said is not None
    longer = simulate(SimulateRequest.checked(asked | {"requests": round(made.requests * made.times_longer)}))
    assert longer.steady
    assert short_run(longer, made_up=True) is None


def test_cache_and_simulate_tell_the_same_cost_of_a_job() -> None:
    asked = SERVED | TALKS | {"replicas": 1}
    lever = cache(CacheRequest.checked(asked)).prefix_cache
    assert lever is not None
    row = next(row for row in lever.rows if row.setting.name == "GPU cache")
    assert row.needs == 1
    alone = simulate(SimulateRequest.checked(asked))
    assert row.usd_per_job == pytest.approx(alone.usd_per_job)
    assert row.usd_per_mtok == pytest.approx(alone.usd_per_mtok)


def test_without_pauses_no_target_of_a_job_is_refused_for_them() -> None:
    plan = {"model": ("llama-3.1-8b",), "rate": "4"} | TALKS | {"sessions": "4,think=0"}
    check_pauses(parse_slos("job_p99=5s"), load_of(PlanRequest.checked(plan)).trace)


def test_the_traffic_is_told_with_the_time_in_which_it_is_offered() -> None:
    """Requests over that time are the rate, however long the server takes for the last turns."""
    request = SimulateRequest.checked(SERVED | TALKS | {"sessions": "4,think=1m"})
    found = simulate(request)
    said = re.search(
        r"([\d,]+) requests of (\d+) sessions that begin within ([\d.]+) (s|min) \(([\d.]+) requests/s offered\), "
        r"the last sent after ([\d.]+) (s|min)",
        " ".join(described(found, request).text().split()),
    )
    assert said is not None
    requests, sessions, within, unit, rate, last, last_unit = said.groups()
    in_seconds = {"s": 1.0, "min": 60.0}
    assert int(requests) == 400
    assert found.sessions is not None
    assert int(sessions) == found.sessions.jobs
    assert int(requests) / (float(within) * in_seconds[unit]) == pytest.approx(float(rate), rel=0.02)
    assert float(rate) == pytest.approx(4, rel=0.01)
    assert float(last) * in_seconds[last_unit] == pytest.approx(found.simulation.trace.duration_s, rel=0.01)
    assert found.simulation.trace.duration_s > 1.3 * found.sessions.starts_s


def test_every_question_refuses_jobs_that_pauses_alone_break_and_tells_the_same_pauses() -> None:
    """The p99 of the pauses, summed here session by session over the plan's requests: no session branches."""
    said = {"model": "llama-3.1-8b", "gpu": "H100", "slo": "job_p99=2m", "rate": "4"} | TALKS
    said |= {"sessions": "4,think=1m"}
    load = load_of(PlanRequest.checked(said | {"model": ("llama-3.1-8b",), "gpu": ("H100",)}))
    assert load.trace.turns is not None
    paused = np.zeros(load.trace.turns.sessions)
    np.add.at(paused, load.trace.turns.session, load.trace.turns.pause_s)
    told = f"no hardware meets job_p99 of 2 min: .* have a p99 of {seconds(float(np.percentile(paused, 99)))}$"
    deployment, attempts = on(), Attempts()
    refused = size(Setup(deployment=deployment, load=load, slos=parse_slos(said["slo"])), attempts)
    assert isinstance(refused, NotServed)
    assert re.match(told, refused.reason)
    assert attempts.count == 0
    asked = (
        lambda: levers(LeversRequest.checked(said)),
        lambda: capacity(CapacityRequest.checked(said)),
        lambda: cache(CacheRequest.checked(said)),
        lambda: questions_of(PlanRequest.checked(said | {"model": ("llama-3.1-8b",), "gpu": ("H100",)}), quick=False),
    )
    for ask in asked:
        with pytest.raises(BadInput) as never:
            ask()
        assert never.value.what == refused.reason
    assert simulate(SimulateRequest.checked(said)).hopeless == refused


def test_sessions_that_no_context_holds_are_refused() -> None:
    asked = {"model": "gemma-2-9b", "gpu": "H100", "sessions": "agent", "rate": "1", "requests": 100}
    with pytest.raises(NeverHolds) as refused:
        simulate(SimulateRequest.checked(asked))
    assert refused.value.refused.kind is Reason.too_long


def test_sessions_are_for_one_model() -> None:
    asked = {"model": ("llama-3.1-8b",), "sessions": "agent", "rate": "1", "beside": ("qwen3-8b,rate=1",)}
    with pytest.raises(BadInput, match="is for one model"):
        requests_of(PlanRequest.checked(asked))


def test_a_plan_of_a_log_of_sessions_says_why_its_rate_is_not_the_logs_own_mean() -> None:
    # Two sessions of two requests each begin 10 s apart: 0.1 begin a second. Three gaps of 10 s: 0.1 requests a second.
    turns = Turns(
        waits_for=np.array([0, 1], np.int32),
        starts=np.array([0, 0, 0, 1, 2]),
        pause_s=np.zeros(4),
        session=np.array([0, 1, 0, 1], np.int32),
    )
    log = replace(make_trace([0.0, 10.0, 20.0, 30.0], [100] * 4, [10] * 4), turns=turns)
    pace = log_pace(log)
    assert pace is not None
    assert (pace.sessions_per_s, pace.requests_per_session) == pytest.approx((0.1, 2))
    assert (pace.requests_per_s, pace.requests_per_s_over_all) == pytest.approx((0.2, 0.1))
    for part in ("sessions begin at 0.1 a second, of 2 requests each: 0.2 requests/s", "it has 0.1."):
        assert part in log_pace_note(pace).spans[0].text
    assert log_pace(replace(log, turns=None)) is None


def test_the_headline_of_a_simulation_says_what_was_missed() -> None:
    asked = SERVED | {"requests": 40, "input": "const:200", "output": "const:50"}
    for slo, said in (("ttft_p99=1ms", "ttft_p99 missed"), ("ttft_p99=9", None)):
        found = SimulateRequest.checked(asked | {"slo": slo})
        first = described(simulate(found), found).text().splitlines()[0]
        assert ("missed" in first) == (said is not None)
        assert said is None or said in first
