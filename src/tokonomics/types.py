"""What every noun of the product is made of, and where a number can come from."""

from enum import StrEnum

from pydantic import BaseModel, ConfigDict


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


class Badge(StrEnum):
    """Where a number comes from."""

    measured = "measured"
    modelled = "modelled"
    quoted = "quoted"
    assumed = "assumed"
