"""A bought machine as an offer: against the annuity and the electricity bill worked out by hand."""

from datetime import date
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as some
from pydantic import ValidationError

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
    for tiny in (1e-9, 1e-13, 5e-324):
        assert annuity(tiny, 0.5) == pytest.approx(2)


@given(some.floats(1e3, 1e6), some.floats(0.5, 10), some.floats(0, 0.9), some.floats(0, 0.3), some.floats(1, 2))
def test_every_line_is_positive(price: float, years: float, residual: float, interest: float, pue: float) -> None:
    made = BOUGHT.model_copy(
        update={
            "purchase_usd": price, "years": years, "residual_share": residual, "cost_of_capital": interest,
            "pue": pue,
        }
    )  # fmt: skip
    hour = own_hour(made, H100)
    assert hour.usd == pytest.approx(sum(line.usd for line in hour.lines))
    dearer = own_hour(made.model_copy(update={"staff_usd_per_year": 8760.0, "usd_per_kwh": 0.2}), H100)
    assert dearer.usd > hour.usd + 1 - 1e-9


@pytest.mark.parametrize("rent_usd", [1.3, 2.0, 5.0])
def test_at_the_share_of_hours_the_month_owned_costs_the_month_rented(rent_usd: float) -> None:
    """$10 an hour stand whether it runs or not; (8 × 0.7 + 4.6) kW × 1.5 at ten cents are drawn when it does."""
    rent = own_offer(BOUGHT, H100, date(2026, 11, 1)).model_copy(update={"usd_per_hour": 8 * rent_usd})
    found = own_hardware(BOUGHT, H100, rent)
    assert found.hours_share is not None

    def bills(share: float) -> tuple[float, float]:
        needed = share * 730
        return 730 * 10 + needed * 10.2 * 1.5 * 0.1, needed * 8 * rent_usd

    owned, rented = bills(found.hours_share)
    assert owned == pytest.approx(rented)
    for off in (-0.01, 0.01):
        owned, rented = bills(found.hours_share + off)
        assert (owned < rented) == (off > 0)


def test_rent_below_the_power_of_ones_own_is_never_beaten() -> None:
    rent = own_offer(BOUGHT, H100, date(2026, 11, 1)).model_copy(update={"usd_per_hour": 1.5})
    assert own_hardware(BOUGHT, H100, rent).hours_share is None
    assert own_hardware(BOUGHT, H100).hours_share is None


def test_the_offer_comes_back_from_its_file(tmp_path: Path) -> None:
    offer = own_offer(BOUGHT, H100, date(2026, 11, 15), memory_gb=2000)
    write_offers(tmp_path / "mine.csv", [offer])
    assert read_offers(tmp_path / "mine.csv") == (offer,)
    assert offer.usd_per_hour == pytest.approx(own_hour(BOUGHT, H100).usd)


@pytest.mark.parametrize("slip", [{"years": 5e-324}, {"years": 1e-310}, {"purchase_usd": 5e-324}])
def test_a_machine_kept_for_no_time_or_bought_for_nothing_is_refused(slip: dict[str, float]) -> None:
    """Its hour would cost more than a number holds, or nothing at all."""
    with pytest.raises(ValidationError, match="greater than or equal"):
        Purchase.model_validate(BOUGHT.model_dump() | slip)
