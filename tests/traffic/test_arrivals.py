"""Arrival processes keep the rate and the burstiness they are asked for, within what chance allows."""

import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.there import refused, there

from tokonomics.errors import BadInput
from tokonomics.traffic.arrivals import (
    EXAMPLES,
    MOST_REQUESTS,
    RECENT,
    by_period,
    by_trend,
    daily_shape,
    draw_arrivals,
    error_of,
    parse_arrivals,
    rates_by_moment,
    swing_of_curve,
    swing_of_log,
    weibull_shape,
)
from tokonomics.traffic.trace import make_trace

MANY = 200_000
ALL = EXAMPLES.split(", ")


def times(
    text: str, requests: int | None = MANY, duration_s: float | None = None, seed: int = 0
) -> NDArray[np.float64]:
    return draw_arrivals(parse_arrivals(text), requests=requests, duration_s=duration_s, seed=seed)


@pytest.mark.parametrize(
    ("text", "cv", "kurtosis_bound"),
    [
        ("poisson:2", 1.0, 9),
        ("gamma:2,cv=3", 3.0, 60),
        ("gamma:2,cv=0.5", 0.5, 6),
        ("weibull:2,cv=2", 2.0, 150),
        ("weibull:2,cv=0.5", 0.5, 6),
    ],
)
def test_steady_processes_have_their_rate_and_cv(text: str, cv: float, kurtosis_bound: float) -> None:
    gaps = np.diff(times(text))
    # The mean of n gaps has the standard error cv/√n of the mean; five of them are never passed by chance.
    assert gaps.mean() == pytest.approx(1 / 2, rel=5 * cv / math.sqrt(MANY))
    # Likewise the CV, whose relative error is about √(kurtosis/4n).
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=5 * math.sqrt(kurtosis_bound / 4 / MANY))


def test_poisson_gaps_are_exponential() -> None:
    """Kolmogorov's distance to 1 − e^(−2t) is below its 1-in-a-million bound √(ln(2e6)/2n)."""
    gaps = np.sort(np.diff(times("poisson:2")))
    theory = 1 - np.exp(-2 * gaps)
    distance = np.abs(theory - np.arange(1, len(gaps) + 1) / len(gaps)).max()
    assert distance < math.sqrt(math.log(2e6) / 2 / len(gaps))


@given(st.floats(0.05, 20))
def test_the_weibull_shape_gives_the_cv(cv: float) -> None:
    shape = weibull_shape(cv)
    first, second = math.gamma(1 + 1 / shape), math.gamma(1 + 2 / shape)
    assert math.sqrt(second / first**2 - 1) == pytest.approx(cv, rel=1e-6)


def test_constant_arrivals_are_evenly_spaced_a_burst_comes_at_once_and_bursts_alternate_with_silence() -> None:
    np.testing.assert_allclose(times("constant:4", requests=1000), np.arange(1000) / 4)
    assert times("burst:7", requests=None).tolist() == [0.0] * 7
    made = times("onoff:10,on=60,off=300")
    assert (made % 360 <= 60 + 1e-6).all()
    assert len(made) / made[-1] == pytest.approx(10 * 60 / 360, rel=5 / math.sqrt(MANY) + 360 / made[-1])


@pytest.mark.parametrize("peak", [1.0, 1.5, 2.0, 3.0, 8.0])
def test_a_days_curve_has_the_mean_and_the_peak_asked_for(peak: float) -> None:
    shape = daily_shape(peak)
    assert shape.mean() == pytest.approx(1)
    assert shape.max() == pytest.approx(peak, rel=1e-3)
    assert shape.min() >= 0
    np.testing.assert_allclose(shape, shape[::-1], atol=1e-9)


def test_a_days_requests_follow_its_curve() -> None:
    made = times("diurnal:5,peak=3", requests=None, duration_s=3 * 86400)
    by_hour = np.bincount((made % 86400 // 3600).astype(int), minlength=24) / 3 / 3600
    expected = 5 * daily_shape(3.0).reshape(24, 60).mean(axis=1)
    spread = np.sqrt(expected / 3 / 3600)
    assert (np.abs(by_hour - expected) <= 5 * spread + 1e-3).all()
    assert len(made) == pytest.approx(5 * 259200, rel=5 / math.sqrt(5 * 259200))
    noon = times("diurnal:5,peak=3,start=12h", requests=None, duration_s=3600)  # a day may begin at any hour
    assert len(noon) == pytest.approx(5 * 3 * 3600, rel=0.03)


def test_a_weeks_end_is_quieter() -> None:
    made = times("weekly:1,peak=2,weekend=0.4", requests=None, duration_s=2 * 7 * 86400)
    days = np.bincount((made // 86400 % 7).astype(int), minlength=7)
    assert days[5:].mean() / days[:5].mean() == pytest.approx(0.4, rel=0.01)
    assert len(made) / (14 * 86400) == pytest.approx(1, rel=0.01)


def test_a_step_and_a_spike_change_the_rate_when_told() -> None:
    step = times("step:2,to=8,at=10m", requests=None, duration_s=20_000)
    assert (step < 600).sum() == pytest.approx(1200, abs=5 * math.sqrt(1200))
    assert (step >= 600).sum() == pytest.approx(8 * 19_400, abs=5 * math.sqrt(8 * 19_400))
    spike = times("spike:2,to=20,at=600,for=60", requests=None, duration_s=2000)
    inside = (spike >= 600) & (spike < 660)
    assert inside.sum() == pytest.approx(1200, abs=5 * math.sqrt(1200))
    assert (~inside).sum() == pytest.approx(2 * 1940, abs=5 * math.sqrt(2 * 1940))


def test_burstiness_on_top_of_a_swinging_rate() -> None:
    """Counted on the process's own clock, the requests expected so far, the gaps have the CV asked for."""
    arrivals = parse_arrivals("spike:2,to=20,at=600,for=60,cv=3")
    clock = np.array([arrivals.curve.by(float(moment)) for moment in draw_arrivals(arrivals, requests=20_000)])
    gaps = np.diff(clock)
    assert gaps.mean() == pytest.approx(1, rel=5 * 3 / math.sqrt(20_000))
    assert gaps.std() == pytest.approx(3, rel=0.15)


@pytest.mark.parametrize(
    ("text", "end"),
    [
        *product(("burst:7", "poisson:7"), ({"requests": 0}, {"requests": -1}, {"requests": 5, "duration_s": 0.0})),
        *product(["poisson:2"], ({}, {"requests": MOST_REQUESTS + 1}, {"duration_s": 0.0}, {"duration_s": 1e9})),
    ],
)
def test_nothing_at_all_is_no_traffic(text: str, end: dict[str, float]) -> None:
    with pytest.raises(BadInput) as refused:
        draw_arrivals(parse_arrivals(text), **end)  # type: ignore[arg-type]
    assert refused.value.field in (("requests", "duration") if end else (None,))


@pytest.mark.parametrize("text", ALL)
def test_times_are_sorted_start_at_zero_and_repeat_with_the_seed(text: str) -> None:
    one, same = times(text, requests=5000), times(text, requests=5000)
    other = times(text, requests=5000, seed=1)
    assert one[0] == 0
    assert np.isfinite(one).all()
    assert (np.diff(one) >= 0).all()
    np.testing.assert_array_equal(one, same)
    if not text.startswith(("constant", "burst")):
        assert not np.array_equal(one, other)


@given(st.sampled_from(ALL), st.floats(0.1, 3000), st.integers(1, 500))
def test_nothing_arrives_after_the_end(text: str, duration_s: float, requests: int) -> None:
    made = draw_arrivals(parse_arrivals(text), requests=requests, duration_s=duration_s)
    assert 1 <= len(made) <= requests
    assert made[-1] < duration_s


WRONG = (
    "poison:2", "gamma:2", "poisson:fast", "poisson:-1", "poisson:0", "poisson:nan", "poisson", "poisson:2,cv=3",
    "onoff:10,on=60,of=300", "spike:2,to=20,at=10 weeks,for=60", "gamma:2,3", "gamma:2,cv=1,cv=2", "burst:2.5", "",
)  # fmt: skip


@pytest.mark.parametrize("text", WRONG)
def test_a_wrong_text_is_explained_with_examples(text: str) -> None:
    refusal = refused(parse_arrivals, text)
    assert refusal.field == "arrivals"
    assert "poisson:2" in str(refusal.fix)


# --- forecasts from a traffic's own past ------------------------------------------------------------------------------


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
    assert (error.error_share, error.bias_share) == pytest.approx(((1 + 1) / 4, 0.0))
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


# --- how traffic changes over its day or week: the rates of the curve that was asked for, and the hours of a log ------


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


def test_a_rate_for_each_hour_repeats_after_the_last() -> None:
    """Two an hour's length each: none in the first, one a second in the second."""
    arrivals = parse_arrivals("hourly:0/1")
    assert arrivals.curve.period_s == 7200
    drawn = draw_arrivals(arrivals, duration_s=4 * 3600, seed=1)
    counts = np.histogram(drawn[1:], 4, (0, 4 * 3600))[0]
    assert counts[0] == counts[2] == 0
    assert counts[1] == pytest.approx(3600, abs=4 * 60)
    assert counts[3] == pytest.approx(3600, abs=4 * 60)


@pytest.mark.parametrize("text", ["hourly:", "hourly:0/0", "hourly:1/-1", "hourly:a/b", "hourly:" + "1/" * 168 + "1"])
def test_rates_of_hours_are_numbers_of_which_one_is_above_0(text: str) -> None:
    with pytest.raises(BadInput, match="requests a second of each hour"):
        parse_arrivals(text)
