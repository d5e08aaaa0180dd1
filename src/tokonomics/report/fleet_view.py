"""A fleet for a person: what to buy first, then the bill, other ways to buy, the word on spot, and the replay."""

import math
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from tokonomics.catalog.offers import UNSPECIFIED, Terms
from tokonomics.money.fleet import ADVISOR, FleetPurchase
from tokonomics.planner.fleet import FleetReport
from tokonomics.planner.fleet_offers import ASSUMED, MachineKind
from tokonomics.planner.fleet_replay import FleetReplay
from tokonomics.report.tables import table
from tokonomics.report.wording import OLD_PRICE, quoted_on
from tokonomics.units import HOURS_PER_MONTH, count, percent, plural, seconds, usd

TERMS = {Terms.reserved: "reserved", Terms.on_demand: "on demand", Terms.spot: "spot"}
ORDER = (Terms.reserved, Terms.on_demand, Terms.spot)
_WIDE = 0.05
"""A gap from which on more time may well find a cheaper fleet."""


def fleet_view(report: FleetReport) -> RenderableType:
    """The whole report."""
    body: list[RenderableType] = [_asked(report), "", _headline(report), "", _purchases(report), ""]
    if report.slos and any(not replay.kept for replay in report.replays[:1]):
        body[:0] = [Text("This fleet does not meet its SLO: see the replay below.", style="bold red"), ""]
    body += [_comparisons(report), ""]
    if report.replays:
        body += [_replays(report.replays), _proof(report), ""]
    if report.not_replayed:
        body += [Text(f"Not tried in the simulator: {report.not_replayed}.", style="yellow"), ""]
    if report.verdict:
        body += [_verdict(report), ""]
    body.append(_notes(report))
    return Group(*body)


def in_order(purchases: Sequence[FleetPurchase]) -> list[FleetPurchase]:
    """Commitments first, spot last; within the same terms the larger bill first."""
    return sorted(purchases, key=lambda each: (ORDER.index(each.terms), -each.usd))


def what_is_bought(purchase: FleetPurchase, kind: MachineKind) -> str:
    """``p5.4xlarge, reserved 3 years``."""
    place = f" {purchase.place}" if purchase.place else ""
    return f"{kind.instance}, {TERMS[purchase.terms]}{place}"


def _asked(report: FleetReport) -> Text:
    hours = report.plan.hours
    span = f"{hours // 24} days" if hours % 24 == 0 and hours >= 48 else plural(hours, "hour")
    slos = ", ".join(f"{slo} ≤ {seconds(slo.seconds)}" for slo in report.slos) or (
        "no SLO (--slo), so taken as batch work: it may wait, and all of it may be on spot"
    )
    sizes = ""
    if len(report.classes) > 1:
        means = [f"{name}: {count(rate)} requests/s in the mean" for name, rate in report.classes.items()]
        sizes = f"\n{'; '.join(means)}; the SLO is met for each"
    if report.left_out_share:
        sizes += f"\n{percent(report.left_out_share)} of the requests are left out: longer than the model's context"
    return Text(
        f"{report.model} ({report.deployed}), {report.traffic}; {slos}\n"
        f"{span} of demand: {count(report.mean_requests_per_s)} requests/s in the mean, "
        f"{count(report.peak_requests_per_s)} at the peak{sizes}",
        style="dim",
    )


def _headline(report: FleetReport) -> Text:
    plan = report.plan
    best = min((comparison for comparison in plan.comparisons if comparison.usd_per_month), key=_dollars, default=None)
    against = ""
    if best is not None and best.saved_share is not None and best.saved_share > 0.0005:
        against = f"{percent(best.saved_share)} below {best.name}, the next best of the simple ways"
    lines = [
        Text.assemble(
            ("Expected bill: ", ""),
            (f"{usd(plan.usd_per_month)} a month", "bold green"),
            f"; 99 of 100 months stay under {usd(plan.p99_usd_per_month)}" if _has_spot(report) else "",
        )
    ]
    if against:
        lines.append(Text(against))
    if report.committed_usd:
        lines.append(Text(f"What is reserved commits you to {usd(report.committed_usd)} in all, to its end."))
    if report.slos and not report.bought_again:
        lost = report.wishes.max_zone_share
        so = (
            "the rest carries the demand without any one zone"
            if lost == 0
            else f"a zone that goes takes up to {percent(lost)} of the demand with it, and the SLO is missed then"
        )
        lines.append(Text(f"What spot takes back is not bought again: {so}."))
    return Text("\n").join(lines)


def _dollars(comparison: object) -> float:
    return getattr(comparison, "usd_per_month", None) or float("inf")


def _has_spot(report: FleetReport) -> bool:
    return any(purchase.terms is Terms.spot for purchase in report.plan.purchases)


def _purchases(report: FleetReport) -> RenderableType:
    plan = report.plan
    total = plan.usd_per_month or 1.0
    rows = []
    for each in in_order(plan.purchases):
        kind = report.kind(each.offer)
        mean = sum(each.by_hour) / plan.hours
        rows.append(
            (
                f"{TERMS[each.terms]}{f' {each.place}' if each.place else ''}",
                f"{kind.provider} {kind.instance}{'' if kind.region == UNSPECIFIED else f', {kind.region}'}"
                f"{'†' if kind.price_stale else ''}",
                f"{kind.gpus}×{kind.gpu}",
                f"{kind.replicas} × {kind.layout}",
                f"{min(each.by_hour)}",
                f"{mean:.3g}" if mean < 1000 else f"{mean:.0f}",
                f"{max(each.by_hour)}",
                count(each.requests_per_s),
                usd(each.usd_per_hour),
                usd(each.usd_per_month),
                percent(each.usd_per_month / total),
            )
        )
    columns = [
        "!buy",
        "machine",
        "!GPUs",
        "!replicas",
        ">least",
        ">mean",
        ">most",
        ">req/s",
        ">$/h",
        ">$/month",
        ">of bill",
    ]
    return table(columns, rows)


def _comparisons(report: FleetReport) -> RenderableType:
    plan = report.plan
    rows = [("this plan", usd(plan.usd_per_month), "", "")]
    rows += [
        (
            comparison.name,
            usd(comparison.usd_per_month) if comparison.usd_per_month else "–",
            "" if comparison.saved_share is None else _saved(comparison.saved_share),
            comparison.note if comparison.usd_per_month else "cannot be done with these offers",
        )
        for comparison in plan.comparisons
    ]
    return table(["!ways to buy", ">$/month", ">plan saves", "note"], rows)


def _saved(share: float) -> str:
    if abs(share) < 0.0005:
        return "0 %"
    return percent(share) if share >= 0 else f"−{percent(-share)}"


def _replays(replays: Sequence[FleetReplay]) -> RenderableType:
    targets = [each.slo for each in replays[0].slo]
    rows = []
    for replay in replays:
        cells: list[str | Text] = [replay.name, replay.what]
        for kept in replay.slo:
            delivered = "never" if kept.delivered_s is None else seconds(kept.delivered_s)
            cells.append(Text(delivered, style="green" if kept.kept else "bold red"))
        cells += [percent(replay.answered_share) if replay.answered_share < 0.99995 else "all", f"{replay.restarts:,}"]
        rows.append(cells)
    first = replays[0]
    begin = f"hour {first.start_hour:.3g}" if first.start_hour % 1 else f"hour {first.start_hour:.0f}"
    length = f"{first.hours:.0f} h" if first.hours >= 1 else f"{first.hours * 60:.0f} min"
    limits = [f">{name} ≤ {seconds(kept.objective_s)}" for name, kept in zip(targets, first.slo, strict=True)]
    return table(
        ["!replay", "what happens", *limits, ">answered", ">begun again"],
        rows,
        title=f"In the simulator: {count(first.requests)} requests, {length} from {begin}, about the busiest hour",
    )


def _proof(report: FleetReport) -> Text:
    """What the replay says, and what to do about it."""
    calm, loss = report.replays
    if not report.slos:
        return Text("No SLO was set, so none could be missed.", style="dim")
    if not calm.kept:
        return Text(
            f"The SLO is missed even undisturbed, counting on {percent(report.counted_share)} of what machines "
            "were measured to carry: SLO less, or plan for a larger --demand.",
            style="red",
        )
    if loss.kept:
        return Text("The SLO is met, with the loss as well.", style="green")
    spread = "--max-zone-share 0 or " if _has_spot(report) and report.wishes.max_zone_share else ""
    instead = f"{spread}--availability {_one_nine_more(report)}"
    often = count(float(f"{loss.expected_per_month:.2g}"))
    return Text(
        f"The SLO is met undisturbed. With the loss, expected {often} times a month, it is "
        f"broken for that hour: {instead} buys room for that.",
        style="yellow",
    )


def _one_nine_more(report: FleetReport) -> str:
    """The next target above what the fleet reaches that asks for something."""
    missing = max(1 - report.availability.share, 1e-12)
    return "0." + "9" * min(12, math.floor(-math.log10(missing)) + 1)


def _verdict(report: FleetReport) -> Text:
    verdict = report.verdict
    assert verdict is not None
    made = Text.assemble("Spot for this workload: ", (verdict.suitability.value, "bold"), "\n")
    for reason in verdict.reasons:
        made.append(
            f"  {'+' if reason.speaks_for else '−'} {reason.text}\n", style="green" if reason.speaks_for else "yellow"
        )
    limit = (
        f"  Limit on spot: {percent(report.wishes.max_spot_share)} of any hour's demand (by {report.spot_share_by})."
    )
    made.append(limit, style="dim")
    return made


def _notes(report: FleetReport) -> Text:
    plan = report.plan
    bought = [report.kind(purchase.offer) for purchase in plan.purchases]
    quoted = f"{quoted_on(each.price_date for each in bought)}. " if bought else ""
    starts = sorted({each.startup_s for each in bought})
    lines = [
        f"Solved in {plan.solve_s:.1f} s over {count(plan.variables)} variables: no fleet of {_proven_for(report)} is "
        f"cheaper by more than {_gap(plan.gap)}{_as_proven(plan.gap)}.",
        f"Chosen from {plural(len(report.machines), 'machine')}, their capacity measured by simulation. Machines are "
        "bought whole; req/s is what one is counted on for.",
        f"A machine serves {_span(starts)} after it is ordered (--startup), and that is paid for as well: "
        f"{percent(plan.startup_usd / plan.expected_usd)} of the bill."
        if starts and plan.expected_usd
        else "",
        _available(report),
        f"{quoted}Month: {HOURS_PER_MONTH} hours.",
    ]
    if report.counted_share < 1:
        lines.insert(
            2,
            f"Counted on for {percent(report.counted_share)} of what was measured: with more the fleet broke its "
            "SLO in the simulator.",
        )
    if _has_spot(report):
        lines.insert(3, _spot_note(report))
    if any(each.price_stale for each in bought):
        lines.append(OLD_PRICE)
    providers = sorted({f"{each.provider} {each.region}" for each in bought})
    if len(providers) > 1:
        lines.append(f"It spans {', '.join(providers)}: without --anywhere it stays in one region.")
    elif report.chosen_place:
        lines.append("All in the region where it is cheapest: --anywhere mixes providers and regions.")
    return Text("\n".join(line for line in lines if line), style="dim")


def _spot_note(report: FleetReport) -> str:
    told = {purchase.interruptions_by for purchase in report.plan.purchases if purchase.terms is Terms.spot}
    said = {
        ADVISOR: "those of AWS's advisor",
        "given": "as given",
        ASSUMED: "assumed, as in the median of AWS's bands (--interruptions)",
    }
    by_whom = " and ".join(text for name, text in said.items() if name in told)
    back = "bought on demand" if report.bought_again else "missing"
    return (
        f"Spot: the price is the median of 30 days on AWS, elsewhere the list's; interruptions are {by_whom}. What is "
        f"taken back is {back} until spot returns."
    )


def _gap(gap: float) -> str:
    return f"{gap * 100:.2g} %" if gap > 5e-5 else "0.01 %"


def _minutes(missing_min: float) -> str:
    return f"{count(float(f'{missing_min:.2g}'))} minutes" if missing_min >= 0.01 else "less than 0.01 minutes"


def _proven_for(report: FleetReport) -> str:
    """A search for an availability tries sizes and room one by one: the proof is about the one it took."""
    return (
        "machines no larger, with that room for failures," if report.availability.spare_machines else "these machines"
    )


def _as_proven(gap: float) -> str:
    return ", as far as proven: --time-limit gives it longer" if gap > _WIDE else ""


def _span(values: Sequence[float]) -> str:
    """``3.2 min``, or ``3.2 min to 5 min``."""
    return " to ".join(dict.fromkeys(seconds(each) for each in (values[0], values[-1])))


def _available(report: FleetReport) -> str:
    reached = report.availability
    missing_min = (1 - reached.share) * HOURS_PER_MONTH * 60
    spare = f", with room for {plural(reached.spare_machines, 'machine')} to fail" if reached.spare_machines else ""
    asked = "" if reached.target is None else f" ({reached.target:.12g} asked for{spare})"
    return (
        f"Capacity falls short of the demand for {_minutes(missing_min)} a month{asked}: machines that fail, spot "
        "zones that go. Outages of a provider are not in it."
    )
