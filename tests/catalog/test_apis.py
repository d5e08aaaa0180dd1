"""API prices: what one request costs, and that a price nobody quotes is never made up."""

import json
import re
from collections import Counter
from contextlib import suppress
from datetime import UTC, date, datetime
from pathlib import Path

import pytest
from genai_prices import Usage
from genai_prices.data_snapshot import get_snapshot
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.there import there

from tokonomics.catalog.api_hosts import find_api, hosts_of, list_apis, names_of, words_of
from tokonomics.catalog.apis import ApiPrice, ApiTier, price_request, read_litellm
from tokonomics.catalog.load_models import all_models, find_model
from tokonomics.errors import BadInput, TokonomicsError, UnknownName

pytestmark = pytest.mark.usefixtures("on_the_first_of_november")


def user_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str) -> None:
    file = tmp_path / "catalog.toml"
    file.write_text(text, encoding="utf-8")
    monkeypatch.setenv("TOKONOMICS_CATALOG", str(file))


def api(**changes: object) -> ApiPrice:
    plain = {"host": "h", "model": "m", "input_usd_per_mtok": 2.0, "output_usd_per_mtok": 8.0, "source": "test"}
    return ApiPrice.model_validate({**plain, "date": date(2026, 1, 1), **changes})


GPT_4O, GEMINI, SONAR = "openai:gpt-4o", "google:gemini-2.5-pro", "perplexity:sonar"


@pytest.mark.parametrize(
    ("name", "tokens", "batch", "usd"),
    [
        (GPT_4O, (500_000_000, 0, 500_000_000), False, 6250),  # claim C27: 0.5 B × $2.50/M + 0.5 B × $10/M
        (GPT_4O, (500, 0, 500), False, 6250 / 1e6),
        (GPT_4O, (1_000_000, 800_000, 100_000), False, 0.2 * 2.5 + 0.8 * 1.25 + 0.1 * 10),  # cached has its own price
        (GPT_4O, (1_000_000, 0, 100_000), True, 1.25 + 0.5),
        # A long request pays the higher tier for all of its tokens; the tier is that of the request, not of the month.
        (GEMINI, (200_000, 0, 10_000), False, 0.2 * 1.25 + 0.01 * 10),
        (GEMINI, (200_001, 0, 10_000), False, 0.200001 * 2.5 + 0.01 * 15),
        (GEMINI, (300_000, 100_000, 10_000), False, 0.2 * 2.5 + 0.1 * 0.25 + 0.01 * 15),
        (GEMINI, (400_000, 0, 100_000), True, 0.4 * 1.25 + 0.1 * 7.5),
        (SONAR, (1_000_000, 0, 1_000_000), False, 1 + 1 + 0.012),  # a fee per request is charged once
    ],
)
def test_requests_cost_tokens_at_their_prices(name: str, tokens: tuple[int, int, int], batch: bool, usd: float) -> None:
    assert price_request(find_api(name), *tokens, batch=batch) == pytest.approx(usd)


def test_a_batch_price_nobody_quotes_is_unknown_not_the_full_price(monkeypatch: pytest.MonkeyPatch) -> None:
    reseller = find_api("azure:gpt-4o")  # genai-prices lends azure openai's standard price, and no batch price
    assert "openai" in reseller.source
    assert reseller.batch_input_usd_per_mtok is None
    with pytest.raises(BadInput, match="batch input price of azure:gpt-4o is unknown"):
        price_request(reseller, 1000, 0, 10, batch=True)
    monkeypatch.setenv("TOKONOMICS_TODAY", "2026-10-01")  # before it was verified
    assert find_api("openai:gpt-4o").batch_input_usd_per_mtok is None


def test_a_cached_price_nobody_quotes_is_unknown_not_the_full_price() -> None:
    with pytest.raises(BadInput, match="cached price of h:m is unknown"):
        price_request(api(), 1000, 1, 10)
    with pytest.raises(BadInput, match="batch cached price of openai:gpt-4o is unknown"):
        price_request(find_api("openai:gpt-4o"), 1000, 500, 10, batch=True)
    assert price_request(api(), 1000, 0, 10) == pytest.approx(0.002 + 0.00008)


def test_every_shipped_price_agrees_with_the_package_it_comes_from() -> None:
    providers = {host.id: host for host in get_snapshot().providers}
    noon = datetime(2026, 11, 1, 12, tzinfo=UTC)
    shipped = list_apis()
    assert len(shipped) > 1500
    for one in shipped:
        model = next(each for each in providers[one.host].models if each.id == one.model)
        for tokens, cached in ((1_000, 0), (150_000, 50_000), (300_000, 0), (900_000, 900_000)):
            if cached and one.rates(tokens).cached_input_usd_per_mtok is None:
                continue
            usage = Usage(input_tokens=tokens, output_tokens=777, cache_read_tokens=cached or None)
            theirs = model.calc_price(usage, providers[one.host], genai_request_timestamp=noon).total_price
            assert price_request(one, tokens, cached, 777) == pytest.approx(float(theirs)), one.key


def test_tokens_written_into_a_cache_cost_what_the_package_says() -> None:
    """Claude Sonnet: $3 in, $3.75 written, $0.30 read, $15 out."""
    sonnet = find_api("anthropic:claude-sonnet-4-5")
    assert price_request(sonnet, 100_000, 60_000, 1000, written_tokens=30_000) == pytest.approx(
        (10_000 * 3 + 30_000 * 3.75 + 60_000 * 0.3 + 1000 * 15) / 1e6
    )
    anthropic = next(host for host in get_snapshot().providers if host.id == "anthropic")
    noon = datetime(2026, 11, 1, 12, tzinfo=UTC)
    charged = [one for one in list_apis(host="anthropic") if one.cache_write_usd_per_mtok is not None]
    assert len(charged) > 10
    for one in charged:
        model = next(each for each in anthropic.models if each.id == one.model)
        usage = Usage(input_tokens=90_000, output_tokens=777, cache_read_tokens=50_000, cache_write_tokens=30_000)
        theirs = model.calc_price(usage, anthropic, genai_request_timestamp=noon).total_price
        assert price_request(one, 90_000, 50_000, 777, written_tokens=30_000) == pytest.approx(float(theirs)), one.key


def test_writing_never_costs_less_than_the_input_and_no_more_is_written_than_is_computed() -> None:
    cheap = api(cache_write_usd_per_mtok=0.5)
    assert price_request(cheap, 1000, 0, 0, written_tokens=1000) == price_request(cheap, 1000, 0, 0)
    assert price_request(api(), 1000, 0, 0, written_tokens=1000) == price_request(api(), 1000, 0, 0)
    with pytest.raises(BadInput, match="not cached"):
        price_request(api(cached_input_usd_per_mtok=1.0), 1000, 600, 0, written_tokens=500)
    half = api(cache_write_usd_per_mtok=2.5, batch_input_usd_per_mtok=1.0, batch_output_usd_per_mtok=4.0)
    with pytest.raises(BadInput, match="batch cache write price"):
        price_request(half, 1000, 0, 0, batch=True, written_tokens=1000)


def test_every_price_says_when_and_where_it_was_quoted() -> None:
    for one in list_apis(host="anthropic"):
        assert one.source.startswith("genai-prices ")
        assert date(2026, 10, 1) <= there(one.date) <= date(2026, 11, 1)
    assert "12:00 UTC" in (find_api("deepseek:deepseek-v4-pro").note or "")  # changes with the hour


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("opnai:gpt-4o", "unknown API host 'opnai'\n  Did you mean openai"),
        ("openai:gpt-4oo", "Did you mean openai:gpt-4o"),
        ("gpt-4o", "Did you mean openai:gpt-4o"),
        ("", "unknown API"),
        (":", "unknown API"),
        ("openai:", "unknown API"),
    ],
)
def test_unknown_names_suggest_the_nearest(name: str, says: str) -> None:
    with pytest.raises(UnknownName) as caught:
        find_api(name)
    assert says in str(caught.value)


@settings(max_examples=50, deadline=None)
@given(name=st.text(max_size=40))
def test_no_name_makes_anything_but_a_price_or_our_own_error(name: str) -> None:
    with suppress(TokonomicsError):
        find_api(name)
    with suppress(TokonomicsError):
        find_api("openai:" + name)


def test_lists_are_by_host_and_by_part_of_the_name() -> None:
    found = list_apis(host="OpenAI", match="GPT-4o")
    assert "openai:gpt-4o" in {each.key for each in found}
    assert all(each.host == "openai" and "gpt-4o" in each.key for each in found)
    assert [each.key for each in found] == sorted(each.key for each in found)
    with pytest.raises(UnknownName, match="mistral"):
        list_apis(host="mistrl")


@pytest.mark.parametrize("tokens", [(-1, 0, 0), (0, 0, -1), (float("nan"), 0, 0), (float("inf"), 0, 0), (10, 11, 0)])
def test_impossible_requests_are_errors(tokens: tuple[float, float, float]) -> None:
    with pytest.raises(BadInput):
        price_request(api(cached_input_usd_per_mtok=1.0), *tokens)


tokens = st.integers(0, 2_000_000)


@given(fresh=tokens, cached=tokens, out=tokens, more=tokens)
def test_more_tokens_never_cost_less_and_caching_never_costs_more(fresh: int, cached: int, out: int, more: int) -> None:
    tier = ApiTier(
        above_input_tokens=128_000, input_usd_per_mtok=4, output_usd_per_mtok=12, cached_input_usd_per_mtok=0.4
    )
    one = api(cached_input_usd_per_mtok=0.2, tiers=(tier,))
    usd = price_request(one, fresh + cached, cached, out)
    assert price_request(one, fresh + cached + more, cached, out) >= usd
    assert price_request(one, fresh + cached, cached, out + more) >= usd
    assert price_request(one, fresh + cached, fresh + cached, out) <= usd


def test_your_own_price_stands_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    user_file(monkeypatch, tmp_path, '[apis."openai:gpt-4o"]\ninput = 2.0\noutput = 8\ndate = 2026-09-01\n')
    mine = find_api("openai:gpt-4o")
    assert price_request(mine, 1_000_000, 0, 1_000_000) == pytest.approx(10)
    assert mine.batch_input_usd_per_mtok is None
    assert (mine.date, mine.source) == (date(2026, 9, 1), "your catalogue file")


def test_what_you_know_amends_what_is_shipped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    user_file(monkeypatch, tmp_path, '[apis."azure:gpt-4o"]\nbatch_input = 1.25\nbatch_output = 5\n')
    assert price_request(find_api("azure:gpt-4o"), 1_000_000, 0, 1_000_000, batch=True) == pytest.approx(6.25)
    assert price_request(find_api("azure:gpt-4o"), 1_000_000, 0, 1_000_000) == pytest.approx(12.5)


def test_a_model_only_you_know_can_have_tiers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    user_file(
        monkeypatch,
        tmp_path,
        '[apis."ours:Big-1"]\ninput = 1\noutput = 2\ntiers = [{above_input_tokens = 1000, input = 3}]\n',
    )
    ours = find_api("ours:big-1")
    assert price_request(ours, 1000, 0, 0) == pytest.approx(0.001)
    assert price_request(ours, 2000, 0, 1000) == pytest.approx(2000 * 3e-6 + 1000 * 2e-6)
    assert "ours:Big-1" in {each.key for each in list_apis(host="ours")}


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ('[apis."ours:x"]\ninput = 1\n', "needs input and output"),
        ('[apis."ours:x"]\ninput = -1\noutput = 1\n', "field 'input'"),
        ('[apis."ours:x"]\ninput = nan\noutput = 1\n', "field 'input'"),
        ('[apis."ours:x"]\ninput = 1\noutput = 1\ncachd = 1\n', "cached"),
        ("[apis.ours]\ninput = 1\noutput = 1\n", "host:model"),
    ],
)
def test_mistakes_in_prices_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, table: str, says: str) -> None:
    user_file(monkeypatch, tmp_path, table)
    with pytest.raises(BadInput, match=says):
        list_apis()


LITELLM: dict[str, dict[str, object]] = {
    "sample_spec": {"input_cost_per_token": "USD", "output_cost_per_token": "USD"},
    "gpt-4o": {
        "litellm_provider": "openai", "mode": "chat",
        "input_cost_per_token": 2.5e-06, "output_cost_per_token": 1e-05, "cache_read_input_token_cost": 1.25e-06,
        "input_cost_per_token_batches": 1.25e-06, "output_cost_per_token_batches": 5e-06,
    },
    "gemini/long": {
        "litellm_provider": "gemini", "input_cost_per_token": 1e-06, "output_cost_per_token": 4e-06,
        "input_cost_per_token_above_128k_tokens": 2e-06, "output_cost_per_token_above_128k_tokens": 8e-06,
    },
    "embed": {"litellm_provider": "openai", "input_cost_per_token": 1e-08},
}  # fmt: skip


def test_a_litellm_price_file_is_read_with_batch_cache_and_tiers(tmp_path: Path) -> None:
    file = tmp_path / "prices.json"
    file.write_text(json.dumps(LITELLM))
    gpt, long = read_litellm(file)
    assert (gpt.key, gpt.input_usd_per_mtok, gpt.date, gpt.source) == ("openai:gpt-4o", 2.5, None, "prices.json")
    assert price_request(gpt, 1_000_000, 500_000, 0) == pytest.approx(1.25 + 0.625)
    assert price_request(gpt, 1_000_000, 0, 1_000_000, batch=True) == pytest.approx(6.25)
    assert long.key == "gemini:long"
    assert price_request(long, 128_000, 0, 0) == pytest.approx(0.128)
    assert price_request(long, 129_000, 0, 1_000_000) == pytest.approx(0.129 * 2 + 8)
    with pytest.raises(BadInput, match="unknown"):
        price_request(long, 1000, 0, 0, batch=True)
    assert find_api("gemini:long", extra=[gpt, long]) == long
    assert long in list_apis(extra=[gpt, long])


@pytest.mark.parametrize(
    "content",
    [
        "", "[]", "{", "null", "\0", '{"m": {"input_cost_per_token": NaN, "output_cost_per_token": 1e-6}}',
        '{"m": {"input_cost_per_token": -1, "output_cost_per_token": 1e-6}}',
        '{"m": {"input_cost_per_token": 30, "output_cost_per_token": 1e-6}}',
        '{"m": {"input_cost_per_token": [], "output_cost_per_token": 1e-6}}', "[" * 100_000,
        '{"m": {"input_cost_per_token": null, "output_cost_per_token": 1e-6}}',
    ],
)  # fmt: skip
def test_a_bad_litellm_file_is_one_clear_error(tmp_path: Path, content: str) -> None:
    file = tmp_path / "bad.json"
    file.write_text(content)
    with pytest.raises(BadInput, match=r"bad\.json"):
        read_litellm(file)


# --- which rows sell a model: all that are it, and none that is only like it ------------------------------------------

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


@pytest.mark.parametrize(
    ("asked", "its", "others"),
    [
        ("kimi-k2.5", ("k2.5", "k2p5"), ("k2.6", "k2p6")),
        ("Kimi-K2.6", ("k2.6", "k2p6"), ("k2.5", "k2p5")),
        ("qwen3-vl-235b-a22b", ("235b-a22b",), ("thinking",)),
    ],
)
def test_another_version_of_the_same_shape_is_no_host_of_a_model(
    asked: str, its: tuple[str, ...], others: tuple[str, ...]
) -> None:
    found = [key.casefold() for key in keys(asked)]
    assert found
    assert all(any(part in key for part in its) for key in found)
    assert not any(part in key for part in others for key in found)


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
