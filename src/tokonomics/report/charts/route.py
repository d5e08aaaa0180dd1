"""Thresholds as a picture: dollars a month against quality, or against the share that the first model answers."""

import altair as alt

from tokonomics.planner.route_models import RouteReport, RouteWay
from tokonomics.report.charts import style
from tokonomics.report.wording import and_slos, workload_text

_KINDS = {
    "single": ("one model", style.INK),
    "routed": ("routed", style.BLUE),
    "cascade": ("cascade", style.GREEN),
    "labels": ("by label", "#e5a24f"),
    "spill": ("spill-over", "#8a6bb1"),
}
_WIDE = 8
"""Times the lowest bill from which on an axis of powers tells the low ones apart."""


def route_chart(found: RouteReport) -> alt.TopLevelMixin:
    """Every way as a dot; thresholds of one kind and one backup are joined."""
    rows = [_row(way, found.scored) for way in dict.fromkeys((*found.ways, *found.frontier))]
    across = "quality" if found.scored else "share of requests on the first model"
    values = [row["x"] for row in rows]
    bills = [row["usd"] for row in rows]
    wide = max(bills) > _WIDE * min(bills)
    scale = style.log(min(bills) / 1.3, max(bills) * 1.3) if wide else None
    room = (max(values) - min(values)) * 0.08 or 0.05
    encoded: style.Settings = {
        "x": style.across("x", across, style.linear(min(values) - room, max(values) + room)),
        "y": style.upwards("usd", "dollars a month", scale, **style.DOLLARS),
        "color": style.colours("kind", dict(_KINDS.values())),
        "tooltip": style.tips("name", x=".3~g", usd="$,.0f"),
    }
    base = style.plot(rows).encode(**encoded)
    joined = base.transform_filter("datum.line != ''").mark_line(strokeWidth=1.5).encode(detail="line:N")
    dots = base.mark_point(filled=True, size=70, opacity=1)
    ends = [row for row in rows if row["kind"] == _KINDS["single"][0]]
    words = style.labels(ends, left=True, dy=-9).encode(x=encoded["x"], y=encoded["y"])
    return style.whole(
        style.panel(joined, dots, words, width=680, height=360),
        "What it costs to share traffic among models",
        f"{workload_text(found.workload)}{and_slos(found.slos)}.",
        "Each dot is sized by simulation; lines join the thresholds of one kind.",
    )


def _row(way: RouteWay, scored: bool) -> style.Row:
    backup = way.parts[-1].model
    return {
        "x": way.quality if scored else way.first_share,
        "usd": way.usd_per_month,
        "kind": _KINDS[way.kind][0],
        "name": way.name,
        "label": way.name.removeprefix("all on "),
        "line": f"{way.kind} {backup}" if way.threshold is not None else "",
    }
