"""``--headroom`` as it is asked: a share in Python, on the command line and in scenario files; what refuses it."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.command import Call

import tokonomics as library
from tokonomics.errors import BadInput
from tokonomics.questions.load import load_of
from tokonomics.questions.request import Request
from tokonomics.questions.requests.buy import BreakevenRequest, CompareRequest, PlanRequest
from tokonomics.questions.requests.traffic import LeversRequest, RouteRequest

TRAFFIC: dict[str, Any] = {"rate": 5, "input": 1000, "output": 300}
QUICK = TRAFFIC | {"gpu": "H100", "quick": True}


def planned(**more: Any) -> Any:
    return library.plan("llama-3.1-8b", **QUICK | more).plain()


def test_no_headroom_changes_nothing() -> None:
    assert planned(headroom=0) == planned()


def test_headroom_is_a_share_in_python_and_on_the_command_line(tokonomics: Call, tmp_path: Path) -> None:
    fifth = planned(headroom=0.2)
    assert fifth["headroom_asked"] == 0.2
    assert planned(headroom="20%") == fifth
    scenario = tmp_path / "chat.toml"
    scenario.write_text(
        'model = "llama-3.1-8b"\nrate = 5\ninput = 1000\noutput = 300\ngpu = "H100"\nheadroom = "20%"\n'
    )
    typed = "llama-3.1-8b --rate 5 --input 1000 --output 300 --gpu H100 --headroom 20%"
    for words in (typed.split(), [str(scenario)]):
        made = json.loads(tokonomics("plan", *words, "--quick", "--json").stdout)
        assert made["headroom_asked"] == 0.2
        assert made["best"]["usd_per_month"] == fifth["best"]["usd_per_month"]


@pytest.mark.parametrize("share", [20, -0.1, "twenty"])
def test_what_is_no_share_is_refused(share: object) -> None:
    with pytest.raises(BadInput) as refused:
        planned(headroom=share)
    assert refused.value.field == "headroom"


@pytest.mark.parametrize("kind", [PlanRequest, BreakevenRequest, CompareRequest, RouteRequest, LeversRequest])
def test_every_question_of_planned_traffic_takes_it(kind: Any) -> None:
    several = kind in (PlanRequest, CompareRequest, RouteRequest)
    on: dict[str, Any] = {"model": ["llama-3.1-8b"] if several else "llama-3.1-8b"}
    on |= {"gpu": "H100"} if kind is LeversRequest else {}
    request: Request = kind.checked(on | {name: str(value) for name, value in TRAFFIC.items()} | {"headroom": "20%"})
    load = load_of(request)  # type: ignore[arg-type]
    assert load.headroom == 0.2
    assert load.held_rate == pytest.approx(6)


def test_models_that_share_a_gpu_take_none() -> None:
    with pytest.raises(BadInput) as refused:
        library.plan("llama-3.1-8b", **TRAFFIC | {"headroom": 0.2, "beside": "qwen3-8b,rate=0.1"})
    assert refused.value.field == "headroom"
