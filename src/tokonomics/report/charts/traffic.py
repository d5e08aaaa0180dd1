"""Draw traffic: a trace, a simulation over time and by its rate, a curve over the batch."""

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

import altair as alt

from tokonomics.planner.predict import BatchCurve
from tokonomics.report.charts import style
from tokonomics.report.wording import duration_text, how_long
from tokonomics.serving.outcome import Moment, Outcome
from tokonomics.traffic.summary import TraceSummary
from tokonomics.units import count, plural, requests_a_second, seconds

# --- a trace ---------------------------------------------------------------------------------------------------------


_KINDS = {"prompt": style.BLUE, "answer": style.GREEN}
_WIDTH, _HEIGHT = 720, 150
_SHORT = "format(datum.value, '~s')"
_GUTTER = 64  # between two panels side by side, axis included


def traffic_chart(trace: TraceSummary) -> alt.TopLevelMixin:
    """Draw requests and tokens over time; below, the distributions of lengths and, if the clock allows, of gaps."""
    gaps = trace.gaps if trace.clock_step_s is None else ()
    width = (_WIDTH - _GUTTER) // 2 if gaps else _WIDTH
    lengths = [
        {"kind": kind, "low": share.low, "high": share.high, "share": share.count / trace.requests}
        for kind, tokens in (("prompt", trace.input), ("answer", trace.output))
        for share in tokens.histogram
        if share.low > 0  # a logarithmic axis cannot show answers without tokens
    ]
    shapes = [_shares(lengths, width, "tokens of a prompt or an answer", "format(datum.value, ',')", "requests")]
    if gaps:
        total = sum(gap.count for gap in gaps)
        between = [{"low": gap.low, "high": gap.high, "share": gap.count / total} for gap in gaps]
        shapes.append(_shares(between, width, "from one request to the next", style.AS_TIME, "gaps"))
    panels = [*(_over_time(trace) if len(trace.curve) > 1 else []), alt.hconcat(*shapes)]
    mean = (
        f"{requests_a_second(count(float(f'{trace.rate:.3g}')))}, {count(trace.tokens_per_second)} tokens/s on average"
    )
    return style.whole(
        alt.vconcat(*panels),
        f"{trace.source}: {plural(trace.requests, 'request')}{how_long(trace)}",
        (mean if trace.rate else "")
        + (f" (dashed); a step is {duration_text(trace.bin_s)}" if len(trace.curve) > 1 else ""),
    )


def _over_time(trace: TraceSummary) -> list[style.Marks]:
    """Draw requests above tokens in full bins; the last bin is usually cut short and would look like a drop."""
    unit, name = style.time_unit(trace.duration_s)
    bins = trace.curve[: max(int(trace.duration_s // trace.bin_s), 1)]
    rates = [{"time": part.start_s / unit, "requests": part.requests / trace.bin_s} for part in bins]
    tokens = [
        {"time": part.start_s / unit, "kind": kind, "tokens": number / trace.bin_s}
        for part in bins
        for kind, number in (("prompt", part.input_tokens), ("answer", part.output_tokens))
    ]
    exact, time = alt.Scale(nice=False), alt.Tooltip("time:Q", title=name)
    requests = (
        style.plot(rates)
        .mark_area(interpolate="step-after", color=style.SAND, line={"color": style.OUTLINE, "strokeWidth": 1})
        .encode(
            x=style.across("time", None, exact, grid=False, labels=False, ticks=False),
            y=style.upwards("requests", "requests/s", tickCount=4),
            tooltip=[time, alt.Tooltip("requests:Q", format=".3g")],
        )
    )
    mean = style.plot([{"rate": trace.rate}]).mark_rule(strokeDash=style.DASHED, color=style.RED).encode(y="rate:Q")
    areas = (
        style.plot(tokens)
        .mark_area(interpolate="step-after", opacity=0.85)
        .encode(
            x=style.across("time", f"{name} since the first request", exact, grid=False),
            y=alt.Y("sum(tokens):Q", title="tokens/s", axis=alt.Axis(tickCount=4, labelExpr=_SHORT)),
            color=style.colours("kind", _KINDS),
            tooltip=[time, "kind:N", alt.Tooltip("tokens:Q", format=",.0f")],
        )
    )
    return [style.panel(*layers, width=_WIDTH, height=_HEIGHT) for layers in ((requests, mean), (areas,))]


def _shares(bars: list[style.Row], width: float, title: str, label: str, of: str) -> style.Marks:
    """Draw shares of requests or gaps over an axis from one power of ten to another."""
    low = 10.0 ** math.floor(math.log10(min(bar["low"] for bar in bars)) + 1e-9)
    high = 10.0 ** math.ceil(math.log10(max(bar["high"] for bar in bars)) - 1e-9)
    ticks: style.Settings = {"values": style.powers(low, high), "labelFlush": False, "labelSeparation": 8}
    by_kind = "kind" in bars[0]
    shown = style.plot(bars).mark_bar(opacity=0.6) if by_kind else style.plot(bars).mark_bar(color=style.SAND)
    drawn = shown.encode(
        x=style.across("low", title, style.log(low, high), labelExpr=label, grid=False, **ticks),
        x2="high:Q",
        y=style.upwards("share", f"share of {of}", format="%", tickCount=4).stack(None),
        y2=alt.datum(0),
        color=style.colours("kind", _KINDS) if by_kind else alt.Undefined,
        tooltip=[*(["kind:N"] if by_kind else []), "low:Q", "high:Q", alt.Tooltip("share:Q", format=".2%")],
    )
    return style.panel(drawn, width=width, height=_HEIGHT)


# --- a simulation ----------------------------------------------------------------------------------------------------


_SIMULATE_WIDTH, _SIMULATE_HEIGHT, _TALL = 720, 72, 120
_SIMULATE_GUTTER = 70  # between two panels side by side, axis included
_MANY_TIMES = 20  # largest ÷ smallest above which an axis of times is logarithmic
_NEAR = 8  # a label this many pixels from an axis end is moved inside, so that panels stay aligned
_NAMES = {"ttft": "Time to first token", "tpot": "Time per output token", "e2e": "Time to the last token"}
_BESIDE: style.Settings = {"orient": "right", "direction": "vertical", "symbolType": "stroke"}
_AT = alt.Tooltip("time:Q", format=".4~g")


def simulate_chart(outcome: Outcome, moments: Sequence[Moment], title: str, subtitle: str) -> alt.TopLevelMixin:
    """Draw arrivals, waiting requests, latencies and the work of the replicas on one axis of time."""
    edges = _edges(outcome, moments)
    unit, name = style.time_unit(edges[-1])

    def steps(series: dict[str, str]) -> list[style.Row]:
        """Return the rows of each kind; each value spans from one edge to the next, so that a single bin is visible."""
        return [
            {"time": edge / unit, "kind": kind, "value": getattr(moment, field)}
            for kind, field in series.items()
            for ends, moment in zip(pairwise(edges), moments, strict=True)
            for edge in ends
        ]

    def time(title: str | None = None) -> alt.X:
        shown = title is not None
        scale = style.linear(0, edges[-1] / unit)
        return style.across(
            "time", title, scale, labels=shown, ticks=shown, domain=shown, tickCount=12, labelFlush=False
        )

    x, bins = time(), time(f"{name} (bins of {seconds(edges[1] - edges[0])})")
    panels = [
        _area(steps({"requests/s": "arrivals_per_s"}), x, "Requests arriving per second", style.SAND, style.OUTLINE),
        _area(steps({"waiting": "waiting"}), x, "Requests waiting", style.SAND, style.OUTLINE, least=1),
        _first_tokens(steps({"p50": "ttft_p50_s", "p99": "ttft_p99_s"}), outcome, x),
        _area(steps({"sequences": "running"}), x, "Sequences in the batch", style.PALE_BLUE, style.BLUE, least=1),
        _simulate_shares(steps({"computing": "busy_share", "KV in use": "kv_share"}), x),
        _area(
            steps({"tokens/s": "output_tokens_per_s"}), bins, "Output tokens per second", style.PALE_GREEN, style.GREEN
        ),
    ]
    stacked = alt.vconcat(*panels, spacing=14).resolve_scale(color="independent", strokeDash="independent")
    return style.whole(stacked, title, subtitle)


def capacity_chart(
    points: Sequence[tuple[float, Outcome]], title: str, source: str, capacity: float
) -> alt.TopLevelMixin:
    """Draw what is delivered at each rate, a panel for each SLO; without any, the p99 of both latencies.

    ``capacity`` is the highest rate that holds, drawn as a line if there is one.
    """
    in_order = sorted(points, key=lambda point: point[0])
    targets = {slo.slo: slo.objective_s for slo in in_order[0][1].slo}
    both = ["ttft_p99", "tpot_p99"] if in_order[0][1].output_tokens else ["ttft_p99"]  # an encoder has no second token
    names = list(targets) or both
    width = max((_SIMULATE_WIDTH - _SIMULATE_GUTTER * (len(names) - 1)) // len(names), 220)
    met = "; filled: the SLO is met" if targets else ""
    panels = [_delivered(in_order, name, targets.get(name), capacity, width) for name in names]
    return style.whole(alt.hconcat(*panels, spacing=28), title, f"{source}; each point is a simulation{met}")


def _edges(outcome: Outcome, moments: Sequence[Moment]) -> list[float]:
    """Return where the bins begin and where the last, usually cut short, ends."""
    starts = [moment.at_s for moment in moments]
    width = starts[1] - starts[0] if len(starts) > 1 else outcome.duration_s or 1.0
    full = starts[-1] + width
    return [*starts, min(outcome.duration_s, full) if outcome.duration_s > starts[-1] else full]


def _area(rows: list[style.Row], x: alt.X, title: str, fill: str, line: str, least: float = 0) -> style.Marks:
    """Draw one quantity; its axis reaches at least ``least``, and has a length even if nothing happens."""
    top = max(least, 1.05 * max(row["value"] for row in rows)) or 1
    number = "format(datum.value, datum.value < 1 ? '~g' : '~s')"
    area = style.plot(rows).mark_area(color=fill, line={"color": line, "strokeWidth": 1})
    drawn = area.encode(
        x=x,
        y=style.upwards("value", None, style.linear(0, top), tickCount=3, labelExpr=number).stack(None),
        tooltip=[_AT, alt.Tooltip("value:Q", title=title, format=",.4~g")],
    )
    return style.panel(drawn, width=_SIMULATE_WIDTH, height=_SIMULATE_HEIGHT, title=title)


def _first_tokens(rows: list[style.Row], outcome: Outcome, x: alt.X) -> style.Marks:
    targets = {
        f"SLO {slo.slo.partition('_')[2]}: {seconds(slo.objective_s)}": slo.objective_s
        for slo in outcome.slo
        if slo.slo.startswith("ttft")
    }
    known = [row["value"] for row in rows if row["value"] is not None]
    shown: style.Settings = {
        "y": _times([*known, *targets.values()], 4),
        "color": style.colours(
            "kind", {"p99": style.BLUE, "p50": style.LIGHT_BLUE} | dict.fromkeys(targets, style.RED), **_BESIDE
        ),
        "strokeDash": style.dashes(
            "kind", {"p99": style.SOLID, "p50": style.SOLID} | dict.fromkeys(targets, style.DASHED)
        ),
    }
    tooltip = [_AT, "kind:N", alt.Tooltip("value:Q", format=".3~s")]
    lines = style.plot(rows).mark_line(strokeWidth=1.5).encode(x=x, **shown, tooltip=tooltip)
    rules = style.plot({"kind": kind, "value": bound} for kind, bound in targets.items()).mark_rule().encode(**shown)
    layers = (lines, rules) if targets else (lines,)
    return style.panel(*layers, width=_SIMULATE_WIDTH, height=_TALL, title="Time to first token, by time of arrival")


def _simulate_shares(rows: list[style.Row], x: alt.X) -> style.Marks:
    percents: style.Settings = {"values": [0, 0.5, 1], "labelExpr": "format(datum.value * 100, 'd') + ' %'"}
    lines = style.plot(rows).mark_line(strokeWidth=1.5)
    drawn = lines.encode(
        x=x,
        y=style.upwards("value", None, style.linear(0, 1), **percents),
        color=style.colours("kind", {"computing": style.OUTLINE, "KV in use": style.GREEN}, **_BESIDE),
        tooltip=[_AT, "kind:N", alt.Tooltip("value:Q", format=".1%")],
    )
    return style.panel(
        drawn,
        width=_SIMULATE_WIDTH,
        height=_SIMULATE_HEIGHT,
        title="Share of time computing, share of KV memory in use",
    )


def _delivered(
    points: Sequence[tuple[float, Outcome]], name: str, bound: float | None, capacity: float, width: int
) -> style.Marks:
    """Draw one latency against the rate: the curve, the bound, and how far the traffic may grow."""
    latency, _, statistic = name.partition("_")
    found = [(rate, getattr(getattr(outcome, f"{latency}_s"), statistic)) for rate, outcome in points]
    rows = [
        {"rate": rate, "value": value, "kept": bound is None or value <= bound}
        for rate, value in found
        if value is not None
    ]
    most = points[-1][0]
    x = style.across(
        "rate", "requests per second", style.linear(0, 1.02 * most), grid=False, tickCount=6, labelFlush=False
    )
    y = _times([row["value"] for row in rows] + ([bound] if bound else []), 5)
    layers: list[style.Marks] = []
    if bound:
        slo = [{"value": bound, "label": f"SLO {seconds(bound)}"}]
        layers += [
            style.plot(slo).mark_rule(strokeDash=style.DASHED, color=style.RED).encode(y=y),
            style.labels(slo, baseline="bottom", x=5, dx=0, dy=-3, color=style.RED).encode(y=y),
        ]
    if capacity:
        holds = [{"rate": capacity, "label": f"{count(capacity)}/s"}]
        layers += style.limit(holds, x, colour=style.OUTLINE, dash=style.SOLID, left=capacity > 0.25 * most)
    filled = alt.condition("datum.kept", alt.value(style.BLUE), alt.value("white"))
    tooltip = ["rate:Q", alt.Tooltip("value:Q", title=name, format=".3~s"), "kept:N"]
    dots = style.plot(rows).mark_point(filled=True, size=42, opacity=1, stroke=style.BLUE, strokeWidth=1.5)
    layers += [
        style.plot(rows).mark_line(color=style.BLUE, strokeWidth=1.5).encode(x=x, y=y),
        dots.encode(x=x, y=y, fill=filled, tooltip=tooltip),
    ]
    return style.panel(*layers, width=width, height=240, title=f"{_NAMES[latency]}, {statistic}")


def _times(values: Sequence[float], ticks: int) -> alt.Y:
    """Return an axis of seconds from 0, or logarithmic if the values span much."""
    above = [value for value in values if value > 0]
    axis: style.Settings = {"labelExpr": style.AS_TIME, "labelFlush": _NEAR}
    if not above or max(above) < _MANY_TIMES * min(above):
        scale, axis["tickCount"] = style.linear(0, 1.08 * max(above, default=1.0)), ticks
    else:
        low, high = _round(min(above) / 1.1, math.floor), _round(1.1 * max(above), math.ceil)
        scale, axis["values"] = style.log(low, high), style.powers(low, high)
    scale.clamp = True
    return style.upwards("value", None, scale, **axis)


def _round(value: float, to: Callable[[float], int]) -> float:
    """Round to a third of a power of ten."""
    return float(10 ** (to(3 * math.log10(value)) / 3))


# --- a curve over the batch ------------------------------------------------------------------------------------------


def curve_chart(curve: BatchCurve) -> alt.TopLevelMixin:
    """Draw throughput, and price if there is one, against the batch, with the KV limit and a dashed linear ideal."""
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
    # Channel types are explicit: the page redraws this chart as a slider moves, and inferring them is slow.
    tooltip = [alt.Tooltip("batch:Q"), alt.Tooltip("tokens/s:Q"), alt.Tooltip("TPOT (ms):Q")]
    line = style.plot(points).mark_line(point=True, color=style.BLUE).encode(x=x, tooltip=tooltip)
    dream = style.plot(points).mark_line(strokeDash=style.DOTTED, color=style.GREY).encode(x=x, y=alt.Y("linear:Q"))
    full = [{"batch": curve.max_sequences, "label": f"KV limit {curve.max_sequences:,}"}]
    height = 240
    rule, name = style.limit(full, x, height - 8)  # below the curve and the ideal, which end high up
    speed = line.encode(y=style.upwards("tokens/s", "output tokens per second"))
    layers = [
        (dream, speed, rule, name),
        (line.encode(y=style.upwards("TPOT (ms)", "time per output token (ms)")), rule),
    ]
    if curve.usd_per_hour:
        price = style.upwards("$/Mtok", "dollars per million output tokens", alt.Scale(type="log"))
        layers.append((line.encode(y=price), rule))
    panels = (style.panel(*marks, width=260, height=height) for marks in layers)
    return style.whole(
        alt.hconcat(*panels), curve.deployment, f"context {curve.context:,}; dashed grey: linear in the batch"
    )
