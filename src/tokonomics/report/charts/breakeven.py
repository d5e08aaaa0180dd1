"""Bills against volume: the fleet's stairs, the APIs' lines, and where they meet."""

import altair as alt

from tokonomics.planner.breakeven import BreakEvenReport
from tokonomics.report.charts import style
from tokonomics.units import TOKENS_PER_MTOK, count

_OWN = "self-hosted"
_COLOURS = ("#c4562f", "#7a5aa6", "#3c8d5a", "#b3892f", "#a63d66", "#5f7f8c")
_MOST_STAIRS = 4000
_VOLUME = (
    "datum.value >= 1e12 ? datum.value / 1e12 + ' T' : datum.value >= 1e9 ? datum.value / 1e9 + ' B' : "
    "datum.value / 1e6 + ' M'"
)


def breakeven_chart(found: BreakEvenReport) -> alt.TopLevelMixin:
    """The monthly bill of each side against tokens a month, both logarithmic; dots where self-hosting takes over."""
    low, high = _span(found)
    stairs = _stairs(found, low, high)
    apis = [found.apis[place] for place in found.cheapest(len(_COLOURS))]
    lines = [
        {"tokens": volume, "usd": api.usd_per_mtok * volume / TOKENS_PER_MTOK, "side": api.name}
        for api in apis
        for volume in (low, high)
    ]
    palette = {_OWN: "#1d1d1f"}
    palette |= {api.name: _COLOURS[place] for place, api in enumerate(apis)}
    encoded: style.Settings = {
        "x": style.across(
            "tokens",
            "tokens a month, in and out",
            style.log(low, high),
            values=style.powers(low, high),
            labelExpr=_VOLUME,
        ),
        "y": style.upwards(
            "usd", "dollars a month", style.log(stairs[0]["usd"] / 8, stairs[-1]["usd"] * 4), format="$~s"
        ),
        "color": style.colours("side", palette, orient="bottom", columns=2, labelLimit=420, symbolType="stroke"),
    }
    tooltip = style.tips("side", tokens=".3~s", usd="$,.0f")
    dots = style.plot(_dots(found)).encode(**encoded)
    layers = [
        style.plot(lines).mark_line(strokeWidth=1.8, clip=True).encode(**encoded, tooltip=tooltip),
        style.plot(stairs).mark_line(strokeWidth=2.2, interpolate="step-before").encode(**encoded, tooltip=tooltip),
        dots.mark_point(filled=True, size=95, stroke="white", strokeWidth=1.5, opacity=1),
    ]
    for above in (False, True):  # in turn, so that neighbours do not cover each other
        text: style.Settings = {"dy": -13 if above else 17, "fontSize": 12, "fontWeight": "bold"}
        some = dots.transform_filter(f"datum.above == {str(above).lower()}").encode(text="label:N")
        # White behind the words keeps them apart from the lines.
        white = some.mark_text(**text, stroke="white", strokeWidth=4).encode(color=alt.value("white"))
        layers += [white, some.mark_text(**text)]
    return style.whole(
        style.panel(*layers, width=760, height=400),
        f"{found.model}: self-hosted or API",
        f"Requests of {count(found.input_tokens)} in / {count(found.output_tokens)} out. Stairs: whole machines, "
        "the cheapest kind at each volume. Lines: the API's price.",
        "Dots: from there on self-hosting stays cheaper.",
    )


def _span(found: BreakEvenReport) -> tuple[float, float]:
    """A decade to either side of the break-evens, and the user's own volume."""
    kinds = found.hosted.kinds
    met = [volume for breakeven in found.found for volume in breakeven.volumes]
    met += [found.own_tokens_per_month] if found.own_tokens_per_month else []
    met = met or [kinds[0].holds[0].tokens_per_month]
    widest = max(kind.holds[-1].tokens_per_month * kind.replicas_per_purchase for kind in kinds)
    return min(met) / 10, max(*met, 2 * widest) * 3


def _stairs(found: BreakEvenReport, low: float, high: float) -> list[style.Row]:
    """The top of each stair between the two volumes."""
    kinds = [kind for kind in found.hosted.kinds if kind.purchases(high) <= _MOST_STAIRS] or [found.hosted.kind(high)]
    hosted = found.hosted.model_copy(update={"kinds": tuple(kinds)})
    ends, bills = hosted.stairs(high)
    inside = [(float(end), float(bill)) for end, bill in zip(ends, bills, strict=True) if end > low]
    start = (low, inside[0][1])
    return [{"tokens": end, "usd": bill, "side": _OWN} for end, bill in (start, *inside)]


def _dots(found: BreakEvenReport) -> list[style.Row]:
    drawn = [found.found[place] for place in found.cheapest(len(_COLOURS))]
    met = sorted((one.stays_tokens_per_month, one.api) for one in drawn if one.stays_tokens_per_month is not None)
    return [
        {
            "tokens": volume,
            "usd": found.hosted.usd(volume),
            "side": api,
            "label": count(volume),
            "above": bool(place % 2),
        }
        for place, (volume, api) in enumerate(met)
    ]
