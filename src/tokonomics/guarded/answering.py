"""Answers a question and puts the answer into JSON; runs inside a worker process.

``result`` is what ``--json`` prints, ``text`` what the terminal shows, ``charts`` the specs that ``--chart`` draws.
They are made when they are asked for, from the answer that the worker keeps.
"""

import os
import re
import secrets
import sys
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple

from tokonomics import __version__
from tokonomics.clock import today
from tokonomics.errors import TokonomicsError, in_python, spelled
from tokonomics.questions.listener import Listener
from tokonomics.questions.verbs import find_verb
from tokonomics.report.answer import Answer
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
KEPT = 4
"""Answers that a worker keeps, for whoever asks for another part: two beside each other, and those before."""
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
    asked, job = verb.request.of(request["call"]), JobListener(tell, request["command"])
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
