"""Quantised checkpoints as they are published: their files' fields, and the bytes that their matrices take.

The fields are those of NVIDIA's, Red Hat's, SGLang's and poolside's repositories as ai-dynamo/aiconfigurator keeps them
(``aic-core/src/aiconfigurator_core/model_configs``, read 2026-11-19); lists of layers are written as loops.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.catalog.read_configs import read, small
from tests.catalog.test_quantised_configs import MOE, precisions

from tokonomics.catalog.config_json import read_config
from tokonomics.catalog.entries import shipped_tables
from tokonomics.catalog.layers import Precision
from tokonomics.errors import BadInput
from tokonomics.questions.request import Listener
from tokonomics.questions.verbs import find_verb

ROWS = shipped_tables("models.toml")
KV = {"dynamic": False, "num_bits": 8, "type": "float"}
NVFP4_WEIGHTS = {"dynamic": False, "num_bits": 4, "type": "float", "group_size": 16}


def of_row(key: str, **more: Any) -> dict[str, Any]:
    config = {name: value for name, value in ROWS[key]["config"].items() if name != "quantization_config"}
    return config | more


def modelopt(ignore: list[str], **more: Any) -> dict[str, Any]:
    groups = {"group_0": {"input_activations": NVFP4_WEIGHTS, "weights": NVFP4_WEIGHTS, "targets": ["Linear"]}}
    base = {"config_groups": groups, "ignore": ignore, "quant_algo": "NVFP4", "quant_method": "modelopt"}
    return {"quantization_config": base | {"kv_cache_scheme": KV} | more}


GEMMA_LEFT = [
    "lm_head", "model.embed_vision*", "model.vision_tower*",
    *(f"model.language_model.layers.{i}.{part}*" for i in range(30) for part in ("mlp", "router", "self_attn")),
]  # fmt: skip


def test_gemma_4_leaves_its_dense_blocks_alone_but_not_the_experts_beside_them() -> None:
    model = read(of_row("gemma-4-26b-a4b", **modelopt(GEMMA_LEFT)))
    experts = 30 * 128 * 3 * 2816 * 704
    expected = experts * (0.5 + 1 / 16) + 2 * (model.parameters - experts)
    assert model.weight_bytes(model.checkpoint) == pytest.approx(expected, abs=1)
    assert expected == pytest.approx(18.8e9, rel=0.01)  # the size of nvidia/Gemma-4-26B-A4B-NVFP4
    assert (precisions(model), model.kv_checkpoint) == (("bf16", "bf16", "nvfp4"), "fp8")


EXPERTS_BY_LAYER = {f"layers.{i}.ffn.experts": {"quant_algo": "NVFP4", "group_size": 16} for i in range(43)}
BESIDE = {
    "quant_algo": "MIXED_PRECISION", "kv_cache_quant_algo": None, "quantized_layers": EXPERTS_BY_LAYER,
}  # fmt: skip
EXCLUDED = ["*.attn.*", "*.ffn.shared_experts.*", "head", "mtp.*"]


@pytest.mark.parametrize(
    "quantised",
    [
        BESIDE
        | {"quant_method": "fp8", "moe_quant_algo": "NVFP4", "ignore": EXCLUDED, "weight_block_size": [128, 128]},
        BESIDE | {"quant_method": "modelopt", "exclude_modules": EXCLUDED},
    ],
    ids=["in the config", "in the file beside it"],
)
def test_deepseek_v4_of_nvidia_has_experts_in_nvfp4_and_the_rest_in_fp8(quantised: dict[str, Any]) -> None:
    model = read(of_row("deepseek-v4-flash", quantization_config=quantised))
    assert precisions(model) == ("fp8", "fp8", "nvfp4")
    experts = 43 * 256 * 3 * 4096 * 2048
    scaled = model.parts.mixers + model.parts.dense_mlps
    rest = model.parameters - experts - scaled
    expected = experts * (0.5 + 1 / 16) + scaled * (1 + 4 / 128**2) + 2 * rest
    assert model.weight_bytes(Precision.nvfp4) == pytest.approx(expected, abs=1)


def test_deepseek_v4_as_red_hat_quantises_it() -> None:
    fp8 = {"targets": ["re:.*attn.*(fused_wqa_wkv|wq_b|wo_a|wo_b)$"], "weights": {"num_bits": 8, "type": "float"}}
    fp4 = {"targets": ["re:.*ffn.*(gate|up|down)_proj$"], "weights": NVFP4_WEIGHTS}
    quantised = {"quant_method": "compressed-tensors", "config_groups": {"group_0": fp8, "group_1": fp4}, "ignore": []}
    more = {"compress_rope_parameters": {"rope_type": "yarn"}, "qk_nope_head_dim": 448, "v_head_dim": None}
    model = read(of_row("deepseek-v4-flash", quantization_config=quantised, **more))
    assert precisions(model) == ("fp8", "nvfp4", "nvfp4")


def test_deepseek_v4_of_sglang_is_the_same_model_under_another_type() -> None:
    fp8 = {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128], "scale_fmt": "ue8m0"}}
    own = of_row("deepseek-v4-flash", **fp8)
    del own["expert_dtype"]
    bridged = {"kv_lora_rank": 512, "qk_nope_head_dim": 448, "v_head_dim": 512, "n_group": 8, "intermediate_size": 2048}
    theirs = read(own | {"model_type": "deepseek_ref"} | bridged)
    assert (theirs.groups, theirs.parameters) == (read(own).groups, read(of_row("deepseek-v4-flash")).parameters)
    assert precisions(theirs) == ("fp8", "fp8", "fp8")


def test_fields_that_nvidias_minimax_m3_and_glm_5_2_add_change_nothing() -> None:
    glm = of_row("glm-5.2")
    assert read(glm | {"num_experts": 256}).groups == read(glm).groups
    with pytest.raises(BadInput, match="num_experts"):
        read(glm | {"num_experts": 128})
    tower = {
        "hidden_size": 1280, "num_attention_heads": 16, "num_hidden_layers": 32, "intermediate_size": 5120,
        "patch_size": 14, "image_size": 2016, "model_type": "clip_vision_model", "num_channels": 3,
    }  # fmt: skip
    text = of_row("minimax-m3")
    text = text.get("text_config", text)
    whole = {"model_type": "minimax_m3_vl", "text_config": text, "projector_hidden_size": text["hidden_size"]}
    plain = read(whole | {"vision_config": tower})
    told = tower | {"projection_dim": text["hidden_size"], "vocab_size": 32000}
    same = read(whole | {"vision_config": told, "num_reward_heads": 0, **modelopt(["patch_merge_mlp", "vision_tower"])})
    assert same.parameters == plain.parameters
    assert same.notes == ()
    with pytest.raises(BadInput, match="num_reward_heads"):
        read(whole | {"vision_config": tower, "num_reward_heads": 1})


def test_deepseek_v4_as_transformers_5_writes_it() -> None:
    ratios = {0: "sliding_attention", 4: "compressed_sparse_attention", 128: "heavily_compressed_attention"}
    config = of_row("deepseek-v4-flash")
    words = [ratios[ratio] for ratio in config.pop("compress_ratios")[:43]]
    assert read(config | {"layer_types": words}).groups == read(of_row("deepseek-v4-flash")).groups
    rates = {"compressed_sparse_attention": 4, "heavily_compressed_attention": 64}
    fewer = read(config | {"layer_types": words, "compress_rates": rates})
    assert fewer.kv_bytes_per_token(Precision.bf16) > read(config | {"layer_types": words}).kv_bytes_per_token(
        Precision.bf16
    )


def test_kinds_of_layers_that_say_nothing_new_are_read_and_others_are_not() -> None:
    plain = read(of_row("glm-5.2"))
    told = of_row("glm-5.2", layer_types=["deepseek_sparse_attention"] * 78)
    assert read(told).groups == plain.groups
    with pytest.raises(BadInput, match="has 'linear_attention'"):
        read(told | {"layer_types": ["linear_attention"] * 78})
    assert read(MOE | {"layer_types": ["full_attention"] * 4}).groups == read(MOE).groups


def test_a_pattern_of_the_draft_module_or_a_tower_leaves_no_layer_of_the_model_alone() -> None:
    left = ["lm_head", "mtp.layers.0*", "model.visual.layers.1*", "vision_tower.encoder.layers.2*"]
    assert read(MOE | modelopt(left)).dense_bytes is None
    # The first layer is dense: 3 × 256 × 640 weights, beside 3 × 3 × 256 × 128 of the shared experts.
    dense, shared = 640, 3 * 128
    mean = (2 * dense + (0.5 + 1 / 16) * shared) / (dense + shared)
    assert read(MOE | modelopt([*left, "model.layers.0*"])).dense_bytes == pytest.approx(mean)


def test_a_checkpoint_takes_the_bytes_of_what_it_mixes() -> None:
    """Attention of NVIDIA's DeepSeek-R1: the output alone is quantised, three fifths of the weights here."""
    left = [f"model.layers.{i}.self_attn.{name}" for i in range(4)
            for name in ("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj")]  # fmt: skip
    model = read(MOE | modelopt(left))
    output = 256 * 8 * 32
    others = 96 * (256 + 8 * 48) + 256 * (64 + 16) + 64 * 8 * 64
    assert model.parts.mixers == 4 * (output + others)
    assert model.mixer_bytes == pytest.approx((0.5625 * output + 2 * others) / (output + others))


def test_modelopt_may_write_its_fields_one_level_below_in_the_config_too(tmp_path: Path) -> None:
    inner = {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8", "exclude_modules": ["*self_attn*"]}
    flat = read(MOE | {"quantization_config": {"quant_method": "modelopt", **inner}})
    nested = read(MOE | {"quantization_config": {"quant_method": "modelopt", "quantization": inner}})
    produced = read(MOE | {"quantization_config": {"producer": {"name": "modelopt"}, "quantization": inner}})
    (tmp_path / "config.json").write_text(json.dumps(MOE))
    (tmp_path / "hf_quant_config.json").write_text(json.dumps({"quantization": inner}))
    for model in (flat, nested, produced, read_config(tmp_path)):
        assert (*precisions(model), model.kv_checkpoint) == ("bf16", "fp8", "fp8", "fp8")
        assert model.weight_bytes(model.checkpoint) == flat.weight_bytes(flat.checkpoint)


@pytest.mark.parametrize(
    ("quantised", "kv"),
    [
        ({"quant_method": "fp8"}, None),
        ({"quant_method": "fp8", "kv_cache_scheme": "static"}, "fp8"),
        ({"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}, "fp8"),
        ({"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": None}, None),
        ({"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_scheme": KV}, "fp8"),
        ({"quant_method": "compressed-tensors", "kv_cache_scheme": KV,
          "config_groups": {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "float"}}}}, "fp8"),
        ({"quant_method": "compressed-tensors", "kv_cache_scheme": None,
          "config_groups": {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "float"}}}}, None),
        ({"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "fp8_e4m3"}},
          "export": {"kv_cache_group": ["*k_proj", "*v_proj"]}}, "fp8"),
        ({"quant_method": "compressed-tensors", "config_groups": {}, "kv_cache_scheme": KV}, "fp8"),
    ],
)  # fmt: skip
def test_the_precision_of_the_kv_cache_is_read(quantised: dict[str, Any], kv: str | None) -> None:
    model = read(MOE | {"quantization_config": quantised})
    assert (model.kv_checkpoint, model.notes) == (kv, ())


@pytest.mark.parametrize(
    ("quantised", "said"),
    [
        ({"quant_method": "modelopt", "quant_algo": "NVFP4", "kv_cache_quant_algo": "NVFP4"}, "NVFP4"),
        ({"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_scheme": KV | {"num_bits": 4}}, "4 bits"),
    ],
)
def test_a_kv_cache_of_fewer_bits_is_counted_in_fp8_and_noted(quantised: dict[str, Any], said: str) -> None:
    model = read(MOE | {"quantization_config": quantised})
    assert model.kv_checkpoint == "fp8"
    assert [note for note in model.notes if f"is for {said}; counted in FP8" in note]


@pytest.mark.parametrize(
    ("asked", "kv"), [({"gpu": "H100"}, "fp8"), ({"gpu": "H100", "kv": "bf16"}, "bf16"), ({"gpu": "T4"}, "bf16")]
)
def test_fit_keeps_the_cache_as_the_checkpoint_does_where_the_engine_can(
    asked: dict[str, str], kv: str, tmp_path: Path
) -> None:
    config = small(4, model_type="llama", num_key_value_heads=2, max_position_embeddings=8192)
    (tmp_path / "org--model_config.json").write_text(json.dumps(config))
    beside = {"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"]}}
    (tmp_path / "org--model_hf_quant_config.json").write_text(json.dumps(beside))
    assert read_config(tmp_path / "org--model_config.json").checkpoint == "fp8"
    verb = find_verb("fit")
    asked = {"model": str(tmp_path / "org--model_config.json")} | asked
    assert verb.answer(verb.request.checked(asked), Listener()).plain()["kv"] == kv


def test_the_file_beside_says_what_the_config_leaves_out(tmp_path: Path) -> None:
    old = {"quant_method": "modelopt", "quant_algo": "FP8", "ignore": ["lm_head"]}
    (tmp_path / "config.json").write_text(json.dumps(MOE | {"quantization_config": old}))
    (tmp_path / "hf_quant_config.json").write_text(
        json.dumps({"quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8"}})
    )
    model = read_config(tmp_path)
    assert (model.checkpoint, model.kv_checkpoint) == ("fp8", "fp8")  # the config's own word counts where it has one
