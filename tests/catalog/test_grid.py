"""Where a machine stands decides what a kilowatt-hour emits; a place that is not known has the world's mean."""

import csv

import pytest

from tokonomics.catalog.entries import DATA
from tokonomics.catalog.offers import load_offers
from tokonomics.catalog.places import WORLD, country_of, grid_named, grid_of
from tokonomics.errors import BadInput


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
