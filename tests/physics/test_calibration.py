"""A profile changes what it speaks of and nothing else; laws and floors hold under any profile."""

import json
import math
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.physics.hosts import hostless

from tokonomics.catalog.engines import find_engine
from tokonomics.catalog.gpus import find_gpu
from tokonomics.catalog.layers import GroupedAttention, LatentAttention, MoeMlp, Precision
from tokonomics.catalog.load_models import find_model
from tokonomics.errors import BadInput
from tokonomics.physics.calibration import (
    VARIABLE,
    Correction,
    Coverage,
    ErrorSpread,
    Profile,
    Range,
    active,
    outside,
    profiled,
    read_profile,
    using,
    write_profile,
)
from tokonomics.physics.deployment import Deployment, deploy
from tokonomics.physics.intervals import interval, speed_badge
from tokonomics.physics.memory import dense_products, step_weight_bytes
from tokonomics.physics.overhead import host, overhead
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
    st.floats(0.5, 4), st.floats(0.5, 4), st.floats(0, 0.05), st.sampled_from(["llama-3.1-8b"]),
    st.sampled_from([1.0, 500.0, 8000.0]),
)  # fmt: skip
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
    # A decode step padded to the next captured graph leaves less for a prompt beside it to add.
    assert np.all(curve.tpot_s >= 0.99 * np.maximum.accumulate(curve.tpot_s))


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


# --- layouts that were not measured ---------------------------------------------------------------------------------

MEASURED = {"weights": Precision.fp8, "kv": Precision.bf16, "tp": 8}


def deepseek(**split: Any) -> Deployment:
    return on("deepseek-v3", **split)


def of_deepseek(*corrections: dict[str, Any]) -> Profile:
    made = [
        Correction(
            **{"gpu": "H200", "engine": "vllm", "model": "deepseek-v3", "loads": 8, "rows": 24} | MEASURED | each
        )
        for each in corrections
    ]
    return Profile(name="mine", made=date(2026, 11, 15), command="test", corrections=tuple(made))


TP8, DP8 = deepseek(tp=8), deepseek(dp=8, ep=8)
LAYOUTS = (TP8, DP8, deepseek(tp=8, ep=8), deepseek(tp=8, pp=2), deepseek(tp=8, dp=2, ep=16))


def test_every_layout_is_corrected_by_the_one_that_was_measured() -> None:
    kernels = [hostless(layout).decode(8, 2000.0) for layout in LAYOUTS]
    with using(of_deepseek({"decode": 1.5})):
        for layout, before in zip(LAYOUTS, kernels, strict=True):
            assert hostless(layout).decode(8, 2000.0) == pytest.approx(1.5 * before, rel=1e-6)
        known = [profiled(layout) for layout in LAYOUTS]
    assert known == [Coverage.measured] + [Coverage.carried_over] * 4
    assert profiled(TP8) is None


def test_a_gain_is_not_carried_over_and_a_loss_is() -> None:
    plain = times(DP8)
    with using(of_deepseek({"decode": 0.8, "prefill": 0.8, "launch": 0.5, "request": 0.5, "step_s": 0.0})):
        engine = step_model(DP8).engine
        carried = times(DP8)
    own = overhead(DP8.engine)
    assert engine
    assert (engine.layer_s, engine.request_s, engine.step_s) == (own.layer_s, own.request_s, own.step_s)
    # What the host adds to a step is added to the GPU's time now: never faster than beside it.
    assert np.all(carried[:6] >= plain[:6])
    with using(of_deepseek({"decode": 0.8, "prefill": 1.4, "request": 3.0})):
        engine = step_model(DP8).engine
        assert hostless(DP8).decode(8, 2000.0) == pytest.approx(float(_without_profile(DP8).decode(8, 2000.0)))
        slower = float(hostless(DP8).prefill(65_536) / _without_profile(DP8).prefill(65_536))
    assert slower == pytest.approx(1.4, rel=0.01)
    assert engine
    assert engine.request_s == pytest.approx(3 * own.request_s)


def _without_profile(deployment: Deployment) -> StepModel:
    with using(None):
        return hostless(deployment)


def test_the_nearest_measured_layout_corrects() -> None:
    int4 = on("deepseek-v3", tp=8, weights=Precision.int4)
    two = of_deepseek({"decode": 1.2, "tp": 4}, {"decode": 1.5}, {"decode": 1.7, "weights": Precision.int4})
    expected = {TP8: 1.5, DP8: 1.5, deepseek(tp=4): 1.2, deepseek(tp=2): 1.2, deepseek(tp=2, ep=2): 1.2, int4: 1.7}
    kernels = {layout: float(hostless(layout).decode(8, 2000.0)) for layout in expected}
    with using(two):
        for layout, factor in expected.items():
            assert float(hostless(layout).decode(8, 2000.0)) == pytest.approx(factor * kernels[layout], rel=1e-6)


def test_a_layout_that_was_not_measured_keeps_its_range_and_its_origin() -> None:
    spreads = {"tpot": ErrorSpread(deviation=0.02, n=4)}
    plain = interval(1.0, "tpot", DP8), speed_badge(DP8)
    with using(of_deepseek({"decode": 1.5, "spreads": spreads})):
        assert (interval(1.0, "tpot", DP8), speed_badge(DP8)) == plain
        assert math.log(interval(1.0, "tpot", TP8).high) == pytest.approx(1.2816 * 0.02, rel=1e-3)
        assert speed_badge(TP8).value == "measured"


def test_what_is_not_of_the_profile_is_not_covered() -> None:
    with using(of_deepseek({"decode": 1.5})):
        for other in (on("deepseek-v3", "B200", tp=8), on("deepseek-v3", engine="sglang", tp=8), on("mixtral-8x7b")):
            assert profiled(other) is Coverage.not_covered
    with using(read_profile(PROBED)):
        assert profiled(TP8) is Coverage.carried_over


# --- the floor ------------------------------------------------------------------------------------------------------

FLOORED = (
    on(),
    on(tp=4, kv=Precision.fp8),
    on("qwen3-32b", tp=2, pp=2),
    on("mixtral-8x7b", tp=2, ep=2),
    on("gpt-oss-120b", tp=2, dp=4, ep=8),
    TP8,
    DP8,
    deepseek(tp=8, dp=2, ep=16),
)


def least_decode_s(deployment: Deployment, batch: int, context: int) -> float:
    """Matrices, visited experts and KV cache of one rank, each byte once: written down apart from the step model."""
    model, gpu, ranks = deployment.model, deployment.gpu, deployment.tp
    share = max(batch / (deployment.pp * deployment.dp), 1)
    together = max(batch / deployment.pp, 1)
    read = 2 * model.vocab * model.hidden / ranks
    for group in model.groups:
        products = dense_products(group, deployment)
        read += group.count * sum(n * k * weights.bytes_per_weight for n, k, weights in products)
        if isinstance(group.mlp, MoeMlp):
            experts, active = group.mlp.experts, group.mlp.active_experts
            visited = experts * (1 - (1 - active / experts) ** together)
            each = group.mlp.expert_parameters(model.hidden) * deployment.weights.bytes_per_weight
            read += group.count * visited * each / (deployment.tp * deployment.dp)
        for cache in group.mixer.caches if group.mixer else ():
            rows = min(context, cache.window or context)
            read += group.count * share * rows * cache.row_bytes(deployment.kv, ranks)
    return float(read / gpu.bandwidth_bytes_per_s)


def least_prefill_s(deployment: Deployment, tokens: int) -> float:
    """The products of one group's share of a prompt, at peak."""
    total = 0.0
    for group in deployment.model.groups:
        for n, k, weights in dense_products(group, deployment):
            total += group.count * 2 * tokens * n * k / deployment.gpu.peak_flops(weights)
        if isinstance(group.mlp, MoeMlp):
            each = group.mlp.expert_parameters(deployment.model.hidden) / (deployment.tp * deployment.dp)
            flops = 2 * tokens * group.mlp.active_experts * each
            total += group.count * flops / deployment.gpu.peak_flops(deployment.weights)
    return total


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(FLOORED),
    st.fixed_dictionaries({name: st.floats(0.05, 4) for name in ("decode", "prefill", "launch", "request")}),
    st.sampled_from([None, 0.0, 0.01]),
    st.integers(1, 2000),
    st.integers(1, 30_000),
)
def test_under_no_profile_is_a_step_faster_than_the_datasheet(
    deployment: Deployment, factors: dict[str, float], step_s: float | None, batch: int, context: int
) -> None:
    layout = {name: getattr(deployment, name) for name in ("weights", "kv", "tp", "pp", "ep", "dp")}
    profile = of_deepseek(layout | factors | {"model": deployment.model.key, "step_s": step_s})
    with using(profile):
        steps = StepModel(deployment, overhead(deployment.engine))
        assert profiled(deployment) is Coverage.measured
    assert float(steps.decode(batch, context)) >= least_decode_s(deployment, batch, context) * (1 - 1e-9)
    assert float(steps.prefill(context)) >= least_prefill_s(deployment, context) * (1 - 1e-9)
    parts = steps.parts(batch, context)
    share = max(1.0, batch / (deployment.pp * deployment.dp))
    assert parts.weights_s <= parts.step_s
    streamed = step_weight_bytes(deployment, share) / deployment.gpu.bandwidth_bytes_per_s
    matrices = parts.weights_s + parts.compute_s
    assert parts.weights_s >= min(streamed, matrices) * (1 - 1e-9)


@pytest.mark.parametrize("deployment", FLOORED, ids=str)
def test_plain_kernels_are_above_the_floor_so_that_a_correction_of_one_changes_nothing(deployment: Deployment) -> None:
    plain = times(deployment)
    steps = step_model(deployment)
    same = of_deepseek({"model": deployment.model.key}).corrections[0]
    assert np.array_equal(times(deployment, steps.corrected(same)), plain)
    assert np.all(times(deployment, steps.floor) < plain)


def test_a_probe_says_how_fast_the_engines_host_launches() -> None:
    probed = read_profile(PROBED)
    assert probed.kernels is not None
    slow = probed.kernels.model_copy(update={"launch_s": 2 * host().launch_s})
    with using(probed):
        before = step_model(on())
    with using(probed.model_copy(update={"kernels": slow})):
        after = step_model(on())
        elsewhere = step_model(on(gpu="H100"))
    assert float(after.launch_s(2000)) == pytest.approx(2 * float(before.launch_s(2000)))
    assert float(elsewhere.launch_s(2000)) == float(step_model(on(gpu="H100")).launch_s(2000))
    own = overhead(on().engine)
    steps_s = max(float(before.decode(8, 1000)), 2 * float(own.host_s(8)))
    assert float(after.decode(8, 1000)) == pytest.approx(steps_s)


def test_a_share_of_the_experts_is_of_the_layout_that_was_measured() -> None:
    of_experts = correcting(experts=1 / 16).corrections[0].model_copy(update={"model": "qwen3-30b-a3b", "tp": 1})
    profile = correcting().model_copy(update={"corrections": (of_experts,)})
    one, two = on("qwen3-30b-a3b"), on("qwen3-30b-a3b", tp=2)
    stated = one.model_copy(update={"visited_experts": 8.0})
    with using(profile):
        assert float(step_model(one).decode(64, 600)) == pytest.approx(
            float(StepModel(stated, overhead(one.engine)).decode(64, 600))
        )
        carried = float(step_model(two).decode(64, 600))
    assert carried == float(step_model(two).decode(64, 600))
    assert float(step_model(stated).decode(64, 600)) < 0.6 * float(step_model(one).decode(64, 600))
