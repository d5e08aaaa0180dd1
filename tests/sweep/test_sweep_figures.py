"""The columns of the results are figures of the verb's own answer, under the names that it gives them."""

from functools import cache
from typing import Any

import numpy as np
import pytest

import tokonomics.__main__  # registers the verbs  # noqa: F401
from tokonomics.questions.request import SILENT
from tokonomics.questions.verbs import find_verb
from tokonomics.sweep.outcome import _PATHS, figures_of
from tokonomics.traffic.trace import make_trace, save_trace

CHAT = {"model": "llama-3.1-8b", "input": 500, "output": 100, "slo": "ttft_p99=1,tpot_p99=50ms"}
ASKED: dict[str, dict[str, Any]] = {
    "plan": {**CHAT, "rate": "5", "gpu": ["H100"]},
    "simulate": {**CHAT, "rate": "5", "gpu": "H100", "requests": 500, "replicas": 2},
    "capacity": {"model": "llama-3.1-8b", "gpu": "H100", "slo": CHAT["slo"]},
}


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Any:
    log = tmp_path_factory.mktemp("log") / "log.parquet"
    save_trace(make_trace(np.arange(500) * 0.2, np.full(500, 500), np.full(500, 100)), log)

    @cache
    def answer(verb: str) -> Any:
        asked = find_verb(verb)
        values = ASKED[verb] | ({"trace": str(log)} if verb == "capacity" else {})
        return asked.answer(asked.request.checked(values), SILENT).plain()

    return answer


@pytest.mark.parametrize("verb", sorted(_PATHS))
def test_every_column_of_a_verb_is_in_its_answer(answers: Any, verb: str) -> None:
    assert _PATHS[verb].keys() - figures_of(verb, answers(verb)).keys() == set()


def test_a_column_with_a_name_of_the_answer_has_its_value(answers: Any) -> None:
    """Of two replicas that answer five requests a second, some time is idle and hardly any batch is full."""
    answer = answers("simulate")
    found = figures_of("simulate", answer)
    assert {name: answer[name] for name in found if name in answer} == {
        name: value for name, value in found.items() if name in answer
    }
    assert found["replicas"] == answer["peak_replicas"] == 2
    assert (found["busy_share"], found["load_share"]) == (answer["busy_share"], answer["load_share"])
    assert answer["load_share"] < answer["busy_share"]
