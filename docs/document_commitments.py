"""What committing to GPUs would have cost since 2024, from the last run of benchmarks/bench_commitments.py."""

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
WAYS = {
    "ours": "this plan",
    "ours, caution 1": "lowest worst tenth",
    "all reserved": "all reserved",
    "median rule": "median rule",
    "perfect foresight": "perfect foresight",
}


def backtest_table() -> str:
    """What each way paid of what renting all on demand cost: by quote over all GPUs, and by GPU at one quote."""
    path = ROOT / "benchmarks" / "results" / "commitments.json"
    result: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    pooled: dict[tuple[int, float], list[dict[str, Any]]] = defaultdict(list)
    for row in result["rows"]:
        pooled[row["months"], row["quote"]].append(row)
    head = "| horizon | quote | GPU | starts | price fell / rose | " + " | ".join(WAYS.values()) + " |"
    lines = [head, "|--:|--:|---|--:|--:|" + "--:|" * len(WAYS)]
    for (months, quote), rows in pooled.items():
        lines.append(_line(months, quote, "all", rows))
        if quote == 0.7:
            lines += [_line(months, quote, row["gpu"], [row]) for row in rows]
    low, mid, high = result["settings"]["growth"]
    said = (
        f"Demand `{result['settings']['demand']}` machines, growing by {low:.0%} to {high:.0%} a month (most likely {mid:.0%}). "
        "The figures are the sum over all starts, in what all on demand cost; in brackets the worst start."
    )
    made = f"Made by `{result['command']}` on {result['date']}, {result['machine']}."
    return "\n".join([said, "", *lines, "", made])


def _line(months: int, quote: float, gpu: str, rows: list[dict[str, Any]]) -> str:
    starts = sum(row["windows"] for row in rows)
    moved = f"{sum(row['price_fell'] for row in rows)} / {sum(row['price_rose'] for row in rows)}"
    cells = []
    for name in WAYS:
        paid = sum(row["paid"][name] * row["windows"] for row in rows) / starts
        cells.append(f"{paid:.1%} ({max(row['dearest'][name] for row in rows):.0%})")
    return f"| {months} months | {quote:.0%} | {gpu} | {starts} | {moved} | {' | '.join(cells)} |"
