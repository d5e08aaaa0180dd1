"""An engine on loopback whose steps take the time it is told: as a whole server, or with one fault.

A request takes ``request_s`` and ``token_s`` for each token of its prompt that it has not seen; an answer's tokens come
every ``step_s``. At most ``slots`` run at once. It counts words or letters, and finds a prompt again that was sent
before.
"""

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from tests.measure.served import served


@dataclass
class TimedEngine:
    """What it does, and what it was asked."""

    request_s: float = 0.001
    token_s: float = 0.0
    step_s: float = 0.001
    slots: int = 64
    context: int | None = None
    says_context: bool = True
    caches: bool = True
    fails_after: int | None = None  # answers; then it answers with ``status``
    status: int = 500
    takes_ignore_eos: bool = True
    metrics: str = ""
    letters_per_token: int | None = None  # None: words are tokens
    asked: int = 0
    seen: set[str] = field(default_factory=set)
    bodies: list[dict[str, Any]] = field(default_factory=list)

    @contextmanager
    def running(self) -> Iterator[str]:
        """Its address, while the block runs."""
        app = web.Application(client_max_size=1 << 26)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/version", self._version)
        app.router.add_get("/metrics", self._page)
        app.router.add_post("/v1/chat/completions", self._answer)
        self._free = asyncio.Semaphore(self.slots)
        with served(app) as address:
            yield address

    async def _models(self, request: web.Request) -> web.Response:
        limit = {"max_model_len": self.context} if self.context and self.says_context else {}
        return web.json_response({"data": [{"id": "timed", **limit}]})

    async def _version(self, request: web.Request) -> web.Response:
        return web.json_response({"version": "0.26.0"})

    async def _page(self, request: web.Request) -> web.Response:
        return web.Response(text=self.metrics)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        body = json.loads(await request.read())
        self.bodies.append(body)
        self.asked += 1
        if self.fails_after is not None and self.asked > self.fails_after:
            return web.json_response({"error": {"message": "out of memory"}}, status=self.status)
        if "ignore_eos" in body and not self.takes_ignore_eos:
            return web.json_response({"error": {"message": "unknown field"}}, status=400)
        text = body["messages"][0]["content"]
        words, wanted = len(text.split()), int(body["max_tokens"])
        words = len(text) // self.letters_per_token if self.letters_per_token else words
        if self.context is not None and words + wanted > self.context:
            said = f"maximum context length is {self.context} tokens"
            return web.json_response({"error": {"message": said}}, status=400)
        async with self._free:
            found = self.caches and text in self.seen
            self.seen.add(text)
            await asyncio.sleep(self.request_s + (0 if found else self.token_s * words))
            response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
            await response.prepare(request)
            for number in range(wanted):
                if number:
                    await asyncio.sleep(self.step_s)
                await response.write(_line({"choices": [{"delta": {"content": "x"}, "finish_reason": None}]}))
        usage: dict[str, Any] = {"prompt_tokens": words, "completion_tokens": wanted}
        usage["prompt_tokens_details"] = {"cached_tokens": words if found else 0}
        await response.write(_line({"choices": [], "usage": usage}) + b"data: [DONE]\n\n")
        await response.write_eof()
        return response


def _line(chunk: dict[str, Any]) -> bytes:
    return f"data: {json.dumps(chunk)}\n\n".encode()
