"""What every verb takes, read off the functions of the command line.

A parameter of a verb is a flag, a key of a scenario file, a field of the page's requests and a property of the JSON
Schema: one declaration, so that the four cannot drift apart. The key is the flag's name with underscores; what is
taken by position has the key of what it names (a model, a log).
"""

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from typer.models import ArgumentInfo, OptionInfo

from tokonomics.errors import BadInput, UnknownName, shorten


class Kind(StrEnum):
    """What the text of a parameter may name."""

    PLAIN = "plain"
    """Numbers, names of the catalogue and the small grammars of traffic: nothing on a disk."""
    MODEL = "model"
    TRACE = "trace"
    LENGTHS = "lengths"
    FILE = "file"
    EMBEDDER = "embedder"


_KINDS = {
    "model": Kind.MODEL, "model_name": Kind.MODEL, "models": Kind.MODEL, "what": Kind.MODEL, "draft": Kind.MODEL,
    "trace": Kind.TRACE, "file": Kind.TRACE,
    "input": Kind.LENGTHS, "output": Kind.LENGTHS,
    "semantic": Kind.EMBEDDER,
}  # fmt: skip
_KEYS_OF_PLACES = {"model_name": "model", "models": "model", "what": "model", "file": "trace"}
OUTPUT = frozenset({"chart", "html", "json", "save", "deploy_to"})
"""How the answer is shown and where it goes, not what is asked."""
TYPE_NAMES = {str: "text", int: "integer", float: "number", bool: "boolean"}


@dataclass(frozen=True)
class Parameter:
    """One parameter of a verb, as the command line declares it."""

    name: str
    """Of the function's argument."""
    key: str
    """In a scenario file."""
    flag: str | None
    """None for what the command line takes by position."""
    off: str | None
    """The flag that says no, where there is one."""
    type: Any
    is_list: bool
    required: bool
    default: Any
    help: str
    default_text: str | None
    low: float | None
    high: float | None
    kind: Kind
    takes_text: bool
    """A number that may be written as text: 10%."""

    def described(self) -> dict[str, Any]:
        """For the page: what it is called, what it takes, what it means."""
        return {
            "name": self.name,
            "type": ("list of " if self.is_list else "") + TYPE_NAMES[self.type],
            "kind": str(self.kind),
            "required": self.required,
            "default": self.default,
            "default_text": self.default_text,
            "minimum": self.low,
            "maximum": self.high,
            "help": self.help,
            "flag": self.flag,
        }

    def taken(self, value: object, verb: str, where: str | None = None) -> Any:
        """A value of a scenario file, as the command line takes it: text, or a list of texts."""
        if isinstance(value, list | tuple) and not self.is_list:
            if len(value) != 1:
                raise BadInput(
                    f"{verb} takes one {self.key}, got {len(value)}: {shorten(', '.join(map(str, value)))}",
                    where=where,
                    fix=f"Type {self.flag or self.key.upper()}, or write one under [{verb}].",
                )
            value = value[0]
        if not self.is_list:
            return self._one(value, where)
        return [self._one(each, where) for each in (value if isinstance(value, list | tuple) else [value])]

    def _one(self, value: object, where: str | None) -> Any:
        if isinstance(value, bool) or self.type is bool:
            if not (isinstance(value, bool) and self.type is bool):
                expected = "true or false" if self.type is bool else _a(TYPE_NAMES[self.type])
                raise BadInput(f"must be {expected}, got {shorten(str(value))}", where=where)
            return value
        if isinstance(value, int | float) and math.isfinite(value):
            return repr(value)
        if isinstance(value, str | Path):
            return str(value)
        raise BadInput(f"{shorten(str(value))} is not usable", where=where, fix=f"Write {_a(TYPE_NAMES[self.type])}.")


def _a(name: str) -> str:
    return f"an {name}" if name[0] in "aeiou" else f"a {name}" if name != "text" else name


Parameters = Mapping[str, Parameter]
"""Of one verb, by the name of the argument."""


def parameters_of(function: Callable[..., None]) -> dict[str, Parameter]:
    """Every parameter of a verb, in the order of its help."""
    hints = get_type_hints(function, include_extras=True)
    return {each.name: _parameter(each, hints[each.name]) for each in inspect.signature(function).parameters.values()}


def _parameter(each: inspect.Parameter, hint: Any) -> Parameter:
    declared, info = get_args(hint)[:2]
    if not isinstance(info, OptionInfo | ArgumentInfo):
        raise TypeError(f"{each.name} is declared neither as an option nor as an argument")
    options = [part for part in get_args(declared) if part is not type(None)] if _is_union(declared) else [declared]
    inner = options[0]
    is_list = get_origin(inner) is list
    plain = get_args(inner)[0] if is_list else inner
    kind = Kind.FILE if plain is Path else _KINDS.get(each.name, Kind.PLAIN) if plain is str else Kind.PLAIN
    flag, off = _flags(each.name, info) if isinstance(info, OptionInfo) else (None, None)
    return Parameter(
        name=each.name,
        key=flag.removeprefix("--").replace("-", "_") if flag else _KEYS_OF_PLACES.get(each.name, each.name),
        flag=flag,
        off=off,
        type=str if plain is Path else plain,
        is_list=is_list,
        required=each.default is inspect.Parameter.empty,
        default=None if each.default is inspect.Parameter.empty else each.default,
        help=info.help or "",
        default_text=info.show_default if isinstance(info.show_default, str) else None,
        low=info.min,
        high=info.max,
        kind=kind,
        takes_text=info.parser is not None,
    )


def _flags(name: str, info: OptionInfo) -> tuple[str, str | None]:
    """The flag, and the one that says no: ``--moe/--dense``."""
    # Inside Annotated, typer takes the first name of an option for its default, and sorts that out later.
    written = (info.default, *(info.param_decls or ()))
    declared = [flag for flag in written if isinstance(flag, str) and flag.startswith("--")]
    flag, _, off = (declared[0] if declared else "--" + name.replace("_", "-")).partition("/")
    return flag, off or None


def _is_union(declared: Any) -> bool:
    return get_origin(declared) in (Union, UnionType)


@lru_cache(maxsize=1)
def functions() -> Mapping[str, Callable[..., None]]:
    """The verbs of the command line by name, in the order of its help."""
    from tokonomics.cli.main import app

    return {each.name: each.callback for each in app.registered_commands if each.name and each.callback}


@lru_cache(maxsize=64)
def verb_parameters(verb: str) -> Parameters:
    """What a verb takes."""
    if verb not in functions():
        raise UnknownName("verb", verb, functions())
    return parameters_of(functions()[verb])


def parameter_for(verb: str, key: str) -> Parameter | None:
    """The verb's parameter for a key of a scenario file; by flag rather than by position where it has both."""
    found = [each for each in verb_parameters(verb).values() if each.key == key]
    return next((each for each in found if each.flag), found[0] if found else None)
