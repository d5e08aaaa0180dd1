"""The compiled loop against the slow reference: the same answer for every request, in hundreds of small worlds.

``make explore`` tries thousands.
"""

from collections.abc import Callable
from contextlib import suppress
from functools import cache

import numpy as np
from hypothesis import Phase, find, given, settings
from hypothesis.errors import NoSuchExample
from tests.serving.reference import serve
from tests.serving.reference_replica import EngineTimes
from tests.serving.strategies import (
    IN_TURN,
    MOST_INPUT,
    MOST_OUTPUT,
    MOST_REQUESTS,
    MOST_TOKENS_IN_A_STEP,
    Pace,
    World,
    classed_worlds,
    closed_worlds,
    paces,
    session_worlds,
    worlds,
)

from tokonomics.catalog.engines import find_engine
from tokonomics.catalog.gpus import find_gpu
from tokonomics.catalog.load_models import find_model
from tokonomics.physics.deployment import deploy
from tokonomics.physics.steptime import step_model
from tokonomics.serving.loop import run
from tokonomics.serving.state import Requests, Served
from tokonomics.serving.step_table import StepTable, after_s, compile_steps, gpu_s, launching_s


@cache
def table(pace: Pace) -> StepTable:
    deployment = deploy(find_model("llama-3.1-8b"), find_gpu("H100"), find_engine("vllm"))
    made = compile_steps(step_model(deployment), MOST_REQUESTS, MOST_TOKENS_IN_A_STEP, MOST_INPUT + MOST_OUTPUT)
    launches = np.where(np.arange(len(made.launch_s)) > 16, pace.launch_s, pace.launch_s / 3)
    given = {name: value for name, value in pace._asdict().items() if name != "launch_s"}
    return made._replace(launch_s=launches, **given)


def engine(pace: Pace) -> EngineTimes:
    made = table(pace)
    return EngineTimes(
        gpu_s=lambda *step: float(gpu_s(made, *step)),
        launch_s=lambda *step: float(launching_s(made, *step)),
        after_s=lambda *step: float(after_s(made, *step)),
        ahead=made.ahead,
        request_s=made.request_s,
        token_s=made.token_s,
        reach_s=made.reach_s,
        answer_s=made.answer_s,
    )


def plainly(world: World, pace: Pace) -> Served:
    requests, rules, fleet, seed = world
    return serve(requests, engine(pace), rules, fleet, seed)


def assert_same(fast: Served, slow: Served) -> None:
    for name in ("status", "replica", "preemptions", "restarts", "cached_tokens", "attempts"):
        assert getattr(fast, name).tolist() == getattr(slow, name).tolist(), name
    for name in ("arrival_s", "start_s", "first_token_s", "finish_s"):
        # A macro step sums many steps at once: another rounding, nothing else.
        np.testing.assert_allclose(getattr(fast, name), getattr(slow, name), rtol=1e-9, atol=1e-12, err_msg=name)


@given(worlds(), paces())
@settings(max_examples=150, deadline=None)
def test_the_fast_loop_gives_the_answer_of_the_plain_one(world: World, pace: Pace) -> None:
    requests, rules, fleet, seed = world
    fast, _ = run(requests, table(pace), rules, fleet, seed=seed)
    assert_same(fast, plainly(world, pace))


@given(closed_worlds(), paces())
@settings(max_examples=150, deadline=None)
def test_a_closed_loop_gives_the_answer_of_the_plain_one(world: World, pace: Pace) -> None:
    requests, rules, fleet, seed = world
    fast, _ = run(requests, table(pace), rules, fleet, seed=seed)
    assert_same(fast, plainly(world, pace))


@given(session_worlds(), paces())
@settings(max_examples=150, deadline=None)
def test_sessions_and_retries_fare_as_in_the_plain_loop(world: World, pace: Pace) -> None:
    requests, rules, fleet, seed = world
    fast, _ = run(requests, table(pace), rules, fleet, seed=seed)
    assert_same(fast, plainly(world, pace))


@given(classed_worlds(), paces())
@settings(max_examples=100, deadline=None)
def test_classes_that_shed_fare_as_in_the_plain_loop(world: World, pace: Pace) -> None:
    requests, rules, fleet, seed = world
    fast, _ = run(requests, table(pace), rules, fleet, seed=seed)
    assert_same(fast, plainly(world, pace))


SHED_AS: dict[str, Callable[[Served, Requests], bool]] = {
    "at once": lambda served, asked: bool(((served.status == 4) & (served.finish_s == asked.arrival_s)).any()),
    "after a wait": lambda served, asked: bool(((served.status == 4) & (served.finish_s > asked.arrival_s)).any()),
    "after a failure": lambda served, asked: bool(((served.status == 4) & (served.restarts > 0)).any()),
    "where others were served": lambda served, asked: bool({1, 4} <= set(served.status.tolist())),
}


def test_the_worlds_of_classes_reach_every_way_of_shedding() -> None:
    missing = set(SHED_AS)

    def all_seen(world: World) -> bool:
        served = plainly(world, IN_TURN)
        missing.difference_update([what for what in missing if SHED_AS[what](served, world[0])])
        return not missing

    found = settings(max_examples=2000, deadline=None, phases=[Phase.generate], database=None)
    with suppress(NoSuchExample):
        find(classed_worlds(), all_seen, settings=found)
    assert missing == set()


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


def test_the_random_worlds_reach_all_that_can_happen() -> None:
    """In one search: each world is served once, whatever it is looked at for."""
    missing = set(REACHED)

    def all_seen(world: World) -> bool:
        served = plainly(world, IN_TURN)
        missing.difference_update([what for what in missing if REACHED[what](served)])
        return not missing

    found = settings(max_examples=2000, deadline=None, phases=[Phase.generate], database=None)
    with suppress(NoSuchExample):
        find(worlds(), all_seen, settings=found)
    assert missing == set()
