"""The meter on a terminal: a table that is redrawn, a line for a pipe, a run's last word, and bills of the past."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from rich.console import Group, RenderableType
from rich.text import Text

from tokonomics.measure.meter.bill import Bill
from tokonomics.measure.meter.gpu import JOULES_PER_KWH
from tokonomics.measure.meter.readings import GpuReading
from tokonomics.measure.meter.state import GroupState, MeterState, MeterTally, Verdict
from tokonomics.report.tables import bar, legend, pairs, table
from tokonomics.units import count, gigabytes, percent, plural, seconds, usd

_MOST_ROWS = 20
"""A terminal's height; the rest is in the sum."""


def meter_view(state: MeterState) -> RenderableType:
    """The price now, a row for each server and model, and where today's dollars went."""
    parts: list[RenderableType] = [_headline(state), "", _servers(state)]
    if state.today.usd > 0:
        parts += ["", *_dollars(state.today, "today's")]
    if state.gpus:
        parts += ["", _gpus(state.gpus)]
    if state.energy_j is not None:
        cost = f", {usd(state.electricity_usd)} of electricity" if state.electricity_usd is not None else ""
        parts.append(Text(f"The GPUs drew {state.energy_j / JOULES_PER_KWH:.3g} kWh since the meter started{cost}."))
    if state.against_plan is not None:
        parts += ["", *_verdict(state.against_plan)]
    if state.notes:
        parts += ["", Text("\n".join(state.notes), style="yellow")]
    return Group(*parts, "", Text(_basis(state), style="dim"))


def meter_line(state: MeterState) -> str:
    """One interval in a pipe."""
    now, up = state.now, sum(group.up for group in state.groups)
    running = sum(group.running or 0 for group in state.groups)
    said = [
        f"{_clock(state.at)}",
        f"{up}/{plural(len(state.groups), 'server')} up",
        f"now {_usd(now.usd_per_mtok)}/Mtok",
        f"hour {_usd(state.hour.usd_per_mtok)}",
        f"today {_usd(state.today.usd_per_mtok)}",
        f"{count(state.tokens_per_s)} tok/s",
        f"running {running:g}",
        f"idle {_share(state.today.idle_share)}",
        f"paid today {usd(state.today.usd)}",
    ]
    said += [state.against_plan.said] if state.against_plan else []
    return ", ".join([*said, *state.notes])


def end_view(state: MeterState) -> RenderableType:
    """What the run leaves behind."""
    today = state.today
    parts: list[RenderableType] = [
        Text.assemble(
            (f"{_usd(today.usd_per_mtok)} per million tokens", "bold green"), " today, every paid hour counted"
        ),
        pairs(_figures(today)),
    ]
    if today.usd > 0:
        parts += ["", *_dollars(today, "today's")]
    if state.against_plan is not None:
        parts += ["", *_verdict(state.against_plan)]
    if state.notes:
        parts += ["", Text("\n".join(state.notes), style="yellow")]
    return Group(*parts)


def bill_view(made: Bill) -> RenderableType:
    """The sum, a row for each group, where the dollars went, and against the plan."""
    if not made.lines:
        return Text(
            "The ledger has nothing in this stretch. Meter first: tokonomics meter http://… --usd-per-hour 2.49"
        )
    total = made.total
    cells = _bill_columns(total)
    columns = [*(f"!{name}" for name in made.by), *(f">{name}" for name in cells)]
    rows = [[*(_short(each) for each in line.group), *_bill_cells(line.sums, cells)] for line in made.lines]
    if len(rows) > 1 and made.by:
        rows.append(["all", *[""] * (len(made.by) - 1), *_bill_cells(total, cells)])
    parts: list[RenderableType] = [
        Text.assemble(
            (f"{_usd(total.usd_per_mtok)} per million tokens", "bold green"),
            f": {usd(total.usd)} from {_date(made.since)} to {_date(made.until)} UTC",
        ),
        "",
        table(columns, rows),
        "",
        *_dollars(total, "the"),
    ]
    if made.against_plan is not None:
        parts += ["", *_verdict(made.against_plan)]
    return Group(*parts, "", Text("\n".join(_bill_notes(total)), style="dim"))


def _headline(state: MeterState) -> Text:
    price = state.now.usd_per_mtok
    if price is None:
        first = state.now.seconds == 0
        return Text(
            "first reading taken; the next one gives a price" if first else "no tokens now", style="bold yellow"
        )
    return Text.assemble(
        (f"{usd(price)} per million tokens now", "bold green"),
        f", {_usd(state.hour.usd_per_mtok)} this hour, {_usd(state.today.usd_per_mtok)} today",
    )


def _servers(state: MeterState) -> RenderableType:
    columns = ["!server", "model", "!", ">$/Mtok", ">hour", ">today", ">out/s", ">batch", ">KV"]
    columns += [">idle", ">cached", ">paid"]
    shown = sorted(state.groups, key=lambda group: -group.today.usd)[:_MOST_ROWS]
    rows: list[list[str | Text]] = [_server(group) for group in shown]
    if len(state.groups) > 1:
        left = len(state.groups) - len(shown)
        name = f"all {len(state.groups)}" + (f" ({left} not shown)" if left else "")
        rate = sum(group.now.output_per_s or 0 for group in state.groups)
        prices = _prices(state.now, state.hour, state.today)
        rows.append([name, "", "", *prices, count(rate), _number(state.now.batch), "", *_day_cells(state.today)])
    return table(columns, rows)


def _server(group: GroupState) -> list[str | Text]:
    doing = "away" if not group.up else "–" if group.busy is None else "busy" if group.busy else "idle"
    queue = f"+{group.waiting:g}" if group.waiting else ""
    return [
        _short(group.target),
        group.model.rsplit("/", 1)[-1] or "–",
        Text(doing, style="" if group.up else "red"),
        *_prices(group.now, group.hour, group.today),
        _number(group.now.output_per_s),
        f"{_number(group.running)}{queue}",
        _share(group.kv_share),
        *_day_cells(group.today),
    ]


def _prices(*windows: MeterTally) -> list[str]:
    return [_usd(window.usd_per_mtok) for window in windows]


def _day_cells(today: MeterTally) -> list[str]:
    return [_share(today.idle_share), _share(today.cache_share), usd(today.usd)]


_BILL: dict[str, Callable[[MeterTally], str]] = {
    "paid": lambda sums: usd(sums.usd),
    "idle": lambda sums: usd(sums.idle_usd),
    "gap": lambda sums: usd(sums.gap_usd) if sums.gap_usd else "–",
    "away": lambda sums: usd(sums.away_usd) if sums.away_usd else "–",
    "in": lambda sums: count(sums.input_total),
    "cached": lambda sums: _share(sums.cache_share),
    "out": lambda sums: count(sums.output),
    "req": lambda sums: count(sums.answered),
    "batch": lambda sums: _number(sums.batch),
    "$/Mtok": lambda sums: _usd(sums.usd_per_mtok),
    "of output": lambda sums: _usd(sums.usd_per_mtok_output),
    "while busy": lambda sums: _usd(sums.usd_per_mtok_usage),
}


def _bill_columns(total: MeterTally) -> list[str]:
    """Columns that would be empty are left out."""
    empty = {"gap": not total.gap_s, "away": not total.away_s, "req": not total.answered, "batch": not total.batch}
    return [name for name in _BILL if not empty.get(name)]


def _bill_cells(sums: MeterTally, columns: Sequence[str]) -> list[str]:
    return [_BILL[name](sums) for name in columns]


def _short(name: str) -> str:
    return name.removeprefix("http://") or "–"


def _dollars(sums: MeterTally, whose: str) -> list[RenderableType]:
    parts = [
        ("busy", sums.busy_usd, "green"),
        ("idle", sums.idle_usd, "yellow"),
        ("server away", sums.gap_usd, "red"),
        ("meter away", sums.away_usd, "magenta"),
    ]
    parts = [part for part in parts if part[1] > 0]
    if not parts:
        return []
    labels = [f"{usd(size)} ({percent(size / sums.usd)})" for _, size, _ in parts]
    lines: list[RenderableType] = [bar(parts), legend(parts, labels)]
    if sums.failed or sums.preempted:
        said = f"of {whose} busy dollars about {usd(sums.failed_usd)} went into {count(sums.failed)} failed or given-up"
        lines.append(Text(f"{said} requests (as if each cost the same); {count(sums.preempted)} preemptions"))
    if sums.starved_usd:
        lines.append(Text(f"{usd(sums.starved_usd)} while less than half of the planned batch was running"))
    return lines


def _figures(sums: MeterTally) -> list[tuple[str, str | Text, str]]:
    return [
        ("per output token", f"{_usd(sums.usd_per_mtok_output)}/Mtok", "the whole bill over the answers alone"),
        ("while busy", f"{_usd(sums.usd_per_mtok_usage)}/Mtok", "usage basis: busy time only"),
        ("tokens in", count(sums.input_total), f"{_share(sums.cache_share)} from the cache"),
        ("tokens out", count(sums.output), ""),
        ("requests", count(sums.answered) if sums.answered else "–", f"{count(sums.failed)} failed or given up"),
        ("paid", usd(sums.usd), f"for {seconds(sums.seconds)} of server time"),
    ]


def _verdict(verdict: Verdict) -> list[RenderableType]:
    style = "bold red" if verdict.ratio > 1.05 else "bold green"
    rows = [(factor.name, f"× {factor.times:.3g}", factor.said) for factor in verdict.factors]
    planned = f"{usd(verdict.usd_per_mtok)}/Mtok, planned {usd(verdict.planned_usd_per_mtok)}"
    return [Text.assemble((verdict.said, style), f"  ({planned})"), pairs(rows)]


def _gpus(gpus: Sequence[GpuReading]) -> RenderableType:
    rows = []
    for each in gpus[:_MOST_ROWS]:
        shares = [_share(share) for share in (each.utilization, each.dram_active, each.tensor_active)]
        memory = gigabytes(each.memory_used_bytes) if each.memory_used_bytes is not None else "–"
        rows.append([each.name, *shares, _number(each.power_w, " W"), memory])
    return table(["!GPU", ">any kernel", ">memory bandwidth", ">tensor cores", ">power", ">memory"], rows)


def _basis(state: MeterState) -> str:
    hourly = {group.usd_per_hour for group in state.groups}
    price = " / ".join(usd(each) for each in sorted(hourly)) or "–"
    engines = ", ".join(sorted({group.engine for group in state.groups if group.engine})) or "No server"
    return (
        "$/Mtok: every paid hour, idle too, over input and output tokens. Batch: running +waiting.\n"
        f"A server costs {price} an hour ({state.price_from}). {engines}, read every {seconds(state.every_s)}; "
        f"days are UTC; last at {_clock(state.at)}."
    )


def _bill_notes(total: MeterTally) -> list[str]:
    notes = [
        "$/Mtok: every paid hour, idle too, over input and output tokens; of output: over answers alone;",
        "while busy: busy time alone. Idle: nothing moved between two readings. Gap: the server did not answer;",
        "away: the meter did not run.",
    ]
    if total.unseen_tokens:
        notes.append(
            f"{count(total.unseen_tokens)} tokens were counted over gaps and absences, and stand at their ends."
        )
    return notes


def _clock(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%H:%M:%S")


def _date(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M")


def _usd(value: float | None) -> str:
    return "–" if value is None else usd(value)


def _share(value: float | None) -> str:
    return "–" if value is None else percent(value)


def _number(value: float | None, unit: str = "") -> str:
    return "–" if value is None else f"{count(round(value, 1))}{unit}"
