"""A flag is the same flag on every verb: one type, one set of words; and every help has examples that can be typed."""

import re
import shlex
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from tokonomics.__main__ import app
from tokonomics.cli.commands import AS_GIVEN
from tokonomics.questions import inputs
from tokonomics.questions.request import Parameter, Request
from tokonomics.questions.requests.run import MeterExportRequest, MeterWatchRequest
from tokonomics.questions.verbs import QUESTIONS, VERBS, find_verb, scenario_verbs

NAMES = [
    *["--gpu", "--tp", "--weights", "--kv", "--engine", "--input", "--output", "--rate", "--slo", "--offers"],
    *["--profile", "--json", "--html", "--chart", "--model", "--trace", "--columns", "--from", "--to", "--seed"],
    *["--provider", "--region", "--discount", "--max-price", "--usd-per-hour", "--tokens-per-month", "--arrivals"],
]
MEASURED = ("bench", "import", "calibrate")
"""Their machine is the one that ran: every flag may be left out, and says so."""
OTHERWISE = {
    ("cost", "--gpu"), ("own-hardware", "--gpu"), ("probe", "--gpu"), ("meter report", "--gpu"),  # nothing runs on it
    ("plan", "--gpus"),  # the most to pay for
    ("breakeven", "--usd-per-hour"),  # beside --replica-tokens-per-second
    ("tenants", "--trace"),  # one log for each tenant
    ("own-hardware", "--gpus"), ("can-run", "--gpus"), ("cost", "--gpus"),
    ("probe", "--from"), ("apis", "--input"), ("apis", "--output"), ("validate", "--chart"),
}  # fmt: skip
"""The same word for another thing, each with its own explanation."""

MODELLED = ("fit", "predict", "curve", "simulate", "capacity", "cache", "tenants", "levers")
PLANNED = ("plan", "compare", "breakeven", "fleet", "route")
SERVED = ("simulate", "capacity", "cache", "tenants")
HARDWARE = {"--gpu", "--weights", "--kv", "--engine", "--json", "--html", "--profile"}
TRAFFIC = {"--rate", "--tokens-per-month", "--input", "--output", "--arrivals", "--seed", "--json", "--html", "--chart"}
MARKET = {"--slo", "--offers", "--provider", "--region", "--discount", "--trace"}


@cache
def commands() -> dict[str, Any]:
    made: Any = typer.main.get_command(app)
    found: dict[str, Any] = made.commands
    return found


def of_flag(name: str) -> Iterator[tuple[str, Parameter]]:
    for verb in QUESTIONS:
        for key in find_verb(verb).keys.values():
            if key.flag == name and (verb, name) not in OTHERWISE and verb not in MEASURED:
                yield verb, key


@pytest.mark.parametrize("name", NAMES)
def test_a_flag_has_one_type_and_one_explanation_wherever_it_is_taken(name: str) -> None:
    found = list(of_flag(name))
    assert found
    assert len({each.type for _, each in found}) == 1
    for several in (False, True):
        words = {each.help for _, each in found if each.is_list is several}
        if name == "--rate":  # plan and its like take a range as well
            words = {text.removesuffix(" Or low:mid:high.") for text in words}
        assert len(words) <= 1, words


def flags_of(verb: str) -> set[str | None]:
    return {key.flag for key in find_verb(verb).keys.values()}


def test_a_verb_that_could_take_a_flag_takes_it() -> None:
    for verb in MODELLED:
        assert (HARDWARE | {"--tp", "--pp", "--ep"}) - flags_of(verb) == set(), verb
    for verb in PLANNED:
        assert HARDWARE - flags_of(verb) == set(), verb
    for verb in (*SERVED, *PLANNED, "levers", "stack"):
        shape = {"--arrivals", "--tokens-per-month"} if verb == "fleet" else set()  # it takes a demand curve
        assert (TRAFFIC | MARKET) - shape - flags_of(verb) == set(), verb
    assert TRAFFIC - flags_of("trace") == set()


def test_no_group_of_inputs_is_declared_and_not_taken() -> None:
    """Some request inherits it; how an answer is shown is the command line's and no request's."""
    groups = {value for value in vars(inputs).values() if isinstance(value, type) and issubclass(value, Request)}
    requests = [verb.request for verb in QUESTIONS.values()] + [MeterExportRequest, MeterWatchRequest]
    taken = {group for request in requests for group in request.__mro__}
    assert groups - taken == {inputs.Shown}


def examples(verb: str) -> list[str]:
    _, _, after = (commands()[verb].help or "").partition("Examples:")
    return [line.strip() for line in after.strip().splitlines() if line.strip()]


@pytest.mark.parametrize("verb", [*VERBS, "sweep"])
def test_every_help_has_examples_that_can_be_typed(verb: str) -> None:
    found = examples(verb)
    assert any(line.startswith(f"tokonomics {verb}") for line in found)
    # A terminal pads lines with spaces, and a backslash before a space continues nothing: one line each.
    assert [line for line in found if not line.startswith("tokonomics ") or line.endswith("\\")] == []
    for line in found:
        name, *words = shlex.split(line.partition(">")[0])[1:]
        command = commands()[name]
        # Files that an example names are the reader's: their flags are known, their contents are not.
        context = typer.Context(command, info_name=name)
        _, left, _ = command.make_parser(context).parse_args(list(words))
        assert left == [] or all(each.endswith(".toml") for each in left), line
        if not left and "--profile" not in words and not any(word.endswith(".toml") for word in words):
            command.make_context(name, list(words), obj=AS_GIVEN)  # types and bounds as well


@pytest.mark.parametrize("verb", scenario_verbs())
def test_every_help_says_that_a_scenario_file_is_taken(verb: str) -> None:
    assert any(".toml" in line for line in examples(verb)), "an example with a scenario file"


def test_ranges_are_said_in_words() -> None:
    helps = {verb: CliRunner().invoke(app, [verb, "--help"], terminal_width=140).output for verb in ("bench", "plan")}
    assert "<int: 1 to 1,000,000>" in helps["bench"]
    assert "<int: 1 or more>" in helps["plan"]
    assert not re.search(r"<=x|x>=|e\+0", "".join(helps.values()))
