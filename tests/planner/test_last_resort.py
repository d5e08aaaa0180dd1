"""The last resort: an assumed speed or network, or several consumer cards, only where nothing else serves, and said."""

from dataclasses import replace

import pytest
from tests.there import there

from tokonomics.catalog.checkpoints import checkpoint_for
from tokonomics.catalog.gpus import all_gpus, find_gpu
from tokonomics.catalog.layers import Precision
from tokonomics.catalog.load_models import find_model
from tokonomics.catalog.offers import Offer
from tokonomics.planner.plan import Question, Study, study, widened
from tokonomics.planner.plan_answer import LAST_RESORT, Catch
from tokonomics.planner.prospects import takes_many_cards
from tokonomics.questions.load import questions_of
from tokonomics.questions.requests.buy import PlanRequest
from tokonomics.sizing.hosts import is_networked
from tokonomics.types import Speed

NO_OFFER_BEFORE = (
    "deepseek-v3.2",
    "glm-5",
    "glm-5.1",
    "glm-5.2",
    "minimax-m3",
    "nemotron-3-super-120b-a12b",
    "nemotron-3-ultra-550b-a55b",
    "qwen3-next-80b-a3b",
    "qwen3.5-122b-a10b",
    "qwen3.5-397b-a17b",
)
"""Models of which an NVFP4 checkpoint is listed, and whose speed is assumed on every GPU that is sold."""


def asked(model: str, **inputs: str | bool | list[str]) -> Question:
    shape = {"model": [model], "rate": "1", "input": "1000", "output": "300", "quick": True}
    (question,) = questions_of(PlanRequest.checked(shape | inputs), quick=True)
    return question


def in_nvfp4(question: Question) -> Question:
    """Ask for the model as its NVFP4 checkpoint publishes it."""
    assert checkpoint_for(question.model, Precision.nvfp4)
    parts = dict.fromkeys(("checkpoint_bytes", "mixer_checkpoint", "dense_checkpoint"))
    model = question.model.model_copy(update={"checkpoint": Precision.nvfp4, **parts})
    return replace(question, model=model, weights=None)


def without_last_resort(question: Question) -> Question:
    return replace(question, catches={name: kept for name, kept in question.catches.items() if name not in LAST_RESORT})


def picked(made: Study) -> Speed:
    return there(made.plan.best).speed


@pytest.mark.parametrize("name", NO_OFFER_BEFORE)
def test_a_model_whose_speed_is_assumed_everywhere_gets_the_best_assumed_offer(name: str) -> None:
    question = in_nvfp4(asked(name))
    assert study(without_last_resort(question), pick_only=True).plan.best is None
    made = study(question, pick_only=True)
    assert made.plan.only_with == (Catch.assumed_speed,)
    assert picked(made) is Speed.assumed
    assert there(made.plan.best).network is None
    # It is the one that allowing assumed speeds from the start gives.
    allowed = study(replace(without_last_resort(question), assumed_speeds=True), pick_only=True)
    assert there(allowed.plan.best).usd_per_month == there(made.plan.best).usd_per_month


def test_with_a_known_speed_nothing_is_assumed_and_the_assumed_stays_below() -> None:
    question = asked("llama-3.1-8b")
    made = study(question)
    assert made.plan.only_with == ()
    assert picked(made) is not Speed.assumed
    assert there(made.plan.best) == there(study(without_last_resort(question)).plan.best)
    for aside in made.plan.set_aside:
        assert aside.candidate.usd_per_month < there(made.plan.best).usd_per_month


def test_nvfp4_asked_for_is_picked_where_it_was_timed() -> None:
    shape = {"model": ["qwen3-30b-a3b"], "weights": ["nvfp4"], "rate": "1", "input": "1000", "output": "300"}
    (question,) = questions_of(PlanRequest.checked(shape | {"quick": True}), quick=True)
    timed, untimed = machines("RTXPRO6000", 1, 3.0), machines("L40S", 1, 1.0)
    both = study(replace(question, offers=(timed, untimed)))
    assert (there(both.plan.best).gpu, picked(both), both.plan.only_with) == ("RTXPRO6000", Speed.timed, ())
    assert all(row.speed is not Speed.assumed for row in both.plan.ranked)
    (aside,) = [one for one in both.plan.set_aside if one.catch is Catch.assumed_speed]
    assert aside.candidate.gpu == "L40S"
    # With nothing else for sale it is the answer, and it says so; naming the GPU accepts it.
    alone = study(replace(question, offers=(untimed,)))
    assert (there(alone.plan.best).gpu, alone.plan.only_with) == ("L40S", (Catch.assumed_speed,))
    (named,) = questions_of(PlanRequest.checked(shape | {"gpu": ["L40S"], "quick": True}), quick=True)
    made = study(named, pick_only=True)
    assert (there(made.plan.best).gpu, made.plan.only_with) == ("L40S", ())


def test_weights_that_were_timed_on_no_gpu_are_picked_when_asked_for() -> None:
    made = study(asked("llama-3.1-8b", weights=["int4"]), pick_only=True)
    assert (picked(made), made.plan.only_with) == (Speed.assumed, ())


def test_the_catches_are_let_in_one_after_the_other() -> None:
    question = asked("llama-3.1-8b")
    tries = list(widened(question))
    assert [taken for _, taken in tries] == [LAST_RESORT[:count] for count in range(4)]
    assert [(one.assumed_speeds, one.assumed_networks, one.consumer_cards) for one, _ in tries] == [
        (False, False, False), (True, False, False), (True, True, False), (True, True, True)
    ]  # fmt: skip
    named = asked("llama-3.1-8b", gpu=["RTX4090"])
    assert (named.assumed_speeds, named.assumed_networks, named.consumer_cards) == (True, False, True)


def test_consumer_cards_are_geforce_and_radeon_rx() -> None:
    consumer = {gpu.key for gpu in all_gpus() if gpu.consumer}
    assert {"RTX3090", "RTX4090", "RTX5090", "RX7900XTX"} <= consumer
    assert not consumer & {"RTXPRO6000", "RTX6000-Ada", "L40S", "A6000", "H100-SXM", "MI300X"}


def machines(gpu: str, gpus: int, usd: float, **more: float | str) -> Offer:
    return Offer.model_validate(
        {"provider": "mine", "instance": f"{gpus}x{gpu}", "region": "here", "gpu": gpu, "gpus": gpus,
         "usd_per_hour": usd, "date": asked("llama-3.1-8b").today, "source": "test", "memory_gb": 2000, **more}
    )  # fmt: skip


def of(model: str, *offers: Offer, consumer_cards: bool = False) -> Study:
    question = replace(asked(model), offers=offers, consumer_cards=consumer_cards)
    return study(question)


def test_two_consumer_cards_are_picked_and_more_are_not_unless_named() -> None:
    cards, server = machines("RTX4090", 8, 2.0), machines("H100-SXM", 8, 40.0)
    two = of("qwen3-14b", machines("RTX4090", 2, 0.5), server)  # 29.5 GB in 16 bits, 15 in 8
    assert there(two.plan.best).gpu == "RTX4090"
    # 141 GB in 16 bits and 71 in 8: four cards of 24 GB or more a replica.
    many = of("llama-3.3-70b", cards, server)
    best = there(many.plan.best)
    assert (best.gpu, many.plan.only_with) == ("H100-SXM", ())
    (aside,) = [one for one in many.plan.set_aside if one.catch is Catch.consumer_cards]
    assert aside.candidate.gpu == "RTX4090"
    assert aside.candidate.gpus_per_replica > 2
    named = of("llama-3.3-70b", cards, server, consumer_cards=True)
    assert there(named.plan.best).gpu == "RTX4090"
    # With nothing else for sale they are the answer, and it says so.
    alone = of("llama-3.3-70b", cards)
    assert there(alone.plan.best).gpu == "RTX4090"
    assert alone.plan.only_with == (Catch.consumer_cards,)
    assert takes_many_cards(alone.ranked[0].sized.deployment)


def test_a_replica_spans_machines_only_over_a_network_that_its_seller_states() -> None:
    gpu = find_gpu("H100-SXM")
    unstated = machines("H100-SXM", 8, 10.0)
    stated = machines("H100-SXM", 8, 20.0, network_gbit=8 * gpu.network_bytes_per_s * 8 / 1e9, provider="other")
    assert is_networked(gpu, stated)
    assert not is_networked(gpu, unstated)
    # 1.03 T parameters in FP8 are two machines of eight GPUs of 80 GB.
    both = of("kimi-k2", unstated, stated)
    best = there(both.plan.best)
    assert (best.provider, best.network) == ("other", "stated")
    (aside,) = [one for one in both.plan.set_aside if one.catch is Catch.assumed_network]
    assert (aside.candidate.provider, aside.candidate.network) == ("mine", "assumed")
    alone = of("kimi-k2", unstated)
    assert there(alone.plan.best).network == "assumed"
    assert alone.plan.only_with == (Catch.assumed_network,)
    slow = machines("H100-SXM", 8, 10.0, network_gbit=100)
    assert of("kimi-k2", slow).plan.only_with == (Catch.assumed_network,)


def test_no_default_plan_of_a_large_model_rests_on_consumer_cards_or_an_assumed_network() -> None:
    for name in ("kimi-k2.5", "kimi-k3", "glm-5", "llama-3.1-405b"):
        question = asked(name)
        for one in (question, in_nvfp4(question) if checkpoint_for(question.model, Precision.nvfp4) else question):
            made = study(one, pick_only=True)
            assert there(made.plan.best).network != "assumed", name
            assert not takes_many_cards(made.ranked[0].sized.deployment), name
            assert find_model(name).key == made.plan.model
