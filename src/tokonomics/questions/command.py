"""The line that asks the same on the command line: shown beside every answer of the page, of Python and of a sweep."""

import shlex
from collections.abc import Iterable, Mapping

from tokonomics.questions.request import Kind, Parameters, Placement, Request, texts
from tokonomics.questions.verbs import Verb

_TABLES = {Kind.TRACE: "trace.parquet", Kind.FILE: "offers.csv"}
"""What a table in memory is called."""


def command_of(verb: Verb, request: Request) -> str:
    """The whole line for a request."""
    return command_line(command_words(verb.name, verb.parameters, request.given()))


def command_words(verb: str, parameters: Parameters, values: Mapping[str, object]) -> list[str]:
    """What one would type after ``tokonomics``: the verb, what has its place, then flags in their order.

    What is not given, or says the default, is left out.
    """
    placed: list[str] = []
    flagged: list[str] = []
    for name, parameter in parameters.items():
        value = values.get(name)
        if value is None or (parameter.default is not None and value == parameter.default):
            continue
        if parameter.kind in _TABLES and not isinstance(value, str | tuple | list):
            value = _TABLES[parameter.kind]
        parts = texts(value) if parameter.type is not bool else []
        if parameter.place is not Placement.FLAG:
            placed += parts
        elif parameter.type is bool:
            flagged += [str(parameter.flag)] if value else [parameter.off] if parameter.off else []
        else:
            for part in parts if parameter.is_list else [",".join(parts)]:
                flagged += [f"{parameter.flag}={part}"] if part.startswith("-") else [str(parameter.flag), part]
    if any(part.startswith("-") for part in placed):
        return [*verb.split(), *flagged, "--", *placed]
    return [*verb.split(), *placed, *flagged]


def command_line(words: Iterable[str]) -> str:
    return shlex.join(["tokonomics", *words])
