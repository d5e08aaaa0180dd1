"""How often AWS takes a spot machine back, and what spot costs zone by zone.

Three shipped tables (``data/spot_*.csv``, made by ``benchmarks/reduce_spot.py``): the Spot Advisor's monthly band of
each instance and region, the recent price of each zone, and for each instance how spot compares with on demand and how
far the zones of a region move together. A band is a range of a probability over a month; the hourly rate that gives it
is −ln(1 − p) ÷ 730. The advisor counts machines that run: how hard it is to get one is another matter (``SCARCE``).
"""

import datetime as dt
import math
from functools import cache

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt

from tokonomics.catalog.entries import shipped_rows
from tokonomics.errors import BadInput, UnknownName
from tokonomics.types import Noun
from tokonomics.units import HOURS_PER_MONTH

BANDS = ((0.0, 0.05), (0.05, 0.10), (0.10, 0.15), (0.15, 0.20), (0.20, 0.50))
"""AWS Spot Advisor: share of machines taken back in a month. The last band reads ">20 %": its upper end is assumed."""

OUTAGE_HOURS = 1.85
"""Until a zone that gave nothing gives machines again: the mean spell of single V100s in nine AWS zones, February to
April 2023 (SkyPilot spot traces of "Can't Be Late", NSDI 2024). Half of the spells were shorter than 0.5 h."""

NOTICE_S = 120.0
"""AWS warns a spot machine two minutes before it takes it (EC2 user guide, "Spot Instance interruption notices")."""

REGION_CORRELATION = 0.5
"""Between the availability of two zones of a region: 0.50 to 0.70 for V100 in three collections of those traces (two
regions: 0.17 to 0.19). Used where prices do not say."""


class Interruptions(Noun):
    """How often a machine is taken back and how long until another can be had."""

    per_hour: NonNegativeFloat  # of one machine that runs
    outage_hours: PositiveFloat = OUTAGE_HOURS

    @property
    def availability(self) -> float:
        """The share of hours in which the market gives the machine: up ÷ (up + down)."""
        return 1 / (1 + self.per_hour * self.outage_hours)


SCARCE = Interruptions(per_hour=1 / 3.34, outage_hours=OUTAGE_HOURS)
"""The stress case: a GPU in short supply. Mean time to interruption 3.34 h in the traces named above (64 % available),
a thousand times what the advisor's bands say of the GPUs of 2025."""


class Band(Noun):
    """The advisor's word on one instance in one region."""

    instance: str
    region: str
    band: int = Field(ge=0, lt=len(BANDS))
    date: dt.date

    @property
    def monthly(self) -> tuple[float, float]:
        """The probability of being taken back within a month, from and to."""
        return BANDS[self.band]

    @property
    def interruptions(self) -> Interruptions:
        """At the middle of the band."""
        low, high = self.monthly
        return Interruptions(per_hour=hourly_rate((low + high) / 2))


class ZonePrice(Noun):
    """What one instance costs in one zone."""

    instance: str
    region: str
    zone: str
    usd_per_hour: PositiveFloat  # on demand, the whole instance
    spot_usd_per_hour: PositiveFloat  # median of the last 30 days
    p90_to_median: float = Field(ge=1)  # how far above its own median the most expensive tenth of days was
    days: PositiveInt
    date: dt.date


class SpotHistory(Noun):
    """Spot prices of one instance over all zones and days."""

    instance: str
    median_ratio: PositiveFloat  # spot ÷ on demand
    p90_ratio: PositiveFloat
    zone_correlation: float | None = Field(default=None, ge=-1, le=1)
    """Of the weekly price changes of two zones of a region; None where too few were seen."""
    zone_pairs: int
    zones: PositiveInt
    days: PositiveInt
    date: dt.date

    @property
    def correlation(self) -> float:
        """Between zones of a region, for drawing interruptions: that of prices stands in for that of availability."""
        return REGION_CORRELATION if self.zone_correlation is None else max(0.0, self.zone_correlation)


def hourly_rate(monthly_probability: float) -> float:
    """Interruptions an hour that give this chance of at least one in a month."""
    if not 0 <= monthly_probability < 1:
        raise BadInput(f"a monthly probability is from 0 up to but not 1; got {monthly_probability}")
    return -math.log1p(-monthly_probability) / HOURS_PER_MONTH


@cache
def load_bands() -> dict[tuple[str, str], Band]:
    """By instance and region."""
    return {
        (band.instance, band.region): band for band in map(Band.model_validate, shipped_rows("spot_interruption.csv"))
    }


@cache
def load_zone_prices() -> dict[str, tuple[ZonePrice, ...]]:
    """By instance, cheapest zone first; of two that cost the same, the steadier."""
    zones: dict[str, list[ZonePrice]] = {}
    for zone in map(ZonePrice.model_validate, shipped_rows("spot_zones.csv")):
        zones.setdefault(zone.instance, []).append(zone)
    for prices in zones.values():
        prices.sort(key=lambda zone: (zone.spot_usd_per_hour, zone.p90_to_median))
    return {name: tuple(prices) for name, prices in zones.items()}


@cache
def load_spot_history() -> dict[str, SpotHistory]:
    """By instance."""
    return {prices.instance: prices for prices in map(SpotHistory.model_validate, shipped_rows("spot_prices.csv"))}


def find_band(instance: str, region: str) -> Band:
    """The advisor's band of that instance there."""
    bands = load_bands()
    if (instance, region) in bands:
        return bands[instance, region]
    regions = sorted(place for name, place in bands if name == instance)
    if not regions:
        raise UnknownName("spot instance", instance, {name for name, _ in bands}, fix="Give its interruptions an hour.")
    raise UnknownName("spot region", region, regions, fix=f"{instance} is listed in: {', '.join(regions)}")


def find_zones(instance: str, region: str | None = None) -> tuple[ZonePrice, ...]:
    """The zones that sold it on spot lately, cheapest first; of one region or of all."""
    zones = load_zone_prices()
    if instance not in zones:
        raise UnknownName("spot instance", instance, zones, fix="Give its spot price yourself.")
    return tuple(zone for zone in zones[instance] if region in (None, zone.region))
