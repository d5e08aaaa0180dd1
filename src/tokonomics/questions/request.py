"""Define requests: a request is a frozen model whose every field is declared once.

A field is a flag of the command line, a key of a scenario file, an input of the page and an argument in Python. It
holds what one would write there: numbers, names, and the small grammars (``50ms``, ``diurnal:5,peak=3``, ``2:5:20``) as
text, which the question's own parsers read.

A model with its traffic is one text: ``qwen3-8b,rate=0.1,input=800,output=200,ttft_p99=2``. A table of a scenario file
with the same keys is read as such a text.

A ``Listener`` hears what a question does while it works: a terminal, a job of the page, or nobody.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from numbers import Integral, Real
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self, Union, cast, get_args, get_origin, get_type_hints

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from tokonomics.errors import BadInput, did_you_mean, option, shorten
from tokonomics.units import whole_number

NO_LIMIT = 2**63 - 1  # the largest integer of the machine: larger ones are refused, and help does not mention it
TYPE_WORDS = {bool: "true or false", int: "a whole number", float: "a number"}  # what errors say a field must be


class Kind(StrEnum):
    """What the text of a field may name."""

    PLAIN = "plain"  # numbers, names of the catalogue and the small grammars of traffic: no files
    MODEL = "model"
    TRACE = "trace"
    LENGTHS = "lengths"
    FILE = "file"
    EMBEDDER = "embedder"
    METERED = (
        "metered"  # a time, or what was metered: a ledger, twin or a Prometheus, which doors of others do not take
    )
    TENANT = "tenant"  # a model with its traffic, as one text or as a table of a scenario file


class Placement(StrEnum):
    """How the command line takes a field."""

    FLAG = "flag"
    FIRST = "first"  # by position
    EITHER = "either"  # by position or by flag


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What the doors know about a field beyond its schema, which holds only the bounds and the unit."""

    low: float | None = None
    high: float | None = None
    unit: str | None = None
    default_text: str | None = None  # what applies if no value is given, as text
    kind: Kind = Kind.PLAIN
    place: Placement = Placement.FLAG
    metavar: str | None = None
    off: str | None = None  # the flag that turns it off, if there is one
    writes: bool = False  # whether it names a file to save the answer to
    rare: bool = False  # whether few need it: accepted everywhere, but left out of ``--help``

    def __call__(self, schema: dict[str, Any]) -> None:
        """Extend a field's schema as pydantic makes it; in an optional field, our validators do not know the bounds."""
        for part in schema.get("anyOf", []):
            part.pop("ge", None), part.pop("le", None)
        said = {"minimum": self.low, "maximum": self.high, "unit": self.unit}
        schema.update({name: value for name, value in said.items() if value is not None})


def declared(
    help: str,
    default: Any = None,
    *,
    low: float | None = None,
    high: float | None = None,
    without: str | None = None,
    example: object = None,
    key: str | None = None,
    **seen: Any,
) -> Any:
    """Declare a field: its meaning, its default (``...`` if required), its bounds, an example, and how it is ``Seen``.

    ``without`` says what applies if no value is given; ``key`` is the name in files and flags if that is not a valid
    name in Python.
    """
    known: Any = Seen(low=low, high=high, default_text=without, **seen)
    examples = None if example is None else [example]
    return Field(default, description=help, ge=low, le=high, alias=key, examples=examples, json_schema_extra=known)


def saved(help: str, example: str, without: str | None = None) -> Any:
    """Declare a field for the file that something is saved to."""
    return declared(help, without=without, example=example, kind=Kind.FILE, writes=True)


def texts(value: object) -> list[str]:
    """Return a value as one would type it: one text, or one for each part of a list or of names with values.

    A list of tables gives one text for each table: ``model=qwen3-8b,rate=0.1``.
    """
    if isinstance(value, Mapping):
        return [f"{name}={part}" for name, part in value.items()]
    if isinstance(value, Iterable) and not isinstance(value, str):
        return [",".join(texts(part)) if isinstance(part, Mapping) else str(part) for part in value]
    return [repr(value) if isinstance(value, float) else str(value)]


def _typed(value: object) -> list[str]:
    """Do the same as ``texts`` for text and numbers only: anything else would only look like what was meant."""
    several = isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping)
    given: Any = tuple(cast("Iterable[object]", value)) if several else value
    parts = given.values() if isinstance(given, Mapping) else given if several else (given,)
    rows = [part.values() if isinstance(part, Mapping) and several else (part,) for part in parts]
    if not all(_is_plain(part) for row in rows for part in row):
        raise ValueError("must be text or a number")
    return texts(given)


def _is_plain(value: object) -> bool:
    if isinstance(value, str | Path | Integral):
        return not isinstance(value, bool)
    return isinstance(value, Real) and math.isfinite(value)


def _number(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("must be a number")
    return value


def read_share(value: object) -> object:
    """Read ``0.1`` or ``10%``; refuse a bare 40, which may mean 40 % or 40 times."""
    written = value.strip() if isinstance(value, str) else ""
    try:
        number = float(written.removesuffix("%")) if written else _number(value)
    except ValueError:
        raise ValueError("is not a share: write 0.1 or 10%") from None
    if written.endswith("%"):
        return float(cast(float, number)) / 100
    if isinstance(number, int | float) and 1 < number <= 100:
        raise ValueError(f"is above 1: for {number:g} % write {number:g}% or {number / 100:g}")
    return number


def _tokens(value: object) -> object:
    """Read ``32768`` or ``32k``."""
    if not isinstance(value, str):
        return _number(value)
    found = whole_number(value)
    if found is None:
        raise ValueError("is not a number of tokens: write 4096 or 32k")
    return found


def _table(value: object) -> object:
    """Accept a file by name; return a frame, or columns by name, unchanged."""
    return str(value) if isinstance(value, str | Path) else value


def _tables(value: object) -> tuple[str, ...]:
    """Return texts; tables with a name are written as texts: ``gold,tenants=acme/beta,priority=0``."""
    several = isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping)
    parts: list[object] = list(cast("Iterable[object]", value)) if several else [value]
    return tuple(_table_text(part) if isinstance(part, Mapping) else _typed(part)[0] for part in parts)


def _table_text(table: Mapping[object, object]) -> str:
    """Write a table as its name, then its keys; / separates list items, and + replaces the commas of a value."""
    if "name" not in table:
        raise ValueError("a table needs a name")

    def written(value: object) -> str:
        if isinstance(value, Mapping):
            return "+".join(f"{name}={part}" for name, part in value.items())
        if isinstance(value, list | tuple):
            return "/".join(_typed(value))
        return _typed(value)[0].replace(",", "+")

    rest = [f"{name}={written(value)}" for name, value in table.items() if name != "name"]
    return ",".join([*_typed(table["name"]), *rest])


Text = Annotated[str, BeforeValidator(lambda value: ",".join(_typed(value)))]
Texts = Annotated[tuple[str, ...], BeforeValidator(lambda value: tuple(_typed(value)))]
Tables = Annotated[tuple[str, ...], BeforeValidator(_tables)]
"""Texts that may be tables with a name: ``[[class]]`` in a scenario file."""
Whole = Annotated[int, BeforeValidator(_number)]
Number = Annotated[float, BeforeValidator(_number)]
Share = Annotated[float, BeforeValidator(read_share)]
Tokens = Annotated[int, BeforeValidator(_tokens)]
Switch = Annotated[bool, Field(strict=True)]
Table = Annotated[Any, BeforeValidator(_table)]  # a file by name, a frame (polars, pandas), or columns by name

_TYPES: dict[Any, type] = {
    Text: str, Texts: str, Tables: str, Table: str, Whole: int, Tokens: int, Number: float, Share: float, Switch: bool,
}  # fmt: skip
"""The type of one value, by annotation."""


class Request(BaseModel):
    """The inputs of one question."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, populate_by_name=True, defer_build=True,
        arbitrary_types_allowed=True, revalidate_instances="never",
    )  # fmt: skip
    FIRST: ClassVar[tuple[str, ...]] = ()
    """The most important fields: they come before those of the groups, which come before the request's own."""
    ABOUT: ClassVar[str]  # the heading over a group's keys in a scenario file

    def __init_subclass__(cls, about: str = "", **config: Any) -> None:
        super().__init_subclass__(**config)
        cls.ABOUT = about

    @classmethod
    def checked(cls, values: Mapping[str, object]) -> Self:
        """Return a checked request; an error in a value names its field."""
        given = {name: value for name, value in values.items() if value is not None}
        known = {name: name for name in cls.model_fields} | {
            field.alias: name for name, field in cls.model_fields.items() if field.alias
        }
        for name in given:
            if name not in known:
                raise BadInput(f"unknown input '{shorten(name)}'", fix=did_you_mean(name, known, 1))
        try:
            return cls.model_validate({known[name]: value for name, value in given.items()})
        except ValidationError as error:
            problem = error.errors(include_url=False)[0]
            field = known.get(str(problem["loc"][0]), str(problem["loc"][0]))
            if problem["type"] == "missing":
                raise BadInput("is missing", field=field) from None
            by_type = {f"{kind.__name__}_": f"must be {word}" for kind, word in TYPE_WORDS.items()}
            said = problem["msg"].removeprefix("Value error, ").removeprefix("Input ").lower()
            if not problem["type"].endswith("_size"):
                said = next((text for start, text in by_type.items() if problem["type"].startswith(start)), said)
            raise BadInput(f"{said}, got {shorten(str(problem['input']))}", field=field) from None

    def given(self) -> dict[str, Any]:
        """Return the values that were given, by field; the rest have their defaults."""
        return {name: getattr(self, name) for name in self.model_fields_set}


@dataclass(frozen=True, kw_only=True)
class Parameter(Seen):
    """One field of a request, as the doors see it."""

    name: str
    key: str  # in a scenario file
    annotation: Any  # as declared, without ``| None``: ``Text``, ``Whole`` …
    required: bool
    default: Any
    help: str
    about: str  # its heading in a scenario file; empty if only one verb takes it
    example: Any = None

    @property
    def type(self) -> type:
        return _TYPES[self.annotation]

    @property
    def is_list(self) -> bool:
        return bool(self.annotation in (Texts, Tables))

    @property
    def takes_tables(self) -> bool:
        """Tell whether each of its texts may be a table of a scenario file."""
        return bool(self.annotation == Tables)

    @property
    def takes_text(self) -> bool:
        """Tell whether it is a number that may be written as text: 10%, 32k."""
        return bool(self.annotation in (Share, Tokens))

    @property
    def flag(self) -> str | None:
        """Return its flag; None if the command line takes it only by position."""
        return None if self.place is Placement.FIRST else f"--{self.key.replace('_', '-')}"

    def described(self) -> dict[str, Any]:
        """Return its name, values and meaning for the page."""
        names = {str: "text", int: "integer", float: "number", bool: "boolean"}
        return {
            "name": self.name,
            "type": ("list of " if self.is_list else "") + names[self.type],
            "kind": str(self.kind),
            "required": self.required,
            "default": self.default,
            "default_text": self.default_text,
            "minimum": self.low,
            "maximum": self.high,
            "help": self.help,
            "flag": self.flag,
        }


Parameters = Mapping[str, Parameter]  # the parameters of one question, by the name of the field


@lru_cache(maxsize=64)
def parameters_of(request: type[Request]) -> dict[str, Parameter]:
    """Return every field of a request: the first ones, those of its groups in their order, then its own."""
    hints = get_type_hints(request, include_extras=True)
    return {name: _parameter(name, request, hints[name]) for name in _in_order(request) if name in request.model_fields}


def _in_order(request: type[BaseModel]) -> dict[str, None]:
    found: dict[str, None] = dict.fromkeys(vars(request).get("FIRST", ()))
    for base in request.__bases__:
        if issubclass(base, Request):
            found |= _in_order(base)
    return found | dict.fromkeys(name for name in request.__annotations__ if not name.startswith("_"))


def _parameter(name: str, request: type[Request], hint: Any) -> Parameter:
    field = request.model_fields[name]
    is_optional = get_origin(hint) in (Union, UnionType)
    group: Any = next(base for base in request.__mro__ if name in vars(base).get("__annotations__", ()))
    return Parameter(
        name=name,
        key=field.alias or name,
        annotation=next(part for part in get_args(hint) if part is not type(None)) if is_optional else hint,
        required=field.is_required(),
        default=None if field.is_required() else field.default,
        help=field.description or "",
        about=group.ABOUT,
        example=field.examples[0] if field.examples else None,
        **vars(field.json_schema_extra),
    )


_KEYS = ("model", "rate", "input", "output")
_SLO = re.compile(r"(ttft|tpot|e2e)(_\w+)?=")
_SUCH_AS = "qwen3-8b,rate=0.1,input=800,output=200"


def model_in(text: str) -> dict[str, str]:
    """Split ``qwen3-8b,rate=0.1,ttft_p99=2`` into its model, traffic and SLOs; a comma within a value stays there."""
    said: dict[str, str] = {}
    last = ""
    for place, part in enumerate(piece.strip() for piece in text.split(",")):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if _SLO.match(part):
            last = "slo"
            said[last] = f"{said[last]},{part}" if last in said else part
        elif equals and name in _KEYS:
            if name in said:
                raise BadInput(f"'{shorten(name)}' is given twice", field="beside")
            last = name
            said[name] = value
        elif place == 0 and not equals:
            last = "model"
            said[last] = part
        elif last in ("input", "output") and part:
            said[last] += f",{part}"
        else:
            near = did_you_mean(name, [*_KEYS, "ttft_p99", "tpot_p99", "e2e_p99"], 1)
            fix = f"Write such as {option('beside', _SUCH_AS)}. {near or ''}".rstrip()
            raise BadInput(f"'{shorten(part)}' is no part of a model's traffic", field="beside", fix=fix)
    for name in ("model", "rate"):
        if not said.get(name):
            what = "names no model" if name == "model" else "has no rate"
            raise BadInput(f"'{shorten(text)}' {what}", field="beside", fix=f"Such as {option('beside', _SUCH_AS)}.")
    return said


if TYPE_CHECKING:
    from tokonomics.measure.bench.loads import Progress


class Listener:
    """Hear nothing; a door overrides what it can show."""

    typed: str | None = None  # the command line as typed, if there is one

    def doing(self, what: str) -> None:
        """Hear what is being done now."""

    def simulating(self, what: str) -> None:
        """Hear what is simulated now."""
        self.doing(f"simulating {what}")

    def note(self, line: str) -> None:
        """Hear what the reader should know beside the answer, such as rows that were left out."""

    def watching(self) -> "Callable[[Progress], None] | None":
        """Return a function that takes the state of a load test, several times a second; None if nobody watches."""
        return None

    def counting(self, what: str, total: int) -> Callable[[int], None] | None:
        """Return a function that takes how many of ``total`` (0: unknown) are done; None if nobody counts along."""
        return None


SILENT = Listener()
