"""Encoders: every matrix counted by hand, nothing cached, no head; and what is refused."""

from datetime import date
from typing import Any

import pytest

from tokonomics.catalog.config_json import from_config
from tokonomics.catalog.load_models import find_model
from tokonomics.catalog.models import GroupedAttention, ModelSpec
from tokonomics.catalog.precision import Precision
from tokonomics.errors import BadInput

H, M, L, V, P = 64, 256, 3, 1000, 34
BERT: dict[str, Any] = {
    "model_type": "bert",
    "architectures": ["BertModel"],
    "hidden_size": H,
    "intermediate_size": M,
    "num_hidden_layers": L,
    "num_attention_heads": 4,
    "vocab_size": V,
    "type_vocab_size": 2,
    "max_position_embeddings": P,
    "torch_dtype": "float32",
}
LAYER = 4 * (H * H + H) + (H * M + M) + (M * H + H) + 2 * 2 * H  # attention, feed-forward, two norms with biases
POOLER = H * H + H


def read(config: dict[str, Any]) -> ModelSpec:
    return from_config(config, key="m", name="M", family="f", source="s", date=date(2026, 1, 1), where="config.json")


def test_a_bert_is_counted_matrix_by_matrix() -> None:
    model = read(BERT)
    embedding = V * H + P * H + 2 * H + 2 * H  # words, positions, two types, a norm
    assert model.parameters == embedding + L * LAYER + POOLER
    assert model.is_encoder
    assert model.max_context == P


def test_an_encoder_keeps_nothing_and_has_no_head() -> None:
    model = read(BERT)
    assert model.kv_bytes_per_token(Precision.bf16) == 0
    assert model.parts.head == 0
    assert model.flops_per_token == 2 * L * (4 * H * H + 2 * H * M)


def test_roberta_counts_positions_from_behind_the_padding() -> None:
    assert read(BERT | {"model_type": "xlm-roberta", "type_vocab_size": 1}).max_context == P - 2


def test_a_reranker_has_a_score_behind_its_pooler() -> None:
    reranker = {"architectures": ["BertForSequenceClassification"], "id2label": {"0": "LABEL_0"}}
    assert read(BERT | reranker).parameters - read(BERT).parameters == H + 1


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
        ({"odd": 1}, "odd"),
    ],
)
def test_what_is_not_understood_is_named(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(BadInput, match=f"'{field}'"):
        read(BERT | changes)


def test_models_that_write_are_no_encoders() -> None:
    assert not find_model("llama-3.1-8b").is_encoder
    assert not find_model("nemotron-h-56b").is_encoder
