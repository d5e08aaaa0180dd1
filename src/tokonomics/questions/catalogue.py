"""List what exists and what it costs (models, GPUs, offers, APIs), and find the offers that a request may buy."""

from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from tokonomics.catalog.api_hosts import list_apis
from tokonomics.catalog.apis import price_request, read_litellm
from tokonomics.catalog.gpus import find_gpu, find_gpus
from tokonomics.catalog.load_models import find_models
from tokonomics.catalog.offer_choice import certainly_there, cheapest_that_counts, list_prices, select_offers
from tokonomics.catalog.offers import MAX_AGE_DAYS, Offer
from tokonomics.catalog.places import LISTED
from tokonomics.catalog.price_index import price_coverage
from tokonomics.errors import BadInput, option, shorten
from tokonomics.money.breakeven import Extra, engineers
from tokonomics.money.cost import require_positive
from tokonomics.planner.parsing import (
    discounts_from,
    dollars,
    filters_from,
    gpu_filter,
    listed,
    offers_for,
    parse_terms,
)
from tokonomics.questions.inputs import Market, SomeGpus, Staffed
from tokonomics.questions.request import SILENT, Listener
from tokonomics.questions.requests.buy import PlanRequest
from tokonomics.questions.result import Listing
from tokonomics.questions.results import RefreshResult
from tokonomics.questions.tables import prices_in
from tokonomics.types import Same, copied, today

if TYPE_CHECKING:
    from tokonomics.questions.requests.run import (
        ApisRequest,
        GpusRequest,
        ModelsRequest,
        OffersRequest,
        PricesRefreshRequest,
    )


def names_sellers(request: Market) -> bool:
    """Tell whether the request names its sellers: by kind, by name, or by its own price list."""
    return any(value is not None for value in (request.sellers, request.provider, request.offers))


def offers_of(request: Market) -> tuple[Offer, ...]:
    """Return the offers that may be bought, of those that the request's filters leave."""
    return allowed_of(request, every_offer(request))


def allowed_of(request: Market, offers: tuple[Offer, ...]) -> tuple[Offer, ...]:
    """Return the offers that a headline may name.

    Marketplaces are left out unless the request names its sellers; what is only perhaps in the region asked for,
    unless it names providers.
    """
    allowed = listed_of(request, offers)
    if not allowed and offers:
        age = min(offer.age_days(today()) for offer in offers)
        older = f" {option('max_age', age)}" if age > MAX_AGE_DAYS else ""
        raise BadInput(
            "only marketplaces sell that", field="sellers", fix=f"Allow them: {option('sellers', 'all')}{older}."
        )
    there = certain_of(request, allowed)
    if not there and allowed:
        names = sorted({offer.provider for offer in allowed})
        raise BadInput(
            f"nobody is certain to sell that there, perhaps {', '.join(names)}",
            field="region",
            fix=f"They list every machine for every region: ask, and name one: {option('provider', names[0])}.",
        )
    return there


def listed_of(request: Market, offers: tuple[Offer, ...]) -> tuple[Offer, ...]:
    """Return the offers of sellers with a price list; all if the request names its sellers."""
    return offers if names_sellers(request) else _list_prices(Same(offers))


def certain_of(request: Market, offers: tuple[Offer, ...]) -> tuple[Offer, ...]:
    """Return the offers that are certain to be in the region asked for; all if none is, or if providers are named."""
    if request.region is None or request.provider is not None:
        return offers
    return _certainly_there(Same(offers))


def every_offer(request: Market) -> tuple[Offer, ...]:
    """Return the offers that the request's filters leave, at its discounts."""
    wanted = request.gpu if isinstance(request, SomeGpus) else None
    names, _ = gpu_filter(wanted, request.gpus if isinstance(request, PlanRequest) else None)
    asked = {"gpu": names} | {name: getattr(request, name) for name in _FILTERS}
    words = tuple((name, None if values is None else tuple(values)) for name, values in asked.items())
    return _left(Same(prices_in(request.offers)), words, tuple(discounts_from(request.discount).items()))


_FILTERS = ("provider", "region", "sellers", "exclude")  # of a request, and of ``select_offers``


@lru_cache(maxsize=16)
def _left(
    known: Same[tuple[Offer, ...]],
    asked: tuple[tuple[str, tuple[str, ...] | None], ...],
    discounts: tuple[tuple[str, float], ...],
) -> tuple[Offer, ...]:
    return offers_for(known.value, dict(asked), dict(discounts))


@lru_cache(maxsize=16)
def _list_prices(offers: Same[tuple[Offer, ...]]) -> tuple[Offer, ...]:
    return list_prices(offers.value)


@lru_cache(maxsize=16)
def _certainly_there(offers: Same[tuple[Offer, ...]]) -> tuple[Offer, ...]:
    return certainly_there(offers.value)


def extras_of(request: Staffed) -> tuple[Extra, ...]:
    """Return the lines beside the machines; none by default."""
    usd_per_month = dollars(request.engineer_usd_per_month, "engineer_usd_per_month")
    if (request.engineers is None) != (usd_per_month is None):
        missing = "engineer_usd_per_month" if request.engineers is not None else "engineers"
        fix = f"Such as {option('engineers', 0.5)} {option('engineer_usd_per_month', 15000)}."
        raise BadInput("is missing", field=missing, fix=fix)
    people: tuple[Extra, ...] = ()
    if request.engineers is not None and usd_per_month is not None:
        people = (engineers(request.engineers, usd_per_month),)
    return (*people, *(_overhead(text) for text in request.overhead or ()))


def _overhead(text: str) -> Extra:
    name, _, value = (part.strip() for part in text.partition("="))
    try:
        amount = float(value.removesuffix("%").strip())
    except ValueError:
        amount = -1.0
    if not name or not 0 <= amount < 1e12:
        raise BadInput(
            f"'{shorten(text)}' is not understood",
            field="overhead",
            fix="Write monitoring=500 for dollars a month, or network=8% of what the machines cost.",
        )
    if value.endswith("%"):
        return Extra(name=name, share_of_machines=amount / 100)
    return Extra(name=name, usd_per_month=amount)


def models(request: "ModelsRequest", listener: Listener = SILENT) -> Listing:
    found = find_models(request.match, request.family, request.moe)
    return Listing(rows=tuple(found), documents=tuple(model.summary() for model in found))


def gpus(request: "GpusRequest", listener: Listener = SILENT) -> Listing:
    if request.min_memory:
        require_positive("min_memory", request.min_memory)
    found = find_gpus(request.match, request.min_memory, request.architecture)
    return Listing(rows=tuple(found), documents=tuple(gpu.model_dump(mode="json") for gpu in found))


def offers(request: "OffersRequest", listener: Listener = SILENT) -> Listing:
    if request.max_price is not None:
        require_positive("max_price", request.max_price)
    known, terms = prices_in(request.offers), parse_terms(request.terms)
    asked = {name: getattr(request, name) for name in ("gpu", *_FILTERS)}
    asked |= {} if names_sellers(request) else {"sellers": LISTED}
    filters, discounts = filters_from(asked, known), discounts_from(request.discount)

    def sold(most: float | None) -> tuple[Offer, ...]:
        return select_offers(known, **filters, terms=terms, max_usd_per_gpu_hour=most, discounts=discounts)

    # In a region that is asked for, machines that are only perhaps there come last.
    found = sold(request.max_price)
    found = tuple(sorted(found, key=lambda offer: not offer.is_place_certain)) if request.region else found
    any_price = found if request.max_price is None else sold(None)
    documents = [
        offer.model_dump(mode="json")
        | {**copied(offer, "country", "seller", "is_place_certain"), "stale": offer.is_stale(today())}
        for offer in found
    ]
    providers = {name.lower() for name in listed(request.provider, "provider") or ()}
    asked_of = [offer for offer in known if offer.provider in providers or not providers]
    priced = {offer.gpu for offer in known}
    gpus_asked = [find_gpu(name).key for name in listed(request.gpu, "gpu") or ()]
    return Listing(
        rows=tuple(found),
        documents=tuple(documents),
        terms=terms,
        best=cheapest_that_counts(certain_of(request, any_price), terms, today(), request.max_price),
        coverage=price_coverage(asked_of),
        without_price=tuple(gpu for gpu in gpus_asked if gpu not in priced),
    )


def prices_refresh(request: "PricesRefreshRequest", listener: Listener = SILENT) -> RefreshResult:
    """Fetch today's prices; the old ones stay where a provider fails."""
    from tokonomics.catalog.refresh import refresh  # Loads the network code, so only on request.

    found = refresh(source=request.source, url=request.url, providers=listed(request.provider, "provider"))
    return RefreshResult(noun=found)


def apis(request: "ApisRequest", listener: Listener = SILENT) -> Listing:
    extra = read_litellm(Path(request.litellm)) if request.litellm else ()
    found = list_apis(host=request.host, match=request.match, extra=extra)
    priced = [(api, price_request(api, request.input, 0, request.output)) for api in found]
    priced.sort(key=lambda row: row[1])
    documents = [api.model_dump(mode="json") | {"request_usd": usd} for api, usd in priced]
    return Listing(rows=tuple(priced), documents=tuple(documents))
