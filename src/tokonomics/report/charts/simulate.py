"""A simulation as a picture: load, waiting, latency and memory over time; and latency against the rate of requests."""

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

import altair as alt

from tokonomics.report.charts import style
from tokonomics.serving.outcome import Moment, Outcome
from tokonomics.units import count, seconds

_WIDTH, _HEIGHT, _TALL = 720, 72, 120
_GUTTER = 70
"""Between two panels side by side, axis included."""
_MANY_TIMES = 20
"""From this ratio of the largest to the smallest on, an axis of times is logarithmic."""
_NEAR = 8
"""Pixels from an end of an axis at which a label is moved inside, so that panels stay in line."""
_NAMES = {"ttft": "Time to first token", "tpot": "Time per output token", "e2e": "Time to the last token"}
_BESIDE: style.Settings = {"orient": "right", "direction": "vertical", "symbolType": "stroke"}
_AT = alt.Tooltip("time:Q", format=".4~g")


def simulate_chart(outcome: Outcome, moments: Sequence[Moment], title: str, subtitle: str) -> alt.TopLevelMixin:
    """What came in, who waited, how long, and what the replicas did, on one axis of time."""
    edges = _edges(outcome, moments)
    unit, name = style.time_unit(edges[-1])

    def steps(series: dict[str, str]) -> list[style.Row]:
        """By kind, a field of the moments; each value from one edge to the next: so a lone bin is seen too."""
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
        _shares(steps({"computing": "busy_share", "KV in use": "kv_share"}), x),
        _area(
            steps({"tokens/s": "output_tokens_per_s"}), bins, "Output tokens per second", style.PALE_GREEN, style.GREEN
        ),
    ]
    stacked = alt.vconcat(*panels, spacing=14).resolve_scale(color="independent", strokeDash="independent")
    return style.whole(stacked, title, subtitle)


def capacity_chart(
    points: Sequence[tuple[float, Outcome]], title: str, source: str, capacity: float
) -> alt.TopLevelMixin:
    """What is delivered at each rate of requests, a panel for each SLO; without any, p99 of both latencies.

    ``capacity`` is the highest rate that holds, drawn as a line where any does.
    """
    in_order = sorted(points, key=lambda point: point[0])
    targets = {slo.slo: slo.objective_s for slo in in_order[0][1].slo}
    both = ["ttft_p99", "tpot_p99"] if in_order[0][1].output_tokens else ["ttft_p99"]  # an encoder has no second token
    names = list(targets) or both
    width = max((_WIDTH - _GUTTER * (len(names) - 1)) // len(names), 220)
    met = "; filled: the SLO is met" if targets else ""
    panels = [_delivered(in_order, name, targets.get(name), capacity, width) for name in names]
    return style.whole(alt.hconcat(*panels, spacing=28), title, f"{source}; each point is a simulation{met}")


def _edges(outcome: Outcome, moments: Sequence[Moment]) -> list[float]:
    """Where the bins begin, and where the last one ends: usually cut short."""
    starts = [moment.at_s for moment in moments]
    width = starts[1] - starts[0] if len(starts) > 1 else outcome.duration_s or 1.0
    full = starts[-1] + width
    return [*starts, min(outcome.duration_s, full) if outcome.duration_s > starts[-1] else full]


def _area(rows: list[style.Row], x: alt.X, title: str, fill: str, line: str, least: float = 0) -> style.Marks:
    """One quantity; its axis reaches ``least`` at the least, and has a length where nothing happens."""
    top = max(least, 1.05 * max(row["value"] for row in rows)) or 1
    number = "format(datum.value, datum.value < 1 ? '~g' : '~s')"
    area = style.plot(rows).mark_area(color=fill, line={"color": line, "strokeWidth": 1})
    drawn = area.encode(
        x=x,
        y=style.upwards("value", None, style.linear(0, top), tickCount=3, labelExpr=number).stack(None),
        tooltip=[_AT, alt.Tooltip("value:Q", title=title, format=",.4~g")],
    )
    return style.panel(drawn, width=_WIDTH, height=_HEIGHT, title=title)


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
    return style.panel(*layers, width=_WIDTH, height=_TALL, title="Time to first token, by time of arrival")


def _shares(rows: list[style.Row], x: alt.X) -> style.Marks:
    percents: style.Settings = {"values": [0, 0.5, 1], "labelExpr": "format(datum.value * 100, 'd') + ' %'"}
    lines = style.plot(rows).mark_line(strokeWidth=1.5)
    drawn = lines.encode(
        x=x,
        y=style.upwards("value", None, style.linear(0, 1), **percents),
        color=style.colours("kind", {"computing": style.OUTLINE, "KV in use": style.GREEN}, **_BESIDE),
        tooltip=[_AT, "kind:N", alt.Tooltip("value:Q", format=".1%")],
    )
    return style.panel(drawn, width=_WIDTH, height=_HEIGHT, title="Share of time computing, share of KV memory in use")


def _delivered(
    points: Sequence[tuple[float, Outcome]], name: str, bound: float | None, capacity: float, width: int
) -> style.Marks:
    """One latency against the rate: the curve, the bound, and how far the traffic may grow."""
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
    """An axis of seconds: from 0, or logarithmic where the values span much."""
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
    """To a third of a power of ten."""
    return float(10 ** (to(3 * math.log10(value)) / 3))
