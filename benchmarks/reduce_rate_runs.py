"""Reduces public runs at a rate (vllm-cost-meter) to a table of figures in the columns of the other published results.

    python benchmarks/reduce_rate_runs.py rate_runs.csv benchmarks/data/rate_runs.csv.gz

512 tokens in and 256 out, Poisson arrivals. Throughput is kept of every run, medians of times of those runs that kept
up with their rate: in the others requests queue, and how many were sent is not published. A third of the groups of
engine, model, precision and GPUs, by a hash of their names, teaches nothing (``split`` is ``dev``).
"""

import csv
import gzip
import hashlib
import io
import sys
from pathlib import Path

SOURCE = "vllm-cost-meter (arXiv 2606.11690)"
REFERENCE = "github.com/pChitral/vllm-cost-meter, data/master_results.csv @ 2babbc95 (MIT)"
VERSIONS = {"vllm": "0.19.0", "sglang": "0.5.10"}
GPUS = {"H100": "H100-SXM", "A100_80GB_PCIe": "A100-80GB-PCIe"}
KEPT_UP = 0.9
"""Of its rate, that a run answered; the last requests of a short run end after the last has come."""
COLUMNS = (
    "id", "model", "gpu", "num_gpus", "tp", "precision_weights", "engine", "engine_version", "input_len", "output_len",
    "batch_or_concurrency", "mode", "metric", "statistic", "value", "per", "source_name", "source_ref", "year", "split",
)  # fmt: skip
EAGER = {"sglang": "sglang (eager)"}
"""Its decode steps take as long in FP8 as in 16 bits, and as long a layer with one request as with five: it ran without
CUDA graphs, though the source does not say so."""
TIMES = {"tpot_ms": "tpot_p50_ms", "ttft_ms": "ttft_p50_ms"}


def main(source: Path, reduced: Path) -> None:
    with source.open(encoding="utf-8", newline="") as file:
        runs = sorted(csv.DictReader(file), key=lambda run: (run["config"], float(run["rps"])))
    with (
        gzip.GzipFile(reduced, "wb", mtime=0) as packed,
        io.TextIOWrapper(packed, encoding="utf-8", newline="") as file,
    ):
        table = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        table.writeheader()
        for run in runs:
            figures = {"output_tok_s": run["tps_output"]}
            if float(run["request_throughput"]) >= KEPT_UP * float(run["rps"]):
                figures |= {metric: run[column] for metric, column in TIMES.items()}
            for metric, value in figures.items():
                table.writerow(_row(run, metric, value))


def _row(run: dict[str, str], metric: str, value: str) -> dict[str, str]:
    group = "/".join(run[name] for name in ("engine", "model", "precision", "hardware", "gpus"))
    alone = int(hashlib.sha256(group.encode()).hexdigest(), 16) % 3 == 0
    rate = metric == "output_tok_s"
    engine = EAGER.get(run["engine"], run["engine"])
    model = run["model"].split("/")[-1].removeprefix("Meta-").removesuffix("-Instruct-2507")
    return {
        "id": f"{run['config']}-{run['rps']}-{metric}", "model": model,
        "gpu": GPUS[run["hardware"]], "num_gpus": run["gpus"], "tp": run["gpus"], "precision_weights": run["precision"],
        "engine": engine, "engine_version": VERSIONS[run["engine"]], "input_len": "512", "output_len": "256",
        "batch_or_concurrency": f"qps={run['rps']}", "mode": "server_slo", "metric": metric,
        "statistic": "" if rate else "median", "value": f"{float(value):.5g}", "per": "system" if rate else "user",
        "source_name": SOURCE, "source_ref": REFERENCE, "year": "2026", "split": "dev" if alone else "calibrate",
    }  # fmt: skip


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
