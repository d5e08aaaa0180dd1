"""What one client may take of the page at a time, and that many visitors leave nothing behind in it.

With the other tests of the page, every limit that docs/web.md names is attacked.
"""

import asyncio
import os
import random
import re
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import aiohttp
import pytest
from starlette.testclient import TestClient
from tests.web.browser import LEDGER

from tokonomics.guarded.worker import guarded_pool
from tokonomics.web import safety
from tokonomics.web.app import make_app
from tokonomics.web.safety import Gate
from tokonomics.web.service import Settings
from tokonomics.workers import Task

ADDRESS = "http://127.0.0.1:8321"
LONG_ENOUGH_S = 60
MOST_THREADS = 32 + 40 + 20
"""One for each file that is kept, those that answer requests (anyio's 40), and those of the page itself."""
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


@contextmanager
def server(home: Path) -> Iterator[tuple[str, int]]:
    """A page as a process: its address and number."""
    command = [sys.executable, str(Path(__file__).with_name("served_page.py")), str(LEDGER)]
    with subprocess.Popen(command, env={**os.environ, "HOME": str(home)}, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        assert address.startswith("http://127.0.0.1:")
        try:
            yield address, process.pid
        finally:
            process.terminate()


def held(pid: int) -> dict[str, int]:
    """What a process and its workers hold: open files, threads, workers, and memory in MB."""
    tree = Path(f"/proc/{pid}")
    workers = [child for task in tree.glob("task/*/children") for child in task.read_text().split()]
    status = (tree / "status").read_text()
    resident = re.search(r"VmRSS:\s*(\d+)", status)
    assert resident
    return {
        "files": len(list((tree / "fd").iterdir())),
        "threads": len(list((tree / "task").iterdir())),
        "workers": len(workers),
        "mb": int(resident[1]) // 1000,
    }


async def visit(address: str, number: int, until: float, seen: Counter[int]) -> None:
    """A visitor from an address of his own, who asks, uploads, starts jobs, watches, cancels and leaves halfway."""
    dice = random.Random(number)
    connector = aiohttp.TCPConnector(local_addr=(f"127.0.1.{number + 1}", 0))
    headers = {"Origin": address.rstrip("/")}
    async with aiohttp.ClientSession(address, connector=connector, headers=headers) as session:

        async def ask(method: str, path: str, **given: object) -> bytes:
            async with session.request(method, path, **given) as reply:  # type: ignore[arg-type]
                seen[reply.status] += 1
                return await reply.read()

        while time.monotonic() < until:
            what = dice.randrange(6)
            try:
                if what == 0:
                    await ask("GET", "/")
                    await ask("GET", "/api/v1/catalog")
                elif what == 1:
                    # A few hundred different questions: no more than so many answers are remembered.
                    await ask("POST", "/api/v1/answers/curve", json={**CURVE, "context": dice.randrange(500, 4000)})
                elif what == 2:
                    kept = await ask("POST", "/api/v1/uploads?name=log.csv", data=b"at,input,output\n0,5,6\n" * 50)
                    if (found := re.search(rb'"id":\s*"([^"]+)"', kept)) and dice.random() < 0.5:
                        await ask("DELETE", f"/api/v1/uploads/{found[1].decode()}")
                elif what == 3:
                    job = await ask("POST", "/api/v1/jobs", json=JOB)
                    if found := re.search(rb'"id":\s*"([^"]+)"', job):
                        path = f"/api/v1/jobs/{found[1].decode()}"
                        await (ask("DELETE", path) if dice.random() < 0.5 else ask("GET", f"{path}/events"))
                elif what == 4:
                    leaving = aiohttp.ClientTimeout(total=0.05)
                    await ask("POST", "/api/v1/answers/curve", json={**CURVE, "context": number}, timeout=leaving)
                else:
                    await ask("GET", "/api/v1/meter/events", timeout=aiohttp.ClientTimeout(total=0.5))
            except (TimeoutError, aiohttp.ClientError):
                seen[0] += 1
            await asyncio.sleep(dice.random() * 0.5)


def visited(address: str, pid: int, sessions: int, seconds: float) -> tuple[dict[str, int], Counter[int]]:
    """What the page holds when all have left, and the replies that they got."""
    seen: Counter[int] = Counter()

    async def all_of_them() -> None:
        until = time.monotonic() + seconds
        await asyncio.gather(*(visit(address, number, until, seen) for number in range(sessions)))

    asyncio.run(all_of_them())
    lowest = held(pid)
    for _ in range(600):  # connections and jobs that nobody watches go by themselves, after a minute
        now = held(pid)
        lowest = {name: min(lowest[name], count) for name, count in now.items() if name != "mb"} | {"mb": now["mb"]}
        if lowest["files"] <= 40:
            break
        time.sleep(0.2)
    return lowest, seen


def judged(home: Path, sessions: int, seconds: float) -> None:
    """The second half of the visitors may leave no more behind than the first."""
    with server(home) as (address, pid):
        before, _ = visited(address, pid, sessions, seconds / 2)
        after, seen = visited(address, pid, sessions, seconds / 2)
        print(f"before {before}, after {after}, replies {dict(seen)}")  # noqa: T201
        assert seen[200] > 0
        assert not [status for status in seen if status >= 500 and status != 503]
        assert after["workers"] == before["workers"] == 2
        assert after["files"] <= before["files"] + 4
        assert after["threads"] <= MOST_THREADS
        assert after["mb"] < 1.2 * before["mb"] + 30, "no more than answers and files that are kept for a while"


@pytest.mark.explore
def test_fifty_visitors_leave_nothing_behind(tmp_path: Path) -> None:
    """For a minute; PAGE_SOAK_S=600 for ten."""
    judged(tmp_path, 50, float(os.environ.get("PAGE_SOAK_S", "60")))
