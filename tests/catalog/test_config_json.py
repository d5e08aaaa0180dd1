"""Reading a config.json: exact on every kind of architecture, and one clear message on everything that is wrong."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.catalog.read_configs import mixers_of, read, small
from tests.there import refused

from tokonomics.catalog.config_families import FAMILIES, WRAPPERS
from tokonomics.catalog.config_json import read_config
from tokonomics.catalog.layers import DenseMlp, GroupedAttention, LatentAttention, MoeMlp, RecurrentMixer, weights_of
from tokonomics.catalog.models import ModelSpec
from tokonomics.errors import BadInput, TokonomicsError

H, M, L, V = 256, 640, 6, 1000  # hidden, MLP width, layers, vocabulary
BASE = small(L, num_key_value_heads=2)
LLAMA = BASE | {"model_type": "llama"}
ATTENTION = H * (8 + 2 + 2) * 32 + 8 * 32 * H  # query, key, value and output of 8 and 2 heads of 32
GATED = 3 * H * M


def without(config: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in config.items() if name not in names}


def window_counts(model: ModelSpec) -> dict[int | None, int]:
    found: dict[int | None, int] = {}
    for mixer in mixers_of(model):
        found[mixer.window] = found.get(mixer.window, 0) + 1
    return found


# --- dense ------------------------------------------------------------------------------------------------------------

GPT = {"n_embd": H, "n_layer": 3, "n_head": 4, "n_positions": 128, "vocab_size": V}
QWEN3_ATTENTION = H * (8 + 2 + 2) * 128 + 8 * 128 * H + 2 * 128
COUNTED: dict[str, tuple[dict[str, Any], int]] = {
    "a llama": (LLAMA, 2 * V * H + L * (ATTENTION + GATED + 2 * H) + H),
    "qwen3 norms queries and keys of 128": (
        BASE | {"model_type": "qwen3"},
        2 * V * H + L * (QWEN3_ATTENTION + GATED + 2 * H) + H,
    ),
    "gemma2 has four norms": (
        BASE | {"model_type": "gemma2", "head_dim": 32, "sliding_window": 64},
        V * H + L * (ATTENTION + GATED + 4 * H) + H,
    ),
    "gpt2 learns its positions and ties its head": (
        GPT | {"model_type": "gpt2"},
        (V + 128) * H + 3 * (4 * (H * H + H) + 8 * H * H + 4 * H + H + 4 * H) + 2 * H,
    ),
    "gptj has one norm and a head with bias": (
        GPT | {"model_type": "gptj"},
        2 * V * H + V + 3 * (4 * H * H + 8 * H * H + 4 * H + H + 2 * H) + 2 * H,
    ),
}


@pytest.mark.parametrize(("config", "parameters"), COUNTED.values(), ids=COUNTED)
def test_dense_models_are_counted_matrix_by_matrix(config: dict[str, Any], parameters: int) -> None:
    assert read(config).parameters == parameters


def test_a_llama_keeps_keys_and_values_of_each_layer() -> None:
    model = read(LLAMA)
    assert model.kv_bytes_per_token(model.checkpoint) == 2 * L * 2 * 32 * 2
    assert model.max_context == 512


def test_tied_embeddings_are_counted_once_and_missing_key_value_heads_mean_one_per_head() -> None:
    assert read(LLAMA).parameters - read(LLAMA | {"tie_word_embeddings": True}).parameters == V * H
    assert mixers_of(read(without(LLAMA, "num_key_value_heads")))[0].kv_heads == 8


def test_biases_are_counted_where_the_family_has_them() -> None:
    query, kv = 8 * 32, 2 * 32
    plain = read(LLAMA).parameters
    assert read(LLAMA | {"attention_bias": True}).parameters - plain == L * (query + 2 * kv + H)
    assert read(LLAMA | {"mlp_bias": True}).parameters - plain == L * (2 * M + H)
    assert read(BASE | {"model_type": "qwen2"}).parameters - plain == L * (query + 2 * kv)


TOLD = {"layer_types": ["full_attention"] * 5 + ["sliding_attention"]}
ABOVE = {"sliding_window": 64, "max_window_layers": 4}


@pytest.mark.parametrize(
    ("family", "fields", "windows"),
    [
        ("gemma2", {"head_dim": 32, "sliding_window": 64}, {64: 3, None: 3}),
        ("gemma3_text", {"sliding_window": 64}, {64: 5, None: 1}),
        ("gemma3_text", {"sliding_window": 64, "sliding_window_pattern": 3}, {64: 4, None: 2}),
        ("gemma3_text", {"sliding_window": 64} | TOLD, {64: 1, None: 5}),
        ("mistral", {"sliding_window": 100}, {100: L}),
        ("mistral", {"sliding_window": None}, {None: L}),
        ("mistral", {}, {4096: L}),
        ("qwen2", ABOVE | {"use_sliding_window": False}, {None: L}),
        ("qwen2", ABOVE | {"use_sliding_window": True}, {None: 4, 64: 2}),
    ],
)
def test_layers_have_their_familys_windows(family: str, fields: dict[str, Any], windows: dict[int | None, int]) -> None:
    assert window_counts(read(BASE | {"model_type": family} | fields)) == windows


@pytest.mark.parametrize(
    ("settings_", "kv_heads", "norms"),
    [
        ({"multi_query": True, "parallel_attn": True}, 1, 1),
        ({"multi_query": False, "parallel_attn": False}, 8, 2),
        ({"new_decoder_architecture": True, "num_kv_heads": 4}, 4, 2),
        ({"new_decoder_architecture": True, "num_kv_heads": 4, "num_ln_in_parallel_attn": 1}, 4, 1),
    ],
)
def test_falcon_in_its_variants(settings_: dict[str, Any], kv_heads: int, norms: int) -> None:
    config = {"model_type": "falcon", "hidden_size": H, "num_hidden_layers": 2, "num_attention_heads": 8}
    model = read(config | {"vocab_size": V} | settings_)
    layer = H * (8 + 2 * kv_heads) * 32 + H * H + 2 * H * 4 * H + norms * 2 * H
    assert model.parameters == V * H + 2 * layer + 2 * H


# --- experts ----------------------------------------------------------------------------------------------------------


def test_mixtral_counts_all_experts_and_activates_some() -> None:
    model = read(BASE | {"model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2})
    assert model.parts.experts == L * 8 * GATED
    assert model.parts.active_experts == L * 2 * GATED
    assert model.parts.routers == L * 8 * H


QWEN_MOE = BASE | {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64}


def test_qwen2_moe_mixes_dense_layers_shared_expert_and_its_gate() -> None:
    config = {"model_type": "qwen2_moe", "shared_expert_intermediate_size": 96, "decoder_sparse_step": 2}
    model = read(QWEN_MOE | config | {"mlp_only_layers": [3]})
    # sparse are the 2nd and 6th layer; the 4th is in mlp_only_layers
    assert model.parts.experts == 2 * 8 * 3 * H * 64
    assert model.parts.dense_mlps == 4 * GATED + 2 * 3 * H * 96
    assert model.parts.routers == 2 * (8 * H + H)


DEEPSEEK = without(BASE, "num_key_value_heads") | {
    "model_type": "deepseek_v3", "q_lora_rank": 48, "kv_lora_rank": 32, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8,
    "v_head_dim": 24, "n_routed_experts": 8, "n_shared_experts": 2, "num_experts_per_tok": 2,
    "moe_intermediate_size": 64, "first_k_dense_replace": 2, "num_nextn_predict_layers": 1,
}  # fmt: skip


def test_deepseek_v3_latent_attention_and_experts() -> None:
    model = read(DEEPSEEK)
    mixer = mixers_of(model)[0]
    assert isinstance(mixer, LatentAttention)
    query, down, up = H * 48 + 48 * 8 * 24, H * 40, 32 * 8 * 40
    assert model.parts.mixers == L * (query + down + up + 8 * 24 * H)
    assert model.parts.experts == 4 * 8 * 3 * H * 64
    assert model.parts.dense_mlps == 2 * GATED + 4 * 3 * H * 2 * 64
    assert model.parts.routers == 4 * (8 * H + 8)
    assert model.kv_bytes_per_token(model.checkpoint) == L * 40 * 2


def test_latent_attention_without_query_compression() -> None:
    model = read(DEEPSEEK | {"q_lora_rank": None})
    assert model.parts.mixers == L * (H * 8 * 24 + H * 40 + 32 * 8 * 40 + 8 * 24 * H)


GPT_OSS = BASE | {"model_type": "gpt_oss", "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 16}


def test_gpt_oss_has_sinks_biases_and_alternating_windows() -> None:
    model = read(GPT_OSS | {"quantization_config": {"quant_method": "mxfp4"}})
    assert window_counts(model) == {16: 3, None: 3}
    query, kv = 8 * 64, 2 * 64
    small = L * (2 * H + query + 2 * kv + H + 8 + 4 * (2 * M + H)) + H
    assert model.parts.small == small
    assert model.parts.routers == L * (4 * H + 4)
    assert model.checkpoint == "mxfp4"


LLAMA4_TEXT = BASE | {
    "model_type": "llama4_text", "intermediate_size_mlp": 900, "num_local_experts": 4, "num_experts_per_tok": 1,
    "interleave_moe_layer_step": 2, "attention_chunk_size": 32,
}  # fmt: skip


def test_llama4_interleaves_experts_and_chunks_three_layers_of_four() -> None:
    model = read({"model_type": "llama4", "text_config": LLAMA4_TEXT})
    assert window_counts(model) == {32: 5, None: 1}
    assert model.parts.experts == 3 * 4 * GATED
    assert model.parts.dense_mlps == 3 * GATED + 3 * 3 * H * 900


# --- recurrent hybrids ------------------------------------------------------------------------------------------------

QWEN3_NEXT = QWEN_MOE | {
    "model_type": "qwen3_next", "num_hidden_layers": 8, "head_dim": 32, "shared_expert_intermediate_size": 64,
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16, "linear_value_head_dim": 16,
    "linear_conv_kernel_dim": 4,
}  # fmt: skip


def test_qwen3_next_has_a_state_in_three_layers_of_four() -> None:
    model = read(QWEN3_NEXT)
    recurrent = [mixer for mixer in mixers_of(model) if isinstance(mixer, RecurrentMixer)]
    attention = [mixer for mixer in mixers_of(model) if isinstance(mixer, GroupedAttention)]
    assert (len(recurrent), len(attention)) == (6, 2)
    keys, values = 2 * 16, 4 * 16
    assert recurrent[0].projection_parameters == H * (2 * keys + 2 * values + 2 * 4) + values * H
    assert recurrent[0].small_parameters == (2 * keys + values) * 4 + 2 * 4 + 16
    assert weights_of(attention[0].products(H)) == H * (2 * 8 + 2 + 2) * 32 + 8 * 32 * H  # queries bring a gate


NEMOTRON_H = BASE | {
    "model_type": "nemotron_h", "hybrid_override_pattern": "M-*EM-", "head_dim": 32, "mamba_num_heads": 16,
    "mamba_head_dim": 32, "ssm_state_size": 16, "n_groups": 2, "conv_kernel": 4, "n_routed_experts": 8,
    "n_shared_experts": 1, "num_experts_per_tok": 2, "moe_intermediate_size": 64,
    "moe_shared_expert_intermediate_size": 96,
}  # fmt: skip


def test_nemotron_h_reads_its_pattern() -> None:
    model = read(NEMOTRON_H)
    inner, mixed = 16 * 32, 16 * 32 + 2 * 2 * 16
    mamba = H * (inner + mixed + 16) + inner * H
    assert model.parts.mixers == 2 * mamba + ATTENTION
    assert model.parts.experts == 8 * 2 * H * 64
    assert model.parts.dense_mlps == 2 * 2 * H * M + 2 * H * 96
    assert read(without(NEMOTRON_H, "num_hidden_layers")) == model


def test_nemotron_experts_may_live_in_a_latent_space() -> None:
    model = read(NEMOTRON_H | {"moe_latent_size": 128})
    assert model.parts.experts == 8 * 2 * 128 * 64
    assert model.parts.dense_mlps == 2 * 2 * H * M + 2 * H * 96 + 2 * H * 128


MAMBA = {"mamba_n_heads": 16, "mamba_d_head": 32, "mamba_d_state": 16, "mamba_n_groups": 1, "mamba_d_conv": 4}


@pytest.mark.parametrize(
    "config",
    [
        BASE | MAMBA | {"model_type": "bamba", "attn_layer_indices": [1, 4]},
        BASE
        | MAMBA
        | {
            "model_type": "granitemoehybrid",
            "layer_types": ["mamba", "attention", "mamba", "mamba", "attention", "mamba"],
            "num_local_experts": 0,
            "shared_intermediate_size": M,
        },
    ],
    ids=["bamba", "granite"],
)
def test_mamba2_hybrids(config: dict[str, Any]) -> None:
    inner, mixed = 16 * 32, 16 * 32 + 2 * 16
    mamba = H * (inner + mixed + 16) + inner * H
    model = read(config)
    assert model.parts.mixers == 4 * mamba + 2 * ATTENTION
    assert model.parts.dense_mlps == L * GATED


ERNIE = BASE | {
    "model_type": "ernie4_5_moe", "moe_num_experts": 8, "moe_k": 2, "moe_intermediate_size": 32,
    "moe_num_shared_experts": 2,
}  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "sparse"),
    [({}, L - 1), ({"moe_layer_start_index": 0}, L), ({"moe_layer_end_index": 1}, 1), ({"moe_layer_interval": L}, 1)],
)
def test_ernie_has_experts_between_a_first_and_a_last_layer(fields: dict[str, int], sparse: int) -> None:
    groups = read(ERNIE | fields).groups
    assert sum(group.count for group in groups if isinstance(group.mlp, MoeMlp)) == sparse
    assert {group.mlp.shared_intermediate for group in groups if isinstance(group.mlp, MoeMlp)} == {2 * 32}


# --- towers -----------------------------------------------------------------------------------------------------------

SIGLIP = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "image_size": 56, "patch_size": 14}


def test_a_siglip_tower_is_counted() -> None:
    text = BASE | {"model_type": "gemma3_text"}
    model = read({"model_type": "gemma3", "text_config": text, "vision_config": SIGLIP})
    layer = 4 * (64 * 64 + 64) + 64 * 128 + 128 + 128 * 64 + 64 + 4 * 64
    patches = 3 * 14 * 14 * 64 + 64 + 16 * 64
    assert model.extra_parameters == patches + 2 * layer + 2 * 64 + 64 + 64 * H
    assert model.active_parameters == model.parameters - model.extra_parameters


def test_a_tower_that_cannot_be_counted_is_an_error_unless_the_count_is_given() -> None:
    config = {"model_type": "kimi_k25", "text_config": DEEPSEEK, "vision_config": {"vt_hidden_size": 8}}
    with pytest.raises(BadInput, match="vision_config"):
        read(config)
    given_count = read(config, extra_parameters=7)
    assert given_count.extra_parameters == 7


# --- precision --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dtype", "expected"), [("float16", "bf16"), ("bfloat16", "bf16"), ("float32", "fp32"), ("torch.float16", "bf16")]
)
def test_plain_checkpoints(dtype: str, expected: str) -> None:
    assert read(LLAMA | {"torch_dtype": dtype}).checkpoint == expected
    assert read(without(LLAMA, "torch_dtype") | {"dtype": dtype}).checkpoint == expected


QUANTISED_WRONGLY: list[tuple[object, str]] = [
    ({"quant_method": "magic"}, "quant_method"),
    ({}, "quant_method"),
    ({"quant_method": "gptq", "bits": 3}, "bits"),
    ({"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"}, "quantized_layers"),
    ({"quant_method": "bitsandbytes"}, "load_in_4bit"),
    ({"quant_method": "compressed-tensors"}, "config_groups"),
    ({"quant_method": "compressed-tensors", "config_groups": {}}, "config_groups"),
    ({"quant_method": "compressed-tensors", "config_groups": {"a": {}}}, "weights"),
    ("fp8", "quantization_config"),
]
MISSING = ["hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "max_position_embeddings"]
CONTRADICTIONS: list[tuple[dict[str, Any], str]] = [
    ({"num_key_value_heads": 3}, "num_key_value_heads"),
    ({"num_attention_heads": 7, "num_key_value_heads": 7}, "num_attention_heads"),
    ({"tie_word_embeddings": "yes"}, "tie_word_embeddings"),
    ({"torch_dtype": "float7"}, "torch_dtype"),
    ({"n_embd": 128}, "n_embd"),
    ({"experts_everywhere": True}, "experts_everywhere"),
    ({"num_experts": 8}, "num_experts"),
    ({"is_encoder_decoder": True}, "is_encoder_decoder"),
    ({"audio_config": {}}, "audio_config"),
    ({"layer_types": ["full_attention"]}, "layer_types"),
    ({"layer_types": ["odd_attention"] * L}, "layer_types"),
    ({"layer_types": ["sliding_attention"] * L}, "sliding_window"),
    *(({name: 4}, name) for name in ("num_memory_layers", "side_dim", "kv_groups", "expertcount")),
]
WRONG: list[tuple[dict[str, Any], str]] = [
    *((LLAMA | {"quantization_config": quantised}, field) for quantised, field in QUANTISED_WRONGLY),
    *((without(LLAMA, field), field) for field in MISSING),
    *((LLAMA | changes, field) for changes, field in CONTRADICTIONS),
    (GPT_OSS | {"num_experts_per_tok": 5}, "num_experts_per_tok"),
    (without(GPT_OSS, "num_local_experts"), "num_local_experts"),
    (without(DEEPSEEK, "q_lora_rank"), "q_lora_rank"),
    (without(DEEPSEEK, "kv_lora_rank"), "kv_lora_rank"),
    (NEMOTRON_H | {"hybrid_override_pattern": "M-*EMX"}, "hybrid_override_pattern"),
    (NEMOTRON_H | {"hybrid_override_pattern": "M-"}, "hybrid_override_pattern"),
    (QWEN3_NEXT | {"linear_num_key_heads": 3}, "linear_num_key_heads"),
    (QWEN3_NEXT | {"layer_types": ["linear_attention", "mamba"] * 4}, "layer_types"),
    ({"model_type": "llama4"}, "text_config"),
    ({"model_type": "llama4", "text_config": []}, "text_config"),
    ({"model_type": "llama4", "text_config": LLAMA4_TEXT | {"odd_size": 1}}, "text_config.odd_size"),
    ({"model_type": "gemma3", "text_config": {"model_type": "bert"}}, "text_config.model_type"),
    ({"model_type": 3}, "model_type"),
    ({}, "model_type"),
]


@pytest.mark.parametrize(("config", "field"), WRONG, ids=[f"{place} {field}" for place, (_, field) in enumerate(WRONG)])
def test_what_is_wrong_is_named_with_its_file(config: dict[str, Any], field: str) -> None:
    with pytest.raises(BadInput, match=f"{field}'") as caught:
        read(config)
    assert "dir/config.json" in str(caught.value.where)


@pytest.mark.parametrize("field", ["hidden_size", "num_attention_heads"])
@pytest.mark.parametrize(
    "value",
    ["4096", True, 4096.0, float("nan"), float("inf"), -1, 0, 10**9, 10**400, [], {}, [1]],
    ids=["string", "bool", "float", "nan", "inf", "negative", "zero", "huge", "absurd", "list", "object", "in a list"],
)
def test_an_impossible_size_is_named(field: str, value: object) -> None:
    caught = refused(read, LLAMA | {field: value})
    assert f"'{field}'" in str(caught)
    assert len(str(caught)) < 400


def test_an_unknown_architecture_suggests_what_could_read_it() -> None:
    fixes = {}
    for config in (LLAMA | {"private_head_count": 3}, LLAMA, DEEPSEEK):
        caught = refused(read, config | {"model_type": "lama"})
        fixes[len(config)] = str(caught.fix)
    assert all(known in fixes[len(LLAMA) + 1] for known in (*FAMILIES, *WRAPPERS))
    assert "built like llama" in fixes[len(LLAMA)]
    assert "built like deepseek_v" in fixes[len(DEEPSEEK)]


def test_a_config_is_read_as_the_family_that_is_asked_for() -> None:
    assert read(LLAMA | {"model_type": "my-own"}, as_family="llama").parameters == read(LLAMA).parameters
    assert refused(read, LLAMA, as_family="lama").field == "as_family"


def test_a_private_field_is_noted() -> None:
    model = read(LLAMA | {"my_org_tag": "prod-7", "run": {"seed": 1}})
    assert model.parameters == read(LLAMA).parameters
    (note,) = model.notes
    assert "'my_org_tag', 'run'" in note
    assert read(LLAMA).notes == ()


def test_fields_without_effect_on_cost_are_accepted() -> None:
    harmless = {
        "bos_token_id": 1, "rope_theta": 1e4, "rope_scaling": {"factor": 8}, "attention_dropout": 0.0,
        "use_cache": True, "transformers_version": "4.40.0", "architectures": ["LlamaForCausalLM"],
        "_name_or_path": "x", "_mine": 1, "unheard_of": None,
    }  # fmt: skip
    assert read(LLAMA | harmless) == read(LLAMA)


FILES = {
    "empty": b"", "cut off": b'{\n "hidden_size": 12', "list": b"[1, 2]", "string": b'"llama"',
    "binary": b"\xff\xfe\x00", "deep": b"[" * 100_000, "digits": b'{"hidden_size": ' + b"9" * 5000 + b"}",
    "nan": b'{"model_type": NaN}', "large": b" " * 10_000_001,
}  # fmt: skip


@pytest.mark.parametrize("content", FILES.values(), ids=FILES)
def test_a_wrong_file_says_where(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_bytes(content)
    assert str(file) in str(refused(read_config, file).where)


def test_a_missing_file_an_empty_directory_and_a_path_that_is_too_long_are_one_message(tmp_path: Path) -> None:
    for path in (tmp_path / "config.json", tmp_path, tmp_path / ("x" * 5000)):
        with pytest.raises(BadInput):
            read_config(path)


def test_a_byte_order_mark_does_not_matter(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA), encoding="utf-8-sig")
    assert read_config(tmp_path).layers == L


# --- laws -------------------------------------------------------------------------------------------------------------

EXAMPLES: list[dict[str, Any]] = [
    LLAMA,
    DEEPSEEK,
    GPT_OSS,
    QWEN3_NEXT,
    NEMOTRON_H,
    {"model_type": "llama4", "text_config": LLAMA4_TEXT},
    {"model_type": "gemma3", "text_config": BASE | {"model_type": "gemma3_text"}, "vision_config": SIGLIP},
    {"model_type": "falcon", "hidden_size": H, "num_hidden_layers": 2, "num_attention_heads": 8, "vocab_size": V},
]
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | st.sampled_from(["null", "auto"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
NAMES = sorted({name for example in EXAMPLES for name in example})


@given(
    st.sampled_from(EXAMPLES),
    st.sampled_from([*sorted(FAMILIES), *sorted(WRAPPERS)]) | st.none(),
    st.dictionaries(st.sampled_from([*NAMES, "layer_types", "head_dim", "sliding_window"]), VALUES, max_size=3),
    st.sets(st.sampled_from(NAMES), max_size=2),
)
@settings(deadline=None, max_examples=120, suppress_health_check=[HealthCheck.too_slow])
def test_no_mutation_of_a_real_config_causes_anything_but_a_clear_error(
    example: dict[str, Any], other_type: str | None, changes: dict[str, Any], dropped: set[str]
) -> None:
    config = without(example, *dropped) | changes
    if other_type:
        config["model_type"] = other_type
    try:
        model = read(config)
    except TokonomicsError:
        return
    assert model.parameters > 0
    assert model.flops_per_token > 0


@given(st.sampled_from(EXAMPLES[:5]), st.integers(1, 64))
def test_a_larger_vocabulary_adds_exactly_its_rows(example: dict[str, Any], more: int) -> None:
    copies = 2  # embedding and head, none of these ties them
    grown = read(example | {"vocab_size": V + more}).parameters - read(example).parameters
    assert grown == copies * more * H


def test_every_kind_of_block_is_in_the_examples() -> None:
    groups = [group for example in EXAMPLES for group in read(example).groups]
    kinds = {type(group.mixer) for group in groups} | {type(group.mlp) for group in groups}
    assert kinds >= {GroupedAttention, LatentAttention, RecurrentMixer, DenseMlp, MoeMlp}
