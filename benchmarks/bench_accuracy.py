"""How far the step-time model is from measured steps: an error table, written under benchmarks/results/.

    python benchmarks/bench_accuracy.py [--steps benchmarks/data/h200_steps.json]

The steps are whole Llama-shaped models in bf16 on one H200, decode in CUDA graphs (what was measured, and how, stands
in benchmarks/data/README.md). Errors are |log(predicted ÷ measured)|; the bias is the median of the signed logarithm.
"""

import argparse
import json
import math
import statistics
from collections import defaultdict
from pathlib import Path

from tokonomics.catalog.engines import find_engine
from tokonomics.catalog.gpus import find_gpu
from tokonomics.catalog.load_models import find_model
from tokonomics.clock import today
from tokonomics.physics.deployment import deploy
from tokonomics.physics.steptime import decode_step, prefill

HERE = Path(__file__).parent
SHORTEST_PREFILL = 512
"""Shorter prompts ran without a CUDA graph and measure the launching host, not the GPU."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=Path, default=HERE / "data" / "h200_steps.json")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "accuracy.json")
    options = parser.parse_args()
    measured = json.loads(options.steps.read_text())
    errors: dict[str, list[float]] = defaultdict(list)
    skipped: dict[str, int] = defaultdict(int)
    for row in measured["rows"]:
        deployment = deploy(find_model(row["model"]), find_gpu(measured["gpu"]), find_engine("vllm"))
        if row["kind"] == "decode":
            predicted, group = float(decode_step(deployment, row["batch"], row["ctx"])), f"decode {row['model']}"
        elif row["kind"] == "prefill" and row["ctx"] >= SHORTEST_PREFILL:
            predicted = row["batch"] * float(prefill(deployment, row["ctx"]))
            group = f"prefill ≥ {SHORTEST_PREFILL} tokens"
        else:
            skipped[row["kind"]] += 1
            continue
        error = math.log(predicted / (row["ms"] * 1e-3))
        errors[group].append(error)
        if row["kind"] == "decode":
            errors["decode, all"].append(error)
    groups = {name: _summary(values) for name, values in sorted(errors.items())}
    print(f"{'steps on one ' + measured['gpu']:32} {'n':>4} {'median':>8} {'p90':>8} {'bias':>8}")
    for name, summary in groups.items():
        figures = (summary["median_abs_log_error"], summary["p90_abs_log_error"], summary["bias"])
        print(f"{name:32} {summary['n']:4.0f} " + " ".join(f"{figure:8.1%}" for figure in figures))
    print("not predicted: " + ", ".join(f"{count} {kind}" for kind, count in skipped.items()))
    result = {
        "date": today().isoformat(),
        "command": "make bench",
        "gpu": measured["gpu"],
        "groups": groups,
        "skipped": skipped,
    }
    options.out.write_text(json.dumps(result, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _summary(errors: list[float]) -> dict[str, float]:
    sizes = sorted(abs(error) for error in errors)
    return {
        "n": len(errors),
        "median_abs_log_error": statistics.median(sizes),
        "p90_abs_log_error": sizes[math.ceil(0.9 * len(sizes)) - 1],
        "bias": statistics.median(errors),
    }


if __name__ == "__main__":
    main()
