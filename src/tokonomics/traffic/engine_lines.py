"""Read what engines and load generators write themselves: logs of requests line by line, and results of runs.

Logs are those of vLLM with ``--enable-log-requests`` and ``--enable-log-outputs``, and SGLang with ``--log-requests``.
vLLM (``vllm/entrypoints/logger.py``, from 0.9, commit 01ff126, to the form of late 2026) lists the ids of tokens, which
are counted: those of the prompt on the line of the request, in later versions on one of ``VLLM_LOGGING_LEVEL=DEBUG``;
those of the answer when it is done or, streamed, with every part. SGLang (``srt/utils/request_logger.py``, 0.5, commit
01bb912) states both counts when a request is done, as text or as JSON. A request begins when it was received, by the
clock of the log.

Results of load generators are documents: vLLM ``bench serve --save-detailed`` keeps parallel lists of its requests,
guidellm a list of requests for each benchmark of a sweep.
"""

import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import islice
from typing import Any, NamedTuple

from tokonomics.errors import BadInput
from tokonomics.traffic import sources
from tokonomics.traffic.attribution import Attribution, Row, Unfolding, layout_of_rows, row
from tokonomics.traffic.formats import GUIDELLM, VLLM, LogLayout, paths_in
from tokonomics.traffic.sources import Unusable

_ISO = re.compile(
    r"^\[?([0-9]{4}-[0-9]{2}-[0-9]{2})[T ]([0-9]{2}:[0-9]{2}:[0-9]{2}(?:[.,][0-9]{1,9})?)\s?(Z|[+-][0-9]{2}:?[0-9]{2})?"
)
_VLLM_TIME = re.compile(r"\b(?:INFO|DEBUG|WARNING|ERROR) ([0-9]{2})-([0-9]{2}) ([0-9]{2}):([0-9]{2}):([0-9]{2})")
_VLLM = re.compile(
    r"(?P<what>Received request|Request|Generated response) (?P<id>\S{1,200}?)"
    r"(?P<part> \(streaming (?:delta|complete)\))?(?P<details> details)?: "
)
_SGLANG = re.compile(r"\b(?P<what>Receive|Finish): obj=")
_SGLANG_ID = re.compile(r"\brid='([^']{1,200})'")
_SGLANG_EVENTS = ("request.received", "request.finished")
_IDS = re.compile(r"(?:array\('\w', )?[\[(]([0-9, ]*)[\])]")
_NO_ANSWER = "requests are left out: their answers are not counted (vLLM: --enable-log-outputs and DEBUG) or not done"
_NOT_DONE = "requests are left out: the log ends before their answers"
_NO_PROMPT = "requests are left out: their prompts are not counted (vLLM: VLLM_LOGGING_LEVEL=DEBUG)"
_BANNER = 20  # the first lines, among which an engine's own lines must begin
_A_YEAR, _YEAR_S = 1972, 366 * 86400
"""vLLM writes no year: times are counted in a leap year that no log is from, so no dates are shown."""


def engine_of(lines: Iterable[str]) -> str | None:
    """Return the engine that writes such lines about requests; None if no line is about one."""
    return next((engine for line in lines if (engine := _engine(line))), None)


def looks_like_an_engine(lines: Iterable[str]) -> bool:
    """Return whether lines begin as an engine's do, even if they mention no request yet."""
    return any(_VLLM_TIME.search(line[:200]) or _ISO.match(line) for line in islice(lines, _BANNER))


def _engine(line: str) -> str | None:
    if line.lstrip()[:1] == "{":
        return "SGLang" if '"rid"' in line and any(f'"{event}"' in line for event in _SGLANG_EVENTS) else None
    if _VLLM_TIME.search(line[:200]) and _VLLM.search(line[:600]):
        return "vLLM"
    return "SGLang" if _ISO.match(line) and _SGLANG.search(line[:200]) else None


def engine_layout(engine: str, attribution: Attribution | None) -> LogLayout:
    note = "lengths are counts of the ids it logs, which --max-log-len cuts short" if engine == "vLLM" else None
    return layout_of_rows(f"{engine} request log", attribution, "the LoRA adapters", note)


@dataclass
class _OpenRequest:
    """A request that was received and is not answered yet."""

    start: float | str | None
    prompt: int | None = None
    answer: int | None = None
    adapter: str | None = None
    counted: bool = False  # the engine counts tokens itself when the request ends, whatever its log options


@dataclass
class _Reading:
    """The requests under way, and the clock of a log without years."""

    open: dict[str, _OpenRequest] = field(default_factory=dict)
    years: int = 0
    month: int = 1

    def clock(self, line: str) -> float | str | None:
        """Return when a line was written: by the time that a collector put before it, otherwise by the engine's own."""
        if found := _ISO.match(line):
            return f"{found[1]} {found[2].replace(',', '.')}{found[3] or ''}"
        found = _VLLM_TIME.search(line[:200])
        if not found:
            return None
        month, day, hour, minute, second = map(int, found.groups())
        self.years += month == 1 and self.month == 12
        self.month = month
        try:
            return datetime(_A_YEAR, month, day, hour, minute, second, tzinfo=UTC).timestamp() + self.years * _YEAR_S
        except ValueError:
            return None


def engine_rows(lines: Iterable[tuple[int, str]], unfolding: Unfolding) -> Iterator[tuple[int, Row | Unusable]]:
    """Yield the requests, each with the line on which it ended; skip those that never ended or have no counts."""
    reading = _Reading()
    for place, line in lines:
        if engine := _engine(line):
            read = _vllm if engine == "vLLM" else _sglang_json if line.lstrip()[:1] == "{" else _sglang
            if found := read(line, reading, unfolding):
                yield from ((place, request) for request in unfolding.requests([found]))
    for asked in reading.open.values():
        unfolding.left_out[_NOT_DONE if asked.counted else _NO_ANSWER] += 1


def _vllm(line: str, reading: _Reading, unfolding: Unfolding) -> Row | str | None:
    said = _VLLM.search(line[:600])
    assert said is not None
    name = said["id"]
    if said["what"] != "Generated response":
        asked = reading.open.setdefault(name, _OpenRequest(None))
        if said["what"] == "Received request":
            asked.start = reading.clock(line)
            adapter = re.search(r"lora_name='([^']{1,100})'", line[-2000:])
            asked.adapter = adapter[1] if adapter else None
        prompt = _listed(line, "prompt_token_ids: ")
        asked.prompt = asked.prompt if prompt is None else prompt
        return None
    # The id of a completion ends with the number of its prompt when it is received, but not when it is answered.
    key = next((key for key in (name, f"{name}-0", f"{name}_0") if key in reading.open), None)
    if key is None:
        return None
    asked = reading.open[key]
    is_part = "delta" in (said["part"] or "")
    if (tokens := _listed(line, "output_token_ids: ")) is not None:
        asked.answer = (asked.answer or 0) + tokens if is_part else tokens
    if is_part or said["details"] or asked.answer is None:
        return None
    del reading.open[key]
    if asked.prompt is None:
        return _NO_PROMPT
    tenant = unfolding.tenant({"lora": asked.adapter, "lora_name": asked.adapter}, asked.adapter)
    return row(arrival=asked.start, input=asked.prompt, output=asked.answer, tenant=tenant)


def _listed(line: str, name: str) -> int | None:
    """Count the ids in the last list of that name on the line; earlier ones may be text of a prompt."""
    place = line.rfind(name)
    ids = _IDS.match(line, place + len(name)) if place >= 0 else None
    return None if ids is None else len(ids[1].replace(",", " ").split())


def _sglang(line: str, reading: _Reading, unfolding: Unfolding) -> Row | None:
    said = _SGLANG.search(line[:200])
    assert said is not None
    found = _SGLANG_ID.search(line)
    name, when = found[1] if found else "", reading.clock(line)
    if said["what"] == "Receive":
        reading.open[name] = _OpenRequest(when, counted=True)
        return None
    info = line[line.rfind("'meta_info':") :]
    counts = re.findall(r"'(\w+_tokens|e2e_latency)': ([0-9]{1,12}(?:\.[0-9]{1,12})?)", info)
    return _finished(reading.open.pop(name, None), when, {key: float(count) for key, count in counts}, {}, unfolding)


def _sglang_json(line: str, reading: _Reading, unfolding: Unfolding) -> Row | None:
    item = sources.load(line)
    if not isinstance(item, dict):
        return None
    name, when = str(item.get("rid")), item.get("timestamp")
    if item.get("event") == _SGLANG_EVENTS[0]:
        reading.open[name] = _OpenRequest(when if isinstance(when, str) else None, counted=True)
        return None
    info = sources.value_at(item, (("out", "meta_info"),))
    counts, said = (value if isinstance(value, dict) else {} for value in (info, item.get("obj")))
    return _finished(reading.open.pop(name, None), when, counts, said, unfolding)


def _finished(
    asked: _OpenRequest | None, when: Any, info: dict[str, Any], said: dict[str, Any], unfolding: Unfolding
) -> Row:
    """Return a request that SGLang has counted; if the log does not show its start, use its end less its latency."""
    start = asked.start if asked else when
    if asked is None:
        with suppress(KeyError, TypeError, ValueError, OverflowError, OSError):
            ended = datetime.fromisoformat(str(when))
            start = (ended if ended.tzinfo else ended.replace(tzinfo=UTC)).timestamp() - float(info["e2e_latency"])
    adapter = said.get("lora_path")
    tenant = unfolding.tenant(said | {"lora": adapter}, adapter if isinstance(adapter, str) else None)
    return row(arrival=start, input=info.get("prompt_tokens"), output=info.get("completion_tokens"), tenant=tenant)


# --- results of load generators ---------------------------------------------------------------------------------------


class FoundRequests(NamedTuple):
    """The requests of a document, how to read them, and what to know about them."""

    layout: LogLayout
    requests: list[Any]
    notes: list[str]


def is_result(item: Any) -> bool:
    """Return whether a document is the result of a load generator, rather than a line of a log."""
    return isinstance(item, dict) and ("input_lens" in item or "request_throughput" in item or "benchmarks" in item)


def requests_of(documents: list[Any], where: str) -> FoundRequests | None:
    """Return the requests in the results of a load generator, of one or several runs; None if it is something else."""
    if not all(is_result(item) for item in documents):
        return None
    reports = ["benchmarks" in item for item in documents]
    if all(reports):
        return _guidellm_results(documents, where)
    return None if any(reports) else _vllm_results(documents, where)


def _vllm_results(runs: list[dict[str, Any]], where: str) -> FoundRequests:
    rows: list[Any] = []
    for run in runs:
        starts, inputs, outputs = lists = [run.get(name) for name in ("start_times", "input_lens", "output_lens")]
        if not (isinstance(starts, list) and isinstance(inputs, list) and isinstance(outputs, list)):
            what = "a benchmark result without its requests (start_times, input_lens, output_lens)"
            raise BadInput(what, where=where, fix="Run vllm bench serve with --save-detailed.")
        if not len(starts) == len(inputs) == len(outputs):
            said = ", ".join(str(len(values or ())) for values in lists)
            raise BadInput(f"start_times, input_lens and output_lens differ in length: {said}", where=where)
        # A request that was never sent keeps a start of 0, decades before the others on the clock of the run.
        rows += [
            {"start_times": start or None, "input_lens": prompt, "output_lens": answer}
            for start, prompt, answer in zip(starts, inputs, outputs, strict=True)
        ]
    return FoundRequests(VLLM, rows, [])


def _guidellm_results(reports: list[dict[str, Any]], where: str) -> FoundRequests:
    rows: list[Any] = []
    left_out = dict.fromkeys(("errored", "incomplete"), 0)
    benchmarks = [run for report in reports for run in _list(report.get("benchmarks"), "benchmarks", where)]
    for benchmark in benchmarks:
        requests = benchmark.get("requests") if isinstance(benchmark, dict) else None
        if not isinstance(requests, dict):
            raise BadInput("a guidellm benchmark without its requests", where=where)
        rows += _list(requests.get("successful"), "requests.successful", where)
        for kind in left_out:
            left_out[kind] += len(_list(requests.get(kind), f"requests.{kind}", where))
    notes = [f"{count} {kind} requests are left out" for kind, count in left_out.items() if count]
    if len(benchmarks) > 1:
        notes.append(f"{len(benchmarks)} benchmarks follow one another: rates change between them")
    present = set().union(*(paths_in(request) for request in rows[:500] if isinstance(request, dict)))
    narrowed = GUIDELLM.narrowed(present)
    return FoundRequests(narrowed if narrowed.is_complete else GUIDELLM, rows, notes)


def _list(value: Any, name: str, where: str) -> list[Any]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise BadInput(f"{name} is not a list", where=where)
    return value
