"""What encoders have and decoders do not: token types, a norm on the embedding, a pooler or a classifier.

Shapes follow the published modelling code of each family (transformers: ``modeling_bert``, ``modeling_roberta``,
``modeling_modernbert``; nomic-ai/contrastors). An encoder reads a prompt once, in both directions; engines serve it
without a KV cache, and without the head that it was trained with to fill in masked words.
"""

from dataclasses import replace

from tokonomics.catalog.config_family import BIAS, Encoder, Family, attention, mlp
from tokonomics.catalog.config_fields import Fields
from tokonomics.catalog.config_harmless import names
from tokonomics.catalog.config_layers import MOST_LAYERS, MOST_WINDOW, Frame, windows_by_type


def embedding_extras(fields: Fields, frame: Frame, encoder: Encoder) -> int:
    """Parameters beside the embedding: token types and a norm."""
    types = fields.size("type_vocab_size", default=encoder.types, least=0)
    return (types + encoder.norm_elements) * frame.hidden


def no_head(fields: Fields, frame: Frame) -> int:
    """Nothing behind the layers: the hidden states are pooled as they are."""
    return 0


def pooled_head(fields: Fields, frame: Frame) -> int:
    """A product with the first token's state, and the scores of a classifier behind it."""
    pooler = frame.hidden * frame.hidden + frame.hidden
    return pooler + (_labels(fields) * (frame.hidden + 1) if _classifies(fields) else 0)


def windows_between(fields: Fields, frame: Frame) -> list[int | None]:
    """ModernBERT: the first of every so many layers sees everything, the others a window around each token."""
    every = fields.size("global_attn_every_n_layers", default=3, most=MOST_LAYERS)
    size = fields.size("local_attention", default=128, most=MOST_WINDOW)
    kinds = ["sliding_attention" if place % every else "full_attention" for place in range(frame.layers)]
    return windows_by_type(fields, frame, size, kinds)


def _classifies(fields: Fields) -> bool:
    return any(name.endswith("ForSequenceClassification") for name in fields.words("architectures") or ())


def _labels(fields: Fields) -> int:
    """Scores that a classifier gives: one of a reranker."""
    named = fields.child("id2label")
    return fields.size("num_labels", default=len(named.names()) if named else 2)


BERT_HARMLESS = names(
    """directionality pooler_fc_size pooler_num_attention_heads pooler_num_fc_layers pooler_type pooler_size_per_head
    output_past sentence_transformers num_labels"""
)
MODERN_HARMLESS = names(
    """classifier_activation classifier_bias classifier_dropout classifier_pooling cls_token_id decoder_bias
    deterministic_flash_attn global_rope_theta local_rope_theta initializer_cutoff_factor mlp_dropout
    position_embedding_type repad_logits_with_grad sparse_pred_ignore_index sparse_prediction reference_compile"""
)
NOMIC_HARMLESS = names(
    """dense_seq_output fused_bias_fc fused_dropout_add_ln max_trained_positions mlp_fc2_bias pad_vocab_size_multiple
    parallel_block parallel_block_tied_norm prenorm reorder_and_upcast_attn rotary_emb_fraction rotary_emb_interleaved
    rotary_emb_scale_base rotary_scaling_factor scale_attn_by_inverse_layer_idx summary_type summary_use_proj
    summary_activation summary_proj_to_labels summary_first_dropout use_flash_attn use_xentropy"""
)

BERT = Family(
    attention(grouped=False, qkv_bias=True, out_bias=True, bidirectional=True),
    mlp(gated=False, bias=True),
    norm_bias=True,
    tied=True,
    final_norm=False,
    learned_positions=0,
    expect={"position_embedding_type": ("absolute",), "is_decoder": (False,)},
    harmless=BERT_HARMLESS,
    encoder=Encoder(norm_elements=2, types=2, head=pooled_head),
)
# Positions of RoBERTa are counted from behind the padding's: two of its table are never used.
ROBERTA = replace(BERT, encoder=Encoder(norm_elements=2, types=1, head=pooled_head, unused_positions=2))

ENCODERS: dict[str, Family] = {
    "bert": BERT,
    "roberta": ROBERTA,
    "xlm-roberta": ROBERTA,
    "modernbert": Family(
        attention(grouped=False, qkv_bias=BIAS, out_bias=BIAS, bidirectional=True, windows=windows_between),
        mlp(bias=("mlp_bias", False)),
        tied=True,
        expect={"norm_bias": (False,)},
        harmless=MODERN_HARMLESS,
        # The embedding has a norm, and the first layer none before its attention.
        encoder=Encoder(norm_elements=0, types=0, head=no_head),
    ),
    "nomic_bert": Family(
        attention(
            grouped=False, qkv_bias=("qkv_proj_bias", True), out_bias=("qkv_proj_bias", True), bidirectional=True
        ),
        mlp(bias=("mlp_fc1_bias", True), widths=("n_inner",), default_ratio=4),
        norm_bias=True,
        tied=True,
        final_norm=False,
        expect={"activation_function": ("swiglu",), "causal": (False,), "use_rms_norm": (False,)},
        harmless=NOMIC_HARMLESS,
        encoder=Encoder(norm_elements=2, types=0, head=no_head),
    ),
}
