"""Where machines stand and who sells them."""

import csv
from collections import defaultdict
from datetime import date

import pytest
from tests.there import refused

from tokonomics.catalog.api_hosts import list_apis
from tokonomics.catalog.entries import DATA, shipped_rows
from tokonomics.catalog.offer_choice import (
    NoOffer,
    certainly_there,
    cheapest_offer,
    list_prices,
    market_offers,
    newer_quote,
    newest_quotes,
    prices_that_count,
    select_offers,
)
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
        # Some regions only hint at where they are, and some are names that say nothing: they may be there.
        perhaps = {
            ("lambda", "europe-south-1"): ["Europe"],
            ("yotta", "ap-east-2"): ["Asia", "Oceania"],
            ("coreweave", "NA"): ["North America"],
            ("hyperbolic", "default"): list(CONTINENTS),
            ("qubrid", "unspecified"): list(CONTINENTS),
        }.get((offer.provider, offer.region))
        assert on == perhaps if perhaps else len(on) == 1, offer


def test_a_provider_and_a_continent_find_what_they_share(by_continent: dict[tuple[str, str], set[str]]) -> None:
    providers = sorted({offer.provider for offer in load_offers()})
    for provider in providers:
        for name in CONTINENTS:
            expected = by_continent.get((provider, name), set())
            if expected:
                assert {region for _, region in regions(name, provider=provider)} == expected
            else:
                with pytest.raises(BadInput, match=r"no price of what is asked for is known in|unknown region"):
                    regions(name, provider=provider)


def test_eu_is_the_union_and_europe_the_continent() -> None:
    found = select_offers(load_offers(), region="EU", terms=None)
    assert {offer.country for offer in found if offer.country} == UNION
    assert {offer.provider for offer in found if offer.country is None} == {"lambda", "hyperbolic", "qubrid"}
    certain = {offer.provider for offer in certainly_there(found)}
    assert certain & {"aws", "nebius", "verda"}
    assert not certain & {"lambda", "oci", "runpod", "hyperbolic"}
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
        ("Frankfurt", ("aws", "eu-central-1"), ("aws", "eu-west-1")),
        ("frankfurt", ("gcp", "europe-west3"), ("gcp", "europe-west4")),
        ("Virginia", ("aws", "us-east-1"), ("aws", "us-east-2")),
        ("Sao Paulo", ("gcp", "southamerica-east1"), ("gcp", "southamerica-west1")),
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
    with pytest.raises(BadInput, match="no price of what is asked for is known in Japan"):
        regions("Japan", provider="azure")


def test_a_town_misspelled_is_suggested_and_every_town_is_of_a_known_region() -> None:
    assert "    Frankfurt" in str(refused(regions, "Franfurt")).splitlines()
    known = {(row["provider"], row["region"]) for row in shipped_rows("places.csv")}
    towns = list(shipped_rows("towns.csv"))
    assert {(row["provider"], row["region"]) for row in towns} <= known
    assert all(row["source"].startswith("https://") for row in towns)


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


DAYS = {0: "2026-08-20", 90: "2026-05-22", 91: "2026-05-21", 300: "2025-10-24"}  # before the newest quote


@pytest.mark.parametrize(("days", "taken"), [(90, 1.0), (91, 2.0), (300, 2.0)])
def test_a_quote_counts_within_ninety_days_of_the_newest(days: int, taken: float) -> None:
    """However much lower the old one is: the newer ones show what the machine costs."""
    offers = [priced(2.0, DAYS[0]), priced(1.0, DAYS[days])]
    assert cheapest_offer("H100", offers=offers).usd_per_hour == taken


def test_the_same_quotes_count_whatever_day_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    offers = [priced(1.0, "2026-01-20"), priced(2.0, "2026-04-01"), priced(3.0, DAYS[0])]
    for day in ("2026-08-20", "2026-11-18", "2027-06-06"):
        monkeypatch.setenv("TOKONOMICS_TODAY", day)
        assert cheapest_offer("H100", offers=offers).usd_per_hour == 3.0


def test_where_nobody_quoted_since_an_old_price_counts() -> None:
    assert prices_that_count([priced(2.0, "2025-12-01")], Terms.on_demand) == (priced(2.0, "2025-12-01"),)
    spot = priced(2.0, DAYS[0]).model_copy(update={"usd_per_hour": None, "spot_usd_per_hour": 1.0})
    assert cheapest_offer("H100", offers=[spot, priced(3.0, "2025-12-01")]).usd_per_hour == 3.0  # of other terms


def test_a_marketplace_does_not_make_a_list_out_of_date() -> None:
    old, seen = priced(2.0, "2026-01-20"), priced(4.0, DAYS[0], "vast")
    assert prices_that_count([old, seen], Terms.on_demand) == (old, seen)


@pytest.mark.parametrize("usd", [8.8, 80.0])
def test_a_newer_quote_of_a_larger_machine_shows_an_old_one_out_of_date(usd: float) -> None:
    """One GPU at $1 in January, eight at $8.80 or $80 in August: what one costs in August is not known."""
    old, eight = priced(1.0, "2026-01-20"), priced(usd, DAYS[0]).model_copy(update={"gpus": 8})
    assert prices_that_count([old, eight], Terms.on_demand) == (eight,)
    assert prices_that_count([old, eight], Terms.on_demand, any_age=True) == (old, eight)
    assert newer_quote(old, [old, eight], Terms.on_demand) == eight
    assert newer_quote(eight, [old, eight], Terms.on_demand) is None


def test_a_newer_quote_of_a_smaller_machine_does_as_well() -> None:
    """Eight together are only known at an old price: an error says so, and a plan's line below the pick."""
    old, one = priced(8.0, "2026-01-20").model_copy(update={"gpus": 8}), priced(9.0, DAYS[0])
    assert prices_that_count([old], Terms.on_demand, newest_quotes([old, one], Terms.on_demand)) == ()
    with pytest.raises(NoOffer, match=f"2026-01-20.*{DAYS[0]}"):
        cheapest_offer("H100", 8, offers=[old, one], together=8)


def test_where_no_machine_is_that_large_the_error_says_so() -> None:
    with pytest.raises(NoOffer, match="in machines of 8 or more"):
        cheapest_offer("H100", 8, offers=[priced(9.0, DAYS[0])], together=8)


def test_a_host_without_room_says_nothing_about_the_price_of_others() -> None:
    thin = priced(1.0, DAYS[0]).model_copy(update={"memory_gb": 4.0})
    assert cheapest_offer("H100", offers=[thin, priced(3.0, "2025-12-01")]).usd_per_hour == 3.0


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


def test_a_host_whose_listed_price_buys_no_place_is_not_said_to_compute_in_one() -> None:
    """Mistral asks 1.1 times its list price for the EU or the US, Together 1.25 times; Nebius is where it has room."""
    for host in ("mistral", "together", "nebius"):
        assert areas_of_host(host) == ()
        assert lies_in(["EU"], areas_of_host(host)) is None
    assert lies_in(["EU"], areas_of_host("ovhcloud")) is True
    assert lies_in(["EU"], areas_of_host("deepseek")) is False
