"""Draw plans: bills by hardware, what moves them, unknown demand; models and GPUs side by side."""

import math
from collections.abc import Sequence

import altair as alt

from tokonomics.catalog.gpus import gpu_text
from tokonomics.planner.compare import Comparison
from tokonomics.planner.disaggregation import RatioPoint
from tokonomics.planner.firmness import Regret
from tokonomics.planner.plan_answer import Candidate, Plan
from tokonomics.planner.vary import Case, CostSwing, Sensitivity
from tokonomics.questions.results import layout_text, replicas_text
from tokonomics.report.charts import style
from tokonomics.report.wording import and_slos, price_text, provider_text, rented_text, workload_text
from tokonomics.sizing.hosts import UNUSED
from tokonomics.units import count, percent, plural, usd

_PARTS = {"prefill": style.BLUE, "decode": style.GREEN, "idle": style.SAND, UNUSED: style.DARK_SAND}
_MOST_BILLS = 14
_CASES = ("low", "middle", "high")
_CASE_COLOURS = (style.LIGHT_BLUE, style.BLUE, style.DARK_BLUE)


def plan_chart(plan: Plan, model_name: str) -> alt.TopLevelMixin:
    """Draw the monthly bill on each kind of hardware at its cheapest offer, split into its parts."""
    leaders = plan.leaders(_MOST_BILLS)
    names = [f"{replicas_text(row)} {row.weights}{'*' * row.below_checkpoint}" for row in leaders]
    return bill_chart(
        leaders,
        [f"{place}. {name}" for place, name in enumerate(names, 1)],
        f"What serving {model_name} costs on each GPU",
        f"{workload_text(plan.workload)}{and_slos(plan.slos)}; the cheapest offer of each kind",
    )


def bill_chart(leaders: Sequence[Candidate], order: Sequence[str], title: str, subtitle: str) -> alt.TopLevelMixin:
    """Draw bills as bars, split into their parts, with the price of a million tokens."""
    named = list(zip(order, leaders, strict=True))
    parts = [
        {"what": name, "offer": rented_text(row), "part": line.name, "usd": line.usd, "order": place}
        for name, row in named
        for place, line in enumerate(row.bill.lines)
    ]
    totals = [
        {"what": name, "usd": row.usd_per_month, "label": f"{usd(row.usd_per_mtok.blended)}/Mtok"}
        for name, row in named
    ]
    y = style.names("what", order)
    blocks = style.bars(parts).encode(
        x=alt.X("sum(usd):Q", title="dollars a month", axis=alt.Axis(**style.DOLLARS, gridOpacity=0.5)),
        y=y,
        color=style.colours("part", _PARTS, "paid for"),
        order="order:Q",
        tooltip=style.tips("what", "offer", "part", usd="$,.2f"),
    )
    return style.whole(
        style.panel(blocks, style.labels(totals).encode(x="usd:Q", y=y), width=560, height=alt.Step(24)),
        title,
        subtitle,
    )


# --- what moves the bill --------------------------------------------------------------------------------------------


def sensitivity_chart(sensitivity: Sensitivity, what: str) -> alt.TopLevelMixin:
    """Draw how far each assumption, changed alone, moves the monthly bill down and up, strongest on top."""
    mid = sensitivity.usd_per_month
    known = [case.usd_per_month for swing in sensitivity.swings for case in (swing.low, swing.high)]
    top = max([mid, *(bill for bill in known if bill is not None)])
    swings = {_changed(swing): swing for swing in sensitivity.swings}
    rows = [_swing(name, case, mid, 1.15 * top) for name, swing in swings.items() for case in (swing.low, swing.high)]
    x = style.across("usd", "dollars a month", style.linear(0, 1.3 * top), **style.DOLLARS)
    unmoved = {}
    for name, swing in swings.items():
        shares = [percent(case.used) for case in (swing.low, swing.high) if case.used is not None]
        unmoved[name] = f"no change; {' to '.join(dict.fromkeys(shares))} in use"
    return style.whole(
        style.tornado(rows, "usd", x, unmoved, style.tips("what", "side", "used", usd="$,.2f")),
        "What moves the bill",
        f"{what}: {usd(mid)} a month, {plural(sensitivity.replicas, 'replica')}, "
        f"{percent(sensitivity.used)} of the capacity in use",
        "One assumption changed at a time, the same hardware sized anew",
    )


def _changed(swing: CostSwing) -> str:
    """Return ``requests a second ±25 %``."""
    low, high = swing.low.factor - 1, swing.high.factor - 1
    change = f"±{percent(high)}" if math.isclose(-low, high) else f"−{percent(-low)} to +{percent(high)}"
    return f"{swing.assumption} {change}"


def _swing(name: str, case: Case, mid: float, beyond: float) -> style.Row:
    return {
        "what": name,
        "mid": mid,
        "usd": beyond if case.usd_per_month is None else case.usd_per_month,
        "side": "smaller value" if case.factor < 1 else "larger value",
        "used": "" if case.used is None else percent(case.used),
        "label": "cannot be met" if case.usd_per_month is None else usd(case.usd_per_month),
    }


# --- the ratio of prefill to decode replicas ------------------------------------------------------------------------


def ratio_chart(points: Sequence[RatioPoint], what: str) -> alt.TopLevelMixin:
    """Draw a bar for each split of the same GPUs with what it holds; highlight the plan's split."""
    rows: list[style.Row] = [
        {
            "what": split_name(point),
            "rate": point.requests_per_s,
            "kind": mark_of(point) or "other splits",
            "label": "misses an SLO at any rate" if point.usd_per_mtok is None else f"{usd(point.usd_per_mtok)}/Mtok",
        }
        for point in points
    ]
    top = max(row["rate"] for row in rows) or 1.0
    x = style.across("rate", "requests a second that meet every SLO", style.linear(0, 1.25 * top))
    y = style.names("what", [row["what"] for row in rows])
    shown = {"planned": style.BLUE, "cheapest split": style.GREEN, "other splits": style.SAND}
    used = {row["kind"] for row in rows}
    kinds = style.colours("kind", {name: shown[name] for name in shown if name in used}, symbolType="square")
    layers = style.labelled_bars(rows, x, y, color=kinds, tooltip=style.tips("what", "label", rate=",.3g"))
    title = "What the ratio of prefill to decode replicas does"
    return style.whole(style.panel(*layers, width=560, height=alt.Step(26)), title, what)


def split_name(point: RatioPoint) -> str:
    """Return ``2 prefill : 3 decode``."""
    if not point.prefill_replicas:
        return f"{point.decode_replicas} that do both"
    return f"{point.prefill_replicas} prefill : {point.decode_replicas} decode"


def mark_of(point: RatioPoint) -> str:
    """Return ``planned``, or ``cheapest split`` if the plan picked replicas that do both."""
    return "planned" if point.is_planned else "cheapest split" if point.is_cheapest else ""


# --- demand that is not known ---------------------------------------------------------------------------------------


def regret_chart(regret: Regret, model_name: str, rows: int = 6) -> alt.TopLevelMixin:
    """Draw the bill of each choice in every case, with the best of each case as a tick and the regret beside it."""
    choices = [
        (f"{gpu_text(choice.gpu)} {choice.layout.removeprefix('TP=1 ')}, {provider_text(choice.provider)}", choice)
        for choice in regret.choices[:rows]
    ]
    cases = _case_names(regret)
    bills: list[style.Row] = [
        {
            "what": name,
            "case": case,
            "usd": bill.usd_per_month,
            "best": best,
            "label": usd(bill.usd_per_month) + (f"  +{percent(bill.regret)}" if bill.regret >= 0.005 else "  best"),
            "replicas": bill.replicas,
        }
        for name, choice in choices
        for case, bill, best in zip(cases, choice.cases, regret.best_usd_per_month, strict=True)
    ]
    place: style.Settings = {
        "y": style.names("what", [name for name, _ in choices]),
        "yOffset": alt.YOffset("case:N", sort=cases, scale=alt.Scale(paddingInner=0.12, paddingOuter=0)),
    }
    x = style.across(
        "usd", "dollars a month", style.linear(0, 1.22 * max(row["usd"] for row in bills)), **style.DOLLARS
    )
    palette = {case: _CASE_COLOURS[number % len(_CASE_COLOURS)] for number, case in enumerate(cases)}
    tooltip = ["what:N", "case:N", "replicas:Q", alt.Tooltip("usd:Q", format="$,.2f")]
    layers = [
        style.plot(bills)
        .mark_bar()
        .encode(x=x, **place, color=style.colours("case", palette, symbolType="square"), tooltip=tooltip),
        style.plot(bills).mark_tick(color=style.RED, thickness=2, size=13).encode(x="best:Q", **place),
        style.labels(bills).encode(x=x, **place),
    ]
    return style.whole(
        style.panel(*layers, width=520, height=alt.Step(19)),
        f"One choice of hardware for {model_name}, whatever the demand",
        f"On top the least regret: at most {percent(regret.choices[0].largest_regret)} above the best for the demand "
        "that comes",
        "Replicas follow the demand; red: the best of each case, whatever it is",
    )


def _case_names(regret: Regret) -> list[str]:
    """Return ``low: 2/s``: the rate, or the lengths if those differ."""
    demands = regret.demands
    words = _CASES if len(demands) == len(_CASES) else tuple(str(place) for place in range(1, len(demands) + 1))
    if len({demand.rate for demand in demands}) > 1:
        return [f"{word}: {count(demand.rate)}/s" for word, demand in zip(words, demands, strict=True)]
    return [
        f"{word}: {demand.input_tokens:,} in, {demand.output_tokens:,} out"
        for word, demand in zip(words, demands, strict=True)
    ]


# --- models and GPUs side by side ------------------------------------------------------------------------------------


_WIDTH = 620
_LEAST_STEP = 84
_UPRIGHT = 6  # most names that fit side by side without touching
_ROOM_FOR_NAMES = 0.66  # of the width: further right a name would leave the chart
_ACROSS = 8  # GPUs side by side on a page


def compare_chart(found: Comparison) -> alt.TopLevelMixin:
    """Draw a heat map of dollars per million tokens, with the front of price and quality below it."""
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
    # The longer list is vertical.
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
        "→ the cheapest; * fewer bits than published; † price older than 90 days; – no offer",
    )


def _front(found: Comparison) -> alt.TopLevelMixin:
    rows: list[style.Row] = [
        {
            "usd": cell.usd_per_mtok,
            "quality": cell.quality,
            "front": (cell.model, cell.gpu) in found.front,
            "label": f"{cell.model_name} on {gpu_text(cell.gpu)}",
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
    # The line rises to the right, so a name goes below its dot, or above and to the left near the edge.
    edge = low * (high / low) ** _ROOM_FOR_NAMES
    best = [row for row in rows if row["front"]]
    below = style.labels([row for row in best if row["usd"] <= edge], dx=8, dy=15, fontSize=12)
    above = style.labels([row for row in best if row["usd"] > edge], left=True, dx=-9, dy=-9, fontSize=12)
    marks = line, dots, below.encode(**place), above.encode(**place)
    front = style.panel(*marks, width=_WIDTH, height=260)
    return style.whole(front, "Price against quality", "Blue: nothing is both better and cheaper.")
