"""Show the meter: its live screen, a line for a pipe, the end of a run, bills of the past, and its page."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial

from tokonomics.errors import option
from tokonomics.measure.meter.bill import StatementSale
from tokonomics.measure.meter.export import Exported
from tokonomics.measure.meter.readings import JOULES_PER_KWH, GpuReading
from tokonomics.measure.meter.state import GroupState, MeterState, MeterTally, Statement, StatementLine, Verdict
from tokonomics.measure.meter.tags import LogSplit
from tokonomics.questions.meter import MeterReportResult
from tokonomics.questions.request import Request
from tokonomics.report import blocks, charts
from tokonomics.report.answer import Answer
from tokonomics.report.shared_view import (
    SALE_COLUMNS,
    energy_facts,
    energy_notes,
    price_text,
    sale_cells,
    upkeep_facts,
    verdict,
)
from tokonomics.report.wording import NO_VALUE, marked_old, number_text, percent_text, usd_text
from tokonomics.units import count, gigabytes, percent, plural, seconds, usd

_MOST_ROWS = 20  # what fits a terminal; the sum includes the rest
_MOST_NAMES = 5
_MUCH_IDLE = 0.5
_BASES = (
    "$/Mtok: every paid hour, idle too, over input and output tokens; of output: over answers alone; while busy: busy "
    "time alone."
)
"""What the prices of a bill are divided by."""


def meter_report(result: MeterReportResult, request: Request) -> Answer:
    """Show the sum, a row for each group, where the dollars went, and the comparison with the plan."""
    if result.by and {"day", "hour"}.isdisjoint(result.by):
        name, bill, over = f"Dollars by {', '.join(result.by)}", result, " and ".join(result.by)
    else:
        name, bill, over = "Dollars over time", result.in_time, result.over
    drawn = {name: partial(charts.measured.bill_chart, bill, over)}
    return Answer(result, "What the metered tokens cost", partial(_bill, result), drawn)


def live(state: MeterState) -> blocks.View:
    """Show the price now, a row for each server and model, and where today's dollars went."""
    yield _now(state)
    yield _servers(state)
    yield blocks.section(*_dollars(state.today, "today's"))
    energy = None
    if state.energy_j is not None:
        cost = f", {usd(state.electricity_usd)} of electricity" if state.electricity_usd is not None else ""
        energy = blocks.line(f"The GPUs drew {state.energy_j / JOULES_PER_KWH:.3g} kWh since the meter started{cost}.")
    yield blocks.section(_gpus(state.gpus) if state.gpus else None, energy)
    yield from _odd(state)
    yield _basis(state)


def end(state: MeterState) -> blocks.View:
    """Show the result of the run."""
    today = state.today
    price = f"{usd_text(today.usd_per_mtok)} per million tokens"
    yield blocks.section(
        blocks.headline(price, f" today, every paid hour counted{marked_old(state.price_from)}"), _figures(today)
    )
    yield blocks.section(*_dollars(today, "today's"))
    yield from _odd(state)
    yield _idle(today)


def line(state: MeterState) -> str:
    """Show one interval in a pipe."""
    up, running = sum(group.up for group in state.groups), sum(group.running or 0 for group in state.groups)
    said = [
        f"{_clock(state.at)}",
        f"{up}/{plural(len(state.groups), 'server')} up",
        f"now {usd_text(state.now.usd_per_mtok)}/Mtok",
        f"hour {usd_text(state.hour.usd_per_mtok)}",
        f"today {usd_text(state.today.usd_per_mtok)}",
        f"{count(state.tokens_per_s)} tok/s",
        f"running {running:g}",
        f"idle {percent_text(state.today.idle_share)}",
        f"paid today {usd(state.today.usd)}",
    ]
    said += [state.against_plan.said] if state.against_plan else []
    return ", ".join([*said, *(note.marked for note in state.notes)])


def _bill(bill: MeterReportResult) -> blocks.View:
    total = bill.total
    if not bill.lines:
        first = "Meter first: `tokonomics meter http://… --usd-per-hour 2.49`."
        if bill.extent:
            began, ended = (f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d}" for at in bill.extent)
            first = f"It goes from {began} to {ended}: take {option('since', began)}."
        yield blocks.section(blocks.line("The ledger has nothing in this stretch."), blocks.hint(first))
        return
    yield blocks.section(*_measured(bill), *_told_by_log(bill.split))
    yield _sums(bill.by, bill.lines, total)
    yield blocks.section(*_dollars(total, "the"))
    if bill.sale is not None:
        yield blocks.section(*_sold(bill, bill.sale), title="Sold")
    beside = [*upkeep_facts(bill.upkeep, "over this stretch"), *_energy(bill)]
    if beside:
        yield blocks.section(blocks.facts(*beside), blocks.note(*energy_notes(bill.energy)) if bill.energy else None)
    yield blocks.section(
        *(blocks.line(blocks.Span(state.said, "worst" if state.is_missed else "")) for state in bill.budgets)
    )
    if bill.unusual:
        yield blocks.section(*(blocks.line(day.said) for day in bill.unusual), title="Unusual days")
    yield from _verdict(bill.against_plan)
    yield _idle(total)
    yield blocks.note(
        _BASES,
        "Idle: nothing moved between two readings. Gap: the server did not answer; away: the meter did not run.",
        f"{count(total.unseen_tokens)} tokens were counted over gaps and absences, and stand at their ends."
        if total.unseen_tokens
        else "",
        *_rules(bill.split),
    )


def _measured(bill: MeterReportResult) -> Iterable[blocks.Block]:
    """Show the price, what it covers and for how long, and how much of that time was not observed."""
    total = bill.total
    price = "No tokens were counted" if total.usd_per_mtok is None else f"{usd(total.usd_per_mtok)} per million tokens"
    tokens = f"{count(total.billed_tokens)} tokens in and out, " if total.usd_per_mtok is not None else ""
    stretch = f"{_date(bill.since)} to {_date(bill.until)} UTC ({seconds(bill.until - bill.since)})"
    yield blocks.headline(price, f", as metered: {usd(total.usd)} paid, {tokens}{stretch}")
    unseen = {"a server did not answer": total.gap_s, "the meter did not run": total.away_s}
    if any(unseen.values()):
        parts = ", ".join(f"{seconds(lasted)} in which {why}" for why, lasted in unseen.items() if lasted)
        seen = f"{percent(sum(unseen.values()) / total.seconds)} of {seconds(total.seconds)} of server time"
        yield blocks.line(f"Paid for but not seen: {seen} ({parts}).")


def _told_by_log(split: LogSplit | None) -> Iterable[blocks.Line]:
    """Show whose dollars the log does not tell, and what of it was not used."""
    if split is None:
        return
    if split.not_in_log_share > 0:
        yield blocks.line(f"{percent(split.not_in_log_share)} of the metered tokens are not in the log.")
    if split.beyond_share > 0:
        more = f"{percent(split.beyond_share)} more tokens than were metered"
        why = "is every server metered, and does it list these requests only?"
        yield blocks.line(f"The log has {more}: {why} They were scaled down, hour by hour.")
    if split.untagged:
        parts = ", ".join(f"{count(number)} without a {tag}" for tag, number in split.untagged.items())
        yield blocks.line(f"Of {plural(split.requests, 'request')} in the log: {parts}.")
    left = {
        "before or after this stretch": split.outside,
        f"to models that no metered server serves ({', '.join(split.elsewhere_models[:_MOST_NAMES])})": split.elsewhere,
    }
    if any(left.values()):
        parts = ", ".join(f"{count(number)} {why}" for why, number in left.items() if number)
        yield blocks.line(f"Requests of the log that are left out: {parts}.")
    if split.unnamed_model:
        said = f"{plural(split.unnamed_model, 'request')} of the log name no model"
        yield blocks.line(f"{said}: they count for all models, by what each served in that hour.")


def _rules(split: LogSplit | None) -> Iterable[str]:
    """Say how the dollars were divided."""
    if split is None:
        return
    by = split.weights if split.by_gpu_time else "tokens, every token alike"
    yield f"Divided among the requests of the log that began in the same hour, by {by}; idle time with them."
    if split.quiet_usd:
        yield f"{usd(split.quiet_usd)} of hours without a token is divided as the whole stretch is."
    if split.cached_said_share < 1 and split.by_gpu_time:
        yield "Where the log does not say which prompt tokens were cached, the metered share is assumed."


def _energy(bill: MeterReportResult) -> Iterable[blocks.Fact]:
    """Show what the servers drew and emitted, over the period and per million tokens."""
    if (drawn := bill.energy) is None:
        return
    read = f", read {percent(drawn.read_share)} of the time" if 0 < drawn.read_share < 0.995 else ""
    whole = f"of the site in all, and {count(drawn.kg_co2e)} kg CO₂e{read}"
    yield blocks.fact("drawn", f"{count(drawn.kwh)} kWh", whole, number=drawn.kwh)
    yield from energy_facts(drawn)


def _sold(bill: MeterReportResult, sale: StatementSale) -> Iterable[blocks.Block]:
    """Show the price, the verdict, every line, and the break-even volume."""
    yield verdict(sale.total, "over this stretch")
    said = "; ".join(f"{price.model} at {price_text(price.usd_per_mtok)}" for price in sale.prices)
    splits = ", ".join(sorted({price.split for price in sale.prices if price.split}))
    yield blocks.line(f"{said}{f'; cost split: {splits}' if splits else ''}.")
    rows = [
        [*(_short(name) for name in line.group), *sale_cells(sold)]
        for line, sold in zip(bill.lines, sale.lines, strict=True)
    ]
    if len(rows) > 1 and bill.by:
        rows.append(["all", *[""] * (len(bill.by) - 1), *sale_cells(sale.total)])
    yield blocks.table([*(f"!{name}" for name in bill.by), *SALE_COLUMNS], rows)
    if sale.break_even_tokens_per_day is not None:
        now, needed = count(sale.tokens_per_day), count(sale.break_even_tokens_per_day)
        busy = sale.break_even_busy_share
        full = " More than these servers can do at the same batch: the price is too low for them."
        load = "" if busy is None else f", {percent(busy)} of the time busy." if busy <= 1 else f".{full}"
        yield blocks.line(f"Profitable from {needed} tokens a day at this mix (now {now}){load or '.'}")


def export_line(of: Exported) -> str:
    """Describe an export in one line."""
    what = "estimated for a month" if of.is_estimate else f"from {of.since:%Y-%m-%d} to {of.until:%Y-%m-%d} UTC"
    splits = ", ".join(sorted({price.split for price in of.prices}))
    return f"${of.total_usd:,.2f} {what}; {plural(len(of.prices), 'model')}, {splits or 'no tokens'}"


def _now(state: MeterState) -> blocks.Line:
    price = state.now.usd_per_mtok
    if price is None:
        first = state.now.seconds == 0
        said = "first reading taken; the next one gives a price" if first else "no tokens now"
        return blocks.headline(said, mood="alert")
    rest = f", {usd_text(state.hour.usd_per_mtok)} this hour, {usd_text(state.today.usd_per_mtok)} today"
    rest += marked_old(state.price_from)
    return blocks.headline(f"{usd(price)} per million tokens now", rest)


def _servers(state: MeterState) -> blocks.Table:
    columns = ["!server", "model", "!", ">$/Mtok", ">hour", ">today", ">out/s", ">batch", ">KV"]
    shown = sorted(state.groups, key=lambda group: -group.today.usd)[:_MOST_ROWS]
    rows = [_server(group) for group in shown]
    if len(state.groups) > 1:
        left = len(state.groups) - len(shown)
        name = f"all {len(state.groups)}" + (f" ({left} not shown)" if left else "")
        rate = sum(group.now.output_per_s or 0 for group in state.groups)
        speed = count(rate), number_text(state.now.batch), ""
        rows.append([name, "", "", *_prices(state), *speed, *_day_cells(state.today)])
    return blocks.table([*columns, ">idle", ">cached", ">paid"], rows)


def _server(group: GroupState) -> list[blocks.Pieces]:
    doing = "away" if not group.up else NO_VALUE if group.busy is None else "busy" if group.busy else "idle"
    queue = f"+{group.waiting:g}" if group.waiting else ""
    return [
        _short(group.target),
        group.model.rsplit("/", 1)[-1] or NO_VALUE,
        blocks.Span(doing, "" if group.up else "bad"),
        *_prices(group),
        number_text(group.now.output_per_s),
        f"{number_text(group.running)}{queue}",
        percent_text(group.kv_share),
        *_day_cells(group.today),
    ]


def _prices(state: GroupState | MeterState) -> list[str]:
    return [usd_text(window.usd_per_mtok) for window in (state.now, state.hour, state.today)]


def _day_cells(today: MeterTally) -> list[str]:
    return [percent_text(today.idle_share), percent_text(today.cache_share), usd(today.usd)]


_BILL: dict[str, Callable[[MeterTally], str]] = {
    "paid": lambda sums: usd(sums.usd),
    "idle": lambda sums: usd(sums.idle_usd),
    "gap": lambda sums: usd(sums.gap_usd) if sums.gap_usd else NO_VALUE,
    "away": lambda sums: usd(sums.away_usd) if sums.away_usd else NO_VALUE,
    "in": lambda sums: count(sums.input_total),
    "cached": lambda sums: percent_text(sums.cache_share),
    "out": lambda sums: count(sums.output),
    "req": lambda sums: count(round(sums.answered)),
    "batch": lambda sums: number_text(sums.batch),
    "$/Mtok": lambda sums: usd_text(sums.usd_per_mtok),
    "of output": lambda sums: usd_text(sums.usd_per_mtok_output),
    "while busy": lambda sums: usd_text(sums.usd_per_mtok_usage),
}
_SPANS: dict[str, Callable[[MeterTally], str]] = {
    **{name: _BILL[name] for name in ("$/Mtok", "of output", "while busy", "paid", "idle")},
    "idle time": lambda sums: percent_text(sums.idle_share),
    "tokens": lambda sums: count(sums.billed_tokens),
    "tokens/s": lambda sums: number_text(sums.tokens_per_s),
    "batch": _BILL["batch"],
}
"""The same figures over spans of time, for the page."""


def _sums(by: Sequence[str], lines: Sequence[StatementLine], total: MeterTally) -> blocks.Table:
    """Show a row per group, and their sum; leave out empty columns."""
    empty = {"gap": not total.gap_s, "away": not total.away_s, "req": not total.answered, "batch": not total.batch}
    shown = {name: cell for name, cell in _BILL.items() if not empty.get(name)}
    rows = [[*(_short(name) for name in line.group), *(cell(line.sums) for cell in shown.values())] for line in lines]
    if len(rows) > 1 and by:
        rows.append(["all", *[""] * (len(by) - 1), *(cell(total) for cell in shown.values())])
    return blocks.table([*(f"!{name}" for name in by), *(f">{name}" for name in shown)], rows)


def _short(name: str) -> str:
    return name.removeprefix("http://") or NO_VALUE


def _dollars(sums: MeterTally, whose: str) -> Iterable[blocks.Block]:
    """Show where the dollars went, if there are any."""
    parts: list[tuple[str, float, blocks.Colour]] = [
        ("busy", sums.busy_usd, "green"),
        ("idle", sums.idle_usd, "yellow"),
        ("server away", sums.gap_usd, "red"),
        ("meter away", sums.away_usd, "magenta"),
    ]
    if not sums.usd or not any(size > 0 for _, size, _ in parts):
        return
    yield blocks.bar(parts, lambda size: f"{usd(size)} ({percent(size / sums.usd)})")
    if sums.failed or sums.preempted:
        said = f"of {whose} busy dollars about {usd(sums.failed_usd)} went into requests that failed or were given up"
        yield blocks.line(f"{said} ({count(sums.failed)}, as if each cost the same); {count(sums.preempted)} preempted")
    if sums.starved_usd:
        yield blocks.line(f"{usd(sums.starved_usd)} while less than half of the planned batch was running")


def _idle(sums: MeterTally) -> blocks.Line | None:
    if (sums.idle_share or 0) <= _MUCH_IDLE:
        return None
    nothing = f"{percent_text(sums.idle_share)} of the time nothing runs"
    return blocks.hint(f"{nothing}: `tokonomics fleet` finds machines for the hours that need them.")


def _figures(sums: MeterTally) -> blocks.Facts:
    output, busy = f"{usd_text(sums.usd_per_mtok_output)}/Mtok", f"{usd_text(sums.usd_per_mtok_usage)}/Mtok"
    answered = count(sums.answered) if sums.answered else NO_VALUE
    return blocks.facts(
        ("per output token", output, "the whole bill over the answers alone"),
        ("while busy", busy, "usage basis: busy time only"),
        ("tokens in", count(sums.input_total), f"{percent_text(sums.cache_share)} from the cache"),
        ("tokens out", count(sums.output)),
        ("requests", answered, f"{count(sums.failed)} failed or given up"),
        ("paid", usd(sums.usd), f"for {seconds(sums.seconds)} of server time"),
    )


def _odd(state: MeterState) -> blocks.View:
    """Compare the plan with reality, and show warnings."""
    yield from _verdict(state.against_plan)
    yield blocks.section(
        *(blocks.line(blocks.Span(budget.said, "worst")) for budget in state.budgets if budget.is_missed)
    )
    yield blocks.section(*(blocks.hint(note.marked) for note in state.notes))


def _verdict(verdict: Verdict | None) -> blocks.View:
    if verdict is None:
        return
    planned = f"  ({usd(verdict.usd_per_mtok)}/Mtok, planned {usd(verdict.planned_usd_per_mtok)})"
    yield blocks.section(
        blocks.line(blocks.Span(verdict.said, "worst" if verdict.ratio > 1.05 else "best"), planned),
        blocks.facts(*(blocks.fact(factor.name, f"× {factor.times:.3g}", factor.said) for factor in verdict.factors)),
    )


def _gpus(gpus: Sequence[GpuReading]) -> blocks.Table:
    return blocks.listed(
        gpus[:_MOST_ROWS],
        ("!GPU", lambda gpu: gpu.name),
        (">any kernel", lambda gpu: percent_text(gpu.utilization)),
        (">memory bandwidth", lambda gpu: percent_text(gpu.dram_active)),
        (">tensor cores", lambda gpu: percent_text(gpu.tensor_active)),
        (">power", lambda gpu: number_text(gpu.power_w, " W")),
        (">memory", lambda gpu: NO_VALUE if gpu.memory_used_bytes is None else gigabytes(gpu.memory_used_bytes)),
    )


def _basis(state: MeterState) -> blocks.Line:
    price = " / ".join(usd(hourly) for hourly in sorted({group.usd_per_hour for group in state.groups})) or NO_VALUE
    engines = ", ".join(sorted({group.engine for group in state.groups if group.engine})) or "No server"
    return blocks.note(
        "$/Mtok: every paid hour, idle too, over input and output tokens. Batch: running +waiting.",
        f"A server costs {price} an hour ({state.price_from}). {engines}, read every {seconds(state.every_s)}; "
        f"days are UTC; last at {_clock(state.at)}.",
    )


def _clock(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%H:%M:%S")


def _date(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M")


# --- the ledger as it grows, on the page -----------------------------------------------------------------------------


def ledger(
    spans: Mapping[str, MeterTally], servers: Statement, burning: Mapping[str, float] | None, read_from: str
) -> blocks.View:
    """Show the price of a million tokens, the current spend, and sums by span (shortest first) and by server."""
    # The last five minutes are too short for a headline, unless there is nothing else.
    shortest, *longer = spans.items()
    over, best = next((row for row in longer if row[1].usd_per_mtok is not None), shortest)
    price = f"{usd_text(best.usd_per_mtok)} per million tokens"
    idle = f"; {usd_text(best.usd_per_mtok_usage)} per Mtok while busy"
    yield blocks.section(
        blocks.line(
            f"{over}: ", blocks.Span(price, "best"), f", {usd(best.usd)} for {count(best.billed_tokens)} tokens{idle}",
            kind="headline",
        ),
        _burning(spans["Today"], spans["This hour"], burning),
    )  # fmt: skip
    if (best.idle_share or 0.0) > 0.5:
        wasted = f"Idle {percent_text(best.idle_share)} of the time"
        yield blocks.hint(f"{wasted}: Fleet finds machines for the hours that need them.")
    yield _over("over", spans.items(), "Dollars and tokens by span")
    if servers.lines:
        rows = [(" ".join(filter(None, line.group)), line.sums) for line in servers.lines]
        yield _over("!server, model, engine", rows, "Servers today", shown=20)
    yield blocks.note(_BASES, f"Days and hours are UTC. {read_from}")


def _burning(today: MeterTally, hour: MeterTally, burning: Mapping[str, float] | None) -> blocks.Facts:
    idle = "nothing was read today" if today.idle_share is None else f"{percent(today.idle_share)} of the time"
    mood: blocks.Mood = "bad" if (today.idle_share or 0.0) > 0.5 else ""
    batch = hour.batch if hour.batch is not None else today.batch
    return blocks.facts(
        blocks.fact("idle burn today", blocks.Span(usd(today.idle_usd), mood), idle),
        blocks.fact("burning now", f"{usd(burning['usd_per_hour'])}/h", f"{count(burning['tokens_per_s'])} tokens/s")
        if burning
        else blocks.fact("burning now", NO_VALUE, "nothing was read in the last five minutes"),
        blocks.fact("batch", number_text(batch), "in the mean while busy"),
        blocks.fact("from cache", percent_text(today.cache_share), "of prompt tokens, today"),
        blocks.fact("failed", blocks.Span(count(today.failed), "bad"), f"requests; {usd(today.failed_usd)} of work")
        if today.failed
        else None,
    )


def _over(first: str, rows: Iterable[tuple[str, MeterTally]], title: str, shown: int | None = None) -> blocks.Table:
    cells = ((name, *(cell(sums) for cell in _SPANS.values())) for name, sums in rows)
    return blocks.table([first, *(f">{name}" for name in _SPANS)], cells, title, shown=shown)
