"""Sessions in the verbs: dollars and time per job, targets for jobs, clients that try again."""

import pytest

from tokonomics.errors import BadInput
from tokonomics.questions.cache import cache
from tokonomics.questions.load import load_of
from tokonomics.questions.requests.buy import PlanRequest
from tokonomics.questions.requests.traffic import CacheRequest, SimulateRequest
from tokonomics.questions.serving import fleet_of, timeout_of
from tokonomics.questions.simulate import simulate
from tokonomics.serving.fleet import Router

SERVED = {"model": "llama-3.1-8b", "gpu": "H100", "usd_per_hour": 2.0, "requests": 400, "rate": "4"}
TALKS = {"sessions": "4,think=2", "input": "const:200", "output": "const:50"}


def test_the_bill_over_the_jobs_is_what_a_job_costs() -> None:
    found = simulate(SimulateRequest.of(SERVED | TALKS | {"slo": "job_p99=10m"}))
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
        simulate(SimulateRequest.of(plain))


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
    load = load_of(PlanRequest.of({"model": ("llama-3.1-8b",), "sessions": "agent:swe", "rate": "2"}))
    assert load.workload.rate == 2
    assert load.trace.turns is not None
    assert load.trace.rate == pytest.approx(2, rel=0.01)
    assert load.workload.output_tokens == pytest.approx(113.8, rel=0.03)


def test_caches_are_compared_by_job_and_turn() -> None:
    """On two replicas: a turn that stays with its session finds what an endless cache would."""
    asked = SERVED | TALKS | {"replicas": 2, "rate": "20"}
    lever = cache(CacheRequest.of(asked)).prefix_cache
    assert lever is not None
    by_router = {row.setting.router: row for row in lever.rows if row.setting.prefix_cache}
    affine, spread = by_router[Router.session_affine], by_router[Router.least_outstanding]
    assert affine.cached_share > spread.cached_share
    assert affine.cached_share == pytest.approx(lever.ttls[-1].share, abs=0.01)
    assert affine.sessions is not None
    assert affine.bill is not None
    assert affine.usd_per_job is not None
