"""What a doubt about speed costs: the safe fleet against brute force, targets against step times made slow."""

import math
from functools import cache

import pytest
from tests.planner.small_catalogue import BF16, CHAT, asked
from tests.planner.test_margins import make_steps_slow
from tests.there import there

from tokonomics.physics.intervals import interval
from tokonomics.planner.plan import Study, study
from tokonomics.planner.plan_answer import Limits
from tokonomics.planner.slow_end import bill_range, safe_fleet, slo_rooms
from tokonomics.planner.vary import at_the_speed, resize
from tokonomics.serving.fleet_settings import FleetSettings
from tokonomics.serving.outcome import outcome
from tokonomics.serving.simulator import simulate
from tokonomics.sizing.layouts import NotServed
from tokonomics.traffic.slo import parse_slos

SAME, CHEAPER_ELSEWHERE, MORE_OF_IT, MISSED = (
    "ttft_p99=0.2", "ttft_p99=0.5,tpot_p99=0.05", "ttft_p99=0.1,tpot_p99=0.02", "tpot_p99=0.017",
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
