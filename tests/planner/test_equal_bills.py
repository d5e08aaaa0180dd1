"""Of fleets at one bill, the safer comes first: a recent price, a speed that was timed, room, a newer quote."""

from datetime import timedelta

import pytest
from tests.planner.small_catalogue import BF16, RECENT, TODAY, offer, planned

from tokonomics.catalog.offers import STALE_AFTER_DAYS, Offer
from tokonomics.types import Speed

OLD = TODAY - timedelta(days=STALE_AFTER_DAYS + 1)
NEWER = RECENT + timedelta(days=7)


@pytest.mark.parametrize(
    ("safer", "other"),
    [
        (offer("H100-SXM", 1, 2.0, provider="zeta"), offer("H100-SXM", 1, 2.0, provider="acme", date=OLD)),
        (offer("A100-80GB", 1, 2.0), offer("H100-SXM", 1, 2.0, date=OLD)),
        (offer("H100-SXM", 1, 2.0), offer("GH200", 1, 2.0)),  # has more room, but its speed is scaled
        (offer("H100-SXM", 1, 2.0), offer("A100-80GB", 1, 2.0)),  # both timed; has more room
        (offer("H100-SXM", 1, 2.0, provider="zeta", date=NEWER), offer("H100-SXM", 1, 2.0, provider="acme")),
    ],
    ids=["an old price", "an old price of a faster GPU", "a scaled speed", "less room", "an older quote"],
)
def test_of_equal_bills_the_safer_comes_first(safer: Offer, other: Offer) -> None:
    for offers in ((safer, other), (other, safer)):
        first, second = planned(offers=offers, weights=BF16).ranked[:2]
        assert first.usd_per_month == second.usd_per_month
        assert (first.gpu, first.provider) == (safer.gpu, safer.provider)
        assert (second.gpu, second.provider) == (other.gpu, other.provider)


def test_the_speeds_of_these_gpus_are_known_as_assumed_above() -> None:
    offers = (offer("H100-SXM", 1, 2.0), offer("GH200", 1, 2.0), offer("A100-80GB", 1, 2.0))
    speeds = {row.gpu: row.speed for row in planned(offers=offers, weights=BF16).ranked}
    assert speeds == {"H100-SXM": Speed.timed, "GH200": Speed.scaled, "A100-80GB": Speed.timed}
