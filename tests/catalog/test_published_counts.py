"""Configs of models outside the catalogue count what their authors publish, and fit.

Each has the fields of its config.json that matter, written from memory of the repository's file; the count is that of
its Hugging Face page or model card, within a hundredth. Fields of one family stand in a table of their own.
"""

from typing import Any

import pytest
from tests.catalog.read_configs import mixers_of, read

from tokonomics.catalog.engines import find_engine
from tokonomics.catalog.gpus import find_gpu
from tokonomics.catalog.layers import GroupedAttention, MoeMlp, Precision, RecurrentMixer
from tokonomics.errors import BadInput
from tokonomics.physics.deployment import deploy, valid_tp
from tokonomics.physics.memory import fit


def plain(
    kind: str, hidden: int, inner: int, layers: int, heads: int, kv: int, vocab: int, **more: Any
) -> dict[str, Any]:
    return {
        "model_type": kind, "hidden_size": hidden, "intermediate_size": inner, "num_hidden_layers": layers,
        "num_attention_heads": heads, "num_key_value_heads": kv, "vocab_size": vocab,
        "max_position_embeddings": 32768, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
    } | more  # fmt: skip


def vision(hidden: int, inner: int, layers: int, image: Any, patch: Any, **more: Any) -> dict[str, Any]:
    return {
        "hidden_size": hidden, "intermediate_size": inner, "num_hidden_layers": layers, "image_size": image,
        "patch_size": patch, "num_attention_heads": 16,
    } | more  # fmt: skip


GLM_AIR = plain(
    "glm4v_moe_text", 4096, 10944, 46, 96, 8, 151552, head_dim=128, n_routed_experts=128, n_shared_experts=1,
    num_experts_per_tok=8, moe_intermediate_size=1408, first_k_dense_replace=1, attention_bias=True, use_qk_norm=False,
)  # fmt: skip
GLM_TOWER = {
    "hidden_size": 1536, "depth": 24, "num_heads": 12, "in_channels": 3, "image_size": 336, "patch_size": 14,
    "out_hidden_size": 4096, "intermediate_size": 10944, "spatial_merge_size": 2, "temporal_patch_size": 2,
    "attention_bias": False,
}  # fmt: skip
MOONLIGHT = plain(
    "deepseek_v3", 2048, 11264, 27, 16, 16, 163840, q_lora_rank=None, kv_lora_rank=512, qk_nope_head_dim=128,
    qk_rope_head_dim=64, v_head_dim=128, n_routed_experts=64, n_shared_experts=2, num_experts_per_tok=6,
    moe_intermediate_size=1408, first_k_dense_replace=1,
)  # fmt: skip
QWEN_30B = plain(
    "qwen3_moe", 2048, 5472, 48, 32, 4, 151936, head_dim=128, num_experts=128, num_experts_per_tok=8,
    moe_intermediate_size=768,
)  # fmt: skip
QWEN_TOWER = {
    "depth": 27, "hidden_size": 1152, "intermediate_size": 4304, "num_heads": 16, "in_channels": 3, "patch_size": 16,
    "spatial_merge_size": 2, "temporal_patch_size": 2, "out_hidden_size": 2048, "num_position_embeddings": 2304,
    "deepstack_visual_indexes": [8, 16, 24],
}  # fmt: skip
INTERN_VIT = vision(1024, 4096, 24, 448, 14, qkv_bias=True, qk_normalization=False, norm_type="layer_norm")
MINIMAX = plain(
    "minimax_text_01", 6144, 9216, 80, 64, 8, 200064, head_dim=128, num_local_experts=32, num_experts_per_tok=2,
    attn_type_list=([0] * 7 + [1]) * 10, shared_intermediate_size=0, postnorm=True, sliding_window=None,
)  # fmt: skip
STEP_3 = {
    "model_type": "step3_text", "hidden_size": 7168, "intermediate_size": 18432, "num_attention_heads": 64,
    "num_attention_groups": 1, "num_hidden_layers": 61, "max_seq_len": 65536, "vocab_size": 128815,
    "moe_intermediate_size": 5120, "moe_num_experts": 48, "moe_top_k": 3, "share_expert_dim": 5120,
    "share_q_dim": 2048, "head_dim": 256, "moe_layers_enum": ",".join(map(str, range(4, 60))),
}  # fmt: skip
RING = plain(
    "bailing_moe_linear", 4096, 9216, 32, 32, 4, 157184, head_dim=128, num_experts=256, num_experts_per_tok=8,
    num_shared_experts=1, moe_intermediate_size=1024, moe_shared_expert_intermediate_size=1024, use_qk_norm=True,
    first_k_dense_replace=1, layer_group_size=8, group_norm_size=4,
)  # fmt: skip
COHERE = plain(
    "cohere2", 12288, 36864, 64, 96, 8, 256000, head_dim=128, sliding_window=4096, sliding_window_pattern=4,
    tie_word_embeddings=True,
)  # fmt: skip
GRANITE = plain(
    "granitemoehybrid", 2560, 8192, 40, 40, 8, 100352, shared_intermediate_size=8192, num_local_experts=0,
    num_experts_per_tok=0, mamba_d_head="auto", mamba_n_heads=128, mamba_n_groups=1, mamba_d_state=128, mamba_d_conv=4,
    layer_types=["attention"] * 40, tie_word_embeddings=True,
)  # fmt: skip
HUNYUAN = plain(
    "hunyuan_v1_moe", 4096, 3072, 32, 32, 8, 128167, head_dim=128, num_experts=64, moe_topk=[8] * 32, mlp_bias=False,
    num_shared_expert=[1] * 32, moe_intermediate_size=[3072] * 32, use_qk_norm=True, tie_word_embeddings=True,
)  # fmt: skip
LONGCAT = {
    "model_type": "longcat_flash", "attention_bias": False, "attention_method": "MLA", "expert_ffn_hidden_size": 2048,
    "ffn_hidden_size": 12288, "hidden_size": 6144, "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64, "v_head_dim": 128, "moe_topk": 12, "n_routed_experts": 512, "zero_expert_num": 256,
    "zero_expert_type": "identity", "num_attention_heads": 64, "num_layers": 28, "max_position_embeddings": 131072,
    "vocab_size": 131072, "router_bias": False,
}  # fmt: skip
ERNIE = plain(
    "ernie4_5_moe", 8192, 28672, 54, 64, 8, 103424, moe_num_experts=64, moe_k=8, moe_intermediate_size=3584,
    moe_layer_start_index=3, moe_layer_end_index=53, moe_num_shared_experts=0, moe_use_aux_free=True,
    moe_capacity=[64, 64, 64], moe_gate="topk", use_bias=False,
)  # fmt: skip


def around(kind: str, tower: dict[str, Any], part: str = "text_config", **more: Any) -> dict[str, Any]:
    """What is written around a text model."""
    return {"model_type": kind, "vision_config": tower, "image_token_id": 1, part: more.pop("text")} | more


PUBLISHED: dict[str, tuple[dict[str, Any], float]] = {
    "GLM-4.5V": (around("glm4v_moe", GLM_TOWER, text=GLM_AIR), 107.71),
    "GLM-4.1V-9B": (
        around("glm4v", GLM_TOWER | {"intermediate_size": 13696}, text=plain(
            "glm4v_text", 4096, 13696, 40, 32, 2, 151552, attention_bias=True)), 10.29),
    "Kimi-VL-A3B": (
        around("kimi_vl", vision(1152, 4304, 27, None, 14, merge_kernel_size=[2, 2], init_pos_emb_height=64,
                                 init_pos_emb_width=64), text=MOONLIGHT, vocab_size=163840), 16.41),
    "InternVL3-8B": (
        around("internvl_chat", INTERN_VIT, "llm_config", hidden_size=3584, downsample_ratio=0.5, force_image_size=448,
               text=plain("qwen2", 3584, 18944, 28, 28, 4, 151674)), 7.94),
    "InternVL3.5-30B-A3B": (
        around("internvl", vision(1024, 4096, 24, [448, 448], [14, 14], attention_bias=True), text=QWEN_30B), 30.85),
    "Intern-S1": (
        around("interns1", vision(3200, 12800, 45, [448, 448], [14, 14]), text=QWEN_30B | {
            "hidden_size": 4096, "num_hidden_layers": 94, "num_attention_heads": 64, "moe_intermediate_size": 1536,
            "vocab_size": 153216}), 241),
    "Step-3": (
        around("step3_vl", vision(1792, 15360, 63, 728, 14, output_hidden_size=4096), text=STEP_3, hidden_size=7168,
               understand_projector_stride=2, projector_bias=False), 321),
    "Pixtral-12B": (
        around("llava", vision(1024, 4096, 24, 1024, 16, head_dim=64, model_type="pixtral"), text=plain(
            "mistral", 5120, 14336, 40, 32, 8, 131072, head_dim=128, sliding_window=None)), 12.68),
    "Command-A-Vision": (
        around("cohere2_vision", vision(1152, 4304, 27, 512, 16, vision_use_head=False), text=COHERE,
               downsample_factor=2, alignment_intermediate_size=36864), 112),
    "MiniMax-Text-01": (MINIMAX, 456),
    "MiniMax-M1": (MINIMAX | {"model_type": "minimax_m1"}, 456),
    "Ring-flash-linear-2.0": (RING, 104),
    "Granite-4.0-Micro": (GRANITE, 3.4),
    "Hunyuan-A13B": (HUNYUAN, 80.4),
    "ERNIE-4.5-300B-A47B": (ERNIE, 300),
    "EXAONE-3.5-32B": (
        {name: value for name, value in plain("exaone", 5120, 27392, 64, 40, 8, 102400, head_dim=128).items()
         if name != "num_hidden_layers"} | {"num_layers": 64}, 32.0),
    "InternLM3-8B": (plain("internlm3", 4096, 10240, 48, 32, 2, 128512, head_dim=128, qkv_bias=False), 8.80),
    "Baichuan2-13B": (
        {name: value for name, value in plain("baichuan", 5120, 13696, 40, 40, 40, 125696).items()
         if name not in ("num_key_value_heads", "max_position_embeddings")}, 13.9),
    "MiniCPM4-8B": (plain("minicpm", 4096, 16384, 32, 32, 2, 73448, scale_emb=12, dim_model_base=256), 8.19),
    "MiniCPM3-4B": (plain("minicpm3", 2560, 6400, 62, 40, 40, 73448, qk_nope_head_dim=64, qk_rope_head_dim=32,
                          q_lora_rank=768, kv_lora_rank=256, scale_emb=12, tie_word_embeddings=True), 4.07),
    "GLM-4-9B-Chat": ({
        "model_type": "chatglm", "hidden_size": 4096, "ffn_hidden_size": 13696, "num_layers": 40, "vocab_size": 151552,
        "num_attention_heads": 32, "multi_query_attention": True, "multi_query_group_num": 2, "kv_channels": 128,
        "add_qkv_bias": True, "add_bias_linear": False, "padded_vocab_size": 151552, "seq_length": 131072}, 9.40),
    "StarCoder": ({
        "model_type": "gpt_bigcode", "n_embd": 6144, "n_head": 48, "n_inner": 24576, "n_layer": 40,
        "n_positions": 8192, "vocab_size": 49152, "multi_query": True}, 15.52),
    "DBRX": ({
        "model_type": "dbrx", "d_model": 6144, "n_heads": 48, "n_layers": 40, "max_seq_len": 32768,
        "vocab_size": 100352, "attn_config": {"kv_n_heads": 8, "clip_qkv": 8}, "tie_word_embeddings": False,
        "ffn_config": {"ffn_hidden_size": 10752, "moe_num_experts": 16, "moe_top_k": 4}}, 131.6),
    "Grok-2": (plain("git", 8192, 32768, 64, 64, 8, 131072, head_dim=128, moe_intermediate_size=16384,
                     num_local_experts=8, num_experts_per_tok=2, residual_moe=True), 269.5),
    "LongCat-Flash": (LONGCAT, 562),
    "OLMo-7B": (plain("olmo", 4096, 11008, 32, 32, 32, 50304, clip_qkv=None), 6.89),
    "StableLM-2-12B": (plain("stablelm", 5120, 13824, 40, 32, 8, 100352, use_qkv_bias=False, qk_layernorm=True), 12.14),
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_config_counts_what_is_published_and_fits(name: str) -> None:
    config, billions = PUBLISHED[name]
    model = read(config)
    assert model.parameters == pytest.approx(billions * 1e9, rel=0.01)
    tp = max(valid_tp(model, 8))
    assert fit(deploy(model, find_gpu("B300"), find_engine("vllm"), tp=tp), 4096).fits


def test_text_01_attends_in_every_eighth_layer_and_keeps_a_square_state_in_the_others() -> None:
    mixers = mixers_of(read(MINIMAX))
    states = [mixer.state_elements for mixer in mixers if isinstance(mixer, RecurrentMixer)]
    assert states == [64 * 128 * 128] * 70
    assert sum(isinstance(mixer, GroupedAttention) for mixer in mixers) == 10
    assert read(MINIMAX | {"model_type": "minimax", "attn_type_list": None, "layer_types": (
        ["linear_attention"] * 7 + ["full_attention"]) * 10}).groups == read(MINIMAX).groups  # fmt: skip


def test_ring_attends_in_one_layer_of_eight() -> None:
    assert sum(isinstance(mixer, GroupedAttention) for mixer in mixers_of(read(RING))) == 32 / 8
    assert sum(isinstance(mixer, RecurrentMixer) for mixer in mixers_of(read(RING))) == 28


def test_step_3_projects_queries_in_two_steps_and_shares_one_key() -> None:
    (attention,) = set(mixers_of(read(STEP_3)))
    assert attention.products(7168, tp=4) == [(2048 + 512, 7168), (64 * 256 / 4, 2048), (7168, 64 * 256 / 4)]
    assert attention.kv_heads == 1
    assert sum(group.count for group in read(STEP_3).groups if isinstance(group.mlp, MoeMlp)) == 56


def test_longcat_has_two_of_everything_and_a_third_of_its_experts_does_nothing() -> None:
    model = read(LONGCAT)
    (experts,) = {group.mlp for group in model.groups if isinstance(group.mlp, MoeMlp)}
    assert (experts.experts, experts.active_experts) == (512, 12 * 512 / 768)
    assert model.kv_bytes_per_token(Precision.bf16) == 2 * 28 * (512 + 64) * 2
    assert model.active_parameters == pytest.approx(27e9, rel=0.05)  # its model card: 18.6 to 31.3, 27 in the mean


def test_of_qwen_omni_what_thinks_is_counted_with_both_towers() -> None:
    text = QWEN_30B | {"model_type": "qwen3_omni_moe_text"}
    thinker = {"model_type": "qwen3_omni_moe_thinker", "text_config": text, "vision_config": QWEN_TOWER}
    audio = {"d_model": 1280, "encoder_layers": 32, "encoder_ffn_dim": 5120, "output_dim": 2048}
    whole = {"model_type": "qwen3_omni_moe", "thinker_config": thinker, "talker_config": {"hidden_size": 1024}}
    seeing = read(whole)
    hearing = read(whole | {"thinker_config": thinker | {"audio_config": audio}})
    assert seeing.parameters == read({"model_type": "qwen3_vl_moe", "text_config": QWEN_30B | {
        "model_type": "qwen3_vl_moe_text"}, "vision_config": QWEN_TOWER}).parameters  # fmt: skip
    whisper = 32 * (4 * 1280**2 + 2 * 1280 * 5120)  # the layers of its tower, beside which the rest is small
    assert hearing.parameters - seeing.parameters == pytest.approx(whisper, rel=0.05)


def test_a_tower_of_another_kind_and_a_width_that_contradicts_the_text_are_refused() -> None:
    llava, _ = PUBLISHED["Pixtral-12B"]
    with pytest.raises(BadInput, match="model_type"):
        read(llava | {"vision_config": llava["vision_config"] | {"model_type": "clip_vision_model"}})
    intern, _ = PUBLISHED["InternVL3-8B"]
    with pytest.raises(BadInput, match="hidden_size"):
        read(intern | {"hidden_size": 4096})
