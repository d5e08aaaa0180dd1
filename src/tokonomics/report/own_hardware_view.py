"""A bought machine: its hour line by line, and the rent it competes with."""

from collections.abc import Iterable
from functools import partial

from tokonomics.clock import today
from tokonomics.errors import option
from tokonomics.money.own_hardware import MEAN_PUE, OwnHardware
from tokonomics.questions.request import Request
from tokonomics.questions.results import OneNoun
from tokonomics.report import blocks
from tokonomics.report.answer import Answer
from tokonomics.units import HOURS_PER_MONTH, percent, plural, usd


def own_hardware(result: OneNoun, request: Request) -> Answer:
    """$/GPU-hour first, then the rent, then its lines."""
    owned: OwnHardware = result.noun
    return Answer(result, f"A {owned.gpu} of your own", partial(_sections, owned))


def _sections(owned: OwnHardware) -> blocks.View:
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
    rows = [
        (
            line.name,
            f"{line.quantity:.3g} kW" if line.unit == "kWh" else "",
            usd(line.usd_per_unit) if line.unit == "kWh" else "",
            usd(line.usd),
            usd(line.usd * HOURS_PER_MONTH),
            percent(line.usd / owned.usd_per_hour),
        )
        for line in owned.hour.lines
    ]
    columns = ["!what the machine costs", ">power", ">$/kWh", ">$/hour", ">$/month", ">share"]
    yield blocks.table(columns, rows)
    yield _notes(owned)


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


def _notes(owned: OwnHardware) -> blocks.Line:
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
