"""How ways to follow a day's traffic compare, as a person reads them."""

from collections.abc import Iterable

from tokonomics.catalog.offers import Terms
from tokonomics.errors import option
from tokonomics.planner.scaling import ROOMS, ScalingReport, ScalingWay
from tokonomics.report import blocks
from tokonomics.serving.outcome import SloOutcome
from tokonomics.units import count, fine_percent, percent, seconds, usd


def scaling_blocks(scaling: ScalingReport, plan_usd: float) -> Iterable[blocks.Block]:
    """The table of ways, which is the cheapest, how its bill relates to the plan's, and what stands behind it."""
    yield _ways(scaling)
    yield _verdict(scaling)
    if (best := scaling.best()) is not None:
        yield blocks.line(_to_buy(best, scaling.best(Terms.on_demand), plan_usd))
    yield blocks.note(*_notes(scaling))


def _ways(scaling: ScalingReport) -> blocks.Table:
    first, best = scaling.ways[0], scaling.best()
    limits = [f">{slo.slo} ≤ {seconds(slo.objective_s)}" for slo in first.slo]
    head = [
        "!way to scale",
        ">$/day",
        ">$/month",
        ">room",
        ">replicas",
        ">starts",
        ">short",
        ">lag",
        *limits,
        ">within SLO",
    ]
    length = f"{scaling.hours:.0f} h" if scaling.hours >= 1.5 else f"{scaling.hours * 60:.0f} min"
    title = (
        f"Following the traffic with {scaling.machine}: {count(scaling.requests)} requests, {length}, {scaling.traffic}"
    )
    place = None if best is None else scaling.ways.index(best)
    return blocks.table(head, [_row(way) for way in scaling.ways], title, best=place)


def _row(way: ScalingWay) -> list[blocks.Piece]:
    replicas = (
        f"{way.least_replicas}–{way.most_replicas}"
        if way.least_replicas < way.most_replicas
        else f"{way.most_replicas}"
    )
    lag = "–" if way.lag_s is None else "none" if not way.most_lag_s else seconds(way.lag_s)
    short = "none" if not way.short_minutes else f"{way.short_minutes:.3g} min"
    return [
        way.name,
        usd(way.usd_per_day),
        usd(way.usd_per_month),
        _signed(way.room),
        replicas,
        f"{way.starts}",
        short,
        lag,
        *(blocks.Span(_delivered(slo), "good" if slo.met else "worst") for slo in way.slo),
        fine_percent(way.slo_attainment) if way.slo_attainment < 0.99995 else "all",
    ]


def _signed(share: float) -> str:
    """A share with its sign: of 0 none."""
    return percent(share) if share >= 0 else f"−{percent(-share)}"


def _delivered(slo: SloOutcome) -> str:
    return "never" if slo.delivered_s is None else seconds(slo.delivered_s)


def _verdict(scaling: ScalingReport) -> blocks.Line:
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


def _notes(scaling: ScalingReport) -> Iterable[str]:
    forecast = scaling.forecast
    yield (
        f"Forecast: {forecast.method}, made {seconds(forecast.ahead_s)} ahead; off by {percent(forecast.error_share)} "
        f"(weighted MAPE), bias {_signed(forecast.bias_share)}."
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
