"""Draw bills: against volume beside APIs, hour by hour of a fleet, against quality of several models."""

from collections.abc import Iterable, Sequence

import altair as alt

from tokonomics.catalog.offers import Terms
from tokonomics.fleet.design import FleetReport
from tokonomics.money.breakeven import FILL, SPEED, Swing
from tokonomics.money.purchases import FleetPurchase
from tokonomics.planner.hosting import BreakEvenReport
from tokonomics.planner.route_models import RouteReport, RouteWay
from tokonomics.report.charts import style
from tokonomics.report.wording import and_slos, machine_text, workload_text
from tokonomics.units import TOKENS_PER_MTOK, count, percent, requests_a_second, usd

# --- bills against volume --------------------------------------------------------------------------------------------


_OWN = "self-hosted"
_COLOURS = ("#c4562f", "#7a5aa6", "#3c8d5a", "#b3892f", "#a63d66", "#5f7f8c")
_MOST_STAIRS = 4000
_WIDTH_PX, _LABEL_PX = 760, 56  # width of the panel, and of a label such as "88.1 B" in bold with a gap
_VOLUME = (
    "datum.value >= 1e12 ? datum.value / 1e12 + ' T' : datum.value >= 1e9 ? datum.value / 1e9 + ' B' : "
    "datum.value / 1e6 + ' M'"
)


def breakeven_chart(found: BreakEvenReport) -> alt.TopLevelMixin:
    """Draw the monthly bill of each side against tokens a month, both logarithmic; dots mark the break-evens."""
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
    dots = style.plot(_dots(found, low, high)).encode(**encoded)
    layers = [
        style.plot(lines).mark_line(strokeWidth=1.8, clip=True).encode(**encoded, tooltip=tooltip),
        style.plot(stairs).mark_line(strokeWidth=2.2, interpolate="step-before").encode(**encoded, tooltip=tooltip),
        dots.mark_point(filled=True, size=95, stroke="white", strokeWidth=1.5, opacity=1),
    ]
    for above in (False, True):
        text: style.Settings = {"dy": -13 if above else 17, "fontSize": 12, "fontWeight": "bold"}
        some = dots.transform_filter(f"datum.above == {str(above).lower()}").encode(text="label:N")
        # White behind the text separates it from the lines.
        white = some.mark_text(**text, stroke="white", strokeWidth=4).encode(color=alt.value("white"))
        layers += [white, some.mark_text(**text)]
    return style.whole(
        style.panel(*layers, width=_WIDTH_PX, height=400),
        f"{found.model}: self-hosted or API",
        f"Requests of {count(found.input_tokens)} in / {count(found.output_tokens)} out. Stairs: whole machines, "
        "the cheapest kind at each volume. Lines: the API's price.",
        "Dots: from there on self-hosting stays cheaper.",
    )


def swings_chart(found: BreakEvenReport) -> alt.TopLevelMixin:
    """Draw how far each assumption, changed alone, moves the first API's break-even, strongest on top."""
    meets, mid = found.found[0], found.found[0].stays_tokens_per_month
    assert mid is not None
    swings = [swing for swing in found.swings[0] if swing.assumption and swing.factor in _shown(found.swings[0])]
    met = [volume for swing in swings if (volume := swing.found.stays_tokens_per_month) is not None]
    low, high = min([mid, *met]) / 2, max([mid, *met]) * 2
    by_name: dict[str, list[style.Row]] = {}
    for assumption in dict.fromkeys(swing.assumption for swing in swings):
        cases = [swing for swing in swings if swing.assumption == assumption]
        name = f"{assumption} {' to '.join(f'×{case.factor:.3g}' for case in cases)}"
        by_name[name] = [_case(name, case, mid, high) for case in cases]
    order = sorted(by_name, key=lambda name: _reach(by_name[name]), reverse=True)
    rows = [row for name in order for row in by_name[name]]
    x = style.across(
        "tokens",
        "break-even, tokens a month",
        style.log(low, high * 2),
        values=style.powers(low, high, (1, 2, 5)),
        labelExpr=_VOLUME,
    )
    unmoved = dict.fromkeys(order, "no change")
    return style.whole(
        style.tornado(rows, "tokens", x, unmoved, style.tips("what", "side", "label")),
        f"What moves the break-even of {count(mid)} tokens a month",
        f"{found.model}, self-hosted, against {meets.api}",
        "One assumption changed at a time; never: the API stays cheaper at every volume",
    )


_PAIRED = (0.8, 1.25)  # the price changes that the tornado shows, of those in the table: a quarter up and as much down


def _shown(swings: Sequence[Swing]) -> set[float]:
    """Return the factors to draw: both ends of the speed's interval, the quarter of prices, the fullest of fills."""
    filled = [swing.factor for swing in swings if swing.assumption == FILL]
    return {*_PAIRED, *(swing.factor for swing in swings if swing.assumption == SPEED), *filled[:1]}


def _case(name: str, swing: Swing, mid: float, beyond: float) -> style.Row:
    stays = swing.found.stays_tokens_per_month
    return {
        "what": name,
        "mid": mid,
        "tokens": beyond if stays is None else stays,
        "side": "smaller value" if swing.factor < 1 else "larger value",
        "label": "never" if stays is None else count(stays),
    }


def _reach(rows: Sequence[style.Row]) -> float:
    """Return the ratio of an assumption's largest break-even to its smallest, including today's."""
    volumes = [rows[0]["mid"], *(row["tokens"] for row in rows)]
    return float(max(volumes) / min(volumes))


def _span(found: BreakEvenReport) -> tuple[float, float]:
    """Return a decade on either side of the break-evens and of the user's own volume."""
    kinds = found.hosted.kinds
    met = [volume for breakeven in found.found for volume in breakeven.volumes]
    met += [found.own_tokens_per_month] if found.own_tokens_per_month else []
    met = met or [kinds[0].holds[0].tokens_per_month]
    widest = max(kind.holds[-1].tokens_per_month * kind.replicas_per_purchase for kind in kinds)
    return min(met) / 10, max(*met, 2 * widest) * 3


def _stairs(found: BreakEvenReport, low: float, high: float) -> list[style.Row]:
    """Return the top of each stair between the two volumes."""
    kinds = [kind for kind in found.hosted.kinds if kind.purchases(high) <= _MOST_STAIRS] or [found.hosted.kind(high)]
    hosted = found.hosted.model_copy(update={"kinds": tuple(kinds)})
    ends, bills = hosted.stairs(high)
    inside = [(float(end), float(bill)) for end, bill in zip(ends, bills, strict=True) if end > low]
    start = (low, inside[0][1])
    return [{"tokens": end, "usd": bill, "side": _OWN} for end, bill in (start, *inside)]


def _dots(found: BreakEvenReport, low: float, high: float) -> list[style.Row]:
    """Return the break-evens for good, labelled below or above, where there is room."""
    drawn = [found.found[place] for place in found.cheapest(len(_COLOURS))]
    met = sorted((one.stays_tokens_per_month, one.api) for one in drawn if one.stays_tokens_per_month is not None)
    apart = (high / low) ** (_LABEL_PX / _WIDTH_PX)
    free = {False: 0.0, True: 0.0}  # the volume from which there is room below and above
    rows: list[style.Row] = []
    for volume, api in met:
        above = next((side for side in free if volume >= free[side]), None)
        if above is not None:
            free[above] = volume * apart
        label = "" if above is None else count(volume)
        rows.append({"tokens": volume, "usd": found.hosted.usd(volume), "side": api, "label": label, "above": above})
    return rows


# --- a fleet hour by hour --------------------------------------------------------------------------------------------


_SHADES = {
    Terms.reserved: ("#5b86c2", "#86a8d8", "#aec6e8", "#cfdef2"),
    Terms.on_demand: ("#4ea29a", "#7bbfb8", "#a5d4cf", "#cbe7e4"),
    Terms.spot: ("#e5a24f", "#edbb7c", "#f4d2a6", "#f9e5cc"),
}
_DEMAND = "#1d1d1f"
_MOST_SERIES = 10  # more do not fit a legend: the smallest are grouped by terms


def fleet_chart(report: FleetReport, purchases: Iterable[FleetPurchase]) -> alt.TopLevelMixin:
    """Draw capacity by purchase over the horizon, from the bottom up in the given order, with demand as a line."""
    plan = report.plan
    palette, rows = _series(report, purchases)
    demand = [{"hour": hour, "requests/s": rate} for hour, rate in enumerate([*plan.demand, plan.demand[-1]])]
    x = _hours(plan.hours)
    areas = (
        style.plot(rows)
        .mark_area(interpolate="step-after", line=False)
        .encode(
            x=x,
            y=style.upwards("capacity", "requests per second", tickCount=6).stack("zero"),
            color=style.colours("what", palette, orient="bottom", columns=2, labelLimit=380, symbolType="square"),
            order=alt.Order("order:Q"),
            tooltip=["what:N", "hour:Q", "machines:Q", alt.Tooltip("capacity:Q", format=".3~s")],
        )
    )
    curve = style.plot(demand).encode(x=x, y="requests/s:Q")
    # A white edge separates the line from the colours behind it.
    edge = curve.mark_line(interpolate="step-after", color="white", strokeWidth=4.5, opacity=0.8)
    line = curve.mark_line(interpolate="step-after", color=_DEMAND, strokeWidth=2)
    peak = max(range(plan.hours), key=lambda hour: plan.demand[hour])
    at_peak = [{"hour": peak, "requests/s": plan.demand[peak], "label": "demand"}]
    label = style.labels(at_peak, left=peak > plan.hours * 0.8, dy=-9, fontWeight="bold", color=_DEMAND)
    simple = plan.beaten
    saves = f", {percent(simple.saved_share or 0)} below {simple.name}" if simple else ""
    return style.whole(
        style.panel(areas, edge, line, label.encode(x="hour:Q", y="requests/s:Q"), width=760, height=320),
        f"What to buy for {report.model}: {usd(plan.usd_per_month)} a month{saves}",
        f"{report.traffic}; {requests_a_second(count(report.mean_requests_per_s))} in the mean, "
        f"{count(report.peak_requests_per_s)} at the peak",
        "Coloured: what each purchase carries under the SLO. Black: the demand.",
    )


def _series(report: FleetReport, purchases: Iterable[FleetPurchase]) -> tuple[dict[str, str], list[style.Row]]:
    """Return the colours by name and the points of the stack, from the bottom up: one for each name and hour."""
    palette: dict[str, str] = {}
    rows: dict[tuple[str, int], style.Row] = {}
    shades = {terms: iter((*shades, *shades[-1:] * _MOST_SERIES)) for terms, shades in _SHADES.items()}
    for purchase in purchases:
        name = _series_name(report, purchase)
        if name not in palette and len(palette) >= _MOST_SERIES:
            name = f"other {purchase.terms.replace('_', ' ')}"
        if name not in palette:
            palette[name] = next(shades[purchase.terms])
        for hour, machines in enumerate([*purchase.by_hour, purchase.by_hour[-1]]):
            nothing = {"what": name, "hour": hour, "capacity": 0.0, "machines": 0, "order": list(palette).index(name)}
            row = rows.setdefault((name, hour), nothing)
            row["capacity"] += machines * purchase.requests_per_s
            row["machines"] += machines
    return palette, list(rows.values())


def _series_name(report: FleetReport, purchase: FleetPurchase) -> str:
    """Return the machine, its terms and, where the same machine serves in several layouts, its layout."""
    kind = report.kind(purchase.offer)
    alike = {
        other.layout for other in report.machines if (other.provider, other.instance) == (kind.provider, kind.instance)
    }
    machine = machine_text(kind.provider, kind.instance, kind.gpu, kind.gpus)
    place = f" {purchase.place}" if purchase.place else ""
    layout = f" {kind.layout}" if len(alike) > 1 else ""
    return f"{machine}{layout}, {purchase.terms.replace('_', ' ')}{place}"


def _hours(hours: int) -> alt.X:
    """Return an axis of hours, or of days if the horizon has several."""
    if hours % 24 == 0 and 48 <= hours <= 24 * 14:
        days: style.Settings = {"values": list(range(0, hours, 24)), "labelExpr": "'day ' + (datum.value / 24 + 1)"}
        return style.across("hour", None, style.linear(0, hours), **days, labelAlign="left", labelOffset=4, grid=False)
    return style.across("hour", "hours", style.linear(0, hours), tickCount=12, grid=False)


# --- several models for one traffic ----------------------------------------------------------------------------------


_KINDS = {
    "single": ("one model", style.INK),
    "routed": ("routed", style.BLUE),
    "cascade": ("cascade", style.GREEN),
    "labels": ("by label", "#e5a24f"),
    "spill": ("spill-over", "#8a6bb1"),
}
_WIDE = 8  # times the lowest bill: above this a logarithmic axis separates the low ones


def route_chart(found: RouteReport) -> alt.TopLevelMixin:
    """Draw every way as a dot; thresholds of one kind and one backup are joined."""
    rows = [_row(way, found.scored) for way in dict.fromkeys((*found.ways, *found.frontier))]
    across = "quality" if found.scored else "share of requests on the first model"
    values = [row["x"] for row in rows]
    bills = [row["usd"] for row in rows]
    wide = max(bills) > _WIDE * min(bills)
    scale = style.log(min(bills) / 1.3, max(bills) * 1.3) if wide else None
    room = (max(values) - min(values)) * 0.08 or 0.05
    encoded: style.Settings = {
        "x": style.across("x", across, style.linear(min(values) - room, max(values) + room)),
        "y": style.upwards("usd", "dollars a month", scale, **style.DOLLARS),
        "color": style.colours("kind", dict(_KINDS.values())),
        "tooltip": style.tips("name", x=".3~g", usd="$,.0f"),
    }
    base = style.plot(rows).encode(**encoded)
    joined = base.transform_filter("datum.line != ''").mark_line(strokeWidth=1.5).encode(detail="line:N")
    dots = base.mark_point(filled=True, size=70, opacity=1)
    ends = [row for row in rows if row["kind"] == _KINDS["single"][0]]
    words = style.labels(ends, left=True, dy=-9).encode(x=encoded["x"], y=encoded["y"])
    return style.whole(
        style.panel(joined, dots, words, width=680, height=360),
        "What it costs to share traffic among models",
        f"{workload_text(found.workload)}{and_slos(found.slos)}.",
        "Each dot is sized by simulation; lines join the thresholds of one kind.",
    )


def _row(way: RouteWay, scored: bool) -> style.Row:
    backup = way.parts[-1].model
    return {
        "x": way.quality if scored else way.first_share,
        "usd": way.usd_per_month,
        "kind": _KINDS[way.kind][0],
        "name": way.name,
        "label": way.name.removeprefix("all on "),
        "line": f"{way.kind} {backup}" if way.threshold is not None else "",
    }
