"""The points of the accuracy chart are the rows behind the recorded tables."""

import json
import math
import statistics
from importlib import resources

import pytest

from tokonomics.measure.accuracy_points import KINDS, AccuracyPoint, chosen, median_off, shipped_points

RECORDED = json.loads((resources.files("tokonomics.measure") / "data" / "accuracy.json").read_bytes())["rows"]


@pytest.mark.parametrize(
    ("kinds", "table"),
    [
        (("TTFT",), "groups left out of everything, TTFT"),
        (("TPOT", "throughput"), "groups left out of everything, throughput and TPOT"),
    ],
)
def test_the_points_left_out_of_every_fit_are_those_of_the_recorded_table(kinds: tuple[str, ...], table: str) -> None:
    """Figures are kept to three digits, so that medians agree to a few parts in a thousand."""
    points = [point for kind in kinds for point in chosen(shipped_points(), kind, fit="left out")]
    errors = [abs(math.log(point.predicted / point.measured)) for point in points]
    assert len(points) == RECORDED[table]["n"]
    assert statistics.median(errors) == pytest.approx(RECORDED[table]["median_abs_log_error"], abs=0.01)


def test_every_point_is_of_one_kind_of_figure_and_says_how_it_stands_to_the_model() -> None:
    every = [metric for metrics in KINDS.values() for metric in metrics]
    assert len(every) == len(set(every))
    assert {point.metric for point in shipped_points()} <= set(every)
    assert {point.fit for point in shipped_points()} == {"left out", "seen", "shaped"}
    assert {point.speed for point in shipped_points()} == {"timed", "scaled", "assumed"}


def test_what_is_chosen_has_what_was_asked_for() -> None:
    points = chosen(shipped_points(), "TPOT", engine="vllm", gpu="H200", speed=None, fit="")
    assert points
    assert {(point.engine, point.gpu) for point in points} == {("vllm", "H200")}
    assert all(point.metric.startswith("tpot_s") for point in points)


def test_the_median_error_is_a_factor_up_or_down() -> None:
    """A factor of 1.1 too high, of 1.25 too low (8 of 10), of 1.5 too high: the middle one is 25 %."""
    same = {"fit": "seen", "speed": "timed", "metric": "tpot_s", "gpu": "L4", "engine": "vllm", "what": ""}
    points = [AccuracyPoint(**same, measured=10, predicted=predicted) for predicted in (11, 8, 15)]
    assert median_off(points) == pytest.approx(0.25)
    assert median_off([]) is None
