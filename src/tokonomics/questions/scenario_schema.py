"""The JSON Schema of scenario files, from the requests: what an editor completes, explains and underlines.

Draft 4, the newest that Taplo (Even Better TOML) reads. A key at the top takes whatever any verb takes from there; in a
table, what that verb takes. No number of a scenario may be below 0, and where flags say more, that holds.
"""

from collections.abc import Sequence
from typing import Any

from tokonomics.questions.request import Kind, Parameter
from tokonomics.questions.scenario import shared_keys, sharers_of
from tokonomics.questions.verbs import find_verb, scenario_verbs

_TYPES = {str: ["string", "number"], int: ["integer"], float: ["number"], bool: ["boolean"]}


def scenario_schema() -> dict[str, Any]:
    """Of a whole file."""
    tables = {verb: _table(verb) for verb in scenario_verbs()}
    keys = {key: _shared(key) for key in shared_keys()}
    both = {name: {"anyOf": [keys[name], tables[name]]} for name in keys.keys() & tables.keys()}
    return {
        "$schema": "http://json-schema.org/draft-04/schema#",
        "title": "tokonomics scenario",
        "description": "What is served, to whom, on what and at which prices: the flags of every verb as keys. "
        "Keys at the top are shared by all verbs; a table named like a verb is for that verb alone.",
        "type": "object",
        "additionalProperties": False,
        "properties": {**keys, **tables, **both},
    }


def _table(verb: str) -> dict[str, Any]:
    parameters = {parameter.key: parameter for parameter in find_verb(verb).keys.values()}
    return {
        "description": f"For tokonomics {verb} alone; wins over the top.",
        "type": "object",
        "additionalProperties": False,
        "properties": {key: _described([each], each.help) for key, each in parameters.items()},
    }


def _shared(key: str) -> dict[str, Any]:
    takers = sharers_of(key)
    return _described(list(takers.values()), f"{next(iter(takers.values())).help} Used by {', '.join(takers)}.")


def _described(parameters: Sequence[Parameter], text: str) -> dict[str, Any]:
    return {"description": text, **_value(parameters)}


def _value(parameters: Sequence[Parameter]) -> dict[str, Any]:
    """One value; or several, where some verb takes them."""
    types = _types(parameters)
    one: dict[str, Any] = {"type": types[0] if len(types) == 1 else types}
    if types != ["boolean"] and all(parameter.kind in (Kind.PLAIN, Kind.LENGTHS) for parameter in parameters):
        one["minimum"] = min(parameter.low or 0 for parameter in parameters)
    highs = [parameter.high for parameter in parameters]
    if None not in highs:
        one["maximum"] = max(high for high in highs if high is not None)
    if any(parameter.is_list for parameter in parameters):
        return {"anyOf": [one, {"type": "array", "items": one}]}
    return one


def _types(parameters: Sequence[Parameter]) -> list[str]:
    found = [name for parameter in parameters for name in _TYPES[str if parameter.takes_text else parameter.type]]
    return [name for name in dict.fromkeys(found) if not (name == "integer" and "number" in found)]
