"""Selling tokens: revenue, margin, and the volume at which a fleet turns profitable."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.there import there

from tokonomics.errors import BadInput
from tokonomics.money.attribution import Sale, SellPrice, break_even, fleet_sale, sell_terms
from tokonomics.money.cost import split_by_gpu_time, with_cached


def test_cached_input_is_sold_at_its_own_price_or_as_input() -> None:
    """3 M tokens in, 1 M of them cached: $0.40 + $0.05 and, out, $0.80; without a price of its own $0.60 + $0.80."""
    terms = there(sell_terms("0.20/0.80/0.05", None))
    assert there(terms.price).revenue(3e6, 1e6, 1e6) == pytest.approx(1.25)
    for cached in (0, 1e6):
        assert SellPrice(input=0.20, output=0.80).revenue(3e6, 1e6, cached) == pytest.approx(1.40)


def test_a_mtok_sold_earns_and_costs_what_a_month_does() -> None:
    """One request a second of 1,000 and 500 tokens is 3,942 Mtok a month; $730 over them are $0.185 each."""
    sale = fleet_sale("m", SellPrice(input=1, output=2), 730.0, 1.0, (1000, 500), 0.6)
    assert sale.mtok.cost_usd == pytest.approx(730 / 3942)
    assert sale.mtok.revenue_usd == pytest.approx(2 / 1.5)
    assert sale.mtok.margin_share == pytest.approx(sale.month.margin_share)


def test_margin_is_profit_over_revenue() -> None:
    sale = Sale(revenue_usd=100, cost_usd=60)
    assert (sale.margin_usd, sale.margin_share, sale.break_even_share) == (40, 0.4, 0.6)


def test_nothing_sold_has_no_margin() -> None:
    sale = Sale(revenue_usd=0, cost_usd=60)
    assert (sale.margin_usd, sale.margin_share, sale.break_even_share) == (-60, None, None)


def test_a_fleet_of_a_dollar_an_hour_pays_where_its_requests_bring_a_dollar_an_hour() -> None:
    """$730 a month are $1 an hour. A request of 1,000 in and 500 out brings 1,000 × 1e-6 + 500 × 2e-6 = $0.002:
    500 an hour pay for it. At one a second, 3,600 an hour, it is loaded to 60 %: so 500 are 8.33 %."""
    sale = fleet_sale("m", SellPrice(input=1, output=2), 730.0, 1.0, (1000, 500), 0.6)
    assert sale.break_even_requests_per_s == pytest.approx(500 / 3600)
    assert sale.break_even_tokens_per_day == pytest.approx(500 * 24 * 1500)
    assert sale.break_even_load == pytest.approx(0.6 * 500 / 3600)
    assert sale.month.revenue_usd == pytest.approx(730 * 3600 * 0.002)


def test_a_sale_pays_at_cost_over_revenue_of_its_volume_and_load() -> None:
    """$60 of cost on $100 of revenue: at 60 % of 10 tokens a second, which are 864,000 a day, and of a load of half."""
    sale = Sale(revenue_usd=100, cost_usd=60)
    assert list(break_even(sale, 10.0, 0.5)) == pytest.approx([518_400, 0.3])
    assert break_even(sale, 10.0, None)[1] is None
    assert break_even(Sale(revenue_usd=0, cost_usd=60), 10.0, 0.5) == (None, None)


@given(
    margin=st.floats(0, 0.95), usd=st.floats(1e-6, 10), rate=st.floats(0.01, 1000), inputs=st.floats(1, 1e5),
    outputs=st.floats(1, 1e5), share=st.floats(0.01, 0.99), found=st.floats(0, 0.99), attending=st.floats(0, 1e-3),
)  # fmt: skip
def test_the_price_for_a_margin_gives_that_margin_whatever_is_cached(
    margin: float, usd: float, rate: float, inputs: float, outputs: float, share: float, found: float, attending: float
) -> None:
    cached = max(0.0, min(found * inputs, inputs - 1))
    cost = with_cached(split_by_gpu_time(usd, rate, inputs, outputs, share), inputs, cached, attending)
    terms = there(sell_terms(None, margin))
    price = terms.price_over(cost.input, cost.output, cost.cached)
    sale = fleet_sale("m", price, usd * 730 * 3600, rate, (inputs, outputs), 0.5, cached)
    assert sale.month.margin_share == pytest.approx(margin, abs=1e-9)
    assert sale.break_even_requests_per_s == pytest.approx((1 - margin) * rate)


@given(st.floats(0.01, 100), st.floats(0.01, 100), st.floats(1.01, 3))
def test_at_the_break_even_volume_profit_is_zero(input: float, output: float, cost: float) -> None:
    sale = fleet_sale("m", SellPrice(input=input, output=output), cost, 2.0, (700, 300), 0.5)
    assert sale.break_even_requests_per_s is not None
    at = fleet_sale("m", SellPrice(input=input, output=output), cost, sale.break_even_requests_per_s, (700, 300), 0.5)
    assert at.month.margin_usd == pytest.approx(0, abs=cost * 1e-9)


def test_one_price_is_for_input_and_output() -> None:
    terms = there(sell_terms("0.5", None))
    assert terms.price == SellPrice(input=0.5, output=0.5)


@pytest.mark.parametrize("text", ["", "free", "0.2/0.8/1/1", "-1/2", "nan", "0/0", "1e9", "0.2,0.8"])
def test_what_is_no_price_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match="is not a price"):
        sell_terms(text, None)


def test_a_price_and_a_margin_are_two_prices() -> None:
    with pytest.raises(BadInput, match="given twice"):
        sell_terms("0.2/0.8", 0.4)
