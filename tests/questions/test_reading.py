"""What a question says of encoders, images and thinking: totals that stay, tokens that are added, clear refusals."""

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from tokonomics.errors import BadInput, option
from tokonomics.questions.catalogue import every_offer
from tokonomics.questions.request import SILENT, Listener
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


# --- A table in memory asks what the same file asks; an empty text is not nothing; what is excluded is not there ------


LOG = {"arrival_s": [float(second) for second in range(60)], "input_tokens": [500] * 60, "output_tokens": [50] * 60}
TABLES = {"columns": LOG, "frame": pl.DataFrame(LOG), "lazy": pl.DataFrame(LOG).lazy()}
ASKED: dict[str, dict[str, object]] = {
    "plan": {"model": "llama-3.1-8b", "gpu": "H100", "quick": True},
    "breakeven": {"model": "llama-3.1-8b", "gpu": "H100", "api": "openai:gpt-4o", "quick": True},
}


@pytest.mark.parametrize("name", ASKED)
@pytest.mark.parametrize("table", TABLES)
def test_a_log_in_memory_asks_what_the_file_asks(name: str, table: str, tmp_path: Path) -> None:
    file = tmp_path / "log.csv"
    pl.DataFrame(LOG).write_csv(file)
    verb = find_verb(name)
    requests = [verb.request.checked({**ASKED[name], "trace": log}) for log in (file, TABLES[table])]
    from_file, from_memory = (verb.answer(request, SILENT).plain() for request in requests)
    assert from_memory == from_file


@pytest.mark.parametrize("name", ASKED)
@pytest.mark.parametrize("empty", ["offers", "arrivals", "tokens_per_month", "columns"])
def test_an_empty_text_is_not_taken_for_nothing(name: str, empty: str) -> None:
    verb = find_verb(name)
    pace: dict[str, object] = {} if empty == "tokens_per_month" else {"rate": 5}
    request = verb.request.checked({**ASKED[name], "input": 500, "output": 50, **pace, empty: ""})
    with pytest.raises(BadInput):
        verb.answer(request, SILENT)


def test_what_is_excluded_is_as_if_nobody_sold_it() -> None:
    request = PlanRequest.checked({"model": "llama-3.1-8b", "rate": 5, "input": 1000, "output": 300})
    every = every_offer(request)
    left = every_offer(request.model_copy(update={"exclude": ("yotta", "rtx 6000 ada")}))
    assert set(left) == {offer for offer in every if offer.provider != "yotta" and offer.gpu != "RTX6000-Ada"}
    assert set(left) < set(every)
    with pytest.raises(BadInput) as refused:
        every_offer(request.model_copy(update={"exclude": ("nobody",)}))
    assert refused.value.field == "exclude"


@pytest.mark.parametrize("also", [{"discount": "yotta=0.1"}, {"sellers": "cloud"}])
def test_an_exclusion_goes_with_other_filters(also: dict[str, str]) -> None:
    asked = {"model": "llama-3.1-8b", "rate": 5, "input": 1000, "output": 300, "exclude": "yotta"} | also
    assert "yotta" not in {offer.provider for offer in every_offer(PlanRequest.checked(asked))}


def test_what_is_both_asked_for_and_excluded_is_refused_with_the_exclusion_named() -> None:
    asked = {"model": "llama-3.1-8b", "rate": 5, "input": 1000, "output": 300, "gpu": "T4", "exclude": "T4"}
    with pytest.raises(BadInput) as refused:
        every_offer(PlanRequest.checked(asked))
    assert option("exclude") in (refused.value.fix or "")


# --- config files as questions read them: notes are heard once, and a family may be asked for -------------------------


CONFIG = {
    "model_type": "my-own", "hidden_size": 256, "intermediate_size": 640, "num_hidden_layers": 4,
    "num_attention_heads": 8, "vocab_size": 1000, "max_position_embeddings": 8192, "my_org_tag": "x",
}  # fmt: skip


class Heard(Listener):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def note(self, line: str) -> None:
        self.lines.append(line)


@pytest.mark.parametrize("name", ["fit", "predict"])
def test_a_field_that_nobody_knows_is_said_once_beside_the_answer(name: str, tmp_path: Path) -> None:
    path, heard, verb = tmp_path / "config.json", Heard(), find_verb(name)
    path.write_text(json.dumps(CONFIG))
    asked = {"model": str(path), "gpu": "H100"}
    with pytest.raises(BadInput, match="If it is built like llama"):
        verb.answer(verb.request.checked(asked), heard)
    result = verb.answer(verb.request.checked(asked | {"as_family": "llama"}), heard)
    (line,) = heard.lines
    assert line.startswith("note: ")
    assert "my_org_tag" in line
    assert result.plain()["notes"] == [line.removeprefix("note: ")]


def test_a_plan_holds_the_notes_too(tmp_path: Path) -> None:
    path, verb = tmp_path / "config.json", find_verb("plan")
    path.write_text(json.dumps(CONFIG | {"model_type": "llama"}))
    asked = {"model": (str(path),), "rate": "1", "input": "100", "output": "10", "quick": True, "gpu": ("L4",)}
    (note,) = verb.answer(verb.request.checked(asked), Heard()).plain()["notes"]
    assert "my_org_tag" in note


@pytest.mark.parametrize("name", ["fit", "predict"])
def test_what_was_understood_has_no_notes(name: str) -> None:
    verb = find_verb(name)
    assert "notes" not in verb.answer(verb.request.checked({"model": "llama-3.1-8b", "gpu": "H100"}), Heard()).plain()


@pytest.mark.parametrize("name", ["fit", "predict"])
def test_a_model_of_the_catalogue_is_read_as_no_other_family(name: str) -> None:
    verb = find_verb(name)
    with pytest.raises(BadInput, match="8b is in the catalogue") as refused:
        verb.answer(verb.request.checked({"model": "llama-3.1-8b", "gpu": "H100", "as_family": "qwen2"}), Heard())
    assert refused.value.field == "as_family"
