"""A sweep on a Ray cluster of two nodes on this machine: the same rows as here, and a death on the way loses nothing.

Ray runs in processes of its own and on the loopback alone; without the extra these tests are skipped.
"""

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import polars as pl
import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="the extra [ray] is not installed"),
]

ON_THE_LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_USAGE_STATS_ENABLED": "0"}
OVER = ["--over", "gpu=H100,L40S", "--over", "tp=1,2", "--over", "rate=4,6,8"]
POINTS = 12


class Cluster:
    """Two nodes of one CPU each, told what to do line by line."""

    def __init__(self) -> None:
        script = Path(__file__).parent / "cluster_of_nodes.py"
        self._process = subprocess.Popen(
            [sys.executable, str(script), "2"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.address = next(line.strip() for line in self._out if line.startswith("127.0.0.1:"))

    @property
    def _out(self) -> IO[str]:
        assert self._process.stdout is not None
        return self._process.stdout

    def tell(self, command: str) -> str:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{command}\n")
        self._process.stdin.flush()
        return self._out.readline().strip()

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("end\n")
        self._process.stdin.close()
        self._out.close()
        self._process.wait()


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    made = Cluster()
    yield made
    made.close()


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    path = tmp_path / "chat.toml"
    path.write_text('model = "llama-3.1-8b"\ninput = 1000\noutput = 300\nrequests = 40000\nslo = "tpot_p99=50ms"\n')
    return path


def begun(scenario: Path, into: str, *more: str) -> "subprocess.Popen[str]":
    """``tokonomics sweep`` in its own process, after its first points are done."""
    command = [sys.executable, "-m", "tokonomics", "sweep", str(scenario), "--verb", "simulate", *OVER, *more]
    command += ["--json", "--into", str(scenario.parent / into)]
    made = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **ON_THE_LOOPBACK}
    )
    assert made.stderr is not None
    said = []
    for line in made.stderr:
        said.append(line)
        if f"/{POINTS} points" in line:
            return made
    raise AssertionError("".join(said))


def ended(made: "subprocess.Popen[str]") -> dict[str, object]:
    out, err = made.communicate()
    assert made.returncode == 0, err
    found: dict[str, object] = json.loads(out)
    return found


def rows(scenario: Path, into: str) -> pl.DataFrame:
    return pl.read_parquet(scenario.parent / into / "results.parquet").drop("seconds")


def test_simulate_on_two_nodes_gives_the_rows_of_this_machine_whoever_dies(scenario: Path, cluster: Cluster) -> None:
    """One worker process is killed in a first sweep, a whole node in a second: all rows equal those of local ones."""
    local = ended(begun(scenario, "local.sweep", "--jobs", "1"))
    assert local["counts"] == {"ok": POINTS, "nothing": 0, "refused": 0, "failed": 0}

    killed = begun(scenario, "killed.sweep", "--ray", cluster.address)
    workers = cluster.tell("workers").split()
    assert len(workers) == 2
    assert cluster.tell(f"kill {workers[0]}") == "killed"
    found = ended(killed)
    assert found["counts"] == local["counts"]
    assert found["workers"] == "2 workers of 2 Ray nodes"
    assert found["workers_lost"] == 1
    assert rows(scenario, "killed.sweep").equals(rows(scenario, "local.sweep"))

    removed = begun(scenario, "removed.sweep", "--ray", cluster.address)
    assert cluster.tell("remove") == "removed"
    found = ended(removed)
    assert found["counts"] == local["counts"]
    assert found["workers_lost"] == 1
    assert rows(scenario, "removed.sweep").equals(rows(scenario, "local.sweep"))
