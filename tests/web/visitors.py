"""Many visitors of one page: what it holds before they come, when half of them have left and when all have."""

import asyncio
import os
import random
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
from tests.web.browser import LEDGER

MOST_THREADS = 32 + 40 + 20
"""One for each file that is kept, those that answer requests (anyio's 40), and those of the page itself."""
MOST_FILES = 40
"""Of a page that nobody visits: its own, its workers' and those of libraries."""
LEAVING_S = 120.0
"""Connections and jobs that nobody watches go by themselves, after a minute."""
CURVE = {"model": "llama-3.1-8b", "gpu": "H100"}
JOB = {"verb": "simulate", "inputs": {**CURVE, "arrivals": "poisson:2", "requests": 200}}


@dataclass(frozen=True)
class Held:
    """What a page and its workers hold."""

    files: int
    threads: int
    workers: int
    page_mb: int
    workers_mb: int


@dataclass(frozen=True)
class PageSoak:
    """What became of a page that was visited, and what is wrong with it."""

    sessions: int
    seconds: float
    replies: dict[str, int]  # by status; "0" where the visitor left before
    at_first: Held
    at_half: Held
    at_last: Held
    wrong: tuple[str, ...]


def soaked_page(home: Path, sessions: int, seconds: float) -> PageSoak:
    """The second half of the visitors may leave no more behind than the first."""
    with _server(home) as (address, pid):
        at_first = _left(pid)
        at_half, seen = _visited(address, pid, sessions, seconds / 2)
        at_last, more = _visited(address, pid, sessions, seconds / 2)
    replies = seen + more
    rules = {
        "a fault of the page's own": all(status < 500 or status == 503 for status in replies),
        "workers that are gone or too many": at_last.workers == at_half.workers == 2,
        "files that stay open": at_last.files <= at_half.files + 4,
        "threads that stay": at_last.threads <= MOST_THREADS,
        # Answers and uploads are kept for a while.
        "memory that grows": at_last.page_mb < 1.2 * at_half.page_mb + 30,
        "memory of workers that grows": at_last.workers_mb < 1.2 * at_half.workers_mb + 30,
    }
    wrong = tuple(what for what, holds in rules.items() if not holds)
    by_status = {str(status): count for status, count in sorted(replies.items())}
    return PageSoak(sessions, seconds, by_status, at_first, at_half, at_last, wrong)


@contextmanager
def _server(home: Path) -> Iterator[tuple[str, int]]:
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


def held(pid: int) -> Held:
    """What a process and its workers hold now."""
    tree = Path(f"/proc/{pid}")
    workers = [int(child) for task in tree.glob("task/*/children") for child in task.read_text().split()]
    return Held(
        files=len(list((tree / "fd").iterdir())),
        threads=len(list((tree / "task").iterdir())),
        workers=len(workers),
        page_mb=_resident_mb(pid),
        workers_mb=sum(map(_resident_mb, workers)),
    )


def _resident_mb(pid: int) -> int:
    """0 of a process that has just ended."""
    try:
        resident = re.search(r"VmRSS:\s*(\d+)", Path(f"/proc/{pid}/status").read_text())
    except OSError:
        return 0
    return int(resident[1]) // 1000 if resident else 0


async def _visit(address: str, number: int, until: float, seen: Counter[int]) -> None:
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


def _visited(address: str, pid: int, sessions: int, seconds: float) -> tuple[Held, Counter[int]]:
    """What the page holds when all have left, and the replies that they got."""
    seen: Counter[int] = Counter()

    async def all_of_them() -> None:
        until = time.monotonic() + seconds
        await asyncio.gather(*(_visit(address, number, until, seen) for number in range(sessions)))

    asyncio.run(all_of_them())
    return _left(pid), seen


def _left(pid: int) -> Held:
    """What the page holds once its workers are there and visitors' connections are not, or after a while anyway."""
    until = time.monotonic() + LEAVING_S
    while (left := held(pid)).files > MOST_FILES or left.workers < 2:
        if time.monotonic() > until:
            break
        time.sleep(0.2)
    return left
