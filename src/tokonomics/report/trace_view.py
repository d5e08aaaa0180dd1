"""Show the summary of a trace."""

import math
from collections.abc import Iterable, Sequence
from functools import partial

from tokonomics.errors import option
from tokonomics.questions.request import Request, parameters_of
from tokonomics.questions.requests.buy import PlanRequest
from tokonomics.questions.scenario_text import command_line, command_words
from tokonomics.questions.traffic import TraceResult
from tokonomics.questions.verbs import VERBS
from tokonomics.report import blocks, charts
from tokonomics.report.answer import Answer
from tokonomics.report.shared_view import turn_table
from tokonomics.report.wording import NO_VALUE, duration_text, how_long
from tokonomics.traffic.sessions import SessionSummary
from tokonomics.traffic.summary import Idle, TraceSummary
from tokonomics.traffic.tally import PaidBy, PaidValue
from tokonomics.units import TOKENS_PER_MTOK, count, percent, plural, seconds, usd

_HEIGHTS = " ▁▂▃▄▅▆▇█"
_MOST_BARS = 80
_MOST_VALUES = 12  # values of a label to show at first
_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")


def trace(result: TraceResult, request: Request) -> Answer:
    """Show the rate over time, then arrivals, lengths and what else the log contains."""
    drawn = {"What arrives": lambda: charts.traffic.traffic_chart(result)}
    return Answer(result, f"Traffic: {result.source}", partial(_sections, result, request), drawn)


def _sections(made: TraceSummary, request: Request) -> blocks.View:
    name = f"{made.source} ({made.format})" if made.format else made.source
    since = f", from {made.started:%Y-%m-%d %H:%M} UTC" if made.started else ""
    yield blocks.headline(plural(made.requests, "request"), f"{how_long(made)}: {name}{since}")
    if len(made.curve) > 1:
        yield _bars(made)
    yield blocks.facts(*_arrivals(made))
    names = ("p50", "p90", "p95", "p99", "max")
    lengths = [
        (kind, f"{tokens.mean:,.0f}", *(f"{getattr(tokens, name):,}" for name in names), count(tokens.total))
        for kind, tokens in (("prompt", made.input), ("answer", made.output))
    ]
    yield blocks.table(["tokens", ">mean", *(f">{name}" for name in names), ">all"], lengths)
    if made.sessions:
        yield from _sessions(made.sessions)
    if made.by:
        yield from (_billed(bill) for bill in made.by)
    elif made.tenants:
        yield _tenants(made)
    if made.idle:
        yield from _idle(made.idle)
    yield blocks.section(*_notes(made))
    if made.rate:
        yield _next(made, request)


def _next(made: TraceSummary, request: Request) -> blocks.Line:
    """Show the command that plans for the same requests: lengths and bursts decide the bill, not only means."""
    known = parameters_of(PlanRequest)
    asked = {name: value for name, value in request.given().items() if name in known}
    if any(getattr(request, name, None) is not None for name in ("sample", "speed")):
        asked |= {"rate": f"{made.rate:.3g}"}
    command = command_line(command_words(VERBS["plan"], known, asked | {"model": ("MODEL",)}))
    return blocks.line(f"What would serve it:  {command}", kind="next")


def _arrivals(made: TraceSummary) -> Iterable[blocks.Fact]:
    if made.rate:
        speed = f"{count(made.tokens_per_second)} tokens/s"
        yield blocks.fact("mean rate", _rate(made.rate), speed, number=made.rate, less="worse")
    for peak in made.peaks:
        spread = "" if peak.dispersion is None else f"; variance ÷ mean {_two_digits(peak.dispersion)} (Poisson: 1)"
        said = f"{_times(peak.over_mean)} the mean{spread}"
        yield blocks.fact(f"peak {seconds(peak.window_s)}", _rate(peak.rate), said)
    if made.clock_step_s is not None:
        steps = f"times come in steps of {seconds(made.clock_step_s)}, {percent(made.same_time)} of them repeated"
        yield blocks.fact("burstiness", NO_VALUE, f"{steps}: what happens within a step is not known")
    else:
        neighbours = "CV of neighbouring gaps: 0 even, 1 Poisson, above it bursts"
        if made.local_cv is not None:
            yield blocks.fact("burstiness", f"{made.local_cv:.2f}", neighbours)
        if made.gap_cv is not None:
            yield blocks.fact("all gaps", f"{made.gap_cv:.2f}", "their CV, swings of the rate included")
    if made.peak_minute_over_mean is not None:
        yield blocks.fact("fullest minute", _times(made.peak_minute_over_mean), "the mean, in tokens")
    if made.input_per_output is not None:
        yield blocks.fact("in : out", f"{made.input_per_output:.3g}", "prompt tokens for each answer token")
    for reuse in made.reuse:
        size = "without limit" if reuse.cache_tokens is None else f"of {count(reuse.cache_tokens)} tokens"
        spared = f"of the prompt tokens, with a cache {size}"
        yield blocks.fact("prefix reuse", percent(reuse.share_of_input), spared)
    if made.format and not made.reuse:
        yield blocks.fact("prefix reuse", NO_VALUE, "this log does not say which prompts begin alike")
    if made.usd:
        per_mtok = made.usd / (made.input.total + made.output.total) * TOKENS_PER_MTOK
        yield blocks.fact("logged cost", usd(made.usd), f"as the log says, {usd(per_mtok)} per Mtok")
    if made.by_hour:
        busiest = max(range(24), key=made.by_hour.__getitem__)
        clock = f"at {busiest:02d}:00 UTC" if made.started else f"hour {busiest} of each day since the first request"
        yield blocks.fact("busiest hour", _times(made.by_hour[busiest]), f"the mean, {clock}")
    if made.by_weekday:
        days = ", ".join(f"{day} {share:.2g}" for day, share in zip(_DAYS, made.by_weekday, strict=True))
        yield blocks.fact("weekdays", "", f"÷ the mean: {days}")


def _bars(made: TraceSummary) -> blocks.Line:
    """Draw requests over time; leave out a last bar that the trace does not fill, as it would look like a drop."""
    together = -(-len(made.curve) // _MOST_BARS)
    width = made.bin_s * together
    whole = max(int(made.duration_s // width), 1) * together
    requests = [part.requests for part in made.curve[:whole]]
    sums = [sum(requests[place : place + together]) for place in range(0, len(requests), together)]
    most = max(sums)
    heights = "".join(_HEIGHTS[-(-number * (len(_HEIGHTS) - 1) // most)] for number in sums)
    said = f"  a bar is {duration_text(width)}, the highest {_rate(most / width)}"
    return blocks.line(blocks.Span(heights, "mark"), blocks.Span(said, "soft"))


def _sessions(made: SessionSummary) -> blocks.View:
    """Show conversations or jobs: their length, the gaps between turns, and what each turn repeats."""
    turns, pause = made.turns, made.pause_s
    facts = [
        blocks.fact(
            "sessions", f"{made.sessions:,}", f"{turns.mean:.3g} turns each, p50 {turns.p50:g}, p99 {turns.p99:g}"
        )
    ]
    if pause:
        told = f"p50, from an answer to the next request; mean {seconds(pause.mean)}, p99 {seconds(pause.p99)}"
        facts.append(blocks.fact("pause", seconds(pause.p50), told))
    if made.growth_tokens is not None:
        facts.append(blocks.fact("growth", f"{made.growth_tokens:,.0f}", "tokens from one prompt to the next, mean"))
    if made.branch_share:
        facts.append(blocks.fact("branches", percent(made.branch_share), "of the requests run beside another"))
    yield blocks.facts(*facts)
    yield turn_table(made.by_turn, ">in an endless cache")


def _tenants(made: TraceSummary) -> blocks.Table:
    rows = [[tenant.name, percent(tenant.requests), percent(tenant.tokens)] for tenant in made.tenants]
    if others := made.tenant_count - len(rows):
        left = [1 - sum(tenant.requests for tenant in made.tenants), 1 - sum(tenant.tokens for tenant in made.tenants)]
        rows.append([f"{others:,} more", *(percent(max(share, 0.0)) for share in left)])
    return blocks.table(["!tenant", ">requests", ">tokens"], rows)


def _billed(bill: PaidBy) -> blocks.Table:
    """Show requests, tokens and the log's own costs; the total first, to which the others sum."""
    values = bill.values
    priced = any(value.usd is not None for value in values)
    heads = [f"!{bill.label}", ">requests", ">prompt tokens", ">answer tokens", *([">logged cost"] if priced else [])]

    def cells(name: str, rows: Sequence[PaidValue]) -> list[str]:
        numbers = [sum(row.requests for row in rows), sum(row.input_tokens for row in rows)]
        numbers.append(sum(row.output_tokens for row in rows))
        cost = [usd(math.fsum(row.usd or 0.0 for row in rows))] if priced else []
        return [name, *(f"{number:,}" for number in numbers), *cost]

    rows = [cells(f"all {len(values)}", values), *(cells(value.name, [value]) for value in values)]
    return blocks.table(heads, rows, shown=_MOST_VALUES + 1)


def _idle(idle: Idle) -> blocks.View:
    speed = f"{count(idle.tokens_per_second)} tokens/s at {usd(idle.usd_per_hour)} an hour"
    over = f"; {percent(idle.overflow)} of the tokens are beyond it" if idle.overflow > 0 else ""
    window, price = duration_text(idle.window_s), idle.usd_per_mtok_for_peak
    decides = f"the fullest window of {window} decides"
    alike = "per million tokens, prompt and answer alike"
    yield blocks.facts(
        ("one machine", percent(idle.enough), f"of the time enough: {speed}{over}"),
        ("its idle share", percent(idle.idle), f"{usd(idle.idle_usd_per_day)} a day"),
        ("for the peak", plural(idle.machines_for_peak, "machine"), decides),
        ("idle then", percent(idle.idle_for_peak), f"{usd(idle.idle_for_peak_usd_per_day)} a day"),
        ("price then", usd(price), alike, price),
    )
    counted = f"Tokens count in the window of {window} in which their request arrives; nothing waits longer."
    yield blocks.note(counted)


def _notes(made: TraceSummary) -> Iterable[blocks.Line]:
    notes = [*made.notes]
    if made.bad_rows:
        notes.append(f"{plural(made.bad_rows, 'row')} could not be used; the first:")
        notes += [f"  {problem}" for problem in made.first_problems]
    if made.out_of_order:
        notes.append(f"{plural(made.out_of_order, 'row')} out of order, put in order.")
    if notes:
        yield blocks.note(*notes)
    if not made.output.total:
        silent = "No answer has any tokens: prompts are read and nothing is written."
        yield blocks.hint(f"{silent} If that is wrong, see {option('columns')}.")


def _rate(requests_per_s: float) -> str:
    """Write a rate per second, or per hour if it is below 0.01/s."""
    by, number = ("s", requests_per_s) if requests_per_s >= 0.01 else ("h", requests_per_s * 3600)
    return f"{count(float(f'{number:.3g}'))}/{by}"


def _times(ratio: float) -> str:
    return f"{_two_digits(ratio)} ×"


def _two_digits(number: float) -> str:
    return count(float(f"{number:.2g}"))
