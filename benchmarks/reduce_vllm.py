"""Logs of a real vLLM (``measure_vllm.py``) → benchmarks/data/vllm_h200.json.xz: what fits and figures need.

    python benchmarks/reduce_vllm.py RAW_FOLDER [RUN.json.gz ...]

From every session: its loads with each request's arrival, lengths, TTFT and the time from its first to its last token;
steps with prompts (sequences, prompts, tokens, microseconds from composing to launched); decode steps by batch (how
many, median microseconds on the host and from end to end, mean context); requests that were alone (prompt tokens,
microseconds until the engine had them, and from the end of their step to their client). Further files are runs of the
same engine without a log of steps.
"""

import argparse
import gzip
import json
import lzma
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
LOAD = ("duration", "output_throughput", "mean_ttft_ms", "median_ttft_ms", "p99_ttft_ms", "mean_tpot_ms",
        "median_tpot_ms", "p99_tpot_ms", "asked")  # fmt: skip
FRONT_BOUND = (16, 1, 128)
"""Prompt tokens, answer tokens and users of the load that its front end bounds."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("raw", type=Path)
    parser.add_argument("runs", nargs="*", type=Path)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "data" / "vllm_h200.json.xz")
    given = parser.parse_args()
    sessions = [_session(_read(path), path.name.split(".")[0]) for path in sorted(given.raw.glob("*.json.gz"))]
    sessions += [_session(_read(path), f"{path.name.split('.json')[0]} (first runs)") for path in given.runs]
    text = json.dumps(
        {"engine": "vllm 0.26.0", "gpu": "H200", "measured": "2026-11-15 and 2026-11-16", "sessions": sessions}
    )
    given.out.write_bytes(lzma.compress(text.encode(), preset=9))
    for made in sessions:
        print(made["name"], len(made["loads"]), "loads,", len(made["prompt_steps"]), "steps with prompts")


def _read(path: Path) -> dict[str, Any]:
    with gzip.open(path, "rt") as file:
        found: dict[str, Any] = json.load(file)
    return found


def _session(found: dict[str, Any], name: str) -> dict[str, Any]:
    made: dict[str, Any] = {
        "name": name,
        "model": found["model"],
        "quant": found.get("quant"),
        "flags": found.get("flags", []),
        "loads": [_load(load) for load in found["loads"]],
        "prompt_steps": [],
        "decode_steps": [],
        "lone": [],
    }
    if "requests" in found:
        made |= _steps(found) | {"lone": _lone(found)}
    bound = [load for load in found["loads"] if _shape(load) == FRONT_BOUND]
    if bound:
        made["front_bound"] = {"requests": bound[0]["completed"], "seconds": bound[0]["duration"]}
    return made


def _shape(load: dict[str, Any]) -> tuple[int, int, int]:
    asked = load["asked"]
    return asked["input"], asked["output"], asked["users"]


def _load(load: dict[str, Any]) -> dict[str, Any]:
    made = {name: load[name] for name in LOAD}
    if "start_times" in load:
        starts = np.array(load["start_times"])
        order = np.argsort(starts, kind="stable")
        spans = load.get("spans") or (np.array(load["e2es"]) - np.array(load["ttfts"])).tolist()
        columns = {"start": starts - starts.min(), "ttft": np.array(load["ttfts"]), "span": np.array(spans)}
        made["requests"] = {name: np.round(values[order], 5).tolist() for name, values in columns.items()}
        for name, field in (("input", "input_lens"), ("output", "output_lens")):
            made["requests"][name] = np.array(load[field])[order].astype(int).tolist()
    return made


def _steps(found: dict[str, Any]) -> dict[str, Any]:
    """After the warm-up. The host's work on a step: scheduling, launching, and looking at the step before it."""
    rows = zip(*found["steps"], strict=True)
    columns = {name: np.array(values) for name, values in zip(found["columns"], rows, strict=True)}
    begun, done = columns["begun"].astype(float), columns["done"].astype(float)
    looked = np.concatenate([[0.0], (columns["updated"].astype(float) - done)[:-1]])
    host_us = (columns["launched"].astype(float) - begun + looked) * 1e6
    kept = begun >= found["loads"][0]["window"][0]
    prompts, decode = kept & (columns["prefill_tokens"] > 0), kept & (columns["prefill_tokens"] == 0)
    sized = [columns[name][prompts] for name in ("decode", "prompts", "prefill_tokens")]
    batches = [int(batch) for batch in np.unique(columns["decode"][decode])]
    # From the end of the step before: of those that were launched by then.
    before = np.concatenate([[0.0], done[:-1]])
    step_us = np.where(columns["launched"].astype(float) < before, done - before, np.nan) * 1e6
    context = columns["context"].astype(float) / np.maximum(columns["decode"].astype(float), 1)
    by_batch = [(batch, decode & (columns["decode"] == batch)) for batch in batches]
    return {
        "prompt_steps": np.column_stack([*sized, host_us[prompts].round()]).astype(int).tolist(),
        "decode_steps": [
            [batch, int(of.sum()), round(float(np.median(host_us[of]))), *_timed(step_us, context, of)]
            for batch, of in by_batch
        ],
    }


def _timed(step_us: Floats, context: Floats, rows: NDArray[np.bool_]) -> tuple[int, int]:
    timed = rows & np.isfinite(step_us)
    return (round(float(np.median(step_us[timed]))), round(float(context[timed].mean()))) if timed.any() else (0, 0)


def _lone(found: dict[str, Any]) -> list[list[int]]:
    """Loads of one user: tokens of the prompt, until the engine had it, and from its step to its client (µs)."""
    done = np.array([row[found["columns"].index("done")] for row in found["steps"]])
    begun = np.array([row[found["columns"].index("begun")] for row in found["steps"]])
    prompts = np.array([row[found["columns"].index("prefill_tokens")] > 0 for row in found["steps"]])
    made = []
    for load in found["loads"]:
        if load["asked"]["users"] != 1:
            continue
        low, high = load["window"]
        got = sorted(row[1] for row in found["requests"] if low <= row[1] < high)
        starts, ttfts = np.array(load["start_times"]), np.array(load["ttfts"])
        for start, ttft, reached, following in zip(starts, ttfts, got, [*got[1:], high], strict=True):
            steps = prompts & (begun >= reached - 1e-3) & (begun < following)
            made.append(
                [load["asked"]["input"], round((reached - start) * 1e6), round((start + ttft - done[steps][-1]) * 1e6)]
            )
    return made


if __name__ == "__main__":
    main()
