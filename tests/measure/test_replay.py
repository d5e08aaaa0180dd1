"""Step times of an engine whose step times we know, and runs predicted from the steps of others."""

import copy
import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.measure import engine_runs
from tests.measure.engine_runs import BUCKETS, COLUMNS
from tests.there import there
from typer.testing import CliRunner

from tokonomics.__main__ import app
from tokonomics.errors import BadInput, TokonomicsError, UnknownName
from tokonomics.measure.engine_log import EngineLog, is_engine_log, prompts_of_steps, read_engine_log
from tokonomics.measure.replay import Figure, Replay, StepFit, figures_of, fit_steps, fitted_table, replay, steps_of
from tokonomics.serving.step_table import step_s

REAL = Path(__file__).parents[2] / "benchmarks" / "data" / "h200_engine.json.gz"
SAMPLE = engine_runs.sample()
SMALL = engine_runs.engine_log(
    {
        "closed-4": [(0.0, 256, 30)] * 4, "closed-32": [(0.0, 200, 30)] * 32,
        "poisson-16": engine_runs.spread(40, 1 / 8, 1), "poisson-24": engine_runs.spread(40, 1 / 12, 2),
    }
)  # fmt: skip
"""The same engine for an instant: enough to fit on, too little to find its step times."""


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
        pair = there(run.figures[figure])
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
    # Answers that never came are left out on both sides.
    log["runs"]["run"]["requests"] = [[0.0, 10, 1, 1.0, 1.0], [0.0, 10, 9, None, None]]
    found = figures_of(read(log, tmp_path).runs["run"], np.array([2.0, 50.0]), np.array([2.0, 60.0]))
    assert found[Figure.output_tok_s] == pytest.approx(1 / 2)
    assert found[Figure.tpot_p50_s] is None


def test_without_the_usual_runs_each_is_predicted_from_the_others(tmp_path: Path) -> None:
    log = copy.deepcopy(SMALL)
    log["runs"]["bursts"] = log["runs"].pop("poisson-16")
    result = replay(read(log, tmp_path), "here")
    assert {run.run for run in result.runs} == set(log["runs"])
    assert all(run.run not in run.fitted_on and len(run.fitted_on) == 3 for run in result.runs)


def test_runs_without_steps_are_predicted_from_another_log(tmp_path: Path) -> None:
    bare = copy.deepcopy(SMALL)
    bare["runs"] = {"poisson-24": {"requests": SMALL["runs"]["poisson-24"]["requests"]}}
    log, source = read(bare, tmp_path), read(SMALL, tmp_path, "steps.json")
    assert replay(log, "here", source=source, of="there").runs == replay(source, "there").runs
    with pytest.raises(BadInput):
        replay(log, "here")


def test_no_run_is_predicted_from_its_own_steps_though_both_logs_hold_it(tmp_path: Path) -> None:
    log = read(SMALL, tmp_path)
    renamed = copy.deepcopy(SMALL)
    renamed["runs"] = {f"again-{name}": run for name, run in SMALL["runs"].items()}
    without_steps = copy.deepcopy(SMALL)
    without_steps["runs"] = {name: {"requests": run["requests"]} for name, run in SMALL["runs"].items()}
    for other in (log, read(renamed, tmp_path), read(without_steps, tmp_path)):
        runs = replay(other, "here", ["*"], source=log, of="there").runs
        assert [run.run for run in runs] == list(other.runs)
        for run in runs:
            own = run.run.removeprefix("again-")
            assert run.fitted_on == tuple(name for name in SMALL["runs"] if name != own)
    usual = replay(log, "here", source=log, of="there").runs
    assert [len(run.fitted_on) for run in usual] == [2, 2, 2, 3], "three are fitted on, one is not"
    with pytest.raises(BadInput) as caught:  # nothing but its own steps
        replay(log, "here", ["poisson-16"], source=log, of="there")
    assert caught.value.where == "here: run poisson-16"


def test_the_same_load_measured_again_is_another_run(tmp_path: Path) -> None:
    again = copy.deepcopy(SMALL)
    for run in again["runs"].values():
        for step in run["steps"]:
            step[1] *= 1.001
        for request in run["requests"]:
            request[4] += 0.001
    runs = replay(read(again, tmp_path), "here", ["*"], source=read(SMALL, tmp_path, "steps.json"), of="there").runs
    assert all(run.fitted_on == tuple(SMALL["runs"]) for run in runs)


def test_the_runs_to_fit_on_can_be_named(tmp_path: Path) -> None:
    log = read(SMALL, tmp_path)
    result = replay(log, "here", ["poisson-*"])
    assert [run.run for run in result.runs] == ["closed-4", "closed-32"]
    with pytest.raises(UnknownName):
        replay(log, "here", ["poison-16"])
    with pytest.raises(BadInput):
        replay(log, "here", ["*"])


def test_the_command_replays_a_log(tmp_path: Path) -> None:
    read(SMALL, tmp_path)
    done = CliRunner().invoke(
        app, ["validate", str(tmp_path / "log.json"), "--fit-on", "closed-32, poisson-16", "--json"]
    )
    *_, run = json.loads(done.stdout)["runs"]
    assert (run["run"], run["fitted_on"]) == ("poisson-24", ["closed-32", "poisson-16"])
    pair = run["figures"]["output_tok_s"]
    assert pair["error"] == pytest.approx(pair["predicted"] / pair["measured"] - 1)


@pytest.mark.parametrize(("log", "flags"), [(True, ["--split", "dev"]), (False, ["--fit-on", "closed-*"])])
def test_flags_that_do_not_go_together_are_refused(tmp_path: Path, log: bool, flags: list[str]) -> None:
    read(SMALL, tmp_path)
    path = tmp_path / "log.json" if log else REAL.parent / "h200_steps.json"
    assert isinstance(CliRunner().invoke(app, ["validate", str(path), *flags]).exception, TokonomicsError)


def test_known_step_times_are_found_again(tmp_path: Path) -> None:
    log = read(SAMPLE, tmp_path)
    fit = fit_steps(log, list(log.runs), "here")
    assert fit.decode_step_s == pytest.approx(engine_runs.DECODE_S, rel=1e-3)
    assert fit.row_s == pytest.approx([engine_runs.ROW_S] * 3, rel=0.01)
    assert fit.kv_token_s == pytest.approx(engine_runs.KV_S, rel=0.01)
    assert fit.host_step_s == pytest.approx(engine_runs.HOST_S, rel=0.01)
    assert fit.host_prompt_s == pytest.approx(engine_runs.HOST_PROMPT_S, rel=0.01)
    assert fit.pass_s + fit.decoding_s == pytest.approx(engine_runs.PASS_S + engine_runs.DECODING_S, rel=0.02)
    assert fit.token_s == pytest.approx(engine_runs.TOKEN_S, rel=0.01)
    assert not fit.host_is_guessed


def test_a_few_steps_ten_times_too_slow_change_little(tmp_path: Path) -> None:
    slow = copy.deepcopy(SAMPLE)
    for run in slow["runs"].values():
        for step in run["steps"][7::97]:
            step[1] *= 10
    log = read(slow, tmp_path)
    fit = fit_steps(log, list(log.runs), "here")
    assert fit.decode_step_s == pytest.approx(engine_runs.DECODE_S, rel=0.02)
    assert fit.token_s == pytest.approx(engine_runs.TOKEN_S, rel=0.1)


def test_the_table_gives_the_steps_their_times_back(tmp_path: Path) -> None:
    log = read(SAMPLE, tmp_path)
    table = fitted_table(fit_steps(log, list(log.runs), "here"), log, 2048)
    for decodes, kv_tokens, tokens, prompts, pairs in [
        (1, 300, 0, 0, 0.0),
        (5, 2500, 0, 0, 0.0),
        (33, 20_000, 0, 0, 0.0),
        (0, 0, 900, 1, 405_000.0),
        (10, 4000, 200, 1, 20_000.0),
        (40, 12_000, 984, 3, 200_000.0),
    ]:
        expected = engine_runs.step_s(decodes, kv_tokens, tokens, prompts, pairs)
        assert step_s(table, decodes, kv_tokens, tokens, prompts, pairs) == pytest.approx(expected, rel=0.02)


def test_constants_the_log_cannot_tell_are_not_invented(tmp_path: Path) -> None:
    """Batches beyond those seen cost a row what the last ones did; prompts that came alone cost the host no more."""
    log = read(
        engine_runs.engine_log({"closed-4": [(0.0, 100, 60)] * 4, "alone": [(t, 300, 60) for t in range(9)]}), tmp_path
    )
    fit = fit_steps(log, ["alone", "closed-4"], "here")
    assert fit.row_s == pytest.approx([fit.row_s[0]] * 3, rel=1e-3)
    assert fit.host_is_guessed
    with pytest.raises(BadInput):  # too few steps
        fit_steps(read(engine_runs.engine_log({"one": [(0.0, 10, 3)]}), tmp_path), ["one"], "here")


def test_the_pause_of_the_scheduler_belongs_to_the_step_and_waiting_for_work_does_not(tmp_path: Path) -> None:
    late = copy.deepcopy(SAMPLE)
    steps = late["runs"]["poisson-16"]["steps"]
    before = steps_of(read(late, tmp_path), ["poisson-16"], "here").seconds
    busy = [at for at in range(len(steps) - 1) if abs(steps[at + 1][0] - steps[at][0] - steps[at][1]) < 1e-9][3]
    for step in steps[busy + 1 :]:
        step[0] += 1e-4
    after = steps_of(read(late, tmp_path), ["poisson-16"], "here").seconds
    assert after[busy] - before[busy] == pytest.approx(1e-4)
    for step in steps[busy + 1 :]:
        step[0] += 1.0
    assert steps_of(read(late, tmp_path), ["poisson-16"], "here").seconds[busy] == pytest.approx(before[busy])


@pytest.fixture(scope="module")
def real_fit() -> tuple[EngineLog, StepFit]:
    """The real log, and the constants fitted on all of its runs but one."""
    log = read_engine_log(REAL)
    return log, fit_steps(log, [name for name in log.runs if name != "poisson-32"], "here")


def test_real_steps_are_never_faster_than_memory_and_arithmetic(real_fit: tuple[EngineLog, StepFit]) -> None:
    """16.1 GB of weights and 128 KiB of KV cache a token through 4.8 TB/s; 16 GFLOP a token at 989 TFLOP/s.

    The floor is that of a whole step: rows and KV cache share what attention costs.
    """
    _, fit = real_fit
    batch, context = np.meshgrid(np.arange(1.0, 193), np.arange(1.0, 4097, 39))
    floor = (16.1e9 + 131_072 * batch * context) / 4.8e12
    assert (fit.decode_s(batch, batch * context) > floor).all()
    assert fit.token_s > 16e9 / 989e12


def test_steps_of_a_run_that_was_not_fitted_are_right_on_the_whole(real_fit: tuple[EngineLog, StepFit]) -> None:
    log, fit = real_fit
    steps = steps_of(log, ["poisson-32"], "here")
    alone, mixed = steps.where(steps.prompt_tokens == 0), steps.where(steps.prompt_tokens > 0)
    assert fit.decode_s(alone.rows, alone.kv_tokens).sum() == pytest.approx(alone.seconds.sum(), rel=0.03)
    assert fit.prompt_step_s(mixed).sum() == pytest.approx(mixed.seconds.sum(), rel=0.05)
    assert np.isfinite(fitted_table(fit, log, 4096).prompt_log_s).all()


# --- logs of engines: what is read, and what is refused with a reason -------------------------------------------------

Change = Callable[[dict[str, Any]], object]


def saved(content: object, folder: Path) -> Path:
    path = folder / "log.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def test_every_request_and_step_of_the_real_log_is_read() -> None:
    log, raw = read_engine_log(REAL), json.loads(gzip.decompress(REAL.read_bytes()))
    assert list(log.runs) == list(raw["runs"])
    for name, run in log.runs.items():
        assert len(run.arrival_s) == len(raw["runs"][name]["requests"])
        assert run.steps == len(raw["runs"][name]["steps"])
        assert run.decodes.sum() == sum(row[2] - 1 for row in raw["runs"][name]["requests"])
        prompts = prompts_of_steps(run, "here")
        assert ((prompts > 0) == (run.prompt_tokens > 0)).all()
        assert prompts.sum() >= len(run.arrival_s), "each prompt is in one step at least"


def test_columns_are_found_by_name_wherever_they_stand(tmp_path: Path) -> None:
    shuffled = copy.deepcopy(SAMPLE)
    for kind, names in COLUMNS.items():
        shuffled["columns"] = shuffled["columns"] | {kind: names[::-1]}
        for run in shuffled["runs"].values():
            run[kind] = [row[::-1] for row in run[kind]]
    one, other = (read_engine_log(saved(each, tmp_path)).runs["poisson-16"] for each in (SAMPLE, shuffled))
    assert all(np.array_equal(getattr(one, field), getattr(other, field)) for field in vars(one))


def test_a_compressed_log_is_a_log_and_other_files_are_none(tmp_path: Path) -> None:
    path = tmp_path / "log.json.gz"
    path.write_bytes(gzip.compress(json.dumps(SAMPLE).encode()))
    assert is_engine_log(path)
    assert list(read_engine_log(path).runs) == list(SAMPLE["runs"])
    assert not is_engine_log(REAL.parent / "h200_steps.json")
    assert not is_engine_log(REAL.parent / "published.csv.gz")
    assert not is_engine_log(tmp_path / "not there")
    assert not is_engine_log(tmp_path / ("long" * 1000))


def test_a_decode_batch_is_padded_to_the_next_bucket(tmp_path: Path) -> None:
    log = read_engine_log(saved(SAMPLE, tmp_path))
    batches = np.arange(1, BUCKETS[-1] + 1)
    assert log.padded(batches).tolist() == [min(size for size in BUCKETS if size >= batch) for batch in batches]
    assert log.padded(np.array([100])).tolist() == [100], "beyond the last bucket nothing is padded"


def test_prompts_that_share_a_step_are_counted(tmp_path: Path) -> None:
    run = read_engine_log(saved(SAMPLE, tmp_path)).runs["closed-8"]
    # 1,024 tokens a step: four prompts of 256; beside four answers, three and 252 tokens of a fourth; its last four.
    assert prompts_of_steps(run, "here")[:4].tolist() == [4, 4, 1, 0]


def closed(change: Change) -> Change:
    return lambda log: change(log["runs"]["closed-8"])


DAMAGE: list[Change] = [
    lambda log: log.update(runs={}),
    lambda log: log.update(runs=[1]),
    lambda log: log.pop("columns"),
    lambda log: log["columns"].update(steps=["start_s"]),
    lambda log: log.update(max_seqs=0),
    lambda log: log.update(max_batched_tokens="many"),
    lambda log: log.update(graph_buckets=[0]),
    lambda log: log.update(graph_buckets=8),
    lambda log: log["runs"].update(x=3),
    closed(lambda run: run.update(requests=[])),
    closed(lambda run: run.update(steps={})),
    closed(lambda run: run["requests"][2].pop()),
    closed(lambda run: run["steps"].append(["x"] * 7)),
    closed(lambda run: run["steps"][0].__setitem__(1, None)),
    closed(lambda run: run["steps"][0].__setitem__(1, 0)),
    closed(lambda run: run["steps"][0].__setitem__(1, 1e-320)),
    closed(lambda run: run["steps"][0].__setitem__(2, -1)),
    closed(lambda run: [request.__setitem__(3, None) for request in run["requests"]]),
    closed(lambda run: run.update(requests=[[0, 1, 1, 0, 0]])),
    closed(lambda run: run["requests"][0].__setitem__(1, 0)),
    closed(lambda run: run["requests"][0].__setitem__(3, -1)),
]


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_log_is_refused(damage: Change, tmp_path: Path) -> None:
    log = copy.deepcopy(SAMPLE)
    damage(log)
    with pytest.raises(BadInput, match=r"log\.json"):
        read_engine_log(saved(log, tmp_path))


def test_steps_that_are_not_those_of_the_requests_and_a_log_cut_off_are_refused(tmp_path: Path) -> None:
    log = copy.deepcopy(SAMPLE)
    log["runs"]["poisson-16"]["requests"][5][3:] = [None, None]
    run = read_engine_log(saved(log, tmp_path)).runs["poisson-16"]
    assert np.flatnonzero(np.isnan(run.first_token_s)).tolist() == [5], "an answer that never came"
    del log["runs"]["poisson-16"]["steps"][0]
    with pytest.raises(BadInput):
        prompts_of_steps(read_engine_log(saved(log, tmp_path)).runs["poisson-16"], "here")
    path = saved(SAMPLE, tmp_path)
    path.write_text(path.read_text(encoding="utf-8")[:5000], encoding="utf-8")
    with pytest.raises(BadInput):
        read_engine_log(path)
