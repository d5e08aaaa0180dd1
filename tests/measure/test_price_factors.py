"""Days whose price leaves its band, and the cause that was put into them."""

import json
import math
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.measure.ledgers import HOUR_S, day_of, days_from
from tests.there import there

from tokonomics.errors import BadInput
from tokonomics.measure.meter.bill import bill
from tokonomics.measure.meter.price_factors import UnusualDay, compare, factors_between, read_plan, unusual_days
from tokonomics.measure.meter.spans import PaidTime
from tokonomics.measure.meter.state import MeterTally, Planned

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
def test_the_factors_between_two_days_multiply_to_their_ratio(day: MeterTally, usual: MeterTally) -> None:
    factors = factors_between(day, usual)
    assert day.usd_per_mtok is not None
    assert usual.usd_per_mtok is not None
    ratio = day.usd_per_mtok / usual.usd_per_mtok
    assert math.prod(factor.times for factor in factors) == pytest.approx(ratio, rel=1e-9)


@given(tallies)
def test_a_day_like_the_usual_ones_has_factors_of_one(day: MeterTally) -> None:
    assert all(factor.times == pytest.approx(1.0) for factor in factors_between(day, day))


# --- what is paid against what was planned: factors that multiply to the ratio, the largest one named -----------------

some = st.floats(0.01, 1e4)


@given(tallies, some, st.none() | some, st.none() | some, st.none() | st.floats(0, 0.9))
def test_the_factors_multiply_to_the_ratio(
    actual: MeterTally, price: float, batch: float | None, hourly: float | None, hits: float | None
) -> None:
    verdict = there(compare(actual, Planned(usd_per_mtok=price, batch=batch, usd_per_hour=hourly, cache_share=hits)))
    assert verdict.ratio == pytest.approx(actual.usd / (actual.input_total + actual.output) * 1e6 / price)
    assert math.prod(factor.times for factor in verdict.factors) == pytest.approx(verdict.ratio)
    if verdict.largest is not None:
        assert verdict.largest in verdict.factors
        assert verdict.largest.times > 1


def planned() -> Planned:
    """A $3.60 server that works all the time: 48 requests at once, each 20 tokens a second, nothing cached."""
    per_s = 48 * 20
    return Planned(usd_per_mtok=3.60 / (per_s * 3600) * 1e6, batch=48, usd_per_hour=3.60, tokens_per_s=per_s)


def served(
    *, usd_per_hour: float = 3.60, busy: float = 1.0, batch: float = 48, each: float = 20, hits: float = 0
) -> MeterTally:
    """An hour in which each running request computes so many tokens a second, prompts and answers by half."""
    computed = 3600 * busy * batch * each
    # Computed tokens are the answers, and the prompts without their cached share.
    answers = computed / (1 + (1 - hits))
    return MeterTally(
        seconds=3600, busy_s=3600 * busy, idle_s=3600 * (1 - busy), usd=usd_per_hour, input_total=answers,
        input_cached=answers * hits, output=answers, running_s=3600 * busy * batch, running_seen_s=3600 * busy,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("actual", "name", "times"),
    [
        (served(usd_per_hour=7.20), "price", 2.0),
        (served(busy=0.25), "idle hours", 4.0),
        (served(batch=12), "batch", 4.0),
        (served(each=10), "speed", 2.0),
    ],
)
def test_one_thing_that_differs_is_the_one_that_is_named(actual: MeterTally, name: str, times: float) -> None:
    verdict = there(compare(actual, planned()))
    assert verdict.ratio == pytest.approx(times)
    assert verdict.largest is not None
    assert verdict.largest.name == name
    assert verdict.largest.times == pytest.approx(times)
    others = [factor.times for factor in verdict.factors if factor.name != name]
    assert others == pytest.approx([1.0] * len(others))


def test_fewer_cache_hits_than_planned_are_named() -> None:
    hoped = served(hits=0.8)
    assert hoped.usd_per_mtok is not None
    assert hoped.tokens_per_s is not None
    plan = Planned(
        usd_per_mtok=hoped.usd_per_mtok, batch=48, usd_per_hour=3.60, tokens_per_s=hoped.tokens_per_s, cache_share=0.8
    )
    verdict = there(compare(served(hits=0), plan))
    assert verdict.largest is not None
    assert verdict.largest.name == "cache hits"
    # Half of the tokens are prompts, of which four fifths would not be computed: 2 tokens in the place of 1.2.
    assert verdict.largest.times == pytest.approx(verdict.ratio) == pytest.approx(2 / 1.2)


def test_a_small_batch_is_not_blamed_for_more_than_it_costs() -> None:
    """Three times fewer at once, each three times as fast: the tokens are the same, the price is the reason."""
    verdict = there(compare(served(usd_per_hour=5.40, batch=16, each=60), planned()))
    assert verdict.ratio == pytest.approx(1.5)
    assert there(verdict.largest).name == "price"


def test_without_tokens_there_is_nothing_to_compare() -> None:
    assert compare(MeterTally(seconds=60, usd=1.0), planned()) is None


def plan_file(path: Path, **best: object) -> Path:
    usual = {"replicas": 2, "usd_per_month": 7300.0, "batch": 20.5}
    load = {"rate": 10.0, "input_tokens": 900.0, "output_tokens": 100.0}
    path.write_text(json.dumps({"best": usual | best, "workload": load}))
    return path


def test_a_plan_is_read_as_one_replicas_share(tmp_path: Path) -> None:
    plan = read_plan(plan_file(tmp_path / "plan.json"))
    # 7300 $ a month are 10 $ an hour, 5 for each of two replicas, which take 5 of 10 requests a second each.
    assert (plan.usd_per_hour, plan.tokens_per_s, plan.batch) == (5.0, 5000.0, 20.5)
    assert plan.usd_per_mtok == pytest.approx(5 / (5000 * 3600) * 1e6)


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"best": null, "workload": {}}', '{"best": {"replicas": 0}}', "null"]
)
def test_a_file_that_is_no_plan_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "plan.json").write_text(text)
    with pytest.raises(BadInput):
        read_plan(tmp_path / "plan.json")


def test_time_that_nobody_watched_is_not_called_idle() -> None:
    """An hour at full work, and an hour in which the meter was away and as many tokens were served: all as planned."""
    hour = served()
    tokens = hour.billed_tokens
    away = MeterTally(
        seconds=3600, away_s=3600, usd=3.60, input_total=tokens / 2, output=tokens / 2, unseen_tokens=tokens
    )
    verdict = there(compare(hour + away, planned()))
    assert verdict.largest is None
    assert {factor.name: factor.times for factor in verdict.factors} == pytest.approx(
        {"price": 1, "idle hours": 1, "not watched": 1, "batch": 1, "cache hits": 1, "speed": 1}
    )


def test_a_gap_without_tokens_is_named_as_such() -> None:
    gap = MeterTally(seconds=3600, gap_s=3600, usd=3.60)
    verdict = there(compare(served() + gap, planned()))
    assert verdict.largest is not None
    assert verdict.largest.name == "not watched"
    assert verdict.largest.times == pytest.approx(2.0)
