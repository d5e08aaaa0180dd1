"""What every noun of the product is made of, and where a number can come from."""

from enum import StrEnum
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, PlainSerializer

from tokonomics.errors import flag, spelled


class Noun(BaseModel):
    """An immutable record: one definition serves files, the JSON API, the page and Python."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        allow_inf_nan=False,
        validate_by_name=True,
        validate_by_alias=True,
        serialize_by_alias=True,  # an alias is a key of 0.1 that stays
    )


def copied(source: object, *names: str) -> dict[str, Any]:
    """These fields of one record, for another that has them too."""
    return {name: getattr(source, name) for name in names}


def _with_flags(text: str) -> str:
    return spelled(text, flag)


Marked = Annotated[str, PlainSerializer(_with_flags)]
"""A text that names inputs by field (``errors.option``): documents have flags, views what their door writes."""


class Badge(StrEnum):
    """Where a number comes from."""

    measured = "measured"
    modelled = "modelled"
    quoted = "quoted"
    assumed = "assumed"
