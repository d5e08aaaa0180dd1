"""Read results of guidellm, aiperf, genai-perf, InferenceX and llm-d; ``vllm`` reads those of vLLM and SGLang.

guidellm's ``benchmarks.json``, version 2 (names: guidellm 0.8), is a list of benchmarks, each a load with its requests.
It has two traps. Its throughput is a median over moments, which is not tokens ÷ duration, so totals are divided here.
Its ``time_per_output_token_ms`` includes the first token; the usual TPOT is its ``inter_token_latency_ms``.

aiperf's and genai-perf's ``profile_export_*.json`` (names: aiperf 0.13, genai-perf 0.0.16) have one object per metric,
with its unit; aiperf also writes request lines. Both call the usual TPOT ``inter_token_latency``: (latency − first
token) ÷ (tokens − 1) of a request; gaps between chunks are ``inter_chunk_latency``. genai-perf states no totals and no
duration: they follow from the number of requests, its rate and the mean lengths.

InferenceX (was InferenceMAX) ``agg_*.json`` has one flat object per load, figures per GPU, latencies in seconds.
Throughput is per GPU that makes it: with disaggregated prefill/decode, prompts per prefill GPU and answers per decode
GPU. Lengths are nominal: requests are drawn from 80 to 100 % of them. ``*_intvty`` is 1 ÷ TPOT and not read.

llm-d Benchmark Report v0.2 (YAML or JSON), written by llm-d-benchmark and inference-perf, is one load of a stack, each
statistic with its unit. Percentiles are spelled ``p50``, ``p99p9``; times are in the unit they state. The engine
components of the stack say which GPUs there were.
"""

import math
import re
import sys
from collections.abc import Iterator, Mapping
from itertools import accumulate
from typing import Any

from tokonomics.errors import BadInput
from tokonomics.measure.benchmark_run import (
    BenchmarkRun,
    LoadPoint,
    RequestRecord,
    Stated,
    from_totals,
    latencies,
    point_from_records,
)
from tokonomics.measure.importers.fields import (
    Format,
    ResultFields,
    flat_latencies,
    load_of,
    moment,
    spread,
    stated_latencies,
    unit_s,
)
from tokonomics.measure.measurements import INFERENCEX_LENGTHS
from tokonomics.traffic.engine_lines import requests_of
from tokonomics.traffic.formats import REQUIRED, LogLayout
from tokonomics.traffic.sources import value_at

_OUTCOMES = {"successful": None, "errored": "error", "incomplete": "cut off at the end"}
"""The groups of guidellm's requests, and the error that each request of a group has."""


def _read_guidellm(documents: list[Any], where: str) -> BenchmarkRun:
    report = ResultFields(documents[0], where)
    version = report.maybe("metadata").maybe_count("version")
    if version != 2:
        said = f"guidellm result of version {version or 'unknown'}; version 2 is read"
        raise BadInput(said, where=where, fix="Run guidellm 0.8 or newer.")
    found = requests_of([dict(report.values)], where)
    benchmarks = report.objects("benchmarks")
    if not benchmarks or found is None:
        raise BadInput("a guidellm result without a benchmark", where=where)
    return BenchmarkRun(
        tool=GUIDELLM.name,
        tool_version=report.maybe("metadata").text("guidellm_version"),
        model=report.maybe("config", "spec", "backend").text("model")
        or benchmarks[0].maybe("config", "backend").text("model"),
        when=moment(benchmarks[0].maybe_number("start_time")),
        points=tuple(_guidellm_point(benchmark, found.layout) for benchmark in benchmarks),
    )


def _guidellm_point(benchmark: ResultFields, layout: LogLayout) -> LoadPoint:
    """Return the figures of its requests, or of its summary if the file keeps only a sample of the requests or none."""
    strategy, duration_s = benchmark.maybe("config", "strategy"), benchmark.positive("duration")
    kind = strategy.text("type_")
    rate = strategy.maybe_number("rate") if kind in ("constant", "poisson") else None
    limit = strategy.maybe_count("streams") or strategy.maybe_count("max_concurrency")
    records = [
        _guidellm_record(request, layout, failed)
        for outcome, failed in _OUTCOMES.items()
        for request in benchmark.maybe("requests").objects(outcome)
    ]
    totals = benchmark.inside("metrics", "request_totals")
    completed = totals.count("successful")
    failed = (totals.maybe_count("errored") or 0) + (totals.maybe_count("incomplete") or 0)
    load = load_of(rate or None, 1 if kind == "synchronous" else limit, max(1, completed + failed))
    if not completed:
        raise BadInput(f"{benchmark.path}: no request was answered", where=benchmark.where)
    if sum(record.error is None for record in records) == completed:
        first_s = min(record.sent_s for record in records)
        kept = [record.model_copy(update={"sent_s": record.sent_s - first_s}) for record in records]
        point = point_from_records(kept, duration_s, cached_known=True, **load)
        if point is None:
            raise BadInput(f"{benchmark.path}: no answer has a token", where=benchmark.where)
        return point
    metrics = benchmark.inside("metrics")
    tokens = [
        round(metrics.inside(name, "successful").number("total_sum"))
        for name in ("prompt_token_count", "output_token_count")
    ]
    spreads = {}
    for name, metric, unit in (
        ("ttft_s", "time_to_first_token_ms", 1e-3),
        ("tpot_s", "inter_token_latency_ms", 1e-3),
        ("e2e_s", "request_latency", 1.0),
    ):
        values = metrics.maybe(metric, "successful").values
        percentiles = metrics.maybe(metric, "successful", "percentiles").values
        spreads[name] = spread(ResultFields({**values, **percentiles}, benchmark.where, metric), unit)
    return LoadPoint(**load, **from_totals(duration_s, completed, *tokens), failed=failed, **spreads)


def _guidellm_record(request: ResultFields, layout: LogLayout, failed: str | None) -> RequestRecord:
    found = {name: value_at(dict(request.values), layout.paths(name)) or 0 for name in REQUIRED}
    read = ResultFields(found, request.where, request.path)
    sizes = {"input_tokens": read.count("input"), "output_tokens": read.count("output")}
    sent_s, cached_tokens = read.maybe_number("arrival") or 0.0, request.maybe_count("cached_tokens") or 0
    if failed:
        return RequestRecord(sent_s=sent_s, **sizes, cached_tokens=cached_tokens, error=failed)
    first_ms, gap_ms = (request.maybe_number(f"{name}_ms") for name in ("time_to_first_token", "inter_token_latency"))
    return RequestRecord(
        sent_s=sent_s,
        ttft_s=None if first_ms is None else first_ms * 1e-3,
        tpot_s=None if gap_ms is None else gap_ms * 1e-3,
        e2e_s=request.maybe_number("request_latency"),
        **sizes,
        cached_tokens=cached_tokens,
    )


GUIDELLM = Format(
    "guidellm", lambda keys: isinstance(keys.get("benchmarks"), list) and "metadata" in keys, _read_guidellm, many=False
)


def _read_aiperf(documents: list[Any], where: str) -> BenchmarkRun:
    profile = ResultFields(documents[0], where)
    settings = profile.values.get("input_config") or {}
    throughput = profile.inside("request_throughput").positive("avg")
    # If the file has no count of its requests, a metric may say how many values it has.
    completed = profile.maybe("request_count").maybe_count("avg")
    completed = completed or profile.maybe("request_latency").maybe_count("count")
    if not completed:
        raise profile.wrong("request_count", "is missing: the number of requests is not known")
    tokens = [
        profile.maybe(f"total_{short}").maybe_number("avg")
        or completed * profile.inside(f"{long}_sequence_length").positive("avg")
        for short, long in (("isl", "input"), ("osl", "output"))
    ]
    listed = [error.maybe_count("count") or 0 for error in profile.objects("error_summary")]
    failed = round(profile.maybe("error_request_count").maybe_number("avg") or sum(listed))
    load = load_of(_setting(settings, "request_rate"), _setting(settings, "concurrency"), completed + failed)
    notes = [] if "total_osl" in profile else ["totals follow from mean lengths: the file has no sums"]
    if profile.values.get("was_cancelled") or profile.values.get("is_complete") is False:
        notes.append("the run was cut short")
    names = ("time_to_first_token", "inter_token_latency", "inter_chunk_latency", "request_latency")
    point = LoadPoint(
        **{**load, "notes": (*notes, *load.get("notes", ()))},
        **from_totals(_time_s(profile, "benchmark_duration", "avg") or completed / throughput, completed, *tokens),
        **stated_latencies(profile, names, "avg", "unit", "ms"),
        failed=failed,
    )
    models = [value for key in ("model_names", "model") for value in _settings_named(settings, key)]
    names_given = [name for value in models for name in (value if isinstance(value, list) else [value])]
    return BenchmarkRun(
        tool="aiperf" if "schema_version" in profile or "benchmark_duration" in profile else "genai-perf",
        tool_version=profile.text("aiperf_version"),
        model=next((name for name in names_given if isinstance(name, str) and name), None),
        when=moment(profile.text("start_time")),
        points=(point,),
    )


def read_aiperf_requests(documents: list[Any], where: str) -> BenchmarkRun:
    """Read every request of a run; its load is not in the file."""
    lines = [ResultFields(document, where, f"line {at}") for at, document in enumerate(documents, 1)]
    starts = [line.inside("metadata").positive("request_start_ns") * 1e-9 for line in lines]
    # If a request never ended, or does not say when, its duration is unknown.
    ends = [
        (line.inside("metadata").maybe_number("request_end_ns") or 0.0) * 1e-9 or start
        for line, start in zip(lines, starts, strict=True)
    ]
    gaps: list[float] = []
    records = [_aiperf_record(line, start - min(starts), gaps) for line, start in zip(lines, starts, strict=True)]
    duration_s = max(ends) - min(starts)
    if duration_s <= 0:
        raise BadInput("no request says when it ended", where=where)
    point = point_from_records(records, duration_s, itl_s=latencies(gaps))
    if point is None:
        raise BadInput("no request was answered", where=where)
    notes = ("the file does not say under which load: most requests at once is taken as the number of users",)
    changes = sorted([(start, 1) for start in starts] + [(end, -1) for end in ends])
    users = max(1, *accumulate(change for _, change in changes))
    return BenchmarkRun(tool="aiperf", points=(point.model_copy(update={"concurrency": users, "notes": notes}),))


def _aiperf_record(line: ResultFields, sent_s: float, gaps: list[float]) -> RequestRecord:
    if line.values.get("error"):
        kind = line.maybe("error").text("type") or "error"
        return RequestRecord(sent_s=sent_s, input_tokens=0, output_tokens=0, error=kind)
    metrics = line.maybe("metrics")
    chunks = metrics.maybe("inter_chunk_latency")
    gaps += [number * unit_s(chunks, "unit", "ms") for number in chunks.numbers("value")] if chunks.values else []
    return RequestRecord(
        sent_s=sent_s,
        ttft_s=_time_s(metrics, "time_to_first_token"),
        tpot_s=_time_s(metrics, "inter_token_latency"),
        e2e_s=_time_s(metrics, "request_latency"),
        input_tokens=metrics.inside("input_sequence_length").count("value"),
        output_tokens=metrics.inside("output_sequence_length").count("value"),
    )


def _time_s(metrics: ResultFields, name: str, field: str = "value") -> float | None:
    metric = metrics.maybe(name)
    value = metric.maybe_number(field)
    return None if value is None else value * unit_s(metric, "unit", "ms")


def _setting(settings: Any, name: str) -> float | None:
    """Return a number of that name anywhere in the settings, whose shape changes from version to version."""
    for value in _settings_named(settings, name):
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= sys.float_info.max:
            return float(value)
    return None


def _settings_named(settings: Any, name: str, depth: int = 6) -> Iterator[Any]:
    if isinstance(settings, Mapping) and depth:
        if name in settings:
            yield settings[name]
        for value in settings.values():
            yield from _settings_named(value, name, depth - 1)


AIPERF = Format(
    "aiperf or genai-perf",
    lambda keys: any(
        isinstance(metric := keys.get(name), dict) and "avg" in metric
        for name in ("request_throughput", "request_latency")
    ),
    _read_aiperf,
    many=False,
)
AIPERF_REQUESTS = Format(
    "aiperf requests (profile_export.jsonl)",
    lambda keys: {"metadata", "metrics"} <= keys.keys() and "benchmarks" not in keys,
    read_aiperf_requests,
)


def read_inferencex(documents: list[Any], where: str) -> BenchmarkRun:
    """Read several objects as several loads of one setup."""
    loads = ResultFields({"load": documents}, where).objects("load")
    setups = {(load.text("model"), _inferencex_stated(load)) for load in loads}
    if len(setups) > 1:
        shown = ", ".join(sorted(f"{model} on {stated.gpus}×{stated.gpu}" for model, stated in setups)[:4])
        fix = "Import the loads of one set-up at a time."
        raise BadInput(f"holds {len(setups)} set-ups ({shown} …)", where=where, fix=fix)
    model, stated = setups.pop()
    return BenchmarkRun(
        tool="InferenceX", model=model, stated=stated, points=tuple(_inferencex_point(load) for load in loads)
    )


def _gpus(load: ResultFields) -> tuple[int, int, int]:
    """Return the numbers of all GPUs, of those for prefill and of those for decode."""
    prefill, decode = load.maybe_count("num_prefill_gpu") or 0, load.maybe_count("num_decode_gpu") or 0
    total = prefill + decode or (load.maybe_count("tp") or 1) * (load.maybe_count("pp") or 1)
    return total, prefill or total, decode or total


def _inferencex_stated(load: ResultFields) -> Stated:
    apart = load.values.get("disagg") in (True, "true", "True")
    engine = load.text("framework")
    split = {name: load.maybe_count(name) or None for name in ("tp", "pp", "ep")}
    if load.values.get("dp_attention") in (True, "true", "True") and not apart and split["tp"]:
        # Its "tp" is then the replica's GPUs: each has its own attention, and all share the experts.
        split |= {"tp": 1, "ep": split["tp"], "dp": split["tp"]}
    return Stated(
        gpu=(load.text("hw") or "").split("-")[0] or None, gpus=_gpus(load)[0], **split,
        engine=f"{engine} disagg" if apart else engine, weights=load.text("precision"), tuned=True,
    )  # fmt: skip


def _inferencex_point(load: ResultFields) -> LoadPoint:
    total_gpus, prefill_gpus, decode_gpus = _gpus(load)
    input_tokens, output_tokens = (load.positive(name) * INFERENCEX_LENGTHS for name in ("isl", "osl"))
    if "output_tput_per_gpu" in load:
        out = load.positive("output_tput_per_gpu") * decode_gpus
    else:
        out = load.positive("tput_per_gpu") * total_gpus * output_tokens / (input_tokens + output_tokens)
    into = load.positive("tput_per_gpu") * total_gpus - out
    if "input_tput_per_gpu" in load:
        into = load.positive("input_tput_per_gpu") * prefill_gpus
    if not into > 0:
        raise load.wrong("output_tput_per_gpu", "is more than tput_per_gpu, which counts prompts and answers")
    return LoadPoint(
        concurrency=load.count("conc"), requests_per_s=out / output_tokens, input_tokens_per_s=into,
        output_tokens_per_s=out, mean_input_tokens=input_tokens, mean_output_tokens=output_tokens,
        length_spread=1 / INFERENCEX_LENGTHS - 1,
        **flat_latencies(load, 1.0, "{}_ttft", "{}_tpot", "{}_itl", "{}_e2el"),
        notes=("lengths are nominal × 0.9: requests are drawn from 80 to 100 %",),
    )  # fmt: skip


def _read_llm_d(documents: list[Any], where: str) -> BenchmarkRun:
    report = ResultFields(documents[0], where)
    version = str(report.values["version"])
    if not re.fullmatch(r"0\.2(\.\d+)?", version):
        raise BadInput(f"Benchmark Report of version {version[:20]}; version 0.2 is read", where=where)
    aggregate = report.inside("results", "request_performance", "aggregate")
    requests, rates, waiting = (aggregate.inside(name) for name in ("requests", "throughput", "latency"))
    load = report.maybe("scenario", "load", "standardized")
    sent, failed = requests.count("total"), requests.maybe_count("failures") or 0
    mean_out = requests.inside("output_length").positive("mean")
    tokens_out_per_s = rates.inside("output_token_rate").positive("mean")
    names = ("time_to_first_token", "time_per_output_token", "inter_token_latency", "request_latency")
    point = LoadPoint(
        **load_of(load.maybe_number("rate_qps") or None, load.maybe_number("concurrency"), max(1, sent)),
        requests_per_s=rates.maybe("request_rate").maybe_number("mean") or tokens_out_per_s / mean_out,
        input_tokens_per_s=rates.inside("input_token_rate").positive("mean"),
        output_tokens_per_s=tokens_out_per_s,
        mean_input_tokens=requests.inside("input_length").positive("mean"),
        mean_output_tokens=mean_out,
        completed=max(0, sent - failed),
        failed=failed,
        **stated_latencies(waiting, names, "mean", "units", "s"),
    )
    stated, model = _stack(report)
    return BenchmarkRun(
        tool=load.text("tool") or LLM_D.name,
        tool_version=load.text("tool_version"),
        model=model,
        when=moment(report.maybe("run", "time").values.get("start")),
        stated=stated,
        points=(point,),
    )


def _stack(report: ResultFields) -> tuple[Stated, str | None]:
    """Return the GPUs of all engine components together, and the model of the first."""
    parts = [part.maybe("standardized") for part in report.maybe("scenario").objects("stack")]
    engines = [part for part in parts if part.text("kind") == "inference_engine"]
    if not engines:
        return Stated(), None
    gpus = 0
    for engine in engines:
        chips, split = engine.maybe("accelerator"), engine.maybe("accelerator", "parallelism")
        ways = [split.maybe_count(name) or 1 for name in ("tp", "pp", "dp")]
        gpus += (engine.maybe_count("replicas") or 1) * max(chips.maybe_count("count") or 1, math.prod(ways))
    split, tool = engines[0].maybe("accelerator", "parallelism"), engines[0].text("tool")
    # Groups that share experts are one replica; without experts, each group is a replica.
    shares = (split.maybe_count("ep") or 1) > 1
    disaggregated = any(engine.text("role") == "prefill" for engine in engines)
    stated = Stated(
        gpu=engines[0].maybe("accelerator").text("model"),
        gpus=gpus,
        **{name: split.maybe_count(name) or None for name in ("tp", "pp", "ep", *(["dp"] if shares else []))},
        engine="vllm disagg" if disaggregated else "vllm" if tool == "llm-d" else tool,  # llm-d runs vLLM
    )
    return stated, engines[0].maybe("model").text("name")


INFERENCEX = Format("InferenceX agg", lambda keys: {"hw", "tput_per_gpu", "conc"} <= keys.keys(), read_inferencex)
LLM_D = Format(
    "llm-d Benchmark Report v0.2",
    lambda keys: {"version", "scenario", "results"} <= keys.keys(),
    _read_llm_d,
    many=False,
)
