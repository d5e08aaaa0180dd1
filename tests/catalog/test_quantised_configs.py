"""Quantised checkpoints: which parts have which precision, and how many bytes a weight takes with its scales."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.catalog.read_configs import LATENT_MIXTURE, read, small

from tokonomics.catalog.config_json import read_config
from tokonomics.catalog.models import ModelSpec
from tokonomics.errors import BadInput

LLAMA = small(4, model_type="llama", num_key_value_heads=2)
MOE: dict[str, Any] = LLAMA | LATENT_MIXTURE | {"model_type": "deepseek_v3", "num_key_value_heads": 8}


def read_quantised(config: dict[str, Any], quantised: dict[str, Any] | None = None) -> ModelSpec:
    return read(config | ({"quantization_config": quantised} if quantised else {}))


def precisions(model: ModelSpec) -> tuple[str, str, str]:
    """Of attention, of dense and shared feed-forward blocks, and of experts (else of all)."""
    mixer, dense = model.precisions(model.checkpoint)
    return mixer.value, dense.value, model.checkpoint.value


def groups(bits: int, kind: str, size: int | None, **more: Any) -> dict[str, Any]:
    """Of compressed-tensors."""
    weights = {"num_bits": bits, "type": kind, "group_size": size, "symmetric": True}
    layers = {"group_0": {"targets": ["Linear"], "weights": weights | more}}
    return {"quant_method": "compressed-tensors", "config_groups": layers}


def test_kimi_k2_5_leaves_all_but_the_experts_in_16_bits_and_has_groups_of_32() -> None:
    ignore = ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*", "re:.*mlp\\.(gate|up|gate_up|down)_proj.*"]
    model = read_quantised(MOE, groups(4, "int", 32) | {"ignore": ignore})
    assert precisions(model) == ("bf16", "bf16", "int4")
    expert = 3 * 256 * 128
    experts = 3 * 8 * expert
    # Four bits and a 16-bit scale for every 32 weights; everything else in 16 bits.
    expected = experts * (0.5 + 2 / 32) + 2 * (model.parameters - experts)
    assert model.weight_bytes(model.checkpoint) == pytest.approx(expected, abs=1)


@pytest.mark.parametrize(
    ("quantised", "expected"),
    [
        ({"quant_method": "awq", "bits": 4, "group_size": 64}, 0.5 + 2.5 / 64),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128}, 0.5 + 2.5 / 128),
        ({"quant_method": "gptq", "bits": 4, "group_size": -1}, 0.5),
        (groups(4, "int", 128), 0.5 + 2 / 128),
        (groups(4, "int", 32, symmetric=False), 0.5 + 2.5 / 32),
        (groups(8, "int", None), 1.0),
        (groups(4, "float", 16), 0.5 + 1 / 16),
        (groups(4, "float", 32), 0.5 + 1 / 32),
        (groups(8, "float", 32), 1 + 1 / 32),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, 0.5 + 4 / 64),
        ({"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "fp4"}}}, 0.5 + 1 / 32),
        ({"quant_method": "torchao", "quant_type": {"default": {"_type": "Int8WeightOnlyConfig"}}}, 1.0),
        ({"quant_method": "auto-round", "bits": 4, "data_type": "mx_fp"}, 0.5 + 1 / 32),
        ({"quant_method": "mxfp8"}, 1 + 1 / 32),
        ({"quant_method": "w8a8_int8"}, 1.0),
    ],
)
def test_bytes_of_a_weight_by_closed_form(quantised: dict[str, Any], expected: float) -> None:
    model = read_quantised(LLAMA, quantised)
    matrices = 4 * (256 * (8 + 2 + 2) * 32 + 8 * 32 * 256 + 3 * 256 * 640)
    assert model.weight_bytes(model.checkpoint) == pytest.approx(
        matrices * expected + 2 * (model.parameters - matrices), abs=1
    )


@pytest.mark.parametrize(
    ("quantised", "expected"),
    [
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, ("fp8", "fp8", "fp8")),
        ({"quant_method": "fp8", "activation_scheme": "static", "ignored_layers": ["lm_head"]}, ("fp8", "fp8", "fp8")),
        ({"quant_method": "fp8", "modules_to_not_convert": ["self_attn"]}, ("bf16", "fp8", "fp8")),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["*self_attn*"]}, ("bf16", "nvfp4", "nvfp4")),
        (
            {"quant_method": "modelopt", "quant_algo": "NVFP4", "exclude_modules": ["model.layers.0*", "lm_head"]},
            ("nvfp4", "bf16", "nvfp4"),  # one layer of four is left: its dense block outweighs the shared experts
        ),
        ({"quant_method": "awq", "modules_to_not_convert": ["mlp.shared_experts", "mlp.up_proj", "mlp.down_proj"]},
         ("int4", "bf16", "int4")),
        ({"quant_method": "gptq", "bits": 4, "dynamic": {"-:.*self_attn.*": {}, "lm_head": {}}},
         ("bf16", "int4", "int4")),
        ({"quant_method": "gptq", "bits": 4, "dynamic": {".*self_attn.*": {"bits": 8}}}, ("int8", "int4", "int4")),
        ({"quant_method": "auto-round", "bits": 4, "extra_config": {".*self_attn.*": {"bits": 16}}},
         ("bf16", "int4", "int4")),
        ({"quant_method": "gptq", "bits": 8}, ("int8", "int8", "int8")),
        ({"quant_algo": "FP8"}, ("fp8", "fp8", "fp8")),
        ({"quant_method": "mxfp4"}, ("bf16", "bf16", "mxfp4")),
        ({"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]}, ("bf16", "mxfp4", "mxfp4")),
        (
            {
                "quant_method": "quark",
                "global_quant_config": {"weight": {"dtype": "fp4", "group_size": 32}},
                "layer_quant_config": {"*self_attn*": {"weight": {"dtype": "fp8_e4m3"}}},
                "exclude": ["lm_head"],
            },
            ("fp8", "mxfp4", "mxfp4"),
        ),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True, "llm_int8_skip_modules": ["lm_head"]},
         ("int8", "int8", "int8")),
    ],
)  # fmt: skip
def test_what_is_left_alone_keeps_its_bits(quantised: dict[str, Any], expected: tuple[str, str, str]) -> None:
    assert precisions(read_quantised(MOE, quantised)) == expected


CHANNELS = groups(8, "float", None, strategy="channel")  # GLM-4.5-Air-FP8


@pytest.mark.parametrize(
    ("quantised", "expected"),
    [
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "blocks"),  # Qwen3-30B-A3B-FP8, DeepSeek-V3
        ({"quant_method": "fp8", "activation_scheme": "static", "weight_block_size": None}, "tensor"),  # Devstral 2
        (CHANNELS, "channel"),
        (groups(8, "float", None, strategy="block", block_structure=[128, 128]), "blocks"),
        (groups(8, "float", None), None),
        ({"quant_method": "fbgemm_fp8"}, "channel"),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, "tensor"),
        ({"quant_method": "modelopt", "quant_algo": "FP8_PB_WO"}, "blocks"),
        ({"quant_method": "gptq", "bits": 4}, None),
        (None, None),
    ],
)
def test_what_shares_a_scale_in_fp8_is_read_from_the_config(
    quantised: dict[str, Any] | None, expected: str | None
) -> None:
    assert [read_quantised(config, quantised).fp8_scales for config in (LLAMA, MOE)] == [expected, expected]


def test_a_part_in_fp8_beside_experts_of_four_bits_says_it_too() -> None:
    config = MOE | {"expert_dtype": "fp4"}
    assert read_quantised(config, {"quant_method": "fp8", "weight_block_size": [128, 128]}).fp8_scales == "blocks"


def test_several_groups_of_compressed_tensors_by_name_and_class() -> None:
    eight = {"num_bits": 8, "type": "float"}
    four = {"num_bits": 4, "type": "float", "group_size": 16}
    config_groups = {
        "attention": {"targets": ["re:.*self_attn.*"], "weights": eight},
        "rest": {"targets": ["Linear"], "weights": four},
    }
    quantised = {"quant_method": "compressed-tensors", "config_groups": config_groups, "ignore": ["lm_head"]}
    assert precisions(read_quantised(MOE, quantised)) == ("fp8", "nvfp4", "nvfp4")
    config_groups["attention"]["targets"] = ["Linear"]
    with pytest.raises(BadInput, match="several precisions"):
        read_quantised(MOE, quantised)


def test_modelopt_lists_every_module_of_a_mixed_checkpoint_in_the_file_beside(tmp_path: Path) -> None:
    layers: dict[str, Any] = {}
    for i in range(4):
        for name in ("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj"):
            layers[f"model.layers.{i}.self_attn.{name}"] = {"quant_algo": "FP8"}
        layers[f"model.layers.{i}.mlp.experts.0.up_proj"] = {"quant_algo": "NVFP4", "group_size": 16}
        layers[f"model.layers.{i}.mlp.experts.0.down_proj"] = {"quant_algo": "NVFP4", "group_size": 16}
    (tmp_path / "config.json").write_text(json.dumps(MOE))
    told = {"quantization": {"quant_algo": "MIXED_PRECISION", "kv_cache_quant_algo": "FP8", "quantized_layers": layers}}
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(told))
    assert precisions(read_config(tmp_path)) == ("fp8", "bf16", "nvfp4")


def test_deepseek_v4_has_experts_of_four_bits_and_the_rest_of_eight() -> None:
    model = read_quantised(MOE | {"expert_dtype": "fp4"}, {"quant_method": "fp8", "weight_block_size": [128, 128]})
    assert precisions(model) == ("fp8", "fp8", "mxfp4")


def test_mlx_conversions_are_read_too() -> None:
    model = read_quantised(LLAMA | {"quantization": {"bits": 4, "group_size": 64}})
    assert (model.checkpoint, model.checkpoint_bytes) == ("int4", 0.5 + 4 / 64)
    # mxfp4 is of experts; a model without any has it everywhere.
    assert read_quantised(LLAMA, {"quant_method": "mxfp4"}).checkpoint == "mxfp4"


@pytest.mark.parametrize(
    ("quantised", "said"),
    [
        ({"quant_method": "fp8", "modules_to_not_convert": ["re:("]}, "no expression"),
        ({"quant_method": "quark"}, "global_quant_config"),
        ({"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "int3"}}}, "int3"),
        ({"quant_method": "torchao", "quant_type": "uint7_weight_only"}, "quant_type"),
        ({"quant_method": "hqq"}, "quant_method"),
        ({"quant_method": "fp8", "modules_to_not_convert": "lm_head"}, "a list of strings"),
    ],
)
def test_what_cannot_be_read_is_named(quantised: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        read_quantised(LLAMA, quantised)
