"""How much of its datasheet a GPU family reaches: one figure each for memory and compute, with its source.

Small operations move bytes at the first; both tell a family without timed kernels from the one whose curves it borrows.

Made by ``benchmarks/fit_families.py`` from measured kernels and published microbenchmarks.
"""

import tomllib
from functools import cache
from importlib.resources import files

from pydantic import Field

from tokonomics.catalog.gpus import Gpu
from tokonomics.errors import BadInput
from tokonomics.types import Badge, Noun


class Efficiency(Noun):
    """Shares of the datasheet's figures that kernels reach."""

    memory: float = Field(gt=0, le=1)
    compute: float = Field(gt=0, le=1)
    badge: Badge
    source: str


class Efficiencies(Noun):
    families: dict[str, Efficiency]


@cache
def efficiencies() -> Efficiencies:
    text = files("tokonomics.physics").joinpath("data/efficiency.toml").read_text(encoding="utf-8")
    return Efficiencies.model_validate(tomllib.loads(text))


def efficiency(gpu: Gpu) -> Efficiency:
    """The efficiency of a GPU's family."""
    families = efficiencies().families
    if gpu.architecture not in families:
        raise BadInput(
            f"no efficiency is known for the architecture '{gpu.architecture}' of {gpu.key}",
            fix=f"Give the GPU one of these architectures: {', '.join(sorted(families))}.",
        )
    return families[gpu.architecture]
