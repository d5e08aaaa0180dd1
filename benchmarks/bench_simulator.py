"""How fast the simulator is: requests a second on one core, memory, the first run, and what a prefix cache hits.

    python benchmarks/bench_simulator.py

Prints a table and records it under benchmarks/results/. Wall times are those of ``simulate``: columns in, columns out,
compiled code loaded; the best of five, as other work on the machine only ever adds. Made-up traffic is drawn before.
"""

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from tokonomics.catalog.engines import find_engine
from tokonomics.catalog.gpus import find_gpu
from tokonomics.catalog.load_models import find_model
from tokonomics.physics.deployment import Deployment, deploy
from tokonomics.serving.fleet_settings import FleetSettings
from tokonomics.serving.outcome import Outcome, outcome
from tokonomics.serving.simulator import Simulation, simulate
from tokonomics.serving.steady import ReplicaCurve
from tokonomics.traffic.arrivals import parse_arrivals
from tokonomics.traffic.generate import generate, parse_sessions
from tokonomics.traffic.lengths import parse_lengths
from tokonomics.traffic.prefix_reuse import reuse
from tokonomics.traffic.readers import open_trace
from tokonomics.traffic.trace import Trace
from tokonomics.types import today

HERE = Path(__file__).parent
OTHERS = {"Vidur": 118.0, "aisimulate": 1_100.0}
"""Requests a second of the same run, measured on one core of a machine of this kind (2 cores, aarch64), 2026."""
FIRST_RUN = (
    "simulate --model llama-2-7b --gpu A100-80GB --arrivals poisson:2 --requests 1000 --input 512 --output 512 --json"
)
LOAD = 0.7
FLEET, MANY = 8, 10_000_000
TIMES = 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=HERE / "results" / "simulator.json")
    parser.add_argument("--only-fleet", action="store_true", help="the run of ten million alone, as JSON")
    options = parser.parse_args()
    if options.only_fleet:
        print(json.dumps(ten_million()))
        return
    fastest(lambda: simulate(llama_2(), at_rate(2, 1000)))
    result = {
        "date": today().isoformat(),
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "command": "python benchmarks/bench_simulator.py",
        "poisson": poisson(),
        "growth": growth(),
        "saturated": saturated(),
        "sessions": sessions(),
        "fleet": in_a_fresh_process(),
        "first_run": first_run(),
        "prefix_hits": prefix_hits(),
    }
    options.out.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def llama_2() -> Deployment:
    return deploy(find_model("llama-2-7b"), find_gpu("A100-80GB"), find_engine("vllm"))


def at_rate(rate: float, requests: int) -> Trace:
    return generate(
        parse_arrivals(f"poisson:{rate:g}"), parse_lengths("512"), parse_lengths("512"), requests=requests, seed=1
    )


class Timed(NamedTuple):
    """A simulation summed up, and how long it took."""

    outcome: Outcome
    wall_s: float

    @property
    def per_s(self) -> float:
        return self.outcome.requests / self.wall_s


def fastest(call: Callable[[], Simulation]) -> Timed:
    """The quickest of a few runs."""
    best = min((call() for _ in range(TIMES)), key=lambda each: each.wall_s)
    return Timed(outcome(best), best.wall_s)


def poisson() -> dict[str, object]:
    """The run that other simulators were measured on."""
    trace = at_rate(2, 1_000_000)
    made = fastest(lambda: simulate(llama_2(), trace))
    print(f"Llama 2 7B on A100-80GB, Poisson 2 a second, 512 in, 512 out, {made.outcome.requests:,} requests, one core")
    print(f"  {made.per_s:>12,.0f} requests a second ({made.wall_s:.2f} s)")
    for name, rate in OTHERS.items():
        print(f"  {rate:>12,.0f} {name}: {made.per_s / rate:,.0f} times as long")
    return {
        "requests": made.outcome.requests,
        "wall_s": made.wall_s,
        "requests_per_s": made.per_s,
        "others_requests_per_s": OTHERS,
        "utilization": made.outcome.busy_share,
        "batch": made.outcome.batch,
    }


def growth() -> list[dict[str, float]]:
    """The time of a request as there are more of them."""
    rows = []
    print("the same, as there are more")
    for requests in (10_000, 31_623, 100_000, 316_228, 1_000_000):
        trace = at_rate(2, requests)
        wall_s = fastest(lambda trace=trace: simulate(llama_2(), trace)).wall_s  # type: ignore[misc]
        rows.append({"requests": requests, "wall_s": wall_s, "us_per_request": wall_s / requests * 1e6})
        print(f"  {requests:>12,} requests {wall_s:8.3f} s {wall_s / requests * 1e6:8.2f} µs each")
    return rows


def saturated() -> dict[str, object]:
    """A replica whose queue never empties: every answer that ends lets another in, so few steps are taken at once."""
    deployment = deploy(find_model("llama-3.1-8b"), find_gpu("H100"), find_engine("vllm"))
    lengths = parse_lengths("sample:azure-conv")
    trace = generate(parse_arrivals("burst:200000"), lengths, lengths, seed=1)
    made = fastest(lambda: simulate(deployment, trace, max_sequences=256))
    print(f"Llama 3.1 8B on H100, 256 sequences, lengths of azure-conv, {made.outcome.requests:,} requests at once")
    print(f"  {made.per_s:>12,.0f} requests a second ({made.wall_s:.2f} s), batch {made.outcome.batch:.0f}")
    return {
        "requests": made.outcome.requests,
        "wall_s": made.wall_s,
        "requests_per_s": made.per_s,
        "batch": made.outcome.batch,
    }


def sessions() -> dict[str, object]:
    """Conversations in closed loop, and the same requests sent at the times of the trace whatever became of others."""
    trace = generate(
        parse_arrivals("poisson:0.5"),
        parse_lengths("128"),
        parse_lengths("128"),
        requests=500_000,
        seed=1,
        sessions=parse_sessions("4,think=20"),
    )
    closed, opened = (
        fastest(lambda fleet=fleet: simulate(llama_2(), trace, fleet))  # type: ignore[misc]
        for fleet in (FleetSettings(), FleetSettings(closed=False))
    )
    print(f"conversations of 4 turns with pauses of 20 s, 128 in, 128 out, {closed.outcome.requests:,} requests")
    print(f"  {closed.per_s:>12,.0f} requests a second ({closed.wall_s:.2f} s) in closed loop")
    print(
        f"  {opened.per_s:>12,.0f} at the times of the trace: {closed.wall_s / opened.wall_s:.2f} times as long closed"
    )
    return {
        "requests": closed.outcome.requests,
        "wall_s": closed.wall_s,
        "requests_per_s": closed.per_s,
        "open_requests_per_s": opened.per_s,
    }


def ten_million() -> dict[str, float]:
    """Eight replicas at about 70 % of what they can do, in this process: its time and its peak of memory."""
    deployment = llama_2()
    rate = LOAD * FLEET * ReplicaCurve(deployment, 512, 512).capacity().rate
    simulate(deployment, at_rate(rate, 1000), FleetSettings(replicas=FLEET))
    trace = at_rate(rate, MANY)
    before = peak_bytes()
    made = simulate(deployment, trace, FleetSettings(replicas=FLEET))
    return {
        "requests": MANY,
        "replicas": FLEET,
        "rate": rate,
        "simulated_s": made.end_s,
        "wall_s": made.wall_s,
        "requests_per_s": MANY / made.wall_s,
        "peak_bytes_with_trace_alone": before,
        "peak_bytes": peak_bytes(),
    }


def peak_bytes() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def in_a_fresh_process() -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, __file__, "--only-fleet"], capture_output=True, text=True, check=True, env=os.environ
    )
    row: dict[str, float] = json.loads(done.stdout)
    print(f"{row['requests']:,} requests on {FLEET} replicas, Poisson {row['rate']:.0f} a second")
    print(f"  {row['requests_per_s']:>12,.0f} requests a second ({row['wall_s']:.1f} s)")
    print(f"  {row['peak_bytes'] / 1e9:>12.2f} GB at most ({row['peak_bytes_with_trace_alone'] / 1e9:.2f} before it)")
    return row


def first_run() -> dict[str, object]:
    """The command as a new user runs it: nothing compiled yet, then once more."""
    took = []
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "XDG_CACHE_HOME": folder}
        for _ in range(2):
            began = time.perf_counter()
            subprocess.run(
                [sys.executable, "-m", "tokonomics", *FIRST_RUN.split()],
                capture_output=True,
                check=True,
                env=environment,
            )
            took.append(time.perf_counter() - began)
    print(f"first run of the command {took[0]:.1f} s (it compiles), second {took[1]:.2f} s")
    return {"command": f"tokonomics {FIRST_RUN}", "first_s": took[0], "second_s": took[1]}


def prefix_hits() -> dict[str, float]:
    """Share of prompt tokens that a cache of so many blocks of 512 tokens holds."""
    trace = open_trace("mooncake-conversation").read()
    assert trace.prefix is not None
    print(f"prefix cache on mooncake-conversation, {len(trace):,} requests")
    shares = {}
    for blocks in (1_000, 10_000, 50_000, None):
        name = "unbounded" if blocks is None else f"{blocks}"
        shares[name] = float(reuse(trace.prefix, trace.input_tokens, blocks).sum() / trace.input_tokens.sum())
        print(f"  {name:>12} blocks hit {shares[name] * 100:5.1f} % of the tokens")
    return shares


if __name__ == "__main__":
    main()
