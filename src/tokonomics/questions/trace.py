"""What is a request log like? Or make one up."""

from functools import partial
from pathlib import Path

from tokonomics.errors import shorten
from tokonomics.files import check_path
from tokonomics.questions.listener import SILENT, Listener
from tokonomics.questions.requests.traffic import TraceRequest
from tokonomics.questions.traffic import open_log, traffic_of
from tokonomics.questions.traffic_results import TraceResult
from tokonomics.traffic.attribution import labels_in
from tokonomics.traffic.summary import summarize
from tokonomics.traffic.trace import save_trace

_AS_IT_IS = {"trace", "columns", "strict", "by", "seed", "machine_tokens_per_second", "machine_usd_per_hour"}
"""What leaves the log as it is: it is summed up batch by batch, and need not fit in memory."""


def trace(request: TraceRequest, listener: Listener = SILENT) -> TraceResult:
    """Rates, bursts, lengths, shared prefixes and idle hours of a log or of made-up requests."""
    save = Path(request.save) if request.save else None
    if save:
        check_path(save, "save", (".parquet",))
    summed_up = partial(
        summarize,
        tokens_per_second=request.machine_tokens_per_second,
        usd_per_hour=request.machine_usd_per_hour,
        by=labels_in(request.by or ()),
    )
    log = None
    if isinstance(request.trace, str) and _is_whole(request):
        log = open_log(request.trace, request.columns, request.strict, request.by or ())
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


def _is_whole(request: TraceRequest) -> bool:
    """Whether nothing asks for a part of the log, or for another pace."""
    defaults = {name: field.default for name, field in type(request).model_fields.items()}
    return {name for name, value in request.given().items() if value != defaults[name]} <= _AS_IT_IS
