"""A benchmark as a picture: throughput, latencies and price against the load, beside what we predict."""

from operator import attrgetter

import altair as alt

from tokonomics.measure.benchmark_run import LoadPoint
from tokonomics.measure.measurements import Metric, Statistic
from tokonomics.measure.priced_run import PricedRun
from tokonomics.report.charts import style

_AS_USD = "datum.value < 0.995 ? format(datum.value, '$.3~r') : format(datum.value, '$,.3~r')"
_APART: style.Settings = {"color": "independent", "strokeDash": "independent"}
"""A legend for each panel."""
_PREDICTED = [5, 4]
_KINDS: dict[str, tuple[str, list[int]]] = {
    "measured": (style.BLUE, style.SOLID),
    "p50": (style.LIGHT_BLUE, style.SOLID),
    "mean": (style.GREEN, style.SOLID),
    "p99": (style.BLUE, style.SOLID),
    "predicted": (style.GREY, _PREDICTED),
    "predicted p50": (style.LIGHT_BLUE, _PREDICTED),
    "predicted p99": (style.GREY, _PREDICTED),
    "SLO": (style.RED, style.DOTTED),
}
"""The colour and the dashes of each line."""


def bench_chart(result: PricedRun) -> alt.TopLevelMixin:
    """Four panels on one axis of load; without a price three."""
    run = result.run
    panels = [
        _panel(result, "Output tokens per second", _throughput(result)),
        _panel(result, "Time to first token", _latency(result, "ttft"), labelExpr=style.AS_TIME),
        _panel(result, "Time per output token", _latency(result, "tpot"), labelExpr=style.AS_TIME),
    ]
    if result.price is not None:
        panels.append(_panel(result, "Dollars per million tokens, in and out", _prices(result), labelExpr=_AS_USD))
    rows = [alt.hconcat(*panels[at : at + 2], spacing=34).resolve_scale(**_APART) for at in range(0, len(panels), 2)]
    return style.whole(
        alt.vconcat(*rows, spacing=20).resolve_scale(**_APART),
        f"{run.model or 'an unnamed model'} under load",
        _legend(result),
    )


def _legend(result: PricedRun) -> str:
    """What the lines beside the measured ones are, of those that are drawn."""
    parts = [f"measured by {result.run.tool}"]
    if any(point.scored for point in result.points):
        parts.append("dashed: predicted")
    if result.verdict.slos:
        parts.append("dotted red: the SLO")
    if result.verdict.best is not None and len(result.points) > 1:
        parts.append("dotted green: the best load")
    return "; ".join(parts)


def _row(point: LoadPoint, kind: str, value: float) -> style.Row:
    return {"load": float(point.size), "kind": kind, "value": value}


def _throughput(result: PricedRun) -> list[style.Row]:
    rows = [_row(point, "measured", point.output_tokens_per_s) for point in result.run.points]
    return rows + _predicted(result, Metric.output_tok_s)


def _latency(result: PricedRun, name: str) -> list[style.Row]:
    rows = [
        _row(point, kind, value)
        for point in result.run.points
        for kind in ("mean", "p50", "p99")
        if (value := getattr(getattr(point, f"{name}_s"), kind, None)) is not None
    ]
    ends = min(result.run.points, key=attrgetter("size")), max(result.run.points, key=attrgetter("size"))
    for slo in result.verdict.slos[0] if result.verdict.slos else ():
        if slo.slo.startswith(name):
            rows += [_row(point, "SLO", slo.objective_s) for point in ends]
    return rows + _predicted(result, Metric.ttft_s if name == "ttft" else Metric.tpot_s)


def _prices(result: PricedRun) -> list[style.Row]:
    pairs = zip(result.run.points, result.points, strict=True)
    return [_row(point, "measured", priced.usd_per_mtok.blended) for point, priced in pairs if priced.usd_per_mtok]


def _predicted(result: PricedRun, metric: Metric) -> list[style.Row]:
    return [
        _row(
            point,
            "predicted" if scored.statistic is Statistic.mean else f"predicted {scored.statistic}",
            scored.predicted.mid,
        )
        for point, priced in zip(result.run.points, result.points, strict=True)
        for scored in priced.scored
        if scored.metric is metric
    ]


def _panel(result: PricedRun, title: str, rows: list[style.Row], **axis: str) -> style.Marks:
    """Log axes where the figures span decades; the best load as a line."""
    points, best = result.run.points, result.verdict.best
    shown = {kind: look for kind, look in _KINDS.items() if any(row["kind"] == kind for row in rows)}
    values = [row["value"] for row in rows if row["value"] > 0]
    wide = bool(values) and max(values) > 20 * min(values)
    scale = alt.Scale(type="log") if wide else alt.Scale(zero=True)
    loads = [float(point.size) for point in points]
    far = max(loads) > 4 * min(loads)
    x = style.across(
        "load",
        "users at once" if any(point.concurrency for point in points) else "requests per second",
        alt.Scale(type="log", base=2, nice=False) if far else alt.Scale(zero=False),
        values=sorted(set(loads)),
        format="~g",
        labelOverlap=True,
    )
    palette = {kind: colour for kind, (colour, _) in shown.items()}
    named = len(shown) > 1
    legend: style.Settings = {"orient": "top-left", "direction": "vertical", "fillColor": "white", "padding": 3}
    lines = (
        style.plot(rows)
        .mark_line(point={"size": 28})
        .encode(
            x=x,
            y=style.upwards("value", None, scale, tickCount=5, **axis),
            color=style.colours("kind", palette, named=named, **legend),
            strokeDash=style.dashes("kind", {kind: dash for kind, (_, dash) in shown.items()}, named=named),
            tooltip=["kind:N", "load:Q", alt.Tooltip("value:Q", title=title, format=",.4~g")],
        )
    )
    layers = [lines]
    if best is not None and len(loads) > 1:
        layers.append(
            style.plot([{"load": loads[best]}]).mark_rule(color=style.GREEN, strokeDash=[1, 2]).encode(x="load:Q")
        )
    return style.panel(*layers, width=330, height=210, title=title)
