"""What an API charges for tokens: quoted prices per million tokens, and what one request costs under them.

Prices come from the package genai-prices (offline snapshot), from the user's own catalogue file, or from a file in
litellm's format. A request is charged at the tier its whole input falls in. A price nobody quotes (batch, cached input)
is unknown: asking for it is an error, never the full price in its place. Where no price is quoted for writing into the
host's cache, writing costs no more than the input.
"""

import datetime as dt
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib.metadata import version
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, ValidationError

from tokonomics.catalog.entries import user_tables
from tokonomics.clock import today
from tokonomics.errors import BadInput, UnknownName, from_validation, shorten
from tokonomics.types import Noun
from tokonomics.units import TOKENS_PER_MTOK

if TYPE_CHECKING:
    from genai_prices.types import ModelInfo, ModelPrice, Provider

MAX_USD_PER_MTOK = 1_000_000.0  # a dollar a token: a price beyond it was given per token or per request by mistake

UsdPerMtok = Annotated[float, Field(ge=0, le=MAX_USD_PER_MTOK)]


class ApiRates(Noun):
    """USD per million tokens; None is a price nobody quotes."""

    input_usd_per_mtok: UsdPerMtok
    output_usd_per_mtok: UsdPerMtok
    cached_input_usd_per_mtok: UsdPerMtok | None = None
    cache_write_usd_per_mtok: UsdPerMtok | None = None
    batch_input_usd_per_mtok: UsdPerMtok | None = None
    batch_output_usd_per_mtok: UsdPerMtok | None = None
    batch_cached_input_usd_per_mtok: UsdPerMtok | None = None
    batch_cache_write_usd_per_mtok: UsdPerMtok | None = None


class ApiTier(ApiRates):
    """The rates of every token of a request whose input is longer than this."""

    above_input_tokens: int = Field(ge=0)


class ApiPrice(ApiRates):
    """What a host charges for a model.

    ``date`` is the day of the list that it stands in; ``checked`` the day this very price was verified, where the
    source says.
    """

    host: str
    model: str
    tiers: tuple[ApiTier, ...] = ()
    usd_per_request: float = Field(default=0.0, ge=0)
    date: dt.date | None
    checked: dt.date | None = None
    source: str
    note: str | None = None
    deprecated: bool = False
    """Its host says that it will be, or was, withdrawn."""

    @property
    def seller(self) -> str:
        """Who computes the tokens: Hugging Face passes requests on to the host that it names."""
        return self.host.removeprefix("huggingface_")

    @property
    def quoted(self) -> dt.date | None:
        """The day that its age is counted from: its own where that is known, else the list's."""
        return self.checked or self.date

    @property
    def key(self) -> str:
        """The name it is found by."""
        return f"{self.host}:{self.model}"

    def rates(self, input_tokens: float) -> ApiRates:
        """The rates of a request with so much input, cached or not."""
        return max(
            (tier for tier in self.tiers if input_tokens > tier.above_input_tokens),
            key=lambda tier: tier.above_input_tokens,
            default=self,
        )


def price_request(
    api: ApiPrice,
    input_tokens: float,
    cached_tokens: float,
    output_tokens: float,
    batch: bool = False,
    written_tokens: float = 0.0,
) -> float:
    """USD of one request.

    ``cached_tokens`` are the part of ``input_tokens`` read from the host's prompt cache, ``written_tokens`` the part
    that is computed and written into it.
    """
    named = {"input": input_tokens, "cached": cached_tokens, "output": output_tokens, "written": written_tokens}
    for name, tokens in named.items():
        if not (math.isfinite(tokens) and tokens >= 0):
            raise BadInput(f"{name} tokens cannot be {tokens}")
    if cached_tokens > input_tokens:
        raise BadInput(f"{cached_tokens:g} cached tokens are more than the {input_tokens:g} tokens of the whole input")
    fresh = input_tokens - cached_tokens
    if written_tokens > fresh * (1 + 1e-9):
        raise BadInput(f"{written_tokens:g} written tokens are more than the {fresh:g} that are not cached")
    rates, kind = api.rates(input_tokens), "batch_" if batch else ""
    prompt, answer, cached = (
        getattr(rates, f"{kind}{name}_usd_per_mtok") for name in ("input", "output", "cached_input")
    )
    parts = (
        (max(0.0, fresh - written_tokens), prompt, f"{kind}input"),
        (cached_tokens, cached, f"{kind}cached"),
        (written_tokens, _write_price(rates, batch), f"{kind}cache_write"),
        (output_tokens, answer, f"{kind}output"),
    )
    usd = sum(tokens * _quoted(api, price, name) for tokens, price, name in parts if tokens)
    return usd / TOKENS_PER_MTOK + api.usd_per_request


def _write_price(rates: ApiRates, batch: bool) -> float | None:
    """Of a token computed and written; a host that charges for it and does not say what in a batch has no price then.

    A quote below the input's is of what writing adds, or out of date: the token is computed all the same.
    """
    prompt = rates.batch_input_usd_per_mtok if batch else rates.input_usd_per_mtok
    write = rates.batch_cache_write_usd_per_mtok if batch else rates.cache_write_usd_per_mtok
    if write is None or prompt is None:
        return prompt if rates.cache_write_usd_per_mtok is None else write
    return max(write, prompt)


def _quoted(api: ApiPrice, usd_per_mtok: float | None, name: str) -> float:
    if usd_per_mtok is None:
        raise BadInput(
            f"the {name.replace('_', ' ')} price of {api.key} is unknown ({api.source})",
            fix=f'If you know it, put it into your catalogue file: [apis."{api.key}"] {name} = …',
        )
    return usd_per_mtok


# --- finding --------------------------------------------------------------------------------------------------------


def find_api(name: str, extra: Sequence[ApiPrice] = ()) -> ApiPrice:
    """The price of ``host:model``: your catalogue file's, or that in ``extra``, or the shipped one."""
    wanted = name.strip().casefold()
    tables = {key.casefold(): (key, table) for key, table in user_tables("apis").items()}
    shipped = next((api for api in extra if api.key.casefold() == wanted), None) or _shipped(wanted)
    if wanted in tables:
        return _user_price(*tables[wanted], shipped)
    if shipped is None:
        raise _unknown(name, [*(key for key, _ in tables.values()), *(api.key for api in extra)])
    key = shipped.key.casefold()
    return _user_price(*tables[key], shipped) if key in tables else shipped


def list_apis(host: str | None = None, match: str | None = None, extra: Sequence[ApiPrice] = ()) -> list[ApiPrice]:
    """Every API with token prices, your own included, in order of name."""
    found = {api.key.casefold(): api for api in (*_all_shipped(today()), *extra)}
    for key, table in user_tables("apis").items():
        found[key.casefold()] = _user_price(key, table, found.get(key.casefold()))
    hosts = {api.host for api in found.values()}
    if host is not None and host.casefold() not in {name.casefold() for name in hosts}:
        raise UnknownName("API host", host, hosts, fix=f"Known: {', '.join(sorted(hosts))}")
    chosen = [api for api in found.values() if host is None or api.host.casefold() == host.casefold()]
    chosen = [api for api in chosen if match is None or match.casefold() in api.key.casefold()]
    return sorted(chosen, key=lambda api: api.key)


def _unknown(name: str, own: Iterable[str]) -> UnknownName:
    host, colon, model = name.strip().partition(":")
    known = [*own, *(api.key for api in _all_shipped(today()))]
    hosts = {key.partition(":")[0] for key in known}
    fix = 'Or put it into your catalogue file: [apis."host:model"] input = 2.5, output = 10, date = 2026-08-22'
    if colon and host.casefold() not in {other.casefold() for other in hosts}:
        return UnknownName("API host", host, hosts, fix=fix, listing="tokonomics apis")
    if not colon:
        offering = [key for key in known if key.partition(":")[2].casefold() == name.strip().casefold()]
        return UnknownName("API", name, offering or known, fix=fix, listing="tokonomics apis")
    same_host = [key for key in known if key.casefold().startswith(host.casefold() + ":")]
    return UnknownName("API", f"{host}:{model}", same_host, fix=fix, listing="tokonomics apis")


# --- genai-prices ---------------------------------------------------------------------------------------------------

_BATCH = {"processing": "batch"}
_CHECKED = re.compile(r"(?:verified|checked|confirmed|as of)\b[^.;]{0,60}?(\d{4}-\d{2}-\d{2})")


def _providers() -> "list[Provider]":
    from genai_prices.data_snapshot import get_snapshot  # 0.3 s to import: only when a price is asked for.

    return get_snapshot().providers


@cache
def _release() -> str:
    return f"genai-prices {version('genai-prices')}"


def _noon(day: dt.date) -> dt.datetime:
    return dt.datetime.combine(day, dt.time(12), dt.UTC)


def _shipped(name: str) -> ApiPrice | None:
    """By host:model; genai-prices also knows other spellings of both."""
    from genai_prices.data_snapshot import find_provider_by_id

    host, _, model = name.partition(":")
    providers = _providers()
    provider = find_provider_by_id(providers, host) if model else None
    info = provider.find_model(model, all_providers=providers) if provider else None
    if provider is None or info is None:
        return None
    owner = next(seller for seller in providers if any(info is model for model in seller.models))
    return _api_price(provider, info, owner, today())


@cache
def _all_shipped(day: dt.date) -> tuple[ApiPrice, ...]:
    every = (_api_price(host, info, host, day) for host in _providers() for info in host.models)
    return tuple(api for api in every if api is not None)


@cache
def _snapshot_date() -> dt.date | None:
    """The newest day on which the snapshot says a price was verified: it is at least that young as a whole."""
    days = [_day_checked(provider.price_comments) for provider in _providers()]
    days += [_day_checked(model.price_comments) for host in _providers() for model in host.models]
    return max((day for day in days if day), default=None)


def _day_checked(comment: str | None) -> dt.date | None:
    days = [dt.date.fromisoformat(found) for found in _CHECKED.findall(comment or "")]
    return max(days, default=None)


def _api_price(host: "Provider", info: "ModelInfo", owner: "Provider", day: dt.date) -> ApiPrice | None:
    """What genai-prices quotes on that day at noon UTC; None for what is not sold by input and output token."""
    standard = info.get_prices(_noon(day))
    if standard.input_mtok is None or standard.output_mtok is None:
        return None
    # A host that resells another's model has its standard price only as an estimate, and its batch price not at all.
    batch = _batch_price(info, day) if host is owner else None
    release = _release()
    return ApiPrice(
        host=host.id,
        model=info.id,
        **_rates(standard, batch, 0),
        tiers=tuple(
            ApiTier(above_input_tokens=start, **_rates(standard, batch, start + 1)) for start in _tier_starts(standard)
        ),
        usd_per_request=float(_at(standard.requests_kcount, 0) or 0) / 1000,
        date=_snapshot_date(),
        checked=_day_checked(info.price_comments),
        source=release if host is owner else f"{release}, the price of {owner.id}",
        note=_note(info, standard, host, owner),
        deprecated=bool(info.deprecated),
    )


def _batch_price(info: "ModelInfo", day: dt.date) -> "ModelPrice | None":
    active = (
        variant.prices
        for variant in info.price_variants or ()
        if variant.when == _BATCH and (variant.constraint is None or variant.constraint.active(_noon(day)))
    )
    return next(active, None)


def _rates(standard: "ModelPrice", batch: "ModelPrice | None", input_tokens: int) -> dict[str, Any]:
    """Only what is quoted: genai-prices itself would charge cached or batch tokens in full where a price is missing."""
    ours = {"input": "input", "output": "output", "cache_read": "cached_input", "cache_write": "cache_write"}
    return {
        f"{kind}{name}_usd_per_mtok": _at(getattr(price, f"{theirs}_mtok"), input_tokens)
        for kind, price in (("", standard), ("batch_", batch))
        if price is not None
        for theirs, name in ours.items()
    }


def _at(price: Any, input_tokens: int) -> float | None:
    """A flat or tiered price at that input length."""
    if price is None:
        return None
    for tier in reversed(getattr(price, "tiers", ())):
        if input_tokens > tier.start:
            return float(tier.price)
    return float(getattr(price, "base", price))


def _tier_starts(standard: "ModelPrice") -> list[int]:
    prices = (standard.input_mtok, standard.output_mtok, standard.cache_read_mtok, standard.cache_write_mtok)
    return sorted({tier.start for price in prices for tier in getattr(price, "tiers", ())})


def _note(info: "ModelInfo", standard: "ModelPrice", host: "Provider", owner: "Provider") -> str | None:
    notes = []
    if isinstance(info.prices, list) and any(hasattr(price.constraint, "start_time") for price in info.prices):
        notes.append("changes with the hour of the day; this is the price at 12:00 UTC")
    if standard.output_reasoning_mtok is not None:
        notes.append("reasoning tokens have a price of their own, which is not counted")
    if host is not owner:
        notes.append(f"{host.id} has no price of its own here; this is {owner.id}'s")
    if info.deprecated:
        notes.append("deprecated by its host")
    return "; ".join(notes) or None


# --- the user's own prices ------------------------------------------------------------------------------------------


class _UserTier(Noun):
    """Prices under the short names a person writes."""

    input: UsdPerMtok | None = None
    output: UsdPerMtok | None = None
    cached: UsdPerMtok | None = None
    cache_write: UsdPerMtok | None = None
    batch_input: UsdPerMtok | None = None
    batch_output: UsdPerMtok | None = None
    batch_cached: UsdPerMtok | None = None
    batch_cache_write: UsdPerMtok | None = None

    def rates(self) -> dict[str, float]:
        short = _UserTier.model_fields
        long = {name: f"{name.replace('cached', 'cached_input')}_usd_per_mtok" for name in short}
        return {long[name]: usd for name in short if (usd := getattr(self, name)) is not None}


class _UserApi(_UserTier):
    per_request: float | None = Field(default=None, ge=0)
    date: dt.date | None = None
    source: str | None = None
    tiers: "tuple[_UserApiTier, ...]" = ()


class _UserApiTier(_UserTier):
    above_input_tokens: int = Field(ge=0)


def _user_price(key: str, table: Mapping[str, object], shipped: ApiPrice | None) -> ApiPrice:
    """A table with input and output prices stands alone; one without them amends the shipped price."""
    where = f'your catalogue file, [apis."{shorten(key)}"]'
    host, colon, model = key.partition(":")
    if not (host and colon and model):
        raise BadInput("an API is named host:model", where=where, fix='For example [apis."openai:gpt-4o"]')
    try:
        own = _UserApi.model_validate(dict(table))
    except ValidationError as error:
        raise from_validation(error, where, _UserApi.model_fields) from None
    alone = own.input is not None and own.output is not None
    if not alone and shipped is None:
        raise BadInput("needs input and output, in USD per million tokens", where=where)
    base = {} if alone or shipped is None else shipped.model_dump()
    changed = own.rates()
    tiers = [{**changed, **tier.rates(), "above_input_tokens": tier.above_input_tokens} for tier in own.tiers]
    inherited = base.get("tiers", ()) if own.input is None and own.output is None else ()
    try:
        return ApiPrice.model_validate(
            {
                **base,
                **changed,
                "host": host,
                "model": model,
                "tiers": tiers or inherited,
                "usd_per_request": base.get("usd_per_request", 0.0) if own.per_request is None else own.per_request,
                "date": own.date or today(),
                "checked": own.date,
                "source": own.source or "your catalogue file",
            }
        )
    except ValidationError as error:
        raise from_validation(error, where) from None
