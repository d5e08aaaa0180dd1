"""Predictions beside measurements."""

from collections.abc import Sequence

import altair as alt

from tokonomics.measure.validate import ScoredPrediction
from tokonomics.report.charts import style
from tokonomics.units import plural

_MOST = 5.0
"""Times too high or too low, beyond which a point is drawn at the edge."""


def validation_chart(predictions: Sequence[ScoredPrediction]) -> alt.TopLevelMixin:
    """The ratio of predicted to measured for each row, by metric: on the line is right."""
    points = [
        {
            "measured": prediction.measurement.value,
            "predicted ÷ measured": min(max(prediction.interval.mid / prediction.measurement.value, 1 / _MOST), _MOST),
            "metric": prediction.measurement.metric.value,
            "engine": prediction.measurement.engine or "bare",
            "what": f"{prediction.measurement.model} on {prediction.measurement.gpus}×{prediction.measurement.gpu}",
            "source": prediction.measurement.source,
        }
        for prediction in predictions
    ]
    base = style.plot(points)
    ratio = "predicted ÷ measured"
    marks = base.mark_circle(size=22, opacity=0.5).encode(
        x=style.across("measured", "measured", alt.Scale(type="log", nice=False)),
        y=style.upwards(ratio, ratio, alt.Scale(type="log", domain=[1 / _MOST, _MOST], nice=False)),
        color=alt.Color("source:N", title="source", legend=alt.Legend(orient="bottom", columns=2, labelLimit=400)),
        tooltip=["what:N", "engine:N", "source:N", "measured:Q", f"{ratio}:Q"],
    )
    right = base.mark_rule(color=style.INK).encode(y=alt.datum(1))
    panels = style.panel(marks, right, width=260, height=260).facet(column=alt.Column("metric:N", title=None))
    title = f"Predicted over measured: {plural(len(points), 'row')}"
    return style.whole(panels.resolve_scale(x="independent"), title)
