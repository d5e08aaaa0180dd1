"""What the cheapest host of a model would ask for batch work."""

from tokonomics.catalog.api_hosts import hosts_of
from tokonomics.catalog.models import ModelSpec
from tokonomics.money.api_bill import host_bills
from tokonomics.money.batch_work import BatchWork
from tokonomics.planner.batch_report import BatchWay, batch_way
from tokonomics.traffic.trace import Trace
from tokonomics.units import DAY_S, HOURS_PER_MONTH, SECONDS_PER_HOUR, TOKENS_PER_MTOK


def batch_api(model: ModelSpec, name: str, sample: Trace, work: BatchWork) -> BatchWay | None:
    """The cheapest of its hosts, at the batch price where one is quoted and else at the list's; None where nobody
    hosts it.

    Batch prices are for answers within a day: for a nearer deadline list prices count alone.
    """
    hosts = hosts_of(model, name)
    if not hosts:
        return None
    within_a_day = work.deadline_hours * SECONDS_PER_HOUR >= DAY_S
    best = min(host_bills(hosts, sample, batch=within_a_day), key=lambda bill: bill.usd_per_mtok)
    quoted = best.name.endswith("(batch)")
    why = "it quotes no batch price" if within_a_day else "batch prices are for answers within a day"
    said = "its batch price" if quoted else f"its list price: {why}"
    usd = best.usd_per_mtok * work.tokens_per_day * HOURS_PER_MONTH / 24 / TOKENS_PER_MTOK
    kind = "batch API" if quoted else "API"
    return batch_way(f"{best.name.removesuffix(' (batch)')}, {kind}", usd, work, said)
