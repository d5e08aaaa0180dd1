"""Where a lever pays: each boundary is one, and what lies on either side of it was computed apart."""

import math
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.deployed import on
from tests.levers.test_levers import CHEAP, NOW, short_load
from tests.planner.small_catalogue import TODAY, offer

from tokonomics.catalog.layers import Precision
from tokonomics.levers.boundaries import (
    Axis,
    Boundary,
    Fleet,
    boundaries,
    boundary_of,
    cheaper_api_loads,
    cheaper_loads,
    fleet_of,
    found_share_that_frees,
    lower_bill,
    quicker_to_fetch,
    shorter_steps,
)
from tokonomics.levers.lever_list import Choices, all_levers
from tokonomics.levers.ranking import Pulled, Ranked, clocks_locked, pull, rank_levers
from tokonomics.money.cost import CostLine, CostTree
from tokonomics.physics.deployment import Deployment, Speculation
from tokonomics.physics.steptime import decode_step, step_model
from tokonomics.questions.levers import LeversResult
from tokonomics.questions.request import Request
from tokonomics.report.levers_view import levers as shown
from tokonomics.serving.tiers import Tier
from tokonomics.sizing.bill import Bill, Bills
from tokonomics.sizing.layouts import NotServed, Reason
from tokonomics.sizing.load import load_of_log
from tokonomics.sizing.screen import held_by_one
from tokonomics.sizing.setup import Setup
from tokonomics.traffic.arrivals import parse_arrivals
from tokonomics.traffic.generate import generate, parse_sessions
from tokonomics.traffic.lengths import parse_lengths
from tokonomics.traffic.slo import parse_slos
from tokonomics.traffic.trace import Floats
from tokonomics.types import Marked

H100 = on()
ALONE = (offer("A100-80GB", 1, 1.0),)
PAIRS = (offer("A100-80GB", 2, 2.0),)
MONTH = 730.0


def fleet(rate: float, each: float, offers: tuple[object, ...] = ALONE) -> Fleet:
    """Replicas that hold ``each`` requests a second, at $730 a month for a GPU."""
    here = Setup(on(gpu="A100-80GB"), NOW.load, offers, TODAY)  # type: ignore[arg-type]
    count = math.ceil(rate / each)
    return Fleet(rate, count, here.hosts()[0], {count: count * each}, lambda replicas, _: replicas * each)


def ends(boundary: Boundary) -> tuple[object, ...]:
    return boundary.pays, boundary.pays_from, boundary.pays_to


# --- on an axis -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "last", "yours", "expected"),
    [
        (1, 48, 71.4, (True, None, 48)),
        (1, 48, 3.0, (True, None, 48)),
        (90, 512, 71.4, (True, 90, None)),
        (5, 7, 71.4, (True, 5, 7)),
        (1, 512, 71.4, (True, None, None)),
        (600, 700, 71.4, (False, None, None)),
    ],
)
def test_the_ends_of_a_stretch_are_found_exactly(
    first: int, last: int, yours: float, expected: tuple[bool, float | None, float | None]
) -> None:
    found = boundary_of(Axis.batch, lambda values: (values >= first) & (values <= last), (1.0, 512.0), yours)
    assert ends(found) == expected
    assert found.yours == yours


def test_of_two_stretches_the_nearer_one_counts() -> None:
    def pays(values: Floats) -> NDArray[np.bool_]:
        return np.asarray((values <= 10) | (values >= 100))

    assert ends(boundary_of(Axis.batch, pays, (1.0, 512.0), 12.0)) == (True, None, 10)
    assert ends(boundary_of(Axis.batch, pays, (1.0, 512.0), 90.0)) == (True, 100, None)


def drafting(acceptance: float = 0.65) -> Deployment:
    speculation = Speculation(tokens=3, acceptance=acceptance, draft_share=0.05)
    return H100.model_copy(update={"speculation": speculation})


@pytest.mark.parametrize("after", [drafting(), H100.model_copy(update={"weights": Precision.fp8})])
def test_a_step_is_shorter_up_to_the_batch_and_not_beyond(after: Deployment) -> None:
    """Every whole batch of the engine, one by one."""
    context, most = 1150.0, H100.limits.max_sequences
    batches = np.arange(1, most + 1)
    shorter = decode_step(after, batches, context) < decode_step(H100, batches, context)
    found = shorter_steps(H100, after, Axis.batch, 12, context)
    assert ((found.pays_from or 1) <= 12 <= (found.pays_to or most)) == shorter[11]
    first, last = int(found.pays_from or 1), int(found.pays_to or most)
    assert shorter[first - 1 : last].all()
    assert first == 1 or not shorter[first - 2]
    assert last == most or not shorter[last]


def test_a_kv_cache_of_fewer_bits_shortens_steps_of_long_contexts() -> None:
    after = H100.model_copy(update={"kv": Precision.fp8})
    found = shorter_steps(H100, after, Axis.context, 12, 1150.0)

    def is_shorter(context: float) -> bool:
        return bool(decode_step(after, 12, context) < decode_step(H100, 12, context))

    assert found.pays
    assert is_shorter(found.pays_from or 16)
    if found.pays_from is not None:
        assert not is_shorter(found.pays_from - 1)


# --- replicas and dollars -------------------------------------------------------------------------------------------


def test_a_fleet_takes_whole_replicas_and_needs_parts() -> None:
    made = fleet(25, 10)
    assert (made.replicas, made.replicas_at(25)) == (3, 3)
    assert made.needs == pytest.approx(2.5)
    assert [made.replicas_at(rate) for rate in (5, 10, 10.1, 30, 31)] == [1, 1, 2, 3, 4]
    assert made.usd_at(31) == pytest.approx(4 * MONTH)
    held = [made.held_by(count) for count in range(1, 10)]
    assert held == sorted(held)


def test_fewer_replicas_than_hold_todays_load_do_not_hold_it() -> None:
    """Three hold 60 and two were seen to miss 25, though in proportion they would hold 40; simulated, they hold 22."""
    lucky = replace(fleet(25, 10), known={3: 60.0}, search=lambda replicas, guess: 22.0)
    assert lucky.held_by(2) == pytest.approx(25)
    assert lucky.replicas_at(25) == 3
    assert lucky.learn(2)
    assert not lucky.learn(2)
    assert [lucky.held_by(count) for count in (1, 2, 3, 4)] == [11, 22, 60, 80]
    assert [lucky.replicas_at(rate) for rate in (11, 12, 22, 25, 60, 61)] == [1, 2, 2, 3, 3, 4]


def test_between_known_numbers_replicas_hold_what_a_line_says_and_outside_in_proportion() -> None:
    """20 hold 100 and 40 hold 190: each between them adds 4.5."""
    made = replace(fleet(95, 5), replicas=20, known={40: 190.0, 20: 100.0})
    held = [made.held_by(count) for count in (21, 30, 31, 39)]
    assert held == pytest.approx([104.5, 145, 149.5, 185.5])
    assert [made.held_by(count) for count in (20, 40)] == [100, 190]
    assert [made.held_by(count) for count in (10, 60)] == pytest.approx([50, 285])
    every = [made.held_by(count) for count in range(1, 100)]
    assert every == sorted(every)
    assert [made.replicas_at(rate) for rate in (145, 146, 149, 190, 191)] == [30, 31, 31, 40, 41]


def test_chance_does_not_let_more_replicas_hold_less() -> None:
    """Four hold 40 of today's 35; simulated, five hold 38, and three as much as seven."""
    made = replace(fleet(35, 10), search=lambda replicas, _: 38.0 if replicas == 5 else 70.0)
    for count in (5, 3, 6):
        assert made.learn(count)
    assert [made.held_by(count) for count in (3, 4, 5, 6)] == pytest.approx([35, 40, 40, 70])


def test_a_memory_that_all_replicas_share_is_paid_once_at_any_load() -> None:
    """A pool of 1,000 GB at a cent an hour costs $7,300 a month, behind one replica or ten."""
    sessions, lengths = parse_sessions("4,think=20"), (parse_lengths("const:500", name) for name in ("input", "output"))
    talks = generate(parse_arrivals("poisson:5"), *lengths, requests=500, seed=1, sessions=sessions)
    setup, bills = replace(NOW, load=load_of_log(talks), slos=(), tiers="remote=1000@0.01,ssd=100@0.01"), Bills()
    bill = bills.bill_of(setup)
    assert isinstance(bill, Bill)
    made = fleet_of(setup, bill, bills)
    assert made
    assert made.usd_shared == pytest.approx(7300)
    assert made.usd_per_replica == pytest.approx(730)
    assert made.usd(bill.replicas) == pytest.approx(bill.usd_per_month)
    assert made.usd(10) == pytest.approx(made.hosts.usd_per_month(10) + 7300 + 10 * 730)


def test_the_ends_of_a_lower_bill_are_simulated() -> None:
    """In proportion one replica would hold 10 and the lever's 12; simulated, they hold 9 and 11."""
    now = replace(fleet(35, 10), search=lambda replicas, _: replicas * 10 - 1.0)
    other = replace(fleet(35, 12), search=lambda replicas, _: replicas * 12 - 1.0)
    assert now.replicas == 4
    assert other.replicas == 3
    assert ends(lower_bill(now, other)) == (True, pytest.approx(29), pytest.approx(36))


def test_on_whole_machines_a_replica_less_may_cost_the_same() -> None:
    assert fleet(25, 10).cheaper == 2
    assert fleet(35, 10, PAIRS).cheaper == 2
    assert fleet(5, 10).cheaper is None
    assert fleet(15, 10, PAIRS).cheaper is None


def test_a_lever_saves_between_the_loads_at_which_today_and_it_take_one_more() -> None:
    """10 and 12 requests a second by a replica: two or one between 10 and 12; on machines of two, between 20 and 24."""
    for offers, expected in ((ALONE, (True, 10, 12)), (PAIRS, (True, 20, 24))):
        now, other = fleet(9, 10, offers), fleet(9, 12, offers)
        assert ends(cheaper_loads(now, other.usd_at, other.steps())) == expected
    at_11 = cheaper_loads(fleet(11, 10), fleet(11, 12).usd_at, fleet(11, 12).steps())
    assert ends(at_11) == (True, 10, 12)


def test_a_lever_that_holds_less_saves_nowhere() -> None:
    now, worse = fleet(9, 10), fleet(9, 9.5)
    found = cheaper_loads(now, worse.usd_at, worse.steps())
    assert ends(found) == (False, None, None)
    assert found.looked_from == pytest.approx(9 / 16)
    assert found.looked_to == pytest.approx(36)


def test_an_api_is_cheaper_until_its_tokens_cost_what_the_replicas_do() -> None:
    """$100 a month for a request a second, against $730 for each replica of 10 a second."""
    assert ends(cheaper_api_loads(fleet(5, 10), 500)) == (True, None, pytest.approx(7.3))
    assert ends(cheaper_api_loads(fleet(9, 10), 900)) == (True, pytest.approx(10), pytest.approx(14.6))
    assert ends(cheaper_api_loads(fleet(9, 10), 9 * 700)) == (True, None, pytest.approx(730 / 700))


@cache
def pulled(name: str, **choices: object) -> Pulled:
    bills = Bills()
    now = bills.bill_of(NOW)
    assert isinstance(now, Bill)
    levers = all_levers(Choices(**choices), bills)  # type: ignore[arg-type]
    return pull(next(lever for lever in levers if lever.name == name), NOW, now, bills)


def on_axis(lever: Pulled, axis: Axis) -> Boundary:
    return next(boundary for boundary in lever.boundaries if boundary.axis is axis)


def test_the_bill_is_lower_from_the_load_that_is_told_and_not_below() -> None:
    """Both setups are billed anew at loads on either side of the boundary."""
    found = on_axis(pulled("FP8 KV cache"), Axis.rate)
    changed = NOW.deployed(kv=Precision.fp8)
    assert found.yours == NOW.load.workload.rate
    assert found.frees is not None
    assert found.frees > 0
    assert found.pays_from

    def saves(rate: float) -> bool:
        before, after = (Bills().bill_of(replace(one, load=NOW.load.at(rate))) for one in (NOW, changed))
        assert isinstance(before, Bill)
        assert isinstance(after, Bill)
        return after.usd_per_month < before.usd_per_month

    assert not saves(found.pays_from * 0.98)
    assert saves(found.pays_from * 1.03)


def test_what_is_freed_is_the_difference_of_what_both_need() -> None:
    bills = Bills()
    changed = NOW.deployed(kv=Precision.fp8)
    needs = []
    for one in (NOW, changed):
        bill = bills.bill_of(one)
        assert isinstance(bill, Bill)
        made = fleet_of(one, bill, bills)
        assert made
        assert made.usd(made.replicas) == pytest.approx(bill.usd_per_month)
        assert made.known[bill.replicas] >= NOW.load.workload.rate
        assert bill.replicas - 1 < made.needs <= bill.replicas + 1e-9
        needs.append(made.needs)
    assert on_axis(pulled("FP8 KV cache"), Axis.rate).frees == pytest.approx(needs[0] - needs[1])


def test_an_acceptance_and_a_batch_are_told_of_a_draft() -> None:
    lever = pulled("speculative decoding", draft_share=0.05, acceptance=0.8)
    batch, acceptance = on_axis(lever, Axis.batch), on_axis(lever, Axis.acceptance)
    assert acceptance.yours == 0.8
    assert batch.yours
    assert acceptance.pays_from
    assert (batch.yours <= (batch.pays_to or math.inf)) == (acceptance.pays_from <= 0.8)


def test_a_commitment_pays_from_the_hours_that_its_price_is_of_on_demand() -> None:
    """$1.50 committed against $2.00 on demand: three hours in four."""
    only = tuple(one for one in CHEAP if one.gpu == "A100-80GB" and one.gpus == 1)
    here, bills = replace(NOW, offers=only), Bills()
    now = bills.bill_of(here)
    assert isinstance(now, Bill)
    made = pull(next(lever for lever in all_levers() if lever.knob == "commit"), here, now, bills)
    (hours,) = [boundary for boundary in made.boundaries if boundary.axis is Axis.hours]
    assert hours.pays_from == pytest.approx(0.75)
    assert hours.yours == 1


def test_a_replica_is_free_from_the_share_found_that_is_told() -> None:
    now, bills = Bills().bill_of(NOW), Bills()
    assert isinstance(now, Bill)
    here = fleet_of(NOW, now, bills)
    assert here
    assert here.cheaper
    found = found_share_that_frees(NOW, here, 0.0, None)
    assert found
    assert found.pays_from
    wanted = (held_by_one(NOW, 0.0) or 0.0) * here.rate / here.held_by(here.cheaper)
    assert (held_by_one(NOW, found.pays_from) or 0.0) >= wanted
    assert (held_by_one(NOW, found.pays_from - 0.01) or 0.0) < wanted
    # Nothing is found where nothing is known to be shared, and the lever still says how much it would take.
    assert on_axis(pulled("prefix cache"), Axis.found).pays_from == found.pays_from
    assert pulled("prefix cache").bill is None


@pytest.mark.parametrize("gb_s", [0.5, 2.0, 5.0, 30.0])
def test_a_memory_pays_from_the_position_where_fetching_is_quicker(gb_s: float) -> None:
    """A block of 16 tokens has 131,072 bytes each; computing it takes its part of a chunk of 8,192 at that position."""
    fetched_s = 16 * 131_072 / (gb_s * 1e9)
    positions = np.arange(H100.model.max_context - 16)
    quicker = positions[fetched_s < step_model(H100).prefill(8192, positions) * 16 / 8192]
    found = quicker_to_fetch(H100, Tier(name="ssd", size_bytes=1e12, bytes_per_s=gb_s * 1e9), 1000)
    assert found.yours == 1000
    if gb_s < 1:
        assert not len(quicker)
        assert ends(found) == (False, None, None)
    elif gb_s > 10:
        assert len(quicker) == len(positions)
        assert ends(found) == (True, None, None)
    else:
        assert 0 < quicker[0] < 131_000
        assert ends(found) == (True, quicker[0], None)


def test_autoscaling_pays_from_a_busiest_hour_that_the_mean_takes_a_replica_less_than() -> None:
    now, bills = Bills().bill_of(NOW), Bills()
    assert isinstance(now, Bill)
    here = fleet_of(NOW, now, bills)
    assert here
    refused = NotServed(Reason.nothing_to_change, "steady")
    (busiest,) = boundaries("autoscale", NOW, refused, now, None, bills)
    assert busiest.axis is Axis.busiest
    assert busiest.pays_from == pytest.approx(max(1.2, here.rate / here.held_by(here.replicas - 1)))
    assert busiest.yours == pytest.approx(1, abs=0.05)


# --- clocks ---------------------------------------------------------------------------------------------------------


def test_locked_clocks_are_told_in_kilowatt_hours_of_decode() -> None:
    """Our H200 draws 695.9 W at 64 sequences, and at 8 the mean of 454.4 W at 4 and 527.3 W at 16: 32 % of it."""
    here = Setup(on(gpu="H200"), short_load(10), (offer("H200", 1, 3.0),), TODAY, parse_slos("tpot_p99=50ms"))
    now = Bills().bill_of(here)
    assert isinstance(now, Bill)
    hours = (("prefill", 500), ("decode", 1000), ("idle", 700))
    lines = [CostLine(name=name, quantity=number, unit="GPU-hour", usd_per_unit=3.0) for name, number in hours]
    for batch, kwh, watts in ((64.0, 223, 696), (8.0, 157, 491)):
        bill = now.model_copy(update={"batch": batch, "bill": CostTree(name="a month", lines=tuple(lines))})
        made = clocks_locked(here, bill)
        assert made.bill is None
        assert isinstance(made.reason, Marked)
        assert f"at most {kwh} kWh a month" in made.reason
        assert f"here it draws {watts} W" in made.reason
        assert "arXiv:2605.11999" in made.reason
    a100 = Bills().bill_of(NOW)
    assert isinstance(a100, Bill)
    assert "no figure" in str(clocks_locked(NOW, a100).reason)


# --- as it is shown -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("boundary", "said", "yours"),
    [
        (Boundary(axis=Axis.batch, pays=True, pays_from=None, pays_to=48, yours=71.4), "up to a batch of 48", "71"),
        (
            Boundary(axis=Axis.acceptance, pays=True, pays_from=0.52, pays_to=None, yours=0.65),
            "from an acceptance of 52 %",
            "65 %",
        ),
        (
            Boundary(axis=Axis.found, pays=True, pays_from=0.45, pays_to=None, yours=0.31),
            "from 45 % of the prompt tokens found in a cache",
            "31 %",
        ),
        (
            Boundary(
                axis=Axis.rate, pays=True, pays_from=62, pays_to=None, yours=38, looked_from=2, looked_to=152, frees=0.4
            ),
            "a lower bill from 62 requests/s; frees 0.4 of a replica today",
            "38/s",
        ),
        (
            Boundary(axis=Axis.rate, pays=False, pays_from=None, pays_to=None, yours=38, looked_from=2, looked_to=152),
            "a lower bill at no load from 2 to 152 requests/s",
            "38/s",
        ),
        (
            Boundary(axis=Axis.batch, pays=True, pays_from=None, pays_to=None, yours=9, looked_from=1, looked_to=256),
            "a token takes less time at any batch from 1 to 256",
            "9",
        ),
    ],
)
def test_a_boundary_stands_beside_the_users_own_value(boundary: Boundary, said: str, yours: str) -> None:
    made = rank_levers(NOW, [])
    assert isinstance(made, Ranked)
    lever = pulled("prefix cache").model_copy(update={"boundaries": (boundary,)})
    ranking = dict(made.ranking) | {"levers": (lever,)}
    result = LeversResult.model_construct(**ranking, utilization=None, setup=NOW)
    row = next(line for line in shown(result, Request()).text().splitlines() if said in line)
    assert row.startswith("prefix cache")
    assert row.rstrip().endswith(f" {yours}")
    assert len(row.rstrip()) <= 120
