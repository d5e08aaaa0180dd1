"""Decide which offers may be bought, and which of their prices count: by place, seller, age, host, price and discount.

Every caller uses one price rule (``prices_that_count``): sellers with a price list unless others are named, prices of
the last year, hosts that could load a model, and of each GPU and market only the most recent prices.
"""

import datetime as dt
import math
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path

from tokonomics.catalog.entries import user_market
from tokonomics.catalog.gpus import find_gpu
from tokonomics.catalog.offers import (
    MAX_AGE_DAYS,
    NUMBER,
    PRICE_FIELDS,
    STALE_AFTER_DAYS,
    Offer,
    Terms,
    gpu_key,
    load_offers,
)
from tokonomics.catalog.places import Seller, perhaps_in, place_filter, seller_of
from tokonomics.errors import BadInput, UnknownName, option, shorten
from tokonomics.types import today
from tokonomics.units import GIB

PROCESS_GIB = 3.0
"""Memory of the host for the process behind each GPU, beside the weights. Assumed: the one report found gives a range
for the whole need only. The 60.5 GiB of Qwen1.5-32B do not load with 32 GB and do with 64 (vllm-project/vllm#5269 of
2024-06-05), so a process takes at most 3.5 GiB if all weights are held; for eight processes it is a safe guess. Loaders
map a file as a whole and fail if it is larger than the memory (turboderp/exllama#245, vllm-project/vllm#759); pages
that were copied can be released, so less than this may be enough."""
_WEIGHTS_SHARE = 0.25
"""Share of a GPU's memory: a host counts only if it can load weights of this size, whichever model is asked about. An
8B model in 16 bits has a fifth of 80 GB; for a model below a quarter, a smaller GPU would hold as much cache."""

_STALE_AFTER = dt.timedelta(STALE_AFTER_DAYS)

Market = tuple[str, bool]
"""Quotes that can show each other to be out of date: of one GPU, from marketplaces or from sellers with a list."""


class NoOffer(BadInput):
    """Raised if nobody is known to sell that GPU on those terms."""


def market_offers(provider: str | None = None) -> tuple[Offer, ...]:
    """Return the offers of the user's own market (``[market]`` in the user's catalogue), or of a named provider.

    Marketplaces are left out, unless the market names providers, sellers or a file of offers; so are machines that are
    only perhaps in its region, unless it names providers.
    """
    market = user_market() | ({"provider": [provider]} if provider else {})
    known = load_offers(Path(market["offers"]).expanduser() if "offers" in market else None)
    filters = {name: market.get(name) for name in ("provider", "region", "sellers")}
    found = select_offers(known, terms=None, discounts=parse_discounts(market.get("discount", ())), **filters)
    if "region" in market and "provider" not in market:
        found = certainly_there(found)
    return found if market.keys() & {"provider", "sellers", "offers"} else list_prices(found)


def select_offers(
    offers: Iterable[Offer],
    *,
    provider: str | Iterable[str] | None = None,
    region: str | Iterable[str] | None = None,
    gpu: str | Iterable[str] | None = None,
    sellers: Iterable[str] | None = None,
    exclude: Iterable[str] | None = None,
    terms: Terms | None = Terms.on_demand,
    max_usd_per_gpu_hour: float | None = None,
    discounts: Mapping[str, float] | None = None,
) -> tuple[Offer, ...]:
    """Return the offers asked for that can be bought on these terms, cheapest GPU-hour first, after discounts.

    With no terms, return every offer asked for, in the given order. Those of a region include machines that are only
    perhaps there: ``certainly_there`` tells them apart.
    """
    known = tuple(offers)
    everyone = {offer.provider for offer in known}
    providers = None if provider is None else {_known("provider", name, everyone) for name in _names(provider)}
    kinds = None if sellers is None else {*sellers, None}
    within = [
        offer
        for offer in known
        if (providers is None or offer.provider in providers) and (kinds is None or offer.seller in kinds)
    ]
    places = {offer.place for offer in within}
    regions = () if region is None or not within else _names(region)
    is_there = place_filter(regions, places) if regions else None
    gpus = None if gpu is None else {gpu_key(name) for name in _names(gpu)}
    left_out = {_provider_or_gpu(name, everyone) for name in exclude or ()}
    shares = {_known("provider", name, everyone): share for name, share in (discounts or {}).items()}
    chosen = [
        apply_discount(offer, shares.get(offer.provider, 0.0))
        for offer in within
        if (gpus is None or offer.gpu in gpus)
        and (is_there is None or is_there(offer.place) or (_is_placeless(offer) and perhaps_in(regions, offer.region)))
        if not left_out & {offer.provider, offer.gpu}
    ]
    if terms is None:
        return tuple(chosen)
    most = math.inf if max_usd_per_gpu_hour is None else max_usd_per_gpu_hour
    affordable = [offer for offer in chosen if (usd := offer.usd_per_gpu_hour(terms)) is not None and usd <= most]
    return tuple(sorted(affordable, key=partial(_by_price, terms)))


def cheapest_offer(
    gpu: str, gpus: int = 1, terms: Terms = Terms.on_demand, offers: Iterable[Offer] | None = None, together: int = 1
) -> Offer:
    """Return the offer on which this many GPUs cost least in whole machines, at the prices that count.

    ``together`` of them split every layer and must be in one machine.
    """
    key, on = gpu_key(gpu), today()
    known = market_offers() if offers is None else tuple(offers)
    sold = [offer for offer in known if offer.gpu == key and offer.price(terms) is not None]
    recent = within_age(sold, on)
    large = [offer for offer in recent if offer.gpus >= together]
    counted = prices_that_count(large, terms, newest_quotes(recent, terms))
    if not counted:
        raise no_offer(key, terms, together, _none_counts(sold, recent, large))
    return min(counted, key=lambda offer: (machines_usd_per_hour(offer, gpus, terms), *_by_price(terms, offer)))


def _none_counts(sold: Sequence[Offer], recent: Sequence[Offer], large: Sequence[Offer]) -> str:
    """Say why no price counts: all are too old, or those of such machines are older than others of the GPU."""
    if not recent:
        return "all that are known are over a year old" if sold else ""
    if not large:  # none of that size is sold, which the error says already
        return ""
    newest = max(offer.date for offer in recent)
    return f"the newest is of {max(offer.date for offer in large)}, other machines have prices of {newest}"


def no_offer(gpu: str, terms: Terms, together: int = 1, why: str = "") -> NoOffer:
    """Return the error for the case that no price counts."""
    size = f" in machines of {together} or more" if together > 1 else ""
    return NoOffer(
        f"no {terms.replace('_', '-')} price is known for {gpu}{size}{why and f': {why}'}",
        fix=f"Give the price yourself, add an offers file ({option('offers', 'my.csv')}), "
        "or run `tokonomics offers --refresh`.",
    )


def prices_that_count(
    sold: Sequence[Offer], terms: Terms, newest: Mapping[Market, dt.date] | None = None, *, any_age: bool = False
) -> tuple[Offer, ...]:
    """Return the machines whose price on these terms counts, among suitable ones.

    Of a GPU on one market (``Market``) only quotes within 90 days of the newest count: a seller who raised a price
    since shows that an older, lower list is no longer what the machine costs. Quotes are compared with each other and
    not with today, so that the same ones count as long as nobody quotes anew. ``newest`` has the days of the newest
    quotes where others than ``sold`` are known: machines that are too small or too expensive also show how the market
    moved. So an old quote does not come back where only it has a machine of the needed size, even if the newer ones do
    not contradict it: otherwise a seller of such machines, added at any price, could make the answer more expensive.

    With ``any_age`` every age counts: the user has said how old prices may be. A host that could not load a quarter
    of its GPUs' memory counts only if all are like that. Neither rule depends on the number of replicas, on who asks
    or on the day.
    """
    roomy = _roomy(sold)
    if any_age:
        return tuple(roomy)
    days = newest_quotes(sold, terms) if newest is None else newest
    return tuple(offer for offer in roomy if days[market_of(offer)] - offer.date <= _STALE_AFTER)


def cheapest_that_counts(
    offers: Sequence[Offer], terms: Terms, on: dt.date, max_usd_per_gpu_hour: float | None = None
) -> Offer | None:
    """Return the offer with the cheapest GPU-hour whose price counts and is at most a year old, if any does.

    A price above the limit still shows that an older one is out of date.
    """
    most = math.inf if max_usd_per_gpu_hour is None else max_usd_per_gpu_hour
    recent = within_age(offers, on)
    affordable = [offer for offer in recent if (usd := offer.usd_per_gpu_hour(terms)) is not None and usd <= most]
    counted = prices_that_count(affordable, terms, newest_quotes(recent, terms))
    return min(counted, key=partial(_by_price, terms), default=None)


def newest_quotes(offers: Iterable[Offer], terms: Terms) -> dict[Market, dt.date]:
    """Return the day of the newest quote on these terms for each market, from hosts that could load a model."""
    by_seller: dict[tuple[str, str], Offer] = {}  # thousands of offers have few sellers
    for offer in _roomy([offer for offer in offers if offer.price(terms) is not None]):
        known = by_seller.get((offer.gpu, offer.provider))
        if known is None or known.date < offer.date:
            by_seller[offer.gpu, offer.provider] = offer
    found: dict[Market, dt.date] = {}
    for newest in by_seller.values():
        market = market_of(newest)
        found[market] = max(newest.date, found.get(market, newest.date))
    return found


def market_of(offer: Offer) -> Market:
    """Return the market on which an offer's price is compared with newer ones."""
    return _market_of_seller(offer.gpu, offer.provider)


@lru_cache(maxsize=4096)
def _market_of_seller(gpu: str, provider: str) -> Market:
    return gpu, seller_of(provider) is Seller.marketplace


def newer_quote(old: Offer, offers: Iterable[Offer], terms: Terms) -> Offer | None:
    """Return the cheapest quote that counts on an old offer's market and shows that it is out of date, if any does."""
    same = [offer for offer in offers if market_of(offer) == market_of(old) and offer.price(terms) is not None]
    counted = prices_that_count(same, terms)
    if old in counted:
        return None
    return min(counted, key=partial(_by_price, terms), default=None)


def _roomy(sold: Sequence[Offer]) -> list[Offer]:
    """Return the machines whose host could load a quarter of its GPUs' memory; on a market without such, all."""
    least_gib = {gpu: _least_host_gib(gpu) for gpu in {offer.gpu for offer in sold}}
    enough = [offer.memory_gb is None or offer.memory_gb >= least_gib[offer.gpu] * offer.gpus for offer in sold]
    if all(enough):
        return list(sold)
    sellers = {(offer.gpu, offer.provider) for offer, is_enough in zip(sold, enough, strict=True) if is_enough}
    with_room = {_market_of_seller(*seller) for seller in sellers}
    return [
        offer for offer, is_enough in zip(sold, enough, strict=True) if is_enough or market_of(offer) not in with_room
    ]


def loading_gib(weights_bytes: float, processes: int) -> float:
    """Return the memory a host needs to load these weights into this many processes, one for each GPU in use.

    Engines read a checkpoint through the host's page cache. The value is assumed, and rather too high than too low
    (``PROCESS_GIB``): a host below it may work, but do not rely on one below the weights alone. In GiB, as providers
    sell a host's memory.
    """
    return weights_bytes / GIB + PROCESS_GIB * processes


def _least_host_gib(gpu: str) -> float:
    """Return the memory that a host needs for each GPU to count; 0 for a GPU that only the offers file knows."""
    try:
        return usual_host_gib(gpu)
    except UnknownName:
        return 0.0


def usual_host_gib(gpu: str) -> float:
    """Return the memory per GPU of a host that counts, whichever model is asked about."""
    return loading_gib(_WEIGHTS_SHARE * find_gpu(gpu).memory_bytes, 1)


def certainly_there(offers: Iterable[Offer]) -> tuple[Offer, ...]:
    """Return the offers of a region that was asked for which are certain to be in it."""
    return tuple(offer for offer in offers if offer.is_place_certain)


def _is_placeless(offer: Offer) -> bool:
    """Tell whether nobody knows in which country a machine stands; in a user's own list a region's name is enough."""
    return offer.country is None and not offer.is_place_certain


def list_prices(offers: Iterable[Offer]) -> tuple[Offer, ...]:
    """Return the offers of sellers with a price list: no marketplaces."""
    return tuple(offer for offer in offers if offer.seller is not Seller.marketplace)


def within_age(offers: Iterable[Offer], on: dt.date, days: int | None = None) -> tuple[Offer, ...]:
    """Return the offers that are at most this old, or at most a year."""
    oldest = MAX_AGE_DAYS if days is None else days
    return tuple(offer for offer in offers if offer.age_days(on) <= oldest)


def machines_usd_per_hour(offer: Offer, gpus: int, terms: Terms = Terms.on_demand) -> float:
    """Return the USD per hour of the whole machines that this many GPUs need; unused GPUs are paid for as well."""
    if gpus < 1:
        raise BadInput(f"needs at least one GPU, got {gpus}")
    return (offer.price(terms) or 0.0) * math.ceil(gpus / offer.gpus)


def apply_discount(offer: Offer, share: float) -> Offer:
    """Return the offer with a negotiated share taken off every price."""
    if not 0 <= share < 1:
        raise BadInput(f"a discount is a share of the price, from 0 up to but not 1; got {share}")
    if share == 0:
        return offer
    prices = {name: price * (1 - share) for name in PRICE_FIELDS if (price := getattr(offer, name)) is not None}
    return offer.model_copy(update=prices)


def parse_discount(text: str) -> tuple[str, float]:
    """Read ``aws=0.2`` as ("aws", 0.2)."""
    provider, equals, share = text.partition("=")
    fix = "Write it as aws=0.2 for 20 % off that provider's list prices."
    if not provider.strip() or not equals or not NUMBER.fullmatch(share.strip()):
        raise BadInput(f"'{shorten(text)}' is not a discount", field="discount", fix=fix)
    value = float(share)
    if not 0 <= value < 1:
        raise BadInput(f"a discount of {shorten(share.strip())} is not between 0 and 1", field="discount", fix=fix)
    return provider.strip().lower(), value


def parse_discounts(texts: Iterable[str]) -> dict[str, float]:
    """Read several discounts, one per provider."""
    discounts: dict[str, float] = {}
    for provider, share in map(parse_discount, texts):
        if provider in discounts:
            raise BadInput(f"two discounts for {shorten(provider)}", field="discount", fix="Give one a provider.")
        discounts[provider] = share
    return discounts


def _by_price(terms: Terms, offer: Offer) -> tuple[float, int, str, str, str]:
    return (offer.usd_per_gpu_hour(terms) or 0.0, offer.gpus, offer.provider, offer.region, offer.instance)


def _names(given: str | Iterable[str]) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given)


def _known(kind: str, name: str, known: set[str]) -> str:
    spelled = {word.casefold(): word for word in sorted(known)}
    try:
        return spelled[name.strip().casefold()]
    except KeyError:
        raise UnknownName(kind, name, known, fix=f"Known: {', '.join(sorted(known)[:20])}") from None


def _provider_or_gpu(name: str, providers: set[str]) -> str:
    """Return the provider or GPU of that name, sold here or not."""
    provider = name.strip().lower()
    if provider in providers or seller_of(provider) is not None:
        return provider
    try:
        return gpu_key(name)
    except UnknownName:
        fix = "Their names: `tokonomics offers`."
        raise BadInput(f"no provider and no GPU is called '{shorten(name)}'", field="exclude", fix=fix) from None
