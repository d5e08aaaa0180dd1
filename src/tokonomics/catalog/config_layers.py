"""The layers a config describes: attention, recurrent mixers, feed-forward blocks, one entry per layer.

Each function takes the fields and the frame (widths and depth every family has) and returns a list as long as the
model is deep. What differs between families is data: an ``AttentionStyle``, an ``MlpStyle`` or an ``ExpertStyle``.
Shapes follow the published modelling code of each family; defaults are those of its Hugging Face config class.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from tokonomics.catalog.config_fields import Fields
from tokonomics.catalog.layers import (
    CompressedAttention,
    DenseMlp,
    GroupedAttention,
    LatentAttention,
    MoeMlp,
    RecurrentMixer,
)


@dataclass(frozen=True)
class Frame:
    """What every decoder has: width, depth, vocabulary, longest context."""

    hidden: int
    layers: int
    vocab: int
    context: int


Windows = Callable[[Fields, Frame], list[int | None]]
Switch = bool | tuple[str, bool]  # always, never, or the field that says so with its default

MixerLayer = GroupedAttention | LatentAttention | CompressedAttention | RecurrentMixer | None
MlpLayer = DenseMlp | MoeMlp | None
Layer = TypeVar("Layer")

MOST_LAYERS = 4096
MOST_WINDOW = 1 << 31


def is_on(fields: Fields, switch: Switch) -> bool:
    return switch if isinstance(switch, bool) else fields.flag(*switch)


def same_length(fields: Fields, name: str, values: Sequence[object], frame: Frame) -> None:
    """A list with one entry per layer has to have that many."""
    if len(values) != frame.layers:
        raise fields.wrong(name, f"has {len(values)} entries for {frame.layers} layers")


def by_kind(fields: Fields, frame: Frame, name: str, kinds: list[str], known: Mapping[str, Layer]) -> list[Layer]:
    """The layers that a list of kinds stands for."""
    same_length(fields, name, kinds, frame)
    for kind in kinds:
        if kind not in known:
            raise fields.wrong(name, f"has '{kind[:40]}', which is not one of {', '.join(known)}")
    return [known[kind] for kind in kinds]


# --- windows: which layers see only the last tokens -----------------------------------------------------------------


def everywhere(fields: Fields, frame: Frame) -> list[int | None]:
    """Full attention in every layer."""
    return [None] * frame.layers


def uniform_window(default: int | None) -> Windows:
    """One ``sliding_window`` for all layers; null switches it off, absence means the family's default."""

    def windows(fields: Fields, frame: Frame) -> list[int | None]:
        if fields.has("layer_types"):
            return windows_by_type(fields, frame, default, [])
        size = fields.optional_size("sliding_window", most=MOST_WINDOW)
        return [size if fields.has("sliding_window") else default] * frame.layers

    return windows


def alternating_window(default: int, period: int) -> Windows:
    """A full layer at the end of every ``period`` layers, sliding ones before it (Gemma 2: 2, Gemma 3: 6)."""

    def windows(fields: Fields, frame: Frame) -> list[int | None]:
        given = fields.optional_size("sliding_window_pattern", "_sliding_window_pattern", most=MOST_LAYERS)
        every = given or period
        kinds = ["full_attention" if (i + 1) % every == 0 else "sliding_attention" for i in range(frame.layers)]
        return windows_by_type(fields, frame, default, kinds)

    return windows


def window_above(fields: Fields, frame: Frame) -> list[int | None]:
    """Qwen: with ``use_sliding_window`` the layers from ``max_window_layers`` on have the window."""
    in_use = fields.flag("use_sliding_window", False)
    first = fields.size("max_window_layers", default=28, least=0)
    size = fields.optional_size("sliding_window", least=0, most=MOST_WINDOW) if in_use else None
    kinds = ["sliding_attention" if size and i >= first else "full_attention" for i in range(frame.layers)]
    return windows_by_type(fields, frame, None, kinds)


def chunked_window(fields: Fields, frame: Frame) -> list[int | None]:
    """Llama 4: layers with rotary positions attend within a chunk, every fourth sees everything."""
    chunk = fields.size("attention_chunk_size", default=8192, most=MOST_WINDOW)
    interval = fields.size("no_rope_layer_interval", default=4, most=MOST_LAYERS)
    rotary = fields.numbers("no_rope_layers") or [int((i + 1) % interval != 0) for i in range(frame.layers)]
    same_length(fields, "no_rope_layers", rotary, frame)
    kinds = fields.words("layer_types") or ["chunked_attention" if chunks else "full_attention" for chunks in rotary]
    return by_kind(fields, frame, "layer_types", kinds, {"chunked_attention": chunk, "full_attention": None})


def windows_by_type(fields: Fields, frame: Frame, default: int | None, kinds: list[str]) -> list[int | None]:
    """Windows from ``layer_types`` where it is given, else from the family's own pattern."""
    kinds = fields.words("layer_types") or kinds
    same_length(fields, "layer_types", kinds, frame)
    size = fields.optional_size("sliding_window", least=0, most=MOST_WINDOW) or default
    windows: list[int | None] = []
    for kind in kinds:
        if kind not in ("sliding_attention", "full_attention"):
            raise fields.wrong("layer_types", f"has '{kind[:40]}', which is neither sliding nor full attention")
        if kind == "sliding_attention" and not size:
            raise fields.wrong("sliding_window", "is missing, and layer_types has sliding layers")
        windows.append(size if kind == "sliding_attention" else None)
    return windows


# --- attention ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class AttentionStyle:
    """How a family projects queries, keys and values."""

    head_dim: int | None = None  # of the config class when the field is absent; None means hidden ÷ heads
    heads: int | None = None
    kv_heads: int | None = None  # as above; None means as many as heads
    grouped: bool = True  # whether the family knows key/value heads at all
    qkv_bias: Switch = False
    out_bias: Switch = False
    qk_norm: Literal["none", "head", "width", "head_with_bias"] = "none"
    """Norm vectors on queries and keys: one head wide, or as wide as the projections."""
    qk_norm_when: Switch = True
    sinks: bool = False  # one learned attention sink per head (GPT-OSS)
    gate: bool = False
    bidirectional: bool = False
    windows: Windows = everywhere


def grouped_attention(fields: Fields, frame: Frame, style: AttentionStyle) -> list[MixerLayer]:
    """Multi-head, grouped-query or multi-query attention in every layer."""
    heads, kv_heads, head_dim = head_shape(fields, frame, style)
    query, kv = heads * head_dim, kv_heads * head_dim
    bias = (query + 2 * kv) * is_on(fields, style.qkv_bias) + frame.hidden * is_on(fields, style.out_bias)
    norm = {"none": 0, "head": 2 * head_dim, "head_with_bias": 4 * head_dim, "width": query + kv}[style.qk_norm]
    norm *= is_on(fields, style.qk_norm_when)
    windows = style.windows(fields, frame)
    full = GroupedAttention(
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        bias_elements=bias,
        norm_elements=norm + heads * style.sinks,
        output_gate=style.gate,
        bidirectional=style.bidirectional,
    )
    layers = {window: full.model_copy(update={"window": window}) for window in set(windows)}
    return [layers[window] for window in windows]


def head_shape(fields: Fields, frame: Frame, style: AttentionStyle) -> tuple[int, int, int]:
    """Heads, key/value heads and the width of one."""
    heads = fields.size("num_attention_heads", "n_head", "n_heads", default=style.heads, most=1 << 16)
    kv_heads = heads
    if style.grouped:
        default = style.kv_heads or heads
        kv_heads = fields.size("num_key_value_heads", "num_kv_heads", default=default, most=1 << 16)
    if heads % kv_heads:
        raise fields.wrong("num_key_value_heads", f"is {kv_heads}, which does not divide the {heads} attention heads")
    head_dim = fields.optional_size("head_dim", "attention_head_dim", most=1 << 16) or style.head_dim
    if head_dim is None:
        if frame.hidden % heads:
            raise fields.wrong("num_attention_heads", f"is {heads}, which does not divide hidden_size {frame.hidden}")
        head_dim = frame.hidden // heads
    return heads, kv_heads, head_dim


def falcon_attention(fields: Fields, frame: Frame) -> list[MixerLayer]:
    """Falcon: grouped heads in the new decoder, one key/value head with ``multi_query``, else one per head."""
    heads = fields.size("num_attention_heads", "n_head", most=1 << 16)
    if frame.hidden % heads:
        raise fields.wrong("num_attention_heads", f"is {heads}, which does not divide hidden_size {frame.hidden}")
    groups = fields.size("num_kv_heads", "n_head_kv", default=heads, most=1 << 16)
    multi_query, grouped = fields.flag("multi_query", True), fields.flag("new_decoder_architecture", False)
    kv_heads = groups if grouped else 1 if multi_query else heads
    if heads % kv_heads:
        raise fields.wrong("num_kv_heads", f"is {kv_heads}, which does not divide the {heads} attention heads")
    head_dim = frame.hidden // heads
    bias = ((heads + 2 * kv_heads) * head_dim + frame.hidden) * fields.flag("bias", False)
    return [GroupedAttention(heads=heads, kv_heads=kv_heads, head_dim=head_dim, bias_elements=bias)] * frame.layers


def latent_attention(fields: Fields, frame: Frame) -> list[MixerLayer]:
    """DeepSeek's multi-head latent attention; ``q_lora_rank`` null means queries are projected directly."""
    heads = fields.size("num_attention_heads", most=1 << 16)
    for unused in ("num_key_value_heads", "head_dim", "qk_head_dim"):
        fields.optional_size(unused)  # written by some exports, without meaning under MLA
    if not fields.has("q_lora_rank"):
        raise fields.wrong("q_lora_rank", "is missing", fix="Write null if queries are not compressed.")
    query_rank, kv_rank = fields.optional_size("q_lora_rank"), fields.size("kv_lora_rank")
    rope = fields.size("qk_rope_head_dim", most=1 << 16)
    biased = fields.flag("attention_bias", False)
    one = LatentAttention(
        heads=heads,
        query_rank=query_rank,
        kv_rank=kv_rank,
        nope_dim=fields.size("qk_nope_head_dim", most=1 << 16),
        rope_dim=rope,
        value_dim=fields.size("v_head_dim", most=1 << 16),
        bias_elements=((query_rank or 0) + kv_rank + rope + frame.hidden) * biased,
    )
    return [one] * frame.layers


# --- feed-forward blocks --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MlpStyle:
    """How a family's dense feed-forward block is built."""

    gated: bool = True
    bias: Switch = False
    widths: tuple[str, ...] = ("intermediate_size",)
    default_ratio: int | None = None  # width in units of hidden where the field may be absent (GPT-2: 4)


PLAIN_MLP = MlpStyle()


def dense_mlp(fields: Fields, frame: Frame, style: MlpStyle = PLAIN_MLP) -> list[MlpLayer]:
    """The same dense block in every layer."""
    default = style.default_ratio * frame.hidden if style.default_ratio else None
    width = fields.size(*style.widths, default=default)
    bias = ((2 if style.gated else 1) * width + frame.hidden) * is_on(fields, style.bias)
    return [DenseMlp(intermediate=width, gated=style.gated, bias_elements=bias)] * frame.layers


Sparse = Callable[[Fields, Frame], list[bool]]


def all_sparse(fields: Fields, frame: Frame) -> list[bool]:
    return [True] * frame.layers


def sparse_step(fields: Fields, frame: Frame) -> list[bool]:
    """Qwen: every ``decoder_sparse_step``-th layer, except those in ``mlp_only_layers``."""
    step = fields.size("decoder_sparse_step", default=1, most=MOST_LAYERS)
    dense = set(fields.numbers("mlp_only_layers") or ())
    return [i not in dense and (i + 1) % step == 0 for i in range(frame.layers)]


def sparse_after_first(fields: Fields, frame: Frame) -> list[bool]:
    """DeepSeek: dense for the first layers, experts from there on; or as a list says, layer by layer."""
    first = fields.size("first_k_dense_replace", default=0, least=0, most=MOST_LAYERS)
    if fields.has("mlp_layer_types"):
        kinds = fields.words("mlp_layer_types") or []
        fields.value("moe_layer_freq")
        return by_kind(fields, frame, "mlp_layer_types", kinds, {"dense": False, "sparse": True})
    if isinstance(fields.value("moe_layer_freq"), list):
        marks = fields.numbers("moe_layer_freq") or []
        same_length(fields, "moe_layer_freq", marks, frame)
        return [bool(mark) for mark in marks]
    every = fields.size("moe_layer_freq", default=1, most=MOST_LAYERS)
    return [i >= first and i % every == 0 for i in range(frame.layers)]


def sparse_interleaved(fields: Fields, frame: Frame) -> list[bool]:
    """Llama 4: the last of every ``interleave_moe_layer_step`` layers, or the list in ``moe_layers``."""
    step = fields.size("interleave_moe_layer_step", default=1, most=MOST_LAYERS)
    chosen = fields.numbers("moe_layers")
    return [i in chosen if chosen is not None else (i + 1) % step == 0 for i in range(frame.layers)]


def sparse_period(fields: Fields, frame: Frame) -> list[bool]:
    """Jamba: one layer in ``expert_layer_period``."""
    period = fields.size("expert_layer_period", default=2, most=MOST_LAYERS)
    offset = fields.size("expert_layer_offset", default=1, least=0, most=MOST_LAYERS)
    return [i % period == offset for i in range(frame.layers)]


def sparse_between(fields: Fields, frame: Frame) -> list[bool]:
    """ERNIE: the last of every ``moe_layer_interval`` layers from a first to a last one; -1 is the model's last."""
    first = fields.size("moe_layer_start_index", default=1, least=0, most=MOST_LAYERS)
    end = fields.size("moe_layer_end_index", default=-1, least=-1, most=MOST_LAYERS)
    every = fields.size("moe_layer_interval", default=1, most=MOST_LAYERS)
    last = frame.layers - 1 if end == -1 else end
    return [first <= i <= last and (i + 1) % every == 0 for i in range(frame.layers)]


@dataclass(frozen=True)
class ExpertStyle:
    """Under which names a family gives its experts, and what goes with them."""

    experts: tuple[str, ...]
    active: tuple[str, ...] = ("num_experts_per_tok",)
    width: str = "moe_intermediate_size"
    dense_width: str | None = "intermediate_size"  # of the layers without experts; None: every layer has them
    sparse: Sparse = all_sparse
    shared: Callable[[Fields], int] = lambda fields: 0  # total width of the shared experts
    shared_gate: bool = False
    gated: bool = True
    expert_bias: bool = False
    router_bias: bool = False  # one per expert: plain, or a balancing correction (DeepSeek-V3, arXiv:2408.15664)
    single_is_dense: bool = False  # one expert means none: a plain block without a router (Jamba)


def shared_count(fields: Fields) -> int:
    """DeepSeek and ERNIE: so many shared experts of the routed experts' width."""
    shared = fields.size("n_shared_experts", "moe_num_shared_experts", "num_shared_experts", default=0, least=0)
    return shared * fields.size("moe_intermediate_size")


def shared_width(name: str) -> Callable[[Fields], int]:
    return lambda fields: fields.size(name, default=0, least=0)


def mixture(fields: Fields, frame: Frame, style: ExpertStyle) -> list[MlpLayer]:
    """Experts in the sparse layers, a dense block in the others."""
    sparse = style.sparse(fields, frame)
    dense: MlpLayer = None
    if style.dense_width:
        width = fields.size(style.dense_width) if not all(sparse) else fields.optional_size(style.dense_width)
        dense = DenseMlp(intermediate=width, gated=style.gated) if width else None
    experts = expert_mlp(fields, frame, style)
    if style.single_is_dense and experts.experts == 1:
        return [dense] * frame.layers
    return [experts if has_experts else dense for has_experts in sparse]


def expert_mlp(fields: Fields, frame: Frame, style: ExpertStyle) -> MoeMlp:
    """The experts of one layer."""
    experts = fields.size(*style.experts, most=1 << 16)
    active = fields.size(*style.active, most=1 << 16)
    if active > experts:
        raise fields.wrong(style.active[0], f"is {active}, more than the {experts} experts there are")
    width = fields.size(style.width)
    return MoeMlp(
        experts=experts,
        active_experts=active,
        intermediate=width,
        gated=style.gated,
        shared_intermediate=style.shared(fields),
        shared_gate=style.shared_gate,
        expert_bias_elements=((2 if style.gated else 1) * width + frame.hidden) * style.expert_bias,
        router_bias_elements=experts * style.router_bias,
    )
