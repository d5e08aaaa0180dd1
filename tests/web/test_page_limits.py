"""What one client may take of the page at a time, and that many visitors leave nothing behind in it.

With the other tests of the page, every limit that docs/web.md names is attacked.
"""

import asyncio
import re
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from starlette.testclient import TestClient
from tests.web.visitors import soaked_page

from tokonomics.guarded.worker import guarded_pool
from tokonomics.web import safety
from tokonomics.web.app import make_app
from tokonomics.web.safety import Gate
from tokonomics.web.serve import MOST, MOST_OF_ONE, Connection
from tokonomics.web.service import Settings
from tokonomics.workers import Task

ADDRESS = "http://127.0.0.1:8321"
LONG_ENOUGH_S = 60
CURVE = {"model": "llama-3.1-8b", "gpu": "H100"}
JOB = {"verb": "simulate", "inputs": {**CURVE, "arrivals": "poisson:2", "requests": 200}}


@pytest.fixture
def idle() -> Iterator[Gate]:
    """A page without workers: whatever is asked waits, of each kind 14."""
    made = make_app(Settings(quick_workers=0, long_workers=0, waiting=14, warm_up=False))
    yield made
    made.service.close()


def client(page: Gate, address: str) -> TestClient:
    return TestClient(page, base_url=ADDRESS, raise_server_exceptions=False, client=(address, 1))


def wait_with(page: Gate, address: str, requests: int) -> list[threading.Thread]:
    """So many quick requests of a client that wait for a worker."""

    def ask(context: int) -> None:
        client(page, address).post("/api/v1/answers/curve", json={**CURVE, "context": 1000 + context})

    asked = [threading.Thread(target=ask, args=(number,)) for number in range(requests)]
    for thread in asked:
        thread.start()
    while page.service._asking[address] < requests:
        time.sleep(0.001)
    return asked


def test_one_client_has_twelve_requests_at_a_time_and_all_have_as_many_as_the_queue(idle: Gate) -> None:
    greedy, modest, third = "198.51.100.1", "198.51.100.2", "198.51.100.3"
    waiting = wait_with(idle, greedy, 12)
    refused = client(idle, greedy).post("/api/v1/answers/curve", json=CURVE)
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "2")
    assert refused.json()["error"]["what"] == "you have 12 requests waiting"
    waiting += wait_with(idle, modest, 2)
    full = client(idle, third).post("/api/v1/answers/curve", json=CURVE)
    assert (full.status_code, full.headers["retry-after"]) == (503, "5")
    idle.service.close()
    for thread in waiting:
        thread.join()
    assert idle.service._asking == {}, "who was turned away is not counted any more"


def test_one_client_has_four_jobs_at_a_time(idle: Gate) -> None:
    greedy, modest = client(idle, "198.51.100.1"), client(idle, "198.51.100.2")
    started = [greedy.post("/api/v1/jobs", json=JOB) for _ in range(5)]
    assert [reply.status_code for reply in started[:4]] == [202] * 4
    assert (started[4].status_code, started[4].headers["retry-after"]) == (429, "2")
    assert modest.post("/api/v1/jobs", json=JOB).status_code == 202
    assert greedy.delete(f"/api/v1/jobs/{started[0].json()['id']}").status_code == 204
    assert greedy.post("/api/v1/jobs", json=JOB).status_code == 202


def test_jobs_that_ended_leave_no_thread_behind(idle: Gate) -> None:
    """Started and cancelled over and over: what would stop an abandoned one goes, and its place in the queue."""
    visitor, before = client(idle, "198.51.100.1"), threading.active_count()
    for _ in range(30):
        job = visitor.post("/api/v1/jobs", json=JOB).json()["id"]
        assert visitor.delete(f"/api/v1/jobs/{job}").status_code == 204
    assert threading.active_count() <= before + 5


def test_a_session_ends_after_twelve_hours(monkeypatch: pytest.MonkeyPatch) -> None:
    token, now = "a-token-of-sixteen", time.monotonic()
    page = make_app(Settings(token=token, quick_workers=0, long_workers=0))
    try:
        visitor = TestClient(page, base_url=ADDRESS, follow_redirects=False)
        visitor.post("/login", data={"token": token})
        session = visitor.cookies[safety.COOKIE]

        def status(hours: float) -> int:
            monkeypatch.setattr("tokonomics.web.safety.time.monotonic", lambda: now + hours * 3600)
            cookie = {"cookie": f"{safety.COOKIE}={session}"}
            return TestClient(page, base_url=ADDRESS).get("/api/v1/verbs", headers=cookie).status_code

        assert (status(11.9), status(12.1)) == (200, 401)
    finally:
        monkeypatch.undo()
        page.service.close()


def test_a_worker_that_keeps_most_of_its_memory_is_replaced(tmp_path: Path) -> None:
    pool = guarded_pool(1, 2, tmp_path, 400_000_000, begin="tests.web.told_worker:begin")

    def pid(what: str) -> int:
        task = Task({"what": what}, LONG_ENOUGH_S)
        pool.submit(task)
        found = re.search(rb'"pid":\s*(\d+)', task.done.result(LONG_ENOUGH_S))
        assert found
        return int(found[1])

    try:
        first = pid("answer")
        assert pid("keep a little") == first
        assert pid("keep most") == first
        assert pid("answer") != first
    finally:
        pool.close()


@pytest.mark.explore
def test_fifty_visitors_leave_nothing_behind(tmp_path: Path) -> None:
    """For a minute; ``benchmarks/soak_page.py`` does it for ten."""
    found = soaked_page(tmp_path, sessions=50, seconds=60.0)
    assert found.replies["200"] > 0
    assert found.wrong == ()


# --- one address may hold so many connections: those it works for stay, those that keep it waiting give way ----------


HOST = "127.0.0.1"
SLOW_UPLOAD = b"POST /api/v1/uploads?name=x.csv HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 99\r\n\r\nx"
SLOW_QUESTION = (
    b"POST /api/v1/answers/curve HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    b"Content-Length: 99\r\n\r\n{"
)
PLAIN = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
Line = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Served:
    """An application behind the page's own connections, on a port of its own."""

    def __init__(self, port: int, state: uvicorn.server.ServerState) -> None:
        self.port, self.state = port, state
        self.lines: list[Line] = []

    async def say(self, said: bytes) -> Line:
        line = await asyncio.open_connection(HOST, self.port)
        line[1].write(said)
        self.lines.append(line)
        return line

    async def until_all_began(self, number: int) -> None:
        """Waits, for as long as it takes, until the server has so many connections, a request begun on each."""

        def began() -> list[bool]:
            return [isinstance(one, Connection) and one.cycle is not None for one in self.state.connections]

        while began() != [True] * number:
            await asyncio.sleep(0.001)


@asynccontextmanager
async def served(app: Any) -> AsyncIterator[Served]:
    config = uvicorn.Config(app, http=Connection, lifespan="off", log_level="warning", limit_concurrency=MOST)
    config.load()
    state = uvicorn.server.ServerState()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Connection(config, state, {}), HOST, 0)
    made = Served(server.sockets[0].getsockname()[1], state)
    try:
        yield made
    finally:
        for _, writer in made.lines:
            writer.transport.abort()
        server.close()
        await asyncio.gather(*state.tasks)


@pytest.mark.parametrize(
    ("held", "said"),
    [(MOST_OF_ONE, SLOW_QUESTION), (MOST_OF_ONE, SLOW_UPLOAD), (450, SLOW_UPLOAD)],
    ids=["64 questions", "64 uploads", "450 uploads"],
)
def test_slow_bodies_shut_nobody_out(gate: Gate, capfd: pytest.CaptureFixture[str], held: int, said: bytes) -> None:
    async def asked() -> tuple[bytes, list[bool]]:
        async with served(gate) as page:
            for number in range(1, held + 1):
                await page.say(said)
                await page.until_all_began(min(number, MOST_OF_ONE))
            reader, _ = await page.say(PLAIN)
            reply = await reader.read()
            return reply, [reader.at_eof() or reader.exception() is not None for reader, _ in page.lines[:-1]]

    reply, gave_way = asyncio.run(asked())
    assert reply.startswith(b"HTTP/1.1 200"), reply[:200]
    first = held + 1 - MOST_OF_ONE
    assert gave_way == [True] * first + [False] * (held - first), "the one that is waited for longest gives way"
    assert "Traceback" not in "".join(capfd.readouterr()), "a body that breaks off is no fault of ours"


def test_what_is_worked_for_does_not_give_way() -> None:
    done = asyncio.Event()

    async def app(scope: Any, receive: Callable[[], Awaitable[Any]], send: Callable[[Any], Awaitable[None]]) -> None:
        await receive()
        await done.wait()
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body"})

    async def asked() -> tuple[bytes, list[bytes]]:
        async with served(app) as page:
            for _ in range(MOST_OF_ONE):
                await page.say(PLAIN)
            await page.until_all_began(MOST_OF_ONE)
            reader, _ = await page.say(PLAIN)
            try:
                one_more = await reader.read()
            except ConnectionResetError:
                one_more = b""
            done.set()
            return one_more, [await reader.read() for reader, _ in page.lines[:-1]]

    one_more, replies = asyncio.run(asked())
    assert one_more == b""
    assert all(reply.startswith(b"HTTP/1.1 204") for reply in replies)
