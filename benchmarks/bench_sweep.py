"""How much quicker a sweep is on two workers than on one, here and on a Ray cluster of two nodes on this machine.

Every way answers the same simulations, from the first import to the last row on the disk, each in a process of its own
as a user starts it; the rows must be the same. The speed-up is wall time over wall time of one local worker. On a
machine with two cores that does nothing else it can come near 2 for long sweeps; starting the workers (imports, and on
Ray the actors as well) is paid once and is shown apart. Without the extra [ray] only the local ways are timed.

    python benchmarks/bench_sweep.py --points 24
"""

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import polars as pl

CLUSTER = Path(__file__).parents[1] / "tests" / "sweep" / "cluster_of_nodes.py"
SCENARIO = 'model = "llama-3.1-8b"\ngpu = "H100"\ninput = 1000\noutput = 300\nrequests = 100000\n'


def timed(folder: Path, name: str, points: int, flags: list[str]) -> tuple[float, float, pl.DataFrame]:
    """Seconds from start to end, seconds of the sweep's own work, and its rows."""
    scenario = folder / "bench.toml"
    scenario.write_text(SCENARIO)
    rates = ",".join(f"{1 + 9 * place / points:.4g}" for place in range(points))
    command = [
        sys.executable,
        "-m",
        "tokonomics",
        "sweep",
        str(scenario),
        "--verb",
        "simulate",
        "--over",
        f"rate={rates}",
    ]
    began = time.perf_counter()
    done = subprocess.run(
        [*command, "--json", "--into", str(folder / name), *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        check=True,
        env={**os.environ, "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_USAGE_STATS_ENABLED": "0"},
    )
    took = time.perf_counter() - began
    rows = pl.read_parquet(folder / name / "results.parquet").drop("seconds")
    return took, float(json.loads(done.stdout)["worked_s"]), rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", type=int, default=24)
    points = parser.parse_args().points
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        timed(folder, "warm", 1, ["--jobs", "1"])  # compiles the simulator where that was never done
        ways = {"1 local worker": ["--jobs", "1"], "2 local workers": ["--jobs", "2"]}
        cluster = None
        if importlib.util.find_spec("ray"):
            cluster = subprocess.Popen(
                [sys.executable, str(CLUSTER), "2"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            assert cluster.stdout is not None
            ways["Ray, 2 nodes"] = ["--ray", next(line for line in cluster.stdout if line.startswith("127.")).strip()]
        load = os.getloadavg()[0]
        print(f"{points} simulations of 100,000 requests; {os.cpu_count()} cores, load before {load:.1f}")
        print(f"{'':<18}{'wall':>10}{'work':>10}{'speed-up':>10}  rows")
        alone, expected = None, None
        for name, flags in ways.items():
            took, worked, rows = timed(folder, name.replace(" ", "-"), points, flags)
            alone, expected = alone or took, rows if expected is None else expected
            same = "the same" if rows.equals(expected) else "DIFFERENT"
            print(f"{name:<18}{took:>8.1f} s{worked:>8.1f} s{alone / took:>9.2f}×  {same}", flush=True)
        if cluster is None:
            print("Ray is not installed: pip install 'tokonomics[ray]'")
        else:
            cluster.communicate("end\n")


if __name__ == "__main__":
    main()
