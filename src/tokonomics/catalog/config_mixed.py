"""Decoders whose layers differ from one another in heads, widths or parts: Gemma 4, MiMo-V2, Step 3.7, Nemotron NAS.

Shapes follow transformers 5.22 (``gemma4``, ``mimo_v2_flash``, ``step3p7``) and, for ``nemotron-nas``, the
``modeling_decilm.py`` of nvidia/Llama-3_3-Nemotron-Super-49B-v1.
"""

from tokonomics.catalog.config_fields import Fields
from tokonomics.catalog.config_layers import (
    MOST_LAYERS,
    AttentionStyle,
    ExpertStyle,
    Frame,
    MixerLayer,
    MlpLayer,
    by_kind,
    expert_mlp,
    head_shape,
    is_on,
    mixture,
    same_length,
    shared_width,
    sparse_after_first,
    windows_by_type,
)
from tokonomics.catalog.layers import DenseMlp, GroupedAttention

SLIDING, FULL = "sliding_attention", "full_attention"

# --- Gemma 4 --------------------------------------------------------------------------------------------------------


def gemma4_mixers(fields: Fields, frame: Frame) -> list[MixerLayer]:
    """Sliding layers, and full ones with heads of their own; the last layers may read the keys of others."""
    heads, kv_heads, head_dim = head_shape(fields, frame, AttentionStyle(heads=8, kv_heads=4, head_dim=256))
    shared = fields.flag("attention_k_eq_v", False)
    wide = fields.size("global_head_dim", default=512, most=1 << 16)
    few = fields.optional_size("num_global_key_value_heads", most=1 << 16)
    biased = fields.flag("attention_bias", False)
    pattern = [FULL if (i + 1) % 6 == 0 else SLIDING for i in range(frame.layers)]
    windows = windows_by_type(fields, frame, 512, pattern)
    own = frame.layers - _borrowing(fields, frame)

    def layer(window: int | None, borrows: bool) -> GroupedAttention:
        width = head_dim if window else wide
        groups = (few or kv_heads) if shared and not window else kv_heads
        bias = ((heads + (0 if borrows else 2 * groups)) * width + frame.hidden) * biased
        return GroupedAttention(
            heads=heads,
            kv_heads=groups,
            head_dim=width,
            window=window,
            bias_elements=bias,
            norm_elements=width if borrows else 2 * width,
            keys_are_values=shared and not window,
            reads_other=borrows,
        )

    marks = [(window, i >= own) for i, window in enumerate(windows)]
    layers = {mark: layer(*mark) for mark in set(marks)}
    return [layers[mark] for mark in marks]


def _borrowing(fields: Fields, frame: Frame) -> int:
    """How many layers, the last ones, have no keys and values of their own."""
    return fields.size("num_kv_shared_layers", default=0, least=0, most=frame.layers)


def gemma4_mlps(fields: Fields, frame: Frame) -> list[MlpLayer]:
    """A dense block, beside it experts where they are enabled, and an input of its own for each layer (E2B, E4B)."""
    width = fields.size("intermediate_size")
    wider = 2 if fields.flag("use_double_wide_mlp", False) else 1
    side = layer_input(fields)
    if fields.flag("enable_moe_block", False):
        if side:
            raise fields.wrong("hidden_size_per_layer_input", "is not supported beside experts")
        style = ExpertStyle(
            experts=("num_experts",), active=("top_k_experts",), shared=shared_width("intermediate_size")
        )
        experts = expert_mlp(fields, frame, style)
        scales = experts.experts + frame.hidden  # one for every expert, one for every element of the router's input
        return [experts.model_copy(update={"router_bias_elements": scales})] * frame.layers
    for unused in ("num_experts", "top_k_experts", "moe_intermediate_size"):
        fields.value(unused)
    plain = DenseMlp(intermediate=width, side=side, bias_elements=frame.hidden if side else 0)
    double = plain.model_copy(update={"intermediate": width * wider})
    own = frame.layers - _borrowing(fields, frame)
    return [plain if i < own else double for i in range(frame.layers)]


def layer_input(fields: Fields) -> int:
    return fields.size("hidden_size_per_layer_input", default=256, least=0)


def gemma4_norms(fields: Fields) -> int:
    """Four around attention and the feed-forward block, three more where experts stand beside it."""
    return 7 if fields.flag("enable_moe_block", False) else 4


def layer_input_table(fields: Fields, frame: Frame) -> int:
    """Parameters of the embedding that gives every token an input for each layer."""
    rows = fields.size("vocab_size_per_layer_input", default=frame.vocab)
    return rows * frame.layers * layer_input(fields)


# --- MiMo-V2 --------------------------------------------------------------------------------------------------------


def mimo_v2_mixers(fields: Fields, frame: Frame) -> list[MixerLayer]:
    """Full or sliding, as ``hybrid_layer_pattern`` says (0 or 1); values are narrower than keys; sinks."""
    windows = fields.numbers("hybrid_layer_pattern") or [0] * frame.layers
    same_length(fields, "hybrid_layer_pattern", windows, frame)
    for unused in ("sliding_window_size", "attention_chunk_size"):
        fields.optional_size(unused)
    heads, kv_heads, head_dim = head_shape(fields, frame, AttentionStyle())
    value_dim = fields.size("v_head_dim", default=head_dim, most=1 << 16)
    biased = fields.flag("attention_bias", False)

    def layer(window: int | None, heads: int, kv_heads: int, widths: tuple[int, int], sinks: bool) -> GroupedAttention:
        key, value = widths
        return GroupedAttention(
            heads=heads,
            kv_heads=kv_heads,
            head_dim=key,
            value_dim=value,
            window=window,
            bias_elements=(heads * key + kv_heads * (key + value)) * biased,
            norm_elements=heads * sinks,
        )

    full = layer(None, heads, kv_heads, (head_dim, value_dim), fields.flag("add_full_attention_sink_bias", False))
    sliding = layer(
        fields.size("sliding_window", default=128),
        fields.size("swa_num_attention_heads", default=heads, most=1 << 16),
        fields.size("swa_num_key_value_heads", default=kv_heads, most=1 << 16),
        (
            fields.size("swa_head_dim", default=head_dim, most=1 << 16),
            fields.size("swa_v_head_dim", default=value_dim, most=1 << 16),
        ),
        fields.flag("add_swa_attention_sink_bias", False),
    )
    return [sliding if slides else full for slides in windows]


# --- Step 3.7 -------------------------------------------------------------------------------------------------------


def step_mixers(fields: Fields, frame: Frame) -> list[MixerLayer]:
    """Full or sliding layers, the latter perhaps with more heads; a gate for each head, from the hidden width."""
    other = fields.child("attention_other_setting")
    style = AttentionStyle(head_dim=128, qk_norm="head", qkv_bias=("attention_bias", False))
    heads, kv_heads, head_dim = head_shape(fields, frame, style)
    more = fields.optional_size("num_sliding_attention_heads", most=1 << 16)
    if other is not None:
        more = more or other.optional_size("num_attention_heads", most=1 << 16)
    # Lists go on for the draft layers.
    kinds = (fields.words("layer_types") or [FULL] * frame.layers)[: frame.layers]
    window = fields.optional_size("sliding_window")
    if SLIDING in kinds and window is None:
        raise fields.wrong("sliding_window", "is missing, and layer_types has sliding layers")
    biased = is_on(fields, style.qkv_bias)

    def layer(heads: int, window: int | None) -> GroupedAttention:
        gates = heads * frame.hidden
        return GroupedAttention(
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            window=window,
            bias_elements=((heads + 2 * kv_heads) * head_dim + frame.hidden) * biased,
            norm_elements=2 * head_dim + gates,
        )

    known: dict[str, MixerLayer] = {FULL: layer(heads, None), SLIDING: layer(more or heads, window)}
    return by_kind(fields, frame, "layer_types", kinds, known)


def step_sparse(fields: Fields, frame: Frame) -> list[bool]:
    """From the fourth layer on, or as ``moe_layers_enum`` ("3,4,5"), or as DeepSeek's fields say."""
    listed = fields.value("moe_layers_enum")
    if isinstance(listed, str):
        numbers = {int(part) for part in listed.split(",") if part.strip().isdigit()}
        return [i in numbers for i in range(frame.layers)]
    if fields.has("mlp_layer_types") or fields.has("first_k_dense_replace") or fields.has("moe_layer_freq"):
        return sparse_after_first(fields, frame)
    return [i >= 3 for i in range(frame.layers)]


STEP_EXPERTS = ExpertStyle(
    experts=("num_experts", "n_routed_experts", "moe_num_experts", "num_local_experts"),
    active=("num_experts_per_tok", "moe_top_k"),
    sparse=step_sparse,
    shared=lambda fields: fields.size("share_expert_dim", "share_expert_dims", default=1280, least=0),
    router_bias=True,
)


def step_mlps(fields: Fields, frame: Frame) -> list[MlpLayer]:
    fields.expect("n_shared_experts", (1,))
    return mixture(fields, frame, STEP_EXPERTS)


# --- Nemotron NAS: every layer has parts of its own, or none --------------------------------------------------------


def _blocks(fields: Fields, frame: Frame, part: str) -> list[Fields]:
    """One part (attention or ffn) of every layer."""
    given = fields.value("block_configs")
    if not isinstance(given, list) or not all(isinstance(block, dict) for block in given):
        raise fields.wrong("block_configs", "is missing", fix="It lists the attention and ffn of every layer.")
    same_length(fields, "block_configs", given, frame)
    found: list[Fields] = []
    for i, block in enumerate(given):
        one = Fields(block, fields.where, f"{fields.path}block_configs.{i}.").child(part)
        if one is None:
            raise fields.wrong(f"block_configs.{i}.{part}", "is missing")
        if one.flag("replace_with_linear", False):
            raise one.wrong("replace_with_linear", "is not supported")
        found.append(one)
    return found


def nas_mixers(fields: Fields, frame: Frame) -> list[MixerLayer]:
    """Grouped attention, each layer with groups of its own or none at all."""
    heads = fields.size("num_attention_heads", most=1 << 16)
    fields.value("num_key_value_heads")
    fields.expect("attention_bias", (False,))
    head_dim = fields.size("head_dim", default=frame.hidden // heads, most=1 << 16)
    layers: dict[tuple[int, int | None], MixerLayer] = {}
    found: list[MixerLayer] = []
    for block in _blocks(fields, frame, "attention"):
        if block.flag("no_op", False):
            found.append(None)
            continue
        size = block.optional_size("n_heads_in_group", most=heads)
        groups = block.optional_size("num_key_value_heads", most=heads) or (heads // size if size else None)
        if groups is None or heads % groups:
            raise block.wrong("n_heads_in_group", f"is missing or does not divide the {heads} attention heads")
        window = block.optional_size("window_length")
        if (groups, window) not in layers:
            layers[groups, window] = GroupedAttention(
                heads=heads, kv_heads=groups, head_dim=head_dim, window=window, norm_elements=frame.hidden
            )
        found.append(layers[groups, window])
    return found


def nas_mlps(fields: Fields, frame: Frame) -> list[MlpLayer]:
    """Gated blocks; ``ffn_mult`` is of two thirds of the hidden width, rounded up to a multiple of 256."""
    fields.value("intermediate_size")
    fields.expect("mlp_bias", (False,))
    layers: dict[int, MlpLayer] = {}
    found: list[MlpLayer] = []
    for block in _blocks(fields, frame, "ffn"):
        if block.flag("no_op", False):
            found.append(None)
            continue
        width = block.optional_size("intermediate_size")
        if width is None:
            share = block.value("ffn_mult")
            if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 < share <= MOST_LAYERS:
                raise block.wrong("ffn_mult", "needs a number above 0")
            width = -(-int(2 * share * frame.hidden / 3) // 256) * 256
        layers.setdefault(width, DenseMlp(intermediate=width, bias_elements=frame.hidden))
        found.append(layers[width])
    return found
