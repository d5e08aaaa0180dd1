"""Draw savings: by levers, by caching, by tenants that share."""

import math
from collections.abc import Sequence
from textwrap import wrap

import altair as alt

from tokonomics.errors import BadInput, option
from tokonomics.levers.prefix_cache import PrefixCacheLever
from tokonomics.levers.ranking import Ranking
from tokonomics.levers.semantic_cache import SemanticHits
from tokonomics.levers.stack import Waterfall
from tokonomics.levers.tenancy import NoisyNeighbour, Pooling
from tokonomics.questions.metered import MeteredToday, Proposal
from tokonomics.report.charts import style
from tokonomics.report.wording import setup_text
from tokonomics.sizing.bill import Bill
from tokonomics.sizing.setup import Setup
from tokonomics.traffic.slo import Latency, Slo
from tokonomics.units import percent, plural, seconds, usd

_BILLS = {"bill": style.BLUE, "saved": style.LIGHT_GREEN, "added": style.RED}
_SAVINGS = {"alone": style.LIGHT_GREEN, "added": style.RED, "sum": "#ffffff", "together": style.DARK_GREEN}
"""Blue is a bill, green a saving (dark: of all together), red an addition, in both charts; they differ in grey too."""
_NOTHING = 5e-4  # share of the bill: a lever that saves less has no effect, as it would show 0 %
_MOST_TICKS = 10
_LINE = 125  # characters across the chart


def stack_chart(stack: Waterfall, setup: Setup) -> alt.TopLevelMixin:
    """Draw dollars a month step by step, from zero; and $/Mtok after each step on a logarithmic axis."""
    start, least = stack.naive, stack.end.usd_per_month
    top = max(start.usd_per_month, *(step.bill.usd_per_month for step in stack.steps), least)

    def bar(name: str, low: float, high: float, kind: str, label: str) -> style.Row:
        return {"step": name, "low": low, "high": high, "kind": kind, "label": label}

    def price(name: str, bill: Bill) -> style.Row:
        return {"step": name, "usd": bill.usd_per_mtok.blended, "label": usd(bill.usd_per_mtok.blended)}

    first = "one request at a time"
    bills = [bar(first, 0.0, start.usd_per_month, "bill", usd(start.usd_per_month))]
    prices = [price(first, start)]
    before = start.usd_per_month
    for place, step in enumerate(stack.steps, 1):
        after, name = step.bill.usd_per_month, f"{place}. {step.name}"
        kind = "saved" if after <= before else "added"
        share = abs(step.saved_share) * 100
        label = "0 %" if share < 0.05 else f"{'−' if after < before else '+'}{share:.1f} %, {usd(after)} left"
        bills.append(bar(name, min(before, after), max(before, after), kind, label))
        prices.append(price(name, step.bill))
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
    """Draw the saving of each lever alone, of all together, and the sum of the single savings."""

    now = ranking.now.usd_per_month

    def bar(name: str, share: float, kind: str, left: float) -> style.Row:
        # Both are savings: the remaining bill is in the table and in the tooltip.
        label = f"{_said(share)}\n{usd(abs(now - left))} a month"
        return {"lever": name, "share": share, "kind": kind, "label": label, "bill then": f"{usd(left)} a month"}

    known = [
        (lever.name, lever.saved_share, paid.usd_per_month)
        for lever in ranking.levers
        if (paid := lever.bill or lever.api)
    ]
    rows = [
        bar(name, share, "alone" if share >= 0 else "added", left)
        for name, share, left in known
        if abs(share) >= _NOTHING
    ]
    without = [name for name, share, _ in known if abs(share) < _NOTHING]
    if len(ranking.taken) > 1:
        total = ranking.sum_of_shares
        label = f"{percent(total)}\n(not what happens)"
        rows.append({"lever": "the sum of those taken", "share": total, "kind": "sum", "label": label})
    rows.append(bar("together", ranking.saved_share, "together", ranking.together.usd_per_month))
    title = f"What each lever saves of {usd(ranking.now.usd_per_month)} a month"
    return _savings(rows, title, setup_text(setup), f"No effect: {', '.join(without)}." if without else "")


def proposals_chart(metered: MeteredToday, setup: Setup) -> alt.TopLevelMixin:
    """Draw what each proposal saves of the metered bill, with the twin's own error in its label."""

    def bar(one: Proposal) -> style.Row:
        sure = "" if one.error_share is None else f", twin's error {percent(one.error_share)}"
        label = f"{_said(one.saved_share)}{sure}\n{usd(one.saved_usd_per_month)} a month"
        left = f"{usd(one.usd_per_month)} a month"
        return {"lever": one.name, "share": one.saved_share, "kind": "alone", "label": label, "bill then": left}

    title = f"What each change saves of {usd(metered.usd_per_month)} a month, as metered"
    return _savings([bar(one) for one in metered.proposals], title, setup_text(setup))


def _savings(rows: list[style.Row], title: str, *subtitles: str) -> alt.TopLevelMixin:
    """Draw savings as bars from zero."""
    shares = [row["share"] for row in rows]
    low, high = min(0.0, *shares), max(0.05, *shares)
    span = high - low
    y = style.names("lever", [row["lever"] for row in rows], 240)
    scale = style.linear(low - span * 0.02, high + span * 0.6)
    x = style.across("share", "saved of the monthly bill", scale, format="%", values=_ticks(low, high), grid=False)
    # The sum is only an outline, as nobody saves it.
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
        title,
        *(line for subtitle in subtitles for line in _lines(subtitle)),
    )


def _lines(text: str) -> list[str]:
    """Wrap text to the chart's width; a line that continues ends with a space, by which the page joins it again."""
    *going_on, last = wrap(text, _LINE) or [""]
    return [*(f"{line} " for line in going_on), *([last] if last else [])]


def _ticks(low: float, high: float) -> list[float]:
    """Return ticks at every fifth of the bill, wider if it grows several times; none beyond the longest bar's label."""
    step = 0.2 if high > 0.2 else 0.05
    while (high - low) / step > _MOST_TICKS:
        step *= 2
    return [step * place for place in range(math.ceil(low / step), math.floor(high / step + 1e-9) + 1)]


def _said(share: float) -> str:
    """Say a share as text, without a sign that could contradict the axis."""
    return f"saves {percent(share)}" if share >= -_NOTHING else f"costs {percent(-share)} more"


# --- caching ---------------------------------------------------------------------------------------------------------


_WIDTH, _HEIGHT = 380, 230


def cache_chart(lever: PrefixCacheLever | None, hits: SemanticHits | None, threshold: float) -> alt.TopLevelMixin:
    """Draw a panel for each kind of cache."""
    panels = [*([_sizes(lever), _settings(lever)] if lever else []), *([_thresholds(hits, threshold)] if hits else [])]
    looked_at = lever or hits
    if looked_at is None:
        fix = f"Give {option('trace')}, or {option('prompts')} with {option('semantic')}."
        raise BadInput("there is nothing to draw", field="chart", fix=fix)
    title = f"What caching does: {lever.deployment}" if lever else "Similar prompts"
    return style.whole(alt.hconcat(*panels, spacing=36).resolve_scale(color="independent"), title, looked_at.source)


def _shares() -> alt.Y:
    return style.upwards("share", None, alt.Scale(domainMin=0), format="%")


def _sizes(lever: PrefixCacheLever) -> style.Marks:
    points = [{"GB": size.size_bytes / 1e9, "share": size.share} for size in lever.sizes]
    marked = [row for row in lever.rows if lever.memory is None or row.setting.name == lever.memory.keep]
    verb, colour = ("keep ", style.GREEN) if lever.memory else ("", style.RED)
    memories = [price.tier for row in marked for price in row.setting.tiers if not price.tier.shared]
    known = {f"{verb}{tier.name}": tier.size_bytes / 1e9 for tier in memories}
    gpu = lever.gpu_cache_bytes / 1e9
    sizes = gpu, *known.values(), *(point["GB"] for point in points)
    x = style.across(
        "GB", "size of each replica's cache (GB of KV)", style.log(min(sizes), max(sizes)), format="~s", tickCount=5,
        grid=False,
    )  # fmt: skip
    line = style.plot(points).mark_line(color=style.BLUE, point={"size": 18}).encode(x=x, y=_shares())
    marks = style.limit([{"GB": gpu, "label": "GPU"}], x, _HEIGHT - 8)
    if known:
        rows = [{"GB": size, "label": name} for name, size in known.items()]
        marks += style.limit(rows, x, _HEIGHT - 24, colour=colour)
    return style.panel(line, *marks, width=_WIDTH, height=_HEIGHT, title="Prompt tokens found, by size of the cache")


def _settings(lever: PrefixCacheLever) -> style.Marks:
    rows: list[style.Row] = [
        {
            "setting": row.setting.name.strip(),
            "prefill": row.prefill_replicas,
            "label": f"{usd(row.bill.usd)}/h on {row.needs}" if row.bill else "meets no SLO",
        }
        for row in lever.rows
    ]
    most = max(row.prefill_replicas for row in lever.rows) or 1.0
    x = style.across("prefill", "replicas busy with prompts", style.linear(0, most * 1.45))
    y = style.names("setting", [row["setting"] for row in rows])
    title = "Prompt work, and the bill of the fewest replicas that keep up"
    marks = style.labelled_bars(rows, x, y, {"color": style.BLUE})
    return style.panel(*marks, width=_WIDTH, height=_HEIGHT, title=title)


def _thresholds(hits: SemanticHits, threshold: float) -> style.Marks:
    hit, false = "prompts that hit", "of labelled hits, false"
    rows = [{"cosine": point.threshold, "share": point.hit_share, "kind": hit} for point in hits.points]
    rows += [
        {"cosine": label.threshold, "share": label.false_share, "kind": false}
        for label in hits.labels
        if label.false_share is not None
    ]
    x = style.across("cosine", "cosine from which an answer is reused", alt.Scale(zero=False))
    palette = {hit: style.GREEN, false: style.RED} if hits.labels else {hit: style.GREEN}
    line = style.plot(rows).mark_line(point={"size": 24})
    asked = style.plot([{"cosine": threshold}]).mark_rule(strokeDash=style.DASHED, color=style.OUTLINE).encode(x=x)
    marks = line.encode(x=x, y=_shares(), color=style.colours("kind", palette, orient="bottom")), asked
    title = "Similar prompts" if hits.means else "Similar prompts (hashed words: spelling only)"
    return style.panel(*marks, width=_WIDTH, height=_HEIGHT, title=title)


# --- tenants that share ----------------------------------------------------------------------------------------------


_TENANTS_WIDTH = 330
_LEAST_S = 1e-3
_WIDE = 8  # slowest ÷ fastest above which the axis is logarithmic: otherwise it would have one tick


def tenants_chart(pooling: Pooling, noisy: NoisyNeighbour, slos: Sequence[Slo], shown: int) -> alt.TopLevelMixin:
    """Draw fleets and the noisy neighbour above, the bills of the ``shown`` largest tenants and of the rest below."""
    above = alt.hconcat(_fleets(pooling), _noisy(noisy, slos), spacing=40)
    above = above.resolve_scale(color="independent", shape="independent")
    both = alt.vconcat(above, _bills(pooling, shown), spacing=30)
    targets = f"; {', '.join(pooling.slos)} for each" if pooling.slos else ""
    return style.whole(
        both.resolve_scale(color="independent", shape="independent"),
        f"{plural(len(pooling.tenants), 'tenant')} apart and together: {pooling.deployment}",
        f"{pooling.source}{targets}",
    )


def _fleets(pooling: Pooling) -> style.Marks:
    fleets = [pooling.apart, pooling.together, *pooling.what_if]
    rows = [
        {
            "fleet": fleet.name,
            "replicas": fleet.replicas,
            "label": f"{usd(fleet.usd_per_hour)}/h"
            + ("" if fleet.load_share is None else f", {percent(fleet.load_share)} used"),
            "kind": "these" if place < 2 else "supposed",
        }
        for place, fleet in enumerate(fleets)
    ]
    y = style.names("fleet", [fleet.name for fleet in fleets], 220)
    most = max(fleet.replicas for fleet in fleets)
    x = style.across("replicas", "replicas", style.linear(0, most * 1.6), tickMinStep=1, grid=False, format="d")
    colour = style.colours("kind", {"these": style.BLUE, "supposed": style.LIGHT_BLUE}, named=False)
    title = f"The fewest replicas that {'meet the SLOs' if pooling.slos else 'keep up'}"
    marks = style.labelled_bars(rows, x, y, color=colour)
    return style.panel(*marks, width=_TENANTS_WIDTH, height=alt.Step(34), title=title)


def _noisy(noisy: NoisyNeighbour, slos: Sequence[Slo]) -> style.Marks:
    cases = [f"{row.name.strip()} ({row.replicas})" for row in noisy.rows]
    palette = {noisy.tenant: style.RED, "all others": style.GREEN}
    rows: list[style.Row] = [
        {"case": case, "who": who, "seconds": max(latencies.ttft_p99_s, _LEAST_S)}
        for case, row in zip(cases, noisy.rows, strict=True)
        for who, latencies in zip(palette, (row.noisy, row.others), strict=True)
        if latencies.ttft_p99_s is not None
    ]
    targets = [slo.seconds for slo in slos if slo.latency == Latency.ttft and slo.statistic == "p99"]
    times = [*(row["seconds"] for row in rows), *targets]
    wide = bool(times) and max(times) > _WIDE * min(times)
    scale = style.log(min(times) / 1.2, max(times) * 1.2) if wide else style.linear(0, max(times, default=1) * 1.1)
    x = style.across("seconds", "TTFT p99 (s)", scale, format="~g", tickCount=4)
    marks = alt.Scale(domain=list(palette), range=["diamond", "circle"])
    points = (
        style.plot(rows)
        .mark_point(filled=True, size=90, opacity=0.9)
        .encode(
            x=x,
            y=alt.Y("case:N", title=None, sort=cases, axis=alt.Axis(labelLimit=220, grid=True, domain=False)),
            yOffset=alt.YOffset("who:N", sort=list(palette)),
            color=style.colours("who", palette, orient="bottom"),
            shape=alt.Shape("who:N", title=None, scale=marks),
        )
    )
    target = [{"seconds": bound, "label": f"SLO {seconds(bound)}"} for bound in targets[:1]]
    title = f"Beside {noisy.tenant} sending {noisy.times} times as much (replicas)"
    return style.panel(points, *style.limit(target, x), width=_TENANTS_WIDTH, height=34 * len(cases), title=title)


def _bills(pooling: Pooling, shown: int) -> style.Marks:
    palette = {"used": style.BLUE, "unused": style.SAND, "a fleet of its own": style.RED}
    columns = ("usage_usd_per_hour", "unused_usd_per_hour", "alone_usd_per_hour")
    bills = {row.tenant: [row] for row in pooling.tenants[:shown]}
    if rest := pooling.tenants[shown:]:
        bills[f"{len(rest)} others"] = list(rest)
    rows = [
        {"tenant": tenant, "usd": sum(getattr(row, column) for row in of), "part": part, "order": place}
        for tenant, of in bills.items()
        for place, (part, column) in enumerate(zip(palette, columns, strict=True))
    ]
    place: style.Settings = {
        "x": style.across("usd", "dollars an hour", format="$~g", tickCount=8),
        "y": style.names("tenant", list(bills), 160),
        "color": style.colours("part", palette, orient="bottom", symbolType="square"),
    }
    alone = "datum.part == 'a fleet of its own'"
    blocks = style.bars(rows).transform_filter(f"!({alone})").encode(**place, order="order:Q")
    ticks = style.plot(rows).transform_filter(alone).mark_tick(thickness=3, size=16).encode(**place)
    title = "What each tenant pays of the shared fleet, and what a fleet of its own would cost"
    return style.panel(blocks, ticks, width=2 * _TENANTS_WIDTH + 200, height=alt.Step(22), title=title)
