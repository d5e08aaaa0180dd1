"""Classes on a fleet: bills that sum, who breaks first, and what one SLO for all would take."""

import math
from dataclasses import replace

import numpy as np
import pytest
from tests.deployed import on
from tests.planner.small_catalogue import BF16, offer
from tests.planner.small_catalogue import asked as asked_of
from tests.there import there

from tokonomics.money.attribution import class_bills
from tokonomics.planner.class_report import LOADS, class_report, report_of_pick
from tokonomics.planner.plan import Study, study
from tokonomics.serving.class_outcome import class_outcomes
from tokonomics.serving.fleet_settings import FleetSettings
from tokonomics.serving.simulator import Simulation, simulate
from tokonomics.sizing.load import Load, load_of_shape
from tokonomics.traffic.slo import Slo, parse_classes
from tokonomics.traffic.tenants import classed, strictest, without_classes

PROMPTS = parse_classes(
    ["gold,share=20%,slo=ttft_p99=3,priority=0", "free,slo=ttft_p90=30,priority=1,max_wait=60,shed=5%"]
)


def load(seed: int = 0, requests: int = 4000) -> Load:
    made = load_of_shape(9, "lognormal:mean=3000,p99=9000", "const:50", seed=seed)
    return replace(made, trace=classed(made.trace, PROMPTS, seed)).busiest(requests)


def plan_of(asked: Load, slos: tuple[Slo, ...] = ()) -> Study:
    return study(asked_of(load=asked, offers=(offer("L40S", 1, 1.0),), weights=BF16, simulate=True, slos=slos))


def on_l40s(times: float, replicas: int = 4) -> Simulation:
    deployment = on(gpu="L40S")
    return simulate(deployment, load().trace.faster(times), FleetSettings(replicas=replicas))


def test_a_bill_by_class_sums_to_the_bill_and_follows_what_each_used() -> None:
    made = on_l40s(1.0)
    bills = class_bills(made, 123.45, times=2.0)
    assert math.fsum([part for own in bills for part in (own.used_usd, own.unused_usd)]) == 123.45
    tokens = sum(own.tokens for own in bills)
    done = made.served.status == 1
    assert tokens == 2 * int((made.trace.input_tokens + made.trace.output_tokens)[done].sum())
    shares = [own.usd / 123.45 for own in bills]
    # Requests of the same lengths: each class pays about its share of the tokens.
    assert shares == pytest.approx([own.tokens / tokens for own in bills], abs=0.02)


def test_each_class_breaks_where_its_own_simulations_say() -> None:
    report = class_report(on_l40s, on_l40s(1.0), (), "this run")
    found = {one.name: one.load for one in report.breaks_at if one.load is not None}
    loads = [one.load or math.inf for one in report.breaks_at]
    assert loads == sorted(loads)
    assert any(load < math.inf for load in loads)
    for place, name in enumerate(("gold", "free")):
        for row in report.overload:
            own = class_outcomes(on_l40s(row.load))[place]
            assert (row.classes[place].breaks, row.classes[place].shed_share) == (own.breaks, own.shed_share)
        broken = [row.load for row in report.overload if row.classes[place].breaks]
        assert bool(broken) == (name in found)
        if broken and broken[0] > 1:
            before = max(load for load in LOADS if load < broken[0])
            assert before < found[name] <= broken[0]


def test_a_plan_gives_every_class_what_it_is_owed_on_no_more_than_one_slo_for_all_takes() -> None:
    """Where the others' targets are ten times as loose. No law: a p99 of a class rests on fewer requests than that of
    all, and what priorities give to some they take from others, so that with equal targets classes may need more."""
    for seed in range(3):
        asked = load(seed)
        made = plan_of(asked)
        best = there(made.plan.best)
        alike = there(plan_of(replace(asked, trace=without_classes(asked.trace)), slos=strictest(PROMPTS)).plan.best)
        assert best.replicas <= alike.replicas
        report = there(report_of_pick(made))
        assert report.one_slo is not None
        assert all(own.breaks is None for own in report.classes)
        assert report.one_slo.replicas == alike.replicas
        assert report.one_slo.usd_per_month == pytest.approx(alike.usd_per_month)
        assert math.fsum(own.usd for own in report.bill) == pytest.approx(best.usd_per_month)


def test_one_replica_fewer_than_the_plan_breaks_a_class() -> None:
    made = plan_of(load())
    best = there(made.plan.best)
    assert best.replicas > 1
    placed = made.ranked_as(best).sized
    fewer = made.search.sought.on(placed.screened, best.replicas - 1)
    assert fewer.breaks is not None
    assert "of gold" in fewer.breaks or "of free" in fewer.breaks


def test_what_classes_may_turn_away_lowers_what_a_plan_must_answer() -> None:
    asked = load()
    free = float(np.mean(there(asked.trace.service) == 1))
    assert asked.least_rate == pytest.approx(asked.workload.rate * (1 - 0.05 * free))
    assert replace(asked, trace=without_classes(asked.trace)).least_rate == asked.workload.rate
