"""A simulation as a picture: load, waiting, latency and memory over time; and latency against the rate of requests."""

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, cast

from tokonomics.serving.outcome import Moment, Outcome
from tokonomics.units import count, seconds

if TYPE_CHECKING:
    import altair as alt

Row = dict[str, Any]

_BLUE, _LIGHT_BLUE, _PALE_BLUE = "#3b6fb6", "#9cb9de", "#d3dfef"
_GREEN, _PALE_GREEN = "#5aa9a4", "#d2e8e5"
_PLAIN, _OUTLINE = "#cfc9be", "#857c6d"
_OBJECTIVES = "#b33"
_DASHES = [4, 4]
_WIDTH, _HEIGHT, _TALL = 720, 72, 120
_GUTTER = 70
"""Between two panels side by side, axis included."""
_UNITS = ((2 * 86400, 86400, "days"), (2 * 3600, 3600, "hours"), (120, 60, "minutes"), (0, 1, "seconds"))
_MANY_TIMES = 20
"""From this ratio of the largest to the smallest on, an axis of times is logarithmic."""
_NEAR = 8
"""Pixels from an end of an axis at which a label is moved inside, so that panels stay in line."""
_NAMES = {"ttft": "Time to first token", "tpot": "Time per output token", "e2e": "Time to the last token"}
_AS_TIME = (
    "datum.value == 0 ? '0' : datum.value < 1 ? format(datum.value * 1000, '~r') + ' ms' "
    ": format(datum.value, ',~r') + ' s'"
)


def simulate_chart(outcome: Outcome, moments: Sequence[Moment], title: str, subtitle: str) -> "alt.VConcatChart":
    """What came in, who waited, how long, and what the replicas did, on one axis of time."""
    import altair as alt

    edges = _edges(outcome, moments)
    unit, name = next((size, name) for least, size, name in _UNITS if edges[-1] >= least)

    def steps(*series: tuple[str, Iterable[float | None]]) -> list[Row]:
        return [row for kind, values in series for row in _steps([edge / unit for edge in edges], kind, values)]

    def each(field: str) -> list[float | None]:
        return [getattr(moment, field) for moment in moments]

    x = _time(edges[-1] / unit, None)
    panels: list[alt.Chart | alt.LayerChart] = [
        _area(steps(("requests/s", each("arrivals_per_s"))), x, "Requests arriving per second", _PLAIN, _OUTLINE),
        _area(steps(("waiting", each("waiting"))), x, "Requests waiting", _PLAIN, _OUTLINE, least=1),
        _first_tokens(steps(("p50", each("ttft_p50_s")), ("p99", each("ttft_p99_s"))), outcome, x),
        _area(steps(("sequences", each("running"))), x, "Sequences in the batch", _PALE_BLUE, _BLUE, least=1),
        _shares(steps(("computing", each("busy_share")), ("KV in use", each("kv_share"))), x),
        _area(
            steps(("tokens/s", each("output_tokens_per_s"))),
            _time(edges[-1] / unit, f"{name} (bins of {seconds(edges[1] - edges[0])})"),
            "Output tokens per second",
            _PALE_GREEN,
            _GREEN,
        ),
    ]
    stacked = alt.vconcat(*panels, spacing=14, title=_title(title, subtitle)).resolve_scale(
        color="independent", strokeDash="independent"
    )
    return cast("alt.VConcatChart", stacked.configure_view(stroke=None))


def capacity_chart(
    points: Sequence[tuple[float, Outcome]],
    title: str,
    subtitle: str | None = None,
    capacity: float | None = None,
) -> "alt.HConcatChart":
    """What is delivered at each rate of requests, a panel for each SLO; without any, p99 of both latencies.

    ``capacity`` is the highest rate that holds, drawn as a line where given.
    """
    import altair as alt

    in_order = sorted(points, key=lambda point: point[0])
    targets = {kept.slo: kept.objective_s for kept in in_order[0][1].slo}
    names = list(targets) or ["ttft_p99", "tpot_p99"]
    width = max((_WIDTH - _GUTTER * (len(names) - 1)) // len(names), 220)
    if subtitle is None:
        subtitle = "Each point is a simulation" + ("; filled: the SLO is met" if targets else "")
    panels = [_delivered(in_order, name, targets.get(name), capacity, width) for name in names]
    side_by_side = alt.hconcat(*panels, spacing=28, title=_title(title, subtitle))
    return cast("alt.HConcatChart", side_by_side.configure_view(stroke=None))


def _edges(outcome: Outcome, moments: Sequence[Moment]) -> list[float]:
    """Where the bins begin, and where the last one ends: usually cut short."""
    starts = [moment.at_s for moment in moments]
    width = starts[1] - starts[0] if len(starts) > 1 else outcome.duration_s or 1.0
    whole = starts[-1] + width
    return [*starts, min(outcome.duration_s, whole) if outcome.duration_s > starts[-1] else whole]


def _steps(edges: Sequence[float], kind: str, values: Iterable[float | None]) -> Iterable[Row]:
    """A value from one edge to the next, written out: so a lone bin between empty ones is seen too."""
    for (start, end), value in zip(pairwise(edges), values, strict=True):
        yield {"time": start, "kind": kind, "value": value}
        yield {"time": end, "kind": kind, "value": value}


def _time(end: float, unit: str | None) -> "alt.X":
    import altair as alt

    shown = unit is not None
    axis = alt.Axis(grid=True, gridOpacity=0.5, labels=shown, ticks=shown, domain=shown, tickCount=12, labelFlush=False)
    return alt.X("time:Q", title=unit, axis=axis, scale=alt.Scale(domain=[0, end], nice=False))


def _area(rows: list[Row], x: "alt.X", title: str, fill: str, line: str, least: float = 0) -> "alt.Chart":
    """One quantity; its axis reaches ``least`` at the least, and has a length where nothing happens."""
    import altair as alt

    top = max(least, 1.05 * max(row["value"] for row in rows)) or 1
    panel: alt.Chart = (
        alt.Chart(alt.InlineData(values=rows))
        .mark_area(color=fill, line={"color": line, "strokeWidth": 1})
        .encode(
            x=x,
            y=alt.Y(
                "value:Q",
                title=None,
                stack=None,
                scale=alt.Scale(domain=[0, top], nice=False),
                axis=alt.Axis(tickCount=3, labelExpr="format(datum.value, datum.value < 1 ? '~g' : '~s')"),
            ),
            tooltip=[alt.Tooltip("time:Q", format=".4~g"), alt.Tooltip("value:Q", title=title, format=",.4~g")],
        )
        .properties(width=_WIDTH, height=_HEIGHT, title=_heading(title))
    )
    return panel


def _first_tokens(rows: list[Row], outcome: Outcome, x: "alt.X") -> "alt.LayerChart":
    import altair as alt

    targets = {
        f"SLO {kept.slo.partition('_')[2]}: {seconds(kept.objective_s)}": kept.objective_s
        for kept in outcome.slo
        if kept.slo.startswith("ttft")
    }
    colours = {"p99": _BLUE, "p50": _LIGHT_BLUE} | dict.fromkeys(targets, _OBJECTIVES)
    patterns = [_DASHES if colour == _OBJECTIVES else [1, 0] for colour in colours.values()]
    dashes = alt.StrokeDash("kind:N", title=None, scale=alt.Scale(domain=list(colours), range=patterns))
    known = [row["value"] for row in rows if row["value"] is not None]
    y = _times([*known, *targets.values()], 4)
    lines = (
        alt.Chart(alt.InlineData(values=rows))
        .mark_line(strokeWidth=1.5)
        .encode(
            x=x,
            y=alt.Y("value:Q", title=None, **y),
            color=_colours(colours),
            strokeDash=dashes,
            tooltip=[alt.Tooltip("time:Q", format=".4~g"), "kind:N", alt.Tooltip("value:Q", format=".3~s")],
        )
    )
    rules = (
        alt.Chart(alt.InlineData(values=[{"kind": kind, "value": bound} for kind, bound in targets.items()]))
        .mark_rule()
        .encode(y=alt.Y("value:Q", title=None, **y), color=_colours(colours), strokeDash=dashes)
    )
    heading = _heading("Time to first token, by time of arrival")
    layers = alt.layer(lines, rules) if targets else alt.layer(lines)
    return cast("alt.LayerChart", layers.properties(width=_WIDTH, height=_TALL, title=heading))


def _shares(rows: list[Row], x: "alt.X") -> "alt.Chart":
    import altair as alt

    panel: alt.Chart = (
        alt.Chart(alt.InlineData(values=rows))
        .mark_line(strokeWidth=1.5)
        .encode(
            x=x,
            y=alt.Y(
                "value:Q",
                title=None,
                scale=alt.Scale(domain=[0, 1]),
                axis=alt.Axis(values=[0, 0.5, 1], labelExpr="format(datum.value * 100, 'd') + ' %'"),
            ),
            color=_colours({"computing": _OUTLINE, "KV in use": _GREEN}),
            tooltip=[alt.Tooltip("time:Q", format=".4~g"), "kind:N", alt.Tooltip("value:Q", format=".1%")],
        )
        .properties(width=_WIDTH, height=_HEIGHT, title=_heading("Share of time computing, share of KV memory in use"))
    )
    return panel


def _delivered(
    points: Sequence[tuple[float, Outcome]], name: str, bound: float | None, capacity: float | None, width: int
) -> "alt.LayerChart":
    """One latency against the rate: the curve, the bound, and how far the traffic may grow."""
    import altair as alt

    latency, _, statistic = name.partition("_")
    found = [(rate, getattr(getattr(outcome, f"{latency}_s"), statistic)) for rate, outcome in points]
    rows = [
        {"rate": rate, "value": value, "kept": bound is None or value <= bound}
        for rate, value in found
        if value is not None
    ]
    x = alt.X(
        "rate:Q",
        title="requests per second",
        scale=alt.Scale(domain=[0, 1.02 * points[-1][0]], nice=False),
        axis=alt.Axis(grid=False, tickCount=6, labelFlush=False),
    )
    times = [row["value"] for row in rows] + ([bound] if bound else [])
    y = alt.Y("value:Q", title=None, **_times(times, 5))
    curve = alt.Chart(alt.InlineData(values=rows))
    line = curve.mark_line(color=_BLUE, strokeWidth=1.5).encode(x=x, y=y)
    dots = curve.mark_point(filled=True, size=42, opacity=1, stroke=_BLUE, strokeWidth=1.5).encode(
        x=x,
        y=y,
        fill=alt.condition("datum.kept", alt.value(_BLUE), alt.value("white")),
        tooltip=["rate:Q", alt.Tooltip("value:Q", title=name, format=".3~s"), "kept:N"],
    )
    layers: list[alt.Chart] = []
    if bound:
        targets = alt.Chart(alt.InlineData(values=[{"value": bound, "label": f"SLO {seconds(bound)}"}]))
        text = targets.mark_text(align="left", baseline="bottom", x=5, dy=-3, color=_OBJECTIVES)
        layers += [
            targets.mark_rule(strokeDash=_DASHES, color=_OBJECTIVES).encode(y=y),
            text.encode(y=y, text="label:N"),
        ]
    if capacity:
        limit = alt.Chart(alt.InlineData(values=[{"rate": capacity, "label": f"{count(capacity)}/s"}]))
        left = capacity > 0.25 * points[-1][0]
        text = limit.mark_text(
            align="right" if left else "left", baseline="top", y=2, dx=-5 if left else 5, color=_OUTLINE
        )
        layers += [limit.mark_rule(color=_OUTLINE).encode(x=x), text.encode(x=x, text="label:N")]
    heading = _heading(f"{_NAMES[latency]}, {statistic}")
    return cast("alt.LayerChart", alt.layer(*layers, line, dots).properties(width=width, height=240, title=heading))


def _times(values: Sequence[float], ticks: int) -> "dict[str, Any]":
    """Scale and axis for seconds: from 0, or logarithmic where the values span much."""
    import altair as alt

    above = [value for value in values if value > 0]
    if not above or max(above) < _MANY_TIMES * min(above):
        top = 1.08 * max(above, default=1.0)
        axis = alt.Axis(tickCount=ticks, labelExpr=_AS_TIME, labelFlush=_NEAR)
        return {"scale": alt.Scale(domain=[0, top], nice=False, clamp=True), "axis": axis}
    low, high = _round(min(above) / 1.1, math.floor), _round(1.1 * max(above), math.ceil)
    powers = range(math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9) + 1)
    axis = alt.Axis(values=[10.0**power for power in powers], labelExpr=_AS_TIME, labelFlush=_NEAR)
    return {"scale": alt.Scale(type="log", domain=[low, high], nice=False, clamp=True), "axis": axis}


def _round(value: float, to: Any) -> float:
    """To a third of a power of ten."""
    return float(10 ** (to(3 * math.log10(value)) / 3))


def _colours(colours: dict[str, str]) -> "alt.Color":
    import altair as alt

    scale = alt.Scale(domain=list(colours), range=list(colours.values()))
    return alt.Color("kind:N", title=None, scale=scale, legend=alt.Legend(orient="right", symbolType="stroke"))


def _heading(text: str) -> "alt.TitleParams":
    import altair as alt

    return alt.TitleParams(
        text, anchor="start", fontSize=11, fontWeight="normal", color="#444", offset=5, frame="group"
    )


def _title(title: str, subtitle: str) -> "alt.TitleParams":
    import altair as alt

    return alt.TitleParams(title, subtitle=subtitle, anchor="start", fontSize=15, subtitleFontSize=12, offset=12)
