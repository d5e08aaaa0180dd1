"""Answers for bench_aiconfigurator.py: NVIDIA aiconfigurator's TPOT and TTFT, JSON in and JSON out.

    build/aiconfigurator/venv/bin/python benchmarks/aiconfigurator_worker.py < requests.json > answers.json

Runs in aiconfigurator's own environment, so it imports nothing of tokonomics. A request is a list of ways to ask the
same, each with the arguments of ``cli_estimate`` (aggregated serving: continuous batching at a fixed number of users).
The first way for which all kernels were measured (``SILICON``) is the answer; if there is none, the first with
estimates for kernels that were not (``HYBRID``), and the answer says so.
"""

import contextlib
import json
import sys
from functools import cache
from importlib.metadata import version
from typing import Any

from aiconfigurator.cli.api import cli_estimate
from aiconfigurator.sdk.perf_database import get_latest_database_version

DATABASES = ("SILICON", "HYBRID")


def main() -> None:
    requests: dict[str, list[dict[str, Any]]] = json.load(sys.stdin)
    known: dict[str, dict[str, Any]] = {}  # rows of one run, or of runs alike, ask the same
    with contextlib.redirect_stdout(sys.stderr):  # its notes would spoil the JSON
        for request in requests.values():
            if (asked := json.dumps(request)) not in known:
                known[asked] = answer(request)
    answers = {key: known[json.dumps(request)] for key, request in requests.items()}
    json.dump({"version": version("aiconfigurator"), "answers": answers}, sys.stdout, indent=1)


def answer(ways: list[dict[str, Any]]) -> dict[str, Any]:
    """TPOT and TTFT in seconds with the database behind it, or why there is none."""
    problem, backend = "", newest(ways[0]["system_name"], ways[0]["backend_name"])
    for database in DATABASES:
        for way in ways:
            try:
                found = cli_estimate(mode="agg", database_mode=database, backend_version=backend, **way)
            except Exception as error:  # of many kinds: a missing table, an unknown model, no memory for it
                problem = problem or f"{type(error).__name__}: {str(error)[:200]}"
            else:
                return {
                    "tpot_s": float(found.tpot) / 1000,
                    "ttft_s": float(found.ttft) / 1000,
                    "database": database,
                    "backend_version": found.backend_version,
                    "over_kv_memory": found.kv_cache_warning is not None,
                }
    return {"problem": problem}


@cache
def newest(system: str, backend: str) -> str | None:
    """The engine's version with the newest full set of timings; looked up once, as each time takes seconds.

    Engines measured by InferenceMAX are older than every version that 0.12 can be asked for, and of those this is the
    oldest: newer ones hold single kernels only.
    """
    return str(get_latest_database_version(system=system, backend=backend) or "") or None


if __name__ == "__main__":
    main()
