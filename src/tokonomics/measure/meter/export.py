"""Export what metered or planned tokens cost, for the tools that people already run.

- **litellm**: a price file (its ``model_cost`` map), so that a self-hosted model no longer costs $0 there.
- **focus**: rows of FOCUS 1.2, one for each day, model and team, or for each value of several labels or tags.
- **openmetrics**: sums by day with their time, as ``promtool tsdb create-blocks-from openmetrics`` takes them.
- **csv**: the same for a spreadsheet.

Dollars are whole cents that sum to the ledger's total: each charge is rounded down, and the remaining cents go to the
largest remainders; requests likewise are whole. Prices are not rounded.

FOCUS is the FinOps Open Cost and Usage Specification (focus.finops.org, version 1.2). All 21 mandatory columns are
there, and the others that a meter knows. Two rules shape a row: a charge for usage has a pricing quantity (here hours
of the servers, as they are paid for), and unit prices may be missing if no price list is published. Columns of our own
begin with ``x_`` and come last. A null is an empty field.
"""

import csv
import io
import json
import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import ROUND_FLOOR, ROUND_HALF_EVEN, Context, Decimal, localcontext
from enum import StrEnum
from itertools import accumulate
from pathlib import Path

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from pydantic import Field, NonNegativeFloat, NonNegativeInt

from tokonomics.measure.meter.bill import TokenCost
from tokonomics.measure.meter.exposition import encoded
from tokonomics.measure.meter.price_factors import best_of_plan
from tokonomics.measure.meter.state import Statement
from tokonomics.types import Noun, copied
from tokonomics.units import HOURS_PER_MONTH, SECONDS_PER_HOUR, TOKENS_PER_MTOK

_SELF = "Self-hosted"  # provider, publisher and issuer: whoever runs the servers; their owner is not known


class Charge(Noun):
    """What one model cost over one period, for one value of each label of its servers or tag of a request log."""

    start: datetime
    end: datetime
    model: str
    tags: dict[str, str]  # such as team and feature; a value is empty if there is none
    usd: Decimal = Field(ge=0)
    server_s: NonNegativeFloat
    input_computed: NonNegativeFloat
    input_cached: NonNegativeFloat
    output: NonNegativeFloat
    requests: NonNegativeInt
    is_estimate: bool = False


def month_of(at: datetime) -> tuple[datetime, datetime]:
    """Return the calendar month of an instant as a billing period: its start, and its end, which is excluded."""
    start = at.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    return start, (start + timedelta(days=32)).replace(day=1)


def focus_row(charge: Charge) -> dict[str, str]:
    """Return a charge by the columns of FOCUS, in alphabetical order, ours after them."""
    cost, hours = f"{charge.usd:.2f}", _decimal(charge.server_s / SECONDS_PER_HOUR)
    begins, ends, start, end = (
        f"{at:%Y-%m-%dT%H:%M:%SZ}" for at in (*month_of(charge.start), charge.start, charge.end)
    )
    said = "Estimate from a plan" if charge.is_estimate else "Metered server time"
    about = f"{said} of {charge.model or 'an unnamed model'}, idle time included"
    tags = {name: value for name, value in charge.tags.items() if value}
    account = next(iter(charge.tags.values()), "")
    return {
        "BilledCost": cost, "BillingAccountId": "self-hosted", "BillingAccountName": _SELF, "BillingCurrency": "USD",
        "BillingPeriodEnd": ends, "BillingPeriodStart": begins, "ChargeCategory": "Usage", "ChargeClass": "",
        "ChargeDescription": about, "ChargeFrequency": "Usage-Based", "ChargePeriodEnd": end,
        "ChargePeriodStart": start, "ConsumedQuantity": hours, "ConsumedUnit": "Hours", "ContractedCost": cost,
        "EffectiveCost": cost, "InvoiceId": "", "InvoiceIssuerName": _SELF, "ListCost": cost,
        "PricingQuantity": hours, "PricingUnit": "Hours", "ProviderName": _SELF, "PublisherName": _SELF,
        "ResourceId": charge.model, "ResourceName": charge.model, "ResourceType": "Model" if charge.model else "",
        "ServiceCategory": "AI and Machine Learning", "ServiceName": "LLM inference",
        "ServiceSubcategory": "Generative AI", "SubAccountId": account, "SubAccountName": account,
        "Tags": json.dumps(tags, ensure_ascii=False) if tags else "",
        "x_InputTokens": _decimal(charge.input_computed), "x_CachedInputTokens": _decimal(charge.input_cached),
        "x_OutputTokens": _decimal(charge.output), "x_Requests": str(charge.requests),
        "x_IsEstimate": "true" if charge.is_estimate else "false",
    }  # fmt: skip


def _decimal(value: float) -> str:
    """Write a number to a millionth, without an exponent or trailing zeros."""
    return f"{value:.6f}".rstrip("0").rstrip(".")


_KINDS = ("input_computed", "input_cached", "output")
_PRICED = ("input", "cached", "output")
_TAKEN = {"model", "kind", "from", "to", "usd", "hours", "requests", "is_estimate", *_KINDS}  # names of other columns
CENT = Decimal("0.01")
_EXACT = Context(prec=400)  # digits enough for any float


class ExportFormat(StrEnum):
    litellm = "litellm"
    focus = "focus"
    openmetrics = "openmetrics"
    csv = "csv"


class Exported(Noun):
    """Charges and prices, the same for every format."""

    since: datetime
    until: datetime
    is_estimate: bool
    total_usd: Decimal
    charges: tuple[Charge, ...]
    prices: tuple[TokenCost, ...]


def exported(billed: Statement, labels: Sequence[str], prices: Sequence[TokenCost], until: float) -> Exported:
    """Return a bill by day, model and labels; a day that was not over at ``until`` is charged up to then."""
    total, answered = cents(billed.total.usd), [line.sums.answered for line in billed.lines]
    dollars = whole_parts([line.sums.usd for line in billed.lines], total, CENT)
    requests = whole_parts(answered, Decimal(round(sum(answered))), Decimal(1))
    charges = []
    for line, usd, number in zip(billed.lines, dollars, requests, strict=True):
        day, model, *values = line.group
        start = datetime.combine(date.fromisoformat(day), time(), UTC)
        charge = Charge(
            start=start, end=min(start + timedelta(days=1), datetime.fromtimestamp(math.ceil(until), UTC)),
            model=model, tags=dict(zip(labels, values, strict=True)), usd=usd, server_s=line.sums.seconds,
            requests=int(number), **copied(line.sums, *_KINDS),
        )  # fmt: skip
        charges.append(charge)
    first, last = (datetime.fromtimestamp(at, UTC) for at in (billed.since, billed.until))
    return Exported(
        since=first, until=last, is_estimate=False, total_usd=total, charges=tuple(charges), prices=tuple(prices)
    )


def estimated(path: Path, today: date) -> Exported:
    """Return the best offer of ``tokonomics plan … --json`` as a charge of the coming calendar month.

    A plan's month has 730 hours, a calendar month 672 to 744: dollars, tokens and requests are those of its own hours.
    Cached prompt tokens cost the same as input.
    """
    first = datetime(today.year, today.month, 1, tzinfo=UTC) + timedelta(days=32)
    start, end = month_of(first)
    times = (end - start).total_seconds() / SECONDS_PER_HOUR / HOURS_PER_MONTH
    with best_of_plan(path) as (best, load):
        requests = load["rate"] * HOURS_PER_MONTH * SECONDS_PER_HOUR
        total = cents(best["usd_per_month"] * times)
        charge = Charge(
            start=start, end=end, model=best["model"], tags={"team": ""}, usd=total,
            server_s=best["instances"] * HOURS_PER_MONTH * SECONDS_PER_HOUR * times,
            input_computed=load["input_tokens"] * requests * times, input_cached=0.0,
            output=load["output_tokens"] * requests * times, requests=round(requests * times), is_estimate=True,
        )  # fmt: skip
        prices = best["usd_per_mtok"]
        price = TokenCost(
            model=best["model"], engine=best["engine"], input=prices["input"], cached=prices["input"],
            output=prices["output"], blended=prices["blended"], split="GPU time, as planned",
        )  # fmt: skip
    return Exported(since=start, until=end, is_estimate=True, total_usd=total, charges=(charge,), prices=(price,))


def cents(usd: float) -> Decimal:
    """Round to the nearest cent."""
    return Decimal(repr(usd)).quantize(CENT, ROUND_HALF_EVEN, _EXACT)


def whole_parts(parts: Sequence[float], total: Decimal, unit: Decimal) -> list[Decimal]:
    """Return the parts in whole units that sum to the total: rounded down, the rest to the largest remainders."""
    exact = [Decimal(repr(part)) for part in parts]
    floors = [part.quantize(unit, ROUND_FLOOR, _EXACT) for part in exact]
    with localcontext(_EXACT):
        left = int((total - sum(floors, Decimal(0))) / unit)
    order = sorted(range(len(parts)), key=lambda place: (floors[place] - exact[place], place))
    for place in order[:left]:
        floors[place] += unit
    return floors


def text_of_export(export: Exported, form: ExportFormat) -> str:
    """Return the text of the file."""
    write: Mapping[ExportFormat, Callable[[Exported], str]] = {
        ExportFormat.litellm: _litellm,
        ExportFormat.focus: lambda export: _table([focus_row(charge) for charge in export.charges]),
        ExportFormat.openmetrics: _openmetrics,
        ExportFormat.csv: _csv,
    }
    return write[form](export)


def _table(rows: Sequence[Mapping[str, object]]) -> str:
    """Return rows as CSV, with a heading."""
    text = io.StringIO()
    table = csv.DictWriter(text, fieldnames=rows[0], lineterminator="\n")
    table.writeheader()
    table.writerows(rows)
    return text.getvalue()


_TELLS_CACHED = {
    "vllm": "start vLLM with --enable-prompt-tokens-details",
    "sglang": "start SGLang with --enable-cache-report",
}
"""The option that makes an engine report ``prompt_tokens_details.cached_tokens`` (the arguments of both servers)."""


def cached_needs(price: TokenCost) -> str | None:
    """Describe what LiteLLM needs to price cached tokens separately; None if they cost the same as input."""
    if price.cached == price.input:
        return None
    how = _TELLS_CACHED.get(price.engine, "have the engine report them")
    return f"LiteLLM charges cached tokens as input unless usage carries cached_tokens: {how}"


def _litellm(export: Exported) -> str:
    """Write prices by ``provider/model``, as LiteLLM names it; without a price for cached tokens it would charge $0."""
    metered = f"metered from {export.since:%Y-%m-%d} to {export.until:%Y-%m-%d} UTC"
    entries = {}
    for price in export.prices:
        # vLLM has its own name there; the others use OpenAI's API.
        provider = "hosted_vllm" if price.engine == "vllm" else "openai"
        about = ["estimate from a plan" if export.is_estimate else metered, price.split]
        about += filter(None, [f"${price.blended:.6g} per Mtok in all", cached_needs(price)])
        entries[f"{provider}/{price.model}"] = {
            "litellm_provider": provider,
            "mode": "chat",
            "input_cost_per_token": price.input / TOKENS_PER_MTOK,
            "output_cost_per_token": price.output / TOKENS_PER_MTOK,
            "cache_read_input_token_cost": price.cached / TOKENS_PER_MTOK,
            "metadata": {"notes": f"tokonomics: {'; '.join(about)}"},
        }
    return json.dumps(entries, indent=2, ensure_ascii=False) + "\n"


def _openmetrics(export: Exported) -> str:
    """Write counters that grow from day to day, by model and label; prices at the end."""
    names = _columns(export)
    about = "Estimated by a plan" if export.is_estimate else "From the ledger"
    cost = CounterMetricFamily(
        "llm_ledger_cost_usd", f"{about}: US dollars since the first day of this file.", labels=["model", *names]
    )
    tokens = CounterMetricFamily("llm_ledger_tokens", f"{about}: tokens likewise.", labels=["model", *names, "kind"])
    price = GaugeMetricFamily(
        "llm_ledger_price_usd_per_million_tokens", f"{about}: over the whole of it.", labels=["model", "kind"]
    )
    series: dict[tuple[str, ...], list[Charge]] = defaultdict(list)
    for charge in sorted(export.charges, key=lambda charge: charge.start):
        series[charge.model, *charge.tags.values()].append(charge)
    for who, charges in sorted(series.items()):
        for family, kind in ((cost, "usd"), *((tokens, kind) for kind in _KINDS)):
            labels = who if family is cost else (*who, kind)
            sums = accumulate(getattr(charge, kind) for charge in charges)
            for charge, total in zip(charges, sums, strict=True):
                family.add_metric(labels, float(total), timestamp=charge.end.timestamp())
    for of_model in export.prices:
        for kind in _PRICED:
            price.add_metric([of_model.model, kind], getattr(of_model, kind), timestamp=export.until.timestamp())
    return encoded([cost, tokens, price], "application/openmetrics-text")[0].decode()


def _columns(export: Exported) -> list[str]:
    """Return the names of the tags as columns or labels beside ``model`` and ``kind``."""
    names = next((list(charge.tags) for charge in export.charges), ["team"])
    usable = [name.isidentifier() and name.isascii() and name not in _TAKEN for name in names]
    if len(names) == 1:
        return names if usable[0] else ["team"]
    return [name if good else f"tag{place}" for place, (name, good) in enumerate(zip(names, usable, strict=True), 1)]


def _csv(export: Exported) -> str:
    prices, names = {price.model: price for price in export.prices}, _columns(export)
    return _table([
        {
            # The day, or the second if the day was not over.
            **{name: f"{at:%Y-%m-%d}" if at.time() == time() else f"{at:%Y-%m-%dT%H:%M:%SZ}"
               for name, at in (("from", charge.start), ("to", charge.end))},
            "model": charge.model, **dict(zip(names, charge.tags.values(), strict=True)),
            "usd": charge.usd, "hours": charge.server_s / SECONDS_PER_HOUR, **copied(charge, *_KINDS, "requests"),
            **{f"usd_per_mtok_{kind}_over_all_days": getattr(prices.get(charge.model), kind, "") for kind in _PRICED},
            "is_estimate": str(charge.is_estimate).lower(),
        }
        for charge in export.charges
    ])  # fmt: skip
