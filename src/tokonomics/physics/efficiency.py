"""How much of its datasheet a GPU family reaches: one figure each for memory, compute and links, with its source.

Made by ``benchmarks/fit_families.py`` from measured kernels and published microbenchmarks.
"""

import tomllib
from functools import cache
from importlib.resources import files

from pydantic import Field, PositiveFloat

from tokonomics.catalog.gpus import Gpu
from tokonomics.errors import BadInput
from tokonomics.nouns import Badge, Noun


class Efficiency(Noun):
    """Shares of the datasheet's figures that kernels reach."""

    memory: float = Field(gt=0, le=1)
    compute: float = Field(gt=0, le=1)
    link: float = Field(gt=0, le=1)
    all_reduce_latency_s: PositiveFloat
    badge: Badge
    source: str


class Efficiencies(Noun):
    layer_overhead_s: PositiveFloat
    """Launches, norms, rotary and the tail of each kernel: what a layer takes beyond its bytes and FLOPs."""
    layer_overhead_source: str
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
