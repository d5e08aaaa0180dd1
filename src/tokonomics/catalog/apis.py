"""Read what APIs charge for tokens: quoted prices per million tokens, and what one request costs under them.

A request is charged at the tier of its whole input. A price nobody quotes (batch, cached input) is unknown: asking for
it is an error; the full price never replaces it. If no price is quoted for writing into the host's cache, writing costs
no more than the input.

Prices come from the package genai-prices (offline snapshot), from the user's own catalogue file, or from a file in
litellm's format (``model_prices_and_context_window.json``): USD per token, by model. Its ``…_batches`` fields are batch
prices; ``…_above_128k_tokens`` fields are the tier of longer requests. The format has no dates, so these prices have
none either.
"""

import datetime as dt
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, ValidationError

from tokonomics.catalog.places import areas_of_host, require_area
from tokonomics.errors import BadInput, from_validation, shorten
from tokonomics.types import Noun, today
from tokonomics.units import TOKENS_PER_MTOK

if TYPE_CHECKING:
    from genai_prices.types import ModelInfo, ModelPrice, Provider

MAX_USD_PER_MTOK = 1_000_000.0  # a dollar a token: a higher price was given per token or per request by mistake

FORWARDS = "huggingface_"  # how the hosts begin to which Hugging Face forwards requests

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

    ``date`` is the day of the price list; ``checked`` the day this price was verified, if the source says so.
    """

    host: str
    model: str
    tiers: tuple[ApiTier, ...] = ()
    usd_per_request: float = Field(default=0.0, ge=0)
    date: dt.date | None
    checked: dt.date | None = None
    source: str
    note: str | None = None
    deprecated: bool = False  # its host says that it was or will be withdrawn
    context: int | None = Field(default=None, gt=0)  # the most tokens of a request, prompt and answer; None: not known
    areas: tuple[str, ...] = ()  # where its host says that it computes: countries, or EU; empty if it does not say

    @property
    def seller(self) -> str:
        """Return who computes the tokens: Hugging Face forwards requests to the host that it names."""
        return self.host.removeprefix(FORWARDS)

    @property
    def quoted(self) -> dt.date | None:
        """Return the day that its age is counted from: its own if known, else the list's."""
        return self.checked or self.date

    @property
    def key(self) -> str:
        """Return the name it is found by."""
        return f"{self.host}:{self.model}"

    def rates(self, input_tokens: float) -> ApiRates:
        """Return the rates of a request with this much input, cached or not."""
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
    """Return the USD of one request.

    ``cached_tokens`` are the part of ``input_tokens`` read from the host's prompt cache, ``written_tokens`` the part
    that is computed and written to it.
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
    """Return the price of a token computed and written; None in a batch if the host quotes it only outside batches.

    A quote below the input's price is only what writing adds, or is out of date: the token is computed anyway.
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


# --- genai-prices ---------------------------------------------------------------------------------------------------

_BATCH = {"processing": "batch"}
_RATES = {"input": "input", "output": "output", "cache_read": "cached_input", "cache_write": "cache_write"}
"""Their names of rates, and ours."""
_CHECKED = re.compile(r"(?:verified|checked|confirmed|as of)\b[^.;]{0,60}?(\d{4}-\d{2}-\d{2})")


def _providers() -> "list[Provider]":
    from genai_prices.data_snapshot import get_snapshot  # Takes 0.3 s to import: only when a price is asked for.

    return get_snapshot().providers


@cache
def _release() -> str:
    return f"genai-prices {version('genai-prices')}"


def _noon(day: dt.date) -> dt.datetime:
    return dt.datetime.combine(day, dt.time(12), dt.UTC)


def shipped_api(name: str) -> ApiPrice | None:
    """Return the price of host:model; genai-prices also knows other spellings of both."""
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
def shipped_apis(day: dt.date) -> tuple[ApiPrice, ...]:
    return tuple(shipped_apis_of(day, lambda name: True))


def shipped_apis_of(day: dt.date, is_wanted: Callable[[str], bool]) -> Iterator[ApiPrice]:
    """Yield the prices of the models whose name at their host is wanted: few of thousands have to be made."""
    for host in _providers():
        for info in host.models:
            if is_wanted(info.id) and (api := _api_price(host, info, host, day)) is not None:
                yield api


@cache
def _snapshot_date() -> dt.date | None:
    """Return the newest day on which a price of the snapshot was verified, as the date of the whole snapshot."""
    days = [_day_checked(provider.price_comments) for provider in _providers()]
    days += [_day_checked(model.price_comments) for host in _providers() for model in host.models]
    return max((day for day in days if day), default=None)


def _day_checked(comment: str | None) -> dt.date | None:
    days = [dt.date.fromisoformat(found) for found in _CHECKED.findall(comment or "")]
    return max(days, default=None)


def _api_price(host: "Provider", info: "ModelInfo", owner: "Provider", day: dt.date) -> ApiPrice | None:
    """Return what genai-prices quotes on that day at noon UTC; None if it is not sold by input and output token."""
    standard = info.get_prices(_noon(day))
    if standard.input_mtok is None or standard.output_mtok is None:
        return None
    # A reseller's standard price is only estimated by the owner's, and its batch price is unknown.
    batch = _batch_price(info, day) if host is owner else None
    release = _release()
    prices = (getattr(standard, f"{theirs}_mtok") for theirs in _RATES)
    starts = sorted({tier.start for price in prices for tier in getattr(price, "tiers", ())})
    return ApiPrice(
        host=host.id,
        model=info.id,
        **_rates(standard, batch, 0),
        tiers=tuple(ApiTier(above_input_tokens=start, **_rates(standard, batch, start + 1)) for start in starts),
        usd_per_request=float(_at(standard.requests_kcount, 0) or 0) / 1000,
        date=_snapshot_date(),
        checked=_day_checked(info.price_comments),
        source=release if host is owner else f"{release}, the price of {owner.id}",
        note=_note(info, standard, host, owner),
        deprecated=bool(info.deprecated),
        context=info.context_window or None,
        areas=areas_of_host(host.id.removeprefix(FORWARDS)),
    )


def _batch_price(info: "ModelInfo", day: dt.date) -> "ModelPrice | None":
    active = (
        variant.prices
        for variant in info.price_variants or ()
        if variant.when == _BATCH and (variant.constraint is None or variant.constraint.active(_noon(day)))
    )
    return next(active, None)


def _rates(standard: "ModelPrice", batch: "ModelPrice | None", input_tokens: int) -> dict[str, Any]:
    """Return only quoted prices: genai-prices itself charges cached or batch tokens in full if a price is missing."""
    return {
        f"{kind}{name}_usd_per_mtok": _at(getattr(price, f"{theirs}_mtok"), input_tokens)
        for kind, price in (("", standard), ("batch_", batch))
        if price is not None
        for theirs, name in _RATES.items()
    }


def _at(price: Any, input_tokens: int) -> float | None:
    """Return a flat or tiered price at that input length."""
    if price is None:
        return None
    for tier in reversed(getattr(price, "tiers", ())):
        if input_tokens > tier.start:
            return float(tier.price)
    return float(getattr(price, "base", price))


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
    """Prices under the short names that a person writes."""

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
    context: int | None = Field(default=None, gt=0)
    areas: tuple[str, ...] | None = None
    tiers: "tuple[_UserApiTier, ...]" = ()


class _UserApiTier(_UserTier):
    above_input_tokens: int = Field(ge=0)


def user_api(key: str, table: Mapping[str, object], shipped: ApiPrice | None) -> ApiPrice:
    """Return the price of a user's table: complete with input and output prices, else a change of the shipped price."""
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
                "context": own.context or base.get("context"),
                "areas": [require_area(area) for area in own.areas or ()] or base.get("areas", areas_of_host(host)),
            }
        )
    except ValidationError as error:
        raise from_validation(error, where) from None


MAX_FILE_BYTES = 50_000_000  # litellm's own price file has about 1.5 MB

_LITELLM = {
    "input_cost_per_token": "input_usd_per_mtok",
    "output_cost_per_token": "output_usd_per_mtok",
    "cache_read_input_token_cost": "cached_input_usd_per_mtok",
    "cache_creation_input_token_cost": "cache_write_usd_per_mtok",
}
_LITELLM_BATCH = {
    "input_cost_per_token_batches": "batch_input_usd_per_mtok",
    "output_cost_per_token_batches": "batch_output_usd_per_mtok",
    "cache_read_input_token_cost_batches": "batch_cached_input_usd_per_mtok",
}
_LITELLM_TIER = re.compile(rf"({'|'.join(_LITELLM)})_above_(\d{{1,6}})k_tokens")


def read_litellm(path: Path) -> list[ApiPrice]:
    """Read every model sold by input and output token from a file in litellm's format."""
    shown = shorten(str(path), 200)
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
        if len(content) > MAX_FILE_BYTES:
            raise BadInput(f"larger than {MAX_FILE_BYTES // 1_000_000} MB; not read", where=shown)
        models = json.loads(content)
    except OSError as error:
        raise BadInput(f"cannot be read: {error.strerror}", where=shown) from None
    except (ValueError, RecursionError) as error:
        raise BadInput(f"not JSON: {shorten(str(error), 120)}", where=shown) from None
    if not isinstance(models, dict):
        raise BadInput("not a price file in litellm's format: an object of models was expected", where=shown)
    return [api for name, entry in models.items() for api in _litellm_prices(name, entry, path)]


def _litellm_prices(name: str, entry: object, path: Path) -> Iterator[ApiPrice]:
    """Yield a price or nothing: skip what is not sold by both kinds of token, and the file's sample entry."""
    sold = isinstance(entry, dict) and {"input_cost_per_token", "output_cost_per_token"} <= entry.keys()
    if not isinstance(entry, dict) or not sold or name == "sample_spec":
        return
    where = f"{shorten(str(path), 200)}, model '{shorten(name)}'"
    host = str(entry.get("litellm_provider") or name.partition("/")[0])
    rates = {**_litellm_rates(entry, _LITELLM, where), **_litellm_rates(entry, _LITELLM_BATCH, where)}
    base = {field: usd for field, usd in rates.items() if not field.startswith("batch_")}
    tiers: dict[int, dict[str, float | int]] = {}
    for field in sorted(field for field in entry if isinstance(field, str)):
        if (found := _LITELLM_TIER.fullmatch(field)) and entry[field] is not None:
            start = int(found.group(2)) * 1000
            tier = tiers.setdefault(start, {**base, "above_input_tokens": start})
            tier[_LITELLM[found.group(1)]] = _litellm_usd(entry[field], field, where)
    try:
        yield ApiPrice.model_validate(
            {
                **rates,
                "host": host,
                "model": name.removeprefix(f"{host}/"),
                "tiers": [tiers[start] for start in sorted(tiers)],
                "date": None,
                "source": path.name,
            }
        )
    except ValidationError as error:
        raise from_validation(error, where) from None


def _litellm_rates(entry: Mapping[str, object], fields: Mapping[str, str], where: str) -> dict[str, float]:
    return {
        ours: _litellm_usd(entry[theirs], theirs, where)
        for theirs, ours in fields.items()
        if entry.get(theirs) is not None
    }


def _litellm_usd(per_token: object, field: str, where: str) -> float:
    try:
        usd = float(per_token) * TOKENS_PER_MTOK  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        raise BadInput(f"field '{field}': {shorten(repr(per_token))} is not a number", where=where) from None
    if not 0 <= usd <= MAX_USD_PER_MTOK:
        raise BadInput(f"field '{field}': {shorten(repr(per_token))} USD per token is not a price", where=where)
    return round(usd, 12)  # 2.5e-06 × 1e6 is 2.5, not 2.4999999999999996.
