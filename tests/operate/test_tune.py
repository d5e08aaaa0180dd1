"""A search for flags on a small server whose best flags are known: it finds them, goes on, and says what is wrong."""

import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import pytest
from tests.there import refused, there

from tokonomics.errors import TokonomicsError
from tokonomics.measure.bench.run import LoadInterrupted
from tokonomics.operate.record import Record, read_record
from tokonomics.questions.request import Listener
from tokonomics.questions.requests.run import TuneRequest, VerifyRequest
from tokonomics.questions.tune import tune
from tokonomics.questions.tune_answer import TuneResult
from tokonomics.questions.verify import verify

ROOT = Path(__file__).parents[2]
LONG_ENOUGH_S = 60.0


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


class Search:
    """A search with a server of its own folder; nothing of it may be left when a test has ended."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.book, self.out = folder, folder / "starts", folder / "tune.json"

    def command(self, *faults: str, port: str = "{port}") -> str:
        words = [sys.executable, "-m", "tests.operate.slotted", "--port", port, "--book", str(self.book), *faults]
        return shlex.join([*words, "{flags}"]).replace("'{flags}'", "{flags}").replace("'{port}'", "{port}")

    def asked(self, *faults: str, **changes: Any) -> dict[str, Any]:
        """What is asked: a tenth of the answers may take more than 0.1 s, four times what one takes alone."""
        given = {
            "start": self.command(*faults), "try": ["slots=1/2/4/8"], "out": str(self.out), "slo": "e2e_p90=100ms",
            "rate": "80", "input": "const:20", "output": "const:4", "requests": 30, "patience": "30s", "timeout": 20,
        }  # fmt: skip
        return {name: value for name, value in (given | changes).items() if value is not None}

    def run(self, *faults: str, listener: Listener | None = None, **changes: Any) -> TuneResult:
        return tune(TuneRequest.checked(self.asked(*faults, **changes)), listener or Listener())

    def refused(self, *faults: str, **changes: Any) -> str:
        with pytest.raises(TokonomicsError) as refusal:
            self.run(*faults, **changes)
        return str(refusal.value)

    @property
    def record(self) -> Record:
        return read_record(self.out)

    @property
    def starts(self) -> list[int]:
        return [int(line) for line in self.book.read_text().split()] if self.book.exists() else []

    def left(self) -> list[str]:
        """Commands that run and name this folder."""
        found = []
        for status in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                said = status.read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if str(self.folder) in said:
                found.append(said)
        return found


@pytest.fixture
def search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Search]:
    monkeypatch.chdir(ROOT)  # the server is a module of the tests
    monkeypatch.setenv("no_proxy", "*")
    made = Search(tmp_path)
    yield made
    if sys.platform == "linux":
        assert made.left() == []


def values(record: Record) -> list[Any]:
    return [trial.flags.values.get("slots") for trial in record.trials]


def loads(record: Record) -> int:
    return sum(len(trial.loads) for trial in record.trials)


class Heard(Listener):
    """Hears what is done; stops at the line that it is to stop at."""

    def __init__(self, stops_at: Callable[[str], bool] = lambda line: False) -> None:
        self.lines: list[str] = []
        self.notes: list[str] = []
        self.stops_at = stops_at

    def doing(self, what: str) -> None:
        self.lines.append(what)
        if self.stops_at(what):
            raise KeyboardInterrupt

    def note(self, line: str) -> None:
        self.notes.append(line)

    @property
    def loads(self) -> list[str]:
        return [line for line in self.lines if ": load " in line]


# --- a search to its end --------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_it_finds_the_best_flags_keeps_every_load_and_says_what_they_save(search: Search) -> None:
    """Four slots serve 160 a second, eight 120, two 80, and one, as it is started, 40."""
    kept: list[int] = []

    class Counting(Heard):
        def doing(self, what: str) -> None:
            super().doing(what)
            if ": load " in what:
                kept.append(loads(read_record(search.out)) if search.out.exists() else 0)

    result = search.run(listener=Counting(), usd_per_hour=3.6)
    record = search.record
    assert there(result.best).values == {"slots": 4}
    assert there(result.best).words == "--slots 4"
    assert values(record)[0] is None, "first the server as it is started"
    assert len(record.trials) <= 5
    assert kept == list(range(loads(record))), "before each load, all before it are in the file"
    assert search.starts == [value or 1 for value in values(record)]
    rates = {trial.flags.values.get("slots"): trial.rate for trial in record.trials}
    assert rates[4] > rates[None] > 0
    assert result.saved_share == pytest.approx(1 - rates[None] / rates[4])
    # $3.60 an hour is $0.001 a second, in which so many requests of about 24 tokens are served.
    tokens = record.tokens_per_request
    assert there(result.best).usd_per_mtok == pytest.approx(0.001 / (rates[4] * tokens) * 1e6)
    assert record.stopped
    assert record.trials[0].engine["version"] == "1.2.3"
    checked = verify(VerifyRequest.checked({"verify": str(search.out)}))
    assert (checked.wrong, checked.best, checked.loads) == ((), "slots=4", loads(record))
    again = search.run(usd_per_hour=3.6)
    assert search.record.trials == record.trials, "a search that is over starts nothing"
    assert there(again.best).values == {"slots": 4}
    assert len(search.starts) == len(record.trials)


def test_a_dry_run_starts_nothing_and_writes_nothing(search: Search) -> None:
    result = search.run(dry_run=True)
    assert (result.trials, result.best, result.certificate) == ((), None, None)
    assert {row.name for row in result.ranked} == {"as started", "slots=1", "slots=2", "slots=4", "slots=8"}
    assert search.starts == []
    assert not search.out.exists()


# --- interrupted and gone on with -----------------------------------------------------------------------------------


@pytest.mark.slow
def test_after_an_interrupt_between_loads_no_load_is_played_twice(search: Search) -> None:
    asked: dict[str, Any] = {"try": ["slots=4"], "trials": 2}
    first = Heard(lambda line: "load 3 " in line)
    with pytest.raises(LoadInterrupted, match=r"everything measured is in .*tune\.json"):
        search.run(listener=first, **asked)
    before = search.record
    assert (len(before.trials), loads(before)) == (1, 2)
    second = Heard()
    search.run(listener=second, **asked)
    after = search.record
    assert after.trials[0].loads[:2] == before.trials[0].loads
    assert len(second.loads) == loads(after) - 2
    assert "load 3 at" in second.loads[0]
    assert second.notes == [f"going on from 1 trial in {search.out}"]
    assert values(after) == [None, 4]
    assert all(trial.finished for trial in after.trials)
    assert any("warming up" in line for line in second.lines[: second.lines.index(second.loads[0])]), "it is a new one"
    for trial in after.trials:
        counted = [load.rate for load in trial.loads if load.again is None]
        assert len(set(counted)) == len(counted)


@pytest.mark.slow
def test_after_a_kill_it_goes_on_from_the_last_load(search: Search) -> None:
    asked = search.asked(**{"try": ["slots=4"], "trials": 1})
    program = (
        "import json, sys; from tokonomics.questions.requests.run import TuneRequest;"
        "from tokonomics.questions.tune import tune; tune(TuneRequest.checked(json.loads(sys.argv[1])))"
    )
    process = subprocess.Popen([sys.executable, "-c", program, json.dumps(asked)], cwd=ROOT)
    until(lambda: search.out.exists() and loads(search.record) >= 2)
    process.send_signal(signal.SIGKILL)
    process.wait()
    until(lambda: not search.left())
    before = search.record
    heard = Heard()
    search.run(listener=heard, **{"try": ["slots=4"], "trials": 1})
    after = search.record
    for old, new in zip(before.trials, after.trials, strict=False):
        assert new.loads[: len(old.loads)] == old.loads
    assert len(heard.loads) == loads(after) - loads(before)
    assert values(after) == [None]
    assert there(after.stopped)


def until(is_so: Callable[[], bool]) -> None:
    end = time.monotonic() + LONG_ENOUGH_S
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.02)


# --- what goes wrong ------------------------------------------------------------------------------------------------


def test_a_command_that_does_not_start_is_said_with_what_it_wrote(search: Search) -> None:
    said = search.refused("--no-such-flag")
    assert "the server ended with exit code 2 before it was ready" in said
    assert "unrecognized arguments: --no-such-flag" in said
    assert not search.out.exists()
    assert "no-such-program" in search.refused(start="no-such-program {flags}")


def test_a_command_that_says_nowhere_where_flags_go_is_refused(search: Search) -> None:
    assert "says nowhere where flags go" in search.refused(start="vllm serve m")


def test_a_port_in_use_is_refused_before_anything_is_started(search: Search) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = search.refused(start=search.command(port=str(port)))
    assert f"port {port} on 127.0.0.1 is in use" in said
    assert search.starts == []


def test_a_server_that_answers_errors_is_no_result_but_said(search: Search) -> None:
    said = search.refused("--fail-with=500")
    assert "HTTP 500" in said
    assert "out of memory" in said
    assert search.starts == [1]


def test_a_server_that_never_loads_is_given_up(search: Search) -> None:
    said = search.refused("--hang", patience="1s")
    assert "after 1 s the server answers HTTP 503 to /health" in said


@pytest.mark.slow
def test_flags_with_which_the_server_fails_are_a_result_and_the_search_goes_on(search: Search) -> None:
    """It dies at its 21st answer with 2 slots, and does not start with 8."""
    asked = search.asked("--dies-with=2", "--refuses=8", **{"try": ["slots=2/4/8"], "trials": 4})
    result = tune(TuneRequest.checked(asked), Listener())
    record = search.record
    failed = {trial.flags.values["slots"]: there(trial.failed) for trial in record.trials if trial.failed}
    assert "the server ended with exit code 9" in failed[2]
    assert "illegal memory access" in failed[2]
    assert failed[8] == "the server ended with exit code 1 before it was ready"
    assert all(trial.rate == 0 for trial in record.trials if trial.failed)
    assert there(result.best).values == {"slots": 4}
    assert {row.values.get("slots"): row.failed for row in result.ranked if row.failed} == failed
    assert verify(VerifyRequest.checked({"verify": str(search.out)})).wrong == ()


@pytest.mark.slow
def test_flags_with_which_the_server_never_answers_are_given_up(search: Search) -> None:
    changes: dict[str, Any] = {"try": ["slots=16"], "trials": 2, "timeout": 1}
    result = tune(TuneRequest.checked(search.asked("--stalls-with=16", **changes)), Listener())
    first, failed = search.record.trials
    assert first.rate > 0
    assert "no first answer" in there(failed.failed)
    assert there(result.best).values == {}


@pytest.mark.parametrize("more", [(), ("--mute-context",)], ids=["listed", "said when asked"])
def test_a_trace_of_another_model_is_longer_than_this_one_takes(search: Search, more: tuple[str, ...]) -> None:
    said = search.refused("--context=100", *more, input="const:500")
    assert "100 tokens" in said
    assert search.starts == [1]


def test_a_file_of_another_question_is_not_written_over(search: Search) -> None:
    with pytest.raises(LoadInterrupted):
        search.run(listener=Heard(lambda line: "load 2 " in line))
    kept = search.out.read_bytes()
    said = search.refused(slo="e2e_p90=200ms", requests=31)
    assert "holds a search with another slos and traffic and requests" in said
    assert search.out.read_bytes() == kept
    search.out.write_text("{}")
    assert "tune.json" in search.refused()
    assert search.out.read_text() == "{}"


def test_requests_that_name_no_server_or_no_target_are_refused() -> None:
    def said(**given: Any) -> str:
        return str(refused(tune, TuneRequest.checked({"rate": "5", "input": "const:9", "requests": 9, **given})))

    assert "no server is given" in said(**{"try": ["a=1/2"], "slo": "ttft_p99=1"})
    assert "a target of ttft or e2e" in said(**{"try": ["a=1/2"], "slo": "tpot_p99=50ms", "dry_run": True})


# --- a server that runs already -------------------------------------------------------------------------------------


@contextmanager
def started(search: Search, port: int, flags: str) -> Iterator[str]:
    """The server as its user starts it."""
    command = search.command(port=str(port)).replace("{flags}", flags)
    process = subprocess.Popen(shlex.split(command), cwd=ROOT, env=dict(os.environ))
    address = f"http://127.0.0.1:{port}"

    def answers() -> bool:
        try:
            with urlopen(f"{address}/health") as page:
                return bool(page.status == 200)
        except URLError:
            return False

    try:
        until(answers)
        yield address
    finally:
        process.kill()
        process.wait()


@pytest.mark.slow
def test_with_an_address_it_proposes_flags_and_goes_on_after_each_restart(search: Search) -> None:
    port = free_port()
    asked: dict[str, Any] = {"start": None, "target": f"http://127.0.0.1:{port}", "try": ["slots=4"]}
    with started(search, port, ""):
        first = search.run(**asked)
        proposed = there(first.proposed)
        assert proposed == "--slots 4"
        assert first.stopped is None
        said = search.refused(**asked)
        assert "the server was not restarted since its last trial" in said
        assert f"Restart it with: {proposed}" in said
        assert len(search.record.trials) == 1
    with started(search, port, proposed):
        last = search.run(**asked)
    assert last.proposed is None
    record = search.record
    assert there(last.best).values == {"slots": 4}
    assert values(record) == [None, 4]
    assert there(last.stopped)
    starts = [trial.engine["process_start_time_seconds"] for trial in record.trials]
    assert starts == sorted(set(starts))
    assert record.trials[0].words == ""


def test_an_address_where_nobody_listens_is_said(search: Search) -> None:
    said = search.refused(start=None, target=f"http://127.0.0.1:{free_port()}")
    assert "cannot connect" in said or "Connection refused" in said
