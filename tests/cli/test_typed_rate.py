"""A rate that is typed is the rate that is served, whatever the arrivals, and the same requests as a plan's."""

import json
from typing import Any

import numpy as np
import pytest
from tests.command import run

from tokonomics.errors import BadInput, flag
from tokonomics.questions.inputs import Traffic
from tokonomics.questions.load import load_of
from tokonomics.questions.request import SILENT
from tokonomics.questions.requests.buy import PlanRequest
from tokonomics.questions.traffic import traffic_of, trial_of
from tokonomics.report.terminal import Terminal

SHAPE: dict[str, Any] = {"input": "100", "output": "10"}


@pytest.mark.parametrize(
    "arrivals",
    [
        None, "gamma:5,cv=3", "constant:7", "onoff:10,on=60,off=300", "diurnal:5,peak=3",
        "weekly:9,weekend=0.3", "step:2,to=8,at=600", "spike:2,to=20,at=600,for=60",
    ],
)  # fmt: skip
def test_made_up_requests_are_those_of_a_plan_and_have_its_rate(arrivals: str | None) -> None:
    made = traffic_of(Traffic(rate="2", arrivals=arrivals, **SHAPE), SILENT)
    said = {"model": "m", "rate": "2", "arrivals": arrivals, **SHAPE}
    planned = load_of(PlanRequest.checked(said))
    assert planned.workload.rate == pytest.approx(2)
    assert np.array_equal(made.arrival_s, planned.trace.arrival_s)
    assert np.array_equal(made.input_tokens, planned.trace.input_tokens)
    # Up to its last request: a day of this shape ends with an hour and a half of next to none.
    assert made.rate == pytest.approx(2, rel=0.08)


def test_a_fast_onoff_has_enough_periods_to_show_its_silence() -> None:
    made = traffic_of(Traffic(rate="200", arrivals="onoff:10,on=60,off=300", **SHAPE), SILENT)
    assert made.rate == pytest.approx(200, rel=0.05)


@pytest.mark.parametrize("verb", ["trace", "simulate", "cache", "tenants"])
def test_a_day_of_too_many_requests_is_refused_and_not_served_at_night_alone(verb: str) -> None:
    on = () if verb == "trace" else ("--model=llama-3.1-8b", "--gpu=H100")
    told = run(verb, *on, "--rate=500", "--arrivals=diurnal:5,peak=3", "--input=100", "--output=10")
    assert isinstance(told.exception, BadInput)
    assert "43,200,000 requests" in told.exception.message(flag)
    assert "--duration 1h" in (told.exception.message(flag))


def test_a_part_of_a_day_says_which_rate_it_has() -> None:
    told = run("trace", "--rate=500", "--arrivals=diurnal:5,peak=3", "--requests=50000", "--input=100", "--output=10",
               "--json")  # fmt: skip
    assert told.exit_code == 0
    rate = json.loads(told.stdout)["rate"]
    assert rate < 10
    assert f"at {rate:.3g} a second, not 500" in told.stderr
    whole = run("trace", "--rate=2", "--arrivals=diurnal:5,peak=3", "--input=100", "--output=10", "--json")
    assert whole.stderr == ""
    noon = Traffic(rate="500", arrivals="diurnal:5,peak=3,start=11.5h", duration="1h", **SHAPE)
    assert traffic_of(noon, SILENT).rate == pytest.approx(1500, rel=0.05)


def test_a_sample_and_a_window_say_their_rate_too(capsys: pytest.CaptureFixture[str]) -> None:
    made = traffic_of(Traffic(rate="5", sample=0.5, **SHAPE), Terminal())
    assert f"at {made.rate:.3g} a second, not 5" in capsys.readouterr().err


@pytest.mark.parametrize("sessions", ["5,think=5", "8,think=2m,limit=1000"])
@pytest.mark.parametrize(
    "end", [{}, {"requests": 3000}, {"duration": "2h"}, {"arrivals": "diurnal:1", "duration": "1d"}], ids=str
)
def test_a_rate_of_conversations_counts_their_requests(sessions: str, end: dict[str, Any]) -> None:
    made = traffic_of(Traffic(rate="3", sessions=sessions, **end, **SHAPE), SILENT)
    assert made.rate == pytest.approx(3, rel=0.03)


def test_tokens_a_month_count_shared_prompts_and_earlier_turns() -> None:
    month_s = 730 * 3600
    structures: tuple[dict[str, Any], ...] = ({"system_prompts": "5,tokens=1000"}, {"sessions": "5,think=5"})
    for structure in structures:
        made = traffic_of(Traffic(tokens_per_month="2B", **structure, **SHAPE), SILENT)
        tokens = float((made.input_tokens + made.output_tokens).sum()) / made.duration_s * month_s
        assert tokens == pytest.approx(2e9, rel=0.05)


def test_capacity_is_tried_on_the_whole_of_a_curve() -> None:
    tried = trial_of(Traffic(arrivals="diurnal:5,peak=3", **SHAPE), SILENT)
    in_hours = np.histogram(tried.arrival_s / tried.duration_s * 24, bins=24)[0]
    assert 18_000 < len(tried) < 22_000
    assert in_hours.max() / in_hours.mean() == pytest.approx(3, rel=0.1)
    assert int(in_hours.argmax()) in (11, 12)


def test_a_burst_has_no_rate() -> None:
    with pytest.raises(BadInput, match="a burst has no rate"):
        traffic_of(Traffic(rate="5", arrivals="burst:100", **SHAPE), SILENT)
