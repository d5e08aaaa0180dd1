"""How many watts a GPU draws: idle, writing answers at a batch, computing prompts.

``data/power.toml`` has curves that were measured, ours or published ones, each with its source. Between two batches
watts are interpolated over the logarithm of the batch; beyond the ends they stay. A GPU without a curve is taken to
draw the same shares of its datasheet's watts as the reference: ``scaled`` within the reference's architecture,
``assumed`` elsewhere. A batch is that of a replica: tensor parallelism splits a layer, not the batch.
"""

import datetime as dt
import math
import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import numpy as np
from pydantic import PositiveFloat, PositiveInt

from tokonomics.catalog.gpus import Gpu, find_gpu
from tokonomics.types import Noun, Speed

_DATA = Path(__file__).parent / "data" / "power.toml"


class PowerCurve(Noun):
    """What one GPU draws, by what it does."""

    idle_w: PositiveFloat
    """With a model loaded."""
    decode_w: dict[PositiveInt, PositiveFloat]
    """By the sequences in a step."""
    prefill_w: PositiveFloat
    source: str
    date: dt.date
    known: Speed = Speed.timed
    """Measured on this GPU, on another of its architecture, or neither."""

    def decoding(self, batch: float) -> float:
        """Watts while a step has so many sequences."""
        batches = sorted(self.decode_w)
        logs = np.log2(np.array(batches, dtype=np.float64))
        watts = np.array([self.decode_w[size] for size in batches])
        return float(np.interp(math.log2(max(batch, 1.0)), logs, watts))

    def scaled(self, times: float, source: str, known: Speed) -> "PowerCurve":
        """So many times the watts."""
        return PowerCurve(
            idle_w=self.idle_w * times,
            decode_w={batch: watts * times for batch, watts in self.decode_w.items()},
            prefill_w=self.prefill_w * times,
            source=source,
            date=self.date,
            known=known,
        )


def power_of(gpu: Gpu) -> PowerCurve | None:
    """What a GPU draws; None where neither a measurement nor its datasheet's watts are known."""
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
    """By GPU, and which of them stands for the others."""
    read = tomllib.loads(_DATA.read_text(encoding="utf-8"))
    curves = {key: PowerCurve.model_validate(row) for key, row in read["gpus"].items()}
    return curves, read["reference"]
