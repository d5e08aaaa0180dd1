"""What an API would charge for the requests of a trace, by the million tokens, cached input and batch prices included.

Every request is charged at the tier its own length falls in; a host that quotes no price for cached or batch tokens has
none here either.
"""

import datetime as dt

import numpy as np
from pydantic import NonNegativeFloat

from tokonomics.catalog.apis import ApiPrice, price_request
from tokonomics.errors import BadInput
from tokonomics.nouns import Noun
from tokonomics.traffic.trace import Trace
from tokonomics.units import TOKENS_PER_MTOK


class ApiBill(Noun):
    """One way to buy the tokens."""

    name: str
    """``host:model``, with `` (batch)`` where batch prices are meant."""
    usd_per_request: NonNegativeFloat
    usd_per_mtok: NonNegativeFloat
    """Of all tokens, in and out, in this mix."""
    input_usd_per_mtok: NonNegativeFloat
    output_usd_per_mtok: NonNegativeFloat
    date: dt.date | None
    source: str
    note: str | None = None
    cached_share: float = 0.0
    """Of the prompt tokens, read from the host's cache."""


def api_bill(api: ApiPrice, trace: Trace, cached_share: float = 0.0, batch: bool = False) -> ApiBill:
    """The mean request of the trace at the API's prices; ``cached_share`` of every prompt is read from its cache."""
    if not 0 <= cached_share <= 1:
        raise BadInput(f"must be a share from 0 to 1, got {cached_share:g}", where="--cached-share")
    inputs = trace.input_tokens.astype(np.float64)
    outputs = trace.output_tokens.astype(np.float64)
    bounds = sorted(tier.above_input_tokens for tier in api.tiers)
    tier = np.searchsorted(np.array(bounds, dtype=np.float64), inputs, side="left")
    dollars = 0.0
    for each in np.unique(tier):
        # Within a tier the price is linear: the mean request stands for all.
        chosen = tier == each
        mean_in, mean_out = float(inputs[chosen].mean()), float(outputs[chosen].mean())
        dollars += int(chosen.sum()) * price_request(api, mean_in, cached_share * mean_in, mean_out, batch)
    rates = api.rates(float(inputs.mean()))
    per_request = dollars / len(trace)
    shown = (
        (rates.batch_input_usd_per_mtok, rates.batch_output_usd_per_mtok)
        if batch
        else (rates.input_usd_per_mtok, rates.output_usd_per_mtok)
    )
    return ApiBill(
        name=f"{api.key} (batch)" if batch else api.key,
        usd_per_request=per_request,
        usd_per_mtok=per_request / float((inputs + outputs).mean()) * TOKENS_PER_MTOK,
        input_usd_per_mtok=shown[0] or 0.0,
        output_usd_per_mtok=shown[1] or 0.0,
        date=api.checked or api.date,
        source=api.source,
        note=api.note,
        cached_share=cached_share,
    )


class LeftOut(Noun):
    """A price that could not be had, and why."""

    name: str
    why: str


def api_bills(
    apis: list[ApiPrice], trace: Trace, cached_share: float = 0.0, batch: bool = False, replayed: bool = False
) -> tuple[tuple[ApiBill, ...], tuple[LeftOut, ...]]:
    """Each API at its standard prices and, where asked for, at its batch prices; those without a quote are left out.

    Where the cached share was ``replayed`` and not asked for, a host that quotes no cached price takes the list price.
    """
    made: list[ApiBill] = []
    missing: list[tuple[LeftOut, BadInput]] = []
    for api in apis:
        for at_batch in (False, True) if batch else (False,):
            try:
                rates = api.rates(float(trace.input_tokens.mean()))
                quoted = rates.batch_cached_input_usd_per_mtok if at_batch else rates.cached_input_usd_per_mtok
                share = 0.0 if replayed and quoted is None else cached_share
                made.append(api_bill(api, trace, share, at_batch))
            except BadInput as error:
                name = f"{api.key} (batch)" if at_batch else api.key
                missing.append((LeftOut(name=name, why=error.what), error))
    if not made:
        raise missing[0][1]
    return tuple(made), tuple(each for each, _ in missing)
