"""What exists and what it costs: models, GPUs, offers, token prices of hosted models."""

from pathlib import Path

from tokonomics.catalog.api_hosts import list_apis
from tokonomics.catalog.apis import price_request, read_litellm
from tokonomics.catalog.gpus import find_gpus
from tokonomics.catalog.load_models import find_models
from tokonomics.catalog.offer_choice import select_offers
from tokonomics.catalog.places import LISTED
from tokonomics.money.cost import require_positive
from tokonomics.planner.parsing import discounts_from, listed, parse_terms, regions_from, sellers_from
from tokonomics.questions.offers import names_sellers
from tokonomics.questions.request import SILENT, Listener
from tokonomics.questions.requests.run import (
    ApisRequest,
    GpusRequest,
    ModelsRequest,
    OffersRequest,
    PricesRefreshRequest,
)
from tokonomics.questions.result import Listing
from tokonomics.questions.results import RefreshResult
from tokonomics.questions.tables import prices_in
from tokonomics.types import copied, today


def models(request: ModelsRequest, listener: Listener = SILENT) -> Listing:
    found = find_models(request.match, request.family, request.moe)
    return Listing(rows=tuple(found), documents=tuple(model.summary() for model in found))


def gpus(request: GpusRequest, listener: Listener = SILENT) -> Listing:
    if request.min_memory:
        require_positive("min_memory", request.min_memory)
    found = find_gpus(request.match, request.min_memory, request.architecture)
    return Listing(rows=tuple(found), documents=tuple(gpu.model_dump(mode="json") for gpu in found))


def offers(request: OffersRequest, listener: Listener = SILENT) -> Listing:
    if request.max_price is not None:
        require_positive("max_price", request.max_price)
    known, terms = prices_in(request.offers), parse_terms(request.terms)
    found = select_offers(
        known,
        provider=listed(request.provider, "provider"),
        region=regions_from(request.region, known),
        gpu=listed(request.gpu, "gpu"),
        sellers=sellers_from(request.sellers) if names_sellers(request) else LISTED,
        terms=terms,
        max_usd_per_gpu_hour=request.max_price,
        discounts=discounts_from(request.discount),
    )
    documents = [
        offer.model_dump(mode="json") | {**copied(offer, "country", "seller"), "stale": offer.is_stale(today())}
        for offer in found
    ]
    return Listing(rows=tuple(found), documents=tuple(documents), terms=terms)


def prices_refresh(request: PricesRefreshRequest, listener: Listener = SILENT) -> RefreshResult:
    """Today's prices in place of the old ones, which stay where a provider fails."""
    from tokonomics.catalog.refresh import refresh  # With the network: only where it is asked for.

    found = refresh(source=request.source, url=request.url, providers=listed(request.provider, "provider"))
    return RefreshResult(noun=found)


def apis(request: ApisRequest, listener: Listener = SILENT) -> Listing:
    extra = read_litellm(Path(request.litellm)) if request.litellm else ()
    found = list_apis(host=request.host, match=request.match, extra=extra)
    priced = [(api, price_request(api, request.input, 0, request.output)) for api in found]
    documents = [api.model_dump(mode="json") | {"request_usd": usd} for api, usd in priced]
    return Listing(rows=tuple(priced), documents=tuple(documents))
