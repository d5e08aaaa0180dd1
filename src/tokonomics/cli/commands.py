"""Make a command for every verb; the fields of its requests become its options and help.

A flag of a verb may ask another question (``predict --curve``): the command takes the options of all its questions, and
refuses those that the chosen question does not take. A scenario file may stand in place of a model; ``tokonomics init``
writes a first one, and the JSON Schema for editors.

Tab completes the names of models, GPUs, providers and so on, which are loaded when a shell asks for them; Typer
completes verbs and options.
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

from tokonomics.errors import BadInput, TokonomicsError, option, shorten
from tokonomics.questions.inputs import Shown
from tokonomics.questions.request import NO_LIMIT, Kind, Parameter, Parameters, Placement, Request, Switch
from tokonomics.questions.scenario import ScenarioFile, example, read_scenario_file, saying_where
from tokonomics.questions.scenario_text import command_line
from tokonomics.questions.verbs import Verb, find_verb, scenario_verbs
from tokonomics.report.terminal import Terminal, check_files, give, say, show_json

BY_PLACE = "_by_place"
"""Suffix of an argument that can also be an option: ``plan MODEL`` and ``plan --model MODEL``."""


class VerbCommand(TyperCommand):
    """List the options of other questions separately in the help."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        panels: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            if record := parameter.get_help_record(ctx):
                panels.setdefault(getattr(parameter, "rich_help_panel", None) or "Options", []).append(record)
        for title, records in panels.items():
            with formatter.section(title):
                formatter.write_dl(records, col_max=24)


def command_of(verb: Verb) -> Callable[..., None]:
    """Return the function from which Typer makes a command."""
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
    """Return the inputs of a verb, and those that the other questions behind its flags add.

    An input that one of the questions does not need is optional, and a default that they do not share is filled in
    later.
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
    """Return the line after the help that names the options left out of it."""
    rare = [str(parameter.flag) for parameter in _options(verb).values() if parameter.rare]
    where = ", explained by `tokonomics init --all` and docs/scenario.md" if verb.scenario else ""
    text = f"More inputs{where}: {', '.join(rare)}."
    return "\b\n" + textwrap.fill(text, 76, break_on_hyphens=False) if rare else ""


def _switch(question: Verb) -> Parameter:
    """Return the flag that asks a question."""
    return Parameter(
        name=question.by, key=question.by, annotation=Switch, required=False, default=False, help=question.summary,
        about="",
    )  # fmt: skip


def _question(verb: Verb, options: Parameters, given: Mapping[str, Any]) -> Verb:
    """Return the question asked: the verb's own or that of a flag; refuse options that it does not take."""
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
    """Give the function an option for every parameter, in a form that Typer reads; arguments come before options.

    Help shows the options named in ``others`` separately.
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
    """Join the summary, what the request adds to it, and the examples as they are typed."""
    more, _, examples = (inspect.getdoc(request) or "").partition("Examples:")
    about = "\n\n".join(part for part in (summary, more.strip()) if part)
    return f"{about}\n\n\b\nExamples:{examples}"


def _answered(verb: Verb, given: Mapping[str, Any]) -> int:
    """Ask the question and show the answer; return the exit code."""
    from tokonomics.report.answer import describe

    request = verb.request.checked(values_of(verb.parameters, given))
    shown = Shown.checked({name: given.get(name) for name in Shown.model_fields})
    if shown.as_code:
        return _print_code(verb, request, shown)
    check_files(shown.chart, shown.html)
    typed = command_line(sys.argv[1:])
    with Terminal(typed) as terminal:
        result = verb.answer(request, terminal)
        if getattr(result, "drafted", None):
            from tokonomics.cli.open_change import opened

            result = opened(result, request, terminal)
        answer = describe(verb, result, request)
    if shown.chart and not answer.charts and verb.name == "validate":
        raise BadInput("an engine's log has no chart", field="chart")
    return give(answer, typed, json=shown.as_json, chart=shown.chart, html=shown.html)


def _print_code(verb: Verb, request: Request, shown: Shown) -> int:
    """Print the program; on standard error, say which requested things it leaves out."""
    from tokonomics.questions.scenario_text import code_of, left_out_of

    typer.echo(code_of(verb, request, shown.as_json))
    files = [name for name in ("chart", "html") if getattr(shown, name)]
    if left := [option(name) for name in (*left_out_of(verb, request), *files)]:
        say(f"not in the code, as it is about what a terminal shows or saves: {', '.join(left)}")
    return 0


def values_of(parameters: Parameters, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the given values by field, without those at their default."""
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
    """Return the argument, the option, or both; put the option into a panel if one is named."""
    kind: Any = Path if parameter.kind is Kind.FILE and parameter.type is str else parameter.type
    kind = str if parameter.type in (int, float) else kind  # the request checks numbers for every door
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
    """Return ``<int: 1 to 16>`` or ``TEXT``; None for a switch."""
    if parameter.type not in (int, float):
        return {bool: None, str: "FILE" if parameter.kind is Kind.FILE else "TEXT"}[parameter.type]
    low, high = parameter.low, None if parameter.high == NO_LIMIT else parameter.high
    bounds = "" if low is None else f": {_digits(low)} or more"
    if high is not None:
        bounds = f": at most {_digits(high)}" if low is None else f": {_digits(low)} to {_digits(high)}"
    return f"<{parameter.type.__name__}{'' if parameter.takes_text else bounds}>"


def _digits(number: float) -> str:
    """Format a number: ``1,000,000``, ``0.001``."""
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
"""By parameter, or by verb and parameter: where the list is, and how to write a name from one of its members."""


def names_of(parameter: str) -> Callable[..., list[str]]:
    """Return the function that Typer calls to complete a parameter; after a comma it completes the next value."""

    def offered(ctx: typer.Context, incomplete: str) -> list[str]:
        listed = _LISTS.get(parameter) or _LISTS.get(f"{ctx.info_name} {parameter}")
        before, comma, _ = incomplete.rpartition(",")
        return [f"{before}{comma}{name}" for name in _read(listed) if name not in before.split(",")] if listed else []

    return offered


def _read(listed: str) -> list[str]:
    """Return the names of a list, each once; none if the user's catalogue is broken, which the verb itself reports."""
    where, _, written = listed.partition(" ")
    module, _, name = where.partition(":")
    members = getattr(import_module(f"tokonomics.{module}"), name)
    try:
        rows = members if hasattr(members, "__iter__") else members()
        return list(dict.fromkeys(written.format(row) for row in rows))
    except TokonomicsError:
        return []


AS_GIVEN = "as given"  # a context with this ``obj`` treats names that end in .toml like any other name
_FILE = "tokonomics.scenario"  # where a context keeps the file that supplies what was not typed


class ScenarioCommand(VerbCommand):
    """Take values from the scenario file for what was not typed."""

    _question: Verb  # the question asked: the verb's own, or that of a flag

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        verb = find_verb(str(self.name))
        flags = {token.partition("=")[0] for token in args}
        self._question = next((question for question in verb.by_flag if question.words[-1] in flags), verb)
        as_given = ctx.obj == AS_GIVEN or ctx.resilient_parsing or not self._question.scenario
        places = [] if as_given else self._scenario_places(ctx, args)
        if not places:
            return super().parse_args(ctx, args)
        if len(places) > 1:
            raise BadInput("one scenario at a time", fix="To compare two: tokonomics plan a.toml --against b.toml")
        file = read_scenario_file(Path(args[places[0]]))
        file = ctx.meta[_FILE] = file if self._question is verb else file.with_table(self._question)
        rest = [token for place, token in enumerate(args) if place != places[0]]
        if set(rest) & set(ctx.help_option_names):
            self._show_values(ctx, file)
        needed = [taken for taken in self.params if taken.required]
        for taken in needed:
            taken.required = False  # the file may give it
        try:
            return super().parse_args(ctx, rest)
        finally:
            for taken in needed:
                taken.required = True

    def _show_values(self, ctx: Any, file: ScenarioFile) -> None:
        """Show the file's values as defaults in the help, after which nothing else runs."""
        said = file.values_for(self._question.name)
        ctx.default_map = {taken.name: said[taken.key] for taken in self._parameters() if taken.key in said}
        for taken in self.params:
            if taken.name in ctx.default_map:
                vars(taken)["show_default"] = True  # instead of the text for a missing value

    def invoke(self, ctx: Any) -> Any:
        file: ScenarioFile | None = ctx.meta.get(_FILE)
        if file is None:
            return super().invoke(ctx)
        verb, parameters = self._question.name, self._parameters()
        typed = {
            parameter.key
            for parameter in parameters
            for name in (parameter.name, _placed(parameter))
            if name in ctx.params and ctx.get_parameter_source(name).name == "COMMANDLINE"
        }
        said = file.said_beside(verb, typed)
        if unused := file.unused_by(verb):
            say(f"{file.path}: {' '.join(self._question.words)} does not use {', '.join(unused)}")
        for parameter in parameters:
            if parameter.key in said:
                value = said[parameter.key]
                ctx.params[parameter.name] = [value] if parameter.is_list and not isinstance(value, list) else value
            elif parameter.required and parameter.key not in typed:
                raise _missing(verb, parameter, file)
        with saying_where(verb, file, said):
            return super().invoke(ctx)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        pieces: list[str] = super().collect_usage_pieces(ctx)
        return pieces if any(".toml" in piece for piece in pieces) else [*pieces, "[SCENARIO.toml]"]

    def _scenario_places(self, ctx: Any, args: list[str]) -> list[int]:
        """Return the positions of scenario files that belong to no flag."""
        return [
            place
            for place, token in enumerate(args)
            if token.lower().endswith(".toml") and not token.startswith("-") and self._is_by_position(ctx, args, place)
        ]

    def _is_by_position(self, ctx: Any, args: list[str], place: int) -> bool:
        mark = "\0scenario"
        found, left, _ = self.make_parser(ctx).parse_args([*args[:place], mark, *args[place + 1 :]])
        placed = [
            found.get(_placed(parameter)) for parameter in self._parameters() if parameter.place is not Placement.FLAG
        ]
        return mark in left or any(mark in value if isinstance(value, tuple) else value == mark for value in placed)

    def _parameters(self) -> list[Parameter]:
        return list(self._question.keys.values())


def _placed(parameter: Parameter) -> str:
    return f"{parameter.name}{BY_PLACE}" if parameter.place is Placement.EITHER else parameter.name


def _missing(verb: str, parameter: Parameter, file: ScenarioFile) -> BadInput:
    return BadInput(
        f"says no {parameter.key}, which {verb} needs",
        where=shorten(str(file.path), 200),
        fix=f"Write {example(parameter.key, parameter)} there, or type {parameter.flag or 'it'}.",
    )


def init(
    file: Annotated[
        Path | None, typer.Argument(help="Where to; - prints it.", show_default="scenario.toml", metavar="FILE")
    ] = None,
    every_key: Annotated[bool, typer.Option("--all", help="With every key of every verb, explained.")] = False,
    verb: Annotated[
        list[str] | None,
        typer.Option(help="With every key of these verbs: with commas, or repeat.", autocompletion=scenario_verbs),
    ] = None,
    schema: Annotated[
        bool, typer.Option("--schema", help="Write the JSON Schema of scenario files instead: scenario.schema.json.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Write over a file that exists.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Write a scenario file to begin with.

    Every verb takes it in place of flags.

    \b
    Examples:
      tokonomics init
      tokonomics init chat.toml --all
      tokonomics init chat.toml --verb plan,simulate,levers
      tokonomics init --schema
      tokonomics plan chat.toml
      tokonomics simulate chat.toml --gpu H200 --slo ttft_p99=1
    """
    from tokonomics.errors import BadInput, UnknownName, option, shorten
    from tokonomics.files import write_text
    from tokonomics.planner.parsing import listed
    from tokonomics.questions.scenario_text import SCHEMA_FILE, first_scenario, scenario_schema, scenario_text

    if schema and verb:
        raise BadInput("is for a scenario, not for the schema", field="verb")
    verbs = listed(verb, "verb") or scenario_verbs()
    for name in verbs:
        if name not in scenario_verbs():
            raise UnknownName("verb", name, scenario_verbs())
    path = file or Path(SCHEMA_FILE if schema else "scenario.toml")
    text = as_text(scenario_schema()) if schema else scenario_text(verbs) if verb or every_key else first_scenario()
    if str(path) == "-":
        typer.echo(text, nl=False)
        return
    where, ending = shorten(str(path), 200), ".json" if schema else ".toml"
    if path.is_dir():
        name = SCHEMA_FILE if schema else "scenario.toml"
        raise BadInput("is a folder", where=where, fix=f"Name a file in it: {shorten(str(path / name), 200)}")
    if path.suffix.lower() != ending:
        raise BadInput(f"'{shorten(path.name)}' does not end with {ending}", where="FILE")
    if path.exists() and not force:
        fix = f"Choose another name, or write over it with {option('force')}."
        raise BadInput("exists already", where=where, fix=fix)
    write_text(path, text, where)
    if json:
        show_json({"file": str(path), "verbs": [] if schema else verbs})
    elif schema:
        say(f"{path} saved: editors find it by the first line of a scenario, #:schema ./{path.name}")
    else:
        say(f"{path} saved. Next:  tokonomics {verbs[0]} {path}")
        say(f"For completion in your editor:  tokonomics init --schema {path.parent / SCHEMA_FILE}")


def as_text(schema: object) -> str:
    import json

    # A line for each key: a change of one can be read, in a third fewer bytes than indented.
    return json.dumps(schema, ensure_ascii=False, separators=(",", ":")).replace('},"', '},\n"') + "\n"
