"""Finding a catalogue entry by the names people use for it.

Case, spaces, dashes and underscores do not matter; a vendor prefix ("NVIDIA", "meta-llama/") may be left out.
"""

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Protocol, TypeVar

from tokonomics.errors import UnknownName


class Named(Protocol):
    @property
    def key(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def aliases(self) -> tuple[str, ...]: ...


Entry = TypeVar("Entry", bound=Named)

_VENDORS = re.compile("^(nvidia|amd|intel|geforce|tesla|instinct)+(?=.)", re.DOTALL)


@lru_cache(maxsize=8192)
def spelling(name: str) -> str:
    """The form in which two spellings of one name are equal; kept, as every name looked up is held against all."""
    bare = re.sub(r"[\s_\-]+", "", name.casefold().rsplit("/", 1)[-1])
    return _VENDORS.sub("", bare)


def spellings(entry: Named) -> set[str]:
    """Every form under which an entry is found."""
    return {spelling(name) for name in (entry.key, entry.name, *entry.aliases)}


def resolve(
    kind: str, name: str, entries: Iterable[Entry], *, fix: str | None = None, listing: str | None = None
) -> Entry:
    """The entry of that name, or an error that suggests the nearest or the verb that lists them."""
    known = tuple(entries)
    wanted = spelling(name)
    for entry in known:
        if wanted in spellings(entry):
            return entry
    names = [spelled for entry in known for spelled in (entry.key, *entry.aliases)]
    raise UnknownName(kind, name, names, fix=fix, listing=listing)
