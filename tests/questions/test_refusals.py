"""A refusal keeps its reason through every verb, and comes before any simulation."""

import re
from collections.abc import Callable
from typing import Any

import pytest
from tests.deployed import on

from tokonomics.catalog.api_hosts import list_apis
from tokonomics.catalog.gpus import find_gpu
from tokonomics.catalog.offers import load_offers
from tokonomics.errors import BadInput, UnknownName, option
from tokonomics.physics.steptime import step_model
from tokonomics.questions import fleet as question
from tokonomics.questions.levers import cache, levers
from tokonomics.questions.plan import plan
from tokonomics.questions.request import SILENT
from tokonomics.questions.requests.buy import FleetRequest, PlanRequest
from tokonomics.questions.requests.traffic import (
    CacheRequest,
    CapacityRequest,
    LeversRequest,
    SimulateRequest,
    TenantsRequest,
)
from tokonomics.questions.results import PlanResult
from tokonomics.questions.simulate import capacity, simulate
from tokonomics.questions.tenants import tenants
from tokonomics.serving import simulator
from tokonomics.sizing import attempt
from tokonomics.sizing.layouts import Reason
from tokonomics.sizing.load import load_of_shape
from tokonomics.sizing.screen import late_alone
from tokonomics.sizing.search import NeverHolds
from tokonomics.traffic.slo import parse_slos

Ask = Callable[[dict[str, Any]], object]
VERBS: dict[str, Ask] = {
    "simulate": lambda asked: simulate(SimulateRequest.checked(asked)),
    "capacity": lambda asked: capacity(CapacityRequest.checked({**asked, "rate": None})),
    "cache": lambda asked: cache(CacheRequest.checked({**asked, "system_prompts": "2,tokens=16"})),
    "tenants": lambda asked: tenants(TenantsRequest.checked({**asked, "tenants": "3"})),
    "levers": lambda asked: levers(LeversRequest.checked(asked)),
}
CASES = {
    Reason.too_long: {"model": "qwen3-8b", "gpu": "H100", "input": "const:50000", "output": "const:99"},
    Reason.does_not_fit: {"model": "llama-3.3-70b", "gpu": "L4", "input": "const:900", "output": "const:99"},
}
SLOW = {"model": "qwen3-8b", "gpu": "H100", "input": "const:900", "output": "const:99", "slo": "tpot_p99=1ms"}


@pytest.fixture
def _never_simulated(monkeypatch: pytest.MonkeyPatch, simulated_anew: None) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("it was simulated")

    monkeypatch.setattr(attempt, "serve", refuse)
    monkeypatch.setattr("tokonomics.questions.simulate.run", refuse)
    monkeypatch.setattr(simulator, "simulate", refuse)


@pytest.mark.usefixtures("_never_simulated")
@pytest.mark.parametrize("kind", CASES, ids=lambda kind: kind.name)
@pytest.mark.parametrize("verb", VERBS)
def test_context_and_memory_are_refused_at_once_by_their_own_reason(verb: str, kind: Reason) -> None:
    with pytest.raises(NeverHolds) as refused:
        VERBS[verb]({**CASES[kind], "rate": "0.1"})
    assert refused.value.refused.kind is kind
    assert "larger GPU" not in str(refused.value) or kind is Reason.does_not_fit


@pytest.mark.usefixtures("_never_simulated")
@pytest.mark.parametrize("verb", sorted(VERBS.keys() - {"simulate", "cache"}))
def test_an_slo_below_a_lone_request_is_refused_at_once(verb: str) -> None:
    with pytest.raises(NeverHolds) as refused:
        VERBS[verb]({**SLOW, "rate": "0.1"})
    assert refused.value.refused.kind is Reason.too_slow


def test_the_floor_is_that_of_the_step_model() -> None:
    """A token after a prompt of 900 on an idle H100: an SLO of nine tenths of it is refused, of 11 tenths not."""
    deployment = on("qwen3-8b", "H100")
    load = load_of_shape(0.1, "const:900", "const:99")
    token_s = float(step_model(deployment).decode(1.0, 900.0))
    tight, loose = (parse_slos(f"tpot_p99={token_s * times}") for times in (0.9, 1.1))
    assert late_alone(deployment, load, tight) is not None
    assert late_alone(deployment, load, loose) is None


@pytest.mark.parametrize(("kind", "asked"), [*CASES.items(), (Reason.too_slow, SLOW)], ids=lambda part: str(part)[:12])
def test_a_plan_has_the_same_kinds_among_its_rejections(kind: Reason, asked: dict[str, Any]) -> None:
    found = plan(PlanRequest.checked({**asked, "rate": "0.1", "quick": True, "gpus": 1}), SILENT)
    assert isinstance(found, PlanResult)
    assert found.best is None
    assert kind in {rejection.kind for rejection in found.rejected}


def test_what_needs_several_machines_is_told_the_split_to_give_and_a_gpu_of_which_one_machine_is_enough() -> None:
    """DeepSeek V3 has 671 billion weights of a byte: more than eight GPUs of 80 GB, less than sixteen."""
    asked = {"model": "deepseek-v3", "gpu": "H100", "rate": "1", "input": "const:500", "output": "const:100"}
    with pytest.raises(NeverHolds) as refused:
        simulate(SimulateRequest.checked(asked))
    assert refused.value.fix is not None
    assert f"{option('tp', 8)} {option('pp', 2)}" in refused.value.fix
    found = re.search(f"{option('gpu', '(.+?)')} {option('tp', 8)}", refused.value.fix)
    assert found is not None
    one = find_gpu(found[1])
    assert (one.gpus_per_node, 8 * one.memory_gb > 671) == (8, True)


def test_a_gpu_that_nobody_offers_is_not_blamed_on_the_other_filters() -> None:
    assert not [offer for offer in load_offers() if offer.gpu == "MI355X"]
    asked: dict[str, object] = {"model": ("llama-3.1-8b",), "rate": "1", "input": "500", "output": "100"}
    for more in ({"gpu": ("MI355X",)}, {"gpu": ("MI355X",), "provider": ("aws",)}):
        with pytest.raises(BadInput, match="no public price of MI355X is known"):
            plan(PlanRequest.checked(asked | more))


def test_a_closed_model_is_told_where_its_prices_are() -> None:
    asked = {"rate": "1", "input": "500", "output": "100"}
    assert any(api.model == "gpt-5" for api in list_apis())
    with pytest.raises(UnknownName) as closed:
        plan(PlanRequest.checked(asked | {"model": ("gpt-5",)}))
    assert "`tokonomics apis gpt-5`" in (closed.value.fix or "")
    with pytest.raises(UnknownName) as misspelt:
        plan(PlanRequest.checked(asked | {"model": ("llama-3.1-8bb",)}))
    assert "Did you mean llama-3.1-8b" in (misspelt.value.fix or "")


# --- what a fleet is asked for is checked before anything is simulated ------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        ({"scaling": True}, "scaling"),
        ({"scaling": True, "slo": "ttft_p99=5", "terms": "reserved"}, "scaling"),
        ({"scaling": True, "slo": "ttft_p99=5", "batch_work": "60X"}, "batch_work"),
        ({"scaling_room": 0.2}, "scaling_room"),
        ({"batch_work": "60M,deadline=0"}, "batch_work"),
        ({"batch_work": "60M", "hours": 30}, "batch_work"),
        ({"batch_work": "60M", "size_classes": "500"}, "batch_work"),
    ],
)
def test_wrong_input_is_refused_at_once(asked: dict[str, Any], field: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(question, "fleet_machines", lambda *_, **__: pytest.fail("simulated first"))
    day: dict[str, Any] = {"demand": "12x2,12x1", "input": "900", "output": "99", "gpu": ("L40S",), "provider": "aws"}
    with pytest.raises(BadInput) as refused:
        question.fleet(FleetRequest.model_validate({"model": "llama-3.1-8b", **day, **asked}))
    assert refused.value.field == field


def test_a_misspelt_agent_is_refused_before_its_missing_lengths() -> None:
    asked = {"model": "llama-3.1-8b", "gpu": "H100", "rate": "2", "sessions": "agnet"}
    with pytest.raises(BadInput, match="did you mean agent") as caught:
        simulate(SimulateRequest.checked(asked))
    assert caught.value.field == "sessions"
