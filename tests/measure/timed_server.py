"""A server whose latencies are known: each answer's first token after TTFT, the others TPOT apart.

    python tests/measure/timed_server.py TTFT_S TPOT_S TOKENS

Prints its port. It times what it really sent, since it may be late itself: ``GET /figures`` answers the middle and the
99th percentile of the answers since it was last asked. The first text of each says when the request was read and when
that text was sent, by a clock that all processes of a machine share (``stamps``). The end of an answer, which is no
token, comes up to half an answer later, so that streams do not stay in step.
"""

import asyncio
import json
import random
import resource
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

_CHUNK = '{"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[%s]%s}'
_TEXT = '{"index":0,"delta":{"content":"%s"},"finish_reason":null}'
_WORD = _TEXT % " word"


def _http_chunk(document: str) -> bytes:
    body = f"data: {document}\n\n".encode()
    return b"%x\r\n%s\r\n" % (len(body), body)


class TimedSender(asyncio.Protocol):
    """One connection; what all of them sent is kept with the class."""

    ttft_s, tpot_s, tokens = 0.2, 0.05, 16
    ttfts_s: ClassVar[list[float]] = []
    tpots_s: ClassVar[list[float]] = []
    at_once, most_at_once = 0, 0
    dice = random.Random(0)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport, self.kept, self.loop = transport, b"", asyncio.get_running_loop()

    def data_received(self, data: bytes) -> None:
        self.kept += data
        head, found, body = self.kept.partition(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0] or 0) if found else 1
        if not found or len(body) < length:
            return
        self.kept = b""
        if head.startswith(b"GET /figures"):
            self._tell(json.dumps(self._figures()))
        elif head.startswith(b"GET"):
            self._tell(json.dumps({"data": [{"id": "m"}]}))
        else:
            asked = json.loads(body)
            tokens = min(self.tokens, int(asked["max_tokens"]))
            words = len(asked["messages"][0]["content"].split())
            TimedSender.at_once += 1
            TimedSender.most_at_once = max(self.most_at_once, self.at_once)
            now = self.loop.time()
            due = now + self.ttft_s
            self.loop.call_at(due, self._first, now, due, tokens, words)

    def _first(self, asked: float, due: float, tokens: int, words: int) -> None:
        now = self.loop.time()
        self.transport.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
            + _http_chunk(_CHUNK % (_TEXT % f"{asked!r} {now!r}", ""))
        )
        self.ttfts_s.append(now - asked)
        self._next(now, due, 1, tokens, words)

    def _next(self, first: float, due: float, sent: int, tokens: int, words: int) -> None:
        if sent > 1:
            self.transport.write(_http_chunk(_CHUNK % (_WORD, "")))
        if sent < tokens:
            due += self.tpot_s
            self.loop.call_at(due, self._next, first, due, sent + 1, tokens, words)
            return
        if tokens > 1:
            self.tpots_s.append((self.loop.time() - first) / (tokens - 1))
        answer_s = self.ttft_s + self.tpot_s * tokens
        self.loop.call_later(self.dice.uniform(0.0, 0.5) * answer_s, self._end, tokens, words)

    def _end(self, tokens: int, words: int) -> None:
        TimedSender.at_once -= 1
        usage = f',"usage":{{"prompt_tokens":{words + 7},"completion_tokens":{tokens}}}'
        self.transport.write(_http_chunk(_CHUNK % ("", usage)) + _http_chunk("[DONE]") + b"0\r\n\r\n")

    def _figures(self) -> dict[str, float]:
        found = {"most_at_once": float(self.most_at_once)}
        for name, values in (("ttft", self.ttfts_s), ("tpot", self.tpots_s)):
            ranked = sorted(values) or [0.0]
            found |= {f"{name}_p{rank}": ranked[min(len(ranked) - 1, len(ranked) * rank // 100)] for rank in (50, 99)}
            values.clear()
        return found

    def _tell(self, text: str) -> None:
        head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(text)}\r\n\r\n"
        self.transport.write(head.encode() + text.encode())


async def serve(ttft_s: float, tpot_s: float, tokens: int) -> None:
    TimedSender.ttft_s, TimedSender.tpot_s, TimedSender.tokens = ttft_s, tpot_s, tokens
    server = await asyncio.get_running_loop().create_server(TimedSender, "127.0.0.1", 0, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)  # noqa: T201
    await server.serve_forever()


@contextmanager
def timed_server(ttft_s: float, tpot_s: float, tokens: int) -> Iterator[str]:
    """Its address, while it runs as another process."""
    command = [sys.executable, __file__, str(ttft_s), str(tpot_s), str(tokens)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None  # this file runs by itself: it imports nothing of ours
        try:
            yield f"http://127.0.0.1:{int(server.stdout.readline())}"
        finally:
            server.kill()


def stamps(text: str) -> tuple[float, float]:
    """When a request was read by the server and when its first text was sent, from the text."""
    read, sent = text.split()[:2]
    return float(read), float(sent)


def figures(address: str) -> dict[str, float]:
    """What the server really made, since it was last asked."""
    with urllib.request.urlopen(f"{address}/figures", timeout=60) as answer:
        return dict(json.loads(answer.read()))


if __name__ == "__main__":
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    asyncio.run(serve(float(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])))
