"""A plan as outages of the simulator."""

import numpy as np

from tokonomics.catalog.spot import SCARCE, Interruptions
from tokonomics.money.demand import parse_demand
from tokonomics.money.fleet import SpotMarket, Wishes, simple_offer
from tokonomics.money.fleet_program import optimal_fleet
from tokonomics.money.fleet_replay import replay_settings
from tokonomics.serving.fleet import FleetSettings


def present(settings: FleetSettings, at_s: float) -> int:
    away = {each.replica for each in settings.outages if each.at_s <= at_s < each.at_s + (each.down_s or np.inf)}
    return settings.replicas - len(away)


def test_without_interruptions_every_hour_has_the_replicas_bought() -> None:
    offer = simple_offer("one", 1.0, 2.0, reserved={"3 years": 1.0})
    plan = optimal_fleet([offer], parse_demand("6x5,6x2,3x4,9x2", hours=24), gap=0.0)
    settings = replay_settings(plan, offer)
    assert tuple(present(settings, hour * 3600 + 1800) for hour in range(24)) == plan.replicas()


def test_a_scarce_zone_takes_its_replicas_together_as_often_as_it_says() -> None:
    market = SpotMarket(zone="z", usd_per_hour=0.3, interruptions=SCARCE)
    offer = simple_offer("one", 1.0, None, spot=(market,))
    plan = optimal_fleet([offer], parse_demand("1x3", hours=168), Wishes(fallback=False), gap=0.0)
    places = plan.replicas()[0]
    seen = np.array(
        [
            present(replay_settings(plan, offer, Wishes(fallback=False), seed=seed), float(at_s))
            for seed in range(40)
            for at_s in np.arange(3600.0, 168 * 3600, 7200)
        ]
    )
    assert set(seen.tolist()) == {0, places}
    # Outages that follow at once are merged with their notice, hence a little below.
    assert abs((seen > 0).mean() - SCARCE.availability) < 0.03


def test_with_a_fallback_a_place_is_away_for_the_start_up_less_the_notice() -> None:
    market = SpotMarket(zone="z", usd_per_hour=0.3, interruptions=Interruptions(per_hour=0.05, outage_hours=50))
    offer = simple_offer("one", 1.0, 2.0, spot=(market,), startup_s=420.0)
    plan = optimal_fleet([offer], parse_demand("1x2.9", hours=168), Wishes(fallback=True), gap=0.0)
    downs = [each.down_s for each in replay_settings(plan, offer, seed=1).outages]
    assert downs
    assert max(each or 0 for each in downs) <= 300.0 + 1e-6
