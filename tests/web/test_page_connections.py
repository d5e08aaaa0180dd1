"""One address may hold so many connections: those that keep the server waiting give way, those it works for do not."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvicorn

from tokonomics.web.safety import Gate
from tokonomics.web.serve import MOST, MOST_OF_ONE, Connection

HOST = "127.0.0.1"
SLOW_UPLOAD = b"POST /api/v1/uploads?name=x.csv HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 99\r\n\r\nx"
SLOW_QUESTION = (
    b"POST /api/v1/answers/curve HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    b"Content-Length: 99\r\n\r\n{"
)
PLAIN = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
Line = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Served:
    """An application behind the page's own connections, on a port of its own."""

    def __init__(self, port: int, state: uvicorn.server.ServerState) -> None:
        self.port, self.state = port, state
        self.lines: list[Line] = []

    async def say(self, said: bytes) -> Line:
        line = await asyncio.open_connection(HOST, self.port)
        line[1].write(said)
        self.lines.append(line)
        return line

    async def until_all_began(self, number: int) -> None:
        """Waits, for as long as it takes, until the server has so many connections, a request begun on each."""

        def began() -> list[bool]:
            return [isinstance(one, Connection) and one.cycle is not None for one in self.state.connections]

        while began() != [True] * number:
            await asyncio.sleep(0.001)


@asynccontextmanager
async def served(app: Any) -> AsyncIterator[Served]:
    config = uvicorn.Config(app, http=Connection, lifespan="off", log_level="warning", limit_concurrency=MOST)
    config.load()
    state = uvicorn.server.ServerState()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Connection(config, state, {}), HOST, 0)
    made = Served(server.sockets[0].getsockname()[1], state)
    try:
        yield made
    finally:
        for _, writer in made.lines:
            writer.transport.abort()
        server.close()
        await asyncio.gather(*state.tasks)


@pytest.mark.parametrize(
    ("held", "said"),
    [(MOST_OF_ONE, SLOW_QUESTION), (MOST_OF_ONE, SLOW_UPLOAD), (450, SLOW_UPLOAD)],
    ids=["64 questions", "64 uploads", "450 uploads"],
)
def test_slow_bodies_shut_nobody_out(gate: Gate, capfd: pytest.CaptureFixture[str], held: int, said: bytes) -> None:
    async def asked() -> tuple[bytes, list[bool]]:
        async with served(gate) as page:
            for number in range(1, held + 1):
                await page.say(said)
                await page.until_all_began(min(number, MOST_OF_ONE))
            reader, _ = await page.say(PLAIN)
            reply = await reader.read()
            return reply, [reader.at_eof() or reader.exception() is not None for reader, _ in page.lines[:-1]]

    reply, gave_way = asyncio.run(asked())
    assert reply.startswith(b"HTTP/1.1 200"), reply[:200]
    first = held + 1 - MOST_OF_ONE
    assert gave_way == [True] * first + [False] * (held - first), "the one that is waited for longest gives way"
    assert "Traceback" not in "".join(capfd.readouterr()), "a body that breaks off is no fault of ours"


def test_what_is_worked_for_does_not_give_way() -> None:
    done = asyncio.Event()

    async def app(scope: Any, receive: Callable[[], Awaitable[Any]], send: Callable[[Any], Awaitable[None]]) -> None:
        await receive()
        await done.wait()
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body"})

    async def asked() -> tuple[bytes, list[bytes]]:
        async with served(app) as page:
            for _ in range(MOST_OF_ONE):
                await page.say(PLAIN)
            await page.until_all_began(MOST_OF_ONE)
            reader, _ = await page.say(PLAIN)
            try:
                one_more = await reader.read()
            except ConnectionResetError:
                one_more = b""
            done.set()
            return one_more, [await reader.read() for reader, _ in page.lines[:-1]]

    one_more, replies = asyncio.run(asked())
    assert one_more == b""
    assert all(reply.startswith(b"HTTP/1.1 204") for reply in replies)
