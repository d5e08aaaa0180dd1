"""Show what a million tokens costs by the cost equation, and what an hour of a bought machine costs."""

from collections.abc import Iterable
from functools import partial

from tokonomics.catalog.offer_choice import usual_host_gib
from tokonomics.catalog.offers import STALE_AFTER_DAYS
from tokonomics.errors import option
from tokonomics.money.cost import LoadCost, Needed
from tokonomics.money.own_hardware import MEAN_PUE, OwnHardware
from tokonomics.questions.cost import CostResult
from tokonomics.questions.request import Request
from tokonomics.questions.requests.buy import CostRequest
from tokonomics.questions.results import OneNoun
from tokonomics.report import blocks
from tokonomics.report.answer import Answer
from tokonomics.report.wording import marked_old
from tokonomics.types import today
from tokonomics.units import HOURS_PER_MONTH, SECONDS_PER_HOUR, TOKENS_PER_MTOK, count, percent, plural, usd


def cost(result: CostResult, request: CostRequest) -> Answer:
    """Show the price per Mtok, its equation, and its inverses."""
    rule = ""
    if request.gpu is not None:
        rule = (
            f"The cheapest price for this GPU on hosts with {usual_host_gib(request.gpu):.0f} GB of memory a GPU or "
            f"more, at most {STALE_AFTER_DAYS} days older than the newest price of this GPU. A plan pays the same, "
            "unless its model's weights need a larger host."
        )
    return Answer(result, "What a million tokens costs", partial(_sections, result, rule))


def _sections(result: CostResult, price_rule: str) -> blocks.View:
    used = percent(result.utilization)
    price, machines = usd(result.usd_per_hour / result.gpus), plural(result.gpus, "GPU")
    speed = f"{result.tokens_per_second:,.0f} tok/s × {used} × {SECONDS_PER_HOUR} s"
    rest = f" per million tokens at {used} utilisation (in and out alike, as tok/s counts them)"
    yield blocks.section(
        blocks.headline(usd(result.usd_per_mtok), f"{rest}{marked_old(result.price_note)}"),
        blocks.line(f"= {price}/h × {machines} ÷ ({speed}) × {TOKENS_PER_MTOK:,}", kind="asked"),
    )
    whole = "reservation: the whole bill, idle time included"
    busy = "usage: the busy share only, as if at 100 % utilisation"
    each = result.usd_per_request
    yield blocks.facts(
        ("per million tokens", usd(result.usd_per_mtok), whole, result.usd_per_mtok),
        ("", usd(result.usd_per_mtok_usage), busy),
        ("per token", f"${result.usd_per_token:.3g}"),
        None if each is None else ("per request", f"${each:.3g}", "at the blended price", each),
        ("tokens per dollar", count(result.tokens_per_usd)),
        ("tokens a month", count(result.tokens_per_month), f"{HOURS_PER_MONTH} hours"),
        ("bill a month", usd(result.usd_per_month), result.price_note, result.usd_per_month),
    )
    yield blocks.note(price_rule) if price_rule else None
    if result.loads:
        note = (
            "On one fleet only the mean counts. A burst needs the GPUs of its peak all day; the same tokens spread out "
            "need fewer."
        )
        yield _loads(result.loads, machines)
        yield blocks.note(note)
    if result.target:
        yield _target(result.target)


def _loads(loads: Iterable[LoadCost], fleet: str) -> blocks.Table:
    """Show load profiles side by side: an hour costs the same whether the GPU works or waits."""
    return blocks.listed(
        loads,
        ("!load (hours × utilisation)", lambda load: load.load),
        (">mean utilisation", lambda load: percent(load.mean_utilization)),
        (f">$/Mtok on {fleet}", lambda load: usd(load.usd_per_mtok)),
        (">working $", lambda load: usd(load.working_usd)),
        (">idle $", lambda load: usd(load.idle_usd)),
        (">peak GPUs", lambda load: str(load.gpus_for_peak)),
        (">$/Mtok on those", lambda load: usd(load.usd_per_mtok_for_peak)),
    )


def _target(needed: Needed) -> blocks.Table:
    """Show what each term would have to be if the others stay."""
    out_of_reach = " (out of reach)" if needed.utilization > 1 else ""
    rows = [
        ("speed, at this utilisation and price", f"{needed.tokens_per_second:,.0f} tok/s"),
        ("utilisation, at this speed and price", f"{percent(needed.utilization)}{out_of_reach}"),
        ("price, at this speed and utilisation", f"{usd(needed.usd_per_hour)} a GPU-hour"),
    ]
    return blocks.table([f"to reach {usd(needed.usd_per_mtok)} per Mtok", ">needs"], rows)


# --- a bought machine: its hour line by line, and the rent it competes with ------------------------------------------


def own_hardware(result: OneNoun, request: Request) -> Answer:
    """Show $/GPU-hour first, then the rent, then its lines."""
    owned: OwnHardware = result.noun
    return Answer(result, f"A {owned.gpu} of your own", partial(_owned, owned))


def _owned(owned: OwnHardware) -> blocks.View:
    bought, hour = owned.purchase, owned.usd_per_gpu_hour
    machine = (
        f" for {plural(bought.gpus, 'GPU')} ({owned.gpu}) at {usd(bought.purchase_usd)} over {bought.years:g} years"
    )
    yield blocks.line(blocks.Span(f"{usd(hour)} a GPU-hour", "best"), machine, kind="headline")
    yield blocks.section(
        blocks.facts(
            blocks.fact("per GPU-hour", usd(hour), "owned, used or not", number=hour),
            blocks.fact("machine", f"{usd(owned.usd_per_hour)}/h", f"{usd(owned.usd_per_month)} a month"),
            blocks.fact("switched off", f"{usd(owned.standing_usd_per_hour)}/h", "the machine without its power"),
            *_rent(owned),
        ),
        _advice(owned),
    )
    yield blocks.listed(
        owned.hour.lines,
        ("!what the machine costs", lambda line: line.name),
        (">power", lambda line: f"{line.quantity:.3g} kW" if line.unit == "kWh" else ""),
        (">$/kWh", lambda line: usd(line.usd_per_unit) if line.unit == "kWh" else ""),
        (">$/hour", lambda line: usd(line.usd)),
        (">$/month", lambda line: usd(line.usd * HOURS_PER_MONTH)),
        (">share", lambda line: percent(line.usd / owned.usd_per_hour)),
    )
    yield _not_counted(owned)


def _rent(owned: OwnHardware) -> Iterable[blocks.Fact]:
    for offer in owned.rented[:1]:
        price = offer.usd_per_gpu_hour() or 0.0
        said = f"a GPU-hour on demand, as much memory in the host: {offer.quoted(today())}"
        yield blocks.fact("rented", usd(price), said, number=price)
        share = owned.hours_share
        if share is not None and share < 1:
            yield blocks.fact("break-even", percent(share), "of all hours", number=share)


def _advice(owned: OwnHardware) -> blocks.Line:
    if not owned.rented:
        return blocks.line(f"No rent of {owned.gpu} is known to compare with.")
    share = owned.hours_share
    if share is None or share >= 1:
        return blocks.hint("Rent it: owning is more expensive even if you need it in every hour.")
    return blocks.hint(f"Own it if you need it in more than {percent(share)} of all hours; rent it if less.")


def _not_counted(owned: OwnHardware) -> blocks.Line:
    bought = owned.purchase
    given = {
        "residual value": bought.residual_share, "cost of capital": bought.cost_of_capital,
        "hosting": bought.hosting_usd_per_month, "maintenance": bought.maintenance_share,
        "staff": bought.staff_usd_per_year,
    }  # fmt: skip
    absent = ", ".join(name for name, value in given.items() if not value)
    source = "the industry's mean of 2023 (Uptime Institute, 2023-11-23)"
    return blocks.note(
        f"Not counted, since not given: {absent}." if absent else "",
        f"PUE {MEAN_PUE}: {source}; {option('pue')} for yours." if bought.pue == MEAN_PUE else "",
        f"GPUs are taken to draw their datasheet's watts all the time; {option('gpu_load')} if you measured it."
        if bought.gpu_load == 1
        else "",
    )
