"""A command for every verb: its options are the fields of the requests, its help is theirs.

A flag of a verb may ask another question (``predict --curve``): the command takes the options of all its questions,
and refuses those that the one asked does not take.

The names that Tab offers for a value: models, GPUs, providers and so on; verbs and options are left to Typer.

What is listed is loaded when a shell asks for it. A parameter takes the same names in whatever verb it is.
"""

import inspect
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from tokonomics.errors import BadInput, TokonomicsError, option
from tokonomics.questions.inputs import Shown
from tokonomics.questions.request import NO_LIMIT, Kind, Parameter, Parameters, Placement, Request, Switch
from tokonomics.questions.scenario_text import command_line
from tokonomics.questions.verbs import Verb
from tokonomics.report.terminal import Terminal, check_files, give, say

BY_PLACE = "_by_place"
"""Ends the name of the argument that stands for an option as well: ``plan MODEL`` and ``plan --model MODEL``."""


class VerbCommand(TyperCommand):
    """Help lists the options of other questions apart."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        panels: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            if record := parameter.get_help_record(ctx):
                panels.setdefault(getattr(parameter, "rich_help_panel", None) or "Options", []).append(record)
        for title, records in panels.items():
            with formatter.section(title):
                formatter.write_dl(records, col_max=24)


def command_of(verb: Verb) -> Callable[..., None]:
    """The function that Typer makes a command of."""
    options = _options(verb)

    def command(**given: Any) -> None:
        if verb.by and sys.argv[1:2] != verb.words:
            say(f"`tokonomics {verb.name}` is now `tokonomics {' '.join(verb.words)}`")
        code = _answered(_question(verb, options, given), given)
        if code:
            raise typer.Exit(code)

    others = [name for name in options if name not in verb.keys]
    return with_options(command, options, help_of(verb.summary, verb.request), others)


def _options(verb: Verb) -> dict[str, Parameter]:
    """The inputs of a verb, and what the other questions add that its flags ask.

    What one of the questions can do without may be left out, and a default that they do not share is filled in later.
    """
    options, questions = dict(verb.keys), [verb, *verb.by_flag]
    for question in verb.by_flag:
        flag = question.words[-1]
        if question.by not in question.keys:
            options[question.by] = _switch(question)
        for name, parameter in question.keys.items():
            about = parameter.help if name == question.by else f"With {flag}: {parameter.help}"
            known = options.setdefault(name, replace(parameter, help=about, place=Placement.FLAG, required=False))
            if known.default != parameter.default:
                shown = known.default_text or str(known.default)
                options[name] = replace(known, default=None, default_text=shown)
    needed = {name for name in options if all(name in question.keys for question in questions)}
    return {
        name: parameter if name in needed else replace(parameter, required=False) for name, parameter in options.items()
    }


def more_inputs(verb: Verb) -> str:
    """The line after the help that names the options which it leaves out."""
    rare = [str(parameter.flag) for parameter in _options(verb).values() if parameter.rare]
    where = ", explained by `tokonomics init --all` and docs/scenario.md" if verb.scenario else ""
    text = f"More inputs{where}: {', '.join(rare)}."
    return "\b\n" + textwrap.fill(text, 76, break_on_hyphens=False) if rare else ""


def _switch(question: Verb) -> Parameter:
    """The flag that asks a question."""
    return Parameter(
        name=question.by, key=question.by, annotation=Switch, required=False, default=False, help=question.summary,
        about="",
    )  # fmt: skip


def _question(verb: Verb, options: Parameters, given: Mapping[str, Any]) -> Verb:
    """What is asked: the verb's own question, or that of a flag; an option that it does not take is refused."""
    asked = [question for question in verb.by_flag if given.get(question.by)]
    if len(asked) > 1:
        fields = ", ".join(question.by for question in asked)
        raise BadInput("ask two questions", field=fields, fix="Give one of them.")
    question = asked[0] if asked else verb
    for name, value in given.items():
        field = name.removesuffix(BY_PLACE)
        is_typed = value is not None and value != [] and str(value) != str(options[field].default)
        if is_typed and field not in question.keys and field != question.by:
            takers = [other for other in (verb, *verb.by_flag) if field in other.keys]
            fix = f"It is for {' and '.join(' '.join(other.words) for other in takers)}."
            raise BadInput(f"is not for {' '.join(question.words)}", field=field, fix=fix)
    for name, parameter in question.parameters.items():
        if parameter.required and given.get(name) in (None, []):
            example = help_of("", question.request).partition("Examples:")[2].strip().splitlines()[0]
            raise BadInput(f"{parameter.flag or parameter.metavar} is missing", fix=f"Such as: {example}")
    return question


def with_options(
    command: Callable[..., None], parameters: Parameters, help: str, others: Sequence[str] = ()
) -> Callable[..., None]:
    """The function with an option for every parameter, as Typer reads it; arguments stand before options.

    Help shows the options named in ``others`` apart.
    """
    arguments = [
        argument
        for name, parameter in parameters.items()
        for argument in _arguments(parameter, "Other questions" if name in others else None)
    ]
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

    request = verb.request.checked(values_of(verb.parameters, given))
    shown = Shown.checked({name: given.get(name) for name in Shown.model_fields})
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
    from tokonomics.questions.scenario_text import code_of, left_out_of

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


def _arguments(parameter: Parameter, panel: str | None = None) -> list[inspect.Parameter]:
    """The argument, the option, or both; the option in a panel of its own where one is named."""
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
        help, metavar = parameter.help, parameter.metavar or parameter.name.upper()
        info = typer.Argument(help=help, metavar=metavar, show_default=shown, autocompletion=offered)
        arguments.append(_argument(name, Annotated[optional, info], default))
    if parameter.place is not Placement.FIRST:
        help = "The model, by name." if parameter.place is Placement.EITHER else parameter.help
        flags = f"{parameter.flag}/{parameter.off}" if parameter.off else str(parameter.flag)
        info = typer.Option(
            flags, help=help, show_default=parameter.default_text or True, metavar=_metavar(parameter),
            autocompletion=offered, rich_help_panel=panel, hidden=parameter.rare,
        )  # fmt: skip
        arguments.append(_argument(parameter.name, Annotated[optional, info], default))
    return arguments


def _metavar(parameter: Parameter) -> str | None:
    """``<int: 1 to 16>``, ``TEXT``; None of a switch."""
    if parameter.type not in (int, float):
        return {bool: None, str: "FILE" if parameter.kind is Kind.FILE else "TEXT"}[parameter.type]
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


_MODELS, _GPUS = "catalog.load_models:model_rows {.key}", "catalog.gpus:find_gpus {.key}"
_WEIGHTS, _LENGTHS = "catalog.layers:WEIGHT_PRECISIONS {}", "traffic.formats:SAMPLES sample:{}"
_APIS, _OFFERS = "catalog.api_hosts:list_apis {.key}", "catalog.offers:load_offers"
_LISTS = {
    "api": _APIS, "apis match": _APIS, "architecture": "catalog.gpus:find_gpus {.architecture}", "draft": _MODELS,
    "engine": "catalog.engines:all_engines {.key}", "family": "catalog.load_models:find_models {.family}",
    "gpu": _GPUS, "gpus match": _GPUS, "host": "catalog.api_hosts:list_apis {.host}", "input": _LENGTHS,
    "kv": "catalog.layers:KV_PRECISIONS {}", "min_weights": _WEIGHTS, "model": _MODELS, "models match": _MODELS,
    "output": _LENGTHS, "provider": f"{_OFFERS} {{.provider}}", "region": f"{_OFFERS} {{.region}}",
    "terms": "catalog.offers:Terms {}", "trace": "traffic.formats:TRACES {}", "weights": _WEIGHTS,
}  # fmt: skip
"""By parameter, or by verb and parameter: where the list is, and how a name is written from one of its members."""


def names_of(parameter: str) -> Callable[..., list[str]]:
    """What Typer asks for the values of a parameter; after a comma, the next one of a list."""

    def offered(ctx: typer.Context, incomplete: str) -> list[str]:
        listed = _LISTS.get(parameter) or _LISTS.get(f"{ctx.info_name} {parameter}")
        before, comma, _ = incomplete.rpartition(",")
        return [f"{before}{comma}{name}" for name in _read(listed) if name not in before.split(",")] if listed else []

    return offered


def _read(listed: str) -> list[str]:
    """The names of a list, each once; none where the user's catalogue is broken, of which the verb complains."""
    where, _, written = listed.partition(" ")
    module, _, name = where.partition(":")
    members = getattr(import_module(f"tokonomics.{module}"), name)
    try:
        rows = members if hasattr(members, "__iter__") else members()
        return list(dict.fromkeys(written.format(row) for row in rows))
    except TokonomicsError:
        return []
