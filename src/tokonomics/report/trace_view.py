"""A trace's summary for a person."""

from rich.console import Group, RenderableType
from rich.text import Text

from tokonomics.report.tables import pairs, table
from tokonomics.traffic.summary import Idle, LengthSummary, TraceSummary
from tokonomics.units import count, percent, plural, seconds, usd

_HEIGHTS = " ▁▂▃▄▅▆▇█"
_MOST_BARS = 80
_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")


def trace_view(made: TraceSummary) -> RenderableType:
    """The headline, the rate over time, then arrivals, lengths and what else the log tells."""
    name = f"{made.source} ({made.format})" if made.format else made.source
    headline = Text.assemble(
        (plural(made.requests, "request"), "bold green"),
        f"{how_long(made)}: {name}" + (f", from {made.started:%Y-%m-%d %H:%M} UTC" if made.started else ""),
    )
    parts: list[RenderableType] = [headline]
    if len(made.curve) > 1:
        parts += ["", _bars(made)]
    parts += ["", pairs(_arrival_rows(made)), "", table([*_LENGTH_COLUMNS], _length_rows(made))]
    if made.tenants:
        parts += ["", _tenants(made)]
    if made.idle:
        parts += ["", *_idle(made.idle)]
    if notes := _notes(made):
        parts += ["", Text("\n".join(notes), style="dim")]
    if made.rate:
        parts += ["", _next(made)]
    return Group(*parts)


def _next(made: TraceSummary) -> Text:
    """The same traffic as ``plan`` takes it: of the mean length, as fast as in the fullest minute."""
    minute = [peak.rate for peak in made.peaks if peak.window_s == 60]
    tokens = f"--input {max(round(made.input.mean), 1)} --output {max(round(made.output.mean), 1)}"
    said = f"What would serve {'its fullest minute' if minute else 'it'}:"
    rate = float(f"{(minute or [made.rate])[0]:.3g}")
    return Text.assemble((f"{said}  ", "dim"), f"tokonomics plan MODEL --rate {rate:.9g} {tokens}")


_LENGTH_COLUMNS = ("tokens", ">mean", ">p50", ">p90", ">p95", ">p99", ">max", ">all")


def _arrival_rows(made: TraceSummary) -> list[tuple[str, str | Text, str]]:
    ratio = made.input_per_output
    rows: list[tuple[str, str | Text, str]] = [
        *([("mean rate", _rate(made.rate), f"{count(made.tokens_per_second)} tokens/s")] if made.rate else []),
        *(
            (
                f"peak {seconds(peak.window_s)}",
                _rate(peak.rate),
                f"{_times(peak.over_mean)} the mean"
                + (f"; variance ÷ mean {_two_digits(peak.dispersion)}" if peak.dispersion is not None else "")
                + (" (Poisson: 1)" if peak.dispersion is not None and not place else ""),
            )
            for place, peak in enumerate(made.peaks)
        ),
    ]
    rows += _burstiness(made)
    if made.peak_minute_over_mean is not None:
        rows.append(("fullest minute", _times(made.peak_minute_over_mean), "the mean, in tokens"))
    if ratio is not None:
        rows.append(("in : out", f"{ratio:.3g}", "prompt tokens for each answer token"))
    for each in made.reuse:
        size = "without limit" if each.cache_tokens is None else f"of {count(each.cache_tokens)} tokens"
        rows.append(("prefix reuse", percent(each.share_of_input), f"of the prompt tokens, with a cache {size}"))
    if made.by_hour:
        busiest = max(range(24), key=made.by_hour.__getitem__)
        clock = f"at {busiest:02d}:00 UTC" if made.started else f"hour {busiest} of each day since the first request"
        rows.append(("busiest hour", _times(made.by_hour[busiest]), f"the mean, {clock}"))
    if made.by_weekday:
        days = ", ".join(f"{day} {share:.2g}" for day, share in zip(_DAYS, made.by_weekday, strict=True))
        rows.append(("weekdays", "", f"÷ the mean: {days}"))
    return rows


def _burstiness(made: TraceSummary) -> list[tuple[str, str | Text, str]]:
    if made.clock_step_s is not None:
        steps = f"times come in steps of {seconds(made.clock_step_s)}, {percent(made.same_time)} of them repeated"
        return [("burstiness", "–", f"{steps}: what happens within a step is not known")]
    rows: list[tuple[str, str | Text, str]] = []
    if made.local_cv is not None:
        rows.append(
            ("burstiness", f"{made.local_cv:.2f}", "CV of neighbouring gaps: 0 even, 1 Poisson, above it bursts")
        )
    if made.gap_cv is not None:
        rows.append(("all gaps", f"{made.gap_cv:.2f}", "their CV, swings of the rate included"))
    return rows


def _length_rows(made: TraceSummary) -> list[list[str]]:
    def row(name: str, each: LengthSummary) -> list[str]:
        figures = (each.p50, each.p90, each.p95, each.p99, each.max)
        return [name, f"{each.mean:,.0f}", *(f"{figure:,}" for figure in figures), count(each.total)]

    return [row("prompt", made.input), row("answer", made.output)]


def _bars(made: TraceSummary) -> Text:
    """Requests over time; a last bar that the trace does not fill is left out, since it would look like a fall."""
    together = -(-len(made.curve) // _MOST_BARS)
    width = made.bin_s * together
    whole = max(int(made.duration_s // width), 1) * together
    requests = [each.requests for each in made.curve[:whole]]
    sums = [sum(requests[place : place + together]) for place in range(0, len(requests), together)]
    most = max(sums)
    heights = "".join(_HEIGHTS[-(-each * (len(_HEIGHTS) - 1) // most)] for each in sums)
    said = f"  a bar is {span(width)}, the highest {_rate(most / width)}"
    return Text.assemble((heights, "blue"), (said, "dim"))


def _tenants(made: TraceSummary) -> RenderableType:
    rows = [[tenant.name, percent(tenant.requests), percent(tenant.tokens)] for tenant in made.tenants]
    others = made.tenant_count - len(rows)
    if others:
        left = [1 - sum(tenant.requests for tenant in made.tenants), 1 - sum(tenant.tokens for tenant in made.tenants)]
        rows.append([f"{others:,} more", *(percent(max(share, 0.0)) for share in left)])
    return table(["!tenant", ">requests", ">tokens"], rows)


def _idle(idle: Idle) -> list[RenderableType]:
    one = f"{count(idle.tokens_per_second)} tokens/s at {usd(idle.usd_per_hour)} an hour"
    machines = plural(idle.machines_for_peak, "machine")
    over = f"; {percent(idle.overflow)} of the tokens are beyond it" if idle.overflow > 0 else ""
    rows: list[tuple[str, str | Text, str]] = [
        ("one machine", percent(idle.enough), f"of the time enough: {one}{over}"),
        ("its idle share", percent(idle.idle), f"{usd(idle.idle_usd_per_day)} a day"),
        ("for the peak", machines, f"the fullest window of {span(idle.window_s)} decides"),
        ("idle then", percent(idle.idle_for_peak), f"{usd(idle.idle_for_peak_usd_per_day)} a day"),
        ("price then", usd(idle.usd_per_mtok_for_peak), "per million tokens, prompt and answer alike"),
    ]
    said = f"Tokens count in the window of {span(idle.window_s)} in which their request arrives; nothing waits longer."
    return [pairs(rows), "", Text(said, style="dim")]


def _notes(made: TraceSummary) -> list[str]:
    notes = [*made.notes]
    if not made.output.total:
        notes.append(
            "No answer has any tokens: prompts are read and nothing is written. If that is wrong, see --columns."
        )
    if made.bad_rows:
        notes.append(f"{plural(made.bad_rows, 'row')} could not be used; the first:")
        notes += [f"  {line}" for line in made.first_problems]
    if made.out_of_order:
        notes.append(f"{plural(made.out_of_order, 'row')} out of order, put in order.")
    return notes


def how_long(made: TraceSummary) -> str:
    """After the number of requests."""
    return f" in {span(made.duration_s)}" if made.duration_s else " at once" if made.requests > 1 else ""


def _rate(requests_per_s: float) -> str:
    """By the second, or by the hour where that would read as nothing."""
    by, number = ("s", requests_per_s) if requests_per_s >= 0.01 else ("h", requests_per_s * 3600)
    return f"{count(float(f'{number:.3g}'))}/{by}"


def _times(ratio: float) -> str:
    return f"{_two_digits(ratio)} ×"


def _two_digits(number: float) -> str:
    return count(float(f"{number:.2g}"))


def span(duration_s: float) -> str:
    """Seconds, minutes, hours or days: whichever reads best."""
    for name, size in (("days", 86400), ("hours", 3600), ("min", 60)):
        if duration_s >= (2 * size if name != "min" else size):
            return f"{duration_s / size:.3g} {name}"
    return f"{duration_s:.3g} s"
