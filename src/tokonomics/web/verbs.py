"""Which verbs the page may call, and with what: read off the functions of the command line.

A parameter of a verb is a field of the same name, type, bounds and help in a pydantic model, so that the OpenAPI
document, the check of a request and the command line cannot drift apart. What writes files, opens addresses or chooses
the output's shape is left out; what names a file on the command line names an upload or a shipped sample here.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, create_model

from tokonomics.cli.command_line import command_line, command_words
from tokonomics.cli.parameters import Kind, Parameter, functions, verb_parameters
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
        given = {name: inputs[name] for name in self.parameters if name in inputs}
        return command_line(command_words(self.name, given))


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
    return {name: _verb(name, made, _QUICK[name]) for name, made in functions().items() if name in _QUICK}


def find_verb(name: str) -> Verb:
    """A verb by name."""
    if name not in verbs():
        raise UnknownName("verb", name, verbs())
    return verbs()[name]


def _verb(name: str, function: Callable[..., None], quick_when: "tuple[str, bool] | bool") -> Verb:
    parameters = {
        each.name: replace(each, high=_TIME_LIMITS.get(each.name, each.high))
        for each in verb_parameters(name).values()
        if each.name not in _LEFT_OUT
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
