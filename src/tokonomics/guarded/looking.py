"""What an uploaded file is and holds, and an answer as a page to forward; all run inside a worker."""

import json
from pathlib import Path
from typing import Any

from tokonomics.errors import BadInput, TokonomicsError
from tokonomics.guarded.answering import Told, answer, error_of

MOST_ROWS = 2_000_000
"""Rows of a log: a week of ten requests for each three seconds; a simulation of so many takes seconds."""


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
    from tokonomics.traffic.recognise import preview

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
        for _ in file.log.raw(file.log.layout):
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
