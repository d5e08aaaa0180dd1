"""What a fleet can be made of: every offer on each of its terms, with what one counts for and costs.

A kind that another does as well for no more money is ruled out before the program is written: exact, and what makes a
price list of hundreds of offers small.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tokonomics.catalog.offers import Terms
from tokonomics.money.fleet import FleetOffer, SpotMarket, Wishes, counted_share, spot_usd_per_hour
from tokonomics.units import SECONDS_PER_HOUR


@dataclass(frozen=True)
class PurchaseKind:
    """Something that can be bought: a column of the program for each hour, or one for all hours if reserved."""

    offer: FleetOffer
    terms: Terms
    place: str | None
    usd_per_hour: float  # as quoted
    expected_usd_per_hour: float
    counted: float  # of a machine: 1 unless spot
    start_usd: float  # paid while one starts and, later, finishes: each start has its end
    limit: float  # machines; infinite without a quota
    market: SpotMarket | None = None

    @property
    def is_firm(self) -> bool:
        return self.terms is not Terms.spot

    def carries(self, name: str) -> float:
        """Requests a second of that class that one counts for."""
        return self.offer.requests_per_s.get(name, 0.0) * self.counted


def kinds_of(offers: Sequence[FleetOffer], wishes: Wishes) -> list[PurchaseKind]:
    """Everything the offers sell: each commitment, on demand, each zone of spot."""
    kinds: list[PurchaseKind] = []
    for offer in offers:
        quota = float("inf") if offer.max_machines is None else float(offer.max_machines)
        paid_hours = start_hours(offer)
        kinds += [
            PurchaseKind(offer, Terms.reserved, term, price, price, 1.0, 0.0, quota)
            for term, price in offer.reserved.items()
        ]
        if (price_now := offer.usd_per_hour) is not None:
            kinds.append(
                PurchaseKind(offer, Terms.on_demand, None, price_now, price_now, 1.0, price_now * paid_hours, quota)
            )
        kinds += [
            PurchaseKind(
                offer,
                Terms.spot,
                market.zone,
                market.usd_per_hour,
                spot_usd_per_hour(offer, market, wishes),
                counted_share(offer, market, wishes),
                market.usd_per_hour * paid_hours,
                float("inf") if market.max_machines is None else float(market.max_machines),
                market,
            )
            for market in offer.spot
        ]
    return kinds


def start_hours(offer: FleetOffer) -> float:
    """Paid for each machine that comes and goes: before it serves, and while it finishes."""
    return (offer.startup_s + offer.drain_s) / SECONDS_PER_HOUR


def undominated(kinds: Sequence[PurchaseKind], wishes: Wishes) -> list[PurchaseKind]:
    """Without what another kind on the same terms does as well for no more money: exact, and far fewer columns."""
    kept: list[PurchaseKind] = []
    # Cheapest first, so that what could rule a kind out was seen before it.
    for kind in sorted(kinds, key=lambda each: (each.expected_usd_per_hour, each.start_usd, -sum_capacity(each))):
        if not any(_replaces(other, kind, wishes) for other in kept):
            kept.append(kind)
    return [kind for kind in kinds if any(kind is each for each in kept)]


def sum_capacity(kind: PurchaseKind) -> float:
    return kind.counted * sum(kind.offer.requests_per_s.values())


def _replaces(other: PurchaseKind, kind: PurchaseKind, wishes: Wishes) -> bool:
    if other.terms is not kind.terms or other.limit != float("inf"):
        return False
    if other.expected_usd_per_hour > kind.expected_usd_per_hour or other.start_usd > kind.start_usd:
        return False
    # What leaves with a zone must stay in that zone.
    if not kind.is_firm and wishes.max_zone_share < 1 and other.place != kind.place:
        return False
    if kind.is_firm and wishes.min_replicas and other.offer.replicas < kind.offer.replicas:
        return False
    return all(other.carries(name) >= kind.carries(name) for name in kind.offer.requests_per_s)


def stripped(offer: FleetOffer, *terms: Terms) -> FleetOffer:
    """The offer on these terms only."""
    return offer.model_copy(
        update={
            "usd_per_hour": offer.usd_per_hour if Terms.on_demand in terms else None,
            "reserved": offer.reserved if Terms.reserved in terms else {},
            "spot": offer.spot if Terms.spot in terms else (),
        }
    )
