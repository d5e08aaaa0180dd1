"""How much a kilowatt-hour emits where a machine stands: grams of CO₂e, by country, and by region where they differ.

Location-based, as the GHG Protocol calls it: the mean of the grid that a machine hangs on over a year, whatever power
its owner has bought on paper. ``data/grid.csv`` has Ember's yearly means by country and, for regions of the United
States and Canada, whose grids differ more than those of countries do, the means that Google publishes for the grids of
its own regions; other providers' regions in the same place hang on the same grid. Ember counts the life cycle of power
plants, Google what they burn, which is somewhat less.
"""

import csv
import math
from functools import cache
from pathlib import Path

from pydantic import Field

from tokonomics.catalog.places import country_of
from tokonomics.errors import BadInput, shorten
from tokonomics.types import Noun

_DATA = Path(__file__).parent / "data" / "grid.csv"
WORLD = "world"
_SOURCES = {"ember": "Ember", "google": "Google"}
_MOST = 5000.0
"""Grams: the dirtiest grid of Ember's data has 1,306."""


class Grid(Noun):
    """What a kilowatt-hour emits, and by whose word."""

    g_per_kwh: float = Field(ge=0, le=_MOST)
    place: str
    """A country's ISO code, a region's town, ``world`` where it is not known, or ``as given``."""
    year: int | None
    """Of the mean; None where it was given."""
    source: str

    @property
    def said(self) -> str:
        """``44.2 g/kWh (FR, mean of 2024: Ember)``."""
        if self.year is None:
            return f"{self.g_per_kwh:.3g} g/kWh, {self.source}"
        place = "world, as its place is not known" if self.place == WORLD else self.place
        return f"{self.g_per_kwh:.3g} g/kWh ({place}, mean of {self.year}: {self.source})"


def grid_of(provider: str, region: str) -> Grid:
    """The grid of a provider's region: its own, its country's, or the world's mean."""
    known = _grids()
    if own := known.get((provider, region.casefold())):
        return own
    return known.get(("", country_of(provider, region) or WORLD), known["", WORLD])


def grid_named(text: str) -> Grid:
    """``45`` grams, or a country: ``FR``, or ``world``."""
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
    """By provider and region; those of countries without a provider."""
    with _DATA.open(encoding="utf-8", newline="") as file:
        return {
            (row["provider"], row["region"].casefold() or row["country"]): Grid(
                g_per_kwh=float(row["g_per_kwh"]),
                place=f"{row['place']}, {row['country']}" if row["place"] else row["country"],
                year=int(row["year"]),
                source=_SOURCES[row["source"]],
            )
            for row in csv.DictReader(file)
        }
