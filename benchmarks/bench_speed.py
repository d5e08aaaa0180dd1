"""How fast step times come, next to a peer's, and what help, Tab and a log take (plans: ``bench_plan_speed.py``).

python benchmarks/bench_speed.py
"""

import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import polars as pl

from tokonomics.catalog.engines import find_engine
from tokonomics.catalog.gpus import find_gpu
from tokonomics.catalog.load_models import find_model
from tokonomics.physics.deployment import deploy
from tokonomics.physics.steptime import decode_step

AICONFIGURATOR_S = 0.22e-3
"""One query of aiconfigurator 0.12.0 on a machine of this kind (2 cores, aarch64), 2026."""
ROWS, RUNS = 3_000_000, 3
QUICK_MAY_TAKE_S, LOG_MAY_TAKE_S = 0.2, 15.0
"""On an idle machine of 2 cores: our choice."""
TAB = {"_TOKONOMICS_COMPLETE": "complete_bash", "COMP_WORDS": "tokonomics plan --g", "COMP_CWORD": "2"}


def processor_s(*arguments: str) -> float:
    """Seconds of processor that the command takes."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-m", "tokonomics", *arguments], check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def commands(folder: Path) -> None:
    """Print the processor seconds of whole commands, the least of a few runs, beside what they may take."""
    log = folder / "log.csv"
    rng = np.random.default_rng(0)
    columns: dict[str, Any] = {"arrival_s": np.cumsum(rng.exponential(1e-2, ROWS)).round(6)}
    columns |= {name: rng.integers(1, 4000, ROWS) for name in ("input_tokens", "output_tokens")}
    pl.DataFrame(columns | {"team": [f"team-{number}" for number in rng.integers(0, 20, ROWS)]}).write_csv(log)
    print(f"\n{'processor seconds':28}{'takes':>8}{'may take':>10}{'ratio':>8}")
    cases = {
        "--help": (["--help"], {}, QUICK_MAY_TAKE_S),
        "Tab": ([], TAB, QUICK_MAY_TAKE_S),
        "trace, CSV, 3 M rows": (["trace", str(log)], {}, LOG_MAY_TAKE_S),
        "trace --by team": (["trace", str(log), "--by", "team"], {}, LOG_MAY_TAKE_S),
    }
    for name, (words, surroundings, may_take_s) in cases.items():
        with patch.dict(os.environ, surroundings):
            takes_s = min(processor_s(*words) for _ in range(RUNS))
        print(f"{name:28}{takes_s:8.2f}{may_take_s:10.2f}{takes_s / may_take_s:8.2f}")


def main() -> None:
    deployment = deploy(find_model("llama-3.1-8b"), find_gpu("H100"), find_engine("vllm"))
    batch = np.tile(np.arange(1, 257), 4096)
    context = np.repeat(np.arange(1, 4097), 256)
    started = time.perf_counter()
    decode_step(deployment, batch, context)
    took = time.perf_counter() - started
    each = took / len(batch)
    print(f"step times: {1 / each / 1e6:.1f} million a second, one core, arrays of {len(batch):,}")
    longer = AICONFIGURATOR_S / each
    print(f"aiconfigurator 0.12.0 takes {AICONFIGURATOR_S * 1e3:.2f} ms a query: {longer:,.0f} times as long")
    with tempfile.TemporaryDirectory() as folder:
        commands(Path(folder))


if __name__ == "__main__":
    main()
