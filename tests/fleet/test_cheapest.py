"""How much of the time a fleet carries its demand, the fleet that reaches a target, and simpler ways to buy."""

import math

import pytest
from tests.money.simple_offers import simple_offer

from tokonomics.catalog.feeds import Interruptions
from tokonomics.catalog.offers import Terms
from tokonomics.errors import BadInput
from tokonomics.fleet.cheapest import (
    FAILURES_PER_GPU_HOUR,
    _nines,
    availability,
    compare,
    hold_availability,
    median_rule_usd,
    peak_usd,
    shared_out,
)
from tokonomics.fleet.traffic import parse_demand
from tokonomics.money.purchase_search import optimal_fleet
from tokonomics.money.purchases import Demand, FleetLimits, FleetOffer, FleetPlan, SpotMarket, demand_of, mixed_capacity

DEMAND = demand_of([4.0, 4.0])
ALWAYS = Interruptions(per_hour=0.0)


def solver(offers: list[FleetOffer], demand: Demand = DEMAND):  # type: ignore[no-untyped-def]
    def solve(limits: FleetLimits, largest: float) -> FleetPlan:
        left = [offer for offer in offers if mixed_capacity(offer, demand.mix) <= largest * 1.000001]
        return optimal_fleet(left, demand, limits, gap=0.0)

    return solve


def reached(offer: FleetOffer, limits: FleetLimits, correlation: float = 0.0) -> float:
    plan = optimal_fleet([offer], DEMAND, limits, gap=0.0)
    return availability(plan, {offer.name: offer}, DEMAND, limits, correlation).share


def test_without_room_any_failure_counts_and_with_room_for_one_the_second() -> None:
    """Four machines of eight GPUs: Poisson with the mean that rate × GPUs × time to replace gives."""
    offer = simple_offer("one", 1.0, 2.0, gpus=8, startup_s=540.0)
    mean = 4 * 8 * FAILURES_PER_GPU_HOUR * 600 / 3600
    assert reached(offer, FleetLimits()) == pytest.approx(math.exp(-mean), rel=1e-12)
    five = 5 / 4 * mean
    assert reached(offer, FleetLimits(spare={"all": 1.0})) == pytest.approx(math.exp(-five) * (1 + five), rel=1e-12)


def test_a_zone_that_goes_takes_the_share_of_time_its_interruptions_say() -> None:
    market = SpotMarket(zone="z", usd_per_hour=0.3, interruptions=Interruptions(per_hour=0.01, outage_hours=2.0))
    offer = simple_offer("one", 1.0, None, spot=(market,))
    plan = optimal_fleet([offer], DEMAND, FleetLimits(fallback=False), gap=0.0)
    got = availability(plan, {"one": offer}, DEMAND, FleetLimits(fallback=False), 0.0)
    assert got.zones_missing == pytest.approx(0.02 / 1.02, rel=1e-3)


@pytest.mark.parametrize(("target", "spare"), [(0.999, 0), (0.99999, 1), (1 - 1e-10, 2)])
def test_a_higher_target_buys_room_for_more_machines_and_never_costs_less(target: float, spare: int) -> None:
    offer = simple_offer("one", 1.0, 2.0, gpus=8, startup_s=540.0)
    plan, _, got = hold_availability(solver([offer]), [offer], DEMAND, FleetLimits(), target, 0.5)
    assert got.share >= target
    assert got.spare_machines == spare
    assert plan.machines() == (4 + spare,) * 2


def test_room_is_made_with_small_machines_where_that_is_cheaper() -> None:
    """Room for a machine of eight costs 7.9 more; eight ones and a ninth cost 9 in all."""
    big = simple_offer("big", 8.0, 7.9, gpus=8, startup_s=200.0)
    small = simple_offer("small", 1.0, 1.0, gpus=1, startup_s=200.0)
    demand = demand_of([8.0, 8.0])
    plan, limits, got = hold_availability(
        solver([big, small], demand), [big, small], demand, FleetLimits(), 0.999999, 0.5
    )
    assert {purchase.offer: purchase.by_hour for purchase in plan.purchases} == {"small": (9, 9)}
    assert got.share >= 0.999999
    assert (got.spare_machines, limits.spare) == (1, {"all": 1.0})
    # Dear small machines: two large ones it is.
    dear = small.model_copy(update={"usd_per_hour": 1.8})
    plan, _, _ = hold_availability(solver([big, dear], demand), [big, dear], demand, FleetLimits(), 0.999999, 0.5)
    assert {purchase.offer: purchase.by_hour for purchase in plan.purchases} == {"big": (2, 2)}


def test_zones_are_spread_before_spot_is_given_up() -> None:
    zones = tuple(
        SpotMarket(zone=f"z{i}", usd_per_hour=0.3, interruptions=Interruptions(per_hour=0.01, outage_hours=2.0))
        for i in range(3)
    )
    offer = simple_offer("one", 1.0, 2.0, spot=zones, startup_s=540.0)
    limits = FleetLimits(max_spot_share=0.5)
    _, spread, got = hold_availability(solver([offer]), [offer], DEMAND, limits, 0.9998, 0.0)
    assert spread.max_zone_share == 0
    assert spread.max_spot_share == 0.5
    assert got.share >= 0.9998


def test_a_target_out_of_reach_is_refused() -> None:
    offer = simple_offer("one", 1.0, 2.0, gpus=8, startup_s=86_400.0 * 30)
    for target in (0.999999999, 1.0):
        with pytest.raises(BadInput) as refused:
            hold_availability(solver([offer]), [offer], DEMAND, FleetLimits(), target, 0.5)
        assert refused.value.field == "availability"


@pytest.mark.parametrize(("share", "says"), [(0.29, "29.0 %"), (0.57, "57.0 %"), (0.9999, "99.99"), (0.99994, "99.99")])
def test_a_share_is_said_as_it_was_asked_for_and_never_rounded_up(share: float, says: str) -> None:
    assert _nines(share).startswith(says)


def test_large_requests_keep_the_machines_that_alone_can_hold_them() -> None:
    large = FleetOffer(name="large", requests_per_s={"short": 4, "long": 2}, usd_per_hour=4)
    small = FleetOffer(name="small", requests_per_s={"short": 2}, usd_per_hour=1)
    room, shares = shared_out([(large, 2), (small, 2)], {"short": 6.0, "long": 3.0})
    # Half of the long ones' machines' time is 3 ÷ 2 of 2; what is left carries 2 of the short: all full.
    assert room == pytest.approx(1.0)
    assert shares["long"] == pytest.approx([1, 0])
    assert shares["short"] == pytest.approx([1 / 3, 2 / 3])
    assert shared_out([(small, 2)], {"short": 1.0, "long": 1.0})[0] == 0
    assert shared_out([], {"all": 0.0})[0] == math.inf


def test_for_the_document_s_demand_the_program_beats_its_rule() -> None:
    """Six GPUs in the mean and ten at the peak: eight hours of ten, sixteen of four."""
    offer = simple_offer("A100", 1.0, 2.21, spot=(SpotMarket(zone="z", usd_per_hour=0.73, interruptions=ALWAYS),))
    demand = parse_demand("8x10,16x4", hours=24)
    assert demand.mean == pytest.approx(6)
    plan = compare(optimal_fleet([offer], demand, gap=0.0), [offer], demand)
    assert plan.usd_per_month == pytest.approx(6 * 0.73 * 730)  # All spot, if spot may carry all.
    firm_base = optimal_fleet([offer], demand, FleetLimits(max_spot_share=0.6), gap=0.0)
    assert firm_base.usd_per_month == pytest.approx(((8 * 4 + 16 * 2) * 2.21 + (8 * 6 + 16 * 2) * 0.73) / 24 * 730)
    others = {way.name: way.usd_per_month for way in plan.comparisons}
    assert others == {
        "all on demand": pytest.approx(6 * 2.21 * 730),
        "on demand for the peak": pytest.approx(10 * 2.21 * 730),
        "median on demand, spot above": pytest.approx((4 * 2.21 + 6 * 0.73 / 3) * 730),
        "all reserved": None,
    }


def test_a_simpler_way_to_buy_that_is_cheaper_is_the_plan() -> None:
    """A search that ran out of time may end above one with fewer terms to choose from."""
    offer = simple_offer("one", 1.0, 1.0, reserved={"3 years": 3.0})
    demand = demand_of([2.0, 2.0])
    dear = optimal_fleet([offer.model_copy(update={"usd_per_hour": None})], demand, gap=0.0)
    dear = dear.model_copy(update={"gap": 0.9})
    plan = compare(dear, [offer], demand)
    assert plan.expected_usd == pytest.approx(4)
    assert {purchase.terms for purchase in plan.purchases} == {Terms.on_demand}
    assert plan.gap == pytest.approx(1 - 1.2 / 4)  # The proven bound is that of the dear one: a tenth of 12.
    assert {way.name: way.usd_per_month for way in plan.comparisons}["all reserved"] == pytest.approx(6 * 730)
    assert compare(dear, [offer], demand, accepts=lambda other: False).expected_usd == dear.expected_usd


def test_the_rule_that_a_plan_is_compared_with_pays_for_its_machines_to_finish_too() -> None:
    """One firm, and one on spot for eleven of 24 hours: started once a day, paid for half an hour more."""
    market = SpotMarket(zone="z", usd_per_hour=1.0, interruptions=ALWAYS)
    offer = simple_offer("a", 1.0, 2.0, spot=(market,), startup_s=600.0, drain_s=1200.0)
    usd, _ = median_rule_usd([offer], parse_demand("13x1,11x2", 24))
    assert usd == pytest.approx((24 * 2.0 + (11 + 0.5) * 1.0) * 730 / 24)


def test_the_peak_is_bought_by_what_a_machine_carries_at_its_demand() -> None:
    offer = simple_offer("one", 2.0, 1.0, levels={"all": ((1.0, 1.0), (10.0, 2.0))})
    assert peak_usd([offer], demand_of([1.0, 5.5, 10.0])) == 5 * 730
