"""A server is started, found ready, watched and ended with all its processes, however it or we behave."""

import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.there import refused

from tokonomics.addresses import BenchTarget, target
from tokonomics.errors import BadInput
from tokonomics.operate import server as module
from tokonomics.operate.server import BadCommand, RunningServer, ServerFailed, read_command, running

ENGINE = Path(__file__).with_name("engine.py")
ROOT = Path(__file__).parents[2]
LONG_ENOUGH_S = 600.0
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="only Linux gives orphans to the guard")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


class Engine:
    """A command for an engine that behaves as told, and where it will be."""

    def __init__(self, behaviour: str, folder: Path) -> None:
        self.port, self.log = free_port(), folder / "trials" / "1.log"
        self.command = shlex.join([sys.executable, str(ENGINE), str(self.port), behaviour])
        self.target: BenchTarget = target(f"http://127.0.0.1:{self.port}")

    def ask(self, path: str) -> None:
        """Ask for what it is to do; it may hang up."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("no_proxy", "*")
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{self.port}/{path}", timeout=LONG_ENOUGH_S).close()
            except OSError:
                assert path.startswith("die")

    def pid_in_log(self, who: str) -> int:
        found: list[str] = []

        def is_written() -> bool:
            found[:] = re.findall(rf"{who} (\d+)", self.log.read_text() if self.log.exists() else "")
            return bool(found)

        until(is_written)
        return int(found[0])


@pytest.fixture
def engine(tmp_path: Path) -> Callable[[str], Engine]:
    return lambda behaviour: Engine(behaviour, tmp_path)


def until(is_so: Callable[[], bool]) -> None:
    end = time.monotonic() + LONG_ENOUGH_S
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.01)


def is_gone(pid: int) -> bool:
    """Whether it has ended; nobody may have asked yet how."""
    try:
        if sys.platform == "linux":
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
        os.kill(pid, 0)
    except OSError:
        return True
    return False


def listens(port: int) -> bool:
    with socket.socket() as asking:
        return asking.connect_ex(("127.0.0.1", port)) == 0


def failed(engine: Engine, **how: Any) -> ServerFailed:
    with pytest.raises(ServerFailed) as failure, running(engine.command, engine.target, engine.log, **how):
        pytest.fail("the block is not reached")
    return failure.value


class Clock:
    """Time as it is, until it is moved on."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self.ahead_s

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


@pytest.fixture
def patience_ends(monkeypatch: pytest.MonkeyPatch) -> Callable[[object], None]:
    """Let the patience be over as soon as an answer about health is the one given."""
    clock, health = Clock(), module._health
    monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(module, "_ANSWER_S", 0.3)

    def at(last: object) -> None:
        def answered(target: BenchTarget, timeout_s: float) -> tuple[str | None, int | str]:
            asked, status = health(target, timeout_s)
            if status == last:
                clock.ahead_s = 1000.0
            return asked, status

        monkeypatch.setattr(module, "_health", answered)

    return at


def test_a_server_that_is_ready_runs_in_the_block_and_not_after_it(engine: Callable[[str], Engine]) -> None:
    ready, said = engine("good"), list[str]()
    with running(ready.command, ready.target, ready.log, doing=said.append) as server:
        assert (server.alive, server.ended_as(), server.pid) == (True, None, ready.pid_in_log("engine"))
        assert server.started_s > 0
        assert os.getsid(server.pid) == server.pid != os.getsid(0)
    assert is_gone(server.pid)
    assert not listens(ready.port)
    assert (server.alive, server.ended_as()) == (False, None)
    assert server.log_tail(2) == [f"engine {server.pid} says None", "health 200"]
    assert said == [] or said[0] == "the server starts: 0 s, at most 900 s"


def test_health_that_says_loading_counts_more_than_a_list_of_models(engine: Callable[[str], Engine]) -> None:
    loading, said = engine("loading"), list[str]()
    with running(loading.command, loading.target, loading.log, doing=said.append) as server:
        until(lambda: server.log_tail(1) == ["health 200"])
        assert server.log_tail(3) == ["health 503", "health 503", "health 200"]
    assert said[0] == "the server starts: 0 s, at most 900 s"


@pytest.mark.parametrize("behaviour", ["listed", "locked"])
def test_a_server_without_health_is_ready_when_it_has_a_list_of_models(
    engine: Callable[[str], Engine], behaviour: str
) -> None:
    ready = engine(behaviour)
    with running(ready.command, ready.target, ready.log) as server:
        assert server.alive


def test_assignments_in_front_of_the_command_are_for_the_server(engine: Callable[[str], Engine]) -> None:
    ready = engine("good")
    with running(f"ENGINE_SAYS='hello you' X=1 {ready.command}", ready.target, ready.log) as server:
        until(lambda: f"engine {server.pid} says hello you" in server.log_tail())
    assert "ENGINE_SAYS" not in os.environ


def test_a_command_is_read_as_words() -> None:
    words, environment = read_command("A=1 B= vllm serve 'a b' ~/m C=3")
    assert words == ["vllm", "serve", "a b", str(Path.home() / "m"), "C=3"]
    assert (environment["A"], environment["B"], "C" in environment) == ("1", "", False)
    assert environment["HOME"] == os.environ["HOME"]


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("vllm serve 'x", "the start command cannot be read: No closing quotation"),
        ("A=1", "the start command names no program\n  Write for example 'vllm serve MODEL {flags}'."),
        (
            "cd x && vllm serve",
            "'&&' means something to a shell, and no shell reads the command\n"
            "  Put the line into a script, or write bash -c 'exec …'.",
        ),
    ],
)
def test_a_text_that_is_no_command_is_refused(command: str, said: str) -> None:
    assert str(refused(read_command, command)) == said


@pytest.mark.parametrize(
    ("program", "why"), [("no-such-program-here", "No such file or directory"), ("/", "Permission denied")]
)
def test_a_program_that_cannot_run_is_one_sentence(engine: Callable[[str], Engine], program: str, why: str) -> None:
    none = engine("good")
    with pytest.raises(BadInput) as refusal, running(f"{program} --x", none.target, none.log):
        pytest.fail("the block is not reached")
    assert str(refusal.value) == f"cannot run {program}: {why}"


def test_a_log_that_cannot_be_written_is_refused(engine: Callable[[str], Engine], tmp_path: Path) -> None:
    none = engine("good")
    with pytest.raises(BadInput, match="cannot be written") as refusal:
        running(none.command, none.target, tmp_path).__enter__()
    assert refusal.value.where == str(tmp_path)


def test_nothing_is_started_on_a_port_in_use(engine: Callable[[str], Engine]) -> None:
    first, second = engine("good"), engine("good")
    with running(first.command, first.target, first.log):
        said = refused(running(second.command, first.target, second.log.with_name("2.log")).__enter__)
        assert said.what == f"port {first.port} on 127.0.0.1 is in use: a server is ready there"
    assert not second.log.with_name("2.log").exists()


@pytest.mark.parametrize(
    ("behaviour", "holder"), [("failing", "it answers HTTP 500"), (None, "something listens there")]
)
def test_what_uses_the_port_is_named(
    engine: Callable[[str], Engine], monkeypatch: pytest.MonkeyPatch, behaviour: str | None, holder: str
) -> None:
    monkeypatch.setattr(module, "_ANSWER_S", 0.3 if behaviour is None else LONG_ENOUGH_S)
    other = engine(behaviour or "silent")
    with subprocess.Popen(shlex.split(other.command), stdout=subprocess.DEVNULL) as process:
        until(lambda: listens(other.port))
        said = refused(running(other.command, other.target, other.log).__enter__)
        process.kill()
    assert said.what == f"port {other.port} on 127.0.0.1 is in use: {holder}"
    assert isinstance(said, BadCommand)


def test_a_host_that_is_not_known_is_refused(engine: Callable[[str], Engine], monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*given: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    none = engine("good")
    said = refused(running(none.command, target("http://nowhere:8000/v1"), none.log).__enter__)
    assert said.what == "the host of http://nowhere:8000/v1/chat/completions is not known: Name or service not known"


def test_a_server_that_ends_at_once_is_a_result_with_its_last_lines(engine: Callable[[str], Engine]) -> None:
    broken = engine("broken")
    failure = failed(broken)
    pid = broken.pid_in_log("engine")
    assert failure.what == "the server ended with exit code 3 before it was ready"
    assert failure.fix == (
        f"Its log ({broken.log}) ends with:\n"
        f"    engine {pid} says None\n"
        "    ValueError: max_num_batched_tokens (512) is smaller than max_num_seqs (1024)"
    )


def test_a_cause_that_stands_further_up_is_found(engine: Callable[[str], Engine]) -> None:
    crashing = engine("crashing")
    failure = failed(crashing)
    assert failure.what == "the server ended with exit code 1 before it was ready"
    first, heading, *last = (failure.fix or "").splitlines()
    assert first == "Its first error: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB"
    assert heading == f"    Its log ({crashing.log}) ends with:"
    assert last == [*(f"      frame {number}" for number in range(23, 30)), "    RuntimeError: see root cause above"]


def test_a_server_that_ends_without_a_word(engine: Callable[[str], Engine]) -> None:
    none = engine("good")
    none.command = shlex.join([sys.executable, "-c", "import os; os.kill(os.getpid(), 15)"])
    failure = failed(none)
    assert failure.what == "the server was ended by SIGTERM before it was ready"
    assert failure.fix == f"It wrote nothing into its log ({none.log})."


def test_a_server_that_only_fails_is_a_result(
    engine: Callable[[str], Engine], patience_ends: Callable[[object], None]
) -> None:
    failing = engine("failing")
    patience_ends(500)
    failure = failed(failing)
    assert failure.what == "after 900 s the server answers HTTP 500 to /health"
    assert failure.where == failing.target.url
    assert f"({failing.log})" in (failure.fix or "")
    assert failing.log.read_text().endswith("health 500\n")
    assert is_gone(failing.pid_in_log("engine"))


def test_a_server_that_hangs_is_a_result(
    engine: Callable[[str], Engine], patience_ends: Callable[[object], None]
) -> None:
    silent = engine("silent")
    patience_ends("timed out")
    failure = failed(silent, patience_s=60)
    assert failure.what == "after 60 s the server does not answer: timed out"
    assert is_gone(silent.pid_in_log("engine"))
    assert not listens(silent.port)


def test_a_server_that_dies_in_the_block_says_how_and_why(engine: Callable[[str], Engine]) -> None:
    """The cause is 30 lines further up than the last line."""
    dying = engine("good")
    with running(dying.command, dying.target, dying.log) as server:
        dying.ask("die/7")
        until(lambda: not server.alive)
        said = server.ended_as()
        last = server.log_tail(2)
    cause = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB"
    assert said == f"the server ended with exit code 7; its log says: {cause}"
    assert last == ["  frame 29", "RuntimeError: see root cause above"]
    assert server.ended_as() == said


def test_a_killed_server_says_so(engine: Callable[[str], Engine]) -> None:
    dying = engine("good")
    with running(dying.command, dying.target, dying.log) as server:
        os.kill(server.pid, signal.SIGKILL)
        until(lambda: not server.alive)
        said = server.ended_as() or ""
    assert said.startswith("the server was killed, most likely for want of memory; its log says: ")


def test_lines_of_a_load_are_told_from_those_before_it(engine: Callable[[str], Engine]) -> None:
    ready = engine("good")
    with running(ready.command, ready.target, ready.log) as server:
        ready.ask("say/3/before")
        until(lambda: server.log_tail(1) == ["before 2"])
        server.mark()
        assert server.log_lines_since_mark() == []
        ready.ask("say/2/during")
        until(lambda: server.log_tail(1) == ["during 1"])
        assert server.log_lines_since_mark() == server.log_lines_since_mark() == ["during 0", "during 1"]


def test_a_log_is_bounded_and_keeps_what_is_new(
    engine: Callable[[str], Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_LOG_BYTES", 200_000)
    loud = engine("good")
    old = loud.log.with_name("1.log.1")
    loud.log.parent.mkdir()
    old.write_text("of an earlier trial")
    with running(loud.command, loud.target, loud.log) as server:
        assert not old.exists()
        server.mark()
        loud.ask("say/10000/first")  # 118,890 bytes: the log goes over into the next file
        until(lambda: server.log_tail(1) == ["first 9999"])
        lines = [line for line in server.log_lines_since_mark() if line.startswith("first")]
        assert lines == [f"first {number}" for number in range(10_000)]
        assert old.exists()
        loud.ask("say/50000/second")  # 638,890 bytes: what was marked is gone
        until(lambda: server.log_tail(1) == ["second 49999"])
        newest = server.log_lines_since_mark()[1:]  # without the one that was cut
        assert 5_000 < len(newest) < 20_000
        assert newest == [f"second {number}" for number in range(50_000 - len(newest), 50_000)]
    assert loud.log.stat().st_size + old.stat().st_size <= 200_000


def test_colours_and_progress_bars_are_read_as_plain_lines(tmp_path: Path) -> None:
    assert module._lines(b"\x1b[32mINFO\x1b[0m\tup\r\n 10%\r 20%\n\n\xff") == ["INFO    up", " 10%", " 20%", "�"]


@pytest.mark.parametrize(
    "behaviour",
    [
        "stubborn",
        "forks",
        pytest.param("forks-session", marks=LINUX),
        pytest.param("forks-orphan-session", marks=LINUX),
    ],
)
def test_processes_that_ignore_a_polite_end_are_killed(engine: Callable[[str], Engine], behaviour: str) -> None:
    stubborn = engine(behaviour)
    with suppress(ZeroDivisionError), running(stubborn.command, stubborn.target, stubborn.log, grace_s=0.2) as server:
        child = stubborn.pid_in_log("child") if behaviour != "stubborn" else server.pid
        raise ZeroDivisionError
    assert (is_gone(server.pid), is_gone(child), listens(stubborn.port)) == (True, True, False)


def test_children_of_a_server_that_died_end_with_the_block(engine: Callable[[str], Engine]) -> None:
    forked = engine("forks")
    with running(forked.command, forked.target, forked.log, grace_s=0.0) as server:
        child = forked.pid_in_log("child")
        forked.ask("die/1")
        until(lambda: not server.alive)
        assert not is_gone(child)
    assert is_gone(child)


def test_without_its_guard_the_server_is_ended_by_us(engine: Callable[[str], Engine]) -> None:
    lonely = engine("forks")
    with running(lonely.command, lonely.target, lonely.log, grace_s=0.2) as server:
        child = lonely.pid_in_log("child")
        server._guard.kill()
        until(lambda: not server.alive)
        said = server.ended_as() or ""
    assert said.startswith("the server lost the process that guards it")
    assert (is_gone(server.pid), is_gone(child), listens(lonely.port)) == (True, True, False)


def test_a_server_that_stays_is_not_passed_over(
    engine: Callable[[str], Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that a daemon runs for us; the other server here is started by the test."""
    monkeypatch.setattr(module, "_FREE_S", 0.0)
    other, here = engine("good"), engine("good")
    here.command = shlex.join([sys.executable, "-c", "import signal; signal.pause()"])
    monkeypatch.setattr(module, "_check_free", lambda target: None)
    with subprocess.Popen(shlex.split(other.command), stdout=subprocess.DEVNULL) as daemon:
        until(lambda: listens(other.port))
        with pytest.raises(ServerFailed) as failure, running(here.command, other.target, here.log):
            pass
        daemon.kill()
    assert failure.value.what == f"port {other.port} on 127.0.0.1 is still in use after the server was ended"


US = """
import signal, sys, time
from pathlib import Path
signal.signal(signal.SIGHUP, signal.SIG_DFL)
signal.signal(signal.SIGINT, signal.default_int_handler)
from tokonomics.addresses import target
from tokonomics.operate.server import running
with running(sys.argv[1], target(sys.argv[2]), Path(sys.argv[3]), grace_s=0.2) as server:
    print(server.pid, server._guard.pid, flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_however_we_end_the_server_ends_with_us(engine: Callable[[str], Engine], how: signal.Signals) -> None:
    stubborn = engine("forks")
    us = [sys.executable, "-c", US, stubborn.command, stubborn.target.url, str(stubborn.log)]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    with subprocess.Popen(us, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment) as process:
        assert process.stdout
        server, guard = map(int, process.stdout.readline().split())
        child = stubborn.pid_in_log("child")
        process.send_signal(how)
        process.wait(LONG_ENOUGH_S)
        if how == signal.SIGKILL:  # the guard alone is left to do it
            until(lambda: is_gone(guard))
        assert [pid for pid in (server, child, guard) if not is_gone(pid)] == []
    assert process.returncode == (-how if how == signal.SIGKILL else -signal.SIGINT)
    assert not listens(stubborn.port)


def test_signals_are_left_as_they_were(engine: Callable[[str], Engine]) -> None:
    before = [signal.getsignal(polite) for polite in (signal.SIGTERM, signal.SIGHUP)]
    ready = engine("good")
    with running(ready.command, ready.target, ready.log) as server:
        assert isinstance(server, RunningServer)
        os.kill(server._guard.pid, signal.SIGTERM)  # a polite word to the guard is for us to answer
        ready.ask("health")
        assert server.alive
    assert [signal.getsignal(polite) for polite in (signal.SIGTERM, signal.SIGHUP)] == before
