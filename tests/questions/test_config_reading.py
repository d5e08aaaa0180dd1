"""Config files as questions read them: notes are heard once, and a family may be asked for."""

import json
from pathlib import Path

import pytest

from tokonomics.errors import BadInput
from tokonomics.questions.listener import Listener
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
        verb.answer(verb.request.of(asked), heard)
    verb.answer(verb.request.of(asked | {"as_family": "llama"}), heard)
    assert [line for line in heard.lines if "my_org_tag" in line] == heard.lines
    assert len(heard.lines) == 1
