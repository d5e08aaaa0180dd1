"""Asks a verb of the command line from Python: natural values become its flags, its answer becomes a typed result.

There is one implementation of every question, the verb's, as for the page (``cli.answer``). So arguments are checked,
read and refused as on the command line, only that messages speak of ``rate`` instead of ``--rate``; and every result
knows the command that gives the same figures.
"""

import inspect
import os
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, NoReturn, TypeVar

import typer
from typer.main import get_command

from tokonomics.api.frames import as_file
from tokonomics.api.result import Result
from tokonomics.cli.answer import Answer, taking
from tokonomics.cli.argument_names import FLAGS, in_python
from tokonomics.cli.main import app
from tokonomics.errors import BadInput, TokonomicsError

R = TypeVar("R", bound=Result)
Function = TypeVar("Function", bound=Callable[..., object])

Words = str | Sequence[str]
"""One name, several with commas, or a list of them."""
Discount = str | Sequence[str] | Mapping[str, float]
"""``"aws=0.2"`` or ``{"aws": 0.2}``."""
Slo = str | Mapping[str, float | str]
"""``"ttft_p99=0.5,tpot_p99=50ms"`` or ``{"ttft_p99": 0.5, "tpot_p99": "50ms"}``."""
_SAID = re.compile(r"^Invalid value for '?(?P<where>--[a-z-]+)'?(?: \S+)?: (?P<what>.+)$", re.DOTALL)


class Argument(NamedTuple):
    """An argument of a function, as the command line describes it."""

    flag: str | None
    """None for what is taken by its place."""
    off: list[str]
    """The flag that says no, where there is one."""
    repeats: bool
    """Given once for each value; otherwise values are joined with commas."""
    help: str
    default: str | None
    """In words, where the plain default says too little."""


def ask(function: Callable[..., R], kind: type[R], given: Mapping[str, object]) -> R:
    """The answer of the verb that ``function`` is named after, to its arguments (its ``locals()``)."""
    with as_files(given) as readable:
        answer = answered(command_words(function, readable))
    if answer.exit_code and "blame" in answer.plain() and "blame" not in kind.model_fields:
        why = [f"{each['constraint']}: {each['why']}; {each['nearest']}." for each in answer.plain()["blame"]]
        refuse(BadInput(answer.title, fix="\n  ".join(why)))
    names = {name: Path(value).name for name, value in readable.items() if value is not given[name]}
    return kind.of(answer, shlex.join(["tokonomics", *command_words(function, {**given, **names})]))


def answered(words: Iterable[str]) -> Answer:
    """What a command line answers with; what is wrong with it is said in the words of Python."""
    try:
        with taking() as taken:
            app(list(words), prog_name="tokonomics", standalone_mode=False)
    except TokonomicsError as error:
        refuse(error)
    except typer.BadParameter as error:
        refuse(_as_ours(error))
    return taken[0]


def command_words(function: Callable[..., object], given: Mapping[str, object]) -> list[str]:
    """What one would type: the verb, then flags that differ from their default, then what is taken by its place."""
    known = arguments(function)
    flagged: list[str] = []
    placed: list[str] = []
    for name, parameter in inspect.signature(function).parameters.items():
        value = given[name]
        if value is None or (parameter.default is not None and value == parameter.default):
            continue
        argument = known[name]
        if argument.flag is None:
            placed.append(str(value))
        elif isinstance(value, bool):
            flagged += [argument.flag] if value else argument.off
        else:
            values = texts(value)
            for each in values if argument.repeats else [",".join(values)]:
                flagged += [f"{argument.flag}={each}"] if each.startswith("-") else [argument.flag, each]
    if any(each.startswith("-") for each in placed):
        return [verb_of(function), *flagged, "--", *placed]
    return [verb_of(function), *placed, *flagged]


def texts(value: object) -> list[str]:
    """As one would type it: one text, or one for each part of a list or of names with values."""
    if isinstance(value, Mapping):
        return [f"{name}={part}" for name, part in value.items()]
    if isinstance(value, Iterable) and not isinstance(value, str):
        return [str(each) for each in value]
    return [str(value)]


def verb_of(function: Callable[..., object]) -> str:
    """The verb of the command line with the function's arguments."""
    return "trace" if function.__name__ == "read_trace" else function.__name__


@lru_cache(maxsize=1)
def _verbs() -> Mapping[str, Any]:
    return get_command(app).commands  # type: ignore[attr-defined, no-any-return]


def arguments(function: Callable[..., object]) -> dict[str, Argument]:
    """The arguments of a function by name, with what the verb of that name says of each."""
    declared = _verbs()[verb_of(function)].params
    by_flag = {option: each for each in declared for option in each.opts if each.param_type_name == "option"}
    by_place = [each for each in declared if each.param_type_name == "argument"]
    found = {}
    for name, parameter in inspect.signature(function).parameters.items():
        placed = parameter.kind is not parameter.KEYWORD_ONLY
        flag = None if placed else FLAGS.get(name, "--" + name.replace("_", "-"))
        each = by_flag[flag] if flag else by_place[0]
        default = each.show_default if isinstance(each.show_default, str) else None
        repeats, said = bool(getattr(each, "multiple", False)), in_python(each.help or "")
        found[name] = Argument(flag, list(each.secondary_opts), repeats, said, default)
    return found


def documented(function: Function) -> Function:
    """With the verb's own description of every argument at the end of the docstring."""
    lines = [f"    {name}: {each.help}" for name, each in arguments(function).items()]
    function.__doc__ = "\n".join([inspect.getdoc(function) or "", "", "Arguments:", *lines])
    return function


def refuse(error: TokonomicsError) -> NoReturn:
    """Raise it in the words of Python, without the way it took through the command line."""
    error.what = in_python(error.what)
    error.where = error.where and in_python(error.where)
    error.fix = error.fix and in_python(error.fix)
    error.args = (error.what,)
    raise error.with_traceback(None) from None


def _as_ours(error: typer.BadParameter) -> BadInput:
    said = _SAID.match(error.format_message())
    if said is None:
        return BadInput(error.format_message())
    return BadInput(said["what"].strip().rstrip("."), where=said["where"])


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
