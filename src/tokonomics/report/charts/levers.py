"""Levers as pictures: the waterfall from naive to optimised, and each lever's saving beside that of all together."""

import math
from textwrap import wrap

import altair as alt

from tokonomics.planner.levers.ranking import Ranking
from tokonomics.planner.levers.stack import Waterfall
from tokonomics.report.charts import style
from tokonomics.report.wording import setup_text
from tokonomics.sizing.bill import Bill
from tokonomics.sizing.setup import Setup
from tokonomics.units import percent, usd

_BILLS = {"bill": style.BLUE, "saved": style.LIGHT_GREEN, "added": style.RED}
_SAVINGS = {"alone": style.LIGHT_GREEN, "added": style.RED, "sum": "#ffffff", "together": style.DARK_GREEN}
"""Blue is a bill, green what is saved (dark: by all together), red what is added: in both charts, and in grey too."""
_NOTHING = 5e-4
"""Share of the bill below which a lever has no effect: it would be shown as 0 %."""
_MOST_TICKS = 10
_LINE = 125
"""Characters across the picture."""


def stack_chart(stack: Waterfall, setup: Setup) -> alt.TopLevelMixin:
    """Dollars a month step by step, from zero; and on a logarithmic axis what a million tokens costs after each."""
    start, least = stack.naive, stack.end.usd_per_month
    top = max(start.usd_per_month, *(step.bill.usd_per_month for step in stack.steps), least)

    def bar(name: str, low: float, high: float, kind: str, label: str) -> style.Row:
        return {"step": name, "low": low, "high": high, "kind": kind, "label": label}

    first = "one request at a time"
    bills = [bar(first, 0.0, start.usd_per_month, "bill", usd(start.usd_per_month))]
    prices: list[style.Row] = [
        {"step": first, "usd": start.usd_per_mtok.blended, "label": usd(start.usd_per_mtok.blended)}
    ]
    before = start.usd_per_month
    for place, step in enumerate(stack.steps, 1):
        after, name = step.bill.usd_per_month, f"{place}. {step.name}"
        kind = "saved" if after <= before else "added"
        share = abs(step.saved_share) * 100
        label = "0 %" if share < 0.05 else f"{'−' if after < before else '+'}{share:.1f} %, {usd(after)} left"
        bills.append(bar(name, min(before, after), max(before, after), kind, label))
        prices.append(
            {"step": name, "usd": step.bill.usd_per_mtok.blended, "label": usd(step.bill.usd_per_mtok.blended)}
        )
        before = after
    bills.append(bar("what is left", 0.0, least, "bill", usd(least)))
    order = [row["step"] for row in bills]
    y = style.names("step", order, 280)
    x = style.across(
        "low",
        "dollars a month",
        style.linear(0, top * 1.4),
        format="$~s",
        tickCount=5,
        labelExpr=f"datum.value > {top * 1.2:.6g} ? '' : datum.label",
    )
    blocks = style.bars(bills).encode(
        x=x, x2="high:Q", y=y, color=style.colours("kind", _BILLS, named=False), tooltip=style.tips("step", "label")
    )
    ends = style.labels(bills).encode(x="high:Q", y=y)
    left = style.panel(blocks, ends, width=430, height=alt.Step(28), title="The bill, step by step")
    title = f"From naive to optimised: −{stack.saved_share * 100:.1f} %"
    return style.whole(alt.hconcat(left, _prices(prices, order), spacing=24), title, setup_text(setup))


def _prices(prices: list[style.Row], order: list[str]) -> style.Marks:
    least, most = min(price["usd"] for price in prices), max(price["usd"] for price in prices)
    scale = style.log(least / 1.3, most * 2.2)
    x = style.across("usd", "dollars per Mtok (logarithmic)", scale, format="$~g", tickCount=4, grid=False)
    y = alt.Y("step:N", title=None, sort=order, scale=alt.Scale(domain=order), axis=None)
    dots = style.plot(prices).mark_point(filled=True, opacity=1, size=60, color=style.BLUE).encode(x=x, y=y)
    marks = dots, style.labels(prices, dx=8).encode(x=x, y=y)
    return style.panel(*marks, width=230, height=alt.Step(28), title="What a million tokens costs then")


def levers_chart(ranking: Ranking, setup: Setup) -> alt.TopLevelMixin:
    """The saving of each lever alone, of all together, and what their sum would have been."""

    now = ranking.now.usd_per_month

    def bar(name: str, share: float, kind: str, bill: Bill) -> style.Row:
        left = bill.usd_per_month
        # Both are what is saved: what is left stands in the table, and under the pointer.
        label = f"{_said(share)}\n{usd(abs(now - left))} a month"
        return {"lever": name, "share": share, "kind": kind, "label": label, "bill then": f"{usd(left)} a month"}

    known = [(lever.name, lever.saved_share, lever.bill) for lever in ranking.levers if lever.bill]
    rows = [
        bar(name, share, "alone" if share >= 0 else "added", bill)
        for name, share, bill in known
        if abs(share) >= _NOTHING
    ]
    without = [name for name, share, _ in known if abs(share) < _NOTHING]
    if len(ranking.taken) > 1:
        total = ranking.sum_of_shares
        label = f"{percent(total)}\n(not what happens)"
        rows.append({"lever": "the sum of those taken", "share": total, "kind": "sum", "label": label})
    rows.append(bar("together", ranking.saved_share, "together", ranking.together))
    shares = [row["share"] for row in rows]
    low, high = min(0.0, *shares), max(0.05, *shares)
    span = high - low
    y = style.names("lever", [row["lever"] for row in rows], 240)
    scale = style.linear(low - span * 0.02, high + span * 0.6)
    x = style.across("share", "saved of the monthly bill", scale, format="%", values=_ticks(low, high), grid=False)
    # The sum is only an outline: nobody saves it.
    outline = alt.condition("datum.kind == 'sum'", alt.value(style.OUTLINE), alt.value(None))
    blocks = style.bars(rows, strokeDash=[4, 3]).encode(
        x=x,
        y=y,
        color=style.colours("kind", _SAVINGS, named=False),
        stroke=outline,
        tooltip=style.tips("lever", "label", "bill then"),
    )
    ends = style.labels(({**row, "share": max(0.0, row["share"])} for row in rows), lineBreak="\n", dy=-6)
    zero = style.plot([{"share": 0}]).mark_rule(color=style.OUTLINE).encode(x="share:Q")
    return style.whole(
        style.panel(blocks, zero, ends.encode(x=x, y=y), width=560, height=alt.Step(32)),
        f"What each lever saves of {usd(ranking.now.usd_per_month)} a month",
        *_lines(setup_text(setup)),
        *_lines(f"No effect: {', '.join(without)}." if without else ""),
    )


def _lines(text: str) -> list[str]:
    """Of a picture's width; a line that goes on ends with a space: the page, which wraps itself, joins it by that."""
    *going_on, last = wrap(text, _LINE) or [""]
    return [*(f"{line} " for line in going_on), *([last] if last else [])]


def _ticks(low: float, high: float) -> list[float]:
    """Every fifth of the bill, or more where it grows manifold; none beyond the longest bar, where its label stands."""
    step = 0.2 if high > 0.2 else 0.05
    while (high - low) / step > _MOST_TICKS:
        step *= 2
    return [step * place for place in range(math.ceil(low / step), math.floor(high / step + 1e-9) + 1)]


def _said(share: float) -> str:
    """In words, so that no sign stands against that of the axis."""
    if abs(share) < _NOTHING:
        return "saves 0 %"
    return f"saves {percent(share)}" if share > 0 else f"costs {percent(-share)} more"
