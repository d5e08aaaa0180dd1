"""Which quantised checkpoints of a model exist, and with what one is made where none is known.

``data/checkpoints.csv`` names repositories on Hugging Face, each with where it was seen and when; of several for a
model and precision the first is taken. A checkpoint that is not listed may exist all the same: the list is what was
read, and says nothing of what was not.
"""

import csv
import datetime as dt
from functools import cache
from pathlib import Path

from tokonomics.catalog.models import ModelSpec
from tokonomics.catalog.precision import Precision
from tokonomics.types import Noun

DATA = Path(__file__).parent / "data"

_MADE_WITH = {
    Precision.fp8: "llm-compressor makes one without data (FP8_DYNAMIC)",
    Precision.int8: "llm-compressor makes one (W8A8, with calibration data)",
    Precision.int4: "llm-compressor makes one (W4A16, GPTQ or AWQ, with calibration data)",
    Precision.nvfp4: "llm-compressor makes one (NVFP4, with calibration data)",
}
"""The scheme for each precision, and whether it needs data: llm-compressor, docs/guides/compression_schemes.md, read on
2026-11-16."""
_AT_LOAD = "vLLM also quantises at load (--quantization fp8_per_tensor), where the {published} weights fit the GPUs"
"""vLLM, docs/features/quantization/fp8.md, "Online Dynamic Quantization": the weights are loaded as they were published
before they are quantised; read on 2026-11-16."""


class Checkpoint(Noun):
    """A repository that holds a model at a precision."""

    model: str
    precision: Precision
    repository: str
    source: str
    """Where it was seen."""
    address: str | None = None
    read: dt.date
    """When."""


@cache
def load_checkpoints() -> tuple[Checkpoint, ...]:
    """Every quantised checkpoint that was seen, the preferred one of a model and precision first."""
    with (DATA / "checkpoints.csv").open(encoding="utf-8", newline="") as file:
        return tuple(Checkpoint.model_validate(row) for row in csv.DictReader(file))


def checkpoint_for(model: ModelSpec, weights: Precision) -> Checkpoint | None:
    """A checkpoint of a model at a precision: its authors' own, or one that others made; None where none is known."""
    if weights is model.served:
        named = {"model": model.key, "precision": weights, "repository": model.repository}
        return Checkpoint(**named, source=model.source, read=model.date) if model.repository else None
    listed = (row for row in load_checkpoints() if row.model == model.key and row.precision is weights)
    return next(listed, None)


def how_to_make(model: ModelSpec, weights: Precision, engine: str) -> str:
    """What to do where no checkpoint is known: the tool that makes one, and whether the engine can do without."""
    ways = [_MADE_WITH[weights]] if weights in _MADE_WITH else []
    if weights is Precision.fp8 and engine == "vllm":
        ways.append(_AT_LOAD.format(published=model.served))
    return "; ".join(ways) or "one must be made"
