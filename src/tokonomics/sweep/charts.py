"""A sweep as a picture: one key as a line or bars, two as lines by colour or a map of cells.

Where more keys were swept, each mark is the best over the others. Points that keep no promise are left out.
"""

from typing import TYPE_CHECKING, Any, cast

from tokonomics.sweep.summary import Summary
from tokonomics.units import plural

if TYPE_CHECKING:
    import altair as alt

_MOST_COLOURS = 8
"""More lines than this cannot be told apart: a map of cells instead."""
_INK = "#333"


def sweep_chart(summary: Summary) -> "alt.LayerChart":
    """The ranking figure over the first two keys."""
    import altair as alt

    keys = sorted(summary.keys, key=lambda key: -_numbers(summary, key))[:2]  # the longest line runs across
    cells = _cells(summary, keys)
    others = [key for key in summary.keys if key not in keys]
    said = f"{plural(len(summary.ranked), 'point')} of {len(summary.rows):,} that answer and keep the promise"
    subtitle = [said] + ([f"the best over {', '.join(others)}"] if others else [])
    title = alt.TitleParams(
        f"{summary.verb}: {summary.by} over {' and '.join(keys)}", subtitle=subtitle, anchor="start", fontSize=15
    )
    data = alt.InlineData(values=cells)
    numeric = _numbers(summary, keys[0])
    y: Any = alt.Y("figure:Q", title=summary.by)
    tooltip = [alt.Tooltip("first:N", title=keys[0]), alt.Tooltip("figure:Q", title=summary.by, format=".4g")]
    if len(keys) == 1:
        marked = alt.Chart(data).mark_line(point=True) if numeric else alt.Chart(data).mark_bar()
        chart = alt.layer(marked.encode(x=_x(summary, keys[0]), y=y, tooltip=tooltip))
        return _finished(chart, title, 360)
    tooltip.insert(1, alt.Tooltip("second:N", title=keys[1]))
    colours = {cell["second"] for cell in cells}
    if numeric and len(colours) <= _MOST_COLOURS:
        order = _order(summary, keys[1])
        colour = alt.Color("second:N", title=keys[1], sort=order)
        lines = alt.Chart(data).mark_line(point=True)
        return _finished(
            alt.layer(lines.encode(x=_x(summary, keys[0]), y=y, color=colour, tooltip=tooltip)), title, 360
        )
    across = alt.X("first:N", title=keys[0], sort=_order(summary, keys[0]))
    down = alt.Y("second:N", title=keys[1], sort=_order(summary, keys[1]))
    shade = alt.Color("figure:Q", title=summary.by, scale=alt.Scale(scheme="tealblues"))
    base = alt.Chart(data)
    text = base.mark_text(fontSize=11, color=_INK).encode(x=across, y=down, text=alt.Text("figure:Q", format=".3g"))
    return _finished(alt.layer(base.mark_rect().encode(x=across, y=down, color=shade, tooltip=tooltip), text), title)


def _finished(chart: Any, title: Any, height: int | None = None) -> "alt.LayerChart":
    sized = chart.properties(width=560, title=title, **({"height": height} if height else {}))
    return cast("alt.LayerChart", sized.configure_view(stroke=None))


def _cells(summary: Summary, keys: list[str]) -> list[dict[str, Any]]:
    """The best point of each place in the picture."""
    best: dict[tuple[str, ...], Any] = {}
    for row in summary.ranked:  # the best first
        best.setdefault(tuple(row.point.over[key] for key in keys), row)
    return [
        {
            "first": place[0],
            "x": float(place[0]) if _numbers(summary, keys[0]) else None,
            "second": place[1] if len(place) > 1 else None,
            "figure": row.outcome.figures[summary.by],
        }
        for place, row in best.items()
    ]


def _x(summary: Summary, key: str) -> "alt.X":
    import altair as alt

    if _numbers(summary, key):
        return alt.X("x:Q", title=key, scale=alt.Scale(zero=False))
    return alt.X("first:N", title=key, sort=_order(summary, key))


def _order(summary: Summary, key: str) -> list[str]:
    seen = list(dict.fromkeys(row.point.over[key] for row in summary.rows))
    return sorted(seen, key=float) if _numbers(summary, key) else seen


def _numbers(summary: Summary, key: str) -> int:
    """How many different numbers a key has; none where one of its values is a word, or there is no line to draw."""
    values = {row.point.over[key] for row in summary.rows}
    try:
        count = len({float(value) for value in values})
    except ValueError:
        return 0
    return count if count > 1 else 0
