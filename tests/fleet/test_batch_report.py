"""Batch work beside a fleet: what idle hours do not hold may stand on machines in full batches, worked out by hand."""

import math

import numpy as np
import pytest
from tests.money.simple_offers import simple_offer

from tokonomics.catalog.engines import find_engine
from tokonomics.catalog.gpus import find_gpu
from tokonomics.catalog.load_models import find_model
from tokonomics.fleet.batch_report import BatchReport, batch_report
from tokonomics.fleet.layouts import FleetLayout
from tokonomics.fleet.offers import Machines
from tokonomics.fleet.traffic import FleetTraffic
from tokonomics.money.demand import EVERY_SIZE, BatchWork, demand_of
from tokonomics.money.purchase_search import optimal_fleet
from tokonomics.money.purchases import FleetLimits, FleetPlan
from tokonomics.physics.deployment import deploy
from tokonomics.questions.fleet import batch_api
from tokonomics.serving.steady import ReplicaCurve
from tokonomics.traffic.trace import make_trace
from tokonomics.units import HOURS_PER_MONTH

LLAMA = find_model("llama-3.1-8b")
L40S = deploy(LLAMA, find_gpu("L40S"), find_engine("vllm"))
SAMPLE = make_trace(np.arange(100.0), np.full(100, 500), np.full(100, 50))
DAYS = HOURS_PER_MONTH / 24


def work(requests: float, deadline_hours: int = 24) -> BatchWork:
    return BatchWork(tokens_per_day=requests * 550, requests_per_day=requests, deadline_hours=deadline_hours)


def reported(requests: float) -> tuple[BatchReport, FleetPlan]:
    """Work beside one reserved machine, idle for twelve hours at a request a second; and its fleet without."""
    offer = simple_offer("one", 1.0, 2.0, reserved={"3 years": 0.5}, startup_s=0.0)
    machines = Machines((offer,), {}, {"one": FleetLayout(L40S, {})}, 10.0)
    demand = demand_of([1.0] * 12 + [0.0] * 12)
    online = optimal_fleet([offer], demand, gap=1e-6)
    traffic, limits = FleetTraffic(demand, {EVERY_SIZE: SAMPLE}, ()), FleetLimits()
    asked = {"gap": 1e-6, "time_limit_s": 10, "with_replay": False}
    return batch_report(work(requests), online, machines, traffic, (), limits, **asked), online  # type: ignore[arg-type]


def test_what_idle_hours_do_not_hold_may_stand_on_machines_of_its_own() -> None:
    """Twice as much as the idle hours hold."""
    report, online = reported(24 * 3600)
    usd = {way.name: way.usd_per_month for way in report.ways}
    full = max(1.0, ReplicaCurve(L40S, 500, 50).capacity().rate)

    def hours(requests: float) -> int:
        return math.ceil(requests / full / 3600)

    assert report.free_share == pytest.approx(0.5)
    assert hours(24 * 3600) <= 6  # so few that hours on demand cost less than a machine reserved
    assert usd["a fleet of its own"] == pytest.approx(2.0 * hours(24 * 3600) * DAYS)
    assert usd["idle hours, then a fleet of its own"] == pytest.approx(2.0 * hours(12 * 3600) * DAYS)
    assert report.ways[0].name == "idle hours, then a fleet of its own"
    # Both cost what the reserved machine and those hours do: less than any one fleet at a request a second a machine.
    assert report.usd_per_month == pytest.approx(0.5 * HOURS_PER_MONTH + 2.0 * hours(12 * 3600) * DAYS)
    assert report.usd_per_month < online.usd_per_month + usd["beside the fleet's own traffic"]
    assert report.own is not None
    assert sum(report.plan.batch) * 3600 == pytest.approx(12 * 3600)
    assert not any(report.plan.batch[:12])


def test_one_fleet_is_the_answer_where_its_idle_hours_hold_all_of_the_work() -> None:
    report, _ = reported(6 * 3600)
    assert report.own is None
    assert report.usd_per_month == pytest.approx(0.5 * HOURS_PER_MONTH)


def test_a_host_asks_its_batch_price_or_its_list_price_and_never_an_assumed_one() -> None:
    day, soon = (batch_api(LLAMA, "llama-3.1-8b", SAMPLE, work(1000, hours)) for hours in (24, 6))
    assert day is not None
    assert soon is not None
    assert soon.usd_per_month >= day.usd_per_month
