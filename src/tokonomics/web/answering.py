"""Calls a verb as the command line does and puts its answer into JSON; runs inside a worker process.

``result`` is what ``--json`` prints, ``text`` what the terminal shows, ``charts`` the specs that ``--chart`` draws.
"""

import contextlib
import io
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import typer

from tokonomics import __version__
from tokonomics.cli.answer import Answer, taking
from tokonomics.cli.argument_names import in_python
from tokonomics.cli.parameters import Kind
from tokonomics.clock import today
from tokonomics.errors import BadInput, TokonomicsError
from tokonomics.errors import in_python as by_name
from tokonomics.report.text import as_text
from tokonomics.web.verbs import find_verb

Told = Callable[[str], None]


def answer(request: dict[str, Any], tell: Told) -> dict[str, Any]:
    """The answer to ``{verb, call, inputs, command, charts}``."""
    began = time.perf_counter()
    verb = find_verb(request["verb"])
    call = {name: _as_taken(value, verb.parameters[name].kind) for name, value in request["call"].items()}
    said = io.StringIO()
    with taking(request["command"], tell) as taken, contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
        with contextlib.suppress(typer.Exit):
            verb.function(**call)
        if not taken:
            raise BadInput(
                "this verb has no page yet", where=verb.name, fix=f"On the command line: {request['command']}"
            )
        made: Answer = taken[0]
        text = as_text(made.view())
        charts = (
            [{"name": name, "spec": _spec(draw)} for name, draw in made.charts.items()] if request["charts"] else []
        )
    return {
        "verb": verb.name,
        "inputs": request["inputs"],
        "command": request["command"],
        "title": made.title,
        "result": made.plain(),
        "text": text,
        "charts": charts,
        "found": made.exit_code == 0,
        "notes": [line for line in said.getvalue().splitlines() if line.strip()],
        "seconds": time.perf_counter() - began,
        "made": today().isoformat(),
        "version": __version__,
    }


def _spec(draw: Callable[[], Any]) -> dict[str, Any]:
    made: dict[str, Any] = draw().to_dict(validate=False)  # the charts' own tests check them against the schema
    return made


def _as_taken(value: Any, kind: Kind) -> Any:
    if kind is not Kind.FILE:
        return value
    return [Path(each) for each in value] if isinstance(value, list) else Path(value)


def error_of(problem: TokonomicsError) -> dict[str, Any]:
    """What is wrong, where, and what to do, by the names of the inputs; within a sentence they are marked."""
    what, _, fix = problem.told(lambda field, value: f"`{by_name(field, value)}`")
    _, where, _ = problem.told(by_name)
    said = {"what": what, "where": where, "fix": fix}
    return {name: text and in_python(text, mark="" if name == "where" else "`") for name, text in said.items()}


def as_json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
