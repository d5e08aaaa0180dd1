"""Set up what holds while one question is answered: how config.json files are read, the profile, the user's market.

The market is saved once in the catalogue: whom the user buys from, where, and at what discount. The listener hears
which profile is in use, and afterwards each requested thing that the profile does not cover.
"""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from tokonomics.catalog.entries import user_market, user_path
from tokonomics.errors import BadInput, option, shorten
from tokonomics.questions.inputs import Market
from tokonomics.questions.request import Listener, Request

if TYPE_CHECKING:
    from tokonomics.physics.calibration import Profile

_SIZES = {"batch": "batch", "context": "context", "input": "input_tokens", "output": "output_tokens"}
VARIABLE = "TOKONOMICS_PROFILE"


@contextmanager
def with_profile(request: Request, listener: Listener) -> Iterator[None]:
    """Let predictions inside the block use the profile that the request or the environment names."""
    named = getattr(request, "profile", None)
    if "profile" not in type(request).model_fields or (named is None and not os.environ.get(VARIABLE)):
        yield
        return
    from tokonomics.physics.calibration import active, read_profile, using

    profile = read_profile(Path(named)) if named else active()
    if profile is None:
        yield
        return
    listener.note(profile.summary())
    with using(profile):
        yield
    _say_outside(profile, request, listener)


def _say_outside(profile: "Profile", request: Request, listener: Listener) -> None:
    """Note the GPUs, engines, models and sizes that the profile does not cover."""
    from tokonomics.catalog.gpus import find_gpu
    from tokonomics.catalog.load_models import find_model
    from tokonomics.errors import TokonomicsError
    from tokonomics.physics.calibration import outside

    fields = type(request).model_fields
    asked = {name: getattr(request, name) for name in fields}
    gpus, models = [], []
    with suppress(TokonomicsError, OSError):  # the question itself reports a wrong name
        gpus = [find_gpu(name).key for name in _names(asked.get("gpu"))]
        models = [find_model(name).key for name in _names(asked.get("model"))]
    if "gpu" in asked and not gpus and "files" not in asked and "url" not in asked:
        named = ", ".join(profile.gpus)
        listener.note(f"only {named} is predicted with the profile, other GPUs as without it: compare with care")
    sizes = {}
    for name, size in _SIZES.items():
        with suppress(KeyError, TypeError, ValueError):  # not an input here, not given, or given as a distribution
            sizes[size] = float(asked[name])
    for line in outside(profile, gpus, list(_names(asked.get("engine"))), models, sizes):
        listener.note(line)


def _names(value: object) -> Iterable[str]:
    if isinstance(value, str):
        return [name.strip() for name in value.split(",") if name.strip()]
    if isinstance(value, list | tuple):
        return [name for part in value for name in _names(part)]
    return []


@contextmanager
def reading_models(request: Request, listener: Listener) -> Iterator[list[str]]:
    """Read paths inside the block as the family that the request names; yield the notes, each heard once."""
    said: list[str] = []
    if "model" not in type(request).model_fields and "as_family" not in type(request).model_fields:
        yield said
        return
    from tokonomics.catalog.load_models import READING, ConfigReading

    def note(line: str) -> None:
        if line not in said:
            said.append(line)
            listener.note(f"note: {line}")

    family = getattr(request, "as_family", None)
    if family is not None:
        _require_config(request)
    before = READING.set(ConfigReading(family, note, getattr(request, "hub", False)))
    try:
        yield said
    finally:
        READING.reset(before)


def _require_config(request: Request) -> None:
    """Refuse a family for named models: the catalogue knows how to read those."""
    from tokonomics.catalog.load_models import is_path

    given = request.given().get("model") or request.given().get("match") or ()
    models = (given,) if isinstance(given, str) else tuple(given)
    if not any(is_path(model) for model in models):
        named = f"{shorten(models[0])} is" if models else "these are"
        fix = f"Leave out {option('as_family')}, or give the path of a config.json."
        raise BadInput(f"is for config.json files; {named} in the catalogue", field="as_family", fix=fix)


def in_market(request: Request, listener: Listener) -> Request:
    """Fill in the user's market (``[market]`` in the catalogue) where the request gives none."""
    if not isinstance(request, Market):
        return request
    asked = {name: value for name, value in user_market().items() if getattr(request, name) is None}
    if not asked:
        return request
    said = "; ".join(f"{name} {value if isinstance(value, str) else ', '.join(value)}" for name, value in asked.items())
    listener.note(f"your market ({user_path()}): {said}")
    return request.model_copy(
        update={name: value if isinstance(value, str) else tuple(value) for name, value in asked.items()}
    )
