"""What a GPU costs by the hour: offers of machines, with who quoted them and when.

An offer is a whole instance: its price per GPU is the instance price over its GPUs. Offers come from the shipped
snapshot (``data/offers.csv``, reduced from the SkyPilot catalogue), from the user's cache once prices were refreshed,
or from the user's own CSV file. A price older than 90 days is stale: it is still shown, and says so.

``data/networks.csv`` has the speed of the network between machines, as sellers state it. A machine that is neither
there nor in a price list of one's own is not known to have a network: no replica is spread over such machines.
"""

import csv
import datetime as dt
import re
from enum import StrEnum
from functools import cache, lru_cache
from importlib.resources import files
from typing import Annotated

from pydantic import Field

from tokonomics.catalog.places import Place, Seller, country_of, seller_of
from tokonomics.types import Noun

STALE_AFTER_DAYS = 90  # an older price is marked as old
OLDER = f"older than {STALE_AFTER_DAYS} days"  # how a quote says that it is
MAX_AGE_DAYS = 365  # an older price no longer tells what the machine costs
UNSPECIFIED = "unspecified"  # the region of an offer that names none
MAX_USD_PER_HOUR = 100_000.0  # nobody quotes one machine above this: a slip of the decimal point or of the currency
MIN_USD_PER_HOUR = 1e-6  # less than a cent a year: a slip
NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")  # as written in files and discounts
MAX_GPUS = 1_000  # far above any single machine (an NVL72 rack has 72): a larger count is not one instance

Usd = Annotated[float, Field(ge=MIN_USD_PER_HOUR, le=MAX_USD_PER_HOUR)]


class Terms(StrEnum):
    """How the machine is bought."""

    on_demand = "on_demand"
    spot = "spot"
    reserved = "reserved"


class Offer(Noun):
    """A machine with GPUs at a price; a price of None is one that provider does not offer there."""

    provider: str
    region: str
    instance: str
    gpu: str
    gpus: int = Field(ge=1, le=MAX_GPUS)
    vcpus: float | None = Field(default=None, gt=0)
    memory_gb: float | None = Field(default=None, gt=0)
    network_gbit: float | None = Field(default=None, gt=0, le=1e6)  # to other machines; None: as its seller states it
    usd_per_hour: Usd | None = None
    spot_usd_per_hour: Usd | None = None
    reserved_1yr_usd_per_hour: Usd | None = None
    reserved_3yr_usd_per_hour: Usd | None = None
    date: dt.date
    source: str

    @property
    def seller(self) -> Seller | None:
        """What kind of seller quotes it; None where that is not known, as in a price list of one's own."""
        return seller_of(self.provider)

    @property
    def country(self) -> str | None:
        """The ISO code of where it stands; None where that is not known."""
        return country_of(self.provider, self.region)

    @property
    def place(self) -> Place:
        """Its region and country."""
        return self.region, self.country

    @property
    def network_bytes_per_s(self) -> float | None:
        """Of one of its GPUs to other machines; None where no such network is known."""
        gbit = self.network_gbit or stated_gbit(self.provider, self.instance)
        return None if gbit is None else gbit / 8 * 1e9 / self.gpus

    def price(self, terms: Terms = Terms.on_demand) -> float | None:
        """USD per hour of the whole instance; reserved is the longest commitment quoted."""
        if terms is Terms.on_demand:
            return self.usd_per_hour
        if terms is Terms.spot:
            return self.spot_usd_per_hour
        return self.reserved_3yr_usd_per_hour or self.reserved_1yr_usd_per_hour

    def usd_per_gpu_hour(self, terms: Terms = Terms.on_demand) -> float | None:
        """USD per hour of one of its GPUs."""
        price = self.price(terms)
        return None if price is None else price / self.gpus

    def age_days(self, on: dt.date) -> int:
        """Days since the price was seen."""
        return (on - self.date).days

    def is_stale(self, on: dt.date) -> bool:
        """Older than the product lets a price be without saying so."""
        return is_stale(self.date, on)

    def quoted(self, on: dt.date) -> str:
        """Who sells it and when they said its price; that it is old, where it is."""
        old = f" ({OLDER})" if self.is_stale(on) else ""
        return f"{self.provider} {self.instance}, {self.region}, quoted {self.date}{old}"


def is_stale(quoted: dt.date, on: dt.date) -> bool:
    """Whether a price of that day is older than the product lets it be without saying so."""
    return (on - quoted).days > STALE_AFTER_DAYS


PRICE_FIELDS = ("usd_per_hour", "spot_usd_per_hour", "reserved_1yr_usd_per_hour", "reserved_3yr_usd_per_hour")


def gpu_key(name: str) -> str:
    """The catalogue's key of a GPU under any of its names."""
    from tokonomics.catalog.gpus import find_gpu  # Read only when a name has to be looked up: keeps --help quick.

    return find_gpu(name).key


@lru_cache(maxsize=4096)
def stated_gbit(provider: str, instance: str) -> float | None:
    """Gbit/s of one such machine to others, for its GPUs; None where nobody states it."""
    return _stated_networks().get((provider.casefold(), instance.casefold()))


@cache
def _stated_networks() -> dict[tuple[str, str], float]:
    text = files("tokonomics.catalog").joinpath("data/networks.csv").read_text(encoding="utf-8")
    rows = csv.DictReader(text.splitlines())
    return {(row["provider"].casefold(), row["instance"].casefold()): float(row["gbit"]) for row in rows}
