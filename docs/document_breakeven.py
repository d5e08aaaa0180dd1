"""A published table of hosting against an API, recomputed: whole replicas, and the engineers that it leaves out."""

from tokonomics.catalog.api_hosts import find_api, hosts_of
from tokonomics.catalog.load_models import find_model
from tokonomics.money.breakeven import FleetKind, SelfHosted, bill_at, break_even, engineers, kind_of_equation
from tokonomics.money.trace_bills import ApiCost, api_bill, host_bills
from tokonomics.traffic.trace import make_trace
from tokonomics.units import count, usd

DOCUMENT = kind_of_equation("4×A100, 16 bits", 2.21, 4, 2400, 0.7)
OPTIMISED = kind_of_equation("2×A100, INT4", 2.21, 2, 1800, 0.7)
SMALL = kind_of_equation("7B on 1×A100", 2.21, 1, 2900, 0.7)
"""Prices, speeds and the planning utilisation as the article states them ("LLM Inference Cost: Tokens/Dollar")."""
SALARY = 200_000
"""Dollars a year: the middle of the article's $150–250K."""


HALF = make_trace([0.0], [1000], [1000])
"""The mix the article's bill stands for: as many tokens in as out."""
OPEN_HOST = host_bills(hosts_of(find_model("llama-3.3-70b"), "llama-3.3-70b"), HALF)[0].name
"""The cheapest host of the very model that would be hosted."""


def half_and_half(name: str) -> ApiCost:
    """An API's price for that mix."""
    return api_bill(find_api(name), HALF)


def document_break_even(kind: FleetKind, api: str, salary: float | None = None) -> str:
    """Tokens a month from which on the fleet stays cheaper."""
    extras = () if salary is None else (engineers(1, salary / 12),)
    found = break_even(SelfHosted(kinds=(kind,), extras=extras), api, half_and_half(api).usd_per_mtok)
    return "never" if found.stays_tokens_per_month is None else f"from {count(found.stays_tokens_per_month)}"


def document_bills() -> str:
    """Markdown: stated and ours, at one and at ten billion tokens."""
    api = half_and_half("openai:gpt-4o")
    stated = {
        "GPT-4o": ("$6,250", "$62,500"),
        DOCUMENT.name: ("$6,453", "$6,453"),
        OPTIMISED.name: ("$3,024", "$4,966"),
    }
    lines = [
        "| | stated, 1 B | ours, 1 B | stated, 10 B | ours, 10 B | replicas at 10 B |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    ours = [usd(api.usd_per_mtok * volume / 1e6) for volume in (1e9, 1e10)]
    lines.append(
        f"| GPT-4o, half input, half output | {stated['GPT-4o'][0]} | {ours[0]} | {stated['GPT-4o'][1]} | {ours[1]} | – |"
    )
    for kind, people in ((DOCUMENT, 1), (OPTIMISED, 2)):
        hosted = SelfHosted(kinds=(kind,))
        small, large = (bill_at(hosted, {}, volume) for volume in (1e9, 1e10))
        first, second = stated[kind.name]
        lines.append(
            f"| {kind.name} | {first} | {usd(small.hosted_usd)} | {second} | {usd(large.hosted_usd)} | {large.replicas} |"
        )
        staffed = hosted.model_copy(update={"extras": (engineers(people, SALARY / 12),)})
        bills = [usd(staffed.usd(volume)) for volume in (1e9, 1e10)]
        name = f"{kind.name}, with {people} engineer{'s' * (people > 1)} at ${SALARY // 1000}K a year"
        lines.append(f"| {name} | – | {bills[0]} | – | {bills[1]} | {large.replicas} |")
    return "\n".join(lines)
