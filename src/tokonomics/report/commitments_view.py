"""Show what to commit to: the steps, the bill beside other ways to buy, and what the paths assume."""

from collections.abc import Iterable

from tokonomics.errors import option
from tokonomics.fleet.commitments import STEP_MONTHS, CommitmentReport, PathSpread
from tokonomics.fleet.offers import MachineKind
from tokonomics.report import blocks
from tokonomics.report.wording import machine_text, minus_text
from tokonomics.units import fine_percent, percent, plural, usd


def commitment_blocks(report: CommitmentReport) -> Iterable[blocks.Block]:
    """Show the steps, the ways to buy, and the assumptions."""
    yield blocks.line(*_headline(report), kind="headline")
    if report.steps:
        yield _steps(report)
    yield _ways(report)
    yield blocks.note(*_assumed(report))


def _named(kind: MachineKind) -> str:
    return machine_text(kind.provider, kind.instance, kind.gpu, kind.gpus, kind.region)


def _headline(report: CommitmentReport) -> Iterable[blocks.Piece]:
    ours, way = report.ways[0], report.elsewhere_way
    over = f"Over {plural(report.months, 'month')}"
    if report.best_elsewhere and report.elsewhere is not None and way is not None:
        yield f"{over}: reserve nothing, rent {_named(report.elsewhere)} on demand. Expected bill: "
        yield blocks.Span(f"{usd(way.usd_per_month)} a month", "best")
        yield f", {usd(way.worst_tenth_usd_per_month)} in the worst tenth. Of what can be reserved, the cheapest is "
        yield f"{_named(report.machine)}, {usd(ours.usd_per_month)} a month:"
        return
    today = [f"{step.machines} for {step.term}" for step in report.steps if not step.month]
    now = f"reserve {' and '.join(today)} now" if today else "reserve nothing now"
    yield f"{over} of {_named(report.machine)}: {now}. Expected bill: "
    yield blocks.Span(f"{usd(ours.usd_per_month)} a month", "best")
    when = ", each paid upfront" if report.paid_upfront else ""
    owed = f"; {usd(report.owed_usd)} owed in all{when}" if report.steps else ""
    yield f", {usd(ours.worst_tenth_usd_per_month)} in the worst tenth{owed}."


def _steps(report: CommitmentReport) -> blocks.Table:
    return blocks.listed(
        report.steps,
        ("!from", lambda step: "today" if not step.month else f"{step.date:%Y-%m}"),
        ("for", lambda step: step.term),
        (">machines", lambda step: f"{step.machines}"),
        (">GPUs", lambda step: f"{step.machines * report.machine.gpus}"),
        (">$/h each", lambda step: usd(step.usd_per_hour)),
        (">owed", lambda step: usd(step.usd_owed)),
        (">reserved then", lambda step: f"{report.reserved[step.month]}"),
        (">busiest hour needs", lambda step: _whole_span(report.peak_machines[step.month])),
        title="What to commit to, in which steps",
    )


def _ways(report: CommitmentReport) -> blocks.Table:
    ours = report.ways[0]

    def saved(own: float, its: float) -> str:
        return minus_text(1 - own / its) if its else ""

    elsewhere = (
        []
        if report.elsewhere_way is None or report.elsewhere is None
        else [
            report.elsewhere_way.model_copy(update={"note": f"{_named(report.elsewhere)}: no quote for a commitment"})
        ]
    )
    rows = [*report.ways, *elsewhere]
    return blocks.listed(
        rows,
        ("!ways to buy", lambda way: way.name),
        (">$/month", lambda way: usd(way.usd_per_month)),
        (">worst tenth", lambda way: usd(way.worst_tenth_usd_per_month)),
        (">plan saves", lambda way: "" if way is ours else saved(ours.usd_per_month, way.usd_per_month)),
        (">of worst tenth", lambda way: ""
            if way is ours else saved(ours.worst_tenth_usd_per_month, way.worst_tenth_usd_per_month)),
        ("note", lambda way: way.note),
        title=f"Mean of {plural(report.paths, 'path')}, and of the worst tenth of them",
        best=len(rows) - 1 if report.best_elsewhere else 0,
    )  # fmt: skip


def _whole_span(spread: PathSpread) -> str:
    low, high = f"{spread.low:.0f}", f"{spread.high:.0f}"
    return low if low == high else f"{low} to {high}"


def _assumed(report: CommitmentReport) -> Iterable[str]:
    price, speed, kind = report.end_price, report.speed, report.machine
    quoted = ", ".join(f"{usd(term.usd_per_hour)} for {term.name}" for term in report.terms)
    yield (
        f"A machine, {kind.replicas} × {kind.layout}: {usd(report.usd_per_hour)} an hour on demand, {quoted}. What is "
        "not reserved is rented on demand at each month's price; no spot. "
        f"{plural(report.compared, 'machine')} compared by their schedules."
    )
    if report.too_long:
        yield f"Not offered: {', '.join(report.too_long)}, which ends after the horizon ({option('horizon')})."
    yield (
        f"Prices: blocks of months as {report.prices_of} moved on demand from {report.prices_from:%Y-%m} to "
        f"{report.prices_until:%Y-%m}; in the last month {price.mid:.2f} of today's, in four of five paths "
        f"{price.low:.2f} to {price.high:.2f}. A later commitment costs today's quote, moved alike."
    )
    low, mid, high = (minus_text(rate) for rate in report.growth)
    noise = f", ± {percent(report.growth_noise)} in each month" if report.growth_noise else ""
    said = f"{mid} a month" if low == high else f"{low} to {high} a month, most likely {mid}"
    yield (
        f"Demand: the hours above, growing by {said}{noise} ({option('growth')}). Speed: {speed.low:.2f} to "
        f"{speed.high:.2f} of what is predicted in four of five paths. Machines: sized by simulation at the least "
        "and the largest demand of any path, and in between."
    )
    minimised = "the mean bill" if not report.caution else "the worst tenth of bills" if report.caution == 1 else (
        f"{fine_percent(1 - report.caution)} of the mean bill + {fine_percent(report.caution)} of its worst tenth"
    )  # fmt: skip
    yield (
        f"All steps are decided today, every {STEP_MONTHS} months, for the lowest of {minimised} "
        f"({option('caution')}); paid on other paths than they were decided on. Ask again before each step."
    )
