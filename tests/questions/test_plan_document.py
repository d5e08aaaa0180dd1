"""A plan's document holds whatever its screen and its page show: points of the frontier, APIs, machines, why-nots."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tests.command import Call

import tokonomics as library
from tokonomics.catalog.api_hosts import hosts_of
from tokonomics.catalog.load_models import find_model
from tokonomics.errors import BadInput
from tokonomics.questions.load import load_of
from tokonomics.questions.plan import plan
from tokonomics.questions.request import Request
from tokonomics.questions.requests.buy import BreakevenRequest, CompareRequest, PlanRequest
from tokonomics.questions.requests.traffic import LeversRequest, RouteRequest
from tokonomics.questions.results import PlanResult
from tokonomics.report.plan_view import plan as described

ASKED = {
    "model": ["llama-3.1-8b"], "rate": "40", "input": "const:1500", "output": "const:200",
    "slo": "ttft_p99=1,tpot_p99=60ms", "gpu": ["H100,L40S,L4,V100"], "engine": ["vllm"], "quick": True,
}  # fmt: skip


@cache
def answered() -> tuple[PlanResult, dict[str, Any], str, list[dict[str, Any]]]:
    """The result, its document, the screen's words, and the rows of the frontier as the page draws it."""
    request = PlanRequest.checked(ASKED)
    result = plan(request)
    assert isinstance(result, PlanResult)
    answer = described(result, request)
    return result, result.plain(), answer.text(), answer.charts["Frontier"]().to_dict()["data"]["values"]


def test_every_point_that_is_drawn_is_a_point_of_the_document() -> None:
    _, document, _, rows = answered()
    points = document["frontier"]["points"]
    known = {(point["gpu"], float(f"{point['usd_per_mtok']:.5g}"), point["meets_slo"]) for point in points}
    drawn = [row for row in rows if row["kind"] == "fleet"]
    assert len(drawn) > 10
    assert {(row["gpu"], row["usd"], row["met"]) for row in drawn} <= known
    reasons = {point["why_not"] for point in points if not point["meets_slo"]}
    assert all(row["slo"].removeprefix("missed: ") in reasons for row in drawn if not row["met"])


def test_every_api_that_is_drawn_is_priced_in_the_document() -> None:
    """The hosts that sell the model, each at the price of the mean request."""
    _, document, _, rows = answered()
    apis = {bill["name"]: bill for bill in document["apis"]}
    drawn = [row for row in rows if row["kind"] == "API"]
    assert drawn
    assert all(apis[row["deployment"].removeprefix("API of ")]["usd_per_mtok"] == row["usd"] for row in drawn)
    sellers = {api.seller for api in hosts_of(find_model("llama-3.1-8b"), "llama-3.1-8b")}
    assert len(apis) == len(sellers)
    for bill in apis.values():
        mean = (1500 * bill["input_usd_per_mtok"] + 200 * bill["output_usd_per_mtok"]) / 1700
        assert bill["usd_per_mtok"] == pytest.approx(mean)


def test_hosts_are_the_machines_that_the_pick_can_stand_on_at_their_bills() -> None:
    result, document, _, _ = answered()
    best, hosts = document["best"], document["hosts"]
    same = ("gpu", "gpus_per_replica", "tp", "pp", "ep", "dp", "weights", "kv", "engine")
    alike = [row for row in document["ranked"] if all(row[name] == best[name] for name in same)]
    assert [(row["provider"], row["instance"], row["usd_per_month"]) for row in alike] == [
        (host["provider"], host["instance"], host["usd_per_month"]) for host in hosts
    ]
    assert hosts[0]["usd_per_month"] == best["usd_per_month"]
    for host in hosts:
        assert host["usd_per_month"] == pytest.approx(host["instances"] * host["instance_usd_per_hour"] * 730)
    assert result.hosts[0].provider == best["provider"]


def test_what_was_asked_for_in_vain_the_rival_and_the_published_precision_are_fields() -> None:
    _, document, text, _ = answered()
    said = " ".join(text.split())
    assert "V100" in document["left_out"]
    assert all(f"{name} is left out: {why}" in said for name, why in document["left_out"].items())
    others = [row for row in document["ranked"] if row["gpu"] != document["best"]["gpu"]]
    assert document["rival"]["gpu"] == others[0]["gpu"]
    published = [row for row in document["ranked"] if not row["below_checkpoint"]]
    assert document["at_checkpoint"]["usd_per_month"] >= published[0]["usd_per_month"]
    assert not document["at_checkpoint"]["below_checkpoint"]


def test_a_plan_that_finds_nothing_has_no_frontier() -> None:
    result = plan(PlanRequest.checked(ASKED | {"slo": "tpot_p99=0.01ms", "gpu": ["L4"]}))
    assert isinstance(result, PlanResult)
    assert result.frontier is None
    assert result.blame


# --- ``--headroom`` as it is asked: a share in Python, on the command line and in scenario files; what refuses it -----


TRAFFIC: dict[str, Any] = {"rate": 5, "input": 1000, "output": 300}
QUICK = TRAFFIC | {"gpu": "H100", "quick": True}


def planned(**more: Any) -> Any:
    return library.plan("llama-3.1-8b", **QUICK | more).plain()


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
