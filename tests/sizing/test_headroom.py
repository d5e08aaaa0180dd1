"""A fleet with headroom holds that much more traffic, and its bill and latencies are of the traffic itself."""

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.planner.small_catalogue import CHAT, OFFERS, TODAY, asked
from tests.there import there

from tokonomics.catalog.engines import find_engine
from tokonomics.catalog.gpus import find_gpu
from tokonomics.catalog.load_models import find_model
from tokonomics.physics.deployment import deploy
from tokonomics.planner.plan import Study, study
from tokonomics.planner.plan_answer import Plan
from tokonomics.planner.vary import headroom
from tokonomics.serving.capacity import what_breaks
from tokonomics.serving.fleet_settings import FleetSettings
from tokonomics.serving.outcome import Outcome, outcome
from tokonomics.serving.simulator import simulate
from tokonomics.sizing import search
from tokonomics.sizing.attempt import Sized, judged_attempt
from tokonomics.sizing.load import load_of_requests, load_of_shape
from tokonomics.sizing.rules import WORK_IN_HAND, pace
from tokonomics.sizing.search import highest_rate, replicas_needed, size
from tokonomics.sizing.setup import Setup
from tokonomics.traffic.slo import Slo, parse_slos
from tokonomics.traffic.trace import make_trace

MEAN = load_of_shape(40, "const:1000", "const:300")
SHARES = st.floats(0, 3)
H100 = deploy(find_model("llama-3.1-8b"), find_gpu("H100"), find_engine("vllm"))


def by_closed_form(rate: float, share: float, **more: Any) -> Plan:
    return study(asked(load=replace(MEAN.at(rate), headroom=share), **more)).plan


@cache
def simulated(share: float, slo: str = "ttft_p99=0.5,tpot_p99=0.05", rate: float = 40) -> Study:
    load = replace(CHAT.at(rate), headroom=share)
    return study(asked(load=load, simulate=True, slos=parse_slos(slo)))


def served(made: Study, times: float, fewer: int = 0) -> tuple[Outcome, str | None]:
    """The pick's replicas, or fewer, under so many times the planned traffic; what they do and what breaks."""
    placed = made.ranked_as(there(made.plan.best)).sized
    trial, load = there(placed.trial), made.question.load
    fleet = FleetSettings(replicas=placed.replicas - fewer, router=trial.router)
    faster = load.trace.faster(times)
    run = simulate(placed.deployment, faster, fleet, max_sequences=trial.max_sequences)
    found = outcome(run, made.question.slos)
    return found, what_breaks(run, found)


@given(rate=st.floats(1, 400), share=SHARES)
def test_by_the_closed_form_it_takes_the_replicas_of_that_much_more_traffic(rate: float, share: float) -> None:
    here, there_ = by_closed_form(rate, share).best, by_closed_form(rate * (1 + share), 0).best
    assert here is not None
    assert there_ is not None
    assert (here.gpu, here.replicas, here.usd_per_month) == (there_.gpu, there_.replicas, there_.usd_per_month)
    # The price of a token is of those that are planned, and so is the load.
    assert here.usd_per_mtok.blended == pytest.approx(there_.usd_per_mtok.blended * (1 + share))
    assert here.load_share == pytest.approx(there_.load_share / (1 + share))


@pytest.mark.parametrize("slo", ["ttft_p99=0.5,tpot_p99=0.05", "tpot_p99=0.03", "e2e_p90=4.5"])
def test_more_headroom_is_never_cheaper_in_the_simulator(slo: str) -> None:
    machines = tuple(offer for offer in OFFERS if offer.gpus == 1 and offer.gpu != "L4")
    picks = []
    for share in (0.0, 0.1, 0.2, 0.5, 1.0):
        load = replace(CHAT.at(20), headroom=share)
        question = asked(load=load, simulate=True, slos=parse_slos(slo), offers=machines)
        picks.append(there(study(question, pick_only=True).plan.best))
    bills = [pick.usd_per_month for pick in picks]
    assert bills == sorted(bills)
    assert bills[0] < bills[-1]


@pytest.mark.parametrize("simulate", [True, False])
def test_no_headroom_is_a_plan_without_it(simulate: bool) -> None:
    slos = parse_slos("ttft_p99=0.5")
    plans = [study(asked(load=load, slos=slos, simulate=simulate)).plan for load in (CHAT, replace(CHAT, headroom=0.0))]
    assert plans[0] == plans[1]
    assert plans[0].headroom_asked == 0


@pytest.mark.parametrize("slo", ["ttft_p99=0.5,tpot_p99=0.05", "ttft_p95=0.2"])
def test_every_slo_is_met_by_the_planned_traffic_and_by_a_fifth_more(slo: str) -> None:
    made = simulated(0.2, slo)
    now, breaks = served(made, 1.0)
    assert breaks is None
    assert served(made, 1.2)[1] is None
    assert served(made, 1.0, fewer=1)[1] or served(made, 1.2, fewer=1)[1]
    best = there(made.plan.best)
    assert best.ttft_s.p99 == pytest.approx(now.ttft_s.p99)
    assert best.e2e_s.p99 == pytest.approx(now.e2e_s.p99)


@pytest.mark.parametrize("share", [0.1, 0.2, 1.0])
def test_the_room_to_grow_is_at_least_what_was_asked_for(share: float) -> None:
    room = there(headroom(simulated(share)))
    assert room.share >= share * (1 - 1e-9)
    assert room.rate == pytest.approx(40 * (1 + room.share))


def test_headroom_comes_on_top_of_work_in_hand() -> None:
    def of(slo: str) -> float:
        return pace(Setup(H100, replace(CHAT, headroom=0.2), slos=parse_slos(slo)))

    assert of("ttft_p99=1") == pytest.approx(1.2)
    assert of("tpot_p99=50ms") == pytest.approx(1.2 * WORK_IN_HAND)


def test_the_highest_rate_of_a_replica_leaves_headroom() -> None:
    def held(share: float) -> float:
        setup = Setup(H100, load_of_requests(CHAT.trace, share), slos=parse_slos("ttft_p99=0.5"))
        return highest_rate(setup, 5.0).rate

    assert held(0.5) * 1.5 == pytest.approx(held(0.0), rel=0.02)


def test_a_log_takes_the_replicas_of_the_same_log_that_much_faster() -> None:
    slos: tuple[Slo, ...] = parse_slos("ttft_p99=0.3")
    log = CHAT.trace.faster(20)
    slower = replicas_needed(Setup(H100, load_of_requests(log, 0.4), slos=slos))
    faster = replicas_needed(Setup(H100, load_of_requests(log.faster(1.4)), slos=slos))
    assert slower.replicas == faster.replicas
    assert there(slower.outcome.ttft_s.p99) < there(faster.outcome.ttft_s.p99)  # at its own pace


def test_replicas_that_come_and_go_hold_the_traffic_with_its_headroom(monkeypatch: pytest.MonkeyPatch) -> None:
    """What counts is of the traffic itself; but a rule is taken only if the traffic with its headroom held with it."""
    judged: list[tuple[float, bool]] = []
    judge = judged_attempt

    def remember(setup: Setup, *given: Any) -> Sized:
        made = judge(setup, *given)
        judged.append((setup.load.workload.rate, made.holds))
        return made

    monkeypatch.setattr(search, "judged_attempt", remember)
    arrivals = np.sort(np.random.default_rng(3).uniform(0, 7200, 7200 * 3))
    log = make_trace(arrivals, np.full(len(arrivals), 4000), np.full(len(arrivals), 300))
    load = load_of_requests(log, 0.3)
    made = size(Setup(H100, load, OFFERS, TODAY, parse_slos("ttft_p90=30"), autoscale=True))
    assert isinstance(made, Sized)
    rates = sorted({rate for rate, holds in judged if holds})
    assert rates == pytest.approx([log.rate, log.rate * 1.3])
    assert made.outcome.requests <= len(log)
