"""The line that asks the same on the command line: shown beside every answer of the page, of Python and of a sweep."""

import shlex
from collections.abc import Iterable, Mapping

from tokonomics.cli.parameters import verb_parameters


def command_words(verb: str, values: Mapping[str, object]) -> list[str]:
    """What one would type after ``tokonomics``, for values by argument: the verb, what has its place, then flags.

    What is not given, or says the default, is left out.
    """
    parameters = verb_parameters(verb)
    placed: list[str] = []
    flagged: list[str] = []
    for name, value in values.items():
        parameter = parameters[name]
        if value is None or (parameter.default is not None and value == parameter.default):
            continue
        if parameter.flag is None:
            placed += texts(value)
        elif isinstance(value, bool):
            flagged += [parameter.flag] if value else [parameter.off] if parameter.off else []
        else:
            parts = texts(value)
            for each in parts if parameter.is_list else [",".join(parts)]:
                flagged += [f"{parameter.flag}={each}"] if each.startswith("-") else [parameter.flag, each]
    if any(each.startswith("-") for each in placed):
        return [verb, *flagged, "--", *placed]
    return [verb, *placed, *flagged]


_KEYS = {"start": "from", "end": "to", "for_": "for"}
"""Of flags that are no names in Python."""


def flag(field: str, value: str | None = None) -> str:
    """An input as it is typed: ``--rate``, ``--rate 5``."""
    written = f"--{_KEYS.get(field, field).replace('_', '-')}"
    return written if value is None else f"{written} {value}"


def command_line(words: Iterable[str]) -> str:
    """Words as a shell takes them."""
    return shlex.join(["tokonomics", *words])


def texts(value: object) -> list[str]:
    """As one would type it: one text, or one for each part of a list or of names with values."""
    if isinstance(value, Mapping):
        return [f"{name}={part}" for name, part in value.items()]
    if isinstance(value, Iterable) and not isinstance(value, str):
        return [str(each) for each in value]
    return [str(value)]
