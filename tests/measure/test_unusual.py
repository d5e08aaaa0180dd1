"""Days whose price leaves its band, and the cause that was put into them."""

import math
from datetime import date, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.measure.ledgers import HOUR_S, day_of, days_from

from tokonomics.measure.meter.bill import bill
from tokonomics.measure.meter.price_factors import UnusualDay, factors_between, unusual_days
from tokonomics.measure.meter.spans import PaidTime
from tokonomics.measure.meter.state import MeterTally

MONDAY = date(2026, 11, 2)
FAILING = {"failed": 1000.0, "failed_s": HOUR_S / 2, "input_total": 5e5, "input_cached": 2e5, "output": 1e5}
CAUSES: dict[str, tuple[dict[str, Any], float]] = {
    # Half of every hour without work: half of the tokens at the same dollars.
    "idle": (
        {"busy_s": HOUR_S / 2, "running_seen_s": HOUR_S / 2, "running_s": 10 * HOUR_S, "input_total": 5e5,
         "input_cached": 2e5, "output": 1e5}, 2.0),
    "price": ({}, 2.0),
    # Half as many requests at once, each as fast as before.
    "batch": ({"running_s": 10 * HOUR_S, "input_total": 5e5, "input_cached": 2e5, "output": 1e5}, 2.0),
    # The 800 K computed tokens an hour as before, but no cached ones beside them: 0.8 M instead of 1.2 M tokens.
    "cache hits": ({"input_total": 6e5, "input_cached": 0.0}, 1.5),
    # Half of the requests fail, and with them half of the busy time.
    "failures": (FAILING, 2.0),
    # Twice the batch at the same speed: twice the tokens, and a cheap day is unusual too.
    "batch ": ({"running_s": 40 * HOUR_S, "input_total": 2e6, "input_cached": 8e5, "output": 4e5}, 0.5),
}  # fmt: skip


def weeks(odd: date, changed: dict[str, Any], usd: float = 48.0) -> tuple[UnusualDay, ...]:
    """Four weeks, one day of them odd."""
    spans: list[PaidTime] = []
    for place in range(28):
        day = MONDAY + timedelta(days=place)
        # A little more and less from day to day, so that there is a band.
        usual = 48.0 * (1 + 0.01 * ((place * 5) % 3 - 1))
        spans += day_of(day, usd, **changed) if day == odd else day_of(day, usual)
    ends = max(span.end for span in spans)
    return unusual_days(bill(spans, 0.0, ends, ("model", "day")))


@pytest.mark.parametrize("cause", CAUSES)
def test_the_cause_that_was_put_in_is_named(cause: str) -> None:
    changed, times = CAUSES[cause]
    odd = MONDAY + timedelta(days=16)
    (found,) = weeks(odd, changed, usd=96.0 if cause == "price" else 48.0)
    assert found.day == odd
    assert found.ratio == pytest.approx(times, rel=0.02)
    assert found.largest is not None
    assert found.largest.name == cause.strip()
    assert found.largest.times == pytest.approx(times, rel=0.02)
    assert found.largest.said in found.said


def test_usual_days_are_not_named_a_few_have_no_band_and_quiet_weekends_are_usual_for_weekends() -> None:
    """Five of ten weekend days or more are compared with one another: half the tokens is how they are."""
    assert weeks(date(2027, 1, 1), {}) == ()
    few = days_from(MONDAY, (48, 48, 480, 48))
    assert unusual_days(bill(few, 0.0, 2e9, ("model", "day"))) == ()
    spans: list[PaidTime] = []
    half = {"input_total": 5e5, "input_cached": 2e5, "output": 1e5}
    for place in range(35):
        day = MONDAY + timedelta(days=place)
        spans += day_of(day, 48.0 + 0.3 * (place % 4), **(half if day.weekday() >= 5 else {}))
    assert unusual_days(bill(spans, 0.0, 2e9, ("model", "day"))) == ()


tallies = st.builds(
    lambda usd, busy, idle, gap, tokens, cached, output, unseen, failed, batch: MeterTally(
        seconds=busy + idle + gap, busy_s=busy, idle_s=idle, gap_s=gap, usd=usd,
        busy_usd=usd * busy / (busy + idle + gap), idle_usd=usd * idle / (busy + idle + gap),
        gap_usd=usd * gap / (busy + idle + gap), failed_usd=usd * busy / (busy + idle + gap) * failed,
        input_total=tokens, input_cached=tokens * cached, output=output, unseen_tokens=(tokens + output) * unseen,
        running_s=batch * busy, running_seen_s=busy,
    ),
    *(st.floats(0.01, 1e5) for _ in range(2)), st.floats(0, 1e5), st.floats(0, 1e5), st.floats(1, 1e9),
    st.floats(0, 1), st.floats(1, 1e9), st.floats(0, 0.99), st.floats(0, 0.99), st.floats(0.01, 500),
)  # fmt: skip


@given(tallies, tallies)
def test_the_factors_multiply_to_the_ratio(day: MeterTally, usual: MeterTally) -> None:
    factors = factors_between(day, usual)
    assert day.usd_per_mtok is not None
    assert usual.usd_per_mtok is not None
    ratio = day.usd_per_mtok / usual.usd_per_mtok
    assert math.prod(factor.times for factor in factors) == pytest.approx(ratio, rel=1e-9)


@given(tallies)
def test_a_day_like_the_usual_ones_has_factors_of_one(day: MeterTally) -> None:
    assert all(factor.times == pytest.approx(1.0) for factor in factors_between(day, day))
