"""Answer what a log or generated requests are like: ``trace``."""

from functools import partial
from pathlib import Path

from tokonomics.errors import shorten
from tokonomics.files import check_path
from tokonomics.questions.request import SILENT, Listener
from tokonomics.questions.requests.traffic import TraceRequest
from tokonomics.questions.result import Result
from tokonomics.questions.traffic import open_log, traffic_of
from tokonomics.traffic.attribution import labels_in
from tokonomics.traffic.summary import TraceSummary, summarize
from tokonomics.traffic.trace import save_trace
from tokonomics.units import count, plural, seconds


class TraceResult(Result, TraceSummary):
    """A description of traffic."""

    def headline(self) -> str:
        span = seconds(self.duration_s)
        return (
            f"{self.source}: {plural(self.requests, 'request')} over {span}, {self.rate:.3g} a second; "
            f"{count(self.input.mean)} tokens in and {count(self.output.mean)} out in the mean"
        )


_AS_IT_IS = {"trace", "columns", "strict", "by", "seed", "machine_tokens_per_second", "machine_usd_per_hour"}
"""Inputs that leave the log unchanged: it is summarised batch by batch, and need not fit in memory."""


def trace(request: TraceRequest, listener: Listener = SILENT) -> TraceResult:
    """Summarise a log or generated requests: rates, bursts, lengths, shared prefixes and idle hours."""
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
    """Tell whether nothing asks for a part of the log, or for another pace."""
    defaults = {name: field.default for name, field in type(request).model_fields.items()}
    return {name for name, value in request.given().items() if value != defaults[name]} <= _AS_IT_IS
