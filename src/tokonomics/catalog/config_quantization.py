"""Read the precision in which each part of a checkpoint is published, from ``quantization_config`` or the dtype.

The names are those of the quantisers' own config files; an unknown name is an error, because the bytes of the weights
depend on it. A quantiser names the modules it leaves alone, or those it converts, by pattern: the patterns are matched
with the modules of every layer (``config_modules``), and a part has the format of most of its modules.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tokonomics.catalog.config_families import Fields
from tokonomics.catalog.config_layers import MixerLayer, MlpLayer
from tokonomics.catalog.config_modules import NOTHING, Module, Patterns, modules_of, unmatched
from tokonomics.catalog.layers import Precision, Scales
from tokonomics.errors import shorten

DTYPES = {
    "bfloat16": Precision.bf16, "float16": Precision.bf16, "half": Precision.bf16, "float32": Precision.fp32,
    "float": Precision.fp32, "float8_e4m3fn": Precision.fp8,
}  # fmt: skip


QUANTISERS, DTYPE_FIELDS = ("quantization_config", "compression_config"), ("torch_dtype", "dtype")


class Storage(NamedTuple):
    """How matrices are stored."""

    precision: Precision
    weight_bytes: float  # of one weight, with its share of the scales
    scales: Scales | None = None  # of FP8, if the quantiser says


def plain(precision: Precision) -> Storage:
    return Storage(precision, precision.bytes_per_weight)


def grouped(precision: Precision, group: int | None, scale_bytes: float) -> Storage:
    """Return integers with ``scale_bytes`` for every ``group`` weights; -1 or None is one scale per channel."""
    return Storage(precision, precision.bits / 8 + (scale_bytes / group if group and group > 0 else 0.0))


FP8, NVFP4, MXFP4, INT8, INT4 = (
    plain(precision) for precision in (Precision.fp8, Precision.nvfp4, Precision.mxfp4, Precision.int8, Precision.int4)
)
FP8_BY = {scales: FP8._replace(scales=scales) for scales in Scales}
MXFP8 = Storage(Precision.fp8, 1 + 1 / 32)  # an 8-bit exponent per 32 weights (OCP Microscaling Formats v1.0)
MODELOPT = {
    "FP8": FP8_BY[Scales.tensor], "FP8_PER_CHANNEL_PER_TOKEN": FP8_BY[Scales.channel],
    "FP8_PB_WO": FP8_BY[Scales.blocks], "FP8_PB_REAL": FP8_BY[Scales.blocks], "MXFP8": MXFP8,
    "NVFP4": NVFP4, "NVFP4_AWQ": NVFP4, "W4A16_NVFP4": NVFP4, "MXFP4": MXFP4, "W4A8_MXFP4_FP8": MXFP4,
    "W4A8_NVFP4_FP8": NVFP4, "W4A16_AWQ": INT4, "W4A8_AWQ": INT4, "INT4_AWQ": INT4, "W8A8_SQ_PER_CHANNEL": INT8,
    "INT8_SQ": INT8,
}  # fmt: skip
QUARK = {"fp4": MXFP4, "mxfp4": MXFP4, "fp8_e4m3": FP8, "int8": INT8, "int4": INT4, "uint4": INT4}
TORCHAO = {"int4": INT4, "int8": INT8, "float8": FP8, "nvfp4": NVFP4, "mxfp4": MXFP4}


@dataclass(frozen=True)
class Scheme:
    """Which modules have which format; modules that it leaves alone keep the dtype."""

    rest: Storage | None  # for modules that no pattern names; None: left alone
    named: tuple[tuple[Patterns, Storage | None], ...] = ()  # the first that matches decides
    left: Patterns = NOTHING
    experts: Storage | None = None  # for routed experts, if the config states it separately

    @property
    def by_layer(self) -> bool:
        """Decide whether layers of the same kind may have different formats."""
        return self.left.numbered or any(patterns.numbered for patterns, _ in self.named)

    def format_of(self, module: Module, part: str) -> Storage | None:
        if self.left.match(module):
            return None
        for patterns, found in self.named:
            if patterns.match(module):
                return found
        return self.experts if part == "experts" and self.experts else self.rest


class PartPrecisions(NamedTuple):
    """The precision of a checkpoint's parts; that of a mixture is its experts'."""

    weights: Precision
    weight_bytes: float | None = None  # of one weight, if the scales are not the usual ones at this precision
    mixer: Precision | None = None  # of attention's matrices, if it differs
    dense: Precision | None = None  # of dense and shared feed-forward matrices
    mixer_bytes: float | None = None  # of one weight of theirs on average, if formats are mixed or scales unusual
    dense_bytes: float | None = None
    kv: Precision | None = None  # of the KV cache, for which the checkpoint has scales
    fp8_scales: Scales | None = None
    kv_declared: str | None = None  # the cache's own format, if no engine here keeps it
    notes: tuple[str, ...] = ()  # on patterns that name nothing


def checkpoint_of(
    whole: Fields, text: Fields, layers: Sequence[tuple[MixerLayer, MlpLayer]], hidden: int, held: Mapping[str, str]
) -> PartPrecisions:
    """Return the quantiser's formats, else the dtype; else 16 bits, in which engines serve such checkpoints."""
    outer, inner = dtype(whole), dtype(text)
    unquantised = outer or inner or Precision.bf16
    given = _quantiser(whole, text)
    scheme = _scheme(whole, text, given)
    if scheme is None:
        return PartPrecisions(unquantised)
    plain_bytes = plain(Precision.bf16 if unquantised is Precision.fp32 else unquantised)
    found: dict[str, Storage | None] = {}  # in most weights of a part
    mean_bytes: dict[str, float] = {}
    modules_by_part = modules_of(layers, hidden, held, one_by_one=scheme.by_layer)
    for part, modules in modules_by_part.items():
        counts: Counter[Storage | None] = Counter()
        for module, times in modules:
            counts[scheme.format_of(module, part)] += times * module.weights
        found[part] = counts.most_common(1)[0][0]
        stored = sum(((storage or plain_bytes).weight_bytes * weights) for storage, weights in counts.items())
        mean_bytes[part] = stored / counts.total()
    listed = [module for modules in modules_by_part.values() for module, _ in modules]
    notes = _on_unmatched(unmatched(given or whole, scheme.left, listed, len(layers)))
    deciding = [part for part in ("experts", "dense", "mixers") if part in found]
    kv, declared = (None, None) if given is None else kv_precision(given)
    main = found[deciding[0]] if deciding else scheme.rest
    if main is None and "experts" not in found:
        main = next((found[part] for part in deciding if found[part]), None)
    if main is None and scheme.experts and "experts" not in found:
        # feed-forward matrices instead: ``ModelSpec.precisions``
        scales = scheme.experts.scales
        return PartPrecisions(scheme.experts.precision, kv=kv, fp8_scales=scales, kv_declared=declared, notes=notes)
    main = main or plain_bytes

    def other(part: str) -> Precision | None:
        """Return the precision of a part if it differs, or is MXFP4, which would otherwise mean the experts alone."""
        if part not in found:  # a model without such matrices
            return other("mixers") if part == "dense" and "mixers" in found else None
        storage = found[part]
        own = storage.precision if storage else Precision.bf16
        return own if own is not main.precision or own is Precision.mxfp4 else None

    def unusual(part: str) -> float | None:
        """Return the mean bytes of a weight of a part, if its precision alone would not tell."""
        precision = other(part) or main.precision
        own = mean_bytes.get(part)
        return None if own is None or abs(own - precision.bytes_per_weight) < 1e-9 else own

    first = next((part for part in ("experts", "dense", "mixers") if part in found and found[part] == main), "")
    stated = (storage.scales for storage in (found.get("mixers"), found.get("dense"), main) if storage)
    return PartPrecisions(
        main.precision,
        unusual(first),
        other("mixers"),
        other("dense"),
        unusual("mixers"),
        unusual("dense"),
        kv,
        next((scales for scales in stated if scales), None),
        declared,
        notes,
    )


def _on_unmatched(patterns: Sequence[str]) -> tuple[str, ...]:
    """Return a note on patterns that leave nothing alone, because the quantiser and this reader name parts unlike."""
    if not patterns:
        return ()
    named = ", ".join(f"'{shorten(pattern, 60)}'" for pattern in patterns[:3]) + (" and others" * (len(patterns) > 3))
    return (f"the quantiser leaves {named} alone, which matches no matrix of this model; all are counted as converted",)


def _quantiser(whole: Fields, text: Fields) -> Fields | None:
    """Return what the quantiser wrote, under any of its field names; None if there is nothing.

    ModelOpt writes its fields here, or one level below, as it does in a file of its own.
    """
    places = [(fields, name) for fields in (whole, text) for name in QUANTISERS]
    given = next((found for fields, name in places if (found := fields.child(name))), None)
    inner = given.child("quantization") if given is not None else None
    if given is None or inner is None:
        return given
    return Fields({"quant_method": "modelopt", **inner.values, **given.values}, given.where, given.path)


def _scheme(whole: Fields, text: Fields, given: Fields | None) -> Scheme | None:
    """Return which modules have which format; None if nothing is quantised."""
    expert_dtype = text.word("expert_dtype")
    if expert_dtype not in (None, "fp4", "fp8"):
        raise text.wrong("expert_dtype", f"is '{shorten(expert_dtype or '')}'; fp4 and fp8 are supported")
    # DeepSeek-V4: an 8-bit exponent per 32 weights of an expert (its repository, inference/kernel.py).
    experts = plain(Precision.mxfp4 if expert_dtype == "fp4" else Precision.fp8) if expert_dtype else None
    if given is None and (converted := whole.child("quantization")) is not None and converted.has("bits"):
        return Scheme(_mlx(converted))
    if given is None:
        return Scheme(FP8, experts=experts) if experts else None
    method = given.word("quant_method") or ("modelopt" if given.has("quant_algo") else None)
    if method is None:
        raise given.wrong("quant_method", "is missing")
    if method not in METHODS:
        known = ", ".join(sorted(METHODS))
        raise given.wrong("quant_method", f"names an unknown method '{shorten(method)}'", fix=f"Known: {known}.")
    scheme = METHODS[method](given)
    if experts is None or scheme.named or (method != "fp8" and not method.startswith("modelopt")):
        # Of DeepSeek-V4, what ModelOpt leaves alone stays in 8 bits.
        eight = experts is not None and scheme.rest is None and method.startswith("modelopt")
        return Scheme(FP8, scheme.named) if eight else scheme
    return Scheme(scheme.rest, scheme.named, scheme.left, experts)


_KV_ALGORITHMS = {"FP8": Precision.fp8, "INT8": Precision.fp8, "NVFP4": Precision.fp8, "NONE": None}
"""ModelOpt's names for a KV cache. One in NVFP4 is counted with the fewest bits that the engines here keep."""


def kv_precision(given: Fields) -> tuple[Precision | None, str | None]:
    """Return the precision for which a checkpoint has scales of its KV cache, which engines then use by default.

    Beside it, the cache's own format if that is another.

    vLLM does so if ``--kv-cache-dtype`` is ``auto`` (``resolve_kv_cache_dtype_string`` in its
    ``vllm/utils/torch_utils.py``; ``kv_cache_scheme`` of compressed-tensors in ``attention/layer.py``).
    """
    algorithm, scheme = given.value("kv_cache_quant_algo"), given.value("kv_cache_scheme")
    if isinstance(algorithm, str):
        if algorithm.upper() not in _KV_ALGORITHMS:
            raise given.wrong("kv_cache_quant_algo", f"says {shorten(algorithm)}, which is not supported")
        found = _KV_ALGORITHMS[algorithm.upper()]
        return found, algorithm.upper() if found and algorithm.upper() != "FP8" else None
    if isinstance(scheme, Mapping):
        bits = Fields(scheme, given.where, f"{given.path}kv_cache_scheme.").optional_size("num_bits", most=64)
        return (Precision.fp8, f"{bits} bits" if bits < 8 else None) if bits is not None and bits <= 8 else (None, None)
    if isinstance(scheme, str):  # AutoFP8 wrote "static"
        return Precision.fp8, None
    export = given.value("export")
    cached = export.get("kv_cache_group") if isinstance(export, Mapping) else None  # Quark
    return Precision.fp8 if isinstance(cached, list) and cached else None, None


def dtype(fields: Fields) -> Precision | None:
    """Read ``torch_dtype``, or ``dtype`` since transformers 4.56."""
    given = [(name, word) for name in DTYPE_FIELDS if (word := fields.word(name)) is not None]
    if not given:
        return None
    name, word = given[0]
    if (precision := DTYPES.get(word.removeprefix("torch."))) is None:
        raise fields.wrong(name, f"names an unknown type '{shorten(word)}'", fix=f"Known: {', '.join(DTYPES)}.")
    return precision


def _left(given: Fields, *names: str) -> Patterns:
    """Return the modules that any of these lists names."""
    return Patterns.read(given, [pattern for name in names for pattern in given.words(name) or ()])


# --- the methods ----------------------------------------------------------------------------------------------------


def eight_bit_floats(given: Fields) -> Scheme:
    """Read FP8, by blocks or whole tensors (vLLM, ``Fp8Config``): their size differs by less than a thousandth.

    NVIDIA's DeepSeek-V4 lists what it converted further, and the rest, which ``ignore`` names, stays in 8 bits.
    """
    found = FP8_BY[Scales.blocks if given.value("weight_block_size") else Scales.tensor]
    algorithm = given.word("quant_algo")
    if algorithm is not None:
        return Scheme(found, modelopt(given).named) if algorithm == "MIXED_PRECISION" else modelopt(given)
    return Scheme(found, left=_left(given, "modules_to_not_convert", "ignored_layers"))


def floats_by_channel(given: Fields) -> Scheme:
    """Read FP8 with a scale for each output, as Meta's FBGEMM and SGLang write it."""
    return Scheme(FP8_BY[Scales.channel], left=_left(given, "modules_to_not_convert", "ignored_layers"))


def scaled_floats(given: Fields) -> Scheme:
    """Read MXFP8: an 8-bit exponent for every 32 weights."""
    return Scheme(MXFP8, left=_left(given, "modules_to_not_convert", "ignored_layers"))


def whole_bytes(given: Fields) -> Scheme:
    """Read SGLang's INT8 with a scale for each channel."""
    return Scheme(INT8, left=_left(given, "modules_to_not_convert", "ignore"))


def four_bit_floats(given: Fields) -> Scheme:
    """Read MXFP4 as in GPT-OSS: without a list, experts only (its model card, arXiv:2508.10925, section 2.1)."""
    left = _left(given, "modules_to_not_convert", "ignored_layers")
    outside = None if left is NOTHING else MXFP4
    return Scheme(outside, left=left, experts=MXFP4)


def integers(given: Fields) -> Scheme:
    """Read AWQ, GPTQ and AutoRound: numbers of ``bits`` in groups, each with a 16-bit scale and a zero point."""
    kind = given.word("data_type") or "int"
    floats = {"mx_fp": MXFP4, "mx_fp4": MXFP4, "nv_fp": NVFP4, "nv_fp4": NVFP4, "nv_fp4_with_static_gs": NVFP4}
    rest = floats.get(kind) or _whole_numbers(given, given.size("bits", "w_bit", default=4))
    named: list[tuple[Patterns, Storage | None]] = []
    for name in ("dynamic", "extra_config"):
        for pattern, said in _table(given, name).items():
            is_skipped = name == "dynamic" and pattern.startswith("-:")
            regex = f"re:{pattern.removeprefix('-:').removeprefix('+:')}" if name == "dynamic" else pattern
            bits = 16 if is_skipped else said.optional_size("bits", most=64) if said else None
            if bits:
                storage = None if bits == 16 else _whole_numbers(given, bits)
                named.append((Patterns.read(given, [regex]), storage))
    return Scheme(rest, tuple(named), _left(given, "modules_to_not_convert"))


def _whole_numbers(given: Fields, bits: int) -> Storage:
    precision = _integer(given, bits)
    group = given.optional_size("group_size", "q_group_size", least=-1)
    if group is None or (bits == 8 and group <= 0):
        return plain(precision)
    return grouped(precision, group, 2 + bits / 8)


def _integer(given: Fields, bits: int) -> Precision:
    if bits not in (4, 8):
        raise given.wrong("bits", f"is {bits}; 4 and 8 are supported")
    return Precision.int4 if bits == 4 else Precision.int8


def _mlx(given: Fields) -> Storage:
    """Read MLX's affine form: a 16-bit scale and a 16-bit offset for each group."""
    if (given.word("mode") or "affine") == "mxfp4":
        return MXFP4
    return grouped(_integer(given, given.size("bits", most=64)), given.optional_size("group_size"), 4)


def bitsandbytes(given: Fields) -> Scheme:
    four = given.flag("load_in_4bit", False) or given.flag("_load_in_4bit", False)
    eight = given.flag("load_in_8bit", False) or given.flag("_load_in_8bit", False)
    if four == eight:
        raise given.wrong("load_in_4bit", "and load_in_8bit do not say which of the two is meant")
    if eight:
        return Scheme(INT8, left=_left(given, "llm_int8_skip_modules"))
    # Blocks of 64 with a 32-bit scale, or an 8-bit one if quantised twice (QLoRA, arXiv:2305.14314, section 3).
    scale = 1 + 4 / 256 if given.flag("bnb_4bit_use_double_quant", False) else 4
    return Scheme(grouped(Precision.int4, 64, scale), left=_left(given, "llm_int8_skip_modules"))


def modelopt(given: Fields) -> Scheme:
    """Read NVIDIA ModelOpt; in mixed precision every converted module is listed with its own algorithm."""
    left = _left(given, "exclude_modules", "ignore")
    algorithm = given.word("quant_algo")
    by_format: dict[Storage, list[str]] = {}
    for name, said in _table(given, "quantized_layers").items() if algorithm == "MIXED_PRECISION" else ():
        by_format.setdefault(_algorithm(given, said.word("quant_algo") if said else None), []).append(name)
    if by_format:
        return Scheme(None, tuple((Patterns.read(given, names), found) for found, names in by_format.items()), left)
    if algorithm in (None, "MIXED_PRECISION") and given.has("config_groups"):
        return compressed_tensors(given)
    if algorithm == "MIXED_PRECISION":
        raise given.wrong("quantized_layers", "is missing", fix="It lists the modules of a mixed checkpoint.")
    return Scheme(_algorithm(given, algorithm), left=left)


def _algorithm(given: Fields, algorithm: str | None) -> Storage:
    if algorithm not in MODELOPT:
        known = ", ".join(MODELOPT)
        shown = shorten(algorithm) if algorithm else "nothing"
        raise given.wrong("quant_algo", f"says {shown}, which is not supported", fix=f"Known: {known}.")
    return MODELOPT[algorithm]


def compressed_tensors(given: Fields) -> Scheme:
    """Read llm-compressor: groups of modules, each with number type and bits; a target is a class, name or pattern."""
    groups = given.child("config_groups")
    if groups is not None and not groups.names() and given.value("kv_cache_scheme"):
        return Scheme(None)  # the cache alone
    if groups is None or not groups.names():
        raise given.wrong("config_groups", "is missing" if groups is None else "has no groups")
    rest: Storage | None = None
    named: list[tuple[Patterns, Storage | None]] = []
    for name in groups.names():
        group = groups.child(name)
        weights = group.child("weights") if group else None
        if group is None or weights is None:
            raise groups.wrong(f"{name}.weights", "is missing")
        found, targets = _group_format(weights), group.words("targets") or ["Linear"]
        by_name = [target for target in targets if not (target.isalnum() and target[0].isupper())]  # else a class
        if len(by_name) < len(targets):
            if rest is not None and rest != found:
                raise given.wrong("config_groups", "gives several precisions to the same modules")
            rest = found
        if by_name:
            named.append((Patterns.read(given, by_name), found))
    return Scheme(rest, tuple(named), _left(given, "ignore"))


_STRATEGIES = {"block": Scales.blocks, "channel": Scales.channel, "tensor": Scales.tensor}


def _group_format(weights: Fields) -> Storage:
    bits, kind = weights.size("num_bits", most=64), weights.word("type") or "int"
    group = weights.optional_size("group_size", least=-1)
    if kind == "float" and bits == 4:
        return plain(Precision.nvfp4 if (group or 16) == 16 else Precision.mxfp4)
    if kind == "float" and bits == 8:
        return MXFP8 if group == 32 else FP8._replace(scales=_STRATEGIES.get(weights.word("strategy") or ""))
    if kind == "int" and bits in (4, 8):
        zero = 0.0 if weights.flag("symmetric", True) else bits / 8
        return grouped(_integer(weights, bits), group, 2 + zero)
    raise weights.wrong("num_bits", f"is {bits} of type '{shorten(kind)}', which is not supported")


def quark(given: Fields) -> Scheme:
    """Read AMD Quark: one format for all, others by pattern, and a list of what is left alone."""
    overall = given.child("global_quant_config")
    if overall is None:
        raise given.wrong("global_quant_config", "is missing")
    named = [
        (Patterns.read(given, [pattern]), _quark_format(given, said) if said else None)
        for pattern, said in _table(given, "layer_quant_config").items()
    ]
    return Scheme(_quark_format(given, overall), tuple(named), _left(given, "exclude"))


def _quark_format(given: Fields, said: Fields) -> Storage | None:
    inside = said.value("weight")
    weights = inside[0] if isinstance(inside, list) and inside else inside
    if weights is None:
        return None
    kind = weights.get("dtype") if isinstance(weights, dict) else None
    if kind not in QUARK:
        raise given.wrong("global_quant_config", f"has weights of '{shorten(str(kind))}', which is not supported")
    return QUARK[kind]


def torchao(given: Fields) -> Scheme:
    """Read torchao: the format is in the name of a configuration class, or of a function in older versions."""
    said = given.value("quant_type")
    while isinstance(said, dict):
        said = said.get("default") or said.get("_type") or said.get("base_config")
    name = str(said).lower()
    for word, found in TORCHAO.items():
        if word in name:
            return Scheme(found, left=_left(given, "modules_to_not_convert"))
    raise given.wrong("quant_type", f"says {shorten(name)}, which is not supported")


def _table(given: Fields, name: str) -> Mapping[str, Fields | None]:
    """Return objects by name; None for a value that is not an object."""
    inside = given.child(name)
    if inside is None:
        return {}
    return {key: inside.child(key) if isinstance(inside.value(key), dict) else None for key in inside.names()}


METHODS: dict[str, Callable[[Fields], Scheme]] = {
    name: method
    for method, names in (
        (eight_bit_floats, "fp8"),
        (floats_by_channel, "fbgemm_fp8 w8a8_fp8"),
        (scaled_floats, "mxfp8"),
        (whole_bytes, "w8a8_int8"),
        (four_bit_floats, "mxfp4"),
        (integers, "awq gptq gptq_marlin awq_marlin auto-round auto_round intel/auto-round"),
        (bitsandbytes, "bitsandbytes"),
        (modelopt, "modelopt modelopt_fp4 modelopt_mixed"),
        (compressed_tensors, "compressed-tensors"),
        (quark, "quark"),
        (torchao, "torchao"),
    )
    for name in names.split()
}
