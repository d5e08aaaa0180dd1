"""Predicted against a real vLLM on an H200, load by load: prints the tables and records them under benchmarks/results/.

    python benchmarks/bench_vllm.py

Every load of data/vllm_h200.json.xz is simulated as it was run: its users or its recorded arrivals, its lengths, its
number of requests. The host's times come from the logs of steps and lone requests of three sessions
(``fit_engines.TEACHES``), and from the rate at which one-token requests of 128 users pass; no other serving result is
fitted. "After calibrate": every second load of a session teaches what ``tokonomics calibrate`` learns, the others are
scored, before and after.
"""

import csv
import gzip
import io
import json
import lzma
import math
import platform
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokonomics.catalog.load_models import find_model
from tokonomics.errors import BadInput
from tokonomics.measure.benchmark_run import BenchmarkRun, Latencies, LoadPoint, RequestRecord
from tokonomics.measure.calibrate import calibrate, errors, held_out_loads, load_of
from tokonomics.measure.evidence import Evidence, taught_by
from tokonomics.measure.measurements import Measurement, Metric, Statistic
from tokonomics.measure.priced_run import MeasuredMachine
from tokonomics.measure.stated_setup import steps_of
from tokonomics.measure.validate import value_of
from tokonomics.types import today

HERE = Path(__file__).parent
LEARNED = ("decode", "prefill", "launch", "request", "step_s", "sequence_s")
GROUPS = {
    "first runs, Llama 3.1 8B and Qwen3 30B-A3B (other runs of them taught the host)": (
        "llama-3.1-8b (first runs)",
        "qwen3-30b-a3b (first runs)",
    ),
    "another model, Qwen3 32B": ("qwen3-32b",),
    "another model, Qwen3 4B": ("qwen3-4b",),
    "Llama 3.1 8B in FP8 (its log taught the host)": ("fp8",),
    "Qwen3 30B-A3B again (its log taught the host)": ("moe",),
    "Qwen3 30B-A3B in FP8 blocks (its log taught the host)": ("moe-fp8",),
    "Llama 3.1 8B, prompts alone (its log taught the host)": ("dense",),
    "the same with steps of 2,048 tokens, prompts alone": ("small-steps",),
}
AT_A_RATE = "all loads above that came at a rate: the case of a plan"
FIGURES = {
    "throughput": (Metric.output_tok_s, Statistic.mean),
    "TPOT p50": (Metric.tpot_s, Statistic.p50),
    "TTFT p50": (Metric.ttft_s, Statistic.p50),
    "TPOT p99": (Metric.tpot_s, Statistic.p99),
    "TTFT p99": (Metric.ttft_s, Statistic.p99),
}
"""What is scored; means teach and judge beside them, as in the verb."""
BUDGETS = {"small-steps": 2048}
COLLAPSED = {"moe-fp8": 8}
"""Sessions whose dummy weights sent every token to the same experts (``data/vllm_h200_experts/README.md``)."""
POINTS = HERE.parent / "src" / "tokonomics" / "measure" / "data" / "real_engine.csv.gz"
"""Every figure, measured and predicted, carried by the package: the page's chart and tables show them."""
FITS = {"qwen3-32b": "left out", "qwen3-4b": "left out"} | dict.fromkeys(("dense", "fp8", "moe", "moe-fp8"), "shaped")
"""How a session stands to the model: the logs of four taught the host, two models nothing; the rest was only seen."""


def main() -> None:
    with lzma.open(HERE / "data" / "vllm_h200.json.xz", "rt") as file:
        sessions = {session["name"]: session for session in json.load(file)["sessions"]}
    loads: dict[str, list[dict[str, Any]]] = {}
    taught: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for name, session in sessions.items():
        rows = [(load, rows_of(name, session, load)) for load in session["loads"] if comparable(name, load)]
        loads[name] = [_scored(load, of_load) for load, of_load in rows]
        taught[name] = _after_calibrate([row for _, of_load in rows for row in of_load])
        print(f"\n{name}")
        for load in loads[name]:
            errors = "  ".join(f"{figure} {error:+.0%}" for figure, error in load["errors"].items())
            print(f"  {load['load']:34} {errors}")
    groups = {label: _summed([load for name in names for load in loads[name]]) for label, names in GROUPS.items()}
    groups[AT_A_RATE] = _summed([load for found in loads.values() for load in found if load["rate"]])
    after = {
        label: {
            figure: [
                statistics.median(abs(pair[at]) for name in names for pair in taught[name].get(figure, []))
                for at in (0, 1)
            ]
            for figure in FIGURES
            if any(taught[name].get(figure) for name in names)
        }
        for label, names in GROUPS.items()
    }
    print("\nmedian error (worst load); after calibrate on every second load, on the others")
    for label, figures in groups.items():
        shown = "  ".join(f"{figure} {found['median']:.1%} ({found['worst']:.0%})" for figure, found in figures.items())
        learned = "  ".join(f"{figure} {pair[0]:.1%} → {pair[1]:.1%}" for figure, pair in after.get(label, {}).items())
        print(f"{label}: {shown}\n    calibrated: {learned}")
    loop = _closed_loop(json.loads(gzip.decompress((HERE / "data" / "vllm_h200_loop.json.gz").read_bytes())))
    for row in loop:
        print(row)
    record = {
        "date": today().isoformat(),
        "machine": f"{platform.system()} {platform.machine()}",
        "command": "python benchmarks/bench_vllm.py",
        "groups": groups,
        "calibrated": after,
        "loads": loads,
        "loop": loop,
    }
    text = json.dumps(record, indent=1, ensure_ascii=False) + "\n"
    (HERE / "results" / "vllm.json.gz").write_bytes(gzip.compress(text.encode(), 9, mtime=0))
    write_points(POINTS, sessions, loads)


COLUMNS = [
    "fit", "speed", "metric", "gpu", "gpus", "engine", "year", "model", "weights", "input", "output", "load", "source",
    "measured", "predicted",
]  # fmt: skip


def write_points(file: Path, sessions: dict[str, Any], loads: dict[str, list[dict[str, Any]]]) -> None:
    """A line for each figure of each load, as ``bench_accuracy.py`` has them of published ones; five digits."""
    lines = io.StringIO()
    table = csv.writer(lines, lineterminator="\n")
    table.writerow(COLUMNS)
    for name, scored in loads.items():
        session, fit = sessions[name], FITS.get(name, "seen")
        what = find_model(session["model"]).name, session["quant"] or "bf16"
        for load in scored:
            shape, _ = load["load"].split(", ")
            asked = load["users"] or f"{load['rate']:g}/s"
            for figure, measured in load["measured"].items():
                metric, statistic = FIGURES[figure]
                said = metric.value if statistic is Statistic.mean else f"{metric.value} {statistic.value}"
                figures = (f"{value:.5g}" for value in (measured, load["predicted"][figure]))
                layout = fit, "timed", said, "H200", 1, "vllm 0.26.0", 2026, *what
                table.writerow((*layout, *shape.split("/"), asked, "benchmarks/measure_vllm.py", *figures))
    file.write_bytes(gzip.compress(lines.getvalue().encode(), 9, mtime=0))


def _closed_loop(found: dict[str, Any]) -> list[dict[str, Any]]:
    """Our own load test on that server, measured and predicted for the same arrivals; tokens are counted thrice."""
    made = []
    for session in found["sessions"]:
        for point in session["points"]:
            sent = sorted(point["sent_s"])
            asked = {"input": 1000, "output": 200, "n": len(sent), "users": None, "rate": point["rate"]}
            figures = {
                "output_throughput": point["output_tokens_per_s"],
                **{f"{name}_{metric}_ms": point[f"{metric}_s"][at] * 1e3
                   for metric in ("ttft", "tpot") for at, name in (("p50", "median"), ("p99", "p99"))},
            }  # fmt: skip
            load = figures | {
                "asked": asked,
                "requests": {"start": sent, "input": [1000] * len(sent), "output": [200] * len(sent)},
            }
            quant = None if session["weights"] == "bf16" else session["weights"]
            rows = rows_of("bench", {"model": session["model"], "quant": quant}, load)
            made.append({"model": session["model"], "weights": session["weights"], **_scored(load, rows)})
        counted = {name: session[name] for name in ("server", "meter")}
        for tokens in ("input_tokens", "output_tokens"):
            bench = sum(point[tokens] for point in session["points"])
            assert bench == counted["server"][tokens] == counted["meter"][tokens], "tokens differ"
    return made


def comparable(name: str, load: dict[str, Any]) -> bool:
    """The random prompts of vLLM's benchmark repeat: with its prefix cache on, only those alone are new to it.

    One-token answers taught the front end.
    """
    return load["asked"]["output"] > 1 and (name != "small-steps" or load["asked"]["users"] == 1)


def rows_of(name: str, session: dict[str, Any], load: dict[str, Any]) -> list[Measurement]:
    """The load as the verb would read it; and what it cannot read from a result, the server's limits."""
    asked = load["asked"]
    recorded = load.get("requests") if asked["rate"] else None
    requests = zip(*(recorded[column] for column in ("start", "input", "output")), strict=True) if recorded else ()
    records = tuple(RequestRecord(sent_s=sent, input_tokens=i, output_tokens=o) for sent, i, o in requests)
    per_s = load["output_throughput"] / asked["output"]
    totals = {"input_tokens": sum(one.input_tokens for one in records), "failed": 0}
    point = LoadPoint(
        concurrency=asked["users"],
        rate=asked["rate"],
        requests_per_s=per_s,
        input_tokens_per_s=per_s * asked["input"],
        output_tokens_per_s=load["output_throughput"],
        mean_input_tokens=asked["input"],
        mean_output_tokens=asked["output"],
        completed=len(records) or asked["n"],
        **(totals | {"output_tokens": sum(one.output_tokens for one in records)} if records else {}),
        ttft_s=_latencies(load, "ttft"),
        tpot_s=_latencies(load, "tpot"),
        records=records,
    )
    machine = MeasuredMachine(gpu="H200", gpus=1, tp=1, engine="vllm", weights=session["quant"] or "bf16")
    limits = {"max_sequences": 256, "max_batched_tokens": BUDGETS.get(name)}
    return [
        row.model_copy(
            update={
                "source": name,
                "run": row.run.model_copy(update=limits),
                "visited_experts": COLLAPSED.get(name),
            }
        )
        for row in taught_by(BenchmarkRun(tool=name, model=session["model"], points=(point,)), machine)
    ]


def _latencies(load: dict[str, Any], metric: str) -> Latencies:
    names = {"mean": "mean", "median": "p50", "p99": "p99"}
    given = {ours: load.get(f"{theirs}_{metric}_ms") for theirs, ours in names.items()}
    return Latencies(**{statistic: ms * 1e-3 for statistic, ms in given.items() if ms is not None})


def _words(asked: dict[str, Any]) -> str:
    load = f"{asked['users']} users" if asked["users"] else f"{asked['rate']:g} requests/s"
    return f"{asked['input']}/{asked['output']}, {load}"


def _scored(load: dict[str, Any], of_load: Sequence[Measurement]) -> dict[str, Any]:
    by_kind = {(row.metric, row.statistic): row for row in of_load}
    rows = {figure: by_kind[kind] for figure, kind in FIGURES.items() if kind in by_kind}
    predicted = {figure: value_of(row, steps_of(row)) for figure, row in rows.items()}
    return {
        "load": _words(load["asked"]),
        "users": load["asked"]["users"],
        "rate": load["asked"]["rate"],
        "measured": {figure: row.value for figure, row in rows.items()},
        "predicted": predicted,
        "errors": {figure: predicted[figure] / row.value - 1 for figure, row in rows.items()},
    }


def _summed(loads: Sequence[dict[str, Any]]) -> dict[str, dict[str, float]]:
    made = {}
    for figure in FIGURES:
        errors = [load["errors"][figure] for load in loads if figure in load["errors"]]
        sizes = [abs(error) for error in errors]
        if sizes:
            made[figure] = {
                "n": len(sizes),
                "median": statistics.median(sizes),
                "worst": max(sizes),
                "bias": statistics.median(errors),
            }
    return made


def _after_calibrate(rows: list[Measurement]) -> dict[str, list[tuple[float, float]]]:
    """Errors on the loads that did not teach, by figure, before and after."""
    try:
        learned = calibrate(Evidence(rows=rows), made=today(), command="", name="half").groups[0].correction
    except BadInput as refusal:  # nothing is corrected
        print("  not calibrated:", refusal.what)
        learned = None
    if learned:
        print(f"  { ({name: getattr(learned, name) for name in LEARNED}) }", "; ".join(learned.notes))
    apart = held_out_loads({load_of(row) for row in rows}, 0.5)
    judged = [row for row in rows if load_of(row) in apart]
    found: dict[str, list[tuple[float, float]]] = {figure: [] for figure in FIGURES}
    named = {kind: figure for figure, kind in FIGURES.items()}
    for row, before, after in zip(judged, errors(judged, None), errors(judged, learned), strict=True):
        if (row.metric, row.statistic) in named:
            found[named[row.metric, row.statistic]].append((math.exp(before) - 1, math.exp(after) - 1))
    return found


if __name__ == "__main__":
    main()
