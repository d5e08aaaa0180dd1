"""A bought machine as an offer: against the annuity and the electricity bill worked out by hand."""

from datetime import date
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as some

from tokonomics.catalog.gpus import find_gpu
from tokonomics.catalog.offers import read_offers, write_offers
from tokonomics.money.own_hardware import Purchase, annuity, own_hardware, own_hour, own_offer

H100 = find_gpu("H100")
BOUGHT = Purchase(gpus=8, purchase_usd=350_400, years=4, usd_per_kwh=0.1, host_watts=4600, pue=1.5)
"""$350,400 over four years of 8,760 hours are $10 an hour."""


def test_depreciation_and_power_by_hand() -> None:
    hour = own_hour(BOUGHT, H100)
    assert hour.line("depreciation").usd == pytest.approx(10)
    power = sum(line.usd for line in hour.lines if line.unit == "kWh")
    assert power == pytest.approx((8 * 0.7 + 4.6) * 1.5 * 0.1)
    assert own_hardware(BOUGHT, H100).usd_per_gpu_hour == pytest.approx((10 + 1.53) / 8)


def test_capital_asks_what_a_loan_does() -> None:
    borrowed = BOUGHT.model_copy(update={"cost_of_capital": 0.08, "residual_share": 0.2})
    yearly = (
        sum(line.usd for line in own_hour(borrowed, H100).lines if line.name in ("depreciation", "cost of capital"))
        * 8760
    )
    # Paid off year by year, the debt left at the end is what the machine still sells for.
    debt = borrowed.purchase_usd
    for _ in range(4):
        debt = debt * 1.08 - yearly
    assert debt == pytest.approx(0.2 * borrowed.purchase_usd)


def test_an_annuity_without_interest_is_a_division() -> None:
    assert annuity(0, 5) == pytest.approx(0.2)
    assert annuity(1e-9, 5) == pytest.approx(0.2)


@given(some.floats(1e3, 1e6), some.floats(0.5, 10), some.floats(0, 0.9), some.floats(0, 0.3), some.floats(1, 2))
def test_every_line_counts_and_none_is_negative(
    price: float, years: float, residual: float, interest: float, pue: float
) -> None:
    made = BOUGHT.model_copy(
        update={
            "purchase_usd": price,
            "years": years,
            "residual_share": residual,
            "cost_of_capital": interest,
            "pue": pue,
        }
    )
    hour = own_hour(made, H100)
    assert hour.usd == pytest.approx(sum(line.usd for line in hour.lines))
    dearer = own_hour(made.model_copy(update={"staff_usd_per_year": 8760.0, "usd_per_kwh": 0.2}), H100)
    assert dearer.usd > hour.usd + 1 - 1e-9


def test_owning_beats_rent_from_a_share_of_the_hours_on() -> None:
    rent = own_offer(BOUGHT.model_copy(update={"purchase_usd": 1e6}), H100, date(2026, 11, 1))
    found = own_hardware(BOUGHT, H100, rent)
    assert found.hours_share == pytest.approx(found.usd_per_gpu_hour / (rent.usd_per_gpu_hour() or 0))


def test_the_offer_comes_back_from_its_file(tmp_path: Path) -> None:
    offer = own_offer(BOUGHT, H100, date(2026, 11, 15), memory_gb=2000)
    write_offers(tmp_path / "mine.csv", [offer])
    assert read_offers(tmp_path / "mine.csv") == (offer,)
    assert offer.usd_per_hour == pytest.approx(own_hour(BOUGHT, H100).usd)
