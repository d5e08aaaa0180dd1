"""Layers that read part of their cache, keep a state, or differ from one another: counted matrix by matrix."""

from typing import Any

import pytest
from tests.catalog.read_configs import LATENT_MIXTURE, mixers_of, read, small

from tokonomics.catalog.layers import (
    CompressedAttention,
    DenseMlp,
    GroupedAttention,
    LatentAttention,
    MoeMlp,
    Precision,
    RecurrentMixer,
)
from tokonomics.catalog.load_models import find_model
from tokonomics.errors import BadInput

BF16 = Precision.bf16
H, L, V = 256, 4, 1000
BASE = small(L, tie_word_embeddings=False)


# --- indexers ---------------------------------------------------------------------------------------------------------

LATENT = BASE | LATENT_MIXTURE | {"model_type": "deepseek_v3"}
INDEXED = LATENT | {"model_type": "deepseek_v32", "index_n_heads": 4, "index_head_dim": 16, "index_topk": 32}
INDEXER = 96 * 4 * 16 + H * (16 + 4) + 2 * 16  # queries from the rank, a key and a weight per head, the keys' norm


def test_an_indexer_adds_its_matrices_and_a_small_key_to_every_layer() -> None:
    plain, indexed = read(LATENT), read(INDEXED)
    assert indexed.parameters - plain.parameters == L * INDEXER
    kept = 16 * (1 + 4 / 128)  # FP8 with a 32-bit scale for each 128
    assert indexed.kv_bytes_per_token(BF16) == round(plain.kv_bytes_per_token(BF16) + L * kept)
    (attention, *_) = mixers_of(indexed)
    assert [cache.read for cache in attention.caches] == [32, None]


def test_glm_5_2_shares_the_choice_of_a_layer_with_those_after_it() -> None:
    told = {"model_type": "glm_moe_dsa", "indexer_types": ["full", "shared", "shared", "full"], "head_dim": 48}
    kinds = {"mlp_layer_types": ["dense", "dense", "sparse", "sparse"]}
    model = read(INDEXED | told | kinds)
    mixers = mixers_of(model)
    assert [mixer.indexer is not None for mixer in mixers] == [True, False, False, True]
    assert all(mixer.topk == 32 for mixer in mixers)
    assert sum(group.count for group in model.groups if isinstance(group.mlp, DenseMlp)) == 2
    with pytest.raises(BadInput, match="indexer_types"):
        read(INDEXED | told | {"indexer_types": ["full", "odd", "full", "full"]})


def test_minimax_m3_chooses_blocks_in_its_sparse_layers() -> None:
    sparse = {
        "use_sparse_attention": True, "sparse_attention_freq": [0, 1, 1, 1], "sparse_disable_index_value": [0, 1, 1, 1],
        "sparse_block_size": 8, "sparse_topk_blocks": 3, "sparse_num_index_heads": 2, "sparse_index_dim": 16,
    }  # fmt: skip
    config = BASE | {
        "model_type": "minimax_m3", "num_key_value_heads": 2, "head_dim": 32, "dense_intermediate_size": 640,
        "intermediate_size": 128, "shared_intermediate_size": 128, "moe_layer_freq": [0, 1, 1, 1],
        "num_local_experts": 8, "num_experts_per_tok": 2, "sparse_attention_config": sparse,
    }  # fmt: skip
    model = read(config)
    attention = H * (8 + 2 + 2) * 32 + 8 * 32 * H + 2 * 32
    indexer = H * 2 * 16 + H * 16 + 2 * 16
    moe = (8 + 1) * 3 * H * 128 + H * 8 + 8
    blocks = L * (attention + 2 * H) + 3 * indexer + 3 * H * 640 + 3 * moe
    assert model.parameters == 2 * V * H + blocks + H
    assert [mixer.topk for mixer in mixers_of(model)] == [None, 24, 24, 24]
    with pytest.raises(BadInput, match="sparse_disable_index_value"):
        read(config | {"sparse_attention_config": sparse | {"sparse_disable_index_value": [0, 0, 1, 1]}})


def test_deepseek_v4_keeps_a_window_and_compressed_rows() -> None:
    config = BASE | {
        "model_type": "deepseek_v4", "head_dim": 64, "num_key_value_heads": 1, "q_lora_rank": 96, "o_groups": 2,
        "o_lora_rank": 48, "sliding_window": 16, "compress_ratios": [0, 4, 128, 4, 0], "index_n_heads": 4,
        "index_head_dim": 16, "index_topk": 8, "moe_intermediate_size": 128, "n_routed_experts": 8,
        "n_shared_experts": 1, "num_experts_per_tok": 2, "num_hash_layers": 1, "hc_mult": 4,
    }  # fmt: skip
    config.pop("intermediate_size")
    model = read(config)
    mixers = mixers_of(model)
    assert all(isinstance(mixer, CompressedAttention) for mixer in mixers)
    assert sorted((mixer.every or 0, mixer.topk or 0) for mixer in mixers) == [(0, 0), (4, 8), (4, 8), (128, 0)]
    query = H * 96 + 96 * 8 * 64 + 96
    out = 2 * 48 * (8 * 64 // 2) + H * 2 * 48
    attention = query + H * 64 + 64 + out + 8
    four = 2 * 2 * 64 * H + 4 * 128 + 64  # keys and gates, twice for the overlap; a bias by place; a norm
    index = 96 * 4 * 16 + H * (4 * 16 + 4) + 4 * 32 + 16
    long = 2 * 64 * H + 128 * 64 + 64
    moe = 9 * 3 * H * 128 + H * 8
    hyper = 2 * (24 * 4 * H + 24 + 3)
    layer = attention + moe + hyper + 2 * H
    head = 4 * 4 * H + 4 + 1
    assert model.parameters == 2 * V * H + L * layer + 2 * (four + index) + long + 3 * 8 + H + head
    # Of one more token: a row of the window in every layer; a quarter of a row and of a key, and a 128th of a row.
    expected = 4 * 64 * 2 + 2 * (64 * 2 + 16 * (1 + 4 / 128)) / 4 + 64 * 2 / 128
    assert model.kv_bytes_in_windows(BF16) == round(expected)
    # What every token adds, however long the sequence, is all but the windows.
    assert model.kv_bytes_per_token(BF16) == round(expected - 4 * 64 * 2)
    (window,) = model.windows
    assert model.kv_constant_bytes(BF16) == 4 * 64 * 2 * window


# --- layers that differ -----------------------------------------------------------------------------------------------


def gemma4(**more: Any) -> dict[str, Any]:
    plain = {"model_type": "gemma4_text", "num_key_value_heads": 2, "head_dim": 32, "global_head_dim": 64}
    kinds = ["sliding_attention", "full_attention"] * 2
    return BASE | plain | {"layer_types": kinds, "sliding_window": 16, "hidden_size_per_layer_input": 0} | more


def gemma4_attention(head_dim: int, kv: int) -> int:
    return H * (8 + kv) * head_dim + 8 * head_dim * H + (2 if kv else 1) * head_dim


def test_gemma_4_has_wider_heads_in_full_layers_and_may_use_keys_as_values() -> None:
    dense = L * (3 * H * 640 + 4 * H) + 2 * V * H + H
    apart = 2 * gemma4_attention(32, 4) + 2 * gemma4_attention(64, 4)
    assert read(gemma4()).parameters == dense + apart
    shared = read(gemma4(attention_k_eq_v=True, num_global_key_value_heads=1))
    assert shared.parameters == dense + 2 * gemma4_attention(32, 4) + 2 * gemma4_attention(64, 1)
    # Keys and values are cached both, though one projection makes them.
    assert shared.kv_bytes_in_windows(BF16) == 2 * 2 * (2 * 2 * 32 + 2 * 1 * 64)


@pytest.mark.parametrize(
    ("key", "windowed", "full"),
    [
        # Layers that keep keys and values, their tokens within the window, and heads times their width.
        ("gemma-4-26b-a4b", (25, 1024, 8 * 256), (5, 2 * 512)),
        ("gemma-4-31b", (50, 1024, 16 * 256), (10, 4 * 512)),
        ("gemma-4-e4b", (20, 512, 2 * 256), (4, 2 * 512)),  # 18 of its 42 layers read those of others
        ("gemma-4-e2b", (12, 512, 256), (3, 512)),  # 20 of 35
    ],
)
def test_gemma_4_keeps_windows_and_few_layers_that_grow(
    key: str, windowed: tuple[int, int, int], full: tuple[int, int]
) -> None:
    """Where keys are values (vLLM 0.26, ``models/gemma4.py``) both are kept: only the keys are rotated."""
    model = find_model(key)
    assert model.kv_bytes_per_token(Precision.bf16) == full[0] * 2 * full[1] * 2
    assert model.kv_constant_bytes(Precision.bf16) == windowed[0] * windowed[1] * 2 * windowed[2] * 2
    published = model.published
    assert published is not None
    assert model.parameters == published.parameters


def test_gemma_4_borrows_keys_widens_blocks_and_gives_each_layer_an_input() -> None:
    told = {"num_kv_shared_layers": 2, "use_double_wide_mlp": True, "hidden_size_per_layer_input": 16}
    model = read(gemma4(**told))
    own = gemma4_attention(32, 4) + gemma4_attention(64, 4)
    borrowed = gemma4_attention(32, 0) + gemma4_attention(64, 0)
    blocks = 2 * 3 * H * 640 + 2 * 3 * H * 1280 + L * 4 * H
    inputs = V * L * 16 + L * (3 * H * 16 + H) + 16
    config = gemma4(**told, vocab_size_per_layer_input=V)
    assert read(config).parameters == 2 * V * H + own + borrowed + blocks + inputs + H
    assert model.kv_bytes_in_windows(BF16) == 2 * 2 * 2 * (32 + 64)


def test_gemma_4_has_experts_beside_its_dense_block() -> None:
    told = {"enable_moe_block": True, "num_experts": 8, "top_k_experts": 2, "moe_intermediate_size": 128}
    model = read(gemma4(**told))
    (mlp,) = {id(group.mlp): group.mlp for group in model.groups}.values()
    assert isinstance(mlp, MoeMlp)
    assert (mlp.shared_intermediate, mlp.active_experts) == (640, 2)
    extra = 8 * 3 * H * 128 + 8 * H + 8 + H + 3 * H  # experts, router, its scales, three more norms
    assert model.parameters - read(gemma4()).parameters == L * extra


def test_mimo_v2_has_narrow_values_and_more_key_heads_in_sliding_layers() -> None:
    config = BASE | {
        "model_type": "mimo_v2_flash", "num_key_value_heads": 2, "head_dim": 48, "v_head_dim": 32,
        "swa_num_key_value_heads": 4, "hybrid_layer_pattern": [0, 1, 1, 0], "sliding_window": 16,
        "add_swa_attention_sink_bias": True, "moe_layer_freq": [0, 1, 1, 1], "moe_intermediate_size": 128,
        "n_routed_experts": 8, "num_experts_per_tok": 2,
    }  # fmt: skip
    model = read(config)
    full, sliding = (H * (8 * 48 + kv * 80) + 8 * 32 * H for kv in (2, 4))
    moe = 8 * 3 * H * 128 + 8 * H + 8
    assert model.parameters == 2 * V * H + 2 * full + 2 * (sliding + 8) + 3 * H * 640 + 3 * moe + L * 2 * H + H
    assert model.kv_bytes_in_windows(BF16) == 2 * (2 * 2 * 80 + 2 * 4 * 80)
    assert sorted(mixer.window or 0 for mixer in mixers_of(model)) == [0, 0, 16, 16]


def test_step_gates_each_head_and_has_more_heads_in_sliding_layers() -> None:
    config = BASE | {
        "model_type": "step3p7",
        "num_key_value_heads": 2,
        "head_dim": 32,
        "layer_types": ["full_attention", "sliding_attention"] * 3,  # two more than layers: of the drafts
        "sliding_window": 16,
        "attention_other_setting": {"num_attention_heads": 12},
        "first_k_dense_replace": 1,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 128,
        "share_expert_dim": 128,
    }
    full, sliding = (H * (heads + 4) * 32 + heads * 32 * H + heads * H + 2 * 32 for heads in (8, 12))
    moe = 9 * 3 * H * 128 + 8 * H + 8
    assert read(config).parameters == 2 * V * H + 2 * full + 2 * sliding + 3 * H * 640 + 3 * moe + L * 2 * H + H


def test_nemotron_nas_has_layers_with_parts_of_their_own() -> None:
    blocks = [
        {"attention": {"n_heads_in_group": 4}, "ffn": {"ffn_mult": 1.5}},
        {"attention": {"no_op": True, "n_heads_in_group": None}, "ffn": {"ffn_mult": 3.0}},
        {"attention": {"n_heads_in_group": 8}, "ffn": {"no_op": True, "ffn_mult": None}},
        {"attention": {"n_heads_in_group": 4}, "ffn": {"ffn_mult": 1.5}},
    ]
    config = BASE | {"model_type": "nemotron-nas", "intermediate_size": None, "block_configs": blocks}
    model = read(config)
    two, one = (H * (8 + 2 * kv) * 32 + 8 * 32 * H for kv in (2, 1))
    ffn = 2 * 3 * H * 256 + 3 * H * 512
    assert model.parameters == 2 * V * H + 2 * two + one + ffn + 6 * H + H
    assert model.kv_bytes_per_token(BF16) == 2 * 2 * 32 * (2 + 2 + 1)
    for wrong in ({"attention": {"replace_with_linear": True}, "ffn": {"ffn_mult": 1}}, {"ffn": {"ffn_mult": 1}}):
        with pytest.raises(BadInput, match="block_configs"):
            read(config | {"block_configs": [*blocks[:3], wrong]})


# --- states -----------------------------------------------------------------------------------------------------------


def test_kimi_k3_mixes_delta_attention_with_gated_latent_attention_and_latent_experts() -> None:
    config = LATENT | {
        "model_type": "kimi_linear",
        "linear_attn_config": {
            "full_attn_layers": [4], "kda_layers": [1, 2, 3], "head_dim": 32, "num_heads": 4,
            "short_conv_kernel_size": 4, "use_full_rank_gate": True,
        },
        "mla_use_output_gate": True,
        "attn_res_block_size": 2,
        "num_experts": 8,
        "num_experts_per_token": 2,
        "num_shared_experts": 2,
        "routed_expert_hidden_size": 64,
        "latent_moe_use_norm": True,
    }  # fmt: skip
    for name in ("n_routed_experts", "n_shared_experts", "num_experts_per_tok"):
        config.pop(name)
    model = read(config)
    width = 4 * 32
    delta = 4 * H * width + H * 4 + (H * 32 + 32 * width) + H * width + 3 * width * 4 + 4 + width + 32
    latent = H * 96 + 96 + 96 * 8 * 48 + H * (64 + 16) + 64 + 64 * 8 * 64 + 2 * 8 * 32 * H
    moe = 8 * 3 * 64 * 128 + 2 * H * 64 + 64 + 3 * H * 256 + 8 * H + 8
    assert model.parameters == 2 * V * H + 3 * delta + latent + 3 * H * 640 + 3 * moe + L * 6 * H + H + 2 * H
    assert model.kv_bytes_per_token(BF16) == (64 + 16) * 2
    assert model.state_bytes == 3 * (4 * 4 * 32 * 32 + 2 * 3 * width * 3)
    assert any(isinstance(mixer, LatentAttention) and mixer.output_gate for mixer in mixers_of(model))


def test_mamba_scans_in_the_chunks_that_its_config_says() -> None:
    config = {"model_type": "mamba2", "hidden_size": H, "num_hidden_layers": 2, "vocab_size": V, "num_heads": 8,
              "head_dim": 64, "state_size": 16, "n_groups": 2, "expand": 2, "conv_kernel": 4}  # fmt: skip
    short, long = read(config | {"chunk_size": 64}), read(config | {"chunk_size": 256})
    inner, mixed = 512, 512 + 2 * 2 * 16
    layer = H * (inner + mixed + 8) + inner * H + mixed * 5 + 3 * 8 + inner + H
    assert short.parameters == 2 * V * H + 2 * layer + H
    (one,), (other,) = ({mixer.scan_flops for mixer in mixers_of(model)} for model in (short, long))
    assert other - one == 8 * 2 * (256 - 64) * (16 + 64)
    assert short.kv_bytes_per_token(BF16) == 0
    assert all(isinstance(mixer, RecurrentMixer) for mixer in mixers_of(short))


def test_pure_mamba_by_hand() -> None:
    config = {"model_type": "mamba", "hidden_size": H, "num_hidden_layers": 2, "vocab_size": V, "state_size": 16}
    inner, rank = 512, 16
    layer = inner * (2 * H + rank + 32 + rank + H) + inner * 5 + inner * (1 + 16 + 1) + H
    assert read(config).parameters == V * H + 2 * layer + H


# --- others -----------------------------------------------------------------------------------------------------------


def test_cohere_2_has_one_norm_and_a_full_layer_in_four() -> None:
    model = read(BASE | {"model_type": "cohere2", "num_key_value_heads": 2, "sliding_window": 16})
    attention = H * (8 + 2 + 2) * 32 + 8 * 32 * H
    assert model.parameters == 2 * V * H + L * (attention + 3 * H * 640 + H) + H
    assert [mixer.window for mixer in mixers_of(model) if isinstance(mixer, GroupedAttention)].count(None) == 1


def test_qwen_2_5_vl_is_read_flat_as_it_was_first_published() -> None:
    vision = {"depth": 2, "hidden_size": 64, "intermediate_size": 96, "out_hidden_size": H, "patch_size": 14}
    text = BASE | {"model_type": "qwen2_5_vl", "num_key_value_heads": 2}
    flat = read(text | {"vision_config": vision})
    inside = {name: value for name, value in text.items() if name not in ("model_type", "tie_word_embeddings")}
    nested = read(
        {"model_type": "qwen2_5_vl", "text_config": inside, "vision_config": vision, "tie_word_embeddings": False}
    )
    assert flat.parameters == nested.parameters
    layer = 4 * (64 * 64 + 64) + 3 * 64 * 96 + 2 * 96 + 64 + 2 * 64
    tower = 3 * 2 * 14 * 14 * 64 + 2 * layer + 64 + 256 * 256 + 256 + 256 * H + H
    assert flat.extra_parameters == tower
