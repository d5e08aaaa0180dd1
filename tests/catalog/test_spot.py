"""The shipped spot tables."""

import pytest

from tokonomics.catalog.feeds import (
    BANDS,
    SCARCE,
    find_band,
    find_zones,
    hourly_rate,
    load_bands,
    load_spot_history,
    load_zone_prices,
)
from tokonomics.catalog.offers import load_offers
from tokonomics.errors import UnknownName


def test_every_band_is_one_of_the_advisor_s_five() -> None:
    assert len(load_bands()) == 614
    assert {band.band for band in load_bands().values()} == set(range(len(BANDS)))
    low, high = find_band("p5.48xlarge", "us-east-1").monthly
    rate = find_band("p5.48xlarge", "us-east-1").interruptions.per_hour
    assert hourly_rate(low) <= rate <= hourly_rate(high)
    assert (1 - hourly_rate(0.2)) ** 730 == pytest.approx(0.8, abs=1e-3)
    assert SCARCE.availability == pytest.approx(0.64, abs=0.005)


def test_spot_never_costs_more_than_on_demand_and_zones_are_cheapest_first() -> None:
    for zones in load_zone_prices().values():
        # Of two that cost the same the steadier comes first.
        found = [(zone.spot_usd_per_hour, zone.p90_to_median) for zone in zones]
        assert found == sorted(found)
        assert all(zone.spot_usd_per_hour <= zone.usd_per_hour * 1.001 for zone in zones)
    assert all(0 < each.median_ratio <= each.p90_ratio <= 1 for each in load_spot_history().values())
    offered = {offer.instance for offer in load_offers() if offer.provider == "aws"}
    assert len(load_spot_history().keys() & offered) >= 24
    assert {zone.region for zone in find_zones("g5.xlarge", "us-east-1")} == {"us-east-1"}


def test_an_unknown_instance_or_region_names_the_nearest() -> None:
    with pytest.raises(UnknownName, match="unknown spot instance"):
        find_band("p5.48xlage", "us-east-1")
    with pytest.raises(UnknownName, match="unknown spot region"):
        find_band("p5.48xlarge", "us-eat-1")
