"""What to commit to: the program equals trying everything, and closed forms where there is nothing uncertain."""

import calendar
import datetime as dt
import itertools
import math
from collections.abc import Iterable, Iterator

import numpy as np
import pytest

from tokonomics.catalog import price_index
from tokonomics.catalog.offers import Terms
from tokonomics.catalog.price_index import MonthlyPrice, price_history, price_move
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
from tokonomics.money.price_paths import OWN_MONTHS, PriceMoves, drawn_prices, price_moves
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


# --- how GPU prices moved, and the paths drawn from it ----------------------------------------------------------------


def month_end(number: int) -> dt.date:
    year, month = 2023 + number // 12, number % 12 + 1
    return dt.date(year, month, calendar.monthrange(year, month)[1])


def listed(month: int, usd: float, provider: str = "one", name: str = "x", dead: bool = False) -> MonthlyPrice:
    end = month_end(month)
    return MonthlyPrice(
        month_end=end,
        list_last_changed=end - dt.timedelta(days=100 if dead else 1),
        provider=provider,
        name=name,
        gpu="H100-SXM",
        terms=Terms.on_demand,
        min_usd_per_gpu_hour=usd,
        median_usd_per_gpu_hour=usd,
    )


@pytest.fixture
def history(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[MonthlyPrice]]:
    rows: list[MonthlyPrice] = []
    monkeypatch.setattr(price_index, "price_history", lambda: tuple(rows))
    price_moves.cache_clear()
    yield rows
    price_moves.cache_clear()


def steady(months: Iterable[int], *providers: str) -> list[MonthlyPrice]:
    return [listed(month, 3.0, provider) for month in months for provider in providers]


def test_a_marketplace_is_not_followed(history: list[MonthlyPrice]) -> None:
    history += [*steady(range(2), "two", "three"), listed(0, 2.0, "vast"), listed(1, 1.0001, "vast")]
    assert not len(price_moves("H100-SXM").moves)


@pytest.mark.parametrize("gpu", ["H100-SXM", "A100-80GB", "L4", "B300"])
@pytest.mark.parametrize("since", [dt.date(2024, 2, 20), dt.date(2025, 9, 1), dt.date(2026, 7, 31)])
def test_the_months_are_the_links_of_the_price_index(gpu: str, since: dt.date) -> None:
    """Whoever reads how prices moved since a quote gets the sum of the moves that paths are drawn from."""
    moves, found = price_moves(gpu), price_move(gpu, since)
    assert found is not None
    if found.gpus == moves.of:
        summed = sum(move for month, move in zip(moves.months, moves.moves, strict=True) if month > found.since)
        assert found.ratio == pytest.approx(math.exp(summed))
    else:
        assert len(moves.moves) >= OWN_MONTHS  # an index of few months is narrower


def test_no_later_row_changes_what_was_known() -> None:
    """A gap that a later month closes was still open then: what is not yet known may not show in a back-test."""
    until = dt.date(2025, 6, 30)
    known = [row for row in price_history() if row.month_end <= until]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(price_index, "price_history", lambda: tuple(known))
        price_moves.cache_clear()
        alone = price_moves("H100-SXM")
    price_moves.cache_clear()
    cut = price_moves("H100-SXM", until)
    assert (cut.of, cut.months, cut.moves.tolist()) == (alone.of, alone.months, alone.moves.tolist())


def test_later_months_are_hidden() -> None:
    until = dt.date(2024, 12, 31)
    assert max(price_moves("A100-80GB", until).months) <= until
    assert len(price_moves("A100-80GB", until).moves) < len(price_moves("A100-80GB").moves)


def test_what_two_sellers_do_is_no_move_of_the_market_and_ends_the_history(history: list[MonthlyPrice]) -> None:
    history += [*steady(range(5), "two"), *steady((0, 1, 3, 4), "three"), *(listed(month, 2.0) for month in range(5))]
    assert price_moves("H100-SXM").months == (month_end(1), month_end(2), month_end(3), month_end(4))
    dead_for_long = [*steady(range(8), "two", "four"), *steady((0, 1, 6, 7), "three")]
    history[:] = dead_for_long
    price_moves.cache_clear()
    assert price_moves("H100-SXM").months == (month_end(7),)


def test_a_gpu_with_few_months_gets_the_moves_of_its_architecture_or_of_all() -> None:
    assert price_moves("H100-SXM").of == "H100-SXM"
    assert price_moves("H200").of == "hopper GPUs"
    assert price_moves("B300").of == "all GPUs"
    assert len(price_moves("B300").moves) >= OWN_MONTHS


def test_awss_cut_of_june_2025_is_in_the_history() -> None:
    """AWS announced up to 45 % off its P5 instances from June 2025: it is one of several sellers of that month."""
    moves = price_moves("H100-SXM")
    june = moves.moves[moves.months.index(dt.date(2025, 6, 30))]
    lists = [row for row in price_history() if (row.provider, row.name, row.terms) == ("aws", "H100", Terms.on_demand)]
    by_month = {row.month_end: row.min_usd_per_gpu_hour for row in lists}
    cut = math.log(by_month[dt.date(2025, 6, 30)] / by_month[dt.date(2025, 5, 31)])
    assert cut == pytest.approx(math.log(0.56), abs=0.01)
    assert cut < june < 0


def test_paths_are_blocks_of_the_history_in_its_order() -> None:
    moves = PriceMoves("x", (), np.arange(1, 28) / 100.0)  # 27 months: blocks of three
    paths = drawn_prices(moves, 7, 50, np.random.default_rng(0))
    assert paths.shape == (50, 7)
    assert np.all(paths[:, 0] == 1.0)
    steps = np.rint(np.diff(np.log(paths), axis=1) * 100).astype(int)
    for block in (steps[:, :3], steps[:, 3:]):
        following = np.where(block[:, :-1] == 27, 1, block[:, :-1] + 1)  # the last month is followed by the first
        assert np.array_equal(block[:, 1:], following)


def test_paths_keep_the_mean_move_and_repeat_with_the_seed() -> None:
    moves = price_moves("H100-SXM")
    first, again, other = (drawn_prices(moves, 25, 4000, np.random.default_rng(seed)) for seed in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    error = np.std(np.log(first[:, -1])) / math.sqrt(4000)
    assert np.log(first[:, -1]).mean() == pytest.approx(24 * moves.moves.mean(), abs=4 * float(error))
