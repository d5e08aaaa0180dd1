"""A config.json as its tests read it: a model of no name and no date that matters."""

from datetime import date
from typing import Any

from tokonomics.catalog.config_json import from_config
from tokonomics.catalog.models import ModelSpec

WHERE = "dir/config.json"


def small(layers: int, **more: Any) -> dict[str, Any]:
    """What every small model of these tests has: a hidden width of 256 and 8 attention heads."""
    return {
        "hidden_size": 256, "intermediate_size": 640, "num_hidden_layers": layers, "num_attention_heads": 8,
        "vocab_size": 1000, "max_position_embeddings": 512, "torch_dtype": "bfloat16",
    } | more  # fmt: skip


LATENT_MIXTURE: dict[str, Any] = {
    "q_lora_rank": 96, "kv_lora_rank": 64, "qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "v_head_dim": 32,
    "first_k_dense_replace": 1, "moe_intermediate_size": 128, "n_routed_experts": 8, "n_shared_experts": 1,
    "num_experts_per_tok": 2,
}  # fmt: skip
"""What a small DeepSeek-V3 has beside the fields of every model."""


def read(config: dict[str, Any], **more: Any) -> ModelSpec:
    """The model that such a file describes."""
    return from_config(
        config, key="m", name="M", family="test", source="test", date=date(2026, 1, 1), where=WHERE, **more
    )


def mixers_of(model: ModelSpec) -> list[Any]:
    """Of every layer."""
    return [group.mixer for group in model.groups for _ in range(group.count)]
