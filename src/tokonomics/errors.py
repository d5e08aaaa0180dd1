"""Define one exception family for everything a person can get wrong.

An error says what is wrong, where (a file and line, or the field of a request) and what to do about it. It names inputs
by field (``field="rate"``, ``option("rate", 5)``); each door spells them its own way: ``--rate 5`` on the command line,
``rate=5`` in Python, the name of the input on the page.
"""

import os
import re
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic import ValidationError


_BEGIN, _END = "\u2063", "\u2064"
"""These invisible characters mark an input in a text. ``shorten`` removes them from what users write."""
_OPTION = re.compile(f"{_BEGIN}([a-z_0-9]+)(?:=([^{_END}]*))?{_END}")

Spell = Callable[[str, str | None], str]
"""A door's function that writes an input, given its field and, for an example, a value."""


def option(field: str, value: object = None) -> str:
    """Mark an input in a message, such as ``option("rate", 5)``; the door decides how it is spelled."""
    return f"{_BEGIN}{field}{_END}" if value is None else f"{_BEGIN}{field}={value}{_END}"


def spelled(text: str, spell: Spell) -> str:
    """Return a message with its inputs as one door writes them."""
    if _BEGIN not in text:  # true of nearly every text
        return text
    return _OPTION.sub(lambda found: spell(found[1], found[2]), text)


def in_python(field: str, value: str | None) -> str:
    """Write an input as in Python: ``rate``, ``rate=5``, ``tokens_per_month="2B"``."""
    if value is None:
        return field
    try:
        float(value)
    except ValueError:
        return f'{field}="{value}"'
    return f"{field}={value}"


_FLAGS = {
    "start": "from",
    "end": "to",
    "for_": "for",
    "as_json": "json",
    "timings": "from",
    "as_family": "as",
    "try_": "try",
    "classes": "class",
    "open_": "open",
}
"""Flags of fields whose flag is not a valid Python name."""


def flag(field: str, value: str | None = None) -> str:
    """Write an input as it is typed: ``--rate``, ``--rate 5``."""
    written = f"--{_FLAGS.get(field, field).replace('_', '-')}"
    return written if value is None else f"{written} {value}"


def by_name(text: str) -> str:
    """Replace the flags in a text by the names of Python arguments."""
    return re.sub(r"(?<![\w-])--([a-z][a-z-]*)", lambda found: found[1].replace("-", "_"), text)


class TokonomicsError(Exception):
    """Say what is wrong, where, and how to put it right."""

    def __init__(
        self, what: str, *, where: str | None = None, field: str | None = None, fix: str | None = None
    ) -> None:
        what = without_keys(what)
        super().__init__(what)
        self.what = what
        self.where = where
        """A file and line, or an address; if there is a field, it comes after this."""
        self.field = field
        """The field of the request; several are separated by commas."""
        self.fix = fix

    def spelled(self, spell: Spell) -> tuple[str, str | None, str | None]:
        """Return what is wrong, where, and the fix, with inputs as the door writes them."""
        names = [spell(name.strip(), None) for name in self.field.split(",")] if self.field else []
        place = ": ".join(part for part in (self.where, ", ".join(names)) if part) or None
        said = [text and spelled(text, spell) for text in (place, self.fix)]
        return spelled(self.what, spell), said[0], said[1]

    def message(self, spell: Spell) -> str:
        """Return what is wrong, where, and the fix as one text."""
        what, where, fix = self.spelled(spell)
        line = f"{where}: {what}" if where else what
        return f"{line}\n  {fix}" if fix else line

    def __str__(self) -> str:
        return self.message(in_python)


class UnknownName(TokonomicsError):
    """Raised for a name not in the catalogue; suggests the nearest, or ``listing``, the verb that lists all."""

    def __init__(
        self, kind: str, name: str, known: Iterable[str], *, fix: str | None = None, listing: str | None = None
    ) -> None:
        hint = did_you_mean(name, known) or (f"`{listing}` shows those known." if listing else None)
        super().__init__(
            f"unknown {kind} '{shorten(name)}'", fix="\n  ".join(line for line in (hint, fix) if line) or None
        )


class BadInput(TokonomicsError):
    """Raised for a value or a file that cannot be used as given."""


class DoesNotFit(TokonomicsError):
    """Raised when the model or the batch needs more memory than there is; carries the largest batch that fits."""

    def __init__(self, what: str, *, largest: int, fix: str | None = None) -> None:
        super().__init__(what, fix=fix)
        self.largest = largest


def nearest(name: str, known: Iterable[str], count: int = 3) -> list[str]:
    """Return the known names most like the given one, best first."""
    spellings: dict[str, str] = {}
    for candidate in known:
        spellings.setdefault(candidate.lower(), candidate)
    wanted = name.lower()[:80]
    close = get_close_matches(wanted, spellings, n=count, cutoff=0.5)
    if len(close) < count and len(wanted) >= 2:
        inside = [spelling for spelling in spellings if wanted in spelling and spelling not in close]
        close += sorted(inside, key=len)[: count - len(close)]
    return [spellings[spelling] for spelling in close]


def did_you_mean(name: str, known: Iterable[str], count: int = 3) -> str | None:
    """Return ``Did you mean plan?`` with the known names most like the given one; None if none is similar."""
    guesses = nearest(name, known, count)
    return f"Did you mean {' or '.join(guesses)}?" if guesses else None


KEYS = ("OPENAI_API_KEY", "TOKONOMICS_METER_AUTHORIZATION", "TOKONOMICS_EMBEDDINGS_KEY", "TOKONOMICS_TOKEN", "HF_TOKEN")
"""Environment variables whose values are sent to servers, or required by ours, and must never be shown."""
_SHORTEST_KEY = 8
"""Characters. A shorter value, such as the EMPTY that local servers accept, is not a secret and may be any word."""


def without_keys(text: str, also: str | None = None) -> str:
    """Remove our keys from a server's text, and the beginning of a key where the text was cut off."""
    for value in (*map(os.environ.get, KEYS), also):
        # A header's value is ``Bearer KEY``: a server may repeat all of it or the key alone.
        for key in ((value or "").strip(), (value or "").strip().rpartition(" ")[2]):
            if len(key) < _SHORTEST_KEY:
                continue
            text = text.replace(key, "(key)")
            for length in range(min(len(key), len(text)), _SHORTEST_KEY - 1, -1):
                if text.endswith(key[:length]):
                    text = text[:-length] + "(key)"
                    break
    return text


def shorten(text: str, limit: int = 60) -> str:
    """Quote what a user or a server wrote: printable, of bounded length, and without our keys.

    Keys are removed first: half a key would no longer be recognised.
    """
    printable = "".join(char if char.isprintable() else "?" for char in without_keys(text))
    return printable if len(printable) <= limit else printable[: limit - 1] + "…"


def from_validation(error: "ValidationError", where: str, known_fields: Mapping[str, object] | None = None) -> BadInput:
    """Turn the first problem that pydantic found into a sentence that names the field."""
    problem = error.errors(include_url=False)[0]
    field = ".".join(str(part) for part in problem["loc"]) or "value"
    if problem["type"] == "extra_forbidden":
        hint = did_you_mean(field.rsplit(".", 1)[-1], known_fields or ())
        return BadInput(f"unknown field '{shorten(field)}'", where=where, fix=hint)
    if problem["type"] == "missing":
        return BadInput(f"field '{shorten(field)}' is missing", where=where)
    if problem["type"] == "json_invalid":
        return BadInput(f"is not a JSON document, or not all of one: {problem['ctx']['error']}", where=where)
    message = problem["msg"].removeprefix("Value error, ")
    given = shorten(repr(problem.get("input")))
    return BadInput(f"field '{shorten(field)}': {message} (got {given})", where=where)
