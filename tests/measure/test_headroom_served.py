"""The recorded result on plans with headroom that were served is what the data give."""

import gzip
import json
from typing import Any

import pytest
from benchmarks import bench_headroom

DATA = bench_headroom.read()
RECORDED = json.loads(gzip.decompress((bench_headroom.HERE / "results" / "headroom.json.gz").read_bytes()))
LOADS = [(case, load) for case in DATA["cases"] for load in case["loads"]]


def test_the_recorded_loads_are_those_of_the_data() -> None:
    for recorded, load in zip(RECORDED["loads"], bench_headroom.scored(DATA), strict=True):
        named = ("model", "rate", "times", "requests")
        assert [recorded[name] for name in named] == [load[name] for name in named]
        for kind in ("predicted", "measured", "errors"):
            assert recorded[kind] == pytest.approx(load[kind])
        assert [slo["met"] for slo in recorded["slos"]] == [slo["met"] for slo in load["slos"]]


@pytest.mark.parametrize(("case", "load"), LOADS, ids=[f"{case['model']} x {load['times']}" for case, load in LOADS])
def test_every_request_of_a_load_was_measured_and_the_load_came_at_its_rate(
    case: dict[str, Any], load: dict[str, Any]
) -> None:
    requests = load["requests"]
    assert len(load["measured"]) == len(requests)
    assert all(ttft_s > 0 and tpot_s > 0 for ttft_s, tpot_s in load["measured"])
    assert (len(requests) - 1) / requests[-1][0] == pytest.approx(case["rate"] * load["times"], rel=1e-3)


@pytest.mark.parametrize(("case", "load"), LOADS, ids=[f"{case['model']} x {load['times']}" for case, load in LOADS])
def test_a_p99_is_what_all_but_one_in_a_hundred_requests_stay_below(case: dict[str, Any], load: dict[str, Any]) -> None:
    """Counted instead of interpolated: the share below it is 99 %, give or take one request."""
    recorded = next(
        found for found in RECORDED["loads"] if (found["model"], found["times"]) == (case["model"], load["times"])
    )
    for figure, place in (("TTFT p99", 0), ("TPOT p99", 1)):
        below = sum(times[place] < recorded["measured"][figure] for times in load["measured"])
        assert below / len(load["measured"]) == pytest.approx(0.99, abs=1 / len(load["measured"]))
