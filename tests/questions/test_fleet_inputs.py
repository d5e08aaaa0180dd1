"""What a fleet is asked for is checked before anything is simulated."""

from typing import Any

import pytest

from tokonomics.errors import BadInput
from tokonomics.questions import fleet as question
from tokonomics.questions.requests.buy import FleetRequest


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        ({"scaling": True}, "scaling"),
        ({"scaling": True, "slo": "ttft_p99=5", "terms": "reserved"}, "scaling"),
        ({"scaling": True, "slo": "ttft_p99=5", "batch_work": "60X"}, "batch_work"),
        ({"scaling_room": 0.2}, "scaling_room"),
        ({"batch_work": "60M,deadline=0"}, "batch_work"),
        ({"batch_work": "60M", "hours": 30}, "batch_work"),
        ({"batch_work": "60M", "size_classes": "500"}, "batch_work"),
    ],
)
def test_wrong_input_is_refused_at_once(asked: dict[str, Any], field: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(question, "fleet_machines", lambda *_, **__: pytest.fail("simulated first"))
    day: dict[str, Any] = {"demand": "12x2,12x1", "input": "900", "output": "99", "gpu": ("L40S",), "provider": "aws"}
    with pytest.raises(BadInput) as refused:
        question.fleet(FleetRequest.model_validate({"model": "llama-3.1-8b", **day, **asked}))
    assert refused.value.field == field
