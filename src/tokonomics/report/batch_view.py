"""Batch work beside a fleet's own traffic, as a person reads it."""

from collections.abc import Iterable

from tokonomics.money.fleet import FleetPlan
from tokonomics.planner.batch_report import BatchReport
from tokonomics.report import blocks
from tokonomics.report.wording import gap_text
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
    both, without = usd(report.usd_per_month), usd(report.online_usd_per_month)
    machines = "one fleet for both" if report.own is None else "two fleets"
    yield blocks.line(f"{free}. On machines of one's own, {machines}: {both} a month in all, without it {without}.")
    yield blocks.note(*_fleets(report), *_checked(report))


def _more(usd_per_month: float, least: float) -> str:
    return percent(1 - least / usd_per_month) if usd_per_month > 0 else "0 %"


def _fleets(report: BatchReport) -> Iterable[str]:
    """What to buy for it on machines of one's own, and among which fleets that is the cheapest."""
    if report.own is None:
        yield f"The fleet for both: {_bought(report.plan)}."
        yield f"No fleet that serves both together is cheaper by more than {gap_text(report.plan.gap)}."
        return
    where = "in idle hours of the fleet above, then on" if report.plan.batch else "on"
    yield f"Batch work {where} a fleet of its own: {_bought(report.own)}."
    yield (
        f"No other fleet of its own is cheaper by more than {gap_text(report.own.gap)}; one fleet for both is dearer, "
        "since there batch work gets no more than machines carry under the SLO."
    )


def _bought(plan: FleetPlan) -> str:
    parts = []
    for purchase in plan.purchases:
        mean = f"{sum(purchase.by_hour) / plan.hours:.3g} in the mean"
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
