"""A command that takes a scenario file where it takes a model, or anywhere if it takes none."""

from pathlib import Path
from typing import Any

from tokonomics.cli.commands import BY_PLACE, VerbCommand
from tokonomics.errors import BadInput, shorten
from tokonomics.questions.request import Parameter, Placement
from tokonomics.questions.scenario import ScenarioFile, example, read_scenario_file, saying_where
from tokonomics.questions.verbs import Verb, find_verb
from tokonomics.report.terminal import say

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
