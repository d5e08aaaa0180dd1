"""How prices moved: a chained index, against hand-made rows and a slow one that walks month by month."""

import datetime as dt
import math
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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
from tokonomics.catalog.gpus import find_gpu
from tokonomics.catalog.offers import Offer, Terms, load_offers
from tokonomics.catalog.places import LISTED_EVERYWHERE, Seller, seller_of
from tokonomics.catalog.price_index import (
    JUMP,
    MonthlyPrice,
    move_of,
    outdated,
    price_coverage,
    price_history,
    price_move,
)
from tokonomics.errors import UnknownName
from tokonomics.questions.doctor import doctor
from tokonomics.questions.request import SILENT
from tokonomics.questions.requests.run import DoctorRequest, OffersRequest
from tokonomics.questions.result import Listing
from tokonomics.questions.verbs import find_verb

ENDS = [dt.date(2026, month, day) for month, day in ((1, 31), (2, 28), (3, 31), (4, 30), (5, 31), (6, 30))]


def row(seller: str, end: dt.date, usd: float, alive: bool = True, name: str = "H100") -> MonthlyPrice:
    return MonthlyPrice(
        month_end=end,
        list_last_changed=end if alive else end - dt.timedelta(days=200),
        provider=seller,
        name=name,
        gpu="H100-SXM",
        terms=Terms.on_demand,
        min_usd_per_gpu_hour=usd,
        median_usd_per_gpu_hour=usd * 3,  # of no use
    )


def rows(prices: dict[str, Sequence[float | None]]) -> list[MonthlyPrice]:
    """A price a month for each seller; None: the list does not exist then."""
    return [
        row(seller, end, usd)
        for seller, months in prices.items()
        for end, usd in zip(ENDS, months, strict=False)
        if usd is not None
    ]


def ratio(listed: Iterable[MonthlyPrice], since: dt.date = ENDS[0]) -> float | None:
    found = move_of(list(listed), since, "these")
    return found.ratio if found else None


def test_prices_that_all_rise_by_a_tenth_are_a_tenth_higher() -> None:
    assert ratio(rows({"a": (1, 1.1), "b": (20, 22), "c": (3, 3.3)})) == pytest.approx(1.1)


def test_sellers_count_alike_in_the_geometric_mean() -> None:
    assert ratio(rows({"a": (1, 1.2), "b": (20, 20), "c": (3, 3)})) == pytest.approx(1.2 ** (1 / 3))
    twice = [
        *rows({"a": (1, 1.2), "b": (20, 20), "c": (3, 3)}),
        *(row("b", end, 7.0, name="H100-80") for end in ENDS[:2]),
    ]
    assert ratio(twice) == pytest.approx(1.2 ** (1 / 3))


def test_a_seller_who_comes_cheap_or_goes_does_not_move_it() -> None:
    steady = {"a": (2, 2, 2), "b": (3, 3, 3), "c": (4, 4, 4)}
    assert ratio(rows(steady | {"cheap": (None, 0.5, 0.5), "gone": (9, None, None)})) == pytest.approx(1.0)


def test_a_list_that_was_left_alone_for_a_while_moves_it_when_it_changes() -> None:
    """Unchanged for two months and then a third higher; one that was dead for four months is followed anew."""
    others = rows(dict.fromkeys(("a", "b"), (2, 2, 2, 2, 2, 2)))
    for alive, expected in ((0, 1, 4, 5), 4 / 3), ((0, 5), None):
        slow = [row("slow", end, 3 if place < 4 else 4, place in alive) for place, end in enumerate(ENDS)]
        assert ratio([*others, *slow]) == (pytest.approx(expected ** (1 / 3)) if expected else None)


def test_a_price_that_doubles_in_a_month_is_another_list() -> None:
    four = dict.fromkeys(("a", "b", "c"), (2, 2))
    assert ratio(rows(four | {"d": (1, 2.01)})) == pytest.approx(1.0)
    assert ratio(rows(four | {"d": (1, 1.99)})) == pytest.approx(1.99**0.25)


def test_two_sellers_are_no_market() -> None:
    assert ratio(rows({"a": (1, 1.2), "b": (20, 20)})) is None
    assert ratio(rows({"a": (1, 1.2, 1.2), "b": (2, 2, 2), "c": (3, 3, None)})) is None  # not in every month


def test_nothing_is_known_before_the_first_month_or_after_the_last() -> None:
    listed = rows(dict.fromkeys(("a", "b", "c"), (2, 3)))
    assert ratio(listed, dt.date(2025, 12, 1)) is None
    assert ratio(listed, ENDS[1]) is None
    assert price_move("H100", dt.date(2026, 8, 22)) is None
    assert price_move("H100", dt.date(2019, 1, 1)) is None


def by_walking(listed: Sequence[MonthlyPrice], since: dt.date) -> float | None:
    """The same, a seller, a month and a series at a time, by looking for alive months on both sides."""
    ends = sorted({one.month_end for one in listed if one.month_end >= since.replace(day=1)})
    if len(ends) < 2:
        return None
    product = 1.0
    for place in range(1, len(ends)):
        changes = []
        for seller in sorted({one.provider for one in listed}):
            own = []
            for series in {one.series for one in listed if one.provider == seller}:
                alive = {one.month_end: one for one in listed if one.series == series and one.is_alive}
                prices = []
                for end in ends[place - 1], ends[place]:
                    before = [day for day in alive if day <= end]
                    after = [day for day in alive if day >= end]
                    if not before or not after:
                        break
                    last, following = max(before), min(after)
                    if (following.year - last.year) * 12 + following.month - last.month > 3:
                        break
                    prices.append(alive[last].min_usd_per_gpu_hour)
                if len(prices) == 2 and 1 / JUMP < prices[1] / prices[0] < JUMP:
                    own.append(prices[1] / prices[0])
            if own:
                changes.append(math.prod(own) ** (1 / len(own)))
        if len(changes) < 3:
            return None
        product *= math.prod(changes) ** (1 / len(changes))
    return product


@pytest.mark.parametrize("gpu", ["H100-SXM", "H200", "A100-40GB", "B200", "L40S"])
@pytest.mark.parametrize("since", [dt.date(2025, 3, 1), dt.date(2026, 2, 10), dt.date(2026, 7, 31)])
def test_the_history_that_is_shipped_moves_as_a_walk_over_it_says(gpu: str, since: dt.date) -> None:
    listed = [
        one
        for one in price_history()
        if one.gpu == gpu and one.terms is Terms.on_demand and seller_of(one.provider) is not Seller.marketplace
    ]
    expected, found = by_walking(listed, since), price_move(gpu, since)
    assert found is not None
    if expected is None:
        assert found.gpus in {f"{find_gpu(gpu).architecture} GPUs", "all GPUs"}
    else:
        assert found.gpus == gpu
        assert found.ratio == pytest.approx(expected)
    assert found.until == max(one.month_end for one in listed)
    assert found.sellers >= 3


MONTHS = st.lists(st.tuples(st.floats(1, 3), st.booleans()), min_size=len(ENDS), max_size=len(ENDS))


@settings(max_examples=50, deadline=None)
@given(st.lists(MONTHS, min_size=3, max_size=6))
def test_any_history_moves_as_a_walk_over_it_says(sellers: list[list[tuple[float, bool]]]) -> None:
    listed = []
    for name, months in enumerate(sellers):
        carried = 1.0
        for end, (usd, alive) in zip(ENDS, months, strict=True):
            carried = usd if alive else carried
            listed.append(row(str(name), end, carried, alive))
    expected, found = by_walking(listed, ENDS[0]), ratio(listed)
    assert found is None if expected is None else found == pytest.approx(expected)


def test_the_cards_of_a_rare_gpu_move_with_those_of_its_architecture_or_all() -> None:
    """RunPod alone kept a list of the RTX 5090; B300 has Blackwell beside it."""
    since = dt.date(2026, 2, 10)
    assert [found.gpus for gpu in ("RTX5090", "B300", "H200") if (found := price_move(gpu, since))] == [
        "all GPUs", "blackwell GPUs", "H200",
    ]  # fmt: skip


def test_an_old_quote_names_the_newer_one_and_the_market_since() -> None:
    def quoted(provider: str, usd: float, day: str) -> Offer:
        made = {"provider": provider, "region": "x", "instance": "i", "gpu": "H200", "gpus": 1, "source": "test"}
        return Offer.model_validate({**made, "usd_per_hour": usd, "date": day})

    old, new, dear = (
        quoted("yotta", 2.1, "2026-02-10"),
        quoted("verda", 4.0, "2026-08-22"),
        quoted("aws", 8.0, "2026-08-22"),
    )
    found = outdated(old, [old, dear, new], Terms.on_demand)
    assert found is not None
    assert (found.newer_provider, found.newer_usd_per_gpu_hour, found.newer_date) == ("verda", 4.0, new.date)
    assert found.moved == price_move("H200", old.date)
    assert outdated(new, [old, dear, new], Terms.on_demand) is None


# --- the shipped spot tables ------------------------------------------------------------------------------------------


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


# --- what is known of each provider's prices, and what is shown of it -------------------------------------------------


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
