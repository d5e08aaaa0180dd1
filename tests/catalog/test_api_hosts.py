"""Which rows of the API catalogue sell a model: all that are it, and none that is only like it."""

import re
from collections import Counter
from pathlib import Path

import pytest

from tokonomics.catalog.api_hosts import hosts_of, list_apis, names_of, words_of
from tokonomics.catalog.load_models import all_models, find_model

pytestmark = pytest.mark.usefixtures("on_the_first_of_november")

HUGGING_FACE = (
    "fireworks-ai", "groq", "hyperbolic", "nebius", "novita", "nscale", "ovhcloud", "sambanova", "together",
)  # fmt: skip
LLAMA_33 = [
    "aws:meta.llama3-3-70b-instruct-v1:0",
    "cloudflare:@cf/meta/llama-3.3-70b-instruct-fp8-fast",
    "databricks:databricks-meta-llama-3-3-70b-instruct",
    "groq:llama-3.3-70b-specdec",
    "groq:llama-3.3-70b-versatile",
    *(f"huggingface_{host}:meta-llama/Llama-3.3-70B-Instruct" for host in HUGGING_FACE),
    "novita:meta-llama/llama-3.3-70b-instruct",
    "openrouter:meta-llama/llama-3.3-70b-instruct",
    "ovhcloud:Meta-Llama-3_3-70B-Instruct",
    "together:meta-llama/Llama-3.3-70B-Instruct-Turbo",
    "together:meta-llama/Meta-Llama-3.3-70B-Instruct-Turbo",
]
"""Read in the list itself: all rows with 3.3 (3-3, 3_3) and 70B, less two that their hosts withdraw and fine-tunes by
others (Swallow, Euryale)."""


def keys(name: str) -> list[str]:
    return [api.key for api in hosts_of(find_model(name), name)]


@pytest.mark.parametrize(
    ("written", "model"),
    [
        ("accounts/fireworks/models/llama-v3p1-8b-instruct", "llama-3.1-8b"),
        ("meta.llama3-1-8b-instruct-v1:0", "llama-3.1-8b"),
        ("@cf/meta/llama-3.1-8b-instruct-fp8-fast", "llama-3.1-8b"),
        ("Meta-Llama-3_1-8B-Instruct", "llama-3.1-8b"),
        ("meta.llama4-scout-17b-instruct-v1:0", "llama-4-scout"),
        ("mistral.mixtral-8x7b-instruct-v0:1", "mixtral-8x7b"),
        ("mistral.mistral-7b-instruct-v0:2", "mistral-7b-v0.2"),
        ("openai.gpt-oss-120b-1:0", "gpt-oss-120b"),
        ("deepseek.r1-v1:0", "deepseek-r1"),
        ("qwen.qwen3-32b-v1:0", "qwen3-32b"),
        ("qwen/qwen3-coder", "qwen3-coder-480b-a35b"),
        ("nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-NVFP4", "nemotron-3-super-120b-a12b"),
        ("zai-org/GLM-4.5-Air-FP8", "glm-4.5-air"),
        ("deepseek/deepseek-r1-distill-llama-70b", None),
        ("deepseek/deepseek-v3-0324", None),
        ("deepseek-ai/DeepSeek-V3.1", None),
        ("qwen/qwen3-235b-a22b-2507", None),
        ("qwen/qwen3-235b-a22b-thinking-2507", None),
        ("qwen/qwen3-next-80b-a3b-thinking", None),
        ("nousresearch/hermes-3-llama-3.1-70b", None),
        ("nvidia/llama-3.1-nemotron-70b-instruct", None),
        ("meta-llama/llama-3.3-70b-instruct:free", None),
        ("openai/gpt-oss-120b:batch", None),
        ("mistralai/mistral-small", None),
        ("minimax/minimax-m2.5", None),
        ("openai/gpt-oss-safeguard-20b", None),
        ("qwen2-57b", None),  # 2.5-7b and 2-57b have the same letters in a row
    ],
)
def test_a_name_is_of_one_model_or_of_none_that_we_know(written: str, model: str | None) -> None:
    found = [known.key for known in all_models() if words_of(written) in names_of(known, known.key)]
    assert found == ([model] if model else [])


def sizes(name: str) -> Counter[str]:
    """Billions of parameters in a name, as 70b or a3b."""
    return Counter(re.findall(r"(?<![a-z\d.])a?\d+(?:\.\d+)?b(?![a-z])", name.casefold().replace("_", ".")))


def test_no_row_is_of_two_models_and_each_has_the_size_in_its_name() -> None:
    owners: dict[str, list[str]] = {}
    for model in all_models():
        for api in hosts_of(model, model.key):
            owners.setdefault(api.key, []).append(model.key)
            stated = {size for name in (model.key, model.name, *model.aliases) for size in sizes(name)}
            assert set(sizes(api.model)) <= stated, (api.key, model.key)
    assert {key: names for key, names in owners.items() if len(names) > 1} == {}
    assert len(owners) > 250


def test_what_nobody_sells_any_more_or_gives_away_is_no_price_to_compare_with() -> None:
    rows = [api for model in all_models() for api in hosts_of(model, model.key)]
    assert not any(api.deprecated for api in rows)
    assert all(api.input_usd_per_mtok + api.output_usd_per_mtok > 0 for api in rows)
    withdrawn = next(api for api in list_apis("cerebras") if api.model == "llama-3.3-70b")
    assert withdrawn.deprecated
    assert withdrawn.key not in keys("llama-3.3-70b")


def test_another_checkpoint_of_the_same_shape_is_meant_only_where_it_is_named() -> None:
    distilled = keys("DeepSeek-R1-Distill-Llama-70B")
    assert "ovhcloud:DeepSeek-R1-Distill-Llama-70B" in distilled
    assert not set(distilled) & set(LLAMA_33)
    spelt = ("llama-3.3-70b", "Llama-3.3-70B-Instruct", "meta-llama/Llama-3.3-70B-Instruct")
    assert [keys(name) for name in spelt] == [LLAMA_33] * 3


def test_a_price_of_the_users_own_is_a_host_like_any_other(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "catalog.toml"
    file.write_text('[apis."acme:Llama-3.1-8B-Instruct"]\ninput = 0.01\noutput = 0.02\n', encoding="utf-8")
    monkeypatch.setenv("TOKONOMICS_CATALOG", str(file))
    assert "acme:Llama-3.1-8B-Instruct" in keys("llama-3.1-8b")


def test_a_price_is_as_old_as_its_own_check_or_else_as_its_list() -> None:
    rows = list_apis()
    own = [api for api in rows if api.checked]
    assert own
    assert all(api.quoted == api.checked for api in own)
    assert all(api.quoted == api.date for api in rows if not api.checked)
    named = {api.host: api.seller for api in rows}
    assert named["huggingface_novita"] == named["novita"] == "novita"  # which computes what the other sells
