"""What is ruled out before it is simulated, or by a part of a simulation, misses its SLOs in the whole one."""

from dataclasses import replace

import numpy as np
import pytest
from tests.deployed import on
from tests.planner.small_catalogue import OFFERS, TODAY

from tokonomics.physics.steptime import step_model
from tokonomics.serving.fleet_settings import Router
from tokonomics.serving.outcome import request_latencies
from tokonomics.sizing.attempt import Attempts, attempt, serve
from tokonomics.sizing.load import Load, load_of_shape
from tokonomics.sizing.screen import floors, held_by_one, least_for
from tokonomics.sizing.setup import Setup
from tokonomics.traffic.generate import Sessions
from tokonomics.traffic.slo import Latency, parse_slos

SLOS = parse_slos("ttft_p99=1,tpot_p99=50ms")


def day(rate: float, slos: str = "ttft_p99=1,tpot_p99=50ms", gpu: str = "L4") -> Setup:
    """A day that is three times as busy at noon as in the mean."""
    load = load_of_shape(rate, "lognormal:mean=500,cv=1", "const:100", arrivals=f"diurnal:{rate},peak=3")
    return Setup(on(gpu=gpu, weights="fp8"), load, OFFERS, TODAY, parse_slos(slos))


def least(setup: Setup) -> int:
    held = held_by_one(setup)
    assert held is not None
    return least_for(setup.load, held, setup.deployment, setup.slos)


def test_the_busiest_hours_need_more_replicas_than_the_mean_but_no_more_than_hold() -> None:
    here = day(4)
    held = held_by_one(here)
    assert held is not None
    by_mean = least_for(here.load, held, here.deployment)
    assert by_mean < least(here) <= 3 * by_mean + 1
    assert not attempt(here, least(here) - 1, whole=False).holds


def test_work_that_may_wait_is_carried_at_the_mean_rate() -> None:
    """Without an SLO on the wait, noon's requests may be answered at night."""
    here = day(4)
    held = held_by_one(here)
    assert held is not None
    only_tokens = parse_slos("tpot_p99=50ms")
    assert least_for(here.load, held, here.deployment, only_tokens) == least_for(here.load, held, here.deployment)


def test_a_constant_rate_has_no_busiest_hours() -> None:
    assert load_of_shape(5, "const:1000", "const:100").rushes == ()


@pytest.mark.parametrize("router", [Router.round_robin, Router.least_outstanding])
@pytest.mark.parametrize("limit", [None, 16])
def test_a_fleet_that_its_busiest_hours_rule_out_misses_in_the_whole_day(router: Router, limit: int | None) -> None:
    here = replace(day(1), router=router)
    verdicts = []
    for replicas in range(1, 4):
        short, whole = (attempt(here, replicas, limit, whole=whole) for whole in (False, True))
        assert short.holds == whole.holds
        verdicts.append(whole.holds)
    assert set(verdicts) == {False, True} or limit


def test_hours_alone_are_late_as_in_the_whole_day_and_sooner_known() -> None:
    made = attempt(day(4), 1, whole=False)
    assert made.simulation is not None
    assert len(made.simulation.trace) < len(day(4).load.trace) / 4
    assert made.wait_late > 1 or made.tokens_late > 1


def agents(rate: float) -> Load:
    return load_of_shape(rate, "const:1000", "const:40", sessions=Sessions(turns=6, think_s=5))


def test_no_fleet_answers_sooner_than_the_floor_of_cached_prompts() -> None:
    """On forty replicas requests hardly meet; each computes what is new behind what is cached."""
    setup = Setup(on(gpu="L4", weights="fp8"), agents(0.5), OFFERS, TODAY, SLOS, router=Router.session_affine)
    steps, slo = step_model(setup.deployment), SLOS[0]
    assert slo.latency is Latency.ttft
    first_s = request_latencies(serve(setup, 40)[0])[Latency.ttft]
    floor_s = floors(steps, setup.load, [slo])[slo]
    assert not np.isnan(first_s).any()
    assert floor_s <= np.percentile(first_s, 99, method="lower") * 1.001
    # Prompts behind nothing, as if the conversation so far took no time.
    computed = np.sort(setup.load.computed_tokens)
    alone_s = float(steps.prefill(computed[int(0.99 * (len(computed) - 1))]))
    assert floor_s > alone_s


def test_alike_prompts_together_are_as_many_and_never_longer() -> None:
    load = agents(0.5)
    prompts = load.cached_prompts
    assert prompts.alike.sum() == len(load.trace)
    ordered = np.sort(np.repeat(prompts.computed, prompts.alike)), np.sort(load.computed_tokens)
    assert (ordered[0] <= ordered[1]).all()
    assert (ordered[0] * 1.11 + 2 >= ordered[1]).all()


def test_a_day_takes_as_many_replicas_as_if_each_try_ran_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    from tokonomics.sizing import attempt as attempts
    from tokonomics.sizing import search

    here = day(1)
    quick = search.fewest(here, Attempts())
    monkeypatch.setattr(attempts, "_late_when_busiest", lambda *given: None)
    attempts.forget_simulations()
    monkeypatch.setattr(search, "closed_form_replicas", lambda setup: 1)
    slow = search.fewest(here, Attempts())
    attempts.forget_simulations()
    assert (quick.replicas, quick.holds) == (slow.replicas, slow.holds)
