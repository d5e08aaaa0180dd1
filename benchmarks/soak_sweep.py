"""A sweep on two Ray nodes that loses one of them and then its own process: what was done, resumed, and is equal.

    python benchmarks/soak_sweep.py [--points 10000]

Each point is a simulation of 20 requests. The sweep stands still while a node is taken away, is killed when it has
written eight files, and is started again with the same command; then the same points are swept on this machine
(tests/sweep/on_ray.py). Writes benchmarks/results/soak_sweep.json; exits with an error where a row differs.
"""

import argparse
import json
import os
import platform
import sys
import tempfile
from dataclasses import asdict
from datetime import date
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).parents[1]
RESULT = Path(__file__).parent / "results" / "soak_sweep.json"
sys.path.insert(0, str(ROOT))


def main() -> None:
    from tests.sweep.on_ray import Cluster, soaked_sweep

    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ask.add_argument("--points", type=int, default=10_000)
    asked = ask.parse_args()
    load_before, cluster = os.getloadavg()[0], Cluster()
    try:
        with tempfile.TemporaryDirectory() as folder:
            found = soaked_sweep(Path(folder), cluster, asked.points)
    finally:
        cluster.close()
    result = {
        "command": f"python benchmarks/soak_sweep.py --points {asked.points}",
        "date": str(date.today()),
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores, "
        f"Python {platform.python_version()}, Ray {version('ray')}",
        "load_average": load_before,
        **asdict(found),
    }
    RESULT.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))
    if found.equal_rows != found.points:
        raise SystemExit("rows differ from those of this machine")


if __name__ == "__main__":
    main()
