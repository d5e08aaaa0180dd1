"""What the cheapest host of a model would ask for batch work."""

from tokonomics.catalog.api_hosts import hosts_of
from tokonomics.catalog.models import ModelSpec
from tokonomics.money.api_bill import ApiBill, host_bills
from tokonomics.money.batch_work import BatchWork
from tokonomics.planner.batch_report import BatchWay, batch_way
from tokonomics.traffic.trace import Trace
from tokonomics.units import DAY_S, HOURS_PER_MONTH, SECONDS_PER_HOUR, TOKENS_PER_MTOK

_HALF = 0.5
"""Of the list price, where a host quotes no batch price: what most that sell batches ask, for answers within a day
(https://www.together.ai/blog/batch-api of 2025-06-11; https://openrouter.ai/blog/announcements/batch-api: "generally
50 %"; both read on 2026-11-17)."""


def batch_api(model: ModelSpec, name: str, sample: Trace, work: BatchWork) -> BatchWay | None:
    """The cheapest batch price of its hosts, quoted or half of the list's; None where nobody hosts it.

    Hosts answer within a day: for a nearer deadline they have no offer.
    """
    hosts = hosts_of(model, name)
    if not hosts or work.deadline_hours * SECONDS_PER_HOUR < DAY_S:
        return None

    def usd_per_mtok(bill: ApiBill) -> float:
        return bill.usd_per_mtok * (1 if bill.name.endswith("(batch)") else _HALF)

    best = min(host_bills(hosts, sample, batch=True), key=usd_per_mtok)
    quoted = best.name.endswith("(batch)")
    said = "its batch price" if quoted else "half of its list price, assumed: it quotes no batch price"
    usd = usd_per_mtok(best) * work.tokens_per_day * HOURS_PER_MONTH / 24 / TOKENS_PER_MTOK
    return batch_way(f"{best.name.removesuffix(' (batch)')}, batch API", usd, work, said)
