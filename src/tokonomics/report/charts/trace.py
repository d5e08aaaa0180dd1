"""A trace as a picture: its rate over time, how long prompts and answers are, how far apart the requests."""

import math

import altair as alt

from tokonomics.report.charts import style
from tokonomics.report.wording import duration_text, how_long
from tokonomics.traffic.summary import TraceSummary
from tokonomics.units import count, plural, requests_a_second

_KINDS = {"prompt": style.BLUE, "answer": style.GREEN}
_WIDTH, _HEIGHT = 720, 150
_SHORT = "format(datum.value, '~s')"
_GUTTER = 64
"""Between two panels side by side, axis included."""


def traffic_chart(trace: TraceSummary) -> alt.TopLevelMixin:
    """Requests and tokens over time; below, the shapes of lengths and, where the clock shows them, of gaps."""
    gaps = trace.gaps if trace.clock_step_s is None else ()
    width = (_WIDTH - _GUTTER) // 2 if gaps else _WIDTH
    lengths = [
        {"kind": kind, "low": share.low, "high": share.high, "share": share.count / trace.requests}
        for kind, tokens in (("prompt", trace.input), ("answer", trace.output))
        for share in tokens.histogram
        if share.low > 0  # a logarithmic axis has no place for answers of no tokens
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
    """Requests above tokens, in the bins that the trace fills; the last is usually cut short: it would look a fall."""
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
    """Shares of requests or gaps over an axis from one power of ten to another."""
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
