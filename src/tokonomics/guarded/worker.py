"""Do a worker's work within limits: answer a verb, inspect an upload, make a report.

Behind a fence it reads only uploaded files; without one it reads any file it is given, as the command line does. Of an
answer, ``result`` is what ``--json`` prints, ``text`` what the terminal shows, ``charts`` the specs that ``--chart``
draws. They are made on request, from the answer that the worker keeps.
"""

import gc
import json
import os
import re
import secrets
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from tokonomics import __version__
from tokonomics.errors import BadInput, TokonomicsError, in_python, spelled
from tokonomics.memory_budget import SHARE
from tokonomics.questions.request import Listener
from tokonomics.questions.verbs import find_verb
from tokonomics.report.answer import Answer, describe
from tokonomics.types import today
from tokonomics.units import GIB
from tokonomics.workers import Pool, WorkerProcess

Told = Callable[[str], None]

WARM_UPS: dict[str, dict[str, Any]] = {
    "curve": {"model": "llama-3.1-8b", "gpu": "H100"},
    "plan": {"model": ["llama-3.1-8b"], "rate": "5", "input": "1000", "output": "300", "quick": True,
             "slo": "ttft_p99=1000ms,tpot_p99=50ms"},
    "simulate": {"model": "llama-3.1-8b", "gpu": "H100", "arrivals": "poisson:1", "requests": 100,
                 "input": "100", "output": "100"},
}  # fmt: skip
"""Requests done once while nobody asks, so that the first visitor does not wait for imports and compiled code. The
plan is the one that the page opens with."""
LONG_S = 900.0  # time limit of an answer that was not announced as quick
LONG_WORKERS = max(1, min(4, (os.cpu_count() or 1) // 2))
WAITING = 16  # most requests that wait for a worker
MOST_BODY = 200_000  # bytes of a request other than an upload
_SECRETS = ("TOKONOMICS_TOKEN",)  # environment variables that no worker needs
_OF_THE_HUB = ("HF_TOKEN", "HF_TOKEN_PATH")  # nor are these for a fenced worker, which asks no hub
MOST_ROWS = 2_000_000
"""Rows of a log: a week of ten requests per three seconds; a simulation of these takes seconds."""


def guarded_pool(
    workers: int,
    waiting: int,
    folder: Path | None,
    memory_bytes: int,
    *,
    niceness: int = 0,
    warm_ups: Sequence[str] = (),
    turn: "threading.Lock | None" = None,
    begin: str = "tokonomics.guarded.worker:begin",
) -> Pool:
    """Return a pool of workers with today's environment, fenced into an empty folder if one is named.

    Workers with a higher niceness give way to others.
    """
    dropped = (*_SECRETS, *_OF_THE_HUB) if folder else _SECRETS
    environment = {name: value for name, value in os.environ.items() if name not in dropped}
    start = partial(WorkerProcess, begin, (folder and str(folder), niceness), memory_bytes, environment)
    first = [request for verb in warm_ups for request in _warm_ups(verb)]
    pool = Pool(start, waiting, first, turn or threading.Lock())
    pool.grow(workers)
    return pool


def memory_of_worker(workers: int, free_bytes: float) -> int:
    """Return a worker's memory: all together leave a fifth of the free memory to others, if each gets a gigabyte."""
    return max(GIB, int(min(6 * GIB, SHARE * free_bytes / max(workers, 1))))


def begin(folder: str | None, niceness: int) -> Callable[..., dict[str, Any]]:
    """Import what is needed and return the function that answers."""
    if folder:
        os.chdir(folder)  # so that a relative path finds nothing
    os.nice(niceness)
    gc.set_threshold(100_000, 20, 20)  # imported objects stay
    from tokonomics.catalog.load_models import CONFIGS_IN
    from tokonomics.traffic import sources

    answered(_warm_ups("curve")[0], lambda line: None)
    if not folder:
        return answered
    # Read a model only from an uploaded file: a benchmark's results may name a path of this machine. And limit the
    # rows of every log: a small file can expand into billions.
    CONFIGS_IN.set(Path(folder).parent)
    sources.MOST_ROWS.set(MOST_ROWS)
    return answered


def answered(request: dict[str, Any], tell: Callable[[str], None]) -> dict[str, Any]:
    """Answer a request by the ``work`` it asks for; a refusal names inputs as the page does."""
    works = {"answer": answer, "look": look, "table": table, "report": report}
    try:
        return works[request["work"]](request, tell)
    except TokonomicsError as problem:
        raise TokonomicsError(**error_of(problem)) from None


def _warm_ups(verb: str) -> list[dict[str, Any]]:
    """Return the warm-up requests: first the figures that a visitor waits for, then the rest of the same answer."""
    asked = {"work": "answer", "verb": verb, "call": WARM_UPS[verb], "inputs": {}, "command": "", "key": f"warm {verb}"}
    return [asked | {"parts": ["sections"]}, asked | {"parts": ["charts", "text"]}]


class JobListener(Listener):
    """Report progress to the page, and keep the notes."""

    def __init__(self, tell: Told, command: str) -> None:
        self.typed = command
        self._tell = tell
        self.notes: list[str] = []

    def doing(self, what: str) -> None:
        self._tell(what)

    def note(self, line: str) -> None:
        self.notes += [part for part in spelled(line, _marked).splitlines() if part.strip()]


class Solved(NamedTuple):
    """An answer before it is shown, the notes made on the way, and how long it took."""

    answer: Answer
    notes: list[str]
    seconds: float


PARTS: dict[str, Callable[[Answer], Any]] = {
    "result": lambda answer: answer.plain(),
    "sections": lambda answer: answer.document(_marked),
    "text": lambda answer: answer.text(),
    "markdown": lambda answer: answer.markdown(),
    "charts": lambda answer: _drawn(answer),
    "plays": lambda answer: answer.plays() if answer.plays else None,
}
"""Parts of an answer besides its headline; each is made on request."""
WHOLE = tuple(PARTS)
KEPT = 4  # answers kept in case another part is asked for: two side by side, and the two before
_kept: OrderedDict[str | None, Solved] = OrderedDict()


def answer(request: dict[str, Any], tell: Told) -> dict[str, Any]:
    """Answer ``{verb, call, inputs, command, parts, key}``; requests with the same key are solved once."""
    solved = _solved(request, tell)
    made = solved.answer
    return {
        "verb": request["verb"],
        "inputs": request["inputs"],
        "command": request["command"],
        "title": made.title,
        "headline": made.result.headline(),
        "rows": made.result.ROWS,
        "charts": [],
        "plays": None,
        **{part: PARTS[part](made) for part in request["parts"]},
        "found": made.exit_code == 0,
        "notes": solved.notes,
        "seconds": solved.seconds,
        "made": today().isoformat(),
        "version": __version__,
    }


def _solved(request: dict[str, Any], tell: Told) -> Solved:
    """Return the kept answer if there is one, or solve the request."""
    key = request.get("key")
    if key in _kept:
        _kept.move_to_end(key)
        return _kept[key]
    began, verb = time.perf_counter(), find_verb(request["verb"])
    asked, job = verb.request.checked(request["call"]), JobListener(tell, request["command"])
    made = describe(verb, verb.answer(asked, job), asked)
    solved = Solved(made, job.notes, time.perf_counter() - began)
    if key is not None:
        _kept[key] = solved
    if len(_kept) > KEPT:
        _kept.popitem(last=False)
    return solved


def _drawn(answer: Answer) -> list[dict[str, Any]]:
    from altair.utils import schemapi

    schemapi.DEBUG_MODE = False  # validating a chart takes longer than drawing it; the tests do it
    return [{"name": name, "spec": draw().to_dict(validate=False)} for name, draw in answer.charts.items()]


def error_of(problem: TokonomicsError) -> dict[str, Any]:
    """Return what is wrong, where, and the fix, by the names of the inputs; within a sentence they are marked."""
    what, _, fix = problem.spelled(_marked)
    _, where, _ = problem.spelled(in_python)
    return {"what": what, "where": where, "fix": fix}


def ours(text: str) -> TokonomicsError:
    """Log a bug of ours in full, and return an error with a number to find it by."""
    number = secrets.token_hex(4)
    sys.stderr.write(f"error {number}: {text}\n")
    return TokonomicsError(f"something went wrong on our side (error {number})", fix="The server's log says what.")


def home_in_texts() -> re.Pattern[str]:
    """Return a pattern for this user's home folder, which others see as ~; a home of / hides nothing."""
    home = os.path.expanduser("~").rstrip("/")  # noqa: PTH111 - never raises
    return re.compile(re.escape(home) + r"(?=/|$)" if home else r"(?!)")


def _marked(field: str, value: str | None) -> str:
    return f"`{in_python(field, value)}`"


def look(request: dict[str, Any], tell: Told) -> dict[str, Any]:
    """Find out what an uploaded file is, by trying: a config.json, a certificate, a benchmark's results, a log."""
    from tokonomics.traffic.sources import TooManyRows

    path = Path(request["path"])
    problems: dict[str, TokonomicsError] = {}
    for kind, attempt in _ATTEMPTS.items():
        try:
            return {"kind": kind, **attempt(path)}
        except TooManyRows:
            raise
        except TokonomicsError as problem:
            problems[kind] = problem
    is_config = _describes_a_model(path)
    said = error_of(problems["config" if is_config else "trace"])
    return {"kind": "unknown", "why": said["what"], "fix": said["fix"], "table": None if is_config else _table(path)}


def table(request: dict[str, Any], tell: Told) -> dict[str, Any]:
    """Return the columns and first rows of a table, so that a person can say what each column means."""
    found = _table(Path(request["path"]))
    if found is None:
        raise BadInput("is no table whose columns can be named", where=Path(request["path"]).name)
    return found


def _table(path: Path) -> dict[str, Any] | None:
    from tokonomics.traffic.formats import LOG_FIELDS, REQUIRED
    from tokonomics.traffic.readers import preview

    found = preview(path)
    if found is None:
        return None
    fields = [
        {"name": name, "what": field.what, "required": name in REQUIRED, "guess": found.guesses.get(name)}
        for name, field in LOG_FIELDS.items()
    ]
    return {"columns": found.columns, "rows": found.rows, "fields": fields}


def _config(path: Path) -> dict[str, Any]:
    from tokonomics.catalog.config_json import read_config

    if path.suffix.lower() != ".json":
        raise BadInput("is no config.json")
    read_config(path)
    return {"model": _model_name(path)}


def _model_name(path: Path) -> str:
    """Return the maker's name of a model, or its architecture if the file has no name."""
    config = _object(path)
    for stated in (config.get("_name_or_path"), path.stem if path.name != "config.json" else config.get("model_type")):
        if isinstance(stated, str) and (name := stated.rstrip("/\\").replace("\\", "/").rpartition("/")[2]):
            return name
    return "model"


def _describes_a_model(path: Path) -> bool:
    """Tell whether a file that cannot be read as a config.json is meant to be one."""
    return path.suffix.lower() == ".json" and not {"model_type", "architectures"}.isdisjoint(_object(path))


def _object(path: Path) -> dict[str, Any]:
    from tokonomics.catalog.config_json import LARGEST_FILE

    if path.stat().st_size > LARGEST_FILE:
        return {}
    try:
        found = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _certificate(path: Path) -> dict[str, Any]:
    """Read what a search for flags measured (``tune``); a benchmark's results have no digest of it."""
    from tokonomics.operate.record import read_record

    if path.suffix.lower() != ".json":
        raise BadInput("is no certificate")
    return {"model": read_record(path).question.model}


def _benchmark(path: Path) -> dict[str, Any]:
    from tokonomics.measure.importers.recognise import read_runs

    run = read_runs([path])
    return {"tool": run.tool, "model": run.model}


def _trace(path: Path) -> dict[str, Any]:
    from tokonomics.traffic.readers import open_trace
    from tokonomics.traffic.sources import is_packed

    file = open_trace(path)
    if is_packed(path):  # a text file was counted while it arrived
        for _ in file.log.raw():
            continue
    return {"format": file.format}


_ATTEMPTS: dict[str, Callable[[Path], dict[str, Any]]] = {
    "config": _config, "certificate": _certificate, "benchmark": _benchmark, "trace": _trace,
}  # fmt: skip
"""What reads each kind of file, in the order of trying."""


def report(request: dict[str, Any], tell: Told) -> dict[str, Any]:
    """Return the one-file page of an answer that was given before, is kept, or is asked for now."""
    from pydantic import TypeAdapter

    from tokonomics.report.blocks import Section
    from tokonomics.report.html import report_page

    made = request["answer"] if "answer" in request else answer(request, tell)
    sections = TypeAdapter(list[Section]).validate_python(made["sections"])
    charts = {chart["name"]: chart["spec"] for chart in made["charts"]}
    return {"html": report_page(made["title"], sections, charts, made["result"], made["command"])}
