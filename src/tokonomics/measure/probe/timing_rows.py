"""Whether the rows of a probe's timings are such: a curve fitted on a damaged row would be wrong without a word.

Each section has fields that the fits read; a number beyond any machine (``_MOST``) is a slip, and would overflow them.
What no fit reads is kept in the profile as well: there too every number is one.
"""

import math
from collections.abc import Mapping
from typing import Any

from tokonomics.errors import BadInput, shorten

_SIZES = ("heads", "kv_heads", "head_dim", "batch")
_NEEDED: Mapping[str, tuple[str, ...]] = {
    "memory": ("bytes_per_s",),
    "launch": (),
    "gemm": ("m", "n", "k", "us"),
    "gemm_fp8": (),
    "sustained": ("m", "n", "k", "us"),
    "decode_attention": (*_SIZES, "context", "us"),
    "prefill_attention": (*_SIZES, "tokens", "us"),
    "all_reduce": ("gpus", "bytes", "us"),
    "layers": (*_SIZES[:1], "head_dim", "batch", "hidden", "intermediate", "qkv", "vocab", "layers", "ms"),
    "check": (),
    "validate": (),
}
_MAY_BE_0 = {"prefill_attention": ("past",), "gemm": ("heat", "busy_ms"), "sustained": ("heat", "busy_ms")}
_MOST = {"us": 1e9, "ms": 1e6, "busy_ms": 1e9, "heat": 1.0, "bytes_per_s": 1e15, "bytes": 1e13, "gpus": 1e5}
"""A quarter of an hour for a kernel, a thousand times the fastest memory; sizes are below ``_MOST_SIZE``."""
_MOST_SIZE = 2.0**24
_LEAST_US = 1e-3  # a nanosecond: less than one cycle of any GPU


def check_timings(timings: Mapping[str, Any], where: str) -> None:
    """Refuses the first row that a fit could not use."""
    for section, needed in _NEEDED.items():
        rows = timings.get(section)
        if rows is None:
            continue
        if not isinstance(rows, list):
            raise BadInput(f"'{section}' is not a list of timings", where=where)
        for place, row in enumerate(rows, 1):
            at = f"row {place} of '{section}'"
            if not isinstance(row, Mapping):
                raise BadInput(f"{at} is not an object", where=where)
            for field, value in row.items():
                if not isinstance(value, str | int | float | None) or not _is_finite(value):
                    raise BadInput(f"{at}: '{shorten(field)}' is {shorten(repr(value), 30)}", where=where)
            for field in needed:
                _number(row, field, at, where, least=_LEAST_US if field in ("us", "ms") else 1.0)
            for field in _MAY_BE_0.get(section, ()):
                if field in row or field == "past":
                    _number(row, field, at, where, least=0.0)


def _is_finite(value: str | float | None) -> bool:
    return not isinstance(value, float) or math.isfinite(value)


def _number(row: Mapping[str, Any], field: str, at: str, where: str, least: float) -> None:
    value, most = row.get(field), _MOST.get(field, _MOST_SIZE)
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        shown = "missing" if value is None else shorten(repr(value), 30)
        raise BadInput(f"{at}: '{field}' is {shown}, not a number from {least:g} to {most:g}", where=where)
