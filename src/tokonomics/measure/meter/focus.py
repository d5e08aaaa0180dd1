"""Charges as rows of FOCUS 1.2, the FinOps Open Cost and Usage Specification (focus.finops.org, version 1.2).

All 21 mandatory columns are there, of the others those that a meter knows. Two rules shape a row: a charge that is used
has a pricing quantity (here hours of the servers, as they are paid for), and unit prices may stay away where no price
list is published. Columns of our own begin with ``x_`` and stand last. A null is an empty field.
"""

import csv
import io
import json
from collections.abc import Iterable
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal

from tokonomics.types import Noun
from tokonomics.units import SECONDS_PER_HOUR

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
    usd: Decimal
    server_s: float
    input_computed: float
    input_cached: float
    output: float
    requests: float
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
