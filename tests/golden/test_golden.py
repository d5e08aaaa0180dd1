"""What a person sees, kept word for word in the ``.txt`` files beside this one: one for each verb.

A file holds commands, each in a line that begins with ``$ tokonomics``, and below it what the command prints. To keep
another screen, write its command into a file. ``errors.txt`` has the refusals. ``figures.txt`` has more commands, each
with nothing but the numbers behind its facts (its headline where it has none), so that no figure moves unseen. After a
change that is meant to be seen, write the files anew (in one process) and read the difference before it is committed:

    UPDATE_GOLDEN=1 python -m pytest tests/golden && git diff tests/golden

Commands run in the repository's root, on 2026-11-15, in a terminal of 140 columns. Spaces at the end of a line are
dropped, since nobody sees them.
"""

import html
import json
import os
import re
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tokonomics.cli import commands
from tokonomics.errors import flag, spelled
from tokonomics.report.answer import Answer
from tokonomics.report.blocks import Facts, Line
from tokonomics.report.html import described
from tokonomics.report.terminal import give

Call = Callable[..., subprocess.CompletedProcess[str]]

HERE = Path(__file__).parent
PROMPT = "$ tokonomics "
UPDATE = os.environ.get("UPDATE_GOLDEN") == "1"
ERRORS, FIGURES = "errors", "figures"
CLOCKS = {"wall_s", "simulated_requests_per_s"}
"""What no two runs have in common."""
PROGRESS = re.compile(r".* … \(\d+ s\)\n")
"""What a slow machine is told while it waits."""
ENDS_WITH = {"guard": 1}
"""The status of a file's commands, where what is shown is a regression."""
SOLVED = re.compile(r"Solved in [0-9.]+ s")
MARKS = re.compile("[\u2063\u2064]")
NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
LONG = () if UPDATE else ("calibrate",)
"""More than a quarter of a minute, for a view that docs/calibrate.md shows too: compared in ``make explore``."""


def kept(file: str) -> dict[str, str]:
    """The commands of a golden file, each with what it printed."""
    parts = f"\n{(HERE / f'{file}.txt').read_text(encoding='utf-8')}".split(f"\n{PROMPT}")[1:]
    pairs = (part.partition("\n") for part in parts)
    return {command: text.strip("\n") for command, _, text in pairs}


def cases(*files: str) -> list[Any]:
    """Every command of the files, to be run by a test of its own."""
    found = []
    for file in files:
        for place, command in enumerate(kept(file), 1):
            marks = [pytest.mark.explore] if file in LONG else [pytest.mark.slow] if file == FIGURES else []
            found.append(pytest.param(file, command, id=f"{file}-{place}", marks=marks))
    return found


SCREENS = sorted(path.stem for path in HERE.glob("*.txt") if path.stem not in (ERRORS, FIGURES))


@pytest.fixture(autouse=True)
def in_the_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(HERE.parents[1])  # a screen may repeat the name of a file
    monkeypatch.setenv("HOME", "/home/someone")  # a message says where the user's own catalogue would be


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> list[Answer]:
    """The answers that are given while a test runs."""
    given: list[Answer] = []

    def giving(answer: Answer, *rest: Any, **shown: Any) -> int:
        given.append(answer)
        return give(answer, *rest, **shown)

    monkeypatch.setattr(commands, "give", giving)
    return given


def compare(file: str, command: str, text: str) -> None:
    """The text is what the file holds below the command; with UPDATE_GOLDEN=1 the file takes the text."""
    seen = "\n".join(line.rstrip() for line in SOLVED.sub("Solved in … s", text).splitlines()).strip("\n")
    if UPDATE:
        texts = kept(file) | {command: seen}
        whole = "\n\n".join(f"{PROMPT}{typed}\n\n{shown}" for typed, shown in texts.items())
        (HERE / f"{file}.txt").write_text(f"{whole}\n", encoding="utf-8")
    assert seen == kept(file)[command], f"{file}.txt differs: see the head of this file"


@pytest.mark.parametrize(("file", "command"), cases(*SCREENS))
def test_a_screen_is_as_it_was(tokonomics: Call, answers: list[Answer], file: str, command: str) -> None:
    done = tokonomics(*shlex.split(command))
    assert (done.returncode, PROGRESS.sub("", done.stderr)) == (ENDS_WITH.get(file, 0), "")
    if "--json" in command:
        document = json.loads(done.stdout)
        assert document.keys() >= CLOCKS
        compare(file, command, json.dumps(settled(document), indent=1, ensure_ascii=False))
        return
    compare(file, command, done.stdout)
    if answers and not answers[0].printed:
        every_door_shows_the_same(answers[0])


def every_door_shows_the_same(answer: Answer) -> None:
    """The terminal, HTML and Markdown carry the same figures, and no mark of an input that a door did not spell."""
    shown = [section for section in answer.sections() if section.printed or not section.folded]
    page = re.sub(r"<style>.*?</style>|<[^>]*>", " ", described(shown, flag), flags=re.DOTALL)
    texts = answer.text(), html.unescape(page), answer.markdown()
    assert not any(MARKS.search(text) for text in texts)
    terminal, web, pull_request = (set(NUMBER.findall(text)) for text in texts)
    assert terminal == web == pull_request


@pytest.mark.parametrize(("file", "command"), cases(ERRORS))
def test_a_refusal_is_as_it_was(tokonomics: Call, file: str, command: str) -> None:
    done = tokonomics(*shlex.split(command))
    assert (done.returncode, done.stdout) == (2, "")
    compare(file, command, done.stderr)


@pytest.mark.parametrize(("file", "command"), cases(FIGURES))
def test_figures_are_as_they_were(tokonomics: Call, answers: list[Answer], file: str, command: str) -> None:
    done = tokonomics(*shlex.split(command))
    assert done.returncode in (0, 1), done.stderr
    blocks = [block for section in answers[0].sections() for block in section.blocks]
    facts = [fact for block in blocks if isinstance(block, Facts) for fact in block.rows if fact.number is not None]
    numbers = [f"  {fact.name} {fact.number:.6g}" for fact in facts]
    first = next(block for block in blocks if isinstance(block, Line) and block.kind != "asked")
    said = numbers or ["".join(span.text for span in first.spans)]
    compare(file, command, spelled("\n".join(said), flag))


def settled(value: Any) -> Any:
    """A document without clocks, its numbers to six digits, its timeline as its first bin."""
    if isinstance(value, dict):
        shown = {key: part[:1] if key == "timeline" else part for key, part in value.items() if key not in CLOCKS}
        return {key: settled(part) for key, part in shown.items()}
    if isinstance(value, list):
        return [settled(part) for part in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value
