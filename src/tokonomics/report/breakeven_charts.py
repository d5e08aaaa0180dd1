"""Bills against volume: the fleet's stairs, the APIs' lines, and where they meet."""

import math
from typing import TYPE_CHECKING, Any, cast

from tokonomics.planner.breakeven import BreakEvenReport
from tokonomics.units import TOKENS_PER_MTOK, count

if TYPE_CHECKING:
    import altair as alt

_OWN = "self-hosted"
_COLOURS = ("#c4562f", "#7a5aa6", "#3c8d5a", "#b3892f", "#a63d66", "#5f7f8c")
_WIDTH, _HEIGHT = 760, 400
_LABEL_ROWS = 2
_MOST_STAIRS = 4000
_VOLUME = (
    "datum.value >= 1e12 ? datum.value / 1e12 + ' T' : datum.value >= 1e9 ? datum.value / 1e9 + ' B' : "
    "datum.value / 1e6 + ' M'"
)


def breakeven_chart(found: BreakEvenReport) -> "alt.LayerChart":
    """The monthly bill of each side against tokens a month, both logarithmic; dots where self-hosting takes over."""
    import altair as alt

    low, high = _span(found)
    stairs = _stairs(found, low, high)
    lines = [
        {"tokens": volume, "usd": api.usd_per_mtok * volume / TOKENS_PER_MTOK, "side": api.name}
        for api in found.apis
        for volume in (low, high)
    ]
    powers = [10.0**power for power in range(math.ceil(math.log10(low)), math.floor(math.log10(high)) + 1)]
    names = [_OWN, *(api.name for api in found.apis)]
    colours = ["#1d1d1f", *(_COLOURS[place % len(_COLOURS)] for place in range(len(found.apis)))]
    x = alt.X(
        "tokens:Q",
        title="tokens a month, in and out",
        scale=alt.Scale(type="log", domain=[low, high], nice=False),
        axis=alt.Axis(values=powers, labelExpr=_VOLUME, grid=True, gridOpacity=0.4),
    )
    y = alt.Y(
        "usd:Q",
        title="dollars a month",
        scale=alt.Scale(type="log", domain=_dollars(stairs), nice=False),
        axis=alt.Axis(format="$~s", grid=True, gridOpacity=0.4),
    )
    color = alt.Color(
        "side:N",
        title=None,
        scale=alt.Scale(domain=names, range=colours),
        legend=alt.Legend(orient="bottom", columns=2, labelLimit=420, symbolType="stroke"),
    )
    own = alt.Chart(alt.InlineData(values=stairs)).mark_line(strokeWidth=2.2, interpolate="step-before")
    apis = alt.Chart(alt.InlineData(values=lines)).mark_line(strokeWidth=1.8, clip=True)
    tooltip = ["side:N", alt.Tooltip("tokens:Q", format=".3~s"), alt.Tooltip("usd:Q", format="$,.0f")]
    layers: list[Any] = [
        apis.encode(x=x, y=y, color=color, tooltip=tooltip),
        own.encode(x=x, y=y, color=color, tooltip=tooltip),
    ]
    dots = _dots(found)
    if dots:
        base = alt.Chart(alt.InlineData(values=dots)).encode(x="tokens:Q", y="usd:Q")
        layers.append(
            base.mark_point(filled=True, size=95, stroke="white", strokeWidth=1.5, opacity=1).encode(color=color)
        )
        for row in range(_LABEL_ROWS):
            # In turn above and below, so that neighbours do not cover each other.
            some = base.transform_filter(f"datum.row == {row}")
            offset = -13 if row else 17
            # White behind the words keeps them apart from the lines.
            layers.append(
                some.mark_text(dy=offset, fontSize=12, fontWeight="bold", stroke="white", strokeWidth=4).encode(
                    text="label:N"
                )
            )
            layers.append(some.mark_text(dy=offset, fontSize=12, fontWeight="bold").encode(text="label:N", color=color))
    title = alt.TitleParams(
        f"{found.model}: self-hosted or API",
        subtitle=[
            f"Requests of {count(found.input_tokens)} in / {count(found.output_tokens)} out. Stairs: whole machines, "
            "the cheapest kind at each volume. Lines: the API's price.",
            "Dots: from there on self-hosting stays cheaper.",
        ],
        anchor="start",
        fontSize=15,
        subtitleFontSize=12,
        offset=12,
    )
    made = alt.layer(*layers).properties(width=_WIDTH, height=_HEIGHT, title=title)
    return cast("alt.LayerChart", made.configure_view(stroke=None))


def _span(found: BreakEvenReport) -> tuple[float, float]:
    """A decade to either side of the break-evens, and the user's own volume."""
    met = [volume for each in found.found for volume in each.volumes]
    met += [each for each in (found.own_tokens_per_month,) if each]
    kinds = found.hosted.kinds
    met = met or [kinds[0].holds[0].tokens_per_month]
    widest = max(kind.holds[-1].tokens_per_month * kind.replicas_per_purchase for kind in kinds)
    return min(met) / 10, max(*met, 2 * widest) * 3


def _stairs(found: BreakEvenReport, low: float, high: float) -> list[dict[str, Any]]:
    """The top of each stair between the two volumes."""
    kinds = [kind for kind in found.hosted.kinds if kind.purchases(high) <= _MOST_STAIRS] or [found.hosted.kind(high)]
    hosted = found.hosted.model_copy(update={"kinds": tuple(kinds)})
    ends, bills = hosted.stairs(high)
    inside = [(float(end), float(bill)) for end, bill in zip(ends, bills, strict=True) if end > low]
    start = (low, inside[0][1])
    return [{"tokens": end, "usd": bill, "side": _OWN} for end, bill in (start, *inside)]


def _dollars(stairs: list[dict[str, Any]]) -> list[float]:
    return [stairs[0]["usd"] / 8, stairs[-1]["usd"] * 4]


def _dots(found: BreakEvenReport) -> list[dict[str, Any]]:
    met = sorted((one.stays_tokens_per_month, one.api) for one in found.found if one.stays_tokens_per_month is not None)
    return [
        {
            "tokens": volume,
            "usd": found.hosted.usd(volume),
            "side": api,
            "label": count(volume),
            "row": place % _LABEL_ROWS,
        }
        for place, (volume, api) in enumerate(met)
    ]
