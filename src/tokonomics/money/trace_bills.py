"""Bill the requests of a trace: by the token at an API, and by the hour for replicas that a simulation ran.

An API charges every request at the tier of its own length; a host that quotes no price for cached or batch tokens has
none here either. If a log says which prompts begin alike, what is not found in the host's cache is written to it, at
the price of writing if one is quoted; if that costs more than no cache, the client uses no cache.

For a simulation, **reservation** divides the whole bill by the delivered tokens; **usage** divides only the share of it
that full batches would have needed, as a platform that fills its machines with others' requests would charge. Tokens
are those of completed requests, prompts (cached ones included) and answers.
"""

import datetime as dt
from collections.abc import Sequence
from contextlib import suppress
from itertools import product

import numpy as np
from pydantic import NonNegativeFloat, PositiveFloat

from tokonomics.catalog.apis import ApiPrice, price_request
from tokonomics.errors import BadInput
from tokonomics.money.cost import CostLine, CostTree, require_share
from tokonomics.serving.outcome import Outcome, SideOutcome
from tokonomics.traffic.trace import Trace
from tokonomics.types import Noun
from tokonomics.units import TOKENS_PER_MTOK

HOST_TTL_S = 300.0
"""How long a host keeps a prompt after its last use: Anthropic's five minutes, which start again with each use (its
prompt caching guide; an hour is sold as well, written at twice the input's price, and not modelled). Others also say
minutes."""


class ApiCost(Noun):
    """One way to buy the tokens."""

    name: str  # ``host:model``, with `` (batch)`` for batch prices
    usd_per_request: NonNegativeFloat
    usd_per_mtok: NonNegativeFloat  # of all tokens, in and out, in this mix
    input_usd_per_mtok: NonNegativeFloat
    output_usd_per_mtok: NonNegativeFloat
    date: dt.date | None
    source: str
    note: str | None = None
    cached_share: float = 0.0  # of the prompt tokens, read from the host's cache
    written_share: float = 0.0  # of the prompt tokens, written to the host's cache at a separate price
    cached_within_s: float | None = None  # how soon a log must repeat a prompt; None: the share was given, or is zero
    areas: tuple[str, ...] = ()  # where its host says that it computes: countries or EU; empty if it does not say

    def usd_per_month(self, tokens_per_month: float) -> float:
        """Return the bill for a month of this many tokens, in and out, in this mix."""
        return self.usd_per_mtok * tokens_per_month / TOKENS_PER_MTOK


def api_bill(
    api: ApiPrice, trace: Trace, cached_share: float = 0.0, batch: bool = False, write_rest: bool = False
) -> ApiCost:
    """Price the mean request of the trace at an API; ``cached_share`` of every prompt is read from its cache.

    With ``write_rest``, what is not read is written, for later requests to read. Otherwise all that is read is assumed
    to be in the cache, like a prefix of every prompt: it is written once, and each use keeps it.
    """
    require_share("cached_share", cached_share)
    written = 1 - cached_share if write_rest else 0.0
    inputs = trace.input_tokens.astype(np.float64)
    outputs = trace.output_tokens.astype(np.float64)
    bounds = sorted(tier.above_input_tokens for tier in api.tiers)
    tier = np.searchsorted(np.array(bounds, dtype=np.float64), inputs, side="left") if bounds else None
    tiers = [slice(None)] if tier is None else [tier == level for level in np.unique(tier)]
    dollars = 0.0
    for chosen in tiers:
        # Within a tier the price is linear, so the mean request represents all.
        mean_in, mean_out = float(inputs[chosen].mean()), float(outputs[chosen].mean())
        mean_usd = price_request(api, mean_in, cached_share * mean_in, mean_out, batch, written * mean_in)
        dollars += len(inputs[chosen]) * mean_usd
    rates, kind = api.rates(float(inputs.mean())), "batch_" if batch else ""
    per_request = dollars / len(trace)
    return ApiCost(
        name=f"{api.key} (batch)" if batch else api.key,
        usd_per_request=per_request,
        usd_per_mtok=per_request / float((inputs + outputs).mean()) * TOKENS_PER_MTOK,
        input_usd_per_mtok=getattr(rates, f"{kind}input_usd_per_mtok") or 0.0,
        output_usd_per_mtok=getattr(rates, f"{kind}output_usd_per_mtok") or 0.0,
        date=api.quoted,
        source=api.source,
        note=api.note,
        cached_share=cached_share,
        written_share=written if rates.cache_write_usd_per_mtok is not None else 0.0,
        cached_within_s=HOST_TTL_S if write_rest else None,
        areas=api.areas,
    )


class ApiLeftOut(Noun):
    """An API without a price, and why."""

    name: str
    why: str


def api_bills(
    apis: list[ApiPrice], trace: Trace, cached_share: float = 0.0, batch: bool = False, replayed: bool = False
) -> tuple[tuple[ApiCost, ...], tuple[ApiLeftOut, ...]]:
    """Price each API at its standard and, if asked for, at its batch prices; leave out those without a quote.

    If the cached share was ``replayed`` and not asked for, a host that quotes no cached price takes the list price, and
    a cache that would cost more than it saves is not used.
    """
    bills: list[ApiCost] = []
    missing: list[tuple[ApiLeftOut, BadInput]] = []
    for api, at_batch in product(apis, (False, True) if batch else (False,)):
        try:
            bills.append(_best_bill(api, trace, cached_share, at_batch, replayed))
        except BadInput as error:
            name = f"{api.key} (batch)" if at_batch else api.key
            missing.append((ApiLeftOut(name=name, why=error.what), error))
    if not bills:
        raise missing[0][1]
    return tuple(bills), tuple(left_out for left_out, _ in missing)


def host_bills(
    hosts: list[ApiPrice], trace: Trace, cached_share: float = 0.0, batch: bool = False, replayed: bool = False
) -> tuple[ApiCost, ...]:
    """Return the cheapest price of each host, standard and, if asked for and quoted, batch; the cheapest host first.

    A host whose context is shorter than the longest request, or that would charge nothing, is left out.
    """
    require_share("cached_share", cached_share)
    cheapest: dict[tuple[str, bool], ApiCost] = {}
    longest = int((trace.input_tokens.astype(np.int64) + trace.output_tokens).max()) if len(trace) else 0
    held = [api for api in hosts if api.context is None or api.context >= longest]
    directly_first = sorted(held, key=lambda api: api.host != api.seller)
    for api, at_batch in product(directly_first, (False, True) if batch else (False,)):
        bill: ApiCost | None = None
        with suppress(BadInput):  # without a price of cached tokens, use the list price, which no host exceeds
            plain = api_bill(api, trace, 0.0, at_batch)
            bill = _noted(plain, "quotes no price of cached tokens: all at the list price")
            bill = _best_bill(api, trace, cached_share, at_batch, replayed)
        known = cheapest.get((api.seller, at_batch))
        if bill and bill.usd_per_request and (known is None or bill.usd_per_mtok < known.usd_per_mtok):
            cheapest[api.seller, at_batch] = bill
    return tuple(sorted(cheapest.values(), key=lambda bill: (bill.usd_per_mtok, bill.name)))


def _best_bill(api: ApiPrice, trace: Trace, cached_share: float, batch: bool, replayed: bool) -> ApiCost:
    """Return the bill as asked; for a log whose prompts repeat, without the cache if that is cheaper or not quoted."""
    if not replayed or not cached_share:
        return api_bill(api, trace, cached_share, batch)
    plain = api_bill(api, trace, 0.0, batch)
    try:
        cached = api_bill(api, trace, cached_share, batch, write_rest=True)
    except BadInput:
        return plain
    if cached.usd_per_request <= plain.usd_per_request:
        return cached
    return _noted(plain, "used without its cache: writing would cost more than reading saves")


def _noted(bill: ApiCost, note: str) -> ApiCost:
    return bill.model_copy(update={"note": f"{bill.note}; {note}" if bill.note else note})


class ServedCost(Noun):
    """The bill of a simulation."""

    usd_per_replica_hour: PositiveFloat  # mean over both sides of a disaggregated fleet
    price_from: str
    usd: NonNegativeFloat
    usd_per_mtok: NonNegativeFloat | None  # prompts and answers alike, on reservation; None if none was delivered
    usd_per_mtok_output: NonNegativeFloat | None  # the whole bill divided by the answers alone
    usd_per_mtok_usage: NonNegativeFloat | None
    tree: CostTree


def served_cost(outcome: Outcome, usd_per_replica_hour: float, price_from: str) -> ServedCost:
    """Price the paid hours of a simulation."""
    hours, shares = outcome.replica_hours, outcome.shares
    parts = (
        ("prefill", shares.prefill),
        ("decode", shares.decode),
        ("recomputed", shares.recomputed),
        ("abandoned", shares.abandoned),
        ("idle", shares.idle),
    )
    tree = CostTree(
        name="replicas",
        lines=tuple(
            CostLine(name=name, quantity=hours * share, unit="replica-hour", usd_per_unit=usd_per_replica_hour)
            for name, share in parts
        ),
    )
    return _cost(outcome, tree, usd_per_replica_hour, price_from)


def served_cost_apart(
    outcome: Outcome, sides: Sequence[SideOutcome], usd_per_replica_hour: Sequence[float], price_from: str
) -> ServedCost:
    """Price the paid hours of the two sides of a disaggregated fleet, each at its own price."""
    lines = []
    for side, usd in zip(sides, usd_per_replica_hour, strict=True):
        for what, share in (("busy", side.busy_share), ("idle", 1 - side.busy_share)):
            hours = side.replica_hours * share
            lines.append(CostLine(name=f"{side.does} {what}", quantity=hours, unit="replica-hour", usd_per_unit=usd))
    tree = CostTree(name="replicas", lines=tuple(lines))
    return _cost(outcome, tree, tree.usd / outcome.replica_hours, price_from)


def _cost(outcome: Outcome, tree: CostTree, usd_per_replica_hour: float, price_from: str) -> ServedCost:
    tokens, load = outcome.input_tokens + outcome.output_tokens, outcome.load_share
    return ServedCost(
        usd_per_replica_hour=usd_per_replica_hour,
        price_from=price_from,
        usd=tree.usd,
        usd_per_mtok=_per_mtok(tree.usd, tokens),
        usd_per_mtok_output=_per_mtok(tree.usd, outcome.output_tokens),
        usd_per_mtok_usage=None if load is None else _per_mtok(tree.usd * min(1.0, load), tokens),
        tree=tree,
    )


def _per_mtok(usd: float, tokens: int) -> float | None:
    return usd / tokens * TOKENS_PER_MTOK if tokens else None
