"""Predict with what was learned about one's own machine, for as long as one question is answered.

The listener hears which profile is in use, and afterwards each thing asked that it knows nothing about.
"""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from tokonomics.questions.listener import Listener
from tokonomics.questions.request import Request

if TYPE_CHECKING:
    from tokonomics.physics.calibration import Profile

_SIZES = {"batch": "batch", "context": "context", "input": "input_tokens", "output": "output_tokens"}
VARIABLE = "TOKONOMICS_PROFILE"


@contextmanager
def with_profile(request: Request, listener: Listener) -> Iterator[None]:
    """Within it, predictions use the profile that the request or the environment names."""
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
    """What of the question the profile knows nothing about."""
    from tokonomics.catalog.gpus import find_gpu
    from tokonomics.catalog.load_models import find_model
    from tokonomics.errors import TokonomicsError
    from tokonomics.physics.calibration import outside

    fields = type(request).model_fields
    asked = {name: getattr(request, name) for name in fields}
    gpus, models = [], []
    with suppress(TokonomicsError, OSError):  # a name that is wrong is the question's to say
        gpus = [find_gpu(name).key for name in _names(asked.get("gpu"))]
        models = [find_model(name).key for name in _names(asked.get("model"))]
    if "gpu" in asked and not gpus and "files" not in asked and "url" not in asked:
        named = ", ".join(profile.gpus)
        listener.note(f"only {named} is predicted with the profile, other GPUs as without it: compare with care")
    sizes = {}
    for name, size in _SIZES.items():
        with suppress(KeyError, TypeError, ValueError):  # not an input here, not given, or a distribution
            sizes[size] = float(asked[name])
    for line in outside(profile, gpus, list(_names(asked.get("engine"))), models, sizes):
        listener.note(line)


def _names(value: object) -> Iterable[str]:
    if isinstance(value, str):
        return [name.strip() for name in value.split(",") if name.strip()]
    if isinstance(value, list | tuple):
        return [name for part in value for name in _names(part)]
    return []
