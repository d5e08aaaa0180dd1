"""Asks a verb of the command line from Python: natural values become its flags, its answer becomes a typed result.

There is one implementation of every question, the verb's, as for the page (``cli.answer``). So arguments are checked,
read and refused as on the command line, only that messages speak of ``rate`` instead of ``--rate``; and every result
knows the command that gives the same figures.
"""

import inspect
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NoReturn, TypeVar

import typer

from tokonomics.api.frames import as_file
from tokonomics.api.result import Result
from tokonomics.cli.answer import Answer, taking
from tokonomics.cli.argument_names import in_python
from tokonomics.cli.asking import as_ours
from tokonomics.cli.command_line import command_line, command_words
from tokonomics.cli.main import with_only
from tokonomics.cli.parameters import Parameter, verb_parameters
from tokonomics.errors import BadInput, TokonomicsError
from tokonomics.errors import in_python as by_name

R = TypeVar("R", bound=Result)
Function = TypeVar("Function", bound=Callable[..., object])

Words = str | Sequence[str]
"""One name, several with commas, or a list of them."""
Discount = str | Sequence[str] | Mapping[str, float]
"""``"aws=0.2"`` or ``{"aws": 0.2}``."""
Slo = str | Mapping[str, float | str]
"""``"ttft_p99=0.5,tpot_p99=50ms"`` or ``{"ttft_p99": 0.5, "tpot_p99": "50ms"}``."""


def ask(function: Callable[..., R], kind: type[R], given: Mapping[str, object]) -> R:
    """The answer of the verb that ``function`` is named after, to its arguments (its ``locals()``)."""
    with as_files(given) as readable:
        answer = answered(words_of(function, readable))
    if answer.exit_code and "blame" in answer.plain() and "blame" not in kind.model_fields:
        why = [f"{each['constraint']}: {each['why']}; {each['nearest']}." for each in answer.plain()["blame"]]
        refuse(BadInput(answer.title, fix="\n  ".join(why)))
    names = {name: Path(value).name for name, value in readable.items() if value is not given[name]}
    return kind.of(answer, command_line(words_of(function, {**given, **names})))


def answered(words: Sequence[str]) -> Answer:
    """What a command line answers with; what is wrong with it is said in the words of Python."""
    try:
        with taking(command_line(words)) as taken:
            with_only(words[0])(list(words), prog_name="tokonomics", standalone_mode=False)
    except TokonomicsError as error:
        refuse(error)
    except typer.BadParameter as error:
        refuse(as_ours(error, words[0]))
    return taken[0]


def words_of(function: Callable[..., object], given: Mapping[str, object]) -> list[str]:
    """The command line that asks the verb of a function for the same."""
    named = {parameter.name: given[name] for name, parameter in arguments(function).items()}
    return command_words(verb_of(function), named)


def verb_of(function: Callable[..., object]) -> str:
    """The verb of the command line with the function's arguments."""
    return "trace" if function.__name__ == "read_trace" else function.__name__


def arguments(function: Callable[..., object]) -> dict[str, Parameter]:
    """The arguments of a function by name, as the verb of that name describes each."""
    declared = verb_parameters(verb_of(function))
    by_place = next((each for each in declared.values() if each.flag is None), None)
    found = {}
    for name, argument in inspect.signature(function).parameters.items():
        parameter = by_place if by_place and argument.kind is not argument.KEYWORD_ONLY else declared[name]
        found[name] = replace(parameter, help=in_python(parameter.help))
    return found


def documented(function: Function) -> Function:
    """With the verb's own description of every argument at the end of the docstring."""
    lines = [f"    {name}: {each.help}" for name, each in arguments(function).items()]
    function.__doc__ = "\n".join([inspect.getdoc(function) or "", "", "Arguments:", *lines])
    return function


def refuse(error: TokonomicsError) -> NoReturn:
    """Raise it in the words of Python, without the way it took through the command line."""
    error.what, error.where, error.fix = (text and in_python(text) for text in error.told(by_name))  # type: ignore[assignment]
    error.field = None
    error.args = (error.what,)
    raise error.with_traceback(None) from None


@contextmanager
def as_files(given: Mapping[str, object]) -> Iterator[dict[str, Any]]:
    """Frames and traces among the arguments as files that verbs can read, for as long as they do."""
    plain = (str, int, float, bool, Path, type(None))
    tables = {name: given[name] for name in ("trace", "file", "offers") if not isinstance(given.get(name), plain)}
    if not tables:
        yield dict(given)
        return
    with TemporaryDirectory(prefix="tokonomics-") as folder:
        try:
            yield dict(given) | {name: as_file(value, name, Path(folder)) for name, value in tables.items()}
        except TokonomicsError as error:
            error.where = error.where and error.where.replace(f"{folder}{os.sep}", "")
            raise
