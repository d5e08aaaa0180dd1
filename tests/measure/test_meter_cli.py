"""The meter's verbs as a person types them."""

import csv
import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
from tests.measure.faulty import MetricsServer
from tests.measure.meter_states import group, state
from tests.there import refused

from tokonomics.errors import flag, spelled
from tokonomics.measure.meter.bill import bill
from tokonomics.measure.meter.ledger import Ledger
from tokonomics.measure.meter.readings import GpuReading
from tokonomics.measure.meter.spending import parse_labels
from tokonomics.measure.meter.state import MeterTally
from tokonomics.questions.meter import meter_report
from tokonomics.questions.requests.run import MeterReportRequest
from tokonomics.questions.verbs import METER_REPORT
from tokonomics.report.answer import describe
from tokonomics.report.blocks import View, sections
from tokonomics.report.charts.measured import bill_chart
from tokonomics.report.meter_view import end, line, live
from tokonomics.report.terminal import as_text

Call = Callable[..., CompletedProcess[str]]
WEEK = Path(__file__).parent / "pages" / "week.db"
PAST = ("meter", "report", f"--ledger={WEEK}", "--since=2026-11-09", "--until=2026-11-14")


def reported(tokonomics: Call, *more: str) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(tokonomics(*PAST, "--json", *more).stdout)
    return made


def test_addresses_and_machines_have_their_own_price(tokonomics: Call, metrics: MetricsServer, tmp_path: Path) -> None:
    """A machine of eight GPUs is paid for whole; labels become groups, and a plan is compared."""
    book = f"--ledger={tmp_path / 'meter.db'}"
    call = (
        "meter", f"{metrics.address}/good", f"{metrics.address}/other", "--offer=aws:p5.48xlarge", "--every=0.1s",
        "--once", "--json", f"--price={metrics.address}/good:0.5", "--label=team=search", book,
        "--planned-usd-per-mtok=0.001",
    )  # fmt: skip
    tokonomics(*call)
    metrics.process.work(10, 5)
    state = json.loads(tokonomics(*call).stdout)
    lines = tokonomics(*(word for word in call if word != "--once"), "--for=0.2s").stdout.splitlines()
    assert len(lines) in (2, 3), "an object an interval; those that a busy machine comes too late for are skipped"
    assert json.loads(lines[-1])["total"]["seconds"] > state["total"]["seconds"]
    assert state["groups"][0]["usd_per_hour"] == 8 * 0.5
    assert "aws p5.48xlarge" in state["price_from"]
    assert state["against_plan"]["ratio"] == pytest.approx(state["today"]["usd_per_mtok"] / 0.001)
    report = json.loads(tokonomics("meter", "report", "--by=team,engine", "--json", book).stdout)
    assert [line["group"] for line in report["lines"]] == [["search", "vllm"]]


def test_a_label_may_be_of_one_server(tokonomics: Call, metrics: MetricsServer, tmp_path: Path) -> None:
    """Its own comes before that of all; an address under another of its names is the same server."""
    book, first, second = f"--ledger={tmp_path / 'meter.db'}", f"{metrics.address}/good", f"{metrics.address}/other"
    own = f"--label={second.replace('127.0.0.1', 'localhost')}/metrics:team=legal"
    labels = (own, "--label=team=search", "--label=site=fra")
    tokonomics("meter", first, second, "--usd-per-hour=2", "--every=0.1s", "--once", *labels, book)
    made = json.loads(tokonomics("meter", "report", "--by=server,team,site", "--json", book).stdout)
    assert [line["group"] for line in made["lines"]] == [[first, "search", "fra"], [second, "legal", "fra"]]


@pytest.mark.parametrize(
    ("label", "said"),
    [
        ("http://gpu2:8000:team=search", "http://gpu2:8000 is none of the servers given"),
        ("http://gpu1:8000:search", "is not a label"),
        ("http://gpu1:8000=search", "is not a label"),
        ("team=", "is not a label"),
    ],
)
def test_a_label_of_nobody_is_refused(label: str, said: str) -> None:
    assert said in str(refused(parse_labels, [label], ["http://gpu1:8000"]))


@pytest.mark.parametrize("by", ["model", "server,day", "hour", "day,team", ""])
def test_a_report_adds_up_however_it_is_grouped(tokonomics: Call, by: str) -> None:
    """Two servers over five days of 24 hours: $4.98 and $2.49 an hour."""
    made = reported(tokonomics, f"--by={by}")
    assert sum(line["sums"]["usd"] for line in made["lines"]) == pytest.approx(5 * 24 * (4.98 + 2.49))
    for name in ("input_total", "output", "answered"):
        assert sum(line["sums"][name] for line in made["lines"]) == made["total"][name]


def test_windows_that_meet_share_no_token_and_no_dollar(tokonomics: Call) -> None:
    whole = reported(tokonomics)["total"]
    edges = ["2026-11-09", "2026-11-10T13:17", "2026-11-12T23:59:59", "2026-11-14"]
    parts = [reported(tokonomics, f"--since={start}", f"--until={end}")["total"] for start, end in pairwise(edges)]
    assert sum(part["output"] for part in parts) == whole["output"]
    assert sum(part["usd"] for part in parts) == pytest.approx(whole["usd"])


def test_the_table_as_csv_has_the_same_figures_and_a_chart_is_saved(tokonomics: Call, tmp_path: Path) -> None:
    made = reported(tokonomics, "--by=team", f"--csv={tmp_path / 'week.csv'}", f"--chart={tmp_path / 'week.json'}")
    assert json.loads((tmp_path / "week.json").read_text())["vconcat"]
    with (tmp_path / "week.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["team"] for row in rows] == ["chat", "search"]
    assert [float(row["usd"]) for row in rows] == [line["sums"]["usd"] for line in made["lines"]]
    assert [float(row["usd_per_mtok"]) for row in rows] == [line["sums"]["usd_per_mtok"] for line in made["lines"]]


def test_the_chart_draws_every_dollar_and_breaks_where_there_is_no_price() -> None:
    with Ledger(WEEK, read_only=True) as book:
        made = bill(book.spans(), 0, 2e9, ("hour",))
    spec = bill_chart(made, "hour").to_dict()
    bars, lines = (spec["datasets"][panel["data"]["name"]] for panel in spec["vconcat"])
    assert sum(row["usd"] for row in bars) == pytest.approx(made.total.usd)
    assert sum(row["$/Mtok"] is None for row in lines) > 0
    assert len(lines) == 2 * len(made.lines)


PRICED = ("http://x", "--usd-per-hour=1")


@pytest.mark.parametrize(
    ("arguments", "where"),
    [
        (("http://x",), "--usd-per-hour"),
        (("--usd-per-hour=1",), "URL"),
        ((*PRICED, "--gpu=H100"), "--gpu"),
        (("http://x", "--offer=p5.48xlarge"), "--offer"),
        (("http://x", "--offer=aws:p5.47xlarge"), "p5.48xlarge"),
        ((*PRICED, "--price=cheap"), "--price"),
        ((*PRICED, "--price=gpu=L4:-1"), "--price"),
        (("http://x/metrics?token=s3cret", "--usd-per-hour=1"), "URL"),
        (("http://x", "--usd-per-hour=-1"), "--usd-per-hour"),
        ((*PRICED, "--every=0"), "--every"),
        ((*PRICED, "--every=soon"), "--every"),
        ((*PRICED, "--for=1s"), "--for"),
        (("ftp://x", "--usd-per-hour=1"), "URL"),
        (("http://x", "--gpu=H1000"), "H1000"),
        ((*PRICED, "--label=team"), "--label"),
        ((*PRICED, "--planned-batch=3"), "--planned-batch"),
        ((*PRICED, "--plan=none.json"), "--plan none.json"),
        ((*PRICED, "--query=a=1"), "--prometheus"),
        (("http://127.0.0.1:1", "--usd-per-hour=1"), "http://127.0.0.1:1"),
        (("report", "--since=yesterday"), "--since"),
        (("report", "--since=" + "9" * 40 + "d"), "--since"),
        (("report", "--since=" + "9" * 400 + "d"), "--since"),
        (("report", "--since=2026-11-14", "--until=2026-11-13"), "--until"),
        (("report",), "--ledger"),
        (("report", f"--ledger={WEEK}", "--since=2026-11-09", "--by=colour"), "--by"),
        (("report", f"--ledger={WEEK}", "--chart=x.bmp"), "--chart"),
        (("report", f"--ledger={__file__}"), "--ledger"),
    ],
)
def test_a_mistake_is_one_message_and_exit_code_2(tokonomics: Call, arguments: tuple[str, ...], where: str) -> None:
    answer = tokonomics("meter", *arguments)
    assert answer.returncode == 2
    assert where in answer.stderr
    assert "Traceback" not in answer.stderr


def test_an_address_that_cannot_be_metered_leaves_nothing_in_the_book(tokonomics: Call, tmp_path: Path) -> None:
    book = tmp_path / "meter.db"
    for _ in range(2):
        refused = tokonomics("meter", "http://127.0.0.1:1", "--usd-per-hour=1", "--once", f"--ledger={book}")
        assert refused.returncode == 2
    report = json.loads(tokonomics("meter", "report", f"--ledger={book}", "--json").stdout)
    assert (report["lines"], report["total"]["usd"]) == ([], 0)


# --- the meter's screen fits a terminal, and says what it does not know -----------------------------------------------


WIDTH = 120


def drawn(view: View) -> str:
    return as_text(sections(view), columns=WIDTH)


def test_the_price_now_leads_and_each_server_has_its_row() -> None:
    said = drawn(live(state(group())))
    # 7.20 $ over 3 M tokens in and 1 M out.
    assert said.splitlines()[0].startswith("$1.80 per million tokens now")
    row = next(row for row in said.splitlines() if "gpu1:8000" in row)
    assert "busy" in row
    assert "12+2" in row, "running and waiting"
    assert "40 %" in row, "1200 idle of 3000 watched seconds"


def test_a_long_name_and_many_figures_fit_a_terminal() -> None:
    wide = group(target="http://inference-7f9c.prod:8000", model="meta-llama/Llama-3.3-70B-Instruct-FP8", kv_share=0.9)
    said = drawn(live(state(wide, group())))
    assert "Llama-3.3-70B" in said
    assert "paid" in said
    assert "…" not in said.splitlines()[2]
    assert all(len(row) <= WIDTH for row in said.splitlines())


def test_a_hundred_servers_are_twenty_rows_and_their_sum() -> None:
    many = tuple(group(target=f"http://gpu{place}:8000") for place in range(100))
    said = drawn(live(state(*many)))
    assert sum("gpu" in row and ":8000" in row for row in said.splitlines()) == 20
    assert "all 100 (80 not shown)" in said


@pytest.mark.parametrize("seconds", [0.0, 15.0])
def test_before_there_is_a_price_none_is_made_up(seconds: float) -> None:
    nothing = MeterTally(seconds=seconds, idle_s=seconds, usd=seconds * 0.001, idle_usd=seconds * 0.001)
    quiet = group(now=nothing, hour=nothing, today=nothing, total=nothing, running=None, waiting=None, kv_share=None)
    unknown = state(quiet)
    said = drawn(live(unknown))
    assert ("no tokens now" if seconds else "the next one gives a price") in said
    assert "now –/Mtok" in line(unknown)
    assert "–/Mtok" in drawn(end(unknown))


def test_gpus_show_what_they_say_and_no_more() -> None:
    gpus = (GpuReading(at=0.0, uuid="GPU-1", name="NVIDIA H200", power_w=412.0, utilization=0.97),)
    said = drawn(live(state(group(), gpus=gpus, energy_j=3.6e6, electricity_usd=0.12)))
    row = next(row for row in said.splitlines() if "H200" in row)
    assert "97 %" in row
    assert "412 W" in row
    assert "–" in row
    assert "The GPUs drew 1 kWh since the meter started, $0.120 of electricity." in said


def test_what_went_wrong_is_on_the_screen_and_in_the_pipe() -> None:
    odd = state(group(up=False, said="answers 500"), notes=("http://gpu1:8000: answers 500",))
    assert "answers 500" in drawn(live(odd))
    assert "0/1 server up" in line(odd)
    assert "answers 500" in line(odd)


def test_the_chart_draws_what_was_asked_by() -> None:
    """Two teams, the more expensive one first; time only where days or hours were asked by."""
    result = meter_report(MeterReportRequest(ledger=str(WEEK), since="2026-11-09", until="2026-11-14", by="team"))
    answer = describe(METER_REPORT, result, MeterReportRequest(by="team"))
    assert [*answer.charts] == ["Dollars by team"]
    spec = answer.chart().to_dict()
    bars = [row for rows in spec["datasets"].values() for row in rows if "usd" in row]
    assert list(dict.fromkeys(row["at"] for row in bars)) == ["search", "chat"]
    assert sum(row["usd"] for row in bars) == pytest.approx(result.total.usd)
    assert "team" in json.dumps(spec["vconcat"][0]["encoding"]["y"]["title"])
    for by in ("model,day", "hour", ""):
        asked = MeterReportRequest(ledger=str(WEEK), since="2026-11-09", until="2026-11-14", by=by)
        assert [*describe(METER_REPORT, meter_report(asked), asked).charts] == ["Dollars over time"]


def test_a_tag_that_no_server_has_may_be_one_of_a_log() -> None:
    asked = MeterReportRequest(ledger=str(WEEK), since="2026-11-09", until="2026-11-14", by="feature")
    assert "--trace spend.jsonl" in spelled(str(refused(meter_report, asked).fix), flag)
