"""Batch work in a fleet's idle hours: against every fleet there is, and by hand."""

import math
from itertools import product

import numpy as np
import pytest
from tests.money.simple_offers import simple_offer

from tokonomics.catalog.engines import find_engine
from tokonomics.catalog.gpus import find_gpu
from tokonomics.catalog.load_models import find_model
from tokonomics.errors import BadInput
from tokonomics.fleet.design import BatchReport, batch_report
from tokonomics.fleet.layouts import FleetLayout
from tokonomics.fleet.offers import Machines
from tokonomics.fleet.traffic import FleetTraffic, parse_batch_work
from tokonomics.money import purchase_search
from tokonomics.money.purchase_search import optimal_fleet
from tokonomics.money.purchases import EVERY_SIZE, BatchWork, FleetLimits, FleetPlan, demand_of
from tokonomics.physics.deployment import deploy
from tokonomics.questions.fleet import batch_api
from tokonomics.serving.steady import ReplicaCurve
from tokonomics.traffic.trace import make_trace
from tokonomics.units import HOURS_PER_MONTH

EXACT = 0.0


def work(requests: float, start: int = 0, deadline: int = 24, tokens: int = 1) -> BatchWork:
    when = {"start_hour": start, "deadline_hours": deadline}
    return BatchWork(tokens_per_day=requests * tokens, requests_per_day=requests, **when)


def by_hand(rates: list[float], usd: float, reserved_usd: float | None, batch: BatchWork) -> float:
    """Machines of one request a second that start for nothing: every number of reserved ones, and then the fewest.

    Whatever the hours before the deadline lack after each hour has what it needs, a machine for an hour adds.
    """
    window = [(batch.start_hour + hour) % 24 for hour in range(batch.deadline_hours)]
    bills = []
    for base in range(1 if reserved_usd is None else 40):
        needed = np.maximum(0, np.ceil(np.array(rates) - 1e-9) - base)
        room = (needed + base - rates)[window].sum()
        added = max(0, math.ceil(batch.requests_per_day / 3600 - room - 1e-6))
        bills.append(base * 24 * (reserved_usd or 0.0) + (needed.sum() + added) * usd)
    return float(min(bills))


@pytest.mark.parametrize(
    ("requests", "start", "deadline"), [(1.0, 0, 24), (9.0, 0, 24), (15.0, 12, 12), (30.0, 6, 4), (21.5, 20, 8)]
)
@pytest.mark.parametrize("reserved", [None, 0.8])
def test_no_fleet_does_both_for_less(requests: float, start: int, deadline: int, reserved: float | None) -> None:
    rates = [1.7] * 12 + [0.4] * 12
    offer = simple_offer("one", 1.0, 2.0, reserved={} if reserved is None else {"3 years": reserved})
    batch = work(requests * 3600, start, deadline)
    plan = optimal_fleet([offer], demand_of(rates), gap=EXACT, batch=batch)
    assert plan.expected_usd == pytest.approx(by_hand(rates, 2.0, reserved, batch))
    placed, carried = np.array(plan.batch), np.array(plan.firm_capacity)
    window = [(start + hour) % 24 for hour in range(deadline)]
    assert placed[window].sum() * 3600 >= batch.requests_per_day * (1 - 1e-6)
    assert (placed + rates <= carried + 1e-6).all()


@pytest.mark.parametrize("requests", [0.3, 2.5, 6.1])
@pytest.mark.parametrize("startup_s", [0.0, 900.0, 7200.0])
def test_starts_are_weighed_against_idle_hours_as_by_trying_every_fleet(requests: float, startup_s: float) -> None:
    """A demand for one machine and a half, work of three hours, two kinds of machines: every fleet of those hours."""
    offers = [
        simple_offer("small", 1.0, 2.0, startup_s=startup_s),
        simple_offer("large", 2.0, 3.5, startup_s=startup_s),
    ]
    rates = [0.5] * 24
    batch = work(requests * 3600, start=10, deadline=3)
    bills = []
    # Outside the three hours nothing is gained by more than the one small machine, or the large one kept.
    for outside in ((1, 0), (0, 1)):
        for chosen in product(product(range(4), range(3)), repeat=3):
            small, large = (np.full(24, kept) for kept in outside)
            small[10:13], large[10:13] = zip(*chosen, strict=True)
            room = small + 2.0 * large - rates
            if (room < -1e-9).any() or room[10:13].sum() < requests - 1e-9:
                continue
            starts = [np.maximum(0, counts - np.roll(counts, 1)).sum() for counts in (small, large)]
            usd = 2.0 * small.sum() + 3.5 * large.sum() + (2.0 * starts[0] + 3.5 * starts[1]) * startup_s / 3600
            bills.append(float(usd))
    plan = optimal_fleet(offers, demand_of(rates), gap=EXACT, batch=batch)
    assert plan.expected_usd == pytest.approx(min(bills))


def test_work_that_fits_into_idle_hours_costs_nothing() -> None:
    offer = simple_offer("one", 1.0, None, reserved={"3 years": 0.8})
    rates = [2.0] * 8 + [0.5] * 16
    without = optimal_fleet([offer], demand_of(rates), gap=EXACT)
    room = 16 * 1.5 * 3600
    full = optimal_fleet([offer], demand_of(rates), gap=EXACT, batch=work(room))
    assert full.expected_usd == pytest.approx(without.expected_usd)
    more = optimal_fleet([offer], demand_of(rates), gap=EXACT, batch=work(room * 1.01))
    assert more.expected_usd == pytest.approx(without.expected_usd * 3 / 2)
    assert work(room * 2).free_shares(np.array(without.firm_capacity) - rates) == [pytest.approx(0.5)]


def test_what_is_left_is_bought_in_hours_before_the_deadline_only() -> None:
    offer, batch = simple_offer("one", 1.0, 2.0), work(3 * 3600, start=22, deadline=4)
    plan = optimal_fleet([offer], demand_of([1.0] * 48), gap=EXACT, batch=batch)
    allowed = {(22 + hour + day) % 48 for day in (0, 24) for hour in range(4)}
    assert {hour for hour, rate in enumerate(plan.batch) if rate > 1e-6} <= allowed
    assert plan.expected_usd == pytest.approx(2.0 * (48 + 6))


def test_a_program_in_parts_does_all_of_the_work_and_tells_its_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    offers = [simple_offer("small", 1.0, 2.0), simple_offer("large", 2.5, 4.5, reserved={"3 years": 2.2})]
    rates = (np.tile([3.2] * 10 + [0.7] * 14, 2)).tolist()
    batch = work(30 * 3600, start=8, deadline=20)
    at_once = optimal_fleet(offers, demand_of(rates), gap=1e-4, batch=batch)
    monkeypatch.setattr(purchase_search, "AT_ONCE", 0)
    in_parts = optimal_fleet(offers, demand_of(rates), gap=1e-4, batch=batch)
    assert at_once.expected_usd <= in_parts.expected_usd * (1 + 1e-4)
    assert in_parts.expected_usd * (1 - in_parts.gap) <= at_once.expected_usd * (1 + 1e-6)
    placed, carried = np.array(in_parts.batch), np.array(in_parts.firm_capacity)
    assert (placed + rates <= carried + 1e-6).all()
    for hours in batch.windows(48):
        assert placed[hours].sum() * 3600 >= batch.requests_per_day * (1 - 1e-6)


def test_batch_work_is_read_in_tokens_and_hours() -> None:
    read = parse_batch_work("2B,start=20h,deadline=10h", 1000.0)
    assert (read.tokens_per_day, read.requests_per_day) == (2e9, 2e6)
    assert read.windows(24)[0].tolist() == [20, 21, 22, 23, 0, 1, 2, 3, 4, 5]
    for wrong in ("", "soon", "2B,deadline=30h", "2B,deadline=0", "2B,start=90m", "2B,by=3h"):
        with pytest.raises(BadInput) as refused:
            parse_batch_work(wrong, 1000.0)
        assert refused.value.field == "batch_work"
    with pytest.raises(BadInput):
        read.windows(30)


LLAMA = find_model("llama-3.1-8b")
L40S = deploy(LLAMA, find_gpu("L40S"), find_engine("vllm"))
SAMPLE = make_trace(np.arange(100.0), np.full(100, 500), np.full(100, 50))
DAYS = HOURS_PER_MONTH / 24


def reported(requests: float) -> tuple[BatchReport, FleetPlan]:
    """Work beside one reserved machine, idle for twelve hours at a request a second; and its fleet without."""
    offer = simple_offer("one", 1.0, 2.0, reserved={"3 years": 0.5}, startup_s=0.0)
    machines = Machines((offer,), {}, {"one": FleetLayout(L40S, {})}, 10.0)
    demand = demand_of([1.0] * 12 + [0.0] * 12)
    online = optimal_fleet([offer], demand, gap=1e-6)
    traffic, limits = FleetTraffic(demand, {EVERY_SIZE: SAMPLE}, ()), FleetLimits()
    asked = {"gap": 1e-6, "time_limit_s": 10, "with_replay": False}
    return batch_report(work(requests, tokens=550), online, machines, traffic, (), limits, **asked), online  # type: ignore[arg-type]


def test_what_idle_hours_do_not_hold_may_stand_on_machines_of_its_own() -> None:
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
    day, soon = (batch_api(LLAMA, "llama-3.1-8b", SAMPLE, work(1000, deadline=hours, tokens=550)) for hours in (24, 6))
    assert day is not None
    assert soon is not None
    assert soon.usd_per_month >= day.usd_per_month
