"""The purchase program: equal to trying everything, lawful, and clear about what cannot be done."""

import itertools
import math
import os
import threading
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.money.simple_offers import simple_offer

from tokonomics.catalog.feeds import SCARCE, Interruptions, hourly_rate
from tokonomics.catalog.offers import Terms
from tokonomics.errors import BadInput, in_python
from tokonomics.fleet.traffic import parse_demand
from tokonomics.money.purchase_program import FleetProblem, OutOfTime, Solution, kinds_of, solve, undominated
from tokonomics.money.purchase_search import NoFleet, divided_usd, optimal_fleet, search
from tokonomics.money.purchases import Demand, FleetLimits, FleetOffer, SpotMarket, demand_of
from tokonomics.money.spot_machines import spot_bills

CALM = Interruptions(per_hour=hourly_rate(0.10), outage_hours=2.0)
ALWAYS = Interruptions(per_hour=0.0)


def exact(offers: list[FleetOffer], demand: Demand, limits: FleetLimits | None = None) -> float:
    return optimal_fleet(offers, demand, limits, gap=0.0).expected_usd


def by_enumeration(offers: list[FleetOffer], rates: list[float], limits: FleetLimits, most: int = 3) -> float:
    """Every number of every reserved, on-demand and spot machine up to ``most``, hour by hour, start-ups by a shortest
    path over all states (written apart from the program: loops, no matrix)."""
    reserved = [(o, price) for o in offers for price in o.reserved.values()]
    hourly: list[tuple[FleetOffer, float, float, float, str | None]] = []  # offer, price, counts for, start, zone
    for o in offers:
        if o.usd_per_hour is not None:
            hourly.append((o, o.usd_per_hour, 1.0, o.usd_per_hour * o.startup_s / 3600, None))
        for m in o.spot:
            up = 1 / (1 + m.interruptions.per_hour * m.interruptions.outage_hours)
            cost, counts = up * m.usd_per_hour, up
            if o.usd_per_hour is not None and limits.fallback:
                cost += (1 - up + up * m.interruptions.per_hour * o.startup_s / 3600) * o.usd_per_hour
                lost_hours = min(max(0.0, o.startup_s - 120) / 3600, m.interruptions.outage_hours)
                counts = 1 - up * m.interruptions.per_hour * lost_hours
            hourly.append((o, cost, counts, m.usd_per_hour * o.startup_s / 3600, m.zone))
    states = list(itertools.product(range(most + 1), repeat=len(hourly)))
    best = math.inf
    for base in itertools.product(range(most + 1), repeat=len(reserved)):
        fixed = sum(n * price for n, (_, price) in zip(base, reserved, strict=True)) * len(rates)
        base_capacity = sum(n * o.requests_per_s["all"] for n, (o, _) in zip(base, reserved, strict=True))

        def holds(
            state: tuple[int, ...], rate: float, base_capacity: float = base_capacity, base_n: int = sum(base)
        ) -> bool:
            spot: dict[str, float] = {}
            firm, count = base_capacity, base_n
            for n, (o, _, counts, _, zone) in zip(state, hourly, strict=True):
                if zone is None:
                    firm, count = firm + n * o.requests_per_s["all"], count + n
                else:
                    spot[zone] = spot.get(zone, 0.0) + n * o.requests_per_s["all"] * counts
            whole = firm + sum(spot.values())
            return (
                whole >= rate - 1e-6
                and firm >= (1 - limits.max_spot_share) * rate - 1e-6
                and all(whole - each >= (1 - limits.max_zone_share) * rate - 1e-6 for each in spot.values())
                and count >= limits.min_replicas
            )

        allowed = [[state for state in states if holds(state, rate)] for rate in rates]
        if not all(allowed):
            continue

        def running(state: tuple[int, ...]) -> float:
            return sum(n * price for n, (_, price, *_) in zip(state, hourly, strict=True))

        def starting(before: tuple[int, ...], now: tuple[int, ...]) -> float:
            return sum(max(0, b - a) * kind[3] for a, b, kind in zip(before, now, hourly, strict=True))

        if not any(kind[3] for kind in hourly):
            best = min(best, fixed + sum(min(map(running, each)) for each in allowed))
            continue
        steps = [
            np.array([[starting(one, other) for other in now] for one in before])
            for before, now in itertools.pairwise([*allowed, allowed[0]])
        ]
        usd_of = [np.array([running(state) for state in each]) for each in allowed]
        for index in range(len(allowed[0])):
            usd = np.full(len(allowed[0]), np.inf)
            usd[index] = usd_of[0][index]
            for step, each in zip(steps[:-1], usd_of[1:], strict=True):
                usd = (usd[:, None] + step).min(axis=0) + each
            best = min(best, fixed + float((usd + steps[-1][:, index]).min()))
    return best


def zones(*prices: float, interruptions: Interruptions = CALM) -> tuple[SpotMarket, ...]:
    return tuple(
        SpotMarket(zone=f"z{index}", usd_per_hour=price, interruptions=interruptions)
        for index, price in enumerate(prices)
    )


@pytest.mark.parametrize("seed", range(4))
def test_a_small_fleet_equals_trying_everything(seed: int) -> None:
    rng = np.random.default_rng(seed)
    offers = [
        simple_offer("large", 2.5, 3.0 * rng.uniform(0.8, 1.2), spot=zones(1.0 * rng.uniform(0.6, 1.6))),
        simple_offer("small", 1.0, 1.4 * rng.uniform(0.8, 1.2), reserved={"1 year": 0.9 * rng.uniform(0.7, 1.2)}),
    ]
    rates = rng.uniform(0.2, 4.5, 4).round(2).tolist()
    limits = FleetLimits(max_spot_share=0.6, min_replicas=1)
    assert exact(offers, demand_of(rates), limits) == pytest.approx(by_enumeration(offers, rates, limits), rel=1e-6)


@pytest.mark.parametrize(("seed", "fallback"), [(0, True), (1, True), (1, False), (2, False)])
def test_with_start_ups_and_zones_too(seed: int, fallback: bool) -> None:
    rng = np.random.default_rng(seed)
    market = zones(*rng.uniform(0.4, 1.1, 2), interruptions=SCARCE)
    offers = [simple_offer("one", 1.0, 1.5, spot=market, startup_s=1500.0)]
    rates = rng.uniform(0.2, 2.4, 4).round(2).tolist()
    limits = FleetLimits(max_spot_share=0.8, max_zone_share=0.5, fallback=fallback)
    assert exact(offers, demand_of(rates), limits) == pytest.approx(by_enumeration(offers, rates, limits, 4), rel=1e-6)


prices = st.floats(0.2, 5)


@settings(max_examples=10, deadline=None)
@given(
    st.lists(st.tuples(prices, prices, st.floats(0.5, 4)), min_size=2, max_size=4),
    st.lists(st.floats(0, 9), min_size=2, max_size=5),
    st.floats(1, 2),
    st.lists(st.floats(0, 1), min_size=2, max_size=2).map(sorted),
)
def test_more_offers_less_demand_or_a_looser_limit_on_spot_never_raise_the_bill(
    kinds: list[tuple[float, float, float]], rates: list[float], factor: float, shares: list[float]
) -> None:
    offers = [
        simple_offer(f"o{i}", size, price, spot=zones(spot), startup_s=300.0)
        for i, (price, spot, size) in enumerate(kinds)
    ]
    tight, loose = (FleetLimits(max_spot_share=share) for share in shares)
    bill = exact(offers, demand_of(rates), tight)
    for cheaper, dearer in (
        (bill, exact(offers[:-1], demand_of(rates), tight)),
        (bill, exact(offers, demand_of([rate * factor for rate in rates]), tight)),
        (exact(offers, demand_of(rates), loose), bill),
    ):
        assert cheaper <= dearer * (1 + 1e-6) + 1e-9


def test_hours_that_follow_each_other_with_the_same_demand_are_one_and_cost_the_same() -> None:
    """A trace of tiny changes keeps the hours apart."""
    offers = [simple_offer("a", 1.0, 1.0, spot=zones(0.4), startup_s=900.0), simple_offer("b", 2.3, 2.1, startup_s=900)]
    rates = [1.0, 1.0, 4.5, 4.5, 4.5, 2.2]
    apart = [rate * (1 + 1e-7 * index) for index, rate in enumerate(rates)]
    limits = FleetLimits(max_spot_share=0.5)
    assert exact(offers, demand_of(rates), limits) == pytest.approx(exact(offers, demand_of(apart), limits), rel=1e-6)


def test_what_is_reserved_is_owed_to_its_end() -> None:
    offer = simple_offer("one", 1.0, None, reserved={"3 years": 1.0})
    assert optimal_fleet([offer], demand_of([2.0]), gap=0.0).committed_usd == pytest.approx(2 * 3 * 8760)


def test_a_bound_not_found_in_time_is_no_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    def too_long(*_: object, **__: object) -> None:
        raise OutOfTime("no fleet was found within 2 s")

    monkeypatch.setattr("tokonomics.money.purchase_search.solve", too_long)
    assert divided_usd([simple_offer("one", 1.0, 1.0)], demand_of([1.0]), FleetLimits()) is None


def test_no_time_left_is_never_handed_to_the_solver_as_less_than_none() -> None:
    kinds = kinds_of([simple_offer("one", 1.0, 1.0)], FleetLimits())
    with pytest.raises(OutOfTime):
        solve(FleetProblem(kinds, demand_of([2.5]), FleetLimits()), 0.0, -0.5)


def test_time_that_ran_out_on_the_proof_does_not_lose_the_fleet(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine is so busy that the first program takes all of the time, and finds no proof."""
    kinds = kinds_of([simple_offer("one", 1.0, 1.0)], FleetLimits())
    clock = itertools.count(0, 100)
    monkeypatch.setattr("tokonomics.money.purchase_search.time.perf_counter", lambda: float(next(clock)))

    def unproven(*given: Any, **more: Any) -> Solution | None:
        found = solve(*given, **more)
        return found if found is None or more.get("relaxed") else replace(found, lower_bound=1.0)

    monkeypatch.setattr("tokonomics.money.purchase_search.solve", unproven)
    found = search(FleetProblem(kinds, demand_of([2.5]), FleetLimits()), 0.0, 10.0)
    assert found is not None
    assert found.counts.tolist() == [[3]]


@pytest.mark.parametrize("poor", [True, False], ids=["a poor fleet in time", "none in time"])
def test_a_week_of_like_days_costs_no_more_than_its_day_and_its_gap_is_honest(
    monkeypatch: pytest.MonkeyPatch, poor: bool
) -> None:
    """The computer is so busy that the week's whole machines get nowhere: the day is tried, after everything else."""
    offers = [simple_offer("small", 2.0, 1.0, startup_s=600), simple_offer("large", 5.0, 2.2, startup_s=600)]
    rates = [3.5 + 3.5 * math.sin(hour) for hour in range(24)]
    asked: list[int] = []

    def busy(problem: FleetProblem, *given: Any, **more: Any) -> Solution | None:
        asked.append(problem.demand.hours)
        if problem.demand.hours == 24 or more.get("relaxed"):
            return solve(problem, *given, **more)
        if problem.demand.hours == 168 and poor:
            return Solution(np.full((2, 168), 4), lower_bound=1.0, solve_s=1.0, variables=1)
        raise OutOfTime("late")

    monkeypatch.setattr("tokonomics.money.purchase_search.solve", busy)
    monkeypatch.setattr(
        "tokonomics.money.purchase_search.time.perf_counter", lambda: 50.0 * sum(h != 24 for h in asked)
    )
    plan = optimal_fleet(offers, demand_of(rates).over(168), gap=0.0, time_limit_s=100.0)
    day = by_enumeration(offers, rates, FleetLimits(), 4)
    assert plan.expected_usd <= 7 * day * (1 + 1e-6)
    divisible = 7 * 2.2 / 5 * sum(rates)  # of the cheapest offer, started for free
    assert divisible * (1 - 1e-6) <= plan.expected_usd * (1 - plan.gap) <= 7 * day * (1 + 1e-6)
    assert 0 < plan.gap < 0.25
    assert asked.index(24) == len(asked) - 2  # the day's divisible and whole machines come last


def test_a_demand_repeats_but_for_rounding() -> None:
    noisy = np.resize([7.0, 7.0, 2.0, 4.0], 28) * (1 + 1e-12 * np.sin(np.arange(28)))
    assert demand_of(noisy.tolist()).period == 4
    assert demand_of([7.0, 2.0] * 13 + [7.0, 2.001]).period == 28
    assert demand_of([1.0, 2.0, 3.0] * 2 + [1.0]).period == 7
    assert demand_of([5.0] * 24).period == 1
    assert parse_demand("diurnal:60,peak=2", hours=168).period == 24
    assert Demand(rates={"a": (1.0, 1.0) * 2, "b": (1.0, 2.0) * 2}).period == 2


def test_what_is_needed_all_the_time_is_reserved_and_the_rest_is_not() -> None:
    offer = simple_offer("one", 1.0, 2.0, reserved={"3 years": 1.0})
    plan = optimal_fleet([offer], parse_demand("6x5,18x2", hours=24), gap=0.0)
    assert plan.machines(Terms.reserved) == (2,) * 24
    assert plan.machines(Terms.on_demand) == (3,) * 6 + (0,) * 18
    assert plan.expected_usd == pytest.approx(2 * 24 + 3 * 6 * 2)
    assert plan.p99_usd_per_month == plan.usd_per_month == pytest.approx((2 * 24 + 3 * 6 * 2) / 24 * 730)
    assert plan.gap == pytest.approx(0, abs=1e-9)


def test_large_requests_go_where_they_fit_and_small_ones_where_they_are_cheap() -> None:
    large = FleetOffer(name="large", requests_per_s={"short": 4, "long": 2}, usd_per_hour=4)
    small = FleetOffer(name="small", requests_per_s={"short": 2}, usd_per_hour=1)
    plan = optimal_fleet([large, small], Demand(rates={"short": (6.0,), "long": (3.0,)}), gap=0.0)
    # Two large ones for the long; their spare quarter serves 2 of the short, two small ones the other 4.
    assert {each.offer: each.by_hour for each in plan.purchases} == {"large": (2,), "small": (2,)}


def test_a_start_up_is_paid_before_it_serves() -> None:
    offer = simple_offer("one", 1.0, 2.0, startup_s=900.0)
    plan = optimal_fleet([offer], demand_of([1, 3, 1, 3]), gap=0.0)
    assert plan.expected_usd == pytest.approx(2.0 * (1 + 3 + 1 + 3) + 4 * 2.0 / 4)
    assert plan.startup_usd == pytest.approx(2.0)


@pytest.mark.parametrize("interruptions", [CALM, SCARCE])
def test_drawn_weeks_cost_in_the_mean_what_is_expected(interruptions: Interruptions) -> None:
    offer = simple_offer("one", 1.0, 2.0, spot=zones(0.5, 0.6, interruptions=interruptions), startup_s=600.0)
    counts = [np.full(168, 3), np.full(168, 2)]
    held = [(offer, market, each) for market, each in zip(offer.spot, counts, strict=True)]
    up = interruptions.availability
    again = 1 - up + up * interruptions.per_hour / 6
    expected = sum(n.sum() * (up * m.usd_per_hour + again * 2.0) for m, n in zip(offer.spot, counts, strict=True))
    drawn = spot_bills(held, FleetLimits(), correlation=0.5, draws=4000)
    assert drawn.mean() == pytest.approx(expected, rel=0.01)


def test_a_spot_price_stays_below_the_list_price_though_on_demand_may_not_be_bought() -> None:
    market = SpotMarket(zone="z", usd_per_hour=0.5, interruptions=ALWAYS, p90_to_median=4.0)
    offer = simple_offer("one", 1.0, None, list_usd_per_hour=0.8, spot=(market,))
    drawn = spot_bills([(offer, market, np.full(168, 3))], FleetLimits())
    assert drawn.max() == pytest.approx(0.8 * 3 * 168)


def test_tied_zones_have_the_worse_bad_week() -> None:
    offer = simple_offer("one", 1.0, 2.0, spot=zones(0.5, 0.5, 0.5, 0.5, interruptions=SCARCE))
    held = [(offer, market, np.full(168, 2)) for market in offer.spot]
    apart, tied = (np.quantile(spot_bills(held, FleetLimits(), correlation=rho), 0.99) for rho in (0.0, 0.9))
    assert tied > apart


def test_spot_that_is_dearer_than_it_saves_is_left_alone() -> None:
    offer = simple_offer("one", 1.0, 1.0, spot=zones(0.95, interruptions=SCARCE), startup_s=600.0)
    assert optimal_fleet([offer], demand_of([4, 4]), gap=0.0).machines(Terms.spot) == (0, 0)


IN_THE_WAY = {"min_replicas": (5, 0), "max_spot_share": (0.1, 1), "max_zone_share": (0.2, 1)}
"""What forbids a fleet of one spot zone, and what allows it."""


@pytest.mark.parametrize("names", [names for number in (1, 2, 3) for names in combinations(IN_THE_WAY, number)])
def test_what_stands_in_the_way_is_named_and_what_to_ask_instead_helps(names: tuple[str, ...]) -> None:
    on_spot, demand = simple_offer("a", 1.0, None, spot=zones(0.3, interruptions=ALWAYS)), demand_of([1, 4, 2])
    with pytest.raises(NoFleet) as caught:
        optimal_fleet([on_spot], demand, FleetLimits(**{name: IN_THE_WAY[name][0] for name in names}))
    message = caught.value.message(in_python)
    assert {name for name in IN_THE_WAY if f"{name}={IN_THE_WAY[name][1]}" in message} == set(names)
    instead = FleetLimits(**{name: IN_THE_WAY[name][1] for name in names})
    assert optimal_fleet([on_spot], demand, instead).machines() == (1, 4, 2)


def test_spot_in_two_zones_does_without_either() -> None:
    offer = simple_offer("a", 1.0, None, spot=zones(0.3, 0.4, interruptions=ALWAYS))
    assert optimal_fleet([offer], demand_of([1, 4, 2]), FleetLimits(max_zone_share=0.0)).machines() == (2, 8, 4)


def test_fleets_solved_side_by_side_leave_standard_output_where_it_was() -> None:
    offer, before = simple_offer("a", 10.0, 2.0, startup_s=300.0), os.fstat(1)
    solvers = [threading.Thread(target=optimal_fleet, args=([offer], parse_demand("12x20,12x200"))) for _ in range(8)]
    for each in solvers:
        each.start()
    for each in solvers:
        each.join()
    assert os.path.samestat(before, os.fstat(1))


@pytest.mark.parametrize(
    "offers",
    [
        [],
        [FleetOffer(name="small", requests_per_s={"short": 2}, usd_per_hour=1)],
        [FleetOffer(name="unpriced", requests_per_s={"all": 2})],
        [simple_offer("twice", 1.0, 1.0), simple_offer("twice", 2.0, 1.0)],
    ],
)
def test_offers_that_cannot_be_bought_from_are_refused(offers: list[FleetOffer]) -> None:
    with pytest.raises(BadInput):
        optimal_fleet(offers, demand_of([1]))


@pytest.mark.slow
@pytest.mark.parametrize("startup_s", [0.0, pytest.param(600.0, marks=pytest.mark.explore)])
def test_a_program_in_parts_is_near_the_whole_within_its_gap(startup_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    offers = [
        simple_offer("a", 1.0, 1.0, spot=zones(0.4, 0.5), startup_s=startup_s),
        simple_offer("b", 2.3, 2.1, reserved={"3 years": 1.2}, startup_s=startup_s),
    ]
    demand = parse_demand("diurnal:5,peak=2", hours=24)
    limits = FleetLimits(max_spot_share=0.5, max_zone_share=0.4)
    whole = optimal_fleet(offers, demand, limits, gap=1e-3, time_limit_s=60)
    monkeypatch.setattr("tokonomics.money.purchase_search.AT_ONCE", 0)
    apart = optimal_fleet(offers, demand, limits, gap=1e-3)
    # Each is above the other's bound, and both are close.
    assert apart.expected_usd * (1 - apart.gap) <= whole.expected_usd * (1 + 1e-9)
    assert whole.expected_usd * (1 - whole.gap) <= apart.expected_usd * (1 + 1e-9)
    assert apart.expected_usd == pytest.approx(whole.expected_usd, rel=0.03)
    for firm, spot, rate in zip(apart.firm_capacity, apart.spot_capacity, apart.demand, strict=True):
        assert firm + spot >= rate * (1 - 1e-6)
        assert firm >= 0.5 * rate * (1 - 1e-6)


def test_each_hour_is_bought_by_what_a_machine_carries_at_its_demand() -> None:
    """Alone a machine carries one request a second, two where the fleet is for ten; between in proportion."""
    offer = simple_offer("one", 2.0, 1.0, levels={"all": ((1.0, 1.0), (10.0, 2.0))})
    plan = optimal_fleet([offer], demand_of([1.0, 5.5, 10.0, 20.0]), gap=0)
    assert plan.machines() == (1, math.ceil(5.5 / 1.5), 5, 10)
    assert plan.firm_capacity == pytest.approx((1.0, 4 * 1.5, 10.0, 20.0))
    # A kind that carries as much at all times is worth more: one that costs less does not rule it out.
    even = simple_offer("even", 2.0, 1.1)
    assert len(undominated(kinds_of([offer, even], FleetLimits()), FleetLimits())) == 2
