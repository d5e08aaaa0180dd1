"""What metered or planned tokens cost, for the tools that people already run.

- **litellm**: a price file (its ``model_cost`` map), so that a self-hosted model no longer costs $0 there.
- **focus**: rows of FOCUS 1.2, a day, model and team each.
- **openmetrics**: sums by day with their time, as ``promtool tsdb create-blocks-from openmetrics`` takes them.
- **csv**: the same for a spreadsheet.

Dollars are whole cents that sum to the ledger's total: each charge is rounded down, and the cents that are left go to
the largest remainders. Prices are not rounded.

FOCUS is the FinOps Open Cost and Usage Specification (focus.finops.org, version 1.2). All 21 mandatory columns are
there, of the others those that a meter knows. Two rules shape a row: a charge that is used has a pricing quantity (here
hours of the servers, as they are paid for), and unit prices may stay away where no price list is published. Columns of
our own begin with ``x_`` and stand last. A null is an empty field.
"""

import csv
import io
import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import ROUND_FLOOR, ROUND_HALF_EVEN, Context, Decimal, localcontext
from enum import StrEnum
from itertools import accumulate
from pathlib import Path

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from pydantic import Field, NonNegativeFloat

from tokonomics.measure.meter.bill import TokenCost
from tokonomics.measure.meter.exposition import encoded
from tokonomics.measure.meter.price_factors import best_of_plan
from tokonomics.measure.meter.state import Statement
from tokonomics.types import Noun
from tokonomics.units import HOURS_PER_MONTH, SECONDS_PER_HOUR, TOKENS_PER_MTOK

_SELF = "Self-hosted"
"""Provider, publisher and invoice issuer: whoever runs the servers. Whose machines they rent, the meter is not told."""


class Charge(Noun):
    """What one model cost one team over one period."""

    start: datetime
    end: datetime
    model: str
    team: str
    """Empty where there is none."""
    label: str
    """What teams are told by, such as ``team``."""
    usd: Decimal = Field(ge=0)
    server_s: NonNegativeFloat
    input_computed: NonNegativeFloat
    input_cached: NonNegativeFloat
    output: NonNegativeFloat
    requests: NonNegativeFloat
    is_estimate: bool = False


def focus_csv(charges: Iterable[Charge]) -> str:
    """The rows as CSV."""
    rows = [_row(charge) for charge in charges]
    text = io.StringIO()
    table = csv.DictWriter(text, fieldnames=COLUMNS, lineterminator="\n")
    table.writeheader()
    table.writerows(rows)
    return text.getvalue()


def day_of(day: str) -> tuple[datetime, datetime]:
    """A day (``2026-11-09``, UTC) as a charge period: its start, and its end, which is no part of it."""
    start = datetime.combine(date.fromisoformat(day), time(), UTC)
    return start, start + timedelta(days=1)


def month_of(at: datetime) -> tuple[datetime, datetime]:
    """The calendar month that an instant is in, as a billing period."""
    start = at.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    return start, (start + timedelta(days=32)).replace(day=1)


def _row(charge: Charge) -> dict[str, str]:
    cost, hours = f"{charge.usd:.2f}", _decimal(charge.server_s / SECONDS_PER_HOUR)
    begins, ends = month_of(charge.start)
    said = "Estimate from a plan" if charge.is_estimate else "Metered server time"
    return dict(zip(COLUMNS, (
        cost, "self-hosted", _SELF, "USD", _instant(ends), _instant(begins),
        "Usage", "", f"{said} of {charge.model or 'an unnamed model'}, idle time included", "Usage-Based",
        _instant(charge.end), _instant(charge.start), hours, "Hours", cost, cost, "", _SELF, cost, hours, "Hours",
        _SELF, _SELF, charge.model, charge.model, "Model" if charge.model else "",
        "AI and Machine Learning", "LLM inference", "Generative AI",
        charge.team, charge.team, json.dumps({charge.label: charge.team}) if charge.team else "",
        _decimal(charge.input_computed), _decimal(charge.input_cached), _decimal(charge.output),
        _decimal(charge.requests), "true" if charge.is_estimate else "false",
    ), strict=True))  # fmt: skip


COLUMNS = (
    "BilledCost", "BillingAccountId", "BillingAccountName", "BillingCurrency", "BillingPeriodEnd", "BillingPeriodStart",
    "ChargeCategory", "ChargeClass", "ChargeDescription", "ChargeFrequency",
    "ChargePeriodEnd", "ChargePeriodStart", "ConsumedQuantity", "ConsumedUnit", "ContractedCost", "EffectiveCost",
    "InvoiceId", "InvoiceIssuerName", "ListCost", "PricingQuantity", "PricingUnit",
    "ProviderName", "PublisherName", "ResourceId", "ResourceName", "ResourceType", "ServiceCategory", "ServiceName",
    "ServiceSubcategory", "SubAccountId", "SubAccountName", "Tags",
    "x_InputTokens", "x_CachedInputTokens", "x_OutputTokens", "x_Requests", "x_IsEstimate",
)  # fmt: skip
"""In the order of the alphabet, ours after them."""


def _instant(at: datetime) -> str:
    return at.strftime("%Y-%m-%dT%H:%M:%SZ")


def _decimal(value: float) -> str:
    """To a millionth, without an exponent or a trailing zero."""
    return f"{value:.6f}".rstrip("0").rstrip(".")


CENT = Decimal("0.01")
_EXACT = Context(prec=400)
"""Digits enough for any float."""


class ExportFormat(StrEnum):
    litellm = "litellm"
    focus = "focus"
    openmetrics = "openmetrics"
    csv = "csv"


class Exported(Noun):
    """Charges and prices, as every format has them."""

    since: datetime
    until: datetime
    is_estimate: bool
    total_usd: Decimal
    charges: tuple[Charge, ...]
    prices: tuple[TokenCost, ...]


def exported(billed: Statement, label: str, prices: Sequence[TokenCost], until: float) -> Exported:
    """A bill by day, model and a label; a day that was not over at ``until`` is charged up to then."""
    ends = datetime.fromtimestamp(math.ceil(until), UTC)
    total = cents(billed.total.usd)
    shares = in_cents([line.sums.usd for line in billed.lines], total)
    charges = []
    for line, dollars in zip(billed.lines, shares, strict=True):
        day, model, team = line.group
        start, end = day_of(day)
        charges.append(
            Charge(
                start=start,
                end=min(end, ends),
                model=model,
                team=team,
                label=label,
                usd=dollars,
                server_s=line.sums.seconds,
                input_computed=line.sums.input_computed,
                input_cached=line.sums.input_cached,
                output=line.sums.output,
                requests=line.sums.answered,
            )
        )
    first, last = (datetime.fromtimestamp(at, UTC) for at in (billed.since, billed.until))
    return Exported(
        since=first, until=last, is_estimate=False, total_usd=total, charges=tuple(charges), prices=tuple(prices)
    )


def estimated(path: Path, today: date) -> Exported:
    """The pick of ``tokonomics plan … --json``, as a charge of the calendar month that comes.

    A plan's month has 730 hours, a calendar month 672 to 744: dollars, tokens and requests are those of its own hours.
    Cached prompt tokens cost what input does.
    """
    first = datetime(today.year, today.month, 1, tzinfo=UTC) + timedelta(days=32)
    start, end = month_of(first)
    times = (end - start).total_seconds() / SECONDS_PER_HOUR / HOURS_PER_MONTH
    with best_of_plan(path) as (best, load):
        requests = load["rate"] * HOURS_PER_MONTH * SECONDS_PER_HOUR
        total = cents(best["usd_per_month"] * times)
        charge = Charge(
            start=start, end=end, model=best["model"], team="", label="team", usd=total,
            server_s=best["instances"] * HOURS_PER_MONTH * SECONDS_PER_HOUR * times,
            input_computed=load["input_tokens"] * requests * times, input_cached=0.0,
            output=load["output_tokens"] * requests * times, requests=requests * times, is_estimate=True,
        )  # fmt: skip
        prices = best["usd_per_mtok"]
        price = TokenCost(
            model=best["model"], engine=best["engine"], input=prices["input"], cached=prices["input"],
            output=prices["output"], blended=prices["blended"], split="GPU time, as planned",
        )  # fmt: skip
    return Exported(since=start, until=end, is_estimate=True, total_usd=total, charges=(charge,), prices=(price,))


def cents(usd: float) -> Decimal:
    """To the nearest cent."""
    return Decimal(repr(usd)).quantize(CENT, ROUND_HALF_EVEN, _EXACT)


def in_cents(parts: Sequence[float], total: Decimal) -> list[Decimal]:
    """The parts as whole cents that sum to the total: rounded down, the rest to the largest remainders."""
    exact = [Decimal(repr(part)) for part in parts]
    floors = [part.quantize(CENT, ROUND_FLOOR, _EXACT) for part in exact]
    with localcontext(_EXACT):
        left = int((total - sum(floors, Decimal(0))) / CENT)
    order = sorted(range(len(parts)), key=lambda place: (floors[place] - exact[place], place))
    for place in order[:left]:
        floors[place] += CENT
    return floors


def text_of_export(export: Exported, form: ExportFormat) -> str:
    """The file."""
    write: Mapping[ExportFormat, Callable[[Exported], str]] = {
        ExportFormat.litellm: _litellm,
        ExportFormat.focus: lambda export: focus_csv(export.charges),
        ExportFormat.openmetrics: _openmetrics,
        ExportFormat.csv: _csv,
    }
    return write[form](export)


def _provider(engine: str) -> str:
    """LiteLLM's name for who serves: vLLM has one of its own, the others speak as OpenAI does."""
    return "hosted_vllm" if engine == "vllm" else "openai"


_TELLS_CACHED = {
    "vllm": "start vLLM with --enable-prompt-tokens-details",
    "sglang": "start SGLang with --enable-cache-report",
}
"""What makes an engine's usage carry ``prompt_tokens_details.cached_tokens`` (the arguments of both servers)."""


def cached_needs(price: TokenCost) -> str | None:
    """What LiteLLM needs to price cached tokens apart; None where they cost what input does."""
    if price.cached == price.input:
        return None
    how = _TELLS_CACHED.get(price.engine, "have the engine report them")
    return f"LiteLLM charges cached tokens as input unless usage carries cached_tokens: {how}"


def _notes(price: TokenCost, where: str) -> str:
    parts = (where, price.split, f"${price.blended:.6g} per Mtok in all", cached_needs(price))
    return f"tokonomics: {'; '.join(part for part in parts if part)}"


def _litellm(export: Exported) -> str:
    """By ``provider/model``, as one calls it there; without a price for cached tokens LiteLLM would take $0."""
    where = (
        "estimate from a plan"
        if export.is_estimate
        else f"metered from {export.since:%Y-%m-%d} to {export.until:%Y-%m-%d} UTC"
    )
    entries = {
        f"{_provider(price.engine)}/{price.model}": {
            "litellm_provider": _provider(price.engine),
            "mode": "chat",
            "input_cost_per_token": price.input / TOKENS_PER_MTOK,
            "output_cost_per_token": price.output / TOKENS_PER_MTOK,
            "cache_read_input_token_cost": price.cached / TOKENS_PER_MTOK,
            "metadata": {"notes": _notes(price, where)},
        }
        for price in export.prices
    }
    return json.dumps(entries, indent=2, ensure_ascii=False) + "\n"


_KINDS = ("input_computed", "input_cached", "output")
_PRICED = ("input", "cached", "output")


def _openmetrics(export: Exported) -> str:
    """Counters that grow from day to day, by model and label; prices at the end."""
    told_by = _told_by(export)
    about = "Estimated by a plan" if export.is_estimate else "From the ledger"
    cost = CounterMetricFamily(
        "llm_ledger_cost_usd", f"{about}: US dollars since the first day of this file.", labels=["model", told_by]
    )
    tokens = CounterMetricFamily("llm_ledger_tokens", f"{about}: tokens likewise.", labels=["model", told_by, "kind"])
    price = GaugeMetricFamily(
        "llm_ledger_price_usd_per_million_tokens", f"{about}: over the whole of it.", labels=["model", "kind"]
    )
    series: dict[tuple[str, str], list[Charge]] = defaultdict(list)
    for charge in sorted(export.charges, key=lambda charge: charge.start):
        series[charge.model, charge.team].append(charge)
    for who, charges in sorted(series.items()):
        _add_sums(cost, who, charges, "usd")
        for kind in _KINDS:
            _add_sums(tokens, (*who, kind), charges, kind)
    for of_model in export.prices:
        for kind in _PRICED:
            price.add_metric([of_model.model, kind], getattr(of_model, kind), timestamp=export.until.timestamp())
    return encoded([cost, tokens, price], "application/openmetrics-text")[0].decode()


def _add_sums(family: CounterMetricFamily, labels: Sequence[str], charges: Sequence[Charge], field: str) -> None:
    """One series: the sum so far at the end of each charge."""
    sums = accumulate(getattr(charge, field) for charge in charges)
    for charge, total in zip(charges, sums, strict=True):
        family.add_metric(labels, float(total), timestamp=charge.end.timestamp())


def _told_by(export: Exported) -> str:
    """The label that charges are told by, as a column or label beside ``model`` and ``kind``."""
    label = next((charge.label for charge in export.charges), "team")
    return label if label.isidentifier() and label.isascii() and label not in ("model", "kind") else "team"


def _when(at: datetime) -> str:
    """A day; to the second where a day was not over."""
    return f"{at:%Y-%m-%d}" if at.time() == time() else f"{at:%Y-%m-%dT%H:%M:%SZ}"


def _csv(export: Exported) -> str:
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    prices = {price.model: price for price in export.prices}
    figures = ("usd", "hours", *_KINDS, "requests")
    priced = [f"usd_per_mtok_{kind}_over_all_days" for kind in _PRICED]
    table.writerow(["from", "to", "model", _told_by(export), *figures, *priced, "is_estimate"])
    for charge in export.charges:
        price = prices.get(charge.model)
        table.writerow(
            [
                *(_when(at) for at in (charge.start, charge.end)),
                *(charge.model, charge.team, charge.usd, charge.server_s / SECONDS_PER_HOUR),
                *(getattr(charge, kind) for kind in _KINDS),
                charge.requests,
                *("" if price is None else getattr(price, kind) for kind in _PRICED),
                str(charge.is_estimate).lower(),
            ]
        )
    return text.getvalue()
