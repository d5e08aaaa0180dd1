"""Asks a verb inside this process, with the values of a scenario file, and takes its answer.

The values go through the command line's own parser, so that they are converted, bounded and refused as there; the
verb runs inside ``taking``, so that its answer comes back instead of being printed.
"""

import contextlib
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import typer

from tokonomics.cli.answer import Answer, Say, taking
from tokonomics.cli.command_line import command_line, command_words
from tokonomics.cli.parameters import OUTPUT, parameter_for, verb_parameters
from tokonomics.cli.scenario_file import AS_GIVEN, as_defaults
from tokonomics.errors import BadInput


def ask(verb: str, values: Mapping[str, object], tell: Say | None = None) -> Answer:
    """A verb's answer to values by key, as ``read_values`` gives them; what is wrong with them is a BadInput.

    How an answer is printed and saved is the caller's: such keys are left out. ``tell`` hears what is being done.
    """
    asked = {key: value for key, value in values.items() if key not in OUTPUT}
    defaults, placed = as_defaults(verb, asked)
    command = _commands()[verb]
    usage_error: type[Any] = typer.BadParameter.__mro__[1]  # typer has no public name for it
    with taking(_command(verb, asked), tell) as taken:
        try:
            context = command.make_context(verb, placed, obj=AS_GIVEN, default_map=defaults)
            with context, contextlib.suppress(typer.Exit):
                command.invoke(context)
        except usage_error as problem:
            raise as_ours(problem, verb) from None
    if not taken:
        raise BadInput("prints its answer and does not hand it over", where=verb)
    return taken[0]


def as_ours(problem: Any, verb: str) -> BadInput:
    """What the parser says of an argument of a verb."""
    refused = getattr(problem, "param", None)
    parameter = verb_parameters(verb)[refused.name] if refused is not None else None
    name = (parameter.flag or parameter.key) if parameter else None
    if not problem.message:
        return BadInput(f"{name} is missing", where=verb)
    return BadInput(problem.message.rstrip("."), where=name)


def _command(verb: str, values: Mapping[str, object]) -> str:
    parameters = {key: parameter_for(verb, key) for key in values}
    return command_line(command_words(verb, {each.name: values[key] for key, each in parameters.items() if each}))


@lru_cache(maxsize=1)
def _commands() -> Mapping[str, Any]:
    from tokonomics.cli.main import app

    made: Any = typer.main.get_command(app)
    found: Mapping[str, Any] = made.commands
    return found
