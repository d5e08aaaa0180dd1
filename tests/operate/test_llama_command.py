"""The server that ``tune`` starts in CI: it takes llama.cpp's flags, answers, fails as told, and ends when told."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

import pytest
from tests.measure.tiny_llama import counters

LONG_ENOUGH_S = 60.0


class Command:
    """A running command on a port that was free, with what it says in a file."""

    def __init__(self, folder: Path, *flags: str, port: int | None = None) -> None:
        self.port = port or free_port()
        self.log, self.left = folder / "log", folder / "left"
        self.left.mkdir(exist_ok=True)
        words = [sys.executable, "-m", "tests.operate.llama_server", f"--port={self.port}", *flags]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                words, stdout=log, stderr=log, env={**os.environ, "TMPDIR": str(self.left)}
            )  # fmt: skip

    def ask(self, path: str, body: dict[str, Any] | None = None) -> tuple[int, Any]:
        """Status and document."""
        data = None if body is None else json.dumps(body).encode()
        asked = Request(f"http://127.0.0.1:{self.port}{path}", data, {"Content-Type": "application/json"})
        try:
            with urlopen(asked, timeout=LONG_ENOUGH_S) as page:
                return page.status, json.loads(page.read())
        except HTTPError as error:
            with error:
                return error.code, json.loads(error.read())

    def answers(self) -> int:
        """The status of its health, as soon as it listens and does not load any more, or only loads."""
        until = time.monotonic() + LONG_ENOUGH_S
        while time.monotonic() < until and self.process.poll() is None:
            try:
                if (status := self.ask("/health")[0]) == 200 or "--hang" in self.process.args:  # type: ignore[operator]
                    return status
            except (URLError, ConnectionError):
                pass
            time.sleep(0.01)
        pytest.fail(self.log.read_text())

    def ended(self, by: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(by)
        return self.process.wait(LONG_ENOUGH_S)


def free_port() -> int:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return int(held.getsockname()[1])


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Command]]:
    started: list[Command] = []

    def make(*flags: str, port: int | None = None) -> Command:
        started.append(Command(tmp_path, *flags, port=port))
        return started[-1]

    yield make
    for command in started:
        command.process.kill()
        command.process.wait()


def asking(tokens: int, **more: object) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "hello"}], "max_tokens": tokens, "ignore_eos": True, **more}


@pytest.mark.slow
def test_it_starts_with_its_flags_answers_counts_and_ends(start: Callable[..., Command]) -> None:
    command = start("-t", "1", "-tb", "2", "-np", "3", "-b", "64", "-ub", "256", "-c", "3072", "-lv", "4")
    assert command.answers() == 200
    status, answer = command.ask("/v1/chat/completions", asking(5))
    assert status == 200
    # A token a byte, the start, and the sign of three bytes that this tokenizer puts before a word.
    assert answer["usage"]["prompt_tokens"] == len("hello") + 1 + 3
    assert answer["usage"]["completion_tokens"] == 5
    assert counters(f"http://127.0.0.1:{command.port}")["tokens_predicted_total"] == 5
    _, props = command.ask("/props")
    assert (props["total_slots"], props["default_generation_settings"]["n_ctx"]) == (3, 1024)
    assert command.ended() == 0
    assert list(command.left.iterdir()) == [], "the model's file is gone"
    said = command.log.read_text()
    assert "n_threads = 1 (n_threads_batch = 2)" in said
    (clamped,) = (line for line in said.splitlines() if "n_ubatch " in line)
    assert clamped.split()[-1] == "64", "as llama.cpp clamps it to the batch"


@pytest.mark.slow
@pytest.mark.parametrize("by", [signal.SIGTERM, signal.SIGINT])
def test_it_ends_in_the_middle_of_an_answer(start: Callable[..., Command], by: signal.Signals) -> None:
    command = start()
    command.answers()
    data = json.dumps(asking(5000, stream=True)).encode()
    asked = Request(
        f"http://127.0.0.1:{command.port}/v1/chat/completions", data, {"Content-Type": "application/json"}
    )  # fmt: skip
    with urlopen(asked, timeout=LONG_ENOUGH_S) as stream:
        assert stream.readline().startswith(b"data: ")
        assert command.ended(by) == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flags", "status", "said"),
    [
        (["--parallel=16", "--batch-size=8"], -signal.SIGABRT, "n_outputs_max"),
        (["--parallel=257"], 1, "n_seq_max must be <= 256"),
        (["--parallel=0"], 2, "invalid value for --parallel"),
        (["--model=nowhere.gguf"], 2, "failed to open the model nowhere.gguf"),
        (["--threads=two"], 2, "invalid int value"),
        (["--no-such-flag"], 2, "unrecognized arguments"),
    ],
)
def test_it_refuses_what_llama_refuses(start: Callable[..., Command], flags: list[str], status: int, said: str) -> None:
    command = start(*flags)
    assert command.process.wait(LONG_ENOUGH_S) == status
    assert said in command.log.read_text()


@pytest.mark.slow
@pytest.mark.parametrize("fault", [(), ("--fail-with=500",)], ids=["engine", "fault"])
def test_a_port_in_use_ends_it(start: Callable[..., Command], fault: tuple[str, ...]) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        held.listen()
        command = start(*fault, port=held.getsockname()[1])
        assert command.process.wait(LONG_ENOUGH_S) == 1
    assert "error: " in command.log.read_text()


def test_it_answers_completions_with_the_status_asked_for(start: Callable[..., Command]) -> None:
    command = start("--fail-with=500")
    assert command.answers() == 200
    assert command.ask("/v1/models")[1]["data"] == [{"id": "tiny"}]
    for path in ("/v1/chat/completions", "/v1/completions"):
        assert command.ask(path, asking(3))[0] == 500
    assert command.ended() == 0


def test_it_dies_after_as_many_answers_as_asked_for(start: Callable[..., Command]) -> None:
    command = start("--die-after=2", "--parallel=4")
    command.answers()
    for _ in range(2):
        data = json.dumps(asking(3, stream=True)).encode()
        with urlopen(f"http://127.0.0.1:{command.port}/v1/chat/completions", data, LONG_ENOUGH_S) as page:
            lines = [line for line in page.read().decode().splitlines() if line]
        usage = json.loads(lines[-2].removeprefix("data: "))["usage"]
        assert (len(lines), usage) == (5, {"prompt_tokens": len("hello") + 1, "completion_tokens": 3})
        assert command.process.poll() is None
    with pytest.raises((URLError, ConnectionError)):
        command.ask("/v1/chat/completions", asking(3))
    assert command.process.wait(LONG_ENOUGH_S) == 1
    assert "out of memory" in command.log.read_text()


def test_one_that_hangs_loads_for_ever(start: Callable[..., Command]) -> None:
    command = start("--hang")
    assert command.answers() == 503
    assert command.ask("/v1/models")[0] == 503
    assert command.ask("/v1/chat/completions", asking(3))[0] == 503
    assert command.ended() == 0
