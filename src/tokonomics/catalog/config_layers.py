"""Build the layers that a config describes from its family's row: attention, recurrence, feed-forward.

Each function takes the fields, the frame (widths and depth every family has) and the row, and returns one entry for
each layer of the model. Shapes follow the published modelling code of each family.

Recurrent layers keep a state of fixed size instead of a KV cache; hybrids mix them with attention. Gated DeltaNet
(arXiv:2412.06464) is in Qwen3-Next and Qwen3.5, Mamba-2 (arXiv:2405.21060) in Nemotron-H, Bamba and Granite 4, Mamba
(arXiv:2312.00752) in Jamba, Kimi Delta Attention (arXiv:2510.26692) in Kimi Linear and Kimi K3. The convolution keeps
its last ``kernel - 1`` inputs, as engines do.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from tokonomics.catalog.config_families import (
    LARGEST,
    Attention,
    Blocks,
    Family,
    Fields,
    Pattern,
    Recurrent,
    Size,
    Switch,
    Windows,
)
from tokonomics.catalog.layers import DenseMlp, GroupedAttention, LatentAttention, Mixer, Mlp, MoeMlp, RecurrentMixer


class Frame(NamedTuple):
    """What every decoder has: width, depth, vocabulary, longest context."""

    hidden: int
    layers: int
    vocab: int
    context: int


MixerLayer = Mixer | None
MlpLayer = Mlp | None
Layer = TypeVar("Layer")

MOST_LAYERS = 4096
MOST_WINDOW = 1 << 31
MOST_HEADS = 1 << 16  # also the most units of width per head, and experts


def is_on(fields: Fields, switch: Switch) -> bool:
    """Decide what a switch of a family's row means for this config."""
    if isinstance(switch, bool):
        return switch
    name, default = (switch, False) if isinstance(switch, str) else switch
    return fields.flag(str(name), bool(default))


def optional_size(fields: Fields, size: Size, least: int = 1, most: int = LARGEST) -> int | None:
    """Return the number that a size of a family's row means in this config, or its default; None without one."""
    if isinstance(size, int):
        return size
    found = fields.optional_size(*field_names(size), least=least, most=most)
    default = None if isinstance(size, str) else next((last for last in size if isinstance(last, int)), None)
    return default if found is None else found


def field_names(size: Size) -> list[str]:
    """Return the fields that a size may be read from, the usual one first."""
    if isinstance(size, int):
        return []
    return [size] if isinstance(size, str) else [name for name in size if isinstance(name, str)]


def size_of(fields: Fields, size: Size, least: int = 1, most: int = LARGEST) -> int:
    """Return the same for a size that must exist."""
    found = optional_size(fields, size, least, most)
    return fields.size(*field_names(size)) if found is None else found  # raises if there is none


def same_length(fields: Fields, name: str, values: Sequence[object], frame: Frame) -> None:
    """Refuse a list with one entry per layer that has another length."""
    if len(values) != frame.layers:
        raise fields.wrong(name, f"has {len(values)} entries for {frame.layers} layers")


def by_kind(fields: Fields, frame: Frame, name: str, kinds: list[str], known: Mapping[str, Layer]) -> list[Layer]:
    """Return the layers that a list of kinds means."""
    same_length(fields, name, kinds, frame)
    for kind in kinds:
        if kind not in known:
            sliding = "sliding_attention" in known
            what = "is neither sliding nor full attention" if sliding else f"is not one of {', '.join(known)}"
            raise fields.wrong(name, f"has '{kind[:40]}', which {what}")
    return [known[kind] for kind in kinds]


def marked(fields: Fields, frame: Frame, pattern: Pattern) -> list[bool]:
    """Return which layers a pattern marks: those that see everything, or that have experts."""
    words = [found for name in pattern.words if (found := fields.words(name))]
    if pattern.needed and not words:
        raise fields.wrong(pattern.words[0], "is missing", fix=pattern.needed)
    by_rule = _by_rule(fields, frame, pattern)
    if pattern.listed and (given := fields.value(pattern.listed)) is not None:
        if isinstance(given, str):  # such as "3,4,5"
            listed = [int(part) for part in given.split(",") if part.strip().isdigit()]
        else:
            listed = fields.numbers(pattern.listed) or []
        return [layer + pattern.counted_from in listed for layer in range(frame.layers)]
    if words:
        kinds = words[0][: frame.layers] if pattern.goes_on else words[0]
        return by_kind(fields, frame, pattern.words[0], kinds, pattern.kinds)
    return by_rule


def _by_rule(fields: Fields, frame: Frame, pattern: Pattern) -> list[bool]:
    """Return a mark for each layer, or mark every few layers from a first to a last one."""
    first = size_of(fields, pattern.first, least=0, most=MOST_LAYERS)
    last = size_of(fields, pattern.last, least=-1, most=MOST_LAYERS)
    below = frame.layers if pattern.below is None else size_of(fields, pattern.below, least=0)
    layers = range(first, below if last < 0 else min(below, last + 1))
    unless = set(fields.numbers(pattern.unless) or ()) if pattern.unless else set()
    if pattern.marks:
        name, meaning = pattern.marks
        counts = name in field_names(pattern.every) and type(fields.value(name)) is int
        given = None if counts else fields.numbers(name)
        if given:
            same_length(fields, name, given, frame)
            return [bool(mark) == bool(meaning) for mark in given]
    every = size_of(fields, pattern.every, most=MOST_LAYERS)
    offset = every - 1 if pattern.offset is None else size_of(fields, pattern.offset, least=0, most=MOST_LAYERS)
    return [
        every > 0 and layer in layers and layer % every == offset and layer not in unless
        for layer in range(frame.layers)
    ]


def layer_windows(fields: Fields, frame: Frame, windows: Windows | None) -> list[int | None]:
    """Return the tokens that each layer looks back; None if it sees all."""
    if windows is None:
        return [None] * frame.layers
    full = marked(fields, frame, windows.full)
    by_words = any(fields.value(name) for name in windows.full.words)
    size = fields.optional_size(windows.size, least=windows.least, most=MOST_WINDOW)
    default = None if windows.default is None else optional_size(fields, windows.default, most=MOST_WINDOW)
    if not size and (by_words or not windows.null_is_none or not fields.has(windows.size)):
        size = default
    if not is_on(fields, windows.switch) and not by_words:
        size = None
    if by_words and not size and not all(full):
        raise fields.wrong(windows.size, "is missing, and layer_types has sliding layers")
    return [None if sees_all else size or None for sees_all in full]


# --- attention ------------------------------------------------------------------------------------------------------


class HeadShape(NamedTuple):
    """Attention heads, key/value heads, and the widths of one."""

    heads: int
    kv_heads: int
    head_dim: int
    value_dim: int | None = None  # None: as wide as a key


def grouped_attention(fields: Fields, frame: Frame, family: Family) -> list[MixerLayer]:
    """Read multi-head, grouped-query or multi-query attention of every layer; windowed layers may have other heads."""
    style, shape = family.attention, head_shape(fields, frame, family.attention)
    own = {name: optional_size(fields, size, most=MOST_HEADS) for name, size in style.sliding.items()}
    sliding = shape._replace(**{name: size for name, size in own.items() if size})
    windows = layer_windows(fields, frame, family.windows)
    full_sinks, sinks = (is_on(fields, switch or False) for switch in (style.sinks, style.sliding_sinks or style.sinks))
    each = [sliding if window else shape for window in windows]
    for name, listed in (("heads", style.each_heads), ("kv_heads", style.each_kv_heads)):
        if listed and (given := fields.numbers(listed)) is not None:
            same_length(fields, listed, given, frame)
            each = [own._replace(**{name: number}) for own, number in zip(each, given, strict=True)]
    kinds = list(zip(each, windows, strict=True))
    for heads, kv_heads in {(own.heads, own.kv_heads) for own in each}:
        if not heads or not kv_heads or heads % kv_heads:
            raise fields.wrong(style.each_heads or "num_key_value_heads", f"has {heads} heads for {kv_heads} of keys")
    layers = {
        (own, window): attention_layer(fields, frame, style, own, sinks if window else full_sinks, window)
        for own, window in set(kinds)
    }
    return [layers[kind] for kind in kinds]


def attention_layer(
    fields: Fields, frame: Frame, style: Attention, shape: HeadShape, sinks: bool = False, window: int | None = None
) -> GroupedAttention:
    """Return one layer with heads of that shape."""
    heads, kv_heads, head_dim, value_dim = shape
    query, kv = heads * head_dim, kv_heads * head_dim
    made = query + kv + kv_heads * (value_dim or head_dim)
    norm = {"none": 0, "head": 2 * head_dim, "head_with_bias": 4 * head_dim, "width": query + kv}[style.qk_norm]
    norm *= is_on(fields, style.qk_norm_when)
    query_rank = fields.size(style.query_rank) if style.query_rank else None
    norm += query_rank or 0
    return GroupedAttention(
        **shape._asdict(),
        query_rank=query_rank,
        window=window,
        bias_elements=made * is_on(fields, style.qkv_bias) + frame.hidden * is_on(fields, style.out_bias),
        norm_elements=norm + heads * sinks + heads * frame.hidden * style.head_gates,
        output_gate=is_on(fields, style.gate),
        bidirectional=style.bidirectional,
    )


def head_shape(fields: Fields, frame: Frame, style: Attention) -> HeadShape:
    """Return the heads that a config gives every layer."""
    heads = fields.size("num_attention_heads", "n_head", "n_heads", default=style.heads, most=MOST_HEADS)
    kv_heads = heads
    if style.grouped:
        default = style.kv_heads or heads
        kv_heads = fields.size(style.kv_field, "num_kv_heads", default=default, most=MOST_HEADS)
    if heads % kv_heads:
        raise fields.wrong("num_key_value_heads", f"is {kv_heads}, which does not divide the {heads} attention heads")
    head_dim = fields.optional_size("head_dim", "attention_head_dim", most=MOST_HEADS) or style.head_dim
    if head_dim is None:
        if frame.hidden % heads:
            raise fields.wrong("num_attention_heads", f"is {heads}, which does not divide hidden_size {frame.hidden}")
        head_dim = frame.hidden // heads
    value_dim = fields.size(style.value_dim, default=head_dim, most=MOST_HEADS) if style.value_dim else None
    return HeadShape(heads, kv_heads, head_dim, value_dim)


def latent_attention(fields: Fields, frame: Frame, family: Family) -> list[MixerLayer]:
    """Read DeepSeek's multi-head latent attention; ``q_lora_rank`` null means queries are projected directly."""
    heads = fields.size("num_attention_heads", most=MOST_HEADS)
    for unused in ("num_key_value_heads", "head_dim", "qk_head_dim"):
        fields.optional_size(unused)  # written by some exports, without meaning under MLA
    if not fields.has("q_lora_rank"):
        raise fields.wrong("q_lora_rank", "is missing", fix="Write null if queries are not compressed.")
    query_rank, kv_rank = fields.optional_size("q_lora_rank"), fields.size("kv_lora_rank")
    rope = fields.size("qk_rope_head_dim", most=MOST_HEADS)
    biased = fields.flag("attention_bias", False)
    one = LatentAttention(
        heads=heads,
        query_rank=query_rank,
        kv_rank=kv_rank,
        nope_dim=fields.size("qk_nope_head_dim", most=MOST_HEADS),
        rope_dim=rope,
        value_dim=fields.size("v_head_dim", default=family.attention.head_dim, most=MOST_HEADS),
        output_gate=is_on(fields, family.attention.gate),
        bias_elements=((query_rank or 0) + kv_rank + rope + frame.hidden) * biased,
    )
    return [one] * frame.layers


# --- feed-forward blocks --------------------------------------------------------------------------------------------


def feed_forward(fields: Fields, frame: Frame, family: Family) -> list[MlpLayer]:
    """Read experts in the sparse layers, a dense block in the others; or the same dense block in every layer."""
    style = family.blocks
    if style.experts is None:
        return [dense_block(fields, frame, style)] * frame.layers
    sparse, few = marked(fields, frame, style.sparse), False
    if style.dense_up_to is not None:  # few experts mean a dense block instead
        few = size_of(fields, style.experts, least=style.dense_up_to and 1) <= style.dense_up_to
    if few:
        sparse = [False] * frame.layers
        for unused in field_names(style.active) + field_names(style.expert_width):
            fields.value(unused)
    dense: MlpLayer = None
    if style.width:
        width = optional_size(fields, style.width) if all(sparse) else size_of(fields, style.width)
        dense = DenseMlp(intermediate=width, gated=style.gated) if width else None
    if few:
        return [dense] * frame.layers
    experts = expert_block(fields, frame, style)
    hashed = fields.size(style.hashed, default=0, least=0, most=frame.layers) if style.hashed else 0
    by_token = experts.model_copy(update={"router_bias_elements": 0})
    return [
        (by_token if layer < hashed else experts) if has_experts else dense for layer, has_experts in enumerate(sparse)
    ]


def dense_block(fields: Fields, frame: Frame, style: Blocks) -> DenseMlp:
    """Return the block that every token passes."""
    given = optional_size(fields, style.width) or (style.ratio or 0) * frame.hidden
    width = given or size_of(fields, style.width)
    bias = ((2 if style.gated else 1) * width + frame.hidden) * is_on(fields, style.bias)
    return DenseMlp(intermediate=width, gated=style.gated, bias_elements=bias)


def expert_block(fields: Fields, frame: Frame, style: Blocks) -> MoeMlp:
    """Return the experts of one layer."""
    experts = size_of(fields, style.experts or (), most=MOST_HEADS)
    active = size_of(fields, style.active, most=MOST_HEADS)
    if active > experts:
        raise fields.wrong(field_names(style.active)[0], f"is {active}, more than the {experts} experts there are")
    width = size_of(fields, style.expert_width)
    latent = fields.optional_size(style.latent) if style.latent else None
    normed = is_on(fields, style.latent_norm)
    return MoeMlp(
        experts=experts,
        active_experts=active,
        intermediate=width,
        gated=style.gated,
        shared_intermediate=math.prod(size_of(fields, size, least=0) for size in style.shared) if style.shared else 0,
        shared_gate=style.shared_gate,
        expert_bias_elements=((2 if style.gated else 1) * width + frame.hidden) * style.expert_bias,
        router_bias_elements=experts * style.router_bias + (latent or 0) * normed,
        latent=latent,
    )


DELTA_CHUNK = 64  # tokens per chunk of the scan (flash-linear-attention, as vLLM and SGLang run it)
MOST_KERNEL = 1 << 10


def gated_delta_net(fields: Fields, frame: Frame, style: Recurrent) -> RecurrentMixer:
    """Read Qwen3-Next: a matrix state per value head, updated by the delta rule."""
    key_heads = fields.size("linear_num_key_heads", most=MOST_HEADS)
    value_heads = fields.size("linear_num_value_heads", most=MOST_HEADS)
    if value_heads % key_heads:
        raise fields.wrong("linear_num_key_heads", f"is {key_heads}, which does not divide {value_heads} value heads")
    key_dim = fields.size("linear_key_head_dim", most=MOST_HEADS)
    value_dim = fields.size("linear_value_head_dim", most=MOST_HEADS)
    kernel = fields.size("linear_conv_kernel_dim", most=MOST_KERNEL)
    keys, values = key_heads * key_dim, value_heads * value_dim
    mixed = 2 * keys + values
    state = value_heads * key_dim * value_dim
    wide = fields.word("mamba_ssm_dtype") == "float32"
    return RecurrentMixer(
        # queries, keys, values and output gate; decay and step per value head; output
        projection_parameters=frame.hidden * (mixed + values + 2 * value_heads) + values * frame.hidden,
        small_parameters=mixed * kernel + 2 * value_heads + value_dim,
        state_elements=state + mixed * (kernel - 1),
        fp32_state_elements=state * wide,
        scan_flops=delta_scan_flops(value_heads, key_dim, value_dim),
    )


def delta_scan_flops(heads: int, key_dim: int, value_dim: int) -> float:
    """Return the FLOPs of a token, in chunks: keys with keys, queries with keys, and the triangle times keys, its
    values, and scores times values inside the chunk (arXiv:2412.06464, section 3.3); three products with the state
    across chunks."""
    inside = 2.0 * DELTA_CHUNK * (3 * key_dim + 2 * value_dim)
    return heads * (inside + 6.0 * key_dim * value_dim)


def mamba2(fields: Fields, frame: Frame, style: Recurrent) -> RecurrentMixer:
    """Read Mamba-2: scalar decay per head, state of head_dim × state_size per head."""
    heads = size_of(fields, style.heads, most=MOST_HEADS)
    automatic = isinstance(style.head_dim, str) and fields.value(style.head_dim) == "auto"  # Granite 4
    inner = fields.size("mamba_expand", default=2, most=64) * frame.hidden if automatic else 0
    head_dim = max(1, inner // heads) if automatic else size_of(fields, style.head_dim, most=MOST_HEADS)
    state_size = size_of(fields, style.state, most=MOST_HEADS)
    kernel = size_of(fields, style.kernel, most=MOST_KERNEL)
    inner = heads * head_dim
    mixed = inner + 2 * size_of(fields, style.groups, most=MOST_HEADS) * state_size
    widened = inner + mixed + heads
    biases = [fields.flag(name, False) for name in style.proj_bias]  # all are read, so that none counts as unknown
    state = heads * head_dim * state_size
    chunk = size_of(fields, style.chunk)
    wide = style.state_dtype is not None and fields.word(style.state_dtype) == "float32"
    return RecurrentMixer(
        projection_parameters=frame.hidden * widened + inner * frame.hidden,
        small_parameters=mixed * (kernel + fields.flag(style.conv_bias, True))
        + (3 * heads + inner)
        + (widened + frame.hidden) * any(biases),
        state_elements=state + mixed * (kernel - 1),
        fp32_state_elements=state * wide,
        # Scores and their product with the inputs inside a chunk; the state read and written across chunks.
        scan_flops=heads * (2.0 * chunk * (state_size + head_dim) + 4.0 * state_size * head_dim),
        recurrence="mamba2",
    )


def mamba1(fields: Fields, frame: Frame, style: Recurrent) -> RecurrentMixer:
    """Read a Mamba layer: a decay per channel and state element."""
    inner = size_of(fields, style.expand, most=64) * frame.hidden
    if style.inner:
        fields.expect({style.inner: [inner]})
    state = size_of(fields, style.state, most=MOST_HEADS)
    kernel = size_of(fields, style.kernel, most=MOST_KERNEL)
    automatic = -(-frame.hidden // 16)
    rank = automatic if fields.value(style.rank) == "auto" else fields.size(style.rank, default=automatic)
    biased = any(fields.flag(name, False) for name in style.proj_bias)
    return RecurrentMixer(
        # input and gate; step, B and C; step; output
        projection_parameters=inner * (2 * frame.hidden + (rank + 2 * state) + rank + frame.hidden),
        # convolution and its bias; step bias, decay and skip; norms on step, B and C; projection biases
        small_parameters=inner * (kernel + fields.flag(style.conv_bias, True))
        + inner * (1 + state + 1)
        + (rank + 2 * state) * style.norms
        + (2 * inner + frame.hidden) * biased,
        state_elements=inner * state + inner * (kernel - 1),
        scan_flops=6.0 * inner * state,
        recurrence="mamba",
    )


def kimi_delta_attention(fields: Fields, frame: Frame, style: Recurrent) -> RecurrentMixer:
    """Read Kimi Delta Attention: a matrix state per head, a decay for each row (vLLM, ``kimi_k3/nvidia/kda.py``)."""
    linear = fields.child("linear_attn_config")
    if linear is None:
        raise fields.wrong("linear_attn_config", "is missing")
    if set(linear.numbers("full_attn_layers") or ()) & set(linear.numbers("kda_layers") or ()):
        raise linear.wrong("kda_layers", "names layers that full_attn_layers names too")
    heads, head_dim = linear.size("num_heads", most=MOST_HEADS), linear.size("head_dim", most=MOST_HEADS)
    kernel = linear.size("short_conv_kernel_size", default=4, most=MOST_KERNEL)
    width, state = heads * head_dim, heads * head_dim * head_dim
    decay = frame.hidden * head_dim + head_dim * width
    gate = frame.hidden * width if linear.flag("use_full_rank_gate", False) else decay
    return RecurrentMixer(
        # queries, keys, values and output; step per head; decay and output gate
        projection_parameters=frame.hidden * (4 * width + heads) + decay + gate,
        small_parameters=3 * width * kernel + heads + width + head_dim,
        state_elements=state + 3 * width * (kernel - 1),
        fp32_state_elements=state,  # vLLM, ``MambaStateDtypeCalculator.kda_state_dtype``
        scan_flops=delta_scan_flops(heads, head_dim, head_dim),
        recurrence="kda",
    )


def lightning_attention(fields: Fields, frame: Frame, style: Recurrent) -> RecurrentMixer:
    """Read lightning attention (arXiv:2501.08313): a decay and a square state for each head, and a gate."""
    heads = fields.size("num_attention_heads", most=MOST_HEADS)
    head_dim = fields.size("head_dim", default=max(1, frame.hidden // heads), most=MOST_HEADS)
    width, chunk = heads * head_dim, size_of(fields, style.chunk)
    return RecurrentMixer(
        projection_parameters=5 * frame.hidden * width,  # queries, keys, values, gate; output
        small_parameters=width,
        state_elements=width * head_dim,
        scan_flops=4.0 * width * (chunk + head_dim),
        recurrence="mamba2",  # which also has one decay for each head
    )


def short_convolution(fields: Fields, frame: Frame, style: Recurrent) -> RecurrentMixer:
    """Read LFM2: a gated convolution over the last tokens; its state and its work are a small Mamba layer's."""
    kernel = size_of(fields, style.kernel, most=MOST_KERNEL)
    biased = fields.flag(style.conv_bias, False)
    return RecurrentMixer(
        projection_parameters=4 * frame.hidden * frame.hidden,  # two gates and the input; output
        small_parameters=frame.hidden * kernel + 5 * frame.hidden * biased,
        state_elements=frame.hidden * (kernel - 1),
        scan_flops=2.0 * frame.hidden * kernel,
        recurrence="mamba",
    )


RECURRENT: dict[str, Callable[[Fields, Frame, Recurrent], RecurrentMixer]] = {
    "delta": gated_delta_net,
    "mamba2": mamba2,
    "mamba": mamba1,
    "kda": kimi_delta_attention,
    "conv": short_convolution,
    "lightning": lightning_attention,
}
