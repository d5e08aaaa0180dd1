"""Levers as pictures: the waterfall from naive to optimised, and each lever's saving beside that of all together."""

import math
from textwrap import wrap
from typing import TYPE_CHECKING, Any, cast

from tokonomics.planner.levers.ranking import Ranking
from tokonomics.planner.levers.stack import Waterfall
from tokonomics.planner.setup import Setup
from tokonomics.report.wording import slos_text, workload_text
from tokonomics.units import percent, usd

if TYPE_CHECKING:
    import altair as alt

_TOTAL, _SAVED, _ALL_SAVED, _ADDED, _PLAIN = "#3b6fb6", "#8cc5c1", "#2f6f6b", "#b33", "#857c6d"
"""Blue is a bill, green what is saved (dark: by all together), red what is added: in both charts, and in grey too."""
_DWARFED = 8
"""First bill over the last from which the bars stand on a logarithmic axis: later steps would not be seen."""
_NOTHING = 5e-4
"""Share of the bill below which a lever has no effect: it would be shown as 0 %."""
_MOST_TICKS = 10
_LINE = 125
"""Characters across the picture."""
_START, _END = "one request at a time", "what is left"


def asked(setup: Setup) -> str:
    """The deployment, its traffic and its SLOs in one line."""
    targets = slos_text(setup.slos)
    slos = f"SLO: {targets}" if targets else "no SLO"
    return f"{setup.deployment}: {workload_text(setup.load.workload)}; {slos}"


def stack_chart(made: Waterfall, setup: Setup) -> "alt.HConcatChart":
    """Dollars a month step by step, and on a logarithmic axis what a million tokens costs after each."""
    import altair as alt

    top, least = made.naive.usd_per_month, made.end.usd_per_month
    top = max(top, *(step.bill.usd_per_month for step in made.steps)) if made.steps else top
    logarithmic = top > _DWARFED * least
    floor = least / 2 if logarithmic else 0.0
    bars: list[dict[str, Any]] = [_bar(_START, floor, made.naive.usd_per_month, "bill", usd(made.naive.usd_per_month))]
    prices = [{"step": _START, "usd": made.naive.usd_per_mtok, "label": usd(made.naive.usd_per_mtok)}]
    before = made.naive.usd_per_month
    for place, step in enumerate(made.steps, 1):
        after, name = step.bill.usd_per_month, f"{place}. {step.name}"
        kind = "saved" if after <= before else "added"
        share = abs(step.saved_share) * 100
        label = "0 %" if share < 0.05 else f"{'−' if after < before else '+'}{share:.1f} %, {usd(after)} left"
        bars.append(_bar(name, min(before, after), max(before, after), kind, label))
        prices.append({"step": name, "usd": step.bill.usd_per_mtok, "label": usd(step.bill.usd_per_mtok)})
        before = after
    bars.append(_bar(_END, floor, least, "bill", usd(least)))
    order = [bar["step"] for bar in bars]
    y = alt.Y("step:N", title=None, sort=order, axis=alt.Axis(labelLimit=280, ticks=False, domain=False))
    scale = (
        alt.Scale(type="log", domain=[floor, top * (top / floor) ** 0.45], nice=False)
        if logarithmic
        else alt.Scale(domain=[0, top * 1.4], nice=False)
    )
    x = alt.X(
        "low:Q",
        title=f"dollars a month{' (logarithmic)' if logarithmic else ''}",
        scale=scale,
        axis=alt.Axis(
            format="$~s",
            tickCount=5,
            grid=not logarithmic,
            labelExpr=f"datum.value > {top * 1.2:.6g} ? '' : datum.label",
        ),
    )
    data = alt.InlineData(values=bars)
    colour = alt.Color(
        "kind:N", legend=None, scale=alt.Scale(domain=["bill", "saved", "added"], range=[_TOTAL, _SAVED, _ADDED])
    )
    blocks = alt.Chart(data).mark_bar(height={"band": 0.66}).encode(x=x, x2="high:Q", y=y, color=colour)
    labels = alt.Chart(data).mark_text(align="left", dx=5).encode(x="high:Q", y=y, text="label:N")
    left = alt.layer(blocks, labels).properties(
        width=430, height=alt.Step(28), title=_heading("The bill, step by step")
    )
    right = _prices(prices, order)
    heading = alt.TitleParams(
        f"From naive to optimised: −{made.saved_share * 100:.1f} %",
        subtitle=asked(setup),
        anchor="start",
        fontSize=15,
        subtitleFontSize=12,
        offset=12,
    )
    chart = alt.hconcat(left, right, spacing=24, title=heading).configure_view(stroke=None)
    return cast("alt.HConcatChart", chart)


def _bar(step: str, low: float, high: float, kind: str, label: str) -> dict[str, Any]:
    return {"step": step, "low": low, "high": high, "kind": kind, "label": label}


def _prices(prices: list[dict[str, Any]], order: list[str]) -> "alt.LayerChart":
    import altair as alt

    y = alt.Y("step:N", title=None, sort=order, scale=alt.Scale(domain=order), axis=None)
    least, most = min(price["usd"] for price in prices), max(price["usd"] for price in prices)
    x = alt.X(
        "usd:Q",
        title="dollars per Mtok (logarithmic)",
        axis=alt.Axis(format="$~g", tickCount=4, grid=False),
        scale=alt.Scale(type="log", domain=[least / 1.3, most * 2.2], nice=False),
    )
    data = alt.InlineData(values=prices)
    dots = alt.Chart(data).mark_point(filled=True, opacity=1, size=60, color=_TOTAL).encode(x=x, y=y)
    names = alt.Chart(data).mark_text(align="left", dx=8).encode(x=x, y=y, text="label:N")
    made = alt.layer(dots, names).properties(
        width=230, height=alt.Step(28), title=_heading("What a million tokens costs then")
    )
    return cast("alt.LayerChart", made)


def levers_chart(ranking: Ranking, setup: Setup) -> "alt.LayerChart":
    """The saving of each lever alone, of all together, and what their sum would have been."""
    import altair as alt

    rows: list[dict[str, Any]] = [
        {
            "lever": lever.name,
            "share": lever.saved_share,
            "kind": "alone" if lever.saved_share >= 0 else "added",
            "label": f"{_said(lever.saved_share)}, {usd(lever.bill.usd_per_month)} a month",
        }
        for lever in ranking.levers
        if lever.bill and abs(lever.saved_share) >= _NOTHING
    ]
    without = [lever.name for lever in ranking.levers if lever.bill and abs(lever.saved_share) < _NOTHING]
    if len(ranking.taken) > 1:
        rows.append(
            {
                "lever": "the sum of those taken",
                "share": ranking.sum_of_shares,
                "kind": "sum",
                "label": f"{percent(ranking.sum_of_shares)} (not what happens)",
            }
        )
    rows.append(
        {
            "lever": "together",
            "share": ranking.saved_share,
            "kind": "together",
            "label": f"{_said(ranking.saved_share)}, {usd(ranking.together.usd_per_month)} a month",
        }
    )
    order = [row["lever"] for row in rows]
    shares = [row["share"] for row in rows]
    low, high = min(0.0, *shares), max(0.05, *shares)
    span = high - low
    y = alt.Y("lever:N", title=None, sort=order, axis=alt.Axis(labelLimit=240, ticks=False, domain=False))
    x = alt.X(
        "share:Q",
        title="saved of the monthly bill",
        axis=alt.Axis(format="%", values=_ticks(low, high), grid=False),
        scale=alt.Scale(domain=[low - span * 0.02, high + span * 0.45], nice=False),
    )
    kinds = {"alone": _SAVED, "added": _ADDED, "sum": "#ffffff", "together": _ALL_SAVED}
    colour = alt.Color("kind:N", legend=None, scale=alt.Scale(domain=list(kinds), range=list(kinds.values())))
    data = alt.InlineData(values=rows)
    # The sum is only an outline: nobody saves it.
    outline = alt.condition("datum.kind == 'sum'", alt.value(_PLAIN), alt.value(None))
    bars = (
        alt.Chart(data)
        .mark_bar(height={"band": 0.66}, strokeDash=[4, 3])
        .encode(x=x, y=y, color=colour, stroke=outline)
    )
    edge = alt.Chart(alt.InlineData(values=[{**row, "share": max(0.0, row["share"])} for row in rows]))
    labels = edge.mark_text(align="left", dx=5).encode(x=x, y=y, text="label:N")
    zero = alt.Chart(alt.InlineData(values=[{"share": 0}])).mark_rule(color=_PLAIN).encode(x="share:Q")
    heading = alt.TitleParams(
        f"What each lever saves of {usd(ranking.now.usd_per_month)} a month",
        subtitle=[*wrap(asked(setup), _LINE), *wrap(f"No effect: {', '.join(without)}." if without else "", _LINE)],
        anchor="start",
        fontSize=15,
        subtitleFontSize=12,
        offset=12,
    )
    chart = alt.layer(bars, zero, labels).properties(width=560, height=alt.Step(26), title=heading)
    return cast("alt.LayerChart", chart.configure_view(stroke=None))


def _ticks(low: float, high: float) -> list[float]:
    """Every fifth of the bill, or more where it grows manifold; none beyond the longest bar, where its label stands."""
    step = 0.2 if high > 0.2 else 0.05
    while (high - low) / step > _MOST_TICKS:
        step *= 2
    return [step * place for place in range(math.ceil(low / step), math.floor(high / step + 1e-9) + 1)]


def _said(share: float) -> str:
    """In words, so that no sign stands against that of the axis."""
    if abs(share) < _NOTHING:
        return "saves nothing"
    return f"saves {percent(share)}" if share > 0 else f"costs {percent(-share)} more"


def _heading(text: str) -> "alt.TitleParams":
    import altair as alt

    return alt.TitleParams(text, anchor="start", fontSize=12)
