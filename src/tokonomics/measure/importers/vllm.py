"""``vllm bench serve --save-result``: one flat JSON a load; with ``--save-detailed`` its requests too.

Times are milliseconds in the summary and seconds in the lists; a request rate of "inf" means no limit, so the load is
``max_concurrency`` users, or everything at once. Failed requests count in no total. Names: vLLM 0.32.
"""

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
from tokonomics.measure.importers.fields import Fields, from_totals, moment, named_latencies, users_of
from tokonomics.traffic.documents import requests_of

NAME = "vLLM bench serve"


def matches(document: Any) -> bool:
    """Its totals under vLLM's names; SGLang's differ in the end-to-end latency."""
    return (
        isinstance(document, dict)
        and {"completed", "duration", "total_output_tokens"} <= document.keys()
        and "mean_e2e_latency_ms" not in document
        and ("model_id" in document or "request_goodput" in document or "mean_ttft_ms" in document)
    )


def read(documents: list[Any], where: str) -> BenchmarkRun:
    """One run; every document is a load."""
    runs = [Fields(document, where) for document in documents]
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


def _point(run: Fields) -> LoadPoint:
    duration_s, completed = run.positive("duration"), run.count("completed")
    if not completed:
        raise BadInput(f"no request was answered: {run.maybe_count('failed') or 'all'} failed", where=run.where)
    failed = run.maybe_count("failed")
    if failed is None and "num_prompts" in run:
        failed = max(0, run.count("num_prompts") - completed)
    rate = run.maybe_number("request_rate")
    users = users_of(run.maybe_count("max_concurrency"), completed + (failed or 0))
    load = users if rate is None else {"rate": rate}
    if all(name in run for name in ("start_times", "input_lens", "output_lens", "ttfts")):
        detailed = _detailed(run, duration_s, load)
        # Without the gaps between its tokens, a request does not say how long its answer took.
        return detailed if "itls" in run else detailed.model_copy(update=_summary(run))
    tokens_in, tokens_out = run.count("total_input_tokens"), run.count("total_output_tokens")
    made = from_totals(duration_s, completed, tokens_in, tokens_out)
    first = named_latencies(run, "{}_ttft_ms", 1e-3)
    return LoadPoint(**load, **made, failed=failed, ttft_s=first, **_summary(run))


def _summary(run: Fields) -> dict[str, Latencies | None]:
    """How long answers took, as the file sums it up."""
    e2e = named_latencies(run, "{}_e2el_ms", 1e-3)
    if e2e is None and "latencies" in run:
        e2e = latencies(run.numbers("latencies"))
    waits = {f"{name}_s": named_latencies(run, f"{{}}_{name}_ms", 1e-3) for name in ("tpot", "itl")}
    return {**waits, "e2e_s": e2e}


def _detailed(run: Fields, duration_s: float, load: dict[str, Any]) -> LoadPoint:
    found = requests_of([dict(run.values)], run.where)
    rows = [Fields(row, run.where, f"request {at}") for at, row in enumerate(found.requests if found else (), 1)]
    firsts = run.numbers("ttfts")
    timed = "itls" in run
    gaps = [_gaps(run, at, found) for at, found in run.listed("itls")] if timed else [[] for _ in rows]
    errors = [str(error) if error else None for _, error in run.listed("errors")] or [None] * len(rows)
    if not len(rows) == len(firsts) == len(gaps) == len(errors):
        lengths = f"{len(rows)}, {len(firsts)}, {len(gaps)}, {len(errors)}"
        raise BadInput(f"start_times, ttfts, itls and errors differ in length: {lengths}", where=run.where)
    starts = [row.maybe_number("start_times") for row in rows]
    first = min((start for start in starts if start is not None), default=0.0)
    records = []
    for row, start, ttft_s, gap, error in zip(rows, starts, firsts, gaps, errors, strict=True):
        tokens = row.count("output_lens")
        unanswered = error or ("no answer" if not tokens else None)
        records.append(
            RequestRecord(
                sent_s=(start or first) - first,
                ttft_s=None if unanswered else ttft_s,
                tpot_s=tpot(0.0, sum(gap), tokens) if timed and not unanswered else None,
                e2e_s=ttft_s + sum(gap) if timed and not unanswered else None,
                input_tokens=row.count("input_lens"),
                output_tokens=tokens,
                error=_short(unanswered),
            )
        )
    flat = [each for gap, record in zip(gaps, records, strict=True) if record.error is None for each in gap]
    made = point_from_records(records, duration_s, itl_s=latencies(flat), **load)
    if made is None:
        raise BadInput("no request was answered", where=run.where)
    for name, total in (("total_input_tokens", made.input_tokens), ("total_output_tokens", made.output_tokens)):
        if run.count(name) != total:
            raise run.wrong(name, f"is {run.count(name):,}, but its requests add up to {total:,}")
    return made


def _gaps(run: Fields, at: int, found: Any) -> list[float]:
    """Between the tokens of one answer; one by one through ``Fields`` would take minutes for millions of them."""
    gaps = found if isinstance(found, list) else []
    if not all(type(gap) in (int, float) and 0 <= gap <= LONGEST_S for gap in gaps):
        raise run.wrong(f"itls[{at}]", "has a gap that is no time")
    return gaps


def _short(error: str | None) -> str | None:
    """The last line of a traceback, which says what happened."""
    return None if error is None else (error.strip().splitlines() or ["error"])[-1][:120]
