"""``tokonomics web`` as it is typed: one address, a token where others can reach it, and nothing left behind."""

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from tokonomics.listening import listening
from tokonomics.web.connections import Connection
from tokonomics.web.uploads import sweep

Command = Callable[..., subprocess.CompletedProcess[str]]


class Page:
    """A running ``tokonomics web``."""

    def __init__(self, tmp_path: Path, *flags: str, **environment: str) -> None:
        self.left = tmp_path / "left"
        self.left.mkdir()
        command = [sys.executable, "-m", "tokonomics", "web", "--no-open", *flags]
        env = {**os.environ, "TMPDIR": str(self.left), "PYTHONUNBUFFERED": "1", **environment}
        self.process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.said = ""
        assert self.process.stdout
        while "tokonomics is at" not in self.said:
            line = self.process.stdout.readline()
            assert line, self.said
            self.said += line
        found = re.search(r"http://\S+/", self.said)
        assert found
        self.address = found[0]

    def ended(self) -> tuple[int, str]:
        """By Ctrl+C: the exit code, and all that was said."""
        self.process.send_signal(signal.SIGINT)
        assert self.process.stdout
        rest = self.process.stdout.read()
        return self.process.wait(60), self.said + rest


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Page]]:
    started: list[Page] = []

    def make(*flags: str, **environment: str) -> Page:
        started.append(Page(tmp_path, *flags, **environment))
        return started[-1]

    yield make
    for page in started:
        page.process.kill()
        page.process.wait()
        if page.process.stdout:
            page.process.stdout.close()


def test_where_memory_cannot_be_limited_that_is_said(monkeypatch: pytest.MonkeyPatch, tokonomics: Command) -> None:
    served: list[socket.socket] = []

    def serve(app: object, bound: socket.socket) -> None:
        served.append(bound)
        bound.close()

    monkeypatch.setattr("tokonomics.web.serve._serve", serve)
    monkeypatch.setattr("tokonomics.web.serve._end_tidily", lambda: None)
    said = "does not let a process limit its memory"
    for can in (True, False):
        monkeypatch.setattr("tokonomics.web.serve.can_limit_memory", lambda can=can: can)
        assert (said in tokonomics("web", "--no-open", "--port=0").stdout) is not can
    assert len(served) == 2


def test_it_answers_on_loopback_and_leaves_nothing_behind(start: Callable[..., Page]) -> None:
    page = start("--port", "0")
    assert page.address.startswith("http://127.0.0.1:")
    with urllib.request.urlopen(page.address + "api/v1/verbs", timeout=600) as reply:
        assert reply.status == 200
    code, said = page.ended()
    assert "Traceback" not in said
    assert code in (0, 130, -signal.SIGINT)
    assert list(page.left.iterdir()) == []


def children(of: int) -> set[int]:
    found = Path(f"/proc/{of}/task").glob("*/children")
    return {int(pid) for each in found for pid in each.read_text().split()}


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGHUP, signal.SIGTERM])
def test_however_it_ends_its_workers_end_with_it(start: Callable[..., Page], how: signal.Signals) -> None:
    page = start("--port", "0")
    with urllib.request.urlopen(page.address + "api/v1/verbs", timeout=600) as reply:
        assert reply.status == 200
    workers = children(page.process.pid)
    assert workers
    page.process.send_signal(how)
    page.process.wait(600)
    assert page.process.stdout
    page.process.stdout.read()  # ends when the last process that could write has closed it
    end = time.monotonic() + 600
    while not all(is_gone(pid) for pid in workers):  # a process closes its files a moment before it has ended
        assert time.monotonic() < end
        time.sleep(0.01)
    left = list(page.left.iterdir())
    assert bool(left) == (how == signal.SIGKILL)
    sweep(page.left, young_s=0.0)
    assert list(page.left.iterdir()) == []


def test_silent_connections_shut_nobody_out(start: Callable[..., Page]) -> None:
    page = start("--port", "0")
    port = int(page.address.rstrip("/").rpartition(":")[2])
    with ExitStack() as open_ones:
        for _ in range(450):
            open_ones.enter_context(socket.create_connection(("127.0.0.1", port), timeout=600))
        with urllib.request.urlopen(page.address + "api/v1/verbs", timeout=600) as reply:
            assert reply.status == 200


def test_a_connection_that_says_nothing_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tokonomics.web.connections.SILENT_S", 0.05)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body"})

    async def talk(sent: bytes) -> bytes:
        config = uvicorn.Config(app, http=Connection, lifespan="off", log_level="error")
        config.load()
        loop, state = asyncio.get_running_loop(), uvicorn.server.ServerState()
        server = await loop.create_server(lambda: Connection(config, state, {}), "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.write(sent)
        try:
            return await reader.read()
        except ConnectionResetError:
            return b""
        finally:
            writer.close()
            server.close()

    assert asyncio.run(talk(b"")) == b""
    assert asyncio.run(talk(b"GET / HTTP/1.1\r\nHost: x\r\n")) == b"", "half a request is none"
    assert b"204" in asyncio.run(talk(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"))


def test_a_token_with_a_line_end_can_be_given(start: Callable[..., Page]) -> None:
    page = start("--port", "0", "--token", TOKONOMICS_TOKEN="a-token-of-some-length \n")
    asked = urllib.request.Request(
        page.address + "api/v1/verbs", headers={"authorization": "Bearer a-token-of-some-length"}
    )
    with urllib.request.urlopen(asked, timeout=600) as reply:
        assert reply.status == 200


def test_elsewhere_it_demands_a_token_and_says_so(start: Callable[..., Page]) -> None:
    page = start("--port", "0", "--host", "0.0.0.0")
    port = page.address.rstrip("/").rpartition(":")[2]
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/verbs", timeout=600)
    assert refused.value.code == 401
    refused.value.close()
    _, said = page.ended()
    assert re.search(r"asks for a token: \S{40,}", said)
    assert "not encrypted" in said


def test_a_taken_port_gives_way_to_the_next() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with listening("127.0.0.1", port, 20) as made:
            assert port < made.getsockname()[1] < port + 20


def test_a_short_token_is_refused(tokonomics_process: Command) -> None:
    refused = tokonomics_process("web", "--no-open", env={"TOKONOMICS_TOKEN": "short"})
    assert refused.returncode == 2
    assert "TOKONOMICS_TOKEN" in refused.stderr


def test_an_address_of_another_machine_is_refused(tokonomics_process: Command) -> None:
    refused = tokonomics_process("web", "--no-open", "--host", "192.0.2.1")
    assert refused.returncode == 2
    assert "--host 192.0.2.1" in refused.stderr
    assert "Traceback" not in refused.stderr


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads how Linux treats a process's signals")
def test_a_browser_that_leaves_in_the_middle_of_an_answer_does_not_end_the_server(start: Callable[..., Page]) -> None:
    """A second write to a connection that is gone is a SIGPIPE; the moment in which it happens is hard to meet."""
    status = Path(f"/proc/{start('--port', '0').process.pid}/status").read_text()
    ignored = int(re.findall(r"SigIgn:\s+([0-9a-f]+)", status)[0], 16)
    assert ignored & 1 << (signal.SIGPIPE - 1)
