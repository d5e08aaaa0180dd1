"""Load models from the catalogue: ours, the user's, and any config.json that a path names.

A name is looked up among the rows' spellings first, and only the row that was asked for becomes a ``ModelSpec``.
"""

import re
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import date as Date  # noqa: N812 — `date` is the name of a field
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, ValidationError

from tokonomics.catalog.config_json import from_config, read_config
from tokonomics.catalog.entries import (
    resolve,
    shipped_rows,
    shipped_tables,
    spelling,
    spellings,
    user_path,
    user_tables,
)
from tokonomics.catalog.layers import Precision
from tokonomics.catalog.models import ModelSpec, Published, repository_in
from tokonomics.errors import UnknownName, from_validation, option, shorten
from tokonomics.types import Noun
from tokonomics.units import gigabytes

if TYPE_CHECKING:
    from tokonomics.catalog.hub import HubModel

ADD_YOUR_OWN = (
    "Give the path of a Hugging Face config.json, or add it to {path}:\n"
    "    [models.my-model]\n"
    '    name = "My Model"\n'
    '    aliases = ["my-model-instruct"]\n'
    '    config = "path/to/config.json"'
)


class UserModel(Noun):
    """An entry of the user's catalogue."""

    name: str | None = None
    family: str | None = None
    aliases: tuple[str, ...] = ()
    config: str | dict[str, Any]  # its path, from the catalogue's own directory, or the fields themselves
    extra_parameters: Annotated[int, Field(strict=True, ge=0)] | None = None
    source: str | None = None
    date: Annotated[Date, Field(strict=True)] | None = None


@dataclass(frozen=True)
class ModelRow:
    """A catalogue entry before its config is read."""

    key: str
    name: str
    aliases: tuple[str, ...]
    family: str | None
    where: str
    theirs: UserModel | None = None  # None: one of ours

    @property
    def repository(self) -> str | None:
        """Return where its authors publish it; None for the user's own model."""
        return repository_in(self.aliases)

    def spec(self) -> ModelSpec:
        """Return the model that this row describes."""
        return _our_spec(self.key) if self.theirs is None else _user_spec(self, self.theirs)


def all_models() -> tuple[ModelSpec, ...]:
    """Return every model known by name, the user's own first."""
    return tuple(row.spec() for row in model_rows())


@dataclass(frozen=True)
class ConfigReading:
    """How config.json files are read while one question is answered, and who is told what was not understood."""

    as_family: str | None = None
    note: Callable[[str], None] = lambda line: None
    hub: bool = False  # whether a name that is not in the catalogue is looked up on the Hugging Face hub


READING: ContextVar[ConfigReading] = ContextVar("reading", default=ConfigReading())  # noqa: B039 — frozen


def find_model(name_or_path: str) -> ModelSpec:
    """Return the model with that name, or that of the config.json (or its directory) at that path."""
    reading = READING.get()
    if is_path(name_or_path):
        found = read_config(_expanded(name_or_path), as_family=reading.as_family)
    elif reading.hub and _is_only_on_hub(name_or_path):
        from tokonomics.catalog.hub import fetch

        found = _hub_spec(fetch(name_or_path), reading)
    else:
        found = _known(name_or_path, reading)
    for line in found.notes:
        reading.note(line)
    return found


def _known(name: str, reading: ConfigReading) -> ModelSpec:
    """Return the model in the catalogue, else as it was fetched from the hub before, else as its name says."""
    fix = ADD_YOUR_OWN.format(path=user_path())
    try:
        return resolve("model", name, model_rows(), fix=fix, listing="tokonomics models").spec()
    except UnknownName as error:
        from tokonomics.catalog.hub import cached, is_repository

        may_be_on_hub = CONFIGS_IN.get() is None and is_repository(name)
        if may_be_on_hub and (kept := cached(name)):
            return _hub_spec(kept, reading)
        if quantised := find_quantised(name):
            return quantised
        if not may_be_on_hub:
            raise
        error.fix = f"Look it up on the Hugging Face hub with {option('hub')}.\n  {error.fix}"
        raise


_ENDINGS = {
    Precision.fp8: r"fp8([-_](dynamic|block))?",
    Precision.nvfp4: r"nvfp4|fp4",
    Precision.mxfp4: r"mxfp4",
    Precision.int8: r"((awq|gptq)[-_])?int8|(quantized[-_.])?w8a8",
    Precision.int4: r"(awq|gptq)([-_]int4)?|int4|(quantized[-_.])?w4a16",
}
"""How the names of quantised checkpoints end, as in ``checkpoints.csv``."""


def find_quantised(name: str) -> ModelSpec | None:
    """Return the model whose quantised checkpoint this names, with that precision as its own; None if it names none.

    The name is that of a listed checkpoint, or a model's with a precision behind it: ``qwen3-32b-fp8``.
    """
    from tokonomics.catalog.hub import is_repository

    wanted, listed = spelling(name), shipped_rows("checkpoints.csv")
    named = next((row for row in listed if spelling(row["repository"]) == wanted), None)
    precision, of = (Precision(named["precision"]), named["model"]) if named else _without_ending(name)
    row = next((row for row in model_rows() if precision and spelling(of) in spellings(row)), None)
    if precision is None or row is None:
        return None
    held = [named] if named else [one for one in listed if (one["model"], one["precision"]) == (row.key, precision)]
    repository = name if is_repository(name) else next((one["repository"] for one in held), None)
    return _quantised(row.spec(), precision, repository)


def _without_ending(name: str) -> tuple[Precision | None, str]:
    """Return the precision that a name ends with and what stands before it."""
    for precision, ending in _ENDINGS.items():
        if found := re.search(rf"[-_. ]({ending})$", name.strip(), re.IGNORECASE):
            return precision, name.strip()[: found.start()]
    return None, name


def _quantised(model: ModelSpec, precision: Precision, repository: str | None) -> ModelSpec:
    """Return a model as a checkpoint holds it whose matrices are all in a precision."""
    if model.checkpoint is precision:
        return model
    parts = ("checkpoint_bytes", "mixer_checkpoint", "dense_checkpoint", "mixer_bytes", "dense_bytes", "fp8_scales")
    others = tuple(alias for alias in model.aliases if "/" not in alias)
    aliases = (*others, repository) if repository else others
    return model.model_copy(update=dict.fromkeys(parts) | {"checkpoint": precision, "aliases": aliases})


def _is_only_on_hub(name: str) -> bool:
    """Decide whether this is a repository outside the catalogue; strangers may not make us ask the hub."""
    from tokonomics.catalog.hub import is_repository

    theirs = {alias.casefold() for row in model_rows() for alias in row.aliases if "/" in alias}
    return CONFIGS_IN.get() is None and is_repository(name) and name.casefold() not in theirs


_WEIGHTS_AS_COUNTED = 0.05
"""Allowed difference, as a share of the bytes in the index of the weights; a module that drafts tokens, which we leave
out, is 14 of the 685 billion parameters of DeepSeek-V3 (its model card)."""


def _hub_spec(files: "HubModel", reading: ConfigReading) -> ModelSpec:
    """Return the model that fetched files describe, with a note if its size differs from the published weights."""
    name = files.repository.partition("/")[2]
    found = read_config(files.config, name=name, as_family=reading.as_family)
    found = found.model_copy(update={"aliases": (files.repository,)})
    reading.note(f"{files.repository}: read from its config.json on the Hugging Face hub, {files.fetched:%Y-%m-%d}")
    counted = found.weight_bytes(found.checkpoint)
    if files.weight_bytes and abs(counted / files.weight_bytes - 1) > _WEIGHTS_AS_COUNTED:
        reading.note(
            f"{files.repository}: its weights are {gigabytes(files.weight_bytes)}, by its config.json "
            f"{gigabytes(counted)}: what it does not say of them is counted wrongly"
        )
    return found


def models_of_family(family: str) -> tuple[ModelSpec, ...]:
    """Return the models of a family, as the catalogue calls it, with the user's own that name it."""
    return tuple(row.spec() for row in model_rows() if row.family == family)


def find_models(match: str | None = None, family: str | None = None, moe: bool | None = None) -> list[ModelSpec]:
    """Return models whose names contain ``match`` (or the one at that path), of a family, with or without experts.

    The user's own come first, then the newest.
    """
    if match is not None and is_path(match):
        return [find_model(match)]
    wanted = spelling(match) if match else ""
    rows = [row for row in model_rows() if any(wanted in name for name in spellings(row))]
    if match and not rows:
        return [find_model(match)]  # raises, with the nearest names
    found = [row.spec() for row in rows]
    if family is not None:
        of_it = [model for model in found if family.strip() and spelling(family) in spelling(model.family)]
        if not of_it:
            raise UnknownName("family", family, sorted({model.family for model in found}))
        found = of_it
    found = [model for model in found if moe is None or model.is_moe == moe]
    return sorted(found, key=lambda model: (model.published is not None, -(model.released or Date.min).toordinal()))


def _expanded(text: str) -> Path:
    """Replace ``~`` in a path, if there is such a user."""
    try:
        return Path(text).expanduser()
    except RuntimeError:
        return Path(text)


CONFIGS_IN: ContextVar[Path | None] = ContextVar("configs_in", default=None)
"""The only folder from which a config.json is read if names come from strangers; None: any."""


def is_path(text: str) -> bool:
    """Decide whether a path is meant: it ends in .json, or it exists and no model has that name."""
    only = CONFIGS_IN.get()
    if only is not None and (".." in text or not text.startswith(f"{only}/")):
        return False
    if not text or text.endswith(".json"):
        return bool(text)
    try:
        path = _expanded(text)
        there = path.is_file() or (path / "config.json").is_file()
    except (OSError, ValueError):  # too long, a null character
        return False
    return there and ("/" in text or "\\" in text or not any(spelling(text) in spellings(row) for row in model_rows()))


def model_rows() -> tuple[ModelRow, ...]:
    """Return the user's entries and ours; a user's entry with a key of ours replaces it."""
    mine = []
    for key, table in user_tables("models").items():
        where = f"{user_path()} [models.{shorten(key)}]"
        try:
            entry = UserModel.model_validate(table)
        except ValidationError as error:
            raise from_validation(error, where, UserModel.model_fields) from None
        mine.append(ModelRow(key, entry.name or key, entry.aliases, entry.family, where, entry))
    replaced = {spelling(row.key) for row in mine}
    return (*mine, *(row for row in _our_rows() if spelling(row.key) not in replaced))


@lru_cache(maxsize=1)
def _our_tables() -> dict[str, Any]:
    return shipped_tables("models.toml")


@lru_cache(maxsize=1)
def _our_rows() -> tuple[ModelRow, ...]:
    return tuple(
        ModelRow(key, table["name"], (*table.get("aliases", ()), table["hf"]), table["family"], f"models.toml [{key}]")
        for key, table in _our_tables().items()
    )


@lru_cache(maxsize=512)
def _our_spec(key: str) -> ModelSpec:
    """Return one row of ours, read once."""
    row, table = next(row for row in _our_rows() if row.key == key), _our_tables()[key]
    read = from_config(
        _with_nulls(table["config"]),
        key=key,
        name=row.name,
        family=table["family"],
        source=table["source"],
        date=table["date"],
        where=row.where,
        aliases=row.aliases,
        published=Published(
            parameters=table["published_parameters"],
            active_parameters=table.get("published_active_parameters"),
            source=table["parameters_source"],
            not_served=table.get("published_not_served", 0),
            excludes=table.get("excludes"),
        ),
        extra_parameters=table.get("extra_parameters"),
    )
    return read.model_copy(update={"reasons": table.get("reasons", False), "released": table.get("released")})


def _with_nulls(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a TOML table as JSON: TOML has no null, so the string "null" is written for it."""
    return {
        name: _with_nulls(value) if isinstance(value, Mapping) else None if value == "null" else value
        for name, value in config.items()
    }


def _user_spec(row: ModelRow, entry: UserModel) -> ModelSpec:
    """Return the model of a user's entry."""
    extra = entry.extra_parameters
    if isinstance(entry.config, str):
        read = read_config(user_path().parent / _expanded(entry.config), name=row.name, extra_parameters=extra)
        family = entry.family or read.family
        return read.model_copy(update={"key": row.key, "aliases": row.aliases, "family": family})
    return from_config(
        _with_nulls(entry.config),
        key=row.key,
        name=row.name,
        family=entry.family or str(entry.config.get("model_type")),
        source=entry.source or str(user_path()),
        date=entry.date or datetime.fromtimestamp(user_path().stat().st_mtime).date(),
        where=row.where,
        aliases=row.aliases,
        extra_parameters=extra,
    )
