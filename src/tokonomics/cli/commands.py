"""A command for every question: its options are the fields of the request, its help is theirs."""

import inspect
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from tokonomics.cli.completion import names_of
from tokonomics.errors import BadInput, option
from tokonomics.questions.command import command_line
from tokonomics.questions.inputs import Shown
from tokonomics.questions.request import NO_LIMIT, Kind, Parameter, Parameters, Placement, Request
from tokonomics.questions.verbs import Verb
from tokonomics.report.terminal import Terminal, check_files, give, say

BY_PLACE = "_by_place"
"""Ends the name of the argument that stands for an option as well: ``plan MODEL`` and ``plan --model MODEL``."""


def command_of(verb: Verb) -> Callable[..., None]:
    """The function that Typer makes a command of."""

    def command(**given: Any) -> None:
        code = _answered(verb, given)
        if code:
            raise typer.Exit(code)

    return with_options(command, verb.keys, help_of(verb.summary, verb.request))


def with_options(command: Callable[..., None], parameters: Parameters, help: str) -> Callable[..., None]:
    """The function with an option for every parameter, as Typer reads it; arguments stand before options."""
    arguments = [argument for parameter in parameters.values() for argument in _arguments(parameter)]
    arguments.sort(key=lambda argument: isinstance(argument.annotation.__metadata__[0], typer.models.OptionInfo))
    command.__signature__ = inspect.Signature(arguments)  # type: ignore[attr-defined]
    command.__annotations__ = {argument.name: argument.annotation for argument in arguments}
    command.__doc__ = help
    return command


def help_of(summary: str, request: type[Request]) -> str:
    """The summary, what the request adds to it, and the examples as they are typed."""
    more, _, examples = (inspect.getdoc(request) or "").partition("Examples:")
    about = "\n\n".join(part for part in (summary, more.strip()) if part)
    return f"{about}\n\n\b\nExamples:{examples}"


def _answered(verb: Verb, given: Mapping[str, Any]) -> int:
    """Ask the question and give the answer; returns the exit code."""
    from tokonomics.report.answer import describe

    request = verb.request.of(values_of(verb.parameters, given))
    shown = Shown.of({name: given.get(name) for name in Shown.model_fields})
    if shown.as_code:
        return _print_code(verb, request, shown)
    check_files(shown.chart, shown.html)
    typed = command_line(sys.argv[1:])
    with Terminal(typed) as terminal:
        result = verb.answer(request, terminal)
        answer = describe(verb, result, request)
    if shown.chart and not answer.charts and verb.name == "validate":
        raise BadInput("an engine's log has no chart", field="chart")
    return give(answer, typed, json=shown.as_json, chart=shown.chart, html=shown.html)


def _print_code(verb: Verb, request: Request, shown: Shown) -> int:
    """Print the program; on standard error, what was asked for that it leaves out."""
    from tokonomics.questions.command import code_of, left_out_of

    typer.echo(code_of(verb, request, shown.as_json))
    files = [name for name in ("chart", "html") if getattr(shown, name)]
    if left := [option(name) for name in (*left_out_of(verb, request), *files)]:
        say(f"not in the code, as it is about what a terminal shows or saves: {', '.join(left)}")
    return 0


def values_of(parameters: Parameters, given: Mapping[str, Any]) -> dict[str, Any]:
    """What was given, by field; what stands at its default was not."""
    values = {}
    for name, parameter in parameters.items():
        value = given.get(name)
        if parameter.place is Placement.EITHER and (by_place := given.get(f"{name}{BY_PLACE}")) is not None:
            if value is not None:
                fix = f"Name one, such as {option(name, parameter.example)}."
                raise BadInput("two models are given", field=name, fix=fix)
            value = by_place
        if value is not None and value != [] and str(value) != str(parameter.default):
            values[name] = value
    return values


def _arguments(parameter: Parameter) -> list[inspect.Parameter]:
    """The argument, the option, or both."""
    kind: Any = Path if parameter.kind is Kind.FILE and parameter.type is str else parameter.type
    kind = str if parameter.type in (int, float) else kind  # the request checks numbers, whichever door they come by
    kind = list[kind] if parameter.is_list else kind
    optional = kind | None if not parameter.required and parameter.default is None else kind
    default = inspect.Parameter.empty if parameter.required else parameter.default
    offered = None if parameter.kind is Kind.FILE or parameter.type is not str else names_of(parameter.name)
    arguments = []
    if parameter.place is not Placement.FLAG:
        name = parameter.name if parameter.place is Placement.FIRST else f"{parameter.name}{BY_PLACE}"
        shown = parameter.default_text or True
        help, metavar = parameter.help, parameter.metavar
        info = typer.Argument(help=help, metavar=metavar, show_default=shown, autocompletion=offered)
        arguments.append(_argument(name, Annotated[optional, info], default))
    if parameter.place is not Placement.FIRST:
        help = "The model, by name." if parameter.place is Placement.EITHER else parameter.help
        flags = f"{parameter.flag}/{parameter.off}" if parameter.off else str(parameter.flag)
        shown, metavar = parameter.default_text or True, _metavar(parameter)
        info = typer.Option(flags, help=help, show_default=shown, metavar=metavar, autocompletion=offered)
        arguments.append(_argument(parameter.name, Annotated[optional, info], default))
    return arguments


def _metavar(parameter: Parameter) -> str | None:
    """``<int: 1 to 16>``; None of what is no number."""
    if parameter.type not in (int, float):
        return None
    low, high = parameter.low, None if parameter.high == NO_LIMIT else parameter.high
    bounds = "" if low is None else f": {_digits(low)} or more"
    if high is not None:
        bounds = f": at most {_digits(high)}" if low is None else f": {_digits(low)} to {_digits(high)}"
    return f"<{parameter.type.__name__}{'' if parameter.takes_text else bounds}>"


def _digits(number: float) -> str:
    """``1,000,000``, ``0.001``."""
    return f"{number:,.12g}"


def _argument(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
