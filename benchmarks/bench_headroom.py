"""A plan with headroom, served by a real vLLM at its rate and at 1.2 times that: did both targets hold?

    python benchmarks/bench_headroom.py ask FOLDER      # plans, traces and predictions, before the run
    python benchmarks/bench_headroom.py keep RAW...     # reduces what the client recorded
    python benchmarks/bench_headroom.py                 # prints the table and records it

For each model, 95 % of the highest rate at which `plan --gpu H200 --headroom 20%` buys one GPU; a Poisson trace at that rate
and one at 1.2 times it, as long as a p99 needs; and what the simulator says of these very requests. `ask` writes all
of it before anything is served. The server runs the plan's flags with dummy weights; a client sends each request at
its time, and each trace is played twice where the model has experts, as kernels compile during the first.
"""

import argparse
import gzip
import json
import platform
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

import tokonomics
from tokonomics.types import today

HERE = Path(__file__).parent
DATA = HERE / "data" / "vllm_h200_headroom.json.gz"
HEADROOM, SHAPE = 0.2, {"input": "1500", "output": "250"}
CASES = {
    "llama-3.1-8b": ("ttft_p99=1,tpot_p99=40ms", 70),
    "qwen3-14b": ("ttft_p99=1,tpot_p99=40ms", 80),
    "gemma-3-27b": ("ttft_p99=1.5,tpot_p99=50ms", 100),
    "qwen3-30b-a3b": ("ttft_p99=1,tpot_p99=40ms", 70),
}
"""The targets of each, and for how many seconds it is loaded: what device time allowed."""
Answer = tuple[float, float | None]
"""Seconds to the first token, and per token after it."""
BELOW = 0.95
"""Share of the highest rate that is asked for: the p99 of so short a run scatters by about a tenth around its own."""
LONGEST = 24_576
"""Tokens that a request may have: the server's ``--max-model-len``."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=["ask", "keep", "score"], default="score")
    parser.add_argument("files", nargs="*", type=Path)
    given = parser.parse_args()
    if given.what == "ask":
        ask(given.files[0])
    elif given.what == "keep":
        keep(given.files)
    else:
        score()


def ask(folder: Path) -> None:
    """Write the plan, the traces and the predictions of every case to DATA, and a job for the client each."""
    folder.mkdir(parents=True, exist_ok=True)
    cases = [_case(model, slo, seconds, folder) for model, (slo, seconds) in CASES.items()]
    head = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True)
    _write({"engine": "vllm 0.26.0", "gpu": "H200", "asked": today().isoformat(), "commit": head.stdout.strip(),
            "headroom": HEADROOM, "cases": cases})  # fmt: skip


def _case(model: str, slo: str, seconds: int, folder: Path) -> dict[str, Any]:
    setup = {"model": model, "gpu": "H200", "weights": "bf16", "slo": slo}  # fmt: skip
    rate = tokonomics.capacity(**setup, **SHAPE, headroom=HEADROOM).rate
    assert rate is not None
    rate = int(BELOW * rate * 10) / 10
    plan = tokonomics.plan(**setup, **SHAPE, rate=rate, headroom=HEADROOM)
    pick = plan.best
    assert pick is not None and pick.replicas == pick.gpus_per_replica == 1, (model, rate)
    case: dict[str, Any] = {
        "model": model, "slo": slo, "rate": rate, "max_sequences": pick.max_sequences, "loads": [],
        "command": f"tokonomics plan {model} --gpu H200 --weights bf16 --rate {rate} --input 1500 --output 250 "
        f"--slo {slo} --headroom {HEADROOM:.0%}",
        "said": {"usd_per_month": pick.usd_per_month, "ttft_p99_s": pick.ttft_s.p99, "tpot_p99_s": pick.tpot_s.p99},
    }  # fmt: skip
    for times in (1.0, 1.0 + HEADROOM):
        requests = _requests(rate * times, int(rate * times * seconds), seed=int(times * 10), saved=folder / "drawn.parquet")
        replayed = folder / f"{model}-{times}.csv"
        pl.DataFrame(requests, orient="row", schema=["arrival_s", "input_tokens", "output_tokens"]).write_csv(replayed)
        served = folder / f"{model}-{times}-served.parquet"
        tokonomics.simulate(
            **setup, trace=replayed, max_sequences=pick.max_sequences, no_prefix_cache=True, save=served
        )
        case["loads"].append({"times": times, "requests": requests, "predicted": _summed(_simulated(served))})
        print(model, rate, times, len(requests), case["loads"][-1]["predicted"], flush=True)
    twice = {"twice": True} if "a3b" in model else {}
    job = {
        "name": model, "flags": ["--max-num-seqs", str(pick.max_sequences), "--no-enable-prefix-caching"],
        "loads": [{"kind": "trace", "requests": load["requests"], **twice} for load in case["loads"]],
    }  # fmt: skip
    (folder / f"{model}.json").write_text(json.dumps(job))
    return case


def _requests(rate: float, count: int, seed: int, saved: Path) -> list[list[float]]:
    """A Poisson trace of the plan's lengths, its times stretched so that the rate is met exactly over the whole."""
    tokonomics.trace(rate=rate, requests=count, seed=seed, save=saved, **SHAPE)
    rows = pl.read_parquet(saved).select("arrival_s", "input_tokens", "output_tokens").rows()
    stretch = (count - 1) / rate / rows[-1][0]
    return [
        [round(at * stretch, 4), min(prompt, LONGEST - answer), answer]
        for at, prompt, answer in rows
    ]


def _simulated(saved: Path) -> list[Answer]:
    columns = pl.read_parquet(saved).select("ttft_s", "e2e_s", "output_tokens")
    return [
        (ttft_s, (e2e_s - ttft_s) / (answer - 1) if answer > 1 else None) for ttft_s, e2e_s, answer in columns.iter_rows()
    ]


def _summed(answers: list[Answer]) -> dict[str, float]:
    """Percentiles over all requests of a trace, of what was simulated and of what was measured alike."""
    ttfts = [ttft_s for ttft_s, _ in answers]
    tpots = [tpot_s for _, tpot_s in answers if tpot_s is not None]
    return {
        f"{name} p{percent}": float(np.percentile(values, percent))
        for name, values in (("TPOT", tpots), ("TTFT", ttfts))
        for percent in (50, 99)
    }


def _write(data: dict[str, Any]) -> None:
    with gzip.GzipFile(DATA, "wb", mtime=0) as file:
        file.write(json.dumps(data).encode())


def _read() -> dict[str, Any]:
    with gzip.open(DATA, "rt") as file:
        found: dict[str, Any] = json.load(file)
    return found


def keep(files: list[Path]) -> None:
    raise NotImplementedError


def score() -> None:
    raise NotImplementedError


if __name__ == "__main__":
    main()
