"""How fast APIs answer, beside what they charge: cells of a table, and what they rest on."""

from collections.abc import Collection, Iterable

from tokonomics.errors import option
from tokonomics.measure.benchmark_run import ApiLatency
from tokonomics.report.wording import number_text, time_text
from tokonomics.units import plural

API_LATENCY = ">TTFT, tok/s"


def api_latency_cell(known: ApiLatency | None) -> str:
    """Median time to the first token, and tokens a second of one answer after it."""
    if known is None:
        return "not measured"
    return f"{time_text(known.ttft_p50_s)}, {number_text(known.tokens_per_s)}"


def api_latency_notes(known: Collection[ApiLatency], shown: Collection[str]) -> Iterable[str]:
    """What was measured of those that are shown; or how to measure."""
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
