"""Parse the small text grammar of traffic: ``name:value,key=value,…``; times are ``90``, ``10m``, ``2h``, tokens
``32k``."""

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from tokonomics.errors import BadInput, nearest, shorten
from tokonomics.units import scaled

_SECONDS = {"ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_NUMBER = r"([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,3})?"


@dataclass(frozen=True)
class Phrase:
    """One parsed text: ``gamma:2,cv=3`` is the name ``gamma``, the value ``2`` and the option ``cv``."""

    text: str
    name: str
    value: str | None
    options: Mapping[str, str]
    field: str
    examples: str

    def wrong(self, why: str) -> BadInput:
        return BadInput(f"'{shorten(self.text)}': {why}", field=self.field, fix=f"Such as: {self.examples}.")

    def allow(self, *names: str) -> None:
        """Refuse options that have no meaning here."""
        for name in self.options:
            if name not in names:
                guess = nearest(name, names, 1)
                known = f"did you mean {guess[0]}=?" if guess else f"it takes {', '.join(names) or 'none'}"
                raise self.wrong(f"unknown option '{shorten(name, 20)}='; {known}")

    def number(self, name: str | None, low: float, high: float, default: float | None = None) -> float:
        """Return an option, or the plain value if ``name`` is None, as a number from low to high."""
        return self._read(name, low, high, default, _plain_number, "a number")

    def tokens(self, name: str | None, low: float, high: float, default: float | None = None) -> float:
        """Return an option, or the plain value if ``name`` is None, as a number of tokens: ``6000`` or ``6k``."""
        return self._read(name, low, high, default, scaled, "a number of tokens")

    def time_s(self, name: str, low: float, high: float, default: float | None = None) -> float:
        return self._read(name, low, high, default, span_s, "a time", _written_span)

    def _read(
        self,
        name: str | None,
        low: float,
        high: float,
        default: float | None,
        read: Callable[[str], float | None],
        kind: str,
        write: Callable[[float], str] = "{:,.12g}".format,
    ) -> float:
        given = self.value if name is None else self.options.get(name)
        label = f"{name}=" if name else f"the value after '{self.name}:'" if self.name else "the first value"
        if given is None:
            if default is None:
                raise self.wrong(f"{label} is missing")
            return default
        value = read(given)
        if value is None:
            raise self.wrong(f"{label} '{shorten(given, 20)}' is not {kind} between {low:,.12g} and {high:,.12g}")
        if not low <= value <= high:
            raise self.wrong(f"{label} must be between {write(low)} and {write(high)}, got {shorten(given, 20)}")
        return value


def parse_phrase(text: str, names: Iterable[str], *, field: str, examples: str) -> Phrase:
    """Parse a text and check its name; the caller checks its options."""
    name, _, rest = text.strip().partition(":")
    name, known = name.strip().lower(), list(names)
    blank = Phrase(text, name, None, {}, field, examples)
    if name not in known:
        guess = nearest(name, known, 1)
        hint = f" (did you mean {guess[0]}?)" if guess else ""
        raise blank.wrong(f"'{shorten(name, 30)}' is none of {', '.join(known)}{hint}")
    return read_options(blank, rest)


def unnamed_phrase(text: str, field: str, examples: str) -> Phrase:
    """Parse a text without a name before its value: ``20,tokens=1k``."""
    return read_options(Phrase(text, "", None, {}, field, examples), text)


def read_options(phrase: Phrase, rest: str) -> Phrase:
    """Return the same phrase with the value and the options written in ``rest``."""
    value: str | None = None
    options: dict[str, str] = {}
    for part in filter(None, map(str.strip, rest.split(","))):
        key, equals, given = part.partition("=")
        key = key.strip().lower()
        if not equals and value is None and not options:
            value = part
        elif not equals or not key or not given.strip():
            raise phrase.wrong(f"'{shorten(part, 30)}' is not written as name=value")
        elif key in options:
            raise phrase.wrong(f"{shorten(key, 20)}= is given twice")
        else:
            options[key] = given.strip()
    return replace(phrase, value=value, options=options)


def _plain_number(text: str) -> float | None:
    return span_s(text) if re.fullmatch(_NUMBER, text) else None


def _written_span(span: float) -> str:
    """Write a time in the largest unit, from hours down, of which it is a whole number."""
    whole = (unit for unit in ("h", "m", "s", "ms") if span and span % _SECONDS[unit] == 0)
    unit = next(whole, "s")
    return f"{span / _SECONDS[unit]:,.12g}{unit}" if span else "0"


def span_s(text: str) -> float | None:
    """Return the seconds of a text such as ``90``, ``1.5h``, ``10m`` or ``250ms``; None if it is no time."""
    found = re.fullmatch(rf"({_NUMBER})\s*(ms|s|min|m|h|d|w)?", text.strip())
    if not found:
        return None
    value = float(found[1]) * _SECONDS[found[4] or "s"]
    return value if math.isfinite(value) else None
