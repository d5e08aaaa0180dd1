"""A flag is the same flag on every verb: one type, one set of words; and every help has examples that can be typed."""

import re
import shlex
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from tokonomics.__main__ import app
from tokonomics.cli.commands import AS_GIVEN
from tokonomics.errors import BadInput
from tokonomics.questions import inputs
from tokonomics.questions.request import SILENT, Parameter, Request
from tokonomics.questions.requests.run import MeterExportRequest, MeterWatchRequest
from tokonomics.questions.scenario_text import command_line, command_words
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
    ("probe", "--from"), ("levers", "--from"), ("stack", "--from"),
    ("apis", "--input"), ("apis", "--output"), ("validate", "--chart"),
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


# --- the line beside an answer of the page, of Python and of a sweep asks the command line for the same ---------------


def words_of(verb: str, values: Mapping[str, object]) -> list[str]:
    return command_words(find_verb(verb), find_verb(verb).parameters, values)


@pytest.mark.parametrize(
    ("verb", "values", "line"),
    [
        ("plan", {"rate": 5, "model": ["a", "b"], "seed": 0, "slo": None}, "plan a b --rate 5"),
        ("plan", {"gpu": ["L4", "H100"], "quick": True, "why": False}, "plan --gpu L4 --gpu H100 --quick"),
        ("plan", {"slo": {"ttft_p99": 0.5, "tpot_p99": "50ms"}}, "plan --slo ttft_p99=0.5,tpot_p99=50ms"),
        ("plan", {"discount": {"aws": 0.2, "gcp": 0.1}}, "plan --discount aws=0.2 --discount gcp=0.1"),
        ("plan", {"start": "10m", "end": "2h"}, "plan --from 10m --to 2h"),
        ("fleet", {"size_classes": [1000, 8000]}, "fleet --size-classes 1000,8000"),
        ("models", {"moe": False}, "models --dense"),
        ("models", {"match": "qwen3", "moe": True}, "models qwen3 --moe"),
        ("plan", {"model": ["-odd"], "rate": "-1"}, "plan --rate=-1 -- -odd"),
        ("trace", {"trace": "a log.csv"}, "trace 'a log.csv'"),
        ("fit", {"model": "m", "gpu": "H100", "context": 4096}, "predict m --fit --gpu H100"),
        ("diff", {"model": "a.toml", "against": "b.toml"}, "plan a.toml --against b.toml"),
        ("own-hardware", {"purchase_usd": "30k", "years": 4}, "cost --purchase-usd 30k --years 4"),
    ],
)
def test_a_command_says_what_differs_from_the_default(verb: str, values: Mapping[str, object], line: str) -> None:
    assert command_line(words_of(verb, values)) == f"tokonomics {line}"


@pytest.mark.parametrize("values", [{"rate": "-1", "model": ["-odd"]}, {"gpu": ["-a", "b"], "model": ["m"]}])
def test_what_begins_with_a_dash_is_parsed_as_it_was_given(values: Mapping[str, object]) -> None:
    made: Any = typer.main.get_command(app)
    context = made.commands["plan"].make_context("plan", words_of("plan", values)[1:], resilient_parsing=True)
    assert {name: context.params[name] for name in values} == values


def test_every_flag_that_says_no_is_known() -> None:
    made: Any = typer.main.get_command(app)
    for verb, known in VERBS.items():
        for param in made.commands[verb].params:
            if param.name in known.keys:
                assert ([known.keys[param.name].off] if param.secondary_opts else []) == param.secondary_opts


def test_files_of_a_plan_that_a_sweep_asks_for_name_the_plan() -> None:
    values = {"model": "llama-3.1-8b", "gpu": "L4", "rate": 1, "input": 100, "output": 100, "quick": True}
    verb = find_verb("plan")
    made = verb.answer(verb.request.checked({**values, "deploy": ["vllm"]}), SILENT)
    line = "tokonomics plan llama-3.1-8b --rate 1 --input 100 --output 100 --gpu L4 --quick --deploy vllm"
    assert f"Made by `{line}`" in made.plain()["deploy"][0]["text"]


def test_a_missing_model_is_called_as_in_a_scenario() -> None:
    with pytest.raises(BadInput, match=r"^model: is missing$"):
        find_verb("plan").request.checked({"rate": 1})
