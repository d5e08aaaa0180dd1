"""The catalogue of models: ours, the user's, and any config.json a path leads to.

A name is looked up among the rows' spellings first, and only the row that was asked for becomes a ``ModelSpec``.
"""

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import date, datetime
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from tokonomics.catalog.config_json import from_config, read_config
from tokonomics.catalog.entries import resolve, shipped_tables, spelling, spellings, user_path, user_tables
from tokonomics.catalog.models import ModelSpec, Published
from tokonomics.errors import BadInput, UnknownName, from_validation, nearest, option, shorten
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

USER_FIELDS = ("name", "family", "aliases", "config", "extra_parameters", "source", "date")


@dataclass(frozen=True)
class ModelRow:
    """A catalogue entry before its config is read."""

    key: str
    name: str
    aliases: tuple[str, ...]
    table: Mapping[str, Any]
    where: str
    is_ours: bool

    def spec(self) -> ModelSpec:
        """The model this row describes."""
        return _our_spec(self.key) if self.is_ours else _user_spec(self)


def all_models() -> tuple[ModelSpec, ...]:
    """Every model known by name, the user's own first."""
    return tuple(row.spec() for row in model_rows())


@dataclass(frozen=True)
class ConfigReading:
    """How config.json files are read while one question is answered, and who hears what was not understood."""

    as_family: str | None = None
    note: Callable[[str], None] = lambda line: None
    hub: bool = False
    """Whether a name that the catalogue does not have is looked up on the Hugging Face hub."""


READING: ContextVar[ConfigReading] = ContextVar("reading", default=ConfigReading())  # noqa: B039 — frozen


def find_model(name_or_path: str) -> ModelSpec:
    """The model of that name, or the one whose config.json (or the directory holding it) the path leads to."""
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
    """The model in the catalogue, else as it was fetched from the hub before."""
    fix = ADD_YOUR_OWN.format(path=user_path())
    try:
        return resolve("model", name, model_rows(), fix=fix, listing="tokonomics models").spec()
    except UnknownName as error:
        from tokonomics.catalog.hub import cached, is_repository

        if CONFIGS_IN.get() is not None or not is_repository(name):
            raise
        if kept := cached(name):
            return _hub_spec(kept, reading)
        error.fix = f"Look it up on the Hugging Face hub with {option('hub')}.\n  {error.fix}"
        raise


def _is_only_on_hub(name: str) -> bool:
    """A repository that no row of the catalogue is; strangers may not make us ask anybody."""
    from tokonomics.catalog.hub import is_repository

    theirs = {alias.casefold() for row in model_rows() for alias in row.aliases if "/" in alias}
    return CONFIGS_IN.get() is None and is_repository(name) and name.casefold() not in theirs


_WEIGHTS_AS_COUNTED = 0.05
"""Of the bytes that the index of the weights states; a module that drafts tokens, which we leave out, is 14 of the 685
billion parameters of DeepSeek-V3 (its model card)."""


def _hub_spec(files: "HubModel", reading: ConfigReading) -> ModelSpec:
    """The model that fetched files describe; a note where its size differs from that of the published weights."""
    name = files.repository.partition("/")[2]
    found = read_config(files.config, name=name, as_family=reading.as_family)
    reading.note(f"{files.repository}: read from its config.json on the Hugging Face hub, {files.fetched:%Y-%m-%d}")
    counted = found.weight_bytes(found.checkpoint)
    if files.weight_bytes and abs(counted / files.weight_bytes - 1) > _WEIGHTS_AS_COUNTED:
        reading.note(
            f"{files.repository}: its weights are {gigabytes(files.weight_bytes)}, by its config.json "
            f"{gigabytes(counted)}: what it does not say of them is counted wrongly"
        )
    return found


def models_of_family(family: str) -> tuple[ModelSpec, ...]:
    """The models of a family, as the catalogue calls it; of the user's own those that name one."""
    return tuple(row.spec() for row in model_rows() if row.table.get("family") == family)


def find_models(match: str | None = None, family: str | None = None, moe: bool | None = None) -> list[ModelSpec]:
    """Models whose names contain ``match`` (or the one a path leads to), of a family, with or without experts.

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
    return sorted(found, key=lambda model: (model.published is not None, -(model.released or date.min).toordinal()))


def _expanded(text: str) -> Path:
    """A path with ``~`` replaced, where there is such a user."""
    try:
        return Path(text).expanduser()
    except RuntimeError:
        return Path(text)


CONFIGS_IN: ContextVar[Path | None] = ContextVar("configs_in", default=None)
"""The only folder that a config.json is read from, where names come from strangers; None: any."""


def is_path(text: str) -> bool:
    """Whether a path is meant: it ends in .json, or something lies there and no model has that name."""
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
    """The user's entries and ours; an entry of theirs with a key of ours replaces it."""
    mine = tuple(_user_row(key, table) for key, table in user_tables("models").items())
    replaced = {spelling(row.key) for row in mine}
    ours = tuple(row for row in _our_rows() if spelling(row.key) not in replaced)
    return mine + ours


@lru_cache(maxsize=1)
def _our_rows() -> tuple[ModelRow, ...]:
    return tuple(
        ModelRow(key, table["name"], (*table.get("aliases", ()), table["hf"]), table, f"models.toml [{key}]", True)
        for key, table in shipped_tables("models.toml").items()
    )


@lru_cache(maxsize=512)
def _our_spec(key: str) -> ModelSpec:
    """One row of ours, read once."""
    row = next(row for row in _our_rows() if row.key == key)
    table = row.table
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
    """A TOML table as the JSON it stands for: TOML has no null, so the string "null" is written for it."""
    return {
        name: _with_nulls(value) if isinstance(value, Mapping) else None if value == "null" else value
        for name, value in config.items()
    }


def _user_row(key: str, table: Mapping[str, Any]) -> ModelRow:
    """An entry of the user's catalogue, its own fields checked."""
    where = f"{user_path()} [models.{shorten(key)}]"
    for field in table:
        if field not in USER_FIELDS:
            fix = f"Did you mean {' or '.join(nearest(field, USER_FIELDS) or USER_FIELDS)}?"
            raise BadInput(f"unknown field '{shorten(field)}'", where=where, fix=fix)
    if "config" not in table:
        raise BadInput("field 'config' is missing", where=where, fix='config = "path/to/config.json"')
    for field in ("name", "family", "source"):
        if not isinstance(table.get(field, ""), str):
            raise BadInput(f"field '{field}' needs a string", where=where)
    aliases = table.get("aliases", [])
    if not isinstance(aliases, list) or not all(isinstance(alias, str) for alias in aliases):
        raise BadInput("field 'aliases' needs a list of strings", where=where)
    return ModelRow(key, table.get("name", key), tuple(aliases), table, where, False)


def _user_spec(row: ModelRow) -> ModelSpec:
    """The model of a user's entry; a config given by path is found from the catalogue's own directory."""
    table, config = row.table, row.table["config"]
    extra = table.get("extra_parameters")
    if extra is not None and (isinstance(extra, bool) or not isinstance(extra, int) or extra < 0):
        raise BadInput("field 'extra_parameters' needs a whole number", where=row.where)
    if isinstance(config, str):
        read = read_config(user_path().parent / _expanded(config), name=row.name, extra_parameters=extra)
        family = table.get("family", read.family)
        return read.model_copy(update={"key": row.key, "aliases": row.aliases, "family": family})
    if not isinstance(config, Mapping):
        raise BadInput("field 'config' needs a path or a table", where=row.where)
    written = datetime.fromtimestamp(user_path().stat().st_mtime).date()
    given = table.get("date", written)
    if isinstance(given, datetime) or not isinstance(given, date):
        raise BadInput("field 'date' needs a date such as 2026-01-31", where=row.where)
    try:
        return from_config(
            _with_nulls(config),
            key=row.key,
            name=row.name,
            family=table.get("family", str(config.get("model_type"))),
            source=table.get("source", str(user_path())),
            date=given,
            where=row.where,
            aliases=row.aliases,
            extra_parameters=extra,
        )
    except ValidationError as error:
        raise from_validation(error, row.where) from None
