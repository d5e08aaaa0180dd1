"""Answers a question and puts the answer into JSON; runs inside a worker process.

``result`` is what ``--json`` prints, ``text`` what the terminal shows, ``charts`` the specs that ``--chart`` draws.
"""

import os
import re
import secrets
import sys
import time
from collections.abc import Callable
from typing import Any

from tokonomics import __version__
from tokonomics.clock import today
from tokonomics.errors import TokonomicsError, in_python, spelled
from tokonomics.questions.listener import Listener
from tokonomics.questions.verbs import find_verb
from tokonomics.report.answers import describe

Told = Callable[[str], None]


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


def answer(request: dict[str, Any], tell: Told) -> dict[str, Any]:
    """The answer to ``{verb, call, inputs, command, charts}``."""
    began = time.perf_counter()
    verb = find_verb(request["verb"])
    asked, job = verb.request.of(request["call"]), JobListener(tell, request["command"])
    made = describe(verb, verb.answer(asked, job), asked)
    drawn = made.charts if request["charts"] else {}
    charts = [{"name": name, "spec": _spec(draw)} for name, draw in drawn.items()]
    return {
        "verb": verb.name,
        "inputs": request["inputs"],
        "command": request["command"],
        "title": made.title,
        "headline": made.result.headline(),
        "result": made.plain(),
        "sections": made.document(_marked),
        "text": made.text(),
        "markdown": made.markdown(),
        "rows": made.result.ROWS,
        "charts": charts,
        "plays": made.plays() if made.plays and request["charts"] else None,
        "found": made.exit_code == 0,
        "notes": job.notes,
        "seconds": time.perf_counter() - began,
        "made": today().isoformat(),
        "version": __version__,
    }


def _spec(draw: Callable[[], Any]) -> dict[str, Any]:
    made: dict[str, Any] = draw().to_dict(validate=False)  # the charts' own tests check them against the schema
    return made


def error_of(problem: TokonomicsError) -> dict[str, Any]:
    """What is wrong, where, and what to do, by the names of the inputs; within a sentence they are marked."""
    what, _, fix = problem.told(_marked)
    _, where, _ = problem.told(in_python)
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
