"""What is a request log like? Or make one up."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tokonomics.errors import shorten
from tokonomics.questions.inputs import Traffic
from tokonomics.questions.listener import SILENT, Listener
from tokonomics.questions.request import Kind, Number, Placement, Table, Text, declared
from tokonomics.questions.traffic import open_log, traffic_of

if TYPE_CHECKING:
    from tokonomics.questions.results import TraceResult


class TraceRequest(Traffic):
    """
    Examples:
      tokonomics trace azure-conv
      tokonomics trace requests.jsonl.gz --chart traffic.svg
      tokonomics trace log.csv --columns arrival=time,input=prompt,output=answer --from 10m --to 40m
      tokonomics trace azure-conv --machine-tokens-per-second 20000 --machine-usd-per-hour 3
      tokonomics trace --arrivals gamma:2,cv=3 --requests 10000 --input sample:sharegpt --save demo.parquet
      tokonomics trace chat.toml
    """

    FIRST = ("trace", "columns")

    trace: Table | None = declared(
        None,
        "A log (CSV, JSON lines, parquet; .gz, .zst), a sample such as azure-conv, or ServeGen's clients.",
        place=Placement.FIRST,
        kind=Kind.TRACE,
        example="azure-conv",
        metavar="FILE",
    )
    machine_tokens_per_second: Number | None = declared(
        None, "What one machine serves, prompt and answer tokens: prices its idle time.", example=20_000
    )
    machine_usd_per_hour: Number | None = declared(None, "What that machine costs.", example=3.0)
    save: Text | None = declared(
        None,
        "Save the requests as .parquet, which this verb reads.",
        kind=Kind.FILE,
        writes=True,
        example="requests.parquet",
    )


_AS_IT_IS = {"trace", "columns", "strict", "seed", "machine_tokens_per_second", "machine_usd_per_hour"}
"""What leaves the log as it is: it is summed up batch by batch, and need not fit in memory."""


def trace(request: TraceRequest, listener: Listener = SILENT) -> "TraceResult":
    """Rates, bursts, lengths, shared prefixes and idle hours of a log or of made-up requests."""
    from tokonomics.questions.results import TraceResult
    from tokonomics.traffic.summary import summarize
    from tokonomics.traffic.trace import check_save_path, save_trace

    save = Path(request.save) if request.save else None
    if save:
        check_save_path(save)
    summed_up = partial(
        summarize,
        tokens_per_second=request.machine_tokens_per_second,
        usd_per_hour=request.machine_usd_per_hour,
    )
    given = {name for name, value in request.given().items() if value != type(request).model_fields[name].default}
    log = None
    if isinstance(request.trace, str) and given <= _AS_IT_IS:
        log = open_log(request.trace, request.columns, request.strict)
    if log:
        reading = f"reading {shorten(log.path.name)}"
        listener.doing(reading)
        return TraceResult(**dict(summed_up(log, on_rows=listener.counting(f"{reading}, rows", 0))))
    requests = traffic_of(request, listener)
    found = summed_up(requests)
    if save:
        save_trace(requests, save)
        listener.note(f"{len(requests):,} requests saved to {save}")
    return TraceResult(**dict(found))
