"""The bill of a simulation: it sums, it follows the price, and each figure is the same by hand."""

from functools import cache

import numpy as np
import pytest
from tests.deployed import on
from tests.there import there

from tokonomics.money.trace_bills import served_cost
from tokonomics.physics.deployment import Deployment
from tokonomics.serving.fleet_settings import FleetSettings
from tokonomics.serving.outcome import Outcome, outcome
from tokonomics.serving.simulator import simulate
from tokonomics.serving.state import DONE
from tokonomics.traffic.trace import make_trace


@cache
def deployment() -> Deployment:
    return on(gpu="H100")


@cache
def overloaded() -> Outcome:
    """Two replicas whose clients hang up; the bill has every line but that of a preemption."""
    rng = np.random.default_rng(1)
    arrival = np.cumsum(rng.exponential(1 / 40, 1500))
    trace = make_trace(arrival, rng.integers(1, 2000, 1500), rng.integers(1, 300, 1500))
    return outcome(simulate(deployment(), trace, FleetSettings(replicas=2), timeout_s=3.0, max_sequences=24))


def test_the_lines_of_a_bill_sum_to_the_paid_hours_at_their_price() -> None:
    made, cost = overloaded(), served_cost(overloaded(), 3.25, "as given")
    assert [line.name for line in cost.tree.lines] == ["prefill", "decode", "recomputed", "abandoned", "idle"]
    assert sum(line.usd for line in cost.tree.lines) == pytest.approx(cost.usd)
    assert cost.usd == pytest.approx(made.replica_hours * 3.25)
    assert cost.tree.line("abandoned").usd > 0
    assert cost.tree.line("idle").usd == pytest.approx(made.shares.idle * cost.usd)


def test_a_token_costs_the_bill_over_the_tokens_of_answered_requests() -> None:
    """Computed from the requests: two replicas for the whole time, at $3.25 an hour each."""
    trace = make_trace([0.0, 1.0, 2.0], [1000, 200_000, 500], [100, 100, 50])
    simulation = simulate(deployment(), trace, FleetSettings(replicas=2))
    assert (simulation.served.status == DONE).tolist() == [True, False, True]
    cost = served_cost(outcome(simulation), 3.25, "as given")
    bill = 2 * float(np.nanmax(simulation.served.finish_s)) / 3600 * 3.25
    assert cost.usd == pytest.approx(bill)
    assert cost.usd_per_mtok == pytest.approx(bill / 1650 * 1e6)
    assert cost.usd_per_mtok_output == pytest.approx(bill / 150 * 1e6)


def test_on_usage_a_token_costs_the_share_of_the_bill_that_full_batches_need() -> None:
    made, cost = overloaded(), served_cost(overloaded(), 3.25, "as given")
    assert made.load_share is not None
    assert 0 < made.load_share < 1
    assert cost.usd_per_mtok_usage == pytest.approx(there(cost.usd_per_mtok) * made.load_share)


def test_nothing_delivered_is_a_bill_without_a_price_of_a_token() -> None:
    refused = outcome(simulate(deployment(), make_trace([0.0, 3600.0], [200_000] * 2, [10] * 2)))
    cost = served_cost(refused, 2.0, "as given")
    assert cost.usd == pytest.approx(2.0)
    assert (cost.usd_per_mtok, cost.usd_per_mtok_output, cost.usd_per_mtok_usage) == (None, None, None)
