"""Models on GPUs as a picture: a heat map of prices, and price against quality where scores were given."""

from typing import TYPE_CHECKING, Any, cast

from tokonomics.planner.compare import Cell, Comparison
from tokonomics.questions.results import layout_text
from tokonomics.report.wording import NO_VALUE, slos_text, workload_text
from tokonomics.units import usd

if TYPE_CHECKING:
    import altair as alt


_WIDTH = 620
_LEAST_STEP = 84
_UPRIGHT = 6
"""Names that stand side by side without touching."""
_ROOM_FOR_NAMES = 0.66
"""Of the width: right of it a name would run out of the picture."""
_ACROSS = 8
"""GPUs side by side on a page."""


def compare_chart(found: Comparison) -> "alt.TopLevelMixin":
    """A heat map of dollars per million tokens, with the front of price and quality below it."""
    import altair as alt

    panels = [_grid(found)]
    if found.front:
        panels.append(_front(found))
    made = alt.vconcat(*panels, spacing=40).resolve_scale(color="independent").configure_view(stroke=None)
    return cast("alt.TopLevelMixin", made)


def _grid(found: Comparison) -> Any:
    import altair as alt

    cells = [cell for cell in found.cells if cell.gpu in found.gpus]
    prices = [cell.usd_per_mtok for cell in cells if cell.usd_per_mtok is not None]
    middle = (min(prices) * max(prices)) ** 0.5
    rows: list[dict[str, Any]] = [
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
    names = [next(cell.model_name for cell in found.cells if cell.model == model) for model in found.models]
    # The longer list goes down the page.
    models_across = len(found.gpus) > _ACROSS
    across, down = ("model:N", "gpu:N") if models_across else ("gpu:N", "model:N")
    orders = {"model:N": names, "gpu:N": list(found.gpus)}
    angle = 0 if len(orders[across]) <= _UPRIGHT else -30
    axis = alt.Axis(orient="top", labelAngle=angle, labelLimit=220, ticks=False)
    x = alt.X(across, sort=orders[across], title=None, axis=axis)
    y = alt.Y(down, sort=orders[down], title=None, axis=alt.Axis(labelLimit=220, ticks=False, domain=False))
    base = alt.Chart(alt.InlineData(values=rows)).encode(x=x, y=y, tooltip=["model:N", "gpu:N", "label:N", "how:N"])
    colour = alt.Color("usd:Q", scale=alt.Scale(type="log", scheme="tealblues"), legend=None)
    filled = base.transform_filter("datum.usd != null").mark_rect(stroke="white", strokeWidth=2).encode(color=colour)
    white = alt.condition("datum.dark", alt.value("white"), alt.value("#1d1d1f"))
    words = base.mark_text(fontSize=12).encode(text="label:N", color=white)
    targets = slos_text(found.slos)
    title = alt.TitleParams(
        "Dollars per million tokens, by model and GPU",
        subtitle=[
            f"{workload_text(found.workload)} for each{f'; SLO: {targets}' if targets else ''}. "
            "The cheapest offer of each pair; darker is more expensive.",
            _marks([row["label"] for row in rows]),
        ],
        anchor="start",
        fontSize=15,
        subtitleFontSize=12,
        offset=10,
    )
    step = max(_LEAST_STEP, _WIDTH / len(orders[across]))
    height = alt.Step(22 if models_across else 36)
    return alt.layer(filled, words).properties(width=alt.Step(step), height=height, title=title)


def _marks(labels: list[str]) -> str:
    """What the signs beside the prices mean, for those that are there."""
    meanings = {
        "→": "→ the cheapest",
        "*": "* fewer bits than published",
        "†": "† price older than 90 days",
        "–": "– nothing fits",
    }
    return "; ".join(meaning for sign, meaning in meanings.items() if any(sign in label for label in labels))


def _front(found: Comparison) -> Any:
    import altair as alt

    rows: list[dict[str, Any]] = [
        {
            "model": cell.model_name,
            "gpu": cell.gpu,
            "usd": cell.usd_per_mtok,
            "quality": cell.quality,
            "front": (cell.model, cell.gpu) in found.front,
            "label": f"{cell.model_name} on {cell.gpu}",
        }
        for cell in found.cells
        if cell.usd_per_mtok is not None and cell.quality is not None
    ]
    scores = [row["quality"] for row in rows]
    room = (max(scores) - min(scores)) * 0.15 or max(scores) * 0.1
    prices = [row["usd"] for row in rows]
    low, high = min(prices) / 1.3, max(prices) * 1.3
    scale = alt.Scale(type="log", domain=[low, high], nice=False)
    axis = alt.Axis(format="$~g", tickCount=6, grid=False)
    x = alt.X("usd:Q", scale=scale, title="dollars per million tokens", axis=axis)
    heights = alt.Scale(domain=[min(scores) - room, max(scores) + room], nice=False)
    y = alt.Y("quality:Q", scale=heights, title="your quality score", axis=alt.Axis(grid=False, tickCount=6))
    base = alt.Chart(alt.InlineData(values=rows)).encode(x=x, y=y, tooltip=["label:N", "usd:Q", "quality:Q"])
    best = base.transform_filter("datum.front")
    line = best.mark_line(color="#3b6fb6", strokeDash=[4, 3], interpolate="step-after")
    colour = alt.condition("datum.front", alt.value("#3b6fb6"), alt.value("#b9bec6"))
    dots = base.mark_point(filled=True, size=80, opacity=1).encode(color=colour)
    # The line goes right and up: a name below its dot is clear of it, and one above to the left where room ends.
    edge = low * (high / low) ** _ROOM_FOR_NAMES
    left = best.transform_filter(f"datum.usd <= {edge:.9g}").mark_text(align="left", dx=8, dy=15, fontSize=12)
    right = best.transform_filter(f"datum.usd > {edge:.9g}").mark_text(align="right", dx=-9, dy=-9, fontSize=12)
    title = alt.TitleParams(
        "Price against quality", subtitle=["Blue: nothing is both better and cheaper."], anchor="start", fontSize=14
    )
    words = [each.encode(text="label:N") for each in (left, right)]
    return alt.layer(line, dots, *words).properties(width=_WIDTH, height=260, title=title)


def price_text(cell: Cell, compared: Comparison) -> str:
    """The price of a pair with its marks; → where none is shown lower, so that two of one price both have it."""
    if cell.usd_per_mtok is None or cell.pick is None:
        return NO_VALUE
    cheapest = compared.cheapest()
    lowest = cheapest is not None and usd(cell.usd_per_mtok) == usd(cheapest.usd_per_mtok or 0.0)
    marks = f"{'*' if cell.pick.below_checkpoint else ''}{'†' if cell.pick.price_stale else ''}"
    return f"{'→ ' if lowest else ''}{usd(cell.usd_per_mtok)}{marks}"
