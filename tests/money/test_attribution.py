"""Who pays what of a shared bill: laws over any tenants, and cases worked out by hand."""

import math
from itertools import permutations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.deployed import on
from tests.there import there

from tokonomics.errors import BadInput
from tokonomics.money.attribution import gpu_seconds, shapley, unused_shares
from tokonomics.serving.counted import counted
from tokonomics.serving.outcome import outcome
from tokonomics.serving.simulator import simulate
from tokonomics.traffic.trace import make_trace

dollars = st.floats(0, 1e4)
tenants = st.lists(st.tuples(dollars, dollars, dollars), min_size=2, max_size=8)


@given(tenants, dollars)
def test_shares_sum_to_the_bill_exactly(parts: list[tuple[float, float, float]], unused: float) -> None:
    usage, peak, alone = zip(*parts, strict=True)
    bill = math.fsum(usage) + unused
    shares = unused_shares(bill, usage, peak, alone)
    assert math.fsum([*usage, *shares]) == bill


@given(tenants, st.floats(0, 1))
@example(parts=[(0.0, 0.0, 1.0), (0.0, 5e-324, 2.0)], saved=0.5)  # the smallest load at the peak a number can hold
def test_nobody_pays_more_than_alone_in_a_cheaper_pool(parts: list[tuple[float, float, float]], saved: float) -> None:
    usage = [part[0] for part in parts]
    alone = [part[0] + part[2] for part in parts]
    bill = math.fsum(usage) + (1 - saved) * (math.fsum(alone) - math.fsum(usage))
    shares = unused_shares(bill, usage, [part[1] for part in parts], alone)
    for used, unused, own in zip(usage, shares, alone, strict=True):
        assert unused >= -1e-9
        assert used + unused <= own + 1e-6


def test_a_night_tenant_pays_for_no_readiness() -> None:
    """By day one tenant needs two machines for twelve hours, by night another needs one: a day of two machines is $48.

    They use $24 and $12; the $12 unused are there for the day. Shapley: ((48 + 24) / 2, (24 + 0) / 2).
    """
    shares = unused_shares(48, (24, 12), (2, 0), (48, 24))
    assert [24 + shares[0], 12 + shares[1]] == pytest.approx([36, 12])
    needs = {frozenset({0}): 48.0, frozenset({1}): 24.0, frozenset({0, 1}): 48.0}
    assert shapley(2, needs.__getitem__) == pytest.approx([36, 12])


def test_a_steady_tenant_is_not_charged_for_the_peak_of_another() -> None:
    """One machine all day, and one more for one hour in 24: alone both cost $24, together $48."""
    shares = unused_shares(48, (24, 1), (1, 1), (24, 24))
    assert [24 + shares[0], 1 + shares[1]] == pytest.approx([24, 24])


def test_who_has_the_same_day_pays_the_same_for_a_token() -> None:
    shares = unused_shares(100, (10, 20, 30), (1, 2, 3), (90, 90, 90))
    assert [10 + shares[0], 20 + shares[1], 30 + shares[2]] == pytest.approx([100 / 6, 200 / 6, 300 / 6])


def test_a_pool_that_costs_more_than_the_fleets_apart_is_shared_out_all_the_same() -> None:
    shares = unused_shares(30, (5, 5), (1, 0), (10, 10))
    assert math.fsum(shares) == 20


def test_negative_dollars_are_refused() -> None:
    with pytest.raises(BadInput, match="at least 0"):
        unused_shares(10, (-1, 2), (1, 1), (5, 5))


def test_shapley_of_an_airport_by_hand() -> None:
    """Littlechild and Owen's airport game: runways of 1, 2 and 3; each slice is shared by those who need it."""
    needs = (1.0, 2.0, 3.0)
    values = shapley(3, lambda group: max(needs[each] for each in group))
    assert values == pytest.approx([1 / 3, 1 / 3 + 1 / 2, 1 / 3 + 1 / 2 + 1])


@given(st.lists(st.floats(0, 100), min_size=15, max_size=15))
def test_shapley_is_the_mean_over_every_order_of_joining(costs: list[float]) -> None:
    groups = [frozenset(each for each in range(4) if number >> each & 1) for number in range(1, 16)]
    cost = dict(zip(groups, costs, strict=True)) | {frozenset[int](): 0.0}
    added = np.zeros(4)
    for order in permutations(range(4)):
        for place, player in enumerate(order):
            added[player] += cost[frozenset(order[: place + 1])] - cost[frozenset(order[:place])]
    values = shapley(4, cost.__getitem__)
    assert values == pytest.approx(added / 24, abs=1e-9)
    assert math.fsum(values) == pytest.approx(cost[frozenset(range(4))], abs=1e-9)


def test_gpu_time_sums_to_the_load_and_follows_length() -> None:
    deployment = on(gpu="H100")
    arrival = np.arange(200) * 0.5
    inputs, outputs = np.tile([200, 2000], 100), np.tile([50, 100], 100)
    simulation = simulate(deployment, make_trace(arrival, inputs, outputs))
    prompts_s, answers_s = gpu_seconds(simulation)
    load = there(outcome(simulation).load_share)
    assert prompts_s.sum() + answers_s.sum() == pytest.approx(load * counted(simulation).paid_s)
    assert (prompts_s[1::2] > 5 * prompts_s[0]).all()
    assert (answers_s[1::2] > 2 * answers_s[0]).all()  # twice the tokens, and more KV to read for each
