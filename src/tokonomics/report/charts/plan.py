"""A plan as pictures: bills by hardware, what moves the bill, bills when demand is not known."""

import math
from collections.abc import Sequence

import altair as alt

from tokonomics.planner.disaggregation import RatioPoint
from tokonomics.planner.firmness import Regret
from tokonomics.planner.plan_answer import Candidate, Plan
from tokonomics.planner.vary import BillSwing, Case, Sensitivity
from tokonomics.questions.results import replicas_text
from tokonomics.report.charts import style
from tokonomics.report.wording import and_slos, workload_text
from tokonomics.sizing.hosts import UNUSED
from tokonomics.units import count, percent, plural, usd

_PARTS = {"prefill": style.BLUE, "decode": style.GREEN, "idle": style.SAND, UNUSED: style.DARK_SAND}
_MOST_BILLS = 14
_CASES = ("low", "middle", "high")
_CASE_COLOURS = (style.LIGHT_BLUE, style.BLUE, style.DARK_BLUE)


def plan_chart(plan: Plan, model_name: str) -> alt.TopLevelMixin:
    """The monthly bill on each kind of hardware at its cheapest offer, split into what it pays for."""
    leaders = plan.leaders(_MOST_BILLS)
    return bill_chart(
        leaders,
        [
            f"{place}. {replicas_text(row)} {row.weights}{'*' * row.below_checkpoint}"
            for place, row in enumerate(leaders, 1)
        ],
        f"What serving {model_name} costs on each GPU",
        f"{workload_text(plan.workload)}{and_slos(plan.slos)}; the cheapest offer of each kind",
    )


def bill_chart(leaders: Sequence[Candidate], order: Sequence[str], title: str, subtitle: str) -> alt.TopLevelMixin:
    """Bills as bars, split into what they pay for, with the price of a million tokens."""
    named = list(zip(order, leaders, strict=True))
    parts = [
        {"what": name, "offer": f"{row.provider} {row.instance}", "part": line.name, "usd": line.usd, "order": place}
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
    """Each assumption changed alone: how far the monthly bill goes down and up, the strongest on top."""
    mid = sensitivity.usd_per_month
    known = [case.usd_per_month for swing in sensitivity.swings for case in (swing.low, swing.high)]
    top = max([mid, *(bill for bill in known if bill is not None)])
    swings = {_changed(swing): swing for swing in sensitivity.swings}
    rows = [_swing(name, case, mid, 1.15 * top) for name, swing in swings.items() for case in (swing.low, swing.high)]
    moved = [row for row in rows if not math.isclose(row["usd"], mid, rel_tol=1e-9)]
    still = [
        {"what": name, "usd": mid, "label": _in_use(swing)}
        for name, swing in swings.items()
        if name not in {row["what"] for row in moved}
    ]
    x = style.across("usd", "dollars a month", style.linear(0, 1.3 * top), **style.DOLLARS)
    y = style.names("what", list(swings))
    sides = style.colours("side", {"smaller value": style.GREEN, "larger value": style.BLUE}, symbolType="square")
    tooltip = style.tips("what", "side", "used", usd="$,.2f")
    layers = [
        style.bars(rows).encode(x=x, x2="mid:Q", y=y, color=sides, tooltip=tooltip),
        style.plot([{"usd": mid}]).mark_rule(color=style.INK).encode(x=x),
        style.labels(row for row in moved if row["usd"] > mid).encode(x=x, y=y),
        style.labels((row for row in moved if row["usd"] < mid), left=True).encode(x=x, y=y),
        style.labels(still, dx=8, color=style.OUTLINE).encode(x=x, y=y),
    ]
    return style.whole(
        style.panel(*layers, width=560, height=alt.Step(30)),
        "What moves the bill",
        f"{what}: {usd(mid)} a month, {plural(sensitivity.replicas, 'replica')}, "
        f"{percent(sensitivity.used)} of the capacity in use",
        "One assumption changed at a time, the same hardware sized anew",
    )


def _changed(swing: BillSwing) -> str:
    """``requests a second ±25 %``."""
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


def _in_use(swing: BillSwing) -> str:
    """Where the bill stands still: what the change does to the room."""
    shares = [percent(case.used) for case in (swing.low, swing.high) if case.used is not None]
    return f"no change; {' to '.join(dict.fromkeys(shares))} in use"


# --- the ratio of prefill to decode replicas ------------------------------------------------------------------------


def ratio_chart(points: Sequence[RatioPoint], what: str) -> alt.TopLevelMixin:
    """What the same GPUs hold by how they are split, a bar for each; the plan's split stands out."""
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
    layers = [
        style.bars(rows).encode(x=x, y=y, color=kinds, tooltip=style.tips("what", "label", rate=",.3g")),
        style.labels(rows).encode(x=x, y=y),
    ]
    title = "What the ratio of prefill to decode replicas does"
    return style.whole(style.panel(*layers, width=560, height=alt.Step(26)), title, what)


def split_name(point: RatioPoint) -> str:
    """``2 prefill : 3 decode``."""
    if not point.prefill_replicas:
        return f"{point.decode_replicas} that do both"
    return f"{point.prefill_replicas} prefill : {point.decode_replicas} decode"


def mark_of(point: RatioPoint) -> str:
    """``planned``, or ``cheapest split`` where the plan picked replicas that do both."""
    return "planned" if point.is_planned else "cheapest split" if point.is_cheapest else ""


# --- demand that is not known ---------------------------------------------------------------------------------------


def regret_chart(regret: Regret, model_name: str, rows: int = 6) -> alt.TopLevelMixin:
    """The bill of each choice in every case; the best of each case as a tick, regret beside it."""
    choices = [
        (f"{choice.gpu} {choice.layout.removeprefix('TP=1 ')}, {choice.provider}", choice)
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
    """What tells the demands apart."""
    demands = regret.demands
    words = _CASES if len(demands) == len(_CASES) else tuple(str(place) for place in range(1, len(demands) + 1))
    parts = []
    for demand in demands:
        said = [f"{count(demand.rate)}/s"] if len({other.rate for other in demands}) > 1 else []
        if len({(other.input_tokens, other.output_tokens) for other in demands}) > 1:
            said.append(f"{demand.input_tokens:,} in, {demand.output_tokens:,} out")
        parts.append(", ".join(said))
    return [f"{word}: {part}" if part else word for word, part in zip(words, parts, strict=True)]
