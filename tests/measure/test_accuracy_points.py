"""The points of the accuracy chart, the real vLLM's and the published tables are what was recorded."""

import csv
import gzip
import json
import math
import statistics
from importlib import resources
from pathlib import Path

import pytest

from tokonomics.measure.accuracy_points import (
    KINDS,
    AccuracyPoint,
    chosen,
    median_off,
    served_points,
    shipped_points,
    unseen_errors,
)

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
LOADS = json.loads(gzip.decompress((BENCHMARKS / "results" / "vllm.json.gz").read_bytes()))["loads"]
UNSEEN = ("qwen3-32b", "qwen3-4b")
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


@pytest.fixture(scope="module")
def tables() -> list[dict[str, str]]:
    """What the published tables were reduced to: facts that the notes of a source, or its recipe, tell."""
    found = []
    for name in ("published.csv.gz", "published_more.csv.gz"):
        with gzip.open(BENCHMARKS / "data" / name, "rt", encoding="utf-8", newline="") as file:
            found += list(csv.DictReader(file))
    return found


def test_only_times_are_medians(tables: list[dict[str, str]]) -> None:
    medians = [row for row in tables if row["statistic"] == "median"]
    assert {row["source_name"] for row in medians} >= {"SGLang cookbook", "Neural Magic nm-vllm nightly CI"}
    assert {row["metric"] for row in medians} == {"ttft_ms", "tpot_ms"}


def test_tables_of_the_highest_throughput_say_how_many_requests_were_queued(tables: list[dict[str, str]]) -> None:
    queued = {
        (float(row["input_len"]), float(row["output_len"])): row["num_requests"]
        for row in tables
        if row["mode"] == "max_throughput" and "perf-overview" in row["source_name"]
    }
    # TensorRT-LLM's perf-overview.md, "Preparing a Dataset": of 1.0 and of 1.2.
    assert queued[128, 128] == "30000"
    assert queued[2048, 2048] == "1500"
    assert queued[20000, 2000] == "1000"
    assert queued[1024, 1024] == "3000"


def test_mixtures_of_tensorrt_llm_1_share_their_experts(tables: list[dict[str, str]]) -> None:
    of_1 = [row for row in tables if row["engine_version"] == "1.0" and row["model"] == "Qwen3-235B-A22B"]
    wide = [row for row in of_1 if row["gpu"] in ("B200", "H100-SXM", "H200-SXM")]
    assert wide
    assert {(row["tp"], float(row["ep"])) for row in wide} == {("1", 8.0)}


def test_rows_that_only_judge_share_no_group_with_rows_that_teach(tables: list[dict[str, str]]) -> None:
    splits: dict[tuple[str, ...], set[str]] = {}
    for row in tables:
        group = (row["source_name"], row["model"].lower(), row["gpu"], row["engine"].lower())
        splits.setdefault(group, set()).add(row["split"])
    assert sum("judge" in found for found in splits.values()) >= 40
    assert not [group for group, found in splits.items() if {"judge", "calibrate"} <= found]
