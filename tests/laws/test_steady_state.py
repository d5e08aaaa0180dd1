"""Rates and dollars are of the stretch with the whole load: a longer run leaves them as they are, and verbs agree."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.deployed import on
from tests.there import there

from tokonomics.questions.load import load_of
from tokonomics.questions.plan import plan
from tokonomics.questions.requests.buy import PlanRequest
from tokonomics.questions.requests.traffic import CapacityRequest, SimulateRequest
from tokonomics.questions.results import PlanResult
from tokonomics.questions.simulate import SimulateResult, capacity, simulate
from tokonomics.serving.capacity import sure_to_miss
from tokonomics.serving.counted import counted
from tokonomics.serving.loop import Watcher
from tokonomics.serving.outcome import outcome
from tokonomics.serving.simulator import simulate as run
from tokonomics.traffic.slo import parse_slos
from tokonomics.traffic.trace import Trace, Turns, make_trace, save_trace
from tokonomics.traffic.workload import LoadStretch, ramp_up_s, stretch_of

ON_H100 = {"model": "llama-3.1-8b", "gpu": "H100", "weights": "bf16", "usd_per_hour": 2.0}
SHORT = {"input": "const:800", "output": "const:300"}
TALKS = {"sessions": "5,think=10", "input": "const:300", "output": "const:150"}
SCALED = {"autoscale": "max=8,target=20,cold=20"}
AGENT = {"model": "gpt-oss-20b", "gpu": "H100", "usd_per_hour": 2.0, "sessions": "agent", "rate": "3"}
SETUPS: dict[str, tuple[dict[str, Any], dict[str, Any], float]] = {
    # how it is served, its traffic, and by how much the whole run is longer than the load is offered
    "open loop": (ON_H100, SHORT | {"rate": "8", "requests": 2000}, 1.0),
    "long answers": (ON_H100, {"rate": "0.2", "input": "const:500", "output": "const:8000", "requests": 300}, 1.03),
    "conversations": (ON_H100, TALKS | {"rate": "8", "requests": 6000}, 1.2),
    "agent": (AGENT | {"replicas": 2, "router": "session-affine"}, {"requests": 12_000}, 1.3),
    "coding agent": (
        ON_H100 | {"replicas": 3, "router": "session-affine"},
        {"rate": "4", "sessions": "agent:swe", "requests": 6000},
        1.0,
    ),
    "classes": (
        ON_H100 | {"classes": ("gold,share=30%,priority=0,slo=ttft_p95=2", "free")},
        SHORT | {"rate": "8", "requests": 2000},
        1.0,
    ),
    "autoscaled": (ON_H100 | SCALED, SHORT | {"rate": "30", "requests": 30_000}, 1.0),
    "autoscaled conversations": (ON_H100 | SCALED, TALKS | {"rate": "30", "requests": 60_000}, 1.1),
    "disaggregated": (ON_H100 | {"prefill_replicas": 1}, TALKS | {"rate": "8", "requests": 6000}, 1.2),
}


@pytest.mark.parametrize("setup", SETUPS)
def test_a_run_of_twice_the_length_tells_the_same_cost(setup: str, tmp_path: Path) -> None:
    """The same requests again: what chance draws for a longer run is no part of the question."""
    serves, traffic, edges = SETUPS[setup]
    once = simulate(SimulateRequest.checked(serves | traffic))
    assert once.steady
    assert once.duration_s > edges * once.rated_s
    log = tmp_path / "twice.parquet"
    save_trace(once.log.repeated(2), log)
    fleet = {name: value for name, value in serves.items() if name not in ("sessions", "rate")}
    twice = simulate(SimulateRequest.checked(fleet | {"trace": str(log)}))
    assert twice.requests == 2 * once.requests
    assert twice.steady
    assert twice.usd_per_mtok == pytest.approx(once.usd_per_mtok, rel=0.02)
    assert twice.usd_per_job == (None if once.usd_per_job is None else pytest.approx(once.usd_per_job, rel=0.02))
    assert twice.requests_per_s == pytest.approx(once.requests_per_s, rel=0.02)
    assert twice.busy_share == pytest.approx(once.busy_share, abs=0.02)
    assert twice.mean_replicas == pytest.approx(once.mean_replicas, rel=0.02)
    # Up to 3 % of the load is missing in the stretch, and batches grow faster than the load.
    assert twice.batch == pytest.approx(once.batch, rel=0.1)


def _served_as_planned(asked: dict[str, Any], plan_usd_per_hour: float, **how: Any) -> SimulateResult:
    return simulate(SimulateRequest.checked(asked | how | {"usd_per_hour": plan_usd_per_hour}))


def test_a_job_costs_in_simulate_what_it_costs_in_plan() -> None:
    asked = {"model": "llama-3.1-8b", "gpu": "H100", "rate": "10"} | TALKS
    planned = plan(PlanRequest.checked(asked))
    assert isinstance(planned, PlanResult)
    best = there(planned.best)
    how = {"replicas": best.replicas, "router": str(best.router), "max_sequences": best.max_sequences}
    usd_per_gpu_hour = best.usd_per_month / 730 / best.replicas
    made = _served_as_planned(asked | {"weights": str(best.weights), "kv": str(best.kv)}, usd_per_gpu_hour, **how)
    assert made.usd_per_job == pytest.approx(there(best.job).usd, rel=0.005)
    assert made.usd_per_mtok == pytest.approx(best.usd_per_mtok.blended, rel=0.005)


def test_a_job_of_an_agent_is_not_charged_for_the_drain_of_the_longest() -> None:
    """Two B200 at $6.11 an hour and six requests a second: the bill of an hour over the jobs of an hour."""
    asked = {"model": "gpt-oss-120b", "gpu": "B200", "sessions": "agent", "rate": "6"}
    load = load_of(PlanRequest.checked({"model": "gpt-oss-120b", "sessions": "agent", "rate": "6"}))
    jobs_per_s = 6 * there(load.trace.turns).sessions / len(load.trace)
    made = _served_as_planned(asked, 6.11, replicas=2, router="prefix-aware")
    assert made.steady
    assert made.usd_per_job == pytest.approx(2 * 6.11 / 3600 / jobs_per_s, rel=0.005)
    assert there(made.sessions).jobs_per_s == pytest.approx(jobs_per_s, rel=0.005)
    assert made.requests_per_s == pytest.approx(6, rel=0.005)


def test_the_jobs_of_a_capacity_are_those_of_its_requests() -> None:
    asked = ON_H100 | TALKS | {"requests": 6000, "slo": "ttft_p99=1s"}
    found = capacity(CapacityRequest.checked(asked))
    best = found.highest_rate
    assert best.outcome.sessions is not None
    assert best.sessions_per_s is not None
    assert best.sessions_per_s * best.outcome.sessions.requests_per_job == pytest.approx(best.rate)
    assert best.outcome.sessions.jobs_per_s == pytest.approx(best.sessions_per_s, rel=0.005)


@pytest.fixture(scope="module")
def short_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a log of sixty chats of twenty turns, one after the other: at a few requests a second, all run at once."""
    plain = talks(np.arange(60) * 150.0, 20, 5.0)
    log = tmp_path_factory.mktemp("logs") / "short.parquet"
    prompts, answers = np.full(len(plain), 3000, np.int32), np.full(len(plain), 200, np.int32)
    save_trace(replace(plain, input_tokens=prompts, output_tokens=answers), log)
    return log


SERVED = {"model": "llama-3.1-8b", "weights": "bf16", "slo": "ttft_p99=2,tpot_p99=50ms"}


def _planned(log: Path, **asked: Any) -> PlanResult:
    made = plan(PlanRequest.checked(SERVED | {"trace": str(log), "gpu": "H100"} | asked))
    assert isinstance(made, PlanResult)
    return made


def test_a_short_log_of_sessions_has_the_room_that_capacity_finds(short_log: Path) -> None:
    made = _planned(short_log, rate="3", gpus=1)
    best, room = there(made.best), there(made.headroom)
    assert (best.replicas, best.tp) == (1, 1)
    alone = {"gpu": "H100", "trace": str(short_log), "usd_per_hour": best.instance_usd_per_hour}
    found = capacity(CapacityRequest.checked(SERVED | alone)).highest_rate
    assert there(room.at_most) == pytest.approx(found.at_most, rel=0.03)
    assert room.rate == pytest.approx(found.rate, rel=0.03)


def test_a_short_log_of_sessions_takes_the_fleet_and_the_cost_of_a_long_one(short_log: Path, tmp_path: Path) -> None:
    """The log seventeen times over has enough requests for a stretch: its run tells the steady cost."""
    log = tmp_path / "long.parquet"
    save_trace(load_of(PlanRequest.checked(SERVED | {"trace": str(short_log)})).trace.repeated(17), log)
    short, long = (there(_planned(one, rate="20").best) for one in (short_log, log))
    fleet = ("gpu", "tp", "replicas", "instances", "usd_per_month")
    assert [getattr(short, name) for name in fleet] == [getattr(long, name) for name in fleet]
    how = {"gpu": "H100", "tp": short.tp, "replicas": short.replicas, "router": str(short.router), "rate": "20"}
    how |= {"trace": str(log), "usd_per_hour": short.usd_per_month / 730 / short.replicas / short.tp}
    made = simulate(SimulateRequest.checked(SERVED | how))
    assert made.steady
    assert made.usd_per_mtok == pytest.approx(short.usd_per_mtok.blended, rel=0.02)


def test_a_log_at_its_own_pace_is_served_as_it_is_and_tells_no_room_without_a_stretch(tmp_path: Path) -> None:
    trace = replace(talks(np.arange(60.0), 20, 5.0), output_tokens=np.full(1200, 200, np.int32))
    log = tmp_path / "burst.parquet"
    save_trace(trace, log)
    assert stretch_of(trace).ramp_s is None
    made = _planned(log, gpus=1)
    assert made.best
    assert made.headroom is None
    assert len(load_of(PlanRequest.checked(SERVED | {"trace": str(log)})).trace) == 1200
    assert len(load_of(PlanRequest.checked(SERVED | {"trace": str(log), "rate": "20"})).trace) >= 20_000


# The stretch of a trace


def talks(starts_s: Any, turns: int, gap_s: float) -> Trace:
    """Sessions that begin then, with a turn every so often."""
    sessions, turn = np.repeat(np.arange(len(starts_s)), turns), np.tile(np.arange(turns), len(starts_s))
    sent_s = np.asarray(starts_s)[sessions] + turn * gap_s
    count = len(sent_s)
    waits = np.flatnonzero(turn > 0) - 1
    starts = np.concatenate([[0], np.cumsum(turn > 0)])
    linked = Turns(waits.astype(np.int32), starts, np.where(turn > 0, gap_s, 0.0), sessions.astype(np.int32))
    plain = Trace(sent_s, np.full(count, 100, np.int32), np.full(count, 10, np.int32), turns=linked)
    return plain.take(np.argsort(sent_s, kind="stable"))


def test_all_requests_that_wait_for_nobody_count() -> None:
    trace = make_trace(np.arange(50.0) + 3, [100] * 50, [10] * 50)
    stretch = stretch_of(trace)
    assert (stretch.begin_s, stretch.end_s, stretch.times_longer) == (0, 49, 1)
    assert stretch.counts(trace.arrival_s).all()


def test_sessions_count_once_nearly_all_of_their_turns_come() -> None:
    """A session a second, four turns 10 s apart: from ``t`` on until the end, 3 % of the requests are missing."""
    trace = talks(np.arange(101.0), 4, 10.0)
    stretch = stretch_of(trace)
    assert stretch.end_s == 100

    def came(begin_s: float) -> float:
        return float(np.count_nonzero((trace.arrival_s >= begin_s) & (trace.arrival_s <= 100))) / 4

    # One step of the search earlier there are too few, whoever counts them.
    assert came(stretch.begin_s) >= 0.97 * (100 - stretch.begin_s)
    assert came(stretch.begin_s - 1) < 0.97 * (100 - stretch.begin_s + 1) + 1
    assert 0 < stretch.begin_s < 30


@pytest.mark.parametrize("lasting_s", [1.0, 30.0, 51.0, 52.0, 400.0])
def test_what_takes_longer_than_half_of_the_time_is_never_whole(lasting_s: float) -> None:
    """Of requests that all come so long after their session begins, those beyond half of the time may be 3 % of it."""
    found = ramp_up_s(np.full(100, lasting_s), 100.0)
    assert (found is None) == (lasting_s > 50 + 0.03 * 50)
    if found is not None:
        assert max(0.0, lasting_s - found) <= 0.03 * (100 - found)


def test_few_sessions_or_long_ones_have_no_stretch() -> None:
    few, long, at_once = talks(np.arange(20.0), 2, 1.0), talks(np.arange(100.0), 9, 20.0), talks(np.zeros(50), 3, 1.0)
    assert [stretch_of(trace).ramp_s for trace in (few, long, at_once)] == [None, None, None]
    assert all(stretch_of(trace).counts(trace.arrival_s).all() for trace in (few, long, at_once))
    assert stretch_of(few).times_longer > 34 / 20 - 0.1
    assert stretch_of(long).times_longer > 1
    assert stretch_of(at_once).times_longer == 0


def test_a_stretch_has_both_of_its_ends() -> None:
    assert LoadStretch(0.0, 2.0, 5.0).counts(np.array([1.9, 2.0, 5.0, 5.1])).tolist() == [False, True, True, False]


# What of a simulation counts


def on_l4() -> Any:
    return on(gpu="L4")


def test_a_backlog_is_paid_for_until_it_is_done() -> None:
    trace = make_trace(np.arange(2000) * 0.01, [1000] * 2000, [100] * 2000)
    made = run(on_l4(), trace)
    found = outcome(made)
    assert not found.steady
    assert found.times_longer is not None or found.rated_s == found.duration_s
    assert found.replica_hours == pytest.approx(made.end_s / 3600)
    assert found.requests_per_s == pytest.approx(2000 / found.duration_s)


def test_percentiles_are_of_requests_sent_while_the_load_is_offered() -> None:
    made = run(on_l4(), talks(np.arange(0, 400, 0.5), 4, 10.0))
    found, of = outcome(made, parse_slos("job_p90=50")), counted(made)
    sent_s = made.trace.arrival_s
    inside = (sent_s >= of.from_s) & (sent_s <= of.to_s)
    assert np.count_nonzero(~inside) > 0
    ttft_s = (made.served.first_token_s - sent_s)[inside]
    assert found.ttft_s.mean == pytest.approx(float(ttft_s.mean()))
    assert made.trace.turns is not None
    starts = {int(session): float(at) for session, at in zip(made.trace.turns.session[::-1], sent_s[::-1], strict=True)}
    ends = {int(session): float(at) for session, at in zip(made.trace.turns.session, made.served.finish_s, strict=True)}
    took_s = [ends[job] - begun for job, begun in starts.items() if of.from_s <= begun <= of.to_s]
    assert found.sessions is not None
    assert found.sessions.job_s.mean == pytest.approx(float(np.mean(took_s)))
    assert found.slo[0].delivered_s == pytest.approx(found.sessions.job_s.p90)


@pytest.mark.parametrize("slo", ["ttft_p90=0.2", "tpot_p99=0.06", "e2e_p95=2", "job_p90=32", "job_p50=31.5"])
@pytest.mark.parametrize("every_s", [0.05, 0.1, 0.3])
def test_a_simulation_only_ends_early_where_the_whole_misses_the_slo(slo: str, every_s: float) -> None:
    trace, slos = talks(np.arange(0, 800 * every_s, every_s), 4, 10.0), parse_slos(slo)
    whole = run(on_l4(), trace)
    part = run(on_l4(), trace, watch=Watcher(is_settled=sure_to_miss(slos, trace)))
    if len(part.trace) < len(trace):
        assert outcome(whole, slos).slo_met is False
        assert outcome(part, slos).slo_met is False
