"""A request takes what one would write, in Python's types or as text, and names the field of what it cannot take."""

import shlex
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
from typer.testing import CliRunner

from tokonomics.__main__ import app
from tokonomics.errors import BadInput
from tokonomics.questions.inputs import Paced, Profiled, Shown, Traffic
from tokonomics.questions.request import (
    Kind,
    Listener,
    Parameter,
    Placement,
    Request,
    Switch,
    Text,
    Whole,
    declared,
    parameters_of,
    texts,
)
from tokonomics.questions.requests.buy import BreakevenRequest, FitRequest, OwnHardwareRequest, PlanRequest
from tokonomics.questions.requests.traffic import SimulateRequest
from tokonomics.questions.scenario_text import command_of
from tokonomics.questions.verbs import VERBS, Verb, find_verb


def planned(**values: object) -> PlanRequest:
    return PlanRequest.checked({"model": "llama-3.1-8b", **values})


@pytest.mark.parametrize(
    ("value", "typed"),
    [
        ("a b", ["a b"]),
        ("a,b", ["a,b"]),
        (5, ["5"]),
        (0.1, ["0.1"]),
        (1e22, ["1e+22"]),
        (["a", 2], ["a", "2"]),
        ({"aws": 0.2, "gcp": "10%"}, ["aws=0.2", "gcp=10%"]),
        (Path("a.csv"), ["a.csv"]),
    ],
)
def test_a_value_is_the_words_one_would_type(value: object, typed: list[str]) -> None:
    assert texts(value) == typed


@pytest.mark.parametrize(
    ("given", "held"),
    [
        ({"rate": 5}, "5"),
        ({"rate": 2.5}, "2.5"),
        ({"rate": np.int64(5)}, "5"),
        ({"slo": {"ttft_p99": 0.5, "tpot_p99": "50ms"}}, "ttft_p99=0.5,tpot_p99=50ms"),
        ({"columns": ["arrival=a", "input=b"]}, "arrival=a,input=b"),
        ({"gpu": "H100"}, ("H100",)),
        ({"gpu": ["H100", "L4"]}, ("H100", "L4")),
        ({"gpu": (name for name in ("H100", "L4"))}, ("H100", "L4")),
        ({"discount": {"aws": 0.2}}, ("aws=0.2",)),
        ({"spare": 2}, "2"),
        ({"max_age": "2"}, 2),
        ({"max_age": 2.0}, 2),
        ({"max_price": "3.5"}, 3.5),
        ({"quick": True}, True),
        ({"trace": Path("a.csv")}, "a.csv"),
        ({"profile": Path("h100.json")}, "h100.json"),
    ],
)
def test_a_field_holds_what_was_meant(given: dict[str, object], held: object) -> None:
    (name,) = given
    assert getattr(planned(**given), name) == held


def test_a_table_in_memory_is_held_as_it_is() -> None:
    table = {"arrival_s": [0.0], "input_tokens": [5], "output_tokens": [5]}
    assert planned(trace=table).trace is table


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"rate": True}, "rate: must be text or a number, got True"),
        ({"rate": float("nan")}, "rate: must be text or a number, got nan"),
        ({"rate": [1, float("inf")]}, "rate: must be text"),
        ({"rate": b"5"}, "rate: must be text"),
        ({"rate": object()}, "rate: must be text"),
        ({"gpu": [True]}, "gpu: must be text"),
        ({"gpu": ["H100", None]}, "gpu: must be text"),
        ({"gpu": [["H100"]]}, "gpu: must be text"),
        ({"slo": {"ttft_p99": None}}, "slo: must be text"),
        ({"quick": "yes"}, "quick: must be true or false, got yes"),
        ({"quick": 1}, "quick: must be true or false, got 1"),
        ({"max_age": -1}, "max_age: should be greater than or equal to 0, got -1"),
        ({"max_age": True}, "max_age: must be a number, got True"),
        ({"max_age": "two"}, "max_age: "),
        ({"max_age": 1.5}, "max_age: "),
        ({"max_price": "1e999"}, "max_price: should be a finite number"),
        ({"seed": 2**63}, "seed: "),
        ({"model": None}, "model: is missing"),
        ({"rrate": 5}, "unknown input 'rrate'\n  Did you mean rate?"),
        ({"qqqqqqqqqq": 5}, "unknown input 'qqqqqqqqqq'"),
    ],
)
def test_what_cannot_be_taken_names_its_field(given: dict[str, object], says: str) -> None:
    with pytest.raises(BadInput) as caught:
        planned(**given)
    assert str(caught.value).startswith(says)


def test_what_was_written_is_quoted_shortly_and_printably() -> None:
    with pytest.raises(BadInput) as caught:
        planned(max_age="\x1b[31m" + "9x" * 1000)
    assert len(str(caught.value)) < 200
    assert "\x1b" not in str(caught.value)


@pytest.mark.parametrize(
    ("written", "share"), [(0.1, 0.1), ("0.1", 0.1), ("10%", 0.1), (" 10 % ", 0.1), ("0", 0.0), (1, 1.0)]
)
def test_a_share_is_a_number_or_a_percentage(written: object, share: float) -> None:
    assert OwnHardwareRequest.checked({"residual": written}).residual == pytest.approx(share)


@pytest.mark.parametrize("written", ["ten", "10%%", "", "nan", "inf%", True, [0.1]])
def test_what_is_no_share_is_refused(written: object) -> None:
    with pytest.raises(BadInput, match=r"^residual: "):
        OwnHardwareRequest.checked({"residual": written})


def test_a_field_may_be_named_as_in_a_file_or_as_in_python() -> None:
    assert planned(start="10m") == planned(**{"from": "10m"})
    with pytest.raises(BadInput, match=r"^start: must be text"):
        planned(**{"from": True})


def test_only_what_was_said_is_given() -> None:
    assert planned(rate=5, slo=None).given() == {"model": ("llama-3.1-8b",), "rate": "5"}


def test_a_request_cannot_be_changed() -> None:
    with pytest.raises(Exception, match="frozen"):
        planned().rate = "9"  # type: ignore[misc]


class Counted(Request):
    count: Whole = declared("How many.", 3, low=1, high=9, key="for", example=4)
    name: Text = declared("Which.", ..., place=Placement.FIRST, kind=Kind.FILE, metavar="NAME")


class Both(Paced, Counted):
    own: Switch = declared("Or not.", False, off="--no-own", writes=True)


def test_fields_stand_in_the_order_of_their_groups_and_then_their_own() -> None:
    assert list(parameters_of(Both)) == ["rate", "count", "name", "own"]
    order = list(parameters_of(SimulateRequest))
    assert order[:4] == ["model", "as_family", "hub", "gpu"]
    apart = ["prefill_replicas", "prefill_gpu", "prefill_tp", "link"]
    assert order[-9:] == ["replicas", "autoscale", "outage", *apart, "playback", "save"]
    assert order.index("profile") < order.index("replicas")
    traffic = [name for name in order if name in parameters_of(Traffic)]
    assert traffic == list(parameters_of(Traffic))


def test_a_parameter_says_all_that_was_declared() -> None:
    found = parameters_of(Both)
    assert found["count"] == Parameter(
        name="count", key="for", annotation=Whole, required=False, default=3, help="How many.",
        about="", low=1, high=9, example=4,
    )  # fmt: skip
    assert found["count"].flag == "--for"
    name, own = found["name"], found["own"]
    assert (name.flag, name.required, name.kind, name.metavar) == (None, True, Kind.FILE, "NAME")
    assert (own.off, own.type, own.writes) == ("--no-own", bool, True)


@pytest.mark.parametrize(
    ("request_type", "name", "expected"),
    [
        (PlanRequest, "gpu", {"type": str, "is_list": True, "default_text": "all with offers"}),
        (
            BreakevenRequest,
            "model",
            {"place": Placement.EITHER, "flag": "--model", "is_list": False, "kind": Kind.MODEL},
        ),
        (PlanRequest, "max_age", {"type": int, "low": 0, "high": None}),
        (PlanRequest, "trace", {"type": str, "kind": Kind.TRACE}),
        (OwnHardwareRequest, "residual", {"type": float, "takes_text": True}),
        (FitRequest, "context", {"type": int, "takes_text": True, "default": 4096}),
        (Profiled, "profile", {"kind": Kind.FILE, "writes": False}),
        (Shown, "as_json", {"key": "json", "flag": "--json", "writes": True, "type": bool}),
    ],
)
def test_what_the_doors_are_told(request_type: type[Request], name: str, expected: dict[str, Any]) -> None:
    parameter = parameters_of(request_type)[name]
    assert {key: getattr(parameter, key) for key in expected} == expected


@pytest.mark.parametrize(
    ("written", "tokens"),
    [("32k", 32_000), ("1.5M", 1_500_000), (" 4096 ", 4096), ("0.5K", 500), (2048, 2048), ("1e4", 10_000)],
)
def test_tokens_may_be_written_with_k_and_m(written: object, tokens: int) -> None:
    assert FitRequest.checked({"model": "llama-3.1-8b", "gpu": "H100", "context": written}).context == tokens


@pytest.mark.parametrize("written", ["", "k", "32kk", "1.5", "-5k", "1.0005k", "many", "9" * 400, "1e99"])
def test_what_is_no_number_of_tokens_names_its_field(written: str) -> None:
    with pytest.raises(BadInput) as caught:
        SimulateRequest.checked({"gpu": "H100", "max_batched_tokens": written})
    assert caught.value.field == "max_batched_tokens"


def test_tokens_keep_their_bounds() -> None:
    assert SimulateRequest.checked({"gpu": "H100", "max_batched_tokens": "8k"}).max_batched_tokens == 8000
    with pytest.raises(BadInput, match="less than or equal to 1048576"):
        SimulateRequest.checked({"gpu": "H100", "max_batched_tokens": "2M"})


@pytest.mark.parametrize("verb", VERBS.values(), ids=list(VERBS))
def test_every_default_is_one_that_the_request_takes(verb: Any) -> None:
    """A default that its own bounds refuse could be left out but not said."""
    for name, parameter in verb.parameters.items():
        needed = {one.name: one.example or "x" for one in verb.parameters.values() if one.required}
        if parameter.default is not None:
            assert getattr(verb.request.checked({**needed, name: parameter.default}), name) == parameter.default


@pytest.mark.parametrize("verb", VERBS)
def test_the_schema_of_a_request_says_what_a_reader_needs_and_nothing_of_the_doors(verb: str) -> None:
    fields = VERBS[verb].request.model_json_schema()["properties"]
    value = {"type", "anyOf", "items", "minimum", "maximum"}
    for name, parameter in VERBS[verb].parameters.items():
        schema = fields[parameter.key]
        assert set(schema) <= {"title", "description", "unit", "default", "examples"} | value, name
        assert schema["description"] == parameter.help
        assert schema.get("minimum") == parameter.low
        assert schema.get("examples", [None]) == [parameter.example]
        assert not any({"ge", "le"} & set(part) for part in schema.get("anyOf", []))


@pytest.mark.parametrize("given", [40, 40.0, "40", " 40 "])
def test_a_share_without_its_sign_is_asked_for_with_it(given: object) -> None:
    with pytest.raises(BadInput, match=r"margin.*for 40 % write 40% or 0\.4"):
        planned(margin=given)
    assert planned(margin="40%").margin == planned(margin=0.4).margin == 0.4


# --- the line beside an answer is read back by the command line as the request that it was written for ----------------


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
