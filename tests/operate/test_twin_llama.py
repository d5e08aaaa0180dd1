"""A twin beside llama.cpp's own server, which is restarted with half the threads.

Machines that run tests are busy: by how much such a server is slower is the machine's doing as much as ours. So this
asks only whether the restart is noticed; slower kernels, other prompts and a neighbour are simulated (``test_twin``),
and were recorded on a GPU (``test_twin_h200``).
"""

import asyncio
import json
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.request import Request, urlopen

import pytest
from tests.measure.metered import HandSource, read_page

from tokonomics.addresses import listening
from tokonomics.measure.meter.ledger import Ledger
from tokonomics.measure.meter.live_meter import Meter, MeterSettings
from tokonomics.measure.meter.readings import Missed, Reading
from tokonomics.operate.learn import TwinWindow
from tokonomics.operate.twin import said_of
from tokonomics.questions.twin import LiveTwin

WINDOW_S, EVERY_S, QUIET = 3.0, 0.5, 3
CORES = os.cpu_count() or 1

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="llama.cpp is built for Linux here")]


class RealClock:
    def wall(self) -> float:
        return time.time()

    def steady(self) -> float:
        return time.monotonic()


@dataclass
class LlamaServer:
    """The server behind one address, and two users who ask it one request after another."""

    port: int
    process: "subprocess.Popen[bytes] | None" = None
    asks: bool = True
    users: list[threading.Thread] = field(default_factory=list)

    def start(self, *flags: str) -> None:
        command = [sys.executable, "-m", "tests.operate.llama_server", "--port", str(self.port), "--parallel", "2",
                   "--verbosity", "-1", "--layers", "4", "--width", "160", *flags]  # fmt: skip
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        until = time.monotonic() + 60
        while time.monotonic() < until:
            with suppress(OSError):
                urlopen(f"http://127.0.0.1:{self.port}/health", timeout=5).read()
                return
            time.sleep(0.1)
        raise AssertionError("llama.cpp did not start")

    def end(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def use(self) -> None:
        words = random.Random(0)
        while self.asks:
            prompt = " ".join(words.choices(("north", "south", "east", "west"), k=12))
            said = json.dumps({"prompt": prompt, "max_tokens": 24, "ignore_eos": True}).encode()
            with suppress(OSError):
                asked = Request(
                    f"http://127.0.0.1:{self.port}/v1/completions", said, {"Content-Type": "application/json"}
                )
                urlopen(asked, timeout=60).read()

    def page(self) -> Sequence[Reading]:
        try:
            text = urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=5).read().decode()
        except OSError:
            raise Missed("cannot be reached") from None
        return read_page(text, "http://llama", time.time(), {})


@contextmanager
def served() -> Iterator[LlamaServer]:
    bound = listening("127.0.0.1", 0)
    server = LlamaServer(bound.getsockname()[1])
    bound.close()
    server.start("--threads", str(CORES))
    server.users = [threading.Thread(target=server.use, daemon=True) for _ in range(2)]
    for user in server.users:
        user.start()
    try:
        yield server
    finally:
        server.asks = False
        server.end()


def test_a_restart_with_half_the_threads_is_noticed_though_llama_cpp_tells_no_start(tmp_path: Path) -> None:
    begun: list[float] = []

    async def watch(server: LlamaServer) -> None:
        with Ledger(tmp_path / "meter.db") as book:
            settings = MeterSettings(usd_per_hour=1.0, every_s=EVERY_S, window_s=WINDOW_S, in_buckets=True)
            meter = Meter([HandSource("http://llama", server.page)], book, RealClock(), settings)
            twin = LiveTwin(book, None, WINDOW_S, late_s=EVERY_S)

            async def windows(number: int) -> None:
                begun.append(time.time())
                while time.time() < begun[-1] + (number + 0.5) * WINDOW_S:
                    twin.beside(await meter.tick())
                    await asyncio.sleep(EVERY_S)

            await windows(QUIET)
            server.end()
            server.start("--threads", str(max(1, CORES // 2)))
            await windows(3)

    with served() as server:
        asyncio.run(watch(server))
    with Ledger(tmp_path / "meter.db", read_only=True) as book:
        said = [window for window in said_of(book, 0.0, 1e12) if window.is_over]
    quiet, restarted = begun
    assert "restart" not in causes([one for one in said if one.start < restarted - WINDOW_S])
    assert "restart" in causes([one for one in said if one.start > restarted - WINDOW_S])
    assert sum(one.figures["tokens_per_s"].measured or 0.0 for one in said if one.start > quiet) > 0


def causes(windows: Sequence[TwinWindow]) -> set[str]:
    return {change.cause for window in windows for change in window.changes}
