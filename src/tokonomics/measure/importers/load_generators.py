"""Results of guidellm, aiperf, genai-perf, InferenceX and llm-d; of vLLM and SGLang see ``vllm``.

guidellm's ``benchmarks.json``, version 2 (names: guidellm 0.8): a list of benchmarks, each a load with its requests.
Two traps. Its throughput has a median over moments, which is not tokens ÷ duration: totals are divided here. Its
``time_per_output_token_ms`` counts the first token in; what the field calls TPOT is its ``inter_token_latency_ms``.

aiperf's and genai-perf's ``profile_export_*.json`` (names: aiperf 0.13, genai-perf 0.0.16): one object a metric, with
its unit; and aiperf's request lines. Both call ``inter_token_latency`` what the field calls TPOT: (latency − first
token) ÷ (tokens − 1) of a request; gaps between chunks are ``inter_chunk_latency``. genai-perf states no totals and no
duration: they follow from the number of requests, its rate and the mean lengths.

InferenceX (was InferenceMAX) ``agg_*.json``: one flat object a load, figures per GPU, latencies in seconds. Throughput
is per GPU that makes it: with disaggregated prefill/decode, prompts per prefill GPU and answers per decode GPU. Lengths
are nominal: requests are drawn from 80 to 100 % of them. ``*_intvty`` is 1 ÷ TPOT and not read.

llm-d Benchmark Report v0.2 (YAML or JSON), written by llm-d-benchmark and inference-perf: one load of a stack, each
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
    Latencies,
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
    moment,
    named_latencies,
    spread,
    stated_latencies,
    unit_s,
    unix_moment,
    users_of,
)
from tokonomics.measure.measurements import INFERENCEX_LENGTHS
from tokonomics.traffic.engine_lines import requests_of
from tokonomics.traffic.formats import REQUIRED, LogLayout
from tokonomics.traffic.sources import value_at


def _read_guidellm(documents: list[Any], where: str) -> BenchmarkRun:
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
        points=tuple(_guidellm_point(benchmark, found.layout) for benchmark in benchmarks),
    )


def _guidellm_point(benchmark: ResultFields, layout: LogLayout) -> LoadPoint:
    strategy = benchmark.maybe("config", "strategy")
    kind = strategy.text("type_")
    rate = strategy.maybe_number("rate") if kind in ("constant", "poisson") else None
    limit = strategy.maybe_count("streams") or strategy.maybe_count("max_concurrency")
    duration_s = benchmark.positive("duration")
    requests = benchmark.maybe("requests")
    records = [
        _guidellm_record(ResultFields(request, benchmark.where, f"{requests.path}.{outcome}[{at}]"), layout, failed)
        for outcome, failed in (("successful", None), ("errored", "error"), ("incomplete", "cut off at the end"))
        for at, request in requests.listed(outcome)
    ]
    totals = benchmark.inside("metrics", "request_totals")
    sent = sum(totals.maybe_count(outcome) or 0 for outcome in ("successful", "errored", "incomplete"))
    users = users_of(1 if kind == "synchronous" else limit or None, max(1, sent))
    load: dict[str, Any] = {"rate": rate} if rate else users
    if len([record for record in records if record.error is None]) != totals.count("successful"):
        return _guidellm_summary(benchmark, totals, duration_s, load)
    first = min((record.sent_s for record in records), default=0.0)
    kept = [record.model_copy(update={"sent_s": record.sent_s - first}) for record in records]
    point = point_from_records(kept, duration_s, cached_known=True, **load)
    if point is None:
        raise BadInput(f"{benchmark.path}: no request was answered", where=benchmark.where)
    return point


def _guidellm_record(request: ResultFields, layout: LogLayout, failed: str | None) -> RequestRecord:
    found = {name: value_at(dict(request.values), layout.paths(name)) or 0 for name in REQUIRED}
    read = ResultFields(found, request.where, request.path)
    first_ms, gap_ms = (request.maybe_number(f"{name}_ms") for name in ("time_to_first_token", "inter_token_latency"))
    return RequestRecord(
        sent_s=read.maybe_number("arrival") or 0.0, ttft_s=None if first_ms is None or failed else first_ms * 1e-3,
        tpot_s=None if gap_ms is None or failed else gap_ms * 1e-3,
        e2e_s=None if failed else request.maybe_number("request_latency"), input_tokens=read.count("input"),
        cached_tokens=request.maybe_count("cached_tokens") or 0, output_tokens=read.count("output"), error=failed,
    )  # fmt: skip


def _guidellm_summary(
    benchmark: ResultFields, totals: ResultFields, duration_s: float, load: dict[str, Any]
) -> LoadPoint:
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
        ttft_s=_guidellm_spread(metrics, "time_to_first_token_ms", 1e-3),
        tpot_s=_guidellm_spread(metrics, "inter_token_latency_ms", 1e-3),
        e2e_s=_guidellm_spread(metrics, "request_latency", 1.0),
    )


def _guidellm_spread(metrics: ResultFields, name: str, unit_s: float) -> Latencies | None:
    found = metrics.maybe(name, "successful")
    return spread(found.maybe_number("mean"), found.maybe("percentiles"), unit_s)


GUIDELLM = Format(
    "guidellm", lambda keys: isinstance(keys.get("benchmarks"), list) and "metadata" in keys, _read_guidellm, many=False
)


def _read_aiperf(documents: list[Any], where: str) -> BenchmarkRun:
    profile = ResultFields(documents[0], where)
    settings = profile.values.get("input_config") or {}
    throughput = profile.inside("request_throughput").positive("avg")
    # A metric may say how many values it has, where the file has no count of its requests.
    completed = profile.maybe("request_count").maybe_count("avg")
    completed = completed or profile.maybe("request_latency").maybe_count("count")
    if not completed:
        raise profile.wrong("request_count", "is missing: the number of requests cannot be told")
    duration_s = _time_s(profile, "benchmark_duration", "avg") or completed / throughput
    tokens_in = _value(profile, "total_isl") or completed * profile.inside("input_sequence_length").positive("avg")
    tokens_out = _value(profile, "total_osl") or completed * profile.inside("output_sequence_length").positive("avg")
    notes = [] if "total_osl" in profile else ["totals follow from mean lengths: the file has no sums"]
    if profile.values.get("was_cancelled") or profile.values.get("is_complete") is False:
        notes.append("the run was cut short")
    rate, limit = _setting(settings, "request_rate"), _setting(settings, "concurrency")
    listed = [ResultFields(error, where).maybe_count("count") or 0 for _, error in profile.listed("error_summary")]
    failed = round(_value(profile, "error_request_count") or sum(listed))
    users = users_of(round(limit) if limit else None, completed + failed)
    load: dict[str, Any] = {"rate": rate} if rate else users
    names = ("time_to_first_token", "inter_token_latency", "inter_chunk_latency", "request_latency")
    point = LoadPoint(
        **{**load, "notes": (*notes, *load.get("notes", ()))},
        **from_totals(duration_s, completed, tokens_in, tokens_out),
        **stated_latencies(profile, names, "avg", "unit", "ms"),
        failed=failed,
    )
    return BenchmarkRun(
        tool="aiperf" if "schema_version" in profile or "benchmark_duration" in profile else "genai-perf",
        tool_version=profile.text("aiperf_version"),
        model=next((name for key in ("model_names", "model") for name in _names(settings, key)), None),
        when=moment(profile.text("start_time")),
        points=(point,),
    )


def read_aiperf_requests(documents: list[Any], where: str) -> BenchmarkRun:
    """Every request of a run; its load is not in the file."""
    lines = [ResultFields(document, where, f"line {at}") for at, document in enumerate(documents, 1)]
    starts = [line.inside("metadata").positive("request_start_ns") * 1e-9 for line in lines]
    # A request that never ended, or does not say when, held its place for no time that is known.
    told = [line.inside("metadata").maybe_number("request_end_ns") for line in lines]
    ends = [end * 1e-9 if end else start for end, start in zip(told, starts, strict=True)]
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
    metrics, failed = line.maybe("metrics"), line.values.get("error")
    if failed:
        kind = line.maybe("error").text("type") or "error"
        return RequestRecord(sent_s=sent_s, input_tokens=0, output_tokens=0, error=kind)
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


def _value(profile: ResultFields, name: str) -> float | None:
    return profile.maybe(name).maybe_number("avg")


def _setting(settings: Any, name: str) -> float | None:
    """A number of that name anywhere in the settings, whose shape changes from version to version."""
    for value in _found(settings, name):
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= sys.float_info.max:
            return float(value)
    return None


def _names(settings: Any, name: str) -> Iterator[str]:
    for value in _found(settings, name):
        names = value if isinstance(value, list) else [value]
        yield from (model for model in names if isinstance(model, str) and model)


def _found(settings: Any, name: str, depth: int = 6) -> Iterator[Any]:
    if isinstance(settings, Mapping) and depth:
        if name in settings:
            yield settings[name]
        for value in settings.values():
            yield from _found(value, name, depth - 1)


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
    """Several objects are several loads of one set-up."""
    loads = [ResultFields(document, where, f"[{at}]") for at, document in enumerate(documents)]
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
    """All of them, those for prefill, those for decode."""
    prefill, decode = load.maybe_count("num_prefill_gpu") or 0, load.maybe_count("num_decode_gpu") or 0
    total = prefill + decode or (load.maybe_count("tp") or 1) * (load.maybe_count("pp") or 1)
    return total, prefill or total, decode or total


def _inferencex_stated(load: ResultFields) -> Stated:
    apart = load.values.get("disagg") in (True, "true", "True")
    engine = load.text("framework")
    split = {name: load.maybe_count(name) or None for name in ("tp", "pp", "ep")}
    if load.values.get("dp_attention") in (True, "true", "True") and not apart and split["tp"]:
        # Its "tp" are the GPUs of the replica then: each attends for itself, and all share the experts.
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
        length_spread=1 / INFERENCEX_LENGTHS - 1, **named_latencies(load, "{}_{}", 1.0, e2e="e2el"),
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
    limit, rate = load.maybe_number("concurrency"), load.maybe_number("rate_qps")
    sent, failed = requests.count("total"), requests.maybe_count("failures") or 0
    mean_out = requests.inside("output_length").positive("mean")
    tokens_out_per_s = rates.inside("output_token_rate").positive("mean")
    names = ("time_to_first_token", "time_per_output_token", "inter_token_latency", "request_latency")
    point = LoadPoint(
        **({"rate": rate} if rate else users_of(round(limit) if limit else None, max(1, sent))),
        requests_per_s=rates.maybe("request_rate").maybe_number("mean") or tokens_out_per_s / mean_out,
        input_tokens_per_s=rates.inside("input_token_rate").positive("mean"),
        output_tokens_per_s=tokens_out_per_s,
        mean_input_tokens=requests.inside("input_length").positive("mean"),
        mean_output_tokens=mean_out, completed=max(0, sent - failed), failed=failed,
        **stated_latencies(waiting, names, "mean", "units", "s"),
    )  # fmt: skip
    stated, model = _stack(report)
    start = report.maybe("run", "time").values.get("start")
    return BenchmarkRun(
        tool=load.text("tool") or LLM_D.name, tool_version=load.text("tool_version"), model=model,
        when=moment(start) if isinstance(start, str) else start if hasattr(start, "isoformat") else None,
        stated=stated, points=(point,),
    )  # fmt: skip


def _stack(report: ResultFields) -> tuple[Stated, str | None]:
    """The GPUs of all engine components together, and the model of the first."""
    stack = report.maybe("scenario").listed("stack")
    parts = [ResultFields(part, report.where, f"scenario.stack[{at}]").maybe("standardized") for at, part in stack]
    engines = [part for part in parts if part.text("kind") == "inference_engine"]
    if not engines:
        return Stated(), None
    gpus = 0
    for engine in engines:
        chips, split = engine.maybe("accelerator"), engine.maybe("accelerator", "parallelism")
        ways = [split.maybe_count(name) or 1 for name in ("tp", "pp", "dp")]
        gpus += (engine.maybe_count("replicas") or 1) * max(chips.maybe_count("count") or 1, math.prod(ways))
    split, tool = engines[0].maybe("accelerator", "parallelism"), engines[0].text("tool")
    # Groups that share experts are one replica; of a model without, each is one of its own.
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
