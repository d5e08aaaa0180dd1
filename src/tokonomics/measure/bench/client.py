"""Send one streamed request to an OpenAI-compatible server, timed from when it was due; measure the client's delay.

No proxies, no redirects, one connection per running request. The key comes from the environment and goes into one
header only; it is removed from what the server says. A request is retried only if the server did no work for it: no
connection, or 429, 502, 503, 504. Some servers (llama.cpp's) close the connection after an answer without saying so:
the request that meets this is sent again at once, and from then on each request opens its own connection.

An answer is server-sent events, one JSON chunk a line after ``data:``. Chunks are not tokens: tokens come from
``usage``, which is in the last chunk if ``stream_options.include_usage`` is set. A read that holds several chunks
counts as that many equal gaps since the read before: chunks that the network joined are not a burst of the model.

One thread sends all requests and reads all streams, in turns: it looks for what has arrived, and then works on it. What
it finds at once arrived since it last looked, on average in the middle of that time; what it had to wait for has just
arrived. A turn reads the data of the streams it finds ready; the next turn passes it on.
"""

import asyncio
import json
import os
import selectors
from array import array
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Literal, NamedTuple, Self, TypeVar

import aiohttp
import numpy as np
from aiohttp.abc import AbstractStreamWriter

from tokonomics.addresses import BenchTarget
from tokonomics.errors import shorten
from tokonomics.units import seconds

Result = TypeVar("Result")
_OWN_SHARE = 0.05  # the client reports its own share of a measured TTFT from this value on (our choice)


class LoopTurns(selectors.DefaultSelector):
    """The selector of an event loop, which knows how long it was idle and when what it found had arrived."""

    def __init__(self) -> None:
        super().__init__()
        self._looked_s = self._arrived_s = perf_counter()
        self._arrived_before_s: float | None = None
        self.idle_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Return what has arrived, as the event loop asks for it."""
        since_s = self._looked_s
        found = super().select(0)
        if not found and timeout != 0:
            asleep_s = perf_counter()
            found = super().select(timeout)
            since_s = perf_counter()
            self.idle_s += since_s - asleep_s
        self._looked_s, self._arrived_before_s = perf_counter(), self._arrived_s
        self._arrived_s = (since_s + self._looked_s) / 2
        return found

    def waited_s(self, now_s: float) -> float:
        """Return about how long the data passed on now had waited; 0 if no event loop uses it."""
        return 0.0 if self._arrived_before_s is None else now_s - self._arrived_before_s


def run_in_turns(main: Callable[[LoopTurns], Coroutine[Any, Any, Result]]) -> Result:
    """Run a coroutine with the turns of its event loop; return its result."""
    turns = LoopTurns()
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(turns)) as runner:
        return runner.run(main(turns))


def own_delay(own_s: Sequence[float], ttft_s: Sequence[float]) -> str | None:
    """Describe what the client itself adds to the first token, if that is worth knowing."""
    if not ttft_s:
        return None
    ranked = [(rank, *(float(np.percentile(times_s, rank)) for times_s in (own_s, ttft_s))) for rank in (50, 99)]
    if all(own <= _OWN_SHARE * ttft for _, own, ttft in ranked):
        return None
    parts = [f"{seconds(own)} of {seconds(ttft)} (p{rank})" for rank, own, ttft in ranked]
    return f"the client was busy itself: about {' and '.join(parts)} of TTFT are its own"


KEY_VARIABLE = "OPENAI_API_KEY"
GIVEN_UP = "no whole answer long after the load had ended"
LONGEST_LINE = 4_000_000  # bytes without an end of line; no server sends a chunk of this size

_UNFINISHED, _SPACED = b'"finish_reason":null', b'"finish_reason": null'
"""Marks of every chunk of text but the last. They avoid parsing, which is most of a client's work."""

_AGAIN = (429, 502, 503, 504)
_FIRST_WAIT_S = 0.1  # before the first retry; doubles with each
_LARGEST_ANSWER = 64_000_000  # bytes: about 300,000 chunks; a longer body has no end
_READ_OF_ERROR = 10_000
_DRAFTED = 16  # accepted tokens beyond the limit: an engine that drafts may count the rest of a last draft

# Of one attempt: answered or finally failed; the server did no work; the server had already closed the connection.
Outcome = Literal["ended", "refused", "stale"]


class Asked(NamedTuple):
    """A request: its body, and the most tokens that its answer may have."""

    body: bytes
    most_tokens: int


@dataclass(slots=True)
class Reply:
    """The answer to a request, or what went wrong; times are of ``perf_counter``."""

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
    text: str = ""  # if it was to be kept
    job: int | None = None  # the job whose turn it was
    turn: int | None = None
    held_s: float = 0.0  # time in the client before the network got it
    waited_s: float = 0.0  # about how long the first text waited to be read

    @property
    def own_s(self) -> float:
        """Return about how much of the time to the first text the client itself took."""
        late_s = 0.0 if self.retries else self.sent_s - self.due_s
        return late_s + self.held_s + self.waited_s


class Client:
    """A session with a server; use it with ``async with``."""

    def __init__(self, target: BenchTarget, timeout_s: float, retries: int, turns: LoopTurns) -> None:
        self._target, self._turns = target, turns
        self._retries = retries
        self._key = os.environ.get(KEY_VARIABLE, "").strip()
        self._timeout = aiohttp.ClientTimeout(total=timeout_s)
        self._answered = False
        self.gave_up = False  # the load is over: a request cancelled now gets a reply that says so
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

    async def ask(
        self, asked: Asked, due_s: float, *, keep_text: bool = False, began: Callable[[], None] | None = None
    ) -> Reply:
        """Return the reply to a request, read to the end; errors are in it and never raised.

        ``began`` is called when the first text has come.
        """
        reply = Reply(due_s)
        try:
            while True:
                reply.error, reply.status, reply.sent_s = None, None, perf_counter()
                outcome = await self._try(asked.body, reply, keep_text, began)
                if outcome == "stale":
                    continue
                if outcome == "ended" or reply.retries >= self._retries:
                    break
                await asyncio.sleep(_FIRST_WAIT_S * 2**reply.retries)
                reply.retries += 1
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not self.gave_up or task is None:
                raise
            task.uncancel()
            reply.error = GIVEN_UP
        if reply.error is None and reply.output_tokens > asked.most_tokens + _DRAFTED:
            reply.error = f"usage counts {reply.output_tokens:,} tokens where {asked.most_tokens:,} were asked for"
        reply.end_s = perf_counter()
        return reply

    async def _try(self, body: bytes, reply: Reply, keep_text: bool, began: Callable[[], None] | None) -> Outcome:
        url, kept_open, untouched = self._target.url, not self.one_request_a_connection, True
        headers = None if kept_open else {"Connection": "close"}
        try:
            timed = _TimedBody(body, reply, self._turns)
            async with self._session.post(url, data=timed, headers=headers, allow_redirects=False) as response:
                reply.status = response.status
                if response.status != 200:
                    reply.error = await self._refused(response)
                    return "refused" if response.status in _AGAIN else "ended"
                untouched = False
                if response.content_type != "text/event-stream":
                    raise BadAnswer(f"answered {shorten(response.content_type, 40)}, not a stream of events")
                await _read(response, reply, keep_text, self._turns, began)
                self._answered = True
        except BadAnswer as bad:
            reply.error = str(bad)
        except TimeoutError:
            reply.error = f"no whole answer within {self._timeout.total:g} s"
        except aiohttp.ClientPayloadError:
            reply.error = "the stream was cut off"
        except (aiohttp.ClientError, OSError, ValueError) as error:
            lost = isinstance(error, aiohttp.ServerDisconnectedError | aiohttp.ClientOSError | ConnectionError)
            connected = not isinstance(error, aiohttp.ClientConnectorError)
            if lost and connected and untouched and kept_open and self._answered:
                self.one_request_a_connection = True
                return "stale"
            reply.error = shorten(_what_happened(error, lost), 160)
            return "refused" if untouched and lost else "ended"
        return "ended"

    async def _refused(self, response: aiohttp.ClientResponse) -> str:
        body = b""
        async for piece in response.content.iter_any():
            body += piece
            if len(body) >= _READ_OF_ERROR:
                break
        text = body.decode("utf-8", "replace")
        try:
            text = error_text(json.loads(text))
        except (ValueError, RecursionError):
            text = shorten(" ".join(text.split()), 120)
        return f"HTTP {response.status}{f': {text}' if text else ''}"

    async def models(self) -> dict[str, int | None]:
        """Return the server's models by name, with the most tokens of a request if it says so (vLLM, SGLang).

        If it does not list them, the result is empty, and ``trouble`` may say why.
        """
        try:
            async with self._session.get(self._target.models_url, allow_redirects=False) as response:
                text = await response.content.read(1 << 20)
                listed = json.loads(text)["data"] if response.status == 200 else []
                named = [model for model in listed if isinstance(model.get("id"), str)]
                limits = {model["id"]: model.get("max_model_len") for model in named}
                return {name: limit if isinstance(limit, int) and limit > 1 else None for name, limit in limits.items()}
        except (aiohttp.ClientError, OSError) as error:  # TimeoutError is an OSError
            self.trouble = shorten(_what_happened(error, lost=True), 160)
        except (ValueError, KeyError, TypeError, AttributeError):
            self.trouble = "its list of models is not what OpenAI's is"
        return {}


def _what_happened(error: Exception, lost: bool) -> str:
    if isinstance(error, aiohttp.ClientConnectorError):
        number = error.os_error.errno
        return f"cannot connect: {os.strerror(number) if number and number > 0 else error.os_error}"
    return "the server hung up" if lost else f"{type(error).__name__}: {error}"


class _TimedBody(aiohttp.BytesPayload):
    """A request's body, which records how late the client gives it to the network."""

    def __init__(self, body: bytes, reply: Reply, turns: LoopTurns) -> None:
        super().__init__(body)
        self._reply, self._turns, self._idle_s = reply, turns, turns.idle_s

    def _note(self) -> None:
        # While a connection opens, the client is idle or works for other requests.
        self._reply.held_s = perf_counter() - self._reply.sent_s - (self._turns.idle_s - self._idle_s)

    async def write(self, writer: AbstractStreamWriter) -> None:
        self._note()
        await super().write(writer)

    async def write_with_length(self, writer: AbstractStreamWriter, content_length: int | None) -> None:
        self._note()
        await super().write_with_length(writer, content_length)


async def _read(
    response: aiohttp.ClientResponse,
    reply: Reply,
    keep_text: bool,
    turns: LoopTurns,
    began: Callable[[], None] | None,
) -> None:
    stream = AnswerStream(keep_text)
    size = 0
    async for data in response.content.iter_any():
        size += len(data)
        if size > _LARGEST_ANSWER:
            raise BadAnswer("a body without end")
        now_s = perf_counter()
        stream.feed(data, now_s)
        if stream.first_s == now_s:
            reply.waited_s = turns.waited_s(now_s)
            if began is not None:
                began()
    stream.close()
    reply.first_s, reply.last_s = stream.first_s, stream.last_s
    reply.input_tokens, reply.output_tokens = stream.input_tokens or 0, stream.output_tokens or 0
    reply.cached_tokens = stream.cached_tokens
    reply.gaps_s, reply.pieces = stream.gaps_s, stream.pieces
    reply.text = "".join(stream.text or ())


class BadAnswer(Exception):
    """Raised if the stream is not what an OpenAI-compatible server sends."""


class AnswerStream:
    """The times of the first and last text of a body, the gaps between, and the usage."""

    def __init__(self, keep_text: bool = False) -> None:
        self.text: list[str] | None = [] if keep_text else None
        self._rest, self._fed_s, self.ended = b"", 0.0, False
        self.first_s: float | None = None
        self.last_s: float | None = None
        self.gaps_s = array("d")
        self.pieces = array("l")  # chunks of text that arrived at the end of each gap and share it
        self.input_tokens: int | None = None
        self.output_tokens: int | None = None
        self.cached_tokens: int | None = None

    def feed(self, data: bytes, now_s: float) -> None:
        """Take bytes that arrived at a time; raise ``BadAnswer`` if they are not a stream of chunks."""
        self._fed_s = now_s
        data = self._rest + data if self._rest else data
        end = data.rfind(b"\n") + 1
        self._rest = data[end:]
        if len(self._rest) > LONGEST_LINE:
            raise BadAnswer("a line without end in the stream")
        texts = self._texts(data[:end])
        if not texts:
            return
        if self.first_s is None or self.last_s is None:
            self.first_s = now_s
        else:
            self.gaps_s.append((now_s - self.last_s) / texts)
            self.pieces.append(texts)
        self.last_s = now_s

    def _texts(self, lines: bytes) -> int:
        """Count the chunks with text in these whole lines."""
        marks = lines.count(b"data:")
        if marks == lines.count(b"\ndata:") + lines.startswith(b"data:"):
            events = lines.split(b"data:")[1:]
        else:  # the text itself contains "data"
            events = [line[5:] for line in lines.split(b"\n") if line.startswith(b"data:")]
        texts = 0
        if self.first_s is None:
            while events and not texts:
                texts = self._chunk(events.pop(0))
        if self.text is not None:
            return texts + sum(map(self._chunk, events))
        odd = [event for event in events if not _is_text(event)]
        return texts + len(events) - len(odd) + sum(map(self._chunk, odd))

    def close(self) -> None:
        """End the body; raise ``BadAnswer`` if the answer is not complete.

        An answer may be complete without text: tokens that only control the model, or half of a character.
        """
        if self._rest.strip():
            self.feed(b"\n", self._fed_s)
        if self.output_tokens is None or self.input_tokens is None:
            raise BadAnswer("the stream ended without usage" if self.ended else "the stream was cut off")

    def _chunk(self, event: bytes) -> int:
        """Return 1 if the chunk has text; what follows on other lines is not part of it."""
        payload = event.partition(b"\n")[0].strip()
        if payload == b"[DONE]":
            self.ended = True
            return 0
        try:
            chunk = json.loads(payload)
        except (ValueError, RecursionError):
            raise BadAnswer("not JSON in the stream") from None
        if not isinstance(chunk, dict):
            raise BadAnswer("no chunk of an answer in the stream")
        if chunk.get("error"):
            raise BadAnswer(f"the server says: {error_text(chunk)}")
        if isinstance(usage := chunk.get("usage"), dict):
            self.input_tokens, self.output_tokens = _whole(usage, "prompt_tokens"), _whole(usage, "completion_tokens")
            details = usage.get("prompt_tokens_details")
            if isinstance(details, dict) and details.get("cached_tokens") is not None:
                self.cached_tokens = _whole(details, "cached_tokens")
        has_text = 0
        for choice in chunk.get("choices") or ():
            if not isinstance(choice, dict):
                raise BadAnswer("no chunk of an answer in the stream")
            self.ended |= choice.get("finish_reason") is not None
            has_text |= _has_text(choice)
            if self.text is not None:
                self.text.append(_text(choice))
        return has_text


def _is_text(event: bytes) -> bool:
    """Decide whether it is a whole chunk of text, by a mark and its brackets; doubtful ones are parsed."""
    if _UNFINISHED not in event and _SPACED not in event:
        return False
    return event.count(b"{") == event.count(b"}") and event.count(b"[") == event.count(b"]")


def _has_text(choice: dict[str, Any]) -> int:
    delta = choice.get("delta")
    if not isinstance(delta, dict):
        return int(bool(choice.get("text")))
    return int(any(delta.get(name) for name in ("content", "reasoning_content", "reasoning", "tool_calls", "refusal")))


def _text(choice: dict[str, Any]) -> str:
    """Return what is repeated in the next turn: the answer, without its reasoning."""
    delta = choice.get("delta")
    said = delta.get("content") if isinstance(delta, dict) else choice.get("text")
    return said if isinstance(said, str) else ""


def _whole(usage: dict[str, Any], name: str) -> int:
    value = usage.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise BadAnswer(f"usage.{name} is no count: {shorten(repr(value), 30)}")
    return value


def error_text(document: object) -> str:
    """Return what an error document says, in one short line."""
    error = document.get("error", document) if isinstance(document, dict) else document
    if isinstance(error, dict):
        error = error.get("message") or error.get("detail") or error
    return shorten(" ".join(str(error).split()), 160)
