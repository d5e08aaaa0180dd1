"""The column rules of FOCUS 1.2 as a checker, from the specification (focus.finops.org/focus-specification/v1-2).

Feature level and nullability are those of each column's "Content constraints"; the rules between columns are the MUSTs
of its requirements. Only columns that a data set of ours can have are listed: another one is a mistake.
"""

import csv
import io
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

MANDATORY, CONDITIONAL, RECOMMENDED = "mandatory", "conditional", "recommended"
Row = dict[str, str]


@dataclass(frozen=True)
class Column:
    level: str
    kind: str
    null: bool
    allowed: tuple[str, ...] = ()


NAMED = Column(MANDATORY, "string", False)
MAY_BE_NULL = Column(MANDATORY, "string", True)
CATEGORIES = (
    "AI and Machine Learning", "Analytics", "Business Applications", "Compute", "Databases", "Developer Tools",
    "Multicloud", "Identity", "Integration", "Internet of Things", "Management and Governance", "Media", "Migration",
    "Mobile", "Networking", "Security", "Storage", "Web", "Other",
)  # fmt: skip
AI_CATEGORIES = (
    "Bots", "Generative AI", "Machine Learning", "Natural Language Processing", "Other (AI and Machine Learning)",
)  # fmt: skip
COLUMNS = {
    **dict.fromkeys(("BilledCost", "ContractedCost", "EffectiveCost", "ListCost"), Column(MANDATORY, "decimal", False)),
    **dict.fromkeys(("BillingPeriodStart", "BillingPeriodEnd"), Column(MANDATORY, "datetime", False)),
    **dict.fromkeys(("ChargePeriodStart", "ChargePeriodEnd"), Column(MANDATORY, "datetime", False)),
    **dict.fromkeys(("BillingAccountId", "InvoiceIssuerName", "ProviderName", "PublisherName", "ServiceName"), NAMED),
    **dict.fromkeys(("BillingAccountName", "ChargeDescription", "PricingUnit"), MAY_BE_NULL),
    **dict.fromkeys(("ResourceId", "ResourceName", "ResourceType"), Column(CONDITIONAL, "string", True)),
    **dict.fromkeys(("SubAccountId", "SubAccountName", "ConsumedUnit"), Column(CONDITIONAL, "string", True)),
    "BillingCurrency": Column(MANDATORY, "currency", False),
    "ChargeCategory": Column(MANDATORY, "string", False, ("Usage", "Purchase", "Tax", "Credit", "Adjustment")),
    "ChargeClass": Column(MANDATORY, "string", True, ("Correction",)),
    "ChargeFrequency": Column(RECOMMENDED, "string", False, ("One-Time", "Recurring", "Usage-Based")),
    "ConsumedQuantity": Column(CONDITIONAL, "decimal", True),
    "InvoiceId": Column(RECOMMENDED, "string", True),
    "PricingQuantity": Column(MANDATORY, "decimal", True),
    "ServiceCategory": Column(MANDATORY, "string", False, CATEGORIES),
    "ServiceSubcategory": Column(RECOMMENDED, "string", False, AI_CATEGORIES),
    "Tags": Column(CONDITIONAL, "json", True),
}
TIME_UNITS = ("Years", "Months", "Days", "Hours", "Minutes", "Seconds")
"""Allowed time-based units of UnitFormat, as simple (plural) units."""
CUSTOM = re.compile(r"x_[A-Z][A-Za-z0-9]*")


def _is_decimal(text: str) -> bool:
    """NumericFormat: a sign, digits, a point, an exponent; no currency sign, no thousands."""
    return re.fullmatch(r"-?\d+(\.\d+)?([eE]-?\d+)?", text) is not None


def _is_datetime(text: str) -> bool:
    """DateTimeFormat: ISO 8601 in UTC, YYYY-MM-DDTHH:mm:ssZ."""
    if re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", text) is None:
        return False
    return bool(datetime.fromisoformat(text))


def _is_key_value(text: str) -> bool:
    """KeyValueFormat: one object of keys with numbers, texts, true, false or null."""
    found = json.loads(text)
    return isinstance(found, dict) and not any(isinstance(value, dict | list) for value in found.values())


FORMATS: dict[str, Callable[[str], bool]] = {
    "decimal": _is_decimal, "datetime": _is_datetime, "json": _is_key_value,
    "string": lambda text: text == text.strip(), "currency": lambda text: re.fullmatch(r"[A-Z]{3}", text) is not None,
}  # fmt: skip


def problems(text: str) -> list[str]:
    """What a data set breaks; none where it conforms."""
    table = csv.DictReader(io.StringIO(text))
    names = list(table.fieldnames or ())
    found = [f"{name}: mandatory, and missing" for name, column in COLUMNS.items()
             if column.level == MANDATORY and name not in names]  # fmt: skip
    if found:
        return found
    found += [f"{name}: no column of FOCUS, nor a custom one" for name in names
              if name not in COLUMNS and not CUSTOM.fullmatch(name)]  # fmt: skip
    custom = [name.startswith("x_") for name in names]
    found += ["custom columns stand before others"] if custom != sorted(custom) else []
    found += [f"{name}: longer than 50 characters" for name in names if len(name) > 50]
    for number, row in enumerate(table, 1):
        found += [f"row {number}: {problem}" for problem in (*_of_columns(row), *_between(row))]
    return found


def _of_columns(row: Row) -> list[str]:
    found = []
    for name, column in COLUMNS.items():
        value = row.get(name, "")
        if not value:
            found += [f"{name} is null"] if name in row and not column.null else []
        elif not FORMATS[column.kind](value):
            found.append(f"{name} is {value!r}, no {column.kind}")
        elif column.allowed and value not in column.allowed:
            found.append(f"{name} is {value!r}, which is not allowed")
    return found


def _between(row: Row) -> list[str]:
    """The MUSTs that tie columns together, for usage that is no correction."""
    rules = {
        "a charge of usage has a pricing quantity and unit": row["PricingQuantity"] and row["PricingUnit"],
        "consumption is positive and has a unit": Decimal(row["ConsumedQuantity"] or 0) > 0 and row["ConsumedUnit"],
        "units are plural time units": {row["PricingUnit"], row["ConsumedUnit"]} <= set(TIME_UNITS),
        "a charge period ends after it starts": row["ChargePeriodStart"] < row["ChargePeriodEnd"],
        "a billing period is a month": row["BillingPeriodStart"].endswith("-01T00:00:00Z")
        and row["BillingPeriodEnd"].endswith("-01T00:00:00Z"),
        "a charge lies in its billing period": row["BillingPeriodStart"] <= row["ChargePeriodStart"]
        and row["ChargePeriodEnd"] <= row["BillingPeriodEnd"],
        "a sub account has an id and a name, or neither": bool(row["SubAccountId"]) == bool(row["SubAccountName"]),
        "a resource has an id, a name and a type, or none": len(
            {bool(row[name]) for name in ("ResourceId", "ResourceName", "ResourceType")}
        ) == 1,
        "without discounts all costs are one": len(
            {row[name] for name in ("BilledCost", "EffectiveCost", "ContractedCost", "ListCost")}
        ) == 1,
    }  # fmt: skip
    return [rule for rule, holds in rules.items() if not holds]
