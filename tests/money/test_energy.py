"""Kilowatt-hours and grams per million tokens, worked out on paper."""

import datetime as dt

import pytest
from tests.there import there

from tokonomics.catalog.places import Grid, Seller
from tokonomics.money.breakeven import Extra, engineers, upkeep
from tokonomics.money.own_hardware import Energy, energy, fleet_watts, pue_of
from tokonomics.physics.curves import PowerCurve
from tokonomics.types import Badge

CURVE = PowerCurve(idle_w=100, decode_w={1: 300, 64: 600}, prefill_w=700, source="paper", date=dt.date(2026, 1, 1))
FRANCE = Grid(g_per_kwh=50, place="FR", year=2024, source="paper")


def drawn(gpu_watts: float = 4000, host_watts: float = 2000, tokens_per_s: float = 10_000) -> Energy:
    return energy(gpu_watts, host_watts, 1.25, FRANCE, tokens_per_s, CURVE)


def test_energy_per_mtok_is_the_sites_power_over_its_tokens() -> None:
    """(4 + 2) kW × 1.25 = 7.5 kW; 36 Mtok an hour: 0.2083 kWh and 10.42 g each; 5,475 kWh and 273.75 kg a month."""
    made = drawn()
    assert made.watts == 7500
    assert made.kwh_per_mtok == pytest.approx(7.5 / 36)
    assert made.g_co2e_per_mtok == pytest.approx(7.5 / 36 * 50)
    assert made.kwh_per_month == pytest.approx(7.5 * 730)
    assert made.kg_co2e_per_month == pytest.approx(7.5 * 730 * 0.05)
    assert made.basis is Badge.modelled


def test_no_token_has_no_price_in_energy() -> None:
    assert drawn(tokens_per_s=0).kwh_per_mtok is None
    assert drawn(tokens_per_s=0).kwh_per_month > 0


def test_idle_gpus_draw_too() -> None:
    """Ten paid for, two with prompts and four with answers at 8 sequences, half way up the logarithm: 450 W."""
    assert fleet_watts(CURVE, 10, 2, 4, 8) == pytest.approx(2 * 700 + 4 * 450 + 4 * 100)
    assert fleet_watts(CURVE, 10, 0, 0, 1) == 1000


def test_a_site_is_a_hyperscalers_or_the_industrys_mean() -> None:
    assert pue_of(Seller.hyperscaler) == 1.15
    assert pue_of(Seller.cloud) == pue_of(None) == 1.58


def test_people_and_overheads_come_on_top_of_the_machines() -> None:
    """Half an engineer at $15,000, and 5 % of $20,000: $8,500 more, over 10 B tokens $2.00 → $2.85 a million."""
    kept = there(upkeep((engineers(0.5, 15_000), Extra(name="network", share_of_machines=0.05)), 20_000, 1e10))
    assert kept.usd == pytest.approx(8500)
    assert kept.total_usd == pytest.approx(28_500)
    assert kept.usd_per_mtok == pytest.approx(2.85)
    assert kept.usd_per_mtok_machines == pytest.approx(2.0)
    assert upkeep((), 20_000, 1e10) is None


def test_a_week_pays_a_weeks_share_of_people() -> None:
    kept = there(upkeep((engineers(1, 7300), Extra(name="tax", share_of_machines=0.1)), 1000, 0, months=0.25))
    assert kept.usd == pytest.approx(7300 / 4 + 100)
    assert kept.usd_per_mtok is None
