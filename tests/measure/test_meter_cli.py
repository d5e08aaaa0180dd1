"""The meter's verbs as a person types them."""

import csv
import json
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
from tests.measure.metrics_server import MetricsServer, metrics_server

from tokonomics.measure.meter.bill import bill
from tokonomics.measure.meter.ledger import Ledger
from tokonomics.report.charts.measured import bill_over_time

Call = Callable[..., CompletedProcess[str]]
WEEK = Path(__file__).parent / "pages" / "week.db"
PAST = ("meter", "report", f"--ledger={WEEK}", "--since=2026-11-09", "--until=2026-11-14")


@pytest.fixture(scope="module")
def server() -> Iterator[MetricsServer]:
    with metrics_server() as made:
        yield made


def reported(tokonomics: Call, *more: str) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(tokonomics(*PAST, "--json", *more).stdout)
    return made


def test_once_reads_twice_and_prints_a_table(tokonomics: Call, server: MetricsServer, tmp_path: Path) -> None:
    said = tokonomics(
        "meter", f"{server.address}/good", "--usd-per-hour=2.49", "--gpus=2", "--every=0.1s", "--once",
        f"--ledger={tmp_path / 'meter.db'}",
    )  # fmt: skip
    assert said.returncode == 0
    assert "127.0.0.1" in said.stdout
    assert "A server costs $4.98 an hour (as given)" in said.stdout


def test_an_address_and_a_machine_have_their_own_price(tokonomics: Call, server: MetricsServer, tmp_path: Path) -> None:
    """A machine of eight GPUs is paid for whole."""
    said = tokonomics(
        "meter", f"{server.address}/good", f"{server.address}/v1/good", "--offer=aws:p5.48xlarge", "--every=0.1s",
        "--once", "--json", f"--price={server.address}/good:0.5", f"--ledger={tmp_path / 'meter.db'}",
    )  # fmt: skip
    first, *_ = json.loads(said.stdout)["groups"]
    assert first["usd_per_hour"] == 8 * 0.5
    assert "aws p5.48xlarge" in json.loads(said.stdout)["price_from"]


def test_the_plan_stands_beside_the_price(tokonomics: Call, server: MetricsServer, tmp_path: Path) -> None:
    book = f"--ledger={tmp_path / 'meter.db'}"
    call = ("meter", f"{server.address}/good", "--usd-per-hour=2.49", "--every=0.1s", "--once", book)
    tokonomics(*call)
    server.process.work(10, 5)
    said = tokonomics(*call, "--planned-usd-per-mtok=0.001", "--planned-batch=48")
    assert "you pay" in said.stdout
    assert "× the plan" in said.stdout


def test_labels_become_groups(tokonomics: Call, server: MetricsServer, tmp_path: Path) -> None:
    book = f"--ledger={tmp_path / 'meter.db'}"
    tokonomics(
        "meter", f"{server.address}/good", "--usd-per-hour=2", "--every=0.1s", "--once", book, "--label=team=search"
    )
    made = json.loads(tokonomics("meter", "report", "--by=team,engine", "--json", book).stdout)
    assert [line["group"] for line in made["lines"]] == [["search", "vllm"]]


@pytest.mark.parametrize("by", ["model", "team", "target,day", "hour", "engine", "day,team", ""])
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


def test_the_table_as_csv_has_the_same_figures(tokonomics: Call, tmp_path: Path) -> None:
    made = reported(tokonomics, "--by=team", f"--csv={tmp_path / 'week.csv'}")
    with (tmp_path / "week.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["team"] for row in rows] == ["chat", "search"]
    assert [float(row["usd"]) for row in rows] == [line["sums"]["usd"] for line in made["lines"]]
    assert [float(row["usd_per_mtok"]) for row in rows] == [line["sums"]["usd_per_mtok"] for line in made["lines"]]


def test_a_chart_is_saved(tokonomics: Call, tmp_path: Path) -> None:
    assert tokonomics(*PAST, f"--chart={tmp_path / 'week.png'}").returncode == 0
    assert (tmp_path / "week.png").read_bytes().startswith(b"\x89PNG")


def test_the_chart_draws_every_dollar_and_breaks_where_there_is_no_price() -> None:
    with Ledger(WEEK, read_only=True) as book:
        made = bill(book.spans(), 0, 2e9, ("hour",))
    spec = bill_over_time(made, "hour").to_dict()
    bars, lines = (spec["datasets"][panel["data"]["name"]] for panel in spec["vconcat"])
    assert sum(row["usd"] for row in bars) == pytest.approx(made.total.usd)
    assert sum(row["$/Mtok"] is None for row in lines) > 0
    assert len(lines) == 2 * len(made.lines)


def test_a_report_begins_with_what_was_measured_for_how_long_and_what_nobody_saw(tokonomics: Call) -> None:
    total = reported(tokonomics)["total"]
    tokens = round((total["input_total"] + total["output"]) / 1e6)
    first, second = tokonomics(*PAST).stdout.splitlines()[:2]
    assert first.startswith(f"${total['usd_per_mtok']:.2f} per million tokens, as metered: ${total['usd']:.2f} paid")
    assert first.endswith(f"{tokens} M tokens in and out, 2026-11-09 00:00 to 2026-11-14 00:00 UTC (120 h)")
    unseen, seconds = total["gap_s"] + total["away_s"], total["seconds"]
    assert second.startswith(f"Paid for but not seen: {unseen / seconds:.1%}".replace("%", " %"))
    assert f"{total['gap_s'] / 3600:g} h in which a server did not answer" in second
    assert f"{total['away_s'] / 3600:g} h in which the meter did not run" in second


def test_the_report_says_what_its_words_mean(tokonomics: Call) -> None:
    said = tokonomics(*PAST, "--by=team,day").stdout
    assert "every paid hour, idle too, over input and output tokens" in said
    assert "server away $9.96" in said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("http://x",), "no price is given"),
        (("--usd-per-hour=1",), "no server is given"),
        (("http://x", "--usd-per-hour=1", "--gpu=H100"), "given twice"),
        (("http://x", "--offer=p5.48xlarge"), "names no offer"),
        (("http://x", "--offer=aws:p5.47xlarge"), "p5.48xlarge"),
        (("http://x", "--usd-per-hour=1", "--price=cheap"), "not a price of some servers"),
        (("http://x", "--usd-per-hour=1", "--price=gpu=L4:-1"), "positive"),
        (("http://x/metrics?token=s3cret", "--usd-per-hour=1"), "with a query"),
        (("http://x", "--usd-per-hour=-1"), "positive"),
        (("http://x", "--usd-per-hour=1", "--every=0"), "--every"),
        (("http://x", "--usd-per-hour=1", "--every=soon"), "not how long"),
        (("http://x", "--usd-per-hour=1", "--for=1s"), "--for"),
        (("ftp://x", "--usd-per-hour=1"), "not an address"),
        (("http://x", "--gpu=H1000"), "H1000"),
        (("http://x", "--usd-per-hour=1", "--label=team"), "not a label"),
        (("http://x", "--usd-per-hour=1", "--planned-batch=3"), "planned price"),
        (("http://x", "--usd-per-hour=1", "--plan=none.json"), "cannot be read"),
        (("http://x", "--usd-per-hour=1", "--query=a=1"), "--prometheus"),
        (("http://127.0.0.1:1", "--usd-per-hour=1"), "cannot be reached"),
        (("report", "--since=yesterday"), "neither a time"),
        (("report", "--since=" + "9" * 40 + "d"), "longer than any book"),
        (("report", "--since=" + "9" * 400 + "d"), "neither a time"),
        (("report", "--since=2026-11-14", "--until=2026-11-13"), "nothing lies between"),
        (("report",), "no ledger yet"),
        (("report", f"--ledger={WEEK}", "--since=2026-11-09", "--by=colour"), "nothing in this stretch has a 'colour'"),
        (("report", f"--ledger={WEEK}", "--chart=x.bmp"), "cannot save a chart"),
        (("report", f"--ledger={__file__}"), "not a database"),
    ],
)
def test_a_mistake_is_one_message_and_exit_code_2(tokonomics: Call, arguments: tuple[str, ...], said: str) -> None:
    answer = tokonomics("meter", *arguments)
    assert answer.returncode == 2
    assert said in answer.stderr
    assert "Traceback" not in answer.stderr


def test_an_address_that_cannot_be_metered_leaves_nothing_in_the_book(tokonomics: Call, tmp_path: Path) -> None:
    book = tmp_path / "meter.db"
    for _ in range(2):
        refused = tokonomics("meter", "http://127.0.0.1:1", "--usd-per-hour=1", "--once", f"--ledger={book}")
        assert refused.returncode == 2
    report = json.loads(tokonomics("meter", "report", f"--ledger={book}", "--json").stdout)
    assert (report["lines"], report["total"]["usd"]) == ([], 0)


def test_a_server_is_a_target_by_another_name(tokonomics: Call) -> None:
    texts = [
        tokonomics(
            "meter", "report", f"--ledger={WEEK}", "--since=2026-11-09", "--until=2026-11-14", f"--by={by}", "--json"
        )
        for by in ("server", "target")
    ]
    assert json.loads(texts[0].stdout)["lines"] == json.loads(texts[1].stdout)["lines"] != []


def test_an_empty_stretch_says_so(tokonomics: Call) -> None:
    said = tokonomics("meter", "report", f"--ledger={WEEK}", "--since=2026-01-01", "--until=2026-01-02")
    assert said.returncode == 0
    assert "nothing in this stretch" in said.stdout


def test_the_help_shows_both_verbs_with_examples(tokonomics: Call) -> None:
    said = tokonomics("meter", "--help").stdout
    assert "tokonomics meter http://localhost:8000 --usd-per-hour 2.49" in said
    assert "report" in said
    assert "watch" in said
