"""What sizing refuses no fleet serves, and what it says of it is of the traffic that it names."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.planner.small_catalogue import OFFERS, TODAY
from tests.there import there

from tokonomics.catalog.engines import find_engine
from tokonomics.catalog.gpus import find_gpu
from tokonomics.catalog.load_models import find_model
from tokonomics.physics.calibration import Correction, Profile, using
from tokonomics.physics.deployment import deploy
from tokonomics.serving.capacity import what_breaks
from tokonomics.serving.fleet_settings import Router
from tokonomics.serving.outcome import outcome
from tokonomics.sizing import attempt, search
from tokonomics.sizing.attempt import Attempts, Sized, serve
from tokonomics.sizing.layouts import NotServed
from tokonomics.sizing.load import Load, load_of_log, load_of_shape
from tokonomics.sizing.search import fewest, size
from tokonomics.sizing.setup import Setup
from tokonomics.traffic.slo import parse_slos
from tokonomics.traffic.trace import PrefixBlocks, Trace, make_trace

H100 = deploy(find_model("llama-3.1-8b"), find_gpu("H100"), find_engine("vllm"))
NOW = Setup(H100, load_of_shape(5, "const:1000", "const:100"), OFFERS, TODAY, parse_slos("ttft_p99=0.5"))
BLOCK, TURN = 512, 8


def sessions(count: int, turns: int = 6) -> Trace:
    """Conversations that grow by eight blocks a turn; the next turn begins with all of the last. One, then a night."""
    begins = np.where(np.arange(count) > 0, 1000 + np.arange(count) * 0.25, 0.0)
    arrival = (begins[:, None] + np.arange(turns) * 3.03).ravel()
    tokens = np.tile((np.arange(turns) + 1) * TURN * BLOCK, count)
    order = np.argsort(arrival, kind="stable")
    session, turn = order // turns, order % turns
    blocks = [np.arange((t + 1) * TURN) + s * turns * TURN for s, t in zip(session, turn, strict=True)]
    starts = np.concatenate([[0], np.cumsum([len(block) for block in blocks])]).astype(np.int64)
    prefix = PrefixBlocks(np.concatenate(blocks).astype(np.int32), starts, BLOCK, count * turns * TURN)
    return make_trace(arrival[order], tokens[order], np.full(len(order), 20), prefix=prefix)


def test_what_any_fleet_serves_from_its_cache_is_not_refused() -> None:
    """One request in three alone would find nothing of its own conversation; among all of them it finds nearly all."""
    here = replace(NOW, load=load_of_log(sessions(1000)), router=Router.prefix_aware)
    targeted = replace(here, slos=parse_slos("ttft_p99=0.4"))
    served = [serve(targeted, count)[0] for count in (2, 8, 16)]
    assert any(what_breaks(each, outcome(each, targeted.slos)) is None for each in served)
    assert isinstance(size(targeted), Sized)
    # Without the cache the longest prompts take longer than that, on any fleet.
    assert isinstance(size(replace(targeted, prefix_cache=False)), NotServed)


def test_behind_a_prefix_aware_router_a_smaller_fleet_that_holds_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """60 to 64 hold, more do not up to 120, as was seen of 48, 64, 96, 128: a search that starts at 96 looks back."""
    summed = outcome(serve(NOW, 1)[0], NOW.slos)
    monkeypatch.setattr(search, "closed_form_replicas", lambda setup: 96)
    attempts = Attempts()

    def found(router: Router) -> int:
        def tried(setup: Setup, count: int) -> Sized:
            breaks = None if 60 <= count <= 64 or count > 120 else "late"
            return Sized(replicas=count, router=router, breaks=breaks, outcome=summed)

        monkeypatch.setattr(attempts, "on", tried)
        return fewest(NOW, attempts).replicas

    assert [found(router) for router in (Router.prefix_aware, Router.round_robin)] == [60, 121]


@pytest.mark.usefixtures("simulated_anew")
def test_what_was_simulated_for_one_question_is_known_to_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal set-ups share it however they came about; other traffic, limits or a profile do not."""
    asked = replace(NOW, load=load_of_shape(7, "const:900", "const:90"))
    first = Attempts().once(asked, 1, None)
    simulated = []

    def counted(*given: Any, **more: Any) -> Any:
        simulated.append(given)
        return serve(*given, **more)

    monkeypatch.setattr(attempt, "serve", counted)
    again = replace(asked, load=load_of_shape(7, "const:900", "const:90"), offers=())
    attempts = Attempts()
    assert (attempts.once(again, 1, None), attempts.count, simulated) == (first, 1, [])
    others = (replace(asked, load=asked.load.at(7.1)), 1, None), (asked, 2, None), (asked, 1, 4)
    for number, other in enumerate(others, 1):
        assert attempts.once(*other).outcome != first.outcome
        assert len(simulated) == number
    slow = Correction(gpu="H100-SXM", engine="vllm", model="llama-3.1-8b", tp=1, decode=1.5, loads=4, rows=8)
    profile = Profile(name="mine", made=TODAY, command="test", corrections=(slow,))
    with using(profile):
        slower = attempts.once(asked, 1, None)
    assert there(slower.outcome.tpot_s.p50) > 1.2 * there(first.outcome.tpot_s.p50)
    assert attempts.once(asked, 1, None) == first


def test_apart_too_fewer_sequences_at_a_time_are_tried() -> None:
    """With the engine's own limit, tokens are late on as many replicas of each side."""
    load = load_of_shape(60, "lognormal:mean=300,p99=1500", "lognormal:mean=200,p99=800")
    slow = replace(NOW, load=load, slos=parse_slos("tpot_p99=10.9ms"))
    made = size(replace(slow, disaggregated=True))
    assert isinstance(made, Sized)
    assert made.prefill_replicas
    assert made.max_sequences is not None
    apart = replace(slow, prefill_replicas=made.prefill_replicas, link_bytes_per_s=450e9)  # H100 SXM: NVLink, one way
    unlimited, limited = (attempt.attempt(apart, made.replicas, most) for most in (None, made.max_sequences))
    assert limited.holds
    assert not unlimited.holds


def at_a_constant_rate(seconds: int) -> Load:
    return load_of_log(make_trace(np.arange(0.0, seconds, 0.5), np.full(2 * seconds, 100), np.full(2 * seconds, 20)))


@pytest.mark.parametrize("seconds", [600, 3600, 4000, 5400, 9000, 90_000])
def test_a_constant_load_is_even_however_long_it_lasts(seconds: int) -> None:
    assert search.changes_over_time(at_a_constant_rate(seconds)) == pytest.approx(1, abs=0.01)


def test_the_busiest_hour_is_told_by_the_mean_one() -> None:
    """Three hours, of which the second has twice the requests of the others: 8 of 3 × 16/3."""
    steps = np.concatenate([np.full(7200, 0.5), np.full(14400, 0.25), np.full(7200, 0.5)])
    load = load_of_log(make_trace(np.cumsum(steps), np.full(len(steps), 100), np.full(len(steps), 20)))
    assert search.changes_over_time(load) == pytest.approx(1.5, abs=0.01)


def test_replicas_over_time_are_those_of_the_time_that_counts() -> None:
    """The first minutes, in which replicas start cold and work off what waited, are nobody's steady state."""
    rng = np.random.default_rng(3)
    arrivals = np.sort(rng.uniform(0, 7200, 7200 * 6))
    load = load_of_log(make_trace(arrivals, np.full(len(arrivals), 4000), np.full(len(arrivals), 300)))
    made = size(replace(NOW, load=load, slos=parse_slos("ttft_p90=30"), autoscale=True))
    assert isinstance(made, Sized)
    assert made.by_time is not None
    assert made.by_time[0, 0] == 0
    assert made.span_s < 7200 - 100
    assert made.mean_replicas == pytest.approx(made.outcome.mean_replicas, rel=0.02)


@pytest.mark.parametrize(
    ("late", "needs", "tried_up_to"),
    [
        # As route found agents' sessions on small memories: a lone cold prompt takes 47 s, however few share a replica.
        (lambda count: (8 + 10 / count**2, 4.7 + 44 / count), None, 32),
        # A wait that is shared out goes on falling: 40 replicas hold, and are found.
        (lambda count: (400 / count, 40 / count), 40, 4096),
        # As late as ever, but ever fewer are: nobody else is late in the end.
        (lambda count: (40 / count, 5.0), 40, 4096),
        # Close to the SLO, little is to be gained.
        (lambda count: (1 + 0.5 / count - 1 / 80, 1 + 0.5 / count - 1 / 80), 40, 4096),
    ],
)
def test_a_climb_ends_where_more_replicas_no_longer_help(
    monkeypatch: pytest.MonkeyPatch,
    late: Callable[[int], tuple[float, float]],
    needs: int | None,
    tried_up_to: int,
) -> None:
    summed = outcome(serve(NOW, 1)[0], NOW.slos)
    attempts = Attempts()

    def tried(setup: Setup, count: int) -> Sized:
        breaks = None if needs and count >= needs else "late"
        lateness = np.array(late(count))
        sized = Sized(replicas=count, router=Router.round_robin, breaks=breaks, outcome=summed, late=lateness)
        return attempts.made.setdefault((setup.as_fixed_fleet, count), sized)

    monkeypatch.setattr(attempts, "on", tried)
    found = fewest(NOW, attempts)
    assert found.holds == (needs is not None)
    assert max(attempts.tried(NOW)) <= tried_up_to
    if needs:
        assert found.replicas == needs
