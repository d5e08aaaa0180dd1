"""Compare plans with headroom with a real vLLM that serves them, at the planned rate and at 1.2 times that.

    python benchmarks/bench_headroom.py ask FOLDER      # plans, traces and predictions, before the run
    python benchmarks/bench_headroom.py keep RAW...     # reduces what client and step log recorded: MODEL.json.gz
    python benchmarks/bench_headroom.py                 # prints the table and records it

For each model, 95 % of the highest rate at which `plan --gpu H200 --headroom 20%` buys one GPU; a Poisson trace at that
rate and one at 1.2 times it; and what the simulator says of these very requests. `ask` writes all of it before anything
is served. The server runs the plan's flags with dummy weights; a client sends each request at its time, and a trace is
played twice where the model has experts, as kernels compile during the first: the second counts. The predictions stay
as they were written, whatever becomes of the model since.

Beside them: what today's model says of the same requests, of those at other Poisson rates (data/vllm_h200_experts) and
of one trace near saturation under three sets of flags (data/vllm_h200_flags.json.gz); and for loads of the same kind at
several rates, the highest rate that meets the SLOs, measured and predicted.
"""

import argparse
import contextlib
import csv
import gzip
import io
import json
import math
import platform
import statistics
import subprocess
import tempfile
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl

import tokonomics
from tokonomics.traffic.slo import parse_slos
from tokonomics.types import today

HERE = Path(__file__).parent
DATA = HERE / "data" / "vllm_h200_headroom.json.gz"
HEADROOM = 0.2
SHAPE: dict[str, Any] = {"input": "1500", "output": "250"}
CASES = {
    "llama-3.1-8b": ("ttft_p99=1,tpot_p99=40ms", 70),
    "qwen3-14b": ("ttft_p99=1,tpot_p99=40ms", 80),
    "gemma-3-27b": ("ttft_p99=1.5,tpot_p99=50ms", 100),
    "qwen3-30b-a3b": ("ttft_p99=1,tpot_p99=40ms", 70),
}
"""The targets of each, and for how many seconds it is loaded: what device time allowed."""
Answer = tuple[float, float | None]
"""Seconds to the first token, and per token after it."""
RATES, FLAGS = HERE / "data" / "vllm_h200_experts", HERE / "data" / "vllm_h200_flags.json.gz"
SLO = "ttft_p99=1,tpot_p99=40ms"
"""The targets that the highest rate of loads without any of their own is found for: those of a plan for that model."""
BEYOND = 0.15
"""Share of a rate by which the highest rate may lie outside the loads that were served. Our choice."""
EXPERTS = ("a3b", "mixtral", "deepseek")
"""Parts of names of models with experts."""
BELOW = 0.95
"""Share of the highest rate that is asked for. Our choice: the p99 of so short a run scatters around its own."""
MOST = 1024
"""Sequences at once of servers whose flags were not a plan's."""
LEAST_RATES = 2
LONGEST = 24_576
"""Tokens that a request may have: the server's ``--max-model-len``."""
SERVED = "2026-11-18"
DECODING = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 160, 192, 256)
PROMPTED = (1, 128, 256, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144)
"""Where bins of steps begin: sequences that decode, prompt tokens."""
COLUMNS = {
    "requests": ["at_s", "input_tokens", "output_tokens"],
    "measured": ["ttft_s", "tpot_s"],
    "decode_steps": ["sequences_from", "steps", "median_ms", "mean_context"],
    "prompt_steps": ["prompt_tokens_from", "steps", "median_ms", "median_launch_ms"],
}
FIGURES = ("TPOT p50", "TPOT p99", "TTFT p50", "TTFT p99")
Step = tuple[float, float, int, int, int, int]
"""Milliseconds of the step and of its launch; sequences that decode, prompts, their tokens, tokens computed before."""


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
    setup: dict[str, Any] = {"model": model, "gpu": "H200", "weights": "bf16", "slo": slo}
    rate = tokonomics.capacity(**setup, **SHAPE, headroom=HEADROOM).rate
    assert rate is not None
    rate = int(BELOW * rate * 10) / 10
    plan = tokonomics.plan(**setup, **SHAPE, rate=rate, headroom=HEADROOM)
    pick = plan.best
    assert pick is not None
    assert pick.replicas == pick.gpus_per_replica == 1, (model, rate)
    case: dict[str, Any] = {
        "model": model, "slo": slo, "rate": rate, "max_sequences": pick.max_sequences, "loads": [],
        "command": f"tokonomics plan {model} --gpu H200 --weights bf16 --rate {rate} --input 1500 --output 250 "
        f"--slo {slo} --headroom {HEADROOM:.0%}",
        "said": {"usd_per_month": pick.usd_per_month, "ttft_p99_s": pick.ttft_s.p99, "tpot_p99_s": pick.tpot_s.p99},
    }  # fmt: skip
    for times in (1.0, 1.0 + HEADROOM):
        requests = _requests(
            rate * times, int(rate * times * seconds), seed=int(times * 10), saved=folder / "drawn.parquet"
        )
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
    """Draw a Poisson trace of the plan's lengths, stretched so that its rate is met exactly over the whole."""
    tokonomics.trace(rate=rate, requests=count, seed=seed, save=saved, **SHAPE)
    rows = pl.read_parquet(saved).select("arrival_s", "input_tokens", "output_tokens").rows()
    stretch = (count - 1) / rate / rows[-1][0]
    return [[round(at * stretch, 4), min(prompt, LONGEST - answer), answer] for at, prompt, answer in rows]


def _simulated(saved: Path) -> list[Answer]:
    columns = pl.read_parquet(saved).select("ttft_s", "e2e_s", "output_tokens")
    return [
        (ttft_s, (e2e_s - ttft_s) / (answer - 1) if answer > 1 else None)
        for ttft_s, e2e_s, answer in columns.iter_rows()
    ]


def _summed(answers: list[Answer]) -> dict[str, float]:
    """Return percentiles over all requests of a trace, of what was simulated and of what was measured alike."""
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


def read() -> dict[str, Any]:
    """Return plans, requests, predictions and what was measured."""
    with gzip.open(DATA, "rt") as file:
        found: dict[str, Any] = json.load(file)
    return found


def keep(files: Sequence[Path]) -> None:
    """Add to DATA what was measured: times of every request, and of the steps of each load by their size."""
    data = read()
    cases = {case["model"]: case for case in data["cases"]}
    for file in files:
        with gzip.open(file, "rt") as opened:
            served = json.load(opened)
        case = cases[served["name"]]
        case["flags"] = served["flags"]
        steps = _steps_of(file.with_name(f"{served['name']}-steps.jsonl.gz"), served["loads"])
        for load, played, of_load in zip(case["loads"], served["loads"], steps, strict=True):
            assert [request[1:] for request in load["requests"]] == [row[1:3] for row in played["rows"]], (
                "other requests"
            )
            load["measured"] = [[round(ttft_s, 5), round(tpot_s, 5)] for *_, ttft_s, tpot_s, _ in played["rows"]]
            load["decode_steps"], load["prompt_steps"] = _decode_steps(of_load), _prompt_steps(of_load)
    _write(data | {"served": SERVED, "columns": COLUMNS})


def _steps_of(log: Path, loads: Sequence[dict[str, Any]]) -> Iterator[list[Step]]:
    """Yield the steps of each load that counts: the log has a warm-up first, and both plays of what was played twice.

    Steps are scheduled while the one before runs, so a step counts from the end of that one. A step's end is seen
    once the next is launched: where that takes longer than the step, a prompt's cost shows in the step before it.
    """
    with gzip.open(log, "rt") as opened:
        lines = [json.loads(line) for line in opened]
    came = [line[1] for line in lines if line[0] == "request"]
    rows = [line for line in lines if line[0] != "request"]
    plays = [2 if load.get("twice") else 1 for load in loads]
    first = len(came) - sum(load["n"] * times for load, times in zip(loads, plays, strict=True))
    for load, times in zip(loads, plays, strict=True):
        first += load["n"] * times
        begins = min(came[first - load["n"] : first])
        ends = min(came[first:], default=float("inf"))
        yield [
            ((done - max(begun, before[8])) * 1e3, (launched - scheduled) * 1e3, *work)
            for before, (begun, scheduled, *work, _, _, done, _, launched) in pairwise(rows)
            if begins <= begun < ends
        ]


def _decode_steps(steps: Iterable[Step]) -> list[list[float]]:
    binned = defaultdict(list)
    for ms, _, sequences, prompts, _, context in steps:
        if not prompts:
            binned[DECODING[bisect_right(DECODING, sequences) - 1]].append((ms, context / sequences))
    return [
        [start, len(found), round(statistics.median(ms for ms, _ in found), 3), round(np.mean([at for _, at in found]))]
        for start, found in sorted(binned.items())
    ]


def _prompt_steps(steps: Iterable[Step]) -> list[list[float]]:
    binned = defaultdict(list)
    for ms, launch_ms, _, prompts, tokens, _ in steps:
        if prompts:
            binned[PROMPTED[bisect_right(PROMPTED, tokens) - 1]].append((ms, launch_ms))
    return [
        [start, len(found), *(round(statistics.median(times), 3) for times in zip(*found, strict=True))]
        for start, found in sorted(binned.items())
    ]


class Load(NamedTuple):
    """A load as it was served, and how it compares with today's model."""

    kind: str  # loads of a kind differ in their rate only
    model: str
    weights: str
    max_sequences: int
    rate: float
    slo: str
    requests: list[list[float]]
    measured: dict[str, float]

    @property
    def has_experts(self) -> bool:
        return any(part in self.model for part in EXPERTS)


def served_loads(data: dict[str, Any]) -> list[Load]:
    """Return all loads at a rate that were served, those of plans first."""
    found = [
        Load(f"{case['model']}, planned", case["model"], "bf16", case["max_sequences"], case["rate"] * load["times"],
             case["slo"], load["requests"], _summed(load["measured"]))
        for case in data["cases"] for load in case["loads"]
    ]  # fmt: skip
    with gzip.open(RATES / "rates.json.gz", "rt") as file:
        traces = json.load(file)
    with (RATES / "rates.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["load"] not in traces or (row["routing"] == "dummy" and row["model"].endswith("fp8")):
                continue  # closed loops; and routing that reads the same experts for all tokens
            measured = {figure: float(row[f"{figure.lower().replace(' ', '_')}_ms"]) * 1e-3 for figure in FIGURES}
            model, weights = row["model"].removesuffix("-fp8"), "fp8" if row["model"].endswith("-fp8") else "bf16"
            rate = float(row["load"].split("-")[1])
            trace = sorted(traces[row["load"]])
            found.append(Load(f"{row['model']}, Poisson", model, weights, MOST, rate, SLO, trace, measured))
    with gzip.open(FLAGS, "rt") as file:
        flags = json.load(file)
    found += [
        Load(f"{flags['model']}, {run['flags']}", flags["model"], run["weights"], run["max_sequences"],
             flags["rate"], "", flags["requests"], _summed(run["measured"]))
        for run in flags["runs"]
    ]  # fmt: skip
    return found


def predicted_today(load: Load) -> dict[str, float]:
    """Return what the simulator says of a load's very requests."""
    with tempfile.TemporaryDirectory() as folder:
        replayed, served = Path(folder) / "trace.csv", Path(folder) / "served.parquet"
        schema = ["arrival_s", "input_tokens", "output_tokens"]
        pl.DataFrame(load.requests, orient="row", schema=schema).write_csv(replayed)
        with contextlib.redirect_stderr(io.StringIO()):
            tokonomics.simulate(
                model=load.model, gpu="H200", weights=load.weights, trace=replayed, no_prefix_cache=True,
                max_sequences=load.max_sequences, max_batched_tokens=8192, save=served,
            )  # fmt: skip
        return _summed(_simulated(served))


def highest_rate(points: Sequence[tuple[float, dict[str, float]]], slo: str) -> float | None:
    """Return the rate at which the first target is reached: the logarithm of its figure is interpolated over rates.

    The ends are continued, but not far (``BEYOND``); None if no target is reached there. A target that is missed at
    every rate has its rate below them all.
    """
    rates = sorted(points)
    reached = []
    for target in parse_slos(slo):
        over = [(rate, math.log(figures[target.label] / target.seconds)) for rate, figures in rates]
        pieces = list(pairwise(over))
        crossed = [piece for piece in pieces if piece[0][1] <= 0 < piece[1][1]]
        (low, at_low), (high, at_high) = crossed[0] if crossed else pieces[0] if over[0][1] > 0 else pieces[-1]
        if at_high > at_low:
            reached.append(low - at_low * (high - low) / (at_high - at_low))
    first = min(reached, default=math.inf)
    return first if rates[0][0] * (1 - BEYOND) <= first <= rates[-1][0] * (1 + BEYOND) else None


def at_the_limit(loads: Sequence[tuple[Load, dict[str, float]]]) -> list[dict[str, Any]]:
    """Return the highest rate of each kind of load, measured and predicted, where it can be told of both."""
    found = []
    for kind in dict.fromkeys(load.kind for load, _ in loads):
        alike = [(load, predicted) for load, predicted in loads if load.kind == kind]
        if len(alike) < LEAST_RATES:
            continue
        slo, experts = alike[0][0].slo, alike[0][0].has_experts
        measured = highest_rate([(load.rate, load.measured) for load, _ in alike], slo)
        predicted = highest_rate([(load.rate, figures) for load, figures in alike], slo)
        error = predicted / measured - 1 if measured and predicted else None
        rates = sorted(load.rate for load, _ in alike)
        found.append({"kind": kind, "experts": experts, "slo": slo, "rates": rates, "measured": measured,
                      "predicted": predicted, "error": error})  # fmt: skip
    return found


def score() -> None:
    """Print what was predicted and measured of each load, and record it."""
    data = read()
    loads = scored(data)
    today_s = [(load, predicted_today(load)) for load in served_loads(data)]
    of_today = [
        {"kind": load.kind, "rate": load.rate, "requests": len(load.requests), "experts": load.has_experts,
         "measured": {figure: load.measured[figure] for figure in FIGURES},
         "predicted": predicted,
         "errors": {figure: predicted[figure] / load.measured[figure] - 1 for figure in FIGURES}}
        for load, predicted in today_s
    ]  # fmt: skip
    limits = at_the_limit(today_s)
    errors = {figure: errors_of([load["errors"][figure] for load in loads]) for figure in FIGURES}
    print(f"{'':22} {'requests':>8}  SLO: target, predicted, measured in ms; others: predicted, measured, error")
    for load in loads:
        targets = "  ".join(
            f"{slo['figure']} {slo['target_s'] * 1e3:.0f}, {slo['predicted_s'] * 1e3:.1f}, "
            f"{slo['measured_s'] * 1e3:.1f} {'met' if slo['met'] else 'MISSED'}"
            for slo in load["slos"]
        )
        print(f"{load['model']:13} {load['rate']:4} × {load['times']} {load['requests']:8}  {targets}")
        figures = (
            f"{figure} {load['predicted'][figure] * 1e3:.1f}, {load['measured'][figure] * 1e3:.1f} {signed(error)}"
            for figure, error in load["errors"].items()
        )
        print(f"{'':33}{'  '.join(figures)}")
    print("median error (worst; with its sign):")
    for figure, found in errors.items():
        print(f"    {figure} {found['median']:.1%} ({found['worst']:.0%}; {found['bias']:+z.1%})")
    print("today's model on the same requests, and on those of other runs:")
    for (asked, predicted), row in zip(today_s, of_today, strict=True):
        told = "  ".join(f"{figure} {signed(predicted[figure] / asked.measured[figure] - 1)}" for figure in FIGURES)
        print(f"    {row['kind']:36} {asked.rate:5.1f}  {told}")
    print("highest rate under the SLOs, measured and predicted:")
    for limit in limits:
        both = [f"{limit[name]:.1f}" if limit[name] else "not in reach" for name in ("measured", "predicted")]
        error = "" if limit["error"] is None else f" {limit['error']:+.1%}"
        print(f"    {limit['kind']:36} {', '.join(both)}{error}")
    record = {
        "date": today().isoformat(),
        "machine": f"{platform.system()} {platform.machine()}",
        "command": "python benchmarks/bench_headroom.py",
        **{name: data[name] for name in ("asked", "served", "engine", "gpu", "headroom")},
        "share_of_highest_rate": BELOW,
        "errors": errors,
        "loads": loads,
        "today": of_today,
        "limits": limits,
    }
    text = json.dumps(record, indent=1, ensure_ascii=False) + "\n"
    (HERE / "results" / "headroom.json.gz").write_bytes(gzip.compress(text.encode(), 9, mtime=0))


def scored(data: dict[str, Any]) -> list[dict[str, Any]]:
    """Return each load with its SLOs, what was predicted of it and what was measured."""
    found = []
    for case in data["cases"]:
        for load in case["loads"]:
            predicted, measured = load["predicted"], _summed(load["measured"])
            slos = [
                {
                    "figure": slo.label, "target_s": slo.seconds,
                    "predicted_s": predicted[slo.label], "measured_s": measured[slo.label],
                    "met": measured[slo.label] <= slo.seconds,
                }
                for slo in parse_slos(case["slo"])
            ]  # fmt: skip
            found.append(
                {
                    "model": case["model"], "rate": case["rate"], "times": load["times"],
                    "requests": len(load["requests"]), "slos": slos, "predicted": predicted, "measured": measured,
                    "errors": {figure: predicted[figure] / measured[figure] - 1 for figure in FIGURES},
                }
            )  # fmt: skip
    return found


def signed(error: float) -> str:
    """Return an error in whole percent with its sign, such as +3 %."""
    return f"{round(error * 100):+d} %"


def errors_of(errors: Sequence[float]) -> dict[str, float]:
    """Return how many there are, their median and worst size, and their median with its sign."""
    sizes = [abs(error) for error in errors]
    return {
        "n": len(sizes), "median": statistics.median(sizes), "worst": max(sizes), "bias": statistics.median(errors)
    }  # fmt: skip


if __name__ == "__main__":
    main()
