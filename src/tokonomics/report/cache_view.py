"""What caching does, for a person: settings side by side, where fetching wins, similar prompts, templates."""

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from tokonomics.catalog.offers import STALE_AFTER_DAYS
from tokonomics.money.cache_tiers import TierBreakEven, TierPrice
from tokonomics.planner.levers.prefix_cache import CacheRow, PrefixCacheLever, Slower
from tokonomics.planner.levers.semantic_cache import SemanticHits, SemanticLever
from tokonomics.planner.levers.templates import TemplateLever, TextTemplate
from tokonomics.report.tables import pairs, table
from tokonomics.units import HOURS_PER_MONTH, count, gigabytes, percent, plural, seconds, usd

_NOTHING = 0.002
"""Of a bill: less is where requests went in one simulation and not in the other."""


def cache_view(
    lever: PrefixCacheLever | None,
    fixed: TemplateLever | None,
    in_texts: Sequence[TextTemplate],
    hits: SemanticHits | None,
    saved: SemanticLever | None,
    threshold: float,
    price_from: str | None,
) -> RenderableType:
    """Whatever of the levers was asked for."""
    parts: list[RenderableType] = []
    if lever:
        parts += [*_prefix(lever, price_from), ""]
    if fixed:
        parts += [*_templates(fixed), ""]
    if in_texts or (hits and not lever):
        parts += [*_text_templates(in_texts), ""]
    if hits:
        parts += [*_semantic(hits, saved, threshold), ""]
    return Group(*parts[:-1])


def _prefix(lever: PrefixCacheLever, price_from: str | None) -> list[RenderableType]:
    rows = lever.rows
    parts: list[RenderableType] = [_headline(lever)]
    if lever.slower:
        late = lever.slower
        parts.append(
            Text(
                f"{late.name} saves {usd(late.saved_usd_per_hour)}/h at {_later(late)}; "
                "no SLO is set, say with --slo what may not get worse."
            )
        )
    parts += [Text(f"{row.setting.name.strip()}: {row.breaks}", style="yellow") for row in rows if row.breaks]
    own = all(row.replicas == row.needs or row.needs is None for row in rows)
    fleet = "On the fewest replicas" if own else f"On {plural(rows[0].replicas, 'replica')}; TTFT, TPOT on the fewest"
    parts += ["", Text(f"{fleet} that keep up", style="bold")]
    heads = ["!", ">found", ">computed/h", ">prefill", ">TTFT p50", ">p99", ">TPOT p99", ">batch", ">needs", ">$/hour"]
    heads.append(">$/Mtok")
    parts += [table(heads, [_row(row) for row in rows]), ""]
    if lever.break_evens:
        parts += [Text("Fetch a block, or compute it?", style="bold"), _break_evens(lever), ""]
    parts += [_ttls(lever), ""]
    notes = [
        f"{lever.source}: {plural(lever.requests, 'request')}, {count(lever.input_tokens)} prompt tokens.",
        *_refused(lever),
        "found: share of prompt tokens not computed. prefill: replicas' worth of time. needs: replicas that keep up"
        " and meet the SLOs (--slo); $/hour: the bill of those.",
        f"The GPU's own memory for KV is {gigabytes(lever.gpu_cache_bytes)} a replica, running requests included.",
    ]
    if any(row.needs is None for row in rows):
        notes.append("never: not even a replica for every request under way does; figures of the fewest that keep up.")
    memories = {price.tier.name: price for row in rows for price in row.setting.tiers}
    if lever.break_evens:
        notes.append(
            "a block pays if: at the head of a prompt; the GPU time it frees is valued at the replica's price, as if "
            "all of it were used."
        )
    if price_from:
        notes.append(f"Price of a replica: {price_from}.")
    if memories:
        paid = "; ".join(f"{name}{_mark((memory,))} {memory.price_from}" for name, memory in memories.items())
        notes.append(f"$/GB-hour of the memories: {paid}. Speeds: docs/caching.md.")
    if _mark(tuple(memories.values())):
        notes.append(
            f"† price older than {STALE_AFTER_DAYS} days, or of no known date: give yours (--tiers ssd=2000@0)."
        )
    parts.append(Text("\n".join(notes), style="dim"))
    return parts


def _later(late: Slower) -> str:
    times = {"TTFT": late.ttft_times, "TPOT": late.tpot_times, "time to the end": late.e2e_times}
    worse = [f"{time_:.3g} times the {name} p99" for name, time_ in times.items() if time_ > 1]
    return " and ".join(worse)


def _mark(tiers: Sequence[TierPrice]) -> str:
    return "†" if any(tier.price_stale for tier in tiers) else ""


def _refused(lever: PrefixCacheLever) -> list[str]:
    """What the figures above are not of."""
    refused = lever.rows[0].outcome.refused
    if not refused:
        return []
    share = percent(refused / lever.requests)
    of_them = f"{refused:,} of the requests ({share})"
    return [f"{of_them} are longer than the model's context or the GPU's memory: refused, and not in the figures."]


def _headline(lever: PrefixCacheLever) -> Text:
    bill = lever.bill
    if lever.best is None:
        return Text.assemble(("no setting meets the SLOs", "bold yellow"), f" on any number: {lever.deployment}")
    if bill is None:
        kept = next(row for row in lever.rows if row.setting.name == lever.best)
        cost = f"{usd(kept.bill.usd if kept.bill else 0.0)} an hour"
        return Text.assemble((cost, "bold green"), f" with {lever.best.strip()}; never without: {lever.deployment}")
    if bill.saved_usd > 0:
        before, after = (each.usd * HOURS_PER_MONTH for each in (bill.before, bill.after))
        verdict = f"{usd(bill.before.usd)} → {usd(bill.after.usd)} an hour ({usd(before)} → {usd(after)} a month)"
        return Text.assemble((verdict, "bold green"), f" with {lever.best.strip()}: {lever.deployment}")
    later = " without later answers" if lever.slower else ""
    return Text.assemble(("no replica saved", "bold yellow"), f" by any of these{later}: {lever.deployment}")


def _row(row: CacheRow) -> list[str]:
    made = row.outcome
    waits = [row.ttft_s.p50, row.ttft_s.p99, row.tpot_s.p99]
    return [
        row.setting.name,
        percent(row.cached_share),
        count(row.computed_tokens_per_hour),
        f"{row.prefill_replicas:.2f}",
        *("–" if wait is None else seconds(wait) for wait in waits),
        f"{made.batch:.1f}",
        "never" if row.needs is None else f"{row.needs}",
        "–" if row.bill is None else f"{usd(row.bill.usd)}{_mark(row.setting.tiers)}",
        "–" if row.usd_per_mtok is None else usd(row.usd_per_mtok),
    ]


def _break_evens(lever: PrefixCacheLever) -> RenderableType:
    rows = [
        [
            even.tier,
            seconds(even.fetch_s),
            seconds(even.compute_first_s),
            seconds(even.compute_last_s),
            _where(even),
            _pays(even),
        ]
        for even in lever.break_evens
    ]
    block = lever.break_evens[0].block_tokens
    heads = ["!tier", f">fetch {block} tokens", ">compute: first", ">last", "fetching is quicker", "a block pays if"]
    return table(heads, rows)


def _pays(each: TierBreakEven) -> str:
    if each.pays_within_s is None:
        return "always: it costs nothing"
    if each.pays_within_s == 0:
        return "never at the head: computing is quicker"
    return f"read again within {_span(each.pays_within_s)}"


def _where(each: TierBreakEven) -> str:
    if each.position is None:
        return "nowhere"
    return "everywhere" if each.position == 0 else f"from token {each.position:,} on"


def _ttls(lever: PrefixCacheLever) -> RenderableType:
    rows = [
        (
            "kept for good" if ttl.ttl_s is None else f"kept {_span(ttl.ttl_s)}",
            percent(ttl.share),
            f"of prompt tokens found; {gigabytes(ttl.held_bytes)} to hold at the most",
        )
        for ttl in lever.ttls
    ]
    return Group(Text("One cache for all, without a limit of size", style="bold"), pairs(rows))


def _templates(fixed: TemplateLever) -> list[RenderableType]:
    if not fixed.templates:
        return [Text("Templates: no beginning is shared by 1 % of the requests.")]
    head = f"{plural(len(fixed.templates), 'template')}: {percent(fixed.fixed_share)} of the prompt tokens are fixed"
    rows = [
        [
            f"{template.fixed_tokens:,}",
            f"{template.requests:,}",
            f"{template.mean_tokens:,.0f}",
            gigabytes(template.kv_bytes),
            seconds(template.once_s),
            seconds(template.saved_s_per_request),
        ]
        for template in fixed.templates[:5]
    ]
    heads = [">fixed tokens", ">requests", ">mean prompt", ">KV kept", ">once", ">saved a request"]
    saved, now = fixed.bill.saved_usd, usd(fixed.bill.before.usd)
    does = f"save {usd(saved)} of" if saved >= 0 else f"add {usd(-saved)} to"
    if abs(fixed.bill.saved_share) < _NOTHING:
        does = f"change less than {percent(_NOTHING)} of"
    change = (
        f"{plural(fixed.pinned, 'template')} kept for good in {percent(fixed.room_share)} of the GPU's room for KV: "
        f"they {does} {now} of prefill an hour beyond the GPU's cache, {usd(fixed.once_usd)} to compute them once "
        "included."
    )
    return [Text(head, style="bold"), table(heads, rows), Text(change, style="dim")]


def _text_templates(found: Sequence[TextTemplate]) -> list[RenderableType]:
    if not found:
        return [Text("No eight words begin 1 % of the prompts: there is no template in the texts.")]
    rows = [
        [
            each.begins if len(each.begins) <= 48 else each.begins[:47] + "…",
            f"{each.prompts:,}",
            f"{each.tokens:,.0f}",
            f"{each.fixed_head_tokens:,.0f}",
            f"{each.fixed_later_tokens:,.0f}",
        ]
        for each in found[:8]
    ]
    heads = ["!prompts that begin", ">prompts", ">tokens", ">fixed head", ">fixed later"]
    later = any(each.fixed_later_tokens >= 16 for each in found)
    hint = "Fixed parts behind a dynamic one are computed every time: move them to the front." if later else ""
    return [
        Text("Fixed parts of the texts (tokens estimated)", style="bold"),
        table(heads, rows),
        Text(hint, style="dim"),
    ]


def _semantic(hits: SemanticHits, saved: SemanticLever | None, threshold: float) -> list[RenderableType]:
    point = hits.at(threshold)
    head = Text.assemble(
        (f"{percent(point.hit_share)} of {plural(hits.prompts, 'prompt')}", "bold green"),
        f" find a similar one at cosine ≥ {point.threshold:g}; {percent(hits.exact_share)} repeat one word for word",
    )
    labels = {label.threshold: label for label in hits.labels}
    rows = []
    for each in hits.points:
        known = labels.get(each.threshold)
        wrong = "–" if known is None or known.false_share is None else percent(known.false_share)
        right = "–" if known is None or known.found_share is None else percent(known.found_share)
        rows.append([f"{each.threshold:g}", percent(each.hit_share), f"{each.stored:,}", wrong, right])
    notes = [
        f"Embedded by {hits.embedded_by}: {seconds(hits.embed_s)} a prompt; a look-up takes {seconds(hits.lookup_s)} "
        f"(both measured here) and an entry {gigabytes(hits.bytes_per_entry)} and its answer."
    ]
    if not hits.means:
        notes.append("Hashed words see spelling, not meaning: no bill is made of them. Give --semantic a model.")
    if not hits.labels:
        notes.append("How many hits are wrong is not known: give --pairs with labels from your own traffic.")
    if saved and saved.breaks:
        notes.append(
            f"Behind a look-up of {seconds(saved.wait_s)} no number of replicas meets the SLOs: {saved.breaks}"
        )
    if saved and saved.bill:
        notes.append(
            f"The trace with so many fewer: {plural(saved.replicas_before, 'replica')} → {saved.replicas_after}, "
            f"{usd(saved.bill.before.usd)} → {usd(saved.bill.after.usd)} an hour, embedding and "
            f"{gigabytes(saved.stored_bytes)} of stored vectors and answers included."
        )
        if saved.ttft_before_s and saved.ttft_after_s:
            first, then = (seconds(each.p99 or 0.0) for each in (saved.ttft_before_s, saved.ttft_after_s))
            notes.append(
                f"TTFT p99 of what is still computed: {first} → {then}, {seconds(saved.wait_s)} of it the look-up."
            )
    heads = [">cosine ≥", ">hits", ">stored", ">false hits", ">same found"]
    return [head, table(heads, rows), Text("\n".join(notes), style="dim")]


def _span(duration_s: float) -> str:
    if duration_s >= 7200:
        return f"{duration_s / 3600:.3g} h"
    return f"{duration_s / 60:.3g} min" if duration_s >= 60 else seconds(duration_s)
