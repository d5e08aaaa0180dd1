"""A bought fleet in the simulator: machines that come and go, zones that take theirs back."""

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.deployed import on
from tests.money.simple_offers import simple_offer

from tokonomics.catalog.feeds import SCARCE, Interruptions
from tokonomics.fleet.cheapest import FAILURES_PER_GPU_HOUR
from tokonomics.fleet.layouts import FleetLayout
from tokonomics.fleet.replay import (
    FleetReplay,
    Place,
    ReplayCase,
    drawn_interruptions,
    places_of,
    replay,
    window_of,
    with_interruptions,
)
from tokonomics.fleet.traffic import parse_demand
from tokonomics.money.purchase_search import optimal_fleet
from tokonomics.money.purchases import FleetLimits, FleetOffer, FleetPlan, SpotMarket, demand_of
from tokonomics.money.spot_machines import counted_share
from tokonomics.traffic.slo import parse_slos
from tokonomics.traffic.trace import make_trace

L40S = on(gpu="L40S")


def present(places: list[Place], at_s: float) -> int:
    return sum(place.is_there(at_s) for place in places)


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
    # The router looks at every replica: with many of them, fewer requests.
    for replicas, requests in ((10_000, 10_000), (300, 2 * 3600 * 40)):
        begin, end = window_of(demand_of([40.0] * 24), replicas)
        assert (end - begin) * 40 == pytest.approx(requests)


def spot_market(per_hour: float, outage_hours: float = 1.85, zone: str = "z", usd: float = 0.3) -> SpotMarket:
    risk = Interruptions(per_hour=per_hour, outage_hours=outage_hours)
    return SpotMarket(zone=zone, usd_per_hour=usd, interruptions=risk)


def test_a_scarce_zone_is_there_as_often_as_it_says() -> None:
    market = SpotMarket(zone="z", usd_per_hour=0.3, interruptions=SCARCE)
    offer = simple_offer("one", 1.0, None, spot=(market,))
    rng = np.random.default_rng(0)
    taken = drawn_interruptions(offer, market, 24 * 3650, FleetLimits(fallback=False), rng)
    gone = sum(away.until_s - away.at_s for away in taken) / (24 * 3650 * 3600)
    assert 1 - gone == pytest.approx(SCARCE.availability, abs=0.01)


def test_with_a_fallback_a_machine_is_away_for_the_start_up_less_the_notice() -> None:
    market = spot_market(0.05, 50)
    offer = simple_offer("one", 1.0, 2.0, spot=(market,), startup_s=420.0)
    taken = drawn_interruptions(offer, market, 5000, FleetLimits(), np.random.default_rng(1))
    assert max(away.until_s - away.at_s for away in taken) == pytest.approx(300.0)


@pytest.mark.parametrize("startup_s", [200.0, 420.0])
@pytest.mark.parametrize("outage_hours", [0.01, 1.85])
def test_the_replay_misses_a_machine_for_as_long_as_is_counted(startup_s: float, outage_hours: float) -> None:
    """From an answer's time before it goes until the one ordered at the notice serves, or spot is back."""
    market = spot_market(0.01, outage_hours)
    offer = simple_offer("one", 1.0, 2.0, spot=(market,), startup_s=startup_s, answer_s=15.0)
    plan, calm, risk = optimal_fleet([offer], demand_of([1.0]), gap=0.0), FleetLimits(), market.interruptions
    places = places_of(plan, {"one": offer}, 0.0, 3600.0)
    hit, _, _ = with_interruptions(places, {"one": offer}, calm, plan, busiest_s=1800.0, end_s=3600.0)
    away = next(away for place in hit for away in place.away if away.at_s == 1800.0)
    counted_s = (1 - counted_share(offer, market, calm)) * 3600 / (risk.availability * risk.per_hour)
    assert away.until_s - (away.at_s - away.notice_s) == pytest.approx(counted_s)
    assert counted_s == pytest.approx(min(startup_s - 120, outage_hours * 3600) + 15)


def test_a_loss_is_expected_only_of_what_is_bought_while_it_is_held() -> None:
    """Ten hours of a day at 0.001 an hour; the market that was not bought there is taken a hundred times as often."""
    market, risky = spot_market(0.001, 0.5), spot_market(0.1, 0.5, usd=1.9)
    offers = {
        "one": simple_offer("one", 1.0, 2.0, gpus=8, spot=(market,), reserved={"3 years": 0.35}, startup_s=420.0),
        "other": simple_offer("other", 1.0, 2.0, spot=(risky,), startup_s=420.0),
    }
    limits = FleetLimits(max_spot_share=0.5)
    demand = parse_demand("10x1.9,14x1", hours=24)
    plan = optimal_fleet(list(offers.values()), demand, limits, gap=0.0)
    places = places_of(plan, offers, 0.0, 24 * 3600.0)
    _, _, often = with_interruptions(places, offers, limits, plan, busiest_s=1800.0, end_s=24 * 3600.0)
    assert often == pytest.approx(0.001 * 730 * 10 / 24)
    firm = optimal_fleet(list(offers.values()), demand, FleetLimits(max_spot_share=0), gap=0)
    assert firm.machines() == (2,) * 24
    places = places_of(firm, offers, 0.0, 3600.0)
    _, _, often = with_interruptions(places, offers, limits, firm, busiest_s=1800.0, end_s=3600.0)
    assert often == pytest.approx(16 * FAILURES_PER_GPU_HOUR * 730)


def test_the_zone_that_holds_most_is_the_one_taken() -> None:
    markets = spot_market(0.0, zone="small", usd=0.4), spot_market(0.0, zone="large")
    offer = simple_offer("one", 1.0, 2.0, spot=markets, startup_s=420.0)
    plan = optimal_fleet([offer], demand_of([4.0]), FleetLimits(max_zone_share=0.75), gap=0.0)
    places = places_of(plan, {"one": offer}, 0.0, 3600.0)
    hit, _, often = with_interruptions(places, {"one": offer}, FleetLimits(), plan, busiest_s=1800.0, end_s=3600.0)
    assert [place.zone for place in hit if not place.is_there(1900.0)] == ["large"] * 3
    assert present(hit, 1800.0 + 301) == 4
    assert often == 0


LAYOUT = FleetLayout(L40S, {})
COUNT = 31_000  # so that 310 of a hundredth are enough to judge a class


def served(
    offer: FleetOffer, plan: FleetPlan, places: list[Place], rate: float, layout: FleetLayout = LAYOUT
) -> FleetReplay:
    rng = np.random.default_rng(0)
    arrival = np.sort(rng.uniform(0, 3600, round(3600 * rate)))
    traffic = make_trace(arrival, np.full(len(arrival), 700), np.full(len(arrival), 120))
    return replay(
        ReplayCase(places), {offer.name: offer}, {offer.name: layout}, traffic, ("all",),
        np.zeros(len(traffic), np.int32), parse_slos("ttft_p99=1,tpot_p99=0.1"), window=(0.0, 3600.0),
    )  # fmt: skip


def test_replicas_are_replayed_with_the_limit_on_sequences_that_they_were_sized_with() -> None:
    offer = simple_offer("one", 2.0, 2.0)
    plan = optimal_fleet([offer], demand_of([2.0]), gap=0)
    places = places_of(plan, {"one": offer}, 0.0, 3600.0)
    assert served(offer, plan, places, 2.0).met
    alone = served(offer, plan, places, 2.0, FleetLayout(L40S, {}, max_sequences=1))
    assert not alone.met


def test_a_slo_is_judged_by_the_size_class_that_waits_longest_and_refusals_are_not_answered() -> None:
    """One large prompt in a hundred hides beyond a p95 of all; by itself it is far too late."""
    inputs = np.where(np.arange(COUNT) % 100 == 0, 20_000, 100)
    inputs[5] = 400_000  # Beyond the model's context.
    traffic = make_trace(np.arange(COUNT) * 2.0, inputs, np.full(COUNT, 5))
    offer = FleetOffer(name="one", requests_per_s={"small": 9, "large": 9}, replicas=1, usd_per_hour=1)
    size = (inputs > 1000).astype(np.int32)

    def tried(classes: tuple[str, ...], class_of: NDArray[np.int32]) -> FleetReplay:
        return replay(
            ReplayCase([Place("one", None, ())]), {"one": offer}, {"one": FleetLayout(L40S, {})}, traffic,
            classes, class_of, parse_slos("ttft_p95=0.5"), window=(0.0, 2.0 * COUNT),
        )  # fmt: skip

    together = tried(("small",), np.zeros_like(size))
    by_class = tried(("small", "large"), size)
    assert together.slo[0].met
    assert not by_class.slo[0].met
    assert together.answered_share == by_class.answered_share == 1 - 1 / COUNT


@pytest.mark.slow
def test_a_loss_hurts_a_fleet_without_room_and_not_one_with() -> None:
    """An L40S carries eight to eleven requests a second of this size (``tokonomics capacity``)."""
    offer = simple_offer("one", 8.0, 2.0, spot=(spot_market(0.001),), startup_s=420.0)
    for rate, met in ((15.5, False), (7.5, True)):
        plan = optimal_fleet([offer], demand_of([rate]), FleetLimits(max_spot_share=0.5, min_replicas=1), gap=0.0)
        places = places_of(plan, {"one": offer}, 0.0, 3600.0)
        if len(places) == 1:  # The small demand fits one firm machine: room is a second one.
            places = [*places, Place("one", "z", ())]
        hit, _, _ = with_interruptions(places, {"one": offer}, FleetLimits(), plan, busiest_s=1800.0, end_s=3600.0)
        assert served(offer, plan, places, rate).met
        lost = served(offer, plan, hit, rate)
        assert lost.met is met
        assert lost.answered_share == 1.0
