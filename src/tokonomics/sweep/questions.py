"""From the scenario and what is swept to the inputs of a verb, by the keys of a scenario file."""

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from tokonomics.errors import BadInput, UnknownName, shorten
from tokonomics.questions.request import TYPE_WORDS
from tokonomics.questions.scenario import (
    SWEPT_UNASKED,
    ScenarioFile,
    parameter_for,
    read_scenario_file,
    replaced_by,
    swept_keys,
)
from tokonomics.questions.verbs import scenario_verbs
from tokonomics.sweep.points import read_over

_ROWS = 10
"""Candidates of a plan in its answer, as many as the terminal shows: all of them are a megabyte for each point."""


def check_verb(verb: str) -> None:
    """Refuse what gives no answer to a scenario."""
    known = scenario_verbs()
    if verb not in known:
        raise UnknownName("verb", verb, known, fix=f"Those that can be swept: {', '.join(known)}.")


def verb_for(texts: Sequence[str]) -> str:
    """The first of the usual verbs that has every key that is swept; the very first where none has."""
    for verb in SWEPT_UNASKED:
        with contextlib.suppress(BadInput):
            read_over(texts, swept_keys(verb))
            return verb
    return SWEPT_UNASKED[0]


def base_values(path: Path, verb: str) -> tuple[dict[str, object], list[str], Path | None]:
    """What the scenario says for the verb; the keys it has no flag for; and the profile it names."""
    file = read_scenario_file(path.absolute())
    said = file.values_for(verb)
    profile = said.get("profile")
    base = {key: said[key] for key in said if key in swept_keys(verb)}
    if parameter_for(verb, "top") is not None:
        base.setdefault("top", _ROWS)
    return base, file.unused_by(verb), None if profile is None else Path(str(profile))


def combined(verb: str, base: Mapping[str, object], over: Mapping[str, str]) -> dict[str, Any]:
    """The values of one point: traffic of another kind that is swept replaces the scenario's."""
    read = {key: _read(verb, key, text) for key, text in over.items()}
    # As if a scenario in this folder said it: a file is found whatever folder a worker stands in.
    swept = ScenarioFile(Path.cwd() / "over", {}, {verb: read}).values_for(verb)
    gone = replaced_by([key for key, value in swept.items() if value is not False])
    return {key: value for key, value in base.items() if key not in gone} | swept


def _read(verb: str, key: str, text: str) -> object:
    """A word where a number is taken is the same mistake in every point: said once, before any work."""
    parameter = parameter_for(verb, key)
    assert parameter is not None
    if parameter.type is str or parameter.takes_text:
        return [text] if parameter.is_list else text
    try:
        return TypeAdapter(parameter.type).validate_python(text)
    except ValidationError:
        raise BadInput(f"must be {TYPE_WORDS[parameter.type]}, got {shorten(text)}", where=f"--over {key}") from None
