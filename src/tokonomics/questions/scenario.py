"""Read scenario files (TOML), which hold the inputs of every question as keys.

``tokonomics VERB chat.toml`` reads the file in place of a model. Keys at the top are shared by all verbs that have such
an input with the same meaning; a table named like a verb is for that verb alone and wins. Typed inputs win over both,
and typed traffic of another kind replaces the file's. A key that no verb knows is refused with the nearest name.
"""

import os
import tomllib
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from tokonomics.errors import BadInput, TokonomicsError, did_you_mean, option, shorten
from tokonomics.questions.request import Kind, Parameter, Request
from tokonomics.questions.verbs import Verb, find_verb, scenario_verbs

MAX_FILE_BYTES = 1_000_000
_TRACE_PREFIX = "trace:"
_OWN_SENSE = {"gpus": frozenset({"plan", "own-hardware", "can-run", "cost"}), "usd_per_hour": frozenset({"breakeven"})}
"""Keys that mean something else to these verbs: the most GPUs to pay for, those of a machine, and those that make
the tokens; a price that replaces a plan instead of pricing it."""
_EITHER = {"cost": ("usd_per_hour", ("gpu", "offers"))}
"""Inputs that say the same in another way: a price, or the GPU to look it up for."""
_MADE_UP = {"input", "output", "arrivals", "duration", "system_prompts", "sessions", "tenants", "demand"}
_OF_A_LOG = {"trace", "columns", "start", "end", "from", "to", "strict", "servegen_model", "servegen_scale"}
WORKING: dict[str, object] = {
    "model": "llama-3.1-8b", "rate": 5, "input": 1000, "output": 300, "slo": "ttft_p99=0.5,tpot_p99=50ms",
    "gpu": "H100",
}  # fmt: skip
"""A chat service that plan, simulate, levers and the others can answer at once."""


def parameter_for(verb: str, key: str) -> Parameter | None:
    """Return a verb's input for a key of a scenario file."""
    return next((parameter for parameter in find_verb(verb).keys.values() if parameter.key == key), None)


SWEPT_UNASKED = ("plan", "simulate", "capacity")
"""The usual verbs of a sweep, in the order in which they are tried if it names none."""


def swept_keys(verb: str) -> list[str]:
    """Return the keys of a verb that a sweep can vary."""
    inputs = find_verb(verb).parameters.values()
    return [parameter.key for parameter in inputs if not parameter.writes and parameter.key != "profile"]


@dataclass(frozen=True)
class ScenarioFile:
    """A file as written, with its keys checked and spelled with underscores."""

    path: Path
    shared: Mapping[str, object]
    tables: Mapping[str, Mapping[str, object]]

    def values_for(self, verb: str) -> dict[str, object]:
        """Return the file's values for one verb; files that it names are looked for beside it."""
        shared = {key: value for key, value in self.shared.items() if shares(verb, key)}
        shared = _said_once(verb, shared, {*shared, *self.tables.get(verb, {})})
        said = {**shared, **self.tables.get(verb, {})}
        return {key: self._found(verb, key, _single_value(verb, key, value)) for key, value in said.items()}

    def said_beside(self, verb: str, typed: Collection[str]) -> dict[str, object]:
        """Return the file's values that remain beside the typed ones: typed traffic and prices replace the file's."""
        price, lookup = _EITHER.get(verb, ("", ()))
        gone = replaced_by(typed) | ({price} if set(lookup) & set(typed) else set())
        values = {key: value for key, value in self.values_for(verb).items() if key not in gone}
        for key, value in values.items():
            parameter = parameter_for(verb, key)
            if parameter and isinstance(value, list) and not parameter.is_list:
                one = f"Give one ({option(parameter.name)})" if parameter.flag else "Name one"
                raise BadInput(
                    f"{verb} takes one {key}, got {len(value)}: {shorten(', '.join(map(str, value)))}",
                    where=self.where(verb, key),
                    fix=f"{one}, or write one under [{verb}].",
                )
        return _said_once(verb, values, typed)

    def with_table(self, verb: Verb) -> "ScenarioFile":
        """Return the file with the verb's table for a question asked by a flag, unless that has a table of its own."""
        taken = {key: value for key, value in self.tables.get(verb.of, {}).items() if parameter_for(verb.name, key)}
        return replace(self, tables={verb.name: taken, **self.tables})

    def unused_by(self, verb: str) -> list[str]:
        """Return the keys at the top for which the verb has no input, or one with another meaning."""
        return [key for key in self.shared if not shares(verb, key)]

    def where(self, verb: str, key: str) -> str:
        return f"{self.path}: [{verb}] {key}" if key in self.tables.get(verb, {}) else f"{self.path}: {key}"

    def _found(self, verb: str, key: str, value: object) -> object:
        parameter = parameter_for(verb, key)
        if parameter is None or parameter.kind is Kind.PLAIN:
            return value
        if parameter.writes:
            return _at_home(value) if isinstance(value, str) else value
        if isinstance(value, list):
            return [self._beside(part, parameter) for part in value]
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


def _single_value(verb: str, key: str, value: object) -> object:
    """Return the value of a list of one, if the verb takes no list."""
    parameter = parameter_for(verb, key)
    is_one = parameter is not None and not parameter.is_list and isinstance(value, list) and len(value) == 1
    return value[0] if is_one and isinstance(value, list) else value


def _at_home(name: str) -> str:
    """Expand ``~`` at the beginning of a path, as a shell does."""
    return os.path.expanduser(name) if name.startswith("~") else name  # noqa: PTH111 - never raises


def known_keys(verbs: Collection[str] | None = None) -> list[str]:
    """Return the keys for which some verb has a flag."""
    wanted = scenario_verbs() if verbs is None else verbs
    return list(dict.fromkeys(parameter.key for verb in wanted for parameter in find_verb(verb).keys.values()))


def shared_keys() -> list[str]:
    """Return the keys allowed at the top.

    These are not outputs, not a switch for one verb and a number for another, and have a meaning that verbs can share.
    """
    takers = {key: takers_of(key).values() for key in known_keys()}
    ambiguous = {key for key, taken in takers.items() if len({parameter.type is bool for parameter in taken}) > 1}
    return [key for key in takers if not _writes(key) and key not in ambiguous and sharers_of(key)]


def _writes(key: str) -> bool:
    return any(parameter.writes for parameter in takers_of(key).values())


def takers_of(key: str, verbs: Collection[str] | None = None) -> dict[str, Parameter]:
    """Return the verbs that have a flag for a key, with their inputs."""
    found = {verb: parameter_for(verb, key) for verb in (scenario_verbs() if verbs is None else verbs)}
    return {verb: parameter for verb, parameter in found.items() if parameter}


def shares(verb: str, key: str) -> bool:
    """Tell whether the verb takes a key from the top."""
    return parameter_for(verb, key) is not None and verb not in _OWN_SENSE.get(key, ())


def sharers_of(key: str, verbs: Collection[str] | None = None) -> dict[str, Parameter]:
    """Return the verbs that take a key from the top, with their inputs."""
    return {verb: parameter for verb, parameter in takers_of(key, verbs).items() if shares(verb, key)}


def _said_once(verb: str, values: Mapping[str, object], said: Collection[str]) -> dict[str, object]:
    """Drop the GPU that a price would be looked up for if the price is given."""
    price, lookup = _EITHER.get(verb, ("", ()))
    return {key: value for key, value in values.items() if not (key in lookup and price in said)}


def read_scenario_file(path: Path) -> ScenarioFile:
    """Read a scenario file and refuse keys that no verb knows."""
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
            raise BadInput(f"'[{key}]' is not a table", where=where, fix=f"Write {example(key)}.")
        elif isinstance(value, dict):
            raise BadInput(f"unknown table '[{shorten(name)}]'", where=where, fix=did_you_mean(key, verbs, 1))
        elif key in known_keys() and key not in at_the_top:
            senses = "; ".join(f"[{verb}]: {taken.help}" for verb, taken in takers_of(key).items())
            under = f". {senses}" if key in _OWN_SENSE else f": [{next(iter(takers_of(key)))}]."
            fix = f"Put it under a verb{under}"
            raise BadInput("cannot be the same for every verb", where=f"{where}: {key}", fix=fix)
        else:
            _put(shared, key, value, at_the_top, where)
    return ScenarioFile(path, shared, tables)


def _table(table: Mapping[str, object], verb: str, where: str) -> dict[str, object]:
    keys = known_keys([verb])
    made: dict[str, object] = {}
    for name, value in table.items():
        key = name.replace("-", "_")
        others = [other for other in takers_of(key) if other != verb]
        if key not in keys and others and not _writes(key):
            fix = f"It is for {', '.join(f'[{other}]' for other in others)}."
            raise BadInput(f"unknown key '{shorten(key)}': not for {verb}", where=where, fix=fix)
        _put(made, key, value, keys, where)
    return made


def shown(parameter: Parameter) -> object:
    """Return an example value of a key: one that works, the default, or an example."""
    if parameter.key in WORKING:
        return WORKING[parameter.key]
    if parameter.type is bool:
        return True
    example = parameter.default if parameter.example is None else parameter.example
    return example if parameter.default in (None, 0) else parameter.default


def example(key: str, parameter: Parameter | None = None) -> str:
    """Return a line of a scenario file."""
    import json

    value = shown(parameter or next(iter(takers_of(key).values())))
    return f"{key} = {json.dumps(value, ensure_ascii=False)}"


def _put(made: dict[str, object], key: str, value: object, known: Collection[str], where: str) -> None:
    if key not in known:
        raise BadInput(f"unknown key '{shorten(key)}'", where=where, fix=did_you_mean(key, known, 1))
    if key in made:
        raise BadInput("is given twice", where=f"{where}: {key}", fix="Once with underscores is enough.")
    made[key] = value


def read_toml(path: Path) -> dict[str, Any]:
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


Asked = TypeVar("Asked", bound=Request)


def request_of(verb: Verb, values: Mapping[str, Any]) -> Request:
    """Return the request; a scenario file in place of the model supplies values, which the other values override."""
    given = values.get("model")
    file = given[0] if isinstance(given, list | tuple) and len(given) == 1 else given
    if not verb.scenario or not str(file).lower().endswith(".toml"):
        return verb.request.checked(values)
    rest = {name: value for name, value in values.items() if name != "model"}
    return read_request(Path(str(file)), verb.request, verb.name, rest)


def read_request(path: Path, kind: type[Asked], verb: str, more: Mapping[str, object] | None = None) -> Asked:
    """Return what a file asks of a verb; ``more`` wins over it, and other traffic in it replaces the file's."""
    file = read_scenario_file(path)
    said = {name: value for name, value in (more or {}).items() if value is not None}
    values = file.said_beside(verb, said)
    kept = {key: value for key, value in values.items() if (input := parameter_for(verb, key)) and not input.writes}
    with saying_where(verb, file, kept):
        return kind.checked({**kept, **said})


@contextmanager
def saying_where(verb: str, file: ScenarioFile, values: Mapping[str, object]) -> Iterator[None]:
    """Make errors inside the block name the file's key, not a flag that nobody typed."""
    try:
        yield
    except TokonomicsError as error:
        _place(error, verb, file, values)
        raise


def _place(error: TokonomicsError, verb: str, file: ScenarioFile, values: Mapping[str, object]) -> None:
    for key, value in values.items():
        parameter = parameter_for(verb, key)
        if parameter is None:
            continue
        if error.field == parameter.name:
            error.where, error.field = file.where(verb, key), None
            return
        if (
            error.where is not None
            and parameter.kind is not Kind.PLAIN
            and error.where in (value, str(value).removeprefix(_TRACE_PREFIX))
        ):
            name = Path(error.where)
            if not name.is_absolute() and not name.exists():
                looked = f"Looked for in {file.path.absolute().parent} and in {Path.cwd()}."
                error.fix = f"{looked}\n  {error.fix}" if error.fix else looked
            error.where = f"{file.where(verb, key)}: {error.where}"
            return


def replaced_by(given: Collection[str]) -> set[str]:
    """Return the inputs that the given ones replace: themselves, and traffic of the other kind."""
    gone = set(given)
    if "trace" in gone:
        gone |= _MADE_UP
    elif _MADE_UP & gone:
        gone |= _OF_A_LOG
    for one, other in (("rate", "tokens_per_month"), ("offline", "slo"), ("demand", "rate")):
        gone |= {other} if one in gone else {one} if other in gone else set()
    # Arrivals contain a rate of their own: gamma:7,cv=3.
    return gone | {"rate", "tokens_per_month"} if "arrivals" in given else gone
