"""Read the results of ``vllm bench serve --save-result`` and of SGLang's benchmark: one flat JSON object per load.

With ``--save-detailed`` vLLM writes its requests too. Times are milliseconds in the summary and seconds in the lists; a
request rate of "inf" means no limit, so the load is ``max_concurrency`` users, or everything at once. Failed requests
count in no total. Names: vLLM 0.32.

``sglang.bench_serving --output-file`` writes JSON lines, one object per load. End-to-end latency is called
``e2e_latency_ms``; ``total_output_tokens`` counts what was asked for, ``total_output_tokens_retokenized`` the tokens of
the text. Names: SGLang 0.5.
"""

import math
from typing import Any

from tokonomics.errors import BadInput
from tokonomics.measure.benchmark_run import (
    LONGEST_S,
    BenchmarkRun,
    Latencies,
    LoadPoint,
    RequestRecord,
    Stated,
    from_totals,
    latencies,
    point_from_records,
    tpot,
)
from tokonomics.measure.importers.fields import Format, ResultFields, flat_latencies, load_of, moment
from tokonomics.traffic.slo import STATISTICS
from tokonomics.units import plural

NAME = "vLLM bench serve"
REQUESTS = ("start_times", "input_lens", "output_lens", "ttfts")
"""Lists of ``--save-detailed`` without which nothing is known about single requests."""
_ROUNDED = 1.05  # a run ends after its last answer; other tools may round, vLLM writes every digit
_TICK_S = 1e-3  # a coarser clock does not order arrivals
_FAR, _NEAR_S = 0.1, 1e-3  # from here on a printed figure contradicts the lists that vLLM computes it from


def _read_vllm(documents: list[Any], where: str) -> BenchmarkRun:
    runs = [ResultFields(document, where) for document in documents]
    return BenchmarkRun(
        tool=NAME,
        model=_only_model({run.text("model_id") for run in runs}, where),
        when=moment(runs[0].text("date")),
        stated=Stated(tp=runs[0].maybe_count("tensor_parallel_size") or None),
        points=tuple(_vllm_point(run) for run in runs),
    )


def _read_sglang(documents: list[Any], where: str) -> BenchmarkRun:
    runs = [ResultFields(document, where, f"run {at}") for at, document in enumerate(documents, 1)]
    servers = [run.maybe("server_info") for run in runs]
    models = {server.text("model_path") or run.text("model") for run, server in zip(runs, servers, strict=True)}
    engine = runs[0].text("backend")
    return BenchmarkRun(
        tool=SGLANG.name,
        model=_only_model(models, where),
        stated=Stated(
            engine="sglang" if engine and engine.startswith("sglang") else engine,
            tp=servers[0].maybe_count("tp_size") or None,
        ),
        points=tuple(_summary(run, None, "{}_e2e_latency_ms") for run in runs),
    )


def _only_model(models: set[str | None], where: str) -> str | None:
    if len(models) > 1:
        raise BadInput("holds runs of several models", where=where, fix="Import the runs of one model at a time.")
    return models.pop()


def _summary(run: ResultFields, failed: int | None, e2e: str = "{}_e2el_ms") -> LoadPoint:
    """Return the printed figures of a run."""
    duration_s, completed = run.positive("duration"), run.count("completed")
    if not completed:
        raise BadInput("no request was answered", where=run.where)
    sent = max(completed + (failed or 0), run.maybe_count("num_prompts") or 0)
    tokens = run.count("total_input_tokens"), run.count("total_output_tokens")
    return LoadPoint(
        **load_of(run.maybe_number("request_rate"), run.maybe_count("max_concurrency"), sent),
        **from_totals(duration_s, completed, *tokens),
        failed=failed,
        **flat_latencies(run, 1e-3, "{}_ttft_ms", "{}_tpot_ms", "{}_itl_ms", e2e),
    )


def _vllm_point(run: ResultFields) -> LoadPoint:
    failed = run.maybe_count("failed")
    if failed is None and "num_prompts" in run:
        failed = max(0, run.count("num_prompts") - run.count("completed"))
    point = _summary(run, failed)
    if point.e2e_s is None and "latencies" in run:
        point = point.model_copy(update={"e2e_s": latencies(run.numbers("latencies"))})
    return _detailed(run, point) if all(name in run for name in REQUESTS) else point


def _detailed(run: ResultFields, summary: LoadPoint) -> LoadPoint:
    """Return the point with the figures of its requests; without gaps between tokens, keep the printed answer times."""
    starts, firsts = run.numbers("start_times"), run.numbers("ttfts")
    inputs, outputs = run.counts("input_lens"), run.counts("output_lens")
    timed, duration_s = "itls" in run, run.positive("duration")
    gaps = _gaps(run) if timed else [[] for _ in starts]
    errors = [error for _, error in run.listed("errors")] or [None] * len(starts)
    lengths = {name: len(run.values[name]) for name in (*REQUESTS, "itls") if name in run} | {"errors": len(errors)}
    if len(set(lengths.values())) > 1:
        shown = ", ".join(f"{name} {length:,}" for name, length in lengths.items())
        raise BadInput(f"the lists of requests differ in length: {shown}", where=run.where)
    failures = [
        str(error) if error else None if tokens else "no answer" for error, tokens in zip(errors, outputs, strict=True)
    ]
    # A request that was never sent has a start of 0, decades before the others on the clock of the run.
    opened_s = min((at for at, failure in zip(starts, failures, strict=True) if at or not failure), default=0.0)
    records = [
        RequestRecord(
            sent_s=max(0.0, start - opened_s),
            ttft_s=None if failure else first_s,
            tpot_s=tpot(0.0, sum(gap), tokens) if timed and not failure else None,
            e2e_s=first_s + sum(gap) if timed and not failure else None,
            input_tokens=prompt,
            output_tokens=tokens,
            # The last line of a traceback says what happened.
            error=(failure.strip().splitlines() or ["error"])[-1][:120] if failure else None,
        )
        for start, first_s, prompt, tokens, gap, failure in zip(
            starts, firsts, inputs, outputs, gaps, failures, strict=True
        )
    ]
    _check_times(run, records, starts, duration_s)
    flat = [gap for listed, record in zip(gaps, records, strict=True) if record.error is None for gap in listed]
    load = {name: getattr(summary, name) for name in ("concurrency", "rate", "notes")}
    point = point_from_records(records, duration_s, itl_s=latencies(flat), **load)
    if point is None:
        raise BadInput("no request was answered", where=run.where)
    for name in ("input_tokens", "output_tokens"):
        if getattr(summary, name) != (total := getattr(point, name)):
            raise run.wrong(f"total_{name}", f"is {getattr(summary, name):,}, but its requests add up to {total:,}")
    notes = (*point.notes, *(_piece_notes(records, gaps) if timed else ()), *_contradictions(run, summary, point))
    printed = {} if timed else {name: getattr(summary, name) for name in ("tpot_s", "itl_s", "e2e_s")}
    return point.model_copy(update=printed | {"notes": notes})


def _gaps(run: ResultFields) -> list[list[float]]:
    """Return the gaps between the tokens of each answer; ``ResultFields.numbers`` would take minutes for millions."""
    answers = []
    for place, gaps in run.listed("itls"):
        if not isinstance(gaps, list) or not all(type(gap) in (int, float) and 0 <= gap <= LONGEST_S for gap in gaps):
            raise run.wrong(place, "is not a list of times")
        answers.append(gaps)
    return answers


def _check_times(run: ResultFields, records: list[RequestRecord], starts: list[float], duration_s: float) -> None:
    """Refuse a request that is not sent and answered before the run ends, on one clock."""
    for at, (record, start) in enumerate(zip(records, starts, strict=True)):
        if math.ulp(start) > _TICK_S:
            raise run.wrong(f"start_times[{at}]", f"is {start:g}: a clock in seconds cannot be that far on")
        for name, took_s in (("start_times", 0.0), ("ttfts", record.ttft_s), ("itls", record.e2e_s)):
            end_s = record.sent_s + (took_s or 0.0)
            if end_s > duration_s * _ROUNDED:
                said = f"is {end_s:,.4g} s after the first request began, but the run lasted {duration_s:,.4g} s"
                raise run.wrong(f"{name}[{at}]", said)


def _piece_notes(records: list[RequestRecord], gaps: list[list[float]]) -> list[str]:
    """Note answers whose pieces are not tokens: several tokens at once, or pieces (of reasoning) not counted."""
    answered = [(len(gap), record.output_tokens) for record, gap in zip(records, gaps, strict=True) if not record.error]
    fewer = sum(pieces < tokens - 1 for pieces, tokens in answered)
    more = sum(pieces > 2 * tokens for pieces, tokens in answered)
    few_said = f"{plural(fewer, 'answer')} came in fewer pieces than tokens, as several tokens at once do"
    more_said = f"{plural(more, 'answer')} came in far more pieces than tokens: times per token are too long there"
    return [few_said] * bool(fewer) + [more_said] * bool(more)


def _contradictions(run: ResultFields, summary: LoadPoint, point: LoadPoint) -> list[str]:
    """Note what vLLM printed if it is far from what its lists say."""
    pairs: list[tuple[str, float | None, float | None, float]] = [
        ("request_throughput", run.maybe_number("request_throughput"), point.requests_per_s, 0.0),
        ("output_throughput", run.maybe_number("output_throughput"), point.output_tokens_per_s, 0.0),
    ]
    for kind in ("ttft_s", "tpot_s", "itl_s", "e2e_s"):
        printed, listed = (getattr(one, kind) or Latencies() for one in (summary, point))
        pairs += [
            (f"{statistic} {kind}", getattr(printed, statistic), getattr(listed, statistic), _NEAR_S)
            for statistic in STATISTICS
        ]
    far = [
        f"{name} {said:,.4g}, by the lists {found:,.4g}"
        for name, said, found, near in pairs
        if said is not None and found is not None and abs(said - found) > max(_FAR * found, near)
    ]
    if summary.completed != point.completed:
        far.append(f"completed {summary.completed:,}, by the lists {point.completed:,}")
    return [f"printed figures contradict the lists, which are taken: {'; '.join(far)}"] if far else []


VLLM = Format(
    NAME,
    lambda keys: (
        {"completed", "total_output_tokens"} <= keys.keys()
        and "mean_e2e_latency_ms" not in keys  # as SGLang calls it
        and not keys.keys().isdisjoint(("model_id", "request_goodput", "mean_ttft_ms"))
    ),
    _read_vllm,
)
SGLANG = Format(
    "SGLang bench_serving",
    lambda keys: (
        {"completed", "duration", "total_output_tokens"} <= keys.keys()
        and not keys.keys().isdisjoint(("mean_e2e_latency_ms", "median_e2e_latency_ms"))
    ),
    _read_sglang,
)
