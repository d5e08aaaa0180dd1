"""A fleet: what to buy first, the bill, other ways to buy, the replay, scaling, batch work, and the word on spot."""

import math
from collections.abc import Iterable, Sequence
from functools import partial

from tokonomics.catalog.offers import UNSPECIFIED, Terms
from tokonomics.errors import option
from tokonomics.fleet.batch_report import BatchReport
from tokonomics.fleet.design import FleetReport
from tokonomics.fleet.offers import MachineKind
from tokonomics.fleet.replay import FleetReplay
from tokonomics.fleet.scaling import ROOMS, ScalingReport, ScalingWay
from tokonomics.money.purchases import NO_SAVING, FleetPlan, FleetPurchase
from tokonomics.money.spot_machines import ADVISOR, SpotVerdict
from tokonomics.questions.request import Request
from tokonomics.questions.results import FleetResult
from tokonomics.report import blocks, charts
from tokonomics.report.answer import Answer
from tokonomics.report.wording import (
    OLD_PRICE,
    aged_since,
    delivered_text,
    gap_text,
    minus_text,
    quoted_on,
    slos_text,
    span_text,
    speed_word,
    usd_text,
)
from tokonomics.serving.outcome import SloOutcome
from tokonomics.sizing.buy import ASSUMED
from tokonomics.units import HOURS_PER_MONTH, count, fine_percent, percent, plural, requests_a_second, seconds, usd

_WIDE = 0.05
"""A gap from which on more time may well find a cheaper fleet."""


def fleet(result: FleetResult, request: Request) -> Answer:
    """What to buy, how it compares, and how it fared in the simulator."""
    drawn = {"What runs hour by hour": lambda: charts.bills.fleet_chart(result, _in_order(result))}
    return Answer(result, f"The fleet for {result.model}", partial(_sections, result), drawn)


def _in_order(report: FleetReport) -> list[FleetPurchase]:
    """Commitments first, spot last; within the same terms the larger bill first."""
    terms = (Terms.reserved, Terms.on_demand, Terms.spot)
    return sorted(report.plan.purchases, key=lambda purchase: (terms.index(purchase.terms), -purchase.usd))


def _terms(purchase: FleetPurchase) -> str:
    return purchase.terms.replace("_", " ")


def _sections(report: FleetResult) -> blocks.View:
    if report.slos and any(not replay.met for replay in report.replays[:1]):
        yield blocks.line("This fleet does not meet its SLO: see the replay below.", kind="worst")
    yield blocks.section(*_asked(report))
    yield blocks.section(*_headline(report))
    yield _purchases(report)
    yield _comparisons(report)
    if report.replays:
        yield blocks.section(_replays(report.replays), _proof(report))
    if report.not_replayed:
        yield blocks.hint(f"Not tried in the simulator: {report.not_replayed}.")
    if report.scaling:
        yield blocks.section(*scaling_blocks(report.scaling, report.plan.usd_per_month))
    if report.batch_work:
        yield blocks.section(*batch_blocks(report.batch_work))
    if report.verdict:
        yield blocks.section(*_verdict(report, report.verdict))
    yield _notes(report)
    if report.refused:
        refused = blocks.table(["!layout", "because"], [(name, why.marked) for name, why in report.refused.items()])
        yield blocks.section(refused, title="Layouts left out", folded=True)


def _asked(report: FleetReport) -> Iterable[blocks.Line]:
    hours, targets = report.plan.hours, slos_text(report.slos)
    span = f"{hours // 24} days" if hours % 24 == 0 and hours >= 48 else plural(hours, "hour")
    batch = f"no SLO ({option('slo')}), so taken as batch work: it may wait, and all of it may be on spot"
    slos = f"SLO: {targets}" if targets else batch
    yield blocks.line(f"{report.model} ({report.deployed}), {report.traffic}; {slos}", kind="asked")
    mean, peak = count(report.mean_requests_per_s), count(report.peak_requests_per_s)
    yield blocks.line(f"{span} of demand: {requests_a_second(mean)} in the mean, {peak} at the peak", kind="asked")
    if len(report.classes) > 1:
        means = "; ".join(
            f"{name}: {requests_a_second(count(rate))} in the mean" for name, rate in report.classes.items()
        )
        yield blocks.line(f"{means}; the SLO is met for each", kind="asked")
    if report.left_out_share:
        left_out = f"{percent(report.left_out_share)} of the requests are left out: longer than the model's context"
        yield blocks.line(left_out, kind="asked")


def _headline(report: FleetReport) -> Iterable[blocks.Block]:
    plan, spot = report.plan, _has_spot(report)
    bill, bad = plan.usd_per_month, plan.p99_usd_per_month
    bought = (f"{_terms(row)} {report.kind(row.offer).instance}" for row in _in_order(report))
    machines = " + ".join(dict.fromkeys(bought))
    said = f", {machines}{aged_since(*(report.kind(row.offer).price_date for row in plan.purchases))}"
    yield blocks.line("Expected bill: ", blocks.Span(f"{usd(bill)} a month", "best"), said, kind="headline")
    simple, committed = plan.beaten, report.committed_usd
    reached, available = report.availability, report.availability.share
    room = f", room for {plural(reached.spare_machines, 'machine')} to fail" if reached.spare_machines else ""
    asked = "" if reached.target is None else f" (asked for: {reached.target:.12g}{room})"
    # A share that rounds to all of it is not all of it.
    nines = "> 99.999 %" if 0.99999 < available < 1 else f"{available * 100:.3f} %"
    missing = (1 - available) * HOURS_PER_MONTH * 60
    minutes = f"{count(float(f'{missing:.2g}'))} minutes" if missing >= 0.01 else "less than 0.01 minutes"
    short = f"of the time; short of the demand for {minutes} a month{asked}"
    yield blocks.facts(
        blocks.fact("bill", f"{usd(bill)}/month", "expected", number=bill),
        blocks.fact("bad month", f"{usd(bad)}/month", "99 of 100 stay under it", number=bad) if spot else None,
        blocks.fact("saves", percent(simple.saved_share or 0), f"against {simple.name}", number=simple.saved_share,
                    less="worse") if simple else None,
        blocks.fact("available", nines, short, number=available, less="worse"),
        blocks.fact("machines", f"{max(plan.machines())}", "at once, at the most"),
        blocks.fact("committed", usd(committed), "owed in all for what is reserved, to its end") if committed else None,
    )  # fmt: skip
    if report.slos and not report.bought_again:
        lost = report.limits.max_zone_share
        taken = f"a zone that goes takes up to {percent(lost)} of the demand with it, and the SLO is missed then"
        so = taken if lost else "the rest carries the demand without any one zone"
        yield blocks.line(f"What spot takes back is not bought again: {so}.")


def _has_spot(report: FleetReport) -> bool:
    return any(purchase.terms is Terms.spot for purchase in report.plan.purchases)


def _purchases(report: FleetReport) -> blocks.Table:
    plan = report.plan
    total = plan.usd_per_month or 1.0
    rows = []
    for purchase in _in_order(report):
        kind = report.kind(purchase.offer)
        mean, hours = sum(purchase.by_hour) / plan.hours, purchase.by_hour
        buy = f"{_terms(purchase)} {purchase.place or ''}".strip()
        region = "" if kind.region == UNSPECIFIED else f", {kind.region}"
        machine = f"{kind.provider} {kind.instance}{region}{'†' if kind.price_stale else ''}"
        runs = [f"{kind.gpus}×{kind.gpu}", f"{kind.replicas:,} × {kind.layout}"]
        machines = [f"{min(hours)}", f"{mean:.3g}" if mean < 1000 else f"{mean:.0f}", f"{max(hours)}"]
        prices = [usd(purchase.usd_per_hour), usd(purchase.usd_per_month), percent(purchase.usd_per_month / total)]
        carried, speed = count(purchase.requests_per_s), speed_word(kind.speed, kind.speed_from)
        rows.append([buy, machine, *runs, *machines, carried, *prices, speed])
    columns = ["!buy", "machine", "!GPUs", "!replicas", ">least", ">mean", ">most", ">req/s", ">$/h", ">$/month"]
    return blocks.table([*columns, ">of bill", "speed"], rows)


def _comparisons(report: FleetReport) -> blocks.Table:
    plan = report.plan
    rows = [("this plan", usd(plan.usd_per_month), "", "")]
    for row in plan.comparisons:
        said = row.note if row.usd_per_month else "impossible with these offers"
        share = row.saved_share
        saved = "" if share is None else "0 %" if abs(share) <= NO_SAVING else minus_text(share)
        rows.append((row.name, usd_text(row.usd_per_month), saved, said))
    return blocks.table(["!ways to buy", ">$/month", ">plan saves", "note"], rows, best=0)


def _replays(replays: Sequence[FleetReplay]) -> blocks.Table:
    rows: list[list[blocks.Piece]] = []
    for replay in replays:
        answered = percent(replay.answered_share) if replay.answered_share < 0.99995 else "all"
        rows.append([replay.name, replay.what, *_judged(replay.slo), answered, f"{replay.restarts:,}"])
    first = replays[0]
    begin = f"hour {first.start_hour:.3g}" if first.start_hour % 1 else f"hour {first.start_hour:.0f}"
    length = f"{first.hours:.0f} h" if first.hours >= 1 else f"{first.hours * 60:.0f} min"
    limits = [f">{slo.slo} ≤ {seconds(slo.objective_s)}" for slo in first.slo]
    title = f"In the simulator: {count(first.requests)} requests, {length} from {begin}, about the busiest hour"
    return blocks.table(["!replay", "what happens", *limits, ">answered", ">begun again"], rows, title)


def _judged(slos: Iterable[SloOutcome]) -> Iterable[blocks.Span]:
    """What was delivered of each SLO."""
    return (blocks.Span(delivered_text(slo), "good" if slo.met else "worst") for slo in slos)


def _proof(report: FleetReport) -> blocks.Line:
    """What the replay says, and what to do about it."""
    calm, loss = report.replays
    if not report.slos:
        return blocks.note("No SLO was set, so none could be missed.")
    if not calm.met:
        counted = f"counting on {percent(report.counted_share)} of what machines were measured to carry"
        loosen = f"loosen {option('slo')}, or plan for a larger {option('demand')}"
        return blocks.line(f"The SLO is missed even undisturbed, {counted}: {loosen}.", kind="bad")
    if loss.met:
        return blocks.line("The SLO is met, with the loss as well.", kind="good")
    spread = f"{option('max_zone_share', 0)} or " if _has_spot(report) and report.limits.max_zone_share else ""
    often = count(float(f"{loss.expected_per_month:.2g}"))
    missed = f"With the loss, expected {often} times a month, it is missed for that hour"
    nines = min(12, math.floor(-math.log10(max(1 - report.availability.share, 1e-12))) + 1)  # one more than it reaches
    nine_more = option("availability", "0." + "9" * nines)
    return blocks.hint(f"The SLO is met undisturbed. {missed}: {spread}{nine_more} buys room for that.")


def _verdict(report: FleetReport, verdict: SpotVerdict) -> Iterable[blocks.Line]:
    yield blocks.line("Spot for this workload: ", blocks.Span(verdict.suitability.value, "strong"))
    for reason in verdict.reasons:
        text = f"  {'+' if reason.speaks_for else '−'} {reason.text}"
        yield blocks.line(blocks.Span(text, "good" if reason.speaks_for else "warn"))
    limit = percent(report.limits.max_spot_share)
    yield blocks.note(f"  Limit on spot: {limit} of any hour's demand (by {report.spot_share_by.marked}).")


def _notes(report: FleetResult) -> blocks.Line:
    plan, machines = report.plan, len(report.machines)
    bought = [report.kind(purchase.offer) for purchase in plan.purchases]
    starts = sorted({kind.startup_s for kind in bought})
    counted = percent(report.counted_share)
    spare = report.availability.spare_machines
    proven_for = "machines no larger, with that room for failures," if spare else "these machines"
    proven_for += " for the demand without batch work" if report.batch_work else ""
    longer = f", as far as proven: {option('time_limit')} gives it longer" if plan.gap > _WIDE else ""
    return blocks.note(
        f"Solved in {plan.solve_s:.1f} s over {count(plan.variables)} variables: no fleet of {proven_for} is cheaper "
        f"by more than {gap_text(plan.gap)}{longer}.",
        f"Chosen from {plural(machines, 'machine')}, their replicas sized by simulation as a plan sizes them. Machines "
        "are bought whole; req/s is what one is counted on for in the busiest hour, and less where fewer run. All have "
        f"one precision, the cheapest of those that a plan tries ({option('weights')}).",
        _served_as(bought),
        f"Counted on for {counted} of what was measured: with more the fleet missed its SLO in the simulator."
        if report.counted_share < 1
        else "",
        f"A machine serves {' to '.join(dict.fromkeys(map(seconds, (starts[0], starts[-1]))))} after it is ordered "
        f"({option('startup')}), and that is paid for as well: "
        f"{percent(plan.startup_usd / plan.expected_usd)} of the bill."
        if starts and plan.expected_usd
        else "",
        _spot_note(report) if _has_spot(report) else "",
        "Capacity falls short where machines fail and spot zones go; outages of a provider are not in it.",
        f"{f'{quoted_on(kind.price_date for kind in bought)}. ' if bought else ''}Month: {HOURS_PER_MONTH} hours.",
        OLD_PRICE if any(kind.price_stale for kind in bought) else "",
        _place(report, bought),
    )


def _served_as(bought: Sequence[MachineKind]) -> str:
    """How replicas must be deployed to carry what they are counted on for."""

    def text(kind: MachineKind) -> str:
        limit = f", at most {kind.max_sequences} sequences at a time" if kind.max_sequences else ""
        return f"{kind.gpu} {kind.layout} behind a {kind.router} router{limit}"

    return f"Counted on and simulated as: {'; '.join(dict.fromkeys(map(text, bought)))}." if bought else ""


def _place(report: FleetReport, bought: Sequence[MachineKind]) -> str:
    places, anywhere = sorted({kind.where for kind in bought}), option("anywhere")
    if len(places) > 1:
        return f"It spans {', '.join(places)}: without {anywhere} it stays in one region."
    cheapest = f"All in the region where it is cheapest: {anywhere} mixes providers and regions."
    return cheapest if report.chosen_place else ""


def _spot_note(report: FleetReport) -> str:
    told = {purchase.interruptions_by for purchase in report.plan.purchases if purchase.terms is Terms.spot}
    assumed = f"assumed, as in the median of AWS's bands ({option('interruptions')})"
    said = {ADVISOR: "those of AWS's advisor", "given": "as given", ASSUMED: assumed}
    by_whom = " and ".join(text for name, text in said.items() if name in told)
    back = "bought on demand" if report.bought_again else "missing"
    return (
        f"Spot: the price is the median of 30 days on AWS, elsewhere the list's; interruptions are {by_whom}. What is "
        f"taken back is {back} until spot returns."
    )


# --- ways to follow a day's traffic ----------------------------------------------------------------------------------


def scaling_blocks(scaling: ScalingReport, plan_usd: float) -> Iterable[blocks.Block]:
    """The table of ways, which is the cheapest, how its bill relates to the plan's, and what stands behind it."""
    yield _scaling_ways(scaling)
    yield _cheapest_way(scaling)
    if (best := scaling.best()) is not None:
        yield blocks.line(_to_buy(best, scaling.best(Terms.on_demand), plan_usd))
    yield blocks.note(*_scaling_notes(scaling))


def _scaling_ways(scaling: ScalingReport) -> blocks.Table:
    first, best = scaling.ways[0], scaling.best()
    limits = [f">{slo.slo} ≤ {seconds(slo.objective_s)}" for slo in first.slo]
    head = ["!way to scale", ">$/day", ">$/month", ">room", ">replicas", ">starts", ">short", ">lag", *limits]
    length = f"{scaling.hours:.0f} h" if scaling.hours >= 1.5 else f"{scaling.hours * 60:.0f} min"
    title = (
        f"Following the traffic with {scaling.machine}: {count(scaling.requests)} requests, {length}, {scaling.traffic}"
    )
    place = None if best is None else scaling.ways.index(best)
    return blocks.table([*head, ">within SLO"], [_scaling_row(way) for way in scaling.ways], title, best=place)


def _scaling_row(way: ScalingWay) -> list[blocks.Piece]:
    replicas = span_text(way.least_replicas, way.most_replicas)
    lag = "–" if way.lag_s is None else "none" if not way.most_lag_s else seconds(way.lag_s)
    short = "none" if not way.short_minutes else f"{way.short_minutes:.3g} min"
    within = fine_percent(way.slo_attainment) if way.slo_attainment < 0.99995 else "all"
    bills = usd(way.usd_per_day), usd(way.usd_per_month)
    return [way.name, *bills, minus_text(way.room), replicas, f"{way.starts}", short, lag, *_judged(way.slo), within]


def _cheapest_way(scaling: ScalingReport) -> blocks.Line:
    """Which way is cheapest, and what is left for a better forecast."""
    best, perfect, scaled = scaling.best(), scaling.perfect, scaling.best(Terms.on_demand)
    if best is None:
        larger = f"{option('scaling_room')} gives more room, {option('startup')} a shorter start"
        return blocks.line(f"No way to scale meets the SLO on this day: {larger}.", kind="bad")
    said = ""
    if scaled is not None:
        left = 1 - perfect.usd_per_month / scaled.usd_per_month
        more = f"would save {percent(left)} more" if perfect.met and left > 0.0005 else "would save nothing more"
        of_those = "" if scaled is best else f" On demand {scaled.name} is, {usd(scaled.usd_per_month)}."
        said = f".{of_those} A perfect forecast {more}"
    bill = blocks.Span(f"{best.name}, {usd(best.usd_per_month)} a month", "best")
    return blocks.line("Cheapest that meets the SLO: ", bill, f"{said}.")


def _to_buy(best: ScalingWay, scaled: ScalingWay | None, plan_usd: float) -> str:
    """Which of the two bills on the page to pay, and what the other is for."""
    plan = f"the plan above ({usd(plan_usd)} a month)"
    if round(best.usd_per_month, 2) < round(plan_usd, 2):
        saved = usd(plan_usd - best.usd_per_month)
        return (
            f"What to buy: {plan}, sized for the SLO in every hour. {best.name.capitalize()} "
            f"({usd(best.usd_per_month)}) met it over this one day, none failing: buy it only if the SLO on a worse "
            f"day is worth less to you than the {saved} between them."
        )
    follow = f"; this table says how to follow the traffic with what is on demand: {scaled.name}" if scaled else ""
    return f"What to buy: {plan}, which mixes machines and terms; no way here is cheaper{follow}."


def _scaling_notes(scaling: ScalingReport) -> Iterable[str]:
    forecast = scaling.forecast
    yield (
        f"Forecast: {forecast.method}, made {seconds(forecast.ahead_s)} ahead; off by {percent(forecast.error_share)} "
        f"(weighted MAPE), bias {minus_text(forecast.bias_share)}."
    )
    yield (
        f"A replica costs {usd(scaling.usd_per_hour)} an hour on demand, carries {count(scaling.requests_per_s)} "
        f"requests/s and serves {seconds(scaling.cold_start_s)} after it is ordered ({option('startup')})."
    )
    yield (
        "room: above the peak, the target of the rule or the forecast: what met the SLO before the time judged here, "
        f"and a step more ({option('scaling_room')} sets it); a way may still miss it now. That of a perfect forecast "
        f"is the least that meets it now; {percent(ROOMS[-1])} is the most that is tried. short: time with fewer "
        "serving than a perfect forecast shows to be enough; lag: from such a need to as many serving, in the mean."
    )
    if scaling.replicas_per_machine > 1:
        yield f"Replicas are scaled one by one: each pays its part of a machine of {scaling.replicas_per_machine}."
    if scaling.simulated_share < 1:
        yield (
            f"Simulated: {percent(scaling.simulated_share)} of the requests on as much smaller a fleet, whose machines "
            f"are coarser steps; dollars are those of all. replicas and starts are "
            "those simulated."
        )


# --- batch work beside the fleet's own traffic -----------------------------------------------------------------------


def batch_blocks(report: BatchReport) -> Iterable[blocks.Block]:
    """The ways to have it done, what the fleet for both is made of, and whether the others notice."""
    work, best = report.work, report.ways[0]
    when = f"from hour {work.start_hour}, done {work.deadline_hours} h later"
    title = f"Batch work: {count(work.tokens_per_day)} tokens a day, {when}"
    rows = []
    for way in report.ways:
        less = percent(1 - best.usd_per_month / way.usd_per_month) if way.usd_per_month > 0 else "0 %"
        rows.append((way.name, usd(way.usd_per_month), usd(way.usd_per_mtok), "" if way is best else less, way.note))
    yield blocks.table(["!ways to do it", ">$/month", ">$/Mtok", ">best saves", "note"], rows, title, best=0)
    free = f"{percent(report.free_share)} of it fits into the hours that the fleet alone leaves idle"
    both, without = usd(report.usd_per_month), usd(report.online_usd_per_month)
    machines = "one fleet for both" if report.own is None else "two fleets"
    yield blocks.line(f"{free}. On machines of one's own, {machines}: {both} a month in all, without it {without}.")
    yield blocks.note(*_fleets(report), *_checked(report))


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
        parts.append(f"{_terms(purchase)} {purchase.offer}, {mean}")
    return "; ".join(parts)


def _checked(report: BatchReport) -> Iterable[str]:
    check = report.check
    if check is None:
        return
    delivered = ", ".join(f"{slo.slo} {delivered_text(slo)} (≤ {seconds(slo.objective_s)})" for slo in check.slo)
    verdict = "the SLO is met" if all(slo.met for slo in check.slo) else "the SLO is missed"
    hour = f"hour {check.start_hour:.0f}, which holds the most batch work"
    yield f"In the simulator, {hour}, batch requests behind all others: {delivered} for the others; {verdict}."
    yield (
        "Batch requests have the lengths of the others. Beside them they may use what machines carry under the SLO, "
        f"which is cautious, since nobody waits for them. Month: {HOURS_PER_MONTH} hours."
    )
