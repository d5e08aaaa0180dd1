"""Step times of an engine whose step times we know."""

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.measure import engine_runs

from tokonomics.errors import BadInput
from tokonomics.measure.engine_log import EngineLog, read_engine_log
from tokonomics.measure.replay import fit_steps, fitted_table, steps_of
from tokonomics.serving.step_table import step_s

REAL = Path(__file__).parents[2] / "benchmarks" / "data" / "h200_engine.json"
SAMPLE = engine_runs.sample()


def read(content: dict[str, Any], folder: Path) -> EngineLog:
    path = folder / "log.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    return read_engine_log(path)


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


def test_too_few_steps_are_refused(tmp_path: Path) -> None:
    log = read(engine_runs.engine_log({"one": [(0.0, 10, 3)]}), tmp_path)
    with pytest.raises(BadInput, match="too few"):
        fit_steps(log, ["one"], "here")


def test_steps_of_the_real_engine_are_never_faster_than_its_memory_and_arithmetic() -> None:
    """16.1 GB of weights and 128 KiB of KV cache a token through 4.8 TB/s; 16 GFLOP a token at 989 TFLOP/s.

    The floor is that of a whole step: rows and KV cache share what attention costs.
    """
    log = read_engine_log(REAL)
    fit = fit_steps(log, [name for name in log.runs if name != "poisson-32"], "here")
    batch, context = np.meshgrid(np.arange(1.0, 193), np.arange(1.0, 4097, 39))
    floor = (16.1e9 + 131_072 * batch * context) / 4.8e12
    assert (fit.decode_s(batch, batch * context) > floor).all()
    assert fit.token_s > 16e9 / 989e12


def test_steps_of_a_run_that_was_not_fitted_are_right_on_the_whole() -> None:
    log = read_engine_log(REAL)
    fit = fit_steps(log, [name for name in log.runs if name != "poisson-32"], "here")
    steps = steps_of(log, ["poisson-32"], "here")
    alone, mixed = steps.where(steps.prompt_tokens == 0), steps.where(steps.prompt_tokens > 0)
    assert fit.decode_s(alone.rows, alone.kv_tokens).sum() == pytest.approx(alone.seconds.sum(), rel=0.03)
    assert fit.prompt_step_s(mixed).sum() == pytest.approx(mixed.seconds.sum(), rel=0.05)
    assert np.isfinite(fitted_table(fit, log, 4096).prompt_log_s).all()
