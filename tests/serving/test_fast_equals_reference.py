"""The compiled loop against the slow reference: the same answer for every request, in hundreds of small worlds.

``make explore`` tries thousands.
"""

from collections.abc import Callable
from contextlib import suppress
from functools import cache

import numpy as np
import pytest
from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st
from hypothesis.errors import NoSuchExample
from tests.deployed import on
from tests.serving.reference import serve
from tests.serving.small_worlds import times_of
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

from tokonomics.physics.steptime import step_model
from tokonomics.serving.loop import run
from tokonomics.serving.state import Requests, Served
from tokonomics.serving.step_table import StepTable, compile_steps


@cache
def table(pace: Pace) -> StepTable:
    made = compile_steps(step_model(on()), MOST_REQUESTS, MOST_TOKENS_IN_A_STEP, MOST_INPUT + MOST_OUTPUT)
    launches = np.where(np.arange(len(made.launch_s)) > 16, pace.launch_s, pace.launch_s / 3)
    given = {name: value for name, value in pace._asdict().items() if name != "launch_s"}
    return made._replace(launch_s=launches, **given)


def plainly(world: World, pace: Pace) -> Served:
    requests, rules, fleet, seed = world
    return serve(requests, times_of(table(pace)), rules, fleet, seed)


def assert_same(fast: Served, slow: Served) -> None:
    for name in ("status", "replica", "preemptions", "restarts", "cached_tokens", "attempts"):
        assert getattr(fast, name).tolist() == getattr(slow, name).tolist(), name
    for name in ("arrival_s", "start_s", "first_token_s", "finish_s"):
        # A macro step sums many steps at once: another rounding, nothing else.
        np.testing.assert_allclose(getattr(fast, name), getattr(slow, name), rtol=1e-9, atol=1e-12, err_msg=name)


@pytest.mark.parametrize("kind", [worlds, closed_worlds, session_worlds, classed_worlds])
@given(data=st.data(), pace=paces())
@settings(max_examples=150, deadline=None)
def test_the_fast_loop_gives_the_answer_of_the_plain_one(
    kind: Callable[[], st.SearchStrategy[World]], data: st.DataObject, pace: Pace
) -> None:
    world = data.draw(kind())
    requests, rules, fleet, seed = world
    fast, _ = run(requests, table(pace), rules, fleet, seed=seed)
    assert_same(fast, plainly(world, pace))


SHED_AS: dict[str, Callable[[Served, Requests], bool]] = {
    "at once": lambda served, asked: bool(((served.status == 4) & (served.finish_s == asked.arrival_s)).any()),
    "after a wait": lambda served, asked: bool(((served.status == 4) & (served.finish_s > asked.arrival_s)).any()),
    "after a failure": lambda served, asked: bool(((served.status == 4) & (served.restarts > 0)).any()),
    "where others were served": lambda served, asked: bool({1, 4} <= set(served.status.tolist())),
}


REACHED: dict[str, Callable[[Served, Requests], bool]] = {
    "refused": lambda served, asked: 0 in served.status,
    "timed out while waiting": lambda served, asked: bool(((served.status == 2) & np.isnan(served.start_s)).any()),
    "timed out with its answer begun": lambda served, asked: bool(
        ((served.status == 2) & (served.first_token_s < served.finish_s)).any()
    ),
    "never served": lambda served, asked: 3 in served.status,
    "preempted, twice": lambda served, asked: bool((served.preemptions > 1).any()),
    "restarted, twice": lambda served, asked: bool((served.restarts > 1).any()),
    "cached and preempted": lambda served, asked: bool(((served.preemptions > 0) & (served.cached_tokens > 0)).any()),
    "on the fourth replica": lambda served, asked: 3 in served.replica,
}


@pytest.mark.parametrize(("kind", "reached"), [(worlds, REACHED), (classed_worlds, SHED_AS)])
def test_the_random_worlds_reach_all_that_can_happen(
    kind: Callable[[], st.SearchStrategy[World]], reached: dict[str, Callable[[Served, Requests], bool]]
) -> None:
    """In one search: each world is served once, whatever it is looked at for."""
    missing = set(reached)

    def all_seen(world: World) -> bool:
        served = plainly(world, IN_TURN)
        missing.difference_update([what for what in missing if reached[what](served, world[0])])
        return not missing

    found = settings(max_examples=2000, deadline=None, phases=[Phase.generate], database=None)
    with suppress(NoSuchExample):
        find(kind(), all_seen, settings=found)
    assert missing == set()
