"""What a question says beside its answer, and to whom."""

from pathlib import Path

import pytest

from tokonomics.errors import BadInput
from tokonomics.questions.inputs import Traffic
from tokonomics.questions.plan import plan
from tokonomics.questions.request import SILENT, Listener
from tokonomics.questions.requests.buy import PlanRequest
from tokonomics.questions.requests.traffic import TraceRequest
from tokonomics.questions.traffic import trace, traffic_of
from tokonomics.report.terminal import Terminal

HEAD = "arrival_s,input_tokens,output_tokens\n"
GOOD = "".join(f"{second},100,10\n" for second in range(20))
BAD = "20,minus five,10\n21,100\n22,-3,10\n"


class Heard(Listener):
    def __init__(self) -> None:
        self.notes: list[str] = []
        self.done: list[str] = []

    def doing(self, what: str) -> None:
        self.done.append(what)

    def note(self, line: str) -> None:
        self.notes.append(line)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "log.csv"
    path.write_text(HEAD + GOOD + BAD, encoding="utf-8")
    return path


def test_rows_that_cannot_be_used_are_counted_and_the_first_are_shown(log: Path) -> None:
    heard = Heard()
    served = traffic_of(Traffic.checked({"trace": log}), heard)
    assert len(served) == 20
    (note,) = heard.notes
    first, *rows = note.splitlines()
    assert first == "log.csv: 3 rows could not be used"
    assert len(rows) == 3
    assert "minus five" in rows[0]
    assert heard.done == ["reading log.csv"]


def test_nothing_is_said_of_a_log_without_bad_rows(tmp_path: Path) -> None:
    path, heard = tmp_path / "log.csv", Heard()
    path.write_text(HEAD + GOOD, encoding="utf-8")
    assert len(traffic_of(Traffic.checked({"trace": path}), heard)) == 20
    assert heard.notes == []


def test_strict_stops_at_the_first_bad_row(log: Path) -> None:
    heard = Heard()
    with pytest.raises(BadInput, match="minus five"):
        traffic_of(Traffic.checked({"trace": log, "strict": True}), heard)
    assert heard.notes == []


def test_a_summary_holds_its_bad_rows_itself(log: Path) -> None:
    heard = Heard()
    found = trace(TraceRequest.checked({"trace": log}), heard)
    assert (found.requests, found.bad_rows) == (20, 3)
    assert heard.notes == []


def test_a_plan_says_how_many_rows_it_left_out(log: Path) -> None:
    heard = Heard()
    plan(PlanRequest.checked({"model": "llama-3.1-8b", "trace": log, "gpu": "H100", "quick": True}), heard)
    assert [note for note in heard.notes if "rows of the log" in note] == [
        "3 rows of the log could not be used: see `tokonomics trace`"
    ]


def test_a_terminal_notes_on_standard_error_and_silence_nothing(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    traffic_of(Traffic.checked({"trace": log}), SILENT)
    assert capsys.readouterr() == ("", "")
    with Terminal() as terminal:
        traffic_of(Traffic.checked({"trace": log}), terminal)
        assert terminal.counting("reading", 5) is None
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("log.csv: 3 rows could not be used\n")
    assert "reading" not in err
