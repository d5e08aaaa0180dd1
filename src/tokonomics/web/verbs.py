"""Which questions the page may ask, and with what: their requests, less what reaches out of the page.

A field of a request is a field of the same name, type, bounds and help in the model that FastAPI checks. What writes
files or opens addresses is left out; what names a file on the command line names an upload or a shipped sample here.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, create_model, model_validator

from tokonomics.errors import UnknownName
from tokonomics.questions.command import command_line, command_words
from tokonomics.questions.request import Kind, Parameter
from tokonomics.questions.verbs import VERBS, Verb

UPLOAD = "upload:"
MOST_TEXT = 2_000
"""Characters of one value; the longest that makes sense is a list of all regions."""
MOST_ITEMS = 64
"""Values of a list."""
_MOST_NUMBER = 2**53
"""What JSON can carry without loss in a browser."""

_LEFT_OUT = frozenset({"embedding_model", "embedding_usd_per_mtok", "strict", "profile"})
_FORMER = {"what": "model", "model_name": "model", "models": "model", "file": "trace"}
"""What inputs were called in version 0.1."""
_TIME_LIMITS = {"time_limit": 120.0}
"""Seconds a solver may take: the worker's own limit lies above."""


@dataclass(frozen=True)
class PageVerb:
    """A question that the page may ask."""

    name: str
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
        return command_line(command_words(self.name, self.parameters, inputs))


_QUICK: "dict[str, tuple[str, bool] | bool]" = {
    "plan": ("quick", True), "curve": True, "predict": True, "fit": True, "cost": True, "own-hardware": True,
    "compare": ("simulate", False), "trace": True, "import": True, "offers": True, "breakeven": ("quick", True),
    "simulate": False, "capacity": False, "fleet": False, "levers": False, "stack": False, "cache": False,
    "tenants": False,
}  # fmt: skip
"""The verbs of the page, and when a closed form answers them."""


@lru_cache(maxsize=1)
def verbs() -> Mapping[str, PageVerb]:
    """By name, in the order of the command line's help."""
    return {name: _page_verb(verb, _QUICK[name]) for name, verb in VERBS.items() if name in _QUICK}


def find_verb(name: str) -> PageVerb:
    """A verb by name."""
    if name not in verbs():
        raise UnknownName("verb", name, verbs())
    return verbs()[name]


class _Inputs(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, coerce_numbers_to_str=True, str_max_length=MOST_TEXT)

    @model_validator(mode="before")
    @classmethod
    def _renamed(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        known = cls.model_fields
        former = {old: new for old, new in _FORMER.items() if old in given and old not in known and new in known}
        return {former.get(name, name): value for name, value in given.items()}


def _page_verb(verb: Verb, quick_when: "tuple[str, bool] | bool") -> PageVerb:
    name, summary = verb.name, verb.summary
    parameters = {
        input.name: replace(input, high=_TIME_LIMITS.get(input.name, input.high))
        for input in verb.parameters.values()
        if input.name not in _LEFT_OUT and not input.writes
    }
    fields: dict[str, Any] = {input.name: _field(input) for input in parameters.values()}
    model = create_model(f"{name.title().replace('-', '')}Inputs", __base__=_Inputs, **fields)
    model.__doc__ = summary
    return PageVerb(name, parameters, model, summary, quick_when)


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
    shown = None
    if parameter.type is str and parameter.kind is not Kind.FILE and isinstance(parameter.example, str | int):
        shown = [[str(parameter.example)] if parameter.is_list else str(parameter.example)]
    if parameter.required:
        return made, Field(description=about, examples=shown)
    optional = made if parameter.default is not None else made | None
    return optional, Field(parameter.default, description=about, examples=shown)


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
