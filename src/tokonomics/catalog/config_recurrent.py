"""Layers that keep a state of fixed size instead of a KV cache, and the hybrids that mix them with attention.

Gated DeltaNet (arXiv:2412.06464) in Qwen3-Next and Qwen3.5, Mamba-2 (arXiv:2405.21060) in Nemotron-H, Bamba and
Granite 4, Mamba (arXiv:2312.00752) in Jamba, Kimi Delta Attention (arXiv:2510.26692) in Kimi Linear and Kimi K3. The
convolution keeps its last ``kernel - 1`` inputs, as engines do.
"""

from collections.abc import Callable

from tokonomics.catalog.config_families import Recurrent
from tokonomics.catalog.config_fields import Fields
from tokonomics.catalog.config_layers import MOST_HEADS, Frame, size_of
from tokonomics.catalog.layers import RecurrentMixer

DELTA_CHUNK = 64  # tokens to a chunk of the scan (flash-linear-attention, as vLLM and SGLang run it)
MOST_KERNEL = 1 << 10


def gated_delta_net(fields: Fields, frame: Frame, style: Recurrent) -> RecurrentMixer:
    """Qwen3-Next: a matrix state per value head, updated by the delta rule."""
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
    """Of a token, in chunks: keys with keys, queries with keys, and the triangle times keys, its values, and scores
    times values inside the chunk (arXiv:2412.06464, section 3.3); three products with the state across chunks."""
    inside = 2.0 * DELTA_CHUNK * (3 * key_dim + 2 * value_dim)
    return heads * (inside + 6.0 * key_dim * value_dim)


def mamba2(fields: Fields, frame: Frame, style: Recurrent) -> RecurrentMixer:
    """Mamba-2: scalar decay per head, state of head_dim × state_size per head."""
    heads = size_of(fields, style.heads, most=MOST_HEADS)
    head_dim = size_of(fields, style.head_dim, most=MOST_HEADS)
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
    """A Mamba layer: a decay per channel and state element."""
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
    """Kimi Delta Attention: a matrix state per head, with a decay for each row (vLLM, ``kimi_k3/nvidia/kda.py``)."""
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


RECURRENT: dict[str, Callable[[Fields, Frame, Recurrent], RecurrentMixer]] = {
    "delta": gated_delta_net,
    "mamba2": mamba2,
    "mamba": mamba1,
    "kda": kimi_delta_attention,
}
