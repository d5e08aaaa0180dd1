"""A profile changes what it speaks of and nothing else; laws and floors hold under any profile."""

import json
import math
from datetime import date
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.physics.hosts import hostless

from tokonomics.catalog.engines import find_engine
from tokonomics.catalog.gpus import find_gpu
from tokonomics.catalog.layers import GroupedAttention, LatentAttention
from tokonomics.catalog.load_models import find_model
from tokonomics.catalog.precision import Precision
from tokonomics.errors import BadInput
from tokonomics.physics.calibration import (
    VARIABLE,
    Correction,
    ErrorSpread,
    Profile,
    Range,
    active,
    outside,
    read_profile,
    using,
    write_profile,
)
from tokonomics.physics.deployment import Deployment, deploy
from tokonomics.physics.intervals import interval, speed_badge
from tokonomics.physics.sharding import step_weight_bytes
from tokonomics.physics.steptime import StepModel, step_model
from tokonomics.serving.steady import ReplicaCurve

PROBED = Path(__file__).parents[2] / "benchmarks" / "results" / "h200-profile.json"


def on(model: str = "llama-3.1-8b", gpu: str = "H200", engine: str = "vllm", **options: object) -> Deployment:
    return deploy(find_model(model), find_gpu(gpu), find_engine(engine), **options)  # type: ignore[arg-type]


def correcting(**numbers: float) -> Profile:
    correction = Correction(
        gpu="H200",
        engine="vllm",
        model="llama-3.1-8b",
        loads=8,
        rows=24,
        seen={"batch": Range(low=1, high=64), "context": Range(low=512, high=640)},
        **numbers,
    )
    return Profile(name="mine", made=date(2026, 11, 15), command="test", corrections=(correction,))


def times(deployment: Deployment, steps: StepModel | None = None) -> np.ndarray:
    steps = steps or step_model(deployment)
    batches = np.array([1, 2, 8, 64, 300, 3000])
    prompts = np.array([1, 100, 2048, 9000])
    return np.concatenate([steps.decode(batches, 1000.0), steps.prefill(prompts)])


def test_without_a_profile_and_after_one_every_bit_is_the_same() -> None:
    before, kernels = times(on()), times(on(), hostless(on()))
    with using(correcting(decode=1.3)):
        # Every kernel takes longer; where the host's launches decide, the step does not.
        assert np.all(times(on(), hostless(on())) > kernels)
        assert np.all(times(on()) >= before)
    assert np.array_equal(times(on()), before)
    assert np.array_equal(times(on(), hostless(on())), kernels)


@pytest.mark.parametrize(
    "other",
    [on(gpu="H100"), on(engine="sglang"), on("llama-3.2-1b")],
    ids=["another GPU", "another engine", "another model"],
)
def test_a_correction_leaves_alone_what_it_does_not_speak_of(other: Deployment) -> None:
    before = times(other)
    with using(correcting(decode=1.3, prefill=2.0, step_s=0.02, sequence_s=1e-4)):
        assert np.array_equal(times(other), before)


def test_the_hosts_time_comes_on_top_of_the_gpus() -> None:
    steps = step_model(on()).with_engine(None)
    with using(correcting(step_s=0.03, sequence_s=0.001)):
        slowed = step_model(on())
    for batch in (1, 16, 64):
        expected = float(steps.decode(batch, 600)) + 0.03 + 0.001 * batch
        assert float(slowed.decode(batch, 600)) == pytest.approx(expected, rel=1e-9)


def test_a_decode_factor_scales_a_step_of_few_tokens_whole() -> None:
    plain = step_model(on()).with_engine(None)
    with using(correcting(decode=1.3)):
        slowed = step_model(on()).with_engine(None)
    assert float(slowed.decode(32, 600)) == pytest.approx(1.3 * float(plain.decode(32, 600)), rel=1e-6)


def test_a_prompt_factor_leaves_small_steps_alone_and_scales_long_prompts_whole() -> None:
    plain = step_model(on()).with_engine(None)
    with using(correcting(prefill=1.5)):
        slowed = step_model(on()).with_engine(None)
    assert float(slowed.decode(64, 600)) == pytest.approx(float(plain.decode(64, 600)), rel=1e-9)
    # All but the vocabulary's product for one token, which is a decode's.
    assert float(slowed.prefill(8192)) == pytest.approx(1.5 * float(plain.prefill(8192)), rel=0.01)


@settings(max_examples=25, deadline=None)
@given(
    st.floats(0.5, 4),
    st.floats(0.5, 4),
    st.floats(0, 0.05),
    st.sampled_from(["llama-3.1-8b"]),
    st.sampled_from([1.0, 500.0, 8000.0]),
)
def test_under_any_correction_more_work_takes_longer_and_none_beats_the_datasheet(
    decode: float, prefill: float, step_s: float, model: str, context: float
) -> None:
    deployment = on(model)
    base = StepModel(deployment, step_model(deployment).engine)
    found = correcting(decode=decode, prefill=prefill, step_s=step_s, sequence_s=1e-5).corrections[0]
    steps = base.corrected(found)
    batches = np.arange(1, 400)
    decoded = steps.decode(batches, context)
    assert np.all(np.diff(decoded) >= -1e-12)
    assert np.all(np.diff(steps.decode(32, np.arange(1, 8000, 50))) >= -1e-12)
    assert np.all(np.diff(steps.prefill(np.arange(1, 9000, 37))) >= -1e-12)
    kv = find_model(model).kv_bytes_per_token(Precision.bf16)
    bandwidth = deployment.gpu.bandwidth_bytes_per_s
    floor = (step_weight_bytes(deployment, 1) + batches * context * kv) / bandwidth
    assert np.all(decoded >= floor * (1 - 1e-9))
    curve = ReplicaCurve(deployment, 500, 100, steps=steps, most_sequences=256)
    assert np.all(np.diff(curve.tpot_s) >= -1e-12)


@pytest.mark.parametrize("name", ["llama-3.1-8b", "mixtral-8x7b", "deepseek-v2-lite", "gpt-oss-20b"])
def test_under_no_correction_do_prompts_multiply_faster_than_the_datasheet_allows(name: str) -> None:
    deployment, model = on(name), find_model(name)
    base = StepModel(deployment, step_model(deployment).engine)
    steps = base.corrected(correcting(decode=0.5, prefill=0.5).corrections[0])
    parts = model.parts
    matrices = 2 * (parts.mixers + parts.dense_mlps + parts.active_experts)
    for tokens in (500, 8000, 100_000):
        attention = sum(
            group.count * group.mixer.pair_flops * tokens * min(tokens, group.mixer.window or tokens) / 2
            for group in model.groups
            if isinstance(group.mixer, GroupedAttention | LatentAttention)
        )
        floor = (tokens * matrices + attention) / deployment.gpu.peak_flops(deployment.weights)
        assert float(steps.prefill(tokens)) >= floor


def test_a_checked_server_has_the_interval_of_its_held_out_loads_and_is_measured() -> None:
    checked = (
        correcting(decode=1.1).corrections[0].model_copy(update={"spreads": {"tpot": ErrorSpread(deviation=0.1, n=4)}})
    )
    profile = correcting().model_copy(update={"corrections": (checked,)})
    with using(profile):
        around = interval(1.0, "tpot", on())
        badge = speed_badge(on())
    # 80 % of a normal distribution lies within 1.2816 standard deviations of its middle.
    assert around.high == pytest.approx(math.exp(1.2816 * 0.1), rel=1e-4)
    assert around.low == pytest.approx(math.exp(-1.2816 * 0.1), rel=1e-4)
    assert badge.value == "measured"


def test_the_committed_profile_speaks_of_the_h200_alone() -> None:
    profile = read_profile(PROBED)
    assert profile.gpus == ("H200",)
    assert profile.kernels
    before = times(on(gpu="H100"))
    with using(profile):
        assert np.array_equal(times(on(gpu="H100")), before)
        assert not np.array_equal(times(on()), step_model(on("llama-3.1-8b")).decode(1, 1))
        steps = times(on())
        assert np.all(np.diff(steps[:6]) >= 0)
    floor = step_weight_bytes(on(), 1) / find_gpu("H200").bandwidth_bytes_per_s
    assert steps[0] > floor


def test_a_profile_survives_its_file(tmp_path: Path) -> None:
    made = correcting(decode=1.25, step_s=0.01).model_copy(update={"timings": {"gemm": [{"m": 1, "us": 2.5}]}})
    path = tmp_path / "mine.json"
    write_profile(made, path)
    assert read_profile(path) == made
    assert read_profile(path).key == made.key


def test_profiles_that_predict_the_same_share_a_key_and_others_do_not() -> None:
    one, other = correcting(decode=1.2), correcting(decode=1.3)
    assert one.key != other.key
    assert one.model_copy(update={"corrections": other.corrections}).key == other.key
    assert one.key == one.model_copy(update={"name": "another", "made": date(2025, 1, 1)}).key


def test_the_environments_profile_is_used_unless_one_is_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "mine.json"
    write_profile(correcting(decode=2.0), path)
    monkeypatch.setenv(VARIABLE, str(path))
    found = active()
    assert found
    assert found.corrections[0].decode == 2.0
    with using(None):
        assert active() is None
    with using(correcting(decode=1.1)), using(None):
        assert active() is None
    found = active()
    assert found
    assert found.corrections[0].decode == 2.0


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "not a profile"),
        ('{"rows": []}', "not a profile"),
        ('{"kind": "tokonomics profile", "schema_version": 9}', "schema version 9"),
        ('{"kind": "tokonomics profile", "schema_version": 1}', "name"),
    ],
)
def test_a_file_that_is_no_profile_says_what_it_is(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "other.json"
    path.write_text(text)
    with pytest.raises(BadInput, match=says):
        read_profile(path)


def test_a_curve_that_beats_the_datasheet_is_refused(tmp_path: Path) -> None:
    whole = json.loads(PROBED.read_text())
    whole["kernels"]["gemm"]["curve"][3] = 1.2  # memory: a share of the datasheet's bandwidth
    path = tmp_path / "fast.json"
    path.write_text(json.dumps(whole))
    with pytest.raises(BadInput, match="more than its datasheet"):
        read_profile(path)


def test_what_lies_outside_is_said() -> None:
    profile = correcting(decode=1.2)
    assert outside(profile, ["H200"], ["vllm"], ["llama-3.1-8b"], {"batch": 32}) == []
    beyond = outside(profile, ["H200"], ["vllm"], ["llama-3.1-8b"], {"batch": 256, "context": 100})
    assert len(beyond) == 2
    assert "256" in beyond[0]
    assert "64" in beyond[0]
    assert "512" in beyond[1]
    assert "as without it" in outside(profile, ["L40S"], ["vllm"], [], {})[0]
    assert "not corrected" in outside(profile, ["H200"], ["vllm"], ["qwen3-8b"], {})[0]


@pytest.mark.parametrize("held_out", [0.01, 0.9])
def test_first_tokens_that_are_told_well_say_nothing_of_prompts(held_out: float) -> None:
    """A first token is its prompt and a wait; where the wait is most of it, a prompt may be far off."""
    with using(None):
        unchecked = interval(1.0, "prefill", on())
    checked = correcting(prefill=1.3).corrections[0]
    checked = checked.model_copy(update={"spreads": {"ttft": ErrorSpread(deviation=held_out, n=4)}})
    with using(correcting().model_copy(update={"corrections": (checked,)})):
        assert interval(1.0, "prefill", on()) == unchecked
        first_token = interval(1.0, "ttft", on())
    assert math.log(first_token.high) == pytest.approx(1.2816 * held_out, rel=1e-3)


def test_prompts_that_were_held_out_have_their_own_interval() -> None:
    checked = correcting(prefill=1.3).corrections[0]
    spreads = {"ttft": ErrorSpread(deviation=0.5, n=4), "prefill": ErrorSpread(deviation=0.05, n=4)}
    checked = checked.model_copy(update={"spreads": spreads})
    with using(correcting().model_copy(update={"corrections": (checked,)})):
        around = interval(1.0, "prefill", on())
    assert math.log(around.high) == pytest.approx(1.2816 * 0.05, rel=1e-3)
    assert math.log(around.low) == pytest.approx(-1.2816 * 0.05, rel=1e-3)
