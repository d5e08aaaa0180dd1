"""What views choose to show where a figure could mislead."""

import re
from itertools import islice
from typing import Any

import pytest

import tokonomics
from tokonomics.catalog.layers import Precision
from tokonomics.measure.meter.bill import bill
from tokonomics.measure.meter.state import MeterTally
from tokonomics.money.breakeven import FleetKind, ReplicaHolds, SelfHosted, break_even
from tokonomics.planner.hosting import HostedKind
from tokonomics.planner.plan_answer import Candidate
from tokonomics.questions.breakeven import BreakevenResult
from tokonomics.questions.request import SILENT
from tokonomics.questions.requests.buy import BreakevenRequest
from tokonomics.questions.requests.traffic import CapacityRequest
from tokonomics.questions.simulate import capacity
from tokonomics.questions.verbs import find_verb
from tokonomics.report.answer import describe
from tokonomics.report.blocks import Line, sections
from tokonomics.report.breakeven_view import breakeven, letters_for
from tokonomics.report.meter_view import ledger
from tokonomics.report.simulate_view import capacity as described_capacity
from tokonomics.report.simulate_view import who
from tokonomics.report.terminal import Terminal, as_text
from tokonomics.serving.playback import MissCause, MissedRequest
from tokonomics.types import Speed


def test_letters_go_on_after_z_and_never_come_twice() -> None:
    assert letters_for(54)[25:28] == ["Z", "AA", "BB"]
    assert len(set(letters_for(100))) == 100


def hosted_at(weights: Precision, fewer: bool, usd_per_mtok: float, speed: Speed = Speed.timed) -> BreakevenResult:
    """One machine of $1,000 a month against an API, with weights in a precision."""
    kind = FleetKind(
        name="one", gpus_per_purchase=1, replicas_per_purchase=1, usd_per_purchase=1000.0,
        holds=(ReplicaHolds(replicas=1, tokens_per_month=20e9),),
    )  # fmt: skip
    hosted = SelfHosted(kinds=(kind,), extras=())
    pick: dict[str, Any] = {
        "weights": weights, "kv": Precision.bf16, "below_checkpoint": fewer, "price_age_days": 0, "provider": "aws",
        "instance": "one", "gpu": "L4", "gpus_paid": 1, "instances": 1, "speed": speed,
    }  # fmt: skip
    hardware: dict[str, Any] = {"kind": kind, "simulated": True, "pick": Candidate.model_construct(**pick)}
    parts: dict[str, Any] = {
        "model": "a model", "lengths": "1 in / 1 out", "input_tokens": 1.0, "output_tokens": 1.0, "cached_share": 0.0,
        "slos": (), "hosted": hosted, "hardware": (HostedKind.model_construct(**hardware),), "apis": (), "bills": (),
        "found": (break_even(hosted, "api", usd_per_mtok),), "own_tokens_per_month": None,
    }  # fmt: skip
    return BreakevenResult.model_construct(**parts)


@pytest.mark.parametrize("usd_per_mtok", [0.2, 0.01], ids=["from a volume on", "never"])
def test_a_verdict_names_fewer_bits_than_published_and_nothing_else(usd_per_mtok: float) -> None:
    for weights, fewer in ((Precision.int4, True), (Precision.bf16, False)):
        made = hosted_at(weights, fewer, usd_per_mtok)
        assert ("int4" in verdict_of(made)) == fewer
        assert ("int4" in made.headline()) == fewer


@pytest.mark.parametrize("usd_per_mtok", [0.2, 0.01], ids=["from a volume on", "never"])
def test_a_verdict_says_when_the_speed_that_it_rests_on_is_assumed(usd_per_mtok: float) -> None:
    for speed in Speed:
        made = hosted_at(Precision.bf16, False, usd_per_mtok, speed)
        assert ("assumed" in verdict_of(made)) == (speed is Speed.assumed)


def verdict_of(made: BreakevenResult) -> str:
    _, verdict = islice(sections(islice(breakeven(made, BreakevenRequest(api=["api"])).view(), 2)), 2)
    line = verdict.blocks[0]
    assert isinstance(line, Line)
    return "".join(span.text for span in line.spans)


def test_the_price_of_an_hour_speaks_before_that_of_minutes() -> None:
    tokens = MeterTally(seconds=60, usd=1.0, output=1e6)
    names = ("Last 5 minutes", "This hour", "Today", "Since the start")

    def headline(*spans: MeterTally) -> str:
        none = bill([], 0.0, 0.0, ())
        return as_text(sections(ledger(dict(zip(names, spans, strict=True)), none, None, ""))).splitlines()[0]

    nothing = MeterTally()
    assert headline(tokens, tokens, tokens, tokens).startswith("This hour: $1.00")
    assert headline(nothing, nothing, tokens, tokens).startswith("Today: ")
    assert headline(tokens, nothing, nothing, nothing).startswith("Last 5 minutes: ")


def test_a_capacity_tells_the_rate_that_holds_from_the_next_that_does_not() -> None:
    asked = {"model": "llama-3.1-8b", "gpu": "H100", "requests": 300, "input": "const:200", "output": "const:20"}
    request = CapacityRequest.checked(asked)
    found = capacity(request)
    for rate, at_most, told in ((12.81, 12.84, ("12.81/s", "12.84/s")), (12.7, 12.83, ("12.7/s", "12.8/s"))):
        best = found.highest_rate.model_copy(update={"rate": rate, "at_most": at_most})
        text = described_capacity(found.model_copy(update={"rate": rate, "highest_rate": best}), request).text()
        said = dict(re.findall(r"^(holds|fails at) +(\S+)", text, re.MULTILINE))
        assert (said["holds"], said["fails at"]) == told


def listed_models(**asked: str) -> str:
    verb = find_verb("models")
    request = verb.request.checked(asked)
    return describe(verb, verb.answer(request, SILENT), request).text()


def test_no_heading_of_the_list_of_models_is_cut_at_120_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    heading = next(line for line in listed_models().splitlines() if line.startswith("model "))
    assert len(heading.rstrip()) <= 120
    for name in ("params", "active", "format", "weights", "KV/token", "KV const.", "context", "released", "family"):
        assert name in heading


def test_encoders_have_no_kv_in_the_list_of_models() -> None:
    assert "KV/token" not in listed_models(match="bge")
    encoder = next(line for line in listed_models().splitlines() if line.startswith("bge-m3 "))
    assert encoder.count("–") == 2


def test_a_prediction_over_machines_names_its_network() -> None:
    spread = tokonomics.predict("deepseek-v3", gpu="H100", tp=8, pp=2)
    assert spread.network is not None
    assert spread.network.startswith("400 Gbit/s a GPU")
    assert tokonomics.predict("llama-3.1-70b", gpu="H100", tp=8).network is None


def test_a_prompt_is_bound_by_the_host_only_where_it_is_short() -> None:
    bound, free = (tokonomics.predict("qwen3-30b-a3b", gpu="H100", context=tokens) for tokens in (1_000, 32_000))
    assert (bound.prompt_bound, free.prompt_bound) == ("host", "gpu")


def test_a_pipe_hears_of_long_work_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    clock = iter([0.0, 5.0, 65.0, 65.0, 90.0, 130.0, 130.0])
    with Terminal(now=lambda: next(clock)) as terminal:
        for what in ("one", "two", "three", "four"):
            terminal.doing(what)
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == ["two … (65 s)", "four … (130 s)"]


SLOW = {
    "request": 812, "at_s": 60.5, "status": "done", "latency": "ttft", "delivered_s": 2.3, "objective_s": 0.5,
    "cause": MissCause.queue, "queue_s": 2.1, "prefill_s": 0.2, "decode_s": 4.0, "ahead": 14, "beside": 30,
    "preemptions": 0, "restarts": 0, "input_tokens": 7900, "cached_tokens": 0, "output_tokens": 120, "replica": 0,
    "tenant": None, "service": None, "session": None,
}  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "parts"),
    [
        ({}, ("812", "2.3 s", "500 ms", "7,900", "120", "2.1 s", "14 others")),
        ({"tenant": "acme", "service": "gold", "cause": MissCause.prefill, "queue_s": 0.0, "cached_tokens": 100},
         ("acme", "gold", "100 tokens", "200 ms", "30 others")),
        ({"cause": MissCause.preemption, "latency": "tpot", "delivered_s": 0.08, "objective_s": 0.05,
          "preemptions": 1, "session": 4}, ("session 5", "80 ms", "50 ms", "1 time", "4 s")),
        ({"status": "timed out", "latency": None, "delivered_s": None, "objective_s": None, "decode_s": 0.0},
         ("timed out", "2.3 s")),
    ],
)  # fmt: skip
def test_a_miss_says_who_by_how_much_and_why(changed: dict[str, object], parts: tuple[str, ...]) -> None:
    said = who(MissedRequest.model_validate(SLOW | changed))
    assert all(part in said for part in parts)
