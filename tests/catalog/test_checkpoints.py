"""Published recovery scores and checkpoints: every row can be traced, and what is borrowed says from whom."""

import csv
import datetime as dt
import json
from pathlib import Path

import pytest
from tests.there import there

from tokonomics.catalog import checkpoints
from tokonomics.catalog.checkpoints import (
    OwnRecovery,
    allowed_by_recovery,
    checkpoint_for,
    drafts_of,
    eagle_head,
    fp8_scales,
    how_to_make,
    load_checkpoints,
    load_drafts,
    load_scores,
    longer_draft,
    mtp_module,
    nearest_draft,
    recovery_of,
    recovery_text,
    save_recovery,
)
from tokonomics.catalog.config_json import read_config
from tokonomics.catalog.entries import DATA, user_tables
from tokonomics.catalog.layers import LatentAttention, MoeMlp, Precision, RecurrentMixer
from tokonomics.catalog.load_models import all_models, find_model
from tokonomics.errors import BadInput

KEYS = {model.key for model in all_models()}
OWN = OwnRecovery(
    model="llama-3.1-8b", precision=Precision.int4, recovery=0.985, tasks=("gsm8k",), date=dt.date(2026, 11, 1)
)


@pytest.fixture
def catalogue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "catalog.toml"
    monkeypatch.setenv("TOKONOMICS_CATALOG", str(path))
    path.write_text("")
    return path


def test_a_quantised_base_model_does_not_stand_in_for_one_tuned_to_instructions() -> None:
    """Qwen2.5-14B-FP8-dynamic is of the base model: a plan for Qwen2.5-14B-Instruct would serve another one."""
    for model in all_models():
        if "instruct" not in (model.repository or "").lower():
            continue
        for precision in Precision:
            found = checkpoint_for(model, precision)
            assert found is None or "instruct" in found.repository.lower(), found
    assert checkpoint_for(find_model("qwen2.5-14b"), Precision.fp8) is None
    assert there(checkpoint_for(find_model("qwen2.5-3b"), Precision.int4)).repository == "Qwen/Qwen2.5-3B-Instruct-AWQ"


def test_a_score_says_of_which_model_from_where_and_when() -> None:
    for score in load_scores():
        assert score.model in KEYS
        assert score.source
        assert score.method
        assert score.address.startswith("https://")
        assert dt.date(2022, 1, 1) < (score.date or score.read) <= score.read
        assert score.precision.is_below(find_model(score.model).served) or score.part == "kv"
        assert 80 < score.recovery_percent < 110
        if score.baseline or score.quantised:
            shares = 100 * (score.quantised or 0) / (score.baseline or 1)
            assert score.recovery_percent == pytest.approx(shares, abs=0.006)
    assert sum(score.baseline is not None for score in load_scores()) > 60
    rows = [(row.model, row.part, row.precision, row.benchmark, row.method, row.source) for row in load_scores()]
    assert len(set(rows)) == len(rows)


def test_every_scored_checkpoint_is_listed_and_every_listed_one_can_be_traced() -> None:
    listed = {(row.model, row.precision, row.repository) for row in load_checkpoints()}
    scored = {(row.model, row.precision, row.checkpoint) for row in load_scores() if row.checkpoint}
    assert scored <= listed
    assert len(listed) == len(load_checkpoints())
    for row in load_checkpoints():
        assert row.model in KEYS
        assert row.repository.count("/") == 1
        assert row.source
        assert (row.address or "").startswith("https://")
        assert row.precision is not find_model(row.model).served


def test_what_a_checkpoint_recovers_is_the_mean_over_its_benchmarks() -> None:
    with (DATA / "recovery.csv").open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["checkpoint"].endswith("3.1-8B-Instruct-quantized.w4a16")]
    shares = [float(row["recovery_percent"]) / 100 for row in rows]
    found = there(recovery_of(find_model("llama-3.1-8b"), Precision.int4))
    assert len(rows) == 5
    assert found.recovery == pytest.approx(sum(shares) / 5)
    assert set(found.benchmarks) == {row["benchmark"] for row in rows}


def test_the_score_is_of_the_checkpoint_that_a_plan_names() -> None:
    for key, precision in (("llama-3.1-70b", Precision.fp8), ("qwen2.5-72b", Precision.int4)):
        model = find_model(key)
        found, checkpoint = recovery_of(model, precision), checkpoint_for(model, precision)
        assert there(found).checkpoint == there(checkpoint).repository
    authors = there(checkpoint_for(find_model("deepseek-r1"), Precision.fp8))  # at its own precision
    assert authors.repository == "deepseek-ai/DeepSeek-R1"


def test_a_model_without_a_score_borrows_from_the_nearest_of_its_family_and_says_so() -> None:
    model = find_model("qwen3-32b")  # 14B is scored at int4, as is 8B, which is farther
    found = there(recovery_of(model, Precision.int4))
    assert found.model == "qwen3-14b"
    assert "scored on Qwen3 14B" in recovery_text(found, model)
    # Not from a larger model or one of other layers: the Qwen3 scored at INT4 are dense models of 8 and 14 billion.
    for key in ("gemma-3-27b", "qwen3-0.6b", "qwen3-coder-480b-a35b", "qwen3.5-397b-a17b"):
        assert recovery_of(find_model(key), Precision.int4) is None


def test_the_common_models_have_a_checkpoint_in_fp8_and_the_authors_own_comes_first() -> None:
    own = {"qwen3-32b": "Qwen/Qwen3-32B-FP8", "qwen3-30b-a3b": "Qwen/Qwen3-30B-A3B-FP8",
           "qwen3-235b-a22b": "Qwen/Qwen3-235B-A22B-FP8", "qwen3-8b": "Qwen/Qwen3-8B-FP8",
           "qwen3.5-397b-a17b": "Qwen/Qwen3.5-397B-A17B-FP8", "glm-4.5-air": "zai-org/GLM-4.5-Air-FP8",
           "glm-4.6": "zai-org/GLM-4.6-FP8", "minimax-m3": "MiniMaxAI/MiniMax-M3-MXFP8"}  # fmt: skip
    for key, repository in own.items():
        assert there(checkpoint_for(find_model(key), Precision.fp8)).repository == repository
    families = (
        "Qwen3",
        "Llama 3.1",
        "Llama 3.2",
        "Llama 3.3",
        "Gemma 3",
        "DeepSeek",
        "GPT-OSS",
        "GLM",
        "MiniMax",
        "Kimi",
    )
    others = {"deepseek-v2", "deepseek-v2-lite", "kimi-linear-48b-a3b", "glm-4.7-flash"}  # none was seen
    for model in all_models():
        if model.family in families and model.key not in others and not model.served.is_below(Precision.fp8):
            assert checkpoint_for(model, Precision.fp8), model.key


def test_a_listed_checkpoint_says_what_shares_a_scale_where_the_config_does_not() -> None:
    expected = {"qwen3-30b-a3b": "blocks", "glm-4.5-air": "channel", "llama-3.1-8b": "tensor", "deepseek-v3": "blocks"}
    assert {key: fp8_scales(find_model(key)) for key in expected} == expected
    assert fp8_scales(find_model("qwen3-30b-a3b"), tp=4, expert_parts=4) == "channel"  # whose blocks cannot be cut
    assert fp8_scales(find_model("glm-5")) is None


def test_blocks_of_scales_are_not_cut() -> None:
    # vllm-project/vllm issue 17569: of Qwen3-235B-A22B, 8 GPUs have 1536 / 8 = 192 columns of an expert each, and
    # QwenLM/Qwen3 issue 1485: of Qwen3-30B-A3B, 4 GPUs have 768 / 4 = 192; blocks are 128 wide.
    for key, cut, whole in (("qwen3-235b-a22b", 8, 4), ("qwen3-30b-a3b", 4, 2)):
        model = find_model(key)
        at_most = there(checkpoint_for(model, Precision.fp8, whole, whole))
        more = there(checkpoint_for(model, Precision.fp8, cut, cut))
        assert at_most.format == "W8A8 FP8, blocks"
        assert more.format == "W8A8 FP8, dynamic"
        assert there(checkpoint_for(model, Precision.fp8, cut, 1)) == at_most  # whole experts on every GPU
    qwen = find_model("qwen3-4b")  # 9728 / 8 = 1216 = 9.5 blocks
    assert checkpoint_for(find_model("qwen3-1.7b"), Precision.fp8, 8) is not None
    assert there(checkpoint_for(qwen, Precision.fp8, 8)).format == "W8A8 FP8, dynamic"
    small = find_model("qwen3-vl-4b")
    assert checkpoint_for(small, Precision.fp8, 4) is not None
    assert checkpoint_for(small, Precision.fp8, 8) is None
    assert "Qwen/Qwen3-VL-4B-Instruct-FP8" in how_to_make(small, Precision.fp8, "vllm")


def test_a_score_of_the_deployed_format_comes_first_and_another_is_named() -> None:
    formats = {row.format for row in load_checkpoints() if row.format}
    for model in all_models():
        for precision in Precision:
            found = recovery_of(model, precision) if precision.is_below(model.served) else None
            listed = checkpoint_for(model, precision)
            if found is None or found.own:
                continue
            assert found.deployed == (
                listed.format if listed else "W8A8 FP8, per tensor" if precision == "fp8" else None
            )
            said = recovery_text(found, model)
            same = found.format == found.deployed or (found.format or "").startswith(f"{found.deployed}, ")
            assert ("deployed" in said) is not same
            same_format = [
                score
                for score in load_scores()
                if listed
                and listed.format
                and (score.model, score.precision, score.method) == (model.key, precision, listed.format)
            ]
            assert same or not same_format  # never another's where one of the format is known
    assert {"W8A8 FP8, blocks", "W8A8 FP8, dynamic", "W8A8 FP8, per tensor", "NVFP4"} <= formats
    qwen = find_model("qwen3-32b")
    found = there(recovery_of(qwen, Precision.fp8))
    assert (found.model, found.deployed) == ("qwen3-32b", "W8A8 FP8, blocks")
    assert found.recovery == pytest.approx(69.64 / 70.24, abs=1e-4)  # MMLU-Pro
    assert "W8A8 FP8, blocks" in recovery_text(found, qwen)


def test_the_published_precision_needs_no_score_and_others_reach_the_floor_or_are_named() -> None:
    model = find_model("llama-3.1-8b")
    tried = (Precision.bf16, Precision.fp8, Precision.int4)
    kept, left_out = allowed_by_recovery(model, tried, 0.98)
    assert kept == (Precision.bf16, Precision.fp8)
    assert "97.0 % of BF16" in left_out[Precision.int4]
    assert allowed_by_recovery(model, tried, 0.97)[0] == tried
    gemma = find_model("gemma-3-27b")
    kept, left_out = allowed_by_recovery(gemma, (Precision.bf16, Precision.int4), 0.01)
    assert kept == (Precision.bf16,)
    assert left_out == {Precision.int4: "no published score for Gemma 3 27B or its family"}


def test_a_higher_floor_never_lets_more_through() -> None:
    precisions = (Precision.bf16, Precision.fp8, Precision.int8, Precision.int4)
    for model in all_models()[::4]:
        before: set[Precision] | None = None
        for floor in (0.5, 0.98, 1.0):
            kept = set(allowed_by_recovery(model, precisions, floor)[0])
            assert before is None or kept <= before
            before = kept


def test_an_fp8_cache_is_held_against_scores_of_caches_not_of_weights() -> None:
    model, both = find_model("llama-3.3-70b"), (Precision.bf16, Precision.fp8)
    assert allowed_by_recovery(model, both, 0.97, "kv")[0] == both
    assert allowed_by_recovery(model, both, 0.98, "kv")[0] == (Precision.bf16,)
    relative = there(recovery_of(find_model("llama-3.1-70b"), Precision.fp8, "kv"))
    assert relative.model == "llama-3.3-70b"  # of the same generation
    assert recovery_of(find_model("gemma-3-27b"), Precision.fp8, "kv") is None


def test_one_s_own_score_counts_before_published_ones(catalogue: Path) -> None:
    catalogue.write_text('[gpus.X]\n# mine\narchitecture = "hopper"\n')
    save_recovery(OWN)
    found = there(recovery_of(find_model("llama-3.1-8b"), Precision.int4))
    assert (found.recovery, found.own, found.benchmarks) == (0.985, True, ("gsm8k",))
    assert catalogue.read_text().startswith('[gpus.X]\n# mine\narchitecture = "hopper"\n')
    save_recovery(OWN.model_copy(update={"precision": Precision.fp8}))
    save_recovery(OWN.model_copy(update={"recovery": 0.9}))  # takes the place of the old one
    own = {key: table["recovery"] for key, table in user_tables("recovery").items()}
    assert own == {"llama-3.1-8b fp8": 0.985, "llama-3.1-8b int4": 0.9}


def test_a_slip_in_one_s_own_entry_names_file_and_field(catalogue: Path) -> None:
    catalogue.write_text('[recovery.x]\nmodel = "llama-3.1-8b"\nprecision = "int4"\nrecovry = 1\n')
    with pytest.raises(BadInput, match=r"catalog.toml \[recovery.x\]: .*(missing|recovry)"):
        recovery_of(find_model("llama-3.1-8b"), Precision.int4)


def test_where_no_checkpoint_is_known_it_says_what_makes_one() -> None:
    model = find_model("gemma-2-27b")
    assert checkpoint_for(model, Precision.fp8) is None
    assert "--quantization fp8" in how_to_make(model, Precision.fp8, "vllm")
    assert "--quantization" not in how_to_make(model, Precision.fp8, "sglang")
    assert "GPTQ or AWQ" in how_to_make(model, Precision.int4, "vllm")


# --- what drafts for a model: modules and heads against what their authors publish of them ----------------------------


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
