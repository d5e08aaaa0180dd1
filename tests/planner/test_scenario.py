"""Scenario files and flags: the same words, the same plan; slips are named."""

from datetime import date
from pathlib import Path

import pytest

from tokonomics.catalog.offers import Terms
from tokonomics.catalog.precision import Precision
from tokonomics.errors import BadInput
from tokonomics.planner.scenario import Scenario, load_of, questions_of, read_scenario, scenario_from

TODAY = date(2026, 11, 15)
CHAT = {"model": "llama-3.1-8b", "rate": 5, "input": 1000, "output": 300}


def saved(folder: Path, text: str) -> Path:
    file = folder / "scenario.toml"
    file.write_text(text, encoding="utf-8")
    return file


def test_a_file_says_what_the_flags_say(tmp_path: Path) -> None:
    file = saved(
        tmp_path,
        'model = ["llama-3.1-8b", "qwen3-8b"]\nrate = 5\ninput = "lognormal:mean=800,p99=6000"\noutput = 200\n'
        'slo = "ttft_p99=0.5"\nterms = ["spot", "on_demand"]\nkv = "fp8"\nspare = 1\nmax_price = 3.5\n',
    )
    flags = {
        "model": ("llama-3.1-8b", "qwen3-8b"),
        "rate": "5",
        "input": "lognormal:mean=800,p99=6000",
        "output": "200",
        "slo": "ttft_p99=0.5",
        "terms": ("spot", "on_demand"),
        "kv": ("fp8",),
        "spare": 1,
        "max_price": 3.5,
    }
    assert read_scenario(file) == Scenario().over(flags)
    first, second = questions_of(read_scenario(file), TODAY)
    assert (first.model.key, second.model.key) == ("llama-3.1-8b", "qwen3-8b")
    assert first.terms == (Terms.spot, Terms.on_demand)
    assert first.kv == (Precision.fp8,)
    assert first.limits.spare == 1
    assert first.limits.max_usd_per_gpu_hour == 3.5
    assert [str(each) for each in first.promises] == ["ttft_p99"]


def test_a_flag_wins_over_the_file_and_other_traffic_replaces_it() -> None:
    file = scenario_from({**CHAT, "slo": "ttft_p99=1"})
    assert file.over({"rate": "9"}).rate == "9"
    assert file.over({"rate": "9"}).input == "1000"
    log = file.over({"trace": "azure-conv"})
    assert (log.trace, log.input, log.output, log.slo) == ("azure-conv", None, None, "ttft_p99=1")
    assert file.over({"offline": True}).slo is None
    assert file.over({"tokens_per_month": "2B"}).rate is None


def test_tokens_a_month_are_a_rate() -> None:
    load = load_of(scenario_from({"model": "m", "tokens_per_month": "2.628B", "input": 800, "output": 200}))
    # 2.628e9 tokens ÷ 1000 a request ÷ (730 × 3600 seconds) = 1 request a second.
    assert load.workload.rate == pytest.approx(1.0)
    assert load.trace.rate == pytest.approx(1.0)


def test_ranges_make_three_cases() -> None:
    cases = scenario_from({**CHAT, "rate": "2:5:20", "output": "100:300:900"}).cases()
    assert [(name, each.rate, each.input, each.output) for name, each in cases.items()] == [
        ("low", "2", "1000", "100"),
        ("mid", "5", "1000", "300"),
        ("high", "20", "1000", "900"),
    ]
    alone = scenario_from({**CHAT, "input": "lognormal:mean=800,p99=6000"})
    assert list(alone.cases().values()) == [alone]


def test_a_rate_is_kept_exactly_whatever_the_arrivals() -> None:
    for arrivals in (None, "gamma:3,cv=2", "constant:1"):
        load = load_of(scenario_from({**CHAT, "arrivals": arrivals} if arrivals else CHAT))
        assert load.trace.rate == pytest.approx(5)
    own = load_of(scenario_from({"model": "m", "arrivals": "gamma:3,cv=2", "input": 10, "output": 10}))
    assert own.workload.rate == pytest.approx(3)


def test_a_day_is_planned_as_a_whole_day() -> None:
    load = load_of(scenario_from({"model": "m", "arrivals": "diurnal:2,peak=3", "input": 10, "output": 10}))
    assert load.trace.duration_s == pytest.approx(86_400, rel=0.02)


def test_a_slice_of_a_huge_load_carries_its_share() -> None:
    load = load_of(scenario_from({**CHAT, "rate": 100_000}))
    assert load.share < 1
    assert load.trace.rate == pytest.approx(100_000 * load.share)
    assert load.workload.rate == 100_000


def test_files_named_in_a_scenario_are_found_beside_it(tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text("provider,instance,gpu,gpus,usd_per_hour\nours,r,H100,8,18.4\n")
    file = saved(tmp_path, 'model = "llama-3.1-8b"\nrate = 1\ninput = 10\noutput = 10\noffers = "mine.csv"\n')
    (question,) = questions_of(read_scenario(file), TODAY)
    assert [offer.instance for offer in question.offers] == ["r"]


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"rrate": 5}, ["unknown key 'rrate'", "Did you mean rate?"]),
        ({"spare": "two"}, ["--spare"]),
        ({"rate": {"a": 1}}, ["--rate"]),
        ({"seed": -1}, ["--seed"]),
        ({"max_price": float("nan")}, ["--max-price"]),
    ],
)
def test_a_slip_in_a_scenario_is_named(values: dict[str, object], says: list[str]) -> None:
    with pytest.raises(BadInput) as caught:
        scenario_from(values)
    assert [each for each in says if each not in str(caught.value)] == []


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"model": "llama-3.1-8b"}, "no traffic is given"),
        ({"model": "llama-3.1-8b", "input": 5, "output": 5}, "how many requests a second"),
        ({**CHAT, "tokens_per_month": "2B"}, "says the same as --rate"),
        ({**CHAT, "rate": "-1"}, "--rate: must be a number above 0"),
        ({**CHAT, "rate": "1e12"}, "at most a billion"),
        ({**CHAT, "trace": "azure-conv"}, "is for made-up requests"),
        ({**CHAT, "from": "10m"}, "--from: is for a log"),
        ({**CHAT, "arrivals": "burst:100"}, "a burst has no rate"),
        ({"model": "llama-3.1-8b", "trace": "azure-conv", "from": "2h", "to": "1h"}, "must be later than --from"),
        ({"model": "llama-3.1-8b", "trace": "azure-conv", "from": "900h"}, "no request is left"),
        ({"model": "llama-3.1-8b", "tokens_per_month": "two", "input": 5, "output": 5}, "is not an amount"),
        ({**CHAT, "slo": "ttft_p99=1", "offline": True}, "promises nothing"),
        ({**CHAT, "rate": "5:4:3"}, "is not low:mid:high"),
        ({**CHAT, "rate": "1:2"}, "is not low:mid:high"),
    ],
)
def test_traffic_that_cannot_be_planned_for_is_refused(values: dict[str, object], says: str) -> None:
    def ask() -> None:
        for each in scenario_from(values).cases().values():
            questions_of(each, TODAY)

    with pytest.raises(BadInput) as caught:
        ask()
    assert says in str(caught.value)


@pytest.mark.parametrize("content", [b"\xff\xfe", b"model = ", b"a" * 1_000_001, b"[[[[", b"= 5"])
def test_a_file_that_is_no_scenario_is_refused_with_its_name(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "odd.toml"
    file.write_bytes(content)
    with pytest.raises(BadInput) as caught:
        read_scenario(file)
    assert "odd.toml" in str(caught.value)
    with pytest.raises(BadInput):
        read_scenario(tmp_path)
