"""A sweep on a Ray cluster of two nodes on this machine: the same rows as here, and a death on the way loses nothing.

Without the extra these tests are skipped.
"""

import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.sweep.on_ray import Cluster, rows, scenario_in, soaked_sweep, swept

pytestmark = [
    pytest.mark.explore,
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="the extra [ray] is not installed"),
]

OVER = ["--over", "gpu=H100,L40S", "--over", "tp=1,2", "--over", "rate=4,6,8"]
POINTS = 12


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    made = Cluster()
    yield made
    made.close()


def test_simulate_on_two_nodes_gives_the_rows_of_this_machine_whoever_dies(tmp_path: Path, cluster: Cluster) -> None:
    """One worker process is killed in a first sweep, a whole node in a second: all rows equal those of local ones."""
    scenario = scenario_in(tmp_path, requests=5000)
    local = swept(scenario, "local.sweep", "--jobs", "1", meanwhile=print, over=OVER)
    assert local["counts"] == {"ok": POINTS, "nothing": 0, "refused": 0, "failed": 0}
    assert local["workers_lost"] == 0
    died = []

    def kill_one(workers: list[str]) -> None:
        assert len(workers) == 2
        died.append(cluster.tell(f"kill {workers[0]}"))

    found = swept(scenario, "killed.sweep", "--ray", cluster.address, meanwhile=kill_one, over=OVER)
    assert died == ["killed"]
    assert found["counts"] == local["counts"]
    assert found["workers"] == "2 workers of 2 Ray nodes"
    assert found["workers_lost"] == 1
    assert rows(scenario, "killed.sweep").equals(rows(scenario, "local.sweep"))

    found = swept(
        scenario,
        "removed.sweep",
        "--ray",
        cluster.address,
        meanwhile=lambda _: died.append(cluster.tell("remove")),
        over=OVER,
    )
    assert died == ["killed", "removed"]
    assert found["counts"] == local["counts"]
    assert found["workers_lost"] == 1
    assert rows(scenario, "removed.sweep").equals(rows(scenario, "local.sweep"))


def test_ten_thousand_points_survive_a_killed_node_and_a_killed_sweep(tmp_path: Path, cluster: Cluster) -> None:
    """The same command goes on with the rest, and all rows are the local ones. SWEEP_POINTS asks for fewer."""
    points = int(os.environ.get("SWEEP_POINTS", "10000"))
    found = soaked_sweep(tmp_path, cluster, points)
    assert 0 < found.done_before < points
    assert found.counts == found.local_counts
    assert found.counts["ok"] == found.equal_rows == points
