"""The cost equation, its inverses, load profiles and cost trees."""

import math
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.deployed import on
from tests.there import there

from tokonomics.errors import BadInput
from tokonomics.money.cost import (
    CostLine,
    CostTree,
    cost,
    load_cost,
    needed_for,
    parse_load,
    saving,
    split_by_gpu_time,
    usd_per_request,
)
from tokonomics.money.trace_bills import served_cost
from tokonomics.physics.deployment import Deployment
from tokonomics.serving.fleet_settings import FleetSettings
from tokonomics.serving.outcome import Outcome, outcome
from tokonomics.serving.simulator import simulate
from tokonomics.serving.state import DONE
from tokonomics.traffic.trace import make_trace

prices = st.floats(0.01, 1e4)
speeds = st.floats(0.1, 1e7)
shares = st.floats(0.01, 1.0)
fleets = st.integers(1, 1000)


def test_the_cost_of_a_million_tokens_is_dollars_an_hour_over_tokens_an_hour() -> None:
    one = cost(usd_per_hour=3.6, tokens_per_second=1000, utilization=0.5, gpus=2)
    assert one.usd_per_mtok == pytest.approx(7.2 / (1000 * 0.5 * 3600) * 1e6)
    assert one.usd_per_token * one.tokens_per_usd == pytest.approx(1)
    assert one.usd_per_month == pytest.approx(7.2 * 730)
    assert one.tokens_per_month * one.usd_per_token == pytest.approx(one.usd_per_month)


@given(prices, speeds, shares, fleets)
def test_usage_is_reservation_without_the_idle_share(price: float, speed: float, share: float, gpus: int) -> None:
    one = cost(price, speed, share, gpus)
    assert one.usd_per_mtok_usage == pytest.approx(one.usd_per_mtok * share)


@given(prices, speeds, shares, fleets, st.floats(0.001, 1e3))
def test_each_term_alone_reaches_the_target(price: float, speed: float, share: float, gpus: int, target: float) -> None:
    needed = needed_for(target, price, speed, share, gpus)
    assert cost(price, needed.tokens_per_second, share, gpus).usd_per_mtok == pytest.approx(target)
    assert cost(needed.usd_per_hour, speed, share, gpus).usd_per_mtok == pytest.approx(target)
    if needed.utilization <= 1:
        assert cost(price, speed, needed.utilization, gpus).usd_per_mtok == pytest.approx(target)


@given(st.lists(st.tuples(st.floats(0.1, 1000), st.floats(0, 1)), min_size=1, max_size=8))
def test_at_the_same_mean_utilisation_the_pattern_does_not_change_the_price(steps: list[tuple[float, float]]) -> None:
    if math.fsum(hours * share for hours, share in steps) < 1e-6:
        return
    profile = load_cost(",".join(f"{hours}x{share}" for hours, share in steps), 3, 500)
    steady = load_cost(f"24x{min(1.0, profile.mean_utilization)}", 3, 500)
    assert profile.usd_per_mtok == pytest.approx(steady.usd_per_mtok)


@given(st.lists(st.tuples(st.floats(0.1, 1000), st.floats(0.01, 1)), min_size=1, max_size=8), prices, fleets)
def test_working_and_idle_dollars_sum_to_the_bill(steps: list[tuple[float, float]], price: float, gpus: int) -> None:
    load = load_cost(",".join(f"{hours}x{share}" for hours, share in steps), price, 100, gpus)
    assert load.working_usd + load.idle_usd == pytest.approx(price * gpus * math.fsum(hours for hours, _ in steps))


def test_a_tree_sums_its_lines_and_its_branches() -> None:
    leaf = CostTree(name="gpus", lines=(CostLine(name="a100", quantity=3, unit="hour", usd_per_unit=2),))
    tree = CostTree(
        name="all", lines=(CostLine(name="disk", quantity=5, unit="GB", usd_per_unit=0.1),), branches=(leaf, leaf)
    )
    assert tree.usd == pytest.approx(0.5 + 6 + 6)


@given(st.floats(1e-6, 1e3), st.floats(0.01, 100), st.integers(1, 10**5), st.integers(1, 10**5), st.floats(0, 1))
def test_input_and_output_prices_together_are_the_bill(
    usd_per_second: float, rate: float, input_tokens: int, output_tokens: int, share: float
) -> None:
    prices = split_by_gpu_time(usd_per_second, rate, input_tokens, output_tokens, share)
    per_second = rate * (input_tokens * prices.input + output_tokens * prices.output) / 1e6
    assert per_second == pytest.approx(usd_per_second)
    assert rate * (input_tokens + output_tokens) * prices.blended / 1e6 == pytest.approx(usd_per_second)


def test_a_request_at_a_blended_price_counts_both_kinds_of_token() -> None:
    assert usd_per_request(2.0, 1000, 500) == pytest.approx(0.003)


def test_a_saving_is_a_share_of_the_old_bill() -> None:
    assert saving(200, 50) == pytest.approx(0.75)
    assert saving(100, 120) == pytest.approx(-0.2)


@pytest.mark.parametrize("value", [0, -1, math.nan, math.inf, 1e300, 10**400, 5e-324])
@pytest.mark.parametrize("field", ["usd_per_hour", "tokens_per_second", "gpus"])
def test_a_term_that_is_no_sensible_number_is_refused_by_name(field: str, value: float) -> None:
    terms = {"usd_per_hour": 1.0, "tokens_per_second": 1.0, "gpus": 1} | {field: value}
    with pytest.raises(BadInput, match=rf"^{field}: "):
        cost(**terms)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [0, -0.1, 1.01, 70, math.nan, math.inf])
def test_a_utilisation_outside_0_to_1_is_refused(value: float) -> None:
    with pytest.raises(BadInput, match="utilization"):
        cost(1, 1, value)


def test_a_utilisation_given_in_percent_is_answered_with_the_share() -> None:
    with pytest.raises(BadInput, match=r"write 0\.7"):
        cost(1, 1, 70)


@pytest.mark.parametrize("text", ["", "8", "8x", "x0.5", "8x0.5;3x1", "8x2", "-1x0.5", "nanx0.5", "8xnan", "0x1"])
def test_a_load_that_cannot_be_read_says_how_to_write_one(text: str) -> None:
    with pytest.raises(BadInput, match=r"8x0\.99,16x0"):
        parse_load(text)


def test_a_load_that_never_works_has_no_price() -> None:
    with pytest.raises(BadInput, match="never does any work"):
        load_cost("24x0", 1, 1)


# --- the bill of a simulation: it sums, it follows the price, and each figure is the same by hand ---------------------


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
