"""Thinking: a share or a number of tokens, the usual share where a model reasons, never more than the output."""

import numpy as np
import pytest
from tests.there import refused

from tokonomics.catalog.load_models import find_model
from tokonomics.traffic.workload import USUAL, Thinking, parse_thinking

OUTPUTS = np.array([0, 1, 100, 5000], np.int32)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("0.7", Thinking(share=0.7)),
        ("70%", Thinking(share=0.7)),
        ("1", Thinking(share=1.0)),
        ("2000", Thinking(tokens=2000)),
        ("2k", Thinking(tokens=2000)),
        ("0", None),
    ],
)
def test_a_share_or_a_number_of_tokens(text: str, found: Thinking | None) -> None:
    assert parse_thinking(text, reasons=True) == found


@pytest.mark.parametrize("text", ["", "much", "-1", "1.5", "140%", "1e99", "nan"])
def test_anything_else_is_refused(text: str) -> None:
    assert refused(parse_thinking, text, reasons=True).field == "thinking"


def test_thinking_is_part_of_the_output_and_the_usual_share_where_a_model_reasons() -> None:
    assert Thinking(share=0.5).thinking_tokens(OUTPUTS).tolist() == [0, 0.5, 50, 2500]
    assert Thinking(tokens=300).thinking_tokens(OUTPUTS).tolist() == [0, 1, 100, 300]
    assert [parse_thinking(None, reasons=reasons) for reasons in (True, False)] == [USUAL, None]
    assert USUAL.assumed
    assert all(find_model(name).reasons for name in ("deepseek-r1", "gpt-oss-120b", "qwen3-8b"))
    assert not any(find_model(name).reasons for name in ("deepseek-v3", "llama-3.1-8b", "bge-m3"))
