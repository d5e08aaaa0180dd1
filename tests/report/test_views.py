"""What views choose to show where a figure could mislead."""

import json
import re
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.command import Call
from tests.deployed import on

import tokonomics
from tokonomics.catalog.layers import Precision
from tokonomics.levers.tenancy import Sharing, noisy_neighbour, pool
from tokonomics.measure.meter.bill import bill
from tokonomics.measure.meter.state import MeterTally
from tokonomics.money.breakeven import FleetKind, ReplicaHolds, SelfHosted, break_even
from tokonomics.planner.hosting import HostedKind
from tokonomics.planner.plan_answer import Candidate
from tokonomics.planner.route_models import RouteBreakEven, RoutePart, RouteWay
from tokonomics.questions.breakeven import BreakevenResult
from tokonomics.questions.request import SILENT, Request
from tokonomics.questions.requests.buy import BreakevenRequest
from tokonomics.questions.requests.traffic import CapacityRequest
from tokonomics.questions.route import RouteResult
from tokonomics.questions.simulate import capacity
from tokonomics.questions.verbs import find_verb
from tokonomics.report.answer import describe
from tokonomics.report.blocks import Line, sections
from tokonomics.report.breakeven_view import breakeven, letters_for
from tokonomics.report.charts.levers import tenants_chart
from tokonomics.report.meter_view import ledger
from tokonomics.report.route_view import route
from tokonomics.report.simulate_view import capacity as described_capacity
from tokonomics.report.simulate_view import who
from tokonomics.report.terminal import Terminal, as_text
from tokonomics.report.wording import aged, marked_old
from tokonomics.serving.outcome import SloOutcome
from tokonomics.serving.playback import MissCause, MissedRequest
from tokonomics.traffic.arrivals import parse_arrivals
from tokonomics.traffic.generate import generate, parse_tenants
from tokonomics.traffic.lengths import parse_lengths
from tokonomics.traffic.slo import parse_slos
from tokonomics.traffic.trace import make_trace
from tokonomics.traffic.workload import spread, workload_of
from tokonomics.types import Speed
from tokonomics.web.verbs import catalogue


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


# --- ``route`` names the cheapest way that is good enough, and tenants are drawn on an axis that holds them all -------


TRACE = make_trace(np.arange(10.0), np.full(10, 100), np.full(10, 10))
OWN = RoutePart(
    model="small", share=0.9, requests=9, tokens=900, usd_per_month=50.0, replicas=1, fleet="1", machines="1×L4"
)
CALLED = RoutePart(
    model="api", share=0.1, requests=1, tokens=100, usd_per_month=50.0, replicas=None, fleet="API", machines="API"
)


def way(name: str, *parts: RoutePart, usd: float = 100.0, quality: float | None = None) -> RouteWay:
    called = sum(part.share for part in parts if part.replicas is None)
    slo = SloOutcome(slo="ttft_p99", objective_s=1.0, delivered_s=0.5, met=True)
    return RouteWay(
        kind="single" if len(parts) == 1 else "routed", name=name, parts=parts, first_share=parts[0].share,
        usd_per_month=usd, usd_per_mtok=1.0, quality=quality, simulated_share=1 - called,
        ttft_s=spread(np.array([0.5])), e2e_s=spread(np.array([1.0])), slo=(slo,) if called < 1 else (),
    )  # fmt: skip


def shown(*ways: RouteWay, share: float | None = None, slos: str = "", floor: float | None = None) -> list[str]:
    """The lines of the screen."""
    good = [way for way in ways if floor is not None and (way.quality or 0) >= floor]
    even = RouteBreakEven(kind="routed", first="small", second="api", baseline_usd_per_month=200.0, share=share)
    made = RouteResult(
        workload=workload_of(TRACE, 1.0), slos=tuple(parse_slos(slos)) if slos else (), models=("small", "api"),
        routed_by="share", labels=(), scored=floor is not None, min_quality=floor, ways=ways, frontier=(),
        break_even=(even,), best=min(good, key=lambda way: way.usd_per_month, default=None),
    )  # fmt: skip
    return [line.rstrip() for line in route(made, Request()).text().splitlines()]


@pytest.mark.parametrize(("share", "said"), [(0.9875, "99 %"), (1.0, "only all"), (None, "never")])
def test_a_share_close_to_all_is_not_called_all(share: float | None, said: str) -> None:
    alone = way("all on small", OWN.model_copy(update={"share": 1.0})), way("all on api", CALLED)
    assert any(said in line for line in shown(*alone, way("both", OWN, CALLED), share=share))


@pytest.mark.parametrize(
    ("bills", "floor", "pick", "against"),
    [
        ((15_000, 10_000, 14_700), None, "$10,000 a month, all on api", "47 % more"),
        ((5_000, 10_000, 14_700), 0.75, "$10,000 a month, all on api", "47 % more"),  # the small one is not good enough
        ((5_000, 10_000, 6_500), 0.75, "$6,500 a month, both", "35 % less"),
        ((15_000, 10_000, 10_000), None, "$10,000 a month, all on api", "as much as"),
    ],
)
def test_the_cheapest_good_one_leads(bills: tuple[float, ...], floor: float | None, pick: str, against: str) -> None:
    named = ("all on small", (OWN,), 0.5), ("all on api", (CALLED,), 0.9), ("both", (OWN, CALLED), 0.8)
    ways = [
        way(name, *parts, usd=usd, quality=quality if floor else None)
        for (name, parts, quality), usd in zip(named, bills, strict=True)
    ]
    lines = shown(*ways, floor=floor)
    place = next(place for place, line in enumerate(lines) if line.startswith("Cheapest"))
    assert pick in lines[place]
    assert against in " ".join(lines[place : place + 3])


def test_an_slo_that_an_api_may_miss_is_marked() -> None:
    rows = shown(
        way("all on small", OWN.model_copy(update={"share": 1.0})), way("both", OWN, CALLED), slos="ttft_p99=1"
    )
    ends = {line.split("  ")[0]: line for line in rows}
    assert ends["all on small"].endswith("met")
    assert ends["both"].endswith("met‡")


def test_the_points_of_the_tenants_chart_have_one_legend_and_fill_their_axis() -> None:
    trace = generate(
        parse_arrivals("gamma:8,cv=2"), parse_lengths("const:500", "input"), parse_lengths("const:60", "output"),
        duration_s=120, seed=0, tenants=parse_tenants("2,skew=1"),
    )  # fmt: skip
    deployment = on()
    slos = parse_slos("ttft_p99=0.5")
    sharing = Sharing(deployment, deployment, trace, slos, lambda count: 2.0)
    pooling = pool(sharing)
    assert (pooling.bill.before.usd, pooling.bill.after.usd) == (4, 2)
    made: dict[str, Any] = tenants_chart(pooling, noisy_neighbour(sharing, pooling), slos, 12).to_dict()
    for level in (made, made["vconcat"][0]):
        assert level["resolve"]["scale"] == {"color": "independent", "shape": "independent"}
    points = made["vconcat"][0]["hconcat"][1]["layer"][0]
    low, high = points["encoding"]["x"]["scale"]["domain"]
    seen = [row["seconds"] for row in made["datasets"][points["data"]["name"]]]
    assert low <= min(seen)
    assert high == pytest.approx(max(*seen, 0.5) * (1.1 if low == 0 else 1.2))


# --- the first line of an answer says that its price is old, whichever verb was asked; so do ``doctor`` and the page --


MEASURED = Path(__file__).parents[1] / "measure" / "results" / "inferencex.json"
OFFERS = "provider,region,instance,gpu,gpus,usd_per_hour,date,source\naws,us,p5,H100,8,50,2026-08-22,mine\n"
SMALL = "--model llama-3.1-8b --gpu H100 --arrivals poisson:1 --duration 60s --input 500 --output 50"
LAST, FIRST = "2026-11-20", "2026-11-21"
"""Of 90 days after the price, and the day after it."""


@pytest.fixture
def prices_of_august(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """One offer of 2026-08-22; and what day it is."""
    folder = Path.home() / "prices"
    folder.mkdir()
    (folder / "offers.csv").write_text(OFFERS, encoding="utf-8")
    return lambda day: monkeypatch.setenv("TOKONOMICS_TODAY", day)


@pytest.mark.parametrize(
    "asked",
    [
        "cost --gpu H100 --tokens-per-second 2900",
        "curve llama-3.1-8b --gpu H100 --context 1024",
        f"simulate {SMALL}",
        "capacity llama-3.1-8b --gpu H100 --input 500 --output 50 --requests 500 --slo ttft_p99=1",
        f"cache {SMALL} --system-prompts 2,tokens=200",
        f"tenants {SMALL} --tenants 2,skew=1",
        f"import {MEASURED} --gpu H100",
    ],
    ids=lambda asked: asked.split()[0],
)
def test_the_first_line_says_a_price_is_old(
    asked: str, prices_of_august: Callable[[str], None], tokonomics: Call
) -> None:
    said = {}
    for day in (LAST, FIRST):
        prices_of_august(day)
        answered = tokonomics(*asked.split(), env={"COLUMNS": "400"})
        assert answered.returncode == 0, answered.stderr
        said[day] = answered.stdout.splitlines()[0]
    assert said[FIRST] == f"{said[LAST]}; price older than 90 days"


@pytest.mark.parametrize(
    "asked",
    [
        "plan llama-3.1-8b --rate 1 --input 500 --output 100 --quick",
        "levers llama-3.1-8b --gpu H100 --rate 1 --input 500 --output 50 --slo ttft_p99=2",
        "offers --gpu H100",
        "compare llama-3.1-8b --gpu H100 --rate 1 --input 500 --output 100",
    ],
    ids=lambda asked: asked.split()[0],
)
def test_a_bill_says_how_old_a_price_is(asked: str, prices_of_august: Callable[[str], None], tokonomics: Call) -> None:
    prices_of_august(FIRST)
    answered = tokonomics(*asked.split(), env={"COLUMNS": "400"})
    first = next(line for line in answered.stdout.splitlines() if "$" in line or "No lever" in line)
    assert "; price 91 days old" in first


def test_ages_of_several_prices_are_told_by_the_oldest() -> None:
    assert aged(0) == aged(1, 0) == aged() == ""
    assert aged(91) == aged(91, 91) == "; price 91 days old"
    assert aged(3, 91) == "; prices up to 91 days old"
    assert aged(91, what="GPU price") == "; GPU price 91 days old"
    assert marked_old(None) == marked_old("as given") == ""


def test_doctor_says_first_that_no_price_is_recent(prices_of_august: Callable[[str], None], tokonomics: Call) -> None:
    prices_of_august(LAST)
    assert tokonomics("doctor").stdout.splitlines()[0] == "All that is needed works."
    prices_of_august(FIRST)
    first = tokonomics("doctor").stdout.splitlines()[0]
    assert first == "All that is needed works, but even the newest GPU price is 91 days old."


def test_the_page_says_how_old_the_newest_price_is(prices_of_august: Callable[[str], None]) -> None:
    prices_of_august(LAST)
    assert catalogue()["prices"] == "the newest GPU price is of 2026-08-22, 90 days ago"
    prices_of_august(FIRST)
    told = json.loads(json.dumps(catalogue()))["prices"]
    assert told.endswith("91 days ago: older than 90 days, run `tokonomics offers --refresh`")
