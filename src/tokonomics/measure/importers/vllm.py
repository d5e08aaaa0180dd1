"""``vllm bench serve --save-result``: one flat JSON a load; with ``--save-detailed`` its requests too. And SGLang's.

Times are milliseconds in the summary and seconds in the lists; a request rate of "inf" means no limit, so the load is
``max_concurrency`` users, or everything at once. Failed requests count in no total. Names: vLLM 0.32.

``sglang.bench_serving --output-file`` writes JSON lines, one object a load. End-to-end latency is called
``e2e_latency_ms``; ``total_output_tokens`` counts what was asked for, ``total_output_tokens_retokenized`` what the text
is in tokens. Names: SGLang 0.5.
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
from tokonomics.measure.importers.fields import Format, ResultFields, moment, named_latencies, users_of
from tokonomics.traffic.slo import STATISTICS
from tokonomics.units import plural, seconds

NAME = "vLLM bench serve"
REQUESTS = ("start_times", "input_lens", "output_lens", "ttfts")
"""Lists of ``--save-detailed`` without which requests cannot be told apart."""
_ROUNDED = 1.05  # a run ends after its last answer; another tool may have rounded, vLLM itself writes every digit
_TICK_S = 1e-3  # a clock that ticks no finer cannot tell arrivals apart
_FAR, _NEAR_S = 0.1, 1e-3  # from here on a printed figure contradicts the lists, of which vLLM makes it


def _read(documents: list[Any], where: str) -> BenchmarkRun:
    runs = [ResultFields(document, where) for document in documents]
    models = {run.text("model_id") for run in runs}
    if len(models) > 1:
        raise BadInput("holds runs of several models", where=where, fix="Import the runs of one model at a time.")
    return BenchmarkRun(
        tool=NAME,
        model=models.pop(),
        when=moment(runs[0].text("date")),
        stated=Stated(tp=runs[0].maybe_count("tensor_parallel_size") or None),
        points=tuple(_point(run) for run in runs),
    )


def _point(run: ResultFields) -> LoadPoint:
    duration_s, completed = run.positive("duration"), run.count("completed")
    if not completed:
        raise BadInput(f"no request was answered: {run.maybe_count('failed') or 'all'} failed", where=run.where)
    failed = run.maybe_count("failed")
    if failed is None and "num_prompts" in run:
        failed = max(0, run.count("num_prompts") - completed)
    rate = run.maybe_number("request_rate")
    users = users_of(run.maybe_count("max_concurrency"), completed + (failed or 0))
    load = users if rate is None else {"rate": rate}
    printed = _printed(run)
    if printed["e2e_s"] is None and "latencies" in run:
        printed["e2e_s"] = latencies(run.numbers("latencies"))
    if all(name in run for name in REQUESTS):
        detailed = _detailed(run, duration_s, load)
        # Without the gaps between its tokens, a request does not say how long its answer took.
        return detailed if "itls" in run else detailed.model_copy(update=printed | {"ttft_s": detailed.ttft_s})
    tokens_in, tokens_out = run.count("total_input_tokens"), run.count("total_output_tokens")
    return LoadPoint(**load, **from_totals(duration_s, completed, tokens_in, tokens_out), failed=failed, **printed)


def _printed(run: ResultFields) -> dict[str, Latencies | None]:
    return named_latencies(run, "{}_{}_ms", 1e-3, e2e="e2el")


def _detailed(run: ResultFields, duration_s: float, load: dict[str, Any]) -> LoadPoint:
    starts, firsts = run.numbers("start_times"), run.numbers("ttfts")
    inputs, outputs = run.counts("input_lens"), run.counts("output_lens")
    timed = "itls" in run
    gaps = [_gaps(run, at, listed) for at, listed in run.listed("itls")] if timed else [[] for _ in starts]
    errors = [str(error) if error else None for _, error in run.listed("errors")]
    lengths = {name: len(run.values[name]) for name in (*REQUESTS, "itls") if name in run}
    lengths |= {"errors": len(errors)} if errors else {}
    if len(set(lengths.values())) > 1:
        shown = ", ".join(f"{name} {length:,}" for name, length in lengths.items())
        raise BadInput(f"the lists of requests differ in length: {shown}", where=run.where)
    stated = zip(errors or [None] * len(starts), outputs, strict=True)
    failures = [error or (None if tokens else "no answer") for error, tokens in stated]
    # A request that was never sent keeps a start of 0, decades before the others on the clock of the run.
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
    point = point_from_records(records, duration_s, itl_s=latencies(flat), **load)
    if point is None:
        raise BadInput("no request was answered", where=run.where)
    for name in ("input_tokens", "output_tokens"):
        if (stated_total := run.count(f"total_{name}")) != (total := getattr(point, name)):
            raise run.wrong(f"total_{name}", f"is {stated_total:,}, but its requests add up to {total:,}")
    doubts = [*(_check_gaps(records, gaps) if timed else ()), *_contradictions(run, point)]
    return point.model_copy(update={"notes": (*point.notes, *doubts)})


def _gaps(run: ResultFields, at: int, listed: Any) -> list[float]:
    """The gaps between the tokens of one answer; ``ResultFields.numbers`` would take minutes for millions of them."""
    if not isinstance(listed, list):
        raise run.wrong(f"itls[{at}]", "is not a list")
    if not all(type(gap) in (int, float) and 0 <= gap <= LONGEST_S for gap in listed):
        raise run.wrong(f"itls[{at}]", "has a gap that is no time")
    return listed


def _check_times(run: ResultFields, records: list[RequestRecord], starts: list[float], duration_s: float) -> None:
    """Every request is sent and answered before the run ends, all on one clock."""
    end_s, within = duration_s * _ROUNDED, f"the run lasted {duration_s:,.4g} s (duration)"
    for at, (record, start) in enumerate(zip(records, starts, strict=True)):
        if math.ulp(start) > _TICK_S:
            raise run.wrong(f"start_times[{at}]", f"is {start:g}: a clock in seconds cannot be that far on")
        if record.sent_s > end_s:
            raise run.wrong(f"start_times[{at}]", f"is {record.sent_s:,.4g} s after the first request, but {within}")
        if record.ttft_s is not None and record.sent_s + record.ttft_s > end_s:
            took = f"is {record.ttft_s:,.4g} s for a request sent at {record.sent_s:,.4g} s"
            raise run.wrong(f"ttfts[{at}]", f"{took}, but {within}")
        if record.e2e_s is not None and record.sent_s + record.e2e_s > end_s:
            answered = f"ends the answer at {record.sent_s + record.e2e_s:,.4g} s"
            raise run.wrong(f"itls[{at}]", f"{answered}, but {within}")


def _check_gaps(records: list[RequestRecord], gaps: list[list[float]]) -> list[str]:
    """Notes on answers in other pieces than tokens: several tokens at once, or pieces (of reasoning) not counted."""
    sizes = [
        (at, len(gap), record.output_tokens)
        for at, (record, gap) in enumerate(zip(records, gaps, strict=True))
        if record.error is None
    ]
    fewer = [at for at, pieces, tokens in sizes if pieces < tokens - 1]
    more = [at for at, pieces, tokens in sizes if pieces > 2 * tokens]

    def example(at: int) -> str:
        return f"itls[{at}] has {plural(len(gaps[at]), 'gap')}, output_lens[{at}] is {records[at].output_tokens:,}"

    notes = []
    if fewer:
        said = "came in fewer pieces than tokens, as several tokens at once do"
        notes.append(f"{plural(len(fewer), 'answer')} {said} ({example(fewer[0])})")
    if more:
        said = "came in far more pieces than tokens were counted: times per token are too long there"
        notes.append(f"{plural(len(more), 'answer')} {said} ({example(more[0])})")
    return notes


def _contradictions(run: ResultFields, point: LoadPoint) -> list[str]:
    """A note where what vLLM printed is far from what its lists say."""
    far = []
    for name, printed in _printed(run).items():
        listed = getattr(point, name)
        for statistic in STATISTICS if printed and listed else ():
            said, is_s = getattr(printed, statistic), getattr(listed, statistic)
            if said is not None and abs(said - is_s) > max(_FAR * is_s, _NEAR_S):
                kind = name.removesuffix("_s").upper()
                far.append(f"{statistic} {kind} {seconds(said)}, by the lists {seconds(is_s)}")
    for field, rate in (("request_throughput", point.requests_per_s), ("output_throughput", point.output_tokens_per_s)):
        printed_rate = run.maybe_number(field)
        if printed_rate is not None and abs(printed_rate - rate) > _FAR * rate:
            far.append(f"{field} {printed_rate:,.4g}, by the lists and duration {rate:,.4g}")
    answered = run.count("completed")
    if answered != point.completed:
        far.append(f"completed {answered:,}, by the lists {point.completed:,}")
    return [f"printed figures contradict the lists, which are taken: {'; '.join(far)}"] if far else []


def _read_sglang(documents: list[Any], where: str) -> BenchmarkRun:
    runs = [ResultFields(document, where, f"run {at}") for at, document in enumerate(documents, 1)]
    servers = [run.maybe("server_info") for run in runs]
    models = {server.text("model_path") or run.text("model") for run, server in zip(runs, servers, strict=True)}
    if len(models) > 1:
        raise BadInput("holds runs of several models", where=where, fix="Keep the lines of one model in a file.")
    return BenchmarkRun(
        tool=SGLANG.name,
        model=models.pop(),
        stated=Stated(
            engine="sglang" if (runs[0].text("backend") or "").startswith("sglang") else runs[0].text("backend"),
            tp=servers[0].maybe_count("tp_size") or None,
        ),
        points=tuple(_sglang_point(run) for run in runs),
    )


def _sglang_point(run: ResultFields) -> LoadPoint:
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


VLLM = Format(
    NAME,
    lambda keys: (
        {"completed", "total_output_tokens"} <= keys.keys()
        and "mean_e2e_latency_ms" not in keys  # as SGLang calls it
        and not keys.keys().isdisjoint(("model_id", "request_goodput", "mean_ttft_ms"))
    ),
    _read,
)
SGLANG = Format(
    "SGLang bench_serving",
    lambda keys: (
        {"completed", "duration", "total_output_tokens"} <= keys.keys()
        and not keys.keys().isdisjoint(("mean_e2e_latency_ms", "median_e2e_latency_ms"))
    ),
    _read_sglang,
)
