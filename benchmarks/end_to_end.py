"""The whole loop on a real GPU: serve a model, load it with ``tokonomics bench``, keep the results for ``calibrate``.

    python benchmarks/end_to_end.py --model llama-3.1-8b --out DIR [--users 1,2,4,8] [--seconds 25]

Starts ``serve_transformers.py`` on this machine (one CUDA GPU; torch, transformers, aiohttp, pydantic) and runs our own
load test against it, a load at a time; the file it writes is what ``tokonomics bench --save`` writes. Then, anywhere:

    tokonomics import DIR/*.json --gpu H200                      # the prediction as it comes, and how far off it was
    tokonomics calibrate DIR/*.json --gpu H200                   # half of the loads teach, the other half judges
"""

import argparse
import subprocess
import sys
import time
import urllib.request
from dataclasses import replace
from pathlib import Path

from tokonomics.addresses import target
from tokonomics.measure.bench.loads import Budget
from tokonomics.measure.bench.run import BenchSettings, run_bench
from tokonomics.measure.benchmark_run import save_run

START_S = 240


def started(model: str, port: int, log: Path, extra: list[str]) -> subprocess.Popen[bytes]:
    """The server, once it answers."""
    script = Path(__file__).with_name("serve_transformers.py")
    with log.open("wb") as output:
        server = subprocess.Popen(
            [sys.executable, "-u", str(script), "--model", model, "--port", str(port), *extra],
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    until = time.monotonic() + START_S
    while time.monotonic() < until and server.poll() is None:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/models", timeout=2):
                return server
        except OSError:
            time.sleep(0.5)
    server.kill()
    raise SystemExit(f"the server did not start:\n{log.read_text()[-3000:]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="llama-3.1-8b")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--users", default="1,2,4,8,16,32,64")
    parser.add_argument("--rates", default="")
    parser.add_argument("--input", type=int, default=512)
    parser.add_argument("--output", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=25)
    parser.add_argument("--warm-up", type=float, default=0, help="seconds of each load before any is measured")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--name", default=None, help="of the result file")
    given, extra = parser.parse_known_args()
    name = given.name or given.model
    server = started(given.model, given.port, given.out / f"{name}-server.txt", extra)
    try:
        asked = BenchSettings(
            target(f"http://127.0.0.1:{given.port}"),
            users=[int(part) for part in given.users.split(",") if part],
            rates=[float(part) for part in given.rates.split(",") if part],
            input=f"const:{given.input}",
            output=f"const:{given.output}",
            budget=Budget(0.02, 100_000, given.seconds, None),
        )
        if given.warm_up:
            # The engine captures a CUDA graph for every new shape: a first pass meets them, unmeasured.
            run_bench(replace(asked, budget=Budget(0.5, 100_000, given.warm_up, None)))
        run = None
        for load in [*asked.users, *asked.rates]:
            closed = load in asked.users
            one = replace(asked, users=[int(load)] if closed else [], rates=[] if closed else [load])
            found = run_bench(one).without_records()
            run = run.model_copy(update={"points": run.points + found.points}) if run else found
            save_run(run, given.out / f"{name}.json")
            point = found.points[0]
            tpot_s = (point.tpot_s.typical if point.tpot_s else None) or 0.0
            print(f"{point.load}: {point.output_tokens_per_s:.0f} tok/s, TPOT {tpot_s * 1e3:.2f} ms", flush=True)
    finally:
        server.terminate()
        server.wait(20)


if __name__ == "__main__":
    main()
