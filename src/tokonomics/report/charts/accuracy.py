"""Predicted against measured, every row a point, on logarithmic axes."""

from collections.abc import Sequence

import altair as alt

from tokonomics.measure.accuracy_points import BAND, YOURS, AccuracyPoint
from tokonomics.report.charts import style
from tokonomics.report.wording import NO_VALUE
from tokonomics.units import percent, seconds

_COLOURS = {"timed": style.GREEN, "scaled": style.BLUE, "assumed": "#e5a24f", YOURS: style.RED}
_SHAPES = {"left out": "circle", "seen": "diamond", "shaped": "triangle-up", YOURS: "cross"}


def scatter_chart(points: Sequence[AccuracyPoint], kind: str, title: str, subtitle: str) -> alt.TopLevelMixin:
    """Points by how their speed is known and by how they stand to the model; the line is right, the band ±20 %."""
    is_time = kind != "throughput"
    edges = [edge for point in points for edge in (point.measured, point.predicted)] or [1.0]
    low, high = min(edges) / 1.15, max(edges) * 1.15
    scale, unit = style.log(low, high), "" if is_time else ", tokens a second"  # ticks of time say their unit
    axis = {
        "values": style.powers(low, high, (1, 3)),
        **({"labelExpr": style.AS_TIME} if is_time else {"format": "~s"}),
    }
    x = style.across("measured", f"measured{unit}", scale, **axis)
    y = style.upwards("predicted", f"predicted{unit}", scale, **axis)
    ends = [
        {"measured": edge, "predicted": edge, "most": edge * (1 + BAND), "least": edge / (1 + BAND)}
        for edge in (low, high)
    ]
    band = (
        style.plot(ends)
        .mark_area(opacity=0.12, color=style.GREY, clip=True)
        .encode(x=x, y=alt.Y("least:Q", scale=scale), y2="most:Q")
    )
    right = style.plot(ends).mark_line(color=style.INK, strokeWidth=1).encode(x=x, y=y)
    rows = [_row(point, is_time) for point in points]
    present = {point.speed for point in points}
    colour = style.colours("speed", {name: tone for name, tone in _COLOURS.items() if name in present}, "speed")
    used = {point.fit for point in points}
    shape = alt.Shape(
        "fit:N",
        title="row",
        scale=alt.Scale(
            domain=[name for name in _SHAPES if name in used], range=[_SHAPES[name] for name in _SHAPES if name in used]
        ),
        legend=alt.Legend(orient="top", direction="horizontal", symbolFillColor=style.GREY),
    )
    size = alt.condition(f"datum.speed == '{YOURS}' || datum.served", alt.value(90), alt.value(26))
    edge = alt.condition("datum.served", alt.value(style.INK), alt.value(None))
    marks = style.plot(rows).mark_point(filled=True, opacity=0.55, strokeWidth=1.4).encode(
        x=x, y=y, color=colour, shape=shape, size=size, stroke=edge,
        tooltip=style.tips("what", "figure", "measured as", "predicted as", "off", "row"),
    )  # fmt: skip
    return style.whole(style.panel(band, right, marks, width=560, height=420), title, subtitle)


_FITS = {
    "left out": "left out of every fit and choice",
    "seen": "seen while the model was made, not fitted on",
    "shaped": "shaped the model: it was fitted on this",
    YOURS: "your own measurement",
}
_METRICS = {"tpot_s": "TPOT", "ttft_s": "TTFT", "output_tok_s": "output tokens/s", "total_tok_s": "tokens/s in and out"}


def _row(point: AccuracyPoint, is_time: bool) -> style.Row:
    text = seconds if is_time else (lambda value: f"{value:,.0f} tok/s" if value >= 10 else f"{value:.3g} tok/s")
    metric, _, statistic = point.metric.partition(" ")
    off = f"{'+' if point.off >= 0 else '−'}{percent(abs(point.off))}"
    return {
        "measured": point.measured,
        "predicted": point.predicted,
        "speed": point.speed,
        "fit": point.fit,
        "served": point.served,
        "what": point.what,
        "figure": f"{_METRICS.get(metric, metric)} {statistic}".strip(),
        "measured as": text(point.measured) if point.measured else NO_VALUE,
        "predicted as": text(point.predicted),
        "off": off,
        "row": _FITS.get(point.fit, point.fit),
    }
