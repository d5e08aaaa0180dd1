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
from tokonomics.sizing.load import Load, load_of_log, load_of_shape
from tokonomics.sizing.screen import LEEWAY, floors, held_by_one, least_for
from tokonomics.sizing.setup import Setup
from tokonomics.traffic.generate import Sessions
from tokonomics.traffic.slo import Latency, parse_slos
from tokonomics.traffic.trace import Trace, make_trace

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


@pytest.mark.parametrize(
    ("gpu", "quiet", "busy", "lasts_s", "share", "answer"),
    [("H100-SXM", 0.5, 30, 200, 0.005, 30_000), ("L4", 0.3, 5, 300, 0.01, 8_000)],
)
def test_long_answers_that_still_run_after_the_rush_are_not_owed_in_it(
    gpu: str, quiet: float, busy: float, lasts_s: float, share: float, answer: int
) -> None:
    """Five minutes of a rush: a few answers take most of the work and longer than that. One replica holds it."""
    calm = np.arange(0.0, 7200.0, 1 / quiet)
    sent_s = np.sort([*calm, *(3600.1 + np.arange(0.0, lasts_s, 1 / busy))])
    outputs = np.where(np.arange(len(sent_s)) % round(1 / share) == 7, answer, 5)
    load = load_of_log(make_trace(sent_s.tolist(), [50] * len(sent_s), outputs.tolist()))
    here = Setup(on(gpu=gpu, weights="fp8"), load, OFFERS, TODAY, parse_slos("ttft_p99=5"))
    assert attempt(here, 1).holds
    assert least(here) == 1


def test_the_bound_of_a_rush_is_the_first_number_of_replicas_that_does_not_contradict_it() -> None:
    load, slos = day(20).load, parse_slos("ttft_p99=1")
    deployment = on(gpu="L4", weights="fp8")
    for held in (0.01, 0.05, 0.2, 1.0):
        number = 1
        while load.least_rate > number * held * LEEWAY or any(
            rush.work_without(0.01 * rush.of + 1 + number * deployment.limits.max_sequences)
            > number * held * LEEWAY * (rush.lasts_s + 1)
            for rush in load.rushes
        ):
            number += 1
        assert least_for(load, held, deployment, slos) == number


@pytest.mark.parametrize("factor", [0.5, 3.0])
def test_a_faster_replay_has_the_same_rushes_sooner(factor: float) -> None:
    load = day(2).load
    known, anew = replace(load), replace(load)
    assert known.rushes
    kept, made = (one.at(2 * factor).rushes for one in (known, anew))
    for one, other in zip(kept, made, strict=True):
        assert one.lasts_s == pytest.approx(other.lasts_s)
        assert one.of == other.of
        assert one.work_without(50) == pytest.approx(other.work_without(50))


def test_the_work_of_a_rush_is_that_of_its_lightest_requests() -> None:
    """Two requests a minute, then twenty in ten seconds of which three write much."""
    sent_s = [*np.arange(0.0, 2400.0, 30.0), *np.arange(2400.0, 2410.0, 0.5)]
    outputs = [10] * 80 + [1000] * 3 + [10] * 17
    load = load_of_log(make_trace(sent_s, [100] * 100, outputs))
    rush = load.rushes[-2]  # a fifth of all
    assert rush.lasts_s == pytest.approx(9.5)
    assert rush.work_without(0) == 20  # prompts are all alike, and of the whole work the answers are more
    light, heavy = 10 * (100 + 5), 1000 * (100 + 500)  # context read
    assert rush.work_without(3) == pytest.approx(17 * light / ((97 * light + 3 * heavy) / 100))
    assert rush.work_without(20) == 0


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


def test_a_stretch_alone_decides_nothing_if_clients_hang_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who hangs up is not late, and more of them do behind the requests that come before the stretch."""
    from tokonomics.sizing import attempt as attempts

    def looked(trace: Trace, count: int, replicas: int = 1) -> Trace:
        raise AssertionError

    monkeypatch.setattr(attempts, "busiest_of", looked)
    here = day(2)
    with pytest.raises(AssertionError):
        attempt(here, 1, whole=False)
    attempt(replace(here, handling=replace(here.handling, timeout_s=30.0)), 1, whole=False)


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
