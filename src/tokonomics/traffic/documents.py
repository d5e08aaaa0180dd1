"""Requests inside the JSON documents that load generators write: one row a request.

vLLM ``bench serve --save-detailed`` keeps parallel lists; guidellm a list of requests for each benchmark of a sweep.
"""

from typing import Any, NamedTuple

from tokonomics.errors import BadInput
from tokonomics.traffic.formats import GUIDELLM, VLLM, LogLayout, paths_in


class FoundDocument(NamedTuple):
    """How to read the requests, the requests, and what to know about them."""

    layout: LogLayout
    requests: list[Any]
    notes: list[str]


def is_document(item: Any) -> bool:
    """A result of a load generator, rather than a line of a log."""
    return isinstance(item, dict) and ("input_lens" in item or "request_throughput" in item or "benchmarks" in item)


def requests_of(documents: list[Any], where: str) -> FoundDocument | None:
    """The requests of the results of a load generator, of one run or of several; None where it is something else."""
    if not all(is_document(item) for item in documents):
        return None
    if all("benchmarks" in item for item in documents):
        return _guidellm(documents, where)
    if any("benchmarks" in item for item in documents):
        return None
    return _vllm(documents, where)


def _vllm(runs: list[dict[str, Any]], where: str) -> FoundDocument:
    rows: list[Any] = []
    for run in runs:
        lists = [run.get(name) for name in ("start_times", "input_lens", "output_lens")]
        if not all(isinstance(values, list) for values in lists):
            raise BadInput(
                "a benchmark result without its requests (start_times, input_lens, output_lens)",
                where=where,
                fix="Run vllm bench serve with --save-detailed.",
            )
        starts, inputs, outputs = (values for values in lists if values is not None)
        if not len(starts) == len(inputs) == len(outputs):
            raise BadInput(
                "start_times, input_lens and output_lens differ in length: "
                f"{len(starts)}, {len(inputs)}, {len(outputs)}",
                where=where,
            )
        # A request that was never sent keeps a start of 0, decades before the others on the clock of the run.
        rows += [
            {"start_times": start or None, "input_lens": prompt, "output_lens": answer}
            for start, prompt, answer in zip(starts, inputs, outputs, strict=True)
        ]
    return FoundDocument(VLLM, rows, [])


def _guidellm(reports: list[dict[str, Any]], where: str) -> FoundDocument:
    rows: list[Any] = []
    left_out: dict[str, int] = {}
    benchmarks = [one for report in reports for one in _list(report.get("benchmarks"), "benchmarks", where)]
    for benchmark in benchmarks:
        requests = benchmark.get("requests") if isinstance(benchmark, dict) else None
        if not isinstance(requests, dict):
            raise BadInput("a guidellm benchmark without its requests", where=where)
        rows += _list(requests.get("successful"), "requests.successful", where)
        for kind in ("errored", "incomplete"):
            left_out[kind] = left_out.get(kind, 0) + len(_list(requests.get(kind), f"requests.{kind}", where))
    notes = [f"{count} {kind} requests are left out" for kind, count in left_out.items() if count]
    if len(benchmarks) > 1:
        notes.append(f"{len(benchmarks)} benchmarks follow one another: rates change between them")
    present = set().union(*(paths_in(row) for row in rows[:500] if isinstance(row, dict)))
    narrowed = GUIDELLM.narrowed(present)
    complete = narrowed.arrival and narrowed.input and narrowed.output
    return FoundDocument(narrowed if complete else GUIDELLM, rows, notes)


def _list(value: Any, name: str, where: str) -> list[Any]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise BadInput(f"{name} is not a list", where=where)
    return value
