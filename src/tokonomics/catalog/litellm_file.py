"""API prices from a file in litellm's format (``model_prices_and_context_window.json``): USD per token, by model.

``…_batches`` fields are batch prices; ``…_above_128k_tokens`` fields are the tier of longer requests. The format has no
dates, so these prices have none either.
"""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from pydantic import ValidationError

from tokonomics.catalog.apis import MAX_USD_PER_MTOK, ApiPrice
from tokonomics.errors import BadInput, from_validation, shorten
from tokonomics.units import TOKENS_PER_MTOK

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
    """Every model sold by input and output token in a file like litellm's model_prices_and_context_window.json."""
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
    """None or one: what is not sold by both kinds of token is left out, as is the file's sample entry."""
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
