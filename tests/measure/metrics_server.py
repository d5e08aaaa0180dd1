"""A metrics page on loopback, well or badly served: run in a thread, or as a process that counts up by itself.

The first part of the path says how it behaves: ``http://127.0.0.1:PORT/cut`` cuts its page off.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from aiohttp import web
from tests.measure.metered import HandClock, Process
from tests.measure.served import served


class MetricsServer:
    """Serves the page of a made-up process."""

    def __init__(self) -> None:
        self.process = Process(HandClock())
        self.address = ""
        self.asked: list[str] = []
        self.headers: list[str | None] = []

    async def answer(self, request: web.Request) -> web.StreamResponse:
        behaviour, page = request.match_info["behaviour"], self.process.page()
        self.asked.append(request.path)
        self.headers.append(request.headers.get("Authorization"))
        if behaviour in ("good", "v1"):
            return web.Response(text=page)
        if behaviour == "elsewhere":
            return web.Response(text=page) if "prometheus" in request.path else web.Response(status=404)
        if behaviour == "redirects":
            return web.Response(status=302, headers={"Location": "/good/metrics"})
        if behaviour == "html":
            return web.Response(text="<h1>Welcome</h1>", content_type="text/html")
        if behaviour == "node":
            return web.Response(text="node_load1 0.5\n")
        if behaviour == "broken":
            return web.Response(status=500, text="out of memory")
        if behaviour == "garbage":
            return web.Response(body=b"\xff\xfe\x00garbage\n")
        if behaviour == "off":
            return web.json_response({"error": "start it with --metrics"}, status=501)
        return await self._streamed(request, behaviour, page)

    async def _streamed(self, request: web.Request, behaviour: str, page: str) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/plain"})
        if behaviour == "cut":
            response.content_length = len(page)
        await response.prepare(request)
        if behaviour == "cut":
            await response.write(page[: len(page) // 2].encode())
            assert request.transport is not None
            request.transport.close()
        elif behaviour == "hangs":
            await asyncio.sleep(60)
        elif behaviour == "endless":
            while True:
                await response.write(b"# " + b"x" * 100_000 + b"\n")
        return response


@contextmanager
def metrics_server() -> Iterator[MetricsServer]:
    """A server that ends with the block."""
    server, app = MetricsServer(), web.Application()
    for path in ("/{behaviour}/metrics", "/{behaviour}/prometheus/metrics"):
        app.router.add_get(path, server.answer)
    with served(app) as server.address:
        yield server
