"""How fast the client of ``tokonomics bench`` is: streamed requests and tokens a second on one core.

    python benchmarks/bench_client.py

A server that does nothing but send a prepared answer runs as another process, so that the client is what is slow. Three
answers: 50 tokens glued together by the network, as they come from a busy server; the same with each token in a packet
of its own, which is the most work a token can be; and one token. Each token is an HTTP chunk of its own, as uvicorn
sends them. Where there are two cores, client and server have one each. Rates are per second of the clock and, because
other work may share the machine, per second of the client's processor time. Each case runs three times and the
fastest counts: what else runs can only slow it down.

Then what the client adds to latencies: streams at once from a server of known TTFT and TPOT (tests/measure/
timed_server.py), which times what it really sent. Off: the client's middle over the server's. To be run on a quiet
machine: how busy it was stands in the result.
"""

import asyncio
import gc
import json
import os
import platform
import subprocess
import sys
from datetime import date
from functools import partial
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

from tokonomics.addresses import target
from tokonomics.measure.bench.client import Client, LoopTurns, run_in_turns
from tokonomics.measure.bench.loads import Budget, LoadWindow, Stopping, closed_loop, one_request, point_of
from tokonomics.measure.bench.run import BenchSettings, run_bench
from tokonomics.measure.bench.sessions import BenchPrompts

RESULTS = Path(__file__).parent / "results" / "client.json"
sys.path.insert(0, str(Path(__file__).parents[1]))  # for the server of tests/measure
USERS, REQUESTS, PROMPT_WORDS, REPEATS = 64, 5000, 512, 3
CASES = {"50 tokens, glued": (50, False), "50 tokens, each in its own packet": (50, True), "1 token": (1, False)}
TARGETS = {"requests_per_s": 2_000, "tokens_per_s": 100_000}
STREAMS = {1: (0.2, 0.05, 16), 10: (0.2, 0.05, 16), 100: (0.2, 0.05, 16), 500: (0.2, 0.05, 16), 1000: (0.2, 0.05, 16),
           2000: (0.2, 0.05, 16), 10_000: (2.0, 1.0, 8)}  # fmt: skip
"""Streams at once: the server's TTFT, TPOT and tokens of an answer. 10,000 of a slow server, as such a fleet is."""
MOST_OFF, MOST_OFF_STREAMS = 0.02, 500
"""Latencies are to be within 2 % up to so many streams."""

_CHUNK = '{"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[%s]%s}'
_TEXT = '{"index":0,"delta":{"content":" word"},"finish_reason":null}'


def _http_chunk(document: str) -> bytes:
    body = f"data: {document}\n\n".encode()
    return b"%x\r\n%s\r\n" % (len(body), body)


class Sender(asyncio.Protocol):
    """Answers every request with the same stream, at once or a token at a turn of the loop."""

    tokens, apart = 1, False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport, self.kept = transport, b""
        usage = f',"usage":{{"prompt_tokens":512,"completion_tokens":{self.tokens}}}'
        self.head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
        self.token = _http_chunk(_CHUNK % (_TEXT, ""))
        self.tail = _http_chunk(_CHUNK % ("", usage)) + _http_chunk("[DONE]") + b"0\r\n\r\n"

    def data_received(self, data: bytes) -> None:
        self.kept += data
        head, found, body = self.kept.partition(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0] or 0) if found else 1
        if found and len(body) >= length:
            self.kept = b""
            if self.apart:
                self.transport.write(self.head)
                self.one_more(self.tokens)
            else:
                self.transport.write(self.head + self.token * self.tokens + self.tail)

    def one_more(self, left: int) -> None:
        """With a pause between tokens in which the others get theirs: no two of one answer share a packet."""
        self.transport.write(self.token)
        loop = asyncio.get_running_loop()
        if left > 1:
            loop.call_later(0.02, self.one_more, left - 1)
        else:
            loop.call_later(0.02, self.transport.write, self.tail)


async def serve(tokens: int, apart: bool) -> None:
    Sender.tokens, Sender.apart = tokens, apart
    server = await asyncio.get_running_loop().create_server(Sender, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


async def measure(port: int, tokens: int, apart: bool, turns: LoopTurns) -> dict[str, float]:
    """As ``bench`` does it: closed loop, every request timed, recorded and judged."""
    where = target(f"http://127.0.0.1:{port}")
    prompts = BenchPrompts(where, "m", 0)
    users = 8 * USERS if apart else USERS
    stopping = Stopping(Budget(precision=1e-9, requests=REQUESTS // 3 if apart else REQUESTS), users)
    window = LoadWindow(perf_counter())
    async with Client(where, 60, 0, turns) as client:
        cpu_s = process_time()
        work = one_request(client, lambda: prompts.of_words(PROMPT_WORDS, tokens))
        await closed_loop(client, users, work, stopping, lambda: 0.0, window)
        cpu_s = process_time() - cpu_s
    point = point_of(window, concurrency=users)
    assert point is not None
    assert point.failed == 0
    done = (point.completed or 0) + point.outside.requests
    return {
        "users": users,
        "requests_per_s": point.requests_per_s,
        "tokens_per_s": point.output_tokens_per_s,
        "requests_per_cpu_s": done / cpu_s,
        "tokens_per_cpu_s": done * tokens / cpu_s,
    }


def streamed(streams: int) -> dict[str, object]:
    """What the server made and what the client measured, at so many streams at once."""
    from tests.measure.timed_server import figures, timed_server

    ttft_s, tpot_s, tokens = STREAMS[streams]
    with timed_server(ttft_s, tpot_s, tokens) as address:
        # Two rounds beyond the first, in which all connect at once.
        budget = Budget(precision=1e-9, requests=max(60, 2 * streams), seconds=120)
        load = BenchSettings(
            target(address), users=[streams], input="const:64", output=f"const:{tokens}", budget=budget
        )
        cpu_s, began_s = process_time(), perf_counter()
        (point,) = run_bench(load).points
        core_share = (process_time() - cpu_s) / (perf_counter() - began_s)
        server = figures(address)
    assert point.ttft_s is not None
    assert point.tpot_s is not None
    own = next((note for note in point.notes if note.startswith("the client was busy")), "")
    return {
        "streams": streams,
        "at_once": int(server["most_at_once"]),
        "failed": point.failed,
        "core_share": core_share,
        "server_ttft_s": server["ttft_p50"],
        "client_ttft_s": point.ttft_s.p50,
        "server_tpot_s": server["tpot_p50"],
        "client_tpot_s": point.tpot_s.p50,
        "ttft_off": (point.ttft_s.p50 or 0.0) / server["ttft_p50"] - 1,
        "tpot_off": (point.tpot_s.p50 or 0.0) / server["tpot_p50"] - 1,
        "said": own,
    }


def latencies() -> list[dict[str, object]]:
    """A row for each number of streams, printed as they come."""
    times = "".join(f"{name:>10}{'read':>9}{'off':>8}" for name in ("TTFT ms", "TPOT ms"))
    print(f"{'streams':>8}{'failed':>8}{'core':>7}{times}")
    rows = []
    for streams in STREAMS:
        row: dict[str, Any] = streamed(streams)
        rows.append(row)
        ms = [row[f"{who}_{what}_s"] * 1e3 for what in ("ttft", "tpot") for who in ("server", "client")]
        print(
            f"{streams:>8,}{row['failed']:>8,}{row['core_share']:>7.0%}{ms[0]:>10.1f}{ms[1]:>9.1f}"
            f"{row['ttft_off']:>+8.1%}{ms[2]:>10.2f}{ms[3]:>9.2f}{row['tpot_off']:>+8.1%}  {row['said']}"
        )
    return rows


def pin(process: int, core: int) -> None:
    """Keep a process on one core, where the system can."""
    if hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(os.getppid()))
        os.sched_setaffinity(process, {cores[core % len(cores)]})


def main() -> None:
    gc.set_threshold(100_000, 20, 20)  # as the command does
    pin(0, 1)
    cases = {}
    for name, (tokens, apart) in CASES.items():
        command = [sys.executable, __file__, "--serve", str(tokens), str(int(apart))]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
            assert server.stdout is not None
            pin(server.pid, 0)
            try:
                port = int(server.stdout.readline())
                tries = [run_in_turns(partial(measure, port, tokens, apart)) for _ in range(REPEATS)]
            finally:
                server.kill()
        cases[name] = measured = max(tries, key=lambda each: each["requests_per_s"])
        print(
            f"{name:34} {measured['requests_per_s']:7,.0f} requests/s, {measured['tokens_per_s']:9,.0f} tokens/s; per "
            f"second of processor {measured['requests_per_cpu_s']:7,.0f} and {measured['tokens_per_cpu_s']:9,.0f}"
        )
    load_before = os.getloadavg()[0]
    rows = latencies()
    RESULTS.write_text(
        json.dumps(
            {
                "date": date.today().isoformat(),
                "machine": f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
                "command": "python benchmarks/bench_client.py",
                "prompt_words": PROMPT_WORDS,
                "targets": TARGETS,
                "cases": cases,
                "load_average": load_before,
                "most_off": MOST_OFF,
                "most_off_streams": MOST_OFF_STREAMS,
                "streams": rows,
            },
            indent=1,
        )
        + "\n",
        encoding="utf-8",
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        asyncio.run(serve(int(sys.argv[2]), sys.argv[3] == "1"))
    else:
        main()
