"""Fetch today's GPU prices, only on request: ``tokonomics offers --refresh``.

This reads the SkyPilot catalogue's ``<provider>/vms.csv`` files (or asks the package gpuhunt), takes the lowest price
in each region as the shipped snapshot does (``data/README.md``), and writes the user's cache in one step. A provider
that cannot be read keeps its last good offers; if none can be read, the file stays as it was.
"""

import datetime as dt
import importlib
import json
import re
import urllib.parse
import urllib.request
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from email.utils import parsedate_to_datetime
from functools import partial
from http.client import HTTPException
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple
from urllib.error import HTTPError

from tokonomics.catalog.feeds import Quote, amount, full_name, known_gpu, read_vms
from tokonomics.catalog.offers import (
    COLLECTED,
    MAX_GPUS,
    SNAPSHOT,
    Offer,
    Terms,
    besides,
    cache_file,
    read_offers,
    write_offers,
)
from tokonomics.errors import BadInput, TokonomicsError, UnknownName, shorten
from tokonomics.types import Noun, today

CATALOG_URLS = (
    "https://raw.githubusercontent.com/skypilot-org/skypilot-catalog/master/catalogs",
    "https://skypilot-catalog.s3.us-east-1.amazonaws.com/catalogs",
)
"""The second mirrors the first, which refuses too many requests; so does SkyPilot (0.14.1, sky/catalog/common.py)."""
CATALOG_VERSIONS = ("v8", "v9")
"""The versions of the columns: SkyPilot 0.14.1 reads v8. The next, begun in 2026, has the same columns and some about
local disks."""
HISTORY_URL = (
    "https://api.github.com/repos/skypilot-org/skypilot-catalog/commits"
    "?per_page=1&path=catalogs/{version}/{provider}/vms.csv"
)
"""The day a file last changed: some are years old, and fetching them today does not make their prices newer."""

PROVIDERS = (
    "aws", "azure", "cudo", "daytona", "do", "fluidstack", "gcp", "hyperbolic", "hyperstack", "ibm", "jarvislabs",
    "lambda", "lium", "nebius", "oci", "paperspace", "primeintellect", "runpod", "shadeform", "vast", "verda",
    "yotta",
)  # fmt: skip
"""Providers with a file of GPU machines. Left out: mithril (an auction's lowest bid is no price), seeweb (its euros are
read as dollars) and spheron (written once, with GPU names that contradict their memory)."""
GPUHUNT_PROVIDERS = {
    "aws": "aws", "azure": "azure", "cloudrift": "cloudrift", "gcp": "gcp", "lambdalabs": "lambda",
    "lium": "lium", "nebius": "nebius", "oci": "oci", "runpod": "runpod", "vastai": "vast", "verda": "verda",
}  # fmt: skip
"""Providers that gpuhunt 0.1.34 answers for without credentials, under our names."""
_NOT_ON_DEMAND = frozenset(("gcp-dws-calendar-mode", "gcp-g4-preview", "runpod-cluster"))
"""Flags of what gpuhunt lists at a price per hour but is sold in other ways: days booked ahead, previews, clusters."""

TIMEOUT_S = 30.0
MAX_DOWNLOAD_BYTES = 64_000_000  # the largest of the files (AWS) has 4 to 5 MB

RESERVED = ("reserved_1yr_usd_per_hour", "reserved_3yr_usd_per_hour")


class ProviderRefresh(Noun):
    """The result for one provider: its rows are fresh, or the last good ones, with the reason."""

    provider: str
    rows: int
    date: dt.date | None = None
    skipped: int = 0
    error: str | None = None
    note: str | None = None


class Refresh(Noun):
    """What a refresh did; ``path`` is None if nothing was written."""

    path: Path | None
    providers: tuple[ProviderRefresh, ...]


class Fetched(NamedTuple):
    """One provider's quotes, their day, how many could not be used, and a note about the day."""

    quotes: list[Quote]
    date: dt.date
    skipped: int
    note: str | None = None
    may_be_copied: bool = False  # whether the day may be that of copying an older file


class _Refused(BadInput):
    """Raised if a server answers, but not with the file."""


def refresh(
    source: str = "skypilot",
    *,
    url: str | None = None,
    providers: Sequence[str] | None = None,
    path: Path | None = None,
    timeout_s: float = TIMEOUT_S,
) -> Refresh:
    """Fetch, reduce and write the offers; what could not be fetched is kept from before and named in the answer.

    ``url`` is a folder of ``<provider>/vms.csv`` files instead of the public ones.
    """
    if url is not None and not url.startswith(("https://", "http://")):
        raise BadInput(f"'{shorten(url)}' is not a web address", field="url", fix="It starts with https:// or http://.")
    if source not in ("skypilot", "gpuhunt"):
        raise BadInput(f"unknown price source '{shorten(source)}'", fix="It is skypilot or gpuhunt.")
    known = PROVIDERS if source == "skypilot" else tuple(GPUHUNT_PROVIDERS.values())
    for name in providers or ():
        if name not in known:
            raise UnknownName("provider", name, known, fix=f"Known: {', '.join(sorted(known))}")
    if source == "skypilot":
        fetch = partial(_from_skypilot, url=url, timeout_s=timeout_s)
    else:
        fetch = partial(_from_gpuhunt, gpuhunt=_gpuhunt())
    target = path or cache_file()
    before = _by_provider(_last_good(target))
    with ThreadPoolExecutor(max_workers=6) as pool:
        attempts = [pool.submit(_attempt, fetch, name, source, before.get(name, ())) for name in providers or known]
    results = [attempt.result() for attempt in attempts]
    outcome = tuple(done for done, _ in results)
    if all(done.error for done in outcome):
        return Refresh(path=None, providers=outcome)
    merged = {**before, **{done.provider: offers for done, offers in results if not done.error}}
    offers = [offer for name in sorted(merged) for offer in merged[name]]
    write_offers(target, [*offers, *besides(offers, read_offers(COLLECTED))])
    return Refresh(path=target, providers=outcome)


def _attempt(
    fetch: Callable[[str], Fetched], provider: str, source: str, before: Sequence[Offer]
) -> tuple[ProviderRefresh, Sequence[Offer]]:
    try:
        fetched = fetch(provider)
        label = {"skypilot": "skypilot-catalog"}.get(source, source)
        offers = reduce_quotes(provider, fetched.quotes, fetched.date, label, before)
        if not offers:
            raise BadInput("no offer of a known GPU in the answer")
        day = fetched.date
        if fetched.may_be_copied and _same_prices(offers, before):
            # Prices are not newer because SkyPilot copied a file to the folder of its next version.
            day = min(day, max(offer.date for offer in before))
            offers = [offer.model_copy(update={"date": day}) for offer in offers]
    except TokonomicsError as error:
        newest = max((offer.date for offer in before), default=None)
        return ProviderRefresh(provider=provider, rows=len(before), date=newest, error=error.what), before
    done = ProviderRefresh(provider=provider, rows=len(offers), date=day, skipped=fetched.skipped, note=fetched.note)
    return done, offers


def _same_prices(offers: Iterable[Offer], before: Iterable[Offer]) -> bool:
    """Decide whether everything known before is still sold at the same prices."""
    now, known = (
        {
            (offer.instance, offer.region, offer.gpu, offer.gpus): (offer.usd_per_hour, offer.spot_usd_per_hour)
            for offer in side
        }
        for side in (offers, before)
    )
    return bool(known) and known.items() <= now.items()


def _last_good(target: Path) -> tuple[Offer, ...]:
    try:
        return read_offers(target if target.is_file() else SNAPSHOT)
    except BadInput:
        return read_offers(SNAPSHOT)


def _by_provider(offers: Iterable[Offer]) -> dict[str, list[Offer]]:
    grouped: dict[str, list[Offer]] = defaultdict(list)
    for offer in offers:
        grouped[offer.provider].append(offer)
    return dict(grouped)


# --- reducing -------------------------------------------------------------------------------------------------------


def reduce_quotes(
    provider: str, quotes: Iterable[Quote], on: dt.date, source: str, before: Sequence[Offer] = ()
) -> list[Offer]:
    """Return every instance in every region, at the lowest price of its zones; keep reserved prices from before,
    because these sources have none."""
    places: dict[tuple[str, str, int, str], list[Quote]] = defaultdict(list)
    for quote in quotes:
        places[quote.instance, quote.gpu, quote.gpus, quote.region].append(quote)
    reserved = {(offer.instance, offer.region): offer for offer in before if offer.price(Terms.reserved)}
    offers = []
    for (instance, _, _, region), zones in sorted(places.items()):
        old = reserved.get((instance, region))
        kept = {term: getattr(old, term) for term in RESERVED} if old else {}
        said_by = "; ".join([source, *old.source.split("; ")[1:]]) if old else source
        offers.append(Offer(provider=provider, date=on, source=said_by, **_lowest(provider, zones)._asdict(), **kept))
    return offers


def _lowest(provider: str, zones: Sequence[Quote]) -> Quote:
    usd = min((zone.usd_per_hour for zone in zones if zone.usd_per_hour is not None), default=None)
    spot = min((zone.spot_usd_per_hour for zone in zones if zone.spot_usd_per_hour is not None), default=None)
    no_market = spot is not None and spot == usd and provider != "aws"  # This is how the sources write "no spot price".
    return zones[0]._replace(usd_per_hour=usd, spot_usd_per_hour=None if no_market else spot)


# --- SkyPilot -------------------------------------------------------------------------------------------------------


def _from_skypilot(provider: str, url: str | None, timeout_s: float) -> Fetched:
    if url is None:
        text, version = _catalogue_file(provider, timeout_s)
        changed = _last_commit(HISTORY_URL.format(version=version, provider=provider), timeout_s)
    else:
        text, changed = _download(f"{url.rstrip('/')}/{urllib.parse.quote(provider)}/vms.csv", timeout_s)
    quotes, skipped = read_vms(provider, text)
    note = None if changed else "dated by the day it was fetched: the catalogue does not say when it was collected"
    return Fetched(quotes, changed or today(), skipped, note, may_be_copied=url is None)


def _catalogue_file(provider: str, timeout_s: float) -> tuple[str, str]:
    """Return a provider's public file and the version of its columns, from the first place that has it."""
    refused = None
    for url, version in product(CATALOG_URLS, CATALOG_VERSIONS):
        try:
            return _download(f"{url}/{version}/{provider}/vms.csv", timeout_s)[0], version
        except _Refused as error:
            refused = refused or error
    raise refused or BadInput("there is no catalogue to ask")


# --- the network ----------------------------------------------------------------------------------------------------


def _download(url: str, timeout_s: float) -> tuple[str, dt.date | None]:
    """Return the text at that address and the day the server says it last changed, if it says so."""
    try:
        with urllib.request.urlopen(url, timeout=timeout_s) as reply:
            content = reply.read(MAX_DOWNLOAD_BYTES + 1)
            modified = reply.headers.get("Last-Modified")
        if len(content) > MAX_DOWNLOAD_BYTES:
            raise BadInput(f"{shorten(url, 120)} is larger than {MAX_DOWNLOAD_BYTES // 1_000_000} MB")
        return content.decode("utf-8-sig"), parsedate_to_datetime(modified).date() if modified else None
    except UnicodeDecodeError:
        raise BadInput(f"{shorten(url, 120)} is not text") from None
    except HTTPError as error:
        error.close()
        raise _Refused(f"{shorten(url, 120)}: {shorten(str(error), 120)}") from None
    except (OSError, HTTPException, ValueError) as error:
        raise BadInput(f"{shorten(url, 120)}: {shorten(str(error), 120)}") from None


def _last_commit(url: str, timeout_s: float) -> dt.date | None:
    """Return the day GitHub says the file last changed; None if it does not answer."""
    try:
        commits = json.loads(_download(url, timeout_s)[0])
        return dt.date.fromisoformat(commits[0]["commit"]["committer"]["date"][:10])
    except (BadInput, ValueError, LookupError, TypeError):
        return None


# --- gpuhunt --------------------------------------------------------------------------------------------------------


def _gpuhunt() -> Any:
    try:
        return importlib.import_module("gpuhunt")
    except ImportError:
        raise BadInput(
            "the price source gpuhunt is not installed", fix="In a checkout: pip install '.[live]'"
        ) from None


def _from_gpuhunt(provider: str, gpuhunt: Any) -> Fetched:
    """Return what gpuhunt answers for that provider now (CatalogItem of gpuhunt 0.1.34)."""
    theirs = {ours: name for name, ours in GPUHUNT_PROVIDERS.items()}.get(provider, provider)
    try:
        items = [item for item in gpuhunt.query(provider=theirs) if item.gpu_name and item.gpu_count]
    except Exception as error:  # gpuhunt lets its providers' own errors through, whatever they are.
        raise BadInput(f"gpuhunt: {shorten(str(error), 120)}") from None
    quotes = []
    for item in items:
        gpu = known_gpu(full_name(provider, item.instance_name, item.gpu_name, float(item.gpu_memory or 0)))
        usd = amount(str(item.price))
        if gpu is None or usd is None or item.gpu_count > MAX_GPUS or _NOT_ON_DEMAND & set(item.flags):
            continue
        region = re.sub(r"-[a-z]$", "", item.location) if provider == "gcp" else item.location
        quotes.append(
            Quote(
                instance=item.instance_name,
                region=region or "unspecified",
                gpu=gpu,
                gpus=int(item.gpu_count),
                vcpus=amount(str(item.cpu)),
                memory_gb=amount(str(item.memory)),
                usd_per_hour=None if item.spot else usd,
                spot_usd_per_hour=usd if item.spot else None,
            )
        )
    return Fetched(quotes, today(), len(items) - len(quotes))
