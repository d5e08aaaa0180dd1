"""The line beside an answer is read back by the command line as the request that it was written for."""

import shlex
from typing import NoReturn

import pytest
from typer.testing import CliRunner

from tokonomics.__main__ import app
from tokonomics.questions.request import Listener, Request
from tokonomics.questions.scenario_text import command_of
from tokonomics.questions.verbs import Verb, find_verb

CASES: list[tuple[str, dict[str, object]]] = [
    ("plan", {"model": ["llama-3.1-8b", "qwen3-8b"], "rate": "2:5:20", "input": 1000, "output": 300}),
    ("plan", {"model": "a b.json", "slo": {"ttft_p99": 0.5}, "gpu": ["H100", "L4"], "discount": {"aws": 0.2}}),
    ("plan", {"model": "-odd", "rate": "-1", "spare": 2, "max_price": 3.25, "quick": True, "from": "10m"}),
    ("fit", {"model": "llama-3.1-8b", "gpu": "H100", "tp": 2, "kv": "fp8", "context": 8192}),
    ("simulate", {"model": "llama-3.1-8b", "gpu": "H100", "trace": "azure-conv", "speed": 4, "no_prefix_cache": True}),
    ("simulate", {"gpu": "L4", "rate": 3, "outage": ["replica=0,at=600", "replica=1,at=60"], "seed": 2**62}),
    ("breakeven", {"model": "llama-3.1-8b", "api": ["openai:gpt-4o", "x:y"], "engineers": 0.5, "overhead": ["a=5%"]}),
    ("own-hardware", {"gpu": "H100", "purchase_usd": "250k", "residual": "10%", "cost_of_capital": 0.08}),
    ("can-run", {"gpu": "RTX3090", "gpus": 2, "usd_per_kwh": 0.3}),
    ("can-run", {"model": ["llama-3.1-8b", "qwen3-8b"], "gpu": "H100", "context": 8192, "slo": {"tpot": "50ms"}}),
    ("fleet", {"model": "llama-3.1-8b", "demand": "12x20,12x2", "size_classes": [1000, 8000], "no_replay": True}),
    ("trace", {"trace": "a log; rm -rf 'x'.csv", "columns": {"arrival": "time", "input": "$HOME"}, "to": "2h"}),
    ("models", {"match": "qwen3", "moe": True}),
    ("models", {"moe": False}),
    ("cost", {"usd_per_hour": 1e-7, "tokens_per_second": 12345678.9, "gpus": 4}),
]


class Asked(Exception):
    """Instead of an answer."""


@pytest.mark.parametrize(("name", "values"), CASES, ids=str)
def test_a_command_is_read_back_the_same(name: str, values: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    def keep(verb: Verb, request: Request, listener: Listener) -> NoReturn:
        raise Asked(verb.name, request)

    monkeypatch.setattr(Verb, "answer", keep)
    verb = find_verb(name)
    asked = verb.request.checked(values)
    program, *words = shlex.split(command_of(verb, asked))
    done = CliRunner().invoke(app, words)
    assert program == "tokonomics"
    assert isinstance(done.exception, Asked), done.output
    assert done.exception.args == (name, asked)
