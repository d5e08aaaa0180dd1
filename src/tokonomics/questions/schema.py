"""What an input may be, as JSON Schema: for the keys of scenario files and the inputs of agents' tools."""

from collections.abc import Sequence
from typing import Any

from tokonomics.errors import by_name
from tokonomics.questions.request import Kind, Parameter, Parameters, Request
from tokonomics.traffic.slo import FIELDS


def inputs_schema(request: type[Request], parameters: Parameters) -> dict[str, Any]:
    """Of an object with these fields of a request, in this order; numbers may be text where text is taken."""
    fields = request.model_json_schema(by_alias=False)["properties"]
    return {
        "type": "object",
        "properties": {name: _input_schema(parameter, fields[name]) for name, parameter in parameters.items()},
        "required": [name for name, parameter in parameters.items() if parameter.required],
        "additionalProperties": False,
    }


def _input_schema(parameter: Parameter, field: dict[str, Any]) -> dict[str, Any]:
    told = {name: text for name, text in told_by(field).items() if name != "title"}
    without = f" Without: {parameter.default_text}." if parameter.default_text else ""
    return {**told, "description": by_name(f"{parameter.help}{without}"), **value_schema([parameter])}


def told_by(schema: dict[str, Any]) -> dict[str, Any]:
    """What the schema of a request's field says to a reader; what a file may hold is said by ``value_schema``."""
    told = {name: schema.get(name) for name in ("title", "description", "unit", "default", "examples")}
    return {name: text for name, text in told.items() if text is not None}


def _class_schema() -> dict[str, Any]:
    """A ``[[class]]`` table: the only kind of table that inputs take."""
    kinds = {
        "tenants": ["string", "array"],
        "slo": ["string", "object"],
        "priority": ["integer"],
        "max_queue": ["integer"],
    }
    said = {name: {"description": text, "type": kinds.get(name, ["string", "number"])} for name, text in FIELDS.items()}
    return {"type": "object", "additionalProperties": False, "required": ["name"], "properties": said}


_TYPES = {str: ["string", "number"], int: ["integer"], float: ["number"], bool: ["boolean"]}


def value_schema(parameters: Sequence[Parameter]) -> dict[str, Any]:
    """One value; or several, where some verb takes them."""
    every = [name for parameter in parameters for name in _TYPES[str if parameter.takes_text else parameter.type]]
    types = [name for name in dict.fromkeys(every) if not (name == "integer" and "number" in every)]
    one: dict[str, Any] = {"type": types[0] if len(types) == 1 else types}
    if types != ["boolean"] and all(parameter.kind in (Kind.PLAIN, Kind.LENGTHS) for parameter in parameters):
        one["minimum"] = min(parameter.low or 0 for parameter in parameters)
    highs = [parameter.high for parameter in parameters]
    if None not in highs:
        one["maximum"] = max(high for high in highs if high is not None)
    if any(parameter.takes_tables for parameter in parameters):
        return {"anyOf": [one, {"type": "array", "items": {"anyOf": [one, _class_schema()]}}]}
    if any(parameter.is_list for parameter in parameters):
        tables = all(parameter.kind is Kind.TENANT for parameter in parameters)
        items = {"anyOf": [one, {"type": "object"}]} if tables else one
        return {"anyOf": [one, {"type": "array", "items": items}]}
    return one
