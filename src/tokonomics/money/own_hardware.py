"""Compute what an hour of a GPU costs if the machine is bought instead of rented, as an offer like any other.

Depreciation is the price less the resale value, over the years of use; capital is what the annuity at the cost of
capital asks beyond that; power is the GPUs' watts (datasheet) at their load and the host's, times PUE, times the price
of a kilowatt-hour. Hosting, maintenance and staff are separate lines, off unless given. Hours are all hours of the
year: a machine that is idle and switched off costs the same except for its power.

Compute what serving draws and emits: watts of GPUs, host and site, kilowatt-hours and grams of CO₂e per million tokens.

    site watts = (busy GPUs × watts at their work + idle GPUs × idle watts + host) × PUE
    kWh per Mtok = site watts ÷ (tokens a second × 3600 × 1000) × 1e6;   g CO₂e = kWh × the grid's grams

Every paid GPU is on all the time, so idle ones count, as in the bill. Emissions are of the electricity alone
(scope 2, location-based), not of making the machines.
"""

import datetime as dt
import math

from pydantic import Field, NonNegativeFloat, PositiveFloat

from tokonomics.catalog.gpus import Gpu
from tokonomics.catalog.offers import MAX_GPUS, Offer
from tokonomics.catalog.places import Grid, Seller
from tokonomics.errors import BadInput
from tokonomics.money.cost import CostLine, CostTree
from tokonomics.physics.curves import PowerCurve
from tokonomics.types import Badge, Noun, Speed
from tokonomics.units import HOURS_PER_MONTH, SECONDS_PER_HOUR, TOKENS_PER_MTOK

HOURS_PER_YEAR = 12 * HOURS_PER_MONTH
MEAN_PUE = 1.58
"""Industry mean of 2023: Uptime Institute, Intelligence Update 221, 2023-11-23; new large sites reach 1.3 and less."""
_FREE = 1e-12  # yearly cost of capital below which it changes no digit
POWER_UNIT = "kWh"  # unit of the lines that a machine saves while it is switched off


class Power(Noun):
    """What a machine of one's own draws, and what a kilowatt-hour costs."""

    gpus: int = Field(ge=1, le=MAX_GPUS)
    usd_per_kwh: NonNegativeFloat = Field(le=10)
    pue: float = Field(default=MEAN_PUE, ge=1, le=5)  # power of the whole site over that of the machines
    gpu_load: float = Field(default=1.0, ge=0, le=1)  # mean share of the datasheet's watts that a GPU draws
    host_watts: NonNegativeFloat = Field(le=100_000)  # beside the GPUs: processors, memory, network, fans


class Purchase(Power):
    """A machine with GPUs, bought and kept."""

    purchase_usd: float = Field(ge=1, le=1e9)  # the whole machine, with its share of network and storage
    years: float = Field(ge=0.1, le=20)  # of use: at least five weeks, else rent
    residual_share: float = Field(default=0.0, ge=0, lt=1)  # resale value at the end, as a share of the price
    cost_of_capital: float = Field(default=0.0, ge=0, lt=1)  # a year
    hosting_usd_per_month: NonNegativeFloat = Field(default=0.0, le=1e7)  # space, or colocation without power
    maintenance_share: float = Field(default=0.0, ge=0, lt=1)  # of the price, a year: spare parts, support contracts
    staff_usd_per_year: NonNegativeFloat = Field(default=0.0, le=1e8)  # people who run this machine


def annuity(cost_of_capital: float, years: float) -> float:
    """Return the yearly payment for one dollar borrowed."""
    left = -math.expm1(-years * math.log1p(cost_of_capital))
    # If money is almost free, the division would lose all digits.
    return cost_of_capital / left if cost_of_capital > _FREE else 1 / years


def power_lines(power: Power, gpu: Gpu) -> tuple[CostLine, ...]:
    """Return an hour's electricity: GPUs, host, and what the site adds to them."""
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
    """Return the cost of one hour of the machine, line by line."""
    price, years = purchase.purchase_usd, purchase.years
    residual = price * purchase.residual_share
    depreciation = (price - residual) / years / HOURS_PER_YEAR
    worth_today = residual * (1 + purchase.cost_of_capital) ** -years
    payment = (price - worth_today) * annuity(purchase.cost_of_capital, years) / HOURS_PER_YEAR

    def hourly(name: str, usd: float) -> CostLine:
        return CostLine(name=name, quantity=1, unit="hour", usd_per_unit=usd)

    lines = (
        hourly("depreciation", depreciation),
        # Rounding must not make the cost of free money negative.
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
    """Return the dollars an hour of a bought machine, or of its electricity alone if its price is not known."""
    if isinstance(machine, Purchase):
        return own_hour(machine, gpu).usd
    return math.fsum(line.usd for line in power_lines(machine, gpu))


def own_offer(purchase: Purchase, gpu: Gpu, on: dt.date, memory_gb: float | None = None) -> Offer:
    """Return the machine as an offer that every verb takes among its offers."""
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
    """What owning costs, compared with the cheapest rent of the same GPU."""

    gpu: str
    purchase: Purchase
    hour: CostTree
    usd_per_hour: PositiveFloat
    usd_per_gpu_hour: PositiveFloat
    usd_per_month: PositiveFloat
    rented: tuple[Offer, ...]  # the cheapest on demand, if one is known
    hours_share: NonNegativeFloat | None
    """Share of all hours in which a GPU must be needed for owning to be cheaper; above 1: never. None if no rent is
    known, or if the rent is no higher than the power of an owned one."""
    standing_usd_per_hour: NonNegativeFloat  # of an idle machine that is switched off: its hour without power


def own_hardware(purchase: Purchase, gpu: Gpu, rented: Offer | None = None) -> OwnHardware:
    """Return the cost of an hour and a month, and from how many hours of need a month owning beats that rent.

    If a GPU is needed in a share s of the hours, an owned one costs its standing cost, plus power for s; a rented one
    costs its rent for s: they are equal at s = standing ÷ (rent − power).
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


HYPERSCALER_PUE = 1.15
"""AWS's mean of 2023 (datacenterdynamics.com, 2024-12); Google states 1.1 and Microsoft 1.18 there."""
HOST_SHARE = 0.5
"""Watts beside the GPUs ÷ the GPUs' datasheet watts: a node of eight H100s drew 8.4 kW with its GPUs near their 5.6
(Latif et al. 2024, arXiv 2412.08602). That is a node at full load, so an upper limit; used for every GPU and load."""


class Energy(Noun):
    """Electricity and emissions of a fleet, while it serves its traffic."""

    gpu_watts: NonNegativeFloat  # all paid GPUs together, mean over time
    host_watts: NonNegativeFloat
    pue: PositiveFloat
    watts: NonNegativeFloat  # of the site
    basis: Badge  # whether the GPUs' watts were measured while serving, or are modelled
    known: Speed  # how modelled watts are known: measured on this GPU, scaled from its architecture, or assumed
    power_from: str
    kwh_per_month: NonNegativeFloat
    kwh_per_mtok: NonNegativeFloat | None  # prompts and answers; None if there are no tokens
    grid: Grid
    kg_co2e_per_month: NonNegativeFloat
    g_co2e_per_mtok: NonNegativeFloat | None


def pue_of(seller: Seller | None) -> float:
    """Return the PUE of the site: a hyperscaler's own mean, or the industry's."""
    return HYPERSCALER_PUE if seller is Seller.hyperscaler else MEAN_PUE


def fleet_watts(curve: PowerCurve, paid: float, prompts: float, answers: float, batch: float) -> float:
    """Return the watts of the paid GPUs, with the mean numbers that compute prompts and write answers."""
    idle = max(0.0, paid - prompts - answers)
    return prompts * curve.prefill_w + answers * curve.decoding(batch) + idle * curve.idle_w


def energy(
    gpu_watts: float,
    host_watts: float,
    pue: float,
    grid: Grid,
    tokens_per_s: float,
    curve: PowerCurve | None,
    measured_by: str = "",
) -> Energy:
    """Return kilowatt-hours and emissions; the GPUs' watts are modelled by a curve, or were measured."""
    site = (gpu_watts + host_watts) * pue
    kwh_per_month = site * HOURS_PER_MONTH / 1000
    per_mtok = site / (1000 * SECONDS_PER_HOUR) / tokens_per_s * TOKENS_PER_MTOK if tokens_per_s > 0 else None
    return Energy(
        gpu_watts=gpu_watts,
        host_watts=host_watts,
        pue=pue,
        watts=site,
        basis=Badge.modelled if curve else Badge.measured,
        known=curve.known if curve else Speed.timed,
        power_from=f"{curve.source}, {curve.date}" if curve else measured_by,
        kwh_per_month=kwh_per_month,
        kwh_per_mtok=per_mtok,
        grid=grid,
        kg_co2e_per_month=kwh_per_month * grid.g_per_kwh / 1000,
        g_co2e_per_mtok=None if per_mtok is None else per_mtok * grid.g_per_kwh,
    )
