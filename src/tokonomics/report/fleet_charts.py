"""A fleet as a picture: what is bought, stacked by terms, above the demand it carries."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from tokonomics.catalog.offers import Terms
from tokonomics.money.fleet import FleetPurchase
from tokonomics.planner.fleet import FleetReport
from tokonomics.units import count, percent, usd

if TYPE_CHECKING:
    import altair as alt

_SHADES = {
    Terms.reserved: ("#5b86c2", "#86a8d8", "#aec6e8", "#cfdef2"),
    Terms.on_demand: ("#4ea29a", "#7bbfb8", "#a5d4cf", "#cbe7e4"),
    Terms.spot: ("#e5a24f", "#edbb7c", "#f4d2a6", "#f9e5cc"),
}
TERMS = {Terms.reserved: "reserved", Terms.on_demand: "on demand", Terms.spot: "spot"}
_DEMAND = "#1d1d1f"
_WIDTH, _HEIGHT = 760, 320
_MOST_SERIES = 10
"""More would be a list, not a legend: the smallest go together by terms."""


def in_order(purchases: Sequence[FleetPurchase]) -> list[FleetPurchase]:
    """Commitments first, spot last; within the same terms the larger bill first."""
    return sorted(purchases, key=lambda purchase: (list(TERMS).index(purchase.terms), -purchase.usd))


def fleet_chart(report: FleetReport) -> "alt.LayerChart":
    """Capacity by purchase over the horizon, the demand as a line."""
    import altair as alt

    plan = report.plan
    names, colours, rows = _series(report)
    demand = [{"hour": hour, "requests/s": rate} for hour, rate in enumerate([*plan.demand, plan.demand[-1]])]
    x = alt.X("hour:Q", title=None, axis=_axis(plan.hours), scale=alt.Scale(domain=[0, plan.hours], nice=False))
    areas = (
        alt.Chart(alt.InlineData(values=rows))
        .mark_area(interpolate="step-after", line=False)
        .encode(
            x=x,
            y=alt.Y("capacity:Q", stack="zero", title="requests per second", axis=alt.Axis(tickCount=6, grid=True)),
            color=alt.Color(
                "what:N",
                title=None,
                scale=alt.Scale(domain=names, range=colours),
                legend=alt.Legend(orient="bottom", columns=2, labelLimit=380, symbolType="square"),
            ),
            order=alt.Order("order:Q"),
            tooltip=["what:N", "hour:Q", "machines:Q", alt.Tooltip("capacity:Q", format=".3~s")],
        )
    )
    curve = alt.Chart(alt.InlineData(values=demand)).encode(x=x, y="requests/s:Q")
    # A white edge keeps the line apart from the colours behind it.
    edge = curve.mark_line(interpolate="step-after", color="white", strokeWidth=4.5, opacity=0.8)
    line = curve.mark_line(interpolate="step-after", color=_DEMAND, strokeWidth=2)
    peak = max(range(plan.hours), key=lambda hour: plan.demand[hour])
    at_left = peak > plan.hours * 0.8
    label = (
        alt.Chart(alt.InlineData(values=[{"hour": peak, "requests/s": plan.demand[peak], "text": "demand"}]))
        .mark_text(
            align="right" if at_left else "left", dx=-6 if at_left else 10, dy=-9, fontWeight="bold", color=_DEMAND
        )
        .encode(x="hour:Q", y="requests/s:Q", text="text:N")
    )
    best = min((comparison.usd_per_month for comparison in plan.comparisons if comparison.usd_per_month), default=None)
    saves = f", {percent(1 - plan.usd_per_month / best)} below the best simple way to buy" if best else ""
    title = alt.TitleParams(
        f"What to buy for {report.model}: {usd(plan.usd_per_month)} a month{saves}",
        subtitle=[
            f"{report.traffic}; {count(report.mean_requests_per_s)} requests/s in the mean, "
            f"{count(report.peak_requests_per_s)} at the peak",
            "Coloured: what each purchase carries under the SLO. Black: the demand.",
        ],
        anchor="start",
        fontSize=15,
        subtitleFontSize=12,
        offset=12,
    )
    chart = alt.layer(areas, edge, line, label).properties(width=_WIDTH, height=_HEIGHT, title=title)
    return cast("alt.LayerChart", chart.configure_view(stroke=None))


def _series(report: FleetReport) -> tuple[list[str], list[str], list[dict[str, Any]]]:
    """Names, colours and points of what is stacked, from the bottom up."""
    plan = report.plan
    names: list[str] = []
    colours: list[str] = []
    rows: list[dict[str, Any]] = []
    used: dict[Terms, int] = {}
    for each in in_order(plan.purchases):
        kind = report.kind(each.offer)
        shades = _SHADES[each.terms]
        shade = shades[min(used.get(each.terms, 0), len(shades) - 1)]
        place = f" {each.place}" if each.place else ""
        name = f"{kind.instance}, {TERMS[each.terms]}{place} ({kind.gpus}×{kind.gpu})"
        if len(names) >= _MOST_SERIES:
            name = f"other {each.terms.replace('_', ' ')}"
        if name not in names:
            used[each.terms] = used.get(each.terms, 0) + 1
            names.append(name)
            colours.append(shade)
        rows += [
            {
                "what": name,
                "hour": hour,
                "capacity": machines * each.requests_per_s,
                "machines": machines,
                "order": names.index(name),
            }
            for hour, machines in enumerate([*each.by_hour, each.by_hour[-1]])
        ]
    return names, colours, rows


def _axis(hours: int) -> "alt.Axis":
    import altair as alt

    if hours % 24 == 0 and 48 <= hours <= 24 * 14:
        days = list(range(0, hours, 24))
        return alt.Axis(
            values=days, labelExpr="'day ' + (datum.value / 24 + 1)", labelAlign="left", labelOffset=4, grid=False
        )
    return alt.Axis(title="hours", tickCount=12, grid=False)
