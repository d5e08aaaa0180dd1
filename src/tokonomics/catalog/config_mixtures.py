"""Families of mixtures of experts with attention in every layer: one row each."""

from dataclasses import replace
from functools import partial

from tokonomics.catalog.config_dense import QWEN3_ATTENTION
from tokonomics.catalog.config_family import BIAS, Family, attention, experts
from tokonomics.catalog.config_harmless import GRANITE_SCALES, MTP, names
from tokonomics.catalog.config_layers import (
    AttentionStyle,
    alternating_window,
    chunked_window,
    latent_attention,
    shared_count,
    shared_width,
    sparse_after_first,
    sparse_between,
    sparse_interleaved,
    sparse_step,
    uniform_window,
    window_above,
)
from tokonomics.catalog.config_mixed import (
    mimo_v2_mixers,
    step_mixers,
    step_mlps,
)
from tokonomics.catalog.config_sparse import (
    block_sparse_attention,
    compressed_attention,
    hashed_mixture,
    hyper_connected,
    indexed_latent_attention,
    joined_streams,
)

QWEN3_MOE = Family(
    QWEN3_ATTENTION,
    experts(experts=("num_experts", "num_local_experts"), sparse=sparse_step),
    expect={"qkv_bias": (False,), "shared_expert_intermediate_size": (0,), "use_qk_norm": (True,)},
)
QWEN_SHARED = shared_width("shared_expert_intermediate_size")
DEEPSEEK_MOE = experts(
    experts=("n_routed_experts", "num_local_experts"), sparse=sparse_after_first, shared=shared_count, router_bias=True
)
DEEPSEEK_V3 = Family(latent_attention, DEEPSEEK_MOE, expect={"mlp_bias": (False,)}, harmless=MTP)
MINIMAX_M3 = Family(
    partial(block_sparse_attention, style=AttentionStyle(head_dim=128, kv_heads=4, qk_norm="head")),
    experts(
        experts=("num_local_experts",),
        width="intermediate_size",
        dense_width="dense_intermediate_size",
        sparse=sparse_after_first,
        shared=lambda fields: (
            fields.size("n_shared_experts", default=1, least=0) * fields.size("shared_intermediate_size", default=0)
        ),
        router_bias=True,
    ),
    expect={
        "attention_output_gate": (False,),
        "qk_norm_type": ("per_head",),
        "use_qk_norm": (True,),
        "use_routing_bias": (True,),
    },
    harmless=MTP | names("moe_intermediate_size use_gemma_norm"),
)
STEP = Family(
    step_mixers,
    step_mlps,
    vocab=128815,
    context=128000,
    expect={"use_moe_router_bias": (True,), "use_moe": (True,), "use_head_wise_attn_gate": (True,)},
    harmless=MTP
    | names(
        """moe_router_scaling_factor moe_router_activation swiglu_limits swiglu_limits_shared query_pre_attn_scalar
        partial_rotary_factors"""
    ),
)

MIXTURES: dict[str, Family] = {
    "mixtral": Family(
        attention(kv_heads=8, windows=uniform_window(None)),
        experts(experts=("num_local_experts",), width="intermediate_size", dense_width=None),
    ),
    "qwen2_moe": Family(
        attention(qkv_bias=("qkv_bias", True), windows=window_above),
        experts(experts=("num_experts",), sparse=sparse_step, shared=QWEN_SHARED, shared_gate=True),
    ),
    "qwen3_moe": QWEN3_MOE,
    "llama4_text": Family(
        attention(head_dim=128, kv_heads=8, qkv_bias=BIAS, out_bias=BIAS, windows=chunked_window),
        experts(
            experts=("num_local_experts",),
            width="intermediate_size",
            dense_width="intermediate_size_mlp",
            sparse=sparse_interleaved,
            shared=shared_width("intermediate_size"),
        ),
        harmless=names("use_qk_norm attn_temperature_tuning floor_scale attn_scale for_llm_compressor"),
    ),
    "gpt_oss": Family(
        attention(
            head_dim=64,
            kv_heads=8,
            qkv_bias=("attention_bias", True),
            out_bias=("attention_bias", True),
            sinks=True,
            windows=alternating_window(128, 2),
        ),
        experts(
            experts=("num_local_experts", "num_experts"),
            active=("num_experts_per_tok", "experts_per_token"),
            width="intermediate_size",
            dense_width=None,
            expert_bias=True,
            router_bias=True,
        ),
        harmless=names("initial_context_length"),
    ),
    "deepseek_v2": replace(
        DEEPSEEK_V3, mlps=experts(experts=("n_routed_experts",), sparse=sparse_after_first, shared=shared_count)
    ),
    "deepseek_v3": DEEPSEEK_V3,
    "kimi_k2": DEEPSEEK_V3,
    "deepseek_v32": replace(DEEPSEEK_V3, mixers=indexed_latent_attention),
    "glm_moe_dsa": replace(
        DEEPSEEK_V3,
        mixers=indexed_latent_attention,
        harmless=MTP
        | names(
            """indexer_rope_interleave index_share_for_mtp_iteration index_skip_topk_offset index_topk_freq
            moe_router_dtype"""
        ),
    ),
    "deepseek_v4": Family(
        compressed_attention,
        hashed_mixture,
        norms=hyper_connected,
        once=joined_streams,
        harmless=MTP | names("compress_rope_theta hc_eps hc_sinkhorn_iters qk_rope_head_dim"),
    ),
    "glm4_moe": Family(
        attention(qkv_bias=BIAS, qk_norm="head", qk_norm_when=("use_qk_norm", False)), DEEPSEEK_MOE, harmless=MTP
    ),
    "ernie4_5_moe": Family(
        attention(kv_heads=4),
        experts(
            experts=("moe_num_experts",),
            active=("moe_k",),
            sparse=sparse_between,
            shared=shared_count,
            router_bias=True,
        ),
        tied=True,
        vocab=103424,
        context=131072,
        expect={"use_bias": (False,)},
        harmless=MTP | names("moe_norm_min"),
    ),
    "minimax_m2": Family(
        attention(head_dim=128, kv_heads=8, qk_norm="width", qk_norm_when=("use_qk_norm", True)),
        experts(experts=("num_local_experts",), width="intermediate_size", dense_width=None, router_bias=True),
        expect={"use_routing_bias": (True,), "qk_norm_type": ("per_layer",), "shared_intermediate_size": (0,)},
        harmless=MTP
        | names(
            """attn_type_list shared_moe_mode layernorm_full_attention_beta layernorm_linear_attention_beta
            layernorm_mlp_beta postnorm max_model_len"""
        ),
    ),
    "minimax_m3": MINIMAX_M3,
    "minimax_m3_vl_text": MINIMAX_M3,
    "mimo_v2_flash": Family(
        mimo_v2_mixers,
        experts(experts=("n_routed_experts",), sparse=sparse_after_first, shared=shared_count, router_bias=True),
        harmless=MTP | names("swa_rope_theta attention_value_scale layernorm_epsilon"),
    ),
    "step3p7": STEP,
    "step3p5": STEP,
    "phimoe": Family(
        attention(qkv_bias=BIAS, out_bias=BIAS, kv_heads=8, windows=uniform_window(None)),
        experts(experts=("num_local_experts",), width="intermediate_size", dense_width=None),
        norm_bias=True,
        head_bias=("lm_head_bias", False),
        harmless=names("input_jitter_noise"),
    ),
    "olmoe": Family(
        attention(qkv_bias=BIAS, out_bias=BIAS, qk_norm="width"),
        experts(experts=("num_experts",), width="intermediate_size", dense_width=None),
        harmless=names("clip_qkv"),
    ),
    "granitemoe": Family(
        attention(qkv_bias=BIAS, out_bias=BIAS),
        experts(experts=("num_local_experts",), width="intermediate_size", dense_width=None),
        harmless=GRANITE_SCALES,
    ),
}
