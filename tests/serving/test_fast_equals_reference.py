"""The compiled loop against the slow reference: the same answer for every request, in thousands of small worlds."""

from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
from hypothesis import Phase, find, given, settings
from tests.serving.reference import serve
from tests.serving.strategies import MOST_INPUT, MOST_OUTPUT, MOST_REQUESTS, MOST_TOKENS_IN_A_STEP, worlds

from tokonomics.catalog.engines import find_engine
from tokonomics.catalog.gpus import find_gpu
from tokonomics.catalog.load_models import find_model
from tokonomics.physics.deployment import deploy
from tokonomics.serving.loop import run
from tokonomics.serving.state import Fleet, Requests, Rules, Served
from tokonomics.serving.step_table import StepTable, step_s, step_table

World = tuple[Requests, Rules, Fleet]


@cache
def table() -> StepTable:
    deployment = deploy(find_model("llama-3.1-8b"), find_gpu("H100"), find_engine("vllm"))
    return step_table(deployment, MOST_REQUESTS, MOST_TOKENS_IN_A_STEP, MOST_INPUT + MOST_OUTPUT)


def plainly(world: World) -> Served:
    requests, rules, fleet = world
    return serve(requests, lambda *step: float(step_s(table(), *step)), rules, fleet)


def assert_same(fast: Served, slow: Served) -> None:
    for name in ("status", "replica", "preemptions", "restarts", "cached_tokens"):
        assert getattr(fast, name).tolist() == getattr(slow, name).tolist(), name
    for name in ("start_s", "first_token_s", "finish_s"):
        # A macro step sums many steps at once: another rounding, nothing else.
        np.testing.assert_allclose(getattr(fast, name), getattr(slow, name), rtol=1e-9, atol=1e-12, err_msg=name)


@given(worlds())
@settings(max_examples=300, deadline=None)
def test_the_fast_loop_gives_the_answer_of_the_plain_one(world: World) -> None:
    requests, rules, fleet = world
    fast, _ = run(requests, table(), rules, fleet)
    assert_same(fast, plainly(world))


@pytest.mark.slow
@given(worlds())
@settings(max_examples=2000, deadline=None)
def test_the_fast_loop_gives_the_answer_of_the_plain_one_in_many_worlds(world: World) -> None:
    requests, rules, fleet = world
    fast, _ = run(requests, table(), rules, fleet)
    assert_same(fast, plainly(world))


REACHED: dict[str, Callable[[Served], bool]] = {
    "refused": lambda served: 0 in served.status,
    "timed out while waiting": lambda served: bool(((served.status == 2) & np.isnan(served.start_s)).any()),
    "timed out with its answer begun": lambda served: bool(
        ((served.status == 2) & (served.first_token_s < served.finish_s)).any()
    ),
    "never served": lambda served: 3 in served.status,
    "preempted, twice": lambda served: bool((served.preemptions > 1).any()),
    "restarted, twice": lambda served: bool((served.restarts > 1).any()),
    "cached and preempted": lambda served: bool(((served.preemptions > 0) & (served.cached_tokens > 0)).any()),
    "on the fourth replica": lambda served: 3 in served.replica,
}


@pytest.mark.parametrize("what", REACHED)
def test_the_random_worlds_reach(what: str) -> None:
    found = settings(max_examples=2000, deadline=None, phases=[Phase.generate], database=None)
    find(worlds(), lambda world: REACHED[what](plainly(world)), settings=found)
