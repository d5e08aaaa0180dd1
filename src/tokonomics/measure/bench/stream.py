"""One streamed answer as it arrives: when its text came, what the server counted, and whether it was complete.

Server-sent events, one JSON chunk a line after ``data:``. Chunks are not tokens: tokens come from ``usage``, which the
last chunk carries when ``stream_options.include_usage`` is asked for. A read that holds several chunks counts as that
many equal gaps since the read before: what the network put together is not a burst of the model.
"""

import json
from array import array
from typing import Any

from tokonomics.errors import shorten

LONGEST_LINE = 4_000_000  # bytes without an end of line: no server sends a chunk of this size

_UNFINISHED, _SPACED = b'"finish_reason":null', b'"finish_reason": null'
"""In every chunk of text but the last: told without parsing, which is most of what a client does."""


class BadAnswer(Exception):
    """The stream is not what an OpenAI-compatible server sends."""


class AnswerStream:
    """The times of the first and last text of a body, the gaps between, and the usage."""

    def __init__(self) -> None:
        self._rest, self._fed_s, self.ended = b"", 0.0, False
        self.first_s: float | None = None
        self.last_s: float | None = None
        self.gaps_s = array("d")
        self.pieces = array("l")  # chunks of text that arrived at the end of each gap, which is shared by them
        self.input_tokens: int | None = None
        self.output_tokens: int | None = None
        self.cached_tokens: int | None = None

    def feed(self, data: bytes, now_s: float) -> None:
        """Bytes that arrived at a time; raises ``BadAnswer`` where they are not a stream of chunks."""
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
        """How many chunks with text are in these whole lines."""
        marks = lines.count(b"data:")
        if marks == lines.count(b"\ndata:") + lines.startswith(b"data:"):
            events = lines.split(b"data:")[1:]
        else:  # the text itself speaks of data
            events = [line[5:] for line in lines.split(b"\n") if line.startswith(b"data:")]
        texts = 0
        if self.first_s is None:
            while events and not texts:
                texts = self._chunk(events.pop(0))
        odd = [event for event in events if _UNFINISHED not in event and _SPACED not in event]
        return texts + len(events) - len(odd) + sum(map(self._chunk, odd))

    def close(self) -> None:
        """The body ended; raises ``BadAnswer`` where the answer is not whole.

        An answer may be whole and without text: tokens that only control the model, or half of a character.
        """
        if self._rest.strip():
            self.feed(b"\n", self._fed_s)
        if self.output_tokens is None or self.input_tokens is None:
            raise BadAnswer("the stream ended without usage" if self.ended else "the stream was cut off")

    def _chunk(self, event: bytes) -> int:
        """1 where the chunk has text; what follows on other lines is no part of it."""
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
            raise BadAnswer(f"the server says: {said(chunk)}")
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
        return has_text


def _has_text(choice: dict[str, Any]) -> int:
    delta = choice.get("delta")
    if not isinstance(delta, dict):
        return int(bool(choice.get("text")))
    return int(any(delta.get(name) for name in ("content", "reasoning_content", "reasoning", "tool_calls", "refusal")))


def _whole(usage: dict[str, Any], name: str) -> int:
    value = usage.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise BadAnswer(f"usage.{name} is no count: {shorten(repr(value), 30)}")
    return value


def said(document: object) -> str:
    """What an error document says, in one short line."""
    error = document.get("error", document) if isinstance(document, dict) else document
    if isinstance(error, dict):
        error = error.get("message") or error.get("detail") or error
    return shorten(" ".join(str(error).split()), 160)
