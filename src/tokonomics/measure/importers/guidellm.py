"""guidellm's ``benchmarks.json``, version 2: a list of benchmarks, each a load with its requests.

Two traps. Its throughput has a median over moments, which is not tokens ÷ duration: totals are divided here. Its
``time_per_output_token_ms`` counts the first token in; what the field calls TPOT is its ``inter_token_latency_ms``.
Names: guidellm 0.8.
"""

from typing import Any

from tokonomics.errors import BadInput
from tokonomics.measure.benchmark_run import (
    BenchmarkRun,
    Latencies,
    LoadPoint,
    RequestRecord,
    from_totals,
    point_from_records,
)
from tokonomics.measure.importers.fields import Format, ResultFields, spread, unix_moment, users_of
from tokonomics.traffic.engine_lines import requests_of
from tokonomics.traffic.formats import REQUIRED, LogLayout
from tokonomics.traffic.sources import value_at


def _read(documents: list[Any], where: str) -> BenchmarkRun:
    report = ResultFields(documents[0], where)
    version = report.maybe("metadata").maybe_count("version")
    if version != 2:
        said = f"guidellm result of version {version or 'unknown'}; version 2 is read"
        raise BadInput(said, where=where, fix="Run guidellm 0.8 or newer.")
    found = requests_of([dict(report.values)], where)
    benchmarks = [ResultFields(load, where, f"benchmarks[{at}]") for at, load in report.listed("benchmarks")]
    if not benchmarks or found is None:
        raise BadInput("a guidellm result without a benchmark", where=where)
    return BenchmarkRun(
        tool=GUIDELLM.name,
        tool_version=report.maybe("metadata").text("guidellm_version"),
        model=report.maybe("config", "spec", "backend").text("model")
        or benchmarks[0].maybe("config", "backend").text("model"),
        when=unix_moment(benchmarks[0].maybe_number("start_time")),
        points=tuple(_point(benchmark, found.layout) for benchmark in benchmarks),
    )


def _point(benchmark: ResultFields, layout: LogLayout) -> LoadPoint:
    strategy = benchmark.maybe("config", "strategy")
    kind = strategy.text("type_")
    rate = strategy.maybe_number("rate") if kind in ("constant", "poisson") else None
    limit = strategy.maybe_count("streams") or strategy.maybe_count("max_concurrency")
    duration_s = benchmark.positive("duration")
    requests = benchmark.maybe("requests")
    records = [
        _record(ResultFields(request, benchmark.where, f"{requests.path}.{outcome}[{at}]"), layout, failed)
        for outcome, failed in (("successful", None), ("errored", "error"), ("incomplete", "cut off at the end"))
        for at, request in requests.listed(outcome)
    ]
    totals = benchmark.inside("metrics", "request_totals")
    sent = sum(totals.maybe_count(outcome) or 0 for outcome in ("successful", "errored", "incomplete"))
    users = users_of(1 if kind == "synchronous" else limit or None, max(1, sent))
    load: dict[str, Any] = {"rate": rate} if rate else users
    if len([record for record in records if record.error is None]) != totals.count("successful"):
        return _summary(benchmark, totals, duration_s, load)
    first = min((record.sent_s for record in records), default=0.0)
    kept = [record.model_copy(update={"sent_s": record.sent_s - first}) for record in records]
    point = point_from_records(kept, duration_s, cached_known=True, **load)
    if point is None:
        raise BadInput(f"{benchmark.path}: no request was answered", where=benchmark.where)
    return point


def _record(request: ResultFields, layout: LogLayout, failed: str | None) -> RequestRecord:
    found = {name: value_at(dict(request.values), layout.paths(name)) or 0 for name in REQUIRED}
    read = ResultFields(found, request.where, request.path)
    first_ms, gap_ms = (request.maybe_number(f"{name}_ms") for name in ("time_to_first_token", "inter_token_latency"))
    return RequestRecord(
        sent_s=read.maybe_number("arrival") or 0.0, ttft_s=None if first_ms is None or failed else first_ms * 1e-3,
        tpot_s=None if gap_ms is None or failed else gap_ms * 1e-3,
        e2e_s=None if failed else request.maybe_number("request_latency"), input_tokens=read.count("input"),
        cached_tokens=request.maybe_count("cached_tokens") or 0, output_tokens=read.count("output"), error=failed,
    )  # fmt: skip


def _summary(benchmark: ResultFields, totals: ResultFields, duration_s: float, load: dict[str, Any]) -> LoadPoint:
    """Of a file that keeps a sample of its requests, or none."""
    metrics, completed = benchmark.inside("metrics"), totals.count("successful")
    if not completed:
        raise BadInput(f"{benchmark.path}: no request was answered", where=benchmark.where)
    names = ("prompt_token_count", "output_token_count")
    tokens_in, tokens_out = (round(metrics.inside(name, "successful").number("total_sum")) for name in names)
    return LoadPoint(
        **load,
        **from_totals(duration_s, completed, tokens_in, tokens_out),
        failed=(totals.maybe_count("errored") or 0) + (totals.maybe_count("incomplete") or 0),
        ttft_s=_spread(metrics, "time_to_first_token_ms", 1e-3),
        tpot_s=_spread(metrics, "inter_token_latency_ms", 1e-3),
        e2e_s=_spread(metrics, "request_latency", 1.0),
    )


def _spread(metrics: ResultFields, name: str, unit_s: float) -> Latencies | None:
    found = metrics.maybe(name, "successful")
    return spread(found.maybe_number("mean"), found.maybe("percentiles"), unit_s)


GUIDELLM = Format(
    "guidellm", lambda keys: isinstance(keys.get("benchmarks"), list) and "metadata" in keys, _read, many=False
)
