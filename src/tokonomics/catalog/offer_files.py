"""Files of offers: the shipped snapshot, the user's refreshed prices, price lists of one's own.

A CSV with a header; the first thing wrong in it is an error that names the line and the column. A file is written whole
or not at all.
"""

import csv
import datetime as dt
import io
import math
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path

from tokonomics.catalog.offers import (
    MAX_GPUS,
    MAX_USD_PER_HOUR,
    MIN_USD_PER_HOUR,
    NUMBER,
    PRICE_FIELDS,
    UNSPECIFIED,
    Offer,
    gpu_key,
)
from tokonomics.catalog.user_file import user_tables
from tokonomics.clock import today
from tokonomics.errors import BadInput, UnknownName, shorten
from tokonomics.files import cache_folder, make_folder, write_text

BETWEEN_REGIONS = "|"  # in a file, between regions where a machine costs the same
MAX_FILE_BYTES = 50_000_000  # hundreds of thousands of offers; a larger file is not a price list
SNAPSHOT = Path(__file__).parent / "data" / "offers.csv"
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
    """Where refreshed prices are kept."""
    return cache_folder() / "offers.csv"


def load_offers(path: Path | None = None) -> tuple[Offer, ...]:
    """The offers of that file; without one the refreshed prices, or else the shipped ones."""
    if path is not None:
        return read_offers(path)
    cached = cache_file()
    if not cached.is_file():
        return read_offers(SNAPSHOT)
    try:
        return read_offers(cached)
    except BadInput as error:
        raise BadInput(
            error.what, where=error.where, fix="Delete that file, or run `tokonomics prices refresh` to write it anew."
        ) from None


def read_offers(path: Path) -> tuple[Offer, ...]:
    """Every row of an offers CSV; the first thing wrong in it is an error that names the line and the column.

    A file that has not changed since is not read again.
    """
    own = repr(user_tables("gpus"))
    try:
        stamp = path.stat()
    except (OSError, ValueError):
        return _parse(path, 0, 0, own, today())  # says what is wrong
    return _parse(path, stamp.st_mtime_ns, stamp.st_size, own, today())


@lru_cache(maxsize=8)
def _parse(path: Path, changed: int, size: int, own_gpus: str, day: dt.date) -> tuple[Offer, ...]:
    text = _text(path)
    written = dt.date.fromtimestamp(path.stat().st_mtime)
    return parse_offers(text, str(path), {"date": min(written, day), "source": path.name})


def parse_offers(text: str, path: str, defaults: Mapping[str, object] | None = None) -> tuple[Offer, ...]:
    """The offers of a CSV text; ``path`` is what it is called in messages."""
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
    """Write the file whole or not at all."""
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
    """Which column holds which field; a likely slip in a name is an error, a foreign column is left alone."""
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
    """The offer of a row; ``read`` remembers what cells say, as thousands of rows repeat a few names and sizes."""
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
    """The offer once for each of the regions that its row names."""
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
