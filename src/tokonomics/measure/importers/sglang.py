"""``sglang.bench_serving --output-file``: JSON lines, one object a run; each is a load point.

End-to-end latency is called ``e2e_latency_ms``; ``total_output_tokens`` counts what was asked for,
``total_output_tokens_retokenized`` what the text is in tokens. Names: SGLang 0.5.
"""

from typing import Any

from tokonomics.errors import BadInput
from tokonomics.measure.benchmark_run import BenchmarkRun, LoadPoint, Stated, from_totals
from tokonomics.measure.importers.fields import ResultFields, named_latencies, users_of

NAME = "SGLang bench_serving"


def matches(document: Any) -> bool:
    return (
        isinstance(document, dict)
        and {"completed", "duration", "total_output_tokens"} <= document.keys()
        and ("mean_e2e_latency_ms" in document or "median_e2e_latency_ms" in document)
    )


def read(documents: list[Any], where: str) -> BenchmarkRun:
    runs = [ResultFields(document, where, f"run {at}") for at, document in enumerate(documents, 1)]
    servers = [run.maybe("server_info") for run in runs]
    models = {server.text("model_path") or run.text("model") for run, server in zip(runs, servers, strict=True)}
    if len(models) > 1:
        raise BadInput("holds runs of several models", where=where, fix="Keep the lines of one model in a file.")
    return BenchmarkRun(
        tool=NAME,
        model=models.pop(),
        stated=Stated(
            engine="sglang" if (runs[0].text("backend") or "").startswith("sglang") else runs[0].text("backend"),
            tp=servers[0].maybe_count("tp_size") or None,
        ),
        points=tuple(_point(run) for run in runs),
    )


def _point(run: ResultFields) -> LoadPoint:
    duration_s, completed = run.positive("duration"), run.count("completed")
    if not completed:
        raise BadInput(f"{run.path}: no request was answered", where=run.where)
    tokens_in, tokens_out = run.count("total_input_tokens"), run.count("total_output_tokens")
    rate = run.maybe_number("request_rate") if run.text("request_rate") != "trace" else None
    users = users_of(run.maybe_count("max_concurrency"), max(completed, run.maybe_count("num_prompts") or 0))
    return LoadPoint(
        **({"rate": rate} if rate is not None else users),
        **from_totals(duration_s, completed, tokens_in, tokens_out),
        **named_latencies(run, "{}_{}_ms", 1e-3, e2e="e2e_latency"),
    )
