"""The generated parts of docs/questions/is-the-new-build-slower.md, from the record of `bench_guard`."""

import json
from functools import cache
from pathlib import Path
from typing import Any

from tokonomics.units import count, percent

ROOT = Path(__file__).parent.parent
RECORD = ROOT / "benchmarks" / "results" / "guard.json"
BUILDS = {
    "eager": "`--enforce-eager`", "graphs-64": "`--max-cudagraph-capture-size 64`",
    "no-prefix-cache": "`--no-enable-prefix-caching`", "kv-fp8": "`--kv-cache-dtype fp8`",
}  # fmt: skip


@cache
def record() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(RECORD.read_text(encoding="utf-8"))
    return found


def made() -> str:
    """Return what was measured, and how many equal builds raised an alarm."""
    found = record()
    alike = found["alike"]
    return (
        f"Fingerprints of {found['model']} under {found['engine']} on one {found['gpu']}, measured on {found['measured']}, scored by "
        f"`{found['command']}` on {found['date']}. The same build was measured five times: of its {alike['pairs']} pairs, "
        f"{alike['alarms']} raised an alarm (how much requests drift was learned from these five, so that they are no test of it)."
    )


def scores() -> str:
    """Return a table: what was changed, what was named, and how far the price was off."""
    lines = [
        "| changed | verdict | what was named | requests/s before → after: simulated | measured | change of the price off by |",
        "|---|---|---|--:|--:|--:|",
    ]
    for row in record()["changes"]:
        simulated, measured = (" → ".join(map(count, row[name])) for name in ("simulated", "measured"))
        off = f"{'+' if row['change_off'] > 0 else '−'}{percent(abs(row['change_off']))}"
        lines.append(
            f"| {BUILDS[row['build']]} | {row['verdict']} | {'; '.join(row['said'] + row['told'])} | {simulated} | {measured} | {off} |"
        )
    return "\n".join(lines)
