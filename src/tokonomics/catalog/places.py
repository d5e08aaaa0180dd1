"""Where machines stand and who sells them: the country of a provider's region, and what kind of seller it is.

``data/places.csv`` and ``data/sellers.csv`` are of the same catalogue as the shipped prices, ``data/countries.csv`` has
the ISO 3166 codes, the continents and the members of the European Union (2026).
"""

import csv
import re
from collections.abc import Callable, Iterable
from enum import StrEnum
from functools import cache
from pathlib import Path

from tokonomics.errors import BadInput, nearest, shorten

_DATA = Path(__file__).parent / "data"
_ALIASES = {"uk": {"GB"}, "usa": {"US"}}
_TOLD = re.compile(r"(?:^|, )([A-Z]{2})(?:, [A-Z]{2})?$")
"""Regions that name their country: RunPod's ``CZ``, Vast's ``Oregon, US, NA``."""


class Seller(StrEnum):
    """What kind of firm a price is from."""

    hyperscaler = "hyperscaler"
    cloud = "cloud"
    marketplace = "marketplace"


LISTED_EVERYWHERE = frozenset({"lambda", "oci", "runpod"})
"""Sellers whose price list names every machine in every region: no evidence that it can be had there."""
_SHOWN = 8
"""Names in an error."""
_LETTERS = 4
"""Fewer are a slip rather than the beginning of a name."""


LISTED = (Seller.hyperscaler, Seller.cloud)
"""Sellers with a price list."""


def seller_of(provider: str) -> Seller | None:
    """What kind of seller a provider is; None where that is not known, as in a price list of one's own."""
    return _sellers().get(provider)


def country_of(provider: str, region: str) -> str | None:
    """The ISO code of the country a region is in; None where that is not known."""
    if known := _countries_of_regions().get((provider, region.casefold())):
        return known
    told = _TOLD.search(region)
    return told[1] if told and told[1] in _members() else None


Place = tuple[str, str | None]
"""A region as its provider calls it, and its country."""


def place_filter(names: Iterable[str], known: Iterable[Place]) -> Callable[[Place], bool]:
    """Whether a place is in one of those named: a region, how regions begin, a country, a continent, EU or US."""
    places = set(known)
    chosen: set[Place] = set()
    for name in names:
        found = {place for place in places if _is_in(name, place)} or _beginning(name, places)
        if not found:
            raise _nowhere(name, places)
        chosen |= found
    return chosen.__contains__


def _is_in(name: str, place: Place) -> bool:
    region, country = place
    word = name.strip().casefold()
    countries = _areas().get(_spelled(name))
    if countries is not None and country is not None:
        return country in countries
    # A name of its own in the middle, too: Frankfurt is eu-frankfurt-1.
    before = "(?:^|[-, ])" if len(word) >= _LETTERS else "^"
    whole = rf"{before}{re.escape(word)}(?:$|[-, ]|(?<=[a-z])\d)"
    return bool(word) and re.search(whole, region.casefold()) is not None


def _beginning(name: str, places: set[Place]) -> set[Place]:
    """Regions whose names begin so in the middle of a word: Azure's ``eastus`` by ``east``."""
    word = name.strip().casefold()
    if len(word) < _LETTERS or _spelled(name) in _areas():
        return set()
    return {place for place in places if place[0].casefold().startswith(word)}


def _nowhere(name: str, places: set[Place]) -> BadInput:
    """The error about a name that no place has: that nothing is sold there, or which names are near it."""
    regions = sorted({region for region, _ in places})
    if _spelled(name) in _areas():
        what, said, shown = f"nothing asked for is sold in {shorten(name)}", "Sold in", regions[:_SHOWN]
    else:
        what, said = f"unknown region '{shorten(name)}'", "Near"
        shown = nearest(name, [*regions, *_areas()], _SHOWN) or regions[:_SHOWN]
    lines = "".join(f"\n    {region}" for region in shown)
    more = "\n    …" if len(regions) > len(shown) else ""
    fix = f"A region, how regions begin (us-east), a country (DE), a continent (Europe), EU or US. {said}:{lines}{more}"
    return BadInput(what, field="region", fix=fix)


def _spelled(name: str) -> str:
    return "-".join(name.casefold().split())


@cache
def _sellers() -> dict[str, Seller]:
    return {row["provider"]: Seller(row["seller"]) for row in _rows("sellers.csv")}


@cache
def _countries_of_regions() -> dict[tuple[str, str], str]:
    return {(row["provider"], row["region"].casefold()): row["country"] for row in _rows("places.csv")}


@cache
def _members() -> frozenset[str]:
    return frozenset(row["code"] for row in _rows("countries.csv"))


@cache
def _areas() -> dict[str, frozenset[str]]:
    """Countries by every name an area has: ``de``, ``germany``, ``europe``, ``eu``."""
    found: dict[str, set[str]] = {}
    for row in _rows("countries.csv"):
        for name in (row["code"], row["name"], row["continent"], *(["eu"] if row["eu"] else [])):
            found.setdefault(_spelled(name), set()).add(row["code"])
    return {name: frozenset(codes) for name, codes in (found | _ALIASES).items()}


def _rows(name: str) -> list[dict[str, str]]:
    with (_DATA / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))
