"""The cost equation, shown with its terms."""

from collections.abc import Iterable
from functools import partial

from tokonomics.catalog.offer_choice import STALE_MUST_SAVE, usual_host_gib
from tokonomics.catalog.offers import STALE_AFTER_DAYS
from tokonomics.money.cost import LoadCost, Needed
from tokonomics.questions.requests.buy import CostRequest
from tokonomics.questions.results import CostResult
from tokonomics.report import blocks
from tokonomics.report.answer import Answer
from tokonomics.report.wording import marked_old
from tokonomics.units import HOURS_PER_MONTH, SECONDS_PER_HOUR, TOKENS_PER_MTOK, count, percent, plural, usd


def cost(result: CostResult, request: CostRequest) -> Answer:
    """The price per Mtok, the equation it comes from, and the other forms people ask for."""
    rule = "" if request.gpu is None else _price_rule(request.gpu)
    return Answer(result, "What a million tokens costs", partial(_sections, result, rule))


def _price_rule(gpu: str) -> str:
    """Which offers the price is the cheapest of, and why a plan's may be another."""
    room = f"{usual_host_gib(gpu):.0f} GB of memory a GPU or more, enough to load weights of a quarter of the GPU's"
    old = f"older than {STALE_AFTER_DAYS} days only where recent ones cost more than {percent(STALE_MUST_SAVE)} more"
    return (
        f"The cheapest price for this GPU on hosts with {room}; one {old}. A plan pays the same, unless its model's "
        "weights need a larger host."
    )


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
    """Load profiles side by side: the hour costs the same whether it works or waits."""
    columns = ["!load (hours × utilisation)", ">mean utilisation", f">$/Mtok on {fleet}", ">working $", ">idle $"]
    rows = [
        (
            load.load,
            percent(load.mean_utilization),
            *map(usd, (load.usd_per_mtok, load.working_usd, load.idle_usd)),
            str(load.gpus_for_peak),
            usd(load.usd_per_mtok_for_peak),
        )
        for load in loads
    ]
    return blocks.table([*columns, ">peak GPUs", ">$/Mtok on those"], rows)


def _target(needed: Needed) -> blocks.Table:
    """What each term would have to be, the others kept."""
    out_of_reach = " (out of reach)" if needed.utilization > 1 else ""
    rows = [
        ("speed, at this utilisation and price", f"{needed.tokens_per_second:,.0f} tok/s"),
        ("utilisation, at this speed and price", f"{percent(needed.utilization)}{out_of_reach}"),
        ("price, at this speed and utilisation", f"{usd(needed.usd_per_hour)} a GPU-hour"),
    ]
    return blocks.table([f"to reach {usd(needed.usd_per_mtok)} per Mtok", ">needs"], rows)
