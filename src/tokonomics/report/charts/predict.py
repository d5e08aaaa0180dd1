"""A curve over the batch: throughput, time per token and price."""

import altair as alt

from tokonomics.planner.predict import BatchCurve
from tokonomics.report.charts import style


def curve_chart(curve: BatchCurve) -> alt.TopLevelMixin:
    """Throughput, and price where there is one, against the batch; the KV limit as a line, the linear dream dashed."""
    alone = curve.points[0].tokens_per_s
    ceiling = 2 * curve.points[-1].tokens_per_s
    points = [
        {
            "batch": point.batch,
            "tokens/s": point.tokens_per_s,
            "linear": point.batch * alone if point.batch * alone <= ceiling else None,
            "$/Mtok": point.usd_per_mtok,
            "TPOT (ms)": point.tpot_s * 1e3,
        }
        for point in curve.points
    ]
    x = style.across("batch", "batch (sequences)", alt.Scale(type="log", base=2))
    # Channels are spelled out: the page redraws this chart as a slider moves, and guessing them takes most of the time.
    tooltip = [alt.Tooltip("batch:Q"), alt.Tooltip("tokens/s:Q"), alt.Tooltip("TPOT (ms):Q")]
    line = style.plot(points).mark_line(point=True, color=style.BLUE).encode(x=x, tooltip=tooltip)
    dream = style.plot(points).mark_line(strokeDash=style.DOTTED, color=style.GREY).encode(x=x, y=alt.Y("linear:Q"))
    full = [{"batch": curve.max_sequences, "label": f"KV limit {curve.max_sequences:,}"}]
    rule, name = style.limit(full, x)
    speed = line.encode(y=style.upwards("tokens/s", "output tokens per second"))
    layers = [
        (dream, speed, rule, name),
        (line.encode(y=style.upwards("TPOT (ms)", "time per output token (ms)")), rule),
    ]
    if curve.usd_per_hour:
        price = style.upwards("$/Mtok", "dollars per million output tokens", alt.Scale(type="log"))
        layers.append((line.encode(y=price), rule))
    panels = (style.panel(*marks, width=260, height=240) for marks in layers)
    return style.whole(
        alt.hconcat(*panels), curve.deployment, f"context {curve.context:,}; dashed grey: linear in the batch"
    )
