"""``trace`` as a user calls it: logs, samples, made-up traffic, and what it refuses."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from tests.command import Call, answer, on_a_terminal, refusal, run

from tokonomics.errors import BadInput, flag
from tokonomics.questions.inputs import Traffic
from tokonomics.questions.load import load_of
from tokonomics.questions.request import SILENT
from tokonomics.questions.requests.buy import PlanRequest
from tokonomics.questions.traffic import traffic_of, trial_of
from tokonomics.report.terminal import Terminal
from tokonomics.traffic.readers import open_trace

MADE_UP = ("trace", "--arrivals=poisson:5", "--requests=500", "--input=512", "--output=uniform:1-99")


def test_a_log_by_its_labels(tokonomics: Call, tmp_path: Path) -> None:
    """Nine requests of two teams at a cent each, in an OpenTelemetry export that nobody has to describe."""

    def span(place: int) -> dict[str, Any]:
        told = {"gen_ai.operation.name": "chat", "team": "red" if place < 6 else "blue"}
        numbers = {"gen_ai.usage.input_tokens": 100, "gen_ai.usage.output_tokens": 10}
        attributes = [{"key": key, "value": {"stringValue": value}} for key, value in told.items()]
        attributes += [{"key": key, "value": {"intValue": str(value)}} for key, value in numbers.items()]
        attributes.append({"key": "gen_ai.usage.cost", "value": {"doubleValue": 0.01}})
        return {"startTimeUnixNano": str((1_790_000_000 + place) * 10**9), "attributes": attributes}

    log = tmp_path / "spans.json"
    spans = [span(place) for place in range(9)]
    log.write_text(json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]}))
    made = answer(tokonomics, "trace", log, "--by", "team")
    assert made["format"] == "OpenTelemetry GenAI spans"
    assert made["usd"] == pytest.approx(0.09)
    (bill,) = made["by"]
    assert [(row["name"], row["requests"], row["input_tokens"]) for row in bill["values"]] == [
        ("red", 6, 600),
        ("blue", 3, 300),
    ]
    shown = tokonomics("trace", log, "--by", "team").stdout
    assert "logged cost" in shown
    assert "no request says its floor" in refusal(tokonomics, "trace", log, "--by", "floor")
    assert "is for a log" in refusal(tokonomics, *MADE_UP, "--by", "team")


def test_a_sample_whose_clock_is_coarse_says_so(tokonomics: Call) -> None:
    made = answer(tokonomics, "trace", "mooncake-conversation")
    assert made["clock_step_s"] == pytest.approx(3, abs=0.01)
    assert made["reuse"][-1]["share_of_input"] == pytest.approx(0.3736, abs=1e-4)
    assert "steps of 3 s" in tokonomics("trace", "mooncake-conversation").stdout


def test_made_up_traffic_is_saved_and_read_back(tokonomics: Call, tmp_path: Path) -> None:
    file = tmp_path / "made.parquet"
    how = ("--system-prompts=3,tokens=200", "--tenants=2,priorities=1/0", "--seed=5", f"--save={file}")
    made = answer(tokonomics, *MADE_UP, *how)
    read = answer(tokonomics, "trace", file)
    apart = ("source", "format")
    assert {key: read[key] for key in read if key not in apart} == {key: made[key] for key in made if key not in apart}
    trace = open_trace(file).read()
    assert trace.prefix is not None
    assert trace.prefix.block_tokens == 64
    assert trace.priority is not None
    assert set(trace.priority) == {0, 1}
    assert list(tmp_path.iterdir()) == [file]


def test_speed_sample_and_window(tokonomics: Call) -> None:
    whole = answer(tokonomics, "trace", "azure-conv")
    fast = answer(tokonomics, "trace", "azure-conv", "--speed=2")
    assert fast["rate"] == pytest.approx(2 * whole["rate"])
    assert fast["input"] == whole["input"]
    few = answer(tokonomics, "trace", "azure-conv", "--sample=0.1", "--seed=3")
    assert few["requests"] == pytest.approx(1937, abs=5 * np.sqrt(1937))
    cut = answer(tokonomics, "trace", "azure-conv", "--from=10m", "--to=40m")
    arrival = open_trace("azure-conv").read().arrival_s
    assert cut["requests"] == ((arrival >= 600) & (arrival < 2400)).sum()
    assert answer(tokonomics, "trace", "azure-conv", "--requests=100")["requests"] == 100
    assert answer(tokonomics, "trace", "azure-conv", "--requests=100", "--from=10m")["requests"] == 100


def test_rows_left_out_are_never_silent(tokonomics: Call, tmp_path: Path) -> None:
    log = tmp_path / "log.csv"
    log.write_text("arrival_s,input_tokens,output_tokens\n0,10,5\n1,x,5\n2,10,5\n", encoding="utf-8")
    shown = tokonomics("trace", log)
    assert "1 row could not be used" in shown.stdout
    cut = tokonomics("trace", log, "--speed=2")
    assert "1 row could not be used" in cut.stderr
    assert "line 3" in cut.stderr
    assert "log.csv:3: input_tokens is 'x'" in refusal(tokonomics, "trace", log, "--strict")


def clients(folder: Path, rate: float) -> Path:
    """Two models of one client each in ServeGen's tables, for two hours: the second sends twice as much."""
    windows = [(model, 600 * place) for model in ("m-one", "m-two") for place in range(12)]
    table = {
        "model": [model for model, _ in windows],
        "client": [0] * len(windows),
        "t_s": [start for _, start in windows],
        "rate_rps": [rate * (1 + (model == "m-two")) for model, _ in windows],
        "family": ["Gamma"] * len(windows),
        "p1": [1.0] * len(windows),
    }
    pl.DataFrame(table).write_parquet(folder / "arrivals.parquet")
    names = ("p1", "p5", "p10", "p25", "p50", "p75", "p90", "p95", "p99", "p99.9")
    lengths = [
        {"model": model, "client": 0, "window_start_s": 0, "field": field, **dict.fromkeys(names, tokens)}
        for model in ("m-one", "m-two")
        for field, tokens in (("input_tokens", 100.0), ("output_tokens", 20.0))
    ]
    pl.DataFrame(lengths).write_parquet(folder / "lengths.parquet")
    return folder / "arrivals.parquet"


def test_servegens_clients_are_drawn_from(tokonomics: Call, tmp_path: Path) -> None:
    file = clients(tmp_path, rate=1.0)
    whole = answer(tokonomics, "trace", file, "--servegen-model=m-one")
    assert (whole["requests"], whole["input"]["max"], whole["output"]["max"]) == (7200, 100, 20)
    assert "drawn from ServeGen m-one" in whole["source"]
    assert answer(tokonomics, "trace", file, "--servegen-model=m-two", "--servegen-scale=0.25")["requests"] == 3600
    cut = ("--servegen-model=m-one", "--from=10m", "--to=20m", f"--save={tmp_path / 'drawn.parquet'}")
    assert answer(tokonomics, "trace", file, *cut)["requests"] == 600
    assert answer(tokonomics, "trace", tmp_path / "drawn.parquet")["requests"] == 600
    models = refusal(tokonomics, "trace", file)
    assert "several models" in models
    assert "--servegen-model m-one, m-two" in models


def test_clients_who_send_too_much_are_drawn_from_for_a_part_of_the_time(tokonomics: Call, tmp_path: Path) -> None:
    file = clients(tmp_path, rate=10_000.0)
    asked = ("trace", file, "--servegen-model=m-one")
    said = refusal(tokonomics, *asked)
    assert "72,000,000 requests" in said
    assert "--from" in said
    assert answer(tokonomics, *asked, "--from=1h", "--to=3610")["requests"] == pytest.approx(100_000, rel=0.02)


def test_clients_in_folders_need_not_be_named(tokonomics: Call, tmp_path: Path) -> None:
    folder = tmp_path / "language" / "m-large"
    folder.mkdir(parents=True)
    (folder / "chunk-0-trace.csv").write_text("0,1.0,1.2,Gamma,0.8,1.0\n")
    lengths = {"0": {"input_tokens": "{30: 1}", "output_tokens": "{5: 1}"}}
    (folder / "chunk-0-dataset.json").write_text(json.dumps(lengths))
    for place in (tmp_path, folder.parent, folder):
        assert answer(tokonomics, "trace", place)["requests"] == 600


HEADER = "arrival_s,input_tokens,output_tokens\n"


@pytest.mark.parametrize(
    "rows",
    [
        "5,10,3\n", "5,10,3\n5,20,4\n5,20,4\n", "9,10,3\n1,20,4\n5,30,4\n", "1,10,3\n1,10,3\n2,10,3\n",
        "0,10,0\n1,20,0\n",
    ],
    ids=["one", "all at once", "unsorted", "twice the same", "no answers"],
)  # fmt: skip
def test_a_log_of_a_few_odd_rows_is_described_and_drawn(tokonomics: Call, tmp_path: Path, rows: str) -> None:
    log, chart = tmp_path / "log.csv", tmp_path / "chart.json"
    log.write_text(HEADER + rows, encoding="utf-8")
    done = tokonomics("trace", log, f"--chart={chart}")
    assert done.returncode == 0, done.stderr
    drawn = chart.read_text(encoding="utf-8")
    json.loads(drawn, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
    assert answer(tokonomics, "trace", log)["requests"] == len(rows.splitlines())


@pytest.mark.parametrize(
    "flags",
    [
        *["--servegen-scale=2", "--columns=a=b", "--strict", "--speed=0", "--speed=nan", "--sample=0", "--from=soon"],
        *["--from=10m --to=5m", "--save=made.csv", "--save=no/such/folder/made.parquet", "--chart=made.gif"],
        *["--duration=0", "--duration=never", "--requests=0", "--input=0", "--machine-tokens-per-second=nan"],
    ],
)
def test_a_mistake_names_its_option(tokonomics: Call, flags: str) -> None:
    assert flags.split()[-1].partition("=")[0] in refusal(tokonomics, *MADE_UP, *flags.split())


@pytest.mark.parametrize("flag", ["--arrivals=poisson:2", "--input=5", "--sessions=5", "--servegen-model=m"])
def test_what_is_for_other_traffic_is_refused_for_a_log(tokonomics: Call, flag: str) -> None:
    assert flag.partition("=")[0] in refusal(tokonomics, "trace", "azure-conv", flag)


@pytest.mark.parametrize("content", ["", HEADER, f"{HEADER}0,0,5\n1,0,5\n"], ids=["empty", "header", "no prompts"])
def test_a_log_without_requests_is_refused(tokonomics: Call, tmp_path: Path, content: str) -> None:
    log = tmp_path / "log.csv"
    log.write_text(content, encoding="utf-8")
    assert "log.csv" in refusal(tokonomics, "trace", log)


def test_progress_is_shown_on_a_terminal_only() -> None:
    assert b"azure-code" in on_a_terminal("trace", "azure-code")


@pytest.mark.parametrize(
    ("asked", "next_step"),
    [
        (("azure-conv",), "tokonomics plan MODEL --trace azure-conv"),
        (("azure-conv", "--from=10m", "--to=40m"), "tokonomics plan MODEL --trace azure-conv --from 10m --to 40m"),
        (("--rate=2", "--input=1.5k", "--output=200", "--requests=500"),
         "tokonomics plan MODEL --rate 2 --input 1.5k --output 200"),
        (("--rate=2", "--input=200", "--output=50", "--sessions=5", "--requests=500"),
         "tokonomics plan MODEL --rate 2 --input 200 --output 50 --sessions 5"),
    ],
)  # fmt: skip
def test_the_next_step_plans_for_the_same_requests(tokonomics: Call, asked: tuple[str, ...], next_step: str) -> None:
    """Not for their means: the bursts and the long ones decide the bill."""
    done = tokonomics("trace", *asked)
    assert done.returncode == 0, done.stderr
    (hint,) = [line for line in done.stdout.splitlines() if "What would serve it" in line]
    assert hint.split("  ")[-1].strip() == next_step


def test_the_next_step_of_a_faster_log_is_a_plan_at_its_rate(tokonomics: Call) -> None:
    done = tokonomics("trace", "azure-conv", "--speed=2")
    # 19,366 requests in 3,501.7 s, twice as fast.
    assert "tokonomics plan MODEL --rate 11.1 --trace azure-conv" in done.stdout


# --- A rate that is typed is the rate that is served, whatever the arrivals, and the same requests as a plan's --------


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
