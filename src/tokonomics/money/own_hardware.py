"""What an hour of a GPU costs when the machine is bought instead of rented, as an offer like any other.

Depreciation is the price less what the machine still sells for, over its years; capital is what the annuity at the
cost of capital asks beyond that; power is the GPUs' watts (datasheet) at their load and the host's, times PUE, times
the price of a kilowatt-hour. Hosting, maintenance and staff are lines of their own, off unless given. Hours are all
hours of the year: a machine that stands idle, switched off, costs the same but for its power.
"""

import datetime as dt
import math

from pydantic import Field, NonNegativeFloat, PositiveFloat

from tokonomics.catalog.gpus import Gpu
from tokonomics.catalog.offers import MAX_GPUS, Offer
from tokonomics.errors import BadInput
from tokonomics.money.cost import CostLine, CostTree
from tokonomics.types import Noun
from tokonomics.units import HOURS_PER_MONTH

HOURS_PER_YEAR = 12 * HOURS_PER_MONTH
MEAN_PUE = 1.58
"""Industry mean of 2023: Uptime Institute, Intelligence Update 221, 2023-11-23; new large sites reach 1.3 and less."""
_FREE = 1e-12  # a cost of capital a year below which it moves no digit
POWER_UNIT = "kWh"  # of the lines that an idle machine, switched off, does without


class Power(Noun):
    """What a machine of one's own draws, and what a kilowatt-hour costs."""

    gpus: int = Field(ge=1, le=MAX_GPUS)
    usd_per_kwh: NonNegativeFloat = Field(le=10)
    pue: float = Field(default=MEAN_PUE, ge=1, le=5)  # power of the whole site over that of the machines
    gpu_load: float = Field(default=1.0, ge=0, le=1)  # share of the datasheet's watts that a GPU draws in the mean
    host_watts: NonNegativeFloat = Field(le=100_000)  # beside the GPUs: processors, memory, network, fans


class Purchase(Power):
    """A machine with GPUs, bought and kept."""

    purchase_usd: float = Field(ge=1, le=1e9)  # the whole machine, with its share of network and storage
    years: float = Field(ge=0.1, le=20)  # kept: five weeks at the least, or rent
    residual_share: float = Field(default=0.0, ge=0, lt=1)  # of the price, still worth at the end; nothing unless told
    cost_of_capital: float = Field(default=0.0, ge=0, lt=1)  # a year; money is free unless told
    hosting_usd_per_month: NonNegativeFloat = Field(default=0.0, le=1e7)  # space, or colocation beside power
    maintenance_share: float = Field(default=0.0, ge=0, lt=1)  # of the price, a year: spare parts, support contracts
    staff_usd_per_year: NonNegativeFloat = Field(default=0.0, le=1e8)  # people who run this machine


def annuity(cost_of_capital: float, years: float) -> float:
    """Yearly payment for one dollar borrowed."""
    left = -math.expm1(-years * math.log1p(cost_of_capital))
    # Money that costs next to nothing: the smallest numbers round to none at all.
    return cost_of_capital / left if cost_of_capital > _FREE else 1 / years


def power_lines(power: Power, gpu: Gpu) -> tuple[CostLine, ...]:
    """An hour's electricity: GPUs, host, and what the site adds to them."""
    if gpu.watts is None:
        fix = f"Add it to your catalogue file: [gpus.{gpu.key}] watts = 700"
        raise BadInput(f"the catalogue does not know what {gpu.key} draws", fix=fix)
    gpu_kwh = power.gpus * gpu.watts * power.gpu_load / 1000
    host_kwh = power.host_watts / 1000
    drawn = {
        "power of the GPUs": gpu_kwh,
        "power of the host": host_kwh,
        "cooling and losses (PUE)": (gpu_kwh + host_kwh) * (power.pue - 1),
    }
    return tuple(
        CostLine(name=name, quantity=kwh, unit=POWER_UNIT, usd_per_unit=power.usd_per_kwh)
        for name, kwh in drawn.items()
    )


def own_hour(purchase: Purchase, gpu: Gpu) -> CostTree:
    """One hour of the machine, line by line."""
    price, years = purchase.purchase_usd, purchase.years
    residual = price * purchase.residual_share
    depreciation = (price - residual) / years / HOURS_PER_YEAR
    worth_today = residual * (1 + purchase.cost_of_capital) ** -years
    payment = (price - worth_today) * annuity(purchase.cost_of_capital, years) / HOURS_PER_YEAR

    def hourly(name: str, usd: float) -> CostLine:
        return CostLine(name=name, quantity=1, unit="hour", usd_per_unit=usd)

    lines = (
        hourly("depreciation", depreciation),
        # Rounding must not make free money cost less than nothing.
        hourly("cost of capital", max(0.0, payment - depreciation)),
        *power_lines(purchase, gpu),
        hourly("hosting", purchase.hosting_usd_per_month / HOURS_PER_MONTH),
        hourly("maintenance", price * purchase.maintenance_share / HOURS_PER_YEAR),
        hourly("staff", purchase.staff_usd_per_year / HOURS_PER_YEAR),
    )
    return CostTree(
        name=f"an hour of {purchase.gpus}×{gpu.key}, owned", lines=tuple(line for line in lines if line.usd)
    )


def usd_per_hour(machine: Power, gpu: Gpu) -> float:
    """Dollars an hour: of the machine that was bought, or of the electricity alone where no price of it is known."""
    if isinstance(machine, Purchase):
        return own_hour(machine, gpu).usd
    return math.fsum(line.usd for line in power_lines(machine, gpu))


def own_offer(purchase: Purchase, gpu: Gpu, on: dt.date, memory_gb: float | None = None) -> Offer:
    """The machine as an offer that every verb takes among its offers."""
    return Offer(
        provider="own",
        region="own",
        instance=f"own-{purchase.gpus}x{gpu.key}",
        gpu=gpu.key,
        gpus=purchase.gpus,
        memory_gb=memory_gb,
        usd_per_hour=own_hour(purchase, gpu).usd,
        date=on,
        source=f"own hardware: ${purchase.purchase_usd:,.0f} over {purchase.years:g} years",
    )


class OwnHardware(Noun):
    """What owning costs, next to the cheapest rent of the same GPU."""

    gpu: str
    purchase: Purchase
    hour: CostTree
    usd_per_hour: PositiveFloat
    usd_per_gpu_hour: PositiveFloat
    usd_per_month: PositiveFloat
    rented: tuple[Offer, ...]  # the cheapest on demand, where one is known
    hours_share: NonNegativeFloat | None
    """Of all hours in which a GPU must be needed for owning to be cheaper; above 1: never. None as well where the rent
    is no higher than the power of one's own."""
    standing_usd_per_hour: NonNegativeFloat  # of the machine while it is idle and switched off: its hour without power


def own_hardware(purchase: Purchase, gpu: Gpu, rented: Offer | None = None) -> OwnHardware:
    """The hour, the month, and from how many hours of need a month on owning beats that rent.

    Needed in a share s of the hours, a GPU of one's own costs what stands, and power for s of them; a rented one its
    rent for s of them: they meet at s = standing ÷ (rent − power).
    """
    hour = own_hour(purchase, gpu)
    power = math.fsum(line.usd for line in hour.lines if line.unit == POWER_UNIT)
    standing = hour.usd - power
    rent = rented.usd_per_gpu_hour() if rented else None
    spared = rent * purchase.gpus - power if rent is not None else 0.0
    return OwnHardware(
        gpu=gpu.key,
        purchase=purchase,
        hour=hour,
        usd_per_hour=hour.usd,
        usd_per_gpu_hour=hour.usd / purchase.gpus,
        usd_per_month=hour.usd * HOURS_PER_MONTH,
        rented=(rented,) if rented else (),
        hours_share=standing / spared if spared > 0 else None,
        standing_usd_per_hour=standing,
    )
