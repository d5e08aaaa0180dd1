"""What is shown of models: what they have, and nothing that they do not have."""

from collections.abc import Mapping
from typing import Any

import pytest

import tokonomics
from tokonomics.questions.listener import SILENT
from tokonomics.questions.verbs import find_verb
from tokonomics.report.answer import describe
from tokonomics.report.rich_text import COLUMNS

ENCODER: Mapping[str, Any] = {"rate": 200, "input": 400, "slo": "ttft_p99=0.2", "quick": True, "gpu": ["L4", "A10G"]}


def listed(**asked: str) -> str:
    """The list of models as a terminal shows it."""
    verb = find_verb("models")
    request = verb.request.of(asked)
    return describe(verb, verb.answer(request, SILENT), request).text()


def test_no_heading_of_the_list_of_models_is_cut_at_120_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    shown = listed().splitlines()
    heading = next(line for line in shown if line.startswith("model "))
    assert COLUMNS >= 120
    assert len(heading.rstrip()) <= 120
    for name in ("params", "active", "format", "weights", "KV/token", "KV const.", "context", "released", "family"):
        assert name in heading


def test_a_list_of_encoders_has_no_kv() -> None:
    shown = listed(match="bge")
    assert "KV/token" not in shown
    assert "Encoders keep no KV cache" in shown


def test_a_list_of_both_leaves_the_kv_of_encoders_empty() -> None:
    encoder = next(line for line in listed().splitlines() if line.startswith("bge-m3 "))
    assert encoder.count("–") == 2


def test_a_plan_of_an_encoder_shows_no_kv_no_stages_and_no_decode() -> None:
    plan = tokonomics.plan("bge-m3", **ENCODER)
    shown = str(plan)
    for absent in (" KV ", "PP=", "TPOT", "end to end", "KV cache at fewer bits", "in and out"):
        assert absent not in shown
    assert "200 requests/s" in shown
    assert "$/Mtok: the whole bill over the tokens read" in shown
    assert plan.best is not None
    full = f"{200 / plan.best.load_share:.3g}"
    assert f"full batches of all replicas read {full}/s" in shown
    assert all(row.pp == 1 for row in plan.ranked)


def test_an_encoder_is_asked_for_no_kv_precision() -> None:
    with pytest.raises(tokonomics.TokonomicsError, match="keeps no KV cache"):
        tokonomics.plan("bge-m3", **ENCODER, kv="fp8")


def test_a_prediction_over_machines_names_its_network() -> None:
    spread = tokonomics.predict("deepseek-v3", gpu="H100", tp=8, pp=2)
    assert spread.network is not None
    assert spread.network.startswith("400 Gbit/s a GPU")
    assert "NVIDIA DGX H100 datasheet" in str(spread)
    assert tokonomics.predict("llama-3.1-70b", gpu="H100", tp=8).network is None


def test_a_prompt_bound_by_the_host_says_so() -> None:
    bound, free = (tokonomics.predict("qwen3-30b-a3b", gpu="H100", context=tokens) for tokens in (1_000, 32_000))
    assert (bound.prompt_bound, free.prompt_bound) == ("host", "gpu")
    assert "Bound by the host" in str(bound)
    assert "Bound by the host" not in str(free)
