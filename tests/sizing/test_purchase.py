"""What is bought on mixed terms: as cheap as the solver's gap says, whatever the clock does meanwhile."""

import time
from dataclasses import replace

import numpy as np
import pytest
from tests.deployed import on
from tests.planner.small_catalogue import SLOS, TODAY, offer

from tokonomics.money.purchase_search import GAP
from tokonomics.sizing.attempt import Sized
from tokonomics.sizing.buy import Bought, buy
from tokonomics.sizing.load import load_of_shape
from tokonomics.sizing.search import size
from tokonomics.sizing.setup import Setup

A100 = on(gpu="A100-80GB")
OFFERS = (
    offer("A100-80GB", 1, 2.0, reserved_1yr_usd_per_hour=1.5, spot_usd_per_hour=0.8),
    offer("A100-80GB", 8, 15.0, reserved_1yr_usd_per_hour=10.0),
)
HERE = Setup(A100, load_of_shape(5, "const:1000", "const:100"), OFFERS, TODAY, SLOS, commit=True)
HOURS = 24


def by_day() -> Sized:
    """Two replicas at night and ten in twelve busy hours."""
    made = size(replace(HERE, commit=False))
    assert isinstance(made, Sized)
    counts = np.where(np.arange(HOURS) < 12, 2.0, 10.0)
    rows = np.stack([np.arange(HOURS) * 3600.0, counts], axis=1)
    return replace(made, replicas=10, by_time=rows, span_s=HOURS * 3600.0)


def test_the_bill_is_within_its_gap_of_the_least_by_hand() -> None:
    """Always needed: two, reserved alone at 1.50. Half of the day eight more: on demand 8 × 2 × 12 h or reserved."""
    made = buy(HERE, by_day())
    assert isinstance(made, Bought)
    ways = [2 * 1.5 * 24 + min(8 * 2.0 * 12, 15.0 * 12), 10.0 * 24 + 2 * 2.0 * 12, 10 * 1.5 * 24]
    assert 0 <= made.gap <= GAP
    assert made.usd_per_month <= min(ways) / 24 * 730 * (1 + GAP)


def test_machines_of_one_name_can_be_committed_to() -> None:
    apart = buy(HERE, by_day())
    same = buy(replace(HERE, offers=tuple(each.model_copy(update={"instance": "box"}) for each in OFFERS)), by_day())
    assert isinstance(apart, Bought)
    assert isinstance(same, Bought)
    assert same.usd_per_month == apart.usd_per_month
    assert [each.gpus for each in same.offers] == [each.gpus for each in apart.offers]


def test_more_hours_than_the_program_takes_are_bought_on_demand() -> None:
    """Five weeks that come and go: no commitment is worked out for them, and the bill is that without one."""
    weeks = by_day()
    times = np.arange(0.0, 5 * 168) * 3600.0
    long = replace(
        weeks, by_time=np.stack([times, 2.0 + 8 * (times // 3600 % 24 >= 12)], axis=1), span_s=5 * 168 * 3600.0
    )
    assert buy(HERE, long) == buy(replace(HERE, commit=False), long)


def test_a_slow_clock_changes_no_bill(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a busy computer: every look at the clock finds another half second gone."""
    calm = buy(HERE, by_day())
    now = iter(np.arange(0.0, 1e6, 0.5))
    monkeypatch.setattr(time, "perf_counter", lambda: float(next(now)))
    assert buy(HERE, by_day()) == calm
