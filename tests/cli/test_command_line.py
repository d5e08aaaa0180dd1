"""The line beside an answer of the page, of Python and of a sweep asks the command line for the same."""

from collections.abc import Mapping
from typing import Any

import pytest
import typer

from tokonomics.__main__ import app
from tokonomics.errors import BadInput
from tokonomics.questions.request import SILENT
from tokonomics.questions.scenario_text import command_line, command_words
from tokonomics.questions.verbs import VERBS, find_verb


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
