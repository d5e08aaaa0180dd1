"""Nested dictionaries and lists as YAML text in block style, so that no YAML library is needed to write a deploy file.

Words of letters, digits and ``_ . / -`` that begin with a letter are written plainly, unless YAML reads them as
something else; every other string is double-quoted, all but printable ASCII escaped (YAML 1.2.2, sections 5.7, 7.3).
"""

import re
from collections.abc import Mapping, Sequence
from typing import TypeAlias

_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_./-]*")
_NOT_STRINGS = {"true", "false", "yes", "no", "on", "off", "null", "y", "n"}
"""What YAML 1.1 or 1.2 readers take for a boolean or nothing."""

Yaml: TypeAlias = "str | int | float | bool | Mapping[str, Yaml] | Sequence[Yaml]"


class Script(str):
    """Several lines, written as a literal block rather than as one quoted string."""


def yaml_text(value: Yaml, indent: str = "") -> str:
    """The value as lines of YAML, each ended."""
    if not isinstance(value, str) and isinstance(value, Mapping | Sequence) and not value:
        return f"{indent}{'{}' if isinstance(value, Mapping) else '[]'}\n"
    if isinstance(value, Mapping):
        return "".join(_entry(f"{indent}{_scalar(key)}:", item, indent) for key, item in value.items())
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "".join(_item(item, indent) for item in value)
    return f"{indent}{_scalar(value)}\n"


def _entry(key: str, value: Yaml, indent: str) -> str:
    if isinstance(value, Script):
        body = "".join(f"{indent}  {line}".rstrip() + "\n" for line in value.strip().splitlines())
        return f"{key} |\n{body}"
    if isinstance(value, str) or not isinstance(value, Mapping | Sequence) or not value:
        return f"{key} {yaml_text(value)}"
    return f"{key}\n{yaml_text(value, indent + '  ')}"


def _item(value: Yaml, indent: str) -> str:
    """A list's entry: the first line of what it holds follows the dash."""
    inner = yaml_text(value, f"{indent}  ")
    return f"{indent}- {inner[len(indent) + 2 :]}"


def _scalar(value: str | int | float | bool) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(value)
    if _PLAIN.fullmatch(value) and value.lower() not in _NOT_STRINGS:
        return value
    return f'"{"".join(map(_escaped, value))}"'


def _escaped(character: str) -> str:
    code = ord(character)
    if character in '"\\':
        return f"\\{character}"
    if 0x20 <= code < 0x7F:
        return character
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
