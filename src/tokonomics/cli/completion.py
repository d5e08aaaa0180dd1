"""What Tab offers after ``plan`` or ``--gpu``: verbs, options, and names of the catalogue.

All of it stands in ``words.json``, but for what the user's own catalogue adds and for hosted models. Values belong to a
parameter by its name, whatever verb it is in. ``_TOKONOMICS_COMPLETE`` is set by the scripts that ``tokonomics
--install-completion`` installs; how a shell asks and is answered is as Typer's scripts have it.
"""

import json
import os
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from typing import Any

VARIABLE = "_TOKONOMICS_COMPLETE"
_CUTS = (":", "=")
"""Where bash ends a word."""

Value = tuple[str, str]
"""A name and what it is, which zsh and fish show beside it."""

BY_PARAMETER = {
    **dict.fromkeys(["model", "model_by_place", "draft"], "models"),
    **dict.fromkeys(["weights", "min_weights"], "weights"),
    **dict.fromkeys(["input", "output"], "lengths"),
    "api": "apis",
    "architecture": "architectures",
    "engine": "engines",
    "family": "families",
    "gpu": "gpus",
    "kv": "kv",
    "provider": "providers",
    "region": "regions",
    "terms": "terms",
    "trace": "traces",
}
"""The list of names that a parameter takes."""
BY_VERB = {
    ("apis", "host"): "hosts",
    ("apis", "match"): "apis",
    ("gpus", "match"): "gpus",
    ("init", "verb"): "verbs",
    ("models", "match"): "models",
    ("sweep", "verb"): "verbs",
}
"""Where a name means different things in different verbs."""
_OWN = {"models": ("models", None), "families": ("models", "family"), "gpus": ("gpus", None),
        "architectures": ("gpus", "architecture")}  # fmt: skip
"""What the user's catalogue adds to a list: its keys, or one field of its entries."""
_HOSTED = {"apis": "key", "hosts": "host"}


@cache
def words() -> dict[str, Any]:
    """Verbs, their options, and names of the catalogue: what can be typed."""
    with open(f"{os.path.dirname(__file__)}/words.json", encoding="utf-8") as file:  # noqa: PTH120, PTH123 - quicker to load
        return dict(json.load(file))


def answered() -> bool:
    """Whether the shell that asks was answered; the script that it installs is left to Typer."""
    asked, _, shell = os.environ[VARIABLE].partition("_")
    if asked != "complete" or shell not in _SHELLS:
        return False
    reads, writes = _SHELLS[shell]
    typed, begun = reads()
    found = list(offered(typed, begun))
    if os.environ.get("_TYPER_COMPLETE_FISH_ACTION") == "is-args":
        sys.exit(0 if found else 1)  # where there are none, fish offers files
    sys.stdout.write(f"{writes(found, begun)}\n")
    sys.stdout.flush()
    return True


def offered(typed: Sequence[str], begun: str) -> Iterable[Value]:
    """What may stand for the word that was begun, after those that are typed."""
    verb, command, rest = _command(typed)
    flag, equals, value = begun.partition("=")
    if equals and flag.startswith("-"):
        rest, begun = [*rest, flag], value
    given, placed, pending = _read(command, rest)
    if begun.startswith("-") and "--" not in rest:
        return [
            (flag, option["help"])
            for option in command["options"]
            if option["several"] or option["name"] not in given
            for flag in option["flags"]
            if flag.startswith(begun)
        ]
    if pending:
        return _values(verb, pending, given, begun)
    for argument in command["arguments"]:
        if argument["several"] or not placed:
            return _values(verb, argument["name"], given, begun)
        placed -= 1
    below = command.get("commands", {})
    return [(name, inner["brief"]) for name, inner in below.items() if name.startswith(begun)]


def _command(typed: Sequence[str]) -> tuple[str, dict[str, Any], list[str]]:
    """The verb whose words are typed, what is known of it, and the words after it."""
    verb, command, rest = "", words(), list(typed)
    while rest and (below := command.get("commands")):
        after = next((place for place, word in enumerate(rest) if not word.startswith("-")), len(rest))
        name = rest[after] if after < len(rest) else ""
        if name in below:
            rest = rest[after + 1 :]
        elif name := command.get("otherwise", ""):
            rest = list(rest)
        else:
            break
        verb, command = name, below[name]
    return verb, command, rest


def _read(command: Mapping[str, Any], typed: Sequence[str]) -> tuple[dict[str, str], int, str]:
    """The options that are given, how many words stand by themselves, and the option whose value is to come."""
    options = {flag: option for option in command["options"] for flag in option["flags"]}
    given: dict[str, str] = {}
    placed, left = 0, iter(typed)
    for word in left:
        flag, equals, value = word.partition("=")
        option = options.get(flag)
        if word == "--":
            return given, placed + len(list(left)), ""
        if option is None:
            placed += not word.startswith("-")
            continue
        if option["takes"] and not equals:
            following = next(left, None)
            if following is None:
                return given, placed, option["name"]
            value = following
        given[option["name"]] = value
    return given, placed, ""


def _values(verb: str, name: str, given: Mapping[str, str], begun: str) -> list[Value]:
    if (verb, name) == ("sweep", "over"):
        return _swept(given, begun)
    named = BY_VERB.get((verb, name)) or BY_PARAMETER.get(name)
    return _matching(values(named), begun) if named else []


def values(named: str) -> list[Value]:
    """A list of names: as shipped, and what the user's catalogue adds."""
    if named in _HOSTED:  # the only list that takes a moment to load
        from tokonomics.catalog.apis import list_apis

        return [(name, "") for name in sorted({getattr(api, _HOSTED[named]) for api in list_apis()})]
    shipped = dict(words()["values"][named])
    if named not in _OWN:
        return list(shipped.items())
    from tokonomics.catalog.user_file import user_tables
    from tokonomics.errors import TokonomicsError

    section, field = _OWN[named]
    with suppress(TokonomicsError, OSError):  # a broken file of the user's is the verb's to complain of
        for key, row in user_tables(section).items():
            if field is None:
                told = (row.get("memory_gb"), row.get("architecture"))
                shipped[key] = f"{told[0]} GB, {told[1]}" if section == "gpus" else str(row.get("name", ""))
            elif field in row:
                shipped[str(row[field])] = ""
    return list(shipped.items())


def _swept(given: Mapping[str, str], begun: str) -> list[Value]:
    """Of ``--over gpu=H100,H2``: the keys of what is swept, then the values of one."""
    key, equals, written = begun.partition("=")
    if equals:
        named = BY_PARAMETER.get(key.replace("-", "_"))
        return [(f"{key}={name}", what) for name, what in _matching(values(named), written)] if named else []
    commands = words()["commands"]
    asked = [given["verb"]] if commands.get(given.get("verb", ""), {}).get("swept") else words()["swept_unasked"]
    keys = dict.fromkeys(key for verb in asked for key in commands[verb]["swept"])
    return [(f"{key}=", "") for key in keys if key.startswith(begun)]


def _matching(known: Iterable[Value], begun: str) -> list[Value]:
    *before, last = begun.split(",")  # lists are written H100,L4
    return [
        (",".join([*before, name]), what)
        for name, what in known
        if name.casefold().startswith(last.casefold()) and name not in before
    ]


# --- how shells ask and are answered --------------------------------------------------------------------------------


def _split(line: str) -> list[str]:
    """Its words, also where a quote is open still."""
    lexer = shlex.shlex(line, posix=True)
    lexer.whitespace_split, lexer.commenters = True, ""
    found: list[str] = []
    try:
        found.extend(lexer)
    except ValueError:
        found.append(lexer.token)
    return found


def _from_bash() -> tuple[list[str], str]:
    """``openai : gpt`` and ``gpu = H1``, as bash hands them over, are the words ``openai:gpt`` and ``gpu=H1`` to us."""
    words, place = os.environ.get("COMP_WORDS", "").split(" "), os.environ.get("COMP_CWORD", "")
    at = int(place) if place.isdecimal() else len(words) - 1
    joined: list[str] = []
    moved = at
    for number, word in enumerate(words):
        if joined and (word in _CUTS or joined[-1].endswith(_CUTS)):
            joined[-1] += word
            moved -= number <= at
        else:
            joined.append(word)
    typed = _split(" ".join(joined))
    return typed[1:moved], typed[moved] if moved < len(typed) else ""


def _from_line() -> tuple[list[str], str]:
    line = os.environ.get("_TYPER_COMPLETE_ARGS", "")
    typed = _split(line)[1:]
    return (typed[:-1], typed[-1]) if typed and not line.endswith(" ") else (typed, "")


def _from_powershell() -> tuple[list[str], str]:
    begun = os.environ.get("_TYPER_COMPLETE_WORD_TO_COMPLETE", "")
    typed = _split(os.environ.get("_TYPER_COMPLETE_ARGS", ""))
    return (typed[1:-1] if begun else typed[1:]), begun


def _to_bash(found: Sequence[Value], begun: str) -> str:
    """Bash replaces only what stands after the last cut."""
    written = begun.partition("=")[2] if begun.startswith("-") and "=" in begun else begun
    cut = max(written.rfind(mark) for mark in _CUTS) + 1
    return "\n".join(name[cut:] for name, _ in found)


def _to_zsh(found: Sequence[Value], begun: str) -> str:
    def escaped(text: str) -> str:
        for mark, instead in (('"', '""'), ("'", "''"), ("$", "\\$"), ("`", "\\`"), (":", "\\\\:")):
            text = text.replace(mark, instead)
        return text

    lines = [f'"{escaped(name)}"' + (f':"{escaped(what)}"' if what else "") for name, what in found]
    return f"_arguments '*: :(({chr(10).join(lines)}))'" if lines else "_files"


def _to_fish(found: Sequence[Value], begun: str) -> str:
    return "\n".join(f"{name}\t{' '.join(what.split())}" if what else name for name, what in found)


def _to_powershell(found: Sequence[Value], begun: str) -> str:
    return "\n".join(f"{name}:::{what or ' '}" for name, what in found)


_SHELLS = {
    "bash": (_from_bash, _to_bash),
    "zsh": (_from_line, _to_zsh),
    "fish": (_from_line, _to_fish),
    "powershell": (_from_powershell, _to_powershell),
    "pwsh": (_from_powershell, _to_powershell),
}
