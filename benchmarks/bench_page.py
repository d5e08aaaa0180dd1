"""How quick the page is: from a slider's move to the numbers, and from the start of the server to the first plan.

Starts ``tokonomics web`` as a user does and asks over HTTP what each view asks while a slider moves, one value after
the other, no value twice: the figures of ``plan``, ``compare``, ``curve`` and ``breakeven`` by their closed forms. The
charts of the same answers are asked for afterwards, as the page does. Times are of the whole request, on one kept
connection; what the browser takes to draw comes on top. Targets are of an idle machine with two cores.

    python benchmarks/bench_page.py --moves 20
"""

import argparse
import http.client
import json
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

SLO = "ttft_p99=1000ms,tpot_p99=50ms"
TRAFFIC = {"input": "1000", "output": "300", "slo": SLO}
FIRST_PLAN_S = 3.0


@dataclass(frozen=True)
class View:
    """A view of the page: what it asks for at a place of its slider, 0 to 1, and how soon it should be answered."""

    name: str
    verb: str
    inputs: Callable[[float], dict[str, Any]]
    target_ms: float


def rate(place: float) -> str:
    """Of the slider, which is logarithmic."""
    return f"{0.5 * 100**place:.3g}"


VIEWS = (
    View("Batching", "curve", lambda place: {
        "model": "llama-3.1-8b", "gpu": "H100-SXM", "tp": 1, "kv": "bf16", "engine": "vllm",
        "context": str(round(256 * 128**place))}, 100),
    View("Plan", "plan", lambda place: {
        "model": ["llama-3.1-8b"], **TRAFFIC, "rate": rate(place), "quick": True}, 250),
    View("Right-size", "compare", lambda place: {
        "model": ["llama-3.1-8b"], **TRAFFIC, "rate": rate(place), "engine": ["vllm"]}, 400),
    View("Own or API", "breakeven", lambda place: {
        "model": "llama-3.1-8b", **TRAFFIC, "input": str(round(200 * 40**place)), "quick": True}, 800),
)  # fmt: skip


@contextmanager
def served() -> Iterator[tuple[str, int]]:
    """A server of our own: its host and port."""
    command = [sys.executable, "-m", "tokonomics", "web", "--port", "0", "--no-open"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        found = re.search(r"http://([^:/]+):(\d+)", server.stdout.readline())
        assert found
        try:
            yield found[1], int(found[2])
        finally:
            server.terminate()


def asked(line: http.client.HTTPConnection, view: View, place: float, part: str) -> tuple[float, int]:
    """Milliseconds until that part of an answer was there, and its bytes."""
    began = time.perf_counter()
    body = json.dumps(view.inputs(place))
    line.request("POST", f"/api/v1/answers/{view.verb}?part={part}", body, {"content-type": "application/json"})
    reply = line.getresponse()
    content = reply.read()
    assert reply.status == 200, content.decode()
    return (time.perf_counter() - began) * 1e3, len(content)


def moved(line: http.client.HTTPConnection, view: View, moves: int) -> str:
    """A line of the table."""
    asked(line, view, 1.0, "sections")  # whatever the view loads is loaded
    places = [(move * 7 % moves) / moves for move in range(moves)]  # to and fro
    figures = [asked(line, view, place, "sections") for place in places]
    charts = [asked(line, view, place, "charts") for place in places[-3:]]
    times = sorted(ms for ms, _ in figures)
    median, slow = statistics.median(times), times[int(0.9 * (len(times) - 1))]
    sent = statistics.median(size for _, size in figures)
    drawn = statistics.median(ms for ms, _ in charts)
    shown = f"{view.name:<12}{median:>8.0f} ms{slow:>8.0f} ms{view.target_ms:>8.0f} ms{median / view.target_ms:>8.2f}"
    return f"{shown}{sent / 1e3:>9.1f} kB{drawn:>8.0f} ms"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--moves", type=int, default=20)
    moves = parser.parse_args().moves
    began = time.perf_counter()
    with served() as (host, port):
        line = http.client.HTTPConnection(host, port, timeout=300)
        default = View("", "plan", lambda place: {"model": ["llama-3.1-8b"], **TRAFFIC, "rate": "5", "quick": True}, 0)
        asked(line, default, 0.0, "sections")
        first_s = time.perf_counter() - began
        print(f"start to first plan: {first_s:.2f} s (target {FIRST_PLAN_S:g} s, {first_s / FIRST_PLAN_S:.2f} of it)")
        for path in ("/api/v1/catalog", "/api/v1/catalog/apis"):
            line.request("GET", path)
            print(f"{path}: {len(line.getresponse().read()) / 1e3:.1f} kB")
        print(f"{'':<12}{'median':>11}{'p90':>11}{'target':>11}{'ratio':>8}{'sent':>12}{'charts':>11}")
        for view in VIEWS:
            print(moved(line, view, moves), flush=True)


if __name__ == "__main__":
    main()
