"""How fast the client of ``tokonomics bench`` is: streamed requests and tokens a second on one core.

    python benchmarks/bench_client.py

A server that does nothing but send a prepared answer runs as another process, so that the client is what is slow. Three
answers: 50 tokens glued together by the network, as they come from a busy server; the same with each token in a packet
of its own, which is the most work a token can be; and one token. Each token is an HTTP chunk of its own, as uvicorn
sends them. Where there are two cores, client and server have one each. Rates are per second of the clock and, because
other work may share the machine, per second of the client's processor time. Each case runs three times and the
fastest counts: what else runs can only slow it down.
"""

import asyncio
import gc
import json
import os
import platform
import subprocess
import sys
from datetime import date
from pathlib import Path
from time import perf_counter, process_time

from tokonomics.measure.addresses import target
from tokonomics.measure.bench.client import Client
from tokonomics.measure.bench.loads import Budget, LoadWindow, Stopping, closed_loop, point_of
from tokonomics.measure.bench.prompts import BenchPrompts

RESULTS = Path(__file__).parent / "results" / "client.json"
USERS, REQUESTS, PROMPT_WORDS, REPEATS = 64, 5000, 512, 3
CASES = {"50 tokens, glued": (50, False), "50 tokens, each in its own packet": (50, True), "1 token": (1, False)}
TARGETS = {"requests_per_s": 2_000, "tokens_per_s": 100_000}

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


async def measure(port: int, tokens: int, apart: bool) -> dict[str, float]:
    """As ``bench`` does it: closed loop, every request timed, recorded and judged."""
    where = target(f"http://127.0.0.1:{port}")
    prompts = BenchPrompts(where, "m", 0)
    users = 8 * USERS if apart else USERS
    stopping = Stopping(Budget(precision=1e-9, requests=REQUESTS // 3 if apart else REQUESTS), users)
    window = LoadWindow(perf_counter())
    async with Client(where, 60, 0) as client:
        cpu_s = process_time()
        await closed_loop(client, users, lambda: prompts.of_words(PROMPT_WORDS, tokens), stopping, lambda: 0.0, window)
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
                tries = [asyncio.run(measure(port, tokens, apart)) for _ in range(REPEATS)]
            finally:
                server.kill()
        cases[name] = measured = max(tries, key=lambda each: each["requests_per_s"])
        print(
            f"{name:34} {measured['requests_per_s']:7,.0f} requests/s, {measured['tokens_per_s']:9,.0f} tokens/s; per "
            f"second of processor {measured['requests_per_cpu_s']:7,.0f} and {measured['tokens_per_cpu_s']:9,.0f}"
        )
    RESULTS.write_text(
        json.dumps(
            {
                "date": date.today().isoformat(),
                "machine": f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
                "command": "python benchmarks/bench_client.py",
                "prompt_words": PROMPT_WORDS,
                "targets": TARGETS,
                "cases": cases,
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
