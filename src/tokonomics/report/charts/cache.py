"""Caching as a picture: hits against the size of the cache, each setting's work and bill; hits against similarity."""

import altair as alt

from tokonomics.errors import BadInput, option
from tokonomics.planner.levers.prefix_cache import PrefixCacheLever
from tokonomics.planner.levers.semantic_cache import SemanticHits
from tokonomics.report.charts import style
from tokonomics.units import usd

_WIDTH, _HEIGHT = 380, 230


def cache_chart(lever: PrefixCacheLever | None, hits: SemanticHits | None, threshold: float) -> alt.TopLevelMixin:
    """A panel for each thing that was looked at."""
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
    known = {price.tier.name: price.tier.size_bytes / 1e9 for row in lever.rows for price in row.setting.tiers}
    known = {"GPU": lever.gpu_cache_bytes / 1e9, **known}
    low, high = min(points[0]["GB"], *known.values()), max(points[-1]["GB"], *known.values())
    x = style.across("GB", "size of one cache (GB of KV)", style.log(low, high), format="~s", tickCount=5, grid=False)
    line = style.plot(points).mark_line(color=style.BLUE, point={"size": 18}).encode(x=x, y=_shares())
    marks = style.limit([{"GB": size, "label": name} for name, size in known.items()], x, _HEIGHT - 8)
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
    marks = style.bars(rows, color=style.BLUE).encode(x=x, y=y), style.labels(rows).encode(x=x, y=y)
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
