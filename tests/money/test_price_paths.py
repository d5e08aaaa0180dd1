"""How GPU prices moved, and the paths drawn from it."""

import datetime as dt
import math
from collections.abc import Iterator

import numpy as np
import pytest

from tokonomics.catalog.offers import Terms
from tokonomics.catalog.price_history import MonthlyPrice, price_history
from tokonomics.money import price_paths
from tokonomics.money.price_paths import OWN_MONTHS, PriceMoves, drawn_prices, price_moves


def month_end(number: int) -> dt.date:
    return dt.date(2023 + number // 12, number % 12 + 1, 28)


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
    monkeypatch.setattr(price_paths, "price_history", lambda: tuple(rows))
    price_paths._moves_of.cache_clear()
    yield rows
    price_paths._moves_of.cache_clear()


def test_a_move_is_the_mean_over_sellers_not_over_lists(history: list[MonthlyPrice]) -> None:
    history += [listed(0, 2.0), listed(0, 2.0, name="y"), listed(0, 4.0, "two")]
    history += [listed(1, 1.8), listed(1, 1.8, name="y"), listed(1, 4.0, "two")]
    (move,) = price_moves("H100-SXM").moves
    assert move == pytest.approx((math.log(0.9) + 0.0) / 2)


def test_a_list_is_followed_over_the_months_in_which_nobody_kept_it_up(history: list[MonthlyPrice]) -> None:
    history += [listed(0, 2.0), listed(1, 9.0, dead=True), listed(2, 1.5)]
    moves = price_moves("H100-SXM")
    assert moves.months == (month_end(2),)
    assert moves.moves == pytest.approx([math.log(0.75)])


def test_another_product_under_the_same_name_is_no_move(history: list[MonthlyPrice]) -> None:
    history += [listed(0, 1.0), listed(1, 2.1), listed(2, 2.1 * 1.9)]
    assert price_moves("H100-SXM").moves == pytest.approx([math.log(1.9)])


def test_later_months_are_hidden() -> None:
    until = dt.date(2024, 12, 31)
    assert max(price_moves("A100-80GB", until).months) <= until
    assert len(price_moves("A100-80GB", until).moves) < len(price_moves("A100-80GB").moves)


def test_a_gpu_with_few_months_gets_the_moves_of_all() -> None:
    assert price_moves("H100-SXM").of == "H100-SXM"
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
