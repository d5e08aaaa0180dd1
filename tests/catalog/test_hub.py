"""A model of the Hugging Face hub is looked up on request alone, from recorded answers on loopback.

The answers have the shape that huggingface_hub (utils/_http.py, file_download.py of 1.x) reads: a small file is
redirected within the host, a large one to a store on another; what is not there has an ``X-Error-Code``.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from tests.catalog.file_hosts import Answer, Host, file_host

from tokonomics.catalog import hub
from tokonomics.catalog.config_json import LARGEST_FILE
from tokonomics.catalog.load_models import CONFIGS_IN, READING, ConfigReading, find_model
from tokonomics.catalog.models import ModelSpec
from tokonomics.errors import TokonomicsError, flag
from tokonomics.questions.request import Listener
from tokonomics.questions.requests.buy import FitRequest
from tokonomics.questions.verbs import find_verb

REPOSITORY = "someone/Tiny-Llama"
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 256, "intermediate_size": 1024,
    "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 1000,
    "max_position_embeddings": 2048, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
}  # fmt: skip
# Embedding and head, four layers (q, k, v, o, three matrices of the MLP, two norms) and the last norm; 2 bytes each.
PARAMETERS = 2 * 1000 * 256 + 4 * (2 * 256 * 256 + 2 * 256 * 128 + 3 * 256 * 1024 + 2 * 256) + 256
TOKEN = "hf_secretsecret"
Hosts = tuple[Host, Host]


@pytest.fixture
def hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hosts]:
    """The hub, and the store that it redirects to."""
    with file_host() as found, file_host() as store:
        monkeypatch.setenv("HF_ENDPOINT", found.url)
        monkeypatch.setenv("TOKONOMICS_CACHE", str(tmp_path / "cache"))
        monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
        for name in ("HF_TOKEN", "HF_TOKEN_PATH", "HF_HUB_OFFLINE"):
            monkeypatch.delenv(name, raising=False)
        hub.fetch.cache_clear()
        at, kept = f"/{REPOSITORY}/resolve/main", "/api/resolve-cache/models/someone/Tiny-Llama/0123abc"
        found.files[f"{at}/config.json"] = (307, {"Location": f"{kept}/config.json"}, b"")
        found.files[f"{kept}/config.json"] = (200, {"X-Repo-Commit": "0123abc"}, json.dumps(CONFIG).encode())
        index = {"metadata": {"total_size": 2 * PARAMETERS}, "weight_map": {"lm_head.weight": "model-1.safetensors"}}
        found.files[f"{at}/model.safetensors.index.json"] = (302, {"Location": f"{store.url}/xet/abc?sig=1"}, b"")
        store.files["/xet/abc?sig=1"] = (200, {}, json.dumps(index).encode())
        yield found, store


def looked_up(name: str = REPOSITORY, *, ask: bool = True) -> tuple[ModelSpec, list[str]]:
    notes: list[str] = []
    before = READING.set(ConfigReading(note=notes.append, hub=ask))
    try:
        return find_model(name), notes
    finally:
        READING.reset(before)


def test_the_config_is_fetched_and_its_size_is_that_of_the_weights(hosts: Hosts) -> None:
    model, notes = looked_up()
    assert (model.name, model.parameters, model.repository) == ("Tiny-Llama", PARAMETERS, REPOSITORY)
    assert len(notes) == 1  # where it is from; nothing to say of its size
    missing = {f"/{REPOSITORY}/resolve/main/{hub.MODELOPT}"}
    assert {path for path, _ in hosts[0].asked} == set(hosts[0].files) | missing


def test_what_modelopt_says_beside_the_config_is_fetched_with_it(hosts: Hosts) -> None:
    told = {"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"]}}
    hosts[0].files[f"/{REPOSITORY}/resolve/main/{hub.MODELOPT}"] = json.dumps(told)
    model, _ = looked_up()
    assert (model.checkpoint, model.kv_checkpoint) == ("fp8", "fp8")
    assert looked_up(ask=False)[0] == model  # and kept


@pytest.mark.parametrize("index", ["of another size", "none: it is one file"])
def test_weights_of_another_size_are_told(hosts: Hosts, index: str) -> None:
    hosts[1].files["/xet/abc?sig=1"] = (200, {}, json.dumps({"metadata": {"total_size": PARAMETERS}}).encode())
    if index.startswith("none"):
        del hosts[0].files[f"/{REPOSITORY}/resolve/main/model.safetensors.index.json"]
    assert len(looked_up()[1]) == (1 if index.startswith("none") else 2)


def test_nobody_is_asked_unless_somebody_says_so(hosts: Hosts) -> None:
    with pytest.raises(TokonomicsError) as error:
        looked_up(ask=False)
    assert "--hub" in error.value.message(flag)
    assert not hosts[0].asked


def test_what_was_fetched_is_found_again_without_a_network(hosts: Hosts) -> None:
    fetched, _ = looked_up()
    looked_up()  # and asked for once, however often it is looked up
    asked = len(hosts[0].asked)
    assert asked == 4
    kept, notes = looked_up(ask=False)
    assert kept == fetched
    assert "on the Hugging Face hub" in notes[0]
    assert len(hosts[0].asked) == asked


def test_a_model_of_the_catalogue_is_not_looked_up(hosts: Hosts) -> None:
    assert looked_up("meta-llama/Llama-3.1-8B")[0].key == looked_up("llama-3.1-8b", ask=False)[0].key
    assert not hosts[0].asked


@pytest.mark.parametrize("place", ["HF_TOKEN", "HF_TOKEN_PATH", "HF_HOME"])
def test_only_the_hub_gets_the_token(hosts: Hosts, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if place == "HF_TOKEN":
        monkeypatch.setenv("HF_TOKEN", f" {TOKEN}\n")
    else:
        file = tmp_path / ("mine" if place == "HF_TOKEN_PATH" else "hf/token")
        file.parent.mkdir(exist_ok=True)
        file.write_text(f"{TOKEN}\n")
        if place == "HF_TOKEN_PATH":
            monkeypatch.setenv("HF_TOKEN_PATH", str(file))
    looked_up()
    assert [token for _, token in hosts[0].asked] == [f"Bearer {TOKEN}"] * 4  # also after a redirect within the host
    assert hosts[1].asked == [("/xet/abc?sig=1", None)]


@pytest.mark.parametrize(
    "answer",
    [
        (401, {"X-Error-Code": "GatedRepo"}, b""),
        (403, {}, b""),
        (404, {"X-Error-Code": "RepoNotFound"}, b""),
        (404, {"X-Error-Code": "EntryNotFound"}, b""),
        (500, {}, b""),
        (200, {}, b"<html>"),
        (200, {}, b"[" * 100_000),
        (200, {}, b" " * (LARGEST_FILE + 1)),
        (302, {"Location": "ftp://elsewhere/x"}, b""),
        (302, {"Location": f"/{REPOSITORY}/resolve/main/config.json"}, b""),
    ],
)
def test_every_refusal_names_the_model_and_no_token(
    hosts: Hosts, answer: Answer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    hosts[0].files[f"/{REPOSITORY}/resolve/main/config.json"] = answer
    with pytest.raises(TokonomicsError) as error:
        looked_up()
    told = error.value.message(flag)
    assert REPOSITORY in told
    assert TOKEN not in told


def test_no_token_is_sent_that_no_header_holds_or_in_the_clear(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", f"{TOKEN}\nsecond-line")
    looked_up()
    assert {token for _, token in hosts[0].asked} == {None}
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert hub._token(urlsplit("https://hub.example")) == TOKEN
    assert hub._token(urlsplit("http://hub.example")) is None


def test_a_token_is_hidden_before_an_error_is_cut(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> None:
        raise OSError("x" * 110 + TOKEN + "y" * 100)

    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setattr("urllib.request.OpenerDirector.open", fails)
    with pytest.raises(TokonomicsError, match="cannot be asked") as error:
        looked_up()
    assert TOKEN[:4] not in str(error.value)


def test_a_hub_that_cannot_be_reached(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("HF_ENDPOINT", "http://127.0.0.1:1"), ("HF_ENDPOINT", "file:///etc"), ("HF_HUB_OFFLINE", "1")):
        monkeypatch.setenv(name, value)
        with pytest.raises(TokonomicsError):
            looked_up()


@pytest.mark.parametrize(
    "name", ["a/b/c", "../x", "a/..", "a/b..c", "a--b/c", "/a/b", "a/b?x=1", "a b/c", "a/" + "b" * 99]
)
def test_other_texts_are_no_repositories(hosts: Hosts, name: str) -> None:
    assert not hub.is_repository(name)
    with pytest.raises(TokonomicsError):
        looked_up(name)
    assert not hosts[0].asked


def test_strangers_cannot_make_us_ask(hosts: Hosts, tmp_path: Path) -> None:
    before = CONFIGS_IN.set(tmp_path)
    try:
        with pytest.raises(TokonomicsError):
            looked_up()
    finally:
        CONFIGS_IN.reset(before)
    assert not hosts[0].asked


def test_a_question_takes_a_model_of_the_hub(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    listener, notes = Listener(), list[str]()
    monkeypatch.setattr(listener, "note", notes.append)
    result = find_verb("fit").answer(FitRequest(model=REPOSITORY, gpu="L4", hub=True), listener)
    assert result.plain()["model"] == "tiny-llama"
    assert any("Hugging Face hub" in note for note in notes)
