"""``--profile``: predict with what was learned about one's own machine; shared by every verb that predicts.

One line on standard error says which profile is in use, and after the answer one more for each thing asked that it
knows nothing about. The profile holds for this command only.
"""

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from tokonomics.physics.calibration import Profile

_MODELS = ("model", "model_name", "what", "models")
_SIZES = {"batch": "batch", "context": "context", "input": "input_tokens", "output": "output_tokens"}


def _activate(context: typer.Context, path: Path | None) -> Path | None:
    if context.resilient_parsing:  # a shell asks what could be typed
        return path
    import os

    from tokonomics.physics.calibration import VARIABLE, active, read_profile, using

    if path is None and not os.environ.get(VARIABLE):
        return path
    profile = read_profile(path) if path else active()
    if profile is None:
        return path
    context.with_resource(using(profile))
    typer.echo(profile.summary(), err=True)
    context.call_on_close(lambda: _say_outside(profile, context.params))
    return path


def _say_outside(profile: "Profile", asked: dict[str, Any]) -> None:
    """What of the question the profile knows nothing about."""
    from tokonomics.catalog.gpus import find_gpu
    from tokonomics.catalog.load_models import find_model
    from tokonomics.errors import TokonomicsError
    from tokonomics.physics.calibration import outside

    gpus, models = [], []
    with suppress(TokonomicsError, OSError):  # a name that is wrong is the verb's to say
        gpus = [find_gpu(each).key for each in _texts(asked.get("gpu"))]
        models = [find_model(each).key for name in _MODELS for each in _texts(asked.get(name))]
    if "gpu" in asked and not gpus and asked.get("files") is None and asked.get("url") is None:
        named = ", ".join(profile.gpus)
        typer.echo(f"only {named} is predicted with the profile, other GPUs as without it: compare with care", err=True)
    sizes = {}
    for name, size in _SIZES.items():
        with suppress(TypeError, ValueError):
            sizes[size] = float(asked.get(name))  # type: ignore[arg-type]
    for line in outside(profile, gpus, list(_texts(asked.get("engine"))), models, sizes):
        typer.echo(line, err=True)


def _texts(value: object) -> Iterable[str]:
    if isinstance(value, str):
        return [each.strip() for each in value.split(",") if each.strip()]
    if isinstance(value, list | tuple):
        return [text for each in value for text in _texts(each)]
    return []


ProfileFile = Annotated[
    Path | None,
    typer.Option(
        "--profile",
        help="Predict with a profile of your machine (see probe, calibrate).",
        show_default="$TOKONOMICS_PROFILE, if set",
        callback=_activate,
    ),
]
