"""Predicted against a real vLLM on an H200, load by load: prints the tables and records them under benchmarks/results/.

    python benchmarks/bench_vllm.py

Every load of data/vllm_h200.json.gz is simulated as it was run: its users or its recorded arrivals, its lengths, its
number of requests. The host's times come from the logs of steps and lone requests of three sessions
(``fit_engines.TEACHES``), and from the rate at which one-token requests of 128 users pass; no other serving result is
fitted. "After calibrate": every second load of a session teaches what ``tokonomics calibrate`` learns, the others are
scored, before and after.
"""

import gzip
import json
import math
import platform
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokonomics.clock import today
from tokonomics.errors import BadInput
from tokonomics.measure.calibrate import calibrate, errors, held_out_loads, load_of
from tokonomics.measure.evidence import Evidence
from tokonomics.measure.measurements import Measurement, Metric, Mode, RunFacts, Statistic
from tokonomics.measure.validate import steps_of, value_of

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
    "Llama 3.1 8B, prompts alone (its log taught the host)": ("dense",),
    "the same with steps of 2,048 tokens, prompts alone": ("small-steps",),
}
FIGURES = {
    "throughput": (Metric.output_tok_s, Statistic.mean),
    "TPOT p50": (Metric.tpot_s, Statistic.p50),
    "TTFT p50": (Metric.ttft_s, Statistic.p50),
    "TPOT p99": (Metric.tpot_s, Statistic.p99),
    "TTFT p99": (Metric.ttft_s, Statistic.p99),
}
MEASURED = {
    "throughput": ("output_throughput", 1.0),
    "TPOT p50": ("median_tpot_ms", 1e-3),
    "TTFT p50": ("median_ttft_ms", 1e-3),
    "TPOT p99": ("p99_tpot_ms", 1e-3),
    "TTFT p99": ("p99_ttft_ms", 1e-3),
}
BUDGETS = {"small-steps": 2048}
FEWEST_FOR_P99 = 40
"""Requests of a load; of fewer, the 99th percentile is one request's luck."""


def main() -> None:
    with gzip.open(HERE / "data" / "vllm_h200.json.gz", "rt") as file:
        sessions = {session["name"]: session for session in json.load(file)["sessions"]}
    loads: dict[str, list[dict[str, Any]]] = {}
    taught: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for name, session in sessions.items():
        rows = [(load, _rows(name, session, load)) for load in session["loads"] if _comparable(name, load)]
        loads[name] = [_scored(load, named) for load, named in rows]
        taught[name] = _after_calibrate([row for _, named in rows for row in named.values()])
        print(f"\n{name}")
        for load in loads[name]:
            errors = "  ".join(f"{figure} {error:+.0%}" for figure, error in load["errors"].items())
            print(f"  {load['load']:34} {errors}")
    groups = {label: _summed([load for name in names for load in loads[name]]) for label, names in GROUPS.items()}
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
        learned = "  ".join(f"{figure} {pair[0]:.1%} → {pair[1]:.1%}" for figure, pair in after[label].items())
        print(f"{label}: {shown}\n    calibrated: {learned}")
    loop = _closed_loop(json.loads((HERE / "data" / "vllm_h200_loop.json").read_text(encoding="utf-8")))
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
    (HERE / "results" / "vllm.json").write_text(text, encoding="utf-8")


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
            rows = _rows("bench", {"model": session["model"], "quant": quant}, load)
            made.append({"model": session["model"], "weights": session["weights"], **_scored(load, rows)})
        counted = {name: session[name] for name in ("server", "meter")}
        for tokens in ("input_tokens", "output_tokens"):
            bench = sum(point[tokens] for point in session["points"])
            assert bench == counted["server"][tokens] == counted["meter"][tokens], "tokens differ"
    return made


def _comparable(name: str, load: dict[str, Any]) -> bool:
    """The random prompts of vLLM's benchmark repeat: with its prefix cache on, only those alone are new to it.

    One-token answers taught the front end.
    """
    return load["asked"]["output"] > 1 and (name != "small-steps" or load["asked"]["users"] == 1)


def _rows(name: str, session: dict[str, Any], load: dict[str, Any]) -> dict[str, Measurement]:
    asked = load["asked"]
    recorded = load.get("requests") if asked["rate"] else None
    facts = RunFacts(
        requests=asked["n"],
        max_sequences=256,
        max_batched_tokens=BUDGETS.get(name),
        arrival_s=tuple(recorded["start"]) if recorded else (),
        input_tokens=tuple(recorded["input"]) if recorded else (),
        output_tokens=tuple(recorded["output"]) if recorded else (),
    )
    made = {}
    for figure, (metric, statistic) in FIGURES.items():
        field, unit = MEASURED[figure]
        if statistic is Statistic.p99 and asked["n"] < FEWEST_FOR_P99:
            continue
        made[figure] = Measurement(
            key=f"{name}: {_words(asked)}, {figure}",
            model=session["model"],
            gpu="H200",
            gpus=1,
            tp=1,
            weights=session["quant"] or "bf16",
            kv=None,
            engine="vllm",
            engine_version="0.26.0",
            year=2026,
            input_tokens=asked["input"],
            output_tokens=asked["output"],
            batch=asked["users"],
            rate=asked["rate"],
            mode=Mode.fixed_concurrency if asked["users"] else Mode.server_slo,
            metric=metric,
            statistic=statistic,
            value=load[field] * unit,
            source=name,
            run=facts,
        )
    return made


def _words(asked: dict[str, Any]) -> str:
    load = f"{asked['users']} users" if asked["users"] else f"{asked['rate']:g} requests/s"
    return f"{asked['input']}/{asked['output']}, {load}"


def _scored(load: dict[str, Any], rows: dict[str, Measurement]) -> dict[str, Any]:
    predicted = {figure: value_of(row, steps_of(row)) for figure, row in rows.items()}
    return {
        "load": _words(load["asked"]),
        "measured": {figure: row.value for figure, row in rows.items()},
        "predicted": predicted,
        "errors": {figure: predicted[figure] / row.value - 1 for figure, row in rows.items()},
    }


def _summed(loads: Sequence[dict[str, Any]]) -> dict[str, dict[str, float]]:
    made = {}
    for figure in FIGURES:
        sizes = [abs(load["errors"][figure]) for load in loads if figure in load["errors"]]
        if sizes:
            made[figure] = {"n": len(sizes), "median": statistics.median(sizes), "worst": max(sizes)}
    return made


def _after_calibrate(rows: list[Measurement]) -> dict[str, list[tuple[float, float]]]:
    """Errors on the loads that did not teach, by figure, before and after; sessions of too few loads have none."""
    try:
        group = calibrate(Evidence(rows=rows), made=today(), command="", name="half").groups[0]
    except BadInput as refusal:
        print("not calibrated:", refusal.what)
        return {}
    print(f"  {group.trial and {name: getattr(group.trial, name) for name in LEARNED}}", "; ".join(group.dropped))
    apart = held_out_loads({load_of(row) for row in rows}, 0.5)
    judged = [row for row in rows if load_of(row) in apart]
    found: dict[str, list[tuple[float, float]]] = {figure: [] for figure in FIGURES}
    for row, before, after in zip(judged, errors(judged, None), errors(judged, group.trial), strict=True):
        figure = next(name for name, kind in FIGURES.items() if kind == (row.metric, row.statistic))
        found[figure].append((math.exp(before) - 1, math.exp(after) - 1))
    return found


if __name__ == "__main__":
    main()
