"""Attention that does not read all it has cached: an indexer's choice of tokens or blocks, and compressed rows.

Shapes follow transformers 5.22: ``deepseek_v32`` (DeepSeek Sparse Attention, arXiv:2512.02556), ``glm_moe_dsa``,
``minimax_m3_vl`` and ``deepseek_v4``.
"""

from tokonomics.catalog.config_fields import Fields
from tokonomics.catalog.config_layers import (
    AttentionStyle,
    ExpertStyle,
    Frame,
    MixerLayer,
    MlpLayer,
    grouped_attention,
    latent_attention,
    mixture,
    same_length,
    shared_count,
)
from tokonomics.catalog.layers import CompressedAttention, GroupedAttention, Indexer, LatentAttention

# --- DeepSeek-V3.2 and GLM-5: latent attention to the tokens that an indexer leaves ---------------------------------


def indexed_latent_attention(fields: Fields, frame: Frame) -> list[MixerLayer]:
    """Latent attention with an indexer; GLM-5.2's "shared" layers use the choice of the layer before."""
    (plain, *_) = latent_attention(fields, frame)
    assert isinstance(plain, LatentAttention)
    heads, head_dim = fields.size("index_n_heads", most=1 << 16), fields.size("index_head_dim", most=1 << 16)
    topk = fields.size("index_topk")
    indexer = Indexer(
        heads=heads,
        head_dim=head_dim,
        query_input=plain.query_rank or frame.hidden,
        hidden_outputs=head_dim + heads,
        small_parameters=2 * head_dim,  # a layer norm of the keys, with its bias
    )
    kinds = fields.words("indexer_types") or ["full"] * frame.layers
    same_length(fields, "indexer_types", kinds, frame)
    known: dict[str, MixerLayer] = {
        "full": plain.model_copy(update={"topk": topk, "indexer": indexer}),
        "shared": plain.model_copy(update={"topk": topk}),
    }
    for kind in kinds:
        if kind not in known:
            raise fields.wrong("indexer_types", f"has '{kind[:40]}', which is neither full nor shared")
    return [known[kind] for kind in kinds]


# --- MiniMax-M3: grouped attention to blocks of tokens --------------------------------------------------------------


def block_sparse_attention(fields: Fields, frame: Frame, style: AttentionStyle) -> list[MixerLayer]:
    """Grouped attention; in the sparse layers to the blocks that a small indexer scores highest."""
    (full, *_) = grouped_attention(fields, frame, style)
    assert isinstance(full, GroupedAttention)
    sparse = fields.child("sparse_attention_config")
    if sparse is None or not sparse.flag("use_sparse_attention", True):
        return [full] * frame.layers
    in_use = sparse.numbers("sparse_attention_freq") or [1] * frame.layers
    same_length(sparse, "sparse_attention_freq", in_use, frame)
    without_values = sparse.numbers("sparse_disable_index_value") or in_use
    if any(used and not without for used, without in zip(in_use, without_values, strict=False)):
        raise sparse.wrong("sparse_disable_index_value", "asks for an index with values, which is not supported")
    heads, head_dim = sparse.size("sparse_num_index_heads", most=1 << 16), sparse.size("sparse_index_dim", most=1 << 16)
    block = sparse.size("sparse_block_size", most=1 << 20)
    chosen = full.model_copy(
        update={
            "topk": block * sparse.size("sparse_topk_blocks", most=1 << 16),
            "indexer": Indexer(
                heads=heads,
                head_dim=head_dim,
                query_input=frame.hidden,
                hidden_outputs=head_dim,
                small_parameters=2 * head_dim,  # norms of queries and keys
                key_bytes=2.0,  # kept as the model computes them, in 16 bits
            ),
        }
    )
    return [chosen if used else full for used in in_use]


# --- DeepSeek-V4: one key that is its value, of every fourth or 128th token -----------------------------------------


def compressed_attention(fields: Fields, frame: Frame) -> list[MixerLayer]:
    """A window of tokens, and rows compressed by the layer's ratio: 0 (none), 4 (an indexer chooses) or 128 (all).

    ``compress_ratios`` goes on for the draft layers, whose entries are dropped.
    """
    heads, head_dim = fields.size("num_attention_heads", most=1 << 16), fields.size("head_dim", most=1 << 16)
    query_rank = fields.size("q_lora_rank")
    fields.expect("num_key_value_heads", (1,))
    fields.expect("attention_bias", (False,))
    ratios = (fields.numbers("compress_ratios") or [])[: frame.layers]
    same_length(fields, "compress_ratios", ratios, frame)
    # Norms of queries and keys, a sink for each head, and the biases and scales of two hyper-connections.
    small = query_rank + head_dim + heads + 2 * (_mixed_rows(fields) + 3)
    plain = CompressedAttention(
        heads=heads,
        query_rank=query_rank,
        head_dim=head_dim,
        every=None,
        last=fields.size("sliding_window"),
        output_groups=fields.size("o_groups", most=1 << 16),
        output_rank=fields.size("o_lora_rank"),
        norm_elements=small,
    )
    known: dict[int, MixerLayer] = {ratio: _compressed(fields, plain, ratio) for ratio in set(ratios)}
    return [known[ratio] for ratio in ratios]


_CHOSEN_FROM = 4  # the ratio whose rows are chosen from, and overlap; transformers, ``DeepseekV4CSACompressor``


def _compressed(fields: Fields, plain: CompressedAttention, ratio: int) -> MixerLayer:
    """The layer with rows of so many tokens each."""
    if ratio == 0:
        return plain
    chosen = ratio == _CHOSEN_FROM
    small = plain.norm_elements + _placed(ratio, plain.head_dim, twice=chosen)
    update: dict[str, object] = {"every": ratio, "norm_elements": small}
    if chosen:
        heads, head_dim = fields.size("index_n_heads", most=1 << 16), fields.size("index_head_dim", most=1 << 16)
        update |= {
            "overlaps": True,
            "topk": fields.size("index_topk"),
            "indexer": Indexer(
                heads=heads,
                head_dim=head_dim,
                query_input=plain.query_rank,
                hidden_outputs=4 * head_dim + heads,  # keys and their gates, twice for the overlap; weights
                small_parameters=_placed(ratio, head_dim, twice=True),
                every=ratio,
            ),
        }
    return plain.model_copy(update=update)


def _placed(ratio: int, head_dim: int, *, twice: bool) -> int:
    """A learned bias for each place in a row, twice where rows overlap, and the norm of the row."""
    return ratio * head_dim * (2 if twice else 1) + head_dim


def hyper_connected(fields: Fields) -> int:
    """Vectors of hidden width in a layer: two norms, and two hyper-connections that read all streams (V4)."""
    return 2 + 2 * _mixed_rows(fields) * fields.size("hc_mult", default=4, most=64)


def _mixed_rows(fields: Fields) -> int:
    """What a hyper-connection makes of ``hc_mult`` streams: weights in and out, and a matrix between them."""
    streams = fields.size("hc_mult", default=4, most=64)
    return (2 + streams) * streams


def joined_streams(fields: Fields, frame: Frame) -> int:
    """Parameters that join the streams of hyper-connections before the LM head."""
    streams = fields.size("hc_mult", default=4, most=64)
    return streams * streams * frame.hidden + streams + 1


def hashed_mixture(fields: Fields, frame: Frame) -> list[MlpLayer]:
    """Experts in every layer; the first ``num_hash_layers`` choose them by the token's number, without a bias."""
    hashed = fields.size("num_hash_layers", default=0, least=0, most=frame.layers)
    routed = ExpertStyle(experts=("n_routed_experts",), dense_width=None, shared=shared_count, router_bias=True)
    layers = mixture(fields, frame, routed)
    (first, *_) = layers
    by_token = first.model_copy(update={"router_bias_elements": 0}) if first else None
    return [by_token] * hashed + layers[hashed:]
