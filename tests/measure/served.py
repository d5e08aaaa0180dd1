"""An application of aiohttp on loopback, in a thread of its own, for as long as a block runs."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from aiohttp import web


async def _turns() -> None:
    """Of the event loop: accepting a connection takes three of them, letting one go takes two."""
    for _ in range(5):
        await asyncio.sleep(0)


@contextmanager
def served(app: web.Application) -> Iterator[str]:
    """Gives its address; no socket is left when the block has ended."""
    loop, ready, done = asyncio.new_event_loop(), threading.Event(), asyncio.Event()
    address = ""

    async def serve() -> None:
        nonlocal address
        runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await runner.setup()
        connections: list[web.RequestHandler] = []

        def connection() -> web.RequestHandler:
            assert runner.server is not None
            connections.append(runner.server())
            return connections[-1]

        listening = await loop.create_server(connection, "127.0.0.1", 0)
        address = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
        ready.set()
        await done.wait()
        # asyncio drops a connection that was accepted but is not set up when its server closes, with its socket open
        # (Server._attach fails, and nobody hears of it): so accepting ends first, and closing waits for the set-up.
        loop.remove_reader(listening.sockets[0].fileno())
        await _turns()
        listening.close()
        for transport in [each.transport for each in connections if each.transport is not None]:
            transport.abort()  # closing one that is full would wait for its reader for ever
        await runner.cleanup()
        await _turns()  # what was aborted lets its socket go

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    try:
        assert ready.wait(30)
        yield address
    finally:
        loop.call_soon_threadsafe(done.set)
        thread.join()
        loop.close()
