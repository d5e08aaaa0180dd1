"""A refusal keeps its reason through every verb, and comes before any simulation."""

from collections.abc import Callable
from typing import Any

import pytest

from tokonomics.catalog.engines import find_engine
from tokonomics.catalog.gpus import find_gpu
from tokonomics.catalog.load_models import find_model
from tokonomics.physics.deployment import deploy
from tokonomics.physics.steptime import step_model
from tokonomics.questions.cache import cache
from tokonomics.questions.levers import levers
from tokonomics.questions.listener import SILENT
from tokonomics.questions.plan import plan
from tokonomics.questions.requests.buy import PlanRequest
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
from tokonomics.sizing.load import load_of_shape
from tokonomics.sizing.refusal import Reason
from tokonomics.sizing.screen import late_alone
from tokonomics.sizing.search import NeverHolds
from tokonomics.traffic.slo import parse_slos

Ask = Callable[[dict[str, Any]], object]
VERBS: dict[str, Ask] = {
    "simulate": lambda asked: simulate(SimulateRequest.of(asked)),
    "capacity": lambda asked: capacity(CapacityRequest.of({**asked, "rate": None})),
    "cache": lambda asked: cache(CacheRequest.of({**asked, "system_prompts": "2,tokens=16"})),
    "tenants": lambda asked: tenants(TenantsRequest.of({**asked, "tenants": "3"})),
    "levers": lambda asked: levers(LeversRequest.of(asked)),
}
CASES = {
    Reason.too_long: {"model": "qwen3-8b", "gpu": "H100", "input": "const:50000", "output": "const:99"},
    Reason.does_not_fit: {"model": "llama-3.3-70b", "gpu": "L4", "input": "const:900", "output": "const:99"},
}
SLOW = {"model": "qwen3-8b", "gpu": "H100", "input": "const:900", "output": "const:99", "slo": "tpot_p99=1ms"}


@pytest.fixture
def _never_simulated(monkeypatch: pytest.MonkeyPatch) -> None:
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
    deployment = deploy(find_model("qwen3-8b"), find_gpu("H100"), find_engine("vllm"))
    load = load_of_shape(0.1, "const:900", "const:99")
    token_s = float(step_model(deployment).decode(1.0, 900.0))
    tight, loose = (parse_slos(f"tpot_p99={token_s * times}") for times in (0.9, 1.1))
    assert late_alone(deployment, load, tight) is not None
    assert late_alone(deployment, load, loose) is None


@pytest.mark.parametrize(("kind", "asked"), [*CASES.items(), (Reason.too_slow, SLOW)], ids=lambda part: str(part)[:12])
def test_a_plan_has_the_same_kinds_among_its_rejections(kind: Reason, asked: dict[str, Any]) -> None:
    found = plan(PlanRequest.of({**asked, "rate": "0.1", "quick": True, "gpus": 1}), SILENT)
    assert isinstance(found, PlanResult)
    assert found.best is None
    assert kind in {rejection.kind for rejection in found.rejected}
