"""The meter over a day of 200 servers that fail in every way, against true books: tokens and cents that are off.

    python benchmarks/soak_meter.py [--servers 200] [--hours 24] [--every 15] [--seed 1]

Time is moved by hand (tests/measure/soak.py), so that a day takes about twenty minutes of processor time. Writes
benchmarks/results/soak.json; exits with an error where a token or a cent is off.
"""

import argparse
import json
import platform
import sys
import tempfile
import time
from dataclasses import asdict
from datetime import date
from pathlib import Path

ROOT = Path(__file__).parents[1]
RESULT = Path(__file__).parent / "results" / "soak.json"
sys.path.insert(0, str(ROOT))


def main() -> None:
    from tests.measure.soak import Soak, summary

    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ask.add_argument("--servers", type=int, default=200)
    ask.add_argument("--hours", type=float, default=24.0)
    ask.add_argument("--every", type=float, default=15.0)
    ask.add_argument("--seed", type=int, default=1)
    asked = ask.parse_args()
    began = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        soak = Soak(Path(folder), asked.servers, asked.hours, asked.every, asked.seed)
        soak.run()
        found = asdict(summary(soak))
        ledger_bytes = sum(file.stat().st_size for file in Path(folder).iterdir())
    for name, value in found.pop("happened").items():
        found[name] = value
        print(f"{name:20}{value:>16,}")
    for name, value in found.items():
        if name.endswith(("_tokens", "usd")):
            print(f"{name:20}{value:>16,.2f}" if name.endswith("usd") else f"{name:20}{value:>16,.0f}")
    result = {
        "command": f"python benchmarks/soak_meter.py --servers {asked.servers} --hours {asked.hours:g} "
        f"--every {asked.every:g} --seed {asked.seed}",
        "date": str(date.today()),
        "machine": f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
        "cpu_s": time.process_time() - began,
        "ledger_bytes": ledger_bytes,
        **found,
    }
    RESULT.write_text(json.dumps(result, indent=1) + "\n")
    if found["wrong"]:
        raise SystemExit("\n".join(found["wrong"][:10]))


if __name__ == "__main__":
    main()
