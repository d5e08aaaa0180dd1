"""Show the effect of caching: settings side by side, where fetching wins, templates, similar prompts."""

from collections.abc import Iterable, Sequence
from functools import partial

from tokonomics.catalog.offers import STALE_AFTER_DAYS
from tokonomics.errors import option
from tokonomics.levers.cache_settings import CacheRow
from tokonomics.levers.memory_sizes import MemoryAnswer, MemoryVerdict
from tokonomics.levers.prefix_cache import PrefixCacheLever
from tokonomics.levers.semantic_cache import SemanticHits, SemanticLever
from tokonomics.levers.templates import TemplateLever, TextTemplate
from tokonomics.money.cache_tiers import TierBreakEven, TierPrice
from tokonomics.questions.levers import CacheResult
from tokonomics.questions.requests.traffic import CacheRequest
from tokonomics.report import blocks, charts
from tokonomics.report.answer import Answer
from tokonomics.report.shared_view import short_run, turns_side_by_side
from tokonomics.report.wording import duration_text, hourly_text, marked_old, percent_text, time_text, usd_text
from tokonomics.units import BYTES_PER_GB, count, gigabytes, percent, plural, seconds, usd

_NOTHING = 0.002  # of a bill or a replica: a smaller change between two simulations is chance


def cache(result: CacheResult, request: CacheRequest) -> Answer:
    drawn = lambda: charts.levers.cache_chart(result.prefix_cache, result.semantic, request.threshold)  # noqa: E731
    view = partial(_sections, result, request.threshold, request.trace is None)
    return Answer(result, "What caching saves", view, {"What caching saves": drawn})


def _sections(result: CacheResult, threshold: float, made_up: bool) -> blocks.View:
    lever, hits, texts = result.prefix_cache, result.semantic, result.text_templates
    if lever:
        yield from _prefix(lever, result.price_from, made_up)
    if result.templates:
        yield blocks.section(*_templates(result.templates))
    if texts or (hits and not lever):
        yield blocks.section(*_text_templates(texts))
    if hits:
        yield blocks.section(*_semantic(hits, result.semantic_bill, threshold))


def _prefix(lever: PrefixCacheLever, price_from: str | None, made_up: bool) -> blocks.View:
    rows = lever.rows
    best = next((place for place, row in enumerate(rows) if row.setting.name == lever.best), None)
    yield blocks.section(
        _headline(lever, price_from),
        *(_kept(lever, lever.memory) if lever.memory and lever.best else ()),
        _figures(rows[0], rows[-1 if best is None else best]),
        *(blocks.hint(f"{row.setting.name.strip(' +')}: {row.breaks}") for row in rows if row.breaks),
        *(_slow_memories(rows) if lever.memory is None else ()),
        _advice(lever, rows[0], rows[-1 if best is None else best]),
    )
    own = all(row.replicas == row.needs or row.needs is None for row in rows)
    fleet = "On the fewest replicas" if own else f"On {plural(rows[0].replicas, 'replica')}; TTFT, TPOT on the fewest"
    heads = ["!", ">found", ">computed/h", ">prefill", ">TTFT p50", ">p99", ">TPOT p99", ">batch", ">needs", ">$/hour"]
    per_job = [">$/job"] if any(row.usd_per_job is not None for row in rows) else []
    yield blocks.section(
        blocks.table([*heads, ">$/Mtok", *per_job], [_row(row) for row in rows], best=best),
        title=f"{fleet} that keep up",
    )
    if lever.memory and lever.memory.sizes:
        yield blocks.section(_sizes(lever.memory), title="Behind each replica, by replay")
    if held := [row for row in rows if row.sessions]:
        names = [row.setting.name for row in held]
        table = turns_side_by_side(names, [row.sessions for row in held if row.sessions])
        yield blocks.section(table, title="What of each turn's prompt is found, and how long a job takes")
        yield short_run(rows[0 if best is None else best].outcome, made_up)
    if lever.break_evens:
        yield blocks.section(_break_evens(lever.break_evens), title="Fetch a block, or compute it?")
    ttls = blocks.listed(
        lever.ttls,
        ("!kept for", lambda ttl: "ever" if ttl.ttl_s is None else duration_text(ttl.ttl_s)),
        (">prompt tokens found", lambda ttl: percent(ttl.share)),
        (">to hold at the most", lambda ttl: gigabytes(ttl.held_bytes)),
    )
    yield blocks.section(ttls, title="One cache for all, without a limit of size")
    yield _notes(lever, price_from)


def _headline(lever: PrefixCacheLever, price_from: str | None) -> blocks.Line:
    bill, best = lever.bill, (lever.best or "").strip(" +")
    if lever.best is None:
        verdict, said = blocks.Span("No setting meets the SLOs", "alert"), " on any number of replicas"
    elif bill is None:
        kept = next(row for row in lever.rows if row.setting.name == lever.best)
        dollars = kept.bill.usd if kept.bill else 0.0
        verdict, said = blocks.Span(f"{usd(dollars)} an hour", "best"), f" with {best}; never without"
    elif bill.saved_usd > 0:
        verdict, said = blocks.Span(hourly_text(bill), "best"), f" with {best}"
    else:
        slower = " without slower answers" if lever.slower else ""
        verdict, said = blocks.Span("No cache here saves a replica", "alert"), slower
    return blocks.line(verdict, f"{said}: {lever.deployment}{marked_old(price_from)}", kind="headline")


_MEMORIES = {"dram": "DRAM", "ssd": "disk", "remote": "remote memory"}


def _kept(lever: PrefixCacheLever, memory: MemoryAnswer) -> Iterable[blocks.Line]:
    """Say how much memory to keep behind the GPUs, and why."""
    keep = next(row for row in lever.rows if row.setting.name == memory.keep)
    kept = {price.tier.name for price in keep.setting.tiers}
    none = " and ".join(f"no {_MEMORIES[verdict.name]}" for verdict in memory.verdicts if verdict.name not in kept)
    if memory.verdicts:
        whole = ", ".join(part for part in (*_sizes_kept(keep.setting.tiers), none) if part)
        is_late = lever.slower is not None and lever.slower.name == memory.keep.strip()
        late = ", if answers may come later" if is_late else ""
        yield blocks.line(blocks.Span(f"Keep {whole} behind the GPUs", "best" if kept else ""), late, kind="heading")
    verdicts = memory.verdicts if memory.working_set_bytes else ()
    yield blocks.note(*map(_verdict, verdicts), _working_set(lever, memory))


def _sizes_kept(tiers: Sequence[TierPrice]) -> Iterable[str]:
    """Say what each replica keeps, and what all of them keep together."""
    for is_shared, whose in ((False, "a replica"), (True, "for all replicas")):
        own = [price.tier for price in tiers if price.tier.shared is is_shared]
        if own:
            yield f"{' and '.join(f'{gigabytes(tier.size_bytes)} of {_MEMORIES[tier.name]}' for tier in own)} {whose}"


def _verdict(verdict: MemoryVerdict) -> str:
    name = f"{gigabytes(verdict.size_bytes)} of {_MEMORIES[verdict.name]}"
    if verdict.freed_replicas < _NOTHING and not verdict.pays:
        return f"{name} finds nothing more."
    price = f"for {usd(verdict.usd_per_hour)} an hour" if verdict.usd_per_hour else "at no cost"
    frees = f"{verdict.freed_replicas:.2g} replicas' time"
    does = f"it finds {percent(verdict.found_share)} of the prompt tokens and frees {frees} {price}"
    if verdict.pays:
        return f"{name} {'pays' if verdict.usd_per_hour else 'helps'}: {does}."
    if slow := verdict.quicker_from_bytes_per_s:
        return f"{name} does not pay: {_slow(slow)}; {does}."
    if verdict.pays_from_load:
        load = f"{verdict.pays_from_load:,.3g} times this load"
        return f"{name} saves no replica: {does}, a whole replica at {load} if as much is found."
    if verdict.pays_from_share is None:
        return f"{name} frees no whole replica without later answers: {does}."
    least = f"find {percent(verdict.pays_from_share)}" if verdict.pays_from_share <= 1 else "find more than all of them"
    return f"{name} does not pay: {does}; it would have to {least}."


def _slow(needed: float) -> str:
    return f"below {needed / BYTES_PER_GB:.3g} GB/s into a GPU, what it finds takes longer to fetch than to compute"


def _slow_memories(rows: Sequence[CacheRow]) -> Iterable[blocks.Line]:
    """Say which memories cost time, from which speed they would not, and what is lost as one is written too slowly."""
    for row in rows:
        for hit in row.tier_hits:
            name, times = row.setting.name.strip(" +"), _times_later(row, rows)
            if hit.quicker_from_bytes_per_s and times > 1:
                later = f"first tokens {times:.3g} times as late on average"
                yield blocks.hint(f"{name} costs, {later}: {_slow(hit.quicker_from_bytes_per_s)} ({hit.name}).")
            if hit.unwritten_tokens:
                lost = f"{count(hit.unwritten_tokens)} prompt tokens"
                yield blocks.hint(f"{name}: {lost} come faster than {hit.name} is written, and are not kept there.")


def _times_later(row: CacheRow, rows: Sequence[CacheRow]) -> float:
    """Return the mean TTFT over that of the same setting without memories, each on the replicas that it needs."""
    plain = row.setting.model_copy(update={"tiers": (), "name": ""})
    bare = [one for one in rows if one.setting.model_copy(update={"name": ""}) == plain]
    return (row.ttft_s.mean or 0.0) / bare[0].ttft_s.mean if bare and bare[0].ttft_s.mean else 1.0


def _working_set(lever: PrefixCacheLever, memory: MemoryAnswer) -> str:
    if not memory.working_set_bytes:
        return "No prompt begins like an earlier one."
    room, whole = gigabytes(lever.gpu_cache_bytes), gigabytes(memory.working_set_bytes)
    own = f"The GPUs' own {room} hold {percent(memory.gpu_share)} of the working set, {whole} a replica"
    if memory.gpu_share == 1:
        return (
            f"The GPUs' own {room} hold the whole working set, {whole} a replica, if running requests leave them room."
        )
    if memory.useless_bytes >= 2 * lever.gpu_cache_bytes:
        useless = gigabytes(memory.useless_bytes)
        return f"{own}; up to {useless} a memory finds nothing more: what it needs has just been evicted."
    return f"{own}; half of what can be found takes {gigabytes(memory.half_bytes)}."


def _sizes(memory: MemoryAnswer) -> blocks.Table:
    names = list(memory.sizes[0].usd_per_hour)
    heads = [f">{word}" for name in names for word in (f"{_MEMORIES[name]} frees", "$/hour")]
    rows = []
    for size in memory.sizes:
        worth = [(f"{size.freed_replicas[name]:.2f}", usd(size.usd_per_hour[name])) for name in names]
        rows.append([gigabytes(size.size_bytes), percent(size.found_share), *(cell for pair in worth for cell in pair)])
    return blocks.table([">memory", ">prompt tokens found", *heads], rows)


def _figures(none: CacheRow, best: CacheRow) -> blocks.Facts:
    """Compare the best setting, or the last if none meets the SLOs, with no cache."""
    name, price = best.setting.name.strip(" +"), best.usd_per_mtok
    needs = ["never" if row.needs is None else f"{row.needs}" for row in (best, none)]
    share = best.cached_share
    return blocks.facts(
        blocks.fact("from cache", percent(share), f"of prompt tokens, with {name}", number=share, less="worse"),
        blocks.fact("replicas", needs[0], f"{needs[1]} without a cache", number=best.needs),
        blocks.fact("per Mtok", usd(price), f"{usd_text(none.usd_per_mtok)} without a cache", number=price)
        if price is not None
        else None,
    )


def _advice(lever: PrefixCacheLever, none: CacheRow, best: CacheRow) -> blocks.Line | None:
    late = lever.slower
    if lever.best is None:
        return blocks.hint("Loosen the SLO, or take a faster GPU.")
    if late:
        times = {"TTFT": late.ttft_times, "TPOT": late.tpot_times, "time to the end": late.e2e_times}
        later = " and ".join(f"{factor:.3g} times the {name} p99" for name, factor in times.items() if factor > 1)
        saves = f"{late.name.strip(' +')} saves {usd(late.saved_usd_per_hour)}/h at {later}"
        return blocks.hint(f"{saves}; no SLO is set: say with {option('slo')} what may not get worse.")
    if none.needs == best.needs:
        return blocks.hint("As many replicas are needed: more traffic may turn the work saved into dollars.")
    return None


def _mark(tiers: Iterable[TierPrice]) -> str:
    return "†" if any(tier.price_stale for tier in tiers) else ""


def _row(row: CacheRow) -> list[str]:
    work = [percent(row.cached_share), count(row.computed_tokens_per_hour), f"{row.prefill_replicas:.2f}"]
    late = map(time_text, (row.ttft_s.p50, row.ttft_s.p99, row.tpot_s.p99))
    needs = "never" if row.needs is None else f"{row.needs}"
    bill = "–" if row.bill is None else f"{usd(row.bill.usd)}{_mark(row.setting.tiers)}"
    per_job = [usd_text(row.usd_per_job)] if row.sessions else []
    figures = [*work, *late, f"{row.outcome.batch:.1f}", needs, bill, usd_text(row.usd_per_mtok), *per_job]
    return [row.setting.name, *figures]


def _break_evens(evens: Sequence[TierBreakEven]) -> blocks.Table:
    return blocks.listed(
        evens,
        ("!tier", lambda even: even.tier),
        (f">fetch {evens[0].block_tokens} tokens", lambda even: seconds(even.fetch_s)),
        (">compute: first", lambda even: seconds(even.compute_first_s)),
        (">last", lambda even: seconds(even.compute_last_s)),
        ("fetching is quicker", lambda even: "nowhere" if even.position is None else f"from token {even.position:,}"),
        ("a block pays if", _pays),
    )


def _pays(even: TierBreakEven) -> str:
    if even.pays_within_s is None:
        return "always: it costs nothing"
    never = "never at the head: computing is quicker"
    return f"read again within {seconds(even.pays_within_s)}" if even.pays_within_s else never


def _notes(lever: PrefixCacheLever, price_from: str | None) -> blocks.Line:
    rows, refused = lever.rows, lever.rows[0].outcome.refused
    memories = {price.tier.name: price for row in rows for price in row.setting.tiers}
    paid = "; ".join(f"{name}{_mark((memory,))} {memory.price_from}" for name, memory in memories.items())
    tiers = option("tiers", "ssd=2000@0")
    return blocks.note(
        f"{lever.source}: {plural(lever.requests, 'request')}, {count(lever.input_tokens)} prompt tokens.",
        f"{refused:,} of the requests ({percent(refused / lever.requests)}) are longer than the model's context or the "
        "GPU's memory: refused, and not in the figures."
        if refused
        else "",
        "found: share of prompt tokens not computed. prefill: replicas' worth of time.",
        f"needs: replicas that keep up and meet the SLOs ({option('slo')}); $/hour: the bill of those.",
        f"The GPU's own memory for KV is {gigabytes(lever.gpu_cache_bytes)} a replica, running requests included."
        if lever.memory is None
        else "",
        "never: no number of replicas does; figures of the fewest that keep up."
        if any(row.needs is None for row in rows)
        else "",
        f"Price of a replica: {price_from}." if price_from else "",
        f"$/GB-hour of the memories: {paid}. Speeds: docs/caching.md." if memories else "",
        f"† price older than {STALE_AFTER_DAYS} days, or of no known date: give yours ({tiers})."
        if _mark(memories.values())
        else "",
    )


def _templates(fixed: TemplateLever) -> Iterable[blocks.Block]:
    if not fixed.templates:
        yield blocks.line("Templates: no beginning is shared by 1 % of the requests.")
        return
    head = f"{plural(len(fixed.templates), 'template')}: {percent(fixed.fixed_share)} of the prompt tokens are fixed"
    yield blocks.line(head, kind="heading")
    yield blocks.listed(
        fixed.templates,
        (">fixed tokens", lambda row: f"{row.fixed_tokens:,.0f}"),
        (">requests", lambda row: f"{row.requests:,.0f}"),
        (">mean prompt", lambda row: f"{row.mean_tokens:,.0f}"),
        (">KV kept", lambda row: gigabytes(row.kv_bytes)),
        (">once", lambda row: seconds(row.once_s)),
        (">saved a request", lambda row: seconds(row.saved_s_per_request)),
        shown=5,
    )
    saved, now = fixed.bill.saved_usd, usd(fixed.bill.before.usd)
    does = f"save {usd(saved)} of" if saved >= 0 else f"add {usd(-saved)} to"
    if abs(fixed.bill.saved_share) < _NOTHING:
        does = f"change less than {percent(_NOTHING)} of"
    kept = f"{plural(fixed.pinned, 'template')} kept for good in {percent(fixed.room_share)} of the GPU's room for KV"
    spent = f"{usd(fixed.once_usd)} to compute them once included"
    yield blocks.note(f"{kept}: they {does} {now} of prefill an hour beyond the GPU's cache, {spent}.")


def _text_templates(texts: Sequence[TextTemplate]) -> Iterable[blocks.Block]:
    if not texts:
        yield blocks.line("No shared beginning of eight words or more covers 1 % of the prompts.")
        return
    yield blocks.line("Fixed parts of the texts (tokens estimated)", kind="heading")
    yield blocks.listed(
        texts,
        ("!prompts that begin", lambda row: row.begins if len(row.begins) <= 48 else f"{row.begins[:47]}…"),
        (">prompts", lambda row: f"{row.prompts:,.0f}"),
        (">tokens", lambda row: f"{row.tokens:,.0f}"),
        (">fixed head", lambda row: f"{row.fixed_head_tokens:,.0f}"),
        (">fixed later", lambda row: f"{row.fixed_later_tokens:,.0f}"),
        shown=8,
    )
    if any(text.fixed_later_tokens >= 16 for text in texts):
        yield blocks.hint("Fixed parts behind a dynamic one are computed every time: move them to the front.")


def _semantic(hits: SemanticHits, saved: SemanticLever | None, threshold: float) -> Iterable[blocks.Block]:
    point = hits.at(threshold)
    similar = (
        f" find a similar one at cosine ≥ {point.threshold:g}; {percent(hits.exact_share)} repeat one word for word"
    )
    share = blocks.Span(f"{percent(point.hit_share)} of {plural(hits.prompts, 'prompt')}", "best")
    yield blocks.line(share, similar, kind="headline")
    labels = {label.threshold: (label.false_share, label.found_share) for label in hits.labels}
    rows = []
    for row in hits.points:
        right = map(percent_text, labels.get(row.threshold, (None, None)))
        rows.append([f"{row.threshold:g}", percent(row.hit_share), f"{row.stored:,}", *right])
    yield blocks.table([">cosine ≥", ">hits", ">stored", ">false hits", ">same found"], rows)
    measured = f"{seconds(hits.embed_s)} a prompt; a look-up takes {seconds(hits.lookup_s)} (both measured here)"
    yield blocks.note(
        f"Embedded by {hits.embedded_by}: {measured} and an entry {gigabytes(hits.bytes_per_entry)} and its answer.",
        *_semantic_bill(saved),
    )
    if saved and saved.bill and not hits.embedded_here and not saved.bill.after.line("embedding").usd:
        yield blocks.hint(f"The embedding calls are not priced: give {option('embedding_usd_per_mtok')}.")
    if not hits.means:
        semantic = option("semantic")
        yield blocks.hint(f"Hashed words see spelling, not meaning: no bill is made of them. Give {semantic} a model.")
    if not hits.labels:
        labelled = option("pairs")
        yield blocks.hint(f"How many hits are wrong is not known: give {labelled} with labels from your own traffic.")


def _semantic_bill(saved: SemanticLever | None) -> Iterable[str]:
    if saved and saved.breaks:
        wait = f"Behind a look-up of {seconds(saved.wait_s)}"
        yield f"{wait} no number of replicas meets the SLOs: {saved.breaks}"
    if saved and saved.bill:
        replicas = f"{plural(saved.replicas_before, 'replica')} → {saved.replicas_after}"
        bills = f"{usd(saved.bill.before.usd)} → {usd(saved.bill.after.usd)} an hour"
        lines = [line for line in saved.beside_gpus if line.usd]
        yield f"The trace without those prompts: {replicas}, {bills}, the cache included."
        parts = ", ".join(f"{usd(line.usd)} {line.name} ({line.quantity:,.3g} {line.unit})" for line in lines)
        share = "" if saved.share_of_gpus is None else f", {percent(saved.share_of_gpus)} of the GPUs' bill"
        kept = f"{gigabytes(saved.stored_bytes)} of vectors, links and answers at the end of the trace"
        yield f"The cache itself: {usd(sum(line.usd for line in lines))} an hour{share}: {parts}; {kept}."
        if saved.ttft_before_s and saved.ttft_after_s:
            first, then = (seconds(spread.p99 or 0.0) for spread in (saved.ttft_before_s, saved.ttft_after_s))
            yield f"TTFT p99 of what is still computed: {first} → {then}, {seconds(saved.wait_s)} of it the look-up."
