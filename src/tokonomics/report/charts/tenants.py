"""Tenants as a picture: replicas apart and together, who pays what, and first tokens beside a noisy neighbour."""

from collections.abc import Sequence

import altair as alt

from tokonomics.planner.levers.noisy_neighbour import NoisyNeighbour
from tokonomics.planner.levers.tenancy import Pooling
from tokonomics.report.charts import style
from tokonomics.traffic.slo import Latency, Slo
from tokonomics.units import percent, plural, seconds, usd

_WIDTH = 330
_LEAST_S = 1e-3
_WIDE = 8
"""The slowest over the fastest from which the axis is logarithmic: else it would have one tick."""


def tenants_chart(pooling: Pooling, noisy: NoisyNeighbour, slos: Sequence[Slo], shown: int) -> alt.TopLevelMixin:
    """Fleets and the noisy neighbour above, the tenants' bills below: of so many tenants, then of all others."""
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
    blocks = style.bars(rows).encode(
        x=x, y=y, color=style.colours("kind", {"these": style.BLUE, "supposed": style.LIGHT_BLUE}, named=False)
    )
    title = f"The fewest replicas that {'meet the SLOs' if pooling.slos else 'keep up'}"
    return style.panel(blocks, style.labels(rows).encode(x=x, y=y), width=_WIDTH, height=alt.Step(34), title=title)


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
    return style.panel(points, *style.limit(target, x), width=_WIDTH, height=34 * len(cases), title=title)


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
    return style.panel(blocks, ticks, width=2 * _WIDTH + 200, height=alt.Step(22), title=title)
