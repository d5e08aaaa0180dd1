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
QWEN_AUDIO = {  # of Qwen3-Omni; as transformers names its fields, of which many are Whisper's
    "model_type": "qwen3_omni_moe_audio_encoder", "activation_dropout": 0, "activation_function": "gelu",
    "add_cross_attention": False, "attention_dropout": 0, "conv_chunksize": 500, "d_model": 1280,
    "downsample_hidden_size": 480, "dropout": 0, "encoder_attention_heads": 20, "encoder_ffn_dim": 5120,
    "encoder_layers": 32, "is_encoder_decoder": False, "max_source_positions": 1500, "n_window": 50,
    "n_window_infer": 800, "num_hidden_layers": 32, "num_mel_bins": 128, "output_dim": 2048, "scale_embedding": False,
    "tie_word_embeddings": True,
}  # fmt: skip
OMNI: dict[str, Any] = {
    "model_type": "qwen3_omni_moe", "architectures": ["Qwen3OmniMoeForConditionalGeneration"], "dtype": "bfloat16",
    "enable_audio_output": True, "talker_config": {"hidden_size": 1024}, "code2wav_config": {"hidden_size": 1024},
    "thinker_config": {
        "model_type": "qwen3_omni_moe_thinker", "audio_config": QWEN_AUDIO, "audio_token_id": 151675,
        "position_id_per_seconds": 13, "seconds_per_chunk": 2, "user_token_id": 872,
        "text_config": QWEN_30B | {
            "model_type": "qwen3_omni_moe_text", "torch_dtype": None, "vocab_size": 152064, "use_qk_norm": True,
            "shared_expert_intermediate_size": 0, "sliding_window": None, "use_sliding_window": False},
        "vision_config": QWEN_TOWER | {
            "model_type": "qwen3_omni_moe_vision_encoder", "apply_vit_abs_pos_embed": True, "image_size": 768,
            "in_chans": 3, "spatial_patch_size": 16, "tokens_per_second": 2, "add_cross_attention": False}},
}  # fmt: skip
OMNI_2_5: dict[str, Any] = {
    "model_type": "qwen2_5_omni", "torch_dtype": "bfloat16", "talker_config": {"hidden_size": 896},
    "token2wav_config": {"model_type": "qwen2_5_omni_token2wav"},
    "thinker_config": {
        "model_type": "qwen2_5_omni_thinker", "audio_token_index": 151646, "tie_word_embeddings": True,
        "position_id_per_seconds": 25, "seconds_per_chunk": 2, "user_token_id": 872,
        "text_config": plain("qwen2_5_omni_text", 3584, 18944, 28, 28, 4, 152064, init_std=0.02, max_window_layers=28,
                             sliding_window=32768, use_sliding_window=False),
        "audio_config": {
            "model_type": "qwen2_5_omni_audio_encoder", "d_model": 1280, "encoder_attention_heads": 20,
            "encoder_ffn_dim": 5120, "encoder_layerdrop": 0.0, "encoder_layers": 32, "init_std": 0.02,
            "max_source_positions": 1500, "n_window": 100, "num_hidden_layers": 32, "num_mel_bins": 128,
            "output_dim": 3584, "scale_embedding": False},
        "vision_config": {
            "model_type": "qwen2_5_omni_vision_encoder", "depth": 32, "embed_dim": 1280, "hidden_size": 1280,
            "fullatt_block_indexes": [7, 15, 23, 31], "in_channels": 3, "in_chans": 3, "intermediate_size": 3420,
            "num_heads": 16, "out_hidden_size": 3584, "patch_size": 14, "spatial_merge_size": 2,
            "spatial_patch_size": 14, "temporal_patch_size": 2, "tokens_per_second": 25, "window_size": 112}},
}  # fmt: skip
VOXTRAL = {
    "model_type": "voxtral", "audio_token_id": 24, "projector_hidden_act": "gelu", "hidden_size": 3072,
    "vocab_size": 131072, "text_config": plain("llama", 3072, 8192, 30, 32, 8, 131072, head_dim=128),
    "audio_config": {
        "model_type": "voxtral_encoder", "activation_function": "gelu", "head_dim": 64, "hidden_size": 1280,
        "intermediate_size": 5120, "layerdrop": 0.0, "max_source_positions": 1500, "num_attention_heads": 20,
        "num_hidden_layers": 32, "num_key_value_heads": 20, "num_mel_bins": 128, "scale_embedding": False,
        "vocab_size": 51866},
}  # fmt: skip
HUNYUAN = plain(
    "hunyuan_v1_moe", 4096, 3072, 32, 32, 8, 128167, attention_bias=False, attention_head_dim=128, cla_share_factor=2,
    class_num=0, head_dim=128, mlp_bias=False, moe_drop_tokens=False, moe_intermediate_size=[3072] * 32,
    moe_layer_num_skipped=0, moe_random_routing_dropped_token=False, moe_topk=[8] * 32, norm_type="rms",
    num_experts=64, num_media_embeds=257, num_shared_expert=[1] * 32, org_vocab_size=128167, pad_id=127961,
    tie_word_embeddings=True, use_cla=False, use_mixed_mlp_moe=True, use_mla=False, use_qk_norm=True,
    use_rotary_pos_emb=True,
)  # fmt: skip
QWEN_NEXT = plain(
    "qwen3_next", 2048, 5120, 48, 16, 2, 151936, head_dim=256, attention_bias=False, decoder_sparse_step=1,
    full_attention_interval=4, linear_conv_kernel_dim=4, linear_key_head_dim=128, linear_num_key_heads=16,
    linear_num_value_heads=32, linear_value_head_dim=128, mlp_only_layers=[], moe_intermediate_size=512,
    norm_topk_prob=True, num_experts=512, num_experts_per_tok=10, partial_rotary_factor=0.25, rope_scaling=None,
    shared_expert_intermediate_size=512, use_sliding_window=False,
)  # fmt: skip
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
    "Qwen3-Omni-30B-A3B-Thinking": (OMNI, 31.7),
    "Qwen2.5-Omni-7B": (OMNI_2_5, 8.93),
    "Voxtral-Mini-3B": (VOXTRAL, 4.68),
    "Qwen3-Next-80B-A3B": (QWEN_NEXT, 79.7),
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


def test_towers_of_qwen_omni_have_the_sizes_of_its_report() -> None:
    """Qwen3-Omni's technical report (arXiv:2509.17765, table 1): audio 650M, vision 540M."""
    whole = read(OMNI)
    thinker = OMNI["thinker_config"]
    seeing = read(OMNI | {"thinker_config": {name: part for name, part in thinker.items() if name != "audio_config"}})
    assert whole.extra_parameters - seeing.extra_parameters == pytest.approx(650e6, rel=0.02)
    assert seeing.extra_parameters == pytest.approx(540e6, rel=0.02)
    assert whole.notes == ()


def test_the_audio_tower_of_qwen2_5_omni_is_whispers_encoder() -> None:
    thinker = OMNI_2_5["thinker_config"]
    silent = read(OMNI_2_5 | {"thinker_config": {k: v for k, v in thinker.items() if k != "audio_config"}})
    convolutions = 3 * 128 * 1280 + 3 * 1280**2 + 2 * 1280
    # Of queries, values and outputs with a bias, keys without; two feed-forward products; two norms.
    layer = (4 * 1280**2 + 3 * 1280) + (2 * 1280 * 5120 + 5120 + 1280) + 4 * 1280
    around = 2 * 1280 + (1280 * 3584 + 3584) + 2 * 3584  # the last norm, the projection, the tokens around the sound
    assert read(OMNI_2_5).parameters - silent.parameters == convolutions + 32 * layer + around
    assert not read(OMNI_2_5).tied_embeddings  # the text model decides, whatever stands beside it


@pytest.mark.parametrize(
    ("quantised", "precision", "weight_bytes"),
    [
        ({"quant_method": "fp8", "weight_block_size": [128, 128], "modules_to_not_convert": ["lm_head"]}, "fp8", 1),
        ({"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True,
          "modules_to_not_convert": ["thinker.audio_tower", "thinker.visual", "talker", "code2wav"]},
         "int4", 0.5 + 2.5 / 128),
    ],
)  # fmt: skip
def test_what_quantises_all_of_qwen_omni_holds_for_what_thinks(
    quantised: dict[str, Any], precision: str, weight_bytes: float
) -> None:
    model = read(OMNI | {"quantization_config": quantised})
    mixer, dense = model.precisions(model.checkpoint)
    assert (mixer, dense, model.checkpoint, model.notes) == (precision, precision, precision, ())
    experts = 48 * 128 * 3 * 2048 * 768
    attention = 48 * 2048 * (2 * 32 + 2 * 4) * 128
    expected = weight_bytes * (experts + attention) + 2 * (model.parameters - experts - attention)
    assert model.weight_bytes(model.checkpoint) == pytest.approx(expected, rel=1e-3)  # beside the scales of blocks
    alone = read(OMNI | {"dtype": "float32"})
    assert alone.checkpoint == "fp32"
    own = OMNI["thinker_config"] | {"dtype": "bfloat16"}
    assert read(OMNI | {"dtype": "float32", "thinker_config": own}).checkpoint == "bf16"


def test_modules_of_what_speaks_leave_no_layer_of_what_thinks_alone() -> None:
    left = ["talker.model.layers.0.mlp", "thinker.model.layers.1.self_attn"]
    quantised = {"quant_method": "fp8", "modules_to_not_convert": left}
    model = read(OMNI | {"quantization_config": quantised})
    mean = (47 * Precision.fp8.bytes_per_weight + 2) / 48  # one layer of attention in 16 bits, no block of experts
    assert model.checkpoint_bytes is None
    assert model.mixer_bytes == pytest.approx(mean)


@pytest.mark.parametrize(
    ("config", "active_billions"), [(HUNYUAN, 13), (QWEN_NEXT, 3)], ids=["Hunyuan-A13B", "Qwen3-Next"]
)
def test_mixtures_activate_what_their_cards_say(config: dict[str, Any], active_billions: float) -> None:
    model = read(config)
    tables = config["vocab_size"] * config["hidden_size"] * (1 if config["tie_word_embeddings"] else 2)
    assert model.active_parameters - tables <= active_billions * 1.1e9
    assert model.active_parameters >= active_billions * 0.95e9
    assert model.notes == ()


def test_hunyuan_may_say_how_many_experts_in_the_usual_field_but_not_two_things() -> None:
    usual = {name: value for name, value in HUNYUAN.items() if name != "moe_topk"} | {"num_experts_per_tok": 8}
    assert read(usual).groups == read(HUNYUAN).groups
    with pytest.raises(BadInput, match="num_experts_per_tok"):
        read(HUNYUAN | {"num_experts_per_tok": 4})
    with pytest.raises(BadInput, match="use_sliding_window"):
        read(QWEN_NEXT | {"use_sliding_window": True})


def test_a_tower_of_another_kind_and_a_width_that_contradicts_the_text_are_refused() -> None:
    llava, _ = PUBLISHED["Pixtral-12B"]
    with pytest.raises(BadInput, match="model_type"):
        read(llava | {"vision_config": llava["vision_config"] | {"model_type": "clip_vision_model"}})
    intern, _ = PUBLISHED["InternVL3-8B"]
    with pytest.raises(BadInput, match="hidden_size"):
        read(intern | {"hidden_size": 4096})
