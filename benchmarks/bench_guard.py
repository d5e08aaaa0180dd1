"""Score ``guard`` on fingerprints of a real vLLM: is each change found, its cause named, its price that of a run?

    python -m benchmarks.bench_guard ask         # what the simulator expects each build to hold, before any is measured
    python -m benchmarks.bench_guard             # score benchmarks/data/vllm_h200_guard.json.gz
    python -m benchmarks.bench_guard keep FOLDER # make that record of what measure_guard.py left in a folder

Equal builds are compared in every pair; each changed build with the base whose probes were taken in turns with its own.
The price compared is the dollars of a token, which go as one over the highest rate under the SLOs: as simulated from
the fingerprints alone, and as measured with the same requests on the running server.
"""

import gzip
import json
import sys
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

from benchmarks.guard_grid import CAUSES, GUESSES, KV_BYTES, SLO, requests

from tokonomics.catalog.engines import find_engine
from tokonomics.catalog.gpus import find_gpu
from tokonomics.catalog.layers import Precision
from tokonomics.catalog.load_models import find_model
from tokonomics.operate.fingerprint import Fingerprint
from tokonomics.operate.guard import BuildChange, compare
from tokonomics.operate.guard_price import held_rates
from tokonomics.operate.replay_rate import simulated_rate
from tokonomics.physics.deployment import EngineFlags
from tokonomics.questions.inputs import Layout
from tokonomics.questions.tune_asked import replica_of
from tokonomics.sizing.setup import Setup
from tokonomics.traffic.slo import parse_slos
from tokonomics.types import today

DATA = Path(__file__).parent / "data" / "vllm_h200_guard.json.gz"
RESULT = Path(__file__).parent / "results" / "guard.json"


def setup() -> Setup:
    made = replica_of(Layout.checked({"engine": "vllm"}), "llama-3.1-8b", "H200", requests(), parse_slos(SLO))
    return made.deployed(flags=EngineFlags(kv_bytes=KV_BYTES))


def expected() -> dict[str, float]:
    """Return the requests a second that the simulator expects of each build, knowing its flags alone."""
    base = setup()
    builds = {
        "base": base,
        "eager": base.deployed(flags=EngineFlags(kv_bytes=KV_BYTES, captured_tokens=0)),
        "graphs-64": base.deployed(flags=EngineFlags(kv_bytes=KV_BYTES, captured_tokens=64)),
        "no-prefix-cache": replace(base, prefix_cache=False),
        "kv-fp8": base.deployed(kv=Precision.fp8),
    }
    return {name: simulated_rate(build, 30.0, len(requests()))[0] for name, build in builds.items()}


def keep(folder: Path) -> None:
    marks = {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*-[0-9].json"))}
    record = {"date": str(today()), "gpu": "H200", "engine": "vllm 0.26.0", "marks": marks,
              "rates": json.loads((folder / "rates.json").read_text())}  # fmt: skip
    DATA.write_bytes(gzip.compress(json.dumps(record).encode(), 9, mtime=0))


def named(change: BuildChange) -> list[str]:
    return [found.term for found in change.terms] + [row.name for row in change.told]


def any_base(marks: dict[str, Fingerprint]) -> dict[str, int]:
    """Return how often each change is named first beside any of the base's fingerprints, kept at another time."""
    pairs = [(marks[base], marks[f"{build}-1"], cause) for base in marks if "base" in base
             for build, cause in CAUSES.items()]  # fmt: skip
    changes = [(compare(old, new), cause) for old, new, cause in pairs]
    right = sum(cause in named(change)[:1] + [told.name for told in change.told] for change, cause in changes)
    sized = [term.above_tokens for change, _ in changes for term in change.terms if term.above_tokens]
    return {"pairs": len(pairs), "cause_first": right, "graphs": len(sized), "graphs_at_64": sized.count(64)}


def score(record: dict[str, Any]) -> dict[str, Any]:
    marks = {name: Fingerprint.model_validate(mark) for name, mark in record["marks"].items()}
    held = {name: row["rate"] for name, row in record["rates"].items()}
    alike = [compare(marks[one], marks[other]) for one, other in combinations([n for n in marks if "base" in n], 2)]
    old, rows = marks["base-1"], []
    for build, cause in CAUSES.items():
        new = marks[f"{build}-1"]
        change = compare(old, new)
        found = held_rates(setup(), old, new, change, len(requests()))
        rows.append({
            "build": build, "verdict": change.verdict, "named": named(change),
            "said": [term.said for term in change.terms],
            "told": [f"{row.name}: {row.before} → {row.after}" for row in change.told],
            "deciding": [[row.what, row.low, row.high] for row in change.deciding],
            "cause_named": cause in named(change)[:1] + [told.name for told in change.told],
            "median": change.typical, "probes": len(new.probes), "skipped": len(new.skipped),
            "simulated": [found.before, found.after], "ends": found.ends, "level": found.calibrated,
            "measured": [held["base"], held[build]],
            "change_off": (found.before / found.after) / (held["base"] / held[build]) - 1,
            "level_off": [found.before / held["base"] - 1, found.after / held[build] - 1],
        })  # fmt: skip
    return {
        "command": "python -m benchmarks.bench_guard",
        "date": str(today()),
        "measured": record["date"],
        "gpu": find_gpu("H200").key,
        "model": find_model("llama-3.1-8b").key,
        "engine": find_engine("vllm").key,
        "blind": {name: [rate, held[name], rate / held[name] - 1] for name, rate in GUESSES.items()},
        "today": {name: rate / held[name] - 1 for name, rate in expected().items()},
        "any_base": any_base(marks),
        "alike": {"pairs": len(alike), "alarms": sum(change.is_worse or change.verdict != "same" for change in alike),
                  "medians": [round(change.typical, 4) for change in alike]},
        "changes": rows,
    }  # fmt: skip


def main() -> None:
    if sys.argv[1:] == ["ask"]:
        print(json.dumps(expected(), indent=1))
        return
    if sys.argv[1:2] == ["keep"]:
        keep(Path(sys.argv[2]))
        return
    result = score(json.loads(gzip.decompress(DATA.read_bytes())))
    RESULT.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    for name, (said, was, off) in result["blind"].items():
        print(f"{name}: {said:.1f} requests/s from its flags alone, {was:.1f} measured, off {100 * off:+.1f} %")
    alike = result["alike"]
    print(f"equal builds: {alike['alarms']} alarms in {alike['pairs']} pairs, medians {alike['medians']}")
    for row in result["changes"]:
        print(f"{row['build']}: {row['verdict']}, {row['said'] or row['told']}, cause {row['cause_named']}")
        print(f"   rates {row['simulated']}, measured {row['measured']}, off {100 * row['change_off']:+.1f} %")


if __name__ == "__main__":
    main()
