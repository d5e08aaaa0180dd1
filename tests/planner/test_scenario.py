"""Scenarios: the words of the flags as a question to the planner; slips are named."""

from pathlib import Path

import pytest

from tokonomics.errors import BadInput
from tokonomics.questions.load import cases_of, load_of
from tokonomics.questions.plan import questions_in
from tokonomics.questions.requests.buy import PlanRequest
from tokonomics.questions.scenario import read_request

CHAT = {"model": "llama-3.1-8b", "rate": 5, "input": 1000, "output": 300}


def test_a_flag_wins_over_the_file_and_other_traffic_replaces_it(tmp_path: Path) -> None:
    file = tmp_path / "chat.toml"
    file.write_text('model = "llama-3.1-8b"\nrate = 5\ninput = 1000\noutput = 300\nslo = "ttft_p99=1"\n')

    def over(more: dict[str, object]) -> PlanRequest:
        return read_request(file, PlanRequest, "plan", more)

    assert over({"rate": "9"}).rate == "9"
    assert over({"rate": "9"}).input == "1000"
    log = over({"trace": "azure-conv"})
    assert (log.trace, log.input, log.output, log.slo) == ("azure-conv", None, None, "ttft_p99=1")
    assert over({"offline": True}).slo is None
    assert over({"tokens_per_month": "2B"}).rate is None


def test_tokens_a_month_are_a_rate() -> None:
    shape = {"input": "const:800", "output": "const:200"}
    load = load_of(PlanRequest.of({"model": "m", "tokens_per_month": "2.628B", **shape}))
    # 2.628e9 tokens ÷ 1000 a request ÷ (730 × 3600 seconds) = 1 request a second.
    assert load.workload.rate == pytest.approx(1.0)
    assert load.trace.rate == pytest.approx(1.0)


def test_ranges_make_three_cases() -> None:
    cases = cases_of(PlanRequest.of({**CHAT, "rate": "2:5:20", "output": "100:300:900"}))
    assert [(name, case.rate, case.input, case.output) for name, case in cases.items()] == [
        ("low", "2", "1000", "100"),
        ("mid", "5", "1000", "300"),
        ("high", "20", "1000", "900"),
    ]
    alone = PlanRequest.of({**CHAT, "input": "lognormal:mean=800,p99=6000"})
    assert list(cases_of(alone).values()) == [alone]


def test_a_rate_is_kept_exactly_whatever_the_arrivals() -> None:
    for arrivals in (None, "gamma:3,cv=2", "constant:1"):
        load = load_of(PlanRequest.of({**CHAT, "arrivals": arrivals} if arrivals else CHAT))
        assert load.trace.rate == pytest.approx(5)
    own = load_of(PlanRequest.of({"model": "m", "arrivals": "gamma:3,cv=2", "input": 10, "output": 10}))
    assert own.workload.rate == pytest.approx(3)


def test_a_day_is_planned_as_a_whole_day() -> None:
    load = load_of(PlanRequest.of({"model": "m", "arrivals": "diurnal:2,peak=3", "input": 10, "output": 10}))
    assert len(load.trace) == pytest.approx(2 * 86_400, rel=0.01)
    # Its rate falls to nothing at night, so the last request does not come at midnight.
    assert 0.9 * 86_400 < load.trace.duration_s <= 86_400


def test_a_large_fleet_is_simulated_as_sixteen_of_its_replicas() -> None:
    load = load_of(PlanRequest.of({**CHAT, "rate": 1600}))
    assert load.workload.rate == 1600
    requests, served_by = load.on(160)
    assert served_by == 16
    assert requests.rate == pytest.approx(160, rel=0.02)
    assert load.on(10) == (load.trace, 10)


def test_the_days_of_a_huge_load_are_thinned_to_a_share() -> None:
    load = load_of(PlanRequest.of({"model": "m", "arrivals": "diurnal:200,peak=3", "input": 10, "output": 10}))
    assert load.share == 1 / 9  # 200 × 86,400 requests, at most two million of them
    assert load.workload.rate == pytest.approx(200)
    assert len(load.trace) == pytest.approx(200 * 86_400 / 9, rel=0.01)
    assert load.on(90)[1] == 10
    assert load.least_replicas == 9


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"rrate": 5}, ["unknown input 'rrate'", "Did you mean rate?"]),
        ({"spare": "two"}, ["spare: "]),
        ({"rate": {"a": 1}}, ["rate: "]),
        ({"seed": -1}, ["seed: "]),
        ({"max_price": float("nan")}, ["max_price: "]),
    ],
)
def test_a_slip_in_a_scenario_is_named(values: dict[str, object], says: list[str]) -> None:
    with pytest.raises(BadInput) as caught:
        questions_in(PlanRequest.of({**CHAT, **values}))
    assert [say for say in says if say not in str(caught.value)] == []


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"model": "llama-3.1-8b"}, "no traffic is given"),
        ({"model": "llama-3.1-8b", "input": 5, "output": 5}, "how many requests a second"),
        ({**CHAT, "tokens_per_month": "2B"}, "says the same as rate"),
        ({**CHAT, "rate": "-1"}, "rate: must be a number above 0"),
        ({**CHAT, "rate": "1e12"}, "at most a billion"),
        ({**CHAT, "trace": "azure-conv"}, "is for made-up requests"),
        ({**CHAT, "from": "10m"}, "start: is for a log"),
        ({**CHAT, "arrivals": "burst:100"}, "a burst has no rate"),
        ({"model": "llama-3.1-8b", "trace": "azure-conv", "from": "2h", "to": "1h"}, "must be later than start"),
        ({"model": "llama-3.1-8b", "trace": "azure-conv", "from": "900h"}, "no request is left"),
        ({"model": "llama-3.1-8b", "tokens_per_month": "two", "input": 5, "output": 5}, "is not an amount"),
        ({"model": "llama-3.1-8b", "tokens_per_month": "0.001", "input": 5, "output": 5}, "which nobody serves"),
        ({"model": "llama-3.1-8b", "tokens_per_month": "9e99T", "input": 5, "output": 5}, "which nobody serves"),
        ({**CHAT, "slo": "ttft_p99=1", "offline": True}, "has no latency targets"),
        ({**CHAT, "rate": "5:4:3"}, "is not low:mid:high"),
        ({**CHAT, "rate": "1:2"}, "is not low:mid:high"),
    ],
)
def test_traffic_that_cannot_be_planned_for_is_refused(values: dict[str, object], says: str) -> None:
    def ask() -> None:
        for each in cases_of(PlanRequest.of(values)).values():
            questions_in(each)

    with pytest.raises(BadInput) as caught:
        ask()
    assert says in str(caught.value)
