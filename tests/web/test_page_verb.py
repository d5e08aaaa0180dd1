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

from tokonomics.addresses import listening
from tokonomics.web.serve import Connection
from tokonomics.web.uploads import sweep

Command = Callable[..., subprocess.CompletedProcess[str]]


def heed_signals() -> None:
    """Undo what ``nohup`` and a shell's ``&`` leave to their children: that SIGHUP and SIGINT are ignored."""
    for ignored in (signal.SIGHUP, signal.SIGINT):
        signal.signal(ignored, signal.SIG_DFL)


class Page:
    """A running ``tokonomics web``."""

    def __init__(self, tmp_path: Path, *flags: str, **environment: str) -> None:
        self.left = tmp_path / "left"
        self.left.mkdir()
        command = [sys.executable, "-m", "tokonomics", "web", "--no-open", *flags]
        env = {**os.environ, "TMPDIR": str(self.left), "PYTHONUNBUFFERED": "1", **environment}
        self.process = subprocess.Popen(
            command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, preexec_fn=heed_signals
        )
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
    assert page.address.startswith("http://127.0.0.1:")
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


def test_a_connection_that_says_nothing_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tokonomics.web.serve.SILENT_S", 0.05)

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


def asked(page: Page, token: str = "") -> int:
    port = page.address.rstrip("/").rpartition(":")[2]
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/api/v1/verbs", headers={"authorization": f"Bearer {token}"}
    )
    try:
        with urllib.request.urlopen(request, timeout=600) as reply:
            return int(reply.status)
    except urllib.error.HTTPError as refused:
        refused.close()
        return refused.code


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_elsewhere_it_answers_who_has_the_token_whatever_others_do_and_leaves_nothing_behind(
    start: Callable[..., Page],
) -> None:
    """The token is without the line end that a file adds."""
    page = start("--port", "0", "--host", "0.0.0.0", TOKONOMICS_TOKEN="a-token-of-some-length \n")
    port = int(page.address.rstrip("/").rpartition(":")[2])
    with ExitStack() as silent:
        for _ in range(450):
            silent.enter_context(socket.create_connection(("127.0.0.1", port), timeout=600))
        assert (asked(page), asked(page, "a-token-of-some-length")) == (401, 200)
    # A second write to a browser that is gone is a SIGPIPE; the moment in which it happens is hard to meet.
    status = Path(f"/proc/{page.process.pid}/status").read_text()
    ignored = int(re.findall(r"SigIgn:\s+([0-9a-f]+)", status)[0], 16)
    assert ignored & 1 << (signal.SIGPIPE - 1)
    code, said = page.ended()
    assert "Traceback" not in said
    assert code in (0, 130, -signal.SIGINT)
    assert list(page.left.iterdir()) == []


def test_elsewhere_it_makes_a_token_where_none_is_given(monkeypatch: pytest.MonkeyPatch, tokonomics: Command) -> None:
    monkeypatch.setattr("tokonomics.web.serve._serve", lambda app, bound: bound.close())
    monkeypatch.setattr("tokonomics.web.serve._end_tidily", lambda: None)
    said = tokonomics("web", "--no-open", "--port=0", "--host=0.0.0.0").stdout
    assert re.search(r"token: \S{40,}", said)


def test_a_taken_port_gives_way_to_the_next() -> None:
    with listening("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with listening("127.0.0.1", port, 20) as made:
            assert port < made.getsockname()[1] < port + 20


def test_a_short_token_and_an_address_of_another_machine_are_refused(tokonomics: Command) -> None:
    for flags, token, where in (((), "short", "TOKONOMICS_TOKEN"), (("--host", "192.0.2.1"), "x" * 16, "--host")):
        refused = tokonomics("web", "--no-open", *flags, env={"TOKONOMICS_TOKEN": token})
        assert refused.returncode == 2
        assert where in refused.stderr
