"""Define the base of every noun of the product, the sources a number can have, and the day from which age counts."""

import os
from datetime import date
from enum import StrEnum
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict
from pydantic_core import core_schema

from tokonomics.errors import BadInput, flag, in_python, shorten, spelled


class Noun(BaseModel):
    """An immutable record; one definition serves files, the JSON API, the page and Python."""

    model_config = ConfigDict(
        frozen=True,
        defer_build=True,
        extra="forbid",
        allow_inf_nan=False,
        validate_by_name=True,
        validate_by_alias=True,
        serialize_by_alias=True,  # an alias keeps a key of version 0.1
    )


def copied(source: object, *names: str) -> dict[str, Any]:
    """Return these fields of one record, for another that has them too."""
    return {name: getattr(source, name) for name in names}


Kept = TypeVar("Kept")


class Same(Generic[Kept]):
    """Equal to another only if both hold the same object: a cheap key for something large that never changes."""

    def __init__(self, value: Kept) -> None:
        self.value = value

    def __hash__(self) -> int:
        return id(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and self.value is other.value


class Marked(str):
    """A text that names inputs by field (``errors.option``): as arguments in Python, as flags in documents.

    A view shows ``marked``, in which its door spells the inputs.
    """

    marked: str

    def __new__(cls, marked: str) -> "Marked":
        text = super().__new__(cls, spelled(marked, in_python))
        text.marked = marked
        return text

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> core_schema.CoreSchema:
        text = core_schema.str_schema()
        flags = core_schema.plain_serializer_function_ser_schema(
            lambda value: spelled(str(getattr(value, "marked", value)), flag), return_schema=text
        )
        return core_schema.no_info_wrap_validator_function(
            lambda value, read: value if isinstance(value, cls) else cls(read(value)), text, serialization=flags
        )


class Badge(StrEnum):
    """Where a number comes from."""

    measured = "measured"
    modelled = "modelled"
    quoted = "quoted"
    assumed = "assumed"


class Speed(StrEnum):
    """How the speed of a deployment is known."""

    timed = "timed"  # kernels timed on this GPU in this precision
    scaled = "scaled"  # kernels of a related GPU, scaled by the datasheets
    assumed = "assumed"  # neither


def today() -> date:
    """Return the day from which the age of a price is counted.

    ``TOKONOMICS_TODAY=YYYY-MM-DD`` fixes it, so that generated documents come out the same tomorrow.
    """
    fixed = os.environ.get("TOKONOMICS_TODAY")
    if not fixed:
        return date.today()
    try:
        return date.fromisoformat(fixed)
    except ValueError:
        raise BadInput(
            f"'{shorten(fixed)}' is not a date", where="TOKONOMICS_TODAY", fix="Write it as 2026-08-22."
        ) from None
