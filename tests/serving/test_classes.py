"""Classes of service in the simulator: small worlds by hand, and the closed form of a queue with priorities."""

import math

import numpy as np
import pytest
from tests.deployed import on
from tests.serving.small_worlds import ROOMY, asked, flat_table

from tokonomics.errors import BadInput
from tokonomics.serving.capacity import what_breaks
from tokonomics.serving.class_outcome import class_outcomes
from tokonomics.serving.fleet_settings import FleetSettings
from tokonomics.serving.loop import run
from tokonomics.serving.outcome import outcome, records
from tokonomics.serving.simulator import Simulation, simulate
from tokonomics.serving.state import DONE, SHED, Served
from tokonomics.traffic.slo import parse_classes
from tokonomics.traffic.tenants import classed
from tokonomics.traffic.trace import Trace, make_trace

STEP = 10.0
NONE = np.iinfo(np.int32).max
GOLD, FREE = 0, 1


def one_server(
    arrivals: np.ndarray,
    urgency: list[int] | np.ndarray,
    max_wait: dict[int, float] | None = None,
    max_queue: dict[int, int] | None = None,
) -> Served:
    count = len(arrivals)
    wait_s = np.array([(max_wait or {}).get(int(one), np.inf) for one in urgency])
    limits = np.array([(max_queue or {}).get(int(one), NONE) for one in urgency], np.int32)
    classes = {"urgency": np.asarray(urgency, np.int32), "shed_s": arrivals + wait_s, "queue_limit": limits}
    requests = asked(arrivals, np.full(count, 8), np.ones(count), **classes)
    # With one place, a request of one token of output is a job of ten seconds for a single server.
    return run(requests, flat_table(STEP, STEP), ROOMY._replace(max_sequences=1), FleetSettings())[0]


ARRIVE = np.array([0.0, 1.0, 2.0, 3.0, 4.0])
WHO = [FREE, FREE, GOLD, FREE, GOLD]


def test_gold_overtakes_whoever_waits_and_nobody_who_runs() -> None:
    """The first runs until 10; then both of gold, then the others, each in order of arrival."""
    served = one_server(ARRIVE, WHO)
    assert served.start_s == pytest.approx([0.0, 30.0, 10.0, 40.0, 20.0])
    assert served.finish_s == pytest.approx([10.0, 40.0, 20.0, 50.0, 30.0])


def test_who_has_waited_as_long_as_its_class_does_is_shed_then() -> None:
    """Behind both of gold the others would begin at 30 and 40: after 25 they are gone, at 26 and at 28."""
    served = one_server(ARRIVE, WHO, max_wait={FREE: 25.0})
    assert served.status.tolist() == [DONE, SHED, DONE, SHED, DONE]
    assert served.finish_s == pytest.approx([10.0, 26.0, 20.0, 28.0, 30.0])
    # The first is gone at 29: the second, which waits until 31, gets its turn at 30.
    longer = one_server(ARRIVE, WHO, max_wait={FREE: 28.0})
    assert longer.status.tolist() == [DONE, SHED, DONE, DONE, DONE]
    assert longer.start_s[3] == pytest.approx(30.0)


def test_who_finds_as_many_before_it_as_its_class_allows_is_turned_away_at_once() -> None:
    """The free request of 3 finds one of its own and one of gold waiting; gold counts gold alone."""
    served = one_server(ARRIVE, WHO, max_queue={FREE: 2, GOLD: 2})
    assert served.status.tolist() == [DONE, DONE, DONE, SHED, DONE]
    assert served.finish_s[3] == 3.0
    assert one_server(ARRIVE, WHO, max_queue={FREE: 3, GOLD: 1}).status.tolist() == [DONE, DONE, DONE, DONE, SHED]


def test_waits_are_those_of_a_queue_with_priorities() -> None:
    """Cobham (1954): W_k = W_0 / ((1 - s_(k-1)) (1 - s_k)), with s_k the load of class k and those before it.

    W_0 is half the service time times the load where all take equally long. And who overtakes whom changes no sum of
    waits, to the last request, when all jobs are of one length.
    """
    rng, count, load, gold = np.random.default_rng(7), 300_000, 0.8, 0.3
    arrivals = np.cumsum(rng.exponential(STEP / load, count))
    urgency = np.where(rng.random(count) < gold, GOLD, FREE)
    waits = one_server(arrivals, urgency).start_s - arrivals
    first_s = load * STEP / 2
    of_gold, of_all = load * gold, load
    assert waits[urgency == GOLD].mean() == pytest.approx(first_s / (1 - of_gold), rel=0.03)
    assert waits[urgency == FREE].mean() == pytest.approx(first_s / ((1 - of_gold) * (1 - of_all)), rel=0.03)
    in_turn = one_server(arrivals, np.zeros(count, np.int32)).start_s - arrivals
    assert waits.sum() == pytest.approx(in_turn.sum(), rel=1e-9)


def test_a_queue_of_one_answers_what_erlang_says() -> None:
    """At most one waits: of Poisson arrivals to a single server with room for two, by the embedded chain of M/D/1/2.

    With a = rate times service, the share turned away is 1 - 1 / (a + e^-a): pi_0 = e^-a is the chance that a job ends
    with nobody waiting, and p_0 = pi_0 / (pi_0 + a) that the server stands idle.
    """
    rng, count, a = np.random.default_rng(3), 300_000, 1.5
    arrivals = np.cumsum(rng.exponential(STEP / a, count))
    served = one_server(arrivals, np.zeros(count, np.int32), max_queue={0: 1})
    assert (served.status == SHED).mean() == pytest.approx(1 - 1 / (a + math.exp(-a)), rel=0.01)


def served_with(*classes: str, count: int = 400, rate: float = 60.0) -> Simulation:
    trace = make_trace(np.arange(count) / rate, np.full(count, 500), np.full(count, 50))
    return simulate(on(gpu="L4"), classed(trace, parse_classes(classes)), max_sequences=8)


def test_a_class_is_judged_by_its_own_requests() -> None:
    made = served_with("gold,share=25%,slo=ttft_p90=60,priority=0", "free,slo=ttft_p90=60,priority=1")
    gold, free = class_outcomes(made)
    ttft = made.served.first_token_s - made.trace.arrival_s
    for place, found in enumerate((gold, free)):
        own = ttft[made.trace.service == place]
        assert found.ttft_s.p90 == pytest.approx(np.percentile(own, 90))
        assert found.within == pytest.approx((own <= 60).mean())
        assert (found.breaks is None) == (np.percentile(own, 90) <= 60)
    assert (gold.breaks is None, free.breaks is None) == (True, False)
    assert "of free" in (what_breaks(made, outcome(made)) or "")
    assert gold.requests + free.requests == len(made.trace)


def test_what_is_shed_is_a_miss_unless_the_class_allows_it() -> None:
    others = "free,slo=ttft_p90=100,priority=1,max_wait=5"
    unasked, allowed, too_many = (
        class_outcomes(served_with("gold,share=25%,priority=0", f"{others}{more}"))[1]
        for more in ("", ",shed=99%", ",shed=1%")
    )
    assert unasked.shed == allowed.shed > 0.1 * unasked.requests
    assert unasked.breaks is not None
    assert "never" not in unasked.breaks
    assert allowed.breaks is None
    assert too_many.breaks == f"{round(100 * too_many.shed_share)} % of free is turned away; 1 % may be"


def test_the_shed_are_counted_apart_from_those_that_hang_up() -> None:
    made = served_with("all,max_wait=5", count=300)
    found = outcome(made)
    assert found.shed == np.count_nonzero(made.served.status == SHED) > 0
    assert (found.timed_out, found.failed) == (0, found.shed)
    assert (records(made)["status"] == "shed").sum() == found.shed
    waited = made.served.start_s - made.trace.arrival_s
    assert np.nanmax(waited) <= 5.0


def test_users_of_a_closed_loop_are_not_turned_away() -> None:
    trace: Trace = classed(make_trace(np.zeros(4), np.full(4, 50), np.full(4, 5)), parse_classes(["all,max_wait=1"]))
    with pytest.raises(BadInput, match="wait for their answers"):
        simulate(on(gpu="L4"), trace, FleetSettings(users=2))
