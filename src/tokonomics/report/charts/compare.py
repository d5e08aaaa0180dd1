"""Models on GPUs as a picture: a heat map of prices, and price against quality where scores were given."""

import altair as alt

from tokonomics.planner.compare import Comparison
from tokonomics.questions.results import layout_text
from tokonomics.report.charts import style
from tokonomics.report.wording import and_slos, price_text, workload_text

_WIDTH = 620
_LEAST_STEP = 84
_UPRIGHT = 6
"""Names that stand side by side without touching."""
_ROOM_FOR_NAMES = 0.66
"""Of the width: right of it a name would run out of the picture."""
_ACROSS = 8
"""GPUs side by side on a page."""


def compare_chart(found: Comparison) -> alt.TopLevelMixin:
    """A heat map of dollars per million tokens, with the front of price and quality below it."""
    return style.stacked([_grid(found), *([_front(found)] if found.front else [])])


def _grid(found: Comparison) -> alt.TopLevelMixin:
    cells = [cell for cell in found.cells if cell.gpu in found.gpus]
    prices = [cell.usd_per_mtok for cell in cells if cell.usd_per_mtok is not None]
    middle = (min(prices) * max(prices)) ** 0.5
    rows: list[style.Row] = [
        {
            "model": cell.model_name,
            "gpu": cell.gpu,
            "usd": cell.usd_per_mtok,
            "label": price_text(cell, found),
            "dark": cell.usd_per_mtok is not None and cell.usd_per_mtok > middle,
            "how": layout_text(cell.pick) if cell.pick else cell.refused,
        }
        for cell in cells
    ]
    models = [next(cell.model_name for cell in found.cells if cell.model == model) for model in found.models]
    # The longer list goes down the page.
    models_across = len(found.gpus) > _ACROSS
    sides = [("model:N", models), ("gpu:N", list(found.gpus))]
    (columns, columns_order), (lines, lines_order) = sides if models_across else reversed(sides)
    angle = 0 if len(columns_order) <= _UPRIGHT else -30
    top = alt.Axis(orient="top", labelAngle=angle, labelLimit=220, ticks=False)
    base = style.plot(rows).encode(
        x=alt.X(columns, sort=columns_order, title=None, axis=top),
        y=alt.Y(lines, sort=lines_order, title=None, axis=alt.Axis(labelLimit=220, ticks=False, domain=False)),
        tooltip=["model:N", "gpu:N", "label:N", "how:N"],
    )
    colour = alt.Color("usd:Q", scale=alt.Scale(type="log", scheme="tealblues"), legend=None)
    filled = base.transform_filter("datum.usd != null").mark_rect(stroke="white", strokeWidth=2).encode(color=colour)
    white = alt.condition("datum.dark", alt.value("white"), alt.value("#1d1d1f"))
    words = base.mark_text(fontSize=12).encode(text="label:N", color=white)
    step = alt.Step(max(_LEAST_STEP, _WIDTH / len(columns_order)))
    return style.whole(
        style.panel(filled, words, width=step, height=alt.Step(22 if models_across else 36)),
        "Dollars per million tokens, by model and GPU",
        f"{workload_text(found.workload)} for each{and_slos(found.slos)}. "
        "The cheapest offer of each pair; darker is more expensive.",
        _marks([row["label"] for row in rows]),
    )


def _marks(texts: list[str]) -> str:
    """What the signs beside the prices mean, for those that are there."""
    meanings = {
        "→": "→ the cheapest",
        "*": "* fewer bits than published",
        "†": "† price older than 90 days",
        "–": "– nothing fits",
    }
    return "; ".join(meaning for sign, meaning in meanings.items() if any(sign in text for text in texts))


def _front(found: Comparison) -> alt.TopLevelMixin:
    rows: list[style.Row] = [
        {
            "usd": cell.usd_per_mtok,
            "quality": cell.quality,
            "front": (cell.model, cell.gpu) in found.front,
            "label": f"{cell.model_name} on {cell.gpu}",
        }
        for cell in found.cells
        if cell.usd_per_mtok is not None and cell.quality is not None
    ]
    scores, prices = [row["quality"] for row in rows], [row["usd"] for row in rows]
    room = (max(scores) - min(scores)) * 0.15 or max(scores) * 0.1
    low, high = min(prices) / 1.3, max(prices) * 1.3
    place: style.Settings = {
        "x": style.across(
            "usd", "dollars per million tokens", style.log(low, high), format="$~g", tickCount=6, grid=False
        ),
        "y": style.upwards(
            "quality", "your quality score", style.linear(min(scores) - room, max(scores) + room), grid=False
        ),
    }
    base = style.plot(rows).encode(**place, tooltip=["label:N", "usd:Q", "quality:Q"])
    line = base.transform_filter("datum.front").mark_line(color=style.BLUE, strokeDash=[4, 3], interpolate="step-after")
    colour = alt.condition("datum.front", alt.value(style.BLUE), alt.value("#b9bec6"))
    dots = base.mark_point(filled=True, size=80, opacity=1).encode(color=colour)
    # The line goes right and up: a name below its dot is clear of it, and one above to the left where room ends.
    edge = low * (high / low) ** _ROOM_FOR_NAMES
    best = [row for row in rows if row["front"]]
    below = style.labels([row for row in best if row["usd"] <= edge], dx=8, dy=15, fontSize=12)
    above = style.labels([row for row in best if row["usd"] > edge], left=True, dx=-9, dy=-9, fontSize=12)
    marks = line, dots, below.encode(**place), above.encode(**place)
    front = style.panel(*marks, width=_WIDTH, height=260)
    return style.whole(front, "Price against quality", "Blue: nothing is both better and cheaper.")
