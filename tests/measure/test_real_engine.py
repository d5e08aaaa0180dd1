"""What the package carries of the real vLLM is what the benchmark recorded."""

import json
import statistics
from pathlib import Path

import pytest

from tokonomics.measure.accuracy_points import KINDS, drawn_errors, served_points, unseen_errors
from tokonomics.report.validate_view import accuracy
from tokonomics.web.accuracy import _recorded

LOADS = json.loads((Path(__file__).parents[2] / "benchmarks" / "results" / "vllm.json").read_text("utf-8"))["loads"]
UNSEEN = ("qwen3-32b", "qwen3-4b")


def test_every_recorded_figure_is_a_point_and_two_models_taught_nothing() -> None:
    recorded = [
        (load["measured"][figure], load["predicted"][figure])
        for session in LOADS.values()
        for load in session
        for figure in load["measured"]
    ]
    points = served_points()
    assert [point.measured for point in points] == pytest.approx([measured for measured, _ in recorded], rel=1e-4)
    assert [point.predicted for point in points] == pytest.approx([predicted for _, predicted in recorded], rel=1e-4)
    unseen = sum(len(load["measured"]) for name in UNSEEN for load in LOADS[name])
    assert sum(point.fit == "left out" for point in points) == unseen
    assert {point.metric for point in points} <= {metric for metrics in KINDS.values() for metric in metrics}


def test_the_first_row_is_the_worse_model_of_throughput_and_tpot_under_load() -> None:
    medians = [
        statistics.median(abs(load["errors"][figure]) for load in LOADS[name] if load["users"] != 1)
        for name in UNSEEN
        for figure in ("throughput", "TPOT p50")
    ]
    first = unseen_errors()[0]
    assert first.at_most == pytest.approx(max(medians), rel=1e-3)
    assert first.n == 2 * sum(load["users"] != 1 for name in UNSEEN for load in LOADS[name])


def test_the_headline_says_that_its_error_of_the_real_engine_is_a_median() -> None:
    """Single figures are off by more than that."""
    first = unseen_errors()[0]
    errors = [abs(load["errors"]["TPOT p50"]) for model in UNSEEN for load in LOADS[model] if load["users"] != 1]
    assert max(errors) > 2 * first.at_most
    headline = next(iter(accuracy(_recorded(), unseen_errors(), drawn_errors(()), "throughput")))
    assert f"median errors of at most {first.at_most * 100:.1f} %" in str(headline)
