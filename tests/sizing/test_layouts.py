"""Every verb chooses from one list of layouts and precisions: against brute force over all degrees."""

from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest

from tokonomics.catalog.engines import find_engine
from tokonomics.catalog.gpus import find_gpu
from tokonomics.catalog.layers import Precision
from tokonomics.catalog.load_models import find_model
from tokonomics.errors import BadInput
from tokonomics.physics.deployment import Deployment, deploy, valid_tp
from tokonomics.physics.memory import fit
from tokonomics.planner.can_run import CanRun, OwnMachine, RunnableModel, can_run
from tokonomics.planner.predict import predict
from tokonomics.questions.can_run import CanRunResult, on_own_machine
from tokonomics.questions.can_run import can_run as asked_can_run
from tokonomics.questions.fleet import fleet
from tokonomics.questions.plan import plan
from tokonomics.questions.predict import curve
from tokonomics.questions.predict import predict as asked_predict
from tokonomics.questions.requests.buy import (
    CanRunRequest,
    CurveRequest,
    FleetRequest,
    PlanRequest,
    PredictRequest,
)
from tokonomics.questions.results import PlanResult
from tokonomics.report.can_run_view import can_run as described
from tokonomics.sizing.layouts import fitting, on_machine, weight_choices
from tokonomics.traffic.slo import parse_slos

CONTEXT = 4096
VLLM = find_engine("vllm")
MACHINES = [
    ("deepseek-v3", "H200", 8), ("gpt-oss-120b", "H100", 4), ("mixtral-8x7b", "H200", 8), ("llama-3.1-8b", "H100", 4),
    ("qwen3-30b-a3b", "L40S", 4), ("qwen3-14b", "RTX3090", 3), ("llama-3.3-70b", "H200", 2),
]  # fmt: skip


def degrees(gpus: int) -> Iterator[dict[str, int]]:
    for tp, pp, dp in product(range(1, gpus + 1), repeat=3):
        if tp * pp * dp <= gpus:
            for ep in {1, tp * dp}:
                yield {"tp": tp, "pp": pp, "ep": ep, "dp": dp}


def by_hand(model: str, gpu: str, gpus: int, weights: Precision) -> list[Deployment]:
    """Every layout that the deployment's own rules accept and memory holds.

    Without stages where GPUs have a fast link, and without groups in stages. Groups split experts evenly.
    """
    found, even = [], valid_tp(find_model(model), gpus)
    for split in degrees(gpus):
        try:
            layout = deploy(find_model(model), find_gpu(gpu), VLLM, weights=weights, **split)  # type: ignore[arg-type]
        except BadInput:
            continue
        plain = layout.pp == 1 or (layout.gpu.fast_link_bytes_per_s is None and layout.dp == 1 and layout.ep == 1)
        if plain and layout.expert_gpus in even and fit(layout, CONTEXT).fits:
            found.append(layout)
    return found


def of(layout: Deployment | RunnableModel) -> tuple[int, int, int, int]:
    return layout.tp, layout.pp, layout.ep, layout.dp


def table(model: str, gpu: str, gpus: int, slo: str = "tpot=50ms") -> CanRun:
    machine = OwnMachine(find_gpu(gpu), gpus, VLLM)
    return can_run([find_model(model)], machine, CONTEXT, parse_slos(slo), every_layout=True)


@pytest.mark.parametrize(("model", "gpu", "gpus"), MACHINES)
def test_the_list_has_every_layout_that_brute_force_finds(model: str, gpu: str, gpus: int) -> None:
    for weights in weight_choices(find_model(model)):
        single = Deployment(model=find_model(model), gpu=find_gpu(gpu), engine=VLLM, weights=weights, kv=Precision.bf16)
        listed = {of(layout) for layout in on_machine(single, gpus, CONTEXT)}
        found = {of(layout) for layout in by_hand(model, gpu, gpus, weights)}
        # Experts are dealt out whole where each GPU gets as many; stages that leave GPUs idle are not listed.
        missing = {split for split in found - listed if split[1] == 1 and split[2] == 1}
        assert not missing
        assert all(gpus % (tp * pp) or gpus // tp % pp for tp, pp, ep, _ in found - listed if ep == 1 and pp > 1)


@pytest.mark.parametrize(("model", "gpu", "gpus"), MACHINES)
def test_the_best_layout_writes_no_less_than_predict_says_of_any(model: str, gpu: str, gpus: int) -> None:
    slo_s = 0.05
    best = table(model, gpu, gpus).runs[0]
    assert best.tokens_per_s is not None
    for weights in weight_choices(find_model(model)):
        for layout in by_hand(model, gpu, gpus, weights):
            for batch in (1, 16, 128, 256, 512, 1024):
                most = min(fit(layout, CONTEXT).max_sequences, layout.limits.max_sequences)
                made = predict(layout, min(batch, most), CONTEXT)
                assert made.decode_step_s is not None
                if made.decode_step_s.mid <= slo_s:
                    replicas = gpus // layout.gpus
                    assert replicas * made.tokens_per_s.mid <= best.tokens_per_s.mid * (1 + 1e-9), (layout, batch)


@pytest.mark.parametrize(("model", "gpu", "gpus"), MACHINES)
def test_every_layout_of_the_table_fits_in_time_and_is_what_predict_says(model: str, gpu: str, gpus: int) -> None:
    rows = table(model, gpu, gpus).runs
    for row in rows:
        split = {"tp": row.tp, "pp": row.pp, "ep": row.ep, "dp": row.dp}
        layout = deploy(find_model(model), find_gpu(gpu), VLLM, weights=row.weights, kv=row.kv, **split)
        held = fit(layout, CONTEXT)
        each = row.users // row.replicas
        assert row.replicas * layout.gpus <= gpus
        assert each <= held.max_sequences
        assert row.kv_tokens == row.replicas * held.max_sequences * CONTEXT
        if each:
            made = predict(layout, each, CONTEXT)
            assert made.decode_step_s is not None
            assert row.tpot_s == made.decode_step_s.mid <= 0.05
            assert row.tokens_per_s is not None
            assert row.tokens_per_s.mid == pytest.approx(row.replicas * made.tokens_per_s.mid)
    speeds = [row.tokens_per_s.mid for row in rows if row.tokens_per_s]
    assert speeds == sorted(speeds, reverse=True)


def test_the_engine_is_told_the_split_and_the_users_of_each_group() -> None:
    for row in table("deepseek-v3", "H200", 8).runs:
        assert row.command is not None
        words = row.command.split()
        said = {name: words[words.index(name) + 1] for name in words if name.startswith("--") and name != words[-1]}
        assert int(said["--tensor-parallel-size"]) == row.tp
        assert int(said.get("--data-parallel-size", 1)) == row.dp
        assert ("--enable-expert-parallel" in words) == (row.ep > 1)
        assert int(said["--max-num-seqs"]) == row.users // row.dp
    dense = next(row for row in table("llama-3.1-8b", "H100", 4).runs if row.replicas == 4)
    assert "--data-parallel-size 4" in (dense.command or "")


def test_an_engine_whose_flags_are_not_known_has_no_command() -> None:
    machine = OwnMachine(find_gpu("H100"), 1, find_engine("llama.cpp"))
    found = can_run([find_model("llama-3.1-8b")], machine, CONTEXT, parse_slos("tpot=50ms"), every_layout=True)
    assert {row.command for row in found.runs} == {None}


def test_stages_over_machines_are_tried_where_a_machine_holds_no_sequence_of_the_length() -> None:
    model, gpu = find_model("llama-3.1-405b"), find_gpu("H100")
    long = fitting(model, gpu, VLLM, (Precision.bf16,), (Precision.bf16,), 8, 8192)
    assert {layout.gpus for layout, refusal in long if refusal is None} == {16, 32, 64}


# --- the verbs ------------------------------------------------------------------------------------------------------


def test_a_plan_of_ones_own_machine_is_the_table_of_can_run() -> None:
    slo = ("tpot=50ms",)
    mine = plan(PlanRequest(model=("deepseek-v3",), gpu=("H200",), gpus="8", own=True, slo=slo))
    same = asked_can_run(CanRunRequest(model=("deepseek-v3",), gpu="H200", gpus=8, slo=slo))
    assert isinstance(mine, CanRunResult)
    assert mine == same
    best = mine.runs[0]
    assert of(best) == (1, 1, 8, 8)
    # Data-parallel attention holds each sequence once: tensor parallelism copies the one compressed KV eight times.
    split = next(row for row in mine.runs if of(row) == (8, 1, 8, 1))
    assert best.kv_tokens > 4 * split.kv_tokens
    assert best.users > 3 * split.users  # the latency target ends it before the memory does


def test_a_plan_of_ones_own_machine_takes_the_mean_request_as_its_context() -> None:
    asked = PlanRequest(
        model=("llama-3.1-8b",), gpu=("H100",), gpus="2", own=True, input="const:900", output="const:100"
    )
    assert on_own_machine(asked).context == 1000


def test_a_server_of_ones_own_is_started_for_the_longest_request_and_says_what_is_not_counted() -> None:
    """Prompts of 100 to 1,900 tokens: a mean request of 1,000 + 100, and the longest of 20,000 near 2,000."""
    asked = PlanRequest(
        model=("llama-3.1-8b",),
        gpu=("H100",),
        gpus="2",
        own=True,
        rate="2",
        input="uniform:100-1900",
        output="const:100",
    )
    found = on_own_machine(asked)
    assert found.context == pytest.approx(1100, rel=0.02)
    assert found.not_counted == ("rate",)
    for row in found.runs:
        assert row.command is not None
        longest = int(row.command.split("--max-model-len ")[1].split()[0])
        assert 1990 <= longest <= 2000
    beyond = on_own_machine(
        asked.model_copy(update={"model": ("llama-2-7b",), "input": "lognormal:mean=2000,p99=9000"})
    )
    assert all("--max-model-len 4096" in (row.command or "") for row in beyond.runs)


def test_flags_that_differ_are_listed_where_there_are_several_layouts() -> None:
    for weights, tables in (("fp8",), 0), (("fp8", "bf16"), 1):
        request = CanRunRequest(model=("llama-3.1-8b",), gpu="L4", context=1024, weights=weights)
        found = asked_can_run(request)
        assert len(found.runs) == len(weights)
        text = described(found, request).text()
        assert (text.count("in which they differ"), text.count("starts with: vllm serve")) == (tables, 1)


@pytest.mark.parametrize("more", [{}, {"gpu": ("H100", "H200")}, {"gpu": ("H100",), "engine": ("vllm", "sglang")}])
def test_a_machine_of_ones_own_has_one_kind_of_gpu_and_one_engine(more: dict[str, tuple[str, ...]]) -> None:
    with pytest.raises(BadInput, match="one's own has one"):
        plan(PlanRequest(model=("llama-3.1-8b",), own=True, **more))


def test_predict_names_the_layout_that_writes_most_with_as_many_sequences() -> None:
    asked = {"model": "deepseek-v3", "gpu": "H200", "context": CONTEXT, "batch": 128}
    made = asked_predict(PredictRequest(**asked, tp=8))
    assert made.faster is not None
    rates = {}
    for layout in by_hand("deepseek-v3", "H200", 8, Precision.fp8):
        if fit(layout, CONTEXT).max_sequences >= 128:  # none of them leaves room for a second replica
            rates[of(layout)] = predict(layout, 128, CONTEXT).tokens_per_s.mid
    best = max(rates, key=lambda split: rates[split])
    faster = made.faster
    assert (faster.tp, faster.pp, faster.ep, faster.dp) == best
    assert faster.tokens_per_s == pytest.approx(rates[best])
    assert faster.times == pytest.approx(rates[best] / made.tokens_per_s.mid)
    typed = asked_predict(PredictRequest(**asked, tp=faster.tp, pp=faster.pp, ep=faster.ep, dp=faster.dp))
    assert typed.tokens_per_s.mid == pytest.approx(faster.tokens_per_s)
    assert typed.faster is None


def test_a_curve_names_the_layout_that_writes_most_within_its_slo() -> None:
    made = curve(CurveRequest(model="llama-3.1-8b", gpu="H100", tp=4, context=1024, slo=("tpot=20ms",)))
    assert made.faster is not None
    met = max(point.tokens_per_s for point in made.points if point.tpot_s <= 0.02)
    assert made.faster.tpot_s <= 0.02
    assert made.faster.tokens_per_s > 1.1 * met
    alone = curve(CurveRequest(model="llama-3.1-8b", gpu="H100", context=1024, slo=("tpot=20ms",)))
    assert alone.faster is None


@pytest.mark.slow
@pytest.mark.parametrize("weights", [None, ("bf16",)])
def test_a_fleet_takes_the_precision_replicas_and_bill_of_a_plan(weights: tuple[str, ...] | None) -> None:
    common: dict[str, Any] = {"input": "const:1500", "output": "const:200", "slo": ("tpot_p99=60ms",), "gpu": ("L40S",)}
    common |= {"provider": ("runpod",), "terms": ("on_demand",), "weights": weights}
    planned = plan(PlanRequest(model=("qwen3-14b",), rate="12", **common))
    assert isinstance(planned, PlanResult)
    best = planned.best
    assert best is not None
    bought = fleet(FleetRequest(model="qwen3-14b", demand="24x12", no_replay=True, **common))
    # Machines of several sizes may cost the same by the GPU.
    kinds = [(bought.kind(purchase.offer), max(purchase.by_hour)) for purchase in bought.plan.purchases]
    assert {machine.weights for machine in bought.machines} == {best.weights} == {kind.weights for kind, _ in kinds}
    assert sum(count * kind.replicas for kind, count in kinds) >= best.replicas
    assert bought.plan.usd_per_month == pytest.approx(best.usd_per_month, rel=0.005)
    for row in bought.plan.comparisons:
        if row.name == "all on demand":
            assert row.usd_per_month == pytest.approx(best.usd_per_month, rel=0.005)
