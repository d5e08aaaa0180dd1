"""Where machines stand and who sells them."""

import csv
from collections import defaultdict
from datetime import date

import pytest
from tests.there import refused

from tokonomics.catalog.api_hosts import list_apis
from tokonomics.catalog.entries import DATA, shipped_rows
from tokonomics.catalog.offer_choice import cheapest_offer, list_prices, market_offers, prices_that_count, select_offers
from tokonomics.catalog.offers import Offer, Terms, load_offers
from tokonomics.catalog.places import (
    WORLD,
    Seller,
    areas_of_host,
    country_of,
    grid_named,
    grid_of,
    lies_in,
    require_area,
    seller_of,
)
from tokonomics.errors import BadInput

CONTINENTS = ("Europe", "Asia", "Africa", "Oceania", "North America", "South America")
UNION = {"BE", "BG", "CZ", "DE", "DK", "EE", "ES", "FI", "FR", "IE", "IT", "NL", "PL", "RO", "SE"}
"""Members of the European Union in which the list has machines (europa.eu)."""


def regions(place: str, **more: object) -> set[tuple[str, str]]:
    return {(offer.provider, offer.region) for offer in select_offers(load_offers(), region=place, terms=None, **more)}  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def by_continent() -> dict[tuple[str, str], set[str]]:
    """The regions of every provider on every continent, by walking the offers one by one."""
    found: dict[tuple[str, str], set[str]] = defaultdict(set)
    for name in CONTINENTS:
        for offer in select_offers(load_offers(), region=name, terms=None):
            found[offer.provider, name].add(offer.region)
    return found


def test_every_region_of_every_provider_is_on_one_continent(by_continent: dict[tuple[str, str], set[str]]) -> None:
    for offer in load_offers():
        on = [name for name in CONTINENTS if offer.region in by_continent.get((offer.provider, name), ())]
        # Two regions do not say where they are, and one is a name that says nothing.
        unknown = (offer.provider, offer.region) in {
            ("lambda", "europe-south-1"), ("yotta", "ap-east-2"), ("hyperbolic", "default"),
        }  # fmt: skip
        expected = ["Europe"] if offer.region == "europe-south-1" else [] if unknown else None
        assert on == expected if expected is not None else len(on) == 1, offer


def test_a_provider_and_a_continent_find_what_they_share(by_continent: dict[tuple[str, str], set[str]]) -> None:
    providers = sorted({offer.provider for offer in load_offers()})
    for provider in providers:
        for name in CONTINENTS:
            expected = by_continent.get((provider, name), set())
            if expected:
                assert {region for _, region in regions(name, provider=provider)} == expected
            else:
                with pytest.raises(BadInput, match=r"nothing asked for is sold in|unknown region"):
                    regions(name, provider=provider)


def test_eu_is_the_union_and_europe_the_continent() -> None:
    inside = {offer.country for offer in select_offers(load_offers(), region="EU", terms=None)}
    assert inside == UNION
    assert len({provider for provider, _ in regions("EU")}) >= 8
    assert regions("EU") < regions("europe")
    assert ("aws", "eu-west-2") in regions("Europe") - regions("EU")  # London


@pytest.mark.parametrize(
    ("place", "has", "has_not"),
    [
        ("eu-central-1", ("aws", "eu-central-1"), ("aws", "eu-central-2")),
        ("us-central", ("gcp", "us-central1"), ("gcp", "us-east1")),
        ("de", ("aws", "eu-central-1"), ("aws", "eu-west-1")),
        ("Germany", ("oci", "eu-frankfurt-1"), ("oci", "eu-milan-1")),
        ("UK", ("nebius", "uk-south1"), ("nebius", "eu-west1")),
        ("us", ("azure", "eastus"), ("aws", "ca-central-1")),
        ("frankfurt", ("oci", "eu-frankfurt-1"), ("oci", "eu-milan-1")),
        ("southcentral", ("azure", "southcentralus"), ("azure", "centralus")),
        ("Georgia, US, NA", ("vast", "Georgia, US, NA"), ("vast", "Florida, US, NA")),
    ],
)
def test_a_place_has_many_names(place: str, has: tuple[str, str], has_not: tuple[str, str]) -> None:
    found = regions(place)
    assert has in found
    assert has_not not in found


def test_a_country_is_known_by_the_region_or_by_its_name() -> None:
    where = [("aws", "eu-central-1"), ("vast", "Somewhere new, FI, EU"), ("runpod", "EE"), ("ours", "rack 7")]
    assert [country_of(*place) for place in where] == ["DE", "FI", "EE", None]


def test_an_unknown_place_lists_near_ones_a_line_each() -> None:
    caught = refused(regions, "eu-cntral-1")
    lines = str(caught).splitlines()
    assert "unknown region 'eu-cntral-1'" in lines[0]
    assert "    eu-central-1" in lines
    with pytest.raises(BadInput, match="nothing asked for is sold in Japan"):
        regions("Japan", provider="azure")


def test_sellers_are_told_apart() -> None:
    sellers = [seller_of(name) for name in ("aws", "runpod", "vast", "ours")]
    assert sellers == [Seller.hyperscaler, Seller.cloud, Seller.marketplace, None]
    only = select_offers(load_offers(), sellers=[Seller.hyperscaler], terms=None)
    assert {offer.provider for offer in only} == {"aws", "azure", "gcp", "ibm", "oci"}
    assert {offer.seller for offer in list_prices(load_offers())} == {Seller.hyperscaler, Seller.cloud}
    assert list_prices(select_offers(load_offers(), provider="vast", terms=None)) == ()
    # A marketplace is no price that is looked up unless it is named.
    assert Seller.marketplace not in {offer.seller for offer in market_offers()}
    assert {offer.seller for offer in market_offers("vast")} == {Seller.marketplace}


def priced(usd: float, day: str, provider: str = "ours") -> Offer:
    row = {"provider": provider, "region": "x", "instance": f"{usd}", "gpu": "H100-SXM", "gpus": 1, "source": "test"}
    return Offer.model_validate({**row, "usd_per_hour": usd, "date": day})


@pytest.mark.parametrize(("old_usd", "taken"), [(1.61, 2.0), (1.59, 1.59)])
def test_an_old_price_is_taken_only_where_it_saves_a_quarter(old_usd: float, taken: float) -> None:
    """2.00 is within 25 % of 1.61 and not of 1.59 (1.59 × 1.25 = 1.9875); the day is 2026-08-30."""
    offers = [priced(2.0, "2026-08-20"), priced(old_usd, "2026-01-20")]
    assert cheapest_offer("H100", offers=offers).usd_per_hour == taken


def test_where_all_prices_are_old_the_newest_count_as_recent() -> None:
    offers = [priced(1.0, "2025-09-01"), priced(2.0, "2026-01-20"), priced(3.0, "2026-04-01")]
    day = priced(1.0, "2026-08-30").date
    near = [priced(2.0, "2026-01-20"), priced(2.2, "2026-04-01"), priced(1.9, "2025-09-01")]
    assert {offer.usd_per_hour for offer in prices_that_count(near, Terms.on_demand, day)} == {2.0, 2.2}
    assert {offer.usd_per_hour for offer in prices_that_count(offers, Terms.on_demand, day)} == {1.0, 2.0, 3.0}


def test_an_old_price_gives_way_only_to_machines_that_are_no_larger() -> None:
    """One GPU at $1 long ago; eight at $8.80 today would be 8.8 times the bill of one replica."""
    old, eight = priced(1.0, "2026-01-20"), priced(8.8, "2026-08-20").model_copy(update={"gpus": 8})
    day = priced(1.0, "2026-08-30").date
    assert prices_that_count([old, eight], Terms.on_demand, day) == (old, eight)
    one = priced(1.1, "2026-08-20")
    assert prices_that_count([old, eight, one], Terms.on_demand, day) == (eight, one)
    assert prices_that_count([old, eight, one], Terms.on_demand, None) == (old, eight, one)


# --- what a kilowatt-hour emits there; a place that is not known has the world's mean ---------------------------------


def test_a_region_has_its_own_grid_or_its_countrys_or_the_worlds() -> None:
    assert grid_of("gcp", "us-west1").g_per_kwh == 97.85
    assert grid_of("aws", "us-west-2").place == "Oregon, US"
    assert grid_of("aws", "eu-west-3").g_per_kwh == 44.18  # Paris: Ember's France of 2024
    assert grid_of("vast", "Oregon, US, NA").g_per_kwh == 383.55
    assert grid_of("own", "own").place == WORLD


def test_every_country_in_which_machines_are_sold_has_a_grid() -> None:
    sold = {country_of(offer.provider, offer.region) for offer in load_offers()} - {None}
    assert {grid_named(str(country)).place for country in sold} == sold


def test_a_grid_may_be_given_in_grams_or_as_a_country() -> None:
    assert grid_named("45").g_per_kwh == 45
    assert grid_named("fr") == grid_of("aws", "eu-west-3")
    assert "as given" in grid_named("0").text
    for wrong in ("-1", "nan", "atlantis", "1e9"):
        with pytest.raises(BadInput, match="neither a country nor"):
            grid_named(wrong)


def test_every_row_is_a_mean_of_a_year_within_what_grids_emit() -> None:
    with (DATA / "grid.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert all(0 < float(row["g_per_kwh"]) < 1000 and 2022 <= int(row["year"]) <= 2025 for row in rows)
    assert len({(row["country"], row["provider"], row["region"]) for row in rows}) == len(rows)


def test_a_host_is_there_if_all_its_areas_are_and_not_if_none_is() -> None:
    for names, areas, there in (
        (["EU"], ["FR"], True), (["EU"], ["EU"], True), (["Europe"], ["EU"], True), (["FR"], ["EU"], None),
        (["EU"], ["US"], False), (["EU"], ["FI", "US"], None), (["EU", "US"], ["FI", "US"], True),
        (["EU"], [], None), (["eu-west-1"], ["IE"], None),
    ):  # fmt: skip
        assert lies_in(names, areas) is there, (names, areas)


def test_the_table_of_hosts_names_known_areas_pages_and_days() -> None:
    rows = shipped_rows("api_places.csv")
    hosts = {api.seller for api in list_apis()}
    assert len({row["host"] for row in rows}) == len(rows)
    for row in rows:
        assert row["host"] in hosts
        assert date.fromisoformat(row["read"]) <= date(2026, 11, 18)
        assert "https://" in row["source"]
        assert row["said"]
        assert all(require_area(area) == area for area in row.get("areas", "").split())
    assert areas_of_host("ovhcloud") == ("EU",)
    assert areas_of_host("nobody") == ()
    with pytest.raises(BadInput):
        require_area("Atlantis")
