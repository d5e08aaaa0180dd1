"""An application of aiohttp on loopback, in a thread of its own, for as long as a block runs."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

from aiohttp import web


async def _nothing() -> None: ...


@contextmanager
def served(app: web.Application, afterwards: Callable[[], Awaitable[None]] = _nothing) -> Iterator[str]:
    """Gives its address; ``afterwards`` runs in its loop when it has ended."""
    loop, ready, done = asyncio.new_event_loop(), threading.Event(), asyncio.Event()
    address = ""

    async def serve() -> None:
        nonlocal address
        runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        address = f"http://127.0.0.1:{runner.addresses[0][1]}"
        ready.set()
        await done.wait()
        await runner.cleanup()
        await afterwards()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    try:
        assert ready.wait(30)
        yield address
    finally:
        loop.call_soon_threadsafe(done.set)
        thread.join()
        loop.close()
