"""Scenarios: the words of the flags as a question to the planner; slips are named."""

import pytest

from tokonomics.errors import BadInput
from tokonomics.questions.load import cases_of, load_of
from tokonomics.questions.plan import questions_in
from tokonomics.questions.requests.buy import PlanRequest

SHAPE = {"model": "llama-3.1-8b", "input": 1000, "output": 300}
CHAT = {**SHAPE, "rate": 5}


def test_tokens_a_month_are_a_rate() -> None:
    shape = {"input": "const:800", "output": "const:200"}
    load = load_of(PlanRequest.checked({"model": "m", "tokens_per_month": "2.628B", **shape}))
    # 2.628e9 tokens ÷ 1000 a request ÷ (730 × 3600 seconds) = 1 request a second.
    assert load.workload.rate == pytest.approx(1.0)
    assert load.trace.rate == pytest.approx(1.0)


def test_ranges_make_three_cases() -> None:
    cases = cases_of(PlanRequest.checked({**CHAT, "rate": "2:5:20", "output": "100:300:900"}))
    assert [(name, case.rate, case.input, case.output) for name, case in cases.items()] == [
        ("low", "2", "1000", "100"),
        ("mid", "5", "1000", "300"),
        ("high", "20", "1000", "900"),
    ]
    alone = PlanRequest.checked({**CHAT, "input": "lognormal:mean=800,p99=6000"})
    assert list(cases_of(alone).values()) == [alone]


def test_a_rate_is_kept_exactly_whatever_the_arrivals() -> None:
    for arrivals in (None, "gamma:3,cv=2", "constant:1"):
        load = load_of(PlanRequest.checked({**CHAT, "arrivals": arrivals} if arrivals else CHAT))
        assert load.trace.rate == pytest.approx(5)
    own = load_of(PlanRequest.checked({"model": "m", "arrivals": "gamma:3,cv=2", "input": 10, "output": 10}))
    assert own.workload.rate == pytest.approx(3)


def test_a_day_is_planned_as_a_whole_day() -> None:
    load = load_of(PlanRequest.checked({"model": "m", "arrivals": "diurnal:2,peak=3", "input": 10, "output": 10}))
    assert len(load.trace) == pytest.approx(2 * 86_400, rel=0.01)
    # Its rate falls to nothing at night, so the last request does not come at midnight.
    assert 0.9 * 86_400 < load.trace.duration_s <= 86_400


def test_a_large_fleet_is_simulated_as_sixteen_of_its_replicas() -> None:
    load = load_of(PlanRequest.checked({**CHAT, "rate": 1600}))
    assert load.workload.rate == 1600
    requests, served_by = load.on(160)
    assert served_by == 16
    assert requests.rate == pytest.approx(160, rel=0.02)
    assert load.on(10) == (load.trace, 10)


def test_the_days_of_a_huge_load_are_thinned_to_a_share() -> None:
    load = load_of(PlanRequest.checked({"model": "m", "arrivals": "diurnal:200,peak=3", "input": 10, "output": 10}))
    assert load.share == 1 / 9  # 200 × 86,400 requests, at most two million of them
    assert load.workload.rate == pytest.approx(200)
    assert len(load.trace) == pytest.approx(200 * 86_400 / 9, rel=0.01)
    assert load.on(90)[1] == 10
    assert load.least_replicas == 9


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({**CHAT, "rrate": 5}, None),
        ({**CHAT, "spare": "two"}, "spare"),
        ({**CHAT, "seed": -1}, "seed"),
        ({**CHAT, "max_price": float("nan")}, "max_price"),
        ({"model": "llama-3.1-8b"}, None),
        ({"model": "llama-3.1-8b", "input": 5, "output": 5}, "rate"),
        *(({**CHAT, "rate": rate}, "rate") for rate in ("-1", "1e12", "5:4:3", "1:2", {"a": 1})),
        *(({**SHAPE, "tokens_per_month": tokens}, "tokens_per_month") for tokens in ("two", "0.001", "9e99T")),
        ({**CHAT, "tokens_per_month": "2B"}, "tokens_per_month"),
        ({**CHAT, "trace": "azure-conv"}, "input"),
        ({**CHAT, "from": "10m"}, "start"),
        ({**CHAT, "arrivals": "burst:100"}, "arrivals"),
        ({"model": "llama-3.1-8b", "trace": "azure-conv", "from": "2h", "to": "1h"}, "end"),
        ({"model": "llama-3.1-8b", "trace": "azure-conv", "from": "900h"}, None),
        ({**CHAT, "slo": "ttft_p99=1", "offline": True}, "offline"),
    ],
)
def test_a_scenario_that_cannot_be_planned_for_names_the_input(values: dict[str, object], field: str | None) -> None:
    with pytest.raises(BadInput) as caught:  # noqa: PT012
        for case in cases_of(PlanRequest.checked(values)).values():
            questions_in(case)
    assert caught.value.field == field
