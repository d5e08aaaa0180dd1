"""Room to grow and the range of a bill: both ends simulated by hand, a slow fleet against slow step times."""

import math
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from tests.planner.small_catalogue import BF16, CHAT, SLOS, asked
from tests.there import there

from tokonomics.physics.deployment import Deployment
from tokonomics.physics.intervals import interval
from tokonomics.planner.firmness import at_speed, bill_range, safe_fleet, slo_rooms
from tokonomics.planner.plan import Study, study
from tokonomics.planner.plan_answer import Limits
from tokonomics.planner.vary import at_the_speed, headroom, resize, stretched
from tokonomics.serving import simulator
from tokonomics.serving.capacity import what_breaks
from tokonomics.serving.fleet_settings import FleetSettings
from tokonomics.serving.outcome import outcome
from tokonomics.serving.simulator import simulate
from tokonomics.serving.step_table import StepTable
from tokonomics.sizing.layouts import NotServed
from tokonomics.sizing.load import Load, load_of_log, load_of_shape
from tokonomics.sizing.spare import Spare
from tokonomics.traffic.slo import Slo, parse_slos
from tokonomics.traffic.trace import PrefixBlocks, make_trace


@cache
def simulated(slo: str = "ttft_p99=0.5,tpot_p99=0.05", spare: int = 0) -> Study:
    return study(asked(simulate=True, slos=parse_slos(slo), limits=Limits(spare=Spare(machines=spare))))


def breaks(deployment: Deployment, load: Load, replicas: int, slos: tuple[Slo, ...] = SLOS) -> str | None:
    made = simulate(deployment, load.trace, FleetSettings(replicas=replicas))
    return what_breaks(made, outcome(made, slos))


def slow_steps(table: StepTable, times: float) -> StepTable:
    """Every second of a step, and of a request outside any, so many times as long."""
    return table._replace(
        tokens_s=table.tokens_s * times,
        head_s=table.head_s * times,
        decode_s=table.decode_s * times,
        attention_s=table.attention_s * times,
        beside_s=table.beside_s * times,
        cool_s=table.cool_s * times,
        prompt_log_s=table.prompt_log_s + math.log(times),
        launch_s=table.launch_s * times,
        launch_prompt_s=table.launch_prompt_s * times,
        host_step_s=table.host_step_s * times,
        host_sequence_s=table.host_sequence_s * times,
        request_s=table.request_s * times,
        token_s=table.token_s * times,
        reach_s=table.reach_s * times,
        answer_s=table.answer_s * times,
    )


def make_steps_slow(monkeypatch: pytest.MonkeyPatch, times: float) -> None:
    table_for = simulator.table_for
    monkeypatch.setattr(simulator, "table_for", lambda *given: slow_steps(table_for(*given), times))


def test_the_traffic_may_grow_to_the_headroom_and_no_further() -> None:
    made = simulated()
    room = there(headroom(made))
    assert room.at_most is not None
    deployment = made.ranked_as(there(made.plan.best)).sized.deployment
    assert breaks(deployment, CHAT.at(room.rate), room.replicas) is None
    assert breaks(deployment, CHAT.at(room.at_most), room.replicas) == room.breaks
    assert room.at_most / room.rate <= 1.0101
    assert room.share == pytest.approx(room.rate / 5 - 1)


@pytest.mark.explore
def test_a_looser_slo_never_leaves_less_room_on_the_same_replicas() -> None:
    rooms = [headroom(simulated(f"ttft_p99={seconds},tpot_p99=0.05")) for seconds in (0.5, 0.8, 2)]
    replicas = {room.replicas for room in rooms if room}
    assert len(replicas) == 1
    rates = [room.rate for room in rooms if room]
    assert rates == sorted(rates)


def test_a_spare_replica_is_not_counted_as_room() -> None:
    without, with_spare = there(headroom(simulated())), there(headroom(simulated(spare=1)))
    assert (with_spare.replicas, with_spare.rate) == (without.replicas, without.rate)


def test_in_closed_form_the_room_ends_where_the_replicas_are_full() -> None:
    made = study(asked())
    room, best = there(headroom(made)), there(made.plan.best)
    assert not room.simulated
    full = best.replicas * best.capacity_requests_per_s
    assert full / 1.0101 <= room.rate <= full


def test_without_a_pick_there_is_no_room() -> None:
    assert headroom(study(asked(slos=parse_slos("tpot_p99=0.0001")))) is None


def test_latencies_of_slow_steps_are_those_of_fast_traffic_stretched(monkeypatch: pytest.MonkeyPatch) -> None:
    made = simulated()
    deployment = made.ranked_as(there(made.plan.best)).sized.deployment
    slow_question = at_the_speed(asked(slos=SLOS), 0.5)
    fast = simulate(deployment, slow_question.load.trace, FleetSettings(replicas=3)).served
    assert [slo.seconds for slo in slow_question.slos] == [0.25, 0.025]
    make_steps_slow(monkeypatch, 2.0)
    slow = simulate(deployment, CHAT.trace, FleetSettings(replicas=3)).served
    np.testing.assert_allclose(slow.finish_s, 2 * fast.finish_s, rtol=1e-9)
    np.testing.assert_allclose(slow.first_token_s, 2 * fast.first_token_s, rtol=1e-9)


def test_the_slow_end_of_a_bill_is_the_fleet_that_slow_steps_need(monkeypatch: pytest.MonkeyPatch) -> None:
    made = simulated()
    row = there(made.plan.best)
    sized = made.ranked_as(row).sized
    found = at_speed(made, row, 0.45)
    make_steps_slow(monkeypatch, 1 / 0.45)
    needed = next(count for count in range(1, 25) if breaks(sized.deployment, CHAT, count) is None)
    assert found.replicas == needed
    machine = made.ranked_as(row).machine
    assert found.usd_per_month == pytest.approx(needed * machine.usd_per_hour * 730)


def test_faster_replicas_never_cost_more_and_slower_ones_never_less() -> None:
    made = simulated()
    for row in made.plan.leaders(4):
        bill = bill_range(made, row)
        speed = interval(1.0, "throughput", made.ranked_as(row).sized.deployment)
        assert (bill.fast.speed, bill.slow.speed) == (speed.high, speed.low)
        assert bill.mid.usd_per_month == row.usd_per_month
        low, mid, high = (each.usd_per_month or math.inf for each in (bill.fast, bill.mid, bill.slow))
        assert low <= mid * (1 + 1e-9)
        assert mid <= high * (1 + 1e-9)


def test_clients_of_a_slow_fleet_lose_patience_as_early() -> None:
    trace = make_trace([0.0, 1.0, 2.0], [10, 10, 10], [5, 5, 5], patience_s=[4.0, 8.0, math.inf])
    load = at_the_speed(asked(load=load_of_log(trace)), 0.25).load
    np.testing.assert_allclose(there(load.trace.patience_s), [1.0, 2.0, math.inf])
    np.testing.assert_allclose(load.trace.arrival_s, [0.0, 0.25, 0.5])


def test_stretching_changes_lengths_and_nothing_else() -> None:
    base = load_of_shape(5, "lognormal:mean=1000,cv=1", "const:300")
    longer = stretched(base, inputs=1.5, outputs=0.5)
    np.testing.assert_allclose(longer.trace.input_tokens, base.trace.input_tokens * 1.5, atol=0.51)
    assert longer.workload.output_tokens == 150
    assert longer.workload.rate == base.workload.rate
    assert (longer.trace.arrival_s == base.trace.arrival_s).all()


def test_shortened_prompts_share_no_more_than_they_hold() -> None:
    """Blocks of 4 tokens: a prompt of 12 shares three, of 6 at most two; a list beyond its prompt covers the answer."""
    names = PrefixBlocks(
        ids=np.array([0, 1, 2, 0, 1, 3, 4], np.int32), starts=np.array([0, 3, 7]), block_tokens=4, distinct=5
    )
    trace = replace(make_trace([0.0, 1.0], [12, 8], [4, 8]), prefix=names)
    shorter = stretched(load_of_log(trace), inputs=0.5, outputs=0.5).trace
    assert shorter.input_tokens.tolist() == [6, 4]
    assert shorter.prefix is not None
    assert shorter.prefix.blocks_of(0).tolist() == [0, 1]
    assert shorter.prefix.blocks_of(1).tolist() == [0, 1]
    longer = stretched(load_of_log(trace), inputs=3.0).trace
    assert there(longer.prefix).ids.tolist() == names.ids.tolist()


# --- what a doubt about speed costs: the safe fleet against brute force, targets against step times made slow ---------


SAME, CHEAPER_ELSEWHERE, MORE_OF_IT, MISSED = (
    "ttft_p99=0.2", "ttft_p99=0.5,tpot_p99=0.05", "ttft_p99=0.09,tpot_p99=0.018", "tpot_p99=0.017",
)  # fmt: skip


@cache
def made_for(slo: str, simulate: bool = True) -> Study:
    return study(asked(simulate=simulate, slos=parse_slos(slo)))


def of_every_candidate(made: Study) -> float:
    """The lowest bill, each candidate sized alone at the slow end of its own interval."""
    bills = [math.inf]
    for hosts in made.hosts:
        low = interval(1.0, "throughput", hosts.deployment).low
        found = resize(at_the_speed(made.question, low), hosts)
        if not isinstance(found, NotServed):
            bills.append(hosts.usd_per_month(found.replicas))
    return min(bills)


@pytest.mark.parametrize("simulated", [True, False])
@pytest.mark.parametrize("slo", [SAME, CHEAPER_ELSEWHERE, MORE_OF_IT, MISSED])
def test_the_safe_fleet_is_the_cheapest_of_all_candidates_each_at_its_own_slow_end(slo: str, simulated: bool) -> None:
    made = made_for(slo, simulated)
    best = there(made.plan.best)
    bills = bill_range(made, best)
    safe = there(safe_fleet(made, bills))
    assert safe.candidate.usd_per_month == pytest.approx(of_every_candidate(made))
    assert best.usd_per_month <= safe.candidate.usd_per_month * (1 + 1e-9)
    assert safe.candidate.usd_per_month <= (bills.slow.usd_per_month or math.inf) * (1 + 1e-9)


def test_a_pick_that_holds_at_its_slow_end_is_the_safe_fleet_itself() -> None:
    made = made_for(SAME)
    bills = bill_range(made, there(made.plan.best))
    safe = there(safe_fleet(made, bills))
    assert safe.is_pick
    assert safe.candidate == made.plan.best
    assert safe.speed == bills.slow.speed


def test_a_machine_with_room_for_another_replica_is_safe_at_the_same_bill_on_more_replicas() -> None:
    """One offer of eight GPUs: the slow end takes more of them, and the bill stays."""
    only = tuple(offer for offer in asked().offers if offer.instance == "8xH100-SXM")
    made = study(asked(simulate=True, load=CHAT.at(30), slos=parse_slos("ttft_p99=0.1"), offers=only, weights=BF16))
    best = there(made.plan.best)
    bills = bill_range(made, best)
    assert (best.gpus_per_replica, bills.slow.usd_per_month) == (1, best.usd_per_month)
    assert there(bills.slow.replicas) > best.replicas
    safe = there(safe_fleet(made, bills))
    assert safe.is_pick
    assert safe.candidate.replicas == bills.slow.replicas
    assert safe.candidate.usd_per_month == pytest.approx(best.usd_per_month)


def test_a_pick_that_misses_its_slo_at_the_slow_end_has_an_alternative() -> None:
    made = made_for(MISSED)
    best = there(made.plan.best)
    bills = bill_range(made, best)
    assert bills.slow.usd_per_month is None
    safe = there(safe_fleet(made, bills))
    assert not safe.is_pick
    assert safe.candidate.usd_per_month > best.usd_per_month


def test_nothing_is_safe_where_every_speed_is_in_doubt() -> None:
    only = tuple(offer for offer in asked().offers if offer.instance == "1xA100-80GB")
    made = study(asked(simulate=True, slos=parse_slos(MISSED), offers=only, limits=Limits(max_gpus=1)))
    bills = bill_range(made, there(made.plan.best))
    assert bills.slow.usd_per_month is None
    assert of_every_candidate(made) == math.inf
    assert safe_fleet(made, bills) is None


def test_the_safe_fleet_shows_its_latencies_at_the_modelled_speed() -> None:
    made = made_for(MORE_OF_IT)
    safe = there(safe_fleet(made, bill_range(made, there(made.plan.best)))).candidate
    deployment = made.ranked_as(there(made.plan.best)).sized.deployment
    assert (safe.gpu, safe.replicas) == (deployment.gpu.key, 2)
    fleet = FleetSettings(replicas=2, router=safe.router)
    served = outcome(simulate(deployment, CHAT.trace, fleet, max_sequences=safe.max_sequences), made.question.slos)
    assert safe.ttft_s.p99 == pytest.approx(served.ttft_s.p99)
    assert safe.tpot_s.p99 == pytest.approx(served.tpot_s.p99)


@pytest.mark.parametrize("slo", [SAME, CHEAPER_ELSEWHERE, MORE_OF_IT, MISSED])
def test_a_target_is_within_the_interval_if_slow_steps_miss_it(slo: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = made_for(slo)
    best = there(made.plan.best)
    placed = made.ranked_as(best).sized
    bills = bill_range(made, best)
    rooms = {room.slo: room for room in slo_rooms(made, bills)}
    fleet = FleetSettings(replicas=placed.replicas, router=best.router)
    make_steps_slow(monkeypatch, 1 / bills.slow.speed)
    slow = simulate(placed.deployment, CHAT.trace, fleet, max_sequences=best.max_sequences)
    for asked_for, served in zip(made.question.slos, outcome(slow, made.question.slos).slo, strict=True):
        room, spread = rooms[str(asked_for)], getattr(best, f"{asked_for.latency}_s")
        assert room.within_interval == (not served.met)
        assert room.room == pytest.approx(1 - getattr(spread, asked_for.statistic) / asked_for.seconds)


def test_without_a_simulation_no_percentile_has_room() -> None:
    made = made_for(SAME, simulate=False)
    assert slo_rooms(made, bill_range(made, there(made.plan.best))) == ()
