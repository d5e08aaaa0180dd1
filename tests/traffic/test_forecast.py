"""Forecasts from a traffic's own past."""

import numpy as np
import pytest

from tokonomics.traffic.arrivals import RECENT, by_period, by_trend, error_of, rates_by_moment


def test_what_repeats_is_forecast_without_error() -> None:
    day = np.random.default_rng(1).uniform(1, 9, 24)
    rates = np.tile(day, 3)
    forecast = by_period(rates, 48, 4, 24)
    error = error_of("", forecast, rates[48:], 60.0)
    assert (error.error_share, error.bias_share, error.ahead_s) == (0.0, 0.0, 240.0)
    # Of several days before, the mean is taken.
    rates = np.repeat([2.0, 4.0, 9.0], 24)
    assert by_period(rates, 48, 2, 24)[:, 0].tolist() == [3.0] * 24


def test_the_error_is_weighted_by_traffic_the_bias_has_a_sign_and_every_request_counts_once() -> None:
    error = error_of("", np.array([[2.0], [2.0]]), np.array([1.0, 3.0]), 60.0)
    assert (error.error_share, error.bias_share) == (pytest.approx((1 + 1) / 4), pytest.approx(0.0))
    arrival_s = np.sort(np.random.default_rng(0).uniform(0, 600, 1000))
    assert rates_by_moment(arrival_s, 60.0, 10).sum() * 60 == pytest.approx(1000)


def test_a_straight_line_is_forecast_without_error() -> None:
    rates = 3.0 + 0.25 * np.arange(60, dtype=np.float64)
    forecast = by_trend(rates, RECENT, 5)
    assert error_of("", forecast, rates[RECENT:], 60.0).error_share == pytest.approx(0.0, abs=1e-12)
    assert forecast[0].tolist() == pytest.approx((3.0 + 0.25 * (RECENT + np.arange(6))).tolist())


@pytest.mark.parametrize("ahead", [1, 5, 30])
def test_no_forecast_sees_what_is_still_to_come(ahead: int) -> None:
    rng = np.random.default_rng(ahead)
    rates = rng.uniform(1, 9, 96)
    for moment in (48, 60, 90):
        other = rates.copy()
        other[moment:] = rng.uniform(50, 90, 96 - moment)
        for before, after in (
            (by_period(rates, 48, ahead, 24), by_period(other, 48, ahead, 24)),
            (by_trend(rates, 48, ahead), by_trend(other, 48, ahead)),
        ):
            assert np.array_equal(before[moment - 48], after[moment - 48])
