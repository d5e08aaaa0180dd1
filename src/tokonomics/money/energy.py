"""What serving draws and emits: watts of GPUs, host and site, kilowatt-hours and grams of CO₂e per million tokens.

    site watts = (busy GPUs × watts at their work + idle GPUs × idle watts + host) × PUE
    kWh per Mtok = site watts ÷ (tokens a second × 3600 × 1000) × 1e6;   g CO₂e = kWh × the grid's grams

Every paid GPU is on all the time, so idle ones count, as in the bill. Emissions are of the electricity alone
(scope 2, location-based), not of making the machines.
"""

from pydantic import NonNegativeFloat, PositiveFloat

from tokonomics.catalog.places import Grid, Seller
from tokonomics.money.own_hardware import MEAN_PUE
from tokonomics.physics.curves import PowerCurve
from tokonomics.types import Badge, Noun, Speed
from tokonomics.units import HOURS_PER_MONTH, SECONDS_PER_HOUR, TOKENS_PER_MTOK

HYPERSCALER_PUE = 1.15
"""AWS's mean of 2023 (datacenterdynamics.com, 2024-12); Google states 1.1 and Microsoft 1.18 there."""
HOST_SHARE = 0.5
"""Watts beside the GPUs ÷ the GPUs' datasheet watts: a node of eight H100s drew 8.4 kW with its GPUs near their 5.6
(Latif et al. 2024, arXiv 2412.08602). Of a node at full load, and so at most; taken for every GPU and load."""


class Energy(Noun):
    """Electricity and emissions of a fleet, while it serves its traffic."""

    gpu_watts: NonNegativeFloat  # all paid GPUs together, in the mean over time
    host_watts: NonNegativeFloat
    pue: PositiveFloat
    watts: NonNegativeFloat  # of the site
    basis: Badge  # whether the GPUs' watts were measured as they served, or are modelled
    known: Speed  # of modelled watts: measured on this GPU, scaled from its architecture's, or assumed
    power_from: str
    kwh_per_month: NonNegativeFloat
    kwh_per_mtok: NonNegativeFloat | None  # prompts and answers; None where there is no token
    grid: Grid
    kg_co2e_per_month: NonNegativeFloat
    g_co2e_per_mtok: NonNegativeFloat | None


def pue_of(seller: Seller | None) -> float:
    """Of the site that a machine stands in: a hyperscaler's own mean, or the industry's."""
    return HYPERSCALER_PUE if seller is Seller.hyperscaler else MEAN_PUE


def fleet_watts(curve: PowerCurve, paid: float, prompts: float, answers: float, batch: float) -> float:
    """Watts of the paid GPUs, of which some compute prompts and some write answers in the mean over time."""
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
    """Kilowatt-hours and emissions; the GPUs' watts are modelled by a curve, or were measured."""
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
