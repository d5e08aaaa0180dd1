"""A fleet as a picture: what is bought, stacked by terms, above the demand it carries."""

from collections.abc import Iterable

import altair as alt

from tokonomics.catalog.offers import Terms
from tokonomics.money.fleet import FleetPurchase
from tokonomics.planner.fleet import FleetReport
from tokonomics.report.charts import style
from tokonomics.units import count, percent, requests_a_second, usd

_SHADES = {
    Terms.reserved: ("#5b86c2", "#86a8d8", "#aec6e8", "#cfdef2"),
    Terms.on_demand: ("#4ea29a", "#7bbfb8", "#a5d4cf", "#cbe7e4"),
    Terms.spot: ("#e5a24f", "#edbb7c", "#f4d2a6", "#f9e5cc"),
}
_DEMAND = "#1d1d1f"
_MOST_SERIES = 10
"""More would be a list, not a legend: the smallest go together by terms."""


def fleet_chart(report: FleetReport, purchases: Iterable[FleetPurchase]) -> alt.TopLevelMixin:
    """Capacity by purchase over the horizon, from the bottom up in the order given; the demand as a line."""
    plan = report.plan
    palette, rows = _series(report, purchases)
    demand = [{"hour": hour, "requests/s": rate} for hour, rate in enumerate([*plan.demand, plan.demand[-1]])]
    x = _hours(plan.hours)
    areas = (
        style.plot(rows)
        .mark_area(interpolate="step-after", line=False)
        .encode(
            x=x,
            y=style.upwards("capacity", "requests per second", tickCount=6).stack("zero"),
            color=style.colours("what", palette, orient="bottom", columns=2, labelLimit=380, symbolType="square"),
            order=alt.Order("order:Q"),
            tooltip=["what:N", "hour:Q", "machines:Q", alt.Tooltip("capacity:Q", format=".3~s")],
        )
    )
    curve = style.plot(demand).encode(x=x, y="requests/s:Q")
    # A white edge keeps the line apart from the colours behind it.
    edge = curve.mark_line(interpolate="step-after", color="white", strokeWidth=4.5, opacity=0.8)
    line = curve.mark_line(interpolate="step-after", color=_DEMAND, strokeWidth=2)
    peak = max(range(plan.hours), key=lambda hour: plan.demand[hour])
    at_peak = [{"hour": peak, "requests/s": plan.demand[peak], "label": "demand"}]
    label = style.labels(at_peak, left=peak > plan.hours * 0.8, dy=-9, fontWeight="bold", color=_DEMAND)
    simple = plan.beaten
    saves = f", {percent(simple.saved_share or 0)} below {simple.name}" if simple else ""
    return style.whole(
        style.panel(areas, edge, line, label.encode(x="hour:Q", y="requests/s:Q"), width=760, height=320),
        f"What to buy for {report.model}: {usd(plan.usd_per_month)} a month{saves}",
        f"{report.traffic}; {requests_a_second(count(report.mean_requests_per_s))} in the mean, "
        f"{count(report.peak_requests_per_s)} at the peak",
        "Coloured: what each purchase carries under the SLO. Black: the demand.",
    )


def _series(report: FleetReport, purchases: Iterable[FleetPurchase]) -> tuple[dict[str, str], list[style.Row]]:
    """Colours by name and points of what is stacked, from the bottom up."""
    palette: dict[str, str] = {}
    rows: list[style.Row] = []
    shades = {terms: iter((*shades, *shades[-1:] * _MOST_SERIES)) for terms, shades in _SHADES.items()}
    for purchase in purchases:
        kind = report.kind(purchase.offer)
        terms = purchase.terms.replace("_", " ")
        place = f" {purchase.place}" if purchase.place else ""
        name = f"{kind.instance}, {terms}{place} ({kind.gpus}×{kind.gpu})"
        if len(palette) >= _MOST_SERIES:
            name = f"other {terms}"
        if name not in palette:
            palette[name] = next(shades[purchase.terms])
        rows += [
            {
                "what": name,
                "hour": hour,
                "capacity": machines * purchase.requests_per_s,
                "machines": machines,
                "order": list(palette).index(name),
            }
            for hour, machines in enumerate([*purchase.by_hour, purchase.by_hour[-1]])
        ]
    return palette, rows


def _hours(hours: int) -> alt.X:
    """Days where the horizon is some of them."""
    if hours % 24 == 0 and 48 <= hours <= 24 * 14:
        days: style.Settings = {"values": list(range(0, hours, 24)), "labelExpr": "'day ' + (datum.value / 24 + 1)"}
        return style.across("hour", None, style.linear(0, hours), **days, labelAlign="left", labelOffset=4, grid=False)
    return style.across("hour", "hours", style.linear(0, hours), tickCount=12, grid=False)
