"""The cost equation, shown with its terms."""

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from tokonomics.money.cost import Cost, LoadCost, Needed, TokenPrices
from tokonomics.report.tables import pairs, table
from tokonomics.units import HOURS_PER_MONTH, SECONDS_PER_HOUR, TOKENS_PER_MTOK, count, percent, plural, usd


def cost_view(
    cost: Cost, *, gpus: int, price_note: str, price_rule: str | None = None, usd_per_request: float | None = None
) -> RenderableType:
    """The price per Mtok, the equation it comes from, and the other forms people ask for."""
    each = cost.usd_per_hour / gpus
    equation = (
        f"= {usd(each)}/h × {plural(gpus, 'GPU')} ÷ ({cost.tokens_per_second:,.0f} tok/s × "
        f"{percent(cost.utilization)} × {SECONDS_PER_HOUR} s) × {TOKENS_PER_MTOK:,}"
    )
    rows: list[tuple[str, str | Text, str]] = [
        ("per million tokens", usd(cost.usd_per_mtok), "reservation: the whole bill, idle time included"),
        ("", usd(cost.usd_per_mtok_usage), "usage: the busy share only, as if at 100 % utilisation"),
        ("per token", f"${cost.usd_per_token:.3g}", ""),
        ("tokens per dollar", count(cost.tokens_per_usd), ""),
        ("tokens a month", count(cost.tokens_per_month), f"{HOURS_PER_MONTH} hours"),
        ("bill a month", usd(cost.usd_per_month), price_note),
    ]
    if usd_per_request is not None:
        rows.insert(3, ("per request", f"${usd_per_request:.3g}", "at the blended price"))
    headline = Text.assemble(
        (usd(cost.usd_per_mtok), "bold green"),
        f" per million tokens at {percent(cost.utilization)} utilisation (in and out alike, as tok/s counts them)",
    )
    rule = ("", Text(price_rule, style="dim")) if price_rule else ()
    return Group(headline, Text(equation, style="dim"), "", pairs(rows), *rule)


def loads_view(loads: Sequence[LoadCost], gpus: int) -> RenderableType:
    """Load profiles side by side: the hour costs the same whether it works or waits."""
    fleet = plural(gpus, "GPU")
    rows = [
        (
            load.load,
            percent(load.mean_utilization),
            usd(load.usd_per_mtok),
            usd(load.working_usd),
            usd(load.idle_usd),
            str(load.gpus_for_peak),
            usd(load.usd_per_mtok_for_peak),
        )
        for load in loads
    ]
    columns = ["!load (hours × utilisation)", ">mean util.", f">$/Mtok on {fleet}", ">working $", ">idle $"]
    columns += [">peak GPUs", ">$/Mtok on those"]
    note = (
        "On one fleet only the mean counts. A burst needs the GPUs of its peak all day; the same tokens spread out "
        "need fewer."
    )
    return Group(table(columns, rows), "", Text(note, style="dim"))


def target_view(needed: Needed) -> RenderableType:
    """What each term would have to be, the others kept."""
    out_of_reach = " (out of reach)" if needed.utilization > 1 else ""
    return table(
        [f"to reach {usd(needed.usd_per_mtok)} per Mtok", ">needs"],
        [
            ("speed, at this utilisation and price", f"{needed.tokens_per_second:,.0f} tok/s"),
            ("utilisation, at this speed and price", f"{percent(needed.utilization)}{out_of_reach}"),
            ("price, at this speed and utilisation", f"{usd(needed.usd_per_hour)} a GPU-hour"),
        ],
    )


def prices_text(prices: TokenPrices) -> str:
    return f"{usd(prices.input)} input, {usd(prices.output)} output, {usd(prices.blended)} blended"
