"""Data-parallel attention: groups of GPUs with sequences of their own over one set of experts."""

import numpy as np
import pytest
from tests.deployed import on

from tokonomics.catalog.engines import find_engine
from tokonomics.catalog.gpus import find_gpu
from tokonomics.catalog.layers import MoeMlp, Precision
from tokonomics.catalog.load_models import find_model
from tokonomics.errors import BadInput, in_python
from tokonomics.physics.deployment import Deployment, deploy
from tokonomics.physics.matrix_kernels import all_to_all_s
from tokonomics.physics.memory import fit, max_sequences, shard
from tokonomics.physics.steptime import StepModel, step_model
from tokonomics.serving.simulator import simulate
from tokonomics.serving.step_table import compile_steps, gpu_s
from tokonomics.traffic.trace import make_trace


def r1(gpu: str = "GB200", *, tp: int = 1, ep: int = 1, dp: int = 1) -> Deployment:
    split = {"tp": tp, "ep": ep, "dp": dp}
    return on("deepseek-r1", gpu, "sglang", weights=Precision.fp8, **split)


# Microseconds that DeepEP's README states for its low-latency kernels: H800 machines of 8 with 400 Gbit/s a GPU, 128
# tokens of 7,168 elements, 8 experts each; there in FP8 (7,168 bytes and 56 scales of 4), back in BF16.
DEEPEP_US = {8: (77, 114), 16: (118, 195), 32: (155, 273), 64: (173, 314), 128: (192, 369), 256: (194, 360)}


@pytest.mark.parametrize("gpus", DEEPEP_US)
def test_the_way_to_experts_and_back_is_as_deepep_publishes_it(gpus: int) -> None:
    h800 = find_gpu("H100").model_copy(update={"fast_link_bytes_per_s": 200e9})
    there_us, back_us = DEEPEP_US[gpus]
    there = float(all_to_all_s(h800, gpus, 128, 7168 + 56 * 4, 8)) * 1e6
    back = float(all_to_all_s(h800, gpus, 128, 7168 * 2, 8)) * 1e6
    assert there == pytest.approx(there_us, rel=0.1)
    assert back == pytest.approx(back_us, rel=0.1)


def test_reading_kv_takes_as_long_however_many_gpus_have_as_many_sequences_each() -> None:
    split = [step_model(r1(tp=gpus, ep=gpus)).parts(16 * gpus, 4096).kv_s for gpus in (8, 16, 32)]
    apart = [step_model(r1(dp=gpus, ep=gpus)).parts(16 * gpus, 4096).kv_s for gpus in (8, 16, 32)]
    assert apart == pytest.approx([apart[0]] * 3)
    assert split[2] > 1.8 * split[1] > 3 * split[0]  # every rank reads the latent of all sequences


def test_each_group_attends_as_a_replica_alone_would() -> None:
    alone, shared = StepModel(r1(), None), StepModel(r1(dp=8, ep=8), None)
    for batch in (1.0, 16.0, 200.0):
        own = np.float64(alone.passing(batch))
        assert float(shared.passing(8 * batch)) == own
        assert float(shared.decode_attention_s(own, np.float64(3000))) == pytest.approx(
            float(alone.decode_attention_s(own, np.float64(3000)))
        )
    # Eight prompts are one for each group; a lone one is one group's, and the experts have its tokens alone.
    eight, one = float(shared.prefill(8 * 2000, 0, 8)), float(shared.prefill(2000))
    assert one < eight < 8 * one


def test_groups_hold_their_own_sequences_and_a_part_of_the_experts() -> None:
    narrow, wide = r1(tp=8, ep=8), r1(dp=8, ep=8)
    assert wide.gpus == narrow.gpus == 8
    assert fit(wide, 8000).weight_bytes_per_gpu > fit(narrow, 8000).weight_bytes_per_gpu
    # The latent cache of a token is on one GPU instead of all eight.
    assert max_sequences(wide, 8000) > 4 * max_sequences(narrow, 8000)
    assert max_sequences(wide, 8000) % 8 == 0
    assert wide.limits.max_sequences == 8 * narrow.limits.max_sequences


def test_sending_over_the_network_is_hidden_behind_the_other_half_where_that_pays() -> None:
    wide = r1("H100", dp=32, ep=32)
    steps = StepModel(wide, None)
    _, exchange = steps.kernels.shared_s(np.array([32.0, 32.0 * 256]))
    shown = [float(steps.shared_s(np.array([32.0 * n]))[0]) for n in (1, 256)]
    experts, _ = steps.kernels.shared_s(np.array([32.0, 32.0 * 256]))
    few, many = (shown[i] - float(experts[i]) for i in (0, 1))
    assert few == pytest.approx(float(exchange[0]), rel=0.05)  # half of almost nothing takes as long to compute
    assert 0 <= many < 0.6 * float(exchange[1])


def test_a_batch_in_the_simulator_steps_as_the_step_model_says() -> None:
    deployment = r1("H200", dp=8, ep=8)
    requests, outputs = 64, 200
    trace = make_trace(np.zeros(requests), np.full(requests, 100), np.full(requests, outputs))
    served = simulate(deployment, trace).served
    steps = step_model(deployment)
    written_s = sum(float(steps.decode(requests, 100 + token)) for token in range(1, outputs))
    taken_s = float(served.finish_s.max()) - float(served.first_token_s.max())
    assert taken_s == pytest.approx(written_s, rel=0.05)


@pytest.mark.parametrize("aligned", [False, True])
@pytest.mark.parametrize("prompts", [1, 3, 8, 24])
@pytest.mark.parametrize("decodes", [0, 5, 300])
def test_the_simulator_s_table_says_what_the_step_model_says(prompts: int, decodes: int, aligned: bool) -> None:
    steps = StepModel(r1("H200", dp=8, ep=8), None, aligned=aligned)
    table = compile_steps(steps, 512, 65_536, 8192)
    tokens, context = prompts * 700, 2000
    expected = float(steps.step(tokens, 0, decodes, context, prompts))
    pairs = prompts * 700 * 701 / 2
    assert gpu_s(table, decodes, float(decodes * context), tokens, prompts, pairs) == pytest.approx(expected, rel=0.02)


def test_prompts_that_wait_for_each_other_are_computed_in_one_step_of_all_groups() -> None:
    apart, together = (StepModel(r1("H200", dp=8, ep=8), None, aligned=aligned) for aligned in (False, True))
    eight = float(apart.step(8 * 1000, 0, 64, 2000, 8))
    alone = float(apart.step(0, 0, 64, 2000))
    assert float(together.step(8 * 1000, 0, 64, 2000, 8)) == eight
    # One of the eight takes an eighth of what they add.
    assert float(together.step(1000, 0, 64, 2000, 1)) == pytest.approx(alone + (eight - alone) / 8)
    assert float(apart.step(1000, 0, 64, 2000, 1)) > alone + (eight - alone) / 4


@pytest.mark.parametrize(
    ("split", "field"),
    [
        ({"dp": 0}, "dp"),
        ({"tp": 4, "dp": 2, "ep": 3}, "ep"),
        ({"dp": 576, "ep": 576}, "ep"),  # more than it has experts
        ({"dp": 32, "ep": 16}, "ep"),  # in a rack of 72
        ({"dp": 144}, "ep"),
        ({"dp": 200, "ep": 200}, "dp"),  # neither one rack nor whole ones
    ],
)
def test_splits_that_cannot_be(split: dict[str, int], field: str) -> None:
    with pytest.raises(BadInput) as error:
        r1("GB200", **split)
    assert error.value.field == field


def told(error: BadInput) -> str:
    return " ".join(filter(None, error.spelled(in_python)))


def test_a_refused_split_says_what_is_possible() -> None:
    with pytest.raises(BadInput) as inside:
        r1("GB200", dp=32, ep=16)
    assert "ep=1 or ep=32" in told(inside.value)
    with pytest.raises(BadInput) as beyond:
        r1("H200", dp=200)
    assert "25 machines of 8" in told(beyond.value)
    assert "ep=200; or dp=8 for one machine" in told(beyond.value)
    with pytest.raises(BadInput, match="no network"):
        r1("L40S", dp=16, ep=16)
    assert r1("H200", dp=16, ep=16).spans_machines


def test_a_gpu_holds_the_biases_of_the_experts_dealt_to_it() -> None:
    model = find_model("gpt-oss-120b")
    mlp = model.groups[0].mlp
    assert isinstance(mlp, MoeMlp)
    assert mlp.expert_bias_elements > 0
    whole, dealt, cut = (
        deploy(model, find_gpu("H100"), find_engine("vllm"), tp=tp, ep=ep) for tp, ep in ((1, 1), (8, 8), (8, 1))
    )
    # Dealt out whole, eight GPUs hold together what one holds alone; cut in eight, each copies the biases.
    assert 8 * shard(dealt).experts_held == pytest.approx(shard(whole).experts_held)
    assert 8 * shard(cut).experts_held > shard(whole).experts_held


def test_a_model_without_experts_has_nothing_to_share() -> None:
    with pytest.raises(BadInput, match="no experts"):
        on(dp=2)
