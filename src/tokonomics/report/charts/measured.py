"""Draw measurements: loads of a benchmark, predictions beside measurements, a bill over time."""

from collections.abc import Sequence
from operator import attrgetter

import altair as alt

from tokonomics.measure.accuracy_points import BAND, YOURS, AccuracyPoint
from tokonomics.measure.benchmark_run import LoadPoint
from tokonomics.measure.measurements import Metric, Statistic
from tokonomics.measure.meter.state import Statement
from tokonomics.measure.priced_run import PricedRun
from tokonomics.measure.validate import ScoredPrediction
from tokonomics.report.charts import style
from tokonomics.report.wording import NO_VALUE
from tokonomics.units import percent, plural, seconds, usd

# --- loads of a benchmark --------------------------------------------------------------------------------------------


_AS_USD = "datum.value < 0.995 ? format(datum.value, '$.3~r') : format(datum.value, '$,.3~r')"
_APART: style.Settings = {"color": "independent", "strokeDash": "independent"}  # a legend for each panel
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
    """Draw four panels on one axis of load, or three without a price."""
    run = result.run
    speeds = [_load_row(point, "measured", point.output_tokens_per_s) for point in run.points]
    panels = [
        _load_panel(result, "Output tokens per second", speeds + _predicted(result, Metric.output_tok_s)),
        _load_panel(result, "Time to first token", _latency(result, "ttft"), labelExpr=style.AS_TIME),
        _load_panel(result, "Time per output token", _latency(result, "tpot"), labelExpr=style.AS_TIME),
    ]
    if result.price is not None:
        panels.append(_load_panel(result, "Dollars per million tokens, in and out", _prices(result), labelExpr=_AS_USD))
    rows = [alt.hconcat(*panels[at : at + 2], spacing=34).resolve_scale(**_APART) for at in range(0, len(panels), 2)]
    return style.whole(
        alt.vconcat(*rows, spacing=20).resolve_scale(**_APART),
        f"{run.model or 'an unnamed model'} under load",
        f"measured by {run.tool}; dashed: predicted; dotted red: the SLO; dotted green: the best load",
    )


def _load_row(point: LoadPoint, kind: str, value: float) -> style.Row:
    return {"load": float(point.size), "kind": kind, "value": value}


def _latency(result: PricedRun, name: str) -> list[style.Row]:
    rows = [
        _load_row(point, kind, value)
        for point in result.run.points
        for kind in ("mean", "p50", "p99")
        if (value := getattr(getattr(point, f"{name}_s"), kind, None)) is not None
    ]
    ends = min(result.run.points, key=attrgetter("size")), max(result.run.points, key=attrgetter("size"))
    for slo in result.verdict.slos[0] if result.verdict.slos else ():
        if slo.slo.startswith(name):
            rows += [_load_row(point, "SLO", slo.objective_s) for point in ends]
    return rows + _predicted(result, Metric.ttft_s if name == "ttft" else Metric.tpot_s)


def _prices(result: PricedRun) -> list[style.Row]:
    pairs = zip(result.run.points, result.points, strict=True)
    return [_load_row(point, "measured", priced.usd_per_mtok.blended) for point, priced in pairs if priced.usd_per_mtok]


def _predicted(result: PricedRun, metric: Metric) -> list[style.Row]:
    return [
        _load_row(
            point,
            "predicted" if scored.statistic is Statistic.mean else f"predicted {scored.statistic}",
            scored.predicted.mid,
        )
        for point, priced in zip(result.run.points, result.points, strict=True)
        for scored in priced.scored
        if scored.metric is metric
    ]


def _load_panel(result: PricedRun, title: str, rows: list[style.Row], **axis: str) -> style.Marks:
    """Draw one panel, with logarithmic axes if the figures span decades, and the best load as a line."""
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


# --- predicted against measured, every row a point -------------------------------------------------------------------


_SPEED_COLOURS = {"timed": style.GREEN, "scaled": style.BLUE, "assumed": "#e5a24f", YOURS: style.RED}
_FIT_SHAPES = {"left out": "circle", "seen": "diamond", "shaped": "triangle-up", YOURS: "cross"}


def scatter_chart(points: Sequence[AccuracyPoint], kind: str, title: str, subtitle: str) -> alt.TopLevelMixin:
    """Draw points by how their speed is known and by their relation to the model; the line is exact, the band ±20 %."""
    is_time = kind != "throughput"
    edges = [edge for point in points for edge in (point.measured, point.predicted)] or [1.0]
    low, high = min(edges) / 1.15, max(edges) * 1.15
    scale, unit = style.log(low, high), "" if is_time else ", tokens a second"  # time ticks include their unit
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
    rows = [_point_row(point, is_time) for point in points]
    present = {point.speed for point in points}
    colour = style.colours("speed", {name: tone for name, tone in _SPEED_COLOURS.items() if name in present}, "speed")
    used = {point.fit for point in points}
    shape = alt.Shape(
        "fit:N",
        title="row",
        scale=alt.Scale(
            domain=[name for name in _FIT_SHAPES if name in used],
            range=[_FIT_SHAPES[name] for name in _FIT_SHAPES if name in used],
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


def _point_row(point: AccuracyPoint, is_time: bool) -> style.Row:
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


# --- predicted over measured, by metric ------------------------------------------------------------------------------


_MEASURED = {
    Metric.step_s: "step, seconds",
    Metric.tpot_s: "TPOT, seconds",
    Metric.ttft_s: "TTFT, seconds",
    Metric.output_tok_s: "output tokens per second",
    Metric.total_tok_s: "tokens per second, in and out",
}
_MOST = 5.0  # a point off by a larger factor is drawn at the edge


def validation_chart(predictions: Sequence[ScoredPrediction]) -> alt.TopLevelMixin:
    """Draw the ratio of predicted to measured for each row, by metric; on the line is exact."""
    points = [
        {
            "measured": prediction.measurement.value,
            "predicted ÷ measured": min(max(prediction.interval.mid / prediction.measurement.value, 1 / _MOST), _MOST),
            "metric": _MEASURED[prediction.measurement.metric],
            "engine": prediction.measurement.engine or "bare",
            "what": f"{prediction.measurement.model} on {prediction.measurement.gpus}×{prediction.measurement.gpu}",
            "source": prediction.measurement.source,
        }
        for prediction in predictions
    ]
    base = style.plot(points)
    ratio = "predicted ÷ measured"
    marks = base.mark_circle(size=22, opacity=0.5).encode(
        x=style.across(
            "measured", "measured", alt.Scale(type="log", nice=False), labelOverlap="greedy", labelSeparation=8
        ),
        y=style.upwards(ratio, ratio, alt.Scale(type="log", domain=[1 / _MOST, _MOST], nice=False)),
        color=alt.Color("source:N", title="source", legend=alt.Legend(orient="bottom", columns=2, labelLimit=400)),
        tooltip=["what:N", "engine:N", "source:N", "measured:Q", f"{ratio}:Q"],
    )
    right = base.mark_rule(color=style.INK).encode(y=alt.datum(1))
    panels = style.panel(marks, right, width=260, height=260).facet(column=alt.Column("metric:N", title=None))
    title = f"Predicted over measured: {plural(len(points), 'row')}"
    return style.whole(panels.resolve_scale(x="independent"), title)


# --- a bill over time ------------------------------------------------------------------------------------------------


_BILL_PARTS = {"busy": "busy_usd", "idle": "idle_usd", "server away": "gap_usd", "meter away": "away_usd"}
_PART_COLOURS = {"busy": style.BLUE, "idle": style.SAND, "server away": "#c0504d", "meter away": "#9b8bb4"}
_PRICES = {"every paid hour": "usd_per_mtok", "busy time alone": "usd_per_mtok_usage"}
_PRICE_COLOURS = {"every paid hour": "#222222", "busy time alone": style.GREEN}


_MOST_GROUPS = 30  # names that can be read below each other's bars; the table has all


def bill_chart(bill: Statement, over: str) -> alt.TopLevelMixin:
    """Draw a bill by day or by hour alone, or its most expensive groups of other keys, most expensive first."""
    is_time = bill.by in (("day",), ("hour",))
    by_size = sorted(bill.lines, key=lambda line: -line.sums.usd)[:_MOST_GROUPS]
    shown = [(", ".join(filter(None, line.group)), line.sums) for line in (bill.lines if is_time else by_size)]
    dollars = [
        {"at": at, "part": part, "usd": getattr(sums, name), "order": order}
        for at, sums in shown
        for order, (part, name) in enumerate(_BILL_PARTS.items())
    ]
    # A period without tokens has no price, so the line breaks there.
    prices = [
        {"at": at, "$/Mtok": getattr(sums, name), "basis": basis}
        for at, sums in shown
        for basis, name in _PRICES.items()
    ]
    names = [at for at, _ in shown]
    named = alt.Axis(labelAngle=-40 if len(names) > 6 else 0, labelOverlap=is_time, title=None)
    hidden = alt.Axis(labels=False, ticks=False, title=None)
    above, below = (alt.X("at:O", axis=axis, scale=alt.Scale(domain=names)) for axis in (hidden, named))
    beside: style.Settings = {"orient": "right", "direction": "vertical"}
    bars = (
        style.plot(dollars)
        .mark_bar()
        .encode(
            x=above,
            y=style.upwards("usd", f"dollars each {over}", format="$,.4~f").stack("zero"),
            color=style.colours("part", _PART_COLOURS, "paid for", **beside),
            order="order:Q",
            tooltip=style.tips("at", "part", usd="$,.4f"),
        )
    )
    lines = (
        style.plot(prices).mark_line(point=True) if is_time else style.plot(prices).mark_circle(size=60, opacity=1)
    ).encode(
        x=below,
        y=style.upwards("$/Mtok", "dollars per million tokens", format="$,.4~f"),
        color=style.colours("basis", _PRICE_COLOURS, "over", **beside),
        tooltip=style.tips("at", "basis", **{"$/Mtok": "$,.4f"}),
    )
    total = bill.total
    price = f"{usd(total.usd_per_mtok)} per million tokens" if total.usd_per_mtok is not None else "no tokens"
    panels = bars.properties(width=620, height=220), lines.properties(width=620, height=160)
    return style.whole(
        alt.vconcat(*panels, spacing=12).resolve_scale(color="independent"),
        f"{usd(total.usd)} paid: {price}",
        "input and output tokens; days and hours are UTC"
        + ("" if is_time or len(bill.lines) <= _MOST_GROUPS else f"; the first {_MOST_GROUPS} of {len(bill.lines)}"),
    )
