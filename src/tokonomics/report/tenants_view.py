"""Tenants apart and together, for a person: replicas and bills, latency and shares, the noisy one, LoRA."""

from rich.console import Group, RenderableType
from rich.text import Text

from tokonomics.planner.levers.lora import LoraLever
from tokonomics.planner.levers.noisy_neighbour import NoisyNeighbour, NoisyRow
from tokonomics.planner.levers.tenancy import FleetRow, Pooling, TenantRow
from tokonomics.report.tables import pairs, table
from tokonomics.units import HOURS_PER_MONTH, gigabytes, percent, plural, seconds, usd

SHOWN = 12
"""Tenants on the screen; the rest as one line (all of them with --json)."""
_LATER = 1.05
"""Times the TTFT p99 alone from which first tokens are said to come later: what another seed changes is less."""


def tenants_view(
    pooling: Pooling, noisy: NoisyNeighbour, adapters: LoraLever | None, price_from: str | None
) -> RenderableType:
    """What sharing does, whom it hurts, who pays."""
    parts: list[RenderableType] = [
        _headline(pooling),
        *_why(pooling),
        "",
        *_fleets(pooling),
        "",
        *_tenants(pooling),
        "",
    ]
    parts += [*_noisy(pooling, noisy), ""]
    if adapters:
        parts += [*_lora(adapters), ""]
    return Group(*parts, Text("\n".join(_notes(pooling, price_from)), style="dim"))


def _headline(pooling: Pooling) -> Text:
    bill, many = pooling.bill, plural(len(pooling.tenants), "tenant")
    before, after = (each.usd * HOURS_PER_MONTH for each in (bill.before, bill.after))
    change = f"{usd(bill.before.usd)} → {usd(bill.after.usd)} an hour ({usd(before)} → {usd(after)} a month)"
    replicas = f"{pooling.apart.replicas} replicas apart, {pooling.together.replicas} together"
    if bill.saved_usd > 0:
        return Text.assemble(
            (change, "bold green"), f" when {many} share, {pooling.gain:.2g}× cheaper: {replicas}; {pooling.deployment}"
        )
    if bill.saved_usd < 0:
        verdict = f"sharing costs {percent(-bill.saved_share)} more: keep them apart"
        return Text.assemble((verdict, "bold yellow"), f"; {change} for {many}: {replicas}; {pooling.deployment}")
    return Text.assemble(("sharing saves nothing", "bold yellow"), f" for {many}: {replicas}; {pooling.deployment}")


def _why(pooling: Pooling) -> list[Text]:
    """Why sharing does not pay, and what it does to first tokens where nothing forbids it."""
    said = []
    if pooling.bill.saved_usd <= 0 and pooling.one_fewer and pooling.slos:
        fewer = pooling.together.replicas - 1
        why = "In a shared fleet who is hardest to serve sets the size for all, beside the requests of the others: "
        said.append(Text(f"{why}on {plural(fewer, 'replica')} {pooling.one_fewer}."))
    later = [row for row in pooling.tenants if _times_later(row) > _LATER]
    if later and not pooling.slos:
        worst = max(later, key=_times_later)
        said.append(
            Text(
                f"First tokens come later when shared, for {worst.tenant} {_times_later(worst):.2g} times at the p99; "
                "no SLO is set, say with --slo what may not get worse.",
                style="yellow",
            )
        )
    return said


def _times_later(row: TenantRow) -> float:
    alone, shared = row.alone.ttft_p99_s, row.shared.ttft_p99_s
    return shared / alone if alone and shared else 1.0


def _fleets(pooling: Pooling) -> list[RenderableType]:
    targets = f", meeting {', '.join(pooling.slos)} for each" if pooling.slos else " that keep up"
    rows = [_fleet(row, pooling) for row in (pooling.apart, pooling.together, *pooling.what_if)]
    heads = ["!", ">replicas", ">$/hour", ">against apart", ">utilisation", ">busy", ">correlation"]
    return [Text(f"The fewest replicas{targets}", style="bold"), table(heads, rows)]


def _fleet(row: FleetRow, pooling: Pooling) -> list[str]:
    less = row.usd_per_hour / pooling.apart.usd_per_hour - 1
    return [
        row.name,
        f"{row.replicas}",
        usd(row.usd_per_hour),
        "" if row is pooling.apart else f"{less * 100:+.0f} %",
        "–" if row.load_share is None else percent(row.load_share),
        percent(row.busy_share),
        "" if row.correlation is None else f"{row.correlation:.2f}",
    ]


def _tenants(pooling: Pooling) -> list[RenderableType]:
    checked = pooling.tenants[0].shapley_usd_per_hour is not None
    shown, rest = pooling.tenants[:SHOWN], pooling.tenants[SHOWN:]
    rows = [_tenant(row, checked) for row in shown]
    if rest:
        paid, alone = sum(row.pays_usd_per_hour for row in rest), sum(row.alone_usd_per_hour for row in rest)
        used, unused = sum(row.usage_usd_per_hour for row in rest), sum(row.unused_usd_per_hour for row in rest)
        own = f"{sum(row.alone_replicas for row in rest)}"
        sent = f"{sum(row.requests for row in rest):,}"
        rows.append([f"{len(rest)} others", sent, own, "", "", "", *map(usd, (used, unused, paid, alone)), ""])
    total = [
        usd(sum(getattr(row, name) for row in pooling.tenants))
        for name in ("usage_usd_per_hour", "unused_usd_per_hour", "pays_usd_per_hour")
    ]
    every = f"{pooling.apart.replicas}"
    rows.append(["all", f"{pooling.requests:,}", every, "", "", "", *total, usd(pooling.apart.usd_per_hour), ""])
    heads = [
        "!tenant",
        ">requests",
        ">own replicas",
        ">TTFT p99 alone",
        ">shared",
        ">within",
        ">used $/h",
        ">unused $/h",
    ]
    heads += [">pays $/h", ">alone $/h", ">$/Mtok", *([">Shapley $/h"] if checked else [])]
    rows = [[*row, *[""] * (len(heads) - len(row))] for row in rows]
    return [Text("What each tenant sees and pays", style="bold"), table(heads, rows)]


def _tenant(row: TenantRow, checked: bool) -> list[str]:
    return [
        row.tenant if len(row.tenant) <= 24 else row.tenant[:23] + "…",
        f"{row.requests:,}",
        f"{row.alone_replicas}",
        _time(row.alone.ttft_p99_s),
        _time(row.shared.ttft_p99_s),
        "–" if row.shared.within is None else f"{row.shared.within * 100:.1f} %",
        usd(row.usage_usd_per_hour),
        usd(row.unused_usd_per_hour),
        usd(row.pays_usd_per_hour),
        usd(row.alone_usd_per_hour),
        "–" if row.usd_per_mtok is None else usd(row.usd_per_mtok),
        *([usd(row.shapley_usd_per_hour or 0.0)] if checked else []),
    ]


def _noisy(pooling: Pooling, noisy: NoisyNeighbour) -> list[RenderableType]:
    rows = [_case(row) for row in noisy.rows]
    heads = ["!", ">replicas", ">its TTFT p99", ">TPOT p99", ">within", ">others' TTFT p99", ">TPOT p99", ">within"]
    heads.append(">worst TTFT p99")
    sizes = f"{noisy.needs} together, {noisy.apart_needs} with {noisy.tenant} on its own"
    ask = f"Replicas that {'keep every slo' if pooling.slos else 'keep up'} then: {sizes}."
    title = f"Noisy neighbour: {noisy.tenant} sends {noisy.times} times as much"
    return [Text(title, style="bold"), table(heads, rows), Text(ask)]


def _case(row: NoisyRow) -> list[str]:
    cells = []
    for seen in (row.noisy, row.others):
        cells += [_time(seen.ttft_p99_s), _time(seen.tpot_p99_s)]
        cells.append("–" if seen.within is None else f"{seen.within * 100:.1f} %")
    return [row.name, f"{row.replicas}", *cells, _time(row.worst_ttft_p99_s)]


def _lora(lever: LoraLever) -> list[RenderableType]:
    adapters, bill = lever.lora, lever.bill
    share = 1 - adapters.kv_bytes / adapters.kv_bytes_without if adapters.kv_bytes_without else 0.0
    steps = ", ".join(
        f"{seconds(step.step_s)} with {step.adapters} ({step.slower * 100:+.0f} %)"
        if step.adapters
        else f"{seconds(step.step_s)} without"
        for step in adapters.steps
    )
    rows = [
        ("an adapter", gigabytes(adapters.bytes_each), f"rank {adapters.rank}, beside every dense product"),
        (
            f"{plural(adapters.adapters, 'adapter')}",
            gigabytes(adapters.bytes_each * adapters.adapters),
            f"{percent(share)} of a replica's memory for KV: {adapters.sequences:,} sequences of {adapters.context:,} "
            f"tokens fit, {adapters.sequences_without:,} without",
        ),
        ("in a batch", f"{adapters.mixed:.1f}", f"different adapters in a mean batch of {adapters.batch}"),
        ("a step", seconds(adapters.steps[-1].step_s), steps),
        ("at most", f"{adapters.most_adapters:,}", "adapters beside that batch; more wait in the host's memory"),
        (
            "the bill",
            f"{usd(bill.after.usd)}/h",
            f"instead of {usd(bill.before.usd)} for {adapters.adapters} deployments, a replica each at the least",
        ),
    ]
    return [Text("One base, an adapter for each", style="bold"), pairs(rows)]


def _notes(pooling: Pooling, price_from: str | None) -> list[str]:
    notes = [
        f"{pooling.source}: {plural(pooling.requests, 'request')} in {seconds(pooling.duration_s)}.",
        "utilisation: work ÷ what full batches would do in the paid time. busy: some request was computed, be it one.",
        f"used: GPU time in full batches. unused: the rest, {_rule(pooling)} (docs/tenants.md).",
    ]
    if not any(row.name.startswith("if all peaks") for row in pooling.what_if):
        notes.append("Peaks are not moved: no two tenants have a time of day in this trace.")
    if price_from:
        notes.append(f"Price of a replica: {price_from}.")
    return notes


def _rule(pooling: Pooling) -> str:
    if pooling.bill.saved_usd < 0:
        return "by what each would leave unused alone; sharing costs more, so nobody pays less than alone"
    kept = all(row.pays_usd_per_hour <= row.alone_usd_per_hour * (1 + 1e-9) for row in pooling.tenants)
    return "by load when the fleet is fullest" + ("; never more than alone" if kept else "")


def _time(value: float | None) -> str:
    return "–" if value is None else seconds(value)
