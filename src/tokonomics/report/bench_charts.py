"""A benchmark as a picture: throughput, latencies and price against the load, beside what we predict."""

from typing import TYPE_CHECKING, Any, cast

from tokonomics.measure.benchmark_run import LoadPoint
from tokonomics.measure.load_curve import load_size
from tokonomics.measure.measurements import Metric, Statistic
from tokonomics.measure.priced_run import PricedRun

if TYPE_CHECKING:
    import altair as alt

_BLUE, _LIGHT, _GREEN, _RED, _GREY = "#3b6fb6", "#9cb9de", "#5aa9a4", "#b33", "#999"
_WIDTH, _HEIGHT = 330, 210
_AS_TIME = (
    "datum.value == 0 ? '0' : datum.value < 1 ? format(datum.value * 1000, '~r') + ' ms' "
    ": format(datum.value, ',~r') + ' s'"
)
_AS_USD = "datum.value < 0.995 ? format(datum.value, '$.3~r') : format(datum.value, '$,.3~r')"


def bench_chart(result: PricedRun) -> "alt.VConcatChart":
    """Four panels on one axis of load; without a price three."""
    import altair as alt

    run = result.run
    unit = "users at once" if any(point.concurrency for point in run.points) else "requests per second"
    panels = [
        _panel(result, unit, "Output tokens per second", _throughput(result), None),
        _panel(result, unit, "Time to first token", _latency(result, "ttft"), _AS_TIME),
        _panel(result, unit, "Time per output token", _latency(result, "tpot"), _AS_TIME),
    ]
    if result.price is not None:
        panels.append(_panel(result, unit, "Dollars per million tokens, in and out", _prices(result), _AS_USD))
    title = alt.TitleParams(
        f"{run.model or 'an unnamed model'} under load",
        subtitle=_legend(result),
        anchor="start",
        fontSize=15,
        subtitleFontSize=12,
        offset=10,
    )
    rows = [alt.hconcat(*panels[at : at + 2], spacing=34) for at in range(0, len(panels), 2)]
    return cast("alt.VConcatChart", alt.vconcat(*rows, spacing=20, title=title).configure_view(stroke=None))


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


Row = dict[str, Any]


def _at(point: LoadPoint) -> float:
    return float(load_size(point))


def _throughput(result: PricedRun) -> list[Row]:
    rows = [{"load": _at(point), "kind": "measured", "value": point.output_tokens_per_s} for point in result.run.points]
    return rows + _predicted(result, Metric.output_tok_s)


def _latency(result: PricedRun, name: str) -> list[Row]:
    rows: list[Row] = []
    for point in result.run.points:
        spread = getattr(point, f"{name}_s")
        rows += [
            {"load": _at(point), "kind": kind, "value": getattr(spread, kind)}
            for kind in ("mean", "p50", "p99")
            if spread is not None and getattr(spread, kind) is not None
        ]
    metric = Metric.ttft_s if name == "ttft" else Metric.tpot_s
    for kept in result.verdict.slos[0] if result.verdict.slos else ():
        if kept.slo.startswith(name):
            ends = (min(map(_at, result.run.points)), max(map(_at, result.run.points)))
            rows += [{"load": end, "kind": "SLO", "value": kept.objective_s} for end in ends]
    return rows + _predicted(result, metric)


def _prices(result: PricedRun) -> list[Row]:
    pairs = zip(result.run.points, result.points, strict=True)
    return [
        {"load": _at(point), "kind": "measured", "value": priced.usd_per_mtok.blended}
        for point, priced in pairs
        if priced.usd_per_mtok
    ]


def _predicted(result: PricedRun, metric: Metric) -> list[Row]:
    return [
        {"load": _at(point), "kind": _KIND_OF[scored.statistic], "value": scored.predicted.mid}
        for point, priced in zip(result.run.points, result.points, strict=True)
        for scored in priced.scored
        if scored.metric is metric
    ]


_KIND_OF = {each: "predicted" if each is Statistic.mean else f"predicted {each}" for each in Statistic}
_KINDS: dict[str, tuple[str, list[int]]] = {
    "measured": (_BLUE, [1, 0]),
    "p50": (_LIGHT, [1, 0]),
    "mean": (_GREEN, [1, 0]),
    "p99": (_BLUE, [1, 0]),
    "predicted": (_GREY, [5, 4]),
    "predicted p50": (_LIGHT, [5, 4]),
    "predicted p99": (_GREY, [5, 4]),
    "SLO": (_RED, [2, 3]),
}


def _panel(result: PricedRun, unit: str, title: str, rows: list[Row], labels: str | None) -> "alt.LayerChart":
    """Log axes where the figures span decades; the best load as a line."""
    import altair as alt

    kinds = [kind for kind in _KINDS if any(row["kind"] == kind for row in rows)]
    values = [row["value"] for row in rows if row["value"] > 0]
    wide = bool(values) and max(values) > 20 * min(values)
    loads = [_at(point) for point in result.run.points]
    x = alt.X(
        "load:Q",
        title=unit,
        scale=alt.Scale(type="log", base=2, nice=False) if max(loads) > 4 * min(loads) else alt.Scale(zero=False),
        axis=alt.Axis(values=sorted(set(loads)), format="~g", gridOpacity=0.4, labelOverlap=True),
    )
    axis = (
        alt.Axis(tickCount=5, gridOpacity=0.4)
        if labels is None
        else alt.Axis(tickCount=5, gridOpacity=0.4, labelExpr=labels)
    )
    y = alt.Y("value:Q", title=None, axis=axis, scale=alt.Scale(type="log") if wide else alt.Scale(zero=True))
    shown = alt.Legend(orient="top-left", title=None, fillColor="white", padding=3) if len(kinds) > 1 else None
    colour = alt.Color("kind:N", scale=alt.Scale(domain=kinds, range=[_KINDS[kind][0] for kind in kinds]), legend=shown)
    dash = alt.StrokeDash(
        "kind:N", scale=alt.Scale(domain=kinds, range=[_KINDS[kind][1] for kind in kinds]), legend=shown
    )
    base = alt.Chart(alt.InlineData(values=rows))
    tooltip = ["kind:N", "load:Q", alt.Tooltip("value:Q", title=title, format=",.4~g")]
    layers: list[Any] = [
        base.mark_line(point={"size": 28}).encode(x=x, y=y, color=colour, strokeDash=dash, tooltip=tooltip)
    ]
    if result.verdict.best is not None and len(loads) > 1:
        best = alt.Chart(alt.InlineData(values=[{"at": loads[result.verdict.best], "label": "best"}]))
        layers.append(best.mark_rule(color=_GREEN, strokeDash=[1, 2]).encode(x="at:Q"))
    heading = alt.TitleParams(title, anchor="start", fontSize=12, fontWeight="normal")
    made = alt.layer(*layers).properties(width=_WIDTH, height=_HEIGHT, title=heading)
    return cast("alt.LayerChart", made.resolve_scale(color="independent", strokeDash="independent"))
