"""The meter's view: what the ledger says, and what to do where there is none."""

import asyncio
import json
import time
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from starlette.requests import ClientDisconnect
from starlette.testclient import TestClient
from tests.command import run
from tests.measure.test_meter_spans import span

from tokonomics.errors import BadInput
from tokonomics.measure.meter.ledger import Ledger, Mark
from tokonomics.operate.learn import ForecastBand, TwinWindow, WindowFigure
from tokonomics.questions.requests.run import TwinReportRequest
from tokonomics.questions.twin import TwinReportResult, twin_report
from tokonomics.web import meter
from tokonomics.workers import Busy


def test_without_a_ledger_the_page_says_how_to_get_one(page: TestClient) -> None:
    for path in ("/api/v1/meter", "/api/v1/meter/events"):
        reply = page.get(path)
        assert reply.status_code == 404
        assert "tokonomics meter" in reply.json()["error"]["fix"]


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    """Ten minutes of one busy server at 3.60 dollars an hour, ending now: a million tokens for 60 cents."""
    books: Any = pytest.importorskip("tokonomics.measure.meter.ledger")
    spans: Any = pytest.importorskip("tokonomics.measure.meter.spans")
    file = tmp_path / "meter.db"
    zeros = dict.fromkeys(spans.SUMS, 0.0)
    filled = {
        "seconds": 600.0,
        "server_s": 600.0,
        "usd": 0.6,
        "busy_s": 600.0,
        "input_total": 400_000.0,
        "output": 600_000.0,
    }
    who = {"target": "a:8000", "model": "m", "engine": "vllm", "labels": {}, "watched": spans.WatchedSpan.seen}
    span = spans.PaidTime(**who, usd_per_hour=3.6, start=time.time() - 600, **{**zeros, **filled})
    with books.Ledger(file) as book:
        assert book.record([span], []) is None
    return file


def test_the_sums_are_those_of_the_ledger(ledger: Path) -> None:
    made = meter.state(ledger)
    assert made["total"]["usd"] == pytest.approx(0.6)
    assert made["total"]["usd_per_mtok"] == pytest.approx(0.6)
    assert made["now"]["usd"] == pytest.approx(0.3, rel=0.01)
    assert sum(line["sums"]["usd"] for line in made["hours"]) == pytest.approx(0.6)
    assert [line["group"] for line in made["groups"]] == [["a:8000", "m", "vllm"]]


def test_what_burns_now_is_that_of_all_servers_together(ledger: Path) -> None:
    books: Any = pytest.importorskip("tokonomics.measure.meter.ledger")
    with books.Ledger(ledger, read_only=True) as book:
        (span,) = book.spans()
    with books.Ledger(ledger) as book:
        book.record([replace(span, target="b:8000")], [])
    made = meter.state(ledger)["burning"]
    assert made["usd_per_hour"] == pytest.approx(2 * 3.6, rel=0.02)


def test_what_runs_now_is_told_by_the_clock_though_rows_lie_ahead_of_it(tmp_path: Path) -> None:
    """The clock was an hour ahead, and was set back; what was booked until then is in the sums."""
    path, now = tmp_path / "meter.db", time.time()
    with Ledger(path) as book:
        book.record([span(now + 3600, 15.0)], [])
        book.record([span(now - 60, 15.0)], [Mark("t", now - 45, {}, {}, 3.6)])
    made = meter.state(path)
    assert made["at"] == pytest.approx(now, abs=60)
    assert made["now"]["output"] == 50
    assert made["burning"]["usd_per_hour"] == pytest.approx(3.6)
    assert made["total"]["output"] == 100


def test_the_first_event_is_the_state(ledger: Path) -> None:
    async def first() -> bytes:
        async for event in meter.Watched(ledger).events():
            return event
        raise AssertionError

    said = asyncio.run(first())
    assert said.startswith(b"event: state\ndata: ")
    assert json.loads(said.partition(b"data: ")[2])["total"]["usd"] == pytest.approx(0.6)


def test_the_ledger_is_gone_through_once_however_many_watch(ledger: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone_through: list[Path] = []

    def counted(file: Path) -> dict[str, Any]:
        gone_through.append(file)
        return whole(file)

    whole = meter.state
    monkeypatch.setattr(meter, "state", counted)
    watched = meter.Watched(ledger)
    for _ in range(20):
        watched.state(every_s=0.0)
    assert len(gone_through) == 1, "its latest reading is the same"


def test_only_so_many_watch(ledger: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meter, "MOST_WATCHERS", 1)

    async def two() -> None:
        watched = meter.Watched(ledger)
        first = meter.Watching(watched)
        with pytest.raises(Busy):
            meter.Watching(watched)

        async def gone(message: object) -> None:
            raise OSError  # the browser went away before a byte was sent

        with suppress(ClientDisconnect, OSError):
            await first({"type": "http", "asgi": {"spec_version": "2.4"}}, receive, gone)
        meter.Watching(watched)

    async def receive() -> dict[str, str]:
        return {"type": "http.disconnect"}

    asyncio.run(two())


def test_a_file_that_is_no_ledger_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("tokonomics.measure.meter.ledger")
    (tmp_path / "x.db").write_bytes(b"not a database at all" * 100)
    with pytest.raises(BadInput):
        meter.state(tmp_path / "x.db")


# --- the twin -------------------------------------------------------------------------------------------------------

MORNING = Path(__file__).parents[2] / "docs" / "examples" / "twin-morning.db"


def reported(ledger: Path, made: dict[str, Any]) -> dict[str, Any]:
    """What ``twin report --json`` says of the stretch that the page shows."""
    since, until = (
        f"{datetime.fromtimestamp(made['twin'][edge], UTC):%Y-%m-%dT%H:%M:%S}" for edge in ("since", "until")
    )
    done = run("twin", "report", "--ledger", str(ledger), "--since", since, "--until", until, "--json")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_the_forecasts_are_those_of_the_twins_report() -> None:
    made = meter.state(MORNING)
    report = reported(MORNING, made)
    assert made["twin"]["servers"] == report["servers"]
    assert made["twin"]["changes"] == report["changes"]
    assert made["twin"]["servers"][0]["windows"] == 24
    (drawn,) = (each for each in made["charts"] if "forecast" in each["name"])
    measured = {row["measured"] for rows in drawn["spec"]["datasets"].values() for row in rows if "measured" in row}
    asked = ("tokens_per_s", "ttft_p99_s", "ttft_s", "tpot_s", "usd_per_mtok")
    figures = [window["figures"][name] for window in report["windows"] for name in asked if name in window["figures"]]
    assert measured == {figure["measured"] for figure in figures if figure["measured"] is not None}
    shown = json.dumps(made["sections"], ensure_ascii=False)
    assert "llama-3.1-8b on http://gpu1:8000: 24 windows scored" in shown
    assert "the cache hits less: 49 % → 1.7 %" in shown


def test_without_a_twin_the_page_says_how_to_start_one(ledger: Path) -> None:
    made = meter.state(ledger)
    assert made["twin"] is None
    assert "tokonomics twin http" in json.dumps(made["sections"])
    with Ledger(ledger) as book:
        book.keep_forecasts({("t", "m", 0.0): json.dumps({"of": "another version"})})
    assert meter.state(ledger)["twin"] is None


def forecast(start: float, target: str = "t") -> dict[tuple[str, str, float], str]:
    figure = WindowFigure(measured=1.0, forecast=ForecastBand(low=0.5, mid=1.0, high=2.0))
    said = TwinWindow(target=target, model="m", start=start, figures={"tokens_per_s": figure}, is_over=True)
    return {(target, "m", start): said.model_dump_json(exclude_defaults=True)}


def test_forecasts_are_read_when_one_was_written_and_not_before(ledger: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []

    def counted(request: TwinReportRequest) -> TwinReportResult:
        asked.append(request)
        return twin_report(request)

    monkeypatch.setattr(meter, "twin_report", counted)
    start = time.time() // 600 * 600 - 6000
    for number, server in ((1, "t"), (2, "t"), (3, "of another server")):
        with Ledger(ledger) as book:
            book.keep_forecasts(forecast(start + 600 * min(number, 2), server))
        states = [meter.state(ledger) for _ in range(3)]
        assert len(asked) == number
        assert sum(board["windows"] for board in states[-1]["twin"]["servers"]) == number


def test_a_day_is_drawn_at_most_and_only_so_many_forecasts(ledger: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time() // 600 * 600
    for number in range(200):
        with Ledger(ledger) as book:
            book.keep_forecasts(forecast(now - 600 * number))
    day = meter.state(ledger)
    assert day["twin"]["servers"][0]["windows"] == 145, "of a day, both ends counted"
    monkeypatch.setattr(meter, "_MOST_FORECASTS", 12)
    few = meter.state(ledger)
    assert few["twin"]["servers"][0]["windows"] == 12
    assert few["twin"]["servers"] == reported(ledger, few)["servers"]
