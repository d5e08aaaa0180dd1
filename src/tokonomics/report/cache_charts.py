"""Caching as a picture: hits against the size of the cache, each setting's work and bill; hits against similarity."""

from typing import TYPE_CHECKING, cast

from tokonomics.errors import BadInput, option
from tokonomics.planner.levers.prefix_cache import PrefixCacheLever
from tokonomics.planner.levers.semantic_cache import SemanticHits
from tokonomics.units import usd

if TYPE_CHECKING:
    import altair as alt

_BLUE, _GREEN, _RED, _PLAIN = "#3b6fb6", "#5aa9a4", "#b33", "#857c6d"
_WIDTH, _HEIGHT = 380, 230


def cache_chart(lever: PrefixCacheLever | None, hits: SemanticHits | None, threshold: float) -> "alt.HConcatChart":
    """A panel for each thing that was looked at."""
    import altair as alt

    panels: list[alt.Chart | alt.LayerChart] = []
    if lever:
        panels += [_sizes(lever), _settings(lever)]
    if hits:
        panels.append(_thresholds(hits, threshold))
    if not panels:
        fix = f"Give {option('trace')}, or {option('prompts')} with {option('semantic')}."
        raise BadInput("there is nothing to draw", field="chart", fix=fix)
    title = f"What caching does: {lever.deployment}" if lever else "Similar prompts"
    source = lever.source if lever else hits.source if hits else ""
    heading = alt.TitleParams(title, subtitle=source, anchor="start", fontSize=15, subtitleFontSize=12, offset=12)
    made = alt.hconcat(*panels, spacing=36, title=heading).resolve_scale(color="independent")
    return cast("alt.HConcatChart", made.configure_view(stroke=None))


def _sizes(lever: PrefixCacheLever) -> "alt.LayerChart":
    import altair as alt

    points = [{"GB": each.size_bytes / 1e9, "share": each.share} for each in lever.sizes]
    known = {price.tier.name: price.tier.size_bytes / 1e9 for row in lever.rows for price in row.setting.tiers}
    known = {"GPU": lever.gpu_cache_bytes / 1e9, **known}
    marks = [{"GB": size, "name": name} for name, size in known.items()]
    low, high = min(points[0]["GB"], *known.values()), max(points[-1]["GB"], *known.values())
    x = alt.X(
        "GB:Q",
        title="size of one cache (GB of KV)",
        scale=alt.Scale(type="log", domain=[low, high], nice=False),
        axis=alt.Axis(format="~s", tickCount=5, grid=False),
    )
    y = alt.Y("share:Q", title=None, axis=alt.Axis(format="%"), scale=alt.Scale(domainMin=0))
    line = alt.Chart(alt.InlineData(values=points)).mark_line(color=_BLUE, point={"size": 18}).encode(x=x, y=y)
    there = alt.Chart(alt.InlineData(values=marks))
    rules = there.mark_rule(strokeDash=[4, 4], color=_RED).encode(x=x)
    names = there.mark_text(align="right", dx=-4, y=_HEIGHT - 8, color=_RED).encode(x=x, text="name:N")
    heading = _heading("Prompt tokens found, by size of the cache")
    return cast("alt.LayerChart", alt.layer(line, rules, names).properties(width=_WIDTH, height=_HEIGHT, title=heading))


def _settings(lever: PrefixCacheLever) -> "alt.LayerChart":
    import altair as alt

    order = [row.setting.name.strip() for row in lever.rows]
    rows = [
        {
            "setting": row.setting.name.strip(),
            "prefill": row.prefill_replicas,
            "label": f"{usd(row.bill.usd)}/h on {row.needs}" if row.bill else "meets no SLO",
        }
        for row in lever.rows
    ]
    data = alt.InlineData(values=rows)
    most = max(row.prefill_replicas for row in lever.rows) or 1.0
    y = alt.Y("setting:N", title=None, sort=order, axis=alt.Axis(labelLimit=320, ticks=False, domain=False))
    x = alt.X("prefill:Q", title="replicas busy with prompts", scale=alt.Scale(domain=[0, most * 1.45], nice=False))
    bars = alt.Chart(data).mark_bar(color=_BLUE, height={"band": 0.6}).encode(x=x, y=y)
    labels = alt.Chart(data).mark_text(align="left", dx=5).encode(x=x, y=y, text="label:N")
    heading = _heading("Prompt work, and the bill of the fewest replicas that keep up")
    return cast("alt.LayerChart", alt.layer(bars, labels).properties(width=_WIDTH, height=_HEIGHT, title=heading))


def _thresholds(hits: SemanticHits, threshold: float) -> "alt.LayerChart":
    import altair as alt

    rows = [{"cosine": point.threshold, "share": point.hit_share, "kind": "prompts that hit"} for point in hits.points]
    rows += [
        {"cosine": label.threshold, "share": label.false_share, "kind": "of labelled hits, false"}
        for label in hits.labels
        if label.false_share is not None
    ]
    kinds = ["prompts that hit", *(["of labelled hits, false"] if hits.labels else [])]
    line = (
        alt.Chart(alt.InlineData(values=rows))
        .mark_line(point={"size": 24})
        .encode(
            x=alt.X("cosine:Q", title="cosine from which an answer is reused", scale=alt.Scale(zero=False)),
            y=alt.Y("share:Q", title=None, axis=alt.Axis(format="%"), scale=alt.Scale(domainMin=0)),
            color=alt.Color(
                "kind:N",
                title=None,
                scale=alt.Scale(domain=kinds, range=[_GREEN, _RED][: len(kinds)]),
                legend=alt.Legend(orient="bottom"),
            ),
        )
    )
    asked = alt.Chart(alt.InlineData(values=[{"cosine": threshold}])).mark_rule(strokeDash=[4, 4], color=_PLAIN)
    heading = _heading("Similar prompts" if hits.means else "Similar prompts (hashed words: spelling only)")
    made = alt.layer(line, asked.encode(x="cosine:Q")).properties(width=_WIDTH, height=_HEIGHT, title=heading)
    return cast("alt.LayerChart", made)


def _heading(text: str) -> "alt.TitleParams":
    import altair as alt

    return alt.TitleParams(text, anchor="start", fontSize=12)
