"""What Tab offers after ``plan`` or ``--gpu``: names of the catalogue, read from its files and nothing heavier.

Values belong to a parameter by its name, whatever verb it is in, and are hooked to it only while a shell asks:
``_TOKONOMICS_COMPLETE`` is set by the scripts that ``tokonomics --install-completion`` installs.
"""

import csv
import inspect
import os
import tomllib
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import typer

from tokonomics.errors import TokonomicsError

VARIABLE = "_TOKONOMICS_COMPLETE"
_CATALOG = Path(__file__).parents[1] / "catalog" / "data"

_CUTS = (":", "=")
"""Where bash ends a word."""

Value = tuple[str, str]
"""A name and what it is, which zsh and fish show beside it."""


def _models() -> list[Value]:
    return [(key, str(row.get("name", ""))) for key, row in _rows("models").items()]


def _gpus() -> list[Value]:
    return [(key, f"{row.get('memory_gb')} GB, {row.get('architecture')}") for key, row in _rows("gpus").items()]


def _engines() -> list[Value]:
    return [(key, f"{row['name']} {row['version']}") for key, row in _table("engines.toml")["engines"].items()]


def _terms() -> list[Value]:
    return [("on_demand", "by the hour"), ("spot", "may be interrupted"), ("reserved", "for a year or three")]


def _precisions(of: str) -> list[Value]:
    from tokonomics.catalog.precision import KV_PRECISIONS, WEIGHT_PRECISIONS

    known = KV_PRECISIONS if of == "kv" else WEIGHT_PRECISIONS
    return [(precision.value, f"{precision.bits} bits") for precision in known]


def _samples() -> list[Value]:
    from tokonomics.traffic.samples import TRACES

    return [(name, "shipped sample") for name in TRACES]


def _lengths() -> list[Value]:
    from tokonomics.traffic.samples import SAMPLES

    return [(f"sample:{name}", "lengths of a shipped sample") for name in SAMPLES]


def _verbs() -> list[Value]:
    """Those that take a scenario."""
    from tokonomics.questions.verbs import scenario_verbs

    return [(name, "") for name in scenario_verbs()]


def _apis(name: str) -> list[Value]:
    """Hosted models as host:model, or their hosts; the only list that takes a moment to load."""
    from tokonomics.catalog.apis import list_apis

    return _named(getattr(api, name) for api in list_apis())


def _named(names: Iterable[str]) -> list[Value]:
    return [(name, "") for name in sorted(set(names))]


BY_PARAMETER: dict[str, Callable[[], list[Value]]] = {
    **dict.fromkeys(["model", "model_by_place", "draft"], _models),
    **dict.fromkeys(["weights", "min_weights"], partial(_precisions, "weights")),
    **dict.fromkeys(["input", "output"], _lengths),
    "api": partial(_apis, "key"),
    "architecture": lambda: _named(row["architecture"] for row in _rows("gpus").values()),
    "engine": _engines,
    "family": lambda: _named(row["family"] for row in _rows("models").values() if "family" in row),
    "gpu": _gpus,
    "kv": partial(_precisions, "kv"),
    "provider": lambda: _named(row["provider"] for row in _offers()),
    "region": lambda: _named(row["region"] for row in _offers()),
    "terms": _terms,
    "trace": _samples,
}
BY_VERB: dict[tuple[str, str], Callable[[], list[Value]]] = {
    ("apis", "host"): partial(_apis, "host"),
    ("apis", "match"): partial(_apis, "key"),
    ("gpus", "match"): _gpus,
    ("init", "verb"): _verbs,
    ("models", "match"): _models,
    ("sweep", "verb"): _verbs,
}
"""Where a name means different things in different verbs."""

Offer = Callable[[typer.Context, str], list[Value]]
"""What may stand for a word that was begun."""


def hook(app: typer.Typer) -> None:
    """Give every parameter of these names its values."""
    if _in_bash():
        _join_words()
    _hook_verbs(app)


def _hook_verbs(app: typer.Typer) -> None:
    for command in app.registered_commands:
        assert command.callback is not None
        verb = command.name or command.callback.__name__
        for name, parameter in inspect.signature(command.callback).parameters.items():
            values = BY_VERB.get((verb, name)) or BY_PARAMETER.get(name)
            offer = _swept if (verb, name) == ("sweep", "over") else _offering(values) if values else None
            for info in (*getattr(parameter.annotation, "__metadata__", ()), parameter.default):
                if offer and hasattr(info, "autocompletion"):
                    _give(info, offer)
    for group in app.registered_groups:
        assert group.typer_instance is not None
        _hook_verbs(group.typer_instance)


def _give(info: Any, offer: Offer) -> None:
    """Typer keeps what stands beside a value only in ``autocompletion``, and bash needs words cut as it cuts them."""

    def values(ctx: typer.Context, incomplete: str) -> list[Value]:
        return offer(ctx, incomplete)

    def words(context: typer.Context, parameter: object, incomplete: str) -> list[str]:
        begun = max(incomplete.rfind(mark) for mark in _CUTS) + 1
        return [name[begun:] for name, _ in offer(context, incomplete)]

    if _in_bash():
        info.shell_complete = words
    else:
        info.autocompletion = values


def _offering(values: Callable[[], list[Value]]) -> Offer:
    return lambda context, incomplete: _matching(values, incomplete)


def _swept(context: typer.Context, incomplete: str) -> list[Value]:
    """Of ``--over gpu=H100,H2``: the keys of what is swept, then the values of one."""
    key, begun, written = incomplete.partition("=")
    if begun:
        values = BY_PARAMETER.get(key.replace("-", "_"))
        return [(f"{key}={name}", what) for name, what in _matching(values, written)] if values else []
    from tokonomics.questions.scenario import SWEPT_UNASKED, swept_keys

    named = context.params.get("verb")
    asked = [named] if named in dict(_verbs()) else SWEPT_UNASKED
    keys = dict.fromkeys(key for verb in asked for key in swept_keys(verb))
    return [(f"{key}=", "") for key in keys if key.startswith(incomplete)]


def _matching(values: Callable[[], list[Value]], incomplete: str) -> list[Value]:
    *before, last = incomplete.split(",")  # lists are written H100,L4
    found: list[Value] = []
    with suppress(TokonomicsError, OSError):  # a broken file of the user's is the verb's to complain of
        found = values()
    return [
        (",".join([*before, name]), what)
        for name, what in found
        if name.casefold().startswith(last.casefold()) and name not in before
    ]


def _in_bash() -> bool:
    return os.environ.get(VARIABLE, "").endswith("_bash")


def _join_words() -> None:
    """``openai : gpt`` and ``gpu = H1``, as bash hands them over, are the words ``openai:gpt`` and ``gpu=H1`` to us."""
    words = os.environ.get("COMP_WORDS", "").split(" ")
    at = int(os.environ.get("COMP_CWORD") or 0)
    joined: list[str] = []
    moved = at
    for number, word in enumerate(words):
        if joined and (word in _CUTS or joined[-1].endswith(_CUTS)):
            joined[-1] += word
            moved -= number <= at
        else:
            joined.append(word)
    os.environ["COMP_WORDS"], os.environ["COMP_CWORD"] = " ".join(joined), str(moved)


def _rows(section: str) -> dict[str, dict[str, Any]]:
    from tokonomics.catalog.user_file import user_tables

    ours = _table(f"{section}.toml")
    own: dict[str, dict[str, Any]] = {}
    with suppress(TokonomicsError, OSError):
        own = user_tables(section)
    return {**ours.get(section, ours), **own}


def _table(name: str) -> dict[str, Any]:
    return tomllib.loads((_CATALOG / name).read_text(encoding="utf-8"))


def _offers() -> Iterable[dict[str, str]]:
    with (_CATALOG / "offers.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            yield from (row | {"region": region} for region in row["region"].split("|"))
