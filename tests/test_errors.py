"""An error names inputs by field; each door spells them its own way, and no layer below the doors knows a flag."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from tests.sources import SOURCE, nodes

from tokonomics.cli.main import application
from tokonomics.errors import BadInput, TokonomicsError, flag, in_python, option, shorten, spelled
from tokonomics.types import Marked, Noun

BELOW_THE_DOORS = ("catalog", "physics", "traffic", "serving", "money", "planner", "deploy", "measure", "operate")
MARKS = re.compile("[\u2063\u2064]")

ALLOWED = {
    "deploy/scripts.py": {"--host", "--port"},  # of an engine
    "deploy/targets.py": {"--model"},  # of an engine under Dynamo
    "operate/start_command.py": {"--port"},  # of an engine
    "measure/probe/timings.py": {"--quick", "--seconds"},  # a program of its own
    "measure/probe/kernels.py": {"--format"},  # of nvidia-smi
    "measure/quotes.py": {"--model", "--precision", "--save", "--seconds", "--seed", "--slo"},  # of a script to run
    "measure/importers/lm_eval.py": {"--limit", "--output"},  # of lm-evaluation-harness
}  # fmt: skip
"""Flags of our own that are left below the doors: in files that are to be read in a shell."""


@pytest.mark.parametrize(
    ("error", "python", "typed"),
    [
        (BadInput("is empty"), "is empty", "is empty"),
        (BadInput("is empty", where="a.csv:3"), "a.csv:3: is empty", "a.csv:3: is empty"),
        (BadInput("is empty", field="rate"), "rate: is empty", "--rate: is empty"),
        (
            BadInput("is missing", field="tokens_per_month, input"),
            "tokens_per_month, input: is missing",
            "--tokens-per-month, --input: is missing",
        ),
        (BadInput("is late", field="start, end"), "start, end: is late", "--from, --to: is late"),
        (BadInput("is odd", where="a.toml", field="rate"), "a.toml: rate: is odd", "a.toml: --rate: is odd"),
        (
            BadInput(f"says the same as {option('rate')}", field="arrivals", fix=f"Such as {option('rate', 5)}."),
            "arrivals: says the same as rate\n  Such as rate=5.",
            "--arrivals: says the same as --rate\n  Such as --rate 5.",
        ),
        (
            BadInput("cannot be written", where=option("save", "my day.parquet")),
            'save="my day.parquet": cannot be written',
            "--save my day.parquet: cannot be written",
        ),
        (
            BadInput("no traffic", fix=f"Say {option('tokens_per_month', '2B')} {option('columns', 'a=b,c=d')}."),
            'no traffic\n  Say tokens_per_month="2B" columns="a=b,c=d".',
            "no traffic\n  Say --tokens-per-month 2B --columns a=b,c=d.",
        ),
    ],
)
def test_each_door_spells_the_fields_its_own_way(error: TokonomicsError, python: str, typed: str) -> None:
    assert str(error) == error.message(in_python) == python
    assert error.message(flag) == typed


@pytest.mark.parametrize(
    ("value", "python"),
    [
        (5, "x=5"),
        (0.01, "x=0.01"),
        ("1e3", "x=1e3"),
        ("2B", 'x="2B"'),
        ("a b", 'x="a b"'),
        ("…", 'x="…"'),
        ("", 'x=""'),
    ],
)
def test_a_number_is_one_in_python_and_all_else_is_quoted(value: object, python: str) -> None:
    assert spelled(option("x", value), in_python) == python


class Note(Noun):
    said: Marked


def test_a_noun_names_inputs_by_field_and_its_document_has_flags() -> None:
    note = Note(said=f"not tried: give yours ({option('acceptance')}), or {option('draft_share', 0.1)}; no --flag")
    assert note.said == "not tried: give yours (acceptance), or draft_share=0.1; no --flag"
    assert spelled(note.said.marked, flag) == note.model_dump()["said"]
    assert note.model_dump() == {"said": "not tried: give yours (--acceptance), or --draft-share 0.1; no --flag"}


def test_what_a_user_wrote_cannot_pose_as_an_input() -> None:
    written = option("rate", 5)
    assert shorten(written) == "?rate=5?"
    error = BadInput(
        f"'{shorten(written)}' is no router", where=option("save", shorten(f"a{written}b")), field="router"
    )
    assert str(error) == "save=\"a?rate=5?b\": router: '?rate=5?' is no router"
    assert not MARKS.search(error.message(flag))


def _commands(command: typer.core.TyperCommand | typer.core.TyperGroup) -> Iterator[typer.core.TyperCommand]:
    if isinstance(command, typer.core.TyperGroup):
        for each in command.commands.values():
            yield from _commands(each)  # type: ignore[arg-type]
    yield command  # type: ignore[misc]


@pytest.fixture(scope="module")
def parameters() -> dict[str, set[str]]:
    """Every parameter of our command line with its flags."""
    found: dict[str, set[str]] = {}
    for command in _commands(typer.main.get_command(application(None))):  # type: ignore[arg-type]
        for param in command.params:
            names = (*param.opts, *param.secondary_opts)
            found.setdefault(str(param.name), set()).update(name for name in names if name.startswith("--"))
    return found


def _modules(*more: str) -> Iterator[tuple[str, Path]]:
    paths = [path for name in (*BELOW_THE_DOORS, *more) for path in sorted((SOURCE / name).rglob("*.py"))]
    for path in [*paths, *sorted(SOURCE.glob("*.py"))]:
        yield path.relative_to(SOURCE).as_posix(), path


def _texts(module: Path) -> Iterator[str]:
    """Every text of a module but its docstrings; of an f-string what is written, with … for what is filled in."""
    passed = {id(node.value) for node in nodes(module) if isinstance(node, ast.Expr)}
    for node in nodes(module):
        if isinstance(node, ast.JoinedStr):
            passed |= {id(part) for part in node.values}
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in passed:
            yield node.value


def _flags(text: str) -> set[str]:
    """Flags in a text, without those of a command that the reader is told to type."""
    return set(re.findall(r"(?<![\w-])--[a-z][a-z-]*[a-z]", re.sub(r"tokonomics (--)?[a-z][^`\n]*", "", text)))


def test_no_layer_below_the_doors_names_a_flag(parameters: dict[str, set[str]]) -> None:
    ours = set().union(*parameters.values())
    assert {"--rate", "--from", "--usd-per-hour", "--no-prefix-cache"} <= ours
    found = {name: {each for text in _texts(module) for each in _flags(text)} & ours for name, module in _modules()}
    assert {name: flags for name, flags in found.items() if flags} == ALLOWED


def test_no_view_names_a_flag(parameters: dict[str, set[str]]) -> None:
    """But in a command that the reader is told to type."""
    ours = set().union(*parameters.values())
    views = {name: module for name, module in _modules("report") if name.startswith("report/")}
    assert views
    found = {name: {flag for text in _texts(module) for flag in _flags(text)} & ours for name, module in views.items()}
    assert {name: flags for name, flags in found.items() if flags} == {}


def test_every_field_that_an_error_names_is_a_parameter(parameters: dict[str, set[str]]) -> None:
    for path, module in _modules("questions"):
        for call in (node for node in nodes(module) if isinstance(node, ast.Call)):
            name = getattr(call.func, "id", None)
            named = [keyword.value for keyword in call.keywords if keyword.arg == "field"]
            for given in [*named, *(call.args[:1] if name == "option" else ())]:
                if isinstance(given, ast.Constant):
                    fields = {part.strip() for part in str(given.value).split(",")}
                    assert fields <= set(parameters), (path, call.lineno)
