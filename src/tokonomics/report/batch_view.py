"""Batch work beside a fleet's own traffic, as a person reads it."""

from collections.abc import Iterable

from tokonomics.planner.batch_report import BatchReport
from tokonomics.report import blocks
from tokonomics.units import HOURS_PER_MONTH, count, percent, seconds, usd


def batch_blocks(report: BatchReport) -> Iterable[blocks.Block]:
    """The ways to have it done, what the fleet for both is made of, and whether the others notice."""
    work, best = report.work, report.ways[0]
    when = f"from hour {work.start_hour}, done {work.deadline_hours} h later"
    title = f"Batch work: {count(work.tokens_per_day)} tokens a day, {when}"
    rows = [
        (
            way.name,
            usd(way.usd_per_month),
            usd(way.usd_per_mtok),
            "" if way is best else _more(way.usd_per_month, best.usd_per_month),
            way.note,
        )
        for way in report.ways
    ]
    yield blocks.table(["!ways to do it", ">$/month", ">$/Mtok", ">best saves", "note"], rows, title, best=0)
    free = f"{percent(report.free_share)} of it fits into the hours that the fleet alone leaves idle"
    both, without = usd(report.plan.usd_per_month), usd(report.online_usd_per_month)
    yield blocks.line(f"{free}; the fleet for both costs {both} a month, without it {without}.")
    yield blocks.note(f"The fleet for both: {_bought(report)}.", *_checked(report))


def _more(usd_per_month: float, least: float) -> str:
    return percent(1 - least / usd_per_month) if usd_per_month > 0 else "0 %"


def _bought(report: BatchReport) -> str:
    hours, parts = report.plan.hours, []
    for purchase in report.plan.purchases:
        mean = f"{sum(purchase.by_hour) / hours:.3g} in the mean"
        parts.append(f"{purchase.terms.replace('_', ' ')} {purchase.offer}, {mean}")
    return "; ".join(parts)


def _checked(report: BatchReport) -> Iterable[str]:
    check = report.check
    if check is None:
        return
    delivered = ", ".join(
        f"{slo.slo} {'never' if slo.delivered_s is None else seconds(slo.delivered_s)} (≤ {seconds(slo.objective_s)})"
        for slo in check.slo
    )
    verdict = "the SLO is met" if all(slo.met for slo in check.slo) else "the SLO is missed"
    hour = f"hour {check.start_hour:.0f}, which holds the most batch work"
    yield f"In the simulator, {hour}, batch requests behind all others: {delivered} for the others; {verdict}."
    yield (
        "Batch requests have the lengths of the others. Beside them they may use what machines carry under the SLO, "
        f"which is cautious, since nobody waits for them. Month: {HOURS_PER_MONTH} hours."
    )
