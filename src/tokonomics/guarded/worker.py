"""What a worker does: answers a verb, looks at an upload of the page, makes a report, all within limits.

Behind a fence it reads no file but what is uploaded; without one it reads what it is told, as the command line does.
Of an answer, ``result`` is what ``--json`` prints, ``text`` what the terminal shows, ``charts`` the specs that
``--chart`` draws. They are made when they are asked for, from the answer that the worker keeps.
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
"""What is done once while nobody asks, so that the first visitor does not wait for imports and compiled code. The plan
is the one that the page opens with."""
LONG_S = 900.0  # seconds that an answer may take, where nobody was told that it is quick
LONG_WORKERS = max(1, min(4, (os.cpu_count() or 1) // 2))
WAITING = 16  # requests that wait for a worker
MOST_BODY = 200_000  # bytes of a request that is no upload
_SECRETS = ("TOKONOMICS_TOKEN",)  # of the environment: workers need none of them
_OF_THE_HUB = ("HF_TOKEN", "HF_TOKEN_PATH")  # what a worker behind a fence, which asks no hub, does not need either
MOST_ROWS = 2_000_000
"""Rows of a log: a week of ten requests for each three seconds; a simulation of so many takes seconds."""


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
    """So many workers, fenced in by an empty folder if one is named; nice ones give way to others.

    All get the environment of now.
    """
    dropped = (*_SECRETS, *_OF_THE_HUB) if folder else _SECRETS
    environment = {name: value for name, value in os.environ.items() if name not in dropped}
    start = partial(WorkerProcess, begin, (folder and str(folder), niceness), memory_bytes, environment)
    first = [request for verb in warm_ups for request in _warm_ups(verb)]
    pool = Pool(start, waiting, first, turn or threading.Lock())
    pool.grow(workers)
    return pool


def memory_of_worker(workers: int, free_bytes: float) -> int:
    """All workers together leave a fifth of what is free to others, as long as each has a gigabyte to answer with."""
    return max(GIB, int(min(6 * GIB, SHARE * free_bytes / max(workers, 1))))


def begin(folder: str | None, niceness: int) -> Callable[..., dict[str, Any]]:
    """The function that answers, with all it needs imported."""
    if folder:
        os.chdir(folder)  # a relative path leads nowhere
    os.nice(niceness)
    gc.set_threshold(100_000, 20, 20)  # as on the command line: what is imported stays
    from tokonomics.catalog.load_models import CONFIGS_IN
    from tokonomics.traffic import sources

    answered(_warm_ups("curve")[0], lambda line: None)
    if not folder:
        return answered
    # A model is read from a file among the uploads alone: a benchmark's results may state a path of this machine. And
    # of every log, only so many rows: a small file can unfold into billions.
    CONFIGS_IN.set(Path(folder).parent)
    sources.MOST_ROWS.set(MOST_ROWS)
    return answered


def answered(request: dict[str, Any], tell: Callable[[str], None]) -> dict[str, Any]:
    """The answer to a request, by the ``work`` it asks for; a refusal names inputs as the page does."""
    works = {"answer": answer, "look": look, "table": table, "report": report}
    try:
        return works[request["work"]](request, tell)
    except TokonomicsError as problem:
        raise TokonomicsError(**error_of(problem)) from None


def _warm_ups(verb: str) -> list[dict[str, Any]]:
    """The figures first, which a visitor waits for; then all else that is told of the same answer."""
    asked = {"work": "answer", "verb": verb, "call": WARM_UPS[verb], "inputs": {}, "command": "", "key": f"warm {verb}"}
    return [asked | {"parts": ["sections"]}, asked | {"parts": ["charts", "text"]}]


class JobListener(Listener):
    """Hears what is being done, for the page, and keeps the notes."""

    def __init__(self, tell: Told, command: str) -> None:
        self.typed = command
        self._tell = tell
        self.notes: list[str] = []

    def doing(self, what: str) -> None:
        self._tell(what)

    def note(self, line: str) -> None:
        self.notes += [part for part in spelled(line, _marked).splitlines() if part.strip()]


class Solved(NamedTuple):
    """An answer before it is told, what was noted on the way, and how long it took."""

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
"""What can be asked of an answer beside its headline; each is made when it is asked for."""
WHOLE = tuple(PARTS)
KEPT = 4  # answers that a worker keeps, for whoever asks for another part: two beside each other, and those before
_kept: OrderedDict[str | None, Solved] = OrderedDict()


def answer(request: dict[str, Any], tell: Told) -> dict[str, Any]:
    """The answer to ``{verb, call, inputs, command, parts, key}``; what has the same key is solved once."""
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
    """The answer, from what is kept where it was given before."""
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

    schemapi.DEBUG_MODE = False  # checking each part of a chart takes longer than drawing it; the tests check them
    return [{"name": name, "spec": draw().to_dict(validate=False)} for name, draw in answer.charts.items()]


def error_of(problem: TokonomicsError) -> dict[str, Any]:
    """What is wrong, where, and what to do, by the names of the inputs; within a sentence they are marked."""
    what, _, fix = problem.spelled(_marked)
    _, where, _ = problem.spelled(in_python)
    return {"what": what, "where": where, "fix": fix}


def ours(text: str) -> TokonomicsError:
    """A fault of ours: the log gets all of it, whoever asked a number to find it by."""
    number = secrets.token_hex(4)
    sys.stderr.write(f"error {number}: {text}\n")
    return TokonomicsError(f"something went wrong on our side (error {number})", fix="The server's log says what.")


def home_in_texts() -> re.Pattern[str]:
    """The home of this user, which others are told as ~; a home of / hides nothing."""
    home = os.path.expanduser("~").rstrip("/")  # noqa: PTH111 - never raises
    return re.compile(re.escape(home) + r"(?=/|$)" if home else r"(?!)")


def _marked(field: str, value: str | None) -> str:
    return f"`{in_python(field, value)}`"


def look(request: dict[str, Any], tell: Told) -> dict[str, Any]:
    """Which of the files we know this one is, by trying: a model's config.json, a benchmark's results, a log."""
    from tokonomics.traffic.sources import TooManyRows

    path = Path(request["path"])
    problems: dict[str, TokonomicsError] = {}
    for kind, attempt in (("config", _config), ("benchmark", _benchmark), ("trace", _trace)):
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
    """The first rows of a table, and its columns, for somebody to say which is what."""
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
    """As its maker calls it, else by its architecture where the file has no name of its own."""
    config = _object(path)
    for stated in (config.get("_name_or_path"), path.stem if path.name != "config.json" else config.get("model_type")):
        if isinstance(stated, str) and (name := stated.rstrip("/\\").replace("\\", "/").rpartition("/")[2]):
            return name
    return "model"


def _describes_a_model(path: Path) -> bool:
    """Whether a file that cannot be read as a config.json is meant to be one."""
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


def _benchmark(path: Path) -> dict[str, Any]:
    from tokonomics.measure.importers.recognise import read_runs

    run = read_runs([path])
    return {"tool": run.tool, "model": run.model}


def _trace(path: Path) -> dict[str, Any]:
    from tokonomics.traffic.readers import open_trace
    from tokonomics.traffic.sources import is_packed

    file = open_trace(path)
    if is_packed(path):  # what arrived as text was counted on its way
        for _ in file.log.raw():
            continue
    return {"format": file.format}


def report(request: dict[str, Any], tell: Told) -> dict[str, Any]:
    """The one-file page of an answer that was already given, or is kept, or is asked for."""
    from pydantic import TypeAdapter

    from tokonomics.report.blocks import Section
    from tokonomics.report.html import report_page

    made = request["answer"] if "answer" in request else answer(request, tell)
    sections = TypeAdapter(list[Section]).validate_python(made["sections"])
    charts = {chart["name"]: chart["spec"] for chart in made["charts"]}
    return {"html": report_page(made["title"], sections, charts, made["result"], made["command"])}
