"""How many bytes a weight or a cached key/value element takes at each precision.

Quantised formats carry scales, so a 4-bit weight is not half a byte.
"""

from collections.abc import Sequence
from enum import StrEnum
from string import ascii_lowercase

from tokonomics.errors import BadInput, shorten


class Precision(StrEnum):
    """Number formats of weights and KV cache, widest first."""

    fp32 = "fp32"
    bf16 = "bf16"
    fp8 = "fp8"
    int8 = "int8"
    int4 = "int4"
    nvfp4 = "nvfp4"
    mxfp4 = "mxfp4"

    @property
    def bytes_per_weight(self) -> float:
        return _BYTES_PER_WEIGHT[self]

    @property
    def bytes_per_unquantised(self) -> float:
        """Of embeddings, LM head, norms, routers and a vision tower: every engine leaves them in 16 bits or more."""
        return max(self.bytes_per_weight, Precision.bf16.bytes_per_weight)

    @property
    def bits(self) -> int:
        """The number in its name."""
        return int(self.value.lstrip(ascii_lowercase))

    def is_below(self, other: "Precision") -> bool:
        """Fewer bits than the other: serving a checkpoint so needs a quality check."""
        return self.bits < other.bits


_BYTES_PER_WEIGHT = {
    Precision.fp32: 4.0,
    Precision.bf16: 2.0,
    # One fp32 scale per 128×128 block (DeepSeek-V3 technical report, arXiv:2412.19437, section 3.3.2).
    Precision.fp8: 1.0 + 4 / (128 * 128),
    # One fp32 scale per output channel; a channel has thousands of weights (LLM.int8(), arXiv:2208.07339): negligible.
    Precision.int8: 1.0,
    # AWQ and GPTQ with groups of 128: a 16-bit scale and a 4-bit zero point each (arXiv:2306.00978, arXiv:2210.17323).
    Precision.int4: 0.5 + (2 + 0.5) / 128,
    # An fp8 scale per 16 weights (NVIDIA, "Introducing NVFP4", 2025-06-24).
    Precision.nvfp4: 0.5 + 1 / 16,
    # An 8-bit exponent per 32 weights (OCP Microscaling Formats v1.0, 2023-09).
    Precision.mxfp4: 0.5 + 1 / 32,
}

WEIGHT_PRECISIONS = tuple(Precision)
KV_PRECISIONS = (Precision.bf16, Precision.fp8)  # what engines keep KV in (vLLM ``--kv-cache-dtype``)

_OTHER_NAMES = {"fp16": "bf16", "float16": "bf16", "bfloat16": "bf16", "awq": "int4", "gptq": "int4", "w4a16": "int4"}


def kv_bytes_per_element(kv: Precision) -> float:
    """Bytes of one cached key or value element; an FP8 cache has one scale per tensor, which is nothing."""
    return 1.0 if kv is Precision.fp8 else kv.bytes_per_weight


def parse_precision(text: str, allowed: Sequence[Precision], field: str) -> Precision:
    """A precision by its name; 16-bit formats count as bf16, AWQ and GPTQ as int4."""
    name = text.strip().lower()
    name = _OTHER_NAMES.get(name, name)
    if name not in allowed:
        raise BadInput(f"'{shorten(text)}' is not a precision here", field=field, fix=f"Valid: {', '.join(allowed)}.")
    return Precision(name)
