"""Our TPOT and TTFT and those of NVIDIA aiconfigurator against the same runs: InferenceMAX, aggregated serving.

    python benchmarks/bench_aiconfigurator.py
    python benchmarks/bench_aiconfigurator.py --python /path/to/venv/bin/python
    python benchmarks/bench_aiconfigurator.py --answers build/aiconfigurator/answers.json

aiconfigurator runs in an environment of its own: one made in build/aiconfigurator/venv (needs the network once), or
that of ``--python``. It is asked as its own reader of InferenceX files asks (models, precisions and parallelism of
``sdk/config_adapter/inferencex.py``), for the mean lengths, 90 % of the nominal ones, as ours are. Its answers are kept
in build/aiconfigurator/answers.json and used again while the questions stay the same.

A cell is an engine, GPU, model, precision and pair of lengths; the smaller median |log(predicted ÷ measured)| wins it.
Cells are of TPOT, and counted on rows for which aiconfigurator has measured every kernel; the last line adds those
where it estimates some. Lost cells are listed for splits ``calibrate`` and ``dev``: who reads those of ``judge`` begins
to fit them. Beside that, mean absolute percentage errors of TPOT and TTFT on single nodes, as NVIDIA's AISimulate
states its own: of all rows that both predict, kernels that aiconfigurator estimates included.
"""

import argparse
import json
import math
import platform
import statistics
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from tokonomics.measure.measurements import Measurement, Metric, read_measurements
from tokonomics.measure.validate import predict
from tokonomics.types import today

HERE = Path(__file__).parent
BUILD = HERE.parent / "build" / "aiconfigurator"
RECORD = HERE / "results" / "aiconfigurator.json"
WORKER = HERE / "aiconfigurator_worker.py"
PACKAGE = "aiconfigurator==0.12.0"
SOURCE = "SemiAnalysis InferenceMAX"
SYSTEMS = {"H100-SXM": "h100_sxm", "H200-SXM": "h200_sxm", "B200": "b200_sxm", "B300": "b300_sxm", "GB200": "gb200"}
BACKENDS = {"vllm": "vllm", "sglang": "sglang", "tensorrt-llm": "trtllm"}  # disaggregated ones are not asked for
SPLITS = ("calibrate", "dev", "judge")
GPUS_IN_A_NODE = 8
DENSE = "Llama-3.1-70B"
MODELS = {
    DENSE: "meta-llama/Meta-Llama-3.1-70B",
    "GPT-OSS-120B": "openai/gpt-oss-120b",
    "MiniMax-M2.5": "MiniMaxAI/MiniMax-M2.5",
    "DeepSeek-V3": "deepseek-ai/DeepSeek-V3",
    "DeepSeek-R1": "deepseek-ai/DeepSeek-V3",
    "Qwen3.5-397B-A17B": "Qwen/Qwen3.5-397B-A17B",
    "Kimi-K2.5": "moonshotai/Kimi-K2.5",
    "GLM-5": "zai-org/GLM-5-FP8",
}
SPECIAL = {("GLM-5", "nvfp4"): "nvidia/GLM-5-NVFP4"}
FP8_CHECKPOINTS = ("DeepSeek-V3", "DeepSeek-R1", "MiniMax-M2.5", "GLM-5")
"""Published in FP8 (blocks of it): where kernels of plain FP8 were not measured, those of the checkpoint often were."""
QUANTIZATION = {"fp8": "fp8", "nvfp4": "nvfp4", "int4": "int4_wo", "bf16": None, "mxfp4": None}
"""aiconfigurator's names; None: as the checkpoint is."""


class Pair(NamedTuple):
    """A measurement with the errors of both: log(predicted ÷ measured)."""

    row: Measurement
    ours: float
    theirs: float
    measured_kernels: bool

    @property
    def cell(self) -> str:
        row = self.row
        return f"{row.engine} {row.gpu} {row.model} {row.weights} {row.input_tokens}/{row.output_tokens}"


def main() -> None:
    options = arguments()
    rows = inferencemax([options.published, options.published_more])
    replies = json.loads(options.answers.read_text()) if options.answers else ask(rows, options.python)
    if replies is None:
        return
    both, alone = compare(rows, replies["answers"])
    pairs = [pair for pair in both if pair.row.metric is Metric.tpot_s]
    measured = [pair for pair in pairs if pair.measured_kernels]
    sets = {split: [pair for pair in measured if pair.row.split == split] for split in SPLITS}
    sets |= {"all": measured, "all, and kernels it estimates": pairs}
    scores = {name: score(group) for name, group in sets.items() if group}
    lost = lost_cells(pair for pair in measured if pair.row.split != "judge")
    single = {split: percentage_errors([pair for pair in both if pair.row.split == split]) for split in SPLITS}
    show(scores, lost, alone)
    for split, found in single.items():
        print(f"mean absolute percentage errors on one node, {split}: {found}")
    result = {
        "date": today().isoformat(),
        "machine": f"{platform.system()} {platform.machine()}",
        "command": "python benchmarks/bench_aiconfigurator.py",
        "versions": {"tokonomics": version("tokonomics"), "aiconfigurator": replies["version"]},
        "databases": databases(replies["answers"]),
        "rows_asked": len(questions(rows)),
        "not_compared": alone,
        "scores": scores,
        "lost_cells": lost,
        "single_node": single,
    }
    options.out.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", type=Path, help="a Python that has aiconfigurator (default: one is made)")
    parser.add_argument("--answers", type=Path, help="answers of an earlier run; aiconfigurator is not needed then")
    parser.add_argument("--published", type=Path, default=HERE / "data" / "published.csv.gz")
    parser.add_argument("--published-more", type=Path, default=HERE / "data" / "published_more.csv.gz")
    parser.add_argument("--out", type=Path, default=RECORD)
    return parser.parse_args()


# --- what is asked ----------------------------------------------------------------------------------------------------


def inferencemax(tables: Iterable[Path]) -> list[Measurement]:
    """TPOT and TTFT of aggregated serving at a fixed number of users."""
    read = (row for table in tables for row in read_measurements(table) if isinstance(row, Measurement))
    timed = (row for row in read if row.source.startswith(SOURCE) and row.metric in (Metric.tpot_s, Metric.ttft_s))
    return [row for row in timed if row.engine in BACKENDS and row.batch]


def questions(rows: Iterable[Measurement]) -> dict[str, list[dict[str, Any]]]:
    """For each row that can be put to it, the ways to ask, best first."""
    return {row.key: ways(row) for row in rows if row.model in MODELS and row.gpu in SYSTEMS}


def ways(row: Measurement) -> list[dict[str, Any]]:
    """In the precision stated, then as the checkpoint is where that is the same precision."""
    backend, replicas = BACKENDS[row.engine or ""], max(1, row.gpus // row.tp)
    asked: dict[str, Any] = {
        "model_path": SPECIAL.get((row.model, row.weights), MODELS[row.model]),
        "system_name": SYSTEMS[row.gpu],
        "backend_name": backend,
        "isl": round(row.input_tokens * row.length_share),
        "osl": round(row.output_tokens * row.length_share),
        "batch_size": row.batch or 1,  # of one replica of the attention
        "tp_size": row.tp,
        "attention_dp_size": replicas,
    }
    if row.model != DENSE:
        # vLLM has experts on all GPUs or on none; the others split what is left of a group by tensors.
        spread = row.ep if backend != "vllm" else row.gpus if row.ep > 1 else 1
        asked |= {"moe_tp_size": max(1, row.gpus // spread), "moe_ep_size": spread}
    stated = asked | precision(row, backend)
    return [stated, asked] if row.weights == "fp8" and row.model in FP8_CHECKPOINTS else [stated]


def precision(row: Measurement, backend: str) -> dict[str, str | None]:
    gemm = QUANTIZATION[row.weights]
    experts = "fp8_block" if backend == "sglang" and gemm == "fp8" else gemm
    return {"gemm_quant_mode": gemm} | ({} if row.model == DENSE else {"moe_quant_mode": experts})


# --- who answers ------------------------------------------------------------------------------------------------------


def ask(rows: Sequence[Measurement], python: Path | None) -> dict[str, Any] | None:
    """The worker's answers: kept ones while the questions are the same; None where there is no aiconfigurator."""
    asked, kept = questions(rows), BUILD / "answers.json"
    if kept.exists() and python is None:
        earlier: dict[str, Any] = json.loads(kept.read_text())
        if earlier["questions"] == asked:
            return earlier
    python = python or environment()
    if python is None:
        return None
    print(f"asking aiconfigurator about {len(asked):,} rows: a minute or two …", file=sys.stderr)
    BUILD.mkdir(parents=True, exist_ok=True)
    with (BUILD / "worker.log").open("w") as log:
        run = subprocess.run(
            [python, WORKER], input=json.dumps(asked), stdout=subprocess.PIPE, stderr=log, text=True, check=False
        )
    if run.returncode:
        sys.exit(f"aiconfigurator did not answer: see {log.name}")
    replies: dict[str, Any] = json.loads(run.stdout) | {"questions": asked}
    kept.write_text(json.dumps(replies, indent=1))
    return replies


def environment() -> Path | None:
    """The Python of an environment with aiconfigurator, made if need be; None, with the reason said, if it cannot be.

    That is no failure: ``make bench`` goes on without it.
    """
    venv = BUILD / "venv"
    python = venv / "bin" / "python"
    if (venv / "made").exists():
        return python
    create: list[str | Path] = [sys.executable, "-m", "venv", venv]
    install: list[str | Path] = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", PACKAGE]
    for command in (create, install):
        made = subprocess.run(command, capture_output=True, text=True, check=False)
        if made.returncode:
            reason = (made.stderr.strip() or "no reason given").splitlines()[-1]
            print(f"skipped: {PACKAGE} cannot be installed ({reason}); give --python or --answers")
            return None
    (venv / "made").touch()
    return python


# --- what comes out ---------------------------------------------------------------------------------------------------


def compare(rows: Iterable[Measurement], answers: dict[str, dict[str, Any]]) -> tuple[list[Pair], dict[str, int]]:
    """The rows that both predict, and how many only one does, or none."""
    pairs: list[Pair] = []
    alone: Counter[str] = Counter()
    for row in rows:
        ours, theirs = predict(row), answers.get(row.key, {})
        if isinstance(ours, str) or "tpot_s" not in theirs:
            able = {"tokonomics": not isinstance(ours, str), "aiconfigurator": "tpot_s" in theirs}
            alone[next((f"only {name}" for name, can in able.items() if can), "neither")] += 1
        else:
            error = math.log(theirs[row.metric.value] / row.value)
            pairs.append(Pair(row, ours.error, error, theirs["database"] == "SILICON"))
    return pairs, dict(alone.most_common())


def cells(pairs: Iterable[Pair]) -> dict[str, list[Pair]]:
    found: dict[str, list[Pair]] = defaultdict(list)
    for pair in pairs:
        found[pair.cell].append(pair)
    return dict(sorted(found.items()))


def score(pairs: Sequence[Pair]) -> dict[str, Any]:
    groups = cells(pairs)
    lost = sum(is_lost(group) for group in groups.values())
    ours, theirs = errors(pairs, lambda pair: pair.ours), errors(pairs, lambda pair: pair.theirs)
    return {
        "rows": len(pairs), "ours": ours, "aiconfigurator": theirs,
        "cells": len(groups), "cells_won": len(groups) - lost, "cells_lost": lost,
    }  # fmt: skip


def errors(pairs: Sequence[Pair], error: Callable[[Pair], float]) -> dict[str, float]:
    sizes = sorted(abs(error(pair)) for pair in pairs)
    return {
        "median_abs_log_error": statistics.median(sizes),
        "p90_abs_log_error": sizes[math.ceil(0.9 * len(sizes)) - 1],
        "bias": statistics.median(map(error, pairs)),
    }


def percentage_errors(pairs: Sequence[Pair]) -> dict[str, dict[str, float]]:
    """Return both's mean of |predicted ÷ measured − 1| on single nodes, by metric."""
    found = {}
    for metric in (Metric.tpot_s, Metric.ttft_s):
        group = [pair for pair in pairs if pair.row.metric is metric and pair.row.gpus <= GPUS_IN_A_NODE]
        if group:
            found[metric.value] = {
                "n": len(group),
                "ours": statistics.fmean(abs(math.expm1(pair.ours)) for pair in group),
                "aiconfigurator": statistics.fmean(abs(math.expm1(pair.theirs)) for pair in group),
            }
    return found


def is_lost(group: Sequence[Pair]) -> bool:
    return statistics.median(abs(pair.ours) for pair in group) > statistics.median(abs(pair.theirs) for pair in group)


def lost_cells(pairs: Iterable[Pair]) -> list[dict[str, Any]]:
    """Cells in which aiconfigurator is nearer, the largest gap first."""
    lost = [
        {
            "cell": name,
            "rows": len(group),
            "ours": statistics.median(abs(pair.ours) for pair in group),
            "aiconfigurator": statistics.median(abs(pair.theirs) for pair in group),
            "bias": statistics.median(pair.ours for pair in group),
        }
        for name, group in cells(pairs).items()
        if is_lost(group)
    ]
    return sorted(lost, key=lambda cell: cell["aiconfigurator"] - cell["ours"])


def databases(answers: dict[str, dict[str, Any]]) -> dict[str, int]:
    """How many answers came from which kernels, of which version of the engine."""
    named = (f"{reply['database']} {reply['backend_version']}" for reply in answers.values() if "database" in reply)
    return dict(Counter(named).most_common())


def show(scores: dict[str, Any], lost: Sequence[dict[str, Any]], alone: dict[str, int]) -> None:
    print(f"{'|log error| of TPOT':32} {'rows':>5}  {'ours: median, p90':>18}  {'aiconfigurator':>16}  cells won, lost")
    for name, found in scores.items():
        ours, theirs = (
            f"{found[who]['median_abs_log_error']:.3f} {found[who]['p90_abs_log_error']:>7.3f}"
            for who in ("ours", "aiconfigurator")
        )
        wins = f"{found['cells_won']:>9} {found['cells_lost']:>5}"
        print(f"{name:32} {found['rows']:>5}  {ours:>18}  {theirs:>16}  {wins}")
    print(f"rows not compared, as not both predict them: {alone}")
    print("cells lost on calibrate and dev rows (median |log error|, ours and theirs; rows; our bias):")
    for cell in lost:
        figures = f"{cell['ours']:.3f} {cell['aiconfigurator']:.3f} {cell['rows']:>4} {cell['bias']:+.3f}"
        print(f"  {cell['cell']:62} {figures}")


if __name__ == "__main__":
    main()
