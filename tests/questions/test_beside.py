"""Models beside the first: how they are written, in a flag, in Python and in a scenario file."""

from pathlib import Path

import pytest

from tokonomics.errors import BadInput, TokonomicsError
from tokonomics.guarded.inputs import checked_inputs
from tokonomics.questions.requests.buy import PlanRequest
from tokonomics.questions.scenario import read_request
from tokonomics.questions.serving import requests_of
from tokonomics.questions.verbs import find_verb

ASKED = {"model": ["llama-3.1-8b"], "rate": 0.2, "input": 1000, "output": 300, "slo": "ttft_p99=1"}


def asked(*beside: object) -> PlanRequest:
    return PlanRequest.checked(ASKED | {"beside": list(beside)})


def test_what_a_model_does_not_say_is_as_for_the_first() -> None:
    first, second = requests_of(asked("qwen3-8b,rate=0.1,output=200"))
    assert first.model == ("llama-3.1-8b",)
    assert (second.model, second.rate, second.input, second.output) == (("qwen3-8b",), "0.1", "1000", "200")
    assert second.slo == "ttft_p99=1"


def test_a_model_has_its_own_slos_and_lengths_with_commas() -> None:
    _, second = requests_of(asked("qwen3-8b,rate=0.1,input=lognormal:mean=800,p99=6k,ttft_p99=3,tpot_p99=50ms"))
    assert second.input == "lognormal:mean=800,p99=6k"
    assert second.slo == "ttft_p99=3,tpot_p99=50ms"


def test_a_scenario_file_has_a_table_for_each(tmp_path: Path) -> None:
    file = tmp_path / "three.toml"
    file.write_text(
        'model = "llama-3.1-8b"\nrate = 0.2\ninput = 1000\noutput = 300\nslo = "ttft_p99=1"\n'
        '[[beside]]\nmodel = "qwen3-8b"\nrate = 0.1\noutput = 200\n'
        '[[beside]]\nmodel = "gemma-2-9b"\nrate = 0.05\nttft_p99 = "2"\n'
    )
    read = read_request(file, PlanRequest, "plan")
    typed = asked("qwen3-8b,rate=0.1,output=200", "gemma-2-9b,rate=0.05,ttft_p99=2")
    assert requests_of(read) == requests_of(typed)
    assert requests_of(asked({"model": "qwen3-8b", "rate": 0.1, "output": 200}))[1] == requests_of(typed)[1]


@pytest.mark.parametrize(
    ("beside", "said"),
    [
        ("qwen3-8b", "has no rate"),
        ("rate=0.1", "names no model"),
        ("qwen3-8b,rate=0.1,outptu=200", "no part of a model's traffic"),
        ("qwen3-8b,rate=0.1,rate=0.2", "given twice"),
    ],
)
def test_a_slip_is_named(beside: str, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        requests_of(asked(beside))


def test_what_is_for_one_model_is_refused() -> None:
    with pytest.raises(BadInput, match="is for one model"):
        requests_of(PlanRequest.checked(ASKED | {"beside": ["qwen3-8b,rate=0.1"], "deploy": ["vllm"]}))


@pytest.mark.parametrize(
    "beside",
    [
        "config.json,rate=0.1",
        "model=secret/config.json,rate=0.1",
        "qwen3-8b,rate=0.1,input=trace:log.csv",
        {"model": "config.json", "rate": 0.1},
        {"model": "qwen3-8b", "rate": 0.1, "output": "trace:log.csv"},
    ],
)
def test_no_path_of_the_disk_gets_in_beside_a_model(beside: object) -> None:
    with pytest.raises(TokonomicsError):
        checked_inputs(find_verb("plan").parameters, {"beside": [beside]}, None)


def test_a_model_of_the_catalogue_gets_in() -> None:
    given = {"beside": [{"model": "Qwen3 8B", "rate": 0.1, "ttft_p99": 2}]}
    taken = checked_inputs(find_verb("plan").parameters, given, None)
    assert requests_of(asked(*taken["beside"])) == requests_of(asked("qwen3-8b,rate=0.1,ttft_p99=2"))


def test_a_quantised_checkpoint_of_the_catalogue_gets_in_with_its_name() -> None:
    taken = checked_inputs(find_verb("plan").parameters, {"model": ["qwen3-8b-fp8", "Qwen3 8B"]}, None)
    assert taken["model"] == ["qwen3-8b-fp8", "qwen3-8b"]
