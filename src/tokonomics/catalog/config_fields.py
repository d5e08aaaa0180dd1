"""A config.json seen through questions that either have a usable answer or end in one clear message.

Every field is read through ``Fields``, which checks its type and range and remembers that it was read. What was
neither read nor known to be without effect on cost is an error at the end if its name suggests a size: it could change
the answer, and the reader does not guess. Any other is left to a note.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeVar

from tokonomics.catalog.config_families import SHAPE_WORDS
from tokonomics.errors import BadInput, did_you_mean, shorten

LARGEST = 1 << 24  # no width, count or vocabulary of a real model comes near: beyond it is a slip


Value = TypeVar("Value")


class Fields:
    """The fields of one JSON object, with the file and the path they came from."""

    def __init__(self, values: Mapping[str, object], where: str, path: str = "") -> None:
        self._values = values
        self._read: set[str] = set()
        self.where = where
        self.path = path
        self.notes: tuple[str, ...] = ()  # fields inside this one that nobody interpreted

    def wrong(self, name: str, what: str, fix: str | None = None) -> BadInput:
        """The error that names the field and the file it is in."""
        return BadInput(f"field '{shorten(self.path + name)}' {what}", where=self.where, fix=fix)

    def again(self) -> "Fields":
        """The same fields, none of them read yet."""
        return Fields(self._values, self.where, self.path)

    @property
    def values(self) -> Mapping[str, object]:
        return self._values

    def names(self) -> tuple[str, ...]:
        return tuple(self._values)

    def has(self, name: str) -> bool:
        """Whether the field is there, even as null."""
        return name in self._values

    def value(self, name: str) -> object:
        """The field as it stands, null when absent; ``linear_attn_config.kda_layers`` is inside another."""
        outer, _, inner = name.partition(".")
        if not inner or name in self._values:
            self._read.add(name)
            return self._values.get(name)
        self._read.add(outer)
        around = self._values.get(outer)
        return around.get(inner) if isinstance(around, Mapping) else None

    def size(self, *names: str, default: int | None = None, least: int = 1, most: int = LARGEST) -> int:
        """A whole number under any of its names; absent or null means the default, and without one is an error."""
        given = self.optional_size(*names, least=least, most=most)
        size = default if given is None else given
        if size is None:
            raise self.wrong(names[0], "is missing", fix="Copy it from the model's original config.json.")
        return size

    def optional_size(self, *names: str, least: int = 1, most: int = LARGEST) -> int | None:
        """A whole number, or nothing; several names for one thing have to agree."""
        found: int | None = None
        for name in names:
            given = self.value(name)
            if given is None:
                continue
            if isinstance(given, bool) or not isinstance(given, int):
                raise self.wrong(name, f"needs a whole number (got {_quoted(given)})")
            if not least <= given <= most:
                raise self.wrong(name, f"needs a whole number from {least} to {most} (got {_quoted(given)})")
            if found is not None and found != given:
                raise self.wrong(name, f"says {given} where '{names[0]}' says {found}")
            found = given
        return found

    def flag(self, name: str, default: bool) -> bool:
        given = self._typed(name, bool, "true or false")
        return default if given is None else given

    def word(self, name: str) -> str | None:
        return self._typed(name, str, "a string")

    def words(self, name: str) -> list[str] | None:
        return self._typed(name, list, "a list of strings", lambda item: isinstance(item, str))

    def numbers(self, name: str) -> list[int] | None:
        """A list of whole numbers, none negative."""
        return self._typed(name, list, "a list of whole numbers", lambda n: type(n) is int and 0 <= n <= LARGEST)

    def child(self, name: str) -> "Fields | None":
        """The nested object of that name."""
        given = self._typed(name, dict, "an object")
        return None if given is None else Fields(given, self.where, f"{self.path}{name}.")

    def _typed(
        self, name: str, kind: type[Value], wanted: str, fine: Callable[[Any], bool] = lambda item: True
    ) -> Value | None:
        """The field's value, None where it is absent or null; an error unless it is what is wanted, item by item."""
        given = self.value(name)
        if given is None or (isinstance(given, kind) and (not isinstance(given, list) or all(map(fine, given)))):
            return given
        raise self.wrong(name, f"needs {wanted} (got {_quoted(given)})")

    def expect(self, understood: Mapping[str, Sequence[object]]) -> None:
        """Fields that are understood at these values only; absent and null are fine."""
        for name, accepted in understood.items():
            given = self.value(name)
            if given is not None and not any(type(given) is type(value) and given == value for value in accepted):
                wanted = " or ".join(map(_quoted, accepted))
                raise self.wrong(name, f"is understood only as {wanted} (got {_quoted(given)})")

    def unread(self, harmless: Collection[str]) -> tuple[str, ...]:
        """The fields that nobody interpreted, to be noted; an error where one's name suggests that it sets a size."""
        left = [
            name
            for name, given in self._values.items()
            if given is not None and name not in self._read and name not in harmless and not name.startswith("_")
        ]
        for name in left:
            words = name.lower().replace("-", "_").split("_")
            if any(word.startswith(SHAPE_WORDS) for word in words):
                otherwise = "If it does not change the model's size, prefix it with '_' in a copy of the file."
                fix = f"{did_you_mean(name, self._read) or ''} {otherwise}".lstrip()
                raise self.wrong(name, "is not one this reader can interpret", fix)
        return tuple(f"{self.path}{name}" for name in left)


def _quoted(value: object) -> str:
    """A value as JSON would show it, short."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, float) and not math.isfinite(value):
        return "not a number" if math.isnan(value) else "infinity"
    if isinstance(value, int):
        return str(value) if abs(value) < 10**20 else "a number of more than 20 digits"
    if isinstance(value, str):
        return f"'{shorten(value, 40)}'"
    if isinstance(value, list):
        return "a list"
    return "an object" if isinstance(value, Mapping) else shorten(repr(value), 40)
