"""Encoders: every matrix counted by hand, nothing cached, no head; and what is refused."""

import json
from typing import Any

import pytest
from tests.catalog.read_configs import read

from tokonomics.catalog.layers import GroupedAttention, Precision
from tokonomics.catalog.load_models import find_model
from tokonomics.errors import BadInput

H, M, L, V, P = 64, 256, 3, 1000, 34
BERT: dict[str, Any] = {
    "model_type": "bert", "architectures": ["BertModel"], "hidden_size": H, "intermediate_size": M,
    "num_hidden_layers": L, "num_attention_heads": 4, "vocab_size": V, "type_vocab_size": 2,
    "max_position_embeddings": P, "torch_dtype": "float32",
}  # fmt: skip
LAYER = 4 * (H * H + H) + (H * M + M) + (M * H + H) + 2 * 2 * H  # attention, feed-forward, two norms with biases
POOLER = H * H + H


def test_a_bert_is_counted_matrix_by_matrix() -> None:
    model = read(BERT)
    embedding = V * H + P * H + 2 * H + 2 * H  # words, positions, two types, a norm
    assert model.parameters == embedding + L * LAYER + POOLER
    assert model.is_encoder
    assert model.max_context == P
    assert (model.kv_bytes_per_token(Precision.bf16), model.parts.head) == (0, 0)
    assert model.flops_per_token == 2 * L * (4 * H * H + 2 * H * M)
    # RoBERTa counts positions from behind the padding; a reranker has a score behind its pooler.
    assert read(BERT | {"model_type": "xlm-roberta", "type_vocab_size": 1}).max_context == P - 2
    reranker = {"architectures": ["BertForSequenceClassification"], "id2label": {"0": "LABEL_0"}}
    assert read(BERT | reranker).parameters - model.parameters == H + 1
    assert not any(find_model(writes).is_encoder for writes in ("llama-3.1-8b", "nemotron-h-56b"))


def test_modernbert_sees_everything_in_one_layer_of_three() -> None:
    config = {"model_type": "modernbert", "hidden_size": H, "intermediate_size": M, "num_hidden_layers": 7,
              "num_attention_heads": 4, "vocab_size": V, "max_position_embeddings": 8192}  # fmt: skip
    model = read(config)
    mixers = [(group.mixer, group.count) for group in model.groups]
    windows = {mixer.window: count for mixer, count in mixers if isinstance(mixer, GroupedAttention)}
    assert windows == {None: 3, 128: 4}
    # Two norms a layer, none before the first attention; one on the embedding and one at the end; gated, no biases.
    assert model.parameters == V * H + 7 * (4 * H * H + 3 * H * M) + (2 * 7 - 1 + 2) * H


@pytest.mark.parametrize(
    ("key", "parameters"),
    [("bge-m3", 567_754_752), ("bge-large-en-v1.5", 335_141_888), ("nomic-embed-text-v1.5", 136_731_648)],
)
def test_published_counts_are_met_to_the_last_parameter(key: str, parameters: int) -> None:
    assert find_model(key).parameters == parameters


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"is_decoder": True}, "is_decoder"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type"),
        ({"odd_heads": 1}, "odd_heads"),
    ],
)
def test_what_is_not_understood_is_named(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(BadInput, match=f"'{field}'"):
        read(BERT | changes)


BERT_FILE = """{"_name_or_path": "x", "architectures": ["XLMRobertaModel"], "attention_probs_dropout_prob": 0.1,
    "bos_token_id": 0, "classifier_dropout": null, "eos_token_id": 2, "hidden_act": "gelu", "hidden_dropout_prob": 0.1,
    "hidden_size": 1024, "initializer_range": 0.02, "intermediate_size": 4096, "layer_norm_eps": 1e-05,
    "max_position_embeddings": 8194, "model_type": "xlm-roberta", "num_attention_heads": 16, "num_hidden_layers": 24,
    "output_past": true, "pad_token_id": 1, "position_embedding_type": "absolute", "torch_dtype": "float32",
    "transformers_version": "4.33.0", "type_vocab_size": 1, "use_cache": true, "vocab_size": 250002}"""
MODERN_FILE = """{"architectures": ["ModernBertForMaskedLM"], "attention_bias": false, "attention_dropout": 0.0,
    "bos_token_id": 50281, "classifier_activation": "gelu", "classifier_bias": false, "classifier_dropout": 0.0,
    "classifier_pooling": "mean", "cls_token_id": 50281, "decoder_bias": true, "deterministic_flash_attn": false,
    "embedding_dropout": 0.0, "eos_token_id": 50282, "global_attn_every_n_layers": 3, "global_rope_theta": 160000.0,
    "gradient_checkpointing": false, "hidden_activation": "gelu", "hidden_size": 1024, "initializer_cutoff_factor": 2.0,
    "initializer_range": 0.02, "intermediate_size": 2624, "layer_norm_eps": 1e-05, "local_attention": 128,
    "local_rope_theta": 10000.0, "max_position_embeddings": 8192, "mlp_bias": false, "mlp_dropout": 0.0,
    "model_type": "modernbert", "norm_bias": false, "norm_eps": 1e-05, "num_attention_heads": 16,
    "num_hidden_layers": 28, "pad_token_id": 50283, "position_embedding_type": "absolute", "sep_token_id": 50282,
    "tie_word_embeddings": true, "torch_dtype": "float32", "transformers_version": "4.47.0", "vocab_size": 50368}"""
NOMIC_FILE = """{"activation_function": "swiglu", "architectures": ["NomicBertModel"], "attn_pdrop": 0.0,
    "bos_token_id": null, "causal": false, "dense_seq_output": true, "embd_pdrop": 0.0, "eos_token_id": null,
    "fused_bias_fc": true, "fused_dropout_add_ln": true, "initializer_range": 0.02, "layer_norm_epsilon": 1e-12,
    "max_trained_positions": 2048, "mlp_fc1_bias": false, "mlp_fc2_bias": false, "model_type": "nomic_bert",
    "n_embd": 768, "n_head": 12, "n_inner": 3072, "n_layer": 12, "n_positions": 8192, "pad_vocab_size_multiple": 64,
    "parallel_block": false, "parallel_block_tied_norm": false, "prenorm": false, "qkv_proj_bias": false,
    "reorder_and_upcast_attn": false, "resid_pdrop": 0.0, "rotary_emb_base": 1000, "rotary_emb_fraction": 1.0,
    "rotary_emb_interleaved": false, "rotary_emb_scale_base": null, "rotary_scaling_factor": null,
    "scale_attn_by_inverse_layer_idx": false, "scale_attn_weights": true, "summary_activation": null,
    "summary_first_dropout": 0.0, "summary_proj_to_labels": true, "summary_type": "cls_index",
    "summary_use_proj": true, "torch_dtype": "float32", "transformers_version": "4.34.0", "type_vocab_size": 2,
    "use_cache": true, "use_flash_attn": true, "use_rms_norm": false, "use_xentropy": true, "vocab_size": 30528}"""


@pytest.mark.parametrize(
    ("text", "key"), [(BERT_FILE, "bge-m3"), (MODERN_FILE, "modernbert-large"), (NOMIC_FILE, "nomic-embed-text-v1.5")]
)
def test_files_as_they_are_published_are_read_as_the_rows_are(text: str, key: str) -> None:
    assert read(json.loads(text)).groups == find_model(key).groups
    assert read(json.loads(text)).parameters == find_model(key).parameters
