"""Runs of an engine predicted by the simulator from the steps of its other runs."""

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.measure import engine_runs

from tokonomics.errors import BadInput, UnknownName
from tokonomics.measure.engine_log import EngineLog, read_engine_log
from tokonomics.measure.replay import Figure, Replay, figures_of, replay

REAL = Path(__file__).parents[2] / "benchmarks" / "data" / "h200_engine.json"
SAMPLE = engine_runs.sample()


def read(content: dict[str, Any], folder: Path, name: str = "log.json") -> EngineLog:
    path = folder / name
    path.write_text(json.dumps(content), encoding="utf-8")
    return read_engine_log(path)


def worst(result: Replay) -> float:
    return max(abs(pair.error) for run in result.runs for pair in run.figures.values() if pair)


def test_an_engine_of_known_step_times_is_predicted_almost_exactly(tmp_path: Path) -> None:
    result = replay(read(SAMPLE, tmp_path), "here")
    assert [run.run for run in result.runs] == ["poisson-24"]
    assert result.runs[0].fitted_on == ("closed-8", "closed-64", "poisson-16")
    assert worst(result) < 0.02


def test_the_real_engine_is_predicted_as_asked() -> None:
    """Output within 3 %, TPOT p50 within 10 %, TTFT p50 and p99 within 20 % on the run that was not fitted."""
    (run,) = replay(read_engine_log(REAL), "here").runs
    assert run.run == "poisson-32"
    for figure, most in {
        Figure.output_tok_s: 0.03,
        Figure.tpot_p50_s: 0.10,
        Figure.ttft_p50_s: 0.20,
        Figure.ttft_p99_s: 0.20,
    }.items():
        pair = run.figures[figure]
        assert pair is not None
        assert abs(pair.error) < most, figure


def test_figures_are_those_of_the_definitions(tmp_path: Path) -> None:
    log = engine_runs.engine_log({"run": [(0.0, 10, 3)]})
    log["runs"]["run"]["requests"] = [[0.5, 10, 3, 1.5, 2.5], [1.0, 10, 1, 4.0, 4.0], [2.0, 10, 5, 4.0, 8.5]]
    run = read(log, tmp_path).runs["run"]
    found = figures_of(run, run.first_token_s, run.last_token_s)
    assert found[Figure.output_tok_s] == pytest.approx((3 + 1 + 5) / (8.5 - 0.5))
    assert found[Figure.ttft_p50_s] == pytest.approx(2.0)
    assert found[Figure.tpot_p50_s] == pytest.approx((1 / 2 + 4.5 / 4) / 2), "an answer of one token has no TPOT"
    assert found[Figure.e2e_p50_s] == pytest.approx(3.0)


def test_answers_that_never_came_are_left_out_on_both_sides(tmp_path: Path) -> None:
    log = engine_runs.engine_log({"run": [(0.0, 10, 3)]})
    log["runs"]["run"]["requests"] = [[0.0, 10, 1, 1.0, 1.0], [0.0, 10, 9, None, None]]
    run = read(log, tmp_path).runs["run"]
    found = figures_of(run, np.array([2.0, 50.0]), np.array([2.0, 60.0]))
    assert found[Figure.output_tok_s] == pytest.approx(1 / 2)
    assert found[Figure.tpot_p50_s] is None


def test_without_the_usual_runs_each_is_predicted_from_the_others(tmp_path: Path) -> None:
    log = copy.deepcopy(SAMPLE)
    log["runs"]["bursts"] = log["runs"].pop("poisson-16")
    result = replay(read(log, tmp_path), "here")
    assert {run.run for run in result.runs} == set(log["runs"])
    assert all(run.run not in run.fitted_on and len(run.fitted_on) == 3 for run in result.runs)


def test_runs_without_steps_are_predicted_from_another_log(tmp_path: Path) -> None:
    bare = copy.deepcopy(SAMPLE)
    bare["runs"] = {"poisson-24": {"requests": SAMPLE["runs"]["poisson-24"]["requests"]}}
    log, source = read(bare, tmp_path), read(SAMPLE, tmp_path, "steps.json")
    assert replay(log, "here", source=source, of="there").runs == replay(source, "there").runs
    with pytest.raises(BadInput, match="no other run"):
        replay(log, "here")


def test_no_run_is_predicted_from_its_own_steps_though_both_logs_hold_it(tmp_path: Path) -> None:
    log = read(SAMPLE, tmp_path)
    renamed = copy.deepcopy(SAMPLE)
    renamed["runs"] = {f"again-{name}": run for name, run in SAMPLE["runs"].items()}
    without_steps = copy.deepcopy(SAMPLE)
    without_steps["runs"] = {name: {"requests": run["requests"]} for name, run in SAMPLE["runs"].items()}
    for other in (log, read(renamed, tmp_path), read(without_steps, tmp_path)):
        runs = replay(other, "here", ["*"], source=log, of="there").runs
        assert [run.run for run in runs] == list(other.runs)
        for run in runs:
            own = run.run.removeprefix("again-")
            assert run.fitted_on == tuple(name for name in SAMPLE["runs"] if name != own)
    usual = replay(log, "here", source=log, of="there").runs
    assert [len(run.fitted_on) for run in usual] == [2, 2, 2, 3], "three are fitted on, one is not"


def test_a_run_with_nothing_but_its_own_steps_is_refused(tmp_path: Path) -> None:
    log = read(SAMPLE, tmp_path)
    with pytest.raises(BadInput, match="no other run") as caught:
        replay(log, "here", ["poisson-16"], source=log, of="there")
    assert caught.value.where == "here: run poisson-16"


def test_the_same_load_measured_again_is_another_run(tmp_path: Path) -> None:
    again = copy.deepcopy(SAMPLE)
    for run in again["runs"].values():
        for step in run["steps"]:
            step[1] *= 1.001
        for request in run["requests"]:
            request[4] += 0.001
    runs = replay(read(again, tmp_path), "here", ["*"], source=read(SAMPLE, tmp_path, "steps.json"), of="there").runs
    assert all(run.fitted_on == tuple(SAMPLE["runs"]) for run in runs)


def test_the_runs_to_fit_on_can_be_named(tmp_path: Path) -> None:
    log = read(SAMPLE, tmp_path)
    result = replay(log, "here", ["poisson-*"])
    assert [run.run for run in result.runs] == ["closed-8", "closed-64"]
    with pytest.raises(UnknownName, match="poison"):
        replay(log, "here", ["poison-16"])
    with pytest.raises(BadInput, match="no run left"):
        replay(log, "here", ["*"])


def test_the_command_replays_a_log_and_says_what_it_fitted(tmp_path: Path, tokonomics: Any) -> None:
    read(SAMPLE, tmp_path)
    done = tokonomics("validate", tmp_path / "log.json", "--fit-on", "closed-64, poisson-16")
    assert done.returncode == 0
    assert "poisson-24" in done.stdout
    assert "TTFT p99" in done.stdout
    assert "fitted on closed-64, poisson-16" in " ".join(done.stdout.split())
    plain = json.loads(tokonomics("validate", tmp_path / "log.json", "--json").stdout)
    (run,) = plain["runs"]
    pair = run["figures"]["output_tok_s"]
    assert pair["error"] == pytest.approx(pair["predicted"] / pair["measured"] - 1)


def test_flags_that_do_not_go_together_are_refused(tmp_path: Path, tokonomics: Any) -> None:
    read(SAMPLE, tmp_path)
    assert tokonomics("validate", tmp_path / "log.json", "--split", "dev").returncode == 2
    steps = REAL.parent / "h200_steps.json"
    assert tokonomics("validate", steps, "--fit-on", "closed-*").returncode == 2
