"""A bill over time: dollars of each day or hour by what they paid for, and the price of a million tokens."""

import altair as alt

from tokonomics.measure.meter.state import Statement
from tokonomics.report.charts import style
from tokonomics.units import usd

_PARTS = {"busy": "busy_usd", "idle": "idle_usd", "server away": "gap_usd", "meter away": "away_usd"}
_PART_COLOURS = {"busy": style.BLUE, "idle": style.SAND, "server away": "#c0504d", "meter away": "#9b8bb4"}
_PRICES = {"every paid hour": "usd_per_mtok", "busy time alone": "usd_per_mtok_usage"}
_PRICE_COLOURS = {"every paid hour": "#222222", "busy time alone": style.GREEN}


def bill_over_time(bill: Statement, over: str) -> alt.TopLevelMixin:
    """``bill`` is by day or hour alone."""
    dollars = [
        {"at": line.group[0], "part": part, "usd": getattr(line.sums, name), "order": order}
        for line in bill.lines
        for order, (part, name) in enumerate(_PARTS.items())
    ]
    # A time without tokens has no price: the line breaks there.
    prices = [
        {"at": line.group[0], "$/Mtok": getattr(line.sums, name), "basis": basis}
        for line in bill.lines
        for basis, name in _PRICES.items()
    ]
    times = [line.group[0] for line in bill.lines]
    shown = alt.Axis(labelAngle=-40 if len(times) > 6 else 0, labelOverlap=True, title=None)
    hidden = alt.Axis(labels=False, ticks=False, title=None)
    above, below = (alt.X("at:O", axis=axis, scale=alt.Scale(domain=times)) for axis in (hidden, shown))
    beside: style.Settings = {"orient": "right", "direction": "vertical"}
    bars = (
        style.plot(dollars)
        .mark_bar()
        .encode(
            x=above,
            y=style.upwards("usd", f"dollars each {over}", format="$,.4~f").stack("zero"),
            color=style.colours("part", _PART_COLOURS, "paid for", **beside),
            order="order:Q",
            tooltip=style.tips("at", "part", usd="$,.4f"),
        )
    )
    lines = (
        style.plot(prices)
        .mark_line(point=True)
        .encode(
            x=below,
            y=style.upwards("$/Mtok", "dollars per million tokens", format="$,.4~f"),
            color=style.colours("basis", _PRICE_COLOURS, "over", **beside),
            tooltip=style.tips("at", "basis", **{"$/Mtok": "$,.4f"}),
        )
    )
    total = bill.total
    price = f"{usd(total.usd_per_mtok)} per million tokens" if total.usd_per_mtok is not None else "no tokens"
    panels = bars.properties(width=620, height=220), lines.properties(width=620, height=160)
    return style.whole(
        alt.vconcat(*panels, spacing=12).resolve_scale(color="independent"),
        f"{usd(total.usd)} paid: {price}",
        "input and output tokens; days and hours are UTC",
    )
