"""Show tenants apart and together: replicas and bills, latency and shares, the noisy one, LoRA."""

import math
from collections.abc import Iterable
from functools import partial

from tokonomics.errors import option
from tokonomics.levers.lora import LoraLever
from tokonomics.levers.tenancy import NoisyNeighbour, Pooling, TenantRow
from tokonomics.questions.request import Request
from tokonomics.questions.tenants import TenantsResult, TenantsSale
from tokonomics.report import blocks, charts
from tokonomics.report.answer import Answer
from tokonomics.report.shared_view import SALE_COLUMNS, class_sections, price_text, sale_cells, verdict
from tokonomics.report.wording import hourly_text, marked_old, percent_text, tenths_text, time_text, usd_text
from tokonomics.units import count, gigabytes, percent, plural, seconds, usd

_SHOWN = 12  # tenants to show at first
_FEW = 100  # with fewer requests, a p99 is the slowest of them
_LATER = 1.05  # first tokens count as later above this ratio of TTFT p99s: another seed changes less


def tenants(result: TenantsResult, request: Request) -> Answer:
    """Show what sharing does, whom it hurts, and who pays."""
    noisy, targets = result.noisy_neighbour, result.targets
    drawn = {"Shared or apart": lambda: charts.levers.tenants_chart(result, noisy, targets, _SHOWN)}
    return Answer(result, "One fleet for all tenants", partial(_sections, result), drawn)


def _sections(result: TenantsResult) -> blocks.View:
    noisy = result.noisy_neighbour
    takes = f"{plural(noisy.needs, 'replica')} together, and {noisy.apart_needs} with {noisy.tenant} on its own"
    growth = blocks.hint(f"If {noisy.tenant} sends {noisy.times} times as much, it takes {takes}.")
    yield blocks.section(_headline(result), _figures(result), *_why(result), growth)
    targets = f", meeting {', '.join(result.slos)} for each" if result.slos else " that keep up"
    yield blocks.section(_fleets(result), title=f"The fewest replicas{targets}")
    yield blocks.section(_tenants(result), _too_few(result), title="What each tenant sees and pays")
    yield from class_sections(result.classes)
    if result.sale is not None:
        yield blocks.section(*_sold(result.sale), title="Sold")
    for bill in result.by:
        lines = [[row.value, f"{row.requests:,}", usd(row.pays_usd_per_hour)] for row in bill.values]
        table = blocks.table([f"!{bill.label}", ">requests", ">pays $/h"], lines, shown=_SHOWN)
        yield blocks.section(table, title=f"The same bill by {bill.label}")
    yield blocks.section(_noisy(noisy), title=f"Noisy neighbour: {noisy.tenant} sends {noisy.times} times as much")
    if result.lora:
        yield blocks.section(_lora(result.lora), title="One base, an adapter for each")
    yield _notes(result)


def _headline(pooling: TenantsResult) -> blocks.Line:
    bill, many = pooling.bill, plural(len(pooling.tenants), "tenant")
    change = hourly_text(bill)
    if bill.saved_usd > 0:
        verdict, said = blocks.Span(change, "best"), f" when {many} share, {pooling.gain:.2g}× cheaper"
    elif bill.saved_usd < 0:
        costs = f"Sharing costs {percent(-bill.saved_share)} more: keep them apart"
        verdict, said = blocks.Span(costs, "alert"), f"; {change} for {many}"
    else:
        verdict, said = blocks.Span("Sharing saves nothing", "alert"), f" for {many}"
    return blocks.line(verdict, f"{said}: {pooling.deployment}{marked_old(pooling.price_from)}", kind="headline")


def _figures(pooling: Pooling) -> blocks.Facts:
    apart, together = pooling.apart, pooling.together
    rows = (
        ("replicas", f"{together.replicas}", f"{apart.replicas}", together.replicas),
        ("bill", f"{usd(together.usd_per_hour)}/h", usd(apart.usd_per_hour), together.usd_per_hour),
        ("load", percent_text(together.load_share), percent_text(apart.load_share), None),
    )
    return blocks.facts(*((name, shared, f"together, {own} apart", number) for name, shared, own, number in rows))


def _why(pooling: Pooling) -> Iterable[blocks.Line]:
    """Say why sharing does not pay, and how it changes first tokens if nothing forbids it."""
    if pooling.bill.saved_usd <= 0 and pooling.one_fewer and pooling.slos:
        fewer = plural(pooling.together.replicas - 1, "replica")
        why = "In a shared fleet who is hardest to serve sets the size for all, beside the requests of the others"
        yield blocks.line(f"{why}: on {fewer} {pooling.one_fewer}.")
    later = {row.tenant: (row.shared.ttft_p99_s or 0) / (row.alone.ttft_p99_s or math.inf) for row in pooling.tenants}
    worst, times = max(later.items(), key=lambda pair: pair[1])
    if times > _LATER and not pooling.slos:
        asks = f"no SLO is set: say with {option('slo')} what may not get worse"
        yield blocks.hint(f"First tokens come later when shared, {times:.2g} times at the p99 for {worst}; {asks}.")


def _fleets(pooling: Pooling) -> blocks.Table:
    apart, whole = pooling.apart, pooling.apart.usd_per_hour
    return blocks.listed(
        (apart, pooling.together, *pooling.what_if),
        ("!", lambda row: row.name),
        (">replicas", lambda row: f"{row.replicas}"),
        (">$/hour", lambda row: usd(row.usd_per_hour)),
        (">against apart", lambda row: "" if row is apart else f"{row.usd_per_hour / whole * 100 - 100:+.0f} %"),
        (">load", lambda row: percent_text(row.load_share)),
        (">busy", lambda row: percent(row.busy_share)),
        (">correlation", lambda row: "" if row.correlation is None else f"{row.correlation:.2f}"),
        best=1 if pooling.bill.saved_usd > 0 else 0,
    )


def _tenants(pooling: Pooling) -> blocks.Table:
    """Show all of them together, then the largest bills first."""
    checked = pooling.tenants[0].shapley_usd_per_hour is not None
    heads = ["!tenant", ">requests", ">own replicas", ">TTFT p99 alone", ">shared", ">within", ">used $/h"]
    heads += [">unused $/h", ">pays $/h", ">alone $/h", ">$/Mtok", *([">Shapley $/h"] if checked else [])]
    names = ("usage_usd_per_hour", "unused_usd_per_hour", "pays_usd_per_hour")
    total = [usd(sum(getattr(row, name) for row in pooling.tenants)) for name in names]
    many, own = f"all {len(pooling.tenants)}", f"{pooling.apart.replicas}"
    every = [many, f"{pooling.requests:,}", own, "", "", "", *total, usd(pooling.apart.usd_per_hour), "", ""]
    rows = [every[: len(heads)], *(_tenant(row, checked) for row in pooling.tenants)]
    return blocks.table(heads, rows, shown=_SHOWN + 1)


def _too_few(pooling: Pooling) -> blocks.Line | None:
    few = ", ".join(row.tenant for row in pooling.tenants if row.requests < _FEW)
    said = f"Fewer than {_FEW} requests, so that a p99 is the slowest one, and chance: {few}. Give a longer log."
    return blocks.hint(said) if few else None


def _tenant(row: TenantRow, checked: bool) -> list[str]:
    dollars = [row.usage_usd_per_hour, row.unused_usd_per_hour, row.pays_usd_per_hour, row.alone_usd_per_hour]
    name = row.tenant if len(row.tenant) <= 24 else row.tenant[:23] + "…"
    seen = [time_text(row.alone.ttft_p99_s), time_text(row.shared.ttft_p99_s), tenths_text(row.shared.within)]
    prices = [*map(usd, dollars), usd_text(row.usd_per_mtok)]
    shapley = [usd(row.shapley_usd_per_hour or 0.0)] if checked else []
    return [name, f"{row.requests:,}", f"{row.alone_replicas}", *seen, *prices, *shapley]


def _sold(sale: TenantsSale) -> Iterable[blocks.Block]:
    """Show the verdict, every tenant, and the break-even volume."""
    yield verdict(sale.hour, "an hour, all tenants together")
    yield blocks.line(f"At {price_text(sale.usd_per_mtok)}.")
    rows = [[row.tenant, *sale_cells(row.hour)] for row in sale.tenants]
    yield blocks.table(
        ["!tenant", *SALE_COLUMNS], [[f"all {len(rows)}", *sale_cells(sale.hour)], *rows], shown=_SHOWN + 1
    )
    if sale.break_even_tokens_per_day is not None:
        load = sale.break_even_load
        at = "" if load is None else f", load {percent(load)} of full batches" if load <= 1 else ": more than it can do"
        yield blocks.line(
            f"The shared fleet is profitable from {count(sale.break_even_tokens_per_day)} tokens a day{at}."
        )


def _noisy(noisy: NoisyNeighbour) -> blocks.Table:
    return blocks.listed(
        noisy.rows,
        ("!", lambda row: row.name),
        (">replicas", lambda row: f"{row.replicas}"),
        (">its TTFT p99", lambda row: time_text(row.noisy.ttft_p99_s)),
        (">TPOT p99", lambda row: time_text(row.noisy.tpot_p99_s)),
        (">within", lambda row: tenths_text(row.noisy.within)),
        (">others' TTFT p99", lambda row: time_text(row.others.ttft_p99_s)),
        (">TPOT p99", lambda row: time_text(row.others.tpot_p99_s)),
        (">within", lambda row: tenths_text(row.others.within)),
        (">worst TTFT p99", lambda row: time_text(row.worst_ttft_p99_s)),
    )


def _lora(lever: LoraLever) -> blocks.Facts:
    adapters, bill, fact = lever.lora, lever.bill, blocks.fact
    share = 1 - adapters.kv_bytes / adapters.kv_bytes_without if adapters.kv_bytes_without else 0.0
    steps = ", ".join(
        f"{seconds(step.step_s)} with {step.adapters} ({step.slower * 100:+.0f} %)"
        if step.adapters
        else f"{seconds(step.step_s)} without"
        for step in adapters.steps
    )
    fit = f"{adapters.sequences:,} sequences of {adapters.context:,} tokens fit, {adapters.sequences_without:,} without"
    room = f"{percent(share)} of a replica's memory for KV: {fit}"
    instead = f"instead of {usd(bill.before.usd)} for {adapters.adapters} deployments, a replica each at the least"
    size, many = adapters.bytes_each, plural(adapters.adapters, "adapter")
    return blocks.facts(
        fact("an adapter", gigabytes(size), f"rank {adapters.rank}, beside every dense product"),
        fact(many, gigabytes(size * adapters.adapters), room),
        fact("in a batch", f"{adapters.mixed:.1f}", f"different adapters in a mean batch of {adapters.batch}"),
        fact("a step", seconds(adapters.steps[-1].step_s), steps),
        fact("at most", f"{adapters.most_adapters:,}", "adapters beside that batch; more wait in the host's memory"),
        fact("the bill", f"{usd(bill.after.usd)}/h", instead, number=bill.after.usd),
    )


def _notes(result: TenantsResult) -> blocks.Line:
    moved = any(row.name.startswith("if all peaks") for row in result.what_if)
    return blocks.note(
        f"{result.source}: {plural(result.requests, 'request')} in {seconds(result.duration_s)}.",
        "load: work ÷ what full batches would do in the paid time. busy: at least one request was running.",
        f"used: GPU time in full batches. unused: the rest, {_rule(result)} (docs/tenants.md).",
        "" if moved else "Peaks are not moved: no two tenants have a time of day in this trace.",
        f"Price of a replica: {result.price_from}." if result.price_from else "",
    )


def _rule(pooling: Pooling) -> str:
    if pooling.bill.saved_usd < 0:
        return "by what each would leave unused alone; sharing costs more, so nobody pays less than alone"
    kept = all(row.pays_usd_per_hour <= row.alone_usd_per_hour * (1 + 1e-9) for row in pooling.tenants)
    return "by load when the fleet is fullest" + ("; never more than alone" if kept else "")
