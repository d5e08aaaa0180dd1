"""How far predictions are from measurements: prints the error table and records it for the page and the guide.

    python benchmarks/bench_accuracy.py

Scores bare steps on one H200 and published results (both described in benchmarks/data/README.md). Of the published
rows only those of split ``dev`` and ``judge`` are scored: engines' overheads and intervals were fitted on the others.
``dev`` rows were looked at while the model was made; ``judge`` rows are groups of source, model, GPU and engine that a
hash left out of every fit and every choice (``reduce_published.py``).
"""

import argparse
import csv
import gzip
import io
import json
import platform
from collections.abc import Sequence, Set
from pathlib import Path
from typing import Any

from tokonomics.measure.measurements import Measurement, Metric, Mode, Unread, read_measurements
from tokonomics.measure.stated_setup import steps_of
from tokonomics.measure.validate import TAUGHT, ErrorSummary, ScoredPrediction, impossible_rows, summary, validate
from tokonomics.physics.intervals import KNOWN, weakest_badge
from tokonomics.report.validate_view import figures
from tokonomics.types import today

HERE = Path(__file__).parent
RECORD = HERE.parent / "src" / "tokonomics" / "measure" / "data" / "accuracy.json"
"""Carried by the package: the page shows it."""
POINTS = RECORD.with_name("accuracy_points.csv.gz")
"""Every published row behind it, predicted and measured, for the page's chart."""
PEERS = "InferenceMAX"
"""The source on which NVIDIA's AISimulate is scored, too."""
GPUS_IN_A_NODE = 8
BURST = "Lambda"
"""Sends all prompts at once and drains them; only mean lengths are published, so it is reported apart."""
SHORTEST_PREFILL = 512
"""Shorter prompts ran without a CUDA graph and measure the launching host, not the GPU."""
TARGETS = {
    "H200 steps, decode (attention fitted on these)": "median ≤ 5 %, p90 ≤ 15 %",
    f"H200 steps, prefill of ≥ {SHORTEST_PREFILL} tokens": "median ≤ 8 %",
    "H200 steps of six other models, decode": "reported: only the intervals saw these",
    f"H200 steps of six other models, prefill ≥ {SHORTEST_PREFILL}": "reported: another attention kernel",
    "InferenceMAX and TensorRT-LLM, throughput and TPOT": "median ≤ 15 %, p90 ≤ 40 %, bias ±5 %",
    "the same, vLLM as it comes (see below)": "reported",
    "InferenceMAX and TensorRT-LLM, all metrics": "75–85 % inside the interval",
    "InferenceMAX and TensorRT-LLM, TTFT": "reported",
    "a burst drained, vLLM of 2024 (Lambda)": "reported: only mean lengths are published",
    "groups left out of everything, throughput and TPOT": "median ≤ 14 %, p90 ≤ 60 %, 75–85 % inside",
    "groups left out of everything, TTFT": "median ≤ 30 %, 75–85 % inside",
    "of those, shared experts, disaggregated, drafting": "median ≤ 25 %",
    "of those left out, faster than the datasheet allows": "reported: labelled as what they cannot be",
    "all others left out, throughput and TPOT": "75–88 % inside the interval",
    "all others left out, TTFT": "75–88 % inside the interval",
    "public runs at a rate, vLLM 0.19: TPOT": "median ≤ 10 %",
    "the same, SGLang 0.5.10: TPOT": "median ≤ 15 %",
    "public runs at a rate, TTFT": "reported",
    "public runs at a rate, throughput": "reported",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--published", type=Path, default=HERE / "data" / "published.csv.gz")
    parser.add_argument("--published-more", type=Path, default=HERE / "data" / "published_more.csv.gz")
    parser.add_argument("--rates", type=Path, default=HERE / "data" / "rate_runs.csv.gz")
    parser.add_argument("--steps", type=Path, default=HERE / "data" / "h200_steps.json")
    parser.add_argument("--more-steps", type=Path, default=HERE / "data" / "h200_more_steps.json")
    parser.add_argument("--out", type=Path, default=RECORD)
    options = parser.parse_args()
    _, steps = validate(read_measurements(options.steps))
    _, more = validate(read_measurements(options.more_steps))
    dev = [row for row in read_measurements(options.published) if row.split == "dev"]
    steady = [row for row in dev if isinstance(row, Unread) or BURST not in row.source]
    score, served = validate(steady)
    _, burst = validate([row for row in dev if isinstance(row, Measurement) and BURST in row.source])
    as_it_comes = [row.model_copy(update={"tuned": False}) for row in steady if isinstance(row, Measurement)]
    _, plain = validate(as_it_comes)
    speed = _rates(served)
    judging = [row for row in read_measurements(options.published_more) if row.split == "judge"]
    judgement, judged = validate(judging)
    impossible = impossible_rows(row for row in judging if isinstance(row, Measurement))
    possible = [each for each in judged if each.measurement.key not in impossible]
    taught = validate([row for row in read_measurements(options.published) if row.split == TAUGHT])[1]
    taught_more = [row for row in read_measurements(options.published_more) if row.split == TAUGHT and _is_peers(row)]
    fitted = [*(each for each in taught if _is_peers(each.measurement)), *validate(taught_more)[1]]
    peers = {"judge": judged, "dev": served, TAUGHT: fitted}
    _, at_rates = validate(read_measurements(options.rates))
    groups = dict(
        zip(
            TARGETS,
            (
                _decode(steps),
                _prefill(steps),
                _decode(more),
                _prefill(more),
                speed,
                _rates(plain),
                served,
                _first_tokens(served),
                burst,
                _rates(judged),
                _first_tokens(judged),
                _laid_out(_rates(judged)),
                [each for each in judged if each.measurement.key in impossible],
                _rates(possible),
                _first_tokens(possible),
                _of(at_rates, "vllm", Metric.tpot_s),
                _of(at_rates, "sglang", Metric.tpot_s),
                _first_tokens(at_rates),
                [each for each in at_rates if each.measurement.metric is Metric.output_tok_s],
            ),
            strict=True,
        )
    )
    result: dict[str, Any] = {
        "date": today().isoformat(),
        "machine": f"{platform.system()} {platform.machine()}",
        "command": "make bench",
        "rows": {name: _row(name, group) for name, group in groups.items()},
        "spearman": score.ranking.spearman,
        "spearman_groups": score.ranking.groups,
        "not_predicted": score.not_predicted,
        "by": _by_group(speed),
        "left_out": {
            "rows": judgement.rows,
            "predicted": judgement.predicted,
            "not_predicted": judgement.not_predicted,
            "by": _by_group(_rates(judged)) | _by_known(_rates(judged), impossible),
            "first_tokens": _by_known(_first_tokens(judged), impossible),
        },
        "single_node": {split: _percentage_errors(scored) for split, scored in peers.items()},
    }
    print(f"{'':52} {'n':>5} {'median':>7} {'p90':>7} {'bias':>7} {'inside':>7}  target")
    for name, group in groups.items():
        n, median, p90, bias, inside = figures(summary(group))
        print(f"{name:52} {n:>5} {median:>7} {p90:>7} {bias:>7} {inside:>7}  {TARGETS[name]}")
    print(f"ranking of GPUs within a source: Spearman {score.ranking.spearman:.2f}, target ≥ 0.9")
    print(f"not predicted: {score.not_predicted}")
    print(f"of the rows left out {judgement.predicted:,} of {judgement.rows:,} are predicted; by speed:")
    for name, group in result["left_out"]["by"]["speed"].items():
        print(f"  {name:50} {' '.join(figures(ErrorSummary.model_validate(group)))}")
    for split, found in result["single_node"].items():
        print(f"{PEERS} on one node, {split}: mean absolute percentage errors {found}")
    if options.out == RECORD:
        write_points(POINTS, [*judged, *served, *burst, *taught])
    options.out.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def write_points(file: Path, scored: Sequence[ScoredPrediction]) -> None:
    """A line for each row, three digits of each figure; what fitted the model says so (``shaped``)."""
    lines = io.StringIO()
    table = csv.writer(lines, lineterminator="\n")
    table.writerow(COLUMNS)
    for each in scored:
        row, steps = each.measurement, steps_of(each.measurement)
        fit = {"judge": "left out", "dev": "seen", TAUGHT: "shaped"}[row.split]
        speed = KNOWN[weakest_badge(steps.deployment, steps.engine)]
        load = row.batch or (f"{row.rate:g}/s" if row.rate else "")
        figures = (f"{value:.3g}" for value in (row.value, each.interval.mid))
        shape = row.input_tokens, row.output_tokens, load
        layout = steps.deployment.gpu.key, row.gpus, row.engine or "", row.year, steps.deployment.model.name
        table.writerow((fit, speed, row.figure, *layout, steps.deployment.weights, *shape, row.source, *figures))
    file.write_bytes(gzip.compress(lines.getvalue().encode(), 9, mtime=0))


COLUMNS = [
    "fit",
    "speed",
    "metric",
    "gpu",
    "gpus",
    "engine",
    "year",
    "model",
    "weights",
    "input",
    "output",
    "load",
    "source",
    "measured",
    "predicted",
]


def _rates(scored: list[ScoredPrediction]) -> list[ScoredPrediction]:
    return [each for each in scored if each.measurement.metric is not Metric.ttft_s]


def _first_tokens(scored: list[ScoredPrediction]) -> list[ScoredPrediction]:
    return [each for each in scored if each.measurement.metric is Metric.ttft_s]


def _of(scored: list[ScoredPrediction], engine: str, metric: Metric) -> list[ScoredPrediction]:
    rows = ((each, each.measurement) for each in scored)
    return [each for each, row in rows if (row.engine or "").startswith(engine) and row.metric is metric]


def _laid_out(scored: list[ScoredPrediction]) -> list[ScoredPrediction]:
    """Those of data-parallel attention over shared experts, of replicas that only decode, and of drafts."""
    rows = ((each, each.measurement) for each in scored)
    return [each for each, row in rows if row.dp > 1 or row.draft or "disagg" in (row.engine or "")]


def _is_peers(row: Measurement | Unread) -> bool:
    """Tell whether a row is a point of the peers' cohort: one node that both prefills and decodes."""
    if not isinstance(row, Measurement) or PEERS not in row.source:
        return False
    return "disagg" not in (row.engine or "") and row.gpus <= GPUS_IN_A_NODE


def _percentage_errors(scored: list[ScoredPrediction]) -> dict[str, dict[str, float]]:
    """Return how many points of the peers' cohort are predicted, and their mean error as a share of the measured."""
    cohort = [each for each in scored if _is_peers(each.measurement)]
    found = {}
    for metric in (Metric.tpot_s, Metric.ttft_s):
        if group := [each for each in cohort if each.measurement.metric is metric]:
            found[metric.value] = {"n": len(group), "mean": summary(group).mean_abs_percentage_error}
    return found


def _by_group(scored: list[ScoredPrediction]) -> dict[str, Any]:
    found = validate([each.measurement for each in scored])[0].groups
    return {kind: {name: made.model_dump() for name, made in each.items()} for kind, each in found.items()}


def _by_known(scored: list[ScoredPrediction], impossible: Set[str]) -> dict[str, Any]:
    """By how the speed is known, of the GPU's kernels and of the engine's own time; and by the engine's era.

    Sweeps that the datasheet rules out as they are labelled are apart from the others of their era.
    """
    groups: dict[str, dict[str, list[ScoredPrediction]]] = {"speed": {}, "era": {}}
    for each in scored:
        steps = steps_of(each.measurement)
        engine, own = steps.deployment.engine.key, steps.engine
        era = "no engine"
        if own:
            where = f" on {', '.join(own.architectures)}" if own.architectures else ""
            since = f" since {own.since_version}" if own.since_version != "0.0" else ", the first era"
            until = " until 2024" if own.unpacks else ""
            others = "" if engine in (each.measurement.engine or "").lower() else ", standing in for other engines"
            odd = ", faster than the datasheet allows" if each.measurement.key in impossible else ""
            era = f"{engine}{since}{where}{until}{others}{odd}"
        groups["speed"].setdefault(KNOWN[weakest_badge(steps.deployment, own)], []).append(each)
        groups["era"].setdefault(era, []).append(each)
    return {
        kind: {name: summary(group).model_dump() for name, group in sorted(members.items())}
        for kind, members in groups.items()
    }


def _decode(scored: list[ScoredPrediction]) -> list[ScoredPrediction]:
    return [each for each in scored if each.measurement.mode is Mode.decode_step]


def _prefill(scored: list[ScoredPrediction]) -> list[ScoredPrediction]:
    prompts = [each for each in scored if each.measurement.mode is Mode.prefill_step]
    return [prompt for prompt in prompts if prompt.measurement.input_tokens >= SHORTEST_PREFILL]


def _row(name: str, group: list[ScoredPrediction]) -> dict[str, object]:
    made: ErrorSummary = summary(group)
    return made.model_dump() | {"target": TARGETS[name]}


if __name__ == "__main__":
    main()
