"""A scenario file (TOML): the flags of every verb as keys, in one file.

``tokonomics VERB chat.toml`` reads the file where a model is expected. Keys at the top are shared by all verbs that
have such a flag in the same sense; a table named like a verb is for that verb alone and wins. What is typed wins over
both, and other traffic that is typed replaces the file's. A key that no verb knows is refused with the nearest name;
one that this verb has no flag for is said on standard error.
"""

import os
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperCommand

from tokonomics.cli.parameters import OUTPUT, Kind, Parameter, parameter_for, verb_parameters
from tokonomics.errors import BadInput, TokonomicsError, nearest, shorten

if TYPE_CHECKING:
    from tokonomics.planner.scenario import Scenario

MAX_FILE_BYTES = 1_000_000
AS_GIVEN = "as given"
"""A context's ``obj`` in which names that end in .toml are names like any other."""
_TRACE_PREFIX = "trace:"
_OWN_SENSE = {
    "gpus": frozenset({"plan", "own-hardware", "cost"}),
    "usd_per_hour": frozenset({"breakeven"}),
}
"""Keys that mean another thing to these verbs: the most GPUs that are paid for, those of a machine, and those that make
the tokens; a price that replaces a plan instead of pricing it."""
_EITHER = {"cost": ("usd_per_hour", ("gpu", "offers"))}
"""What says the same in another way: a price, or the GPU that it is looked up for."""
_FILE = "tokonomics.scenario"
"""Where a context keeps the file that it was made from, and what of it is used."""


@dataclass(frozen=True)
class ScenarioFile:
    """A file as it was written, its keys checked and spelled with underscores."""

    path: Path
    shared: Mapping[str, object]
    tables: Mapping[str, Mapping[str, object]]

    def values_for(self, verb: str) -> dict[str, object]:
        """What the file says for one verb; files that it names are looked for beside it."""
        shared = {key: value for key, value in self.shared.items() if shares(verb, key)}
        shared = _said_once(verb, shared, {*shared, *self.tables.get(verb, {})})
        return {key: self._found(verb, key, value) for key, value in {**shared, **self.tables.get(verb, {})}.items()}

    def unused_by(self, verb: str) -> list[str]:
        """Keys at the top that the verb has no flag for, or one in another sense."""
        return [key for key in self.shared if not shares(verb, key)]

    def where(self, verb: str, key: str) -> str:
        """For messages."""
        return f"{self.path}: [{verb}] {key}" if key in self.tables.get(verb, {}) else f"{self.path}: {key}"

    def _found(self, verb: str, key: str, value: object) -> object:
        parameter = parameter_for(verb, key)
        if parameter is None or parameter.kind is Kind.PLAIN:
            return value
        if key in OUTPUT:
            return _at_home(value) if isinstance(value, str) else value
        if isinstance(value, list):
            return [self._beside(each, parameter) for each in value]
        return self._beside(value, parameter)

    def _beside(self, value: object, parameter: Parameter) -> object:
        if not isinstance(value, str):
            return value
        before = _TRACE_PREFIX if parameter.kind is Kind.LENGTHS else ""
        name = value.removeprefix(before)
        if (before and not value.startswith(before)) or not name or "\0" in name or len(name) > 4000:
            return value
        whole = _at_home(name)
        there = self.path.parent / whole
        return f"{before}{there}" if whole != name or (not Path(name).is_absolute() and there.exists()) else value


def _at_home(name: str) -> str:
    """``~`` as a shell would have it, where a path begins with it."""
    return os.path.expanduser(name) if name.startswith("~") else name  # noqa: PTH111 - never raises


def scenario_verbs() -> list[str]:
    """The verbs that a scenario file is for: those that take a model, a deployment, traffic or prices."""
    from tokonomics.cli.main import app

    return [each.name for each in app.registered_commands if each.name and each.cls is ScenarioCommand]


def known_keys(verbs: Collection[str] | None = None) -> list[str]:
    """The keys that some verb has a flag for."""
    wanted = scenario_verbs() if verbs is None else verbs
    return list(dict.fromkeys(each.key for verb in wanted for each in verb_parameters(verb).values()))


def shared_keys() -> list[str]:
    """May stand at the top: not what is written, nor what is a switch to one verb and a number to another.

    Nor what has no sense in which verbs could share it.
    """
    return [key for key in known_keys() if key not in OUTPUT and not _is_ambiguous(key) and sharers_of(key)]


def _is_ambiguous(key: str) -> bool:
    return len({parameter.type is bool for parameter in takers_of(key).values()}) > 1


def takers_of(key: str, verbs: Collection[str] | None = None) -> dict[str, Parameter]:
    """The verbs that have a flag for a key, and what they take."""
    found = {verb: parameter_for(verb, key) for verb in (scenario_verbs() if verbs is None else verbs)}
    return {verb: parameter for verb, parameter in found.items() if parameter}


def shares(verb: str, key: str) -> bool:
    """The verb takes what stands at the top under a key."""
    return parameter_for(verb, key) is not None and verb not in _OWN_SENSE.get(key, ())


def sharers_of(key: str, verbs: Collection[str] | None = None) -> dict[str, Parameter]:
    """The verbs that take a key from the top, and what they take."""
    return {verb: parameter for verb, parameter in takers_of(key, verbs).items() if shares(verb, key)}


def _said_once(verb: str, values: Mapping[str, object], said: Collection[str]) -> dict[str, object]:
    """Without what is said in another way: a price beats the GPU that it would be looked up for."""
    price, lookup = _EITHER.get(verb, ("", ()))
    return {key: value for key, value in values.items() if not (key in lookup and price in said)}


def read_scenario_file(path: Path) -> ScenarioFile:
    """A scenario file whose every key is known to some verb."""
    where = shorten(str(path), 200)
    verbs = {name.replace("-", "_"): name for name in scenario_verbs()}
    at_the_top = shared_keys()
    shared: dict[str, object] = {}
    tables: dict[str, dict[str, object]] = {}
    for name, value in read_toml(path).items():
        key = name.replace("-", "_")
        if isinstance(value, dict) and key in verbs:
            tables[verbs[key]] = _table(value, verbs[key], f"{where}: [{name}]")
        elif isinstance(value, dict) and key in at_the_top:
            raise BadInput(f"'[{key}]' is not a table", where=where, fix=f"Write {_example(key)}.")
        elif isinstance(value, dict):
            raise _unknown(f"unknown table '[{shorten(name)}]'", key, verbs, where)
        elif key in known_keys() and key not in at_the_top:
            raise _not_at_the_top(key, where)
        else:
            _put(shared, key, value, at_the_top, where)
    return ScenarioFile(path, shared, tables)


def _not_at_the_top(key: str, where: str) -> BadInput:
    senses = "; ".join(f"[{verb}]: {taken.help}" for verb, taken in takers_of(key).items())
    fix = (
        f"Put it under a verb. {senses}"
        if key in _OWN_SENSE
        else f"Put it under a verb: [{next(iter(takers_of(key)))}]."
    )
    return BadInput("cannot be the same for every verb", where=f"{where}: {key}", fix=fix)


def _table(table: Mapping[str, object], verb: str, where: str) -> dict[str, object]:
    keys = list(dict.fromkeys(each.key for each in verb_parameters(verb).values()))
    made: dict[str, object] = {}
    for name, value in table.items():
        key = name.replace("-", "_")
        others = [other for other in takers_of(key) if other != verb]
        if key not in keys and others and key not in OUTPUT:
            fix = f"It is for {', '.join(f'[{other}]' for other in others)}."
            raise BadInput(f"unknown key '{shorten(key)}': not for {verb}", where=where, fix=fix)
        _put(made, key, value, keys, where)
    return made


def _example(key: str, parameter: Parameter | None = None) -> str:
    """A line of a scenario file."""
    import json

    from tokonomics.cli.scenario_text import shown

    value = shown(parameter or next(iter(takers_of(key).values())))
    return f"{key} = {json.dumps(value, ensure_ascii=False)}"


def _put(made: dict[str, object], key: str, value: object, known: Collection[str], where: str) -> None:
    if key not in known:
        raise _unknown(f"unknown key '{shorten(key)}'", key, known, where)
    if key in made:
        raise BadInput("is given twice", where=f"{where}: {key}", fix="Once with underscores is enough.")
    made[key] = value


def _unknown(what: str, name: str, known: Collection[str], where: str) -> BadInput:
    guess = nearest(name, known, 1)
    return BadInput(what, where=where, fix=f"Did you mean {guess[0]}?" if guess else None)


def read_toml(path: Path) -> dict[str, Any]:
    """A small TOML file."""
    where = shorten(str(path), 200)
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except (OSError, ValueError) as error:
        raise BadInput(f"cannot be read: {getattr(error, 'strerror', None) or error}", where=where) from None
    if len(content) > MAX_FILE_BYTES:
        raise BadInput("is larger than a megabyte: not a scenario", where=where)
    try:
        return tomllib.loads(content.decode("utf-8-sig"))
    except (UnicodeDecodeError, ValueError, RecursionError) as error:
        said = str(error)
        if said.startswith("Cannot overwrite a value"):
            raise BadInput(said.replace("Cannot overwrite a value", "a key is given twice"), where=where) from None
        raise BadInput(f"is not a TOML file: {shorten(said, 120)}", where=where) from None


def read_values(path: Path, verb: str) -> dict[str, object]:
    """What a scenario file says for a verb, by key."""
    return read_scenario_file(path).values_for(verb)


def as_defaults(
    verb: str, values: Mapping[str, object], file: ScenarioFile | None = None
) -> tuple[dict[str, Any], list[str]]:
    """Values by key as the command line's parser takes them: defaults by argument, and what stands by position."""
    defaults: dict[str, Any] = {}
    placed: list[str] = []
    for key, value in values.items():
        if value is None:
            continue
        parameter = parameter_for(verb, key)
        if parameter is None:
            raise _unknown(f"{verb} has no '{shorten(key)}'", key, known_keys([verb]), file.path.name if file else verb)
        taken = parameter.taken(value, verb, file.where(verb, key) if file else parameter.flag or key)
        if parameter.flag is None:
            placed += taken if isinstance(taken, list) else [taken]
        else:
            defaults[parameter.name] = taken
    return defaults, placed


def read_scenario(path: Path) -> "Scenario":
    """What a file says to the planner."""
    from tokonomics.planner.scenario import Scenario, scenario_from

    file = read_scenario_file(path)
    words = {field.alias or name for name, field in Scenario.model_fields.items()}
    values = {key: value for key, value in file.values_for("plan").items() if key in words}
    return scenario_from(values, shorten(str(path), 200))


class ScenarioCommand(TyperCommand):
    """A verb that takes a scenario file where it takes a model, or anywhere if it takes none."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        places = [] if ctx.obj == AS_GIVEN or ctx.resilient_parsing else self._scenario_places(ctx, args)
        if not places:
            return super().parse_args(ctx, args)
        if len(places) > 1:
            raise BadInput("one scenario at a time", fix="To compare two: tokonomics diff a.toml b.toml")
        verb, file = str(self.name), read_scenario_file(Path(args[places[0]]))
        rest = [token for place, token in enumerate(args) if place != places[0]]
        typed = self._typed(ctx, rest)
        values = _priced_as_typed(verb, without_replaced(file.values_for(verb), typed), typed)
        ctx.default_map, placed = as_defaults(verb, values, file)
        ctx.meta[_FILE] = file, values
        unused = file.unused_by(verb)
        if unused:
            typer.echo(f"{file.path}: {verb} does not use {', '.join(unused)}", err=True)
        try:
            return super().parse_args(ctx, [*rest, *placed])
        except typer.BadParameter as problem:
            key = next((each for each in values if _names(problem, parameter_for(verb, each))), None)
            if key is not None:
                raise BadInput(problem.message, where=file.where(verb, key)) from None
            # MissingParameter is no public name of Typer; the class it extends is.
            if problem.param is None or type(problem).__name__ != "MissingParameter":
                raise
            raise _missing(verb, str(problem.param.name), file) from None

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except TokonomicsError as error:
            if _FILE in ctx.meta:
                _blame(error, str(self.name), *ctx.meta[_FILE])
            raise

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        pieces: list[str] = super().collect_usage_pieces(ctx)
        return pieces if any(".toml" in each for each in pieces) else [*pieces, "[SCENARIO.toml]"]

    def _scenario_places(self, ctx: Any, args: list[str]) -> list[int]:
        """Where a file stands that no flag takes."""
        return [
            place
            for place, token in enumerate(args)
            if token.lower().endswith(".toml") and not token.startswith("-") and self._is_by_position(ctx, args, place)
        ]

    def _is_by_position(self, ctx: Any, args: list[str], place: int) -> bool:
        mark = "\0scenario"
        found, left, _ = self.make_parser(ctx).parse_args([*args[:place], mark, *args[place + 1 :]])
        by_place = [found.get(each.name) for each in verb_parameters(str(self.name)).values() if each.flag is None]
        return mark in left or any(mark in each if isinstance(each, tuple) else each == mark for each in by_place)

    def _typed(self, ctx: Any, args: list[str]) -> set[str]:
        """The keys of what was typed beside the file."""
        found, _, _ = self.make_parser(ctx).parse_args(list(args))
        return {
            each.key for each in verb_parameters(str(self.name)).values() if found.get(each.name) not in (None, (), [])
        }


def _priced_as_typed(verb: str, values: Mapping[str, object], typed: Collection[str]) -> dict[str, object]:
    """A price that is typed drops the file's GPU, and a GPU that is typed the file's price."""
    price, lookup = _EITHER.get(verb, ("", ()))
    dropped = {price} if set(lookup) & set(typed) else set()
    return {key: value for key, value in _said_once(verb, values, typed).items() if key not in dropped}


def _names(problem: typer.BadParameter, parameter: Parameter | None) -> bool:
    return parameter is not None and problem.param is not None and problem.param.name == parameter.name


def _missing(verb: str, name: str, file: ScenarioFile) -> BadInput:
    parameter = verb_parameters(verb)[name]
    return BadInput(
        f"says no {parameter.key}, which {verb} needs",
        where=shorten(str(file.path), 200),
        fix=f"Write {_example(parameter.key, parameter)} there, or type {parameter.flag or 'it'}.",
    )


def _blame(error: TokonomicsError, verb: str, file: ScenarioFile, values: Mapping[str, object]) -> None:
    """A mistake in a value of the file is said of its key there, not of the flag that nobody typed."""
    for key, value in values.items():
        parameter = parameter_for(verb, key)
        if parameter is None or (error.where is None and error.field is None):
            return
        if error.field == parameter.name or (parameter.flag is not None and error.where == parameter.flag):
            error.where, error.field = file.where(verb, key), None
            return
        named = (value, str(value).removeprefix(_TRACE_PREFIX))
        if parameter.kind is not Kind.PLAIN and error.where is not None and error.where in named:
            name = Path(error.where)
            if not name.is_absolute() and not name.exists():
                looked = f"Looked for in {file.path.absolute().parent} and in {Path.cwd()}."
                error.fix = f"{looked}\n  {error.fix}" if error.fix else looked
            error.where = f"{file.where(verb, key)}: {error.where}"
            return


def without_replaced(values: Mapping[str, object], typed: Collection[str]) -> dict[str, object]:
    """What of a file stays beside what was typed."""
    from tokonomics.planner.scenario import replaced_by

    gone = replaced_by(typed)
    return {key: value for key, value in values.items() if key not in gone}
