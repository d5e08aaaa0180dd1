"""Families with recurrent layers, alone or between layers of attention: one row each."""

from functools import partial

from tokonomics.catalog.config_family import BIAS, Family, experts, mlp
from tokonomics.catalog.config_harmless import GRANITE_SCALES, MAMBA_HARMLESS, MTP, names
from tokonomics.catalog.config_layers import (
    AttentionStyle,
    sparse_period,
    sparse_step,
    uniform_window,
)
from tokonomics.catalog.config_mixtures import QWEN_SHARED
from tokonomics.catalog.config_recurrent import (
    bamba_mixers,
    delta_net_hybrid,
    granite_hybrid_mlps,
    granite_mixers,
    jamba_mixers,
    kimi_last_residual,
    kimi_linear_mixers,
    kimi_linear_mlps,
    kimi_norms,
    nemotron_mixers,
    nemotron_mlps,
    nemotron_pattern,
    no_mlps,
    pure_mamba,
    pure_mamba2,
)

GATED_ATTENTION = AttentionStyle(head_dim=256, qkv_bias=BIAS, out_bias=BIAS, qk_norm="head", gate=True)
DELTA_NET = partial(delta_net_hybrid, style=GATED_ATTENTION)
QWEN_FIXED: dict[str, tuple[object, ...]] = {"attn_output_gate": (True,)}
PURE_CONTEXT = 1 << 20  # a state of fixed size sets no limit: as far as models are evaluated
PURE_MAMBA = MAMBA_HARMLESS | names(
    """d_inner d_model fused_add_norm n_layer pad_vocab_size_multiple rms_norm ssm_cfg time_step_init_scheme
    time_step_scale norm_before_gate"""
)

HYBRIDS: dict[str, Family] = {
    "qwen3_next": Family(
        DELTA_NET,
        experts(experts=("num_experts",), sparse=sparse_step, shared=QWEN_SHARED, shared_gate=True),
        expect=QWEN_FIXED,
        harmless=MTP,
    ),
    "qwen3_5_text": Family(DELTA_NET, expect=QWEN_FIXED, harmless=MTP | names("mlp_only_layers")),
    "qwen3_5_moe_text": Family(
        DELTA_NET,
        experts(experts=("num_experts",), dense_width=None, shared=QWEN_SHARED, shared_gate=True),
        expect=QWEN_FIXED | {"mlp_only_layers": ([],)},
        harmless=MTP,
    ),
    "nemotron_h": Family(
        partial(
            nemotron_mixers,
            style=AttentionStyle(head_dim=128, qkv_bias=BIAS, out_bias=BIAS, windows=uniform_window(None)),
        ),
        nemotron_mlps,
        norms=1,
        depth=lambda fields: len(nemotron_pattern(fields)),
        harmless=MTP
        | MAMBA_HARMLESS
        | names(
            """intermediate_size mlp_bias moe_intermediate_size moe_shared_expert_intermediate_size n_routed_experts
            n_shared_experts num_experts_per_tok moe_latent_size layers_block_type attention_head_dim"""
        ),
    ),
    "bamba": Family(
        partial(bamba_mixers, style=AttentionStyle(kv_heads=8, qkv_bias=BIAS, out_bias=BIAS)),
        mlp(bias=("mlp_bias", False)),
        harmless=MAMBA_HARMLESS | names("num_attention_heads_per_group"),
    ),
    "granitemoehybrid": Family(
        partial(granite_mixers, style=AttentionStyle(qkv_bias=BIAS, out_bias=BIAS)),
        granite_hybrid_mlps,
        harmless=MAMBA_HARMLESS | GRANITE_SCALES,
    ),
    "jamba": Family(
        jamba_mixers,
        experts(experts=("num_experts",), width="intermediate_size", sparse=sparse_period, single_is_dense=True),
        expect={"mamba_inner_layernorms": (True,)},
        harmless=MAMBA_HARMLESS,
    ),
    "kimi_linear": Family(
        kimi_linear_mixers,
        kimi_linear_mlps,
        norms=kimi_norms,
        once=kimi_last_residual,
        harmless=MTP
        | names(
            """activation_situ_beta activation_situ_linear_beta moe_renormalize moe_router_activation_func
            num_expert_group use_grouped_topk"""
        ),
    ),
    "mamba": Family(pure_mamba, no_mlps, norms=1, tied=True, context=PURE_CONTEXT, harmless=PURE_MAMBA),
    "mamba2": Family(pure_mamba2, no_mlps, norms=1, context=PURE_CONTEXT, harmless=PURE_MAMBA),
}
