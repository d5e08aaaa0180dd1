"""How fast an API answers, from a run of ``bench`` against it: beside its price, what one gets for it."""

import datetime as dt

from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat

from tokonomics.errors import BadInput, option
from tokonomics.measure.benchmark_run import BenchmarkRun, Latencies, LoadPoint
from tokonomics.types import Noun


class ApiLatency(Noun):
    """Of the lightest load that was measured: what a caller sees who is nearly alone."""

    api: str
    """``host:model``."""
    load: str
    requests: NonNegativeInt | None
    mean_input_tokens: PositiveFloat
    mean_output_tokens: PositiveFloat
    ttft_p50_s: NonNegativeFloat | None
    ttft_p99_s: NonNegativeFloat | None
    tpot_p50_s: NonNegativeFloat | None
    tokens_per_s: PositiveFloat | None
    """Of one answer, after its first token."""
    measured_on: dt.date | None
    measured_by: str


def api_latency(run: BenchmarkRun, where: str) -> ApiLatency:
    """What a run says of the API that it names."""
    if run.api is None:
        fix = f"Measure it as `tokonomics bench URL` with {option('api', 'host:model')}, and save that."
        raise BadInput("does not say which API was measured", where=where, fix=fix)
    point = min(run.points, key=_size)
    tpot = _median(point.tpot_s)
    return ApiLatency(
        api=run.api,
        load=point.load,
        requests=point.completed,
        mean_input_tokens=point.mean_input_tokens,
        mean_output_tokens=point.mean_output_tokens,
        ttft_p50_s=_median(point.ttft_s),
        ttft_p99_s=point.ttft_s.p99 if point.ttft_s else None,
        tpot_p50_s=tpot,
        tokens_per_s=1 / tpot if tpot else None,
        measured_on=run.when.date() if run.when else None,
        measured_by=run.tool,
    )


def _size(point: LoadPoint) -> float:
    return point.concurrency or point.rate or point.requests_per_s


def _median(spread: Latencies | None) -> float | None:
    return None if spread is None else spread.mean if spread.p50 is None else spread.p50
