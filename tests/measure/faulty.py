"""A /metrics page on loopback that can be told to fail in the ways that servers, proxies and networks do.

It stands between a source of metrics (any function that gives a page) and whoever scrapes it. It runs in a thread with
its own event loop, since a scraper has one too; ``fault`` may be changed at any time and holds from the next request.
The first part of the path says how that one fails: ``http://127.0.0.1:PORT/cut`` cuts its page off.
"""

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from enum import StrEnum
from typing import TypeVar

from aiohttp import web
from tests.measure.metered import HandClock, Process
from tests.there import there

PLAIN = "text/plain; version=0.0.4; charset=utf-8"


class Fault(StrEnum):
    """What goes wrong with the next answers."""

    none = "none"
    slow = "slow"  # headers and half a page, then nothing more
    silent = "silent"  # takes the request and never answers
    cut = "cut"  # the connection breaks in the middle of a number
    short = "short"  # half a page that ends in good order: only its content is missing
    error = "error"  # 500
    garbage = "garbage"  # bytes that are no text
    html = "html"  # a proxy's login page, with status 200
    nan = "nan"  # every number is NaN
    empty = "empty"
    endless = "endless"
    refused = "refused"  # nobody listens


class FaultyPage:
    """The page, its address, and what was asked of it."""

    def __init__(self, source: Callable[[], str]) -> None:
        self.source = source
        self.asked: Counter[Fault] = Counter()
        self.requests: list[web.Request] = []
        self.address = ""
        self._fault = Fault.none
        self._loop = asyncio.new_event_loop()
        self._runner: web.AppRunner | None = None
        self._site: web.TCPSite | None = None

    @property
    def url(self) -> str:
        return f"{self.address}/metrics"

    @property
    def fault(self) -> Fault:
        return self._fault

    @fault.setter
    def fault(self, fault: Fault) -> None:
        was, self._fault = self._fault, fault
        if (was is Fault.refused) != (fault is Fault.refused):
            change = self._stop_listening() if fault is Fault.refused else self._listen()
            asyncio.run_coroutine_threadsafe(change, self._loop).result(30)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        way, page = request.match_info.get("way", ""), self.source().encode()
        self.requests.append(request)
        match way:
            case "elsewhere" if "prometheus" not in request.path:
                return web.Response(status=404)
            case "redirects":
                return web.Response(status=302, headers={"Location": "/metrics"})
            case "node":
                return web.Response(text="node_load1 0.5\n")
            case "off":
                return web.json_response({"error": "start it with --metrics"}, status=501)
        fault = Fault(way) if way in set(Fault) else self._fault
        self.asked[fault] += 1
        match fault:
            case Fault.error:
                return web.Response(status=500, text="the engine is out of memory")
            case Fault.html:
                return web.Response(text="<html><h1>Sign in</h1></html>", content_type="text/html")
            case Fault.garbage:
                return web.Response(body=bytes(range(256)) * 40, headers={"Content-Type": PLAIN})
            case Fault.empty:
                return web.Response(body=b"", headers={"Content-Type": PLAIN})
            case Fault.nan:
                return web.Response(body=_not_numbers(page), headers={"Content-Type": PLAIN})
            case Fault.short:
                return web.Response(body=_half(page), headers={"Content-Type": PLAIN})
            case Fault.silent:
                await asyncio.Event().wait()
            case Fault.slow | Fault.cut | Fault.endless:
                return await self._broken(request, fault, page)
        return web.Response(body=page, headers={"Content-Type": PLAIN})

    async def _broken(self, request: web.Request, fault: Fault, page: bytes) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": PLAIN})
        if fault is Fault.cut:
            response.content_length = len(page)
        await response.prepare(request)
        if fault is Fault.endless:
            while True:
                await response.write(b"# more and more and more and more and more\n" * 1000)
        await response.write(page[: _inside_a_number(page)])
        if fault is Fault.slow:
            await asyncio.Event().wait()
        there(request.transport).close()
        return response

    async def _listen(self) -> None:
        assert self._runner is not None
        port = int(self.address.rsplit(":", 1)[1]) if self.address else 0
        self._site = web.TCPSite(self._runner, "127.0.0.1", port, reuse_address=True)
        await self._site.start()

    async def _stop_listening(self) -> None:
        await there(self._site).stop()
        # A scraper may keep a connection open: it is cut off as well.
        for connection in there(there(self._runner).server).connections:
            if connection.transport is not None:
                connection.transport.abort()

    async def serve(self, ready: threading.Event, done: asyncio.Event) -> None:
        app = web.Application()
        for path in ("/metrics", "/{way}/metrics", "/{way}/prometheus/metrics"):
            app.router.add_get(path, self.answer)
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        await self._listen()
        self.address = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        ready.set()
        await done.wait()
        await self._runner.cleanup()


Served = TypeVar("Served", bound=FaultyPage)


def _half(page: bytes) -> bytes:
    """Up to the end of the line in the middle."""
    return page[: page.index(b"\n", len(page) // 2) + 1]


def _inside_a_number(page: bytes) -> int:
    """A place within a sample's value in the middle: what comes before it still parses."""
    lines = [line for line in page.splitlines(keepends=True) if not line.startswith(b"#") and len(line.split()[-1]) > 1]
    line = lines[len(lines) // 2]
    return page.index(line) + len(line.rstrip()) - 1


def _not_numbers(page: bytes) -> bytes:
    lines = (line if line.startswith(b"#") else line.rsplit(b" ", 1)[0] + b" NaN" for line in page.splitlines())
    return b"\n".join(lines) + b"\n"


@contextmanager
def faulty_page(page: Served) -> Iterator[Served]:
    """Serve a page until the block ends."""
    loop = page._loop
    ready, done = threading.Event(), asyncio.Event()
    thread = threading.Thread(target=lambda: loop.run_until_complete(page.serve(ready, done)))
    thread.start()
    try:
        assert ready.wait(30)
        yield page
    finally:
        loop.call_soon_threadsafe(done.set)
        thread.join()
        loop.close()


class MetricsServer(FaultyPage):
    """The page of a made-up process."""

    def __init__(self) -> None:
        self.process = Process(HandClock())
        super().__init__(lambda: self.process.page())


def metrics_server() -> AbstractContextManager[MetricsServer]:
    return faulty_page(MetricsServer())
