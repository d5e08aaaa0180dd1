"""What encoders have and decoders do not: token types, a norm on the embedding, a pooler or a classifier.

Shapes follow the published modelling code of each family (transformers: ``modeling_bert``, ``modeling_roberta``,
``modeling_modernbert``; nomic-ai/contrastors). An encoder reads a prompt once, in both directions; engines serve it
without a KV cache, and without the head that it was trained with to fill in masked words.
"""

from collections.abc import Callable
from dataclasses import dataclass

from tokonomics.catalog.config_fields import Fields
from tokonomics.catalog.config_harmless import names
from tokonomics.catalog.config_layers import MOST_LAYERS, MOST_WINDOW, Frame, windows_by_type


@dataclass(frozen=True)
class Encoder:
    """What of an encoder lies before and behind its layers."""

    norm_elements: int  # of the norm on the embedding, in hidden widths
    types: int  # kinds of tokens that have a vector of their own, where the config does not say
    head: Callable[[Fields, Frame], int]  # parameters of a pooler or a classifier
    unused_positions: int = 0  # of the table of learned positions


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
