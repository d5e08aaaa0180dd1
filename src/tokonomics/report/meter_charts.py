"""A bill over time: dollars of each day or hour by what they paid for, and the price of a million tokens."""

from typing import TYPE_CHECKING, cast

from tokonomics.measure.meter.bill import Bill
from tokonomics.units import usd

if TYPE_CHECKING:
    import altair as alt

_PARTS = {
    "busy": ("busy_usd", "#3b6fb6"),
    "idle": ("idle_usd", "#d9d3c7"),
    "server away": ("gap_usd", "#c0504d"),
    "meter away": ("away_usd", "#9b8bb4"),
}


def bill_over_time(made: Bill, over: str) -> "alt.VConcatChart":
    """``made`` is by day or hour alone."""
    import altair as alt

    dollars = [
        {"at": line.group[0], "part": part, "usd": getattr(line.sums, name), "order": order}
        for line in made.lines
        for order, (part, (name, _)) in enumerate(_PARTS.items())
    ]
    # A time without tokens has no price: the line breaks there.
    prices = [
        {"at": line.group[0], "$/Mtok": value, "basis": basis}
        for line in made.lines
        for basis, value in (
            ("every paid hour", line.sums.usd_per_mtok),
            ("busy time alone", line.sums.usd_per_mtok_usage),
        )
    ]
    each = [line.group[0] for line in made.lines]
    shown = alt.Axis(labelAngle=-40 if len(each) > 6 else 0, labelOverlap=True, title=None)
    hidden = alt.Axis(labels=False, ticks=False, title=None)
    above, below = (alt.X("at:O", axis=axis, scale=alt.Scale(domain=each)) for axis in (hidden, shown))
    bars = (
        alt.Chart(alt.InlineData(values=dollars))
        .mark_bar()
        .encode(
            x=above,
            y=alt.Y("usd:Q", title=f"dollars each {over}", stack="zero", axis=alt.Axis(format="$,.4~f")),
            color=alt.Color(
                "part:N",
                title="paid for",
                scale=alt.Scale(domain=list(_PARTS), range=[colour for _, colour in _PARTS.values()]),
                legend=alt.Legend(orient="right"),
            ),
            order="order:Q",
            tooltip=["at:O", "part:N", alt.Tooltip("usd:Q", format="$,.4f")],
        )
    )
    lines = (
        alt.Chart(alt.InlineData(values=prices))
        .mark_line(point=True)
        .encode(
            x=below,
            y=alt.Y("$/Mtok:Q", title="dollars per million tokens", axis=alt.Axis(format="$,.4~f")),
            color=alt.Color(
                "basis:N",
                title="over",
                scale=alt.Scale(domain=["every paid hour", "busy time alone"], range=["#222222", "#5aa9a4"]),
                legend=alt.Legend(orient="right"),
            ),
            tooltip=["at:O", "basis:N", alt.Tooltip("$/Mtok:Q", format="$,.4f")],
        )
    )
    total = made.total
    price = f"{usd(total.usd_per_mtok)} per million tokens" if total.usd_per_mtok is not None else "no tokens"
    title = alt.TitleParams(
        f"{usd(total.usd)} paid: {price}",
        subtitle="input and output tokens; days and hours are UTC",
        anchor="start",
        fontSize=15,
        subtitleFontSize=12,
        offset=10,
    )
    panels = [each.properties(width=620, height=height) for each, height in ((bars, 220), (lines, 160))]
    chart = alt.vconcat(*panels, title=title, spacing=12).resolve_scale(color="independent").configure_view(stroke=None)
    return cast("alt.VConcatChart", chart)
