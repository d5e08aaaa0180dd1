"""What is known of each provider's prices, and what is shown of it."""

import datetime as dt
from typing import Any

import pytest

from tokonomics.catalog.offers import Offer, load_offers
from tokonomics.catalog.places import LISTED_EVERYWHERE
from tokonomics.catalog.price_coverage import price_coverage
from tokonomics.questions.doctor import doctor
from tokonomics.questions.request import SILENT
from tokonomics.questions.requests.run import DoctorRequest, OffersRequest
from tokonomics.questions.result import Listing
from tokonomics.questions.verbs import find_verb


def offer(provider: str, region: str, day: str) -> Offer:
    row = {"provider": provider, "region": region, "instance": "i", "gpu": "H100", "gpus": 1, "source": "test"}
    return Offer.model_validate({**row, "usd_per_hour": 1.0, "date": day})


def listed(**asked: Any) -> Listing:
    found = find_verb("offers").answer(OffersRequest.checked(asked), SILENT)
    assert isinstance(found, Listing)
    return found


def test_coverage_counts_regions_countries_and_days_of_each_provider() -> None:
    rows = [
        offer("aws", "eu-west-1", "2026-08-01"), offer("aws", "eu-west-1", "2026-08-20"),
        offer("aws", "us-east-1", "2026-07-01"), offer("lambda", "europe-south-1", "2026-07-23"),
    ]  # fmt: skip
    aws, other = price_coverage(rows)
    assert (aws.machines, aws.regions, aws.countries) == (3, 2, ("IE", "US"))
    assert aws.continents == ("europe", "north america")
    assert (aws.oldest, aws.newest) == (dt.date(2026, 7, 1), dt.date(2026, 8, 20))
    assert (aws.is_place_certain, other.is_place_certain) == (True, False)
    assert (other.provider, other.regions, other.countries) == ("lambda", 1, ())


def test_the_doctor_has_the_coverage_of_every_provider() -> None:
    (check,) = (check for check in doctor(DoctorRequest()).checks if check.name == "coverage")
    known = {one.provider: one for one in price_coverage(load_offers())}
    assert check.facts.keys() == known.keys()
    assert all(str(one.newest) in str(check.facts[name]) for name, one in known.items())
    assert "US" in str(check.facts["azure"])
    assert "azure" in check.seen  # nothing of the last year


def test_offers_of_a_region_keep_and_mark_what_is_only_perhaps_there() -> None:
    found = listed(region=("EU",))
    certain = {row["provider"] for row in found.documents if row["is_place_certain"]}
    perhaps = {row["provider"] for row in found.documents if not row["is_place_certain"]}
    assert perhaps >= LISTED_EVERYWHERE
    assert not certain & LISTED_EVERYWHERE
    assert {row["country"] for row in found.documents if row["is_place_certain"]} >= {"DE", "FI", "FR"}


@pytest.mark.parametrize(
    ("gpus", "unpriced"), [(("GB300",), ("GB300",)), (("H100", "mi355x"), ("MI355X",)), (("H100",), ())]
)
def test_a_gpu_without_a_public_price_is_named(gpus: tuple[str, ...], unpriced: tuple[str, ...]) -> None:
    found = listed(gpu=gpus)
    assert found.without_price == unpriced
    assert bool(found.rows) is ("H100" in gpus)


def test_a_coverage_is_of_the_providers_asked_for() -> None:
    assert [one.provider for one in listed(provider=("azure", "AWS")).coverage] == ["aws", "azure"]
    assert len(listed().coverage) == len({one.provider for one in load_offers()})


def test_prices_collected_by_hand_have_a_term_a_day_and_a_commit() -> None:
    by_hand = [row for row in load_offers() if row.provider in {"coreweave", "qubrid"}]
    assert {row.gpu for row in by_hand} == {"GB200", "B300", "B200", "H200", "H100-SXM", "A100-80GB"}
    assert all(" @ " in row.source and row.date == dt.date(2026, 9, 20) for row in by_hand)
    dollars_a_year = {"B300": 389_400, "B200": 297_840, "H200": 210_240, "H100-SXM": 133_414.8, "A100-80GB": 89_500}
    for row in by_hand:
        if row.reserved_1yr_usd_per_hour is not None:
            assert row.reserved_1yr_usd_per_hour * 8760 == pytest.approx(dollars_a_year[row.gpu], rel=1e-5)
