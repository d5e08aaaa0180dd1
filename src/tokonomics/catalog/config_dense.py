"""Families whose every token passes every weight: one row each."""

from dataclasses import replace
from functools import partial

from tokonomics.catalog.config_family import BIAS, NOT_BIDIRECTIONAL, Family, attention, mlp
from tokonomics.catalog.config_fields import Fields
from tokonomics.catalog.config_harmless import GRANITE_SCALES, MTP, names
from tokonomics.catalog.config_layers import (
    AttentionStyle,
    alternating_window,
    falcon_attention,
    grouped_attention,
    uniform_window,
    window_above,
)
from tokonomics.catalog.config_mixed import (
    gemma4_mixers,
    gemma4_mlps,
    gemma4_norms,
    layer_input,
    layer_input_table,
    nas_mixers,
    nas_mlps,
)

LLAMA = Family(
    attention(qkv_bias=BIAS, out_bias=BIAS, windows=uniform_window(None)), mlp(bias=("mlp_bias", False)), vocab=32000
)
MISTRAL = Family(attention(kv_heads=8, windows=uniform_window(4096)))
QWEN3_ATTENTION = attention(head_dim=128, qkv_bias=BIAS, out_bias=BIAS, qk_norm="head", windows=window_above)
GPT_SUMMARY = names("summary_type summary_use_proj summary_activation summary_proj_to_labels summary_first_dropout")
GPT_NAMES_MLP = mlp(gated=False, bias=True, widths=("n_inner",), default_ratio=4)
GEMMA2_ATTENTION = AttentionStyle(
    heads=8, kv_heads=4, head_dim=256, qkv_bias=BIAS, out_bias=BIAS, windows=alternating_window(4096, 2)
)
GEMMA2 = Family(
    partial(grouped_attention, style=GEMMA2_ATTENTION),
    norms=4,
    tied=True,
    vocab=256000,
    context=8192,
    expect=NOT_BIDIRECTIONAL,
    harmless=names("query_pre_attn_scalar final_logit_softcapping attn_logit_softcapping cache_implementation"),
)
QWEN2_VL = Family(attention(qkv_bias=True, windows=window_above), harmless=names("vision_token_id"))


def falcon_norms(fields: Fields) -> int:
    """One norm before parallel attention and MLP; two in the new decoder or when they run one after the other."""
    grouped, parallel = fields.flag("new_decoder_architecture", False), fields.flag("parallel_attn", True)
    given = fields.optional_size("num_ln_in_parallel_attn", most=2)
    return (given or 2) if grouped else 1 if parallel else 2


DENSE: dict[str, Family] = {
    "llama": LLAMA,
    "mistral": MISTRAL,
    "ministral3": replace(MISTRAL, mixers=attention(head_dim=128, kv_heads=8, windows=uniform_window(None))),
    "qwen2": Family(attention(qkv_bias=True, windows=window_above)),
    "qwen3": Family(QWEN3_ATTENTION),
    "gemma": Family(
        attention(head_dim=256, qkv_bias=BIAS, out_bias=BIAS),
        tied=True,
        vocab=256000,
        context=8192,
        expect=NOT_BIDIRECTIONAL,
    ),
    "gemma2": GEMMA2,
    "gemma3_text": replace(
        GEMMA2,
        mixers=partial(
            grouped_attention, style=replace(GEMMA2_ATTENTION, qk_norm="head", windows=alternating_window(4096, 6))
        ),
        vocab=262208,
        context=131072,
    ),
    "phi": Family(
        attention(qkv_bias=True, out_bias=True, qk_norm="head_with_bias", qk_norm_when=("qk_layernorm", False)),
        mlp(gated=False, bias=True),
        norms=1,
        norm_bias=True,
        head_bias=True,
    ),
    "phi3": Family(
        attention(windows=uniform_window(None)),
        expect={"attention_bias": (False,), "mlp_bias": (False,), "lm_head_bias": (False,), "full_attn_mod": (1,)},
        harmless=names("interpolate_factor"),
    ),
    "falcon": Family(
        falcon_attention,
        mlp(gated=False, bias=("bias", False), widths=("ffn_hidden_size",), default_ratio=4),
        norms=falcon_norms,
        norm_bias=True,
        tied=True,
        context=2048,
        harmless=names("alibi apply_residual_connection_post_layernorm num_kv_heads"),
    ),
    "gptj": Family(
        attention(grouped=False), GPT_NAMES_MLP, norms=1, norm_bias=True, head_bias=True, harmless=GPT_SUMMARY
    ),
    "gpt2": Family(
        attention(grouped=False, qkv_bias=True, out_bias=True),
        GPT_NAMES_MLP,
        norm_bias=True,
        tied=True,
        learned_positions=0,
        expect={"add_cross_attention": (False,)},
        harmless=GPT_SUMMARY | names("n_ctx scale_attn_by_inverse_layer_idx reorder_and_upcast_attn"),
    ),
    "gpt_neox": Family(
        attention(grouped=False, qkv_bias=("attention_bias", True), out_bias=("attention_bias", True)),
        mlp(gated=False, bias=True),
        norm_bias=True,
        harmless=names("use_parallel_residual"),
    ),
    "opt": Family(
        attention(grouped=False, qkv_bias=("enable_bias", True), out_bias=("enable_bias", True)),
        mlp(gated=False, bias=("enable_bias", True), widths=("ffn_dim",)),
        norm_bias=True,
        tied=True,
        learned_positions=2,
        final_norm=("do_layer_norm_before", True),
        expect={"layer_norm_elementwise_affine": (True,), "_remove_final_layer_norm": (False,)},
        harmless=names("dropout"),
    ),
    "starcoder2": Family(
        attention(kv_heads=2, qkv_bias=("use_bias", True), out_bias=("use_bias", True), windows=uniform_window(None)),
        mlp(gated=False, bias=("use_bias", True)),
        norm_bias=True,
        tied=True,
        harmless=names("mlp_type norm_type attention_softmax_in_fp32 scale_attention_softmax_in_fp32"),
    ),
    "granite": Family(attention(qkv_bias=BIAS, out_bias=BIAS), mlp(bias=("mlp_bias", False)), harmless=GRANITE_SCALES),
    "olmo2": Family(attention(qkv_bias=BIAS, out_bias=BIAS, qk_norm="width")),
    "cohere": Family(
        attention(qkv_bias=BIAS, out_bias=BIAS, qk_norm="width", qk_norm_when=("use_qk_norm", False)),
        norms=1,
        tied=True,
        harmless=names("logit_scale"),
    ),
    "glm4": Family(attention(head_dim=128, qkv_bias=("attention_bias", True)), norms=4),
    "cohere2": Family(
        attention(qkv_bias=BIAS, out_bias=BIAS, windows=alternating_window(4096, 4)),
        norms=1,
        tied=True,
        context=8192,
        expect={"use_qk_norm": (False,)},
        harmless=names(
            """logit_scale order_of_interleaved_layers position_embedding_type use_embedding_sharing
            use_gated_activation use_parallel_block use_parallel_embedding"""
        ),
    ),
    "mimo": Family(attention(qkv_bias=("attention_bias", True), windows=window_above), harmless=MTP),
    "nemotron-nas": Family(nas_mixers, nas_mlps, norms=0),
    "gemma4_text": Family(
        gemma4_mixers,
        gemma4_mlps,
        norms=gemma4_norms,
        tied=True,
        vocab=262144,
        context=131072,
        tables=layer_input_table,
        once=lambda fields, frame: layer_input(fields),  # a norm
        expect={"use_bidirectional_attention": (False, "vision")},
        harmless=names("final_logit_softcapping vocab_size_per_layer_input"),
    ),
    "smollm3": Family(
        attention(kv_heads=4, qkv_bias=BIAS, out_bias=BIAS, windows=window_above),
        mlp(bias=("mlp_bias", False)),
        tied=True,
        harmless=names("no_rope_layers no_rope_layer_interval"),
    ),
    "seed_oss": Family(
        attention(head_dim=128, qkv_bias=("attention_bias", True), out_bias=("attention_out_bias", False)),
        mlp(bias=("mlp_bias", False)),
    ),
}
