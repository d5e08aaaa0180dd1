"""The catalogue's models: what they are made of, against what their authors publish and what one computes by hand."""

import re
from collections import Counter
from pathlib import Path

import pytest
from tests.there import refused, there

from tokonomics.catalog.checkpoints import checkpoint_for, fp8_scales
from tokonomics.catalog.entries import spellings
from tokonomics.catalog.layers import GroupedAttention, Precision, RecurrentMixer
from tokonomics.catalog.load_models import all_models, find_model, find_models
from tokonomics.catalog.models import ModelSpec
from tokonomics.errors import TokonomicsError, UnknownName

BF16 = Precision.bf16


# Collected at import, where a developer's own catalogue must not take part.
with pytest.MonkeyPatch.context() as patch:
    patch.delenv("TOKONOMICS_CATALOG", raising=False)
    patch.setenv("HOME", "/nonexistent")
    MODELS = all_models()


@pytest.mark.parametrize("model", MODELS, ids=[model.key for model in MODELS])
def test_a_row_says_where_it_is_from_and_counts_what_its_authors_published(model: ModelSpec) -> None:
    """Authors count embeddings or not, and round "A3B" freely: the figure lies within half a billion or 5 %."""
    published = there(model.published)
    assert model.source
    assert model.date.year >= 2024
    assert published.source
    assert (published.not_served == 0) or published.excludes
    assert model.parameters == pytest.approx(published.parameters - published.not_served, rel=0.01)
    if stated := published.active_parameters:
        slack = max(0.5e9, 0.05 * stated)
        without_embeddings = model.active_parameters - model.parts.embedding - model.parts.head
        assert without_embeddings - slack <= stated <= model.active_parameters + slack
    assert model.layers == sum(group.count for group in model.groups)
    assert 0 < model.active_parameters <= model.parameters
    assert model.is_moe == (model.parts.experts > 0)
    assert model.weight_bytes(BF16) == 2 * model.parameters
    assert model.flops_per_token >= 2 * (model.active_parameters - model.parts.embedding - model.parts.small)


def test_the_catalogue_covers_the_families_people_serve() -> None:
    assert len(MODELS) >= 55
    families = {model.family for model in MODELS}
    assert families >= {
        "Llama 2", "Llama 3", "Llama 3.1", "Llama 3.2", "Llama 3.3", "Llama 4", "Mistral", "Mixtral", "Qwen2",
        "Qwen2.5", "Qwen3", "Qwen3-Next", "DeepSeek", "GPT-OSS", "Gemma 2", "Gemma 3", "Phi", "Falcon", "GPT-J", "OPT",
        "Kimi", "MiniMax", "GLM",
    }  # fmt: skip


def test_no_two_models_share_a_spelling() -> None:
    owner: dict[str, str] = {}
    for model in MODELS:
        for each in spellings(model):
            assert owner.setdefault(each, model.key) == model.key, f"'{each}' is {owner[each]} and {model.key}"


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("Llama-3.1-70B-Instruct", "llama-3.1-70b"),
        ("meta-llama/Meta-Llama-3.1-8B-Instruct", "llama-3.1-8b"),
        ("meta-llama/Llama-2-7b-chat-hf", "llama-2-7b"),
        ("llama-3-70b", "llama-3-70b"),
        ("llama2-7b", "llama-2-7b"),
        ("llama3.1-8b", "llama-3.1-8b"),
        ("LLAMA 3.3 70B", "llama-3.3-70b"),
        ("Mixtral-8x7B-Instruct-v0.1", "mixtral-8x7b"),
        ("Qwen/Qwen2.5-72B-Instruct", "qwen2.5-72b"),
        ("qwen3_30b_a3b", "qwen3-30b-a3b"),
        ("deepseek-ai/DeepSeek-R1", "deepseek-r1"),
        ("openai/gpt-oss-120b", "gpt-oss-120b"),
        ("google/gemma-3-27b-it", "gemma-3-27b"),
        ("microsoft/phi-4", "phi-4"),
        ("moonshotai/Kimi-K2-Instruct", "kimi-k2"),
        ("moonshotai/Kimi-K2.6", "kimi-k2.5"),
        ("Qwen/QwQ-32B-Preview", "qwen2.5-32b"),
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-7B", "qwen2.5-7b"),
        ("nvidia/Llama-3.1-Nemotron-70B-Instruct-HF", "llama-3.1-70b"),
        ("codellama/CodeLlama-34b-Instruct-hf", "codellama-34b"),
        ("tiiuae/falcon-180B-chat", "falcon-180b"),
        ("baidu/ERNIE-4.5-21B-A3B-PT", "ernie-4.5-21b-a3b"),
    ],
)
def test_common_spellings_find_the_model(name: str, key: str) -> None:
    assert find_model(name).key == key


# KV bytes per token at 16 bits, by hand: 2 (K and V) × layers × KV heads × head width × 2 bytes.
@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("llama-2-7b", 2 * 32 * 32 * 128 * 2),
        ("llama-2-70b", 2 * 80 * 8 * 128 * 2),
        ("llama-3.1-8b", 2 * 32 * 8 * 128 * 2),
        ("llama-3.1-70b", 327_680),
        ("llama-3.1-405b", 2 * 126 * 8 * 128 * 2),
        ("falcon-7b", 2 * 32 * 1 * 64 * 2),
        ("falcon-40b", 2 * 60 * 8 * 64 * 2),
        ("falcon-180b", 2 * 80 * 8 * 64 * 2),
        ("ernie-4.5-21b-a3b", 2 * 28 * 4 * 128 * 2),
        ("gpt-j-6b", 2 * 28 * 16 * 256 * 2),
        ("gpt-oss-120b", 2 * 36 * 8 * 64 * 2),
        ("gemma-3-27b", 2 * 62 * 16 * 128 * 2),
        # MLA keeps one latent of 512 and one rotary key of 64 per layer
        ("deepseek-v3", 61 * 576 * 2),
        ("deepseek-v2-lite", 27 * 576 * 2),
        ("kimi-k2", 61 * 576 * 2),
        # hybrids: only every fourth of 48 layers is attention; Nemotron 3 Nano has six attention layers
        ("qwen3-next-80b-a3b", 2 * 12 * 2 * 256 * 2),
        ("nemotron-3-nano-30b-a3b", 2 * 6 * 2 * 128 * 2),
        ("jamba-v0.1", 2 * 4 * 8 * 128 * 2),
        # DeepSeek-V3.2: a latent of 576 in 16 bits and an indexer's key of 128 in FP8 with one 32-bit scale
        ("deepseek-v3.2", 61 * (576 * 2 + 132)),
        ("glm-5", 78 * (576 * 2 + 132)),
        ("glm-5.2", 78 * 576 * 2 + 21 * 132),  # 21 of 78 layers choose for themselves
        ("kimi-k3", 24 * 576 * 2),  # 24 of 93 layers are attention
        ("gemma-4-e2b", 2 * 2 * (12 * 256 + 3 * 512)),  # 15 of 35 layers have keys of their own
        ("llama-3.3-nemotron-super-49b", 2 * 2 * 49 * 8 * 128),  # 49 of 80 layers attend
        ("mimo-v2-flash", 2 * (9 * 4 + 39 * 8) * (192 + 128)),
        ("mamba-2.8b", 0),
    ],
)
def test_kv_bytes_of_a_token_inside_every_window_by_hand(key: str, expected: int) -> None:
    assert find_model(key).kv_bytes_in_windows(BF16) == expected


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("deepseek-v3", 61 * 576),  # one scale for a layer
        # Sparse attention: 512 in FP8, four 32-bit scales, 64 in 16 bits (vLLM's fp8_ds_mla); the indexer's key
        ("deepseek-v3.2", 61 * (512 + 4 * 4 + 64 * 2 + 132)),
        ("glm-5.2", 78 * (512 + 4 * 4 + 64 * 2) + 21 * 132),
        # 448 in FP8, 64 in 16 bits, 8 bytes of scales: 43 windows, 20 layers of 128 tokens a row and 21 of 4 with a key
        ("deepseek-v4-flash", 584 * (43 + 20 / 128 + 21 / 4) + 132 * 21 / 4),
    ],
)
def test_kv_bytes_in_fp8_by_hand(key: str, expected: float) -> None:
    assert find_model(key).kv_bytes_in_windows(Precision.fp8) == pytest.approx(expected, abs=0.5)


def test_deepseek_v4_keeps_its_cache_in_fp8_unless_told_otherwise() -> None:
    assert find_model("deepseek-v4-flash").kv_served == "fp8"
    assert find_model("deepseek-v3.2").kv_served == "bf16"


@pytest.mark.parametrize(
    ("key", "growing", "constant"),
    [
        ("llama-3.1-8b", 2 * 32 * 8 * 128 * 2, 0),
        # 18 of 36 layers see all tokens, 18 the last 128
        ("gpt-oss-120b", 2 * 18 * 8 * 64 * 2, 2 * 18 * 8 * 64 * 2 * 128),
        # ten of 62 layers see all tokens, 52 the last 1,024
        ("gemma-3-27b", 2 * 10 * 16 * 128 * 2, 2 * 52 * 16 * 128 * 2 * 1024),
        ("deepseek-v3", 61 * 576 * 2, 0),
    ],
)
def test_what_grows_with_tokens_and_what_a_sequence_always_holds(key: str, growing: int, constant: int) -> None:
    model = find_model(key)
    assert (model.kv_bytes_per_token(BF16), model.kv_constant_bytes(BF16)) == (growing, constant)
    assert model.kv_bytes_per_token(Precision.fp8) == growing // 2


def test_a_recurrent_state_is_constant() -> None:
    mamba = find_model("mamba-2.8b")
    # 64 layers: a state of 16 and a window of four taps of a convolution for each of 5,120 channels
    assert mamba.kv_bytes_per_token(BF16) == 0
    assert mamba.kv_constant_bytes(BF16) == mamba.state_bytes > 64 * 5120 * 16 * 2
    assert mamba.windows == ()


def test_the_newest_models_stand_at_the_head_of_the_list() -> None:
    keys = [model.key for model in find_models()]
    dated = [model for model in find_models() if model.released]
    assert dated == sorted(dated, key=lambda model: model.released or model.date, reverse=True)
    for newest in ("glm-5.2", "minimax-m3", "step-3.7-flash", "nemotron-3-ultra-550b-a55b"):
        assert keys.index(newest) < keys.index("deepseek-v4-pro")  # of April 2026, all of them later


def test_opt_13b_matrix_by_matrix() -> None:
    hidden, inner, layers = 5120, 20480, 40
    layer = 4 * (hidden * hidden + hidden) + 2 * hidden * inner + inner + hidden + 4 * hidden
    assert find_model("opt-13b").parameters == (50272 + 2048 + 2) * hidden + layers * layer + 2 * hidden


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("gpt-oss-120b", {128: 18, None: 18}),
        ("gpt-oss-20b", {128: 12, None: 12}),
        ("gemma-2-27b", {4096: 23, None: 23}),
        ("gemma-3-27b", {1024: 52, None: 10}),  # five sliding layers before each full one: ⌊62 ÷ 6⌋ full
        ("gemma-3-1b", {512: 22, None: 4}),
        ("llama-4-scout", {8192: 36, None: 12}),
        ("mistral-7b-v0.1", {4096: 32}),
        ("mistral-7b", {None: 32}),
        ("llama-3.1-8b", {None: 32}),
        ("qwen2.5-72b", {None: 80}),
    ],
)
def test_windows_by_layer(key: str, expected: dict[int | None, int]) -> None:
    attending = [group for group in find_model(key).groups if isinstance(group.mixer, GroupedAttention)]
    windows = Counter(group.mixer.window for group in attending if group.mixer for _ in range(group.count))
    assert windows == expected


def test_qwen3_next_state_does_not_grow_with_context() -> None:
    mixers = [group.mixer for group in find_model("qwen3-next").groups]
    (recurrent,) = (mixer for mixer in mixers if isinstance(mixer, RecurrentMixer))
    # 32 value heads of 128 × 128, and the last three inputs of a convolution over 2 × 2048 + 4096 channels
    assert recurrent.state_elements == 32 * 128 * 128 + 3 * 8192
    assert recurrent.state_flops == 6 * recurrent.state_elements
    assert find_model("qwen3-next").state_bytes == 36 * 2 * recurrent.state_elements
    assert find_model("llama-3.1-8b").state_bytes == 0


def test_a_state_kept_in_32_bits_takes_twice_the_bytes() -> None:
    model = find_model("nemotron-3-nano-30b-a3b")
    state, convolution = 64 * 64 * 128, 3 * (64 * 64 + 2 * 8 * 128)
    assert model.state_bytes == 23 * (4 * state + 2 * convolution)


def test_checkpoints_come_in_the_precision_they_are_published_in() -> None:
    published = {"gpt-oss-120b": "mxfp4", "deepseek-v3": "fp8", "kimi-k2.5": "int4", "llama-3.1-8b": "bf16"}
    assert {key: find_model(key).checkpoint.value for key in published} == published


@pytest.mark.parametrize(
    ("name", "key", "precision", "repository"),
    [
        ("Qwen/Qwen3-32B-FP8", "qwen3-32b", "fp8", "Qwen/Qwen3-32B-FP8"),
        ("qwen3-30b-a3b-fp8", "qwen3-30b-a3b", "fp8", "Qwen/Qwen3-30B-A3B-FP8"),
        ("Qwen/Qwen3-30B-A3B-Instruct-2507-FP8", "qwen3-30b-a3b", "fp8", "Qwen/Qwen3-30B-A3B-Instruct-2507-FP8"),
        ("glm-4.5-air-fp8", "glm-4.5-air", "fp8", "zai-org/GLM-4.5-Air-FP8"),
        ("zai-org/GLM-5.3-FP8", "glm-5.2", "fp8", "zai-org/GLM-5.3-FP8"),
        ("ernie-4.5-21b-a3b-fp8", "ernie-4.5-21b-a3b", "fp8", None),  # none is listed
        ("llama-3.1-8b-awq", "llama-3.1-8b", "int4", "RedHatAI/Meta-Llama-3.1-8B-Instruct-quantized.w4a16"),
        ("deepseek-v3-fp8", "deepseek-v3", "fp8", "deepseek-ai/DeepSeek-V3"),  # it is published in fp8
    ],
)
def test_a_quantised_checkpoint_is_its_model_in_that_precision(
    name: str, key: str, precision: str, repository: str | None
) -> None:
    quantised, model, weights = find_model(name), find_model(key), Precision(precision)
    assert (quantised.key, quantised.served.value, quantised.repository) == (key, precision, repository)
    assert quantised.weight_bytes(weights) == model.weight_bytes(weights)
    assert fp8_scales(quantised) == fp8_scales(model) or weights is not Precision.fp8


def test_a_quantised_checkpoint_whose_blocks_would_be_cut_gives_way_to_another() -> None:
    model = find_model("qwen3-30b-a3b-fp8")
    loaded = [there(checkpoint_for(model, Precision.fp8, tp, tp)).repository for tp in (1, 4)]  # 768 ÷ 4 is 1.5 × 128
    assert loaded == ["Qwen/Qwen3-30B-A3B-FP8", "RedHatAI/Qwen3-30B-A3B-FP8-dynamic"]


def test_no_alias_names_a_precision_that_its_model_is_not_served_in() -> None:
    ending = re.compile(r"[-_.](fp8|awq|gptq|int4|int8|nvfp4|fp4|mxfp4)$", re.IGNORECASE)
    found = {alias: (ends[1].lower(), model.served.value)
             for model in all_models() for alias in model.aliases if (ends := ending.search(alias))}  # fmt: skip
    assert {alias: pair for alias, pair in found.items() if pair[0] != pair[1]} == {}


@pytest.mark.parametrize("name", ["-fp8", "fp8", "nothing-known-fp8"])
def test_a_precision_alone_names_no_model(name: str) -> None:
    with pytest.raises(UnknownName):
        find_model(name)


def test_an_unknown_model_suggests_the_nearest() -> None:
    with pytest.raises(UnknownName) as caught:
        find_model("lama-3.1-8b")
    assert "llama-3.1-8b" in str(caught.value.fix)


@pytest.mark.parametrize("name", ["", " ", "/", "~nobody-here/x", "a\0b", "x" * 10_000, "..", "🦙", "-", "models.toml"])
def test_odd_names_are_unknown_names(name: str) -> None:
    with pytest.raises(TokonomicsError):
        find_model(name)


CONFIG = (
    '{"model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,'
    ' "num_attention_heads": 4, "vocab_size": 100, "max_position_embeddings": 128}'
)


def test_a_path_or_a_directory_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "My-Model"
    folder.mkdir()
    (folder / "config.json").write_text(CONFIG)
    by_file, by_folder = find_model(str(folder / "config.json")), find_model(str(folder))
    assert by_file == by_folder
    assert by_file.name == "My-Model"
    monkeypatch.chdir(tmp_path)
    assert find_model("My-Model").layers == 2


def test_a_name_wins_over_a_directory_of_that_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "phi-4").mkdir()
    (tmp_path / "phi-4" / "config.json").write_text(CONFIG)
    monkeypatch.chdir(tmp_path)
    assert find_model("phi-4").layers == 40
    assert find_model("./phi-4").layers == 2


def test_the_users_catalogue_adds_and_replaces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.json").write_text(CONFIG)
    catalogue = tmp_path / "catalog.toml"
    catalogue.write_text(
        '[models.my-model]\nname = "Mine"\naliases = ["mine-chat"]\nconfig = "mine.json"\n'
        '[models.phi-4]\nconfig = {model_type = "llama", hidden_size = 64, intermediate_size = 128,'
        " num_hidden_layers = 3, num_attention_heads = 4, vocab_size = 100, max_position_embeddings = 128}\n"
    )
    monkeypatch.setenv("TOKONOMICS_CATALOG", str(catalogue))
    assert find_model("mine chat").key == "my-model"
    assert find_model("phi-4").layers == 3
    assert len(all_models()) == len(MODELS) + 1


WRONG = (
    "[models.x]\nname = 'x'\n", "[models.x]\nconfig = 3\n", "[models.x]\nconfg = 'a'\n",
    "[models.x]\nconfig = 'nowhere.json'\n", "[models.x]\nconfig = 'a'\naliases = 'x'\n",
    "[models.x]\nname = 1\nconfig = 'a'\n", "[models.x]\nconfig = {}\n",
    "[models.x]\nconfig = {}\nextra_parameters = -1\n", "[models.x]\nconfig = {}\ndate = 3\n", "models = 3\n",
    "[models]\nx = 3\n", "[modls.x]\n", "[models.x\n", b"\xff\xfe", None,
)  # fmt: skip


@pytest.mark.parametrize("text", WRONG)
def test_a_wrong_catalogue_is_named(text: str | bytes | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    catalogue = tmp_path / "catalog.toml"
    if text is not None:
        catalogue.write_bytes(text if isinstance(text, bytes) else text.encode())
    monkeypatch.setenv("TOKONOMICS_CATALOG", str(catalogue))
    assert str(tmp_path) in str(refused(find_model, "x").where)
