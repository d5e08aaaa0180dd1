"""Return what is known of each provider's prices: how many machines, in which places, how recent.

Where a provider is missing from an answer, this tells whether its prices are unknown there or out of date.
"""

import datetime as dt
from collections import defaultdict
from collections.abc import Iterable

from tokonomics.catalog.offers import Offer
from tokonomics.catalog.places import Seller, continent_of
from tokonomics.types import Noun


class PriceCoverage(Noun):
    """What is known of a provider's prices."""

    provider: str
    seller: Seller | None
    machines: int  # at one price in one region each
    regions: int
    countries: tuple[str, ...]
    continents: tuple[str, ...]
    is_place_certain: bool  # it does not list every machine for every region
    oldest: dt.date
    newest: dt.date


def price_coverage(offers: Iterable[Offer]) -> tuple[PriceCoverage, ...]:
    """Return the coverage of each provider, by name."""
    by_provider: dict[str, list[Offer]] = defaultdict(list)
    for offer in offers:
        by_provider[offer.provider].append(offer)
    return tuple(_coverage(provider, by_provider[provider]) for provider in sorted(by_provider))


def _coverage(provider: str, offers: list[Offer]) -> PriceCoverage:
    days = [offer.date for offer in offers]
    countries = sorted({offer.country for offer in offers if offer.country is not None})
    return PriceCoverage(
        provider=provider,
        seller=offers[0].seller,
        machines=len(offers),
        regions=len({offer.region for offer in offers}),
        countries=tuple(countries),
        continents=tuple(sorted({continent_of(country) for country in countries})),
        is_place_certain=any(offer.is_place_certain for offer in offers),
        oldest=min(days),
        newest=max(days),
    )
