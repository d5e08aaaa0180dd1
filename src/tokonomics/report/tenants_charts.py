"""Tenants as a picture: replicas apart and together, who pays what, and first tokens beside a noisy neighbour."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from tokonomics.planner.levers.noisy_neighbour import NoisyNeighbour
from tokonomics.planner.levers.tenancy import Pooling
from tokonomics.traffic.slo import Latency, Slo
from tokonomics.units import percent, plural, usd

if TYPE_CHECKING:
    import altair as alt

_BLUE, _GREEN, _SAND, _RED, _DARK = "#3b6fb6", "#5aa9a4", "#d9d3c7", "#b33", "#333"
SHOWN = 12
"""Tenants to show at first."""
_WIDTH = 330
_LEAST_S = 1e-3
_WIDE = 8
"""The slowest over the fastest from which the axis is logarithmic: else it would have one tick."""


def tenants_chart(pooling: Pooling, noisy: NoisyNeighbour, slos: Sequence[Slo] = ()) -> "alt.VConcatChart":
    """Fleets and the noisy neighbour above, the tenants' bills below."""
    import altair as alt

    above = alt.hconcat(_fleets(pooling), _noisy(noisy, slos), spacing=40)
    above = above.resolve_scale(color="independent", shape="independent")
    title = f"{plural(len(pooling.tenants), 'tenant')} apart and together: {pooling.deployment}"
    targets = f"; {', '.join(pooling.slos)} for each" if pooling.slos else ""
    heading = alt.TitleParams(
        title, subtitle=f"{pooling.source}{targets}", anchor="start", fontSize=15, subtitleFontSize=12, offset=12
    )
    made = alt.vconcat(above, _bills(pooling), spacing=30, title=heading)
    made = made.resolve_scale(color="independent", shape="independent")
    return cast("alt.VConcatChart", made.configure_view(stroke=None))


def _fleets(pooling: Pooling) -> "alt.LayerChart":
    import altair as alt

    rows = [
        {
            "fleet": row.name,
            "replicas": row.replicas,
            "label": f"{usd(row.usd_per_hour)}/h"
            + ("" if row.load_share is None else f", {percent(row.load_share)} used"),
            "kind": "these" if row in (pooling.apart, pooling.together) else "supposed",
        }
        for row in (pooling.apart, pooling.together, *pooling.what_if)
    ]
    data = alt.InlineData(values=rows)
    most = max(row.replicas for row in (pooling.apart, pooling.together, *pooling.what_if))
    order = [row.name for row in (pooling.apart, pooling.together, *pooling.what_if)]
    y = alt.Y("fleet:N", title=None, sort=order, axis=alt.Axis(labelLimit=220, ticks=False, domain=False))
    x = alt.X(
        "replicas:Q",
        title="replicas",
        scale=alt.Scale(domain=[0, most * 1.6], nice=False),
        axis=alt.Axis(tickMinStep=1, grid=False, format="d"),
    )
    colour = alt.Color("kind:N", scale=alt.Scale(domain=["these", "supposed"], range=[_BLUE, "#b9c9e0"]), legend=None)
    bars = alt.Chart(data).mark_bar(height={"band": 0.62}).encode(x=x, y=y, color=colour)
    labels = alt.Chart(data).mark_text(align="left", dx=5).encode(x=x, y=y, text="label:N")
    heading = _heading(f"The fewest replicas that keep {'the slos' if pooling.slos else 'up'}")
    made = alt.layer(bars, labels).properties(width=_WIDTH, height=alt.Step(34), title=heading)
    return cast("alt.LayerChart", made)


def _noisy(noisy: NoisyNeighbour, slos: Sequence[Slo]) -> "alt.LayerChart":
    import altair as alt

    names = [f"{row.name.strip()} ({row.replicas})" for row in noisy.rows]
    who = [noisy.tenant, "all others"]
    rows: list[dict[str, Any]] = [
        {"case": name, "who": label, "seconds": max(seen.ttft_p99_s, _LEAST_S)}
        for name, row in zip(names, noisy.rows, strict=True)
        for label, seen in zip(who, (row.noisy, row.others), strict=True)
        if seen.ttft_p99_s is not None
    ]
    y = alt.Y("case:N", title=None, sort=names, axis=alt.Axis(labelLimit=220, grid=True, domain=False))
    targets = [slo.seconds for slo in slos if slo.latency == Latency.ttft and slo.statistic == "p99"]
    seen = [*(row["seconds"] for row in rows), *targets]
    wide = bool(seen) and max(seen) > _WIDE * min(seen)
    log = alt.Scale(type="log", domain=[min(seen) / 1.2, max(seen) * 1.2], nice=False) if wide else None
    scale = log or alt.Scale(domain=[0, max(seen, default=1) * 1.1], nice=False)
    x = alt.X("seconds:Q", title="TTFT p99 (s)", scale=scale, axis=alt.Axis(format="~g", tickCount=4))
    legend = alt.Legend(orient="bottom", direction="horizontal")
    marks = alt.Scale(domain=who, range=["diamond", "circle"])
    points = (
        alt.Chart(alt.InlineData(values=rows))
        .mark_point(filled=True, size=90, opacity=0.9)
        .encode(
            x=x,
            y=y,
            yOffset=alt.YOffset("who:N", sort=who),
            color=alt.Color("who:N", title=None, scale=alt.Scale(domain=who, range=[_RED, _GREEN]), legend=legend),
            shape=alt.Shape("who:N", title=None, scale=marks, legend=legend),
        )
    )
    layers: list[alt.Chart] = [points]
    if targets:
        there = alt.Chart(alt.InlineData(values=[{"seconds": targets[0]}]))
        layers.append(there.mark_rule(strokeDash=[4, 4], color=_DARK).encode(x=x))
    heading = _heading(f"Beside {noisy.tenant} sending {noisy.times} times as much (replicas)")
    made = alt.layer(*layers).properties(width=_WIDTH, height=34 * len(names), title=heading)
    return cast("alt.LayerChart", made)


def _bills(pooling: Pooling) -> "alt.LayerChart":
    import altair as alt

    shown, rest = pooling.tenants[:SHOWN], pooling.tenants[SHOWN:]
    rows = [(row.tenant, row.usage_usd_per_hour, row.unused_usd_per_hour, row.alone_usd_per_hour) for row in shown]
    if rest:
        sums = [
            sum(getattr(row, name) for row in rest)
            for name in ("usage_usd_per_hour", "unused_usd_per_hour", "alone_usd_per_hour")
        ]
        rows.append((f"{len(rest)} others", sums[0], sums[1], sums[2]))
    order = [row[0] for row in rows]
    kinds = ["used", "unused", "a fleet of its own"]
    parts = [
        {"tenant": name, "usd": amount, "part": part, "order": place}
        for name, used, unused, _ in rows
        for place, (part, amount) in enumerate((("used", used), ("unused", unused)))
    ]
    alone = [{"tenant": name, "usd": amount, "part": kinds[2]} for name, _, _, amount in rows]
    y = alt.Y("tenant:N", title=None, sort=order, axis=alt.Axis(labelLimit=160, ticks=False, domain=False))
    x = alt.X("usd:Q", title="dollars an hour", axis=alt.Axis(format="$~g", tickCount=8))
    colour = alt.Color(
        "part:N",
        title=None,
        scale=alt.Scale(domain=kinds, range=[_BLUE, _SAND, _RED]),
        legend=alt.Legend(orient="bottom", direction="horizontal", symbolType="square"),
    )
    bars = (
        alt.Chart(alt.InlineData(values=parts))
        .mark_bar(height={"band": 0.7})
        .encode(x=x, y=y, color=colour, order="order:Q")
    )
    ticks = alt.Chart(alt.InlineData(values=alone)).mark_tick(thickness=3, size=16).encode(x=x, y=y, color=colour)
    heading = _heading("What each tenant pays of the shared fleet, and what a fleet of its own would cost")
    made = alt.layer(bars, ticks).properties(width=2 * _WIDTH + 200, height=alt.Step(22), title=heading)
    return cast("alt.LayerChart", made)


def _heading(text: str) -> "alt.TitleParams":
    import altair as alt

    return alt.TitleParams(text, anchor="start", fontSize=12)
