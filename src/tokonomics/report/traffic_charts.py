"""A trace as a picture: its rate over time, how long prompts and answers are, how far apart the requests."""

import math
from typing import TYPE_CHECKING, Any, cast

from tokonomics.report.wording import duration_text, how_long
from tokonomics.traffic.summary import Share, TraceSummary
from tokonomics.units import count, plural

if TYPE_CHECKING:
    import altair as alt

_COLOURS = {"prompt": "#3b6fb6", "answer": "#5aa9a4"}
_PLAIN, _OUTLINE = "#cfc9be", "#857c6d"
"""Of requests and gaps, which are neither prompts nor answers."""
_MEAN = "#b33"
_WIDTH, _HEIGHT = 720, 150
_GUTTER = 64
"""Between two panels side by side, axis included."""
_UNITS = ((2 * 86400, 86400, "days"), (2 * 3600, 3600, "hours"), (120, 60, "minutes"), (0, 1, "seconds"))


def traffic_chart(made: TraceSummary) -> "alt.VConcatChart":
    """Requests and tokens over time; below, the shapes of lengths and, where the clock shows them, of gaps."""
    import altair as alt

    gaps = made.gaps if made.clock_step_s is None else ()
    width = (_WIDTH - _GUTTER) // 2 if gaps else _WIDTH
    shapes = [_lengths(made, width), *([_gaps(gaps, width)] if gaps else [])]
    below = alt.hconcat(*shapes)
    over_time = (_rate(made), _tokens(made)) if len(made.curve) > 1 else ()
    title = alt.TitleParams(
        f"{made.source}: {plural(made.requests, 'request')}{how_long(made)}",
        subtitle=(
            f"{count(float(f'{made.rate:.3g}'))} requests/s, {count(made.tokens_per_second)} tokens/s on average"
            if made.rate
            else ""
        )
        + (f" (dashed); a step is {duration_text(made.bin_s)}" if len(made.curve) > 1 else ""),
        anchor="start",
        fontSize=15,
        subtitleFontSize=12,
        offset=10,
    )
    return cast("alt.VConcatChart", alt.vconcat(*over_time, below, title=title).configure_view(stroke=None))


def _time_axis(made: TraceSummary) -> tuple[float, str]:
    return next((size, name) for least, size, name in _UNITS if made.duration_s >= least)


def _bins(made: TraceSummary) -> "list[dict[str, Any]]":
    """Rates of the bins that the trace fills; the last is usually cut short and would look like a fall."""
    unit, _ = _time_axis(made)
    whole = max(int(made.duration_s // made.bin_s), 1)
    return [
        {
            "time": each.start_s / unit,
            "requests": each.requests / made.bin_s,
            "prompt": each.input_tokens / made.bin_s,
            "answer": each.output_tokens / made.bin_s,
        }
        for each in made.curve[:whole]
    ]


def _rate(made: TraceSummary) -> "alt.LayerChart":
    import altair as alt

    _, unit = _time_axis(made)
    x = alt.X("time:Q", title=None, axis=alt.Axis(grid=False, labels=False, ticks=False), scale=alt.Scale(nice=False))
    area = (
        alt.Chart(alt.InlineData(values=_bins(made)))
        .mark_area(interpolate="step-after", color=_PLAIN, line={"color": _OUTLINE, "strokeWidth": 1})
        .encode(
            x=x,
            y=alt.Y("requests:Q", title="requests/s", axis=alt.Axis(tickCount=4)),
            tooltip=[alt.Tooltip("time:Q", title=unit), alt.Tooltip("requests:Q", format=".3g")],
        )
    )
    mean = alt.Chart(alt.InlineData(values=[{"rate": made.rate}]))
    rule = mean.mark_rule(strokeDash=[4, 4], color=_MEAN).encode(y="rate:Q")
    return cast("alt.LayerChart", alt.layer(area, rule).properties(width=_WIDTH, height=_HEIGHT))


def _tokens(made: TraceSummary) -> "alt.Chart":
    import altair as alt

    _, unit = _time_axis(made)
    points = [
        {"time": each["time"], "kind": kind, "tokens": each[kind]}
        for each in _bins(made)
        for kind in ("prompt", "answer")
    ]
    panel: alt.Chart = (
        alt.Chart(alt.InlineData(values=points))
        .mark_area(interpolate="step-after", opacity=0.85)
        .encode(
            x=alt.X(
                "time:Q",
                title=f"{unit} since the first request",
                axis=alt.Axis(grid=False),
                scale=alt.Scale(nice=False),
            ),
            y=alt.Y(
                "sum(tokens):Q", title="tokens/s", axis=alt.Axis(tickCount=4, labelExpr="format(datum.value, '~s')")
            ),
            color=_kinds(),
            tooltip=[alt.Tooltip("time:Q", title=unit), "kind:N", alt.Tooltip("tokens:Q", format=",.0f")],
        )
        .properties(width=_WIDTH, height=_HEIGHT)
    )
    return panel


def _lengths(made: TraceSummary, width: int) -> "alt.Chart":
    import altair as alt

    bars = [
        {"kind": kind, "low": each.low, "high": each.high, "share": each.count / made.requests}
        for kind, lengths in (("prompt", made.input), ("answer", made.output))
        for each in lengths.histogram
        if each.low > 0  # a logarithmic axis has no place for answers of no tokens
    ]
    panel: alt.Chart = (
        alt.Chart(alt.InlineData(values=bars))
        .mark_bar(opacity=0.6)
        .encode(
            x=_log(bars, "tokens of a prompt or an answer", "format(datum.value, ',')"),
            x2="high:Q",
            y=alt.Y("share:Q", stack=None, title="share of requests", axis=alt.Axis(format="%", tickCount=4)),
            y2=alt.datum(0),
            color=_kinds(),
            tooltip=["kind:N", "low:Q", "high:Q", alt.Tooltip("share:Q", format=".2%")],
        )
        .properties(width=width, height=_HEIGHT)
    )
    return panel


def _gaps(gaps: tuple[Share, ...], width: int) -> "alt.Chart":
    import altair as alt

    total = sum(gap.count for gap in gaps)
    bars = [{"low": gap.low, "high": gap.high, "share": gap.count / total} for gap in gaps]
    panel: alt.Chart = (
        alt.Chart(alt.InlineData(values=bars))
        .mark_bar(color=_PLAIN)
        .encode(
            x=_log(
                bars,
                "from one request to the next",
                "datum.value < 1 ? format(datum.value * 1000, '~g') + ' ms' : format(datum.value, ',') + ' s'",
            ),
            x2="high:Q",
            y=alt.Y("share:Q", title="share of gaps", axis=alt.Axis(format="%", tickCount=4)),
            y2=alt.datum(0),
            tooltip=["low:Q", "high:Q", alt.Tooltip("share:Q", format=".2%")],
        )
        .properties(width=width, height=_HEIGHT)
    )
    return panel


def _log(bars: "list[dict[str, Any]]", title: str, label: str) -> "alt.X":
    """A logarithmic axis from one power of ten to another, with a mark at each."""
    import altair as alt

    first = math.floor(math.log10(min(bar["low"] for bar in bars)) + 1e-9)
    last = math.ceil(math.log10(max(bar["high"] for bar in bars)) - 1e-9)
    scale = alt.Scale(type="log", domain=[10.0**first, 10.0**last], nice=False)
    axis = alt.Axis(
        grid=False,
        values=[10.0**power for power in range(first, last + 1)],
        labelExpr=label,
        labelFlush=False,
        labelSeparation=8,
    )
    return alt.X("low:Q", title=title, scale=scale, axis=axis)


def _kinds() -> "alt.Color":
    import altair as alt

    scale = alt.Scale(domain=list(_COLOURS), range=list(_COLOURS.values()))
    return alt.Color("kind:N", title=None, scale=scale, legend=alt.Legend(orient="top", direction="horizontal"))
