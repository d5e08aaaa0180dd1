"""Results of lm-evaluation-harness: what a quantised model keeps, task by task, and what does not compare."""

import json
from pathlib import Path
from typing import Any

import pytest

from tokonomics.errors import BadInput
from tokonomics.measure.importers.lm_eval import kept_quality, matches, read_scores
from tokonomics.measure.importers.recognise import read_run

SCORES = Path(__file__).parent / "scores"
RESULTS = Path(__file__).parent / "results"


def raw(name: str) -> Any:
    return json.loads((SCORES / name).read_text(encoding="utf-8"))


def changed(path: Path, name: str, **fields: Any) -> Path:
    path.write_text(json.dumps(raw(name) | fields))
    return path


def test_recovery_is_the_mean_over_tasks_of_the_main_metric(tmp_path: Path) -> None:
    found = kept_quality(read_scores(SCORES / "bf16.json"), read_scores(SCORES / "int4.json"))
    # acc_norm of ARC, the strict match of GSM8K, and MMLU as a whole, not its parts beside it.
    expected = {"arc_challenge": 0.594 / 0.60, "gsm8k": 0.72 / 0.75, "mmlu": 0.67 / 0.68}
    assert {task.task: task.recovery for task in found.tasks} == pytest.approx(expected)
    assert found.recovery == pytest.approx(sum(expected.values()) / 3)
    assert found.left_out.keys() == {"wikitext"}  # more is not better there
    same = read_scores(SCORES / "bf16.json")
    assert kept_quality(same, same).recovery == 1
    older = read_scores(changed(tmp_path / "old.json", "bf16.json", model_name=None))  # named by its arguments
    assert older.model == same.model == "meta-llama/Llama-3.1-8B-Instruct"


def test_tasks_that_were_asked_differently_are_left_out_by_name(tmp_path: Path) -> None:
    shots = {"n-shot": {"gsm8k": 8, "arc_challenge": 25}}
    versions = {"versions": {"arc_challenge": 2.0, "mmlu": 2, "gsm8k": 3.0}}
    for changes, task in ((shots, "gsm8k"), (versions, "arc_challenge")):
        other = changed(tmp_path / "other.json", "int4.json", **changes)
        found = kept_quality(read_scores(SCORES / "bf16.json"), read_scores(other))
        assert task in found.left_out
        assert task not in {compared.task for compared in found.tasks}


@pytest.mark.parametrize(
    "changes",
    [
        {"config": {"limit": 250}},  # other samples
        {"results": {"boolq": {"acc,none": 0.8}}},  # no task in common
        {"results": {"gsm8k": {"exact_match,strict-match": 0.0}}},  # a model that scores nothing did not load
    ],
)
def test_runs_that_do_not_compare_are_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    other = changed(tmp_path / "other.json", "int4.json", **changes)
    with pytest.raises(BadInput):
        kept_quality(read_scores(SCORES / "bf16.json"), read_scores(other))


def test_results_of_load_generators_are_no_scores_and_scores_are_no_loads() -> None:
    for path in RESULTS.glob("*.json"):
        assert not matches(json.loads(path.read_text(encoding="utf-8")))
    with pytest.raises(BadInput):
        read_scores(RESULTS / "vllm.json")
    with pytest.raises(BadInput, match="baseline"):
        read_run(SCORES / "int4.json")


def test_odd_values_beside_the_scores_do_no_harm(tmp_path: Path) -> None:
    odd = {"higher_is_better": 3, "n-shot": [], "versions": None, "group_subtasks": {"mmlu": [{}, "mmlu_stem"], "x": 1}}
    results = raw("bf16.json")["results"]
    results["gsm8k"] |= {"mcc,none": -0.2, "on,none": True, "text,none": "N/A"}
    path = changed(tmp_path / "odd.json", "bf16.json", results=results, config=[], model_name=7, **odd)
    found = kept_quality(read_scores(path), read_scores(path))
    assert [(task.task, task.metric, task.recovery) for task in found.tasks] == [
        ("arc_challenge", "acc_norm,none", 1),
        ("gsm8k", "exact_match,strict-match", 1),
        ("mmlu", "acc,none", 1),
    ]


@pytest.mark.parametrize("broken", ["[]", "{}", '{"results": 5}', "not json", '{"results": {"a": {"acc,none": "x"}}}'])
def test_whatever_is_wrong_with_a_file_is_said(tmp_path: Path, broken: str) -> None:
    path = tmp_path / "broken.json"
    path.write_text(broken)
    with pytest.raises(BadInput, match=r"broken\.json"):
        read_scores(path)
