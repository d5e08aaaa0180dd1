"""A report of every week is written once, whatever fails, and sent until a command has taken it."""

import json
import sys
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest
from tests.measure.ledgers import at, day_of, ledger_of
from tests.there import refused
from typer.testing import CliRunner

from tokonomics.cli.meter import app
from tokonomics.errors import BadInput
from tokonomics.operate.weekly import SETTLED_S, WeeklyReports, keep_reporting, sender

MONDAY, NEXT = date(2026, 11, 9), date(2026, 11, 16)
WEEK_S = 7 * 86400.0


class Stopped(Exception):
    """Ends a run that would go on."""


class Desk:
    """A folder for reports, a clock that moves while one sleeps, and what was written, sent and said."""

    def __init__(self, folder: Path, sends: bool = False) -> None:
        self.now = at(NEXT, 12)
        self.written: list[tuple[float, float]] = []
        self.sent: list[date] = []
        self.said: list[str] = []
        self.empty: set[float] = set()
        self.problem: str | None = None
        self.fails = 0
        send = self._send if sends else None
        self.reports = WeeklyReports(folder / "report.html", self._write, self.said.append, send)

    def wall(self) -> float:
        return self.now

    steady = wall

    def _write(self, since: float, until: float, file: Path) -> bool:
        if self.fails:
            self.fails -= 1
            raise BadInput("the log is gone")
        if since in self.empty:
            return False
        self.written.append((since, until))
        file.write_text(f"{since}")
        return True

    def _send(self, file: Path, week: date) -> str | None:
        if self.problem is None:
            assert file.read_text()
            self.sent.append(week)
        return self.problem

    def run(self, until: float) -> None:
        def sleep(seconds: float) -> None:
            assert seconds > 0
            self.now += seconds
            if self.now > until:
                raise Stopped

        with pytest.raises(Stopped):
            keep_reporting(self.reports, self, sleep, lambda report: None)


def names(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir())


def test_the_last_full_week_is_written_at_once_and_later_ones_when_they_have_settled(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.run(at(NEXT) + 2 * WEEK_S + 3600)
    assert desk.written == [(at(MONDAY) + place * WEEK_S, at(NEXT) + place * WEEK_S) for place in range(3)]
    assert names(tmp_path) == [f"report-2026-11-{day}.html" for day in ("09", "16", "23")]
    assert datetime.fromtimestamp(desk.written[0][0], UTC).weekday() == 0


def test_a_week_is_over_when_its_last_row_is_in_the_ledger(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    assert [report.week for report in desk.reports.look(at(NEXT) + SETTLED_S - 1)] == [date(2026, 11, 2)]
    assert [report.week for report in desk.reports.look(at(NEXT) + SETTLED_S)] == [MONDAY]
    assert desk.reports.look(at(NEXT) + SETTLED_S + 60) == []


def test_weeks_that_nobody_was_there_for_are_made_up_for(tmp_path: Path) -> None:
    (tmp_path / "report-2026-10-19.html").write_text("old")
    (tmp_path / "report-of-mine.html").write_text("not ours")
    desk = Desk(tmp_path)
    desk.empty = {at(date(2026, 11, 2))}
    assert [report.week for report in desk.reports.look(desk.now)] == [date(2026, 10, 26), MONDAY]
    assert desk.said == ["nothing was metered in the week of 2026-11-02: no report"]
    assert desk.reports.look(desk.now + 3600) == []


def test_what_cannot_be_written_is_an_error_at_first_and_later_tried_again(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.fails = 1
    with pytest.raises(BadInput, match="the log is gone"):
        desk.reports.look(desk.now)
    desk.reports.look(desk.now)
    desk.fails = 1
    desk.run(at(NEXT) + WEEK_S + SETTLED_S + 3600)
    assert len(desk.written) == 2
    assert desk.said == ["the report of the week of 2026-11-16 is not written, and is tried again: the log is gone"]


def test_a_report_that_is_not_sent_is_sent_later_also_by_another_run(tmp_path: Path) -> None:
    desk = Desk(tmp_path, sends=True)
    desk.problem = "no route to host"
    desk.run(desk.now + 3 * 3600)
    assert (desk.sent, len(desk.written)) == ([], 1)
    assert "report.unsent" in names(tmp_path)
    assert all("no route to host" in line for line in desk.said)
    later = Desk(tmp_path, sends=True)
    assert [(report.week, report.written, report.sent) for report in later.reports.look(later.now)] == [
        (MONDAY, False, True)
    ]
    assert later.written == []
    assert names(tmp_path) == ["report-2026-11-09.html"]
    assert later.reports.look(later.now + 3600) == []


def test_a_run_that_was_killed_before_it_wrote_writes_and_sends(tmp_path: Path) -> None:
    (tmp_path / "report.unsent").write_text("2026-11-09\nnonsense\n")
    desk = Desk(tmp_path, sends=True)
    desk.run(desk.now + 3600)
    assert (len(desk.written), desk.sent) == (1, [MONDAY])


def test_reports_of_before_are_not_sent(tmp_path: Path) -> None:
    (tmp_path / "report-2026-11-09.html").write_text("made without a command")
    desk = Desk(tmp_path, sends=True)
    assert desk.reports.look(desk.now) == []
    assert desk.sent == []


def test_a_command_gets_the_report_as_its_input_and_its_name_and_week_where_it_wants_them(tmp_path: Path) -> None:
    file, took = tmp_path / "report 1.html", tmp_path / "took.json"
    file.write_text("<p>é</p>")
    code = "import json,sys,os; json.dump([sys.argv[2:], sys.stdin.read(), os.environ['A']], open(sys.argv[1], 'w'))"
    send = sender(f"A=1 PYTHONUTF8=1 {sys.executable} -c \"{code}\" {took} -s 'week {{week}}' {{file}}")
    assert send(file, MONDAY) is None
    assert json.loads(took.read_text()) == [["-s", "week 2026-11-09", str(file)], "<p>é</p>", "1"]


def test_a_command_that_fails_says_why(tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    file.write_text("")
    refusing = sender(f"{sys.executable} -c \"import sys; sys.exit('no such user')\"")(file, MONDAY)
    assert refusing is not None
    assert refusing.endswith("ended with 1: no such user")
    missing = sender("/no/such/mail x")(file, MONDAY)
    assert missing is not None
    assert "/no/such/mail cannot be run" in missing
    assert "the command that sends names no program" in str(refused(sender, ""))
    assert "no shell reads the command" in str(refused(sender, "mail a | tee b"))


# --- as typed --------------------------------------------------------------------------------------------------------


def test_a_week_of_the_ledger_becomes_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = ledger_of(tmp_path / "meter.db", day_of(MONDAY))

    def stop(seconds: float) -> None:
        raise Stopped

    monkeypatch.setattr("tokonomics.cli.meter.pause", stop)  # not of those who wait for the command
    monkeypatch.setattr("time.time", lambda: at(NEXT, 12))
    words = ["report", "--every", "week", "--html", str(tmp_path / "costs.html"), "--by", "team", "--json"]
    send = f"{sys.executable} -c 'import sys; sys.stdin.read()'"
    done = CliRunner().invoke(app, [*words, "--ledger", str(ledger), "--send", send])
    assert isinstance(done.exception, Stopped), done.output
    told = json.loads(done.stdout)
    assert told == {
        "week": "2026-11-09",
        "file": str(tmp_path / "costs-2026-11-09.html"),
        "written": True,
        "sent": True,
    }
    page = Path(told["file"]).read_text()
    assert "$48.00 paid" in page
    assert "--since 2026-11-09 --until 2026-11-16 --by team" in page
    assert "http" not in page.partition("<body>")[2].partition("<script")[0].replace("http://gpu1:8000", "")


@pytest.mark.parametrize(
    ("words", "field"),
    [
        (("--every", "day", "--html", "a.html"), "every"),
        (("--every", "week"), "every"),
        (("--send", "mail a"), "send"),
        (("--every", "week", "--html", "a.html", "--until", "2026-11-09"), "until"),
        (("--every", "week", "--html", "a.html", "--csv", "a.csv"), "csv"),
        (("--every", "week", "--html", "a.pdf"), "html"),
        (("--every", "week", "--html", "a.html", "--send", ""), None),
    ],
)
def test_what_a_weekly_report_cannot_be_is_refused(words: tuple[str, ...], field: str | None) -> None:
    refusal: Any = CliRunner().invoke(app, ["report", *words]).exception
    assert isinstance(refusal, BadInput)
    assert refusal.field == field
