"""What the published tables were reduced to: facts that the notes of a source, or its recipe, tell."""

import csv
import gzip
from pathlib import Path

import pytest

DATA = Path(__file__).parents[2] / "benchmarks" / "data"


def rows(name: str) -> list[dict[str, str]]:
    with gzip.open(DATA / name, "rt", encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def tables() -> list[dict[str, str]]:
    return rows("published.csv.gz") + rows("published_more.csv.gz")


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
