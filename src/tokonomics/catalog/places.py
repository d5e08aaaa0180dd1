"""Tell where machines are, who sells them, and what a kilowatt-hour emits there.

``data/places.csv`` and ``data/sellers.csv`` come from the same catalogue as the shipped prices; ``data/countries.csv``
has the ISO 3166 codes, the continents and the members of the European Union (2026). ``data/towns.csv`` says by which
town, state or province a provider's own pages describe a region whose name does not tell.

Emissions are grams of CO₂e, location-based in the terms of the GHG Protocol: the yearly mean of the machine's grid,
whatever power its owner has bought on paper. ``data/grid.csv`` has Ember's yearly means by country. For regions of the
United States and Canada, whose grids differ more than those of countries do, it has the means that Google publishes for
the grids of its own regions; other providers' regions in the same place use the same grid. Ember counts the life cycle
of power plants, Google only what they burn, which is somewhat less.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from functools import cache
from typing import NamedTuple

from pydantic import Field

from tokonomics.catalog.entries import shipped_rows
from tokonomics.errors import BadInput, nearest, shorten
from tokonomics.types import Noun

_ALIASES = {"uk": {"GB"}, "usa": {"US"}}
_TOLD = re.compile(r"(?:^|, )([A-Z]{2})(?:, [A-Z]{2})?$")
"""Regions that name their country: RunPod's ``CZ``, Vast's ``Oregon, US, NA``."""


class Seller(StrEnum):
    """What kind of firm a price is from."""

    hyperscaler = "hyperscaler"
    cloud = "cloud"
    marketplace = "marketplace"


LISTED_EVERYWHERE = frozenset({"lambda", "oci", "runpod"})
"""Sellers whose price list names every machine in every region, which does not show that it is available there."""
_HINTS = {
    "ap": {"asia", "oceania"},
    "asia": {"asia"},
    "eu": {"europe"},
    "europe": {"europe"},
    "na": {"north america"},
    "us": {"north america"},
}
"""The continents that providers mean by how a region's name begins."""
_SHOWN = 8  # names in an error
_LETTERS = 4  # fewer are a typing error rather than the beginning of a name


def areas_of_host(host: str) -> tuple[str, ...]:
    """Return where a host of APIs says that it computes: countries, or EU; empty if it does not say, or not only."""
    return _areas_of_hosts().get(host, ())


def lies_in(names: Sequence[str], areas: Sequence[str]) -> bool | None:
    """Tell whether all, or none, of these areas are in a place named; None if only some are, or it is not known."""
    known, spelled = _areas(), [_spelled(name) for name in names]
    if not areas or not all(name in known for name in spelled):  # the name of one region says nothing of a host
        return None
    # A member of the union is in Europe here, also Cyprus, whose continent is Asia.
    europe = known["eu"] if "europe" in spelled else frozenset[str]()
    wanted = europe.union(*(known[name] for name in spelled))
    countries: frozenset[str] = frozenset().union(*(known[_spelled(area)] for area in areas))
    return True if countries <= wanted else None if countries & wanted else False


def require_area(name: str) -> str:
    """Return the name of a country, a continent, EU or US; refuse others."""
    if _spelled(name) not in _areas():
        fix = "A country (DE), a continent (Europe), EU or US."
        raise BadInput(f"'{shorten(name)}' is no country or continent", fix=fix)
    return name


LISTED = (Seller.hyperscaler, Seller.cloud)  # sellers with a price list


def seller_of(provider: str) -> Seller | None:
    """Return what kind of seller a provider is; None if unknown, as in the user's own price list."""
    return _sellers().get(provider)


def country_of(provider: str, region: str) -> str | None:
    """Return the ISO code of a region's country; None if unknown."""
    if known := _countries_of_regions().get((provider, region.casefold())):
        return known
    told = _TOLD.search(region)
    return told[1] if told and told[1] in _members() else None


def continent_of(country: str) -> str:
    """Return the continent of a country by its ISO code."""
    return _continents()[country]


class Site(NamedTuple):
    """A region as its provider calls it, its country, and the town by which the provider describes it."""

    region: str
    country: str | None
    town: str = ""


def place_of(provider: str, region: str) -> Site:
    """Return what is known of a provider's region."""
    return Site(region, country_of(provider, region), _towns().get((provider, region.casefold()), ""))


def place_filter(names: Iterable[str], known: Iterable[Site]) -> Callable[[Site], bool]:
    """Return a test of whether a place is in those named: a region, how it begins, a town, a country, a continent."""
    places = set(known)
    chosen: set[Site] = set()
    for name in names:
        found = {place for place in places if _is_in(name, place)} or _beginning(name, places)
        if not found and not any(place.country is None and perhaps_in([name], place.region) for place in places):
            raise _nowhere(name, places)
        chosen |= found
    return chosen.__contains__


def said_to_be_in(names: Iterable[str], provider: str, region: str) -> bool:
    """Tell whether a place in a seller's own words, such as ``Frankfurt, DE``, is certain to be in one named."""
    told, words = _countries_of_regions(), region.strip().casefold()
    countries = {country for (_, name), country in told.items() if name == words}
    area = _areas().get(_spelled(region), frozenset())
    countries |= area if len(area) == 1 else set()
    only = next(iter(countries)) if len(countries) == 1 else None
    known = place_of(provider.casefold(), region.strip())
    place = known if known.country else known._replace(country=only)
    wanted = list(names)
    return any(_is_in(name, place) for name in wanted) or lies_in(wanted, [region] if area else []) is True


def perhaps_in(names: Iterable[str], region: str) -> bool:
    """Tell whether a region of no known country may be in one of these areas, by how its name begins."""
    hinted = _HINTS.get(re.split("[^a-z]", region.casefold(), maxsplit=1)[0])
    wanted = [countries for name in names if (countries := _areas().get(_spelled(name)))]
    # Most of an area's countries decide: the European Union has one member in Asia.
    mostly = {Counter(map(continent_of, countries)).most_common(1)[0][0] for countries in wanted}
    return bool(mostly) if hinted is None else not mostly.isdisjoint(hinted)


def _is_in(name: str, place: Site) -> bool:
    word = name.strip().casefold()
    countries = _areas().get(_spelled(name))
    if countries is not None and place.country is not None:
        return place.country in countries
    # A whole word in the middle also counts: Frankfurt is eu-frankfurt-1.
    before = "(?:^|[-, ])" if len(word) >= _LETTERS else "^"
    whole = rf"{before}{re.escape(word)}(?:$|[-, ]|(?<=[a-z])\d)"
    return bool(word) and re.search(whole, f"{place.region}, {place.town}".casefold()) is not None


def _beginning(name: str, places: set[Site]) -> set[Site]:
    """Return the regions whose names start with these letters: Azure's ``eastus`` for ``east``."""
    word = name.strip().casefold()
    if len(word) < _LETTERS or _spelled(name) in _areas():
        return set()
    return {place for place in places if place.region.casefold().startswith(word)}


def _nowhere(name: str, places: set[Site]) -> BadInput:
    """Return the error about an unknown name: that nothing is sold there, or which names are similar."""
    regions = sorted({place.region for place in places})
    if _spelled(name) in _areas():
        what, said, shown = f"no price of what is asked for is known in {shorten(name)}", "Known in", regions[:_SHOWN]
    else:
        what, said = f"unknown region '{shorten(name)}'", "Near"
        towns = {place.town for place in places if place.town}
        shown = nearest(name, [*regions, *sorted(towns), *_areas()], _SHOWN) or regions[:_SHOWN]
    lines = "".join(f"\n    {region}" for region in shown)
    more = "\n    …" if len(regions) > len(shown) else ""
    forms = "A region, how regions begin (us-east), a town (Frankfurt), a country (DE), a continent (Europe), EU or US"
    fix = f"{forms}. {said}:{lines}{more}"
    return BadInput(what, field="region", fix=fix)


def _spelled(name: str) -> str:
    return "-".join(name.casefold().split())


@cache
def _sellers() -> dict[str, Seller]:
    return {row["provider"]: Seller(row["seller"]) for row in shipped_rows("sellers.csv")}


@cache
def _countries_of_regions() -> dict[tuple[str, str], str]:
    return {(row["provider"], row["region"].casefold()): row["country"] for row in shipped_rows("places.csv")}


@cache
def _towns() -> dict[tuple[str, str], str]:
    return {(row["provider"], row["region"]): row["town"] for row in shipped_rows("towns.csv")}


@cache
def _continents() -> dict[str, str]:
    return {row["code"]: row["continent"] for row in shipped_rows("countries.csv")}


@cache
def _areas_of_hosts() -> dict[str, tuple[str, ...]]:
    return {row["host"]: tuple(row["areas"].split()) for row in shipped_rows("api_places.csv") if "areas" in row}


@cache
def _members() -> frozenset[str]:
    return frozenset(_continents())


@cache
def _areas() -> dict[str, frozenset[str]]:
    """Return the countries by every name of an area: ``de``, ``germany``, ``europe``, ``eu``."""
    found: dict[str, set[str]] = {}
    for row in shipped_rows("countries.csv"):
        for name in (row["code"], row["name"], row["continent"], *(["eu"] if "eu" in row else [])):
            found.setdefault(_spelled(name), set()).add(row["code"])
    return {name: frozenset(codes) for name, codes in (found | _ALIASES).items()}


WORLD = "world"
_SOURCES = {"ember": "Ember", "google": "Google"}
_MOST = 5000.0  # grams; the highest in Ember's data is 1,306


class Grid(Noun):
    """What a kilowatt-hour emits, and the source."""

    g_per_kwh: float = Field(ge=0, le=_MOST)
    place: str  # a country's ISO code, a region's town, ``world`` if unknown, or ``as given``
    year: int | None  # of the mean; None if the user gave the figure
    source: str

    @property
    def text(self) -> str:
        """Write ``44.2 g/kWh (FR, mean of 2024: Ember)``."""
        if self.year is None:
            return f"{self.g_per_kwh:.3g} g/kWh, {self.source}"
        place = "world, as its place is not known" if self.place == WORLD else self.place
        return f"{self.g_per_kwh:.3g} g/kWh ({place}, mean of {self.year}: {self.source})"


def grid_of(provider: str, region: str) -> Grid:
    """Return the grid of a provider's region: its own, its country's, or the world's mean."""
    known = _grids()
    if own := known.get((provider, region.casefold())):
        return own
    return known.get(("", country_of(provider, region) or WORLD), known["", WORLD])


def grid_named(text: str) -> Grid:
    """Read ``45`` grams, or a country: ``FR``, or ``world``."""
    known = {place.casefold(): grid for (provider, place), grid in _grids().items() if not provider}
    if found := known.get(text.strip().casefold()):
        return found
    try:
        grams = float(text)
    except ValueError:
        grams = math.nan
    if not 0 <= grams <= _MOST:
        fix = "Write grams of CO₂e a kilowatt-hour, such as 45, or a country, such as FR."
        raise BadInput(f"'{shorten(text)}' is neither a country nor 0 to {_MOST:g} grams", field="grid", fix=fix)
    return Grid(g_per_kwh=grams, place="as given", year=None, source="as given")


@cache
def _grids() -> dict[tuple[str, str], Grid]:
    """Return the grids by provider and region; those of countries have no provider."""
    return {
        (row.get("provider", ""), row.get("region", "").casefold() or row["country"]): Grid(
            g_per_kwh=float(row["g_per_kwh"]),
            place=f"{row['place']}, {row['country']}" if "place" in row else row["country"],
            year=int(row["year"]),
            source=_SOURCES[row["source"]],
        )
        for row in shipped_rows("grid.csv")
    }
