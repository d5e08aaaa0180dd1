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
    cached = "" if price.cached is None else f", {usd(price.cached)} of cached input"
    return f"{usd(price.input)} per Mtok of input, {usd(price.output)} of output{cached}"


def verdict(sale: Sale, over: str) -> blocks.Line:
    """Profit or loss, in a line."""
    money = f"{usd(abs(sale.margin_usd))} {over}"
    if sale.margin_usd >= 0:
        return blocks.line(blocks.Span(f"Profit of {money}", "best"), f", a margin of {margin_text(sale)}")
    return blocks.line(blocks.Span(f"Loss of {money}", "worst"), f": {usd(sale.revenue_usd)} earned")


def fleet_sale_facts(sale: FleetSale) -> list[blocks.Fact]:
    """Of a plan's pick: price, revenue, profit, margin, and the volume from which on it pays."""
    month, mtok, price, load = sale.month, sale.mtok, sale.usd_per_mtok, sale.break_even_load
    mood: blocks.Mood = "worst" if month.margin_usd < 0 else "best"
    kinds = [price.input, price.output, *([] if price.cached is None else [price.cached])]
    named = "per Mtok in / out" if price.cached is None else "per Mtok in / out / cached in"
    cost = f"a month, {signed_usd(mtok.margin_usd)} per Mtok: revenue less the bill of {usd(month.cost_usd)}"
    facts = [
        blocks.fact("sold at", " / ".join(map(usd, kinds)), named),
        blocks.fact(
            "revenue", usd(month.revenue_usd), f"a month, {usd(mtok.revenue_usd)} per Mtok of all tokens",
            number=month.revenue_usd, less="worse",
        ),
        blocks.fact(
            "profit", blocks.Span(signed_usd(month.margin_usd), mood), cost, number=month.margin_usd, less="worse"
        ),
        blocks.fact(
            "margin", blocks.Span(margin_text(month), mood), "profit over revenue", number=month.margin_share,
            less="worse",
        ),
    ]  # fmt: skip
    if sale.break_even_requests_per_s is None or sale.break_even_tokens_per_day is None or load is None:
        return facts
    tokens = f"{count(sale.break_even_tokens_per_day)} tokens a day"
    full = f"load {percent(load)} of capacity" if load <= 1 else "more than this fleet can do: the price is too low"
    value = requests_a_second(f"{sale.break_even_requests_per_s:.3g}")
    return [*facts, blocks.fact("profitable from", value, f"{tokens}, {full}", number=sale.break_even_requests_per_s)]
