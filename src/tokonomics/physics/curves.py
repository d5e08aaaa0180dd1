"""Combine overlapping terms, choose the GPU whose timings represent another, and return how many watts a GPU draws.

Terms combine as (a^p + b^p)^(1/p): their sum at p = 1, near the longer at p = 8. Where it fits the timings, p is a
power of two: then squares and square roots suffice; general powers would take most of the time to compute a step.

Curves hold shares of the datasheet, so they carry over to a GPU without timings: it uses its family's curve, else
another architecture's, with no share above the best that is published for it. ``data/efficiency.toml`` has
the shares of each family, made by ``benchmarks/fit_families.py`` from measured kernels and published microbenchmarks.

``data/power.toml`` has measured curves of watts, ours or published, each with its source. Between two batches watts are
interpolated over the logarithm of the batch; beyond the ends they stay constant. A GPU without a curve is assumed to
draw the same shares of its datasheet's watts as the reference: ``scaled`` within the reference's architecture,
``assumed`` elsewhere. The batch is that of a replica: tensor parallelism splits a layer, not the batch.
"""

import datetime as dt
import json
import math
import tomllib
from collections.abc import Collection, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt

from tokonomics.catalog.gpus import Gpu, find_gpu, shipped_gpus
from tokonomics.errors import BadInput
from tokonomics.types import Badge, Noun, Speed

Array = NDArray[np.float64]
Value = TypeVar("Value", float, float | Array, Array)
Curve = TypeVar("Curve", bound=NamedTuple)
Basis = Literal["measured", "scaled", "assumed"]
"""Timed on this GPU; scaled by the datasheet from another GPU of its architecture; or taken from another architecture.
"""

LENDERS = ("A100-80GB", "L40S")
"""GPUs whose curves any other architecture uses; the L40S's Triton kernels if the A100 has none (latent attention)."""


def shipped(name: str) -> Any:
    """Read one of our data files, TOML or JSON."""
    text = (Path(__file__).parent / "data" / name).read_text(encoding="utf-8")
    return tomllib.loads(text) if name.endswith(".toml") else json.loads(text)


def as_array(values: ArrayLike) -> Array:
    return np.asarray(values, dtype=np.float64)


def raised(value: Value, p: float) -> Value:
    """Return a value to the power p."""
    times = math.log2(p)
    if not times.is_integer():
        return value**p  # type: ignore[no-any-return]
    for _ in range(abs(int(times))):
        value = value * value if times > 0 else np.sqrt(value)
    return value


def root(value: Value, p: float) -> Value:
    """Return the p-th root of a value."""
    return raised(value, 1 / p)


def smooth_maximum(one: Value, other: Value, p: float) -> Value:
    """Return the time of two terms that overlap."""
    return root(raised(one, p) + raised(other, p), p)


class Efficiency(Noun):
    """Shares of the datasheet's figures that the kernels of a GPU family reach."""

    memory: float = Field(gt=0, le=1)
    compute: float = Field(gt=0, le=1)
    badge: Badge
    source: str
    taught: bool = True  # published results of the family were among the rows that the intervals learned from
    untiled_rows: NonNegativeInt = 0  # so many rows are multiplied one by one, without a tile of rows to fill
    untiled_tokens: NonNegativeInt = 0  # the same for the tokens of a step that are sent to routed experts


@cache
def efficiencies() -> dict[str, Efficiency]:
    return {family: Efficiency.model_validate(row) for family, row in shipped("efficiency.toml")["families"].items()}


def efficiency(gpu: Gpu) -> Efficiency:
    families = efficiencies()
    if gpu.architecture not in families:
        raise BadInput(
            f"no efficiency is known for the architecture '{gpu.architecture}' of {gpu.key}",
            fix=f"Give the GPU one of these architectures: {', '.join(sorted(families))}.",
        )
    return families[gpu.architecture]


@cache
def timed_gpu(key: str) -> Gpu:
    """Return a timed GPU as shipped, whatever the user's catalogue says about theirs."""
    return next(gpu for gpu in shipped_gpus() if gpu.key == key)


def donors(gpu: Gpu, timed: Collection[str]) -> list[str]:
    """Return the timed GPUs whose curves to use: this one, then its family in the table's order; if none, a lender.

    The order ignores rates: a GPU with more bandwidth must not get another curve and become slower.
    """
    family = [key for key in timed if timed_gpu(key).architecture == gpu.architecture]
    return sorted(family, key=lambda key: key != gpu.key) or [next(key for key in LENDERS if key in timed)]


def basis(gpu: Gpu, donor: str) -> Basis:
    """Return how well a donor's timings represent a GPU."""
    if timed_gpu(donor).architecture != gpu.architecture:
        return "assumed"
    return "measured" if donor == gpu.key else "scaled"


def carried_over(curve: Curve, donor: str, gpu: Gpu) -> Curve:
    """Return the donor's curve on a GPU, limited by published figures, which are of the best case."""
    if basis(gpu, donor) != "assumed":
        return curve
    shares = [share for share in ("memory", "compute") if share in curve._fields]
    return curve._replace(**{share: min(getattr(curve, share), getattr(efficiency(gpu), share)) for share in shares})


class PowerCurve(Noun):
    """The watts that one GPU draws, by what it does."""

    idle_w: PositiveFloat  # with a model loaded
    decode_w: dict[PositiveInt, PositiveFloat]  # by the sequences in a step
    prefill_w: PositiveFloat
    source: str
    date: dt.date
    known: Speed = Speed.timed  # measured on this GPU, on another of its architecture, or neither

    def decoding(self, batch: float) -> float:
        """Return the watts while a step has this many sequences."""
        batches = sorted(self.decode_w)
        logs = np.log2(np.array(batches, dtype=np.float64))
        watts = np.array([self.decode_w[size] for size in batches])
        return float(np.interp(math.log2(max(batch, 1.0)), logs, watts))

    def scaled(self, times: float, source: str, known: Speed) -> "PowerCurve":
        """Return this curve with its watts multiplied."""
        return PowerCurve(
            idle_w=self.idle_w * times,
            decode_w={batch: watts * times for batch, watts in self.decode_w.items()},
            prefill_w=self.prefill_w * times,
            source=source,
            date=self.date,
            known=known,
        )


def power_of(gpu: Gpu) -> PowerCurve | None:
    """Return what a GPU draws; None if neither a measurement nor its datasheet's watts are known."""
    curves, reference = _curves()
    if own := curves.get(gpu.key):
        return own
    measured_on = find_gpu(reference)
    if gpu.watts is None or measured_on.watts is None:
        return None
    known = Speed.scaled if gpu.architecture == measured_on.architecture else Speed.assumed
    source = f"{reference}'s shares of the datasheet's watts, here {gpu.watts:g}"
    return curves[reference].scaled(gpu.watts / measured_on.watts, source, known)


@cache
def _curves() -> tuple[Mapping[str, PowerCurve], str]:
    """Return the curves by GPU, and the reference for GPUs without one."""
    read = shipped("power.toml")
    curves = {key: PowerCurve.model_validate(row) for key, row in read["gpus"].items()}
    return curves, read["reference"]
