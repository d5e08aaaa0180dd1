"""What the curves of all kernels share: how terms that overlap combine, and whose timings stand for a GPU.

Terms combine as (a^p + b^p)^(1/p): their sum at p = 1, near the longer at p = 8. Kernels are fitted with p a power of
two wherever that fits: squares and roots do then, and general powers would take most of a step time's computation.

Curves hold shares of the datasheet, so that one carries over to a GPU without timings of its own: its family's, else
another architecture's, with no share above the best that is published for the borrower. ``data/efficiency.toml`` has
the shares of each family, made by ``benchmarks/fit_families.py`` from measured kernels and published microbenchmarks.
"""

import math
import tomllib
from collections.abc import Collection
from functools import cache
from importlib.resources import files
from typing import Literal, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from tokonomics.catalog.gpus import Gpu, shipped_gpus
from tokonomics.errors import BadInput
from tokonomics.types import Badge, Noun

Array = NDArray[np.float64]
Value = TypeVar("Value", float, float | Array, Array)
Curve = TypeVar("Curve", bound=NamedTuple)
Basis = Literal["measured", "scaled", "assumed"]
"""Timed on this GPU; on another of its architecture, scaled by the datasheet; or on another architecture."""

LENDERS = ("A100-80GB", "L40S")
"""Whose curves any other architecture borrows; the L40S' Triton kernels where the A100 has none (latent attention)."""


def raised(value: Value, p: float) -> Value:
    """A value to the power p."""
    times = math.log2(p)
    if not times.is_integer():
        return value**p  # type: ignore[no-any-return]
    for _ in range(abs(int(times))):
        value = value * value if times > 0 else np.sqrt(value)
    return value


def root(value: Value, p: float) -> Value:
    """What has this value to the power p."""
    return raised(value, 1 / p)


def smooth_maximum(one: Value, other: Value, p: float) -> Value:
    """The time of two terms that overlap."""
    return root(raised(one, p) + raised(other, p), p)


class Efficiency(Noun):
    """Shares of the datasheet's figures that the kernels of a GPU family reach."""

    memory: float = Field(gt=0, le=1)
    compute: float = Field(gt=0, le=1)
    badge: Badge
    source: str


@cache
def efficiencies() -> dict[str, Efficiency]:
    text = files("tokonomics.physics").joinpath("data/efficiency.toml").read_text(encoding="utf-8")
    return {family: Efficiency.model_validate(row) for family, row in tomllib.loads(text)["families"].items()}


def efficiency(gpu: Gpu) -> Efficiency:
    """The efficiency of a GPU's family."""
    families = efficiencies()
    if gpu.architecture not in families:
        raise BadInput(
            f"no efficiency is known for the architecture '{gpu.architecture}' of {gpu.key}",
            fix=f"Give the GPU one of these architectures: {', '.join(sorted(families))}.",
        )
    return families[gpu.architecture]


@cache
def timed_gpu(key: str) -> Gpu:
    """The GPU that was timed: as shipped, whatever the user's catalogue says of theirs."""
    return next(gpu for gpu in shipped_gpus() if gpu.key == key)


def donors(gpu: Gpu, timed: Collection[str]) -> list[str]:
    """Of the timed GPUs: this one, then its family in the table's order; without any, a lender.

    The order does not look at rates: a GPU with more bandwidth must not get another curve and become slower.
    """
    family = [key for key in timed if timed_gpu(key).architecture == gpu.architecture]
    return sorted(family, key=lambda key: key != gpu.key) or [next(key for key in LENDERS if key in timed)]


def basis(gpu: Gpu, donor: str) -> Basis:
    """How far a donor's timings speak for a GPU."""
    if timed_gpu(donor).architecture != gpu.architecture:
        return "assumed"
    return "measured" if donor == gpu.key else "scaled"


def carried_over(curve: Curve, donor: str, gpu: Gpu) -> Curve:
    """The donor's curve on a GPU; published figures are of the best case and bound it."""
    if basis(gpu, donor) != "assumed":
        return curve
    shares = [share for share in ("memory", "compute") if share in curve._fields]
    return curve._replace(**{share: min(getattr(curve, share), getattr(efficiency(gpu), share)) for share in shares})
