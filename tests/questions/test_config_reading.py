"""Config files as questions read them: notes are heard once, and a family may be asked for."""

import json
from pathlib import Path

import pytest

from tokonomics.errors import BadInput
from tokonomics.questions.request import Listener
from tokonomics.questions.verbs import find_verb

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
