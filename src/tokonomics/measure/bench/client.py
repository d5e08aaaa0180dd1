"""One streamed request to an OpenAI-compatible server, timed from when it was due.

No proxies, no redirects, one connection per running request. The key comes from the environment and goes into one
header only: it is cut out of whatever the server says. A request is retried only where the server did no work for it:
no connection, or 429, 502, 503, 504. Some servers (llama.cpp's) close the connection after an answer without saying so:
the request that meets this is sent again at once, and from then on each opens its own connection.
"""

import asyncio
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Literal, Self

import aiohttp

from tokonomics.errors import shorten
from tokonomics.measure.addresses import BenchTarget
from tokonomics.measure.bench.stream import AnswerStream, BadAnswer, said

KEY_VARIABLE = "OPENAI_API_KEY"

_AGAIN = (429, 502, 503, 504)
_FIRST_WAIT_S = 0.1  # before the first retry; doubles with each
_LARGEST_ANSWER = 64_000_000  # bytes: about 300,000 chunks. More is a body without end.
_READ_OF_ERROR = 10_000

# Of one attempt: answered or failed for good; the server did no work; the server had already closed the connection.
Outcome = Literal["ended", "refused", "stale"]


@dataclass(slots=True)
class Reply:
    """What came of a request; times are of ``perf_counter``."""

    due_s: float  # when it should have been sent: what latencies count from
    sent_s: float = 0.0
    first_s: float | None = None
    last_s: float | None = None
    end_s: float = 0.0
    input_tokens: int = 0
    cached_tokens: int | None = None
    output_tokens: int = 0
    gaps_s: Sequence[float] = ()
    pieces: Sequence[int] = ()
    retries: int = 0
    error: str | None = None
    status: int | None = None


class Client:
    """A session with a server; use it with ``async with``."""

    def __init__(self, target: BenchTarget, timeout_s: float, retries: int) -> None:
        self._target = target
        self._retries = retries
        self._key = os.environ.get(KEY_VARIABLE, "").strip()
        self._timeout = aiohttp.ClientTimeout(total=timeout_s)
        self._answered = False
        self.one_request_a_connection = False
        self.trouble: str | None = None

    async def __aenter__(self) -> Self:
        headers = {"Content-Type": "application/json", "Accept": "text/event-stream", "Accept-Encoding": "identity"}
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        connector, jar = aiohttp.TCPConnector(limit=0), aiohttp.DummyCookieJar()
        self._session = aiohttp.ClientSession(
            connector=connector, headers=headers, timeout=self._timeout, cookie_jar=jar
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def ask(self, body: bytes, due_s: float) -> Reply:
        """The reply to a request, read to the end; what went wrong is in it, never raised."""
        reply = Reply(due_s)
        while True:
            reply.error, reply.status, reply.sent_s = None, None, perf_counter()
            outcome = await self._try(body, reply)
            if outcome == "stale":
                continue
            if outcome == "ended" or reply.retries >= self._retries:
                break
            await asyncio.sleep(_FIRST_WAIT_S * 2**reply.retries)
            reply.retries += 1
        reply.end_s = perf_counter()
        return reply

    async def _try(self, body: bytes, reply: Reply) -> Outcome:
        url, kept_open, untouched = self._target.url, not self.one_request_a_connection, True
        headers = None if kept_open else {"Connection": "close"}
        try:
            async with self._session.post(url, data=body, headers=headers, allow_redirects=False) as response:
                reply.status = response.status
                if response.status != 200:
                    reply.error = await self._refused(response)
                    return "refused" if response.status in _AGAIN else "ended"
                untouched = False
                if response.content_type != "text/event-stream":
                    raise BadAnswer(f"answered {shorten(response.content_type, 40)}, not a stream of events")
                await _read(response, reply)
                self._answered = True
        except BadAnswer as bad:
            reply.error = self._hidden(str(bad))
        except TimeoutError:
            reply.error = f"no whole answer within {self._timeout.total:g} s"
        except aiohttp.ClientPayloadError:
            reply.error = "the stream was cut off"
        except (aiohttp.ClientError, OSError, ValueError) as error:
            lost = isinstance(error, aiohttp.ServerDisconnectedError | aiohttp.ClientOSError | ConnectionError)
            if (
                lost
                and untouched
                and kept_open
                and self._answered
                and not isinstance(error, aiohttp.ClientConnectorError)
            ):
                self.one_request_a_connection = True
                return "stale"
            reply.error = self._hidden(shorten(_what_happened(error, lost), 160))
            return "refused" if untouched and lost else "ended"
        return "ended"

    async def _refused(self, response: aiohttp.ClientResponse) -> str:
        text = (await response.content.read(_READ_OF_ERROR)).decode("utf-8", "replace")
        try:
            text = said(json.loads(text))
        except (ValueError, RecursionError):
            text = shorten(" ".join(text.split()), 120)
        return self._hidden(f"HTTP {response.status}{f': {text}' if text else ''}")

    def _hidden(self, text: str) -> str:
        return text.replace(self._key, "(key)") if self._key else text

    async def models(self) -> list[str]:
        """The names of the server's models; none where it does not list them, and then ``trouble`` may say why."""
        try:
            async with self._session.get(self._target.models_url, allow_redirects=False) as response:
                text = await response.content.read(1 << 20)
                listed = json.loads(text)["data"] if response.status == 200 else []
                return [model["id"] for model in listed if isinstance(model.get("id"), str)]
        except (aiohttp.ClientError, OSError) as error:  # TimeoutError is an OSError
            self.trouble = self._hidden(shorten(_what_happened(error, lost=True), 160))
        except (ValueError, KeyError, TypeError, AttributeError):
            self.trouble = "its list of models is not what OpenAI's is"
        return []


def _what_happened(error: Exception, lost: bool) -> str:
    if isinstance(error, aiohttp.ClientConnectorError):
        number = error.os_error.errno
        return f"cannot connect: {os.strerror(number) if number and number > 0 else error.os_error}"
    return "the server hung up" if lost else f"{type(error).__name__}: {error}"


async def _read(response: aiohttp.ClientResponse, reply: Reply) -> None:
    stream = AnswerStream()
    size = 0
    async for data in response.content.iter_any():
        size += len(data)
        if size > _LARGEST_ANSWER:
            raise BadAnswer("a body without end")
        stream.feed(data, perf_counter())
    stream.close()
    reply.first_s, reply.last_s = stream.first_s, stream.last_s
    reply.input_tokens, reply.output_tokens = stream.input_tokens or 0, stream.output_tokens or 0
    reply.cached_tokens = stream.cached_tokens
    reply.gaps_s, reply.pieces = stream.gaps_s, stream.pieces
