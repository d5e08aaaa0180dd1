"""llm-d Benchmark Report v0.2 (YAML or JSON): one load of a stack, each statistic with its unit.

Written by llm-d-benchmark and inference-perf. Percentiles are spelled ``p50``, ``p99p9``; times are in the unit they
state. The engine components of the stack say which GPUs there were.
"""

import math
import re
from typing import Any

from tokonomics.errors import BadInput
from tokonomics.measure.benchmark_run import BenchmarkRun, LoadPoint, Stated
from tokonomics.measure.importers.fields import ResultFields, moment, spread_of, users_of

NAME = "llm-d Benchmark Report v0.2"


def matches(document: Any) -> bool:
    return isinstance(document, dict) and {"version", "scenario", "results"} <= document.keys()


def read(documents: list[Any], where: str) -> BenchmarkRun:
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
    ttft, tpot, itl, e2e = (spread_of(waiting.maybe(name), "mean", "units", "s") for name in names)
    point = LoadPoint(
        **({"rate": rate} if rate else users_of(round(limit) if limit else None, max(1, sent))),
        requests_per_s=rates.maybe("request_rate").maybe_number("mean") or tokens_out_per_s / mean_out,
        input_tokens_per_s=rates.inside("input_token_rate").positive("mean"),
        output_tokens_per_s=tokens_out_per_s,
        mean_input_tokens=requests.inside("input_length").positive("mean"),
        mean_output_tokens=mean_out, completed=max(0, sent - failed), failed=failed, ttft_s=ttft, tpot_s=tpot,
        itl_s=itl, e2e_s=e2e,
    )  # fmt: skip
    stated, model = _stack(report)
    start = report.maybe("run", "time").values.get("start")
    return BenchmarkRun(
        tool=load.text("tool") or NAME, tool_version=load.text("tool_version"), model=model,
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
