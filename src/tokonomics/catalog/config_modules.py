"""The matrices of a checkpoint by the names their modules have, and the patterns by which quantisers name them.

A module has several possible names, because implementations differ (``self_attn`` or ``mixer``); a pattern means it if
it matches any of them. Names start at ``layers.``: what stands before differs between a text model and its wrapper.
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import translate
from functools import cached_property

from tokonomics.catalog.config_fields import Fields
from tokonomics.catalog.config_layers import MixerLayer, MlpLayer
from tokonomics.catalog.layers import DenseMlp, MoeMlp
from tokonomics.errors import shorten

Names = Sequence[str]
_BEFORE = ("model.", "language_model.model.", "model.language_model.", "backbone.", "")
_LONGEST = 1000  # characters of a pattern


@dataclass(frozen=True)
class Module:
    """A matrix that a layer has, under the names it may go by."""

    names: tuple[str, ...]

    @cached_property
    def above(self) -> frozenset[str]:
        """The names, and those of the modules that hold it."""
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
    numbered: bool = False  # whether one could tell layers apart

    @staticmethod
    def of(where: Fields, patterns: Sequence[str]) -> "Patterns":
        """The patterns as a quantiser writes them: ``re:`` or ``.*`` for an expression, a glob, a path or a part."""
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
        return Patterns(frozenset(exact), tuple(dict.fromkeys(inside)), tuple(globs), tuple(expressions), numbered)

    def match(self, module: Module) -> bool:
        if self.exact and self.exact & module.above:
            return True
        if any(part in f".{name}." for part in self.inside for name in module.names):
            return True
        if self.globs and any(glob.match(name) for glob in self.globs for name in module.above):
            return True
        return any(
            expression.match(before + name)
            for expression in self.expressions
            for name in module.names
            for before in _BEFORE
        )


NOTHING = Patterns(frozenset(), (), (), ())

# What holds a layer's matrices, and the heavy matrices in it, each with the names that implementations give it.
_MIXERS: dict[str, tuple[Names, tuple[Names, ...]]] = {
    "gqa": (("self_attn", "attn", "attention", "mixer"), (("q_proj", "qkv_proj"), ("o_proj", "out_proj"))),
    "mla": (("self_attn", "attn"), (("q_b_proj", "q_proj"), ("kv_b_proj",), ("o_proj",))),
    "compressed": (("attn", "self_attn"), (("wq_b", "q_b_proj"), ("wo_a", "o_a_proj"), ("wo_b", "o_b_proj"))),
    "recurrent": (
        ("linear_attn", "mixer", "mamba", "self_attn"),
        (("in_proj", "in_proj_qkvz", "in_proj_qkv", "q_proj"), ("out_proj", "o_proj")),
    ),
}
_BLOCKS = ("mlp", "feed_forward", "block_sparse_moe", "mixer", "ffn", "moe")
_UP_AND_DOWN = (("up_proj", "gate_up_proj", "w3", "gate_proj"), ("down_proj", "w2"))


def modules_of(
    layers: Sequence[tuple[MixerLayer, MlpLayer]], *, one_by_one: bool
) -> dict[str, list[tuple[Module, int]]]:
    """The heavy matrices by part (mixers, dense and shared blocks, experts), and in how many layers each is.

    Unless they are asked for ``one_by_one``, layers of the same kind stand for each other.
    """
    kinds = {i: i if one_by_one else (mixer and mixer.kind, _kind(mlp)) for i, (mixer, mlp) in enumerate(layers)}
    counts = Counter(kinds.values())
    found: dict[str, list[tuple[Module, int]]] = {"mixers": [], "dense": [], "experts": []}
    for kind, i in {kind: i for i, kind in reversed(kinds.items())}.items():
        for part, modules in _layer_modules(i, *layers[i]).items():
            found[part] += [(module, counts[kind]) for module in modules]
    return {part: modules for part, modules in found.items() if modules}


def _kind(mlp: MlpLayer) -> tuple[str, bool] | None:
    return None if mlp is None else (mlp.kind, isinstance(mlp, MoeMlp) and mlp.shared_intermediate > 0)


def _layer_modules(i: int, mixer: MixerLayer, mlp: MlpLayer) -> dict[str, list[Module]]:
    """Those of one layer."""
    found: dict[str, list[Module]] = {}
    if mixer is not None:
        found["mixers"] = _modules(i, *_MIXERS[mixer.kind])
    if isinstance(mlp, DenseMlp):
        found["dense"] = _modules(i, _BLOCKS, _UP_AND_DOWN)
    elif isinstance(mlp, MoeMlp):
        found["experts"] = _modules(i, [*(f"{block}.experts.0" for block in _BLOCKS), "experts.0"], _UP_AND_DOWN)
        if mlp.shared_intermediate:
            shared = [f"{block}.{name}" for block in _BLOCKS for name in ("shared_experts", "shared_expert")]
            found["dense"] = _modules(i, [*shared, "shared_mlp", "share_expert"], _UP_AND_DOWN)
    return found


def _modules(layer: int, holders: Names, matrices: Sequence[Names]) -> list[Module]:
    return [
        Module(tuple(f"layers.{layer}.{holder}.{name}" for holder in holders for name in names)) for names in matrices
    ]
