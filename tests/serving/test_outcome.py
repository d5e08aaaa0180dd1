"""A simulation summed up: every figure against the same one computed from the requests by hand."""

import math
from functools import cache
from pathlib import Path
from statistics import mean

import numpy as np
import polars as pl
import pytest
from tests.deployed import on
from tests.physics.hosts import lone
from tests.serving.small_worlds import some_traffic

from tokonomics.physics.overhead import overhead
from tokonomics.physics.steptime import step_model
from tokonomics.serving.fleet_settings import Autoscale, FleetSettings, Outage, Router
from tokonomics.serving.outcome import moments, outcome, records, save_records
from tokonomics.serving.simulator import Simulation, simulate
from tokonomics.serving.state import DONE, REFUSED, TIMED_OUT
from tokonomics.traffic.slo import parse_slos
from tokonomics.traffic.trace import make_trace
from tokonomics.traffic.workload import spread


@cache
def busy() -> Simulation:
    """Two replicas, short of sequences; some requests too long, some given up."""
    trace = some_traffic(2000)
    trace.input_tokens[::500] = 200_000
    return simulate(on(), trace, FleetSettings(replicas=2), timeout_s=4.0, max_sequences=16)


def test_latencies_are_those_of_the_requests_that_were_answered() -> None:
    simulation = busy()
    served, trace, made = simulation.served, simulation.trace, outcome(simulation)
    ttft, e2e, queue, tpot = [], [], [], []
    for request in range(len(trace)):
        if served.status[request] != DONE:
            continue
        arrival, outputs = float(trace.arrival_s[request]), int(trace.output_tokens[request])
        ttft.append(float(served.first_token_s[request]) - arrival)
        e2e.append(float(served.finish_s[request]) - arrival)
        queue.append(float(served.start_s[request]) - arrival)
        if outputs > 1:
            tpot.append(float(served.finish_s[request] - served.first_token_s[request]) / (outputs - 1))
    assert 0 < made.failed < len(trace)
    assert made.completed == len(ttft)
    for found, expected in ((made.ttft_s, ttft), (made.e2e_s, e2e), (made.queue_s, queue), (made.tpot_s, tpot)):
        assert found.mean == pytest.approx(mean(expected))
        expected.sort()
        for percent, value in ((50, found.p50), (90, found.p90), (95, found.p95), (99, found.p99)):
            place = percent / 100 * (len(expected) - 1)
            low = expected[math.floor(place)]
            assert value == pytest.approx(low + (expected[math.ceil(place)] - low) * (place % 1))


def test_rates_are_counts_over_the_time_from_the_first_arrival_to_the_last_end() -> None:
    simulation, made = busy(), outcome(busy())
    done = simulation.served.status == DONE
    # The last clients hang up during a step, which runs to its end; or hear of it a moment later.
    last = max(np.nanmax(simulation.served.finish_s), simulation.replicas["time_s"].max())
    assert made.duration_s == pytest.approx(last)
    assert made.requests_per_s == pytest.approx(done.sum() / made.duration_s)
    outputs, inputs = simulation.trace.output_tokens[done].sum(), simulation.trace.input_tokens[done].sum()
    assert made.output_tokens_per_s == pytest.approx(outputs / made.duration_s)
    assert made.total_tokens_per_s == pytest.approx((inputs + outputs) / made.duration_s)
    assert made.replica_hours == pytest.approx(2 * made.duration_s / 3600)


def test_a_slo_is_kept_by_the_share_of_all_requests_within_all_of_it() -> None:
    simulation = busy()
    made = outcome(simulation, parse_slos("ttft_p90=0.5,tpot_p99=0.02,e2e_p50=100"))
    served, trace = simulation.served, simulation.trace
    good = 0
    for request in range(len(trace)):
        if served.status[request] != DONE:
            continue
        later = max(int(trace.output_tokens[request]) - 1, 1)
        slow = served.finish_s[request] - served.first_token_s[request] > 0.02 * later
        good += served.first_token_s[request] - trace.arrival_s[request] <= 0.5 and not slow
    assert 0 < good < made.completed
    assert made.slo_attainment == pytest.approx(good / len(trace))
    assert made.goodput_per_s == pytest.approx(good / made.duration_s)
    # Who was accepted and never answered waited for ever: more than one in ten, less than half.
    unanswered = made.timed_out + made.unserved
    assert 0.1 < unanswered / (made.completed + unanswered) < 0.5
    e2e = (
        sorted(served.finish_s[served.status == DONE] - trace.arrival_s[served.status == DONE])
        + [math.inf] * unanswered
    )
    assert [each.delivered_s for each in made.slo] == [None, None, e2e[math.ceil(0.5 * (len(e2e) - 1))]]
    assert [each.met for each in made.slo] == [False, False, True]
    assert made.slo_met == all(each.met for each in made.slo)
    assert outcome(simulation).slo_met is None


# Where the paid time goes


def test_one_prompt_and_one_answer_split_the_time_between_them() -> None:
    made = outcome(simulate(on(), make_trace([0.0], [1000], [200])))
    asked = lone(on(), layers=32, tokens=1000)
    prefill = asked.done_s - asked.begun_s
    decode = float(step_model(on()).decode(1, np.arange(1001, 1200)).sum())
    # Nothing is computed until the engine has the request, nor while its last token is on its way to the client.
    idle = asked.begun_s + overhead(on().engine).answer_s
    paid = prefill + decode + idle
    assert made.shares.prefill == pytest.approx(prefill / paid, rel=0.01)
    assert made.shares.decode == pytest.approx(decode / paid, rel=0.01)
    assert (made.shares.recomputed, made.shares.abandoned) == (0, 0)
    assert made.shares.idle == pytest.approx(idle / paid, rel=0.01)
    assert made.batch == pytest.approx(1)


def test_a_prompt_that_was_never_begun_is_not_computed_again_after_a_failure() -> None:
    """A replica fails with one prompt in flight and one in the queue; both are served after it is back."""
    fleet = FleetSettings(outages=(Outage(replica=0, at_s=0.001, down_s=1.0),))
    simulation = simulate(on(), make_trace([0, 0], [8000, 1000], [1, 1]), fleet, max_sequences=1)
    assert (simulation.served.status == DONE).all()
    shares = outcome(simulation).shares
    paid = float(simulation.paid_s.sum())
    useful = float(step_model(on()).prefill(8000) + step_model(on()).prefill(1000))
    # The millisecond in flight is lost; the rest is work of the first time.
    assert shares.prefill == pytest.approx(useful / paid, rel=0.01)
    assert shares.recomputed <= 0.0011 / paid
    assert shares.decode == 0


def test_answers_lost_with_their_replica_count_as_computed_again() -> None:
    alone = simulate(on(), make_trace([0.0], [1000], [400]))
    half = float(alone.served.finish_s[0]) / 2
    fleet = FleetSettings(outages=(Outage(replica=0, at_s=half, down_s=5.0, reclaimed=True),))
    shares = outcome(simulate(on(), make_trace([0.0], [1000], [400]), fleet)).shares
    # Half the work, then all of it: a third is done again.
    assert shares.recomputed == pytest.approx(1 / 3, rel=0.02)
    assert shares.prefill + shares.decode == pytest.approx(2 / 3, rel=0.02)


def test_work_for_clients_that_hang_up_is_abandoned() -> None:
    trace = make_trace([0.0, 50.0], [1000, 1000], [400, 400], patience_s=[math.inf, 1.0])
    simulation = simulate(on(), trace)
    shares = outcome(simulation).shares
    paid = float(simulation.paid_s.sum())
    answered = float(simulation.served.finish_s[0])
    assert shares.prefill + shares.decode == pytest.approx(answered / paid, rel=0.02)
    assert shares.abandoned == pytest.approx(1.0 / paid, rel=0.02)


def test_a_prompt_whose_client_hangs_up_during_its_only_step_is_abandoned() -> None:
    simulation = simulate(on(), make_trace([0.0], [8000], [100]), timeout_s=0.05)
    assert simulation.served.finish_s.tolist() == [0.05]
    made = outcome(simulation)
    assert made.completed == 0
    assert made.useful_share == pytest.approx(0, abs=1e-9)
    # Until the engine has it nothing is computed; its step runs to its end, and nobody is told.
    asked = lone(on(), layers=32, tokens=8000)
    assert asked.begun_s < 0.05 < asked.done_s
    assert made.shares.idle == pytest.approx(asked.begun_s / asked.done_s, rel=0.01)
    assert made.shares.abandoned == pytest.approx(1 - asked.begun_s / asked.done_s, rel=0.01)


def test_a_prompt_whose_client_hangs_up_before_its_answer_is_begun_elsewhere_is_abandoned() -> None:
    slow_link = FleetSettings(prefill_replicas=1, link_bytes_per_s=1e6)
    simulation = simulate(on(), make_trace([0.0], [8000], [100]), slow_link, timeout_s=1.0)
    assert simulation.served.finish_s.tolist() == [1.0]
    made = outcome(simulation)
    assert made.useful_share == pytest.approx(0, abs=1e-9)
    assert made.shares.abandoned == pytest.approx(float(step_model(on()).prefill(8000)) / 2, rel=0.01)


@pytest.mark.parametrize(
    "fleet", [FleetSettings(replicas=2), FleetSettings(autoscale=Autoscale(max_replicas=2, target=9, cold_start_s=1))]
)
def test_the_last_work_counts_even_if_nobody_waits_for_it(fleet: FleetSettings) -> None:
    """Whether an autoscaler looks every second or not."""
    if fleet.autoscale:
        fleet = fleet.model_copy(update={"autoscale": fleet.autoscale.model_copy(update={"interval_s": 1.0})})
    simulation = simulate(on(), make_trace([0.0], [1000], [5000]), fleet, timeout_s=2.0)
    assert simulation.replicas["busy_s"].sum() == pytest.approx(2.0, rel=0.01)
    assert (simulation.replicas["busy_s"] <= simulation.paid_s + 1e-9).all()
    assert outcome(simulation).shares.abandoned * simulation.paid_s.sum() == pytest.approx(2.0, rel=0.01)


def test_requests_that_are_turned_away_load_nobody() -> None:
    served = some_traffic(400, rate=10.0)
    longest = make_trace(served.arrival_s, np.full(400, 200_000), served.output_tokens)
    both = make_trace(
        *(np.concatenate([getattr(each, name) for each in (served, longest)]) for name in
          ("arrival_s", "input_tokens", "output_tokens"))
    )  # fmt: skip
    alone, among = (outcome(simulate(on(), each)) for each in (served, both))
    assert among.refused == 400
    assert alone.load_share is not None
    # The same span from the first to the last arrival is that of one gap fewer than there are requests.
    assert among.load_share == pytest.approx(alone.load_share * (800 - 1) / 800 / ((400 - 1) / 400))
    assert outcome(simulate(on(), longest)).load_share in (0.0, None)


# Over time


def test_the_moments_add_up_to_the_whole() -> None:
    simulation = busy()
    parts = moments(simulation, most=50)
    assert 25 <= len(parts) <= 50
    edges = np.array([part.at_s for part in parts] + [simulation.end_s])
    lasted = np.diff(edges)
    total = {
        name: float(sum(getattr(part, name) * span for part, span in zip(parts, lasted, strict=True)))
        for name in ("arrivals_per_s", "running", "waiting", "busy_share", "input_tokens_per_s", "output_tokens_per_s")
    }
    served, trace, rows = simulation.served, simulation.trace, simulation.replicas
    assert total["arrivals_per_s"] == pytest.approx(len(trace))
    assert total["busy_share"] * 2 == pytest.approx(rows["busy_s"].sum(), rel=1e-3)
    assert total["input_tokens_per_s"] == pytest.approx(rows["prompt_tokens"].sum())
    assert total["output_tokens_per_s"] == pytest.approx(rows["answer_tokens"].sum())
    # Little's law: requests × seconds in the queue are the sum of what each waited.
    began = np.where(np.isnan(served.start_s), served.finish_s, served.start_s)
    assert total["waiting"] == pytest.approx(float((began - trace.arrival_s).sum()), rel=1e-6)
    assert total["running"] == pytest.approx(outcome(simulation).batch * rows["busy_s"].sum(), rel=1e-6)


def test_those_who_wait_to_the_end_are_as_many_in_the_last_moment() -> None:
    # 300 at once, four at a time: the queue empties evenly, and does so in a last bin that is cut short, too.
    simulation = simulate(on(), make_trace(np.zeros(300), [1000] * 300, [50] * 300), max_sequences=4)
    parts = moments(simulation, most=7)
    lasted = np.diff([*(part.at_s for part in parts), simulation.end_s])
    assert lasted[-1] < 0.95 * lasted[0]
    waited = float((simulation.served.start_s - simulation.trace.arrival_s).sum())
    assert float(np.dot([part.waiting for part in parts], lasted)) == pytest.approx(waited)


def test_requests_turned_away_after_the_last_work_are_in_the_moments() -> None:
    simulation = simulate(on(), make_trace([0.0, 0.1, 50.0], [1000, 1000, 200_000], [10, 10, 10]))
    parts = moments(simulation)
    width = parts[1].at_s
    last = [min(width, simulation.end_s - part.at_s) or width for part in parts]
    assert sum(part.arrivals_per_s * span for part, span in zip(parts, last, strict=True)) == pytest.approx(3)
    assert parts[-1].at_s + width >= 50


def test_a_moments_first_tokens_are_those_of_the_requests_that_arrived_in_it() -> None:
    simulation = busy()
    parts = moments(simulation, most=20)
    width = parts[1].at_s
    ttft = simulation.served.first_token_s - simulation.trace.arrival_s
    for part in parts:
        inside = (simulation.trace.arrival_s >= part.at_s) & (simulation.trace.arrival_s < part.at_s + width)
        known = ttft[inside & ~np.isnan(ttft)]
        assert part.ttft_p50_s == (pytest.approx(np.median(known)) if len(known) else None)


def test_a_busy_replica_shows_how_full_it_is() -> None:
    count = 200
    simulation = simulate(on(gpu="L4"), make_trace(np.zeros(count), [500] * count, [1500] * count))
    made = outcome(simulation)
    assert made.kv_peak_share > 0.99
    assert made.preemptions > 0
    # It computes from the first prompt that the engine has to the last token that leaves it.
    host = overhead(on().engine)
    idle = host.request_s + 500 * host.token_s + host.reach_s + host.answer_s
    assert made.busy_share == pytest.approx(1 - idle / simulation.end_s, rel=1e-9)
    assert max(moment.kv_share for moment in moments(simulation)) > 0.95
    assert min(moment.busy_share for moment in moments(simulation)) > 0.99


def test_taking_turns_splits_equal_requests_evenly() -> None:
    trace = make_trace(np.arange(100) * 0.01, [300] * 100, [50] * 100)
    simulation = simulate(on(), trace, FleetSettings(replicas=4, router=Router.round_robin))
    assert np.bincount(simulation.served.replica).tolist() == [25] * 4


@pytest.mark.parametrize("number", [1, 2, 3, 101, 20_000])
def test_percentiles_are_those_of_numpy_to_the_last_digit(number: int) -> None:
    seconds = np.random.default_rng(number).lognormal(size=number)
    made = spread(np.append(seconds, np.nan))
    assert [made.p50, made.p90, made.p95, made.p99] == np.percentile(seconds, [50, 90, 95, 99]).tolist()
    assert spread(np.array([np.nan, np.nan])).mean is None


# --- what became of each request, as a file: the simulation's own arrays, whole or not at all -------------------------


@cache
def simulation() -> Simulation:
    """Some requests are too long, some clients hang up, some answers have one token or none; two tenants."""
    rng = np.random.default_rng(2)
    inputs, outputs = rng.integers(1, 2000, 800), rng.integers(0, 300, 800)
    inputs[::100] = 200_000
    arrival = np.cumsum(rng.exponential(1 / 40, 800))
    trace = make_trace(arrival, inputs, outputs, tenant=np.arange(800, dtype=np.int32) % 2, tenants=("free", "paid"))
    return simulate(on(), trace, FleetSettings(replicas=2), timeout_s=3.0, max_sequences=16)


def test_the_file_is_the_arrays(tmp_path: Path) -> None:
    file = tmp_path / "served.parquet"
    save_records(simulation(), file)
    table, trace, served = pl.read_parquet(file), simulation().trace, simulation().served
    assert list(tmp_path.iterdir()) == [file]
    assert table.height == len(trace)
    assert table["arrival_s"].to_list() == trace.arrival_s.tolist()
    for name in ("input_tokens", "output_tokens"):
        assert table[name].to_list() == getattr(trace, name).tolist()
    for name in ("cached_tokens", "preemptions", "restarts", "replica"):
        assert table[name].to_list() == getattr(served, name).tolist()
    assert table["tenant"].cast(pl.String).to_list() == ["free", "paid"] * 400


def test_a_status_is_a_word() -> None:
    words = {DONE: "done", REFUSED: "refused", TIMED_OUT: "timed out"}
    found = records(simulation())["status"].cast(pl.String).to_list()
    assert found == [words[int(status)] for status in simulation().served.status]
    assert set(found) == set(words.values())


def test_a_time_that_there_is_none_of_is_null_and_never_nan() -> None:
    table, served, trace = records(simulation()), simulation().served, simulation().trace
    for row in range(len(trace)):
        first, finish = float(served.first_token_s[row]), float(served.finish_s[row])
        later = int(trace.output_tokens[row]) - 1
        ttft, tpot = table["ttft_s"][row], table["tpot_s"][row]
        assert (ttft is None) == np.isnan(first)
        assert ttft is None or ttft == pytest.approx(first - trace.arrival_s[row])
        if served.status[row] == DONE:
            assert tpot == (pytest.approx((finish - first) / later) if later > 0 else None)
    assert table.select(pl.col(pl.Float64).is_nan().any()).row(0) == (False,) * 5


def test_the_table_sums_to_the_outcome() -> None:
    made, done = outcome(simulation()), records(simulation()).filter(pl.col("status").cast(pl.String) == "done")
    assert done.height == made.completed
    assert done["output_tokens"].sum() == made.output_tokens
    assert done["ttft_s"].mean() == pytest.approx(made.ttft_s.mean)
    assert done["tpot_s"].drop_nulls().mean() == pytest.approx(made.tpot_s.mean)
    assert records(simulation())["preemptions"].sum() == made.preemptions
