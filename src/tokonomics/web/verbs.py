"""Which verbs the page may call, and with what: read off the functions of the command line.

A parameter of a verb is a field of the same name, type, bounds and help in a pydantic model, so that the OpenAPI
document, the check of a request and the command line cannot drift apart. What writes files, opens addresses or chooses
the output's shape is left out; what names a file on the command line names an upload or a shipped sample here.
"""

import inspect
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, create_model
from typer.models import ArgumentInfo, OptionInfo

from tokonomics.cli.main import app
from tokonomics.errors import UnknownName

UPLOAD = "upload:"
MOST_TEXT = 2_000
"""Characters of one value; the longest that makes sense is a list of all regions."""
MOST_ITEMS = 64
"""Values of a list."""
_MOST_NUMBER = 2**53
"""What JSON can carry without loss in a browser."""

_LEFT_OUT = {
    "chart", "html", "json", "save", "deploy_to", "embedding_model", "embedding_usd_per_mtok", "strict", "profile",
}  # fmt: skip
_TIME_LIMITS = {"time_limit": 120.0}
"""Seconds a solver may take: the worker's own limit lies above."""


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
    "input": Kind.LENGTHS, "output": Kind.LENGTHS, "input_text": Kind.LENGTHS, "output_text": Kind.LENGTHS,
    "semantic": Kind.EMBEDDER,
}  # fmt: skip


@dataclass(frozen=True)
class Parameter:
    """One parameter of a verb, as the command line declares it."""

    name: str
    flag: str | None
    """None for what the command line takes by position."""
    type: Any
    is_list: bool
    required: bool
    default: Any
    help: str
    default_text: str | None
    low: float | None
    high: float | None
    kind: Kind

    def described(self) -> dict[str, Any]:
        """For the page: what it is called, what it takes, what it means."""
        return {
            "name": self.name,
            "type": ("list of " if self.is_list else "") + _TYPE_NAMES[self.type],
            "kind": str(self.kind),
            "required": self.required,
            "default": self.default,
            "default_text": self.default_text,
            "minimum": self.low,
            "maximum": self.high,
            "help": self.help,
            "flag": self.flag,
        }


_TYPE_NAMES = {str: "text", int: "integer", float: "number", bool: "boolean"}


@dataclass(frozen=True)
class Verb:
    """A verb of the command line that the page may call."""

    name: str
    function: Callable[..., None]
    parameters: Mapping[str, Parameter]
    inputs: type[BaseModel]
    summary: str
    quick_when: "tuple[str, bool] | bool"
    """Answered at once always, never, or where a parameter has this value."""

    def is_quick(self, inputs: Mapping[str, Any]) -> bool:
        if isinstance(self.quick_when, bool):
            return self.quick_when
        name, value = self.quick_when
        return bool(inputs.get(name, self.parameters[name].default)) is value

    def command(self, inputs: Mapping[str, Any]) -> str:
        """The line that asks the same of the command line."""
        placed: list[str] = []
        flagged: list[str] = []
        for parameter in self.parameters.values():
            if parameter.name not in inputs or inputs[parameter.name] == parameter.default:
                continue
            given = inputs[parameter.name]
            values = [str(each) for each in (given if isinstance(given, list) else [given])]
            if parameter.flag is None:
                placed += values
            elif parameter.type is bool:
                flagged += [parameter.flag] if given else []
            else:
                flagged += [part for value in values for part in (parameter.flag, value)]
        return shlex.join(["tokonomics", self.name, *placed, *flagged])


_QUICK: "dict[str, tuple[str, bool] | bool]" = {
    "plan": ("quick", True), "curve": True, "predict": True, "fit": True, "cost": True, "own-hardware": True,
    "compare": ("simulate", False), "trace": True, "import": True, "offers": True, "breakeven": ("quick", True),
    "simulate": False, "capacity": False, "fleet": False, "levers": False, "stack": False, "cache": False,
    "tenants": False,
}  # fmt: skip
"""The verbs of the page, and when a closed form answers them."""


@lru_cache(maxsize=1)
def verbs() -> Mapping[str, Verb]:
    """By name, in the order of the command line's help."""
    found = {}
    for command in app.registered_commands:
        if command.name in _QUICK and command.callback is not None:
            found[command.name] = _verb(command.name, command.callback, _QUICK[command.name])
    return found


def find_verb(name: str) -> Verb:
    """A verb by name."""
    if name not in verbs():
        raise UnknownName("verb", name, verbs())
    return verbs()[name]


def _verb(name: str, function: Callable[..., None], quick_when: "tuple[str, bool] | bool") -> Verb:
    hints = get_type_hints(function, include_extras=True)
    parameters = {
        each.name: made
        for each in inspect.signature(function).parameters.values()
        if each.name not in _LEFT_OUT and (made := _parameter(each, hints[each.name])) is not None
    }
    summary = (inspect.getdoc(function) or "").split("\n\n")[0].replace("\n", " ")
    fields: dict[str, Any] = {each.name: _field(each) for each in parameters.values()}
    config = ConfigDict(
        extra="forbid",
        allow_inf_nan=False,
        coerce_numbers_to_str=True,
        str_max_length=MOST_TEXT,
        title=f"{name} inputs",
    )
    model = create_model(f"{name.title().replace('-', '')}Inputs", __config__=config, **fields)
    model.__doc__ = summary
    return Verb(name, function, parameters, model, summary, quick_when)


def _parameter(each: inspect.Parameter, hint: Any) -> Parameter | None:
    declared, info = get_args(hint)[:2]
    if not isinstance(info, OptionInfo | ArgumentInfo):
        raise TypeError(f"{each.name} is declared neither as an option nor as an argument")
    options = [part for part in get_args(declared) if part is not type(None)] if _is_union(declared) else [declared]
    inner = options[0]
    is_list = get_origin(inner) is list
    plain = get_args(inner)[0] if is_list else inner
    kind = Kind.FILE if plain is Path else _KINDS.get(each.name, Kind.PLAIN) if plain is str else Kind.PLAIN
    by_flag = isinstance(info, OptionInfo)
    # Inside Annotated, typer takes the first name of an option for its default, and sorts that out later.
    written = (info.default, *(info.param_decls or ()))
    flags = [flag for flag in written if isinstance(flag, str) and flag.startswith("--")]
    return Parameter(
        name=each.name,
        flag=(flags[0].split("/")[0] if flags else "--" + each.name.replace("_", "-")) if by_flag else None,
        type=str if plain is Path else plain,
        is_list=is_list,
        required=each.default is inspect.Parameter.empty,
        default=None if each.default is inspect.Parameter.empty else each.default,
        help=info.help or "",
        default_text=info.show_default if isinstance(info.show_default, str) else None,
        low=info.min,
        high=_TIME_LIMITS.get(each.name, info.max),
        kind=kind,
    )


def _is_union(declared: Any) -> bool:
    return get_origin(declared) in (Union, UnionType)


def _field(parameter: Parameter) -> tuple[Any, Any]:
    """Type and bounds, as pydantic takes them."""
    limits: dict[str, Any] = {}
    if parameter.type in (int, float):
        low = parameter.low if parameter.low is not None else -_MOST_NUMBER
        high = parameter.high if parameter.high is not None else _MOST_NUMBER
        limits = {"ge": low, "le": high}
    inner: Any = parameter.type
    if parameter.kind is Kind.EMBEDDER:
        inner = Literal["hashed"]
    made: Any = Annotated[inner, Field(**limits)] if limits else inner
    if parameter.is_list:
        made = Annotated[
            list[made], Field(min_length=int(parameter.required), max_length=MOST_ITEMS), BeforeValidator(_as_list)
        ]
    note = _NOTES.get(parameter.kind, "")
    about = " ".join(part for part in (parameter.help, note) if part)
    shown = [_EXAMPLES[parameter.name]] if parameter.name in _EXAMPLES and parameter.type is str else None
    if parameter.required:
        return made, Field(description=about, examples=shown)
    optional = made if parameter.default is not None else made | None
    return optional, Field(parameter.default, description=about, examples=shown)


_EXAMPLES = {
    "model": "llama-3.1-8b", "model_name": "llama-3.1-8b", "models": ["llama-3.1-8b", "qwen3-8b"],
    "what": ["llama-3.1-8b"], "gpu": "H100", "rate": "5", "input": "1000", "output": "300", "file": "azure-conv",
}  # fmt: skip


_NOTES = {
    Kind.MODEL: "Here: a name of the catalogue, or upload:ID of a config.json.",
    Kind.TRACE: "Here: a shipped sample, or upload:ID.",
    Kind.FILE: "Here: upload:ID.",
    Kind.LENGTHS: "Here trace: takes a shipped sample or upload:ID.",
    Kind.EMBEDDER: "Here: hashed.",
}


def _as_list(value: Any) -> Any:
    """One value where a list is taken is a list of one, as on the command line."""
    return [value] if isinstance(value, str | int | float) and not isinstance(value, bool) else value
