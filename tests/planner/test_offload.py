"""KV in memories that machines come with, in a plan."""

import pytest
from tests.planner.small_catalogue import asked, offer

from tokonomics.catalog.layers import Precision
from tokonomics.catalog.offer_choice import PROCESS_GIB
from tokonomics.errors import BadInput
from tokonomics.planner.plan_answer import Catch
from tokonomics.planner.prospects import prospects
from tokonomics.questions.load import load_of, question_of
from tokonomics.questions.requests.buy import PlanRequest
from tokonomics.sizing.hosts import HOST_MEMORY
from tokonomics.sizing.load import load_of_shape
from tokonomics.units import BYTES_PER_GB, GIB

TALKS: dict[str, object] = {
    "model": ["llama-3.1-8b"], "rate": "1", "input": "300", "output": "100", "slo": "ttft_p99=2",
}  # fmt: skip


def test_a_replica_has_what_its_host_has_left_and_only_machines_with_as_much_remain() -> None:
    small, large = offer("H100-SXM", 1, 2.0, memory_gb=64), offer("H100-SXM", 1, 3.0, memory_gb=256, instance="big")
    bare = offer("H100-SXM", 1, 1.0, memory_gb=18, instance="bare")
    load = load_of_shape(1.0, "300", "100")
    question = asked(load=load, offers=(small, large, bare), weights=(Precision.bf16,))
    hosts = next(each for each in prospects(question, load) if each.deployment.gpus == 1)
    model = hosts.deployment.model
    expected = (64 - model.weight_bytes(Precision.bf16) / GIB - PROCESS_GIB) * GIB / BYTES_PER_GB
    kept = hosts.with_memories(HOST_MEMORY)
    assert kept.tiers == f"dram={int(expected)}@0"
    assert [machine.offer.instance for machine in kept.machines] == [small.instance, "big"]
    assert hosts.with_memories("dram=9@0,ssd=90@0").tiers == "dram=9@0,ssd=90@0"


def test_a_plan_sets_aside_what_offloading_saves_where_prompts_share_anything() -> None:
    alone = PlanRequest.checked(TALKS)
    shared = PlanRequest.checked(TALKS | {"sessions": "4,think=20"})
    catches = [question_of(each, "llama-3.1-8b", load_of(each), (), False).catches for each in (alone, shared)]
    assert Catch.offload not in catches[0]
    assert catches[1][Catch.offload] == {"tiers": HOST_MEMORY}


@pytest.mark.parametrize(
    ("more", "match"),
    [({"tiers": "host"}, "share nothing"), ({"tiers": "dram=200", "sessions": "4"}, "machines come with")],
)
def test_memories_that_a_plan_cannot_count_are_refused(more: dict[str, str], match: str) -> None:
    request = PlanRequest.checked(TALKS | more)
    with pytest.raises(BadInput, match=match) as caught:
        question_of(request, "llama-3.1-8b", load_of(request), (), False)
    assert caught.value.field == "tiers"
