"""What to commit to: the program equals trying everything, and closed forms where there is nothing uncertain."""

import itertools

import numpy as np
import pytest

from tokonomics.money.commitments import (
    NOTHING,
    Futures,
    Schedule,
    Term,
    best_schedule,
    by_rule,
    starts_of,
    with_foresight,
    worst_tenth,
)
from tokonomics.units import HOURS_PER_MONTH

MONTHS = 5
SHORT = Term(name="2 months", months=2, usd_per_hour=1.3)
LONG = Term(name="4 months", months=4, usd_per_hour=1.1)


def random_futures(seed: int, paths: int = 20, months: int = MONTHS) -> Futures:
    """Draw need between 0 and 3 machines in three kinds of hours, and a price that wanders about two dollars."""
    rng = np.random.default_rng(seed)
    machines = rng.integers(0, 4, size=(paths, months, 3))
    steps = rng.normal(0, 0.2, size=(paths, months))
    steps[:, 0] = 0
    return Futures(machines, np.array([0.5, 0.3, 0.2]) * HOURS_PER_MONTH, 2.0 * np.exp(np.cumsum(steps, axis=1)))


def bill_of(schedule: Schedule, futures: Futures, caution: float) -> float:
    bills = np.sort(schedule.bills(futures))
    tenth = len(bills) // 10 or 1
    return (1 - caution) * float(bills.mean()) + caution * float(bills[-tenth:].mean())


def least_by_trying_all(futures: Futures, terms: list[Term], caution: float, step: int = 1) -> float:
    """Return the least objective over every schedule that never reserves more than could ever be used."""
    choices = [(term, start) for term in terms for start in starts_of(term, futures.months, step)]
    most = int(futures.machines.max())
    return min(
        bill_of(Schedule(dict(zip(choices, numbers, strict=True))), futures, caution)
        for numbers in itertools.product(range(most + 1), repeat=len(choices))
    )


@pytest.mark.parametrize("caution", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("seed", range(4))
def test_the_program_equals_trying_every_schedule(seed: int, caution: float) -> None:
    futures = random_futures(seed)
    found = best_schedule(futures, [SHORT, LONG], caution=caution)
    least = least_by_trying_all(futures, [SHORT, LONG], caution)
    assert bill_of(found, futures, caution) == pytest.approx(least, rel=1e-6)


def test_steps_start_only_when_they_may() -> None:
    futures = random_futures(7, months=6)
    found = best_schedule(futures, [SHORT], step=2)
    assert {start for _, start in found.bought} <= {0, 2, 4}
    assert bill_of(found, futures, 0.0) == pytest.approx(least_by_trying_all(futures, [SHORT], 0.0, 2), rel=1e-9)


def test_perfect_foresight_equals_trying_every_schedule_on_each_path() -> None:
    futures = random_futures(11, paths=4)
    each = [least_by_trying_all(futures.path(number), [SHORT, LONG], 0.0) for number in range(4)]
    assert with_foresight(futures, [SHORT, LONG]) == pytest.approx(each, rel=1e-9)


def test_nobody_pays_less_than_with_foresight() -> None:
    futures = random_futures(3, paths=40)
    bound = with_foresight(futures, [SHORT, LONG])
    ways = [NOTHING, best_schedule(futures, [SHORT, LONG]), by_rule(futures, [SHORT, LONG], futures.path(0), 0.5)]
    for schedule in ways:
        assert np.all(schedule.bills(futures) >= bound - 1e-6)


@pytest.mark.parametrize("caution", [0.0, 1.0])
def test_a_commitment_above_the_price_on_demand_is_never_bought(caution: float) -> None:
    machines = np.full((10, 12, 1), 5)
    steady = Futures(machines, np.array([float(HOURS_PER_MONTH)]), np.full((10, 12), 2.0))
    assert best_schedule(steady, [Term(name="1 year", months=12, usd_per_hour=2.01)], caution=caution) == NOTHING


@pytest.mark.parametrize("ratio", [0.2, 0.35, 0.45, 0.7, 0.95])
def test_without_uncertainty_a_machine_is_reserved_if_it_is_busy_for_more_than_the_price_ratio(ratio: float) -> None:
    # Of a day's hours, so many need at least 1, 2, 3, 4 machines.
    machines = np.array([4, 3, 3, 2, 1, 1, 1, 1, 0, 0])
    busy = [(machines >= level).mean() for level in (1, 2, 3, 4)]
    known = Futures(
        np.broadcast_to(machines, (3, 12, 10)).copy(), np.full(10, HOURS_PER_MONTH / 10), np.full((3, 12), 2.0)
    )
    found = best_schedule(known, [Term(name="1 year", months=12, usd_per_hour=2.0 * ratio)])
    assert sum(found.bought.values()) == sum(share > ratio for share in busy)


def test_more_levels_than_the_program_has_steps_cost_almost_nothing() -> None:
    rng = np.random.default_rng(1)
    machines = rng.integers(0, 700, size=(1, 12, 50))
    futures = Futures(machines, np.full(50, HOURS_PER_MONTH / 50), np.full((1, 12), 2.0))
    term = Term(name="1 year", months=12, usd_per_hour=1.0)
    found = bill_of(best_schedule(futures, [term]), futures, 0.0)
    least = min(bill_of(Schedule({(term, 0): number}), futures, 0.0) for number in range(701))
    assert found == pytest.approx(least, rel=1e-3)


def test_the_worst_tenth_counts_a_path_in_part() -> None:
    # A tenth of 15 paths is one and a half.
    assert worst_tenth(np.arange(15.0)) == pytest.approx((14 + 0.5 * 13) / 1.5)
    assert worst_tenth(np.array([3.0])) == pytest.approx(3.0)


def test_rules_reserve_a_quantile_of_the_middle_path_and_renew_it() -> None:
    machines = np.repeat([[1, 5], [3, 9]], 12, axis=0)[None]
    futures = Futures(machines, np.array([0.6, 0.4]) * HOURS_PER_MONTH, np.full((1, 24), 2.0))
    year = Term(name="1 year", months=12, usd_per_hour=1.0)
    assert by_rule(futures, [year], futures, 0.5).bought == {(year, 0): 1, (year, 12): 3}
    assert by_rule(futures, [year], futures, 1.0).bought == {(year, 0): 5, (year, 12): 9}


def test_a_later_commitment_costs_what_the_path_costs_then() -> None:
    prices = np.array([[2.0] * 12 + [1.0] * 12])
    futures = Futures(np.ones((1, 24, 1), np.int64), np.array([float(HOURS_PER_MONTH)]), prices)
    year = Term(name="1 year", months=12, usd_per_hour=1.2)
    # On demand in the first year costs 2, reserved 1.2; from the second on half of either.
    bill = Schedule({(year, 0): 1, (year, 12): 1}).bills(futures)[0]
    assert bill == pytest.approx((1.2 + 0.6) * 12 * HOURS_PER_MONTH)


def test_more_caution_never_makes_the_worst_tenth_worse() -> None:
    futures = random_futures(5, paths=60)
    worst = [
        worst_tenth(best_schedule(futures, [SHORT, LONG], caution=caution).bills(futures)) for caution in (0, 0.5, 1)
    ]
    assert worst == sorted(worst, reverse=True)
