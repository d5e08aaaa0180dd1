"""A sweep on a Ray cluster of two nodes on this machine: the same rows as here, and a death on the way loses nothing.

Ray runs in processes of its own and on the loopback alone; without the extra these tests are skipped. Nothing is left
to chance: the sweep stands still, with a point at each of its two workers, until the killing is done.
"""

import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Timer
from typing import IO

import polars as pl
import pytest

pytestmark = [
    pytest.mark.explore,
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="the extra [ray] is not installed"),
]

ON_THE_LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_USAGE_STATS_ENABLED": "0"}
HERE = Path(__file__).parent
OVER = ["--over", "gpu=H100,L40S", "--over", "tp=1,2", "--over", "rate=4,6,8"]
POINTS = 12
LONGEST_S = 600.0 + 0.5 * int(os.environ.get("SWEEP_POINTS", "10000"))
"""For a start or a sweep, which take seconds or minutes: what hangs is ended, and the test says what it had said."""


@contextmanager
def ended_if_it_hangs(process: "subprocess.Popen[str]") -> Iterator[None]:
    timer = Timer(LONGEST_S, process.kill)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


class Cluster:
    """Two nodes of one CPU each, told what to do line by line."""

    def __init__(self) -> None:
        command = [sys.executable, str(HERE / "cluster_of_nodes.py"), "2"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        with ended_if_it_hangs(self._process):
            said = next((line for line in self._out if line.startswith("127.0.0.1:")), None)
        assert said is not None, "the cluster did not start"
        self.address = said.strip()

    @property
    def _out(self) -> IO[str]:
        assert self._process.stdout is not None
        return self._process.stdout

    def tell(self, command: str) -> str:
        assert self._process.stdin is not None
        with ended_if_it_hangs(self._process):
            self._process.stdin.write(f"{command}\n")
            self._process.stdin.flush()
            return self._out.readline().strip()

    def close(self) -> None:
        assert self._process.stdin is not None
        with ended_if_it_hangs(self._process):
            with suppress(OSError):
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
    path.write_text('model = "llama-3.1-8b"\ninput = 1000\noutput = 300\nrequests = 5000\nslo = "tpot_p99=50ms"\n')
    return path


def swept(
    scenario: Path,
    into: str,
    *more: str,
    meanwhile: Callable[[list[str]], object],
    over: Sequence[str] = OVER,
    killed_at: int | None = None,
) -> dict[str, object]:
    """What a sweep answers in whose middle ``meanwhile`` is done to its workers, by their process ids.

    With ``killed_at`` it is killed itself when it has written so many files, and answers nothing.
    """
    program = [str(HERE / "sweep_that_waits.py")] if "--ray" in more else ["-m", "tokonomics"]
    command = [sys.executable, *program, "sweep", str(scenario), "--verb", "simulate", *over, *more]
    command += ["--json", "--into", str(scenario.parent / into)]
    with (
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={**os.environ, **ON_THE_LOOPBACK},
        ) as made,
        ended_if_it_hangs(made),
    ):  # fmt: skip
        assert made.stderr is not None
        said = []
        for line in made.stderr if "--ray" in more else ():
            said.append(line)
            if line.startswith("busy "):
                meanwhile(line.split()[1:])
                break
        if killed_at is not None:
            assert made.stdin is not None
            made.stdin.write("go on\n")
            made.stdin.flush()
            while len(list((scenario.parent / into).glob("part-*"))) < killed_at and made.poll() is None:
                time.sleep(0.01)
            made.kill()
            made.communicate()
            return {}
        out, err = made.communicate("go on\n")
    assert made.returncode == 0, "".join([*said, err])
    found: dict[str, object] = json.loads(out)
    return found


def rows(scenario: Path, into: str) -> pl.DataFrame:
    return pl.read_parquet(scenario.parent / into / "results.parquet").drop("seconds")


def test_simulate_on_two_nodes_gives_the_rows_of_this_machine_whoever_dies(scenario: Path, cluster: Cluster) -> None:
    """One worker process is killed in a first sweep, a whole node in a second: all rows equal those of local ones."""
    local = swept(scenario, "local.sweep", "--jobs", "1", meanwhile=print)
    assert local["counts"] == {"ok": POINTS, "nothing": 0, "refused": 0, "failed": 0}
    assert local["workers_lost"] == 0
    died = []

    def kill_one(workers: list[str]) -> None:
        assert len(workers) == 2
        died.append(cluster.tell(f"kill {workers[0]}"))

    found = swept(scenario, "killed.sweep", "--ray", cluster.address, meanwhile=kill_one)
    assert died == ["killed"]
    assert found["counts"] == local["counts"]
    assert found["workers"] == "2 workers of 2 Ray nodes"
    assert found["workers_lost"] == 1
    assert rows(scenario, "killed.sweep").equals(rows(scenario, "local.sweep"))

    found = swept(
        scenario, "removed.sweep", "--ray", cluster.address, meanwhile=lambda _: died.append(cluster.tell("remove"))
    )
    assert died == ["killed", "removed"]
    assert found["counts"] == local["counts"]
    assert found["workers_lost"] == 1
    assert rows(scenario, "removed.sweep").equals(rows(scenario, "local.sweep"))


def test_ten_thousand_points_survive_a_killed_node_and_a_killed_sweep(scenario: Path, cluster: Cluster) -> None:
    """A node goes and then the sweep itself; the same command goes on with the rest, and all rows are the local ones.

    SWEEP_POINTS asks for fewer.
    """
    scenario.write_text(scenario.read_text().replace("requests = 5000", "requests = 20"))
    points = int(os.environ.get("SWEEP_POINTS", "10000"))
    rates = ",".join(f"{1 + place / 100:.2f}" for place in range(points // 4))
    over = ["--over", "gpu=H100,L40S", "--over", "tp=1,2", "--over", f"rate={rates}"]
    on_ray = ("--ray", cluster.address)
    swept(scenario, "ray.sweep", *on_ray, meanwhile=lambda _: cluster.tell("remove"), over=over, killed_at=8)
    command = [sys.executable, "-m", "tokonomics", "sweep", str(scenario), "--verb", "simulate", *over, *on_ray]
    again = subprocess.run(
        [*command, "--json", "--into", str(scenario.parent / "ray.sweep")], capture_output=True, text=True,
        env={**os.environ, **ON_THE_LOOPBACK}, check=False,
    )  # fmt: skip
    assert again.returncode == 0, again.stderr
    found = json.loads(again.stdout)
    assert 0 < found["done_before"] < points
    assert found["counts"]["ok"] == points // 4 * 4
    local = swept(scenario, "local.sweep", "--jobs", "2", meanwhile=print, over=over)
    assert local["counts"] == found["counts"]
    assert rows(scenario, "ray.sweep").equals(rows(scenario, "local.sweep"))
