"""What drafts for a model: modules and heads against what their authors publish of them."""

import json
from pathlib import Path

import pytest
from tests.there import there

from tokonomics.catalog import checkpoints
from tokonomics.catalog.checkpoints import drafts_of, eagle_head, load_drafts, longer_draft, mtp_module, nearest_draft
from tokonomics.catalog.config_json import read_config
from tokonomics.catalog.layers import LatentAttention, MoeMlp, RecurrentMixer
from tokonomics.catalog.load_models import all_models, find_model


def test_deepseeks_module_has_the_parameters_that_it_publishes() -> None:
    """11.5B of its own and 0.9B each of embedding and head, shared (deepseek-ai/DeepSeek-V3, README_WEIGHTS.md)."""
    model = find_model("deepseek-v3")
    module = there(mtp_module(model))
    shared = 2 * model.vocab * model.hidden
    assert shared == pytest.approx(2 * 0.9e9, rel=0.04)
    own = module.parameters - module.parts.embedding - module.parts.head
    assert own == pytest.approx(11.5e9, rel=0.01)
    # 2.4B are active with both of the shared tables; ours counts one, as the other is a look-up.
    assert module.active_parameters + model.vocab * model.hidden == pytest.approx(2.4e9, rel=0.07)
    assert [type(group.mixer) for group in module.groups] == [type(None), LatentAttention]


def test_a_module_of_a_hybrid_has_attention_and_experts() -> None:
    """Qwen3-Next's and Nemotron 3's draft with a layer of attention, not with one of their recurrent ones."""
    for name in ("qwen3-next-80b-a3b", "qwen3.5-397b-a17b", "nemotron-3-super-120b-a12b"):
        module = there(mtp_module(find_model(name)))
        assert not any(isinstance(group.mixer, RecurrentMixer) for group in module.groups)
        assert any(group.mixer for group in module.groups)
        assert any(isinstance(group.mlp, MoeMlp) for group in module.groups)


@pytest.mark.parametrize("name", ["kimi-k2", "kimi-k2.5", "minimax-m2", "llama-3.1-8b", "gpt-oss-120b"])
def test_checkpoints_without_such_a_module_have_none(name: str) -> None:
    """Moonshot's configs say 0; MiniMax's name three whose weights are not published (MiniMax-M2 issue 47)."""
    assert mtp_module(find_model(name)) is None


def test_a_module_is_small_beside_its_model() -> None:
    for model in all_models():
        module = mtp_module(model)
        if module is not None:
            assert module.parameters < model.parameters / 8
            assert module.vocab == model.vocab


def test_a_config_says_how_many_modules_its_checkpoint_has(tmp_path: Path) -> None:
    shape = {"model_type": "glm4_moe", "hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 8,
             "intermediate_size": 512, "moe_intermediate_size": 128, "n_routed_experts": 8, "num_experts_per_tok": 2,
             "n_shared_experts": 1, "first_k_dense_replace": 1, "vocab_size": 1000, "head_dim": 32,
             "num_key_value_heads": 2, "max_position_embeddings": 4096, "torch_dtype": "bfloat16"}  # fmt: skip
    for more, layers in (({}, 0), ({"num_nextn_predict_layers": 1}, 1), ({"num_nextn_predict_layers": 0}, 0),
                         ({"num_nextn_predict_layers": 1, "num_mtp_modules": 3}, 0)):  # fmt: skip
        file = tmp_path / "config.json"
        file.write_text(json.dumps(shape | more), encoding="utf-8")
        assert read_config(file).mtp_layers == layers


def test_a_head_has_the_parameters_of_the_published_one() -> None:
    """nebius/EAGLE3-Qwen3-235B-A22B-Instruct-2507 is listed with 0.6B parameters on Hugging Face."""
    model = find_model("qwen3-235b-a22b")
    row = there(nearest_draft(model, "eagle3", 3))
    assert row.intermediate is not None
    head = there(eagle_head(model, row.intermediate))
    assert head.parameters == pytest.approx(0.6e9, rel=0.05)


def test_an_eagle_head_has_the_matrices_of_its_architecture() -> None:
    """Three hidden states to one; queries, keys and values of twice the width; a head of 32,000 tokens."""
    hidden, heads, kv_heads, width, intermediate, vocab = 4096, 32, 8, 128, 14336, 32000
    projected = 3 * hidden * hidden + 2 * hidden * (heads + 2 * kv_heads) * width + heads * width * hidden
    norms = 4 * hidden
    head = there(eagle_head(find_model("llama-3.1-8b"), intermediate))
    assert head.parameters == projected + 3 * hidden * intermediate + vocab * hidden + norms


def test_every_published_length_is_one_that_its_round_can_yield_and_says_where_it_is_from() -> None:
    for row in load_drafts():
        assert 1 < row.accepted_length <= row.tokens + 1
        assert row.source
        assert row.address.startswith("https://")
        assert (row.method == "mtp") == (row.checkpoint is None) == (row.intermediate is None)
    # More drafted tokens never yield less in one table.
    for model, method, source in {(row.model, row.method, row.source) for row in load_drafts()}:
        same = [row for row in load_drafts() if (row.model, row.method, row.source) == (model, method, source)]
        assert [row.accepted_length for row in same] == sorted(row.accepted_length for row in same)


def test_the_nearest_published_round_is_taken() -> None:
    model = find_model("deepseek-v3")
    assert [row.tokens for row in drafts_of(model, "mtp")] == [1, 3, 7]
    assert nearest_draft(model, "mtp", 3) == drafts_of(model, "mtp")[1]
    assert nearest_draft(model, "mtp", 6) == drafts_of(model, "mtp")[2]
    assert nearest_draft(find_model("opt-13b"), "mtp", 3) is None


def test_a_round_of_another_length_is_told_by_a_longer_one_in_any_order(monkeypatch: pytest.MonkeyPatch) -> None:
    model, rows = find_model("deepseek-v3"), load_drafts()
    before = [longer_draft(model, "mtp", tokens) for tokens in (1, 2, 5, 9)]
    assert [there(row).tokens for row in before] == [1, 3, 7, 7]
    assert longer_draft(find_model("opt-13b"), "mtp", 3) is None
    monkeypatch.setattr(checkpoints, "load_drafts", lambda: rows[::-1])
    assert [row.tokens for row in drafts_of(model, "mtp")] == [1, 3, 7]
    assert [longer_draft(model, "mtp", tokens) for tokens in (1, 2, 5, 9)] == before
