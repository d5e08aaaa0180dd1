"""Score ``guard`` on fingerprints of a real vLLM: is each change found, its cause named, its price that of a run?

    python -m benchmarks.bench_guard FOLDER      # what measure_guard.py left there; writes results/guard.json

Equal builds are compared in five pairs; each changed build with the base that ran beside it. The price compared is the
dollars of a token, which go as one over the highest rate under the SLOs: as simulated from the fingerprints alone, and
as measured with the same requests on the running server.
"""

import json
import sys
from itertools import combinations
from pathlib import Path
from typing import Any

from benchmarks.guard_grid import CAUSES, GROUPS, KV_BYTES, SLO, requests

from tokonomics.catalog.engines import find_engine
from tokonomics.catalog.gpus import find_gpu
from tokonomics.catalog.load_models import find_model
from tokonomics.operate.fingerprint import Fingerprint
from tokonomics.operate.guard import BuildChange, compare
from tokonomics.operate.guard_price import held_rates
from tokonomics.operate.record import read_sealed
from tokonomics.physics.deployment import EngineFlags
from tokonomics.questions.inputs import Layout
from tokonomics.questions.tune_asked import replica_of
from tokonomics.sizing.setup import Setup
from tokonomics.traffic.slo import parse_slos
from tokonomics.types import today

RESULT = Path(__file__).parent / "results" / "guard.json"


def setup() -> Setup:
    made = replica_of(Layout.checked({"engine": "vllm"}), "llama-3.1-8b", "H200", requests(), parse_slos(SLO))
    return made.deployed(flags=EngineFlags(kv_bytes=KV_BYTES))


def named(change: BuildChange) -> list[str]:
    return [found.term for found in change.terms] + [row.name for row in change.told]


def score(folder: Path) -> dict[str, Any]:
    marks = {path.stem: read_sealed(path, Fingerprint, "old") for path in sorted(folder.glob("*-[0-9].json"))}
    rates = {name: row for path in folder.glob("*-rates.json") for name, row in json.loads(path.read_text()).items()}
    alike = [compare(marks[one], marks[other]) for one, other in combinations([n for n in marks if "base" in n], 2)]
    rows = []
    for builds in GROUPS.values():
        base, *others = builds
        for build in others:
            old, new = (marks.get(f"{each['name']}-1") for each in (base, build))
            if old is None or new is None or build["name"] not in CAUSES:
                continue
            change = compare(old, new)
            held = held_rates(setup(), old, new, change, len(requests()))
            row = {
                "build": build["name"], "verdict": change.verdict, "named": named(change),
                "said": [found.said for found in change.terms],
                "cause_named": CAUSES[build["name"]] in named(change)[:1] + [told.name for told in change.told],
                "median": change.typical, "took_s": new.took_s, "probes": len(new.probes), "skipped": new.skipped,
                "simulated": [held.before, held.after], "ends": held.ends, "level": held.calibrated,
            }  # fmt: skip
            full = [rates[each["name"]]["rate"] for each in (base, build) if each["name"] in rates]
            if len(full) == 2 and min(full) > 0:
                said = (held.before / held.after) / (full[0] / full[1]) - 1
                row |= {"measured": full, "change_off": said, "level_off": [a / b - 1 for a, b in zip(
                    (held.before, held.after), full, strict=True)]}  # fmt: skip
            rows.append(row)
    return {
        "command": "python -m benchmarks.bench_guard FOLDER",
        "date": str(today()),
        "gpu": find_gpu("H200").key,
        "model": find_model("llama-3.1-8b").key,
        "engine": find_engine("vllm").key,
        "alike": {"pairs": len(alike), "alarms": sum(change.is_worse for change in alike),
                  "medians": [round(change.typical, 4) for change in alike]},
        "changes": rows,
    }  # fmt: skip


def main() -> None:
    result = score(Path(sys.argv[1]))
    RESULT.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    alike = result["alike"]
    print(f"equal builds: {alike['alarms']} alarms in {alike['pairs']} pairs, medians {alike['medians']}")
    for row in result["changes"]:
        print(f"{row['build']}: {row['verdict']}, {row['said'] or row['named']}, cause {row['cause_named']}")
        print(f"   dollars simulated {row['simulated']}, measured {row.get('measured')}, off {row.get('change_off')}")


if __name__ == "__main__":
    main()
