"""From the scenario and what is swept to the inputs of a verb, by the keys of a scenario file."""

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tokonomics.errors import BadInput, UnknownName, shorten
from tokonomics.questions.request import Kind, Parameter
from tokonomics.questions.scenario import parameter_for, read_scenario_file, replaced_by
from tokonomics.questions.verbs import find_verb, scenario_verbs
from tokonomics.sweep.points import read_over

USUAL = ("plan", "simulate", "capacity")
"""The verbs that a sweep is mostly for, in the order in which they are tried."""
_YES = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
_ROWS = 10
"""Candidates of a plan in its answer, as many as the terminal shows: all of them are a megabyte for each point."""


def check_verb(verb: str) -> None:
    """Refuse what gives no answer to a scenario."""
    known = scenario_verbs()
    if verb not in known:
        raise UnknownName("verb", verb, known, fix=f"Those that can be swept: {', '.join(known)}.")


def spellings(verb: str) -> dict[str, str]:
    """The keys that can be swept, by how they may be written."""
    inputs = find_verb(verb).parameters.values()
    return {input.key: input.key for input in inputs if not input.writes and input.key != "profile"}


def verb_for(texts: Sequence[str]) -> str:
    """The first of the usual verbs that has every key that is swept; the very first where none has."""
    for verb in USUAL:
        with contextlib.suppress(BadInput):
            read_over(texts, spellings(verb))
            return verb
    return USUAL[0]


def base_values(path: Path, verb: str) -> tuple[dict[str, object], list[str], Path | None]:
    """What the scenario says for the verb; the keys it has no flag for; and the profile it names."""
    file = read_scenario_file(path.absolute())
    said = file.values_for(verb)
    profile = said.get("profile")
    swept = spellings(verb)
    made = {key: value for key, value in said.items() if key in swept}
    if parameter_for(verb, "top") is not None:
        made.setdefault("top", _ROWS)
    return made, file.unused_by(verb), None if profile is None else Path(str(profile))


def combined(verb: str, base: Mapping[str, object], over: Mapping[str, str]) -> dict[str, Any]:
    """The values of one point: traffic of another kind that is swept replaces the scenario's."""
    swept = {key: _value(verb, key, text) for key, text in over.items()}
    gone = replaced_by([key for key, value in swept.items() if value is not False])
    kept: dict[str, Any] = {key: value for key, value in base.items() if key not in gone}
    return kept | swept


def _value(verb: str, key: str, text: str) -> object:
    parameter = parameter_for(verb, key)
    assert parameter is not None
    if parameter.type is bool:
        if text.lower() not in _YES:
            raise BadInput(f"must be true or false, got {shorten(text)}", where=f"--over {key}")
        return _YES[text.lower()]
    _check_number(parameter, text)
    whole = _absolute(parameter, text)
    return [whole] if parameter.is_list else whole


def _check_number(parameter: Parameter, text: str) -> None:
    """A word where a number is taken is the same mistake in every point: said once, before any work."""
    if parameter.type not in (int, float) or parameter.takes_text:
        return
    try:
        parameter.type(text)
    except ValueError:
        kind = "a whole number" if parameter.type is int else "a number"
        raise BadInput(f"must be {kind}, got {shorten(text)}", where=f"--over {parameter.key}") from None


def _absolute(parameter: Parameter, text: str) -> str:
    """A file is found whatever folder a worker stands in."""
    before = "trace:" if parameter.kind is Kind.LENGTHS and text.startswith("trace:") else ""
    if parameter.kind is Kind.PLAIN or (parameter.kind is Kind.LENGTHS and not before):
        return text
    path = Path(text.removeprefix(before))
    return f"{before}{path.resolve()}" if path.exists() else text
