"""Draw what a twin expected of a server as bands, and what was measured as a line over them."""

import math
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import pairwise, zip_longest

import altair as alt

from tokonomics.measure.meter.windows import WINDOW_S
from tokonomics.operate.learn import TwinWindow
from tokonomics.report.charts import style
from tokonomics.units import DAY_S

_WIDTH, _HEIGHT, _LABEL = 620, 100, 14
_TIMES = ("ttft", "tpot")
_TICKS_S = (60.0, 300.0, 600.0, 1800.0, 3600.0, 3 * 3600.0, 6 * 3600.0, 12 * 3600.0, DAY_S)
_MOST_TICKS = 9
_APART = 0.34  # of the width, for the time and cause of a change: of a phone
_DEEPEST = 3  # rows of labels; further changes have theirs in the tooltip and the table


def bands_chart(windows: Sequence[TwinWindow], titles: Mapping[str, str], wanted: Sequence[str]) -> alt.TopLevelMixin:
    """Draw a panel for each figure: the forecast's 80 % band and middle, measured values, and changes as rules."""
    length_s = min((then.start - now.start for now, then in pairwise(windows)), default=WINDOW_S)
    first, end = windows[0].start, windows[-1].start + length_s
    step = next((step for step in _TICKS_S if end - first <= _MOST_TICKS * step), _TICKS_S[-1])
    clock = "%H:%M" if end - first <= DAY_S else "%m-%d %H:%M"
    ticks = [tick * step * 1000 for tick in range(math.ceil(first / step), math.floor(end / step) + 1)]
    # Numbers, not dates: the page interprets expressions, and its interpreter reads no domain of dates.
    scale = style.linear(first * 1000, end * 1000)
    x = style.across(
        "at", None, scale, values=ticks, gridOpacity=0.3, labelSeparation=8, labelFlush=False, labelOverlap="greedy",
        labelExpr=f"utcFormat(datum.value, '{clock if step < DAY_S else '%m-%d'}')",
    )  # fmt: skip
    changes = _changes(windows, clock, end - first)
    names = [name for name in wanted if _known(windows, name)] or wanted[:1]
    panels = [_panel(name, titles[name], changes, x) for name in names]
    title = f"{windows[0].model} on {windows[0].target}"
    subtitle = "band: forecast (80 % interval) and its middle; line: measured; dashed: what changed; times are UTC"
    drawn: style.Marks = style.whole(alt.vconcat(*_labels(changes, scale), *panels, spacing=8), title, subtitle)
    for panel, name in zip(drawn.vconcat[-len(names) :], names, strict=True):
        # Given at the end, as Altair copies rows whenever marks are put together: a second for a thousand windows.
        panel.data = alt.InlineData(values=[*_whole_windows(_rows(windows, name), length_s * 1000)])
    whole: alt.TopLevelMixin = drawn
    return whole


def _known(windows: Sequence[TwinWindow], name: str) -> bool:
    return any(name in window.figures and window.figures[name].measured is not None for window in windows)


def _changes(windows: Sequence[TwinWindow], clock: str, lasted_s: float) -> list[style.Row]:
    """Return a row for each window with changes; the label is empty where there is no room for it."""
    rows: list[style.Row] = []
    free = [0.0] * _DEEPEST  # where each row of labels has room again
    for window in windows:
        if not (found := [change for change in window.changes if not change.goes_on]):
            continue
        causes = ", ".join(dict.fromkeys(change.cause for change in found))
        row = next((place for place, at in enumerate(free) if window.start >= at), None)
        label = f"{datetime.fromtimestamp(window.start, UTC).strftime(clock)} {causes}"
        if row is not None:
            free[row] = window.start + _APART * lasted_s * max(1.0, len(label) / 14)
        said = {"at": window.start * 1000, "cause": causes, "what": "; ".join(change.what for change in found)}
        rows.append(said | {"row": row or 0, "label": label if row is not None else ""})
    return rows


def _labels(changes: Sequence[style.Row], scale: alt.Scale) -> list[style.Marks]:
    """Draw the time and the cause of each change above the panels, apart from each other."""
    if not changes:
        return []
    x = alt.X("at:Q", axis=None, scale=scale)
    height = _LABEL * (1 + max(row["row"] for row in changes))
    text = style.plot(changes).mark_text(color=style.RED, fontSize=11, baseline="middle")
    label = text.encode(x=x, y=alt.Y("row:O", axis=None, sort="descending"), text="label:N")
    return [style.panel(label, width=_WIDTH, height=height)]


def _rows(windows: Sequence[TwinWindow], name: str) -> list[style.Row]:
    rows: list[style.Row] = []
    for window in windows:
        if (figure := window.figures.get(name)) is None:
            continue
        row = {"at": window.start * 1000, "time": f"{datetime.fromtimestamp(window.start, UTC):%Y-%m-%d %H:%M}"}
        band = {} if figure.forecast is None else figure.forecast.model_dump()
        rows.append(row | band | ({} if figure.measured is None else {"measured": figure.measured}))
    return rows


def _panel(name: str, title: str, changes: Sequence[style.Row], x: alt.X) -> style.Marks:
    drawn = alt.Chart()
    said = "format(datum.value, '$~g')" if name == "usd_per_mtok" else "format(datum.value, '~s')"
    said = style.AS_TIME if name.startswith(_TIMES) else said
    y = style.upwards("mid", title, tickCount=4, labelExpr=said)
    steps: style.Settings = {"interpolate": "step-after"}
    marks = [
        drawn.mark_area(color=style.PALE_BLUE, **steps).encode(x=x, y=alt.Y("low:Q", title=title), y2="high:Q"),
        drawn.mark_line(color=style.LIGHT_BLUE, **steps).encode(x=x, y=y),
        drawn.mark_line(color=style.DARK_BLUE, strokeWidth=1.6, **steps).encode(
            x=x, y="measured:Q", tooltip=style.tips("time", measured=".4~g")
        ),
        style.plot(changes).mark_rule(color=style.RED, strokeDash=style.DASHED).encode(
            x=x, tooltip=style.tips("what", "cause")
        ),
    ]  # fmt: skip
    return style.panel(*marks, width=_WIDTH, height=_HEIGHT)


def _whole_windows(rows: Sequence[style.Row], length: float) -> Iterator[style.Row]:
    """Yield rows so that each step lasts to the end of its window, though nothing, or not the same, follows it."""
    for row, following in zip_longest(rows, rows[1:]):
        yield row
        end = row["at"] + length
        is_gap = following is not None and following["at"] > end + 1
        if following is None or is_gap or row.keys() != following.keys():
            yield row | {"at": end}
        if is_gap:
            yield {"at": end}  # a break
