"""A plan's questions as pictures: cheap against quick, what moves the bill, and the bill when demand is not known."""

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, cast

from tokonomics.planner.frontier import Frontier, FrontierPoint
from tokonomics.planner.plan import Candidate, Plan
from tokonomics.planner.regret import Regret, RegretChoice
from tokonomics.planner.what_if import BillSwing, Case, Sensitivity
from tokonomics.traffic.slo import Latency, Slo
from tokonomics.units import count, percent, plural, seconds, usd

if TYPE_CHECKING:
    import altair as alt

Row = dict[str, Any]

_INK, _GREY, _OBJECTIVES = "#333", "#857c6d", "#b33"
_LESS, _MORE = "#5aa9a4", "#3b6fb6"
_KEPT = "#e4efe9"
_COLOURS = (
    "#3b6fb6",
    "#5aa9a4",
    "#e5a24f",
    "#8a6bb1",
    "#c8553d",
    "#7a9a3a",
    "#d985b0",
    "#4d4d4d",
    "#49a6d6",
    "#b08a4a",
)
_REST = "#c9c3b8"
_CASES = ("low", "middle", "high")
_CASE_COLOURS = ("#9cb9de", "#3b6fb6", "#1f3f70")
_AS_TIME = (
    "datum.value < 1 ? format(datum.value * 1000, '~r') + ' ms' : format(datum.value, ',~r') + ' s'"
)  # fmt: skip
_NAMES = {Latency.tpot: "Time per output token", Latency.ttft: "Time to first token"}
_WIDTH = 350


def frontier_chart(frontier: Frontier, plan: Plan, model_name: str) -> "alt.HConcatChart":
    """Price against time per token and against time to the first one; nothing lies below the line."""
    import altair as alt

    names = _shown_gpus(frontier, plan.best)
    prices = [point.usd_per_mtok for point in (*frontier.by_gpu_tpot, *frontier.by_gpu_ttft)]
    price = min(prices) / 1.5, max(prices) * 1.3
    panels = [
        _front(frontier.tpot, frontier.by_gpu_tpot, names, plan, Latency.tpot, price),
        _front(frontier.ttft, frontier.by_gpu_ttft, names, plan, Latency.ttft, price),
    ]
    subtitle = [
        f"{_load(plan)}; every point is a fleet of whole machines, its means in closed form",
        f"Line: no fleet is both cheaper and quicker{_diamond(plan)}"
        + ("; shaded: the SLO is met in the mean" if plan.slos else ""),
    ]
    title = _title(f"Cheap or quick: what {model_name} can cost", subtitle)
    return cast("alt.HConcatChart", alt.hconcat(*panels, spacing=30, title=title).configure_view(stroke=None))


def sensitivity_chart(sensitivity: Sensitivity, what: str) -> "alt.LayerChart":
    """Each assumption changed alone: how far the monthly bill goes down and up, the strongest on top."""
    import altair as alt

    mid = sensitivity.usd_per_month
    known = [case.usd_per_month for swing in sensitivity.swings for case in (swing.low, swing.high)]
    top = max([mid, *(each for each in known if each is not None)])
    names = [_changed(swing) for swing in sensitivity.swings]
    rows = [
        _bar(name, case, mid, 1.15 * top)
        for name, swing in zip(names, sensitivity.swings, strict=True)
        for case in (swing.low, swing.high)
    ]
    x = alt.X(
        "usd:Q",
        title="dollars a month",
        scale=alt.Scale(domain=[0, 1.3 * top], nice=False),
        axis=alt.Axis(format="$,.0f", tickCount=6, gridOpacity=0.5),
    )
    y = alt.Y(
        "what:N", title=None, sort=names, axis=alt.Axis(labelLimit=300, ticks=False, domain=False, labelPadding=8)
    )
    colour = alt.Color(
        "side:N",
        title=None,
        scale=alt.Scale(domain=["smaller value", "larger value"], range=[_LESS, _MORE]),
        legend=alt.Legend(orient="top", direction="horizontal", symbolType="square"),
    )
    data = alt.InlineData(values=rows)
    moved = alt.Chart(data).transform_filter("datum.moved")
    bars = moved.mark_bar(height={"band": 0.6}).encode(
        x=x,
        x2="mid:Q",
        y=y,
        color=colour,
        tooltip=["what:N", "side:N", alt.Tooltip("usd:Q", format="$,.2f"), "used:N"],
    )
    edge = moved.mark_text(fontSize=11, color=_INK)
    up = edge.transform_filter("datum.usd > datum.mid").mark_text(align="left", dx=5, fontSize=11, color=_INK)
    down = edge.transform_filter("datum.usd < datum.mid").mark_text(align="right", dx=-5, fontSize=11, color=_INK)
    still = [
        {"what": name, "mid": mid, "label": _in_use(swing)}
        for name, swing in zip(names, sensitivity.swings, strict=True)
        if not any(row["moved"] for row in rows if row["what"] == name)
    ]
    unmoved = alt.Chart(alt.InlineData(values=still)).mark_text(align="left", dx=8, fontSize=11, color=_GREY)
    rule = alt.Chart(alt.InlineData(values=[{"usd": mid}])).mark_rule(color=_INK).encode(x=x)
    subtitle = [
        f"{what}: {usd(mid)} a month, {plural(sensitivity.replicas, 'replica')}, "
        f"{percent(sensitivity.used)} of the capacity in use",
        "One assumption changed at a time, the same hardware sized anew",
    ]
    chart = alt.layer(
        bars,
        rule,
        up.encode(x=x, y=y, text="label:N"),
        down.encode(x=x, y=y, text="label:N"),
        unmoved.encode(x=alt.X("mid:Q"), y=y, text="label:N"),
    ).properties(width=560, height=alt.Step(30), title=_title("What moves the bill", subtitle))
    return cast("alt.LayerChart", chart.configure_view(stroke=None))


def regret_chart(regret: Regret, model_name: str, rows: int = 6) -> "alt.LayerChart":
    """The bill of each choice in every case; the best of each case as a tick, regret beside it."""
    import altair as alt

    choices = regret.choices[:rows]
    names = [_choice(choice) for choice in choices]
    cases = _case_names(regret)
    bars: list[Row] = [
        {
            "what": name,
            "case": case,
            "usd": each.usd_per_month,
            "best": best,
            "label": f"{usd(each.usd_per_month)}"
            + (f"  +{percent(each.regret)}" if each.regret >= 0.005 else "  best"),
            "replicas": each.replicas,
        }
        for name, choice in zip(names, choices, strict=True)
        for case, each, best in zip(cases, choice.cases, regret.best_usd_per_month, strict=True)
    ]
    top = max(row["usd"] for row in bars)
    y = alt.Y(
        "what:N", title=None, sort=names, axis=alt.Axis(labelLimit=330, ticks=False, domain=False, labelPadding=8)
    )
    offset = alt.YOffset("case:N", sort=cases, scale=alt.Scale(paddingInner=0.12, paddingOuter=0))
    x = alt.X(
        "usd:Q",
        title="dollars a month",
        scale=alt.Scale(domain=[0, 1.22 * top], nice=False),
        axis=alt.Axis(format="$,.0f", tickCount=6, gridOpacity=0.5),
    )
    colour = alt.Color(
        "case:N",
        title=None,
        scale=alt.Scale(domain=cases, range=_case_colours(len(cases))),
        legend=alt.Legend(orient="top", direction="horizontal", symbolType="square"),
    )
    base = alt.Chart(alt.InlineData(values=bars))
    drawn = base.mark_bar().encode(
        x=x,
        y=y,
        yOffset=offset,
        color=colour,
        tooltip=["what:N", "case:N", "replicas:Q", alt.Tooltip("usd:Q", format="$,.2f")],
    )
    ticks = base.mark_tick(color=_OBJECTIVES, thickness=2, size=13).encode(x="best:Q", y=y, yOffset=offset)
    text = base.mark_text(align="left", dx=6, fontSize=10.5, color=_INK).encode(
        x=x, y=y, yOffset=offset, text="label:N"
    )
    least = choices[0]
    subtitle = [
        f"On top the least regret: at most {percent(least.largest_regret)} above the best for the demand that comes",
        "Replicas follow the demand; red: the best of each case, whatever it is",
    ]
    layers = alt.layer(drawn, ticks, text).properties(
        width=520,
        height=alt.Step(19),
        title=_title(f"One choice of hardware for {model_name}, whatever the demand", subtitle),
    )
    return cast("alt.LayerChart", layers.configure_view(stroke=None))


# --- the fronts -----------------------------------------------------------------------------------------------------


def _shown_gpus(frontier: Frontier, best: Candidate | None) -> list[str]:
    """GPUs with a colour of their own: those on a front, cheapest first, as far as colours go."""
    in_order = [point.gpu for point in (*reversed(frontier.tpot), *reversed(frontier.ttft))]
    return list(dict.fromkeys([*([best.gpu] if best else []), *in_order]))[: len(_COLOURS)]


def _front(
    front: Sequence[FrontierPoint],
    every: Iterable[FrontierPoint],
    names: list[str],
    plan: Plan,
    latency: Latency,
    price: tuple[float, float],
) -> "alt.LayerChart":
    import altair as alt

    field = f"{latency}_s"
    dots = [_dot(point, field, names) for point in every]
    times = [row["seconds"] for row in dots]
    low, high = min(times) / 1.25, max(times) * 1.25
    cheap, dear = price
    x = alt.X(
        "seconds:Q",
        title=None,
        scale=alt.Scale(type="log", domain=[low, high], nice=False),
        axis=alt.Axis(labelExpr=_AS_TIME, values=_ticks(low, high), gridOpacity=0.5),
    )
    y = alt.Y(
        "usd:Q",
        title="dollars per million tokens" if latency is Latency.tpot else None,
        scale=alt.Scale(type="log", domain=[cheap, dear], nice=False),
        axis=alt.Axis(format="$~r", values=_ticks(cheap, dear), gridOpacity=0.5),
    )
    colours = [*_COLOURS[: len(names)], _REST]
    colour = alt.Color(
        "colour:N",
        title=None,
        scale=alt.Scale(domain=[*names, "other GPUs"], range=colours),
        legend=alt.Legend(orient="bottom", columns=6, symbolType="circle", symbolOpacity=1),
    )
    line = [{"seconds": getattr(point, field), "usd": point.usd_per_mtok} for point in front]
    # The cheapest stays the cheapest for whoever can wait longer, and nothing is quicker than the quickest.
    line = [{"seconds": line[0]["seconds"], "usd": dear}, *line, {"seconds": high, "usd": line[-1]["usd"]}]
    tooltip = ["what:N", "fleet:N", "price:N", "tpot:N", "ttft:N"]
    points = alt.Chart(alt.InlineData(values=dots)).mark_circle(opacity=0.85, size=26)
    on_front = alt.Chart(alt.InlineData(values=[_dot(point, field, names) for point in front]))
    layers: list[Any] = [
        *_objectives(plan.slos, latency, low, high, x),
        alt.Chart(alt.InlineData(values=line))
        .mark_line(interpolate="step-after", color=_INK, strokeWidth=1.3, clip=True)
        .encode(x=x, y=y, order=alt.Order("seconds:Q")),
        points.encode(x=x, y=y, color=colour, tooltip=tooltip),
        on_front.mark_circle(opacity=1, size=70, stroke="white", strokeWidth=0.8).encode(
            x=x, y=y, color=colour, tooltip=tooltip
        ),
        *_pick(plan.best, latency, x, y),
    ]
    panel = alt.layer(*layers).properties(width=_WIDTH, height=330, title=_heading(f"{_NAMES[latency]}, mean"))
    return cast("alt.LayerChart", panel)


def _dot(point: FrontierPoint, field: str, names: list[str]) -> Row:
    return {
        "seconds": getattr(point, field),
        "usd": point.usd_per_mtok,
        "colour": point.gpu if point.gpu in names else "other GPUs",
        "what": f"{point.gpu} {point.layout}",
        "fleet": f"{plural(point.replicas, 'replica')} at {point.provider} {point.instance}",
        "price": f"{usd(point.usd_per_mtok)}/Mtok, {usd(point.usd_per_month)} a month",
        "tpot": seconds(point.tpot_s),
        "ttft": seconds(point.ttft_s),
    }


def _objectives(slos: Sequence[Slo], latency: Latency, low: float, high: float, x: "alt.X") -> list[Any]:
    """The region within the strictest SLO on this latency, and its edge."""
    import altair as alt

    bounds = [slo for slo in slos if slo.latency is latency]
    if not bounds:
        return []
    strictest = min(bounds, key=lambda each: each.seconds)
    edge = min(max(strictest.seconds, low), high)
    label = f"{strictest.statistic} SLO {seconds(strictest.seconds)}"
    data = alt.Chart(alt.InlineData(values=[{"seconds": low, "edge": edge, "label": label}]))
    at_edge = x.copy()
    at_edge.shorthand = "edge:Q"
    return [
        data.mark_rect(color=_KEPT).encode(x=x, x2="edge:Q"),
        data.mark_rule(color=_OBJECTIVES, strokeDash=[4, 4]).encode(x=at_edge),
        data.mark_text(align="right", baseline="top", dx=-5, y=4, color=_OBJECTIVES).encode(x=at_edge, text="label:N"),
    ]


def _pick(best: Candidate | None, latency: Latency, x: "alt.X", y: "alt.Y") -> list[Any]:
    """The pick of the plan where it stands: its mean, simulated."""
    import altair as alt

    mean = getattr(best, f"{latency}_s").mean if best else None
    if best is None or mean is None:
        return []
    data = alt.Chart(alt.InlineData(values=[{"seconds": mean, "usd": best.usd_per_mtok.blended, "label": "the pick"}]))
    return [
        data.mark_point(shape="diamond", size=170, color=_INK, strokeWidth=2, filled=False).encode(x=x, y=y),
        data.mark_text(align="center", dy=-15, fontWeight="bold", color=_INK).encode(x=x, y=y, text="label:N"),
    ]


def _diamond(plan: Plan) -> str:
    return "; diamond: the pick, as simulated" if plan.best and plan.best.simulated else ""


def _ticks(low: float, high: float) -> list[float]:
    """1, 2, 5 of every power of ten; powers alone where that would be many."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    steps = (1, 2, 5) if math.log10(high / low) < 2.6 else (1,)
    return [value for power in powers for step in steps if low <= (value := step * 10.0**power) <= high]


# --- bars -----------------------------------------------------------------------------------------------------------


def _changed(swing: BillSwing) -> str:
    """``requests a second ±25 %``."""
    low, high = swing.low.factor - 1, swing.high.factor - 1
    change = f"±{percent(high)}" if math.isclose(-low, high) else f"−{percent(-low)} to +{percent(high)}"
    return f"{swing.assumption} {change}"


def _bar(name: str, case: Case, mid: float, beyond: float) -> Row:
    amount = beyond if case.usd_per_month is None else case.usd_per_month
    moved = not math.isclose(amount, mid, rel_tol=1e-9)
    return {
        "what": name,
        "mid": mid,
        "usd": amount,
        "side": "smaller value" if case.factor < 1 else "larger value",
        "moved": moved,
        "used": "" if case.used is None else percent(case.used),
        "label": "cannot be kept" if case.usd_per_month is None else usd(amount),
    }


def _in_use(swing: BillSwing) -> str:
    """Where the bill stands still: what the change does to the room."""
    shares = [percent(each.used) for each in (swing.low, swing.high) if each.used is not None]
    return f"no change; {' to '.join(dict.fromkeys(shares))} in use"


def _choice(choice: RegretChoice) -> str:
    return f"{choice.gpu} {choice.layout.removeprefix('TP=1 ')}, {choice.provider}"


def _case_names(regret: Regret) -> list[str]:
    """What tells the demands apart."""
    demands = regret.demands
    words = _CASES if len(demands) == len(_CASES) else tuple(str(place) for place in range(1, len(demands) + 1))
    parts = []
    for each in demands:
        said = [f"{count(each.rate)}/s"] if len({demand.rate for demand in demands}) > 1 else []
        if len({(demand.input_tokens, demand.output_tokens) for demand in demands}) > 1:
            said.append(f"{each.input_tokens:,} in, {each.output_tokens:,} out")
        parts.append(", ".join(said))
    return [f"{word}: {part}" if part else word for word, part in zip(words, parts, strict=True)]


def _case_colours(number: int) -> list[str]:
    return [_CASE_COLOURS[place % len(_CASE_COLOURS)] for place in range(number)]


def _load(plan: Plan) -> str:
    mean = plan.workload
    return f"{count(mean.rate)} requests/s, {mean.input_tokens:,.0f} tokens in, {mean.output_tokens:,.0f} out"


def _heading(text: str) -> "alt.TitleParams":
    import altair as alt

    return alt.TitleParams(
        text, anchor="start", fontSize=11, fontWeight="normal", color="#444", offset=6, frame="group"
    )


def _title(title: str, subtitle: list[str]) -> "alt.TitleParams":
    import altair as alt

    return alt.TitleParams(title, subtitle=subtitle, anchor="start", fontSize=15, subtitleFontSize=12, offset=12)
