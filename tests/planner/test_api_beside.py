"""The API beside a fleet: the cheapest that may count, never made more expensive by one more on the list."""

from datetime import date

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.there import there

from tokonomics.catalog.apis import ApiPrice
from tokonomics.catalog.load_models import find_model
from tokonomics.money.trace_bills import ApiCost, host_bills
from tokonomics.planner.apis import ApiBeside, ApiSlo, api_bills, cheapest_api
from tokonomics.sizing.load import load_of_shape
from tokonomics.traffic.generate import parse_sessions
from tokonomics.traffic.prefix_reuse import found_share

CHAT = load_of_shape(5, "const:1000", "const:300")
TOKENS = 5 * 1300 * 730 * 3600.0


def price(host: str, usd: float, **more: object) -> ApiPrice:
    rates = {"input_usd_per_mtok": usd, "output_usd_per_mtok": usd}
    return ApiPrice.model_validate(
        {"host": host, "model": "m", "date": date(2026, 11, 1), "source": "test"} | rates | more
    )


def bills(*prices: ApiPrice) -> tuple[ApiCost, ...]:
    return host_bills(list(prices), CHAT.trace)


def best_line(fleet_usd: float | None, found: ApiBeside | None) -> float:
    """The cheapest of the fleet and the API that counts."""
    return min([usd for usd in (fleet_usd, found.usd_per_month if found and found.cheaper else None) if usd] or [1e99])


def test_the_bill_is_the_price_of_the_months_tokens_and_the_saving_is_the_difference() -> None:
    found = there(cheapest_api(bills(price("dear", 0.4), price("cheap", 0.1)), TOKENS, 3164.0))
    assert found.usd_per_month == pytest.approx(0.1 * TOKENS / 1e6)
    assert found.most_usd_per_month == pytest.approx(0.4 * TOKENS / 1e6)
    assert found.saved_usd_per_month == pytest.approx(3164 - found.usd_per_month)
    assert found.saved_share == pytest.approx(1 - found.usd_per_month / 3164)
    assert (found.api.name, found.hosts, found.cheaper) == ("cheap:m", 2, True)
    assert not there(cheapest_api(bills(price("cheap", 0.1)), TOKENS, 100.0)).cheaper
    alone = there(cheapest_api(bills(price("cheap", 0.1)), TOKENS, None))
    assert alone.cheaper
    assert alone.saved_usd_per_month is None
    assert cheapest_api((), TOKENS, 100.0) is None


PRICES = st.builds(
    price,
    st.sampled_from("abcdef"),
    st.floats(0.01, 10),
    areas=st.sampled_from([(), ("EU",), ("FR",), ("US",), ("FI", "US")]),
    context=st.sampled_from([None, 1000, 8000]),
)


@given(
    st.lists(PRICES, max_size=5),
    PRICES,
    st.one_of(st.none(), st.floats(1, 1e5)),
    st.sampled_from([(), ("EU",), ("US",)]),
    st.sampled_from([None, True, False]),
)
def test_one_more_api_never_makes_the_best_line_dearer(
    listed: list[ApiPrice], more: ApiPrice, fleet_usd: float | None, region: tuple[str, ...], met: bool | None
) -> None:
    """Neither with a region nor where the new one was measured."""

    def best(prices: list[ApiPrice]) -> float:
        found = cheapest_api(bills(*prices), TOKENS, fleet_usd, region=region, has_slo=True, measured={more.key: met})
        return best_line(fleet_usd, found)

    others = [one for one in listed if one.key != more.key]
    assert best([*others, more]) <= best(others) * (1 + 1e-9)


def test_under_a_region_only_a_host_known_to_compute_there_counts() -> None:
    everywhere = (price("us", 0.01, areas=("US",)), price("unsaid", 0.02), price("both", 0.03, areas=("FI", "US")))
    found = there(cheapest_api(bills(*everywhere, price("eu", 0.1, areas=("EU",))), TOKENS, 5e3, region=["EU"]))
    assert (found.api.name, found.there, found.cheaper) == ("eu:m", True, True)
    assert there(found.perhaps).api.name == "unsaid:m"
    assert not there(found.perhaps).cheaper
    none_there = there(cheapest_api(bills(*everywhere), TOKENS, 5e3, region=["EU"]))
    assert (none_there.api.name, none_there.there, none_there.cheaper) == ("unsaid:m", None, False)
    assert there(cheapest_api(bills(*everywhere), TOKENS, 5e3)).api.name == "us:m"


def test_an_api_that_is_measured_to_miss_the_slo_does_not_count() -> None:
    two = bills(price("slow", 0.1), price("unknown", 0.2))
    found = there(cheapest_api(two, TOKENS, 5e3, has_slo=True, measured={"slow:m": False}))
    assert (found.api.name, found.slo) == ("unknown:m", ApiSlo.not_measured)
    met = there(cheapest_api(two, TOKENS, 5e3, has_slo=True, measured={"slow:m": True}))
    assert (met.api.name, met.slo) == ("slow:m", ApiSlo.met)
    assert there(cheapest_api(two, TOKENS, 5e3, measured={"slow:m": False})).slo is ApiSlo.not_asked


def test_an_api_whose_context_is_too_short_or_that_charges_nothing_is_not_named() -> None:
    short, enough = price("short", 0.1, context=1299), price("enough", 0.2, context=1300)
    assert [bill.name for bill in bills(short, enough, price("trial", 0.0))] == ["enough:m"]


def test_nobody_hosts_an_encoder() -> None:
    assert api_bills(find_model("bge-m3"), "bge-m3", CHAT) == ()


def test_what_the_turns_of_made_up_conversations_repeat_is_read_from_a_hosts_cache() -> None:
    """As the fleet reads it from its own; within the five minutes that hosts keep a prompt."""
    sessions = parse_sessions("8,think=10s")
    load = load_of_shape(2, "const:1000", "const:300", sessions=sessions)
    charged = api_bills(find_model("gpt-oss-120b"), "gpt-oss-120b", load)
    cached = [bill for bill in charged if bill.cached_share]
    assert cached
    for bill in cached:
        assert bill.cached_share == pytest.approx(found_share(load.trace, ttl_s=300)[0])
