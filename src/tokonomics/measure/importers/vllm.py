"""``vllm bench serve --save-result``: one flat JSON a load; with ``--save-detailed`` its requests too.

Times are milliseconds in the summary and seconds in the lists; a request rate of "inf" means no limit, so the load is
``max_concurrency`` users, or everything at once. Failed requests count in no total. Names: vLLM 0.32.
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
    latencies,
    point_from_records,
    tpot,
)
from tokonomics.measure.importers.fields import ResultFields, from_totals, moment, named_latencies, users_of
from tokonomics.traffic.slo import STATISTICS
from tokonomics.units import plural, seconds

NAME = "vLLM bench serve"
REQUESTS = ("start_times", "input_lens", "output_lens", "ttfts")
"""Lists of ``--save-detailed`` without which requests cannot be told apart."""
_ROUNDED = 1.05
"""A run ends after its last answer; another tool may have rounded, vLLM itself writes every digit."""
_TICK_S = 1e-3
"""A clock that ticks no finer cannot tell arrivals apart."""
_FAR, _NEAR_S = 0.1, 1e-3
"""A printed figure contradicts the lists from this share on; vLLM makes it from the same numbers."""


def matches(document: Any) -> bool:
    """Its totals under vLLM's names; SGLang's differ in the end-to-end latency."""
    return (
        isinstance(document, dict)
        and {"completed", "total_output_tokens"} <= document.keys()
        and "mean_e2e_latency_ms" not in document
        and ("model_id" in document or "request_goodput" in document or "mean_ttft_ms" in document)
    )


def read(documents: list[Any], where: str) -> BenchmarkRun:
    """One run; every document is a load."""
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
    if all(name in run for name in REQUESTS):
        detailed = _detailed(run, duration_s, load)
        # Without the gaps between its tokens, a request does not say how long its answer took.
        return detailed if "itls" in run else detailed.model_copy(update=_summary(run))
    tokens_in, tokens_out = run.count("total_input_tokens"), run.count("total_output_tokens")
    made = from_totals(duration_s, completed, tokens_in, tokens_out)
    first = named_latencies(run, "{}_ttft_ms", 1e-3)
    return LoadPoint(**load, **made, failed=failed, ttft_s=first, **_summary(run))


def _summary(run: ResultFields) -> dict[str, Latencies | None]:
    """How long answers took, as the file sums it up."""
    e2e = named_latencies(run, "{}_e2el_ms", 1e-3)
    if e2e is None and "latencies" in run:
        e2e = latencies(run.numbers("latencies"))
    waits = {f"{name}_s": named_latencies(run, f"{{}}_{name}_ms", 1e-3) for name in ("tpot", "itl")}
    return {**waits, "e2e_s": e2e}


def _detailed(run: ResultFields, duration_s: float, load: dict[str, Any]) -> LoadPoint:
    starts, firsts = run.numbers("start_times"), run.numbers("ttfts")
    inputs, outputs = run.counts("input_lens"), run.counts("output_lens")
    timed = "itls" in run
    gaps = [_gaps(run, at, found) for at, found in run.listed("itls")] if timed else [[] for _ in starts]
    errors = [str(error) if error else None for _, error in run.listed("errors")]
    lengths = {name: len(run.values[name]) for name in (*REQUESTS, "itls") if name in run}
    lengths |= {"errors": len(errors)} if errors else {}
    if len(set(lengths.values())) > 1:
        shown = ", ".join(f"{name} {length:,}" for name, length in lengths.items())
        raise BadInput(f"the lists of requests differ in length: {shown}", where=run.where)
    unanswered = [
        error or (None if tokens else "no answer")
        for error, tokens in zip(errors or [None] * len(starts), outputs, strict=True)
    ]
    # A request that was never sent keeps a start of 0, decades before the others on the clock of the run.
    sent = [start for start, error in zip(starts, unanswered, strict=True) if start or not error]
    opened_s = min(sent, default=0.0)
    records = [
        RequestRecord(
            sent_s=max(0.0, start - opened_s),
            ttft_s=None if error else first_s,
            tpot_s=tpot(0.0, sum(gap), tokens) if timed and not error else None,
            e2e_s=first_s + sum(gap) if timed and not error else None,
            input_tokens=prompt,
            output_tokens=tokens,
            error=_short(error),
        )
        for start, first_s, prompt, tokens, gap, error in zip(
            starts, firsts, inputs, outputs, gaps, unanswered, strict=True
        )
    ]
    _check_times(run, records, starts, duration_s)
    flat = [each for gap, record in zip(gaps, records, strict=True) if record.error is None for each in gap]
    made = point_from_records(records, duration_s, itl_s=latencies(flat), **load)
    if made is None:
        raise BadInput("no request was answered", where=run.where)
    for name, total in (("total_input_tokens", made.input_tokens), ("total_output_tokens", made.output_tokens)):
        if run.count(name) != total:
            raise run.wrong(name, f"is {run.count(name):,}, but its requests add up to {total:,}")
    doubts = [*_check_gaps(run, records, gaps), *_contradictions(run, made)] if timed else _contradictions(run, made)
    return made.model_copy(update={"notes": (*made.notes, *doubts)})


def _gaps(run: ResultFields, at: int, found: Any) -> list[float]:
    """Between the tokens of one answer; one by one through ``Fields`` would take minutes for millions of them."""
    if not isinstance(found, list):
        raise run.wrong(f"itls[{at}]", "is not a list")
    if not all(type(gap) in (int, float) and 0 <= gap <= LONGEST_S for gap in found):
        raise run.wrong(f"itls[{at}]", "has a gap that is no time")
    return found


def _check_times(run: ResultFields, records: list[RequestRecord], starts: list[float], duration_s: float) -> None:
    """Every request is sent and answered before the run ends, all on one clock."""
    end_s, within = duration_s * _ROUNDED, f"the run lasted {duration_s:,.4g} s (duration)"
    for at, (record, start) in enumerate(zip(records, starts, strict=True)):
        if math.ulp(start) > _TICK_S:
            raise run.wrong(f"start_times[{at}]", f"is {start:g}: a clock in seconds cannot be that far on")
        if record.sent_s > end_s:
            raise run.wrong(f"start_times[{at}]", f"is {record.sent_s:,.4g} s after the first request, but {within}")
        if record.ttft_s is not None and record.sent_s + record.ttft_s > end_s:
            raise run.wrong(
                f"ttfts[{at}]", f"is {record.ttft_s:,.4g} s for a request sent at {record.sent_s:,.4g} s, but {within}"
            )
        if record.e2e_s is not None and record.sent_s + record.e2e_s > end_s:
            answered = f"ends the answer at {record.sent_s + record.e2e_s:,.4g} s"
            raise run.wrong(f"itls[{at}]", f"{answered}, but {within}")


def _check_gaps(run: ResultFields, records: list[RequestRecord], gaps: list[list[float]]) -> list[str]:
    """Answers in other pieces than tokens are noted: several tokens at once, or pieces (of reasoning) not counted."""
    fewer, more = [], []
    for at, (record, gap) in enumerate(zip(records, gaps, strict=True)):
        tokens = record.output_tokens
        if record.error is None and len(gap) > 2 * tokens:
            more.append(at)
        if record.error is None and len(gap) < tokens - 1:
            fewer.append(at)

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


def _contradictions(run: ResultFields, made: LoadPoint) -> list[str]:
    """A note where what vLLM printed is far from what its lists say."""
    found = []
    for name, listed in (("ttft", made.ttft_s), ("tpot", made.tpot_s), ("itl", made.itl_s), ("e2el", made.e2e_s)):
        printed = named_latencies(run, f"{{}}_{name}_ms", 1e-3)
        for statistic in STATISTICS if printed and listed else ():
            said, is_s = getattr(printed, statistic), getattr(listed, statistic)
            if said is not None and abs(said - is_s) > max(_FAR * is_s, _NEAR_S):
                found.append(f"{statistic} {name.upper()} {seconds(said)}, by the lists {seconds(is_s)}")
    for field, rate in (("request_throughput", made.requests_per_s), ("output_throughput", made.output_tokens_per_s)):
        printed_rate = run.maybe_number(field)
        if printed_rate is not None and abs(printed_rate - rate) > _FAR * rate:
            found.append(f"{field} {printed_rate:,.4g}, by the lists and duration {rate:,.4g}")
    answered = run.count("completed")
    if answered != made.completed:
        found.append(f"completed {answered:,}, by the lists {made.completed:,}")
    return [f"printed figures contradict the lists, which are taken: {'; '.join(found)}"] if found else []


def _short(error: str | None) -> str | None:
    """The last line of a traceback, which says what happened."""
    return None if error is None else (error.strip().splitlines() or ["error"])[-1][:120]
