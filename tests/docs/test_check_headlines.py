"""The script that checks the guide's headlines finds what a buyer could hold against them."""

import datetime as dt
from typing import Any

import pytest
from benchmarks import check_headlines

from tokonomics.catalog.offers import Offer


def offer(provider: str, usd: float, day: str, region: str = "eu-central-1", gpus: int = 1) -> Offer:
    row = {"provider": provider, "region": region, "instance": f"{gpus}x", "gpu": "H100-SXM", "gpus": gpus}
    return Offer.model_validate({**row, "usd_per_hour": usd * gpus, "date": day, "source": "test"})


OLD, NEW = "2026-05-01", "2026-08-20"  # 111 days


def named(seen: Offer, **more: Any) -> dict[str, Any]:
    row = seen.model_dump(include={"provider", "region", "instance", "gpu"})
    return {**row, "price_date": seen.date.isoformat(), "terms": "on_demand", **more}


@pytest.mark.parametrize(
    ("newer_usd", "day", "is_wrong"), [(2.6, NEW, True), (2.4, NEW, False), (9.0, "2026-07-30", False)]
)
def test_a_price_is_contradicted_by_one_that_is_newer_and_a_quarter_higher(
    newer_usd: float, day: str, is_wrong: bool
) -> None:
    """2.00 of May against 2.60 of August; 30 July is 90 days later, which is not yet newer."""
    old, newer = offer("aws", 2.0, OLD), offer("azure", newer_usd, day)
    assert bool(list(check_headlines.wrong(named(old), [old, newer], {}))) is is_wrong
    assert not list(check_headlines.wrong(named(newer), [old, newer], {}))
    assert not list(check_headlines.wrong(named(old), [old, offer("vast", newer_usd, day)], {}))  # another market
    assert not list(check_headlines.wrong(named(old), [old, newer], {"max_age": ["365"]}))


def test_a_place_is_uncertain_only_where_one_was_asked_for() -> None:
    runpod = offer("runpod", 2.0, NEW, region="CZ")
    assert list(check_headlines.wrong(named(runpod), [runpod], {"region": ["EU"]})) == ["not certain to be there"]
    assert not list(check_headlines.wrong(named(runpod), [runpod], {}))
    assert not list(check_headlines.wrong(named(runpod), [runpod], {"region": ["EU"], "provider": ["runpod"]}))


def test_a_replica_over_machines_without_a_stated_network_is_wrong() -> None:
    eight = offer("ours", 2.0, NEW, gpus=8)
    assert list(check_headlines.wrong(named(eight, gpus_per_replica=16), [eight], {})) != []
    assert not list(check_headlines.wrong(named(eight, gpus_per_replica=8), [eight], {}))
    networked = eight.model_copy(update={"network_gbit": 3200})
    assert not list(check_headlines.wrong(named(networked, gpus_per_replica=16), [networked], {}))


def test_machines_are_found_above_the_line_by_row_and_in_words() -> None:
    row = named(offer("aws", 2.0, NEW))
    document = {"best": row, "set_aside": [row], "price_from": "aws p5.48xlarge, us-east-1, quoted 2026-08-22 (older)"}
    found = list(check_headlines.machines(document))
    assert [machine["instance"] for machine in found] == ["1x", "p5.48xlarge"]
    assert dt.date.fromisoformat(found[1]["price_date"]) == dt.date(2026, 8, 22)


def test_every_page_has_commands_and_their_filters_are_read() -> None:
    assert len(check_headlines.commands()) >= 15
    asked = check_headlines.filters_of("plan m --region DE,FI --provider aws --rate 2")
    assert asked == {"region": ["DE", "FI"], "provider": ["aws"]}
