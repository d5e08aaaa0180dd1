"""The book survives whatever ends the meter, refuses what is not its own, and waits out a full disk."""

import random
import sqlite3
import struct
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.measure.ledgers import booked
from tests.measure.make_week import PAGES, make_week
from tests.measure.metered import BEGIN, Bench, DiesAt, Killed
from tests.measure.test_meter_spans import span

from tokonomics.errors import BadInput
from tokonomics.measure.meter import ledger as ledger_module
from tokonomics.measure.meter.bill import bill
from tokonomics.measure.meter.ledger import Ledger
from tokonomics.measure.meter.ledger_file import SCHEMA, default_ledger
from tokonomics.measure.meter.readings import Counted, Reading
from tokonomics.measure.meter.spans import PaidTime, Stretch, WatchedSpan, change_between, cut, spans_between, tally
from tokonomics.measure.meter.state import MeterTally
from tokonomics.questions import meter as meter_questions
from tokonomics.questions.request import Listener
from tokonomics.questions.requests.run import MeterReportRequest


@pytest.mark.parametrize("statements", range(8))
def test_killed_at_any_statement_the_next_meter_agrees_with_the_server(bench: Bench, statements: int) -> None:
    bench.process.work(1000, 1000)
    unseen = bench.process.true_output
    bench.tick()
    for _ in range(3):
        bench.tick(work=(10, 5))
    bench.book._db = DiesAt(bench.book._db, statements)  # type: ignore[assignment]
    bench.process.work(20, 7)
    try:
        bench.tick()
    except Killed:
        pass
    else:
        assert statements > 3, "a tick takes BEGIN, the span, the counters and COMMIT"
    bench.process.work(30, 11)
    bench.again()
    bench.tick()
    made = booked(bench.path)
    assert made.output == bench.process.true_output - unseen
    assert made.input_total == bench.process.true_input - unseen
    assert made.seconds == pytest.approx(5 * 15)
    assert made.usd == pytest.approx(5 * 15 * 3.6 / 3600)


def failing(start: float, answered: float, failed: float) -> PaidTime:
    """Fifteen busy seconds at a tenth of a cent each."""
    counters = ({Counted.answered: {"x": n * answered}, Counted.failed: {"x": n * failed}} for n in (0, 1))
    before, now = (Reading("t", "vllm", "m", start, counter, running=1.0) for counter in counters)
    (made,) = spans_between([change_between(before, now)], Stretch(WatchedSpan.seen, start, 15.0, 3.6))
    return made


def test_a_report_has_the_failed_dollars_that_the_screen_had(tmp_path: Path) -> None:
    """One of one, then one of ten: all of the first cent and a half, and a tenth of the second; cut where you like."""
    spans = [failing(BEGIN, 0, 1), failing(BEGIN + 15, 9, 1)]
    on_screen = sum((tally(each) for each in spans), MeterTally()).failed_usd
    assert on_screen == pytest.approx(0.015 * 1.1)
    with Ledger(tmp_path / "meter.db") as book:
        assert book.record(spans, []) is None
        (row,) = book.spans()
    assert tally(row).failed_usd == pytest.approx(on_screen)
    assert sum(tally(each).failed_usd for each in cut(row, BEGIN + 20) if each) == pytest.approx(on_screen)


def test_a_ledger_of_the_first_version_is_read_and_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "meter.db"
    with Ledger(path) as book:
        book.record([failing(BEGIN, 9, 1)], [])
    with closing(sqlite3.connect(path)) as db:
        db.executescript("ALTER TABLE spans DROP COLUMN failed_s; PRAGMA user_version = 1;")
    assert booked(path).failed_usd == pytest.approx(0.0015)
    with Ledger(path) as book:
        book.record([failing(BEGIN + 600, 9, 1)], [])
    assert booked(path).failed_usd == pytest.approx(0.0030)


@pytest.mark.parametrize(("column", "value"), [("seconds", 1e15), ("seconds", -1.0), ("start", 1e300), ("start", -1e9)])
def test_a_row_at_no_time_is_damage_and_not_hours_without_end(tmp_path: Path, column: str, value: float) -> None:
    path = tmp_path / "meter.db"
    with Ledger(path) as book:
        book.record([failing(BEGIN, 9, 1)], [])
    with closing(sqlite3.connect(path)) as db, db:
        db.execute(f"UPDATE spans SET {column} = ?", (value,))
    with Ledger(path, read_only=True) as book, pytest.raises(BadInput):
        bill(book.spans(), 0.0, BEGIN + 1e9, ["hour"])


steps = st.lists(st.sampled_from(["work", "tick", "restart", "down", "up", "crash"]), max_size=30)


@settings(max_examples=40, deadline=None)
@given(history=steps)
def test_any_history_conserves_tokens_and_dollars(tmp_path_factory: pytest.TempPathFactory, history: list[str]) -> None:
    """Work that was readable before its process ended is booked once; every second is paid once."""
    bench = Bench(tmp_path_factory.mktemp("book") / "meter.db")
    clock, process = bench.clock, bench.process
    bench.tick()
    began, lost, since_read = clock.passed, 0.0, 0.0
    for what in history:
        if what == "work" and process.up:
            process.work(3, 2)
            since_read += 2
        elif what == "tick":
            bench.tick()
            since_read = 0.0 if process.up else since_read
        elif what == "restart":
            clock.passed += 5
            process.restart()
            lost, since_read = lost + since_read, 0.0
        elif what in ("down", "up"):
            process.up = what == "up"
        elif what == "crash":
            bench.again()
    process.up = True
    state = bench.tick()
    bench.book.close()
    made = booked(bench.path)
    assert made.output == state.total.output == process.true_output - lost
    assert made.seconds == pytest.approx(clock.passed - began)
    assert made.usd == pytest.approx(made.seconds * 3.6 / 3600)
    assert state.total.usd == pytest.approx(made.usd)


def test_spans_that_follow_each_other_are_one_row_of_at_most_five_minutes(tmp_path: Path) -> None:
    with Ledger(tmp_path / "meter.db") as book:
        for place in range(60):
            book.record([span(BEGIN + 15 * place, 15.0)], [])
        rows = list(book.spans())
    assert len(rows) == 60 * 15 / 300
    assert [row.seconds for row in rows] == pytest.approx([300.0] * 3)
    assert sum(row.output for row in rows) == 60 * 50


def test_a_change_of_price_or_state_starts_a_row(tmp_path: Path) -> None:
    changes = [span(), span(BEGIN + 15, usd_per_hour=9.9), span(BEGIN + 30, watched=WatchedSpan.gap), span(BEGIN + 100)]
    with Ledger(tmp_path / "meter.db") as book:
        for change in changes:
            book.record([change], [])
        assert list(book.spans()) == changes


def fill(book: Ledger) -> int:
    """Spans of another server, until SQLite itself says that there is no room: how many, of which the last is held."""
    pages = book._db.execute("PRAGMA page_count").fetchone()[0]
    book._db.execute(f"PRAGMA max_page_count = {pages}")
    for place in range(10_000):
        if book.record([span(BEGIN + 300 * place, 300.0, target="filler")], []) is not None:
            return place + 1
    raise AssertionError("there is always room")


def test_while_the_disk_is_full_spans_are_held_and_written_later(bench: Bench) -> None:
    bench.tick()
    fillers = fill(bench.book)
    for _ in range(100):
        state = bench.tick(work=(10, 5))
    assert state.notes
    # 100 spans of 15 s are 5 rows of five minutes: the memory it takes does not grow with each tick.
    assert 5 <= state.held_spans <= 7
    assert state.total.output == bench.process.true_output
    bench.book._db.execute("PRAGMA max_page_count = 1000000")
    state = bench.tick(work=(10, 5))
    assert (state.held_spans, state.notes) == (0, ())
    assert booked(bench.path).output == bench.process.true_output + fillers * span().output


def test_a_full_disk_for_weeks_joins_spans_and_loses_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_module, "MOST_HELD", 10)
    with Ledger(tmp_path / "meter.db") as book:
        fillers = fill(book)
        for place in range(100):
            assert book.record([span(BEGIN + 300 * place, 300.0)], []) is not None
        assert book.held <= 11
        book._db.execute("PRAGMA max_page_count = 100000")
        assert book.record([], []) is None
        assert sum(row.output for row in book.spans()) == (100 + fillers) * 50
        assert sum(row.seconds for row in book.spans()) == pytest.approx((100 + fillers) * 300)


def test_a_second_meter_on_a_ledger_is_refused_and_a_report_is_not(tmp_path: Path) -> None:
    path = tmp_path / "meter.db"
    with Ledger(path):
        with pytest.raises(BadInput):
            Ledger(path)
        Ledger(path, read_only=True).close()
    Ledger(path).close()
    with pytest.raises(BadInput):
        Ledger(tmp_path / "none.db", read_only=True)


@pytest.mark.parametrize("kind", ["foreign", "newer", "garbage"])
@pytest.mark.parametrize("read_only", [False, True])
def test_a_file_that_is_not_ours_is_refused_and_left_alone(tmp_path: Path, kind: str, read_only: bool) -> None:
    path = tmp_path / "meter.db"
    if kind == "garbage":
        path.write_bytes(b"not a database at all" * 100)
    else:
        if kind == "newer":
            Ledger(path).close()
        with closing(sqlite3.connect(path)) as database:
            change = f"PRAGMA user_version = {SCHEMA + 1}" if kind == "newer" else "CREATE TABLE cats (name)"
            database.execute(change)
    before = path.read_bytes()
    with pytest.raises(BadInput):
        Ledger(path, read_only=read_only)
    assert path.read_bytes() == before


def test_the_ledger_is_kept_where_data_is_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert default_ledger() == tmp_path / "tokonomics" / "meter.db"
    monkeypatch.delenv("XDG_DATA_HOME")
    monkeypatch.setenv("HOME", "/home/someone")
    assert default_ledger() == Path("/home/someone/.local/share/tokonomics/meter.db")


def test_the_week_that_reports_are_shown_with_is_made_by_its_script(tmp_path: Path) -> None:
    make_week(tmp_path / "week.db")
    with Ledger(tmp_path / "week.db", read_only=True) as made, Ledger(PAGES / "week.db", read_only=True) as kept:
        assert list(made.spans()) == list(kept.spans())
        assert made.marks() == kept.marks() == {}


def test_no_bit_that_fell_over_and_no_lost_page_makes_another_sum(tmp_path: Path) -> None:
    """Each is refused, or changes nothing that is read: bits anywhere and of a row's dollars, and whole pages."""
    path, rows = tmp_path / "meter.db", [span(BEGIN + 300 * place, 300.0) for place in range(60)]
    with Ledger(path) as book:
        for row in rows:
            assert book.record([row], []) is None
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        size = database.execute("PRAGMA page_size").fetchone()[0]
    whole, chance = path.read_bytes(), random.Random(5)
    dollars = whole.index(struct.pack(">d", rows[0].usd))
    places = (*range(dollars, dollars + 8), *(chance.randrange(size, len(whole)) for _ in range(12)))
    spoilt = [whole[:at] + bytes([whole[at] ^ 1 << chance.randrange(8)]) + whole[at + 1 :] for at in places]
    spoilt += [whole[:at] + bytes(size) + whole[at + size :] for at in range(size, len(whole), size)]
    refused = 0
    for content in spoilt:
        path.write_bytes(content)
        try:
            total = meter_questions.meter_report(MeterReportRequest(ledger=str(path), since="2026-01-01")).total
        except BadInput:
            refused += 1
            continue
        assert (total.output, total.seconds) == (60 * 50, 60 * 300)
        assert total.usd == pytest.approx(sum(row.usd for row in rows))
    assert refused >= 8 + 1  # the rest may lie where nothing is stored


def test_a_report_reads_one_state_of_the_book_and_all_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The row that is being written ends after the report was asked for; what it counted lies at its end."""
    path, asked = tmp_path / "meter.db", MeterReportRequest(ledger=str(tmp_path / "meter.db"))
    now = BEGIN + 10
    monkeypatch.setattr("tokonomics.questions.meter.time.time", lambda: now)
    with Ledger(path) as writing:

        class Opened(Ledger):
            """A scrape comes in while the report opens the book."""

            def __enter__(self) -> Ledger:
                nonlocal now
                now = BEGIN + 15
                writing.record([span(BEGIN, 15.0)], [])
                return super().__enter__()

        with monkeypatch.context() as meanwhile:
            meanwhile.setattr(meter_questions, "Ledger", Opened)
            total = meter_questions.meter_report(asked).total
        assert total.output == 50
        assert total.usd == pytest.approx(span(BEGIN, 15.0).usd)
        writing.record([span(BEGIN + 15, 15.0)], [])
    listener, notes = Listener(), list[str]()
    monkeypatch.setattr(listener, "note", notes.append)
    now = BEGIN - 5  # the clock was set back
    assert meter_questions.meter_report(asked, listener).total.output == 100
    assert notes


# --- forecasts --------------------------------------------------------------------------------------------------------


def test_forecasts_are_found_by_an_index(tmp_path: Path) -> None:
    with Ledger(tmp_path / "meter.db") as book:
        for query, values in (
            (ledger_module.NEWEST_FORECAST, ("t", "m")),
            (ledger_module.FORECAST_STARTS, (10,)),
            (ledger_module.FORECASTS_BETWEEN, (0.0, 1.0)),
        ):
            plan = " ".join(str(row[-1]) for row in book._db.execute(f"EXPLAIN QUERY PLAN {query}", values))
            assert "USING" in plan, plan
            assert "TEMP B-TREE" not in plan, plan
            assert "SCAN" not in plan or query == ledger_module.FORECAST_STARTS, plan  # the newest, from its end


def test_the_newest_forecast_of_each_server_is_found_whatever_its_name(tmp_path: Path) -> None:
    names = ("", "a", "http://gpu1:8000", "ä", "\U0001f600")
    with Ledger(tmp_path / "meter.db") as book:
        assert book.newest_forecasts() == {}
        rows = {
            (name, model, start): f"{name}{model}{start}"
            for name in names
            for model in ("", "m")
            for start in (0.0, 600.0)
        }
        assert book.keep_forecasts(rows) is None
        assert book.newest_forecasts() == {key: said for key, said in rows.items() if key[2] == 600.0}
        assert book.forecast_starts(11) == [600.0] * 10 + [0.0]
