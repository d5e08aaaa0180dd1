"""A command that takes a scenario file where it takes a model, or anywhere if it takes none.

``tokonomics init`` writes such a file to begin with, and the JSON Schema for editors.
"""

from pathlib import Path
from typing import Annotated, Any

import typer

from tokonomics.cli.commands import BY_PLACE, VerbCommand
from tokonomics.errors import BadInput, shorten
from tokonomics.questions.request import Parameter, Placement
from tokonomics.questions.scenario import ScenarioFile, example, read_scenario_file, saying_where
from tokonomics.questions.verbs import Verb, find_verb, scenario_verbs
from tokonomics.report.terminal import say, show_json

AS_GIVEN = "as given"  # a context's ``obj`` in which names that end in .toml are names like any other
_FILE = "tokonomics.scenario"  # where a context keeps the file that stands in for what was not typed


class ScenarioCommand(VerbCommand):
    """Values of the file stand in for what was not typed."""

    _question: Verb  # what is asked: the verb's own question, or that of a flag

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
            taken.required = False  # the file may say it
        try:
            return super().parse_args(ctx, rest)
        finally:
            for taken in needed:
                taken.required = True

    def _show_values(self, ctx: Any, file: ScenarioFile) -> None:
        """Let help, after which nothing else is run, show the file's values as defaults."""
        said = file.values_for(self._question.name)
        ctx.default_map = {taken.name: said[taken.key] for taken in self._parameters() if taken.key in said}
        for taken in self.params:
            if taken.name in ctx.default_map:
                vars(taken)["show_default"] = True  # instead of the words for a missing value

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
        """Where a file stands that no flag takes."""
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

    return json.dumps(schema, indent=1, ensure_ascii=False) + "\n"
