"""Draw what a twin expected of a server as bands, and what was measured as a line over them."""

from collections.abc import Mapping, Sequence

import altair as alt

from tokonomics.operate.learn import TwinWindow
from tokonomics.report.charts import style

_WIDTH, _HEIGHT = 620, 120
_TIMES = ("ttft", "tpot")
_A_DAY_MS = 86_400_000


def bands_chart(windows: Sequence[TwinWindow], titles: Mapping[str, str], wanted: Sequence[str]) -> alt.TopLevelMixin:
    """Draw a panel for each figure: the forecast's 80 % band and middle, measured values, and changes as rules."""
    changes: list[style.Row] = [
        {"at": window.start * 1000, "what": change.what, "cause": change.cause}
        for window in windows
        for change in window.changes
        if not change.goes_on
    ]
    panels = [_panel(windows, name, titles[name], changes) for name in wanted if _known(windows, name)]
    shown = panels or [_panel(windows, "tokens_per_s", titles["tokens_per_s"], changes)]
    title = f"{windows[0].model} on {windows[0].target}" if windows else "No windows"
    subtitle = "band: forecast, four of five; line: measured; rules: what changed (UTC)"
    return style.whole(style.stacked(shown), title, subtitle)


def _known(windows: Sequence[TwinWindow], name: str) -> bool:
    return any(name in window.figures and window.figures[name].measured is not None for window in windows)


def _panel(windows: Sequence[TwinWindow], name: str, title: str, changes: Sequence[style.Row]) -> alt.TopLevelMixin:
    rows: list[style.Row] = []
    for window in windows:
        figure = window.figures.get(name)
        if figure is None:
            continue
        row: style.Row = {"at": window.start * 1000}
        if figure.forecast is not None:
            row |= {"low": figure.forecast.low, "mid": figure.forecast.mid, "high": figure.forecast.high}
        if figure.measured is not None:
            row["measured"] = figure.measured
        rows.append(row)
    times = name.startswith(_TIMES)
    hours = "%H:%M" if len(rows) < 2 or rows[-1]["at"] - rows[0]["at"] < _A_DAY_MS else "%m-%d %H:%M"
    x = alt.X("at:T", title=None, scale=alt.Scale(type="utc"), axis=alt.Axis(gridOpacity=0.3, format=hours))
    axis: style.Settings = {"labelExpr": style.AS_TIME} if times else {"format": "~s"}
    y = style.upwards("mid", title, tickCount=4, **(axis if name != "usd_per_mtok" else {"format": "$~g"}))
    forecast = [row for row in rows if "mid" in row]
    measured = [row for row in rows if "measured" in row]
    marks = [
        style.plot(forecast).mark_area(color=style.PALE_BLUE, interpolate="step-after").encode(
            x=x, y=alt.Y("low:Q", title=title), y2="high:Q"
        ),
        style.plot(forecast).mark_line(color=style.LIGHT_BLUE, interpolate="step-after").encode(x=x, y=y),
        style.plot(measured).mark_line(color=style.DARK_BLUE, interpolate="step-after", strokeWidth=1.6).encode(
            x=x, y="measured:Q", tooltip=style.tips(measured=".4~g")
        ),
        style.plot(list(changes)).mark_rule(color=style.RED, strokeDash=style.DASHED).encode(
            x=x, tooltip=style.tips("what", "cause")
        ),
    ]  # fmt: skip
    drawn: alt.TopLevelMixin = style.panel(*marks, width=_WIDTH, height=_HEIGHT)
    return drawn
