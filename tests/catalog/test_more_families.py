"""Families that one row each describes: their largest or best known model has the parameters its authors state.

Shapes are those of the models' published config.json, transcribed; counts are those of their model cards.
"""

from typing import Any

import pytest
from tests.catalog.read_configs import mixers_of, read

from tokonomics.catalog.layers import GroupedAttention, RecurrentMixer
from tokonomics.errors import BadInput


def shape(
    kind: str, hidden: int, inner: int, layers: int, heads: int, kv: int, vocab: int, **more: Any
) -> dict[str, Any]:
    sizes = {"hidden_size": hidden, "intermediate_size": inner, "num_hidden_layers": layers, "vocab_size": vocab}
    attention = {"num_attention_heads": heads, "num_key_value_heads": kv, "max_position_embeddings": 131072}
    return sizes | attention | {"model_type": kind, "tie_word_embeddings": False} | more


def mixture(experts: int, active: int, width: int, name: str = "num_experts") -> dict[str, Any]:
    return {name: experts, "num_experts_per_tok": active, "moe_intermediate_size": width}


LATENT = {"qk_rope_head_dim": 64, "n_shared_experts": 1}
KINDS = ["full_attention", "sliding_attention", "sliding_attention", "sliding_attention"]
LAGUNA = {
    "sliding_window": 512, "gating": True, "layer_types": KINDS * 10, "shared_expert_intermediate_size": 512,
    "num_attention_heads_per_layer": [48, 64, 64, 64] * 10, "mlp_layer_types": ["dense"] + ["sparse"] * 39,
}  # fmt: skip
HUNYUAN = {
    "use_qk_norm": True, "num_experts": 64, "moe_topk": [8] * 32, "moe_intermediate_size": [3072] * 32,
    "num_shared_expert": [1] * 32, "moe_layer_num_skipped": 0, "tie_word_embeddings": True, "head_dim": 128,
}  # fmt: skip
LFM2_ATTENDS = (2, 6, 10, 14, 18, 21)
FALCON_H1 = {
    "head_dim": 128, "mamba_n_heads": 32, "mamba_d_head": 128, "mamba_n_groups": 2, "mamba_d_state": 256,
    "mamba_d_conv": 4, "mamba_chunk_size": 128, "mamba_conv_bias": True, "mamba_d_ssm": 4096,
}  # fmt: skip


@pytest.mark.parametrize(
    ("config", "billions"),
    [
        (shape("olmo3", 5120, 27648, 64, 40, 8, 100278), 32.2),
        (shape("apertus", 8192, 43008, 80, 64, 8, 131072, hidden_act="xielu", qk_norm=True), 70.6),
        (shape("exaone4", 5120, 27392, 64, 40, 8, 102400, head_dim=128, sliding_window_pattern="LLLG"), 32.0),
        (shape("hunyuan_v1_moe", 4096, 3072, 32, 32, 8, 128167, **HUNYUAN), 80.4),
        (shape("bailing_moe_v2", 8192, 18432, 80, 64, 8, 157184, head_dim=128, first_k_dense_replace=4,
               num_shared_experts=1, use_qk_norm=True, **mixture(256, 8, 2048)), 1000.0),
        (shape("solar_open", 4096, 10240, 48, 64, 8, 196608, head_dim=128, n_shared_experts=1,
               **mixture(128, 8, 1280, "n_routed_experts")), 102.6),
        (shape("exaone_moe", 6144, 18432, 48, 64, 8, 153600, head_dim=128, num_shared_experts=1,
               first_k_dense_replace=1, sliding_window=128, **mixture(128, 8, 2048)), 236.0),
        (shape("hy_v3", 4096, 13312, 80, 64, 8, 120832, num_shared_experts=1, **mixture(192, 8, 1536)), 295.0),
        (shape("afmoe", 2048, 6144, 32, 32, 4, 200192, num_shared_experts=1, num_dense_layers=2,
               sliding_window=2048, **mixture(128, 8, 1024)), 26.1),
        (shape("laguna", 2048, 8192, 40, 48, 8, 100352, **LAGUNA, **mixture(256, 8, 512)), 33.4),
        (shape("dots1", 4096, 10944, 62, 32, 32, 152064, head_dim=128, n_shared_experts=2, first_k_dense_replace=1,
               **mixture(128, 6, 1408, "n_routed_experts")), 142.8),
        (shape("mistral4", 4096, 12288, 36, 32, 32, 131072, kv_lora_rank=256, q_lora_rank=1024, v_head_dim=128,
               qk_nope_head_dim=64, **LATENT, **mixture(128, 4, 2048, "n_routed_experts")), 119.0),
        (shape("glm4_moe_lite", 2048, 10240, 47, 20, 20, 154880, kv_lora_rank=512, q_lora_rank=768, v_head_dim=256,
               qk_nope_head_dim=192, first_k_dense_replace=1, **LATENT,
               **mixture(64, 4, 1536, "n_routed_experts")), 29.9),
        (shape("lfm2_moe", 2048, 7168, 24, 32, 8, 65536, num_dense_layers=2, tie_word_embeddings=True,
               layer_types=["full_attention" if i in LFM2_ATTENDS else "conv" for i in range(24)],
               **mixture(32, 4, 1792)), 8.34),
        (shape("lfm2", 2048, 12288, 16, 32, 8, 65536, block_ff_dim=12288, block_auto_adjust_ff_dim=True,
               full_attn_idxs=[2, 5, 8, 10, 12, 14], tie_word_embeddings=True), 1.17),
        (shape("falcon_h1", 5120, 21504, 72, 20, 4, 261120, **FALCON_H1), 33.6),
        (shape("nemotron", 3072, 9216, 32, 24, 8, 256000, head_dim=128), 4.19),
        (shape("glm", 4096, 13696, 40, 32, 2, 151552, attention_bias=True), 9.4),
        (shape("internlm2", 4096, 14336, 32, 32, 8, 92544, bias=False), 7.74),
        (shape("arcee", 2560, 18432, 36, 20, 4, 128004, head_dim=128), 4.62),
        (shape("ernie4_5", 1024, 3072, 18, 16, 2, 103424, head_dim=128, tie_word_embeddings=True), 0.36),
        ({"model_type": "bloom", "n_embed": 14336, "n_layer": 70, "num_attention_heads": 112, "vocab_size": 250880},
         176.25),
    ],
    ids=lambda value: value["model_type"] if isinstance(value, dict) else "",
)  # fmt: skip
def test_a_model_has_the_parameters_its_authors_state(config: dict[str, Any], billions: float) -> None:
    assert read(config).parameters / 1e9 == pytest.approx(billions, rel=0.01)


def test_a_layer_has_the_heads_that_are_listed_for_it() -> None:
    model = read(shape("laguna", 2048, 8192, 40, 48, 8, 100352, **LAGUNA, **mixture(256, 8, 512)))
    assert {(mixer.heads, mixer.window) for mixer in mixers_of(model)} == {(48, None), (64, 512)}
    short = LAGUNA | {"num_attention_heads_per_layer": [48] * 39}
    with pytest.raises(BadInput, match="has 39 entries for 40 layers"):
        read(shape("laguna", 2048, 8192, 40, 48, 8, 100352, **short, **mixture(256, 8, 512)))


def test_attention_and_recurrence_side_by_side_are_both_counted() -> None:
    model = read(shape("falcon_h1", 5120, 21504, 72, 20, 4, 261120, **FALCON_H1))
    kinds = [type(group.mixer) for group in model.groups for _ in range(group.count)]
    assert (kinds.count(GroupedAttention), kinds.count(RecurrentMixer)) == (72, 72)
    assert model.kv_bytes_per_token(model.served) == 72 * 2 * 4 * 128 * 2


def test_a_list_that_differs_from_layer_to_layer_is_no_size() -> None:
    with pytest.raises(BadInput, match="moe_topk"):
        read(shape("hunyuan_v1_moe", 4096, 3072, 32, 32, 8, 128167, **HUNYUAN | {"moe_topk": [8] * 31 + [4]}))
