"""A log of an engine's steps teaches its kernels and its launches, and says what is wrong with it."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tokonomics.__main__ import app
from tokonomics.errors import BadInput
from tokonomics.measure.calibrate import Calibrated, calibrate
from tokonomics.measure.evidence import read_evidence
from tokonomics.measure.measurements import Mode
from tokonomics.measure.priced_run import GivenMachine
from tokonomics.measure.stated_setup import stated_deployment
from tokonomics.physics.calibration import Correction, read_profile
from tokonomics.physics.overhead import overhead
from tokonomics.physics.steptime import StepModel
from tokonomics.types import today

COLUMNS = ["begun", "scheduled", "decode", "prompts", "prefill_tokens", "context", "done"]
BATCHES = (1, 4, 16, 64, 128, 256)
PROMPTS = (16, 64, 128, 256, 480, 640, 1024, 2048, 4096, 8000)
CONTEXT = 1000


def server(**numbers: float) -> StepModel:
    """An 8B on an H200 that differs from our predictions by known numbers."""
    deployment = stated_deployment("llama-3.1-8b", "H200", 1, 1, 1, 1, "bf16", None, "vllm")
    plain = StepModel(deployment, overhead(deployment.engine))
    told = {"gpu": "H200", "engine": "vllm", "model": "llama-3.1-8b", "weights": None, "tp": None}
    return plain.corrected(Correction(**told, learned_at="", loads=1, rows=1, **numbers)) if numbers else plain


def log(
    steps: StepModel, batches: Sequence[int] = BATCHES, prompts: Sequence[int] = PROMPTS, **more: Any
) -> dict[str, Any]:
    """What such a server would log: runs of answers by batch, then prompts alone, a second apart."""
    rows, now = [], 10.0
    for batch in batches:
        for place in range(12):
            took = float(steps.decode(batch, CONTEXT + place))
            rows.append([now, now, batch, 0, 0, batch * (CONTEXT + place), now + took])
            now += took
        now += 1.0
    for tokens in prompts:
        for _ in range(3):
            took = float(steps.prefill(tokens))
            rows.append([now, now, 0, 1, tokens, tokens, now + took])
            now += took + 1.0
    about = {"model": "llama-3.1-8b", "engine": "vllm 0.26.0", "gpu": "H200", "quant": None}
    return about | {"columns": COLUMNS, "steps": rows} | more


def taught(folder: Path, document: object) -> Calibrated:
    path = folder / "steps.json"
    path.write_text(json.dumps(document))
    return calibrate(read_evidence([path], GivenMachine(), "a test"), made=today(), command="a test", name="")


@pytest.mark.parametrize("numbers", [{"launch": 1.6}, {"decode": 1.25, "launch": 1.6}])
def test_what_a_log_was_made_with_is_found_within_3_percent(tmp_path: Path, numbers: dict[str, float]) -> None:
    path, out = tmp_path / "steps.json", tmp_path / "profile.json"
    path.write_text(json.dumps(log(server(**numbers))))
    assert CliRunner().invoke(app, ["calibrate", str(path), "--out", str(out)]).exit_code == 0
    (correction,) = read_profile(out).corrections
    for name in ("decode", "launch"):
        assert getattr(correction, name) == pytest.approx(numbers.get(name, 1.0), rel=0.03)
    assert correction.request == 1.0, "no step tells of it"


def test_a_server_as_predicted_needs_no_correction_and_no_profile(tmp_path: Path) -> None:
    result = taught(tmp_path, log(server()))
    assert result.profile.corrections == ()
    assert result.groups[0].refused
    assert {figure.figure for figure in result.groups[0].held_out} == {"step", "prefill"}
    out = tmp_path / "profile.json"
    assert CliRunner().invoke(app, ["calibrate", str(tmp_path / "steps.json"), "--out", str(out)]).exit_code == 0
    assert not out.exists()


def test_only_steps_that_say_one_thing_are_taken(tmp_path: Path) -> None:
    step = {"begun": 0.0, "scheduled": 0.0, "decode": 4, "prompts": 0, "prefill_tokens": 0, "context": 400, "done": 0.0}

    def at(begun: float, took: float, **changes: float) -> list[float]:
        made = step | changes | {"begun": begun, "done": begun + took}
        return [made[name] for name in COLUMNS]

    rows = [at(1 + 0.012 * place, 0.01, context=400 + 4 * place) for place in range(12)]  # a host that pauses
    rows += [at(1.144, 0.01, context=400)]  # others of as many
    rows += [at(1.16, 0.1, prompts=2, prefill_tokens=64, context=464)]  # prompts beside answers
    rows += [at(1.26, 0.01, decode=3)]  # its launch hid behind the prompts
    prompt = {"decode": 0, "prompts": 2, "prefill_tokens": 128, "context": 128}
    rows += [at(1.261 + 0.001 * place, 0.5, **prompt) for place in range(3)]  # composed while the GPU was busy
    rows += [at(3.0 + place, 0.04, **prompt) for place in range(3)]
    rows += [at(6.0 + place, 0.02, **prompt | {"context": 640}) for place in range(3)]  # most of it was cached
    rows += [at(9.0 + place, 0.03, **prompt | {"prefill_tokens": 127, "context": 127}) for place in range(3)]  # unequal
    (tmp_path / "steps.json").write_text(json.dumps(log(server()) | {"steps": rows}))
    found = read_evidence([tmp_path / "steps.json"], GivenMachine(), "a test").rows
    kinds = [(row.mode, row.batch, row.input_tokens) for row in found]
    assert kinds == [(Mode.decode_step, 4, 106), (Mode.prefill_step, 2, 64)]
    assert [row.value for row in found] == pytest.approx([0.012, 0.04])


def test_what_the_user_says_goes_before_the_file(tmp_path: Path) -> None:
    (tmp_path / "steps.json").write_text(json.dumps(log(server(), gpu=None, model=None)))
    said = GivenMachine(gpu="H100-SXM", model="qwen3-8b", weights="fp8", tp=2)
    rows = read_evidence([tmp_path / "steps.json"], said, "a test").rows
    assert {(row.gpu, row.model, row.weights, row.tp) for row in rows} == {("H100-SXM", "qwen3-8b", "fp8", 2)}


@pytest.mark.parametrize(
    "changes",
    [
        {"gpu": None},
        {"model": None},
        {"engine": "engine-of-mine 1.0"},
        {"columns": ["begun", "done"]},
        {"columns": 7},
        {"columns": None},
        {"tp": 0},
        {"steps": []},
        {"steps": [[1.0, 1.0, 1, 0, 0, 10]]},
        {"steps": [[1.0, 1.0, 1, 0, 0, float("nan"), 2.0]]},
        {"steps": [[1.0, 1.0, 1, 0, 0, None, 2.0]]},
        {"steps": [{"begun": 1.0}]},
        {"steps": [[1.0, 1.0, -1, 0, 0, 10, 2.0]]},
        {"steps": [[1.0, 1.0, 1, 0, 0, 10, 1.0]]},
        {"steps": [[1.0, 1.0, 1, 0, 0, 10, 2.0], [0.5, 0.5, 1, 0, 0, 11, 3.0]]},
        {"steps": [[t, t, 0, 1, 0, 0, t + 0.5] for t in range(4)]},
        {"steps": [[1.0, 1.0, 1, 0, 0, 10, 2.0]]},
    ],
)
def test_a_wrong_log_is_refused_by_name(tmp_path: Path, changes: dict[str, Any]) -> None:
    with pytest.raises(BadInput, match=r"steps\.json"):
        taught(tmp_path, log(server()) | changes)


def test_times_in_another_unit_are_doubted(tmp_path: Path) -> None:
    made = log(server(), batches=(1, 64, 256), prompts=())
    steps = [[1000 * row[0], 1000 * row[1], *row[2:6], 1000 * row[6]] for row in made["steps"]]
    with pytest.raises(BadInput, match="1,000 ×"):  # too few loads to fit anything
        taught(tmp_path, made | {"steps": steps})
