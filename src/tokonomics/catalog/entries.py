"""Find entries of the catalogue by the names people use for them, and read those of the user's own file.

Case, spaces, dashes and underscores do not matter; a vendor prefix ("NVIDIA", "meta-llama/") may be left out.

The user's own catalogue is one TOML file, at ``$TOKONOMICS_CATALOG`` or ``~/.config/tokonomics/catalog.toml``; it need
not exist. An entry ``[models.my-model]`` or ``[gpus.my-card]`` is read by the module of its section, and an entry with
the key of ours replaces it. Writing to it (``save_entry``) leaves every other line as it was.
"""

import csv
import gzip
import json
import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from datetime import date
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol, TypeVar

from tokonomics.errors import BadInput, UnknownName, nearest, shorten
from tokonomics.files import make_folder, write_text


class Named(Protocol):
    @property
    def key(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def aliases(self) -> tuple[str, ...]: ...


Entry = TypeVar("Entry", bound=Named)

_VENDORS = re.compile("^(nvidia|amd|intel|apple|google|aws|geforce|tesla|instinct)+(?=.)", re.DOTALL)


@lru_cache(maxsize=8192)
def spelling(name: str) -> str:
    """Return the form in which two spellings of one name are equal; cached, because a lookup compares all names."""
    bare = re.sub(r"[\s_\-]+", "", name.casefold().rsplit("/", 1)[-1])
    return _VENDORS.sub("", bare)


def spellings(entry: Named) -> set[str]:
    """Return every form under which an entry is found."""
    return {spelling(name) for name in (entry.key, entry.name, *entry.aliases)}


def resolve(
    kind: str, name: str, entries: Iterable[Entry], *, fix: str | None = None, listing: str | None = None
) -> Entry:
    """Return the entry with that name, or raise an error that suggests the nearest or the verb that lists them."""
    known = tuple(entries)
    wanted = spelling(name)
    for entry in known:
        if wanted in spellings(entry):
            return entry
    names = [spelled for entry in known for spelled in (entry.key, *entry.aliases)]
    raise UnknownName(kind, name, names, fix=fix, listing=listing)


DATA = Path(__file__).parent / "data"
VARIABLE = "TOKONOMICS_CATALOG"
SECTIONS = ("models", "gpus", "apis", "recovery", "market")
MARKET_KEYS = ("provider", "region", "sellers", "discount", "offers")
LARGEST_FILE = 10_000_000


def shipped_rows(name: str) -> list[dict[str, str]]:
    """Return the rows of one of our CSV files, without empty cells; the long histories are packed."""
    with (gzip.open if name.endswith(".gz") else open)(DATA / name, "rt", encoding="utf-8", newline="") as file:
        header, *rows = csv.reader(file)
    return [{field: cell for field, cell in zip(header, row, strict=True) if cell} for row in rows]


def shipped_tables(name: str) -> dict[str, Any]:
    """Return the content of one of our TOML files."""
    return tomllib.loads((DATA / name).read_text(encoding="utf-8"))


def user_path() -> Path:
    """Return where the user's catalogue is, or would be."""
    given = os.environ.get(VARIABLE)
    if given:
        return Path(given).expanduser()
    return _usual_path(os.path.expanduser("~"))  # noqa: PTH111 — never raises


@lru_cache(maxsize=8)
def _usual_path(home: str) -> Path:
    """Return where the catalogue of a user is; cached, as every lookup of a GPU asks for it."""
    return Path(home) / ".config" / "tokonomics" / "catalog.toml"


def stamp(path: Path) -> int:
    """Return a number that changes with the file; 0 if there is no file."""
    try:
        return path.stat().st_mtime_ns
    except (OSError, ValueError):
        return 0


def user_market() -> dict[str, Any]:
    """Return the user's own market, the default for what is not asked: ``provider = ["aws"]``, ``region = "EU"`` …"""
    market = _section("market")
    for key, value in market.items():
        if key not in MARKET_KEYS:
            fix = f"It takes {', '.join(MARKET_KEYS)}."
            raise BadInput(f"[market] has no '{shorten(key)}'", where=str(user_path()), fix=fix)
        texts = value if isinstance(value, list) else [value]
        if not texts or not all(isinstance(text, str) and text for text in texts):
            raise BadInput(f"[market] {key} must be a text or a list of texts", where=str(user_path()))
    return {key: value if key == "offers" or isinstance(value, list) else [value] for key, value in market.items()}


def user_tables(section: str) -> dict[str, dict[str, Any]]:
    """Return the entries of one section by key; none if there is no file."""
    entries = _section(section)
    for key, entry in entries.items():
        if not isinstance(entry, dict):
            raise BadInput(f"'{section}.{shorten(key)}' needs a table", where=str(user_path()))
    return entries


def _section(section: str) -> dict[str, Any]:
    path = user_path()
    try:
        if not path.exists():
            if os.environ.get(VARIABLE):
                raise BadInput("there is no such file", where=str(path), fix=f"Unset {VARIABLE} or create the file.")
            return {}
        stamp = path.stat()
    except (OSError, ValueError) as error:
        raise BadInput(f"cannot be read: {shorten(str(error))}", where=shorten(str(path))) from None
    return _parse(path, stamp.st_mtime_ns, stamp.st_size).get(section, {})


def save_entry(section: str, key: str, fields: Mapping[str, Any]) -> Path:
    """Add an entry to the file, replacing the one with that key; return the file's path."""
    path = user_path()
    own = user_tables(section) if path.exists() else {}
    text = path.read_text("utf-8-sig") if path.exists() else ""
    header = f"[{section}.{json.dumps(key, ensure_ascii=False)}]"
    if key in own:
        entry = re.compile(rf"^{re.escape(header)}[^\n]*\n(?:(?!\[)[^\n]*\n?)*", re.MULTILINE)
        text, found = entry.subn("", text)
        if not found:
            what = f"has an entry {section}.{shorten(key)} that is not written as {header}"
            raise BadInput(what, where=str(path), fix="Remove it, and try again.")
    lines = [header, *(f"{name} = {_toml(value)}" for name, value in fields.items())]
    text = "\n".join([*([text.rstrip("\n"), ""] if text.strip() else []), *lines, ""])
    make_folder(path.parent, str(path.parent))
    write_text(path, text, str(path))
    return path


def _toml(value: object) -> str:
    """Write a text, number, date or list as TOML: like JSON, except for dates."""
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    return json.dumps(value, ensure_ascii=False)


@lru_cache(maxsize=4)
def _parse(path: Path, changed: int, size: int) -> dict[str, dict[str, Any]]:
    """Return the file's sections; read it again only if it has changed."""
    where = str(path)
    if not path.is_file():
        raise BadInput("is not a file", where=where)
    if size > LARGEST_FILE:
        raise BadInput(f"has {size} bytes, too many for a catalogue", where=where)
    try:
        tables = tomllib.loads(path.read_bytes().decode("utf-8-sig"))
    except OSError as error:
        raise BadInput(f"cannot be read: {error.strerror or error}", where=where) from None
    except UnicodeDecodeError as error:
        raise BadInput(f"is not UTF-8 text (byte {error.start})", where=where) from None
    except tomllib.TOMLDecodeError as error:
        raise BadInput(f"is not valid TOML: {error}", where=where) from None
    except (RecursionError, ValueError) as error:
        raise BadInput(f"cannot be read: {shorten(str(error))}", where=where) from None
    for name, table in tables.items():
        if name not in SECTIONS:
            fix = f"Did you mean {' or '.join(nearest(name, SECTIONS) or SECTIONS)}?"
            raise BadInput(f"unknown section '{shorten(name)}'", where=where, fix=fix)
        if not isinstance(table, dict):
            raise BadInput(f"'{name}' needs tables such as [{name}.my-entry]", where=where)
    return tables
