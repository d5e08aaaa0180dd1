"""A profile of one layout moves every layout that it is compared with: none wins for not being measured."""

from datetime import date
from typing import Any

import pytest
from tests.planner.small_catalogue import offer, planned

from tokonomics.catalog.engines import find_engine
from tokonomics.catalog.gpus import find_gpu
from tokonomics.catalog.layers import Precision
from tokonomics.catalog.load_models import find_model
from tokonomics.physics.calibration import Correction, Coverage, Profile, using
from tokonomics.physics.deployment import deploy
from tokonomics.planner.can_run import OwnMachine, can_run
from tokonomics.planner.plan_answer import Candidate, Plan
from tokonomics.planner.predict import predict
from tokonomics.sizing.load import load_of_shape
from tokonomics.traffic.slo import parse_slos

SLOW = Correction(
    gpu="H200", engine="vllm", model="deepseek-v3", weights=Precision.fp8, kv=Precision.bf16, tp=8, decode=1.5,
    prefill=1.5, loads=8, rows=24,
)  # fmt: skip
PROFILE = Profile(name="mine", made=date(2026, 11, 15), command="test", corrections=(SLOW,))
TENSOR = (8, 1, 1)


def split(row: Candidate) -> tuple[int, int, int]:
    return row.tp, row.ep, row.dp


def asked(slo: str) -> Plan:
    load = load_of_shape(20, "const:1000", "const:300")
    return planned(model="deepseek-v3", load=load, offers=(offer("H200", 8, 30.0),), slos=parse_slos(slo))


@pytest.mark.parametrize("slo", ["tpot_p99=20ms", "tpot_p99=25ms", "tpot_p99=30ms"])
def test_no_layout_wins_for_not_being_measured_where_a_slow_server_moves_all_of_them(slo: str) -> None:
    plain = asked(slo)
    assert plain.best
    assert plain.best.profiled is None
    with using(PROFILE):
        slowed = asked(slo)
    assert slowed.best
    assert TENSOR in {split(row) for row in slowed.ranked}
    # Steps half as long again within the same SLO: more than half as many machines again.
    assert slowed.best.replicas >= 1.5 * plain.best.replicas
    assert {split(row): row.profiled for row in slowed.ranked} == {
        split(row): Coverage.measured if split(row) == TENSOR else Coverage.carried_over for row in slowed.ranked
    }


def test_nor_on_a_machine_of_ones_own() -> None:
    def best() -> tuple[tuple[int, int, int], int, Coverage | None]:
        machine = OwnMachine(find_gpu("H200"), 8, find_engine("vllm"))
        row = can_run([find_model("deepseek-v3")], machine, 1300, parse_slos("tpot=20ms")).runs[0]
        return (row.tp, row.ep, row.dp), row.users, row.profiled

    _, users, profiled = best()
    assert profiled is None
    with using(PROFILE):
        layout, fewer, known = best()
    assert known is (Coverage.measured if layout == TENSOR else Coverage.carried_over)
    assert fewer < users / 1.2


def test_a_prediction_says_whether_its_layout_was_measured() -> None:
    def step(**degrees: Any) -> tuple[float, Coverage | None]:
        model, gpu, engine = find_model("deepseek-v3"), find_gpu("H200"), find_engine("vllm")
        made = predict(deploy(model, gpu, engine, **degrees), 64, 2000)
        assert made.parts
        return made.parts.step_s, made.profiled

    plain, apart = step(tp=8), step(dp=8, ep=8)
    with using(PROFILE):
        slow, carried = step(tp=8), step(dp=8, ep=8)
    assert (plain[1], apart[1], slow[1], carried[1]) == (None, None, Coverage.measured, Coverage.carried_over)
    assert slow[0] == pytest.approx(1.5 * plain[0], rel=1e-6)
    assert carried[0] == pytest.approx(1.5 * apart[0], rel=1e-6)
