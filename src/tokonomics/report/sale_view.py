"""Selling tokens: the verdict in a line, and a row of revenue, cost and margin."""

from tokonomics.money.sale import FleetSale, Sale, SellPrice
from tokonomics.report import blocks
from tokonomics.report.wording import NO_VALUE
from tokonomics.units import count, percent, requests_a_second, usd

SALE_COLUMNS = (">revenue", ">cost", ">profit", ">margin")


def sale_cells(sale: Sale) -> list[blocks.Pieces]:
    mood: blocks.Mood = "bad" if sale.margin_usd < 0 else ""
    profit = blocks.Span(signed_usd(sale.margin_usd), mood)
    return [usd(sale.revenue_usd), usd(sale.cost_usd), profit, blocks.Span(margin_text(sale), mood)]


def margin_text(sale: Sale) -> str:
    share = sale.margin_share
    return NO_VALUE if share is None else percent(share) if share >= 0 else f"−{percent(-share)}"


def signed_usd(amount: float) -> str:
    return usd(amount) if amount >= 0 else f"−{usd(-amount)}"


def price_text(price: SellPrice) -> str:
    return f"{usd(price.input)} per Mtok of input, {usd(price.output)} of output"


def verdict(sale: Sale, over: str) -> blocks.Line:
    """Profit or loss, in a line."""
    money = f"{usd(abs(sale.margin_usd))} {over}"
    if sale.margin_usd >= 0:
        return blocks.line(blocks.Span(f"Profit of {money}", "best"), f", a margin of {margin_text(sale)}")
    return blocks.line(blocks.Span(f"Loss of {money}", "worst"), f": {usd(sale.revenue_usd)} earned")


def fleet_sale_facts(sale: FleetSale) -> list[blocks.Fact]:
    """Of a plan's pick: price, profit, and the volume from which on it pays."""
    month, load = sale.month, sale.break_even_load
    mood: blocks.Mood = "worst" if month.margin_usd < 0 else "best"
    margin = f"a month: {usd(month.revenue_usd)} revenue, margin {margin_text(month)}"
    facts = [
        blocks.fact(
            "sold at", f"{usd(sale.usd_per_mtok.input)} / {usd(sale.usd_per_mtok.output)}", "per Mtok in / out"
        ),
        blocks.fact(
            "profit", blocks.Span(signed_usd(month.margin_usd), mood), margin, number=month.margin_usd, less="worse"
        ),
    ]
    if sale.break_even_requests_per_s is None or sale.break_even_tokens_per_day is None or load is None:
        return facts
    tokens = f"{count(sale.break_even_tokens_per_day)} tokens a day"
    full = f"load {percent(load)} of capacity" if load <= 1 else "more than this fleet can do: the price is too low"
    value = requests_a_second(f"{sale.break_even_requests_per_s:.3g}")
    return [*facts, blocks.fact("profitable from", value, f"{tokens}, {full}", number=sale.break_even_requests_per_s)]
