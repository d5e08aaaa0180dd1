"""Build the layers that no row of ``data/families.toml`` can describe, because only one family has them.

Shapes follow transformers 5.22: ``gemma4``, ``falcon``, ``nemotron_h``, ``deepseek_v32`` (DeepSeek Sparse Attention,
arXiv:2512.02556), ``glm_moe_dsa``, ``minimax_m3_vl``, ``deepseek_v4``, Kimi K3's; and, for ``nemotron-nas``, the
``modeling_decilm.py`` of nvidia/Llama-3_3-Nemotron-Super-49B-v1.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

from tokonomics.catalog.config_families import LARGEST, Family, Fields
from tokonomics.catalog.config_layers import (
    MOST_HEADS,
    MOST_LAYERS,
    RECURRENT,
    Frame,
    HeadShape,
    MixerLayer,
    MlpLayer,
    attention_layer,
    by_kind,
    dense_block,
    expert_block,
    feed_forward,
    grouped_attention,
    head_shape,
    latent_attention,
    layer_windows,
    marked,
    same_length,
)
from tokonomics.catalog.layers import CompressedAttention, DenseMlp, GroupedAttention, Indexer, LatentAttention, MoeMlp

Mixers = Callable[[Fields, Frame, Family], list[MixerLayer]]
Mlps = Callable[[Fields, Frame, Family], list[MlpLayer]]


class Around(NamedTuple):
    """What a family has around its layers."""

    norms: int  # vectors of hidden width in a layer
    once: int = 0  # small parameters after the last layer
    tables: int = 0  # parameters of additional embeddings


def layers_of(fields: Fields, frame: Frame, family: Family) -> tuple[list[tuple[MixerLayer, MlpLayer]], Around]:
    """Return what mixes tokens in every layer, the feed-forward block after it, and what is around them."""
    style, attend = family.recurrent, MIXERS[family.mixers]
    full = None if style is None or family.mixers == "nemotron" else marked(fields, frame, style.full)
    mixers = attend(fields, frame, family)
    if style is not None and full is not None:
        recurrent = RECURRENT[style.kind](fields, frame, style)
        if family.side_by_side:
            mlps = FEED_FORWARD[family.feed_forward](fields, frame, family)
            pairs = ((layer, (recurrent, mlp)) for layer, mlp in zip(mixers, mlps, strict=True))
            return [entry for attention, other in pairs for entry in ((attention, None), other)], Around(family.norms)
        mixers = [mixer if sees_all else recurrent for mixer, sees_all in zip(mixers, full, strict=True)]
    mlps = FEED_FORWARD[family.feed_forward](fields, frame, family)
    around = AROUND[family.around](fields, frame) if family.around else Around(family.norms)
    return list(zip(mixers, mlps, strict=True)), around


def nothing(fields: Fields, frame: Frame, family: Family) -> list[Any]:
    """Return no attention, or no feed-forward block, for every layer."""
    return [None] * frame.layers


# --- LongCat-Flash: two of everything in a layer, and experts beside the first feed-forward block -------------------


def longcat_mixers(fields: Fields, frame: Frame, family: Family) -> list[MixerLayer]:
    """Read latent attention, twice in every layer."""
    return latent_attention(fields, frame, family) * 2


def longcat_mlps(fields: Fields, frame: Frame, family: Family) -> list[MlpLayer]:
    """Read experts, of which some are the identity: a token's real ones are fewer in the mean."""
    width, experts = fields.size("ffn_hidden_size"), fields.size("n_routed_experts", most=MOST_HEADS)
    idle = fields.size("zero_expert_num", default=0, least=0, most=MOST_HEADS)
    active = fields.size("moe_topk", most=experts) * experts / (experts + idle)
    mixed = MoeMlp(
        experts=experts,
        active_experts=max(1, round(active)),
        intermediate=fields.size("expert_ffn_hidden_size"),
        shared_intermediate=width,
        router_bias_elements=experts + idle * (1 + frame.hidden),  # with the rows of those that do nothing
    )
    dense: MlpLayer = DenseMlp(intermediate=width)
    return [mixed, dense] * frame.layers


# --- Falcon ---------------------------------------------------------------------------------------------------------


def falcon_attention(fields: Fields, frame: Frame, family: Family) -> list[MixerLayer]:
    """Read Falcon: grouped heads in the new decoder, one key/value head with ``multi_query``, else one per head."""
    heads, _, head_dim, _ = head_shape(fields, frame, replace(family.attention, grouped=False))
    groups = fields.size("num_kv_heads", "n_head_kv", default=heads, most=MOST_HEADS)
    multi_query, grouped = fields.flag("multi_query", True), fields.flag("new_decoder_architecture", False)
    kv_heads = groups if grouped else 1 if multi_query else heads
    if heads % kv_heads:
        raise fields.wrong("num_kv_heads", f"is {kv_heads}, which does not divide the {heads} attention heads")
    return [attention_layer(fields, frame, family.attention, HeadShape(heads, kv_heads, head_dim))] * frame.layers


def falcon_around(fields: Fields, frame: Frame) -> Around:
    """Count one norm before parallel attention and MLP; two in the new decoder or if they run one after the other."""
    grouped, parallel = fields.flag("new_decoder_architecture", False), fields.flag("parallel_attn", True)
    given = fields.optional_size("num_ln_in_parallel_attn", most=2)
    return Around((given or 2) if grouped else 1 if parallel else 2)


def bloom_around(fields: Fields, frame: Frame) -> Around:
    """Count two norms, and one on the embedding with its bias."""
    return Around(2, once=2 * frame.hidden)


# --- LFM2 -----------------------------------------------------------------------------------------------------------


def lfm2_mlps(fields: Fields, frame: Frame, family: Family) -> list[MlpLayer]:
    """Read gated blocks; the given width is cut to two thirds and rounded up, unless the config says not to."""
    width = fields.size("block_ff_dim", "intermediate_size")
    multiple = fields.size("block_multiple_of", default=256)
    if fields.flag("block_auto_adjust_ff_dim", True):
        scaled = int(fields.ratio("block_ffn_dim_multiplier", 64, 1.0) * int(2 * width / 3))
        width = -(-scaled // multiple) * multiple
    return [DenseMlp(intermediate=width)] * frame.layers


# --- Gemma 4 --------------------------------------------------------------------------------------------------------


def gemma4_mixers(fields: Fields, frame: Frame, family: Family) -> list[MixerLayer]:
    """Read sliding layers, and full ones with other heads; the last layers may read the keys of others."""
    heads, kv_heads, head_dim, _ = head_shape(fields, frame, family.attention)
    shared = fields.flag("attention_k_eq_v", False)
    wide = fields.size("global_head_dim", default=512, most=MOST_HEADS)
    few = fields.optional_size("num_global_key_value_heads", most=MOST_HEADS)
    biased = fields.flag("attention_bias", False)
    windows = layer_windows(fields, frame, family.windows)
    own = frame.layers - _borrowing(fields, frame)

    @cache
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

    return [layer(window, i >= own) for i, window in enumerate(windows)]


def _borrowing(fields: Fields, frame: Frame) -> int:
    """Count the last layers, which have no keys and values of their own."""
    return fields.size("num_kv_shared_layers", default=0, least=0, most=frame.layers)


def gemma4_mlps(fields: Fields, frame: Frame, family: Family) -> list[MlpLayer]:
    """Read a dense block, experts beside it if enabled, and a separate input for each layer (E2B, E4B)."""
    width = fields.size("intermediate_size")
    wider = 2 if fields.flag("use_double_wide_mlp", False) else 1
    side = _layer_input(fields)
    if fields.flag("enable_moe_block", False):
        if side:
            raise fields.wrong("hidden_size_per_layer_input", "is not supported beside experts")
        experts = expert_block(fields, frame, family.blocks)
        scales = experts.experts + frame.hidden  # one for every expert, one for every element of the router's input
        return [experts.model_copy(update={"router_bias_elements": scales})] * frame.layers
    plain = DenseMlp(intermediate=width, side=side, bias_elements=frame.hidden if side else 0)
    double = plain.model_copy(update={"intermediate": width * wider})
    own = frame.layers - _borrowing(fields, frame)
    return [plain if i < own else double for i in range(frame.layers)]


def _layer_input(fields: Fields) -> int:
    return fields.size("hidden_size_per_layer_input", default=256, least=0)


def gemma4_around(fields: Fields, frame: Frame) -> Around:
    """Count four norms around attention and the feed-forward block, three more with experts.

    An embedding gives every token an input for each layer, behind a norm.
    """
    rows, side = fields.size("vocab_size_per_layer_input", default=frame.vocab), _layer_input(fields)
    norms = 7 if fields.flag("enable_moe_block", False) else 4
    return Around(norms, once=side, tables=rows * frame.layers * side)


# --- Nemotron NAS: every layer has its own parts, or none -----------------------------------------------------------


def _blocks(fields: Fields, frame: Frame, part: str) -> list[Fields | None]:
    """Return one part (attention or ffn) of every layer; None where a layer has none."""
    given = fields.value("block_configs")
    if not isinstance(given, list) or not all(isinstance(block, dict) for block in given):
        raise fields.wrong("block_configs", "is missing", fix="It lists the attention and ffn of every layer.")
    same_length(fields, "block_configs", given, frame)
    found: list[Fields | None] = []
    for i, block in enumerate(given):
        one = Fields(block, fields.where, f"{fields.path}block_configs.{i}.").child(part)
        if one is None:
            raise fields.wrong(f"block_configs.{i}.{part}", "is missing")
        if one.flag("replace_with_linear", False):
            raise one.wrong("replace_with_linear", "is not supported")
        found.append(None if one.flag("no_op", False) else one)
    return found


def nas_mixers(fields: Fields, frame: Frame, family: Family) -> list[MixerLayer]:
    """Read grouped attention, in which each layer has its own groups or none at all."""
    heads = fields.size("num_attention_heads", most=MOST_HEADS)
    head_dim = fields.size("head_dim", default=frame.hidden // heads, most=MOST_HEADS)

    @cache
    def layer(groups: int, window: int | None) -> GroupedAttention:
        return GroupedAttention(
            heads=heads, kv_heads=groups, head_dim=head_dim, window=window, norm_elements=frame.hidden
        )

    def attention(block: Fields) -> GroupedAttention:
        size = block.optional_size("n_heads_in_group", most=heads)
        groups = block.optional_size("num_key_value_heads", most=heads) or (heads // size if size else None)
        if groups is None or heads % groups:
            raise block.wrong("n_heads_in_group", f"is missing or does not divide the {heads} attention heads")
        return layer(groups, block.optional_size("window_length"))

    return [attention(block) if block else None for block in _blocks(fields, frame, "attention")]


def nas_mlps(fields: Fields, frame: Frame, family: Family) -> list[MlpLayer]:
    """Read gated blocks; ``ffn_mult`` is of two thirds of the hidden width, rounded up to a multiple of 256."""

    @cache
    def layer(width: int) -> DenseMlp:
        return DenseMlp(intermediate=width, bias_elements=frame.hidden)

    def feed(block: Fields) -> DenseMlp:
        if (width := block.optional_size("intermediate_size")) is not None:
            return layer(width)
        return layer(-(-int(2 * block.ratio("ffn_mult", MOST_LAYERS) * frame.hidden / 3) // 256) * 256)

    return [feed(block) if block else None for block in _blocks(fields, frame, "ffn")]


# --- Nemotron-H: one block per layer, either a mixer or an MLP -------------------------------------------------------

NEMOTRON_KINDS = {"M": "linear_attention", "*": "full_attention", "-": "mlp", "E": "moe", "mamba": "linear_attention",
                  "attention": "full_attention"}  # fmt: skip


def nemotron_kinds(fields: Fields, frame: Frame | None = None) -> list[str]:
    """Return the kind of every layer, from ``hybrid_override_pattern`` or ``layers_block_type``; check their number."""
    name = "hybrid_override_pattern" if fields.has("hybrid_override_pattern") else "layers_block_type"
    spelled = fields.word(name) if name == "hybrid_override_pattern" else fields.words(name)
    if not spelled or len(spelled) > MOST_LAYERS:
        raise fields.wrong(name, "is missing or too long", fix="It says M, *, - or E for every layer.")
    kinds = [NEMOTRON_KINDS.get(kind, kind) for kind in spelled]
    for kind in kinds:
        if kind not in NEMOTRON_KINDS.values():
            raise fields.wrong(name, f"has '{kind[:20]}', which is not one of M, *, - and E")
    if frame is not None:
        same_length(fields, "hybrid_override_pattern", kinds, frame)
    return kinds


def nemotron_mixers(fields: Fields, frame: Frame, family: Family) -> list[MixerLayer]:
    """Read Mamba-2 or attention; nothing in the layers that are feed-forward blocks."""
    assert family.recurrent is not None
    (attention, *_) = grouped_attention(fields, frame, family)
    mamba = RECURRENT[family.recurrent.kind](fields, frame, family.recurrent)
    known = {"full_attention": attention, "linear_attention": mamba, "mlp": None, "moe": None}
    return [known[kind] for kind in nemotron_kinds(fields, frame)]


def nemotron_mlps(fields: Fields, frame: Frame, family: Family) -> list[MlpLayer]:
    """Read ungated blocks (squared ReLU); shared experts at full width, routed ones maybe in a latent (Nemotron 3)."""
    kinds = nemotron_kinds(fields, frame)
    blocks: dict[str, MlpLayer] = {}
    if "mlp" in kinds:
        blocks["mlp"] = dense_block(fields, frame, family.blocks)
    if "moe" in kinds:
        fields.expect({"mlp_bias": [False]})  # no released model has biased experts
        blocks["moe"] = expert_block(fields, frame, family.blocks)
    return [blocks.get(kind) for kind in kinds]


# --- DeepSeek-V3.2 and GLM-5: latent attention to the tokens that an indexer chooses --------------------------------


def indexed_latent_attention(fields: Fields, frame: Frame, family: Family) -> list[MixerLayer]:
    """Read latent attention with an indexer; GLM-5.2's "shared" layers use the choice of the layer before."""
    (plain, *_) = latent_attention(fields, frame, family)
    assert isinstance(plain, LatentAttention)
    heads, head_dim = fields.size("index_n_heads", most=MOST_HEADS), fields.size("index_head_dim", most=MOST_HEADS)
    topk = fields.size("index_topk")
    indexer = Indexer(
        heads=heads,
        head_dim=head_dim,
        query_input=plain.query_rank or frame.hidden,
        hidden_outputs=head_dim + heads,
        small_parameters=2 * head_dim,  # a layer norm of the keys, with its bias
    )
    known: dict[str, MixerLayer] = {
        "full": plain.model_copy(update={"topk": topk, "indexer": indexer}),
        "shared": plain.model_copy(update={"topk": topk}),
    }
    kinds = fields.words("indexer_types") or ["full"] * frame.layers
    return by_kind(fields, frame, "indexer_types", kinds, known)


# --- MiniMax-M3: grouped attention to blocks of tokens --------------------------------------------------------------


def block_sparse_attention(fields: Fields, frame: Frame, family: Family) -> list[MixerLayer]:
    """Read grouped attention; sparse layers attend to the blocks that a small indexer scores highest."""
    (full, *_) = grouped_attention(fields, frame, family)
    assert isinstance(full, GroupedAttention)
    sparse = fields.child("sparse_attention_config")
    if sparse is None or not sparse.flag("use_sparse_attention", True):
        return [full] * frame.layers
    in_use = sparse.numbers("sparse_attention_freq") or [1] * frame.layers
    same_length(sparse, "sparse_attention_freq", in_use, frame)
    without_values = sparse.numbers("sparse_disable_index_value") or in_use
    if any(used and not without for used, without in zip(in_use, without_values, strict=False)):
        raise sparse.wrong("sparse_disable_index_value", "asks for an index with values, which is not supported")
    head_dim = sparse.size("sparse_index_dim", most=MOST_HEADS)
    block = sparse.size("sparse_block_size", most=1 << 20)
    chosen = full.model_copy(
        update={
            "topk": block * sparse.size("sparse_topk_blocks", most=MOST_HEADS),
            "indexer": Indexer(
                heads=sparse.size("sparse_num_index_heads", most=MOST_HEADS),
                head_dim=head_dim,
                query_input=frame.hidden,
                hidden_outputs=head_dim,
                small_parameters=2 * head_dim,  # norms of queries and keys
                key_bytes=2.0,  # stored in 16 bits, as the model computes them
            ),
        }
    )
    return [chosen if used else full for used in in_use]


# --- DeepSeek-V4: one vector as key and value, for every fourth or 128th token --------------------------------------


def compressed_attention(fields: Fields, frame: Frame, family: Family) -> list[MixerLayer]:
    """Read a window of tokens, and rows compressed by the layer's ratio: 0 (none), 4 (an indexer chooses) or 128 (all).

    ``compress_ratios`` continues for the draft layers, whose entries are dropped.
    """
    heads, head_dim = fields.size("num_attention_heads", most=MOST_HEADS), fields.size("head_dim", most=MOST_HEADS)
    query_rank = fields.size("q_lora_rank")
    ratios = (fields.numbers("compress_ratios") or _ratios_by_word(fields))[: frame.layers]
    same_length(fields, "compress_ratios", ratios, frame)
    # Norms of queries and keys, a sink for each head, and the biases and scales of two hyper-connections.
    small = query_rank + head_dim + heads + 2 * (_hyper_connection(fields)[1] + 3)
    plain = CompressedAttention(
        heads=heads,
        query_rank=query_rank,
        head_dim=head_dim,
        rope_dim=fields.size("qk_rope_head_dim", default=min(64, head_dim), least=0, most=head_dim),
        every=None,
        last=fields.size("sliding_window"),
        output_groups=fields.size("o_groups", most=MOST_HEADS),
        output_rank=fields.size("o_lora_rank"),
        norm_elements=small,
    )
    known: dict[int, MixerLayer] = {ratio: _compressed(fields, plain, ratio) for ratio in set(ratios)}
    return [known[ratio] for ratio in ratios]


def _ratios_by_word(fields: Fields) -> list[int]:
    """Return the same from ``layer_types`` and ``compress_rates``, as transformers 5 writes them."""
    rates = fields.child("compress_rates") or Fields({}, fields.where)
    known = {
        "sliding_attention": 0,
        "compressed_sparse_attention": rates.size("compressed_sparse_attention", default=4),
        "heavily_compressed_attention": rates.size("heavily_compressed_attention", default=128),
    }
    return [known.get(word, LARGEST) for word in fields.words("layer_types") or ()]


_CHOSEN_FROM = 4  # the ratio whose rows overlap and are chosen by an indexer; transformers, ``DeepseekV4CSACompressor``


def _compressed(fields: Fields, plain: CompressedAttention, ratio: int) -> MixerLayer:
    """Return the layer whose rows each represent ``ratio`` tokens."""
    if ratio == 0:
        return plain
    chosen = ratio == _CHOSEN_FROM
    # A learned bias for each position in a row, twice if rows overlap, and the norm of the row.
    small = plain.norm_elements + (ratio * (2 if chosen else 1) + 1) * plain.head_dim
    update: dict[str, object] = {"every": ratio, "norm_elements": small}
    if chosen:
        heads, head_dim = fields.size("index_n_heads", most=MOST_HEADS), fields.size("index_head_dim", most=MOST_HEADS)
        update |= {
            "overlaps": True,
            "topk": fields.size("index_topk"),
            "indexer": Indexer(
                heads=heads,
                head_dim=head_dim,
                query_input=plain.query_rank,
                hidden_outputs=4 * head_dim + heads,  # keys and their gates, twice for the overlap; weights
                small_parameters=(2 * ratio + 1) * head_dim,
                every=ratio,
            ),
        }
    return plain.model_copy(update=update)


def deepseek_v4_around(fields: Fields, frame: Frame) -> Around:
    """Count two norms and two hyper-connections that read all streams of a layer; streams join before the head."""
    streams, rows = _hyper_connection(fields)
    return Around(2 + 2 * rows * streams, once=streams * streams * frame.hidden + streams + 1)


def _hyper_connection(fields: Fields) -> tuple[int, int]:
    """Return its streams, and its outputs: weights in and out, and a matrix between them."""
    streams = fields.size("hc_mult", default=4, most=64)
    return streams, (2 + streams) * streams


# --- Kimi K3 --------------------------------------------------------------------------------------------------------


def kimi_around(fields: Fields, frame: Frame) -> Around:
    """Count two norms. With attention residuals, every layer has two more and two vectors that score the blocks before,
    and a norm and a vector join the blocks after the last layer."""
    return Around(2) if fields.optional_size("attn_res_block_size") is None else Around(6, once=2 * frame.hidden)


MIXERS: dict[str, Mixers] = {
    "grouped": grouped_attention,
    "latent": latent_attention,
    "indexed": indexed_latent_attention,
    "block_sparse": block_sparse_attention,
    "compressed": compressed_attention,
    "falcon": falcon_attention,
    "longcat": longcat_mixers,
    "gemma4": gemma4_mixers,
    "nas": nas_mixers,
    "nemotron": nemotron_mixers,
    "none": nothing,
}
FEED_FORWARD: dict[str, Mlps] = {
    "blocks": feed_forward,
    "gemma4": gemma4_mlps,
    "lfm2": lfm2_mlps,
    "longcat": longcat_mlps,
    "nas": nas_mlps,
    "nemotron": nemotron_mlps,
    "none": nothing,
}
AROUND: dict[str, Callable[[Fields, Frame], Around]] = {
    "bloom": bloom_around,
    "falcon": falcon_around,
    "gemma4": gemma4_around,
    "deepseek_v4": deepseek_v4_around,
    "kimi": kimi_around,
}
