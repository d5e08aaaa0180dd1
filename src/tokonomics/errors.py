"""One exception family for everything a person can get wrong.

An error says what is wrong, where (file:line, field or flag) and what to do about it. The command line
prints it as one message and exits with code 2; nothing in it is a traceback.
"""

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic import ValidationError


class TokonomicsError(Exception):
    """What is wrong, where, and how to put it right."""

    def __init__(self, what: str, *, where: str | None = None, fix: str | None = None) -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.fix = fix

    def __str__(self) -> str:
        message = f"{self.where}: {self.what}" if self.where else self.what
        return f"{message}\n  {self.fix}" if self.fix else message


class UnknownName(TokonomicsError):
    """A name that is not in the catalogue; suggests the nearest ones, or ``listing``, the verb that shows them all."""

    def __init__(
        self, kind: str, name: str, known: Iterable[str], *, fix: str | None = None, listing: str | None = None
    ) -> None:
        self.suggestions = nearest(name, known)
        hint = f"`{listing}` shows those known." if listing else None
        if self.suggestions:
            hint = f"Did you mean {' or '.join(self.suggestions)}?"
        super().__init__(
            f"unknown {kind} '{shorten(name)}'", fix="\n  ".join(line for line in (hint, fix) if line) or None
        )


class BadInput(TokonomicsError):
    """A value or a file that cannot be used as given."""


class DoesNotFit(TokonomicsError):
    """The model, or the batch asked for, needs more memory than there is; carries the largest that fits."""

    def __init__(self, what: str, *, largest: int, fix: str | None = None) -> None:
        super().__init__(what, fix=fix)
        self.largest = largest


def nearest(name: str, known: Iterable[str], count: int = 3) -> list[str]:
    """The catalogue names most like the one given, best first."""
    spellings: dict[str, str] = {}
    for candidate in known:
        spellings.setdefault(candidate.lower(), candidate)
    wanted = name.lower()[:80]
    close = get_close_matches(wanted, spellings, n=count, cutoff=0.5)
    if len(close) < count and len(wanted) >= 2:
        inside = [spelling for spelling in spellings if wanted in spelling and spelling not in close]
        close += sorted(inside, key=len)[: count - len(close)]
    return [spellings[spelling] for spelling in close]


def shorten(text: str, limit: int = 60) -> str:
    """User input quoted in a message: printable and of bounded length."""
    printable = "".join(char if char.isprintable() else "?" for char in text)
    return printable if len(printable) <= limit else printable[: limit - 1] + "…"


def from_validation(error: "ValidationError", where: str, known_fields: Mapping[str, object] | None = None) -> BadInput:
    """The first problem pydantic found, as a sentence that names the field."""
    problem = error.errors(include_url=False)[0]
    field = ".".join(str(part) for part in problem["loc"]) or "value"
    if problem["type"] == "extra_forbidden":
        guesses = nearest(field.rsplit(".", 1)[-1], known_fields or ())
        hint = f"Did you mean {' or '.join(guesses)}?" if guesses else None
        return BadInput(f"unknown field '{shorten(field)}'", where=where, fix=hint)
    if problem["type"] == "missing":
        return BadInput(f"field '{shorten(field)}' is missing", where=where)
    message = problem["msg"].removeprefix("Value error, ")
    given = shorten(repr(problem.get("input")))
    return BadInput(f"field '{shorten(field)}': {message} (got {given})", where=where)
