"""A command that takes a scenario file where it takes a model, or anywhere if it takes none."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand

from tokonomics.cli.commands import BY_PLACE
from tokonomics.errors import BadInput, TokonomicsError, shorten
from tokonomics.questions.request import Parameter, Placement
from tokonomics.questions.scenario import (
    ScenarioFile,
    example,
    known_keys,
    parameter_for,
    priced_as_typed,
    read_scenario_file,
    saying_where,
    unknown,
    without_replaced,
)
from tokonomics.questions.verbs import find_verb
from tokonomics.report.terminal import say

AS_GIVEN = "as given"
"""A context's ``obj`` in which names that end in .toml are names like any other."""
_FILE = "tokonomics.scenario"
"""Where a context keeps the file that it was made from, and what of it is used."""
_TYPES = {str: "text", int: "an integer", float: "a number", bool: "true or false"}


class ScenarioCommand(TyperCommand):
    """Values of the file stand in for what was not typed."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        places = [] if ctx.obj == AS_GIVEN or ctx.resilient_parsing else self._scenario_places(ctx, args)
        if not places:
            return super().parse_args(ctx, args)
        if len(places) > 1:
            raise BadInput("one scenario at a time", fix="To compare two: tokonomics diff a.toml b.toml")
        verb, file = str(self.name), read_scenario_file(Path(args[places[0]]))
        rest = [token for place, token in enumerate(args) if place != places[0]]
        typed = self._typed(ctx, rest)
        values = priced_as_typed(verb, without_replaced(file.values_for(verb), typed), typed)
        ctx.default_map, placed = as_defaults(verb, values, file)
        ctx.meta[_FILE] = file, values
        unused = file.unused_by(verb)
        if unused:
            say(f"{file.path}: {verb} does not use {', '.join(unused)}")
        try:
            return super().parse_args(ctx, [*rest, *placed])
        except typer.BadParameter as problem:
            key = next((key for key in values if _names(problem, parameter_for(verb, key))), None)
            if key is not None:
                raise BadInput(problem.message, where=file.where(verb, key)) from None
            # MissingParameter is no public name of Typer; the class it extends is.
            if problem.param is None or type(problem).__name__ != "MissingParameter":
                raise
            raise _missing(verb, str(problem.param.name), file) from None

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except TokonomicsError:
            if _FILE not in ctx.meta:
                raise
            file, values = ctx.meta[_FILE]
            with saying_where(str(self.name), file, values):
                raise

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

    def _typed(self, ctx: Any, args: list[str]) -> set[str]:
        """The keys of what was typed beside the file."""
        found, _, _ = self.make_parser(ctx).parse_args(list(args))
        return {
            parameter.key
            for parameter in self._parameters()
            if any(found.get(name) not in (None, (), []) for name in (parameter.name, _placed(parameter)))
        }

    def _parameters(self) -> list[Parameter]:
        return list(find_verb(str(self.name)).keys.values())


def _placed(parameter: Parameter) -> str:
    return f"{parameter.name}{BY_PLACE}" if parameter.place is Placement.EITHER else parameter.name


def as_defaults(verb: str, values: Mapping[str, object], file: ScenarioFile) -> tuple[dict[str, Any], list[str]]:
    """Values by key as Typer takes them: defaults by argument, and what stands by position."""
    defaults: dict[str, Any] = {}
    placed: list[str] = []
    for key, value in values.items():
        if value is None:
            continue
        parameter = parameter_for(verb, key)
        if parameter is None:
            raise unknown(f"{verb} has no '{shorten(key)}'", key, known_keys([verb]), file.path.name)
        taken = _taken(parameter, value, verb, file.where(verb, key))
        if parameter.place is Placement.FIRST:
            placed += taken if isinstance(taken, list) else [taken]
        else:
            defaults[parameter.name] = taken
    return defaults, placed


def _taken(parameter: Parameter, value: object, verb: str, where: str) -> Any:
    """A value as the command line takes it: text, or a list of texts."""
    if isinstance(value, list | tuple) and not parameter.is_list:
        if len(value) != 1:
            raise BadInput(
                f"{verb} takes one {parameter.key}, got {len(value)}: {shorten(', '.join(map(str, value)))}",
                where=where,
                fix=f"Type {parameter.flag or parameter.key.upper()}, or write one under [{verb}].",
            )
        value = value[0]
    if not parameter.is_list:
        return _one(parameter, value, where)
    return [_one(parameter, part, where) for part in (value if isinstance(value, list | tuple) else [value])]


def _one(parameter: Parameter, value: object, where: str) -> Any:
    expected = _TYPES[parameter.type]
    if isinstance(value, bool) or parameter.type is bool:
        if not (isinstance(value, bool) and parameter.type is bool):
            raise BadInput(f"must be {expected}, got {shorten(str(value))}", where=where)
        return value
    if isinstance(value, int | float) and math.isfinite(value):
        return repr(value)
    if isinstance(value, str | Path):
        return str(value)
    raise BadInput(f"{shorten(str(value))} is not usable", where=where, fix=f"Write {expected}.")


def _names(problem: typer.BadParameter, parameter: Parameter | None) -> bool:
    return parameter is not None and problem.param is not None and problem.param.name == parameter.name


def _missing(verb: str, name: str, file: ScenarioFile) -> BadInput:
    parameter = find_verb(verb).keys[name.removesuffix(BY_PLACE)]
    return BadInput(
        f"says no {parameter.key}, which {verb} needs",
        where=shorten(str(file.path), 200),
        fix=f"Write {example(parameter.key, parameter)} there, or type {parameter.flag or 'it'}.",
    )
