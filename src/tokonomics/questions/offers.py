"""What one pays, from what was asked: which offers may be bought, and people and overheads beside the machines."""

from functools import lru_cache

from tokonomics.catalog.offer_choice import list_prices
from tokonomics.catalog.offers import MAX_AGE_DAYS, Offer
from tokonomics.errors import BadInput, option, shorten
from tokonomics.money.breakeven import Extra, engineers
from tokonomics.planner.parsing import discounts_from, dollars, gpu_filter, offers_for
from tokonomics.questions.inputs import Market, SomeGpus, Staffed
from tokonomics.questions.requests.buy import PlanRequest
from tokonomics.questions.tables import prices_in
from tokonomics.types import Same, today


def names_sellers(request: Market) -> bool:
    """It says whom to buy from: by kind, by name, or by a price list of its own."""
    return any(value is not None for value in (request.sellers, request.provider, request.offers))


def offers_of(request: Market) -> tuple[Offer, ...]:
    """The offers that may be bought: no marketplaces, unless it says whom to buy from."""
    return allowed_of(request, every_offer(request))


def allowed_of(request: Market, offers: tuple[Offer, ...]) -> tuple[Offer, ...]:
    """The offers without marketplaces, unless it says whom to buy from."""
    allowed = offers if names_sellers(request) else _list_prices(Same(offers))
    if not allowed and offers:
        age = min(offer.age_days(today()) for offer in offers)
        older = f" {option('max_age', age)}" if age > MAX_AGE_DAYS else ""
        raise BadInput(
            "only marketplaces sell that", field="sellers", fix=f"Allow them: {option('sellers', 'all')}{older}."
        )
    return allowed


def every_offer(request: Market) -> tuple[Offer, ...]:
    """The offers that its filters leave, at its discounts."""
    wanted = request.gpu if isinstance(request, SomeGpus) else None
    names, _ = gpu_filter(wanted, request.gpus if isinstance(request, PlanRequest) else None)
    filters = (request.provider, request.region, names, request.sellers)
    words = tuple(None if filter is None else tuple(filter) for filter in filters)
    return _left(Same(prices_in(request.offers)), words, tuple(discounts_from(request.discount).items()))


@lru_cache(maxsize=16)
def _left(
    known: Same[tuple[Offer, ...]],
    filters: tuple[tuple[str, ...] | None, ...],
    discounts: tuple[tuple[str, float], ...],
) -> tuple[Offer, ...]:
    provider, region, gpu, sellers = filters
    return offers_for(known.value, provider, region, gpu, sellers, dict(discounts))


@lru_cache(maxsize=16)
def _list_prices(offers: Same[tuple[Offer, ...]]) -> tuple[Offer, ...]:
    return list_prices(offers.value)


def extras_of(request: Staffed) -> tuple[Extra, ...]:
    """Lines beside the machines: none unless asked for."""
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
