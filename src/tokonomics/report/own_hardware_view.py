"""A bought machine for a person: its hour line by line, and the rent it competes with."""

from datetime import date

from rich.console import Group, RenderableType
from rich.text import Text

from tokonomics.money.own_hardware import MEAN_PUE, OwnHardware
from tokonomics.report.tables import table
from tokonomics.units import HOURS_PER_MONTH, percent, plural, usd


def own_hardware_view(found: OwnHardware, today: date) -> RenderableType:
    """$/GPU-hour first, then its lines, then the rent."""
    bought = found.purchase
    head = Text.assemble(
        (f"{usd(found.usd_per_gpu_hour)} a GPU-hour", "bold green"),
        f" for {plural(bought.gpus, 'GPU')} ({found.gpu}) at {usd(bought.purchase_usd)} over {bought.years:g} years: "
        f"{usd(found.usd_per_hour)} an hour, {usd(found.usd_per_month)} a month",
    )
    rows = [
        (
            line.name,
            f"{line.quantity:.3g} kW" if line.unit == "kWh" else "",
            f"{usd(line.usd_per_unit)}" if line.unit == "kWh" else "",
            usd(line.usd),
            usd(line.usd * HOURS_PER_MONTH),
            percent(line.usd / found.usd_per_hour),
        )
        for line in found.hour.lines
    ]
    columns = ["!what the machine costs", ">power", ">$/kWh", ">$/hour", ">$/month", ">share"]
    return Group(head, "", table(columns, rows), "", _rent(found, today), Text(_notes(found), style="dim"))


def _rent(found: OwnHardware, today: date) -> Text:
    if not found.rented:
        return Text(f"No rent of {found.gpu} is known to compare with.")
    offer = found.rented[0]
    price = usd(offer.usd_per_gpu_hour() or 0)
    rent = f"Rented on demand from {price} a GPU-hour with as much memory in the host ({offer.quoted(today)}): "
    if found.hours_share is None or found.hours_share >= 1:
        return Text(f"{rent}owning is dearer even if it is needed in every hour.")
    return Text(
        f"{rent}owning is cheaper if it is needed in more than {percent(found.hours_share)} of all hours "
        f"(switched off in the others, it still costs {usd(found.standing_usd_per_hour)} an hour)."
    )


def _notes(found: OwnHardware) -> str:
    bought = found.purchase
    absent = [
        name
        for name, value in (
            ("residual value", bought.residual_share),
            ("cost of capital", bought.cost_of_capital),
            ("hosting", bought.hosting_usd_per_month),
            ("maintenance", bought.maintenance_share),
            ("staff", bought.staff_usd_per_year),
        )
        if not value
    ]
    lines = [f"Not counted, since not given: {', '.join(absent)}."] if absent else []
    if bought.pue == MEAN_PUE:
        lines.append(f"PUE {MEAN_PUE}: the industry's mean of 2023 (Uptime Institute, 2023-11-23); --pue for yours.")
    if bought.gpu_load == 1:
        lines.append("GPUs are taken to draw the watts of their datasheet all the time; --gpu-load if you measured it.")
    return "\n".join(lines)
