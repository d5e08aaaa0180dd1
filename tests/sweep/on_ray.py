"""Sweeps on a Ray cluster of two nodes on this machine, whose workers, nodes and own process die on the way.

Ray runs in processes of its own and on the loopback alone. Nothing is left to chance: the sweep stands still, with a
point at each of its two workers, until the killing is done.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Timer
from typing import IO

import polars as pl

ON_THE_LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_USAGE_STATS_ENABLED": "0"}
HERE = Path(__file__).parent
LONGEST_S = 7200.0
"""For a start or a sweep, which take seconds or minutes: what hangs is ended, and the test says what it had said."""


def scenario_in(folder: Path, requests: int) -> Path:
    path = folder / "chat.toml"
    path.write_text(
        f'model = "llama-3.1-8b"\ninput = 1000\noutput = 300\nrequests = {requests}\nslo = "tpot_p99=50ms"\n'
    )
    return path


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


def swept(
    scenario: Path,
    into: str,
    *more: str,
    meanwhile: Callable[[list[str]], object],
    over: Sequence[str],
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


@dataclass(frozen=True)
class SweepSoak:
    """What became of a sweep that lost a node and then its own process, beside one that lost nothing."""

    points: int
    done_before: int  # that the killed sweep had written
    seconds_after: float  # that the sweep which went on took
    local_seconds: float
    counts: dict[str, int]
    local_counts: dict[str, int]
    equal_rows: int


def soaked_sweep(folder: Path, cluster: Cluster, points: int) -> SweepSoak:
    """A node goes and then the sweep itself; the same command goes on with the rest; then all once more, here."""
    scenario = scenario_in(folder, requests=20)
    rates = ",".join(f"{1 + place / 100:.2f}" for place in range(points // 4))
    over = ["--over", "gpu=H100,L40S", "--over", "tp=1,2", "--over", f"rate={rates}"]
    on_ray = ("--ray", cluster.address)
    swept(scenario, "ray.sweep", *on_ray, meanwhile=lambda _: cluster.tell("remove"), over=over, killed_at=8)
    command = [sys.executable, "-m", "tokonomics", "sweep", str(scenario), "--verb", "simulate", *over, *on_ray]
    began_s = time.monotonic()
    again = subprocess.run(
        [*command, "--json", "--into", str(scenario.parent / "ray.sweep")], capture_output=True, text=True,
        env={**os.environ, **ON_THE_LOOPBACK}, check=False,
    )  # fmt: skip
    assert again.returncode == 0, again.stderr
    found, resumed_s = json.loads(again.stdout), time.monotonic()
    local = swept(scenario, "local.sweep", "--jobs", "2", meanwhile=print, over=over)
    ended_s = time.monotonic()
    there, here = rows(scenario, "ray.sweep"), rows(scenario, "local.sweep")
    return SweepSoak(
        points=points // 4 * 4,
        done_before=found["done_before"],
        seconds_after=resumed_s - began_s,
        local_seconds=ended_s - resumed_s,
        counts=found["counts"],
        local_counts=dict(local["counts"]),  # type: ignore[call-overload]
        equal_rows=len(here) if there.equals(here) else 0,
    )
