"""A server on loopback that streams answers as told, well or badly, and counts what it sent.

The first part of the path says how it behaves: ``http://127.0.0.1:PORT/cut/v1`` cuts every answer off. It runs in a
thread with its own event loop, since the client under test has one too.
"""

import asyncio
import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Any

from aiohttp import web
from tests.measure.served import served
from tests.there import there


class Loopback:
    """What it sent, and where it is."""

    def __init__(self) -> None:
        self.sent: Counter[str] = Counter()
        self.bodies: list[dict[str, Any]] = []
        self.talks: list[tuple[tuple[tuple[str, str], ...], str]] = []  # conversations, and what was answered
        self.seen: Counter[str] = Counter()
        self.came_s: list[float] = []
        self.address = ""
        self.stall_s = 0.4
        self.max_model_len: int | None = None
        self._stalled: asyncio.Event | None = None
        self._turn = asyncio.Lock()

    def url(self, behaviour: str) -> str:
        return f"{self.address}/{behaviour}/v1"

    async def answer(self, request: web.Request) -> web.StreamResponse:
        body = json.loads(await request.read())
        behaviour = request.match_info["behaviour"]
        self.bodies.append(body)
        self.seen[behaviour] += 1
        self.came_s.append(perf_counter())
        return await getattr(self, f"_{behaviour}")(request, body)  # type: ignore[no-any-return]

    async def _good(self, request: web.Request, body: dict[str, Any], pause_s: float = 0.0) -> web.StreamResponse:
        """A word is a token, the template adds 7; as many tokens come back as were asked for."""
        text = body["messages"][0]["content"] if "messages" in body else body["prompt"]
        counted, wanted = len(text.split()) + 7, int(body.get("max_tokens") or body["max_completion_tokens"])
        response = await self._start(request)
        for _ in range(wanted):
            if pause_s:
                await asyncio.sleep(pause_s)
            await response.write(chunk(content="x"))
        self.sent.update({"input": counted, "output": wanted, "requests": 1})
        return await self._end(response, counted, wanted, cached=5)

    async def _talks(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        """A word is a token of any message; found in the cache is the longest conversation that this one goes on."""
        said = tuple((message["role"], message["content"]) for message in body["messages"])
        known = [(*talk, ("assistant", answer)) for talk, answer in self.talks]
        goes_on = (talk for talk in known if said[: len(talk)] == talk)
        cached = max((sum(len(text.split()) for _, text in talk) for talk in goes_on), default=0)
        counted, wanted = sum(len(text.split()) for _, text in said), int(body["max_tokens"])
        answer = " ".join(f"w{len(self.talks)}" for _ in range(wanted))
        self.talks.append((said, answer))
        response = await self._start(request)
        await response.write(b"".join(chunk(content=f"{word} ") for word in answer.split()[:-1]))
        await response.write(chunk(content=answer.split()[-1]))
        self.sent.update({"input": counted, "output": wanted, "requests": 1, "cached": cached})
        return await self._end(response, counted, wanted, cached)

    async def _leaves(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        """Hangs up after the answer without having said so."""
        response = await self._good(request, body)
        there(request.transport).close()
        return response

    async def _slow(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        return await self._good(request, body, pause_s=0.005)

    async def _late(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        """Answers each after 0.4 s, however many wait."""
        if len(self.came_s) > 3:  # the client learns its counts from the first few
            await asyncio.sleep(0.4)
        return await self._good(request, body)

    async def _stalls(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        """From the tenth request on nobody is answered for a while; then all are."""
        if self.seen["stalls"] == 10:
            self._stalled = asyncio.Event()
            asyncio.get_running_loop().call_later(self.stall_s, self._stalled.set)
        if self._stalled is not None:
            await self._stalled.wait()
        return await self._good(request, body)

    async def _hangs(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        response = await self._start(request)
        await response.write(chunk(content="x"))
        await asyncio.sleep(60)
        return response

    async def _some_hang(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        """From the seventh on, each third request gets one word and then nothing for a minute."""
        stalls = self.seen["some_hang"] > 6 and self.seen["some_hang"] % 3 == 0
        return await (self._hangs if stalls else self._good)(request, body)

    async def _queues(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        """One at a time, 20 ms each: 50 a second and no more."""
        async with self._turn:
            await asyncio.sleep(0.02)
            return await self._good(request, body)

    async def _cut(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        response = await self._start(request)
        await response.write(chunk(content="x") * 3)
        there(request.transport).close()
        return response

    async def _fails(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        return web.json_response({"error": {"message": "out of memory"}}, status=500)

    async def _half(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        """Every other request fails, once it is known."""
        bad = self.seen["half"] > 2 and self.seen["half"] % 2
        return await (self._fails if bad else self._good)(request, body)

    async def _busy(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        """Refuses each first attempt."""
        if self.seen["busy"] % 2:
            return web.Response(status=503, text="try again")
        return await self._good(request, body)

    async def _html(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        return web.Response(text="<h1>Welcome to nginx!</h1>", content_type="text/html")

    async def _endless(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        response = await self._start(request)
        while True:
            await response.write(b"x" * 100_000)

    async def _odd(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        """Sends what is listed for its behaviour, whatever was asked."""
        response = await self._start(request)
        await response.write(ODD_BODIES[request.match_info["behaviour"]])
        return response

    _boasts = _stops = _garbage = _uncounted = _says = _odd

    async def _locked(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        """As some servers do, it repeats the key that it refuses."""
        return web.json_response({"error": f"bad key {request.headers.get('Authorization')}"}, status=401)

    async def _mutters(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        """Repeats the key where a line is cut that is shown."""
        return web.Response(status=401, text=f"{'not you, ' * 9}{request.headers['Authorization']} is nobody's key")

    async def _gossips(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        """Repeats the key at the end of a long line, in pieces that arrive one after the other."""
        key = request.headers["Authorization"].removeprefix("Bearer ")
        response = web.StreamResponse(status=401)
        response.enable_chunked_encoding()
        await response.prepare(request)
        for piece in ("you are not welcome here: " * 4, key[:30], key[30:], " is nobody's key"):
            await response.write(piece.encode())
            await asyncio.sleep(0.01)
        return response

    async def _strict(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        """Takes only what the standard of today names."""
        for name in ("ignore_eos", "max_tokens"):
            if name in body:
                instead = " Use max_completion_tokens." if name == "max_tokens" else ""
                return web.json_response({"error": {"message": f"unknown {name}.{instead}"}}, status=400)
        return await self._good(request, body)

    async def _start(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        response.enable_chunked_encoding()
        await response.prepare(request)
        return response

    async def _end(self, response: web.StreamResponse, counted: int, wanted: int, cached: int) -> web.StreamResponse:
        details = {"prompt_tokens_details": {"cached_tokens": cached}}
        usage = {"prompt_tokens": counted, "completion_tokens": wanted, **details}
        await response.write(chunk(finish="length") + chunk(usage=usage) + b"data: [DONE]\n\n")
        await response.write_eof()
        return response

    async def models(self, request: web.Request) -> web.Response:
        names = {"two": ["first", "second"], "html": []}.get(request.match_info["behaviour"], ["tiny"])
        limit = {} if self.max_model_len is None else {"max_model_len": self.max_model_len}
        return web.json_response({"object": "list", "data": [{"id": name, **limit} for name in names]})


def chunk(content: str | None = None, finish: str | None = None, usage: dict[str, Any] | None = None) -> bytes:
    """A line of a chat stream, as vLLM writes it."""
    delta = {"content": content} if content is not None else {}
    choices = [] if usage else [{"index": 0, "delta": delta, "finish_reason": finish}]
    document: dict[str, Any] = {"id": "c", "object": "chat.completion.chunk", "choices": choices}
    return (
        b"data: " + json.dumps(document | ({"usage": usage} if usage else {}), separators=(",", ":")).encode() + b"\n\n"
    )


ODD_BODIES = {
    "boasts": chunk(content="x", finish="length") + chunk(usage={"prompt_tokens": 50, "completion_tokens": 2000}),
    "stops": chunk(content="x") * 3,
    "garbage": b"data: {]\n\n",
    "uncounted": chunk(content="x") + chunk(finish="stop") + b"data: [DONE]\n\n",
    "says": b'data: {"error": {"message": "engine is dead"}}\n\n',
}
"""Bodies of answers that no client can take for a measurement."""


@contextmanager
def loopback() -> Iterator[Loopback]:
    """A server that ends with the block."""
    server, app = Loopback(), web.Application(client_max_size=1 << 26)
    app.router.add_post("/{behaviour}/v1/chat/completions", server.answer)
    app.router.add_post("/{behaviour}/v1/completions", server.answer)
    app.router.add_get("/{behaviour}/v1/models", server.models)
    with served(app) as server.address:
        yield server
