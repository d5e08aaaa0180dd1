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


def models() -> list[Value]:
    """Every model of the catalogue and of the user's own."""
    return [(key, str(row.get("name", ""))) for key, row in _rows("models").items()]


def gpus() -> list[Value]:
    return [(key, f"{row.get('memory_gb')} GB, {row.get('architecture')}") for key, row in _rows("gpus").items()]


def engines() -> list[Value]:
    return [(key, f"{row['name']} {row['version']}") for key, row in _table("engines.toml")["engines"].items()]


def families() -> list[Value]:
    return [(name, "") for name in sorted({str(row["family"]) for row in _rows("models").values() if "family" in row})]


def architectures() -> list[Value]:
    return [(name, "") for name in sorted({str(row["architecture"]) for row in _rows("gpus").values()})]


def providers() -> list[Value]:
    return [(name, "") for name in sorted({row["provider"] for row in _offers()})]


def regions() -> list[Value]:
    return [(name, "") for name in sorted({row["region"] for row in _offers()})]


def terms() -> list[Value]:
    return [("on_demand", "by the hour"), ("spot", "may be interrupted"), ("reserved", "for a year or three")]


def weights() -> list[Value]:
    from tokonomics.catalog.precision import WEIGHT_PRECISIONS

    return [(precision.value, f"{precision.bits} bits") for precision in WEIGHT_PRECISIONS]


def kv() -> list[Value]:
    from tokonomics.catalog.precision import KV_PRECISIONS

    return [(precision.value, f"{precision.bits} bits") for precision in KV_PRECISIONS]


def samples() -> list[Value]:
    from tokonomics.traffic.samples import sample_names

    return [(name, "shipped sample") for name in sample_names()]


def lengths() -> list[Value]:
    from tokonomics.traffic.samples import length_sample_names

    return [(f"sample:{name}", "lengths of a shipped sample") for name in length_sample_names()]


def verbs() -> list[Value]:
    """Those that take a scenario."""
    from tokonomics.questions.verbs import scenario_verbs

    return [(name, "") for name in scenario_verbs()]


def apis() -> list[Value]:
    """Hosted models as host:model; the only list that takes a moment to load."""
    from tokonomics.catalog.apis import list_apis

    return [(each.key, "") for each in list_apis()]


def api_hosts() -> list[Value]:
    from tokonomics.catalog.apis import list_apis

    return [(name, "") for name in sorted({each.host for each in list_apis()})]


BY_PARAMETER: dict[str, Callable[[], list[Value]]] = {
    **dict.fromkeys(["model", "model_by_place", "draft"], models),
    **dict.fromkeys(["weights", "min_weights"], weights),
    **dict.fromkeys(["input", "output"], lengths),
    "api": apis,
    "architecture": architectures,
    "engine": engines,
    "family": families,
    "gpu": gpus,
    "kv": kv,
    "provider": providers,
    "region": regions,
    "terms": terms,
    "trace": samples,
}
BY_VERB: dict[tuple[str, str], Callable[[], list[Value]]] = {
    ("apis", "host"): api_hosts,
    ("apis", "match"): apis,
    ("gpus", "match"): gpus,
    ("init", "verb"): verbs,
    ("models", "match"): models,
    ("sweep", "verb"): verbs,
}
"""Where a name means different things in different verbs."""
SWEPT_UNASKED = ("plan", "simulate", "capacity")
"""The verbs of a sweep that names none."""


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
            declared = [*getattr(parameter.annotation, "__metadata__", ()), parameter.default]
            for info in declared:
                if offer and hasattr(info, "autocompletion"):
                    _give(info, offer)
    for group in app.registered_groups:
        assert group.typer_instance is not None
        _hook_verbs(group.typer_instance)


Offer = Callable[[typer.Context, str], list[Value]]
"""What may stand for a word that was begun."""


def _give(info: Any, offer: Offer) -> None:
    """Typer keeps what stands beside a value only in ``autocompletion``, and bash needs words cut as it cuts them."""
    if not _in_bash():

        def values(ctx: typer.Context, incomplete: str) -> list[Value]:
            return offer(ctx, incomplete)

        info.autocompletion = values
        return

    def words(context: typer.Context, parameter: object, incomplete: str) -> list[str]:
        begun = max(incomplete.rfind(mark) for mark in _CUTS) + 1
        return [name[begun:] for name, _ in offer(context, incomplete)]

    info.shell_complete = words


def _offering(values: Callable[[], list[Value]]) -> Offer:
    return lambda context, incomplete: _matching(values, incomplete)


def _swept(context: typer.Context, incomplete: str) -> list[Value]:
    """Of ``--over gpu=H100,H2``: the keys of what is swept, then the values of one."""
    key, begun, written = incomplete.partition("=")
    if begun:
        values = BY_PARAMETER.get(key.replace("-", "_"))
        return [(f"{key}={name}", what) for name, what in _matching(values, written)] if values else []
    from tokonomics.questions.verbs import find_verb

    named = context.params.get("verb")
    asked = [named] if named in dict(verbs()) else SWEPT_UNASKED
    inputs = [parameter for verb in asked for parameter in find_verb(verb).parameters.values()]
    keys = dict.fromkeys(parameter.key for parameter in inputs if not parameter.writes and parameter.key != "profile")
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
        yield from csv.DictReader(file)
