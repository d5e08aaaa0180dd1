"""The same question as a command line, shown beside every answer, and as Python, which ``--as-code`` prints."""

import math
import shlex
from collections.abc import Iterable, Mapping

from tokonomics.questions.request import Kind, Parameter, Parameters, Placement, Request, texts
from tokonomics.questions.verbs import Verb

_TABLES = {Kind.TRACE: "trace.parquet", Kind.FILE: "offers.csv"}  # what a table in memory is called


def command_of(verb: Verb, request: Request) -> str:
    """The whole line for a request."""
    return command_line(command_words(verb, verb.parameters, request.given()))


def command_words(verb: Verb, parameters: Parameters, values: Mapping[str, object]) -> list[str]:
    """What one would type after ``tokonomics``: the verb, what has its place, then flags in their order.

    What is not given, or says the default, is left out.
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


FRAMES = ("models", "gpus", "offers")  # the lists of the catalogue, which the library gives as frames
LEFT_OUT = frozenset({"top", "why", "deploy", "deploy_to"})
"""Inputs that say how a terminal shows an answer, or write files: a frame has all rows, ``to_frame("rejected")``."""

_WIDTH = 100  # characters of a line, beyond which each argument gets its own


def code_of(verb: Verb, request: Request, as_json: bool = False) -> str:
    """A program that asks for the same and prints the answer, as text or as JSON; a frame is printed as it is."""
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
    """What was said that the library does not take."""
    return [name for name in _said(verb, request) if name in LEFT_OUT]


def _said(verb: Verb, request: Request) -> dict[str, object]:
    """What was said and is not the default, in the order of the inputs."""
    given = request.given()
    return {
        name: given[name]
        for name, parameter in verb.parameters.items()
        if given.get(name) is not None and given[name] != parameter.default
    }


def _written(parameter: Parameter, value: object) -> str:
    """A value as one would write it: a list of one as the one, numbers without quotes."""
    if parameter.type is not str:
        return repr(value)
    parts = list(value) if isinstance(value, tuple) else [str(value)]
    texts = [_literal(part) for part in parts]
    return texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"


def _literal(text: str) -> str:
    """The number, where the library would write it the same way."""
    for kind in (int, float):
        try:
            number = kind(text)
        except ValueError:
            continue
        if math.isfinite(number) and repr(number) == text:
            return text
    return _quoted(text)


def _quoted(text: str) -> str:
    single = repr(text)
    return f'"{single[1:-1]}"' if single.startswith("'") and '"' not in text else single
