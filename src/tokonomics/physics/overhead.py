"""What lies between the kernels, and what a serving engine adds, by engine and era.

An engine's host works on every step: a fixed time (scheduling, launches, synchronising) and a time for each running
sequence (sampling, block tables, detokenising). Older engines do so between two steps; newer ones prepare the next step
while the GPU computes, so that the host shows only when it is the slower of the two.

What a request costs once is left out: the closed-loop results at hand say 70 ms (vLLM), 145 ms (SGLang) and 148 ms
(TensorRT-LLM), the open-loop ones of TensorRT-LLM next to nothing, so it is the benchmark's client and not the engine.
Fitted by ``benchmarks/fit_engines.py`` on published results; engines without any say what stands in.
"""

import re
import tomllib
from functools import cache
from importlib.resources import files

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import NonNegativeFloat

from tokonomics.catalog.engines import Engine
from tokonomics.nouns import Badge, Noun

NEWEST = 2026


class Layers(Noun):
    """Time that no kernel curve accounts for."""

    layer_s: NonNegativeFloat
    """Each layer: launches, the tail of one kernel and the ramp of the next."""
    source: str


class Overhead(Noun):
    """An engine's own time."""

    since_version: str
    step_s: NonNegativeFloat
    sequence_s: NonNegativeFloat
    overlapped: bool
    """The host prepares the next step while the GPU computes this one."""
    badge: Badge
    source: str

    def host_s(self, batch: ArrayLike) -> NDArray[np.float64]:
        """The host's work on one step."""
        return self.step_s + self.sequence_s * np.asarray(batch, np.float64)


class _Fitted(Noun):
    layers: Layers
    engines: dict[str, dict[int, Overhead]]


@cache
def _fitted() -> _Fitted:
    text = files("tokonomics.physics").joinpath("data/overhead.toml").read_text(encoding="utf-8")
    return _Fitted.model_validate(tomllib.loads(text))


def layers() -> Layers:
    """What lies between the kernels of a model."""
    return _fitted().layers


def overhead(engine: Engine, year: int = NEWEST, version: str | None = None) -> Overhead:
    """The engine's own time: of the era its version belongs to, or else its year; of the first era if older."""
    eras = sorted(_fitted().engines[engine.key].items())
    given = version_numbers(version)
    if given:
        begun = [each for _, each in eras if version_numbers(each.since_version) <= given]
    else:
        begun = [each for start, each in eras if start <= year]
    return begun[-1] if begun else eras[0][1]


def version_numbers(version: str | None) -> tuple[int, ...]:
    """``0.12.0`` → (0, 12); empty where there is no such number."""
    found = re.match(r"(\d+)\.(\d+)", version or "")
    return (int(found[1]), int(found[2])) if found else ()
