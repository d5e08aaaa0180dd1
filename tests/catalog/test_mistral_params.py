"""Mistral's params.json: the same model as its config.json, and Mistral Large 3, which has none."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.catalog.read_configs import read, small
from tests.catalog.test_published_counts import VOXTRAL as VOXTRAL_CONFIG
from tests.catalog.test_quantised_configs import groups, precisions

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
VOXTRAL: dict[str, Any] = {
    "dim": 3072, "n_layers": 30, "head_dim": 128, "hidden_dim": 8192, "n_heads": 32, "n_kv_heads": 8,
    "use_biases": False, "causal": True, "rope_theta": 1e8, "norm_eps": 1e-5, "vocab_size": 131072,
    "max_position_embeddings": 131072,
    "multimodal": {"whisper_model_args": {
        "encoder_args": {
            "audio_encoding_args": {"sampling_rate": 16000, "num_mel_bins": 128, "hop_length": 160, "window_size": 400},
            "dim": 1280, "n_layers": 32, "head_dim": 64, "hidden_dim": 5120, "n_heads": 20, "vocab_size": 51866,
            "max_source_positions": 1500},
        "downsample_args": {"downsample_factor": 4}}},
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


NVFP4 = groups(4, "float", 16)


def written(tmp_path: Path, params: dict[str, Any]) -> Path:
    path = tmp_path / "params.json"
    path.write_text(json.dumps(params), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("ignored", "expected"),
    [
        (["re:.*attention.*", "re:vision_encoder.*", "output", "tok_embeddings"], ("bf16", "nvfp4", "nvfp4")),
        ([r"re:.*attention\.w(q_a|q_b|kv_a_with_mqa|kv_b|o)$"], ("bf16", "nvfp4", "nvfp4")),
        ([rf"layers.{i}.attention.{name}" for i in range(61) for name in (
            "wq_a", "wq_b", "wkv_a_with_mqa", "wkv_b", "wo")], ("bf16", "nvfp4", "nvfp4")),
        (["re:.*shared_experts.*", "re:.*feed_forward.*"], ("nvfp4", "bf16", "nvfp4")),
        ([r"re:.*\.(feed_forward|shared_experts)\.w[123]", "re:.*gate$"], ("nvfp4", "bf16", "nvfp4")),
        ([r"re:layers\.\d+\.experts\..*"], ("nvfp4", "nvfp4", "bf16")),
    ],
)  # fmt: skip
def test_what_mistrals_quantiser_leaves_alone_is_named_as_in_its_weights(
    ignored: list[str], expected: tuple[str, str, str], tmp_path: Path
) -> None:
    model = read_config(written(tmp_path, LARGE_3 | {"quantization": NVFP4 | {"ignore": ignored}}))
    assert precisions(model) == expected
    assert model.notes == ()


def test_mistrals_names_of_plain_attention_are_known_too(tmp_path: Path) -> None:
    ignored = [rf"re:layers\.\d+\.attention\.{name}" for name in ("wq", "wk", "wv", "wo")]
    model = read_config(written(tmp_path, SMALL | {"quantization": groups(8, "float", None) | {"ignore": ignored}}))
    assert (*precisions(model), model.notes) == ("bf16", "fp8", "fp8", ())


def test_a_pattern_that_leaves_nothing_alone_is_noted(tmp_path: Path) -> None:
    ignored = ["re:.*attenton.*", "re:.*attention.*", "layers.3.mixers.wq", "layers.99.attention.wo"]
    model = read_config(written(tmp_path, LARGE_3 | {"quantization": NVFP4 | {"ignore": ignored}}))
    (note,) = model.notes
    assert "'re:.*attenton.*', 'layers.3.mixers.wq'" in note
    assert "re:.*attention.*" not in note


def test_voxtral_is_counted_with_the_encoder_that_hears(tmp_path: Path) -> None:
    model = read_config(written(tmp_path, VOXTRAL))
    assert model.parameters == pytest.approx(4.68e9, rel=0.005)  # the size of its weights
    assert model.parameters == read(VOXTRAL_CONFIG).parameters
    convolutions = 3 * 128 * 1280 + 3 * 1280**2 + 2 * 1280
    layer = (4 * 1280**2 + 3 * 1280) + (2 * 1280 * 5120 + 5120 + 1280) + 4 * 1280
    assert model.extra_parameters == convolutions + 32 * layer + 2 * 1280 + 5120 * 3072 + 3072**2
    assert model.notes == ()


@pytest.mark.parametrize(
    ("multimodal", "said"),
    [
        ({"vision_encoder_args": {"hidden_size": 1024}}, "tower that cannot be counted"),
        ({"whisper_model_args": {"encoder_args": {"dim": 1280}}}, "tower that cannot be counted"),
        ({"whisper_model_args": {"encoder_args": {"causal": True}, "downsample_args": {}}}, "is_causal"),
        (["whisper"], "tower that cannot be counted"),
    ],
)
def test_a_tower_of_another_kind_is_refused(multimodal: object, said: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=said):
        read_config(written(tmp_path, VOXTRAL | {"multimodal": multimodal}))


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
