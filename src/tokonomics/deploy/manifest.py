"""Fill a target's manifest (``data/NAME.yaml``) with a plan, and write it as text.

A manifest is parsed as YAML first, and values are set in the parsed structure, so that nothing in a value can become a
key, a comment or a line of its own. A string in it may be:

- ``$job.replicas``: that value with its own type, or its text inside a longer text; ``$(job.replicas)`` is always
  text. If the value is None, the whole text is left out, with its key or its place in a list.
- ``$use: NAME``: a part of this manifest or of ``data/parts.yaml``.
- ``$if: job.offer`` with ``$then`` or ``$else`` or both.
- ``$yaml: …``: that part as YAML text.
- ``$side: …`` in a list: repeated for each side of a fleet; elsewhere ``$side`` is the first side.
"""

import math
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

_VALUE = re.compile(r"\$\(([a-z_.]+)\)|\$([a-z_]+(?:\.[a-z_]+)*)")


@cache
def manifest(name: str) -> dict[str, Any]:
    """Return a file of manifests, with the parts that all targets share; do not change it."""
    shared = {} if name == "parts" else manifest("parts")
    text = (Path(__file__).parent / "data" / f"{name}.yaml").read_text(encoding="utf-8")
    own: dict[str, Any] = yaml.safe_load(text)
    return shared | own


def fill(template: Any, values: Mapping[str, Any]) -> Any:
    """Return the template with its values; None if it says nothing without a missing value."""
    match template:
        case str():
            return _text(template, values)
        case list():
            return list(_items(template, values))
        case {"$if": condition}:
            return fill(template.get("$then" if _value(condition, values) else "$else"), values)
        case {"$use": name}:
            return fill(values["parts"][name], values)
        case {"$yaml": part}:
            return yaml_text(fill(part, values))
        case dict():
            filled = {key: fill(part, values) for key, part in template.items()}
            return {key: part for key, part in filled.items() if part is not None}
        case _:
            return template


def _items(template: list[Any], values: Mapping[str, Any]) -> Iterator[Any]:
    """Yield the items of a list; lists that are used, chosen or repeated inside it become part of it."""
    for item in template:
        for_sides = isinstance(item, dict) and "$side" in item
        for side in values["sides"] if for_sides else ({},):
            filled = fill(item["$side"] if for_sides else item, {**values, **side})
            if isinstance(filled, list) and isinstance(item, dict):
                yield from filled
            elif filled is not None:
                yield filled


def _text(text: str, values: Mapping[str, Any]) -> Any:
    whole = _VALUE.fullmatch(text)
    if whole and whole[2]:
        return _value(whole[2], values)
    found = {match[0]: _value(match[1] or match[2], values) for match in _VALUE.finditer(text)}
    if None in found.values():
        return None
    return _VALUE.sub(lambda match: str(found[match[0]]), text)


def _value(path: str, values: Mapping[str, Any]) -> Any:
    """Return the value at a path; None if a step before the last is None. An unknown name is an error."""
    value: Any = values
    for name in path.split("."):
        value = value[name] if isinstance(value, Mapping) else value and getattr(value, name)
    return value


# --- text -----------------------------------------------------------------------------------------------------------


def comment(text: str) -> str:
    """Write text as ``#`` lines; characters that could end a line early in a shell or in YAML are escaped."""
    shown = ("".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in line)
             for line in text.strip().splitlines() or [""])  # fmt: skip
    return "".join(f"# {line}".rstrip() + "\n" for line in shown)


class _Dumper(yaml.SafeDumper):  # type: ignore[misc]
    """Write block style with indented lists, and no anchors or aliases."""

    def ignore_aliases(self, data: object) -> bool:
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)

    def represent_text(self, text: str) -> yaml.ScalarNode:
        """Write several lines as a literal block; quote a text unless YAML 1.1 and 1.2 both read it as a string."""
        not_strings = {"true", "false", "yes", "no", "on", "off", "null", "y", "n"}
        plain = re.fullmatch("[A-Za-z][A-Za-z0-9_./-]*", text) and text.lower() not in not_strings
        style = "|" if text.endswith("\n") and text[0].isalnum() else None if plain else '"'
        return self.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _Dumper.represent_text)


def yaml_text(value: object) -> str:
    """Write a value as YAML, in the order of its keys."""
    return str(yaml.dump(value, Dumper=_Dumper, sort_keys=False, width=math.inf))
