"""Share colours, titles, axes, marks, labels and the arrangement of panels between all charts."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt

Row = dict[str, Any]
Settings = dict[str, Any]  # settings of a mark, an axis, a legend or a position that several share
Marks = Any  # an Altair chart; its methods do not say which kind they return

BLUE, LIGHT_BLUE, PALE_BLUE, DARK_BLUE = "#3b6fb6", "#9cb9de", "#d3dfef", "#1f3f70"
GREEN, LIGHT_GREEN, PALE_GREEN, DARK_GREEN = "#5aa9a4", "#8cc5c1", "#d2e8e5", "#2f6f6b"
RED = "#b33"
"""For SLOs and limits, and for what is added to a bill."""
SAND, DARK_SAND, OUTLINE = "#d9d3c7", "#b9b2a6", "#857c6d"
"""For what is neither good nor bad: idle, unused, requests."""
GREY, INK = "#999", "#333"
DISTINCT = (
    BLUE, GREEN, "#e5a24f", "#8a6bb1", "#c8553d", "#7a9a3a", "#d985b0", "#4d4d4d", "#49a6d6", "#b08a4a",
)  # fmt: skip
"""Colours for things that only need to differ."""

DASHED, DOTTED, SOLID = [4, 4], [2, 3], [1, 0]
AS_TIME = (
    "datum.value == 0 ? '0' : datum.value < 1 ? format(datum.value * 1000, '~r') + ' ms' "
    ": format(datum.value, ',~r') + ' s'"
)
"""Format seconds on an axis."""
DOLLARS: Settings = {"format": "$,.0f", "tickCount": 6}  # an axis of dollars a month
_UNITS = ((2 * 86400, 86400, "days"), (2 * 3600, 3600, "hours"), (120, 60, "minutes"), (0, 1, "seconds"))


def time_unit(duration_s: float) -> tuple[int, str]:
    """Return the seconds in the unit in which such a duration reads best, and the unit's name."""
    return next((size, name) for least, size, name in _UNITS if duration_s >= least)


# --- axes and scales ------------------------------------------------------------------------------------------------


def linear(low: float, high: float) -> alt.Scale:
    """Return a linear scale exactly from one value to the other."""
    return alt.Scale(domain=[low, high], nice=False)


def log(low: float, high: float) -> alt.Scale:
    """Return a logarithmic scale exactly from one value to the other."""
    return alt.Scale(type="log", domain=[low, high], nice=False)


def powers(low: float, high: float, steps: Sequence[int] = (1,)) -> list[float]:
    """Return ticks between two values: every power of ten, times each of ``steps``."""
    exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = (step * 10.0**exponent for exponent in exponents for step in steps)
    return [tick for tick in ticks if low * (1 - 1e-9) <= tick <= high * (1 + 1e-9)]


def across(field: str, title: str | None = None, scale: alt.Scale | None = None, **axis: Any) -> alt.X:
    """Return an axis for a quantity from left to right."""
    return alt.X(f"{field}:Q", **_quantity(title, scale, axis))


def upwards(field: str, title: str | None = None, scale: alt.Scale | None = None, **axis: Any) -> alt.Y:
    """Return an axis for a quantity from the bottom up."""
    return alt.Y(f"{field}:Q", **_quantity(title, scale, axis))


def _quantity(title: str | None, scale: alt.Scale | None, axis: Settings) -> Settings:
    return {"title": title, "scale": scale or alt.Undefined, "axis": alt.Axis(**{"gridOpacity": 0.5, **axis})}


def names(field: str, order: Sequence[str], room: int = 320) -> alt.Y:
    """Return an axis with a row for each name, from the top down."""
    axis = alt.Axis(labelLimit=room, ticks=False, domain=False, labelPadding=6)
    return alt.Y(f"{field}:N", title=None, sort=list(order), axis=axis)


def colours(
    field: str, palette: Mapping[str, str], title: str | None = None, *, named: bool = True, **legend: Any
) -> alt.Color:
    """Return the colour of each name; ``named`` adds a legend, by default above the panel."""
    shown = alt.Legend(**{"orient": "top", "direction": "horizontal", **legend}) if named else None
    return alt.Color(f"{field}:N", title=title, scale=_each(palette), legend=shown)


def dashes(field: str, patterns: Mapping[str, Sequence[int]], *, named: bool = True) -> alt.StrokeDash:
    """Return the dashes of each name's line, shown in the legend of its colour."""
    legend = alt.Undefined if named else None
    return alt.StrokeDash(f"{field}:N", title=None, scale=_each(patterns), legend=legend)


def _each(values: Mapping[str, Any]) -> alt.Scale:
    return alt.Scale(domain=list(values), range=list(values.values()))


def tips(*fields: str, **formats: str) -> list[alt.Tooltip]:
    """Return the tooltip of a mark: names, and figures in their formats."""
    return [
        *(alt.Tooltip(f"{field}:N") for field in fields),
        *(alt.Tooltip(f"{field}:Q", format=wanted) for field, wanted in formats.items()),
    ]


# --- marks ----------------------------------------------------------------------------------------------------------


def plot(rows: Iterable[Row]) -> alt.Chart:
    """Return a chart of rows to mark."""
    return alt.Chart(alt.InlineData(values=list(rows)))


def bars(rows: Iterable[Row], **how: Any) -> Marks:
    """Draw a bar in each row of names."""
    return plot(rows).mark_bar(height={"band": 0.66}, **how)


def labels(rows: Iterable[Row], left: bool = False, **how: Any) -> Marks:
    """Draw the ``label`` of each row beside its position."""
    side: Settings = {"align": "right", "dx": -5} if left else {"align": "left", "dx": 5}
    return plot(rows).mark_text(**{"fontSize": 11, "color": INK, **side, **how}).encode(text="label:N")


def labelled_bars(rows: Sequence[Row], x: alt.X, y: alt.Y, how: Settings | None = None, **encoded: Any) -> list[Marks]:
    """Draw a bar in each row of names with its ``label``; ``how`` sets its look, ``encoded`` further channels."""
    return [bars(rows, **(how or {})).encode(x=x, y=y, **encoded), labels(rows).encode(x=x, y=y)]


def limit(
    rows: Sequence[Row], x: alt.X, y: float = 8, *, colour: str = RED, dash: Sequence[int] = DASHED, left: bool = True
) -> list[Marks]:
    """Draw vertical lines, each with its ``label`` beside it at a height in pixels."""
    lines = plot(rows).mark_rule(strokeDash=dash, color=colour).encode(x=x)
    return [lines, labels(rows, left, color=colour, y=y).encode(x=x)]


def tornado(rows: Sequence[Row], field: str, x: alt.X, unmoved: Mapping[str, str], tooltip: Sequence[Any]) -> Marks:
    """Draw bars on either side of the ``mid`` of rows, one assumption (``what``) below the other, with named ends.

    ``unmoved`` lists every assumption in order, with the text to show if it moves nothing.
    """
    mid = rows[0]["mid"]
    moved = [row for row in rows if not math.isclose(row[field], mid, rel_tol=1e-9)]
    changed = {row["what"] for row in moved}
    still = [{"what": what, field: mid, "label": label} for what, label in unmoved.items() if what not in changed]
    y = names("what", list(unmoved))
    sides = colours("side", {"smaller value": GREEN, "larger value": BLUE}, symbolType="square")
    layers = [
        bars(rows).encode(x=x, x2="mid:Q", y=y, color=sides, tooltip=tooltip),
        plot([{field: mid}]).mark_rule(color=INK).encode(x=x),
        labels(row for row in moved if row[field] > mid).encode(x=x, y=y),
        labels((row for row in moved if row[field] < mid), left=True).encode(x=x, y=y),
        labels(still, dx=8, color=OUTLINE).encode(x=x, y=y),
    ]
    return panel(*layers, width=560, height=alt.Step(30))


# --- panels ---------------------------------------------------------------------------------------------------------


def panel_title(text: str) -> Settings:
    """Return the title of one panel of several."""
    return {
        "text": text, "anchor": "start", "fontSize": 12, "fontWeight": "normal", "color": INK, "offset": 6,
        "frame": "group",
    }  # fmt: skip


def title(text: str, *subtitle: str) -> Settings:
    """Return the title of a whole chart."""
    return {
        "text": text, **({"subtitle": list(subtitle)} if subtitle else {}), "anchor": "start", "fontSize": 15,
        "subtitleFontSize": 12, "offset": 12,
    }  # fmt: skip


def panel(*layers: Marks, width: float | alt.Step, height: float | alt.Step, title: str = "") -> Marks:
    """Draw marks over each other."""
    drawn = alt.layer(*layers) if len(layers) > 1 else layers[0]
    sized = drawn.properties(width=width, height=height)
    return sized.properties(title=alt.TitleParams(**panel_title(title))) if title else sized


def whole(chart: Marks, name: str, *subtitle: str) -> alt.TopLevelMixin:
    """Return a chart under its title, without frames around its panels."""
    titled = chart.properties(title=alt.TitleParams(**title(name, *subtitle)))
    drawn: alt.TopLevelMixin = titled.configure_view(stroke=None)
    return drawn


@dataclass(frozen=True)
class Spec:
    """A chart written as Vega-Lite: the page draws it directly, and Altair saves it."""

    spec: Settings

    def to_dict(self, **_: Any) -> Settings:
        return {"$schema": alt.SCHEMA_URL, **self.spec}

    def altair(self) -> Marks:
        return alt.HConcatChart.from_dict(self.spec)


def stacked(charts: Iterable[Marks]) -> alt.TopLevelMixin:
    """Put whole charts below each other; common settings replace their own."""
    plain = [chart.altair() if isinstance(chart, Spec) else chart.copy(deep=False) for chart in charts]
    for chart in plain:
        chart.config = alt.Undefined
    drawn: alt.TopLevelMixin = (
        alt.vconcat(*plain, spacing=45).resolve_scale(color="independent").configure_view(stroke=None)
    )
    return drawn
