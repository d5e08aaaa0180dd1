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


def test_recovery_is_the_mean_over_tasks_of_the_main_metric() -> None:
    found = kept_quality(read_scores(SCORES / "bf16.json"), read_scores(SCORES / "int4.json"))
    # acc_norm of ARC, the strict match of GSM8K, and MMLU as a whole, not its parts beside it.
    expected = {"arc_challenge": 0.594 / 0.60, "gsm8k": 0.72 / 0.75, "mmlu": 0.67 / 0.68}
    assert {task.task: task.recovery for task in found.tasks} == pytest.approx(expected)
    assert found.recovery == pytest.approx(sum(expected.values()) / 3)
    assert found.left_out == {"wikitext": "no metric of which more is better"}


def test_a_model_against_itself_recovers_all_of_it() -> None:
    same = read_scores(SCORES / "bf16.json")
    assert kept_quality(same, same).recovery == 1


def test_the_model_is_named_by_the_file_or_by_its_arguments(tmp_path: Path) -> None:
    assert read_scores(SCORES / "bf16.json").model == "meta-llama/Llama-3.1-8B-Instruct"
    older = changed(tmp_path / "old.json", "bf16.json", model_name=None)
    assert read_scores(older).model == "meta-llama/Llama-3.1-8B-Instruct"


def test_tasks_that_were_asked_differently_are_left_out_by_name(tmp_path: Path) -> None:
    shots = changed(tmp_path / "shots.json", "int4.json", **{"n-shot": {"gsm8k": 8, "arc_challenge": 25}})
    found = kept_quality(read_scores(SCORES / "bf16.json"), read_scores(shots))
    assert found.left_out["gsm8k"] == "5-shot against 8-shot"
    versions = changed(
        tmp_path / "versions.json", "int4.json", versions={"arc_challenge": 2.0, "mmlu": 2, "gsm8k": 3.0}
    )
    found = kept_quality(read_scores(SCORES / "bf16.json"), read_scores(versions))
    assert found.left_out["arc_challenge"] == "version 1.0 against 2.0"
    assert {task.task for task in found.tasks} == {"gsm8k", "mmlu"}


def test_runs_on_different_samples_do_not_compare(tmp_path: Path) -> None:
    part = changed(tmp_path / "part.json", "int4.json", config={"limit": 250})
    with pytest.raises(BadInput, match="different samples: limit none and limit 250"):
        kept_quality(read_scores(SCORES / "bf16.json"), read_scores(part))


def test_without_a_common_task_it_says_why(tmp_path: Path) -> None:
    other = changed(tmp_path / "other.json", "int4.json", results={"boolq": {"acc,none": 0.8}})
    with pytest.raises(BadInput, match=r"no task compares: .*boolq: only in the quantised results"):
        kept_quality(read_scores(SCORES / "bf16.json"), read_scores(other))


def test_results_of_load_generators_are_no_scores_and_scores_are_no_loads() -> None:
    for path in RESULTS.glob("*.json"):
        assert not matches(json.loads(path.read_text(encoding="utf-8")))
    with pytest.raises(BadInput, match="no results of lm-evaluation-harness"):
        read_scores(RESULTS / "vllm.json")
    with pytest.raises(BadInput, match=r"lm-evaluation-harness results: scores, not loads(.|\n)*baseline"):
        read_run(SCORES / "int4.json")


def test_a_model_that_scores_nothing_is_a_mistake_not_a_recovery(tmp_path: Path) -> None:
    results = {"gsm8k": {"exact_match,strict-match": 0.0}}
    broken = changed(tmp_path / "broken.json", "int4.json", results=results)
    with pytest.raises(BadInput, match="scores 0 in every task"):
        kept_quality(read_scores(SCORES / "bf16.json"), read_scores(broken))


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
