"""One row per model family: how its layers are built, and which of its fields leave the cost unchanged.

A family is what ``model_type`` names. Adding one is adding a row (and, for a new kind of layer, a function in
``config_layers`` or ``config_recurrent``); ``benchmarks/check_parameters.py`` compares the counts with transformers.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from tokonomics.catalog.config_encoders import (
    BERT_HARMLESS,
    MODERN_HARMLESS,
    NOMIC_HARMLESS,
    Encoder,
    no_head,
    pooled_head,
    windows_between,
)
from tokonomics.catalog.config_fields import Fields
from tokonomics.catalog.config_harmless import GRANITE_SCALES, MAMBA_HARMLESS, MTP, names
from tokonomics.catalog.config_layers import (
    AttentionStyle,
    ExpertStyle,
    Frame,
    MixerLayer,
    MlpLayer,
    MlpStyle,
    alternating_window,
    chunked_window,
    dense_mlp,
    falcon_attention,
    grouped_attention,
    latent_attention,
    mixture,
    shared_count,
    shared_width,
    sparse_after_first,
    sparse_between,
    sparse_interleaved,
    sparse_period,
    sparse_step,
    uniform_window,
    window_above,
)
from tokonomics.catalog.config_mixed import (
    gemma4_mixers,
    gemma4_mlps,
    gemma4_norms,
    layer_input,
    layer_input_table,
    mimo_v2_mixers,
    nas_mixers,
    nas_mlps,
    step_mixers,
    step_mlps,
)
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
from tokonomics.catalog.config_sparse import (
    block_sparse_attention,
    compressed_attention,
    hashed_mixture,
    hyper_connected,
    indexed_latent_attention,
    joined_streams,
)

Mixers = Callable[[Fields, Frame], list[MixerLayer]]
Mlps = Callable[[Fields, Frame], list[MlpLayer]]


def falcon_norms(fields: Fields) -> int:
    """One norm before parallel attention and MLP; two in the new decoder or when they run one after the other."""
    grouped, parallel = fields.flag("new_decoder_architecture", False), fields.flag("parallel_attn", True)
    given = fields.optional_size("num_ln_in_parallel_attn", most=2)
    return (given or 2) if grouped else 1 if parallel else 2


@dataclass(frozen=True)
class Family:
    """How to read one ``model_type``."""

    mixers: Mixers
    mlps: Mlps = dense_mlp
    norms: int | Callable[[Fields], int] = 2  # norm vectors of hidden width in a layer
    norm_bias: bool = False
    tied: bool = False  # whether the LM head shares the embedding when the config does not say
    learned_positions: int | None = None  # rows beyond the context length of a learned position table
    head_bias: bool | tuple[str, bool] = False
    final_norm: tuple[str, bool] | bool = True
    vocab: int | None = None
    context: int | None = None
    depth: Callable[[Fields], int | None] = lambda fields: None  # where ``num_hidden_layers`` may be left out
    tables: Callable[[Fields, Frame], int] = lambda fields, frame: 0  # parameters of embeddings beside the usual one
    once: Callable[[Fields, Frame], int] = lambda fields, frame: 0  # small parameters after the last layer
    expect: Mapping[str, tuple[object, ...]] = field(default_factory=dict)  # fields understood at these values only
    harmless: frozenset[str] = frozenset()
    encoder: Encoder | None = None


NOT_BIDIRECTIONAL: Mapping[str, tuple[object, ...]] = {"use_bidirectional_attention": (False,)}


def attention(**style: object) -> Mixers:
    """Grouped attention in the style given."""
    return partial(grouped_attention, style=AttentionStyle(**style))  # type: ignore[arg-type]


def mlp(**style: object) -> Mlps:
    return partial(dense_mlp, style=MlpStyle(**style))  # type: ignore[arg-type]


def experts(**style: object) -> Mlps:
    return partial(mixture, style=ExpertStyle(**style))  # type: ignore[arg-type]


BIAS = ("attention_bias", False)
LLAMA = Family(
    attention(qkv_bias=BIAS, out_bias=BIAS, windows=uniform_window(None)), mlp(bias=("mlp_bias", False)), vocab=32000
)
MISTRAL = Family(attention(kv_heads=8, windows=uniform_window(4096)))
QWEN3_ATTENTION = attention(head_dim=128, qkv_bias=BIAS, out_bias=BIAS, qk_norm="head", windows=window_above)
QWEN3_MOE = Family(
    QWEN3_ATTENTION,
    experts(experts=("num_experts", "num_local_experts"), sparse=sparse_step),
    expect={"qkv_bias": (False,), "shared_expert_intermediate_size": (0,), "use_qk_norm": (True,)},
)
GPT_SUMMARY = names("summary_type summary_use_proj summary_activation summary_proj_to_labels summary_first_dropout")
GPT_NAMES_MLP = mlp(gated=False, bias=True, widths=("n_inner",), default_ratio=4)
DEEPSEEK_MOE = experts(
    experts=("n_routed_experts", "num_local_experts"), sparse=sparse_after_first, shared=shared_count, router_bias=True
)
DEEPSEEK_V3 = Family(latent_attention, DEEPSEEK_MOE, expect={"mlp_bias": (False,)}, harmless=MTP)
GATED_ATTENTION = AttentionStyle(head_dim=256, qkv_bias=BIAS, out_bias=BIAS, qk_norm="head", gate=True)
DELTA_NET = partial(delta_net_hybrid, style=GATED_ATTENTION)
QWEN_SHARED = shared_width("shared_expert_intermediate_size")
QWEN_FIXED: dict[str, tuple[object, ...]] = {"attn_output_gate": (True,)}
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

BERT = Family(
    attention(grouped=False, qkv_bias=True, out_bias=True, bidirectional=True),
    mlp(gated=False, bias=True),
    norm_bias=True,
    tied=True,
    final_norm=False,
    learned_positions=0,
    expect={"position_embedding_type": ("absolute",), "is_decoder": (False,)},
    harmless=BERT_HARMLESS,
    encoder=Encoder(norm_elements=2, types=2, head=pooled_head),
)
# Positions of RoBERTa are counted from behind the padding's: two of its table are never used.
ROBERTA = replace(BERT, encoder=Encoder(norm_elements=2, types=1, head=pooled_head, unused_positions=2))
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
QWEN2_VL = Family(attention(qkv_bias=True, windows=window_above), harmless=names("vision_token_id"))
PURE_CONTEXT = 1 << 20  # a state of fixed size sets no limit: as far as models are evaluated
PURE_MAMBA = MAMBA_HARMLESS | names(
    """d_inner d_model fused_add_norm n_layer pad_vocab_size_multiple rms_norm ssm_cfg time_step_init_scheme
    time_step_scale norm_before_gate"""
)

FAMILIES: dict[str, Family] = {
    # dense
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
    # mixtures of experts
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
    # hybrids with recurrent layers
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
    # encoders
    "bert": BERT,
    "roberta": ROBERTA,
    "xlm-roberta": ROBERTA,
    "modernbert": Family(
        attention(grouped=False, qkv_bias=BIAS, out_bias=BIAS, bidirectional=True, windows=windows_between),
        mlp(bias=("mlp_bias", False)),
        tied=True,
        expect={"norm_bias": (False,)},
        harmless=MODERN_HARMLESS,
        # The embedding has a norm, and the first layer none before its attention.
        encoder=Encoder(norm_elements=0, types=0, head=no_head),
    ),
    "nomic_bert": Family(
        attention(
            grouped=False, qkv_bias=("qkv_proj_bias", True), out_bias=("qkv_proj_bias", True), bidirectional=True
        ),
        mlp(bias=("mlp_fc1_bias", True), widths=("n_inner",), default_ratio=4),
        norm_bias=True,
        tied=True,
        final_norm=False,
        expect={"activation_function": ("swiglu",), "causal": (False,), "use_rms_norm": (False,)},
        harmless=NOMIC_HARMLESS,
        encoder=Encoder(norm_elements=2, types=0, head=no_head),
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
    # text parts of multimodal models
    "qwen2_vl_text": QWEN2_VL,
    "qwen2_5_vl_text": QWEN2_VL,
    "qwen3_vl_text": Family(QWEN3_ATTENTION),
    "qwen3_vl_moe_text": QWEN3_MOE,
}

WRAPPERS: dict[str, str] = {
    "gemma3": "gemma3_text",
    "llama4": "llama4_text",
    "mistral3": "mistral",
    "qwen3_vl": "qwen3_vl_text",
    "qwen3_vl_moe": "qwen3_vl_moe_text",
    "qwen3_5": "qwen3_5_text",
    "qwen3_5_moe": "qwen3_5_moe_text",
    "kimi_k25": "kimi_k2",
    "kimi_k3": "kimi_linear",
    "gemma4": "gemma4_text",
    "minimax_m3_vl": "minimax_m3_vl_text",
    "qwen2_vl": "qwen2_vl_text",
    "qwen2_5_vl": "qwen2_5_vl_text",
}  # multimodal types, whose text model is under ``text_config``, with the type it has when it does not say
