"""Asking for help is quick because nothing heavy is imported for it."""

import inspect
import re
import subprocess
import sys
from collections.abc import Callable

import pytest
import typer
from typer.testing import CliRunner

from tokonomics.cli.main import application

HEAVY = {"numpy", "numba", "fastapi", "altair", "polars", "scipy", "genai_prices", "aiohttp", "yaml"}

ASK_FOR_ALL_HELP = """
import sys
from collections.abc import Callable
from tokonomics.__main__ import app

heavy = set(sys.argv[1:])
def ask(verbs, words):
    before = heavy & {name.partition(".")[0] for name in sys.modules}
    app([*words, "--help"], standalone_mode=False)
    loaded = heavy & {name.partition(".")[0] for name in sys.modules} - before
    print("asked", *words, "which loads" * bool(loaded), *loaded, file=sys.stderr)
    for command in verbs.registered_commands if verbs else ():
        ask(None, [*words, command.name])
    for group in verbs.registered_groups if verbs else ():
        ask(group.typer_instance, [*words, group.name])

print("imported", *(heavy & {name.partition(".")[0] for name in sys.modules}), file=sys.stderr)
ask(app, [])
"""


def test_help_imports_nothing_heavy() -> None:
    """Of every verb, one after the other in one interpreter: what any of them loads stays loaded and is seen."""
    asked = [sys.executable, "-c", ASK_FOR_ALL_HELP, *HEAVY]
    done = subprocess.run(asked, capture_output=True, encoding="utf-8", check=True, timeout=600)
    first, *verbs = done.stderr.splitlines()
    assert first == "imported"
    assert done.stdout.count("Usage") == len(verbs) > 25
    assert [line for line in verbs if "which loads" in line] == []


@pytest.mark.parametrize(
    ("words", "unused"),
    [
        (["--help"], {"markdown_it", "pygments", "pydantic"}),
        (["--version"], {"rich", "pydantic"}),
        (["plan", "--help"], {"markdown_it", "pygments"}),
    ],
)
def test_help_loads_only_what_it_needs(words: list[str], unused: set[str]) -> None:
    """The list of verbs needs no request, and help of any kind none of the parsers that Rich brings along."""
    code = "import atexit, sys; atexit.register(lambda: print(*sys.modules, file=sys.stderr)); "
    code += f"sys.argv = ['tokonomics', *{words}]; from tokonomics.__main__ import main; main()"
    asked = [sys.executable, "-c", code]
    done = subprocess.run(asked, capture_output=True, encoding="utf-8", check=True, timeout=600)
    assert "tokonomics" in done.stdout
    assert unused & set(done.stderr.split()) == set()


@pytest.mark.parametrize("words", [("fit", "--help"), ("fit",)], ids=" ".join)
def test_without_colours_there_are_no_codes_at_all_and_the_same_text(
    tokonomics_process: Callable[..., subprocess.CompletedProcess[str]], words: tuple[str, ...]
) -> None:
    forced = {"FORCE_COLOR": "1", "NO_COLOR": "", "TERM": "xterm", "COLUMNS": "100"}
    told = [tokonomics_process(*words, env=forced | more) for more in ({}, {"NO_COLOR": "1"}, {"TERM": "dumb"})]
    drawn = {re.sub(r"\x1b\[[0-9;]*m", "", done.stdout + done.stderr) for done in told}
    assert drawn == {done.stdout + done.stderr for done in told[1:]}


@pytest.mark.parametrize("verb", ["plan", "own-hardware", "meter", "prices", "plam", "--version", ""])
def test_an_app_with_one_verb_says_what_the_whole_one_says(verb: str) -> None:
    words = [verb, "--help"] if verb else []
    said, whole = (CliRunner().invoke(each, words) for each in (application(verb), application(None)))
    assert (said.output, said.exit_code) == (whole.output, whole.exit_code)


def test_only_the_verb_that_is_typed_is_built() -> None:
    assert built(application("plan")) == ["plan"]
    assert len(built(application(None))) > 25


def built(app: typer.Typer) -> list[str | None]:
    """The verbs with options; the others are there by name."""
    verbs = {verb.name: verb.callback for verb in app.registered_commands}
    return [name for name, callback in verbs.items() if callback and inspect.signature(callback).parameters]
