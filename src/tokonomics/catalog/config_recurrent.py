"""Layers that keep a state of fixed size instead of a KV cache, and the hybrids that mix them with attention.

Gated DeltaNet (arXiv:2412.06464) in Qwen3-Next and Qwen3.5, Mamba-2 (arXiv:2405.21060) in Nemotron-H, Bamba and
Granite 4, Mamba (arXiv:2312.00752) in Jamba, Kimi Delta Attention (arXiv:2510.26692) in Kimi Linear and Kimi K3. The
convolution keeps its last ``kernel - 1`` inputs, as engines do.
"""

from dataclasses import dataclass

from tokonomics.catalog.config_fields import Fields
from tokonomics.catalog.config_layers import (
    MOST_LAYERS,
    AttentionStyle,
    ExpertStyle,
    Frame,
    MixerLayer,
    MlpLayer,
    MlpStyle,
    by_kind,
    dense_mlp,
    expert_mlp,
    grouped_attention,
    latent_attention,
    mixture,
    same_length,
    shared_count,
    shared_width,
    sparse_after_first,
)
from tokonomics.catalog.layers import DenseMlp, MoeMlp, RecurrentMixer

DELTA_CHUNK = 64  # tokens to a chunk of the scan (flash-linear-attention, as vLLM and SGLang run it)
MAMBA2_CHUNK = 256  # of the config classes, where a config does not say


def gated_delta_net(fields: Fields, frame: Frame) -> RecurrentMixer:
    """Qwen3-Next: a matrix state per value head, updated by the delta rule."""
    key_heads = fields.size("linear_num_key_heads", most=1 << 16)
    value_heads = fields.size("linear_num_value_heads", most=1 << 16)
    if value_heads % key_heads:
        raise fields.wrong("linear_num_key_heads", f"is {key_heads}, which does not divide {value_heads} value heads")
    key_dim = fields.size("linear_key_head_dim", most=1 << 16)
    value_dim = fields.size("linear_value_head_dim", most=1 << 16)
    kernel = fields.size("linear_conv_kernel_dim", most=1 << 10)
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


@dataclass(frozen=True)
class Mamba2Names:
    """The fields of one family's Mamba-2 layers."""

    heads: str
    head_dim: str
    groups: str
    state: str
    kernel: str
    proj_bias: tuple[str, ...]
    conv_bias: str
    chunk: str  # tokens to a chunk of the scan
    state_dtype: str | None = None


MAMBA2_PLAIN = Mamba2Names(
    "mamba_n_heads", "mamba_d_head", "mamba_n_groups", "mamba_d_state", "mamba_d_conv", ("mamba_proj_bias",),
    "mamba_conv_bias", "mamba_chunk_size",
)  # fmt: skip
MAMBA2_NEMOTRON = Mamba2Names(
    "mamba_num_heads", "mamba_head_dim", "n_groups", "ssm_state_size", "conv_kernel", ("use_bias", "mamba_proj_bias"),
    "use_conv_bias", "chunk_size", "mamba_ssm_cache_dtype",
)  # fmt: skip
MAMBA2_PURE = Mamba2Names(
    "num_heads", "head_dim", "n_groups", "state_size", "conv_kernel", ("use_bias",), "use_conv_bias", "chunk_size",
)  # fmt: skip


def mamba2(fields: Fields, frame: Frame, names: Mamba2Names) -> RecurrentMixer:
    """Mamba-2: scalar decay per head, state of head_dim × state_size per head."""
    heads = fields.size(names.heads, most=1 << 16)
    head_dim = fields.size(names.head_dim, most=1 << 16)
    state_size = fields.size(names.state, most=1 << 16)
    kernel = fields.size(names.kernel, most=1 << 10)
    inner = heads * head_dim
    mixed = inner + 2 * fields.size(names.groups, most=1 << 16) * state_size
    widened = inner + mixed + heads
    biases = [fields.flag(name, False) for name in names.proj_bias]  # all are read, so that none counts as unknown
    state = heads * head_dim * state_size
    chunk = fields.size(names.chunk, default=MAMBA2_CHUNK)
    wide = names.state_dtype is not None and fields.word(names.state_dtype) == "float32"
    return RecurrentMixer(
        projection_parameters=frame.hidden * widened + inner * frame.hidden,
        small_parameters=mixed * (kernel + fields.flag(names.conv_bias, True))
        + (3 * heads + inner)
        + (widened + frame.hidden) * any(biases),
        state_elements=state + mixed * (kernel - 1),
        fp32_state_elements=state * wide,
        # Scores and their product with the inputs inside a chunk; the state read and written across chunks.
        scan_flops=heads * (2.0 * chunk * (state_size + head_dim) + 4.0 * state_size * head_dim),
        recurrence="mamba2",
    )


@dataclass(frozen=True)
class MambaNames:
    """The fields of one family's Mamba layers."""

    expand: str
    state: str
    kernel: str
    rank: str
    proj_bias: str
    conv_bias: str
    norms: bool  # on the step and on B and C


MAMBA_JAMBA = MambaNames(
    "mamba_expand", "mamba_d_state", "mamba_d_conv", "mamba_dt_rank", "mamba_proj_bias", "mamba_conv_bias", norms=True
)
MAMBA_PURE = MambaNames(
    "expand", "state_size", "conv_kernel", "time_step_rank", "use_bias", "use_conv_bias", norms=False
)


def mamba1(fields: Fields, frame: Frame, names: MambaNames) -> RecurrentMixer:
    """A Mamba layer: a decay per channel and state element."""
    inner = fields.size(names.expand, default=2, most=64) * frame.hidden
    state = fields.size(names.state, default=16, most=1 << 16)
    kernel = fields.size(names.kernel, default=4, most=1 << 10)
    given = fields.value(names.rank)
    automatic = -(-frame.hidden // 16)
    rank = automatic if given == "auto" else fields.size(names.rank, default=automatic)
    biased = fields.flag(names.proj_bias, False)
    return RecurrentMixer(
        # input and gate; step, B and C; step; output
        projection_parameters=inner * (2 * frame.hidden + (rank + 2 * state) + rank + frame.hidden),
        # convolution and its bias; step bias, decay and skip; norms on step, B and C; projection biases
        small_parameters=inner * (kernel + fields.flag(names.conv_bias, True))
        + inner * (1 + state + 1)
        + (rank + 2 * state) * names.norms
        + (2 * inner + frame.hidden) * biased,
        state_elements=inner * state + inner * (kernel - 1),
        scan_flops=6.0 * inner * state,
        recurrence="mamba",
    )


def pure_mamba(fields: Fields, frame: Frame) -> list[MixerLayer]:
    """Mamba in every layer, and nothing else."""
    fields.expect("intermediate_size", (fields.size("expand", default=2, most=64) * frame.hidden,))
    return [mamba1(fields, frame, MAMBA_PURE)] * frame.layers


def pure_mamba2(fields: Fields, frame: Frame) -> list[MixerLayer]:
    """Mamba-2 in every layer, and nothing else."""
    return [mamba2(fields, frame, MAMBA2_PURE)] * frame.layers


def no_mlps(fields: Fields, frame: Frame) -> list[MlpLayer]:
    return [None] * frame.layers


def kimi_delta_attention(linear: Fields, frame: Frame) -> RecurrentMixer:
    """Kimi Delta Attention: a matrix state per head, with a decay for each row (vLLM, ``kimi_k3/nvidia/kda.py``)."""
    heads, head_dim = linear.size("num_heads", most=1 << 16), linear.size("head_dim", most=1 << 16)
    kernel = linear.size("short_conv_kernel_size", default=4, most=1 << 10)
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


def kimi_linear_mixers(fields: Fields, frame: Frame) -> list[MixerLayer]:
    """Latent attention or Kimi Delta Attention, as ``linear_attn_config`` counts them, from 1."""
    linear = fields.child("linear_attn_config")
    if linear is None:
        raise fields.wrong("linear_attn_config", "is missing")
    for unused in ("model_max_length", "mla_use_nope"):
        fields.value(unused)
    (latent, *_) = latent_attention(fields, frame)
    if latent is not None and fields.flag("mla_use_output_gate", False):
        latent = latent.model_copy(update={"output_gate": True})
    delta = kimi_delta_attention(linear, frame)
    full = set(linear.numbers("full_attn_layers") or ())
    if full & set(linear.numbers("kda_layers") or ()):
        raise linear.wrong("kda_layers", "names layers that full_attn_layers names too")
    return [latent if i + 1 in full else delta for i in range(frame.layers)]


def kimi_linear_mlps(fields: Fields, frame: Frame) -> list[MlpLayer]:
    """DeepSeek's mixture under other names; in Kimi K3 routed experts work in a latent width, behind a norm."""
    style = ExpertStyle(
        experts=("num_experts",),
        active=("num_experts_per_token", "num_experts_per_tok"),
        sparse=sparse_after_first,
        shared=shared_count,
        router_bias=True,
    )
    latent = fields.optional_size("routed_expert_hidden_size")
    normed = latent if latent and fields.flag("latent_moe_use_norm", False) else 0
    found: dict[int, MlpLayer] = {}
    layers = mixture(fields, frame, style)
    for block in layers:
        if isinstance(block, MoeMlp) and latent:
            bias = block.router_bias_elements + normed
            found[id(block)] = block.model_copy(update={"latent": latent, "router_bias_elements": bias})
    return [found.get(id(block), block) for block in layers]


def kimi_norms(fields: Fields) -> int:
    """Two norms; with attention residuals (Kimi K3) two more, and two vectors that score the blocks before."""
    return 2 if fields.optional_size("attn_res_block_size") is None else 6


def kimi_last_residual(fields: Fields, frame: Frame) -> int:
    """The norm and the vector that join the blocks after the last layer."""
    return 0 if fields.optional_size("attn_res_block_size") is None else 2 * frame.hidden


def delta_net_hybrid(fields: Fields, frame: Frame, style: AttentionStyle) -> list[MixerLayer]:
    """Gated attention in every fourth layer, Gated DeltaNet in the others (or as ``layer_types`` says)."""
    every = fields.size("full_attention_interval", default=4, most=MOST_LAYERS)
    pattern = ["full_attention" if (i + 1) % every == 0 else "linear_attention" for i in range(frame.layers)]
    kinds = fields.words("layer_types") or pattern
    attention, recurrent = grouped_attention(fields, frame, style)[0], gated_delta_net(fields, frame)
    known: dict[str, MixerLayer] = {"full_attention": attention, "linear_attention": recurrent}
    return by_kind(fields, frame, "layer_types", kinds, known)


def bamba_mixers(fields: Fields, frame: Frame, style: AttentionStyle) -> list[MixerLayer]:
    """Attention where ``attn_layer_indices`` says, Mamba-2 elsewhere."""
    attention = set(fields.numbers("attn_layer_indices") or ())
    kinds = ["attention" if i in attention else "mamba" for i in range(frame.layers)]
    return _mamba2_or_attention(fields, frame, style, kinds, "attn_layer_indices")


def granite_mixers(fields: Fields, frame: Frame, style: AttentionStyle) -> list[MixerLayer]:
    """Attention or Mamba-2, as ``layer_types`` says."""
    kinds = fields.words("layer_types") or fields.words("layers_block_type")
    if kinds is None:
        raise fields.wrong("layer_types", "is missing", fix="It lists 'mamba' or 'attention' for every layer.")
    fields.value("layers_block_type")
    return _mamba2_or_attention(fields, frame, style, kinds, "layer_types")


def _mamba2_or_attention(
    fields: Fields, frame: Frame, style: AttentionStyle, kinds: list[str], name: str
) -> list[MixerLayer]:
    attention, mamba = grouped_attention(fields, frame, style)[0], mamba2(fields, frame, MAMBA2_PLAIN)
    # transformers 5 renamed the two kinds; both spellings are in circulation
    known: dict[str, MixerLayer] = {"attention": attention, "full_attention": attention}
    known |= {"mamba": mamba, "linear_attention": mamba}
    return by_kind(fields, frame, name, kinds, known)


def jamba_mixers(fields: Fields, frame: Frame) -> list[MixerLayer]:
    """Attention in one layer of ``attn_layer_period``, Mamba in the others."""
    period = fields.size("attn_layer_period", default=8, most=MOST_LAYERS)
    offset = fields.size("attn_layer_offset", default=4, least=0, most=MOST_LAYERS)
    attention, mamba = (
        grouped_attention(fields, frame, AttentionStyle(kv_heads=8))[0],
        mamba1(fields, frame, MAMBA_JAMBA),
    )
    return [attention if i % period == offset else mamba for i in range(frame.layers)]


def granite_hybrid_mlps(fields: Fields, frame: Frame) -> list[MlpLayer]:
    """Granite 4: experts beside a shared block; with no experts the shared block is all there is."""
    shared = fields.size("shared_intermediate_size")
    if fields.size("num_local_experts", default=0, least=0) == 0:
        fields.value("num_experts_per_tok")
        fields.value("intermediate_size")
        return [DenseMlp(intermediate=shared)] * frame.layers
    style = ExpertStyle(
        experts=("num_local_experts",), width="intermediate_size", shared=shared_width("shared_intermediate_size")
    )
    return [expert_mlp(fields, frame, style)] * frame.layers


# --- Nemotron-H: one block per layer, either a mixer or an MLP -------------------------------------------------------

NEMOTRON_KINDS = {"M": "linear_attention", "*": "full_attention", "-": "mlp", "E": "moe", "mamba": "linear_attention",
                  "attention": "full_attention"}  # fmt: skip


def nemotron_pattern(fields: Fields) -> list[str]:
    """The kind of every layer, from ``hybrid_override_pattern`` or ``layers_block_type``."""
    name = "hybrid_override_pattern" if fields.has("hybrid_override_pattern") else "layers_block_type"
    spelled = fields.word(name) if name == "hybrid_override_pattern" else fields.words(name)
    if not spelled or len(spelled) > MOST_LAYERS:
        raise fields.wrong(name, "is missing or too long", fix="It says M, *, - or E for every layer.")
    kinds = [NEMOTRON_KINDS.get(kind, kind) for kind in spelled]
    for kind in kinds:
        if kind not in NEMOTRON_KINDS.values():
            raise fields.wrong(name, f"has '{kind[:20]}', which is not one of M, *, - and E")
    return kinds


def nemotron_kinds(fields: Fields, frame: Frame) -> list[str]:
    """The pattern, as long as the model is deep."""
    kinds = nemotron_pattern(fields)
    same_length(fields, "hybrid_override_pattern", kinds, frame)
    return kinds


def nemotron_mixers(fields: Fields, frame: Frame, style: AttentionStyle) -> list[MixerLayer]:
    """Mamba-2 or attention; nothing in the layers that are feed-forward blocks."""
    attention, mamba = grouped_attention(fields, frame, style)[0], mamba2(fields, frame, MAMBA2_NEMOTRON)
    known = {"full_attention": attention, "linear_attention": mamba, "mlp": None, "moe": None}
    return [known[kind] for kind in nemotron_kinds(fields, frame)]


def nemotron_mlps(fields: Fields, frame: Frame) -> list[MlpLayer]:
    """Ungated blocks (squared ReLU); experts may work in a narrower latent space."""
    kinds = nemotron_kinds(fields, frame)
    blocks: dict[str, MlpLayer] = {}
    if "mlp" in kinds:
        blocks["mlp"] = dense_mlp(fields, frame, MlpStyle(gated=False, bias=("mlp_bias", False)))[0]
    if "moe" in kinds:
        blocks["moe"] = nemotron_experts(fields, frame)
    return [blocks.get(kind) for kind in kinds]


def nemotron_experts(fields: Fields, frame: Frame) -> MlpLayer:
    """Nemotron 3: shared experts at full width, routed ones behind a projection where ``moe_latent_size`` is set."""
    style = ExpertStyle(
        experts=("n_routed_experts",),
        gated=False,
        router_bias=True,
        shared=lambda given: (
            given.size("n_shared_experts", default=1, least=0)
            * given.size("moe_shared_expert_intermediate_size", default=0, least=0)
        ),
    )
    fields.expect("mlp_bias", (False,))  # no released model has biased experts
    experts = expert_mlp(fields, frame, style)
    return experts.model_copy(update={"latent": fields.optional_size("moe_latent_size")})
