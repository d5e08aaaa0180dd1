"""The precision a checkpoint's weights are published in, from ``quantization_config`` or the dtype.

The names are those of the quantisers' own config files; one that is not known is an error, because the bytes of the
weights depend on it.
"""

from collections.abc import Callable

from tokonomics.catalog.config_fields import Fields
from tokonomics.catalog.precision import Precision
from tokonomics.errors import shorten

DTYPES = {
    "bfloat16": Precision.bf16,
    "float16": Precision.bf16,
    "half": Precision.bf16,
    "float32": Precision.fp32,
    "float": Precision.fp32,
    "float8_e4m3fn": Precision.fp8,
}

MODELOPT = {
    "FP8": Precision.fp8,
    "FP8_PER_CHANNEL_PER_TOKEN": Precision.fp8,
    "FP8_PB_WO": Precision.fp8,
    "NVFP4": Precision.nvfp4,
    "NVFP4_AWQ": Precision.nvfp4,
    "W4A16_AWQ": Precision.int4,
    "W4A8_AWQ": Precision.int4,
    "W8A8_SQ_PER_CHANNEL": Precision.int8,
}


def checkpoint_precision(whole: Fields, text: Fields) -> Precision:
    """The quantiser's format, else the dtype; where nothing is said 16 bits, as engines serve such a checkpoint."""
    outer, inner = dtype(whole), dtype(text)
    quantised = whole.child("quantization_config") or text.child("quantization_config")
    if quantised is None:
        return outer or inner or Precision.bf16
    method = quantised.word("quant_method") or ("modelopt" if quantised.has("quant_algo") else None)
    if method is None:
        raise quantised.wrong("quant_method", "is missing")
    if method not in METHODS:
        known = ", ".join(sorted(METHODS))
        raise quantised.wrong("quant_method", f"names an unknown method '{shorten(method)}'", fix=f"Known: {known}.")
    return METHODS[method](quantised)


def dtype(fields: Fields) -> Precision | None:
    """``torch_dtype``, or ``dtype`` since transformers 4.56."""
    given = {name: word for name in ("torch_dtype", "dtype") if (word := fields.word(name)) is not None}
    for name, word in given.items():
        if (precision := DTYPES.get(word.removeprefix("torch."))) is not None:
            return precision
        raise fields.wrong(name, f"names an unknown type '{shorten(word)}'", fix=f"Known: {', '.join(DTYPES)}.")
    return None


def integers(quantised: Fields) -> Precision:
    """AWQ and GPTQ: whole numbers of ``bits``."""
    bits = quantised.size("bits", "w_bit", default=4)
    if bits not in (4, 8):
        raise quantised.wrong("bits", f"is {bits}; 4 and 8 are supported")
    return Precision.int4 if bits == 4 else Precision.int8


def bitsandbytes(quantised: Fields) -> Precision:
    four = quantised.flag("load_in_4bit", False) or quantised.flag("_load_in_4bit", False)
    eight = quantised.flag("load_in_8bit", False) or quantised.flag("_load_in_8bit", False)
    if four == eight:
        raise quantised.wrong("load_in_4bit", "and load_in_8bit do not say which of the two is meant")
    return Precision.int4 if four else Precision.int8


def modelopt(quantised: Fields) -> Precision:
    """NVIDIA ModelOpt; mixed precision is refused, since the shares are not in the config."""
    algorithm = quantised.word("quant_algo")
    if algorithm not in MODELOPT:
        known = ", ".join(MODELOPT)
        shown = shorten(algorithm) if algorithm else "nothing"
        raise quantised.wrong("quant_algo", f"says {shown}, which is not supported", fix=f"Known: {known}.")
    return MODELOPT[algorithm]


def compressed_tensors(quantised: Fields) -> Precision:
    """llm-compressor: every group of layers names its number type and bits; they have to agree."""
    groups = quantised.child("config_groups")
    if groups is None:
        raise quantised.wrong("config_groups", "is missing")
    found = {_group_precision(groups, name) for name in groups.names()}
    if len(found) != 1:
        raise quantised.wrong("config_groups", "has no groups" if not found else "mixes several precisions")
    return found.pop()


def _group_precision(groups: Fields, name: str) -> Precision:
    group = groups.child(name)
    weights = group.child("weights") if group else None
    if weights is None:
        raise groups.wrong(f"{name}.weights", "is missing")
    bits, kind = weights.size("num_bits", most=64), weights.word("type") or "int"
    if kind == "float" and bits == 4:
        return Precision.nvfp4 if weights.size("group_size", default=16) == 16 else Precision.mxfp4
    known = {("float", 8): Precision.fp8, ("int", 8): Precision.int8, ("int", 4): Precision.int4}
    if (kind, bits) not in known:
        raise weights.wrong("num_bits", f"is {bits} of type '{shorten(kind)}', which is not supported")
    return known[(kind, bits)]


METHODS: dict[str, Callable[[Fields], Precision]] = {
    **dict.fromkeys(("fp8", "fbgemm_fp8"), lambda quantised: Precision.fp8),
    "mxfp4": lambda quantised: Precision.mxfp4,
    **dict.fromkeys(("awq", "gptq", "auto-round"), integers),
    "bitsandbytes": bitsandbytes,
    **dict.fromkeys(("modelopt", "modelopt_fp4"), modelopt),
    "compressed-tensors": compressed_tensors,
}
