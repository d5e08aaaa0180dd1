"""Watts of GPUs: the shipped curve is the measured one, and what it says of others lies where published figures do."""

import json
from pathlib import Path
from statistics import median

import pytest

from tokonomics.catalog.gpus import find_gpu
from tokonomics.physics.curves import PowerCurve, power_of
from tokonomics.types import Speed

ROWS = json.loads((Path(__file__).parents[2] / "benchmarks" / "data" / "h200_power.json").read_text())["rows"]


def curve(gpu: str) -> PowerCurve:
    found = power_of(find_gpu(gpu))
    assert found is not None
    return found


def test_the_shipped_curve_of_an_h200_is_the_measured_one() -> None:
    h200 = curve("H200")
    whole = [row for row in ROWS if row.get("busy") == 1.0]
    decode = {row["batch"]: row["watts"] for row in whole if row["phase"] == "decode" and row["context"] == 1024}
    assert h200.decode_w == decode
    assert h200.idle_w == next(row["watts"] for row in ROWS if row.get("with") == "weights on it")
    assert h200.prefill_w == pytest.approx(median(row["watts"] for row in whole if row["phase"] == "prefill"), abs=0.1)
    assert h200.known is Speed.timed


def test_a_gpu_that_works_part_of_the_time_draws_that_share_above_its_idle_watts() -> None:
    """Measured at a quarter, half and three quarters of the time: 254, 434 and 554 W."""
    h200 = curve("H200")
    for row in ROWS:
        if row.get("busy", 1.0) < 1.0:
            line = h200.idle_w + row["busy"] * (h200.decoding(row["batch"]) - h200.idle_w)
            assert line == pytest.approx(row["watts"], rel=0.07)


def test_between_two_batches_watts_go_by_the_logarithm() -> None:
    h200 = curve("H200")
    assert h200.decoding(32) == pytest.approx((527.3 + 695.9) / 2)
    assert h200.decoding(0.2) == 442.1
    assert h200.decoding(10_000) == 692.1


@pytest.mark.parametrize(
    ("gpu", "known"), [("GH200", Speed.scaled), ("A100-80GB", Speed.assumed), ("L4", Speed.assumed)]
)
def test_other_gpus_draw_the_same_shares_of_their_datasheet(gpu: str, known: Speed) -> None:
    other, watts = curve(gpu), find_gpu(gpu).watts
    assert watts is not None
    assert other.known is known
    assert other.idle_w == pytest.approx(124.0 / 700 * watts)
    assert other.decoding(1) == pytest.approx(442.1 / 700 * watts)
    assert other.prefill_w <= watts


def test_an_h100_whose_idle_watts_are_those_of_an_h200_is_not_called_measured() -> None:
    h100 = curve("H100-SXM")
    assert (h100.decoding(1), h100.decoding(128)) == (300, 600)  # as published
    assert h100.idle_w == curve("H200").idle_w
    assert h100.known is Speed.scaled


def test_an_a100_at_one_sequence_is_near_what_was_published() -> None:
    """ML.ENERGY's leaderboard, A100 40 GB, one sequence: Llama 2 7B 1,829 J in 9.44 s, 13B 3,050 J in 12.98 s."""
    published = 1828.7749 / 9.4421, 3050.1256 / 12.9842
    assert published[0] * 0.95 < curve("A100-40GB").decoding(1) < published[1] * 1.3


def test_a_gpu_whose_watts_nobody_states_has_no_curve() -> None:
    unknown = find_gpu("L4").model_copy(update={"key": "MINE", "watts": None})
    assert power_of(unknown) is None
