"""How traffic changes over its day or week: the rates of the curve that was asked for, and the hours of a log."""

import math

import numpy as np
import pytest
from tests.there import there

from tokonomics.traffic.arrivals import parse_arrivals
from tokonomics.traffic.swing import swing_of_curve, swing_of_log
from tokonomics.traffic.trace import make_trace


def test_a_days_peak_is_its_multiple_of_the_mean_at_noon() -> None:
    """``peak=2`` is the sinusoid 1 − cos, whose mean is one and whose highest value, at noon, is two."""
    found = there(swing_of_curve(parse_arrivals("diurnal:5,peak=2"), 3.0))
    assert found.mean_rate == 3.0
    assert found.peak_rate == pytest.approx(6.0, rel=1e-4)
    assert found.peak_s == pytest.approx(12 * 3600, abs=60)
    assert found.is_daily
    for hour in range(12):  # rising: the busiest minute of an hour is its last
        phase = 2 * math.pi * ((hour + 1) * 60 - 0.5) / 1440
        assert found.hours[hour] == pytest.approx(3 * (1 - math.cos(phase)), rel=1e-6)
    assert found.hours == pytest.approx(found.hours[::-1])


def test_a_week_begins_on_monday_and_its_weekend_is_as_quiet_as_asked_for() -> None:
    found = there(swing_of_curve(parse_arrivals("weekly:5,peak=2,weekend=0.4"), 5.0))
    assert len(found.hours) == 168
    assert found.is_daily
    monday, saturday = max(found.hours[:24]), max(found.hours[120:144])
    assert saturday == pytest.approx(0.4 * monday)
    assert found.peak_rate == pytest.approx(2 * 5 * 7 / (5 + 2 * 0.4), rel=1e-4)


def test_bursts_have_a_peak_and_no_hours() -> None:
    """On for 60 s of every 360 at 10 a second: a mean of 10 ÷ 6."""
    found = there(swing_of_curve(parse_arrivals("onoff:10,on=60,off=300"), 10 / 6))
    assert found.peak_rate == pytest.approx(10)
    assert (found.period_s, found.hours) == (360, ())
    assert not found.is_daily


@pytest.mark.parametrize("even", ["poisson:5", "gamma:5,cv=3", "constant:5", "step:2,to=8,at=600"])
def test_an_even_rate_and_one_that_does_not_repeat_have_no_swing(even: str) -> None:
    assert swing_of_curve(parse_arrivals(even), 5.0) is None


def test_a_log_has_the_hours_that_were_seen() -> None:
    """Three whole hours with 100, 300 and 200 requests, and one request at their end."""
    arrival_s = np.concatenate(
        [3600 * hour + np.linspace(0, 3599, count) for hour, count in enumerate((100, 300, 200))]
    )
    found = there(swing_of_log(make_trace([*arrival_s, 3 * 3600.0], [10] * 601, [10] * 601)))
    assert found.hours == pytest.approx((100 / 3600, 300 / 3600, 200 / 3600))
    assert found.peak_rate == pytest.approx(300 / 3600)
    assert (found.peak_s, found.period_s) == (3600, None)
    assert not found.is_daily
    even = make_trace(np.linspace(0, 3 * 3600, 601), [10] * 601, [10] * 601)
    assert swing_of_log(even) is None
    assert swing_of_log(make_trace([0.0, 1.0, 3600.0], [10] * 3, [10] * 3)) is None
