"""How GPU prices moved, and the paths drawn from it."""

import calendar
import datetime as dt
import math
from collections.abc import Iterable, Iterator

import numpy as np
import pytest

from tokonomics.catalog import price_index
from tokonomics.catalog.offers import Terms
from tokonomics.catalog.price_history import MonthlyPrice, price_history
from tokonomics.catalog.price_index import price_move
from tokonomics.money.price_paths import OWN_MONTHS, PriceMoves, drawn_prices, price_moves


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


def test_a_move_is_the_mean_over_sellers_not_over_lists(history: list[MonthlyPrice]) -> None:
    history += [listed(0, 2.0), listed(0, 2.0, name="y"), *steady(range(2), "two", "three")]
    history += [listed(1, 1.8), listed(1, 1.8, name="y")]
    (move,) = price_moves("H100-SXM").moves
    assert move == pytest.approx((math.log(0.9) + 0.0 + 0.0) / 3)


def test_a_list_is_followed_over_the_months_in_which_nobody_kept_it_up(history: list[MonthlyPrice]) -> None:
    history += [*steady(range(3), "two", "three"), listed(0, 2.0), listed(1, 9.0, dead=True), listed(2, 1.5)]
    moves = price_moves("H100-SXM")
    assert moves.months == (month_end(1), month_end(2))
    assert moves.moves == pytest.approx([0.0, math.log(0.75) / 3])


def test_another_product_under_the_same_name_is_no_move(history: list[MonthlyPrice]) -> None:
    history += steady(range(3), "two", "three", "four")
    history += [listed(0, 1.0), listed(1, 2.1), listed(2, 2.1 * 1.9)]
    assert price_moves("H100-SXM").moves == pytest.approx([0.0, math.log(1.9) / 4])


def test_what_two_sellers_do_is_no_move_of_the_market_and_ends_the_history(history: list[MonthlyPrice]) -> None:
    history += [*steady(range(5), "two"), *steady((0, 1, 3, 4), "three"), *(listed(month, 2.0) for month in range(5))]
    assert price_moves("H100-SXM").months == (month_end(1), month_end(2), month_end(3), month_end(4))
    dead_for_long = [*steady(range(8), "two", "four"), *steady((0, 1, 6, 7), "three")]
    history[:] = dead_for_long
    price_moves.cache_clear()
    assert price_moves("H100-SXM").months == (month_end(7),)


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
