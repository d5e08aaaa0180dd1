"""The generated parts of docs/questions/which-flags.md, from the record of `bench_tune`."""

import json
import statistics
from functools import cache
from pathlib import Path
from typing import Any

from tokonomics.units import fine_percent, percent

ROOT = Path(__file__).parent.parent
RECORD = ROOT / "benchmarks" / "results" / "tune.json"
MODELS = {"8b": "Llama 3.1 8B", "experts": "ERNIE 4.5 21B-A3B"}
TUNERS = ("tune", "optuna", "random")
NEAR = 0.03
TRACES = {"code": "code completions", "assistants": "assistants"}


@cache
def record() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(RECORD.read_text(encoding="utf-8"))
    return found


def named(case: str) -> str:
    model, trace = case.split(", ")
    return f"{MODELS[model]}, {TRACES[trace]}"


def opening() -> str:
    """Return how many trials each search took, and what it found."""
    rows = record()["cases"]
    shares = [share for row in rows for share in row["tune"]]
    trials = [count for row in rows for count in row["tune_trials"]]
    near = sum(share <= NEAR for share in shares)
    others = ", ".join(
        f"{name} {percent(statistics.mean(share for row in rows for share in row[key]))}"
        for name, key in (("Optuna", "optuna"), ("random search", "random"))
    )
    return (
        f"**{min(trials)} to {max(trials)} trials.** `tune` chose a set within 3 % of the best price per token in {near} of "
        f"{len(shares)} searches (four cases, ten draws of what chance does to a trial), {fine_percent(max(shares))} dearer at "
        f"worst. With six trials each, what others chose was dearer by, on average: {others}."
    )


def made() -> str:
    found = record()
    return (
        f"Predicted on {found['asked']}, served by {found['engine']} on one {found['gpu']} on {found['served']} "
        f"({found['loads']} loads of {found['cells']} cells); scored by `{found['command']}` on {found['date']}, "
        f"{found['machine']}."
    )


def scores() -> str:
    """Return a table with what each tuner chose, and one with how well the sets were predicted."""
    lines = [
        "| 24 sets of | as started | trials of tune | tune: mean (worst) | first of the ranking | Optuna | random |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    for row in record()["cases"]:
        chosen = [f"{fine_percent(statistics.mean(row[key]))} ({percent(max(row[key]))})" for key in TUNERS]
        counts = row["tune_trials"]
        lines.append(
            f"| {named(row['case'])} | {percent(row['as_started'])} | {min(counts)}–{max(counts)} | {chosen[0]} "
            f"| {fine_percent(row['first_ranked'])} | {chosen[1]} | {chosen[2]} |"
        )
    lines += [
        "",
        "| 24 sets of | rank correlation | off in the median | shared by all sets | the rest | a trial scatters "
        "| cells bracketed, all loads held, all missed |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    for row in record()["cases"]:
        known = ", ".join(str(row["known"][how]) for how in ("between", "above", "below"))
        shares = [
            percent(row["off"]),
            f"{row['bias'] * 100:+.0f} %",
            percent(row["apart"]),
            fine_percent(row["scatter"]),
        ]
        lines.append(f"| {named(row['case'])} | {row['rank']:.2f} | {' | '.join(shares)} | {known} |")
    return "\n".join(lines)
