"""Requests with prompts of about a given number of tokens, for a server whose tokenizer is not known.

Prompts are plain English words drawn at random. How many tokens the server makes of them, and what its chat template
adds, is learned from its own count of a few. Each prompt begins with words of its own, so that a prefix cache finds
only the template; the rest is cut from one long text, which is quick.
"""

import json
import random
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

from tokonomics.measure.addresses import BenchTarget
from tokonomics.measure.bench.client import Asked

_PLAIN = (
    "time year people way day man thing woman life child world school state family student group country problem hand "
    "part place case week company system program question work government number night point home water room mother "
    "area money story fact month lot right study book eye job word business issue side kind head house service friend "
    "father power hour game line end member law car city community name president team minute idea body information "
    "back parent face others level office door health person art war history party result change morning reason "
    "research girl guy moment air teacher force education"
)
WORDS = _PLAIN.split()

_TEXT_WORDS = 40_000
_HERE = "@@@"  # where the prompt goes; no name of a model holds it
_OWN_WORDS = 12  # at the start of a prompt: 100 words to the twelfth power is more prompts than anyone sends


class Message(NamedTuple):
    """One part of a conversation."""

    role: str
    content: str


class Scale(NamedTuple):
    """What the server counts: tokens of its template, and tokens for each word."""

    fixed_tokens: float
    tokens_per_word: float

    def words(self, tokens: int) -> int:
        """How many words make about that many tokens; at least one."""
        return max(1, round((tokens - self.fixed_tokens) / self.tokens_per_word))


def scale_from(words: tuple[int, int], tokens: tuple[int, int]) -> Scale:
    """The line through two counted prompts."""
    slope = (tokens[1] - tokens[0]) / (words[1] - words[0])
    if slope <= 0:  # a server that counts nothing useful: a word is taken for a token
        return Scale(0.0, 1.0)
    return Scale(max(0.0, tokens[0] - slope * words[0]), slope)


class BenchPrompts:
    """Makes requests; equal seeds make equal ones."""

    def __init__(self, target: BenchTarget, model: str, seed: int) -> None:
        self._random = random.Random(seed)
        words = self._random.choices(WORDS, k=_TEXT_WORDS)
        self._text = "".join(f" {word}" for word in words).encode()
        self._ends = [0, *accumulate(len(word) + 1 for word in words)]
        self._target, self._model = target, model
        self._made: dict[tuple[int, str, bool], tuple[bytes, bytes]] = {}
        self.scale = Scale(0.0, 1.0)
        self.extras: dict[str, object] = {"ignore_eos": True}  # not standard: left out for servers that refuse it
        self.limit_name = "max_tokens"

    def request(self, input_tokens: int, output_tokens: int) -> Asked:
        return self.of_words(self.scale.words(input_tokens), output_tokens)

    def of_words(self, words: int, output_tokens: int) -> Asked:
        """A request whose prompt has exactly this many words."""
        before, after = self._around(output_tokens)
        return Asked(b"".join((before, *self._words(words), after)), output_tokens)

    def head(self, tokens: int) -> tuple[Message, ...]:
        """What all jobs begin with, the same whenever it is asked for; nothing for no tokens."""
        words = round(tokens / self.scale.tokens_per_word)
        listed = (self._text * (words // _TEXT_WORDS + 1)).split()[:words]
        return (Message("system", b" ".join(listed).decode()),) if words else ()

    def message(self, tokens: int, *, told: str = "", fresh: bool = False) -> Message:
        """About so many new tokens of a user or a tool, behind what it has to tell; fresh: the template's are in it."""
        words = self.scale.words(tokens) if fresh else max(1, round(tokens / self.scale.tokens_per_word))
        new = b"".join(self._words(words)).decode()
        return Message("user", f"{told} {new}" if told else new)

    def of_messages(self, messages: Sequence[Message], output_tokens: int) -> Asked:
        """A request that goes on with a conversation."""
        if self._target.chat:
            said: dict[str, object] = {"messages": [message._asdict() for message in messages]}
        else:
            said = {"prompt": " ".join(message.content for message in messages)}
        return Asked(json.dumps(self._fields(said, output_tokens)).encode(), output_tokens)

    def _words(self, words: int) -> list[bytes]:
        """So many words, the first of them like those of no other prompt."""
        own = min(words, _OWN_WORDS)
        more = words - own
        parts = [" ".join(self._random.choices(WORDS, k=own)).encode()]
        while more > 0:
            start = self._random.randrange(_TEXT_WORDS)
            end = min(start + more, _TEXT_WORDS)
            parts.append(self._text[self._ends[start] : self._ends[end]])
            more -= end - start
        return parts

    def _around(self, output_tokens: int) -> tuple[bytes, bytes]:
        """The JSON before and after the prompt: plain words need no escaping, and there are thousands a second."""
        settings = (output_tokens, self.limit_name, bool(self.extras))
        if settings not in self._made:
            chat: dict[str, object] = {"messages": [{"role": "user", "content": _HERE}]}
            fields = self._fields(chat if self._target.chat else {"prompt": _HERE}, output_tokens)
            before, _, after = json.dumps(fields).encode().partition(_HERE.encode())
            self._made[settings] = before, after
        return self._made[settings]

    def _fields(self, said: dict[str, object], output_tokens: int) -> dict[str, object]:
        fields = {"model": self._model, **said, self.limit_name: output_tokens, "stream": True}
        return fields | {"stream_options": {"include_usage": True}, **self.extras}
