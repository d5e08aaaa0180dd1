"""What a question says of encoders, images and thinking: totals that stay, tokens that are added, clear refusals."""

from typing import Any

import pytest

from tokonomics.errors import BadInput
from tokonomics.questions.request import SILENT
from tokonomics.questions.requests.buy import CurveRequest, FitRequest, PlanRequest, PredictRequest
from tokonomics.questions.requests.traffic import CapacityRequest, SimulateRequest
from tokonomics.questions.verbs import find_verb

ENCODER: dict[str, Any] = {"model": "bge-m3", "gpu": "L4", "rate": "20", "input": "300", "requests": 300}
VISION: dict[str, Any] = {
    "model": "qwen3-vl-8b", "gpu": "H100", "rate": "2", "input": "const:200", "output": "const:20", "requests": 200,
}  # fmt: skip
PLAN: dict[str, Any] = {"rate": "20", "input": "300", "gpu": ["L4"], "quick": True}


def ask(verb: str, request: Any) -> Any:
    return find_verb(verb).answer(request, SILENT)


def test_an_encoder_is_simulated_without_answers() -> None:
    found = ask("simulate", SimulateRequest.checked(ENCODER))
    assert found.output_tokens == 0
    assert found.completed == 300
    assert found.tpot_s.mean is None
    assert found.usd_per_mtok > 0
    assert found.cost.usd_per_mtok_output is None


def test_a_plan_of_an_encoder_prices_what_is_read() -> None:
    best = ask("plan", PlanRequest.checked({"model": ["bge-m3"], **PLAN})).best
    tokens = best.usd_per_month / best.usd_per_mtok.input
    assert best.usd_per_mtok.output == 0
    assert best.usd_per_mtok.blended == pytest.approx(best.usd_per_mtok.input)
    assert tokens == pytest.approx(20 * 300 * 730 * 3600 / 1e6, rel=0.01)
    assert best.tpot_s.mean is None


def test_a_log_of_answers_is_read_as_prompts_by_an_encoder() -> None:
    log = {"model": "bge-m3", "gpu": "L4", "trace": "azure-conv", "requests": 200}
    assert ask("simulate", SimulateRequest.checked(log)).output_tokens == 0


def test_images_are_tokens_of_every_prompt() -> None:
    plain, seen = (
        ask("simulate", SimulateRequest.checked(VISION | images)) for images in ({}, {"images": "1x1024x1024"})
    )
    assert seen.input_tokens - plain.input_tokens == 200 * 1024
    assert seen.output_tokens == plain.output_tokens
    assert seen.ttft_s.mean > plain.ttft_s.mean


def test_thinking_changes_no_total() -> None:
    model = VISION | {"model": "qwen3-8b"}
    without, half = (ask("simulate", SimulateRequest.checked(model | {"thinking": said})) for said in ("0", "0.5"))
    assert without.thinking is None
    assert half.usd_per_mtok == without.usd_per_mtok
    assert half.e2e_s == without.e2e_s
    assert half.thinking.usd_per_mtok_answer == pytest.approx(2 * half.cost.usd_per_mtok_output)
    usual = ask("simulate", SimulateRequest.checked(model)).thinking
    assert usual.assumed
    assert usual.share == pytest.approx(0.74)


def test_a_prediction_adds_the_thinking_at_the_pace_of_its_batch() -> None:
    asked = {"model": "qwen3-8b", "gpu": "H100", "batch": 8, "context": 512}
    found = ask("predict", PredictRequest.checked(asked | {"thinking": "100"}))
    assert found.first_answer_s.mid == pytest.approx(found.ttft_s.mid + 100 * found.decode_step_s.mid)
    assert ask("predict", PredictRequest.checked(asked)).first_answer_s is None


def test_a_prediction_of_an_encoder_has_no_step_of_decoding() -> None:
    found = ask("predict", PredictRequest.checked({"model": "bge-m3", "gpu": "L4", "batch": 4, "context": 512}))
    assert found.decode_step_s is None
    assert found.tokens_per_s.mid == pytest.approx(512 * found.requests_per_s.mid)


def test_a_length_that_nobody_gave_is_within_the_context() -> None:
    assert ask("fit", FitRequest.checked({"model": "bge-large-en-v1.5", "gpu": "L4"})).context == 512
    with pytest.raises(BadInput):
        ask("fit", FitRequest.checked({"model": "bge-large-en-v1.5", "gpu": "L4", "context": 513}))


@pytest.mark.parametrize(
    ("verb", "request_", "field"),
    [
        ("simulate", SimulateRequest.checked(ENCODER | {"output": "5"}), "output"),
        ("capacity", CapacityRequest.checked(ENCODER | {"slo": "tpot=0.1"}), "slo"),
        ("plan", PlanRequest.checked({"model": ["bge-m3"], "output": "9", **PLAN}), "output"),
        ("plan", PlanRequest.checked({"model": ["bge-m3", "llama-3.1-8b"], **PLAN}), "model"),
        (
            "plan",
            PlanRequest.checked({"model": ["llama-3.1-8b"], "output": "9", "images": "1x64x64", **PLAN}),
            "images",
        ),
        (
            "simulate",
            SimulateRequest.checked(VISION | {"images": "1x64x64", "system_prompts": "2,tokens=100"}),
            "images",
        ),
        ("predict", PredictRequest.checked({"model": "qwen3-8b", "gpu": "H100", "thinking": "0.5"}), "thinking"),
        ("predict", PredictRequest.checked({"model": "bge-m3", "gpu": "L4", "thinking": "50"}), "model"),
        ("curve", CurveRequest.checked({"model": "bge-m3", "gpu": "L4"}), "model"),
    ],
)
def test_what_cannot_be_answered_names_its_input(verb: str, request_: Any, field: str) -> None:
    with pytest.raises(BadInput) as caught:
        ask(verb, request_)
    assert caught.value.field == field
