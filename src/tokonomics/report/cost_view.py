"""The cost equation, shown with its terms."""

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from tokonomics.money.cost import Cost, CostTree, Needed, TokenPrices
from tokonomics.report.tables import pairs, table
from tokonomics.units import count, percent, usd


def cost_view(cost: Cost, *, gpus: int, price_note: str, usd_per_request: float | None = None) -> RenderableType:
    """The price per Mtok, the equation it comes from, and the other forms people ask for."""
    each = cost.usd_per_hour / gpus
    equation = (
        f"= {usd(each)}/h × {gpus} GPU{'s' * (gpus > 1)} ÷ "
        f"({cost.tokens_per_second:,.0f} tok/s × {percent(cost.utilization)} × 3600 s) × 1,000,000"
    )
    rows: list[tuple[str, str | Text, str]] = [
        ("per million tokens", usd(cost.usd_per_mtok), "reservation: the whole bill, idle time included"),
        ("", usd(cost.usd_per_mtok_usage), "usage: the busy share only, as if at 100 % utilisation"),
        ("per token", f"${cost.usd_per_token:.3g}", ""),
        ("tokens per dollar", count(cost.tokens_per_usd), ""),
        ("tokens a month", count(cost.tokens_per_month), "730 hours"),
        ("bill a month", usd(cost.usd_per_month), price_note),
    ]
    if usd_per_request is not None:
        rows.insert(3, ("per request", f"${usd_per_request:.3g}", "at the blended price"))
    headline = Text.assemble(
        (usd(cost.usd_per_mtok), "bold green"), f" per million tokens at {percent(cost.utilization)} utilisation"
    )
    return Group(headline, Text(equation, style="dim"), "", pairs(rows))


def loads_view(rows: Sequence[tuple[str, Cost, CostTree]]) -> RenderableType:
    """Load profiles side by side: the hourly price is the same, the tokens are not."""
    cheapest = min(cost.usd_per_mtok for _, cost, _ in rows)
    return table(
        ["load (hours × utilisation)", ">mean util.", ">$/Mtok", ">against the best", ">working $", ">idle $"],
        [
            (
                name,
                percent(cost.utilization),
                usd(cost.usd_per_mtok),
                f"{cost.usd_per_mtok / cheapest:.2f}×",
                usd(tree.lines[0].usd),
                usd(tree.lines[1].usd),
            )
            for name, cost, tree in rows
        ],
    )


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
