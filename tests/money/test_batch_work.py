"""Batch work in a fleet's idle hours: against every fleet there is, and by hand."""

import math
from itertools import product

import numpy as np
import pytest
from tests.money.simple_offers import simple_offer

from tokonomics.errors import BadInput
from tokonomics.fleet.traffic import parse_batch_work
from tokonomics.money import purchase_search
from tokonomics.money.demand import BatchWork, demand_of
from tokonomics.money.purchase_search import optimal_fleet

EXACT = 0.0


def work(requests_per_day: float, start: int = 0, deadline: int = 24) -> BatchWork:
    return BatchWork(
        tokens_per_day=requests_per_day, requests_per_day=requests_per_day, start_hour=start, deadline_hours=deadline
    )


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
