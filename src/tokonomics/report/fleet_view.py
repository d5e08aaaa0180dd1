"""Show a fleet: what to buy first, the bill, other ways to buy, the replay, scaling, batch work, and notes on spot."""

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from tokonomics.catalog.offers import UNSPECIFIED, Terms
from tokonomics.errors import option
from tokonomics.fleet.design import BatchReport, FleetReport
from tokonomics.fleet.offers import MachineKind
from tokonomics.fleet.replay import FleetReplay
from tokonomics.fleet.scaling import ROOMS, ScalingReport, ScalingWay
from tokonomics.money.purchases import NO_SAVING, FleetPurchase
from tokonomics.money.spot_machines import ADVISOR, SpotVerdict
from tokonomics.questions.fleet import FleetResult
from tokonomics.questions.request import Request
from tokonomics.report import blocks, charts
from tokonomics.report.answer import Answer
from tokonomics.report.commitments_view import commitment_blocks
from tokonomics.report.wording import (
    OLD_PRICE,
    aged_since,
    delivered_text,
    gap_text,
    machine_text,
    minus_text,
    provider_text,
    quoted_on,
    slos_text,
    span_text,
    speed_word,
    usd_text,
)
from tokonomics.serving.outcome import SloOutcome
from tokonomics.sizing.buy import ASSUMED
from tokonomics.units import HOURS_PER_MONTH, count, fine_percent, percent, plural, requests_a_second, seconds, usd

_WIDE = 0.05  # with a larger gap, more time may well find a cheaper fleet


def fleet(result: FleetResult, request: Request) -> Answer:
    """Show what to buy, how it compares, and how it did in the simulator."""
    drawn = {"What runs hour by hour": lambda: charts.bills.fleet_chart(result, _in_order(result))}
    return Answer(result, f"The fleet for {result.model}", partial(_sections, result), drawn)


def _in_order(report: FleetReport) -> list[FleetPurchase]:
    """Order commitments first, spot last; within the same terms the larger bill first."""
    terms = (Terms.reserved, Terms.on_demand, Terms.spot)
    return sorted(report.plan.purchases, key=lambda purchase: (terms.index(purchase.terms), -purchase.usd))


def _terms(purchase: FleetPurchase) -> str:
    return purchase.terms.replace("_", " ")


def _terms_and_place(purchase: FleetPurchase) -> str:
    """Say for how many years machines are reserved, or in which region spot ones are."""
    place = purchase.place or ""
    return f"{_terms(purchase)} {place if purchase.terms is Terms.reserved else place.partition(' ')[2]}".strip()


def _sections(report: FleetResult) -> blocks.View:
    if report.slos and any(not replay.met for replay in report.replays[:1]):
        yield blocks.line("This fleet does not meet its SLO: see the replay below.", kind="worst")
    yield blocks.section(*_asked(report))
    if report.commitments:
        yield blocks.section(*commitment_blocks(report.commitments))
        yield blocks.line(
            "The fleet below is the cheapest for today's demand at today's prices. It may reserve without weighing "
            "that demand, prices and speed will change: to decide what to reserve, use the answer above."
        )
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
    slos = f"SLO: {targets}" if targets else f"no SLO ({option('slo')}), so taken as batch work that may wait"
    mean, peak = count(report.mean_requests_per_s), count(report.peak_requests_per_s)
    yield blocks.line(f"{report.model} ({report.deployed}), {report.traffic}; {slos}", kind="asked")
    yield blocks.line(f"{span} of demand: {requests_a_second(mean)} in the mean, {peak} at the peak", kind="asked")
    if len(report.classes) > 1:
        means = "; ".join(f"{name}: {requests_a_second(count(rate))}" for name, rate in report.classes.items())
        yield blocks.line(f"In the mean {means}; the SLO is met for each", kind="asked")
    if report.left_out_share:
        left_out = f"{percent(report.left_out_share)} of the requests are left out: longer than the model's context"
        yield blocks.line(left_out, kind="asked")


def _headline(report: FleetReport) -> Iterable[blocks.Block]:
    plan, spot = report.plan, _has_spot(report)
    bill, bad = plan.usd_per_month, plan.p99_usd_per_month
    bought = (f"{_terms(row)} {kind_text(report.kind(row.offer))}" for row in _in_order(report))
    machines = " + ".join(dict.fromkeys(bought))
    said = f", {machines}{aged_since(*(report.kind(row.offer).price_date for row in plan.purchases))}"
    yield blocks.line("Expected bill: ", blocks.Span(f"{usd(bill)} a month", "best"), said, kind="headline")
    simple, committed = plan.beaten, report.committed_usd
    reached, available = report.availability, report.availability.share
    room = f", room for {plural(reached.spare_machines, 'machine')} to fail" if reached.spare_machines else ""
    asked = "" if reached.target is None else f" (asked for: {reached.target:.12g}{room})"
    # A share that rounds to 100 % is not all of it.
    nines = "> 99.999 %" if 0.99999 < available < 1 else f"{available * 100:.3f} %"
    missing = (1 - available) * HOURS_PER_MONTH * 60
    minutes = f"{count(float(f'{missing:.2g}'))} minutes" if missing >= 0.01 else "less than 0.01 minutes"
    replaced = seconds(max((report.kind(row.offer).startup_s for row in plan.purchases), default=0.0))
    fails = "GPUs that fail and spot that is taken back" if spot else "GPUs that fail"
    counts = f"counts {fails}, replaced in {replaced}; not outages, updates or sold-out machines"
    short = f"of the time; short of the demand for {minutes} a month{asked}. It {counts}"
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


def kind_text(kind: MachineKind, region: str = UNSPECIFIED) -> str:
    """Return ``AWS g6.xlarge, L4``, with its region if one is named."""
    return machine_text(kind.provider, kind.instance, kind.gpu, kind.gpus, region)


def _has_spot(report: FleetReport) -> bool:
    return any(purchase.terms is Terms.spot for purchase in report.plan.purchases)


def _purchases(report: FleetReport) -> blocks.Table:
    total, hours = report.plan.usd_per_month or 1.0, report.plan.hours
    return blocks.listed(
        [(row, report.kind(row.offer)) for row in _in_order(report)],
        ("!buy", lambda row: _terms_and_place(row[0])),
        ("machine", lambda row: f"{kind_text(row[1], row[1].region)}{'†' if row[1].price_stale else ''}"),
        ("!replicas", lambda row: f"{row[1].replicas:,} × {row[1].layout}"),
        (">least", lambda row: f"{min(row[0].by_hour)}"),
        (">mean", lambda row: f"{sum(row[0].by_hour) / hours:.3g}"),
        (">most", lambda row: f"{max(row[0].by_hour)}"),
        (">req/s", lambda row: count(row[0].requests_per_s)),
        (">$/h", lambda row: usd(row[0].usd_per_hour)),
        (">$/month", lambda row: usd(row[0].usd_per_month)),
        (">of bill", lambda row: percent(row[0].usd_per_month / total)),
        ("speed", lambda row: speed_word(row[1].speed, row[1].speed_from)),
    )


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
    first = replays[0]
    length = f"{first.hours:.0f} h" if first.hours >= 1 else f"{first.hours * 60:.0f} min"
    begins = f"{length} from hour {first.start_hour:.3g}, about the busiest hour"
    return blocks.listed(
        replays,
        ("!replay", lambda replay: replay.name),
        ("what happens", lambda replay: replay.what),
        *_slo_columns(first.slo, lambda replay: replay.slo),
        (">answered", lambda replay: percent(replay.answered_share) if replay.answered_share < 0.99995 else "all"),
        (">begun again", lambda replay: f"{replay.restarts:,}"),
        title=f"In the simulator: {count(first.requests)} requests, {begins}",
    )


def _slo_columns(slos: Sequence[SloOutcome], of: Callable[[Any], Sequence[SloOutcome]]) -> Iterable[Any]:
    """Return a column for each SLO with what was delivered."""

    def read(place: int, row: Any) -> blocks.Span:
        slo = of(row)[place]
        return blocks.Span(delivered_text(slo), "good" if slo.met else "worst")

    return ((f">{slo.slo} ≤ {seconds(slo.objective_s)}", partial(read, place)) for place, slo in enumerate(slos))


def _proof(report: FleetReport) -> blocks.Line:
    """Say what the replay shows, and what to do about it."""
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
    nines = min(12, math.floor(-math.log10(max(1 - report.availability.share, 1e-12))) + 1)  # one more than it has
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
    plan = report.plan
    bought = [report.kind(purchase.offer) for purchase in plan.purchases]
    starts = sorted({kind.startup_s for kind in bought})
    room = " with that room for failures" if report.availability.spare_machines else ""
    longer = f", as far as proven: {option('time_limit')} gives it longer" if plan.gap > _WIDE else ""
    limit = {kind.name: f", at most {kind.max_sequences} sequences" if kind.max_sequences else "" for kind in bought}
    served = dict.fromkeys(f"{kind.gpu} {kind.layout}, {kind.router} router{limit[kind.name]}" for kind in bought)
    return blocks.note(
        f"Solved in {plan.solve_s:.1f} s over {count(plan.variables)} variables: no fleet{room} is cheaper by more "
        f"than {gap_text(plan.gap)}{longer}. Chosen from {plural(len(report.machines), 'machine')}, bought whole.",
        "Replicas are sized by simulation, as in a plan; req/s is what a machine is counted on for in the busiest "
        f"hour. All have one precision, the cheapest that a plan tries ({option('weights')}).",
        f"Counted on and simulated as: {'; '.join(served)}." if served else "",
        f"Counted on for {percent(report.counted_share)} of what was measured: with more the fleet missed its SLO in "
        "the simulator."
        if report.counted_share < 1
        else "",
        f"A machine serves {' to '.join(dict.fromkeys(map(seconds, (starts[0], starts[-1]))))} after it is ordered "
        f"({option('startup')}), which is paid for too: {percent(plan.startup_usd / plan.expected_usd)} of the bill."
        if starts and plan.expected_usd
        else "",
        _spot_note(report) if _has_spot(report) else "",
        f"{f'{quoted_on(kind.price_date for kind in bought)}. ' if bought else ''}Month: {HOURS_PER_MONTH} hours.",
        OLD_PRICE if any(kind.price_stale for kind in bought) else "",
        _place(report, bought),
    )


def _place(report: FleetReport, bought: Sequence[MachineKind]) -> str:
    places = sorted({f"{provider_text(kind.provider)} {kind.region}" for kind in bought})
    anywhere = option("anywhere")
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
    """Show the table of ways, the cheapest, how its bill relates to the plan's, and its assumptions."""
    yield _scaling_ways(scaling)
    yield _cheapest_way(scaling)
    if (best := scaling.best()) is not None:
        yield blocks.line(_to_buy(best, scaling.best(Terms.on_demand), plan_usd))
    yield blocks.note(*_scaling_notes(scaling))


def _scaling_ways(scaling: ScalingReport) -> blocks.Table:
    best = scaling.best()
    length = f"{scaling.hours:.0f} h" if scaling.hours >= 1.5 else f"{scaling.hours * 60:.0f} min"
    what = f"{count(scaling.requests)} requests, {length}, {scaling.traffic}"

    def lag(way: ScalingWay) -> str:
        return "–" if way.lag_s is None else "none" if not way.most_lag_s else seconds(way.lag_s)

    return blocks.listed(
        scaling.ways,
        ("!way to scale", lambda way: way.name),
        (">$/day", lambda way: usd(way.usd_per_day)),
        (">$/month", lambda way: usd(way.usd_per_month)),
        (">room", lambda way: minus_text(way.room)),
        (">replicas", lambda way: span_text(way.least_replicas, way.most_replicas)),
        (">starts", lambda way: f"{way.starts}"),
        (">short", lambda way: f"{way.short_minutes:.3g} min" if way.short_minutes else "none"),
        (">lag", lag),
        *_slo_columns(scaling.ways[0].slo, lambda way: way.slo),
        (">within SLO", lambda way: fine_percent(way.slo_attainment) if way.slo_attainment < 0.99995 else "all"),
        title=f"Following the traffic with {scaling.machine}: {what}",
        best=None if best is None else scaling.ways.index(best),
    )


def _cheapest_way(scaling: ScalingReport) -> blocks.Line:
    """Say which way is cheapest, and what a better forecast could still save."""
    best, perfect, scaled = scaling.best(), scaling.perfect, scaling.best(Terms.on_demand)
    if best is None:
        larger = f"{option('scaling_room')} gives more room, {option('startup')} a shorter start"
        return blocks.line(f"No way to scale meets the SLO on this day: {larger}.", kind="bad")
    said = "" if scaled in (None, best) else f" On demand it is {scaled.name}, {usd(scaled.usd_per_month)}."
    if scaled is not None:
        left = 1 - perfect.usd_per_month / scaled.usd_per_month if perfect.met else 0.0
        said += f" A perfect forecast would save {percent(left) if left > 0.0005 else 'nothing'} more."
    bill = blocks.Span(f"{best.name}, {usd(best.usd_per_month)} a month", "best")
    return blocks.line("Cheapest that meets the SLO: ", bill, f".{said}")


def _to_buy(best: ScalingWay, scaled: ScalingWay | None, plan_usd: float) -> str:
    """Say which of the two bills on the page to pay, and what the other is for."""
    plan = f"the plan above ({usd(plan_usd)} a month)"
    if round(best.usd_per_month, 2) < round(plan_usd, 2):
        return (
            f"What to buy: {plan}, sized for the SLO in every hour. {best.name.capitalize()} "
            f"({usd(best.usd_per_month)}) met it over this one day, with no failures: it is cheaper if a worse day "
            "may miss the SLO."
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
        "room: above the peak, the target or the forecast: what met the SLO before the time judged here, and a step "
        f"more ({option('scaling_room')} sets it; at most {percent(ROOMS[-1])}). short: time with fewer replicas than "
        "a perfect forecast shows to be enough; lag: until as many serve, in the mean."
    )
    if scaling.replicas_per_machine > 1:
        yield f"Replicas are scaled one by one: each pays its part of a machine of {scaling.replicas_per_machine}."
    if scaling.simulated_share < 1:
        share = percent(scaling.simulated_share)
        yield f"Simulated: {share} of the requests on a fleet that much smaller; dollars are for all of them."


# --- batch work beside the fleet's own traffic -----------------------------------------------------------------------


def batch_blocks(report: BatchReport) -> Iterable[blocks.Block]:
    """Show the ways to do the work, the fleet for both, and whether other requests notice."""
    work, best = report.work, report.ways[0]
    when = f"from hour {work.start_hour}, done {work.deadline_hours} h later"
    yield blocks.listed(
        report.ways,
        ("!ways to do it", lambda way: way.name),
        (">$/month", lambda way: usd(way.usd_per_month)),
        (">$/Mtok", lambda way: usd(way.usd_per_mtok)),
        (">best saves", lambda way: "" if way is best else percent(1 - best.usd_per_month / way.usd_per_month)),
        ("note", lambda way: way.note),
        title=f"Batch work: {count(work.tokens_per_day)} tokens a day, {when}",
        best=0,
    )
    free = f"{percent(report.free_share)} of it fits into the hours that the fleet alone leaves idle"
    both, without = usd(report.usd_per_month), usd(report.online_usd_per_month)
    machines = "one fleet for both" if report.own is None else "two fleets"
    yield blocks.line(f"{free}. On machines of one's own, {machines}: {both} a month in all, without it {without}.")
    yield blocks.note(*_fleets(report), *_checked(report))


def _fleets(report: BatchReport) -> Iterable[str]:
    """Say what to buy for it on own machines, and how sure it is that this is the cheapest."""
    plan = report.own or report.plan
    bought = "; ".join(
        f"{_terms(row)} {row.offer}, {sum(row.by_hour) / plan.hours:.3g} in the mean" for row in plan.purchases
    )
    where = "in idle hours of the fleet above, then on" if report.own and report.plan.batch else "on"
    whose = f"Batch work {where} a fleet of its own" if report.own else "The fleet for both"
    yield f"{whose}: {bought}. No other such fleet is cheaper by more than {gap_text(plan.gap)}."
    if report.own:
        yield "One fleet for both costs more: there batch work gets no more than machines carry under the SLO."


def _checked(report: BatchReport) -> Iterable[str]:
    check = report.check
    if check is None:
        return
    delivered = ", ".join(f"{slo.slo} {delivered_text(slo)} (≤ {seconds(slo.objective_s)})" for slo in check.slo)
    verdict = "the SLO is met" if all(slo.met for slo in check.slo) else "the SLO is missed"
    hour = f"hour {check.start_hour:.0f}, which holds the most batch work"
    yield f"In the simulator, {hour}, batch requests behind all others: {delivered} for the others; {verdict}."
    yield f"Batch requests have the lengths of the others, and wait for them. Month: {HOURS_PER_MONTH} hours."
