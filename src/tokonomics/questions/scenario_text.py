"""Write the scenario file of ``tokonomics init`` and the JSON Schema of such files, both from the requests.

The file holds a small case that works; with ``--all`` also every other key, commented out, with its default or else an
example. Keys that several verbs share are at the top, grouped by subject; those of one verb are in its table.

An editor uses the schema to complete, explain and underline: it is draft 4, the newest that Taplo (Even Better TOML)
reads. A key at the top takes whatever any verb takes from there; in a table, what that verb takes. No number of a
scenario may be below 0, and the bounds of flags hold too.

The same question is also written as a command line, shown beside every answer, and as Python (``--as-code``).
"""

import json
import math
import shlex
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tokonomics.errors import by_name
from tokonomics.questions.inputs import About, Shown
from tokonomics.questions.request import Kind, Parameter, Parameters, Placement, Request, texts
from tokonomics.questions.scenario import WORKING, shared_keys, sharers_of, shares, shown, takers_of
from tokonomics.questions.verbs import Verb, find_verb, scenario_verbs
from tokonomics.traffic.slo import FIELDS

SCHEMA_FILE = "scenario.schema.json"
_WIDTH = 110
_SEARCHED = ["L40S", "A100-80GB", "H100", "H200"]
_SEARCHERS = ("plan", "fleet", "breakeven", "compare", "route")


def groups() -> dict[str, list[str]]:
    """Return the keys of more than one verb under their declared heading."""
    keys: dict[str, list[str]] = {about: [] for about in About}
    for key in shared_keys():
        takers = takers_of(key)
        if len(takers) > 1:
            keys[next(parameter.about for parameter in takers.values() if parameter.about)].append(key)
    return keys


def first_scenario() -> str:
    """Return a first file: what every verb needs, and what ``plan`` compares."""
    lines = [
        f"#:schema ./{SCHEMA_FILE}",
        "# One file for every verb:  tokonomics plan FILE, tokonomics simulate FILE, tokonomics levers FILE …",
        "# Every flag is a key; a flag that is typed wins. A table such as [plan] is for that verb alone.",
        "# All keys, explained:  tokonomics init --all",
        "",
        *(_line(key, value, True) for key, value in WORKING.items()),
        "",
        "[plan]",
        _line("gpu", _SEARCHED, True),
        *(_line(key, value, False) for key, value in {"provider": ["aws", "gcp"], "spare": 1}.items()),
    ]
    return "\n".join(lines) + "\n"


def scenario_text(verbs: Sequence[str]) -> str:
    """Return a file with every key of these verbs."""
    lines = [
        f"#:schema ./{SCHEMA_FILE}",
        "# What is served, to whom, on what, at which prices. One file for every verb:  tokonomics VERB FILE, with",
        *(f"# {line}" for line in textwrap.wrap(f"{_asked_by(verbs)}.", _WIDTH - 2, break_on_hyphens=False)),
        "# Every key is a flag; a flag that is typed wins. Keys at the top are for all verbs that have such a flag,",
        "# a table such as [plan] for one verb alone. Commented out: the default, or an example.",
    ]
    search_only = set(verbs) <= set(_SEARCHERS)
    shared: set[str] = set()
    for title, keys in groups().items():
        takers = {key: next(iter(sharers_of(key, verbs).values()), None) for key in keys}
        taken = {key: parameter for key, parameter in takers.items() if parameter}
        shared |= taken.keys()
        if taken:
            lines += ["", f"# ── {title} {'─' * (_WIDTH - len(title) - 6)}", ""]
        for key, parameter in taken.items():
            value = _SEARCHED if key == "gpu" and search_only else shown(parameter)
            lines += [*_comment(parameter), _line(key, value, key in WORKING)]
    for verb in verbs:
        lines += _table(verb, shared, verb in _SEARCHERS and not search_only)
    return "\n".join(lines) + "\n"


def _table(verb: str, shared: set[str], searches: bool) -> list[str]:
    own = [
        parameter
        for parameter in find_verb(verb).keys.values()
        if (parameter.key not in shared or not shares(verb, parameter.key)) and parameter.key != "json"
    ]
    asked = _asked_by([verb])
    lines = [
        "",
        f"# ── tokonomics {asked} alone {'─' * (_WIDTH - len(asked) - 24)}",
        "",
        f"{'' if searches else '#'}[{verb}]",
    ]
    if searches:
        lines += ["# This verb compares GPUs: these instead of the one above.", _line("gpu", _SEARCHED, True)]
    for parameter in own:
        lines += [*_comment(parameter), _line(parameter.key, shown(parameter), False)]
    return lines if own or searches else []


def _asked_by(verbs: Iterable[str]) -> str:
    """Return how questions are asked on the command line: ``plan, plan --by-gpu``."""
    return ", ".join(" ".join(find_verb(verb).words) for verb in verbs)


def _comment(parameter: Parameter) -> list[str]:
    default = f" Without: {parameter.default_text}." if parameter.default_text else ""
    return [f"# {line}" for line in textwrap.wrap(parameter.help + default, _WIDTH - 2, break_on_hyphens=False)]


def _line(key: str, value: object, works: bool) -> str:
    # JSON and TOML write strings, numbers, booleans and lists of them alike.
    return f"{'' if works else '#'}{key} = {json.dumps(value, ensure_ascii=False)}"


def scenario_schema() -> dict[str, Any]:
    tables = {verb: _table_schema(verb) for verb in scenario_verbs()}
    keys = {}
    for key in shared_keys():
        takers = sharers_of(key)
        said = [told_by(tables[verb]["properties"][key]) for verb in takers]
        used = {"description": f"{said[0]['description']} Used by {_asked_by(takers)}."}
        alike = {name: text for name, text in said[0].items() if all(other.get(name) == text for other in said)}
        keys[key] = {**alike, **used, **value_schema(list(takers.values()))}
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


def _table_schema(verb: str) -> dict[str, Any]:
    said = {**find_verb(verb).request.model_json_schema()["properties"], **Shown.model_json_schema()["properties"]}
    return {
        "description": f"For tokonomics {_asked_by([verb])} alone; wins over the top.",
        "type": "object",
        "additionalProperties": False,
        "properties": {
            taken.key: {**told_by(said[taken.key]), **value_schema([taken])} for taken in find_verb(verb).keys.values()
        },
    }


def inputs_schema(request: type[Request], parameters: Parameters) -> dict[str, Any]:
    """Return the schema of an object with these fields of a request; numbers may be text if text is accepted."""
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
    """Return the parts of a field's schema that a reader sees; ``value_schema`` gives the type."""
    told = {name: schema.get(name) for name in ("title", "description", "unit", "default", "examples")}
    return {name: text for name, text in told.items() if text is not None}


def _class_schema() -> dict[str, Any]:
    """Return the schema of a ``[[class]]`` table, the only kind of table that inputs take."""
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
    """Return the schema of one value, or of several if some verb takes them."""
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


_TABLES = {Kind.TRACE: "trace.parquet", Kind.FILE: "offers.csv"}  # names for tables in memory


def command_of(verb: Verb, request: Request) -> str:
    """Return the whole command line of a request."""
    return command_line(command_words(verb, verb.parameters, request.given()))


def command_words(verb: Verb, parameters: Parameters, values: Mapping[str, object]) -> list[str]:
    """Return the words after ``tokonomics``: the verb, positional inputs, then flags in their order.

    Inputs that are missing or at their default are left out.
    """
    asked = [word for word in verb.words if not word.startswith("--")]
    placed: list[str] = []
    flagged = [word for word in verb.words if word.startswith("--") and verb.by not in parameters]
    for name, parameter in parameters.items():
        value = values.get(name)
        if value is None or (parameter.default is not None and value == parameter.default):
            continue
        if parameter.kind in _TABLES and not isinstance(value, str | tuple | list):
            value = _TABLES[parameter.kind]
        parts = texts(value) if parameter.type is not bool else []
        if parameter.place is not Placement.FLAG and name != verb.by:
            placed += parts
        elif parameter.type is bool:
            flagged += [str(parameter.flag)] if value else [parameter.off] if parameter.off else []
        else:
            flag = verb.words[-1] if name == verb.by else str(parameter.flag)
            for part in parts if parameter.is_list else [",".join(parts)]:
                flagged += [f"{flag}={part}"] if part.startswith("-") else [flag, part]
    if any(part.startswith("-") for part in placed):
        return [*asked, *flagged, "--", *placed]
    return [*asked, *placed, *flagged]


def command_line(words: Iterable[str]) -> str:
    return shlex.join(["tokonomics", *words])


FRAMES = ("models", "gpus", "offers")  # lists of the catalogue, which the library returns as frames
LEFT_OUT = frozenset({"top", "why", "deploy", "deploy_to", "quote", "open_", "take"})
"""Inputs about how a terminal shows an answer, or about files: a frame has all rows, ``to_frame("rejected")``."""

_WIDTH = 100  # longest line: beyond it each argument gets its own line


def code_of(verb: Verb, request: Request, as_json: bool = False) -> str:
    """Return a program that asks the same and prints the answer, as text or as JSON; a frame is printed directly."""
    if verb.name == "plan":
        from tokonomics.questions.load import refuse_several

        refuse_several(request)
    given = {name: value for name, value in _said(verb, request).items() if name not in LEFT_OUT}
    first = next((name for name in given if verb.parameters[name].place is not Placement.FLAG), None)
    arguments = [_written(verb.parameters[first], given.pop(first))] if first else []
    arguments += [f"{name}={_written(verb.parameters[name], value)}" for name, value in given.items()]
    call = f"result = tk.{verb.function_name}({', '.join(arguments)})"
    if len(call) > _WIDTH:
        call = "\n".join([f"result = tk.{verb.function_name}(", *(f"    {said}," for said in arguments), ")"])
    shown = "result.to_json()" if as_json and verb.name not in FRAMES else "result"
    return "\n".join(["import tokonomics as tk", "", call, f"print({shown})"])


def left_out_of(verb: Verb, request: Request) -> list[str]:
    """Return the given inputs that the library does not take."""
    return [name for name in _said(verb, request) if name in LEFT_OUT]


def _said(verb: Verb, request: Request) -> dict[str, object]:
    """Return the given values that are not the default, in the order of the inputs."""
    given = request.given()
    return {
        name: given[name]
        for name, parameter in verb.parameters.items()
        if given.get(name) is not None and given[name] != parameter.default
    }


def _written(parameter: Parameter, value: object) -> str:
    """Write a value as a person would: a list of one as that one, numbers without quotes."""
    if parameter.type is not str:
        return repr(value)
    parts = list(value) if isinstance(value, tuple) else [str(value)]
    texts = [_literal(part) for part in parts]
    return texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"


def _literal(text: str) -> str:
    """Return the number if the library would write it the same way."""
    for kind in (int, float):
        try:
            number = kind(text)
        except ValueError:
            continue
        if math.isfinite(number) and repr(number) == text:
            return text
    single = repr(text)
    return f'"{single[1:-1]}"' if single.startswith("'") and '"' not in text else single
