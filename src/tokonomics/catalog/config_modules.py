"""List the matrices of a checkpoint's layers, with the names that implementations give them, and match patterns.

A module has several possible names, because implementations differ (``self_attn`` or ``mixer``; Mistral's own files say
``attention.wq_a``, as vLLM 0.26's ``models/mistral_large_3.py`` lists them); a pattern that matches
any of them means it. Names start at ``layers.``, because what comes before differs between a text model and its
wrapper.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import translate
from functools import cached_property

from tokonomics.catalog.config_families import Fields
from tokonomics.catalog.config_layers import MixerLayer, MlpLayer
from tokonomics.catalog.layers import (
    CompressedAttention,
    DenseMlp,
    GroupedAttention,
    LatentAttention,
    Mixer,
    MoeMlp,
)
from tokonomics.errors import shorten

Names = Sequence[str]
_BEFORE = ("model.", "language_model.model.", "model.language_model.", "backbone.", "thinker.model.", "")
_LONGEST = 1000  # characters of a pattern
_ELSEWHERE = re.compile(r"(^|\.)(mtp|nextn|visual|vision|audio|mm_|talker|code2wav|token2wav)")
"""Before ``layers.``: a draft module, a tower, or what speaks."""
_BESIDE = re.compile(
    r"(lm_)?head|output|score|.*(embed|norm|conv|router|indexer|compressor|project[oi]|bias).*|(.*_)?gate|wg|weights_proj"
    r"|in_proj_[ab]+|[bfg](_[ab])?_proj|eh_proj|(mtp|nextn|vis|audio|mm_|multi_modal|patch_merge|talker|code2wav).*"
)
"""A word for matrices that are not listed here, because they are small or stand beside the layers."""


@dataclass(frozen=True)
class Module:
    """A matrix of a layer, with all its possible names, and its number of weights."""

    names: tuple[str, ...]
    weights: int = 1

    @cached_property
    def above(self) -> frozenset[str]:
        """Return its names, and those of the modules that contain it."""
        found: set[str] = set()
        for name in self.names:
            parts = name.split(".")
            found.update(".".join(parts[:end]) for end in range(3, len(parts) + 1))
        return frozenset(found)


@dataclass(frozen=True)
class Patterns:
    """Modules named exactly, by a part of their path, by a glob or by an expression."""

    exact: frozenset[str]
    inside: tuple[str, ...]
    globs: tuple[re.Pattern[str], ...]
    expressions: tuple[re.Pattern[str], ...]
    numbered: bool = False  # whether a pattern could distinguish layers
    written: tuple[str, ...] = ()

    @staticmethod
    def read(where: Fields, patterns: Sequence[str]) -> "Patterns":
        """Read patterns as quantisers write them: ``re:`` or ``.*`` for an expression, a glob, a path or a part."""
        exact: set[str] = set()
        inside: list[str] = []
        globs: list[re.Pattern[str]] = []
        expressions: list[re.Pattern[str]] = []
        for pattern in patterns:
            if len(pattern) > _LONGEST:
                raise where.wrong("ignore", f"has a pattern of {len(pattern)} characters")
            if pattern.startswith(("re:", ".*", "^")):
                try:
                    expressions.append(re.compile(pattern.removeprefix("re:")))
                except re.error as error:
                    raise where.wrong("ignore", f"has '{shorten(pattern)}', which is no expression: {error}") from None
                continue
            at = pattern.find("layers.")
            if at > 0 and _ELSEWHERE.search(pattern[:at]):
                continue
            path = (pattern[at:] if at >= 0 else pattern).removesuffix(".weight")
            if "*" in path:
                globs.append(re.compile(translate(path)))
            elif at >= 0:
                exact.add(path.rstrip("."))
            else:
                inside.append(f".{path.strip('.')}.")
        if not patterns:
            return NOTHING
        numbered = any(character.isdigit() for pattern in patterns for character in pattern)
        unique = tuple(dict.fromkeys(inside))
        return Patterns(frozenset(exact), unique, tuple(globs), tuple(expressions), numbered, tuple(patterns))

    def match(self, module: Module) -> bool:
        whole_names = [before + name for name in module.names for before in _BEFORE] if self.expressions else []
        return (
            bool(self.exact & module.above)
            or any(part in f".{name}." for part in self.inside for name in module.names)
            or any(glob.match(name) for glob in self.globs for name in module.above)
            or any(expression.match(name) for expression in self.expressions for name in whole_names)
        )


NOTHING = Patterns(frozenset(), (), (), ())


def unmatched(where: Fields, patterns: Patterns, modules: Sequence[Module], layers: int) -> list[str]:
    """Return the patterns that match no module, unless they name parts that are not listed or layers beyond these."""
    above = frozenset().union(*(module.above for module in modules))
    by_layer: dict[int, list[Module]] = {}
    for module in modules:
        by_layer.setdefault(int(module.names[0].split(".")[1]), []).append(module)
    found: list[str] = []
    for pattern in patterns.written:
        words = re.findall(r"\w+", pattern.removeprefix("re:"))
        numbers = [int(number) for number in re.findall(r"layers\.(\d{1,9})", pattern)]
        if any(number >= layers for number in numbers) or any(_BESIDE.fullmatch(word) for word in words):
            continue
        one = Patterns.read(where, [pattern])
        if one.exact:
            matches = not one.exact.isdisjoint(above)
        else:
            likely = (module for number in numbers for module in by_layer.get(number, ()))
            matches = any(map(one.match, likely)) or any(map(one.match, modules))
        if not matches:
            found.append(pattern)
    return found


# What holds the matrices of a layer, by kind, with its names in different implementations.
_MIXERS: dict[str, Names] = {
    "gqa": ("self_attn", "attn", "attention", "mixer"),
    "mla": ("self_attn", "attn", "attention"),
    "compressed": ("attn", "self_attn"),
    "recurrent": ("linear_attn", "mixer", "mamba", "self_attn"),
}
_BLOCKS = ("mlp", "feed_forward", "block_sparse_moe", "mixer", "ffn", "moe")
_SHARED = (*(f"{block}.{name}" for block in _BLOCKS for name in ("shared_experts", "shared_expert")),
           "shared_mlp", "share_expert", "shared_experts")  # fmt: skip
_UP, _DOWN = ("up_proj", "gate_up_proj", "w3", "gate_proj", "w1", "fc1"), ("down_proj", "w2", "fc2")
Matrices = list[tuple[Names, float]]  # the names of each, and its number of weights


def modules_of(
    layers: Sequence[tuple[MixerLayer, MlpLayer]], hidden: int, held: Mapping[str, str], *, one_by_one: bool
) -> dict[str, list[tuple[Module, int]]]:
    """Return the heavy matrices by part (mixers, dense and shared blocks, experts), and the number of layers of each.

    Unless asked for ``one_by_one``, equal layers represent each other. ``held`` names what holds ``experts`` and the
    ``shared`` block where a family does not use the usual names.
    """
    kinds = {i: i if one_by_one else (id(mixer), id(mlp)) for i, (mixer, mlp) in enumerate(layers)}
    counts = Counter(kinds.values())
    found: dict[str, list[tuple[Module, int]]] = {"mixers": [], "dense": [], "experts": []}
    for kind, i in {kind: i for i, kind in reversed(kinds.items())}.items():
        for part, modules in _layer_modules(i, *layers[i], hidden, held).items():
            found[part] += [(module, counts[kind]) for module in modules]
    return {part: modules for part, modules in found.items() if modules}


def _layer_modules(
    i: int, mixer: MixerLayer, mlp: MlpLayer, hidden: int, held: Mapping[str, str]
) -> dict[str, list[Module]]:
    """Return the modules of one layer."""
    found: dict[str, list[Module]] = {}
    if mixer is not None:
        found["mixers"] = _modules(i, _MIXERS[mixer.kind], _mixer_matrices(mixer, hidden))
    if isinstance(mlp, DenseMlp):
        found["dense"] = _modules(i, _BLOCKS, _feed_forward(hidden, mlp.intermediate, mlp.gated))
    elif isinstance(mlp, MoeMlp):
        inside = [held["experts"]] if "experts" in held else [*(f"{block}.experts" for block in _BLOCKS), "experts"]
        width = mlp.latent or hidden
        matrices = _feed_forward(width, mlp.experts * mlp.intermediate, mlp.gated)
        found["experts"] = _modules(i, [f"{name}.0" for name in inside], matrices)
        if mlp.shared_intermediate:
            shared = [held["shared"]] if "shared" in held else _SHARED
            found["dense"] = _modules(i, shared, _feed_forward(hidden, mlp.shared_intermediate, mlp.gated))
    return found


def _feed_forward(hidden: int, width: int, gated: bool) -> Matrices:
    return [(_UP, (2 if gated else 1) * hidden * width), (_DOWN, width * hidden)]


def _mixer_matrices(mixer: Mixer, hidden: int) -> Matrices:
    """Return the matrices of a mixer; small ones of an indexer or a decay count with their neighbours."""
    if isinstance(mixer, GroupedAttention):
        keys, values = (mixer.kv_heads * width for width in (mixer.head_dim, mixer.value_dim or mixer.head_dim))
        query = mixer.heads * mixer.head_dim * (2 if mixer.output_gate else 1)
        first = ("q_proj", "qkv_proj") if mixer.query_rank else ("q_proj", "qkv_proj", "wq")
        made: Matrices = [(first, hidden * (mixer.query_rank or query))]
        if mixer.query_rank:
            made += [(("wq",), mixer.query_rank * query)]
        if not mixer.reads_other:
            made += [(("k_proj", "qkv_proj", "wk"), hidden * keys)]
            made += [] if mixer.keys_are_values else [(("v_proj", "qkv_proj", "wv"), hidden * values)]
        return [*made, (("o_proj", "out_proj", "wo"), hidden * mixer.heads * (mixer.value_dim or mixer.head_dim))]
    if isinstance(mixer, LatentAttention):
        query = mixer.heads * (mixer.nope_dim + mixer.rope_dim)
        joint = ("kv_a_proj_with_mqa", "fused_qkv_a_proj", "wkv_a_with_mqa")
        down: Matrices = [(joint, hidden * (mixer.kv_rank + mixer.rope_dim))]
        if mixer.query_rank:
            down += [(("q_a_proj", "fused_qkv_a_proj", "wq_a"), hidden * mixer.query_rank)]
        up: Matrices = [(("q_b_proj", "q_proj", "wq_b", "wq"), (mixer.query_rank or hidden) * query)]
        up += [(("kv_b_proj", "wkv_b"), mixer.kv_rank * mixer.heads * (mixer.nope_dim + mixer.value_dim))]
        return [*down, *up, (("o_proj", "wo"), hidden * mixer.heads * mixer.value_dim)]
    if isinstance(mixer, CompressedAttention):
        names = (
            ("wq_a", "fused_wqa_wkv", "q_a_proj"),
            ("wq_b", "q_b_proj"),
            ("wo_a", "o_a_proj"),
            ("wo_b", "o_b_proj"),
        )
        sizes = [outputs * inputs for outputs, inputs in mixer.products(hidden)]
        return list(zip(names, sizes, strict=False))
    # Queries, keys, values and gate take two to four times the weights of the output; no release splits them.
    into, out = ("in_proj", "in_proj_qkvz", "in_proj_qkv", "q_proj"), ("out_proj", "o_proj")
    return [(into, mixer.projection_parameters * 0.75), (out, mixer.projection_parameters * 0.25)]


def _modules(layer: int, holders: Names, matrices: Matrices) -> list[Module]:
    return [
        Module(tuple(f"layers.{layer}.{holder}.{name}" for holder in holders for name in names), round(weights))
        for names, weights in matrices
    ]
