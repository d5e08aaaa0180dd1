"""A bought fleet in the simulator: machines that come and go, zones that take theirs back."""

import numpy as np
import pytest

from tokonomics.catalog.engines import find_engine
from tokonomics.catalog.gpus import find_gpu
from tokonomics.catalog.load_models import find_model
from tokonomics.catalog.spot import SCARCE, Interruptions
from tokonomics.money.demand import demand_of, parse_demand
from tokonomics.money.fleet import FleetOffer, FleetPlan, SpotMarket, Wishes, simple_offer
from tokonomics.money.fleet_program import optimal_fleet
from tokonomics.money.fleet_replay import (
    Place,
    Replay,
    busiest_moment,
    drawn_interruptions,
    places_of,
    replay,
    window_of,
    with_interruptions,
)
from tokonomics.physics.deployment import deploy
from tokonomics.traffic.promises import parse_promises
from tokonomics.traffic.trace import make_trace

L40S = deploy(find_model("llama-3.1-8b"), find_gpu("L40S"), find_engine("vllm"))


def present(places: list[Place], at_s: float) -> int:
    return sum(not any(each.at_s <= at_s < each.until_s for each in place.away) for place in places)


def test_every_hour_has_the_machines_bought_and_those_that_leave_finish_first() -> None:
    offer = simple_offer("one", 1.0, 2.0, reserved={"3 years": 1.0}, drain_s=300.0)
    plan = optimal_fleet([offer], parse_demand("6x5,6x2,3x4,9x2", hours=24), gap=0.0)
    places = places_of(plan, {"one": offer}, 0.0, 24 * 3600.0)
    assert tuple(present(places, hour * 3600 + 1800) for hour in range(24)) == plan.machines()
    # Five until six o'clock; at six three of them take nothing new, and are gone five minutes later.
    assert present(places, 6 * 3600 + 200) == 5
    assert present(places, 6 * 3600 + 301) == 2


def test_the_window_is_about_the_busiest_hour_and_small_enough_to_simulate() -> None:
    assert window_of(demand_of([1, 2, 9, 3])) == (0.0, 4 * 3600.0)
    begin, end = window_of(demand_of([1, 500.0, 1]))
    assert end - begin == pytest.approx(300_000 / 500)
    assert (begin + end) / 2 == pytest.approx(1.5 * 3600)


def test_a_scarce_zone_is_there_as_often_as_it_says() -> None:
    market = SpotMarket(zone="z", usd_per_hour=0.3, interruptions=SCARCE)
    offer = simple_offer("one", 1.0, None, spot=(market,))
    rng = np.random.default_rng(0)
    taken = drawn_interruptions(offer, market, 24 * 3650, Wishes(fallback=False), rng)
    away = sum(each.until_s - each.at_s for each in taken) / (24 * 3650 * 3600)
    assert 1 - away == pytest.approx(SCARCE.availability, abs=0.01)


def test_with_a_fallback_a_machine_is_away_for_the_start_up_less_the_notice() -> None:
    market = SpotMarket(zone="z", usd_per_hour=0.3, interruptions=Interruptions(per_hour=0.05, outage_hours=50))
    offer = simple_offer("one", 1.0, 2.0, spot=(market,), startup_s=420.0)
    taken = drawn_interruptions(offer, market, 5000, Wishes(), np.random.default_rng(1))
    assert max(each.until_s - each.at_s for each in taken) == pytest.approx(300.0)


def test_the_zone_that_holds_most_is_the_one_taken() -> None:
    markets = tuple(
        SpotMarket(zone=zone, usd_per_hour=0.3, interruptions=Interruptions(per_hour=0.0), max_machines=most)
        for zone, most in (("small", 1), ("large", 3))
    )
    offer = simple_offer("one", 1.0, 2.0, spot=markets, startup_s=420.0)
    plan = optimal_fleet([offer], demand_of([4.0]), gap=0.0)
    places = places_of(plan, {"one": offer}, 0.0, 3600.0)
    hit, what, often = with_interruptions(places, {"one": offer}, Wishes(), busiest_s=1800.0, end_s=3600.0)
    assert present(hit, 1900.0) == 1
    assert present(hit, 1800.0 + 301) == 4
    assert "large takes its 3 spot machines back" in what
    assert often == 0


def served(offer: FleetOffer, plan: FleetPlan, places: list[Place], rate: float) -> Replay:
    rng = np.random.default_rng(0)
    arrival = np.sort(rng.uniform(0, 3600, round(3600 * rate)))
    traffic = make_trace(arrival, np.full(len(arrival), 700), np.full(len(arrival), 120))
    return replay(
        places,
        {offer.name: offer},
        {offer.name: L40S},
        traffic,
        ("all",),
        np.zeros(len(traffic), np.int32),
        parse_promises("ttft_p99=1,tpot_p99=0.1"),
        name="",
        what="",
        expected_per_month=0.0,
        window=(0.0, 3600.0),
    )


@pytest.mark.slow
def test_a_loss_hurts_a_fleet_without_room_and_not_one_with() -> None:
    """An L40S carries eight to eleven requests a second of this size (``tokonomics capacity``)."""
    market = SpotMarket(zone="z", usd_per_hour=0.3, interruptions=Interruptions(per_hour=0.001))
    offer = simple_offer("one", 8.0, 2.0, spot=(market,), startup_s=420.0)
    for rate, kept in ((15.5, False), (7.5, True)):
        plan = optimal_fleet([offer], demand_of([rate]), Wishes(max_spot_share=0.5, min_replicas=1), gap=0.0)
        places = places_of(plan, {"one": offer}, 0.0, 3600.0)
        at_s = busiest_moment(plan, (0.0, 3600.0))
        assert at_s == 1800
        if len(places) == 1:  # The small demand fits one firm machine: room is a second one.
            places = [*places, Place("one", "z", ())]
        hit, _, _ = with_interruptions(places, {"one": offer}, Wishes(), busiest_s=at_s, end_s=3600.0)
        assert served(offer, plan, places, rate).kept
        lost = served(offer, plan, hit, rate)
        assert lost.kept is kept
        assert lost.answered_share == 1.0
