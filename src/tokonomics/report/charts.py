"""Charts as Altair specifications, saved as PNG, SVG or one-file HTML without a browser."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from tokonomics.errors import BadInput, option, shorten
from tokonomics.files import check_path, whole
from tokonomics.measure.validate import ScoredPrediction
from tokonomics.planner.machines import UNUSED
from tokonomics.planner.plan import Candidate, Plan
from tokonomics.planner.predict import BatchCurve
from tokonomics.report.wording import slos_text, workload_text
from tokonomics.units import plural, usd

if TYPE_CHECKING:
    import altair as alt

_FORMATS = (".svg", ".png", ".html", ".json")
_HOW_TO_SAVE: dict[str, dict[str, Any]] = {".html": {"inline": True}, ".png": {"scale_factor": 2}}
_FONTS = "Arial, Helvetica, Liberation Sans, DejaVu Sans Condensed, sans-serif"
"""vl-convert leaves room for text as wide as Arial's; in these no label is cut at an edge. What browsers on Linux take
for sans-serif, DejaVu Sans, is about a tenth wider (Chromium's own measure of a label: 141 px against 127)."""
_PART_COLOURS = {"prefill": "#3b6fb6", "decode": "#5aa9a4", "idle": "#d9d3c7", UNUSED: "#b9b2a6"}


def plan_chart(plan: Plan, model_name: str, rows: int = 14) -> "alt.LayerChart":
    """The monthly bill on each kind of hardware at its cheapest offer, split into what it pays for."""
    leaders = plan.leaders(rows)
    targets = f"; {slos_text(plan.slos)}" if plan.slos else ""
    return bill_chart(
        leaders,
        [_label(place, row) for place, row in enumerate(leaders, 1)],
        f"What serving {model_name} costs on each GPU",
        f"{workload_text(plan.workload)}{targets}; the cheapest offer of each kind",
    )


def bill_chart(leaders: Sequence[Candidate], names: Sequence[str], title: str, subtitle: str) -> "alt.LayerChart":
    """Bills as bars, split into what they pay for, with the price of a million tokens."""
    import altair as alt

    parts = [
        {"what": name, "offer": f"{row.provider} {row.instance}", "part": line.name, "usd": line.usd, "order": order}
        for name, row in zip(names, leaders, strict=True)
        for order, line in enumerate(row.bill.lines)
    ]
    totals = [
        {"what": name, "usd": row.usd_per_month, "label": f"{usd(row.usd_per_mtok.blended)}/Mtok"}
        for name, row in zip(names, leaders, strict=True)
    ]
    y = alt.Y("what:N", title=None, sort=list(names), axis=alt.Axis(labelLimit=320, ticks=False, domain=False))
    bars = (
        alt.Chart(alt.InlineData(values=parts))
        .mark_bar(height={"band": 0.72})
        .encode(
            x=alt.X("sum(usd):Q", title="dollars a month", axis=alt.Axis(format="$,.0f", grid=True, tickCount=6)),
            y=y,
            color=alt.Color(
                "part:N",
                title="paid for",
                scale=alt.Scale(domain=list(_PART_COLOURS), range=list(_PART_COLOURS.values())),
                legend=alt.Legend(orient="top", direction="horizontal"),
            ),
            order="order:Q",
            tooltip=["what:N", "offer:N", "part:N", alt.Tooltip("usd:Q", format="$,.2f")],
        )
    )
    labels = (
        alt.Chart(alt.InlineData(values=totals))
        .mark_text(align="left", dx=6, fontSize=11)
        .encode(x="usd:Q", y=y, text="label:N")
    )
    heading = alt.TitleParams(title, subtitle=subtitle, anchor="start", fontSize=15, subtitleFontSize=12, offset=10)
    chart = (
        alt.layer(bars, labels).properties(width=560, height=alt.Step(24), title=heading).configure_view(stroke=None)
    )
    return cast("alt.LayerChart", chart)


def curve_chart(curve: BatchCurve) -> "alt.HConcatChart":
    """Throughput, and price where there is one, against the batch; the KV limit as a line, the linear dream dashed."""
    import altair as alt

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
    x = alt.X("batch:Q", title="batch (sequences)", scale=alt.Scale(type="log", base=2))
    data = alt.InlineData(values=points)
    limit = alt.Chart(alt.InlineData(values=[{"x": curve.max_sequences, "label": f"KV limit {curve.max_sequences:,}"}]))
    # Channels are spelled out: the page redraws this chart as a slider moves, and guessing them takes most of the time.
    at_limit = alt.X("x:Q")
    rule = limit.mark_rule(strokeDash=[4, 4], color="#b33").encode(x=at_limit)
    name = limit.mark_text(align="right", dx=-5, y=10, color="#b33").encode(x=at_limit, text=alt.Text("label:N"))
    line = alt.Chart(data).mark_line(point=True, color="#3b6fb6")
    tooltip = [alt.Tooltip("batch:Q"), alt.Tooltip("tokens/s:Q"), alt.Tooltip("TPOT (ms):Q")]
    speed = line.encode(x=x, y=alt.Y("tokens/s:Q", title="output tokens per second"), tooltip=tooltip)
    dream = alt.Chart(data).mark_line(strokeDash=[2, 3], color="#999").encode(x=x, y=alt.Y("linear:Q"))
    latency = line.encode(x=x, y=alt.Y("TPOT (ms):Q", title="time per output token (ms)"), tooltip=tooltip)
    panels = [alt.layer(dream, speed, rule, name), alt.layer(latency, rule)]
    if curve.usd_per_hour:
        dollars = alt.Y("$/Mtok:Q", title="dollars per million output tokens", scale=alt.Scale(type="log"))
        panels.append(alt.layer(line.encode(x=x, y=dollars), rule))
    title = alt.TitleParams(
        curve.deployment,
        subtitle=f"context {curve.context:,}; dashed grey: linear in the batch",
        anchor="start",
        fontSize=15,
    )
    return alt.hconcat(*(panel.properties(width=260, height=240) for panel in panels), title=title)


def validation_chart(predictions: Sequence[ScoredPrediction]) -> "alt.FacetChart":
    """The ratio of predicted to measured for each row, by metric: on the line is right; more than five times is cut."""
    import altair as alt

    points = [
        {
            "measured": prediction.measurement.value,
            "predicted ÷ measured": min(max(prediction.interval.mid / prediction.measurement.value, 0.2), 5.0),
            "metric": prediction.measurement.metric.value,
            "engine": prediction.measurement.engine or "bare",
            "what": f"{prediction.measurement.model} on {prediction.measurement.gpus}×{prediction.measurement.gpu}",
            "source": prediction.measurement.source,
        }
        for prediction in predictions
    ]
    base = alt.Chart(alt.InlineData(values=points))
    marks = base.mark_circle(size=22, opacity=0.5).encode(
        x=alt.X("measured:Q", scale=alt.Scale(type="log", nice=False), title="measured"),
        y=alt.Y("predicted ÷ measured:Q", scale=alt.Scale(type="log", domain=[0.2, 5], nice=False)),
        color=alt.Color("source:N", title="source", legend=alt.Legend(orient="bottom", columns=2, labelLimit=400)),
        tooltip=["what:N", "engine:N", "source:N", "measured:Q", "predicted ÷ measured:Q"],
    )
    right = base.mark_rule(color="#333").encode(y=alt.datum(1))
    title = alt.TitleParams(f"Predicted over measured: {plural(len(points), 'row')}", anchor="start", fontSize=15)
    panels = alt.layer(marks, right).properties(width=260, height=260).facet(column=alt.Column("metric:N", title=None))
    return cast("alt.FacetChart", panels.resolve_scale(x="independent").properties(title=title))


def _label(place: int, row: Candidate) -> str:
    flag = "*" if row.below_checkpoint else ""
    return f"{place}. {row.replicas} × {row.gpus_per_replica} {row.gpu} {row.weights}{flag}"


def stacked(panels: Sequence[Any]) -> "alt.VConcatChart":
    """Whole charts below each other; their own settings give way to common ones."""
    import altair as alt

    plain = [panel.copy(deep=False) for panel in panels]
    for panel in plain:
        panel.config = alt.Undefined
    made = alt.vconcat(*plain, spacing=45).resolve_scale(color="independent").configure_view(stroke=None)
    return cast("alt.VConcatChart", made)


def check_chart_path(path: Path) -> None:
    """Refuse a file name or folder that a chart cannot be saved to, before any work is done."""
    if path.suffix.lower() not in _FORMATS:
        what = f"cannot save a chart as '{shorten(path.suffix or path.name)}'"
        raise BadInput(what, field="chart", fix=f"Name the file with one of: {', '.join(_FORMATS)}.")
    check_path(path, "chart", _FORMATS)


def save_chart(chart: "alt.TopLevelMixin", path: Path) -> None:
    """Write the chart in the format its name ends with; whole or not at all."""
    check_chart_path(path)
    suffix = path.suffix.lower()
    with whole(path, option("chart", shorten(path.name))) as unfinished:
        chart.save(unfinished, **_HOW_TO_SAVE.get(suffix, {}))
        if suffix == ".svg":
            drawn = unfinished.read_text(encoding="utf-8")
            unfinished.write_text(
                drawn.replace('font-family="sans-serif"', f'font-family="{_FONTS}"'), encoding="utf-8"
            )
