"""Read what GPUs cost by the hour: offers of machines, with who quoted them and when, and the files they are in.

An offer is a whole instance: its price per GPU is the instance price over its GPUs. Offers come from the shipped
snapshot (``data/offers.csv``, reduced from the SkyPilot catalogue), from the user's cache after a refresh of prices, or
from the user's own CSV file, with a header; the first mistake in it is an error that names the line and the column. A
file is written whole or not at all. A price older than 90 days is stale: it is still shown, and marked.

``data/networks.csv`` has the speed of the network between machines, as sellers state it. A machine that is neither
there nor in the user's own price list is assumed to have no network: no replica is spread over such machines.
"""

import csv
import datetime as dt
import io
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from enum import StrEnum
from functools import cache, lru_cache
from pathlib import Path
from typing import Annotated

from pydantic import Field

from tokonomics.catalog.entries import DATA, shipped_rows, user_tables
from tokonomics.catalog.places import LISTED_EVERYWHERE, Seller, Site, country_of, place_of, seller_of
from tokonomics.errors import BadInput, UnknownName, shorten
from tokonomics.files import cache_folder, make_folder, write_text
from tokonomics.types import Noun, Same, today

STALE_AFTER_DAYS = 90  # an older price is marked as old
OLDER = f"older than {STALE_AFTER_DAYS} days"  # how a quote says that it is stale
MAX_AGE_DAYS = 365  # an older price no longer says what the machine costs
UNSPECIFIED = "unspecified"  # the region of an offer that names none
MAX_USD_PER_HOUR = 100_000.0  # nobody quotes one machine above this: the decimal point or the currency is wrong
MIN_USD_PER_HOUR = 1e-6  # less than a cent a year: a mistake
NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")  # as written in files and discounts
MAX_GPUS = 1_000  # far above any single machine (an NVL72 rack has 72): a larger count is not one instance

Usd = Annotated[float, Field(ge=MIN_USD_PER_HOUR, le=MAX_USD_PER_HOUR)]


class Terms(StrEnum):
    """How the machine is bought."""

    on_demand = "on_demand"
    spot = "spot"
    reserved = "reserved"


class Offer(Noun):
    """A machine with GPUs at a price; None means that the provider has no such price there."""

    provider: str
    region: str
    instance: str
    gpu: str
    gpus: int = Field(ge=1, le=MAX_GPUS)
    vcpus: float | None = Field(default=None, gt=0)
    memory_gb: float | None = Field(default=None, gt=0)
    network_gbit: float | None = Field(default=None, gt=0, le=1e6)  # to other machines; None: what its seller states
    usd_per_hour: Usd | None = None
    spot_usd_per_hour: Usd | None = None
    reserved_1yr_usd_per_hour: Usd | None = None
    reserved_3yr_usd_per_hour: Usd | None = None
    date: dt.date
    source: str

    @property
    def seller(self) -> Seller | None:
        """Return what kind of seller quotes it; None if unknown, as in the user's own price list."""
        return seller_of(self.provider)

    @property
    def country(self) -> str | None:
        """Return the ISO code of its country; None if unknown."""
        return country_of(self.provider, self.region)

    @property
    def place(self) -> Site:
        """Return what is known of its region."""
        return place_of(self.provider, self.region)

    @property
    def is_place_certain(self) -> bool:
        """Tell whether the machine is known to be where the row says.

        It is not where a seller lists every machine for every region, or names a region of no known country.
        """
        if self.provider in LISTED_EVERYWHERE:
            return False
        return self.country is not None or (self.seller is None and self.region != UNSPECIFIED)

    @property
    def network_bytes_per_s(self) -> float | None:
        """Return the rate of one of its GPUs to other machines; None if no such network is known."""
        gbit = self.network_gbit or stated_gbit(self.provider, self.instance)
        return None if gbit is None else gbit / 8 * 1e9 / self.gpus

    def price(self, terms: Terms = Terms.on_demand) -> float | None:
        """Return the USD per hour of the whole instance; reserved is the longest commitment quoted."""
        if terms is Terms.on_demand:
            return self.usd_per_hour
        if terms is Terms.spot:
            return self.spot_usd_per_hour
        return self.reserved_3yr_usd_per_hour or self.reserved_1yr_usd_per_hour

    def usd_per_gpu_hour(self, terms: Terms = Terms.on_demand) -> float | None:
        """Return the USD per hour of one of its GPUs."""
        price = self.price(terms)
        return None if price is None else price / self.gpus

    def age_days(self, on: dt.date) -> int:
        """Return the days since the price was seen."""
        return (on - self.date).days

    def is_stale(self, on: dt.date) -> bool:
        """Decide whether its price is so old that it must be marked."""
        return is_stale(self.date, on)

    def quoted(self, on: dt.date) -> str:
        """Describe who sells it and when its price was quoted, with a mark if that is old."""
        old = f" ({OLDER})" if self.is_stale(on) else ""
        return f"{self.provider} {self.instance}, {self.region}, quoted {self.date}{old}"


def is_stale(quoted: dt.date, on: dt.date) -> bool:
    """Decide whether a price of that day is so old that it must be marked."""
    return (on - quoted).days > STALE_AFTER_DAYS


PAID_UPFRONT = "service-capacity-modeling"  # in the source of reserved prices that are for paying all of them upfront
PRICE_FIELDS = ("usd_per_hour", "spot_usd_per_hour", "reserved_1yr_usd_per_hour", "reserved_3yr_usd_per_hour")


def gpu_key(name: str) -> str:
    """Return the catalogue's key of a GPU under any of its names."""
    from tokonomics.catalog.gpus import find_gpu  # Loaded only to look up a name: keeps --help quick.

    return find_gpu(name).key


@lru_cache(maxsize=4096)
def stated_gbit(provider: str, instance: str) -> float | None:
    """Return the Gbit/s of one such machine to others, for its GPUs; None if nobody states it."""
    return _stated_networks().get((provider.casefold(), instance.casefold()))


@cache
def _stated_networks() -> dict[tuple[str, str], float]:
    rows = shipped_rows("networks.csv")
    return {(row["provider"].casefold(), row["instance"].casefold()): float(row["gbit"]) for row in rows}


BETWEEN_REGIONS = "|"  # in a file, between regions where a machine costs the same
MAX_FILE_BYTES = 50_000_000  # enough for hundreds of thousands of offers; a larger file is not a price list
SNAPSHOT = DATA / "offers.csv"
COLLECTED = DATA / "offers_more.csv"  # by hand, of accelerators that no refresh reads
_REQUIRED = ("provider", "instance", "gpu", "gpus", "usd_per_hour")
_ALIASES = {
    "instance_type": "instance",
    "gpu_name": "gpu",
    "gpu_count": "gpus",
    "vcpu": "vcpus",
    "price_on_demand_usd_hr": "usd_per_hour",
    "price_spot_usd_hr": "spot_usd_per_hour",
    "price_reserved_1yr_usd_hr": "reserved_1yr_usd_per_hour",
    "price_reserved_3yr_usd_hr": "reserved_3yr_usd_per_hour",
    "snapshot_date": "date",
}
_EXAMPLE = """It needs a header and rows such as:
  provider,instance,gpu,gpus,usd_per_hour
  ours,rack-7,H100-SXM,8,18.40"""


def cache_file() -> Path:
    """Return the file of refreshed prices."""
    return cache_folder() / "offers.csv"


def load_offers(path: Path | None = None) -> tuple[Offer, ...]:
    """Return the offers of that file; without one, the refreshed prices, or else the shipped ones.

    Those collected by hand are added where the others have none of that provider and GPU.
    """
    if path is not None:
        return read_offers(path)
    cached = cache_file()
    if not cached.is_file():
        return _shipped(Same(read_offers(SNAPSHOT)), Same(read_offers(COLLECTED)))
    try:
        return read_offers(cached)
    except BadInput as error:
        raise BadInput(
            error.what, where=error.where, fix="Delete that file, or write it anew: `tokonomics offers --refresh`."
        ) from None


@lru_cache(maxsize=4)
def _shipped(listed: Same[tuple[Offer, ...]], collected: Same[tuple[Offer, ...]]) -> tuple[Offer, ...]:
    return *listed.value, *besides(listed.value, collected.value)


def besides(listed: Iterable[Offer], collected: Iterable[Offer]) -> list[Offer]:
    """Return the offers collected by hand of GPUs that a list does not have from their provider."""
    known = {(offer.provider, offer.gpu) for offer in listed}
    return [offer for offer in collected if (offer.provider, offer.gpu) not in known]


def read_offers(path: Path) -> tuple[Offer, ...]:
    """Return every row of an offers CSV; the first mistake is an error that names the line and the column.

    A file that has not changed is not read again.
    """
    own = repr(user_tables("gpus"))
    try:
        stamp = path.stat()
    except (OSError, ValueError):
        return _parse(path, 0, 0, own, today())  # raises, saying what is wrong
    return _parse(path, stamp.st_mtime_ns, stamp.st_size, own, today())


@lru_cache(maxsize=8)
def _parse(path: Path, changed: int, size: int, own_gpus: str, day: dt.date) -> tuple[Offer, ...]:
    text = _text(path)
    written = dt.date.fromtimestamp(path.stat().st_mtime)
    return parse_offers(text, str(path), {"date": min(written, day), "source": path.name})


def parse_offers(text: str, path: str, defaults: Mapping[str, object] | None = None) -> tuple[Offer, ...]:
    """Return the offers of a CSV text; ``path`` is its name in messages."""
    defaults = {"date": today(), "source": path} if defaults is None else defaults
    table = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        header = next((row for row in table if any(cell.strip() for cell in row)), None)
        if header is None:
            raise BadInput("the file is empty", where=path, fix=_EXAMPLE)
        columns = _columns(header, f"{path}:{table.line_num}")
        read: dict[tuple[str, str], object] = {}
        offers = tuple(
            offer
            for row in table
            if any(cell.strip() for cell in row)
            for offer in _in_each_region(_offer(row, columns, defaults, read, f"{path}:{table.line_num}"))
        )
    except csv.Error as error:
        raise BadInput(f"not a CSV file: {error}", where=f"{path}:{table.line_num}", fix=_EXAMPLE) from None
    if not offers:
        raise BadInput("there is no offer below the header", where=path, fix=_EXAMPLE)
    return offers


def write_offers(path: Path, offers: Sequence[Offer]) -> None:
    """Write the file atomically."""
    columns = tuple(Offer.model_fields)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([getattr(offer, column) for column in columns] for offer in offers)
    where = shorten(str(path), 200)
    make_folder(path.parent, where)
    write_text(path, text.getvalue(), where)


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise BadInput(f"cannot be read: {reason}", where=shorten(str(path), 200)) from None
    if len(content) > MAX_FILE_BYTES:
        raise BadInput(f"larger than {MAX_FILE_BYTES // 1_000_000} MB; not read", where=str(path))
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise BadInput("not a text file in UTF-8", where=str(path), fix="Save it as CSV (UTF-8).")
    return text


def _columns(header: Sequence[str], where: str) -> dict[str, int]:
    """Return which column holds which field; a likely typing error in a name is an error, other columns are ignored."""
    found: dict[str, int] = {}
    for index, cell in enumerate(header):
        name = cell.strip().lower()
        field = _ALIASES.get(name, name)
        if field in found:
            raise BadInput(f"two columns give '{shorten(field)}'", where=where)
        found[field] = index
    missing = [field for field in _REQUIRED if field not in found]
    if missing:
        raise BadInput(f"missing column{'s' * (len(missing) > 1)} {', '.join(missing)}", where=where, fix=_EXAMPLE)
    absent = [field for field in Offer.model_fields if field not in found]
    for field in found.keys() - Offer.model_fields.keys():
        if slip := get_close_matches(field[:80], absent, n=1, cutoff=0.85):
            raise BadInput(f"unknown column '{shorten(field)}'", where=where, fix=f"Did you mean {slip[0]}?")
    return {field: index for field, index in found.items() if field in Offer.model_fields}


def _offer(
    row: list[str],
    columns: Mapping[str, int],
    defaults: Mapping[str, object],
    read: dict[tuple[str, str], object],
    where: str,
) -> Offer:
    """Return the offer of a row; ``read`` caches parsed cells, because thousands of rows repeat a few values."""
    values = {"region": UNSPECIFIED, **defaults}
    for field, index in columns.items():
        if index < len(row) and (cell := row[index].strip()):
            if (field, cell) not in read:
                read[field, cell] = _value(field, cell, where)
            values[field] = read[field, cell]
    for field in ("provider", "instance", "gpu", "gpus"):
        if field not in values:
            raise BadInput("is empty", where=f"{where}, column {field}")
    if not any(field in values for field in PRICE_FIELDS):
        raise BadInput("there is no price", where=f"{where}, column usd_per_hour")
    return Offer.model_validate(values)


def _in_each_region(offer: Offer) -> list[Offer]:
    """Return the offer once for each region that its row names."""
    if BETWEEN_REGIONS not in offer.region:
        return [offer]
    regions = [region.strip() for region in offer.region.split(BETWEEN_REGIONS)]
    return [offer.model_copy(update={"region": region}) for region in regions if region]


def _value(field: str, cell: str, where: str) -> object:
    at = f"{where}, column {field}"
    if not cell.isprintable() or len(cell) > (5_000 if field == "region" else 200):
        raise BadInput(f"'{shorten(cell)}' is not a name or a number", where=at)
    if field == "gpu":
        try:
            return gpu_key(cell)
        except UnknownName as error:
            raise BadInput(error.what, where=at, fix=error.fix) from None
    if field == "date":
        try:
            return dt.date.fromisoformat(cell)
        except ValueError:
            raise BadInput(f"'{shorten(cell)}' is not a date", where=at, fix="Write it as 2026-08-22.") from None
    if field in ("provider", "region", "instance", "source"):
        return cell.lower() if field == "provider" else cell
    return _amount(field, cell, at)


def _amount(field: str, cell: str, at: str) -> float | int:
    if not NUMBER.fullmatch(cell):
        raise BadInput(f"'{shorten(cell)}' is not a number", where=at, fix="Write a plain number such as 4.50.")
    number = float(cell)
    if number <= 0:
        raise BadInput(f"{shorten(cell)} is not above zero", where=at, fix="Leave the cell empty if there is none.")
    if field in PRICE_FIELDS and number > MAX_USD_PER_HOUR:
        raise BadInput(f"{shorten(cell)} USD per hour is more than any machine costs", where=at)
    if field in PRICE_FIELDS and number < MIN_USD_PER_HOUR:
        raise BadInput(f"{shorten(cell)} USD per hour is less than any machine costs", where=at)
    if field == "gpus":
        if number > MAX_GPUS or number != int(number):
            raise BadInput(f"{shorten(cell)} is not a count up to {MAX_GPUS}", where=at)
        return int(number)
    if math.isinf(number):
        raise BadInput(f"{shorten(cell)} is too large", where=at)
    return number
