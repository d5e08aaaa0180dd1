"""Mistral's params.json: the same model as its config.json, and Mistral Large 3, which has none."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.catalog.read_configs import read, small

from tokonomics.catalog.config_json import read_config
from tokonomics.errors import BadInput

LARGE_3: dict[str, Any] = {
    "dim": 7168, "n_layers": 61, "head_dim": 128, "hidden_dim": 16384, "n_heads": 128, "n_kv_heads": 128,
    "rope_theta": 10000.0, "norm_eps": 1e-6, "vocab_size": 131072, "tied_embeddings": False,
    "max_position_embeddings": 294912, "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128, "v_head_dim": 128, "yarn": {"factor": 36},
    "quantization": {"qformat_weight": "fp8_e4m3", "qscheme_act": "TENSOR"},
    "moe": {
        "num_experts": 128, "num_experts_per_tok": 4, "expert_hidden_dim": 4096, "num_shared_experts": 1,
        "first_k_dense_replace": 3, "route_every_n": 1, "expert_parallel": 1, "num_expert_groups": 1,
    },
    "vision_encoder": {
        "hidden_size": 1664, "intermediate_size": 8192, "num_hidden_layers": 48, "num_attention_heads": 16,
        "patch_size": 14, "image_size": 1540, "max_image_size": 1540, "spatial_merge_size": 2, "image_token_id": 10,
        "mm_projector_id": "patch_merge", "adapter_bias": False, "rope_theta": 10000.0,
    },
}  # fmt: skip
SMALL = {"dim": 256, "n_layers": 2, "hidden_dim": 640, "n_heads": 8, "n_kv_heads": 2, "vocab_size": 1000}


def test_mistral_large_3_is_read_from_its_folder(tmp_path: Path) -> None:
    """675B with 41B active (its model card), 2.5B of these the tower."""
    folder = tmp_path / "Mistral-Large-3"
    folder.mkdir()
    (folder / "params.json").write_text(json.dumps(LARGE_3), encoding="utf-8")
    model = read_config(folder)
    assert (model.name, model.served, model.fp8_scales, model.max_context) == (
        "Mistral-Large-3", "fp8", "tensor", 294912,
    )  # fmt: skip
    assert model.parameters == pytest.approx(675e9, rel=0.01)
    assert model.active_parameters + model.extra_parameters == pytest.approx(41e9, rel=0.05)
    assert model.kv_bytes_per_token(model.kv_served) == 61 * (512 + 64) * 2


@pytest.mark.parametrize(
    ("moe", "kind", "more"),
    [
        ({}, "mistral", {}),
        ({"moe": {"num_experts": 4, "num_experts_per_tok": 2}}, "mixtral",
         {"num_local_experts": 4, "num_experts_per_tok": 2}),
    ],
)  # fmt: skip
def test_both_forms_of_a_model_are_the_same(
    moe: dict[str, Any], kind: str, more: dict[str, Any], tmp_path: Path
) -> None:
    path = tmp_path / "params.json"
    path.write_text(json.dumps(SMALL | moe), encoding="utf-8")
    theirs = read(more | small(2, model_type=kind, num_key_value_heads=2, sliding_window=None))
    assert (read_config(path).groups, read_config(path).parameters) == (theirs.groups, theirs.parameters)


@pytest.mark.parametrize(
    "wrong", [{"n_heads": "8"}, {"moe": {"num_experts": 4}}, {"vision_encoder": {"patch_size": 14}}]
)
def test_what_is_missing_or_wrong_is_named(wrong: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "params.json"
    path.write_text(json.dumps(SMALL | wrong), encoding="utf-8")
    with pytest.raises(BadInput):
        read_config(path)
