"""Reports that state the figures of a load and none of its requests: InferenceX and llm-d.

InferenceX (was InferenceMAX) ``agg_*.json``: one flat object a load, figures per GPU, latencies in seconds. Throughput
is per GPU that makes it: with disaggregated prefill/decode, prompts per prefill GPU and answers per decode GPU. Lengths
are nominal: requests are drawn from 80 to 100 % of them. ``*_intvty`` is 1 ÷ TPOT and not read.

llm-d Benchmark Report v0.2 (YAML or JSON), written by llm-d-benchmark and inference-perf: one load of a stack, each
statistic with its unit. Percentiles are spelled ``p50``, ``p99p9``; times are in the unit they state. The engine
components of the stack say which GPUs there were.
"""

import math
import re
from typing import Any

from tokonomics.errors import BadInput
from tokonomics.measure.benchmark_run import BenchmarkRun, LoadPoint, Stated
from tokonomics.measure.importers.fields import (
    Format,
    ResultFields,
    moment,
    named_latencies,
    stated_latencies,
    users_of,
)
from tokonomics.measure.measurements import INFERENCEX_LENGTHS


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
