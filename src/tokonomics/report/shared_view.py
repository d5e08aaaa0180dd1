"""Show parts of answers that several verbs share: classes of service, sessions, sales, upkeep, energy, APIs."""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import date

from tokonomics.errors import option
from tokonomics.levers.ranking import QualityKept
from tokonomics.measure.benchmark_run import ApiLatency
from tokonomics.money.attribution import FleetSale, Sale, SellPrice
from tokonomics.money.breakeven import Upkeep
from tokonomics.money.own_hardware import Energy
from tokonomics.money.trace_bills import ApiCost
from tokonomics.planner.apis import ApiBeside, ApiSlo
from tokonomics.planner.class_report import ClassLoad, ClassReport, OneSlo
from tokonomics.report import blocks
from tokonomics.report.wording import (
    NO_VALUE,
    aged_since,
    minus_text,
    number_text,
    percent_text,
    setup_text,
    signed_text,
    span_text,
    tenths_text,
    time_text,
    usd_text,
)
from tokonomics.serving.outcome import Outcome
from tokonomics.serving.session_outcome import SessionOutcome
from tokonomics.sizing.setup import Setup
from tokonomics.traffic.sessions import LogPace, TurnsAlike
from tokonomics.types import Badge, Speed
from tokonomics.units import count, percent, plural, requests_a_second, usd

# --- classes of service ----------------------------------------------------------------------------------------------


def class_sections(
    report: ClassReport | None, replicas: int | None = None, rate: float | None = None, *, folded: bool = False
) -> blocks.View:
    """Show what each class gets, when it breaks, and, perhaps ``folded``, what it gets as the load grows.

    ``replicas`` or ``rate`` are what the classes need or hold, to compare with one SLO for all.
    """
    if report is None:
        return
    said = _one_slo(report.one_slo, report, replicas, rate) if report.one_slo else None
    lines = [
        blocks.line(f"{one.name} meets its SLO at every load tried.")
        if one.load is None
        else blocks.line(f"{one.name} breaks at {one.load:.2f} times the load: {one.breaks}.")
        for one in report.breaks_at
    ]
    yield blocks.section(_classes(report), said, *lines, title="By class")
    yield blocks.section(_overload(report), title="As the load grows on the same fleet", folded=folded)


def _classes(report: ClassReport) -> blocks.Table:
    heads = ["!class", ">priority", ">requests", ">TTFT p50", ">p99", ">TPOT p99", ">within", ">shed", "SLO"]
    heads += [f">used, {report.bill_for}", ">unused", ">pays", ">$/Mtok"] if report.bill else []
    rows: list[list[blocks.Piece]] = []
    for found in report.classes:
        met = blocks.Span("MISSED", "bad") if found.breaks else blocks.Span("met" if found.slo else NO_VALUE, "good")
        times = map(time_text, (found.ttft_s.p50, found.ttft_s.p99, found.tpot_s.p99))
        shares = tenths_text(found.within), _shed(found.shed_share)
        rows.append([found.name, f"{found.priority}", f"{found.requests:,}", *times, *shares, met])
    for row, own in zip(rows, report.bill, strict=False):
        row += [usd(own.used_usd), usd(own.unused_usd), usd(own.usd), usd_text(own.usd_per_mtok)]
    return blocks.table(heads, rows)


def _shed(share: float) -> str:
    return percent(share) if share else NO_VALUE


def _overload(report: ClassReport) -> blocks.Table:
    names = [found.name for found in report.classes]
    heads = ["load", *(f">{name} {what}" for name in names for what in ("TTFT p99", "within", "shed"))]
    rows = [[f"{row.load:g}×", *(cell for one in row.classes for cell in _cells(one))] for row in report.overload]
    return blocks.table(heads, rows)


def _cells(one: ClassLoad) -> list[blocks.Piece]:
    cells = time_text(one.ttft_p99_s), tenths_text(one.within), _shed(one.shed_share)
    return [blocks.Span(cell, "bad" if one.breaks else "") for cell in cells]


def _one_slo(one: OneSlo, report: ClassReport, replicas: int | None, rate: float | None) -> blocks.Line:
    """Say what classes save against the strictest SLO for all, or that they do not."""
    asks = f"One SLO for all, the strictest ({', '.join(one.slos) or 'none'})"
    if one.why_not is not None:
        return blocks.hint(f"{asks}, is met on no number of these replicas: {one.why_not}.")
    if one.rate is not None and rate is not None:
        holds = f"a replica holds {requests_a_second(f'{one.rate:.3g}')}"
        return blocks.hint(f"{asks}: {holds}; with classes {requests_a_second(f'{rate:.3g}')}.")
    bill = sum(own.usd for own in report.bill)
    if one.usd_per_month is None or one.replicas is None or replicas is None or not bill:
        return blocks.hint(f"{asks}.")
    takes = f"{plural(one.replicas, 'replica')}, {usd(one.usd_per_month)} a month"
    return blocks.hint(f"{asks}: {takes}; with classes {plural(replicas, 'replica')}, {usd(bill)}.")


# --- conversations and jobs ------------------------------------------------------------------------------------------


def job_facts(made: SessionOutcome, usd_per_job: float | None, *, at_once: bool = True) -> Iterable[blocks.Fact]:
    """Show what all sessions together cost and took, and unless told otherwise how many were under way at once."""
    if usd_per_job is not None:
        requests = f"{made.requests_per_job:.3g} requests each, the paid time over the finished ones"
        yield blocks.fact("per job", usd(usd_per_job), requests, number=usd_per_job)
    rate = f"{made.jobs_per_s:.3g}/s" if made.jobs_per_s >= 0.01 else f"{made.jobs_per_s * 3600:.3g}/h"
    yield blocks.fact("jobs", rate, f"{made.finished:,} of {plural(made.jobs, 'session')} finished")
    if at_once and made.at_once:
        said = "jobs under way at a time, on average: waiting for the server, a tool or a person"
        yield blocks.fact("at once", f"{made.at_once:,.3g}", said, number=made.at_once)
    if made.job_s.p99 is not None:
        waits = "" if made.server_share is None else f"; {percent(made.server_share)} of it with the server"
        of = f"of the {made.finished:,} finished: " if made.failed else ""
        said = f"{of}p50 {time_text(made.job_s.p50)}, from the first request to the last answer{waits}"
        yield blocks.fact("job p99", time_text(made.job_s.p99), said, number=made.job_s.p99)
    if made.retries:
        yield blocks.fact("retries", f"{made.retries:,}", "requests sent again after a time-out")


def short_run(made: Outcome, made_up: bool) -> blocks.Line | None:
    """Warn that a run is too short to leave out its ramp-up and drain, and say how long would do."""
    if made.times_longer is None:
        return None
    wanted = made.requests * made.times_longer
    digits = 10 ** max(0, len(f"{wanted:.0f}") - 2)
    longer = (
        f"{option('requests', math.ceil(wanted / digits) * digits)} tells" if made_up else "a longer log would tell"
    )
    lasting = f"of the {time_text(made.duration_s)} of this run, most is ramp-up and drain"
    return blocks.hint(f"Rates and prices are of the whole run, which is short: {lasting}. {longer} the steady cost.")


def turn_table(turns: Iterable[TurnsAlike], cached: str = ">cached") -> blocks.Table:
    """Show how much of each turn's prompt was found in a cache."""
    return blocks.listed(
        turns,
        ("turn", lambda row: span_text(row.first, row.last)),
        (">requests", lambda row: f"{row.requests:,}"),
        (">mean prompt", lambda row: f"{row.mean_input:,.0f}"),
        (cached, lambda row: percent_text(row.cached_share)),
    )


def turns_side_by_side(names: Sequence[str], made: Sequence[SessionOutcome]) -> blocks.Table:
    """Show the cached share of each turn, with a row for each way to serve them."""
    found = [{span_text(row.first, row.last): row.cached_share for row in one.turns_alike} for one in made]
    turns = list(dict.fromkeys(turn for row in found for turn in row))
    rows = [
        [name, *(percent_text(row.get(turn)) for turn in turns), time_text(one.job_s.p50), time_text(one.job_s.p99)]
        for name, row, one in zip(names, found, made, strict=True)
    ]
    heads = [f">turn {turn}" if place == 0 else f">{turn}" for place, turn in enumerate(turns)]
    return blocks.table(["!", *heads, ">job p50", ">p99"], rows)


def log_pace_note(pace: LogPace) -> blocks.Line:
    """Explain why a log of sessions is planned at more requests a second than its mean."""
    return blocks.note(
        f"The log's sessions begin at {pace.sessions_per_s:.3g} a second, of {pace.requests_per_session:.3g} requests "
        f"each: {requests_a_second(f'{pace.requests_per_s:.3g}')} once as many end as begin, for which this is "
        "planned. From its first request to its last, while it fills and drains, it has "
        f"{pace.requests_per_s_over_all:.3g}."
    )


# --- selling tokens --------------------------------------------------------------------------------------------------


SALE_COLUMNS = (">revenue", ">cost", ">profit", ">margin")


def sale_cells(sale: Sale) -> list[blocks.Pieces]:
    mood: blocks.Mood = "bad" if sale.margin_usd < 0 else ""
    profit = blocks.Span(signed_usd(sale.margin_usd), mood)
    return [usd(sale.revenue_usd), usd(sale.cost_usd), profit, blocks.Span(margin_text(sale), mood)]


def margin_text(sale: Sale) -> str:
    return NO_VALUE if sale.margin_share is None else minus_text(sale.margin_share)


def signed_usd(amount: float) -> str:
    return usd(amount) if amount >= 0 else f"−{usd(-amount)}"


def price_text(price: SellPrice) -> str:
    cached = "" if price.cached is None else f", {usd(price.cached)} of cached input"
    return f"{usd(price.input)} per Mtok of input, {usd(price.output)} of output{cached}"


def verdict(sale: Sale, over: str) -> blocks.Line:
    """Say profit or loss in one line."""
    money = f"{usd(abs(sale.margin_usd))} {over}"
    if sale.margin_usd >= 0:
        return blocks.line(blocks.Span(f"Profit of {money}", "best"), f", a margin of {margin_text(sale)}")
    return blocks.line(blocks.Span(f"Loss of {money}", "worst"), f": {usd(sale.revenue_usd)} earned")


def fleet_sale_facts(sale: FleetSale) -> list[blocks.Fact]:
    """Show what a plan's pick earns: price, revenue, profit, margin, and the volume from which it pays."""
    month, mtok, price, load = sale.month, sale.mtok, sale.usd_per_mtok, sale.break_even_load
    mood: blocks.Mood = "worst" if month.margin_usd < 0 else "best"
    kinds = [price.input, price.output, *([] if price.cached is None else [price.cached])]
    named = "per Mtok in / out" if price.cached is None else "per Mtok in / out / cached in"
    cost = f"a month, {signed_usd(mtok.margin_usd)} per Mtok: revenue less the bill of {usd(month.cost_usd)}"
    revenue = f"a month, {usd(mtok.revenue_usd)} per Mtok of all tokens"
    profit, margin = blocks.Span(signed_usd(month.margin_usd), mood), blocks.Span(margin_text(month), mood)
    facts = [
        blocks.fact("sold at", " / ".join(map(usd, kinds)), named),
        blocks.fact("revenue", usd(month.revenue_usd), revenue, number=month.revenue_usd, less="worse"),
        blocks.fact("profit", profit, cost, number=month.margin_usd, less="worse"),
        blocks.fact("margin", margin, "profit over revenue", number=month.margin_share, less="worse"),
    ]
    if sale.break_even_requests_per_s is None or sale.break_even_tokens_per_day is None or load is None:
        return facts
    tokens = f"{count(sale.break_even_tokens_per_day)} tokens a day"
    full = f"load {percent(load)} of capacity" if load <= 1 else "more than this fleet can do: the price is too low"
    value = requests_a_second(f"{sale.break_even_requests_per_s:.3g}")
    return [*facts, blocks.fact("profitable from", value, f"{tokens}, {full}", number=sale.break_even_requests_per_s)]


# --- people, overheads, energy ---------------------------------------------------------------------------------------


_MODELLED = {
    Speed.timed: "modelled from watts measured on this GPU",
    Speed.scaled: "modelled from watts of its architecture",
    Speed.assumed: "assumed",
}


def energy_facts(drawn: Energy | None) -> Iterable[blocks.Fact]:
    """Show kilowatt-hours and grams of CO₂e per million tokens, and their sources."""
    if drawn is None or drawn.kwh_per_mtok is None or drawn.g_co2e_per_mtok is None:
        return
    how = "measured" if drawn.basis is Badge.measured else _MODELLED[drawn.known]
    parts = f"GPUs {watts(drawn.gpu_watts)} ({how}), host {watts(drawn.host_watts)}, PUE {drawn.pue:g}"
    month = f"{count(drawn.kwh_per_month)} kWh a month"
    yield blocks.fact(
        "energy", f"{drawn.kwh_per_mtok:.3g} kWh", f"per Mtok; {month}: {parts}", number=drawn.kwh_per_mtok
    )
    grams = f"{count(float(f'{drawn.g_co2e_per_mtok:.3g}'))} g CO₂e"
    said = f"per Mtok; {count(drawn.kg_co2e_per_month)} kg a month at {drawn.grid.text}"
    yield blocks.fact("emissions", grams, said, number=drawn.g_co2e_per_mtok)


def watts(power: float) -> str:
    """Format power: ``640 W``, ``5.6 kW``, ``1.88 MW``."""
    size, unit = next(
        (size, unit) for size, unit in ((1, "W"), (1e3, "kW"), (1e6, "MW")) if power < 999.5 * size or size == 1e6
    )
    return f"{power / size:.3g} {unit}"


def energy_notes(drawn: Energy | None) -> Iterable[str]:
    """Name the source of the watts, and what emissions include."""
    if drawn is None:
        return
    host = "half of the GPUs' datasheet watts" if drawn.host_watts else f"not counted, as no {option('gpu')} is named"
    yield f"Watts of the GPUs: {drawn.power_from}. Host: {host}."
    own = f"; yours: {option('grid', 45)}" if drawn.grid.year is not None else ""
    yield f"Emissions are of the electricity, by the grid's mean (location-based), not of making the machines{own}."


def upkeep_facts(kept: Upkeep | None, over: str = "a month") -> Iterable[blocks.Fact]:
    """Show the bill with people and overheads, in total and per million tokens."""
    if kept is None:
        return
    named = ", ".join(f"{line.name} {usd(line.usd)}" for line in kept.lines.lines)
    per = "" if kept.usd_per_mtok is None else f"{usd(kept.usd_per_mtok)} per Mtok; "
    more = f"{per}{percent(kept.share)} of it is not machines: {named}"
    value = usd(kept.total_usd) if over != "a month" else f"{usd(kept.total_usd)}/month"
    yield blocks.fact("with overheads", value, more, number=kept.total_usd)


# --- how fast APIs answer --------------------------------------------------------------------------------------------


API_LATENCY = ">TTFT, tok/s"


def list_price_cell(api: ApiCost) -> str:
    return f"{usd(api.input_usd_per_mtok)} / {usd(api.output_usd_per_mtok)}"


def api_latency_cell(known: ApiLatency | None) -> str:
    """Return the median time to the first token, and the tokens a second of one answer after it."""
    if known is None:
        return "not measured"
    return f"{time_text(known.ttft_p50_s)}, {number_text(known.tokens_per_s)}"


def api_latency_notes(known: Collection[ApiLatency], shown: Collection[str]) -> Iterable[str]:
    """Say what was measured for the shown APIs, or how to measure."""
    for found in known:
        if found.api not in shown:
            yield f"{found.api} was measured, and is not among these."
            continue
        requests = "" if found.requests is None else f", {plural(found.requests, 'request')}"
        lengths = f"{found.mean_input_tokens:,.0f} in / {found.mean_output_tokens:,.0f} out"
        when = f" on {found.measured_on}" if found.measured_on else ""
        late = f"; TTFT p50 {time_text(found.ttft_p50_s)}, p99 {time_text(found.ttft_p99_s)}"
        yield f"{found.api}: measured by {found.measured_by}{when} at {found.load}{requests} of {lengths}{late}."
    if not known:
        yield f"How fast APIs answer is not measured: `tokonomics bench` does, {option('measured')} takes its files."


# --- the API beside a fleet ------------------------------------------------------------------------------------------


def api_lines(found: ApiBeside | None) -> Iterable[blocks.Line]:
    """Say that an API is the cheapest answer, or that a cheaper one may compute elsewhere; nothing if the fleet is."""
    if found is None:
        return
    if found.cheaper:
        serves = "An API may serve it: " if found.slo is ApiSlo.not_measured else "An API serves it: "
        begins = "An API is cheaper: " if found.fleet_usd_per_month else serves
        less = "" if found.saved_share is None else f", {percent(found.saved_share)} less"
        bill = blocks.Span(f"{usd(found.usd_per_month)} a month", "best")
        what = f"{less} for the same tokens: {found.api.name}{aged_since(*_day(found))}"
        yield blocks.line(begins, bill, what, kind="headline")
        known = _known(found)
        yield blocks.line(f"{known[:1].upper()}{known[1:]}.")
    for perhaps in (found.perhaps, None if found.there else found):
        if perhaps and (perhaps.saved_usd_per_month is None or perhaps.saved_usd_per_month > 0):
            bill = blocks.Span(f"{usd(perhaps.usd_per_month)} a month", "strong")
            asks = f"at {perhaps.api.name}, which does not say where it computes: ask{aged_since(*_day(perhaps))}."
            yield blocks.line("Perhaps in the region: ", bill, f" {asks}")


def api_fact(found: ApiBeside | None) -> blocks.Fact | None:
    """Show the cheapest API beside a cheaper fleet."""
    if found is None or found.cheaper or found.saved_usd_per_month is None or found.saved_usd_per_month > 0:
        return None
    more = percent(-(found.saved_share or 0.0))
    said = f"a month, {more} more for the same tokens: {found.api.name}; {_known(found)}{aged_since(*_day(found))}"
    return blocks.fact("cheapest API", usd(found.usd_per_month), said, number=found.usd_per_month)


def api_table(found: Mapping[str, ApiBeside], each: str) -> blocks.Table | None:
    """Show the cheapest API of each model or case beside its fleet, if any is sold."""
    if not found:
        return None
    return blocks.listed(
        list(found.items()),
        (f"!{each}", lambda row: row[0]),
        ("!cheapest API", lambda row: row[1].api.name),
        (">$/month", lambda row: blocks.Span(usd(row[1].usd_per_month), "best" if row[1].cheaper else "")),
        (">than the fleet", lambda row: NO_VALUE if row[1].saved_share is None else signed_text(-row[1].saved_share)),
        ("SLO", lambda row: row[1].slo.value),
        ("computes in", lambda row: ", ".join(row[1].api.areas) or "not known"),
        (">hosts", lambda row: str(row[1].hosts)),
        (">up to", lambda row: usd(row[1].most_usd_per_month)),
        ("price of", lambda row: str(row[1].api.date or "?")),
        title="The same requests by API",
    )


def _known(found: ApiBeside) -> str:
    """Say what is known of an API's latency and place, and what its competitors charge."""
    how = {
        ApiSlo.not_asked: "no SLO is asked for",
        ApiSlo.not_measured: "its latency is not measured (`tokonomics bench` tells)",
        ApiSlo.met: "SLO met, as measured",
        ApiSlo.missed: "SLO missed, as measured",
    }
    said = [how[found.slo], *([f"computes in {', '.join(found.api.areas)}"] if found.api.areas else [])]
    if not found.there:
        said.append("its host does not say where it computes")
    if found.hosts > 1:
        said.append(f"{found.hosts} hosts charge up to {usd(found.most_usd_per_month)}: `tokonomics breakeven`")
    if found.missed:
        said.append(f"left out, measured to miss the SLO: {', '.join(found.missed)}")
    return "; ".join(said)


def _day(found: ApiBeside) -> tuple[date, ...]:
    return (found.api.date,) if found.api.date else ()


# --- levers ---------------------------------------------------------------------------------------------------------


def levers_question(setup: Setup) -> blocks.Section:
    said = f"No SLO is set ({option('slo')}): a bill may fall because requests wait longer. Look at the latencies."
    without = not (setup.slos or setup.offline)
    return blocks.section(blocks.line(setup_text(setup), kind="asked"), blocks.hint(said) if without else None)


def folded_reasons(levers: Sequence[tuple[str, str]]) -> blocks.Section | None:
    """List levers without a bill of their own, each with the reason, under ``8 levers do not apply``."""
    if not levers:
        return None
    title = f"{plural(len(levers), 'lever')} {'does' if len(levers) == 1 else 'do'} not apply"
    return blocks.section(blocks.table(["!lever", "because"], levers), title=title, folded=True, printed=True)


def quality_sources(named: Iterable[tuple[str, QualityKept | None]]) -> Iterable[str]:
    """Name the source of each score, one per line."""
    shown = {name: kept.said for name, kept in named if kept and (kept.scores or kept.share is None)}
    yield from (f"quality of {name}: {said}." for name, said in shown.items())
